/*
 * The membership machine, event by event: each phase, each refusal with its numbers, each answer,
 * and each way in which something can go wrong. tests/sim/member_sim.c has many of them at random.
 *
 *     world:   node 0: members 0 1 (4)      node 1: members 2 3 (5)      (parked)
 *              seats          0 1 2                   3 4 5               6 7 reserved
 */
#include <string.h>

#include "base/mem.h"
#include "member/member.h"
#include "testutil.h"

#define SECOND UINT64_C(1000000000)
#define SEATS 6
#define SEATS_MAX 8
#define GROWN 6u /* members, when all parked ones have joined */

static const uint32_t nodes[] = {0, 0, 1, 1, 0, 1};
static const uint32_t two_of_node_1[] = {2, 3};

static struct eep_member *m;
static struct eep_member_actions did;
static struct eep_member_params params;

/* ---- words ---- */

static void begin(void)
{
    eep_member_destroy(m);
    CK_OK(eep_member_create(&params, 0, &m));
}

static void set_up(void)
{
    params = (struct eep_member_params){
        .started = 6, .active = 4, .node_of = nodes, .seats = SEATS, .seats_max = SEATS_MAX};
    m = NULL;
    begin();
}

static void tear_down(void)
{
    eep_member_destroy(m);
    m = NULL;
}

static const struct eep_member_state *state(void)
{
    return eep_member_state(m);
}

static enum eep_status step_at(uint64_t now_ns, const struct eep_member_event *event)
{
    return eep_member_step(m, event, now_ns, &did);
}

#define EVENT(...) (&(struct eep_member_event){__VA_ARGS__})

static void feed(const struct eep_member_event *event)
{
    const uint64_t audits = state()->audit_count;

    CK_OK(step_at(0, event));
    for (uint32_t i = 0; i < did.audit_count; i++) {
        ck_assert_uint_eq(did.audits[i].sequence, audits + i);
    }
    ck_assert_uint_eq(state()->audit_count, audits + did.audit_count);
}

static void local(uint64_t now_ns, enum eep_member_event_kind kind, uint32_t member)
{
    CK_OK(step_at(now_ns, EVENT(.kind = kind, .member = member)));
}

static void passed(uint64_t ns)
{
    feed(EVENT(.kind = EEP_PASSED, .passed_ns = ns));
}

static void done(uint32_t member, uint32_t serial, enum eep_status status)
{
    feed(EVENT(.kind = EEP_DONE, .member = member, .serial = serial, .status = status));
}

static void appeared(uint32_t member, uint32_t node, uint32_t serial)
{
    feed(EVENT(.kind = EEP_APPEARED, .member = member, .node = node, .serial = serial));
}

static void gone(uint32_t member)
{
    feed(EVENT(.kind = EEP_GONE, .member = member));
}

#define SET(...) (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4

static void agreed(const uint32_t *set, size_t count)
{
    feed(EVENT(.kind = EEP_AGREED, .epoch = state()->epoch + 1, .position = state()->position,
               .set = set, .set_count = (uint32_t)count));
}

static void ask(struct eep_member_request request, const char *id)
{
    snprintf(request.id, sizeof(request.id), "%s", id);
    feed(EVENT(.kind = EEP_REQUEST, .request = request));
}

static void scale(const char *id, uint32_t target)
{
    ask((struct eep_member_request){.kind = EEP_OPERATION_SCALE, .target = target}, id);
}

static void drain(const char *id, const uint32_t *members, size_t count)
{
    ask((struct eep_member_request){.kind = EEP_OPERATION_DRAIN,
                                    .drain = members,
                                    .drain_count = (uint32_t)count},
        id);
}

static void abort_it(const char *id)
{
    ask((struct eep_member_request){.kind = EEP_OPERATION_ABORT}, id);
}

/* The n-th action of this kind in the last step, or NULL. */
static const struct eep_member_action *nth(enum eep_member_action_kind kind, uint32_t n)
{
    for (uint32_t i = 0; i < did.count; i++) {
        if (did.items[i].kind == kind && n-- == 0) {
            return &did.items[i];
        }
    }
    return NULL;
}

static uint32_t count_of(enum eep_member_action_kind kind)
{
    uint32_t count = 0;

    while (nth(kind, count) != NULL) {
        count++;
    }
    return count;
}

/* That the last step asked this member for it. */
static bool asks(enum eep_member_action_kind kind, uint32_t member)
{
    for (uint32_t i = 0; i < count_of(kind); i++) {
        if (nth(kind, i)->member == member) {
            return true;
        }
    }
    return false;
}

static uint32_t life(uint32_t member)
{
    return eep_member_life(m, member);
}

static uint32_t phase(void)
{
    return state()->operation.phase;
}

static uint32_t wait_serial(void)
{
    return state()->operation_wait.serial;
}

/* All of the epoch have taken over their seats. */
static void reseat(void)
{
    const uint32_t serial = state()->reseat_wait.serial;

    ck_assert_uint_eq(state()->mode, EEP_MODE_RESEATING);
    for (uint32_t id = 0; id < state()->next_id; id++) {
        if (life(id) == EEP_LIFE_ACTIVE || life(id) == EEP_LIFE_DRAINING) {
            done(id, serial, EEP_OK);
        }
    }
    ck_assert_uint_eq(state()->mode, EEP_MODE_SERVING);
}

static void lose_all_but(const uint32_t *set, size_t count)
{
    agreed(set, count);
    reseat();
}

/* Everybody who is waited for reports, once. */
static void report_all(enum eep_status status)
{
    const uint32_t serial = wait_serial(), now = phase();

    for (uint32_t id = 0; id < state()->next_id && phase() == now && wait_serial() == serial;
         id++) {
        if (life(id) == EEP_LIFE_JOINING && now == EEP_PHASE_STARTING && status == EEP_OK) {
            appeared(id, 0, serial);
        } else {
            done(id, serial, status);
        }
    }
}

/* An operation that has come to a phase: growing by all parked ones, or draining node 1. */
static void reach(bool grows, enum eep_operation_phase wanted)
{
    begin();
    if (wanted == EEP_PHASE_PLANNED) {
        agreed(SET(0, 1, 2, 3));
    }
    if (grows) {
        scale("op", GROWN);
    } else {
        drain("op", two_of_node_1, 2);
    }
    while (phase() != wanted) {
        ck_assert_uint_lt(phase(), wanted);
        report_all(EEP_OK);
    }
    ck_assert_uint_eq(phase(), wanted);
}

static const struct eep_operation *last(void)
{
    ck_assert_uint_gt(state()->history_count, 0);
    return &state()->history[(state()->history_count - 1) % EEP_OPERATION_HISTORY];
}

static void ck_ended(enum eep_operation_phase how, enum eep_operation_reason reason,
                     enum eep_status status)
{
    ck_assert_uint_eq(phase(), EEP_PHASE_NONE);
    ck_assert_uint_eq(last()->phase, how);
    ck_assert_str_eq(eep_reason_text((enum eep_operation_reason)last()->reason),
                     eep_reason_text(reason));
    ck_assert_int_eq(last()->status, status);
    ck_assert_uint_eq(state()->operation_wait.serial, 0);
}

/* All as before the operation. */
static void ck_rolled_back(enum eep_operation_reason reason, enum eep_status status)
{
    ck_ended(EEP_PHASE_ROLLED_BACK, reason, status);
    ck_assert_uint_eq(count_of(EEP_DO_ROLL_BACK), 1);
    for (uint32_t id = 0; id < 4; id++) {
        ck_assert_uint_eq(life(id), EEP_LIFE_ACTIVE);
    }
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        ck_assert_uint_eq(state()->seats[seat].executor, eep_layout_executor(seat, SEATS, 4));
        ck_assert_uint_eq(state()->seats[seat].state, EEP_SEAT_ACTIVE);
        ck_assert_uint_eq(state()->seats[seat].next, EEP_NO_MEMBER);
    }
}

static void ck_answer(enum eep_answer code, enum eep_operation_reason reason, const char *id)
{
    const struct eep_member_action *a = nth(EEP_DO_ANSWER, 0);

    ck_assert_ptr_nonnull(a);
    ck_assert_int_eq(a->code, code);
    ck_assert_str_eq(eep_reason_text(a->reason), eep_reason_text(reason));
    ck_assert_str_eq(a->operation, id);
    ck_assert_uint_eq(a->by, eep_member_coordinator(m));
}

static void ck_refused(enum eep_operation_reason reason, uint32_t have, uint32_t want)
{
    ck_assert_uint_eq(did.count, 1);
    ck_answer(EEP_ANSWER_REFUSED, reason, "op");
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->have, have);
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->want, want);
    ck_assert_uint_eq(phase(), EEP_PHASE_NONE);
}

/* ---- the beginning ---- */

START_TEST(the_first_members_serve_and_share_the_seats)
{
    ck_assert_uint_eq(state()->epoch, 1);
    ck_assert_uint_eq(state()->mode, EEP_MODE_SERVING);
    ck_assert_uint_eq(eep_member_size(state()), 4);
    ck_assert_uint_eq(eep_member_coordinator(m), 0);
    ck_assert_uint_eq(life(3), EEP_LIFE_ACTIVE);
    ck_assert_uint_eq(life(4), EEP_LIFE_PARKED);
    ck_assert_uint_eq(life(6), EEP_LIFE_NONE);
    ck_assert_uint_eq(life(EEP_NO_MEMBER), EEP_LIFE_NONE);
    ck_assert_uint_eq(state()->seats[5].executor, 3);
    ck_assert_uint_eq(state()->seats[5].held_on, 2);
    ck_assert_uint_eq(state()->seats[6].state, EEP_SEAT_RESERVED);
    ck_assert_uint_eq(state()->reseat_wait.owner, EEP_NO_MEMBER);
    ck_assert_uint_eq(state()->operation_wait.owner, EEP_NO_MEMBER);
}
END_TEST

static void ck_no_job(struct eep_member_params p, const char *number)
{
    struct eep_member *none = NULL;

    ck_assert_int_eq(eep_member_create(&p, 0, &none), EEP_ERR_INVALID);
    ck_assert_msg(strstr(eep_error_text(), number) != NULL, "%s: %s", number, eep_error_text());
    ck_assert_ptr_null(none);
}

