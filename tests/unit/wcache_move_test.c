/*
 * Moves of experts in a weight cache: versions, views, what is busy and what is refused, movers
 * that die. (Kills at every point: tests/fault.)
 */
#include <signal.h>

#include "wcache_fixture.h"

/* ---- moves ------------------------------------------------------------------------------------
 */

START_TEST(moves_change_versions_and_keep_bytes)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status before, after;

    for (uint64_t i = 0; i < 60; i++) {
        const bool in_place = i % 3 == 2;

        CK_OK(eep_wcache_status(c, &before));
        CK_OK(wt_move(c, (uint32_t)i, 1 + i % 2, i * 10, in_place));
        CK_OK(eep_wcache_status(c, &after));
        ck_assert_uint_eq(after.version, before.version + 1);
        ck_assert_uint_eq(after.version, eep_wcache_version(c));
        ck_assert_int_eq(after.state, EEP_WCACHE_CLEAN);
        CK_OK(wt_check(c));
    }
    eep_wcache_close(c);
    c = attach_as("engine B", 2); /* a restart starts from the record */
    CK_OK(wt_fill(c));
    CK_OK(eep_wcache_status(c, &after));
    ck_assert_uint_eq(after.version, 60);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(an_old_view_keeps_its_frames)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_view *old, *new;
    uint64_t moves = 0;
    enum eep_status status = EEP_OK;

    CK_OK(eep_wcache_pin(c, &old));
    while (status == EEP_OK) {
        status = wt_move(c, 0, 1, moves * 7, false);
        CK_OK(wt_check_view(old));
        moves += status == EEP_OK;
        ck_assert_uint_lt(moves, 50);
    }
    ck_assert_uint_gt(moves, 1);
    ck_assert_int_eq(status, EEP_ERR_AGAIN);
    SAYS("older versions");
    CK_OK(eep_wcache_abort(c));
    CK_OK(eep_wcache_pin(c, &new)); /* follow */
    eep_wcache_unpin(c, old);
    CK_OK(wt_check_view(new));
    CK_OK(wt_move(c, 0, 1, 1000, false));
    CK_OK(wt_check_view(new));
    eep_wcache_unpin(c, new);
    eep_wcache_close(c);
}
END_TEST

START_TEST(abort_leaves_the_old_version)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    struct wt_move m;

    FAILS(eep_wcache_abort(c), EEP_ERR_STALE, "no own move");
    for (uint64_t i = 0; i < 10; i++) {
        CK_OK(wt_prepare(c, 0, 2, i, false, &m));
        CK_OK(eep_wcache_status(c, &s));
        ck_assert_uint_eq(s.prepared_version, 1);
        ck_assert(memcmp(s.prepared_digest, m.digest, sizeof(m.digest)) == 0);
        ck_assert_int_eq(s.state, EEP_WCACHE_MOVING);
        CK_OK(eep_wcache_abort(c));
        CK_OK(wt_check(c));
    }
    ck_assert_uint_eq(eep_wcache_version(c), 0);
    CK_OK(wt_move(c, 0, 3, 5, false));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(abort_in_place_needs_the_old_bytes)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_view *view;
    struct eep_wcache_repair repaired;
    struct eep_wcache_frame frame;
    struct wt_move m;
    uint64_t version;
    void *bytes;

    CK_OK(eep_wcache_begin(c, (uint32_t[]){1}, 1, 0));
    CK_OK(eep_wcache_take_in_place(c, 1, (struct eep_slot){2}, &frame));
    FAILS(eep_wcache_pin(c, &view), EEP_ERR_AGAIN, "engine A");
    CK_OK(eep_wcache_abort(c)); /* nothing was touched */
    CK_OK(wt_check(c));
    do {
        CK_OK(wt_prepare(c, 1, 1, 40, true, &m));
    } while (memcmp(m.map[0], (int32_t[]){0, 1, 2, 3, 4, 5, 0, 1}, sizeof(m.map[0])) == 0);
    FAILS(eep_wcache_abort(c), EEP_ERR_CACHE_BAD, "dirty");
    for (uint32_t p = 0; p < WT_SLOTS; p++) {
        CK_OK(eep_wcache_take_in_place(c, 1, (struct eep_slot){p}, &frame));
        CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
        wt_bytes(1, p % WT_EXPERTS, bytes, WT_FRAME_BYTES);
        CK_OK(eep_wcache_frame_end(c, frame, 1, (struct eep_expert){p % WT_EXPERTS}, NULL, NULL));
    }
    CK_OK(eep_wcache_abort(c));
    CK_OK(wt_check(c));
    CK_OK(eep_wcache_repair(c, true, 0, NULL, NULL, &repaired));
    ck_assert(repaired.refilled == 0 && repaired.version == 0);
    FAILS(eep_wcache_commit(c, &version), EEP_ERR_INVALID, "no own move");
    eep_wcache_close(c);
}
END_TEST

