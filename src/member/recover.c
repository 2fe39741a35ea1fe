/*
 * Loss of members. What one process sees makes it give up the epoch (local); what all that are left
 * agree on makes the next one (agreed): dead members' seats get executors, and serving goes on when
 * every member has taken over what it was given.
 */
#include <string.h>

#include "member/member_int.h"

#define SHRINK_TRIES 8u /* then the launcher is asked to start again */
#define RESEAT_TRIES 8u
#define RESEAT_PAUSE_NS UINT64_C(1000000000) /* after a failed attempt */

/* ---- local: suspicion and shrinking ---- */

static void shrink(struct eep_member *m, uint64_t now_ns)
{
    m->shrinking = true;
    m->shrink_attempts++;
    m->shrink_deadline_ns = eep_later(now_ns, m->params.shrink_ns);
    struct eep_member_action *action = eep_emit(m, EEP_DO_SHRINK, m->self, m->self);

    action->count = m->shrink_attempts;
    action->deadline_ns = m->shrink_deadline_ns;
    if (m->shrink_attempts % SHRINK_TRIES == 0) {
        eep_emit(m, EEP_DO_RESTART, m->self, m->self);
    }
}

static void give_up_epoch(struct eep_member *m, uint64_t now_ns)
{
    if (!m->shrinking) {
        shrink(m, now_ns);
    }
}

static uint32_t silence_of(const struct eep_member *m, uint32_t member)
{
    for (uint32_t i = 0; i < m->silent_count; i++) {
        if (m->silent[i].member == member) {
            return i;
        }
    }
    return m->silent_count;
}

static void forget_silence(struct eep_member *m, uint32_t index)
{
    if (index < m->silent_count) {
        m->silent[index] = m->silent[--m->silent_count];
    }
}

/* Who can kill a silent member: the lowest that is heard on its node, else the lowest of all, which
 * asks the launcher. */
static uint32_t fencer_of(const struct eep_member *m, const struct eep_member_record *silent)
{
    uint32_t near = EEP_NO_MEMBER, any = EEP_NO_MEMBER;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &m->state.members[i];

        if (!eep_member_in_epoch(r) || r == silent || silence_of(m, r->id) < m->silent_count) {
            continue;
        }
        any = EEP_MIN(any, r->id);
        if (r->node == silent->node) {
            near = EEP_MIN(near, r->id);
        }
    }
    return near != EEP_NO_MEMBER ? near : any;
}

static void fall_silent(struct eep_member *m, const struct eep_member_record *r, uint64_t now_ns)
{
    if (r->id == m->self || silence_of(m, r->id) < m->silent_count) {
        return;
    }
    const struct eep_silence one = {r->id, eep_later(now_ns, m->params.fence_ns)};

    m->silent[m->silent_count++] = one;
    eep_emit(m, EEP_DO_FENCE, r->id, fencer_of(m, r))->deadline_ns = one.deadline_ns;
}

static void tick(struct eep_member *m, uint64_t now_ns)
{
    for (uint32_t i = m->silent_count; i-- > 0;) {
        if (now_ns >= m->silent[i].deadline_ns) {
            forget_silence(m, i);
            give_up_epoch(m, now_ns);
        }
    }
    if (m->shrinking && now_ns >= m->shrink_deadline_ns) {
        shrink(m, now_ns);
    }
}

void eep_recover_local(struct eep_member *m, const struct eep_member_event *event, uint64_t now_ns)
{
    const struct eep_member_record *r = eep_member_find(&m->state, event->member);

    switch (event->kind) {
    case EEP_SEEN_DEAD:
    case EEP_FENCED:
        forget_silence(m, silence_of(m, event->member));
        if (r != NULL && eep_member_in_epoch(r)) {
            give_up_epoch(m, now_ns);
        } else if (r != NULL && (r->life == EEP_LIFE_PARKED || r->life == EEP_LIFE_JOINING)) {
            eep_emit(m, EEP_DO_REPORT, r->id, m->self);
        }
        break;
    case EEP_SEEN_SILENT:
        if (r != NULL && eep_member_in_epoch(r)) {
            fall_silent(m, r, now_ns);
        }
        break;
    case EEP_SEEN_ALIVE:
        forget_silence(m, silence_of(m, event->member));
        break;
    case EEP_REVOKED:
        give_up_epoch(m, now_ns);
        break;
    case EEP_SHRINK_FAILED:
        if (m->shrinking) {
            shrink(m, now_ns);
        }
        break;
    default:
        tick(m, now_ns);
        break;
    }
}

/* ---- agreed: the next epoch ---- */

static bool is_in(const struct eep_member_event *event, uint32_t id)
{
    for (uint32_t i = 0; i < event->set_count; i++) {
        if (event->set[i] == id) {
            return true;
        }
    }
    return false;
}

static bool is_switching(const struct eep_member_state *s)
{
    return s->operation.phase == EEP_PHASE_SWITCHING;
}