START_TEST(a_job_of_impossible_numbers_is_refused)
{
    static const uint32_t far[] = {0, EEP_NODES_MAX};
    const struct eep_member_params p = params;
    struct eep_member_params bad;

    ck_no_job((bad = p, bad.active = 0, bad), "0 members active of 6");
    ck_no_job((bad = p, bad.active = 7, bad), "7 members active of 6");
    ck_no_job((bad = p, bad.started = EEP_MEMBERS_MAX + 1, bad), "of 257 started");
    ck_no_job((bad = p, bad.seats = 0, bad), "0 seats of 8");
    ck_no_job((bad = p, bad.seats = 9, bad), "9 seats of 8");
    ck_no_job((bad = p, bad.seats_max = EEP_SEATS_MAX + 1, bad), "6 seats of 257");
    ck_no_job((bad = p, bad.max_size = 3, bad), "at most 3 members");
    ck_no_job((bad = p, bad.max_size = EEP_MEMBERS_MAX + 1, bad), "at most 257 members");
    ck_no_job((bad = p, bad.started = 2, bad.active = 1, bad.node_of = far, bad),
              "member 1 is on node 64");
}
END_TEST

/* ---- what one process sees ---- */

START_TEST(a_dead_member_makes_this_process_give_up_the_epoch)
{
    const struct eep_member_event late = {.kind = EEP_PASSED, .passed_ns = 1};
    const uint64_t position = state()->position;

    local(5 * SECOND, EEP_SEEN_DEAD, 2);
    ck_assert_uint_eq(did.count, 1);
    ck_assert_ptr_nonnull(nth(EEP_DO_SHRINK, 0));
    ck_assert_uint_eq(nth(EEP_DO_SHRINK, 0)->deadline_ns, 15 * SECOND);
    ck_assert_uint_eq(nth(EEP_DO_SHRINK, 0)->count, 1);
    ck_assert(eep_member_is_shrinking(m));
    ck_assert_uint_eq(state()->position, position);
    ck_assert_int_eq(step_at(0, &late), EEP_ERR_REVOKED);
    ck_assert_uint_eq(did.count, 0);
    ck_assert_uint_eq(state()->position, position);
    local(6 * SECOND, EEP_SEEN_DEAD, 3); /* once is enough */
    ck_assert_uint_eq(did.count, 0);
}
END_TEST

START_TEST(a_revoked_epoch_is_given_up_too)
{
    local(0, EEP_REVOKED, 0);
    ck_assert_ptr_nonnull(nth(EEP_DO_SHRINK, 0));
    agreed(SET(0, 1, 2, 3));
    ck_assert(!eep_member_is_shrinking(m));
}
END_TEST

START_TEST(shrinking_is_tried_again_and_the_launcher_asked_after_eight_times)
{
    local(0, EEP_REVOKED, 0);
    local(10 * SECOND - 1, EEP_TICK, 0);
    ck_assert_uint_eq(did.count, 0);
    local(10 * SECOND, EEP_TICK, 0);
    ck_assert_uint_eq(nth(EEP_DO_SHRINK, 0)->count, 2);
    ck_assert_uint_eq(nth(EEP_DO_SHRINK, 0)->deadline_ns, 20 * SECOND);
    for (uint32_t i = 3; i <= 24; i++) {
        local(11 * SECOND, EEP_SHRINK_FAILED, 0);
        ck_assert_uint_eq(nth(EEP_DO_SHRINK, 0)->count, i);
        ck_assert_uint_eq(count_of(EEP_DO_RESTART), i % 8 == 0);
    }
    agreed(SET(0, 1));
    local(12 * SECOND, EEP_SHRINK_FAILED, 0); /* of the shrink that is over */
    ck_assert_uint_eq(did.count, 0);
    local(12 * SECOND, EEP_REVOKED, 0);
    ck_assert_uint_eq(nth(EEP_DO_SHRINK, 0)->count, 1);
}
END_TEST

START_TEST(a_silent_member_is_fenced_by_its_node_and_then_counts_as_dead)
{
    local(SECOND, EEP_SEEN_SILENT, 3);
    ck_assert_uint_eq(did.count, 1);
    ck_assert_uint_eq(nth(EEP_DO_FENCE, 0)->member, 3);
    ck_assert_uint_eq(nth(EEP_DO_FENCE, 0)->by, 2);
    ck_assert_uint_eq(nth(EEP_DO_FENCE, 0)->deadline_ns, 3 * SECOND);
    ck_assert_uint_eq(life(3), EEP_LIFE_SILENT);
    local(SECOND, EEP_SEEN_SILENT, 3);
    ck_assert_uint_eq(did.count, 0);
    local(3 * SECOND - 1, EEP_TICK, 0);
    ck_assert(!eep_member_is_shrinking(m));
    local(3 * SECOND, EEP_TICK, 0);
    ck_assert(eep_member_is_shrinking(m));
}
END_TEST

START_TEST(whoever_is_heard_again_or_fenced_is_not_silent_any_more)
{
    local(0, EEP_SEEN_SILENT, 3);
    local(1, EEP_SEEN_ALIVE, 3);
    ck_assert_uint_eq(life(3), EEP_LIFE_ACTIVE);
    local(9 * SECOND, EEP_TICK, 0);
    ck_assert(!eep_member_is_shrinking(m));
    local(9 * SECOND, EEP_SEEN_SILENT, 3);
    local(9 * SECOND, EEP_FENCED, 3);
    ck_assert(eep_member_is_shrinking(m));
    ck_assert_uint_eq(life(3), EEP_LIFE_ACTIVE);
}
END_TEST

START_TEST(a_node_that_is_silent_altogether_is_fenced_by_the_coordinator)
{
    local(0, EEP_SEEN_SILENT, 2);
    ck_assert_uint_eq(nth(EEP_DO_FENCE, 0)->by, 3);
    local(0, EEP_SEEN_SILENT, 3);
    ck_assert_uint_eq(nth(EEP_DO_FENCE, 0)->by, 0);
    local(0, EEP_SEEN_SILENT, 0); /* never of itself, nor of those outside */
    ck_assert_uint_eq(did.count, 0);
    local(0, EEP_SEEN_SILENT, 4);
    ck_assert_uint_eq(did.count, 0);
    agreed(SET(0, 1, 2, 3)); /* a new epoch hears for itself */
    ck_assert_uint_eq(life(2), EEP_LIFE_ACTIVE);
}
END_TEST

START_TEST(the_death_of_one_outside_is_reported_and_agreed_on)
{
    local(0, EEP_SEEN_DEAD, 4);
    ck_assert_uint_eq(did.count, 1);
    ck_assert_uint_eq(nth(EEP_DO_REPORT, 0)->member, 4);
    ck_assert(!eep_member_is_shrinking(m));
    ck_assert_uint_eq(life(4), EEP_LIFE_PARKED);
    gone(4);
    ck_assert_uint_eq(life(4), EEP_LIFE_DEAD);
    local(0, EEP_SEEN_DEAD, 4);
    ck_assert_uint_eq(did.count, 0);
    gone(1); /* of the epoch: that is for a shrink to say */
    gone(77);
    ck_assert_uint_eq(life(1), EEP_LIFE_ACTIVE);
}
END_TEST

/* ---- loss ---- */

START_TEST(seats_of_a_dead_member_go_to_its_node_and_no_byte_moves)
{
    agreed(SET(0, 1, 3));
    ck_assert_uint_eq(state()->epoch, 2);
    ck_assert_uint_eq(state()->mode, EEP_MODE_RESEATING);
    ck_assert_uint_eq(life(2), EEP_LIFE_DEAD);
    ck_assert_uint_eq(nth(EEP_DO_RESEAT, 0)->serial, state()->reseat_wait.serial);
    ck_assert_uint_eq(nth(EEP_DO_RESEAT, 0)->by, EEP_NO_MEMBER);
    for (uint32_t seat = 3; seat < SEATS; seat++) {
        ck_assert_uint_eq(state()->seats[seat].executor, 3);
        ck_assert_uint_eq(state()->seats[seat].state, EEP_SEAT_ACTIVE);
    }
    ck_assert_uint_eq(state()->reseat_wait.owner, 0);
    done(0, state()->reseat_wait.serial, EEP_OK);
    ck_assert_uint_eq(state()->reseat_wait.owner, 1);
    done(2, state()->reseat_wait.serial, EEP_OK); /* the dead do not count */
    done(3, state()->reseat_wait.serial, EEP_OK);
    ck_assert_uint_eq(state()->mode, EEP_MODE_RESEATING);
    done(1, state()->reseat_wait.serial, EEP_OK);
    ck_assert_uint_eq(state()->mode, EEP_MODE_SERVING);
    ck_assert_uint_eq(count_of(EEP_DO_SERVE), 1);
    ck_assert_uint_eq(state()->reseat_wait.owner, EEP_NO_MEMBER);
}
END_TEST

START_TEST(seats_of_a_lost_node_are_lost_until_they_are_filled)
{
    agreed(SET(0, 1));
    for (uint32_t seat = 3; seat < SEATS; seat++) {
        ck_assert_uint_eq(state()->seats[seat].state, EEP_SEAT_LOST);
        ck_assert_uint_eq(state()->seats[seat].held_on, 0);
    }
    ck_assert_uint_eq(state()->seats[0].executor, 0);
    ck_assert_uint_eq(state()->seats[2].executor, 1);
    reseat();
    for (uint32_t seat = 3; seat < SEATS; seat++) {
        ck_assert_uint_eq(state()->seats[seat].state, EEP_SEAT_ACTIVE);
        ck_assert_uint_eq(state()->seats[seat].held_on, 1);
    }
}
END_TEST

START_TEST(a_loss_during_a_recovery_begins_it_again)
{
    agreed(SET(0, 1, 3));
    const uint32_t old = state()->reseat_wait.serial;

    done(0, old, EEP_OK);
    agreed(SET(0, 1));
    ck_assert_uint_ne(state()->reseat_wait.serial, old);
    done(0, old, EEP_OK); /* that of before counts no more */
    done(1, old, EEP_OK);
    ck_assert_uint_eq(state()->mode, EEP_MODE_RESEATING);
    reseat();
}
END_TEST

START_TEST(the_lowest_that_is_left_coordinates_and_seats_find_it)
{
    static const uint32_t set[] = {3};

    CK_OK(eep_member_step(
        m, EVENT(.kind = EEP_AGREED, .epoch = 9, .position = 0, .set = set, .set_count = 1), 0,
        &did));
    ck_assert_uint_eq(count_of(EEP_DO_DIE), 1); /* this process, 0, is out */
    ck_assert_uint_eq(nth(EEP_DO_DIE, 0)->by, 0);
    ck_assert_uint_eq(eep_member_coordinator(m), 3);
    ck_assert_uint_eq(state()->epoch, 9);
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        ck_assert_uint_eq(state()->seats[seat].executor, 3);
    }
}
END_TEST