START_TEST(begin_refuses_with_reasons)
{
    struct eep_wcache *c = filled();
    const uint32_t twice[] = {1, 1}, high[] = {WT_LAYERS}, one[] = {1};
    struct eep_wcache_frame frame;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    uint64_t version;

    FAILS(eep_wcache_begin(c, one, 0, 0), EEP_ERR_INVALID, "no layers");
    FAILS(eep_wcache_begin(c, twice, 2, 0), EEP_ERR_INVALID, "layer 1");
    FAILS(eep_wcache_begin(c, high, 1, 0), EEP_ERR_INVALID, "layer 3");
    FAILS(eep_wcache_begin(c, one, 1, 4), EEP_ERR_STALE, "is 0, not 4");
    FAILS(eep_wcache_take(c, (struct eep_seat){0}, &frame), EEP_ERR_INVALID, "no move");
    FAILS(eep_wcache_prepare(c, NULL, 0, &version, digest), EEP_ERR_INVALID, "no own move");
    CK_OK(eep_wcache_begin(c, one, 1, 0));
    FAILS(eep_wcache_begin(c, one, 1, 0), EEP_ERR_STALE, "own move");
    FAILS(eep_wcache_commit(c, &version), EEP_ERR_INVALID, "nothing is prepared");
    FAILS(eep_wcache_resolve(c, true, &version), EEP_ERR_INVALID, "own move");
    FAILS(eep_wcache_take_in_place(c, 0, (struct eep_slot){0}, &frame), EEP_ERR_INVALID,
          "not in the move");
    FAILS(eep_wcache_take(c, (struct eep_seat){WT_SEATS}, &frame), EEP_ERR_INVALID, "no seat");
    CK_OK(eep_wcache_abort(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(prepare_refuses_what_frames_do_not_hold)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_frame frame;
    int32_t map[WT_SLOTS];
    uint32_t frames[WT_SLOTS];
    struct eep_wcache_row row = {0, map, frames};
    struct eep_wcache_view *view;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    uint64_t version;

    CK_OK(eep_wcache_pin(c, &view));
    CK_OK(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0));
#define RESET()                                                                                    \
    (memcpy(map, eep_wcache_view_map(view), sizeof(map)),                                          \
     memcpy(frames, eep_wcache_view_frames(view), sizeof(frames)))
#define REFUSED(word) FAILS(eep_wcache_prepare(c, &row, 1, &version, digest), EEP_ERR_INVALID, word)
    RESET(), map[0] = 6;
    REFUSED("no expert 6");
    RESET(), map[2] = 0;
    REFUSED("expert 2 is left without");
    RESET(), map[6] = 4; /* the frame holds expert 0 */
    REFUSED("not what the frames hold");
    RESET(), frames[1] = frames[0], map[1] = 0, map[7] = 1;
    REFUSED("given twice");
    RESET(), frames[0] = 1000;
    REFUSED("not below");
    RESET(), row.layer = 1;
    REFUSED("not in the move");
    row.layer = 0;
    CK_OK(eep_wcache_take(c, (struct eep_seat){1}, &frame)); /* taken and not filled */
    RESET(), map[6] = 4, frames[6] = frame.index;
    REFUSED("not what the frames hold");
    /* Within a seat a slot's frame may be given to another: no byte moves. */
    RESET(), map[0] = 1, map[1] = 0, frames[0] = 1, frames[1] = 0;
    CK_OK(eep_wcache_prepare(c, &row, 1, &version, digest));
    CK_OK(eep_wcache_commit(c, &version));
    eep_wcache_unpin(c, view);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

/* A standby: it follows, takes over as mover when the mover goes, and is refused before. */
static void standby(struct eep_wcache *c)
{
    struct eep_wcache_view *view, *next;
    struct eep_wcache_status s;

    CK_OK(eep_wcache_pin(c, &view));
    let_go(to_parent[1]);
    wait_turn(to_child[0]); /* A moved twice and has a move pending */
    CK_OK(wt_check_view(view));
    ck_assert_uint_eq(eep_wcache_version(c), 2);
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 2), EEP_ERR_AGAIN, "engine A");
    FAILS(eep_wcache_wait(c, 10 * EEP_NS_PER_MS), EEP_ERR_TIMEOUT, "engine A");
    SAYS("layers 0-1");
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.state == EEP_WCACHE_MOVING && s.attached == 2 && s.attached_others == 1);
    ck_assert_str_eq(s.move.engine, "engine A");
    CK_OK(eep_wcache_pin(c, &next));
    eep_wcache_unpin(c, view);
    CK_OK(wt_check_view(next));
    let_go(to_parent[1]);
    wait_turn(to_child[0]); /* A is gone */
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 1), EEP_ERR_STALE, "is 3, not 1");
    CK_OK(wt_move(c, 0, 2, 99, false));
    ck_assert_uint_eq(eep_wcache_version(c), 4);
    CK_OK(wt_check_view(next));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}