static enum eep_status check_set(const struct eep_member *m, const struct eep_member_event *event)
{
    const struct eep_member_state *s = &m->state;

    if (event->epoch <= s->epoch || event->position != s->position) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "membership: epoch %llu after event %llu was agreed on, but this member is "
                        "in epoch %llu after event %llu",
                        (unsigned long long)event->epoch, (unsigned long long)event->position,
                        (unsigned long long)s->epoch, (unsigned long long)s->position);
    }
    if (event->set_count == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "membership: epoch %llu has no members",
                        (unsigned long long)event->epoch);
    }
    for (uint32_t i = 0; i < event->set_count; i++) {
        const struct eep_member_record *r = eep_member_find(s, event->set[i]);
        const bool can_be = r != NULL && (eep_member_in_epoch(r) ||
                                          (is_switching(s) && r->life == EEP_LIFE_JOINING));

        if (!can_be || (i > 0 && event->set[i - 1] >= event->set[i])) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "membership: member %u cannot be in epoch %llu (%s), or the set is not "
                            "ascending",
                            event->set[i], (unsigned long long)event->epoch,
                            r == NULL ? "unknown" : eep_life_text((enum eep_life)r->life));
        }
    }
    return EEP_OK;
}

struct outcome {
    uint32_t lost, joined, left_out, still_here; /* still_here: leavers */
};

static void leave(struct eep_member *m, struct eep_member_record *r)
{
    const bool ends = m->state.operation.leavers_exit != 0 || (r->flags & EEP_MEMBER_SPAWNED) != 0;

    eep_set_life(m, r, ends ? EEP_LIFE_LEFT : EEP_LIFE_PARKED);
    eep_emit(m, ends ? EEP_DO_EXIT : EEP_DO_PARK, r->id, r->id);
}

static struct outcome set_lives(struct eep_member *m, const struct eep_member_event *event)
{
    const bool switching = is_switching(&m->state);
    struct outcome o = {0};

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        struct eep_member_record *r = &m->state.members[i];
        const bool in = is_in(event, r->id);

        if (r->life == EEP_LIFE_DRAINING && in) {
            o.still_here++;
        } else if (r->life == EEP_LIFE_DRAINING && switching) {
            leave(m, r);
        } else if (eep_member_in_epoch(r) && !in) {
            if (r->id == m->self) {
                eep_emit(m, EEP_DO_DIE, r->id, r->id);
            }
            eep_set_life(m, r, EEP_LIFE_DEAD);
            o.lost++;
        } else if (r->life == EEP_LIFE_JOINING && in) {
            eep_set_life(m, r, EEP_LIFE_ACTIVE);
            o.joined++;
        } else if (r->life == EEP_LIFE_JOINING && switching) {
            o.left_out++;
        }
    }
    return o;
}

/* Seats as planned, where the switch let their next executors in. */
static void take_planned_seats(struct eep_member *m, bool complete)
{
    for (uint32_t i = 0; i < m->state.seats_max; i++) {
        struct eep_seat_record *seat = &m->state.seats[i];
        const struct eep_member_record *next = eep_member_find(&m->state, seat->next);

        if (next != NULL && eep_member_in_epoch(next)) {
            seat->held_on |= eep_node_bit(next->node); /* it loaded before the switch */
            seat->state = EEP_SEAT_ACTIVE;
            eep_set_executor(m, i, next->id);
        } else if (seat->state == EEP_SEAT_LEAVING && complete) {
            seat->state = EEP_SEAT_RESERVED;
            seat->held_on = 0;
            eep_set_executor(m, i, EEP_NO_MEMBER);
        }
    }
}

/* Seats without an executor get one; true if some must be filled. */
static bool adopt_seats(struct eep_member *m)
{
    struct eep_member_state *s = &m->state;
    struct eep_plan plan;
    bool takes[EEP_MEMBERS_MAX], fills = false;
    uint64_t live_nodes = 0;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        takes[i] = eep_member_in_epoch(&s->members[i]);
        live_nodes |= takes[i] ? eep_node_bit(s->members[i].node) : 0;
    }
    for (uint32_t i = 0; i < s->seats_max; i++) {
        s->seats[i].held_on &= live_nodes;
    }
    eep_plan_candidates(s, takes, &plan);
    eep_seats_assign(plan.candidates, plan.count, s->seats, s->seats_max, false, plan.next);
    for (uint32_t i = 0; i < s->seats_max; i++) {
        struct eep_seat_record *seat = &s->seats[i];
        const struct eep_member_record *r = eep_member_find(s, plan.next[i]);

        if (r == NULL) {
            continue;
        }
        eep_set_executor(m, i, r->id);
        const bool holds = (seat->held_on & eep_node_bit(r->node)) != 0;

        seat->state = holds ? EEP_SEAT_ACTIVE : EEP_SEAT_LOST;
        fills |= !holds;
    }
    return fills;
}