static enum eep_status try_agreed(uint64_t epoch, uint64_t position, const uint32_t *set,
                                  size_t count)
{
    const struct eep_member_state before = *state();
    const enum eep_status status =
        step_at(0, EVENT(.kind = EEP_AGREED, .epoch = epoch, .position = position, .set = set,
                         .set_count = (uint32_t)count));

    ck_assert_int_ne(status, EEP_OK);
    ck_assert_uint_eq(did.count, 0);
    ck_assert_mem_eq(state(), &before, sizeof(before));
    return status;
}

START_TEST(an_impossible_epoch_is_refused_and_changes_nothing)
{
    passed(1);
    ck_assert_int_eq(try_agreed(1, 1, SET(0, 1)), EEP_ERR_STALE);
    ck_assert_int_eq(try_agreed(2, 0, SET(0, 1)), EEP_ERR_STALE);
    ck_assert_int_eq(try_agreed(2, 2, SET(0, 1)), EEP_ERR_STALE);
    ck_assert_int_eq(try_agreed(2, 1, NULL, 0), EEP_ERR_INVALID);
    ck_assert_int_eq(try_agreed(2, 1, SET(1, 0)), EEP_ERR_INVALID);
    ck_assert_int_eq(try_agreed(2, 1, SET(0, 0)), EEP_ERR_INVALID);
    ck_assert_int_eq(try_agreed(2, 1, SET(0, 9)), EEP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "member 9"));
    ck_assert_int_eq(try_agreed(2, 1, SET(0, 4)), EEP_ERR_INVALID); /* parked */
    reach(true, EEP_PHASE_READY);
    ck_assert_int_eq(try_agreed(2, state()->position, SET(0, 1, 2, 3, 4)), EEP_ERR_INVALID);
}
END_TEST

START_TEST(a_seat_that_cannot_be_filled_is_tried_again)
{
    agreed(SET(0, 1));
    const uint32_t first = state()->reseat_wait.serial;

    done(1, first, EEP_ERR_IO);
    passed(SECOND - 1);
    ck_assert_uint_eq(state()->reseat_wait.serial, first);
    passed(1);
    ck_assert_uint_ne(state()->reseat_wait.serial, first);
    ck_assert_uint_eq(nth(EEP_DO_RESEAT, 0)->serial, state()->reseat_wait.serial);
    const uint32_t second = state()->reseat_wait.serial;

    passed(60 * SECOND - 1); /* nobody says anything */
    ck_assert_uint_eq(state()->reseat_wait.serial, second);
    passed(1);
    ck_assert_uint_ne(state()->reseat_wait.serial, second);
    done(0, first, EEP_ERR_IO); /* an old failure is no failure of this attempt */
    passed(2 * SECOND);
    ck_assert_uint_eq(count_of(EEP_DO_RESEAT), 0);
    reseat();
}
END_TEST

START_TEST(a_member_that_failed_may_still_succeed)
{
    agreed(SET(0, 1));
    const uint32_t serial = state()->reseat_wait.serial;

    done(1, serial, EEP_ERR_IO);
    done(1, serial, EEP_OK);
    done(0, serial, EEP_OK);
    ck_assert_uint_eq(state()->mode, EEP_MODE_SERVING);
}
END_TEST

START_TEST(after_eight_attempts_the_launcher_is_asked_and_trying_goes_on)
{
    agreed(SET(0, 1));
    for (uint32_t i = 2; i <= 17; i++) {
        passed(60 * SECOND);
        ck_assert_uint_eq(count_of(EEP_DO_RESEAT), 1);
        ck_assert_uint_eq(count_of(EEP_DO_RESTART), i % 8 == 0);
    }
    reseat();
    for (uint32_t i = 0; i < 10; i++) { /* losses are no failed attempts */
        agreed(SET(0, 1));
        ck_assert_uint_eq(count_of(EEP_DO_RESTART), 0);
    }
}
END_TEST

/* ---- operations: all goes well ---- */

static void ck_wait(enum eep_operation_phase expected, uint32_t owner, uint64_t deadline_ns)
{
    ck_assert_str_eq(eep_phase_text(&state()->operation),
                     eep_phase_text(&(struct eep_operation){.phase = expected,
                                                            .grows = state()->operation.grows}));
    ck_assert_uint_eq(state()->operation_wait.owner, owner);
    ck_assert_uint_eq(state()->operation_wait.deadline_ns, deadline_ns);
}

START_TEST(growing_takes_each_phase_in_turn)
{
    scale("op", 6);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->have, 2); /* seats that change hands */
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->want, 0); /* none is copied */
    ck_wait(EEP_PHASE_STARTING, 4, 60 * SECOND);
    ck_assert_uint_eq(count_of(EEP_DO_ACTIVATE), 2);
    ck_assert_uint_eq(nth(EEP_DO_ACTIVATE, 0)->by, 0);
    ck_assert_uint_eq(nth(EEP_DO_ACTIVATE, 0)->serial, wait_serial());
    appeared(4, 0, wait_serial());
    ck_wait(EEP_PHASE_STARTING, 5, 60 * SECOND);
    passed(7 * SECOND);
    appeared(5, 1, wait_serial());
    ck_wait(EEP_PHASE_LOADING, 4, 307 * SECOND);
    ck_assert_uint_eq(count_of(EEP_DO_LOAD), 2);
    ck_assert_uint_eq(nth(EEP_DO_LOAD, 1)->by, 5);
    ck_assert_uint_eq(state()->seats[1].next, 4);
    ck_assert_uint_eq(state()->seats[4].next, 5);
    ck_assert_uint_eq(state()->seats[1].executor, 0);
    done(5, wait_serial(), EEP_OK);
    done(4, wait_serial(), EEP_OK);
    ck_wait(EEP_PHASE_READY, 0, 37 * SECOND);
    ck_assert_uint_eq(nth(EEP_DO_PREPARE, 0)->by, EEP_NO_MEMBER);
    for (uint32_t id = 0; id < 4; id++) {
        done(id, wait_serial(), EEP_OK);
    }
    ck_wait(EEP_PHASE_SWITCHING, 0, 37 * SECOND);
    ck_assert_uint_eq(nth(EEP_DO_SWITCH, 0)->epoch, 2);
    ck_assert_uint_eq(nth(EEP_DO_SWITCH, 0)->serial, wait_serial());
    agreed(SET(0, 1, 2, 3, 4, 5));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_NONE, "op");
    ck_assert_uint_eq(count_of(EEP_DO_SERVE), 1); /* at once: nobody has to take over anything */
    ck_assert_uint_eq(state()->mode, EEP_MODE_SERVING);
    ck_assert_uint_eq(eep_member_size(state()), 6);
    ck_assert_uint_eq(state()->wanted_size, 6);
    ck_assert_uint_eq(state()->seats[1].executor, 4);
    ck_assert_uint_eq(state()->seats[4].executor, 5);
    ck_assert_uint_eq(state()->seats[6].state, EEP_SEAT_RESERVED);
}
END_TEST

START_TEST(draining_a_node_takes_each_phase_in_turn)
{
    drain("op", two_of_node_1, 2);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->have, 3);
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->want, 3);
    ck_assert_str_eq(eep_phase_text(&state()->operation), "draining");
    ck_wait(EEP_PHASE_STARTING, 2, 60 * SECOND);
    ck_assert(asks(EEP_DO_DRAIN, 2) && asks(EEP_DO_DRAIN, 3));
    ck_assert_uint_eq(life(2), EEP_LIFE_DRAINING);
    report_all(EEP_OK);
    ck_wait(EEP_PHASE_LOADING, 0, 300 * SECOND);
    ck_assert(asks(EEP_DO_LOAD, 0) && asks(EEP_DO_LOAD, 1) && !asks(EEP_DO_LOAD, 2));
    report_all(EEP_OK);
    ck_wait(EEP_PHASE_READY, 0, 30 * SECOND);
    report_all(EEP_OK);
    ck_wait(EEP_PHASE_SWITCHING, 0, 30 * SECOND);
    agreed(SET(0, 1));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    ck_assert(asks(EEP_DO_PARK, 2) && asks(EEP_DO_PARK, 3));
    ck_assert_uint_eq(nth(EEP_DO_PARK, 0)->by, nth(EEP_DO_PARK, 0)->member);
    ck_assert_uint_eq(life(3), EEP_LIFE_PARKED);
    ck_assert_uint_eq(state()->mode, EEP_MODE_SERVING);
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        ck_assert_uint_eq(state()->seats[seat].held_on, 1);
    }
    scale("back", 4); /* and they can come back */
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "back");
}
END_TEST

START_TEST(leavers_end_when_asked_to_or_when_they_were_spawned)
{
    ask((struct eep_member_request){.kind = EEP_OPERATION_SCALE, .target = 3, .leavers_exit = true},
        "op");
    ck_assert(asks(EEP_DO_DRAIN, 3)); /* the highest of a node with the most */
    while (phase() != EEP_PHASE_SWITCHING) {
        report_all(EEP_OK);
    }
    agreed(SET(0, 1, 2));
    ck_assert_uint_eq(nth(EEP_DO_EXIT, 0)->by, 3);
    ck_assert_uint_eq(life(3), EEP_LIFE_LEFT);
    ck_assert_uint_eq(state()->seats[5].executor, 2);
}
END_TEST

START_TEST(a_leaver_of_a_node_that_keeps_one_makes_nobody_load)
{
    drain("op", SET(2));
    report_all(EEP_OK);
    ck_wait(EEP_PHASE_READY, 0, 30 * SECOND); /* loading is over at once */
    ck_assert_uint_eq(count_of(EEP_DO_LOAD), 0);
    ck_assert_uint_eq(count_of(EEP_DO_PREPARE), 1);
}
END_TEST

START_TEST(the_coordinator_can_be_drained)
{
    drain("op", SET(0));
    while (phase() != EEP_PHASE_SWITCHING) {
        report_all(EEP_OK);
    }
    agreed(SET(1, 2, 3));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    ck_assert_uint_eq(eep_member_coordinator(m), 1);
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_NONE, "op"); /* by the next one */
    ck_assert_uint_eq(nth(EEP_DO_PARK, 0)->by, 0);
    ck_assert_uint_eq(count_of(EEP_DO_DIE), 0);
}
END_TEST