START_TEST(a_standby_follows_and_takes_over)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_frame frame;
    struct wt_move m;
    uint64_t version;
    pid_t pid = other_process(standby, "engine B", 2);

    wait_turn(to_parent[0]);
    CK_OK(wt_move(c, 0, 1, 3, false));
    CK_OK(wt_move(c, 1, 1, 4, false));
    CK_OK(wt_prepare(c, 0, 2, 5, false, &m));
    let_go(to_child[1]);
    wait_turn(to_parent[0]);
    CK_OK(eep_wcache_commit(c, &version));
    /* B has a view: not in place. */
    CK_OK(eep_wcache_begin(c, (uint32_t[]){0}, 1, 3));
    FAILS(eep_wcache_take_in_place(c, 0, (struct eep_slot){0}, &frame), EEP_ERR_AGAIN, "engine B");
    CK_OK(eep_wcache_abort(c));
    eep_wcache_close(c);
    let_go(to_child[1]);
    join(pid);
}
END_TEST

static void does_not_follow(struct eep_wcache *c)
{
    let_go(to_parent[1]);
    wait_turn(to_child[0]);
    eep_wcache_close(c);
}

START_TEST(one_that_does_not_follow_blocks_moves_while_it_is_there)
{
    struct eep_wcache *c = filled();
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    pid_t pid;

    wt_map(map);
    ck_assert_int_eq(pipe(to_child), 0);
    ck_assert_int_eq(pipe(to_parent), 0);
    pid = fork();
    if (pid == 0) {
        struct eep_wcache *d;

        params = wt_params(dir, map, "old engine", 9);
        params.follows = false;
        CK_OK(eep_wcache_open(&params, &d));
        does_not_follow(d);
        _exit(0);
    }
    wait_turn(to_parent[0]);
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0), EEP_ERR_AGAIN, "old engine");
    let_go(to_child[1]);
    join(pid);
    CK_OK(wt_move(c, 0, 1, 1, false));
    eep_wcache_close(c);
}
END_TEST

/* ---- several ranks of one engine --------------------------------------------------------------
 */

/* Rank 1 of engine A: takes and fills a frame of seat 1 for layer 0, slot 6 (expert 0 -> 4). */
static struct eep_wcache_frame fill_as_rank(struct eep_wcache *c)
{
    struct eep_wcache_frame frame;
    void *bytes;