static void ask_to_reseat(struct eep_member *m)
{
    eep_wait_begin(m, &m->state.reseat_wait, m->params.reseat_ns, 0);
    struct eep_member_action *action = eep_emit(m, EEP_DO_RESEAT, EEP_NO_MEMBER, EEP_NO_MEMBER);

    action->serial = m->state.reseat_wait.serial;
    action->deadline_ns = m->state.reseat_wait.deadline_ns;
    if (++m->state.reseats % RESEAT_TRIES == 0) {
        eep_emit(m, EEP_DO_RESTART, EEP_NO_MEMBER, EEP_NO_MEMBER);
    }
}

/* Frames that are used are those of the executor's node; others would grow old. */
static void settle_seats(struct eep_member_state *s)
{
    for (uint32_t i = 0; i < s->seats_max; i++) {
        const struct eep_member_record *r = eep_member_find(s, s->seats[i].executor);

        if (r != NULL) {
            s->seats[i].held_on = eep_node_bit(r->node);
            s->seats[i].state = EEP_SEAT_ACTIVE;
        }
    }
}

static void serve(struct eep_member *m)
{
    memset(&m->state.reseat_wait, 0, sizeof(m->state.reseat_wait));
    m->state.reseats = 0;
    settle_seats(&m->state);
    eep_set_mode(m, EEP_MODE_SERVING);
    eep_emit(m, EEP_DO_SERVE, EEP_NO_MEMBER, EEP_NO_MEMBER);
    if (eep_operation_runs(&m->state)) {
        eep_phase_start(m);
    }
    eep_operation_idle(m);
}

/* What the new epoch means for the operation. */
static void settle_operation(struct eep_member *m, const struct outcome *o, bool switched)
{
    const struct eep_operation *op = &m->state.operation;

    if (op->phase == EEP_PHASE_NONE) {
        return;
    }
    if (switched) {
        const bool is_short = eep_member_size(&m->state) < op->target;

        eep_operation_end(m, EEP_PHASE_DONE, is_short ? EEP_REASON_SHORT : EEP_REASON_NONE, EEP_OK);
    } else if (o->left_out > 0) {
        eep_operation_roll_back(m, EEP_REASON_JOINER_LOST, EEP_ERR_PEER_LOST);
    } else {
        eep_phase_hold(m);
    }
}

enum eep_status eep_recover_agreed(struct eep_member *m, const struct eep_member_event *event)
{
    EEP_TRY(check_set(m, event));
    const bool switching = is_switching(&m->state);

    m->shrinking = false;
    m->shrink_attempts = 0;
    m->silent_count = 0;
    eep_audit(m, EEP_AUDIT_EPOCH, 0, (uint32_t)m->state.epoch, (uint32_t)event->epoch);
    m->state.epoch = event->epoch;
    const struct outcome o = set_lives(m, event);
    const bool switched = switching && o.left_out == 0 && o.still_here == 0;

    if (switched || o.joined > 0) {
        take_planned_seats(m, switched);
    }
    eep_phase_forget_seats(&m->state);
    const bool fills = adopt_seats(m);

    settle_operation(m, &o, switched);
    if (switched && o.lost == 0 && !fills) {
        serve(m);
    } else {
        eep_set_mode(m, EEP_MODE_RESEATING);
        m->state.reseats = 0;
        ask_to_reseat(m);
    }
    return EEP_OK;
}

/* ---- agreed: reseating ---- */

bool eep_reseat_expects(const struct eep_member_state *s, const struct eep_member_record *r)
{
    return s->mode == EEP_MODE_RESEATING && eep_member_in_epoch(r) &&
           r->done_serial != s->reseat_wait.serial;
}

static bool all_reseated(const struct eep_member_state *s)
{
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (eep_reseat_expects(s, &s->members[i])) {
            return false;
        }
    }
    return true;
}

void eep_recover_done(struct eep_member *m, const struct eep_member_event *event)
{
    struct eep_member_state *s = &m->state;
    struct eep_member_record *r = eep_record_find(s, event->member);

    if (s->mode != EEP_MODE_RESEATING || event->serial != s->reseat_wait.serial || r == NULL ||
        !eep_member_in_epoch(r)) {
        return;
    }
    if (event->status != EEP_OK) {
        s->reseat_wait.deadline_ns =
            EEP_MIN(s->reseat_wait.deadline_ns, eep_later(s->now_ns, RESEAT_PAUSE_NS));
        return;
    }
    r->done_serial = event->serial;
    if (all_reseated(s)) {
        serve(m);
    }
}

void eep_recover_passed(struct eep_member *m)
{
    if (m->state.mode == EEP_MODE_RESEATING &&
        m->state.now_ns >= m->state.reseat_wait.deadline_ns) {
        ask_to_reseat(m);
    }
}