START_TEST(a_scale_to_the_present_size_is_done_at_once)
{
    scale("op", 4);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    ck_assert_int_eq(nth(EEP_DO_ANSWER, 1)->code, EEP_ANSWER_ENDED);
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
}
END_TEST

START_TEST(processes_are_spawned_for_those_who_are_missing)
{
    params.can_spawn = true;
    begin();
    scale("op", 8);
    ck_assert_uint_eq(count_of(EEP_DO_ACTIVATE), 2);
    ck_assert_uint_eq(nth(EEP_DO_SPAWN, 0)->count, 2);
    ck_assert_uint_eq(nth(EEP_DO_SPAWN, 0)->by, 0);
    ck_assert_uint_eq(state()->operation.spawning, 2);
    const uint32_t serial = wait_serial();

    appeared(4, 0, serial);
    appeared(5, 1, serial);
    ck_wait(EEP_PHASE_STARTING, 0, 60 * SECOND); /* whoever spawns */
    appeared(EEP_NO_MEMBER, 1, serial);
    ck_assert_uint_eq(life(6), EEP_LIFE_JOINING);
    appeared(EEP_NO_MEMBER, 0, serial);
    ck_assert_uint_eq(phase(), EEP_PHASE_LOADING);
    ck_assert(asks(EEP_DO_LOAD, 7));
    report_all(EEP_OK);
    report_all(EEP_OK);
    agreed(SET(0, 1, 2, 3, 4, 5, 6, 7));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    ck_assert_uint_eq(state()->seats[6].state, EEP_SEAT_ACTIVE); /* reserved ones are used now */
    ck_assert_uint_eq(state()->seats[7].state, EEP_SEAT_ACTIVE);

    drain("away", SET(5, 6));
    while (phase() != EEP_PHASE_SWITCHING) {
        report_all(EEP_OK);
    }
    agreed(SET(0, 1, 2, 3, 4, 7));
    ck_assert_uint_eq(life(5), EEP_LIFE_PARKED); /* as it began */
    ck_assert_uint_eq(life(6), EEP_LIFE_LEFT);
}
END_TEST

START_TEST(members_beyond_the_seats_join_without_one)
{
    params.seats = params.seats_max = 4;
    begin();
    scale("op", 6);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    while (phase() != EEP_PHASE_SWITCHING) {
        report_all(EEP_OK);
    }
    agreed(SET(0, 1, 2, 3, 4, 5));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    for (uint32_t seat = 0; seat < 4; seat++) {
        ck_assert_uint_eq(state()->seats[seat].executor, seat);
    }
    lose_all_but(SET(1, 2, 3, 4, 5)); /* and take over when it matters */
    ck_assert_uint_eq(state()->seats[0].executor, 4);
}
END_TEST

/* ---- operations: refusals and answers ---- */

START_TEST(what_cannot_be_is_refused_with_its_numbers)
{
    params.max_size = 6;
    begin();
    scale("op", 0);
    ck_refused(EEP_REASON_TOO_SMALL, 0, 1);
    scale("op", 7);
    ck_refused(EEP_REASON_TOO_LARGE, 6, 7);
    params.max_size = 0;
    begin();
    scale("op", 7);
    ck_refused(EEP_REASON_NO_JOINERS, 2, 3);
    drain("op", SET(4));
    ck_refused(EEP_REASON_NOT_A_MEMBER, 0, 4);
    drain("op", SET(1, 99));
    ck_refused(EEP_REASON_NOT_A_MEMBER, 0, 99);
    drain("op", SET(0, 1, 2, 3));
    ck_refused(EEP_REASON_TOO_SMALL, 0, 1);
    drain("op", SET(1, 2, 1));
    ck_refused(EEP_REASON_BAD_REQUEST, 2, 1);
    drain("op", NULL, 0);
    ck_refused(EEP_REASON_BAD_REQUEST, 0, 0);
    ask((struct eep_member_request){.kind = EEP_OPERATION_NONE}, "op");
    ck_refused(EEP_REASON_BAD_REQUEST, 0, 0);
    ask(
        (struct eep_member_request){
            .kind = EEP_OPERATION_SCALE, .target = 3, .drain = two_of_node_1, .drain_count = 2},
        "op");
    ck_refused(EEP_REASON_BAD_REQUEST, 0, 0);
    abort_it("op");
    ck_refused(EEP_REASON_UNKNOWN, 0, 0);
}
END_TEST

START_TEST(an_id_is_there_has_an_end_and_nothing_behind_it)
{
    struct eep_member_request request = {.kind = EEP_OPERATION_SCALE, .target = 6};

    feed(EVENT(.kind = EEP_REQUEST, .request = request));
    ck_answer(EEP_ANSWER_REFUSED, EEP_REASON_BAD_REQUEST, "");
    memset(request.id, 'x', sizeof(request.id));
    feed(EVENT(.kind = EEP_REQUEST, .request = request));
    ck_assert_int_eq(nth(EEP_DO_ANSWER, 0)->code, EEP_ANSWER_REFUSED);
    ck_assert_uint_eq(strlen(nth(EEP_DO_ANSWER, 0)->operation), EEP_OPERATION_ID_BYTES - 1);
    memcpy(request.id, "op\0x", 4);
    feed(EVENT(.kind = EEP_REQUEST, .request = request));
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    scale("op", 6);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    ck_assert_uint_eq(did.count, 1);
}
END_TEST

START_TEST(the_same_id_is_one_operation_and_another_has_to_wait)
{
    reach(true, EEP_PHASE_LOADING);
    const struct eep_operation before = state()->operation;

    scale("op", 6);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    ck_assert_mem_eq(&before, &state()->operation, sizeof(before));
    scale("other", 5);
    ck_answer(EEP_ANSWER_BUSY, EEP_REASON_BUSY, "other");
    abort_it("other");
    ck_answer(EEP_ANSWER_REFUSED, EEP_REASON_UNKNOWN, "other");
    abort_it("op");
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_ABORTED, "op");
    scale("op", 6);
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_ABORTED, "op");
    ck_assert_uint_eq(did.count, 1);
    abort_it("op");
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_ABORTED, "op");
    ck_assert_uint_eq(state()->history_count, 1);
}
END_TEST

START_TEST(sixteen_ended_operations_are_remembered)
{
    char id[8];

    for (uint32_t i = 0; i <= EEP_OPERATION_HISTORY; i++) {
        snprintf(id, sizeof(id), "op%u", i);
        scale(id, 4);
    }
    scale("op1", 4);
    ck_assert_uint_eq(count_of(EEP_DO_ANSWER), 1); /* known: nothing happens */
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_NONE, "op1");
    scale("op0", 4);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op0"); /* forgotten: made again */
}
END_TEST

START_TEST(a_dry_run_says_what_would_be_and_changes_nothing)
{
    struct eep_member_request request = {
        .kind = EEP_OPERATION_DRAIN, .drain = two_of_node_1, .drain_count = 2, .dry_run = true};
    struct eep_member_state before = *state();

    ask(request, "op");
    before.position++;
    ck_assert_mem_eq(&before, state(), sizeof(before));
    ck_assert_uint_eq(did.count, 1);
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_NONE, "op");
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->have, 3);
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->want, 3);
    ask((struct eep_member_request){.kind = EEP_OPERATION_SCALE, .dry_run = true}, "op");
    ck_refused(EEP_REASON_TOO_SMALL, 0, 1);
    reach(true, EEP_PHASE_READY);
    ask((struct eep_member_request){.kind = EEP_OPERATION_ABORT, .dry_run = true}, "op");
    ck_answer(EEP_ANSWER_ENDED, EEP_REASON_ABORTED, "op");
    ck_assert_uint_eq(phase(), EEP_PHASE_READY);
}
END_TEST

START_TEST(seats_that_no_node_can_hold_are_refused_with_the_numbers)
{
    params.node_seats_max = 5;
    begin();
    drain("op", two_of_node_1, 2);
    ck_refused(EEP_REASON_NO_ROOM, 5, 6);
    drain("op", SET(2)); /* its node keeps them */
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
}
END_TEST

START_TEST(a_node_that_a_loss_made_too_full_may_be_relieved)
{
    params.node_seats_max = 3;
    begin();
    lose_all_but(SET(0, 1)); /* six seats where three have room */
    scale("op", 3);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    abort_it("op");
    drain("less", SET(1)); /* as full as before */
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "less");
}
END_TEST

/* ---- operations: trouble in each phase ---- */

START_TEST(the_death_of_a_joiner_is_reported_like_that_of_a_parked_one)
{
    reach(true, EEP_PHASE_LOADING);
    ck_assert_uint_eq(life(4), EEP_LIFE_JOINING);
    local(0, EEP_SEEN_DEAD, 4);
    ck_assert_uint_eq(count_of(EEP_DO_REPORT), 1);
    ck_assert_uint_eq(nth(EEP_DO_REPORT, 0)->member, 4);
}
END_TEST

START_TEST(whom_an_aborted_drain_named_the_next_one_does_not)
{
    drain("first", SET(2));
    ck_assert_uint_eq(life(2), EEP_LIFE_DRAINING);
    abort_it("first");
    drain("second", SET(3));
    ck_assert_uint_eq(count_of(EEP_DO_DRAIN), 1);
    ck_assert_uint_eq(life(2), EEP_LIFE_ACTIVE);
    ck_assert_uint_eq(life(3), EEP_LIFE_DRAINING);
}
END_TEST

START_TEST(an_abort_rolls_back_any_phase_but_the_last)
{
    for (uint32_t grows = 0; grows <= 1; grows++) {
        for (uint32_t p = EEP_PHASE_PLANNED; p <= EEP_PHASE_READY; p++) {
            reach(grows != 0, (enum eep_operation_phase)p);
            abort_it("op");
            ck_rolled_back(EEP_REASON_ABORTED, EEP_ERR_STALE);
            ck_assert_uint_eq(count_of(grows != 0 ? EEP_DO_PARK : EEP_DO_UNDRAIN),
                              p == EEP_PHASE_PLANNED ? 0 : 2);
            ck_assert_uint_eq(life(4), EEP_LIFE_PARKED);
        }
        reach(grows != 0, EEP_PHASE_SWITCHING);
        abort_it("op");
        ck_answer(EEP_ANSWER_BUSY, EEP_REASON_TOO_LATE, "op");
        ck_assert_uint_eq(phase(), EEP_PHASE_SWITCHING);
    }
}
END_TEST