    CK_OK(eep_wcache_take(c, (struct eep_seat){1}, &frame));
    CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
    wt_bytes(0, 4, bytes, WT_FRAME_BYTES);
    CK_OK(eep_wcache_frame_end(c, frame, 0, (struct eep_expert){4}, NULL, NULL));
    return frame;
}

static void second_rank(struct eep_wcache *c)
{
    struct eep_wcache_frame frame;
    uint32_t index;

    FAILS(eep_wcache_take(c, (struct eep_seat){1}, &frame), EEP_ERR_INVALID, "no move");
    let_go(to_parent[1]);
    wait_turn(to_child[0]); /* A's mover began */
    index = fill_as_rank(c).index;
    ck_assert_int_eq(write(to_parent[1], &index, sizeof(index)), sizeof(index));
    wait_turn(to_child[0]); /* it committed */
    eep_wcache_leave(c);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}

START_TEST(another_rank_of_the_engine_fills_frames)
{
    struct eep_wcache *c = filled();
    int32_t map[WT_SLOTS];
    uint32_t frames[WT_SLOTS], index;
    struct eep_wcache_row row = {0, map, frames};
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    struct eep_wcache_view *view;
    struct eep_wcache_frame frame;
    uint64_t version;
    pid_t pid = other_process(second_rank, "engine A", 1);

    wait_turn(to_parent[0]);
    CK_OK(eep_wcache_pin(c, &view));
    CK_OK(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0));
    let_go(to_child[1]);
    ck_assert_int_eq(read(to_parent[0], &index, sizeof(index)), sizeof(index));
    FAILS(eep_wcache_take(c, (struct eep_seat){1}, &frame), EEP_ERR_AGAIN, "engine A");
    memcpy(map, eep_wcache_view_map(view), sizeof(map));
    memcpy(frames, eep_wcache_view_frames(view), sizeof(frames));
    map[6] = 4;
    frames[6] = index;
    CK_OK(eep_wcache_prepare(c, &row, 1, &version, digest));
    CK_OK(eep_wcache_commit(c, &version));
    eep_wcache_unpin(c, view);
    CK_OK(wt_check(c));
    let_go(to_child[1]);
    join(pid);
    CK_OK(wt_move(c, 0, 2, 8, false));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

static void mover_that_dies(struct eep_wcache *c)
{
    CK_OK(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0));
    let_go(to_parent[1]);
    wait_turn(to_child[0]);
}

/* The other engine, which takes over while a rank of the first still holds a frame. */
static void next_mover(uint64_t base, bool writer_lives)
{
    int32_t map[WT_TABLE];
    struct eep_wcache_params params;
    struct eep_wcache_frame frame;
    struct eep_wcache *c;
    const pid_t pid = fork();

    if (pid == 0) {
        wt_map(map);
        params = wt_params(dir, map, "engine B", 2);
        CK_OK(eep_wcache_open(&params, &c));
        CK_OK(wt_fill(c));
        CK_OK(eep_wcache_begin(c, (uint32_t[]){0}, 1, base));
        if (writer_lives) {
            FAILS(eep_wcache_take(c, (struct eep_seat){1}, &frame), EEP_ERR_AGAIN, "engine A");
        } else {
            CK_OK(eep_wcache_take(c, (struct eep_seat){1}, &frame));
        }
        CK_OK(eep_wcache_take(c, (struct eep_seat){0}, &frame));
        CK_OK(eep_wcache_abort(c));
        eep_wcache_close(c);
        _exit(0);
    }
    join(pid);
}