START_TEST(each_phase_ends_at_its_deadline)
{
    static const uint64_t limits_s[] = {0, 600, 60, 300, 30, 30};

    for (uint32_t grows = 0; grows <= 1; grows++) {
        for (uint32_t p = EEP_PHASE_PLANNED; p <= EEP_PHASE_SWITCHING; p++) {
            reach(grows != 0, (enum eep_operation_phase)p);
            const uint64_t left = state()->operation_wait.deadline_ns - state()->now_ns;

            ck_assert_uint_eq(left, limits_s[p] * SECOND);
            passed(left - 1);
            ck_assert_uint_eq(phase(), p);
            passed(1);
            ck_rolled_back(EEP_REASON_TIMEOUT, EEP_ERR_TIMEOUT);
            ck_answer(EEP_ANSWER_ENDED, EEP_REASON_TIMEOUT, "op");
        }
    }
}
END_TEST

START_TEST(a_failure_that_a_member_reports_rolls_back)
{
    for (uint32_t grows = 0; grows <= 1; grows++) {
        for (uint32_t p = EEP_PHASE_STARTING; p <= EEP_PHASE_SWITCHING; p++) {
            reach(grows != 0, (enum eep_operation_phase)p);
            done(1, wait_serial(), EEP_ERR_IO);
            ck_rolled_back(EEP_REASON_FAILED, EEP_ERR_IO);
        }
    }
}
END_TEST

START_TEST(reports_of_another_wait_or_of_those_outside_do_not_count)
{
    for (uint32_t p = EEP_PHASE_STARTING; p <= EEP_PHASE_SWITCHING; p++) {
        reach(false, (enum eep_operation_phase)p);
        done(2, wait_serial() - 1, EEP_ERR_IO);
        done(2, wait_serial() + 1, EEP_ERR_IO);
        done(2, 0, EEP_ERR_IO);
        done(4, wait_serial(), EEP_ERR_IO);
        done(99, wait_serial(), EEP_ERR_IO);
        ck_assert_uint_eq(phase(), p);
    }
    reach(true, EEP_PHASE_STARTING);
    appeared(4, 0, state()->operation.first_serial - 1);
    appeared(5, 1, state()->operation.first_serial - 1);
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
}
END_TEST

START_TEST(the_time_of_the_whole_operation_counts_too)
{
    ask((struct eep_member_request){.kind = EEP_OPERATION_SCALE,
                                    .target = 6,
                                    .timeout_ns = 5 * SECOND},
        "op");
    ck_wait(EEP_PHASE_STARTING, 4, 5 * SECOND);
    passed(4 * SECOND);
    report_all(EEP_OK);
    ck_wait(EEP_PHASE_LOADING, 4, 5 * SECOND);
    passed(1 * SECOND);
    ck_rolled_back(EEP_REASON_TIMEOUT, EEP_ERR_TIMEOUT);
}
END_TEST

START_TEST(a_joiner_that_dies_rolls_back)
{
    for (uint32_t p = EEP_PHASE_STARTING; p <= EEP_PHASE_SWITCHING; p++) {
        reach(true, (enum eep_operation_phase)p);
        gone(4);
        ck_rolled_back(EEP_REASON_JOINER_LOST, EEP_ERR_PEER_LOST);
        ck_assert_uint_eq(life(4), EEP_LIFE_DEAD);
        ck_assert_uint_eq(life(5), EEP_LIFE_PARKED);
        ck_assert(asks(EEP_DO_PARK, 5) && !asks(EEP_DO_PARK, 4));
    }
}
END_TEST

START_TEST(a_loss_sends_a_growing_job_to_the_first_phase)
{
    for (uint32_t p = EEP_PHASE_PLANNED; p <= EEP_PHASE_READY; p++) {
        reach(true, (enum eep_operation_phase)p);
        agreed(SET(0, 2, 3));
        ck_assert_uint_eq(phase(), EEP_PHASE_PLANNED);
        ck_assert_uint_eq(state()->operation_wait.owner, 0);
        reseat();
        ck_assert_uint_eq(phase(), p == EEP_PHASE_PLANNED    ? EEP_PHASE_STARTING
                                   : p == EEP_PHASE_STARTING ? EEP_PHASE_STARTING
                                                             : EEP_PHASE_LOADING);
        while (phase() != EEP_PHASE_SWITCHING) {
            report_all(EEP_OK);
        }
        agreed(SET(0, 2, 3, 4, 5));
        ck_ended(EEP_PHASE_DONE, EEP_REASON_SHORT, EEP_OK); /* 5 of 6, and nobody else is there */
    }
}
END_TEST

START_TEST(a_loss_sends_a_shrinking_job_to_the_first_phase)
{
    for (uint32_t p = EEP_PHASE_PLANNED; p <= EEP_PHASE_READY; p++) {
        reach(false, (enum eep_operation_phase)p);
        agreed(SET(0, 2, 3));
        ck_assert_uint_eq(phase(), EEP_PHASE_PLANNED);
        reseat();
        ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
        ck_assert(asks(EEP_DO_DRAIN, 2) && asks(EEP_DO_DRAIN, 3)); /* asked again */
        while (phase() != EEP_PHASE_SWITCHING) {
            report_all(EEP_OK);
        }
        agreed(SET(0));
        ck_ended(EEP_PHASE_DONE, EEP_REASON_SHORT, EEP_OK);
    }
}
END_TEST

START_TEST(fewer_leave_when_some_are_lost_meanwhile)
{
    scale("op", 2);
    ck_assert_uint_eq(count_of(EEP_DO_DRAIN), 2); /* 3, then 1 */
    ck_assert(asks(EEP_DO_DRAIN, 3) && asks(EEP_DO_DRAIN, 1));
    lose_all_but(SET(0, 1, 2));
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
    ck_assert(asks(EEP_DO_DRAIN, 1)); /* of the fuller node, the highest */
    ck_assert_uint_eq(count_of(EEP_DO_DRAIN), 1);
    lose_all_but(SET(1, 2));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    ck_assert(asks(EEP_DO_UNDRAIN, 1)); /* enough have gone */
    ck_assert_uint_eq(life(1), EEP_LIFE_ACTIVE);
    begin();
    scale("op", 2);
    lose_all_but(SET(2));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_SHORT, EEP_OK);
}
END_TEST

START_TEST(a_member_that_dies_while_it_is_drained_is_drained)
{
    reach(false, EEP_PHASE_LOADING);
    lose_all_but(SET(0, 1, 3)); /* 2 has died, 3 is still to go */
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
    ck_assert_uint_eq(count_of(EEP_DO_DRAIN), 1);
    lose_all_but(SET(0, 1));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    ck_assert_uint_eq(life(2), EEP_LIFE_DEAD);
}
END_TEST

START_TEST(those_that_are_to_go_stay_when_all_others_have_died)
{
    reach(false, EEP_PHASE_LOADING);
    agreed(SET(2, 3));
    reseat();
    ck_ended(EEP_PHASE_ROLLED_BACK, EEP_REASON_TOO_SMALL, EEP_ERR_PEER_LOST);
    ck_assert_uint_eq(life(2), EEP_LIFE_ACTIVE);
    ck_assert_uint_eq(life(3), EEP_LIFE_ACTIVE);
    ck_assert(asks(EEP_DO_UNDRAIN, 2) && asks(EEP_DO_UNDRAIN, 3));
}
END_TEST

START_TEST(nobody_to_wake_any_more_rolls_back)
{
    reach(true, EEP_PHASE_PLANNED);
    gone(4);
    gone(5);
    reseat();
    ck_rolled_back(EEP_REASON_NO_JOINERS, EEP_ERR_PEER_LOST);
}
END_TEST

/* Six members on three nodes, six seats: node 1's fit onto the others, until node 2 is lost. */
START_TEST(a_job_that_got_too_full_while_it_planned_rolls_back)
{
    static const uint32_t three[] = {0, 0, 1, 1, 2, 2};

    params.active = 6;
    params.node_of = three;
    params.node_seats_max = 3;
    begin();
    drain("op", two_of_node_1, 2);
    ck_answer(EEP_ANSWER_ACCEPTED, EEP_REASON_NONE, "op");
    lose_all_but(SET(0, 1, 2, 3));
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
    report_all(EEP_OK);
    ck_ended(EEP_PHASE_ROLLED_BACK, EEP_REASON_NO_ROOM, EEP_ERR_NOMEM);
    ck_assert(asks(EEP_DO_UNDRAIN, 2) && asks(EEP_DO_UNDRAIN, 3));
    ck_assert_uint_eq(eep_member_size(state()), 4);
}
END_TEST

/* ---- while it switches ---- */

START_TEST(a_joiner_that_is_not_let_in_rolls_back)
{
    reach(true, EEP_PHASE_SWITCHING);
    agreed(SET(0, 1, 2, 3)); /* a shrink came first */
    ck_rolled_back(EEP_REASON_JOINER_LOST, EEP_ERR_PEER_LOST);
    ck_assert(asks(EEP_DO_PARK, 4) && asks(EEP_DO_PARK, 5));
    ck_assert_uint_eq(state()->mode, EEP_MODE_RESEATING);
    reseat();
    reach(true, EEP_PHASE_SWITCHING);
    agreed(SET(0, 1, 2, 3, 5)); /* one of two came in: it stays, with its seat */
    ck_ended(EEP_PHASE_ROLLED_BACK, EEP_REASON_JOINER_LOST, EEP_ERR_PEER_LOST);
    ck_assert_uint_eq(life(5), EEP_LIFE_ACTIVE);
    ck_assert_uint_eq(life(4), EEP_LIFE_PARKED);
    ck_assert_uint_eq(state()->seats[4].executor, 5);
    ck_assert_uint_eq(state()->seats[1].executor, 0);
    reseat();
}
END_TEST

START_TEST(a_member_lost_in_the_switch_makes_it_short)
{
    reach(true, EEP_PHASE_SWITCHING);
    agreed(SET(0, 2, 3, 4, 5));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_SHORT, EEP_OK);
    ck_assert_uint_eq(state()->mode, EEP_MODE_RESEATING);
    reseat();
    reach(false, EEP_PHASE_SWITCHING);
    agreed(SET(0)); /* 1 was not to leave */
    ck_ended(EEP_PHASE_DONE, EEP_REASON_SHORT, EEP_OK);
    ck_assert_uint_eq(life(1), EEP_LIFE_DEAD);
    ck_assert_uint_eq(life(2), EEP_LIFE_PARKED);
}
END_TEST