START_TEST(a_rank_that_outlives_its_mover_does_no_harm)
{
    struct eep_wcache *c = filled(); /* rank 1 of engine A */
    struct eep_wcache_frame frame, other;
    void *bytes;
    pid_t pid = other_process(mover_that_dies, "engine A", 1);

    wait_turn(to_parent[0]);
    CK_OK(eep_wcache_take(c, (struct eep_seat){1}, &frame));
    CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
    let_go(to_child[1]); /* the mover dies */
    join(pid);
    next_mover(0, true);
    /* The move is over: nothing more is taken, begun or made dirty for it. */
    FAILS(eep_wcache_frame_begin(c, frame, &bytes), EEP_ERR_INVALID, "not this process's");
    FAILS(eep_wcache_take(c, (struct eep_seat){1}, &other), EEP_ERR_INVALID, "no move");
    FAILS(eep_wcache_take_in_place(c, 0, (struct eep_slot){0}, &other), EEP_ERR_INVALID, "no move");
    eep_wcache_leave(c);
    next_mover(0, false);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(another_rank_aborts_after_its_mover_died)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    pid_t pid = other_process(mover_that_dies, "engine A", 1);

    wait_turn(to_parent[0]);
    FAILS(eep_wcache_abort(c), EEP_ERR_AGAIN, "is the mover");
    let_go(to_child[1]);
    join(pid);
    CK_OK(eep_wcache_status(c, &s));
    ck_assert_int_eq(s.state, EEP_WCACHE_STALLED);
    CK_OK(eep_wcache_abort(c));
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.state == EEP_WCACHE_CLEAN && s.mover);
    CK_OK(wt_move(c, 0, 1, 3, false));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

/* ---- a mover that dies ------------------------------------------------------------------------
 */

static void die_prepared(struct eep_wcache *c)
{
    struct wt_move m;

    CK_OK(wt_prepare(c, 1, 2, 21, false, &m));
}

static void die_prepared_in_place(struct eep_wcache *c)
{
    struct wt_move m;

    CK_OK(wt_prepare(c, 1, 2, 21, true, &m));
}

static void die_dirty(struct eep_wcache *c)
{
    struct eep_wcache_frame frame;
    void *bytes;

    CK_OK(eep_wcache_begin(c, (uint32_t[]){0, 2}, 2, 0));
    CK_OK(eep_wcache_take_in_place(c, 2, (struct eep_slot){3}, &frame));
    CK_OK(eep_wcache_frame_begin(c, frame, &bytes));
    memset(bytes, 0x55, 100);
}

START_TEST(what_was_prepared_is_rolled_forward_or_back)
{
    for (int forward = 0; forward < 2; forward++) {
        struct eep_wcache *c = filled();
        struct eep_wcache_status s;
        const uint64_t base = eep_wcache_version(c);
        uint64_t version;

        join(other_process(die_prepared, "engine C", 3));
        CK_OK(eep_wcache_status(c, &s));
        ck_assert(s.state == EEP_WCACHE_STALLED && s.prepared_version == base + 1);
        CK_OK(eep_wcache_wait(c, 0));
        FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, base), EEP_ERR_STALE, "prepared");
        CK_OK(wt_check(c)); /* the current version can be served meanwhile */
        CK_OK(eep_wcache_resolve(c, forward != 0, &version));
        ck_assert_uint_eq(version, base + (uint64_t)forward);
        CK_OK(wt_check(c));
        CK_OK(wt_move(c, 0, 1, 1, false));
        CK_OK(wt_check(c));
        eep_wcache_close(c);
    }
}
END_TEST

START_TEST(a_dirty_record_is_refused_and_repaired)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_repair r;
    struct eep_wcache_status s;
    struct eep_wcache_view *view;

    join(other_process(die_dirty, "engine D", 4));
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.state == EEP_WCACHE_DIRTY && s.in_place && s.move.base_version == 0);
    FAILS(eep_wcache_pin(c, &view), EEP_ERR_CACHE_BAD, "engine D");
    SAYS("layers 0, 2; base version 0");
    FAILS(eep_wcache_begin(c, (uint32_t[]){0}, 1, 0), EEP_ERR_CACHE_BAD, "engine D");
    FAILS(eep_wcache_wait(c, 0), EEP_ERR_CACHE_BAD, "engine D");
    /* Expert 3 of layer 2 has no other frame. */
    FAILS(eep_wcache_repair(c, false, 0, NULL, NULL, &r), EEP_ERR_CACHE_BAD, "no other frame");
    FAILS(eep_wcache_pin(c, &view), EEP_ERR_CACHE_BAD, "engine D");
    CK_OK(eep_wcache_repair(c, false, 9, wt_refill, NULL, &r));
    ck_assert_uint_eq(r.checked, 2 * WT_SLOTS - 1);
    ck_assert_uint_eq(r.refilled, 1);
    ck_assert_uint_eq(r.version, 9);
    CK_OK(eep_wcache_status(c, &s));
    ck_assert(s.state == EEP_WCACHE_CLEAN && s.version == 9);
    CK_OK(wt_check(c));
    CK_OK(wt_move(c, 0, 2, 1, true));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(a_prepared_move_in_place_is_complete)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_repair r;
    uint64_t version;

    join(other_process(die_prepared_in_place, "engine E", 5));
    FAILS(eep_wcache_repair(c, false, 0, wt_refill, NULL, &r), EEP_ERR_STALE, "prepared");
    CK_OK(eep_wcache_resolve(c, true, &version));
    ck_assert_uint_eq(version, 1);
    CK_OK(wt_check(c));
    eep_wcache_mover_release(c);
    join(other_process(die_prepared, "engine F", 6));
    CK_OK(eep_wcache_resolve(c, true, &version));
    ck_assert_uint_eq(version, 2);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

START_TEST(rolled_back_in_place_stays_dirty)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status s;
    struct eep_wcache_repair r;
    uint64_t version;

    join(other_process(die_prepared_in_place, "engine E", 5));
    CK_OK(eep_wcache_resolve(c, false, &version));
    ck_assert_uint_eq(version, 0);
    CK_OK(eep_wcache_status(c, &s));
    ck_assert_int_eq(s.state, EEP_WCACHE_DIRTY);
    CK_OK(eep_wcache_repair(c, false, 0, wt_refill, NULL, &r));
    ck_assert_uint_gt(r.refilled, 0);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

/* ---- what a world of nodes needs --------------------------------------------------------------
 */

START_TEST(a_frame_may_be_filled_in_pieces)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_content whole, pieces, wrong;
    struct eep_wcache_frame frame;
    struct eep_wcache_fill *fill;
    unsigned char bytes[WT_FRAME_BYTES];
    uint64_t done = 0;

    ck_assert(eep_wcache_frame_digest(c, 1, (struct eep_expert){3}, &whole));
    CK_OK(eep_wcache_begin(c, (uint32_t[]){1}, 1, 0));
    CK_OK(eep_wcache_take(c, (struct eep_seat){0}, &frame));
    FAILS(eep_wcache_fill_begin(c, frame, WT_LAYERS, (struct eep_expert){3}, &fill),
          EEP_ERR_INVALID, "no expert 3 in layer 3");
    wt_bytes(1, 3, bytes, WT_FRAME_BYTES);
    CK_OK(eep_wcache_fill_begin(c, frame, 1, (struct eep_expert){3}, &fill));
    for (uint64_t i = 0; done < WT_FRAME_BYTES; i++) {
        const uint64_t part = EEP_MIN(1 + i * 97, WT_FRAME_BYTES - done);

        if (i % 2 == 0) {
            eep_wcache_fill_copy(fill, bytes + done, part);
        } else {
            memcpy((unsigned char *)eep_wcache_fill_bytes(fill) + done, bytes + done, part);
            eep_wcache_fill_written(fill, part);
        }
        done += part;
        ck_assert_uint_eq(eep_wcache_fill_done(fill), done);
    }
    CK_OK(eep_wcache_fill_end(fill, &whole, &pieces));
    ck_assert(pieces.low == whole.low && pieces.high == whole.high);

    /* Another digest than the sender's, or than that of the expert's first copy, is refused. */
    wrong = whole;
    wrong.low++;
    CK_OK(eep_wcache_fill_begin(c, frame, 1, (struct eep_expert){3}, &fill));
    eep_wcache_fill_copy(fill, bytes, WT_FRAME_BYTES);
    FAILS(eep_wcache_fill_end(fill, &wrong, NULL), EEP_ERR_CACHE_BAD, "their source says");
    bytes[WT_FRAME_BYTES - 1] ^= 1;
    CK_OK(eep_wcache_fill_begin(c, frame, 1, (struct eep_expert){3}, &fill));
    eep_wcache_fill_copy(fill, bytes, WT_FRAME_BYTES);
    FAILS(eep_wcache_fill_end(fill, NULL, NULL), EEP_ERR_CACHE_BAD, "first copy");
    CK_OK(eep_wcache_fill_begin(c, frame, 1, (struct eep_expert){3}, &fill));
    eep_wcache_fill_drop(fill);
    eep_wcache_fill_drop(NULL);
    CK_OK(eep_wcache_abort(c));
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