START_TEST(joiners_alone_can_go_on)
{
    reach(true, EEP_PHASE_SWITCHING);
    agreed(SET(4, 5));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_SHORT, EEP_OK);
    ck_assert_uint_eq(eep_member_coordinator(m), 4);
    ck_assert_uint_eq(count_of(EEP_DO_DIE), 1);
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        ck_assert_uint_eq(state()->seats[seat].executor, seat < 3 ? 4 : 5);
        ck_assert_uint_eq(state()->seats[seat].state, EEP_SEAT_ACTIVE);
    }
}
END_TEST

START_TEST(leavers_that_are_still_there_after_a_shrink_leave_again)
{
    reach(false, EEP_PHASE_SWITCHING);
    agreed(SET(0, 1, 3)); /* 2 was gone already */
    ck_assert_uint_eq(life(2), EEP_LIFE_PARKED);
    ck_assert_uint_eq(life(3), EEP_LIFE_DRAINING);
    ck_assert_uint_eq(phase(), EEP_PHASE_PLANNED);
    reseat();
    ck_assert(asks(EEP_DO_DRAIN, 3));
    while (phase() != EEP_PHASE_SWITCHING) {
        report_all(EEP_OK);
    }
    agreed(SET(0, 1));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
}
END_TEST

START_TEST(a_seat_whose_next_member_dies_in_the_switch_is_filled_elsewhere)
{
    reach(false, EEP_PHASE_SWITCHING);
    const uint32_t next = state()->seats[5].next;

    ck_assert_uint_lt(next, 2);
    agreed(next == 0 ? (const uint32_t[]){1} : (const uint32_t[]){0}, 1);
    ck_assert_uint_eq(state()->seats[5].executor, 1 - next);
    ck_assert_uint_eq(state()->mode, EEP_MODE_RESEATING);
    reseat();
}
END_TEST

/* ---- joiners come late, hang, or are too many ---- */

START_TEST(who_comes_too_late_is_parked)
{
    params.can_spawn = true;
    begin();
    scale("op", 7);
    const uint32_t serial = wait_serial();

    abort_it("op");
    appeared(EEP_NO_MEMBER, 1, serial);
    ck_assert_uint_eq(life(6), EEP_LIFE_PARKED);
    ck_assert(asks(EEP_DO_PARK, 6));
    appeared(4, 0, serial); /* it did not hear that it is over */
    ck_assert(asks(EEP_DO_PARK, 4));
    ck_assert_uint_eq(life(4), EEP_LIFE_PARKED);
    appeared(99, 0, serial);
    ck_assert(asks(EEP_DO_EXIT, 99));
    appeared(1, 0, serial);
    ck_assert_uint_eq(did.count, 0);
    gone(4);
    appeared(4, 0, serial);
    ck_assert_uint_eq(did.count, 0);
    scale("next", 6); /* the late one is as good as any */
    ck_assert(asks(EEP_DO_ACTIVATE, 5) && asks(EEP_DO_ACTIVATE, 6));
    appeared(6, 1, wait_serial());
    abort_it("next"); /* a spawned one ends, since nobody started it as a parked one */
    ck_assert(asks(EEP_DO_EXIT, 6) && asks(EEP_DO_PARK, 5));
    ck_assert_uint_eq(life(6), EEP_LIFE_LEFT);
    appeared(6, 1, serial);
    ck_assert(asks(EEP_DO_EXIT, 6));
}
END_TEST

START_TEST(a_parked_process_of_another_start_is_parked)
{
    appeared(EEP_NO_MEMBER, 3, 0);
    ck_assert_uint_eq(life(6), EEP_LIFE_PARKED);
    scale("op", 7);
    ck_assert(asks(EEP_DO_ACTIVATE, 6));
    abort_it("op");
    ck_assert(asks(EEP_DO_PARK, 6)); /* not spawned: it stays */
}
END_TEST

START_TEST(spawning_begins_again_when_the_spawner_has_died)
{
    params.can_spawn = true;
    begin();
    scale("op", 8);
    const uint32_t serial = wait_serial();

    lose_all_but(SET(0, 1, 2)); /* the spawner lives: those are still coming, and one more */
    ck_assert_uint_eq(nth(EEP_DO_SPAWN, 0)->count, 1);
    ck_assert_uint_eq(count_of(EEP_DO_ACTIVATE), 2); /* asked again */
    ck_assert_uint_eq(state()->operation.spawning, 3);
    lose_all_but(SET(1, 2));
    ck_assert_uint_eq(nth(EEP_DO_SPAWN, 0)->count, 4);
    ck_assert_uint_eq(nth(EEP_DO_SPAWN, 0)->by, 1);
    appeared(EEP_NO_MEMBER, 0, serial); /* of the dead one, but it is there */
    ck_assert_uint_eq(life(6), EEP_LIFE_JOINING);
    ck_assert_uint_eq(state()->operation.spawning, 3);
}
END_TEST

START_TEST(who_did_not_come_is_woken_last_the_next_time)
{
    scale("op", 5);
    ck_assert(asks(EEP_DO_ACTIVATE, 4));
    passed(60 * SECOND);
    ck_rolled_back(EEP_REASON_TIMEOUT, EEP_ERR_TIMEOUT);
    scale("again", 5);
    ck_assert(asks(EEP_DO_ACTIVATE, 5) && !asks(EEP_DO_ACTIVATE, 4));
    abort_it("again");
    appeared(4, 0, 1); /* it was only slow */
    scale("third", 5);
    ck_assert(asks(EEP_DO_ACTIVATE, 4));
    abort_it("third");
    scale("fourth", 5); /* an abort says nothing about it */
    ck_assert(asks(EEP_DO_ACTIVATE, 4));
}
END_TEST

START_TEST(ids_go_on_and_records_of_the_dead_are_used_again)
{
    for (uint32_t i = 0; i < 3 * EEP_MEMBERS_MAX; i++) {
        appeared(EEP_NO_MEMBER, 2, 0);
        ck_assert_uint_eq(life(6 + i), EEP_LIFE_PARKED);
        gone(6 + i);
    }
    ck_assert_uint_eq(state()->next_id, 6 + 3 * EEP_MEMBERS_MAX);
    ck_assert_uint_eq(life(5 + 3 * EEP_MEMBERS_MAX), EEP_LIFE_DEAD); /* the last are known */
    ck_assert_uint_eq(life(6), EEP_LIFE_NONE);                       /* the first forgotten */
    ck_assert_uint_eq(life(4), EEP_LIFE_PARKED);                     /* the living never */
    ck_assert_uint_eq(life(0), EEP_LIFE_ACTIVE);
}
END_TEST

START_TEST(when_all_records_live_a_newcomer_is_sent_away)
{
    for (uint32_t i = 6; i < EEP_MEMBERS_MAX; i++) {
        appeared(EEP_NO_MEMBER, 2, 0);
    }
    const uint32_t next_id = state()->next_id;

    appeared(EEP_NO_MEMBER, 2, 0);
    ck_assert_uint_eq(did.count, 1);
    ck_assert_uint_eq(nth(EEP_DO_EXIT, 0)->member, EEP_NO_MEMBER);
    ck_assert_uint_eq(nth(EEP_DO_EXIT, 0)->by, 0);
    ck_assert_uint_eq(state()->next_id, next_id);
    gone(4);
    appeared(EEP_NO_MEMBER, EEP_NODES_MAX, 0); /* a node that cannot be */
    ck_assert_uint_eq(count_of(EEP_DO_EXIT), 1);
    appeared(EEP_NO_MEMBER, 2, 0);
    ck_assert_uint_eq(life(next_id), EEP_LIFE_PARKED);
    scale("op", EEP_MEMBERS_MAX); /* all of them */
    ck_assert_uint_eq(count_of(EEP_DO_ACTIVATE), EEP_MEMBERS_MAX - 4);
    report_all(EEP_OK);
    ck_assert_uint_eq(count_of(EEP_DO_LOAD), EEP_MEMBERS_MAX - 4);
    abort_it("op");
    ck_assert_uint_eq(count_of(EEP_DO_PARK), EEP_MEMBERS_MAX - 4);
}
END_TEST

START_TEST(a_spawned_process_without_room_ends_its_operation)
{
    params.can_spawn = true;
    begin();
    scale("op", 7);
    appeared(EEP_NO_MEMBER, EEP_NODES_MAX, wait_serial());
    ck_assert_uint_eq(count_of(EEP_DO_EXIT), 1);
    ck_rolled_back(EEP_REASON_FAILED, EEP_ERR_NOMEM);
}
END_TEST

/* ---- lost members are replaced ---- */

START_TEST(lost_members_are_replaced_when_asked_to)
{
    params.on_loss = EEP_ON_LOSS_RESPAWN;
    begin();
    lose_all_but(SET(0, 1, 2));
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
    ck_assert_uint_eq(state()->operation.target, 4);
    ck_assert_uint_eq(strncmp(state()->operation.id, "respawn-", 8), 0);
    ck_assert_uint_eq(count_of(EEP_DO_ACTIVATE), 1);
    passed(60 * SECOND);
    ck_ended(EEP_PHASE_ROLLED_BACK, EEP_REASON_TIMEOUT, EEP_ERR_TIMEOUT);
    passed(60 * SECOND - 1);
    ck_assert_uint_eq(phase(), EEP_PHASE_NONE);
    passed(1);
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
    while (phase() != EEP_PHASE_SWITCHING) {
        report_all(EEP_OK);
    }
    agreed(life(5) == EEP_LIFE_JOINING ? (const uint32_t[]){0, 1, 2, 5}
                                       : (const uint32_t[]){0, 1, 2, 4},
           4);
    ck_ended(EEP_PHASE_DONE, EEP_REASON_NONE, EEP_OK);
    passed(3600 * SECOND);
    ck_assert_uint_eq(phase(), EEP_PHASE_NONE);
}
END_TEST

START_TEST(nobody_is_replaced_unasked_or_without_anybody)
{
    lose_all_but(SET(0, 1, 2));
    passed(3600 * SECOND);
    ck_assert_uint_eq(phase(), EEP_PHASE_NONE);
    params.on_loss = EEP_ON_LOSS_RESPAWN;
    params.started = 4;
    begin();
    lose_all_but(SET(0, 1, 2));
    ck_assert_uint_eq(phase(), EEP_PHASE_NONE);
    ck_assert_uint_eq(state()->respawn_at_ns, 60 * SECOND);
    appeared(EEP_NO_MEMBER, 1, 0);
    passed(60 * SECOND);
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
}
END_TEST

START_TEST(the_size_that_is_wanted_is_the_one_last_asked_for)
{
    params.on_loss = EEP_ON_LOSS_RESPAWN;
    begin();
    drain("op", SET(3));
    lose_all_but(
        SET(1, 2, 3)); /* 0 has died while 3 is drained: then 3 members are wanted, not 2 */
    while (phase() != EEP_PHASE_SWITCHING) {
        report_all(EEP_OK);
    }
    agreed(SET(1, 2));
    ck_ended(EEP_PHASE_DONE, EEP_REASON_SHORT, EEP_OK);
    ck_assert_uint_eq(state()->wanted_size, 3);
    passed(60 * SECOND);
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
    ck_assert_uint_eq(state()->operation.target, 3);
    abort_it(state()->operation.id);
    ck_assert_uint_eq(state()->wanted_size, 3); /* what is rolled back asks for nothing */
}
END_TEST

/* ---- the state ---- */

START_TEST(one_broken_clock_does_not_use_up_the_time)
{
    reach(true, EEP_PHASE_STARTING);
    passed(UINT64_MAX);
    ck_rolled_back(EEP_REASON_TIMEOUT, EEP_ERR_TIMEOUT);
    ck_assert_uint_eq(state()->now_ns, 3600 * SECOND);
    scale("op2", 6);
    ck_assert_uint_eq(state()->operation_wait.deadline_ns, 3660 * SECOND);
    passed(0);
    ck_assert_uint_eq(phase(), EEP_PHASE_STARTING);
    abort_it("op2");
    ask((struct eep_member_request){.kind = EEP_OPERATION_SCALE,
                                    .target = 6,
                                    .timeout_ns = UINT64_MAX},
        "op3");
    ck_assert_uint_eq(state()->operation.deadline_ns, UINT64_MAX);
}
END_TEST

START_TEST(a_member_that_is_behind_adopts_and_goes_on_the_same)
{
    struct eep_member *behind;
    const uint32_t set[] = {0, 1, 2, 3, 4, 5};

    CK_OK(eep_member_create(&params, 3, &behind));
    reach(true, EEP_PHASE_SWITCHING);
    CK_OK(eep_member_adopt(behind, state()));
    ck_assert_uint_eq(eep_member_digest(behind), eep_member_digest(m));
    CK_OK(eep_member_adopt(behind, state())); /* twice is harmless */
    CK_OK(eep_member_step(behind,
                          EVENT(.kind = EEP_AGREED, .epoch = 2, .position = state()->position,
                                .set = set, .set_count = 6),
                          77, &did));
    agreed(set, 6);
    ck_assert_mem_eq(eep_member_state(behind), state(), sizeof(*state()));
    passed(1);
    ck_assert_uint_ne(eep_member_digest(behind), eep_member_digest(m));
    eep_member_destroy(behind);
}
END_TEST

static void ck_not_adopted(const struct eep_member_state *s, enum eep_status status,
                           const char *why)
{
    const struct eep_member_state before = *state();

    ck_assert_int_eq(eep_member_adopt(m, s), status);
    ck_assert_msg(strstr(eep_error_text(), why) != NULL, "%s: %s", why, eep_error_text());
    ck_assert_mem_eq(state(), &before, sizeof(before));
}

START_TEST(a_state_that_is_old_or_parted_is_not_adopted)
{
    struct eep_member_state s = *state();

    passed(1);
    ck_not_adopted(&s, EEP_ERR_STALE, "at event 0 of epoch 1");
    s = *state();
    s.epoch = 0;
    s.position++;
    ck_not_adopted(&s, EEP_ERR_STALE, "epoch 0");
    s = *state();
    s.now_ns++;
    ck_not_adopted(&s, EEP_ERR_FORMAT, "parted");
}
END_TEST

START_TEST(a_broken_state_is_not_adopted)
{
    const struct eep_member_state *s;
    struct eep_member_state bad;

#define BROKEN(why, ...)                                                                           \
    do {                                                                                           \
        bad = *s;                                                                                  \
        bad.position++;                                                                            \
        __VA_ARGS__;                                                                               \
        ck_not_adopted(&bad, EEP_ERR_FORMAT, why);                                                 \
    } while (0)
    s = state();
    BROKEN("counts or mode", bad.seats_max = 0);
    BROKEN("counts or mode", bad.seats_max = EEP_SEATS_MAX + 1);
    BROKEN("counts or mode", bad.mode = 2);
    BROKEN("nobody is in", for (uint32_t i = 0; i < 4; i++) bad.members[i].life = EEP_LIFE_DEAD);
    BROKEN("does not exist", bad.members[5].life = EEP_LIFE_SILENT);
    BROKEN("does not exist", bad.members[5].node = EEP_NODES_MAX);
    BROKEN("not given out", bad.members[5].id = 6);
    BROKEN("two members", bad.members[5].id = 4);
    BROKEN("without an operation", bad.members[5].life = EEP_LIFE_JOINING);
    BROKEN("without an operation", bad.members[1].life = EEP_LIFE_DRAINING);
    BROKEN("no executor", bad.seats[0].executor = EEP_NO_MEMBER);
    BROKEN("no executor", bad.seats[0].executor = 4);
    BROKEN("no executor", bad.seats[7].executor = 1);
    BROKEN("state that does not exist", bad.seats[0].state = 9);
    BROKEN("a lost seat", bad.seats[0].state = EEP_SEAT_LOST);
    BROKEN("to change without", bad.seats[0].next = 1);
    BROKEN("to change without", bad.seats[0].state = EEP_SEAT_LEAVING);
    BROKEN("no frames", bad.seats[0].held_on = 2);
    BROKEN("reseating has no owner", bad.mode = EEP_MODE_RESEATING);
    BROKEN("has ended", bad.operation.phase = EEP_PHASE_DONE);
    BROKEN("has ended", memset(bad.operation.id, 'x', sizeof(bad.operation.id)));
    BROKEN("an operation has no owner", bad.operation.phase = EEP_PHASE_PLANNED,
           bad.operation.deadline_ns = 1);
    BROKEN("still runs", bad.history_count = 1);
    BROKEN("words that do not exist", bad.history_count = 1, bad.history[0].phase = EEP_PHASE_DONE,
           bad.history[0].kind = 9);
    BROKEN("words that do not exist", bad.history_count = 1, bad.history[0].phase = EEP_PHASE_DONE,
           bad.history[0].reason = 99);
    reach(true, EEP_PHASE_LOADING);
    s = state();
    BROKEN("outlived", bad.now_ns = bad.operation.deadline_ns);
    BROKEN("unknown member", bad.seats[0].next = 77);
    BROKEN("goes on during a recovery", bad.mode = EEP_MODE_RESEATING, bad.reseat_wait.serial = 1,
           bad.reseat_wait.owner = 0);
#undef BROKEN
}
END_TEST

START_TEST(the_words_are_there)
{
    static const char *const grows[] = {"idle",  "planned",   "starting", "loading",
                                        "ready", "switching", "done",     "rolled_back"};

    for (uint32_t p = EEP_PHASE_NONE; p <= EEP_PHASE_ROLLED_BACK; p++) {
        ck_assert_str_eq(eep_phase_text(&(struct eep_operation){.phase = p, .grows = 1}), grows[p]);
    }
    ck_assert_str_eq(eep_phase_text(&(struct eep_operation){.phase = 3}), "moving");
    ck_assert_str_eq(eep_phase_text(&(struct eep_operation){.phase = 99}), "unknown");
    for (uint32_t r = EEP_REASON_ABORTED; r <= EEP_REASON_BAD_REQUEST; r++) {
        ck_assert_uint_gt(strlen(eep_reason_text((enum eep_operation_reason)r)), 8);
    }
    ck_assert_str_eq(eep_reason_text((enum eep_operation_reason)99), "unknown");
    ck_assert_str_eq(eep_life_text(EEP_LIFE_SILENT), "silent");
    ck_assert_str_eq(eep_life_text((enum eep_life)99), "unknown");
}
END_TEST

/* ---- seats and experts: pure functions ---- */

static struct eep_seat_record seat_of(uint32_t executor, uint64_t held_on)
{
    return (struct eep_seat_record){.state = executor == EEP_NO_MEMBER ? EEP_SEAT_RESERVED
                                                                       : EEP_SEAT_ACTIVE,
                                    .executor = executor,
                                    .next = EEP_NO_MEMBER,
                                    .held_on = held_on};
}

START_TEST(seats_move_as_little_as_they_can)
{
    const struct eep_seat_candidate who[] = {{1, 0}, {2, 1}, {3, 1}};
    const struct eep_seat_record seats[] = {seat_of(1, 1), seat_of(0, 2), seat_of(0, 2),
                                            seat_of(0, 4), seat_of(EEP_NO_MEMBER, 0)};
    uint32_t next[5];

    eep_seats_assign(who, 3, seats, 5, false, next);
    ck_assert_uint_eq(next[0], 1); /* stays */
    ck_assert_uint_eq(next[1], 2); /* where the frames are, to who has fewest */
    ck_assert_uint_eq(next[2], 3);
    ck_assert_uint_eq(next[3], 1); /* anywhere: all have one, then the lowest */
    ck_assert_uint_eq(next[4], EEP_NO_MEMBER);
}
END_TEST

START_TEST(newcomers_take_from_their_node_then_a_reserved_seat_then_from_others)
{
    const struct eep_seat_candidate who[] = {{0, 0}, {1, 0}, {2, 1}, {3, 2}};
    const struct eep_seat_record seats[] = {seat_of(0, 1), seat_of(0, 1), seat_of(0, 1),
                                            seat_of(EEP_NO_MEMBER, 0)};
    uint32_t next[4];

    eep_seats_assign(who, 4, seats, 4, true, next);
    ck_assert_uint_eq(next[2], 1); /* of its own node, the last seat */
    ck_assert_uint_eq(next[3], 2); /* the reserved one */
    ck_assert_uint_eq(next[1], 3); /* then one of another node */
    ck_assert_uint_eq(next[0], 0);
    eep_seats_assign(who, 2, seats, 3, false, next);
    ck_assert_uint_eq(next[2], 0); /* levelled only when asked for */
}
END_TEST