static void hold_the_lock(struct eep_wcache *c)
{
    CK_OK(eep_wcache_mover_take(c));
    let_go(to_parent[1]);
    wait_turn(to_child[0]);
    eep_wcache_mover_release(c);
    let_go(to_parent[1]);
    wait_turn(to_child[0]);
    eep_wcache_close(c);
}

START_TEST(the_lock_can_be_taken_before_it_is_known_what_for)
{
    struct eep_wcache *c = filled();
    const pid_t pid = other_process(hold_the_lock, "engine B", 2);

    wait_turn(to_parent[0]);
    FAILS(eep_wcache_mover_take(c), EEP_ERR_AGAIN, "engine B");
    FAILS(eep_wcache_raise(c, 5), EEP_ERR_STALE, "not the mover");
    let_go(to_child[1]);
    wait_turn(to_parent[0]);
    CK_OK(eep_wcache_mover_take(c));
    CK_OK(eep_wcache_mover_take(c));
    let_go(to_child[1]);
    join(pid);
    eep_wcache_close(c);
}
END_TEST

START_TEST(a_version_is_raised_with_the_same_map)
{
    struct eep_wcache *c = filled();
    struct eep_wcache_status before, after;
    struct wt_move m;

    CK_OK(wt_move(c, 0, 2, 3, false));
    CK_OK(eep_wcache_status(c, &before));
    CK_OK(eep_wcache_raise(c, 1));
    CK_OK(eep_wcache_raise(c, 9));
    CK_OK(eep_wcache_status(c, &after));
    ck_assert_uint_eq(after.version, 9);
    ck_assert(memcmp(before.digest, after.digest, sizeof(before.digest)) == 0);
    FAILS(eep_wcache_raise(c, 8), EEP_ERR_INVALID, "cannot become 8");
    CK_OK(wt_check(c));
    CK_OK(wt_prepare(c, 0, 1, 4, false, &m));
    FAILS(eep_wcache_raise(c, 20), EEP_ERR_STALE, "not over");
    CK_OK(eep_wcache_abort(c));
    CK_OK(wt_move(c, 0, 2, 5, false));
    ck_assert_uint_eq(eep_wcache_version(c), 10);
    CK_OK(wt_check(c));
    eep_wcache_close(c);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        moves_change_versions_and_keep_bytes,
        an_old_view_keeps_its_frames,
        abort_leaves_the_old_version,
        abort_in_place_needs_the_old_bytes,
        begin_refuses_with_reasons,
        prepare_refuses_what_frames_do_not_hold,
        a_standby_follows_and_takes_over,
        one_that_does_not_follow_blocks_moves_while_it_is_there,
        another_rank_of_the_engine_fills_frames,
        a_rank_that_outlives_its_mover_does_no_harm,
        another_rank_aborts_after_its_mover_died,
        what_was_prepared_is_rolled_forward_or_back,
        a_dirty_record_is_refused_and_repaired,
        a_prepared_move_in_place_is_complete,
        rolled_back_in_place_stays_dirty,
        a_frame_may_be_filled_in_pieces,
        the_lock_can_be_taken_before_it_is_known_what_for,
        a_version_is_raised_with_the_same_map,
    };

    return run_cache_tests("wcache moves", tests, COUNT(tests));
}