START_TEST(counts_are_levelled)
{
    struct eep_seat_candidate who[5];
    struct eep_seat_record seats[17];
    uint32_t next[17], counts[5] = {0};

    for (uint32_t i = 0; i < 5; i++) {
        who[i] = (struct eep_seat_candidate){i, i / 2};
    }
    for (uint32_t i = 0; i < 17; i++) {
        seats[i] = seat_of(0, 1);
    }
    eep_seats_assign(who, 5, seats, 17, true, next);
    for (uint32_t i = 0; i < 17; i++) {
        counts[next[i]]++;
    }
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_ge(counts[i], 3);
        ck_assert_uint_le(counts[i], 4);
    }
}
END_TEST

/* Two experts; seat 0 has both, seat 1 the first, seat 2 the second, seat 3 an empty slot only. */
static struct eep_layout *small_layout(void)
{
    static const int32_t map[] = {0, 1, 0, -1, 1, -1, -1, -1};
    struct eep_layout *layout;

    CK_OK(eep_layout_from_map(1, 2, 4, 2, map, &layout));
    return layout;
}

START_TEST(a_seat_is_redundant_when_others_that_serve_have_its_experts)
{
    struct eep_layout *layout = small_layout();
    bool served[] = {true, true, true, true};

    ck_assert(eep_seat_is_redundant(layout, served, 0));
    ck_assert(eep_seat_is_redundant(layout, served, 1));
    ck_assert(eep_seat_is_redundant(layout, served, 3));
    served[2] = false;
    ck_assert(!eep_seat_is_redundant(layout, served, 0));
    served[0] = false;
    ck_assert(!eep_seat_is_redundant(layout, served, 1));
    eep_layout_destroy(layout);
}
END_TEST

/* Seats 0 1 on node 0 hold all; those of node 1 (members 2, 3) only add replicas: given up. */
START_TEST(seats_that_only_add_replicas_are_given_up_with_their_node)
{
    static const int32_t map[] = {0, 1, 0, 1};
    static const int32_t single[] = {0, 1, 2, 3}, twice[] = {0, 1, 2, 2};
    struct eep_layout *layout;

    params.seats = params.seats_max = 4;
    begin();
    CK_OK(eep_layout_from_map(1, 2, 4, 1, map, &layout));
    eep_member_set_layout(m, layout);
    drain("op", two_of_node_1, 2);
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->want, 0);
    report_all(EEP_OK);
    ck_assert_uint_eq(state()->seats[2].state, EEP_SEAT_LEAVING);
    ck_assert_uint_eq(phase(), EEP_PHASE_READY);
    report_all(EEP_OK);
    agreed(SET(0, 1));
    ck_assert_uint_eq(state()->seats[2].state, EEP_SEAT_RESERVED);
    ck_assert_uint_eq(state()->seats[3].executor, EEP_NO_MEMBER);
    ck_assert_uint_eq(state()->seats[3].held_on, 0);
    ck_assert_uint_eq(state()->mode, EEP_MODE_SERVING);

    begin(); /* an abort keeps them */
    eep_member_set_layout(m, layout);
    drain("op", two_of_node_1, 2);
    report_all(EEP_OK);
    abort_it("op");
    ck_assert_uint_eq(state()->seats[2].state, EEP_SEAT_ACTIVE);
    eep_layout_destroy(layout);

    begin(); /* the only place of an expert is not given up */
    CK_OK(eep_layout_from_map(1, 4, 4, 1, single, &layout));
    eep_member_set_layout(m, layout);
    drain("op", two_of_node_1, 2);
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->want, 2);
    eep_layout_destroy(layout);

    begin(); /* of two places of an expert only one is */
    CK_OK(eep_layout_from_map(1, 3, 4, 1, twice, &layout));
    eep_member_set_layout(m, layout);
    drain("op", two_of_node_1, 2);
    ck_assert_uint_eq(nth(EEP_DO_ANSWER, 0)->want, 1);
    eep_layout_destroy(layout);
    eep_member_set_layout(m, NULL);
}
END_TEST

START_TEST(where_an_expert_can_be_had)
{
    struct eep_layout *layout = small_layout();
    const uint64_t held[] = {1, 2, 0, 0}, backup[] = {0, 4};
    struct eep_experts_ask ask = {
        .layout = layout, .held_on = held, .backup_on = backup, .live_nodes = 7, .disk = true};
    struct eep_experts_survey survey;
    uint8_t sources[2];

    eep_experts_survey(&ask, sources, &survey);
    ck_assert_uint_eq(survey.by_source[EEP_SOURCE_REPLICA], 2);
    ck_assert(survey.survives_rank && survey.survives_node); /* frames 0 1; frame 0, backup 2 */
    ask.live_nodes = 6;
    eep_experts_survey(&ask, sources, &survey);
    ck_assert_uint_eq(sources[0], EEP_SOURCE_REPLICA);
    ck_assert_uint_eq(sources[1], EEP_SOURCE_BACKUP);
    ck_assert_uint_eq(survey.single_source, 2);
    ck_assert(survey.survives_rank && !survey.survives_node);
    ask.single_nodes = 4; /* the node with the backup has one member */
    eep_experts_survey(&ask, NULL, &survey);
    ck_assert(!survey.survives_rank);
    ask.live_nodes = 2;
    eep_experts_survey(&ask, sources, &survey);
    ck_assert_uint_eq(sources[1], EEP_SOURCE_DISK);
    ck_assert(!survey.survives_rank && !survey.survives_node);
    ask.disk = false;
    ask.backup_on = NULL;
    eep_experts_survey(&ask, sources, &survey);
    ck_assert_uint_eq(sources[1], EEP_SOURCE_NONE);
    ck_assert_uint_eq(survey.by_source[EEP_SOURCE_NONE], 1);
    eep_layout_destroy(layout);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_first_members_serve_and_share_the_seats,
        a_job_of_impossible_numbers_is_refused,
        a_dead_member_makes_this_process_give_up_the_epoch,
        a_revoked_epoch_is_given_up_too,
        shrinking_is_tried_again_and_the_launcher_asked_after_eight_times,
        a_silent_member_is_fenced_by_its_node_and_then_counts_as_dead,
        whoever_is_heard_again_or_fenced_is_not_silent_any_more,
        a_node_that_is_silent_altogether_is_fenced_by_the_coordinator,
        the_death_of_one_outside_is_reported_and_agreed_on,
        seats_of_a_dead_member_go_to_its_node_and_no_byte_moves,
        seats_of_a_lost_node_are_lost_until_they_are_filled,
        a_loss_during_a_recovery_begins_it_again,
        the_lowest_that_is_left_coordinates_and_seats_find_it,
        an_impossible_epoch_is_refused_and_changes_nothing,
        a_seat_that_cannot_be_filled_is_tried_again,
        a_member_that_failed_may_still_succeed,
        after_eight_attempts_the_launcher_is_asked_and_trying_goes_on,
        growing_takes_each_phase_in_turn,
        draining_a_node_takes_each_phase_in_turn,
        leavers_end_when_asked_to_or_when_they_were_spawned,
        a_leaver_of_a_node_that_keeps_one_makes_nobody_load,
        the_coordinator_can_be_drained,
        a_scale_to_the_present_size_is_done_at_once,
        processes_are_spawned_for_those_who_are_missing,
        members_beyond_the_seats_join_without_one,
        what_cannot_be_is_refused_with_its_numbers,
        an_id_is_there_has_an_end_and_nothing_behind_it,
        the_same_id_is_one_operation_and_another_has_to_wait,
        sixteen_ended_operations_are_remembered,
        a_dry_run_says_what_would_be_and_changes_nothing,
        seats_that_no_node_can_hold_are_refused_with_the_numbers,
        a_node_that_a_loss_made_too_full_may_be_relieved,
        the_death_of_a_joiner_is_reported_like_that_of_a_parked_one,
        whom_an_aborted_drain_named_the_next_one_does_not,
        an_abort_rolls_back_any_phase_but_the_last,
        each_phase_ends_at_its_deadline,
        a_failure_that_a_member_reports_rolls_back,
        reports_of_another_wait_or_of_those_outside_do_not_count,
        the_time_of_the_whole_operation_counts_too,
        a_joiner_that_dies_rolls_back,
        a_loss_sends_a_growing_job_to_the_first_phase,
        a_loss_sends_a_shrinking_job_to_the_first_phase,
        fewer_leave_when_some_are_lost_meanwhile,
        a_member_that_dies_while_it_is_drained_is_drained,
        those_that_are_to_go_stay_when_all_others_have_died,
        nobody_to_wake_any_more_rolls_back,
        a_job_that_got_too_full_while_it_planned_rolls_back,
        a_joiner_that_is_not_let_in_rolls_back,
        a_member_lost_in_the_switch_makes_it_short,
        joiners_alone_can_go_on,
        leavers_that_are_still_there_after_a_shrink_leave_again,
        a_seat_whose_next_member_dies_in_the_switch_is_filled_elsewhere,
        who_comes_too_late_is_parked,
        a_parked_process_of_another_start_is_parked,
        spawning_begins_again_when_the_spawner_has_died,
        who_did_not_come_is_woken_last_the_next_time,
        ids_go_on_and_records_of_the_dead_are_used_again,
        when_all_records_live_a_newcomer_is_sent_away,
        a_spawned_process_without_room_ends_its_operation,
        lost_members_are_replaced_when_asked_to,
        nobody_is_replaced_unasked_or_without_anybody,
        the_size_that_is_wanted_is_the_one_last_asked_for,
        one_broken_clock_does_not_use_up_the_time,
        a_member_that_is_behind_adopts_and_goes_on_the_same,
        a_state_that_is_old_or_parted_is_not_adopted,
        a_broken_state_is_not_adopted,
        the_words_are_there,
        seats_move_as_little_as_they_can,
        newcomers_take_from_their_node_then_a_reserved_seat_then_from_others,
        counts_are_levelled,
        a_seat_is_redundant_when_others_that_serve_have_its_experts,
        seats_that_only_add_replicas_are_given_up_with_their_node,
        where_an_expert_can_be_had,
    };

    return run_tests_with("member", tests, COUNT(tests), set_up, tear_down);
}
