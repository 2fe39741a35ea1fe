/*
 * The rules of world-wide moves, one at a time: an engine of two ranks on two nodes of which the
 * second does not exist. The transport answers for it: it says what this rank says, and sends the
 * experts that it would hold, but in the round that a test chooses it says something else. So each
 * failure of another node, at each point, is one test, and what this node does about it is seen in
 * its record.
 */
#include <eep/engine.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/mover.h"
#include "testutil.h"

#define STEPS_MAX 10000

/* ---- the other rank ---- */

/* What it says otherwise: `change` is given its word in a round of that name. */
static struct {
    const char *round;
    int visit; /* only in this one, counted from 1; 0: in each */
    void (*change)(void *word);
    int seen; /* visits so far */
} lie;

static enum { BYTES_RIGHT, BYTES_WRONG, DIGEST_WRONG } sends;

static struct eep_engine *engine;
static struct eep_xport_ops ops;
static const struct eep_xport_ops *loopback;
static uint32_t experts_sent, experts_got;
static uint32_t seats = 2,
                redundant; /* of the cache; slots of all seats that hold a second replica */
static uint32_t looks;     /* that a transfer takes besides the last one */

static void lies(const char *round, int visit, void (*change)(void *word))
{
    lie.round = round;
    lie.visit = visit;
    lie.change = change;
    lie.seen = 0;
}

static void tells_the_truth(void)
{
    lies(NULL, 0, NULL);
    sends = BYTES_RIGHT;
}

static enum eep_status allgather(struct eep_xport *x, const char *what, const void *in,
                                 size_t bytes, void *out)
{
    unsigned char *all = out, *other = all + (1 - x->topo.rank) * bytes;

    memmove(all + x->topo.rank * bytes, in, bytes);
    memcpy(other, in, bytes);
    if (lie.round != NULL && strcmp(what, lie.round) == 0 &&
        (++lie.seen == lie.visit || lie.visit == 0)) {
        lie.change(other);
    }
    return EEP_OK;
}

static enum eep_status broadcast(struct eep_xport *x, const char *what, uint32_t root, void *buffer,
                                 size_t bytes)
{
    (void)x, (void)what, (void)root, (void)buffer, (void)bytes;
    return EEP_OK;
}

struct eep_transfer {
    size_t bytes;
    uint32_t looks;
};

/* An expert as the checkpoint has it; owned by the caller. */
static unsigned char *packed(const struct eep_copy *copy)
{
    const struct eep_experts_source source = eep_engine_source(engine);
    unsigned char *bytes;

    CK_OK(eep_mem_alloc(1, engine->frame_bytes, "expert", &bytes));
    CK_OK(eep_experts_pack(&source, copy->layer, (struct eep_expert){copy->expert}, bytes,
                           engine->frame_bytes));
    return bytes;
}

/* Each expert's transfer has an even tag, that of its digest is the next one. */
static enum eep_status transfer_begin(struct eep_xport *x, const char *what, uint32_t peer,
                                      uint32_t tag, bool send, void *buffer, size_t bytes,
                                      struct eep_transfer **transfer_out)
{
    const struct eep_copy *copy = &engine->mover->chunk.copies[tag / 2];
    struct eep_wcache_content *content = buffer;
    unsigned char *right = packed(copy);
    const XXH128_hash_t hash = XXH3_128bits(right, engine->frame_bytes);

    ck_assert_uint_eq(peer, 1 - x->topo.rank);
    ck_assert_uint_eq(send ? copy->from : copy->to, x->topo.rank);
    ck_assert_uint_eq(bytes, tag % 2 == 0 ? engine->frame_bytes : sizeof(*content));
    if (tag % 2 == 0 && send) {
        ck_assert_mem_eq(buffer, right, bytes);
        experts_sent++;
    } else if (tag % 2 == 0) {
        memcpy(buffer, right, bytes);
        *(unsigned char *)buffer ^= sends == BYTES_WRONG;
        experts_got++;
    } else if (send) {
        ck_assert_uint_eq(content->low, hash.low64);
        ck_assert_uint_eq(content->high, hash.high64);
    } else {
        *content = (struct eep_wcache_content){.low = hash.low64, .high = hash.high64};
        content->low ^= sends == DIGEST_WRONG;
    }
    eep_mem_free(right);
    CK_OK(eep_mem_alloc(1, sizeof(**transfer_out), what, transfer_out));
    **transfer_out = (struct eep_transfer){.bytes = bytes, .looks = looks};
    return EEP_OK;
}

static enum eep_status transfer_test(struct eep_transfer *transfer, size_t *progress_out)
{
    *progress_out = 0;
    if (transfer->looks-- == 0) {
        *progress_out = transfer->bytes;
        eep_mem_free(transfer);
    }
    return EEP_OK;
}

/* ---- engines ---- */

/* The smallest one; it has moves to make for one or two versions only. */
static const char *model = "cases/model/ok-qwen3";

static void choose_larger_model(void)
{
    model = "tiny-qwen3-moe";
}

static char dir[256];

static void make_dir(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(dir, sizeof(dir), "%s/eep-test-%d", base != NULL ? base : "/dev/shm", (int)getpid());
    ck_assert_int_eq(mkdir(dir, 0700), 0);
}

static void remove_dir(void)
{
    char command[300];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

/* From one rank to the first or second of two, before anything is loaded. */
static void join_two(struct eep_engine *e, uint32_t rank)
{
    static const uint32_t node_of[2] = {0, 1};
    const struct eep_layout *l = e->layout;
    struct eep_layout *layout;

    loopback = e->xport->ops;
    ops = *loopback;
    ops.allgather = allgather;
    ops.broadcast = broadcast;
    ops.transfer_begin = transfer_begin;
    ops.transfer_test = transfer_test;
    e->xport->ops = &ops;
    e->xport->topo = (struct eep_topology){
        .rank = rank, .size = 2, .node = rank, .nodes = 2, .node_size = 1, .node_of = node_of};
    eep_mem_free(e->memory);
    CK_OK(eep_mem_alloc(2, sizeof(*e->memory), "memory facts", &e->memory));
    CK_OK(eep_layout_initial(l->layers, l->experts, seats, redundant, &layout));
    eep_layout_destroy(e->layout);
    e->layout = layout;
}

static enum eep_status try_open(uint32_t rank, uint32_t spare_frames, uint64_t timeout_ns)
{
    const struct eep_engine_params params = {
        .fields = EEP_ENGINE_KV_TOKENS | EEP_ENGINE_CACHE | EEP_ENGINE_CACHE_DIR |
                  EEP_ENGINE_SPARE_FRAMES | EEP_ENGINE_REBALANCE | EEP_ENGINE_ATTACH_TIMEOUT,
        .model = test_path(model),
        .kv_tokens = 512,
        .cache = EEP_CACHE_REQUIRE,
        .cache_dir = dir,
        .spare_frames = spare_frames,
        .attach_timeout_ns = timeout_ns,
        .rebalance = {.policy = EEP_BALANCE_SHUFFLE},
    };

    CK_OK(eep_engine_create(&params, &engine));
    join_two(engine, rank);
    return eep_engine_load(engine);
}

static void open_as(uint32_t rank, uint32_t spare_frames)
{
    CK_OK(try_open(rank, spare_frames, 20 * EEP_NS_PER_S));
}

static void leave(void)
{
    eep_engine_destroy(engine);
    engine = NULL;
}

static void step(void)
{
    bool idle;

    CK_OK(eep_engine_step(engine, &idle));
}

/* One rebalance from beginning to end, however it ends. */
static struct eep_rebalance_status rebalance(void)
{
    struct eep_rebalance_status status;
    bool idle = false;

    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < STEPS_MAX && !idle; i++) {
        CK_OK(eep_engine_step(engine, &idle));
    }
    ck_assert(idle);
    eep_engine_rebalance_status(engine, &status);
    return status;
}

/* The node's record: nothing pending, prepared or dirty. */
static uint64_t record_version(void)
{
    struct eep_wcache_status status;

    CK_OK(eep_wcache_status(engine->cache, &status));
    ck_assert_int_eq(status.state, EEP_WCACHE_CLEAN);
    ck_assert(status.prepared_version == EEP_WCACHE_NO_VERSION);
    return status.version;
}

static bool is_mover(void)
{
    struct eep_wcache_status status;

    CK_OK(eep_wcache_status(engine->cache, &status));
    return status.mover;
}

/* What is routed with, what is pinned and what the frames hold belong together. */
static void check_serves(uint64_t version)
{
    const struct eep_layout *l = engine->layout;
    struct eep_rebalance_status status;

    eep_engine_rebalance_status(engine, &status);
    ck_assert_uint_eq(status.version, version);
    ck_assert_uint_eq(eep_wcache_view_version(engine->view), version);
    ck_assert_mem_eq(eep_wcache_view_map(engine->view), l->phys2log,
                     (size_t)l->layers * eep_layout_slots(l) * sizeof(int32_t));
    CK_OK(eep_verify_slots(engine));
}

/* Frames of old versions are free again: else the moves would wait for them. */
static void check_goes_on_moving(void)
{
    for (int i = 0; i < 4; i++) {
        const uint64_t before = record_version();
        const struct eep_rebalance_status status = rebalance();

        ck_assert_msg(status.state == EEP_REBALANCE_IDLE, "%s", status.reason);
        ck_assert_uint_ge(record_version(), before);
        check_serves(status.version);
    }
    ck_assert_uint_ge(record_version(), 3);
}

/* The move ended without a new version, and the next one works. */
static void check_rolled_back(const struct eep_rebalance_status *status,
                              enum eep_rebalance_state state)
{
    ck_assert_msg(status->state == state, "state %d: %s", (int)status->state, status->reason);
    ck_assert_uint_eq(record_version(), 0);
    check_serves(0);
    tells_the_truth();
    const struct eep_rebalance_status next = rebalance();
    ck_assert_uint_ge(next.version, 1);
    ck_assert_uint_eq(record_version(), next.version);
    check_serves(next.version);
    leave();
}

/* ---- what the other rank may say ---- */

static void busy(void *word)
{
    struct eep_move_word *w = word;

    w->status = EEP_ERR_AGAIN;
    snprintf(w->text, sizeof(w->text), "the other node is busy");
}

static void broken_disk(void *word)
{
    struct eep_move_word *w = word;

    w->status = EEP_ERR_IO;
    snprintf(w->text, sizeof(w->text), "the other node's disk is broken");
}

static void other_digest(void *word)
{
    ((struct eep_move_word *)word)->digest[31] ^= 1;
}

static void other_version(void *word)
{
    ((struct eep_move_word *)word)->version++;
}

static void still_fills(void *word)
{
    ((struct eep_wire_step *)word)->move = EEP_VOTE_NONE;
}

static void could_not_fill(void *word)
{
    struct eep_wire_step *head = word;

    head->move = head->move == EEP_VOTE_FILLED ? EEP_VOTE_FAILED : head->move;
}

static void lags_behind(void *word)
{
    ((struct eep_wire_step *)word)->record_version = 0;
}

static void has_one_spare_frame(void *word)
{
    ((struct eep_move_word *)word)->version = 1;
}

static void dies(void *word)
{
    (void)word;
    _exit(0);
}

/* Of the first node, to the second one. */
static void had_its_lock_first(void *word)
{
    ck_assert_msg(!is_mover(), "the second node's lock was taken before the first one's");
    *(int32_t *)word = EEP_ERR_AGAIN; /* every word begins with the status */
}

/* ---- a move ---- */

START_TEST(a_move_that_all_agree_on_is_published)
{
    open_as((uint32_t)_i, 2);
    ck_assert_uint_eq(record_version(), 0);
    const struct eep_rebalance_status status = rebalance();
    ck_assert_int_eq(status.state, EEP_REBALANCE_IDLE);
    ck_assert_uint_ge(status.version, 1);
    ck_assert_uint_ge(experts_got + experts_sent, 1);
    ck_assert_uint_eq(record_version(), status.version);
    check_serves(status.version);
    leave();
}
END_TEST

START_TEST(a_move_in_place_that_all_agree_on_is_published)
{
    open_as((uint32_t)_i, 0);
    const struct eep_rebalance_status status = rebalance();
    ck_assert_int_eq(status.state, EEP_REBALANCE_IDLE);
    ck_assert_uint_ge(status.version, 1);
    ck_assert_uint_eq(record_version(), status.version);
    check_serves(status.version);
    leave();
}
END_TEST

START_TEST(moves_follow_each_other)
{
    choose_larger_model();
    open_as((uint32_t)_i % 2, (uint32_t)_i / 2); /* in place, with one spare frame, with two */
    check_goes_on_moving();
    leave();
}
END_TEST

START_TEST(the_node_with_the_fewest_spare_frames_counts)
{
    lies("spare frames", 1, has_one_spare_frame);
    open_as((uint32_t)_i, 2);
    ck_assert_uint_eq(engine->mover->cache_spare, 1);
    leave();
}
END_TEST

static bool has_expert(uint32_t layer, uint32_t seat, uint32_t expert)
{
    const uint32_t slots = engine->layout->slots_per_seat;
    bool has = false;

    for (uint32_t i = 0; i < slots; i++) {
        const struct eep_slot slot = {seat * slots + i};

        has = has || eep_layout_expert(engine->layout, layer, slot) == (int32_t)expert;
    }
    return has;
}

START_TEST(an_expert_that_stays_in_its_seat_is_not_copied)
{
    choose_larger_model();
    open_as((uint32_t)_i, 64);
    lies("step", 0, still_fills);
    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < 50; i++) {
        step();
    }
    const struct eep_chunk *chunk = &engine->mover->chunk;
    ck_assert_uint_ge(chunk->copy_count, 1);
    for (uint32_t i = 0; i < chunk->copy_count; i++) {
        const struct eep_copy *copy = &chunk->copies[i];

        ck_assert(
            !has_expert(copy->layer, copy->slot / engine->layout->slots_per_seat, copy->expert));
    }
    leave();
}
END_TEST

/* Rounds in which the other node fails before anything is current. */
static const struct {
    const char *round;
    uint32_t spare;
    enum eep_rebalance_state state;
    void (*says)(void *word);
} failures[] = {
    {"mover's lock", 2, EEP_REBALANCE_BUSY, busy},
    {"begin of a move", 2, EEP_REBALANCE_BUSY, busy},
    {"begin of a move", 0, EEP_REBALANCE_BUSY, busy},
    {"prepare of a move", 2, EEP_REBALANCE_BUSY, busy},
    {"prepare of a move", 2, EEP_REBALANCE_FAILED, broken_disk},
    {"prepare of a move", 2, EEP_REBALANCE_FAILED, other_digest},
    {"prepare of a move", 2, EEP_REBALANCE_FAILED, other_version},
    {"prepare of a move", 0, EEP_REBALANCE_BUSY, busy},
    {"prepare of a move", 0, EEP_REBALANCE_FAILED, other_digest},
    {"writing in place", 0, EEP_REBALANCE_FAILED, broken_disk},
};

START_TEST(what_one_node_cannot_do_none_makes_current)
{
    const int i = _i / 2;

    lies(failures[i].round, 1, failures[i].says);
    open_as((uint32_t)_i % 2, failures[i].spare);
    const struct eep_rebalance_status status = rebalance();
    ck_assert_int_ge(lie.seen, 1);
    check_rolled_back(&status, failures[i].state);
}
END_TEST

START_TEST(a_lock_that_cannot_be_had_everywhere_is_given_back)
{
    open_as((uint32_t)_i, 2);
    lies("mover's lock", 2, busy);
    ck_assert_int_eq(rebalance().state, EEP_REBALANCE_BUSY);
    ck_assert(!is_mover());
    tells_the_truth();
    ck_assert_int_eq(rebalance().state, EEP_REBALANCE_IDLE);
    ck_assert(is_mover());
    leave();
}
END_TEST

START_TEST(the_first_nodes_lock_is_taken_first)
{
    open_as(1, 2);
    lies("mover's lock", 1, had_its_lock_first);
    ck_assert_int_eq(rebalance().state, EEP_REBALANCE_BUSY);
    ck_assert_int_eq(lie.seen, 1);
    ck_assert(!is_mover());
    leave();
}
END_TEST

static void is_held(void *word)
{
    (void)word;
    ck_assert(is_mover());
}

START_TEST(nothing_is_planned_without_the_lock)
{
    open_as((uint32_t)_i, 2);
    lies("expert loads", 1, is_held);
    ck_assert_int_eq(rebalance().state, EEP_REBALANCE_IDLE);
    ck_assert_int_eq(lie.seen, 1);
    leave();
}
END_TEST

START_TEST(nothing_is_published_while_one_node_fills)
{
    open_as((uint32_t)_i, 2);
    lies("step", 0, still_fills);
    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < 50; i++) {
        step();
        check_serves(0);
    }
    ck_assert_int_eq(engine->mover->phase, EEP_MOVE_FILLING);
    ck_assert(engine->mover->voted);
    tells_the_truth();
    const struct eep_rebalance_status status = rebalance();
    check_serves(status.version);
    ck_assert_uint_ge(status.version, 1);
    leave();
}
END_TEST

START_TEST(nothing_is_published_while_one_rank_of_a_node_fills)
{
    choose_larger_model();
    open_as((uint32_t)_i, 2);
    const uint64_t version = rebalance().version; /* votes for it count no more */
    engine->xport->topo.node_size = 2;            /* one that never votes */
    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < 50; i++) {
        step();
        check_serves(version);
    }
    ck_assert_int_eq(engine->mover->phase, EEP_MOVE_FILLING);
    ck_assert(engine->mover->voted);
    leave();
}
END_TEST

START_TEST(a_rank_votes_when_its_last_copy_has_come)
{
    looks = 20;
    open_as((uint32_t)_i, 2);
    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < 15; i++) {
        step();
        ck_assert(!engine->mover->voted);
    }
    const struct eep_rebalance_status status = rebalance();
    ck_assert_msg(status.state == EEP_REBALANCE_IDLE, "%s", status.reason);
    ck_assert_uint_ge(status.version, 1);
    check_serves(status.version);
    leave();
}
END_TEST

/* Copies that find no frame do not wait for one. */
static struct eep_rebalance_status rebalance_in_a_hurry(void)
{
    struct eep_rebalance_status status;
    bool idle = false;

    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < STEPS_MAX && !idle; i++) {
        CK_OK(eep_engine_step(engine, &idle));
        if (engine->mover->fill != NULL) {
            eep_fill_hurry(engine->mover->fill);
        }
    }
    ck_assert(idle);
    eep_engine_rebalance_status(engine, &status);
    return status;
}

START_TEST(a_copy_without_a_frame_rolls_all_back)
{
    open_as((uint32_t)_i, 0);
    engine->mover->cache_spare = 2; /* which this cache does not have */
    const struct eep_rebalance_status status = rebalance_in_a_hurry();
    ck_assert_uint_ge(experts_got, 1); /* what is sent all the same is taken in */
    engine->mover->cache_spare = 0;
    check_rolled_back(&status, EEP_REBALANCE_BUSY);
}
END_TEST

START_TEST(a_copy_within_a_node_without_a_frame_rolls_all_back)
{
    choose_larger_model();
    seats = 4;
    redundant = 16; /* each node has each expert in one of its two seats */
    open_as((uint32_t)_i, 0);
    engine->mover->cache_spare = 8;
    const struct eep_rebalance_status status = rebalance_in_a_hurry();
    ck_assert_uint_eq(experts_got + experts_sent, 0);
    engine->mover->cache_spare = 0;
    check_rolled_back(&status, EEP_REBALANCE_BUSY);
}
END_TEST

START_TEST(a_copy_that_failed_on_one_node_rolls_all_back)
{
    open_as((uint32_t)_i, 2);
    lies("step", 0, could_not_fill);
    /* Only the other rank knows why; here all went well. */
    const struct eep_rebalance_status status = rebalance();
    check_rolled_back(&status, EEP_REBALANCE_FAILED);
}
END_TEST

/* ---- what comes with an expert ---- */

START_TEST(damaged_bytes_are_not_used)
{
    open_as(0, 2);
    sends = (_i == 0) ? BYTES_WRONG : DIGEST_WRONG;
    const struct eep_rebalance_status status = rebalance();
    ck_assert_uint_ge(experts_got, 1);
    ck_assert_uint_ge(status.version, 1);
    check_serves(status.version);
    leave();
}
END_TEST

START_TEST(damaged_bytes_are_not_used_in_place)
{
    open_as(0, 0);
    sends = (_i == 0) ? BYTES_WRONG : DIGEST_WRONG;
    const struct eep_rebalance_status status = rebalance();
    ck_assert_uint_ge(experts_got, 1);
    check_rolled_back(&status, EEP_REBALANCE_FAILED);
}
END_TEST

/* ---- changing to a version ---- */

static void (*const other_pins[])(void *) = {busy, other_version, other_digest, broken_disk};

START_TEST(all_change_to_a_version_or_none)
{
    choose_larger_model();
    open_as(0, 2);
    lies("change of layout", 1, other_pins[_i]);
    ck_assert_int_eq(rebalance().state, EEP_REBALANCE_FAILED);
    ck_assert_uint_eq(record_version(), 1);
    check_serves(0); /* with its frames, that are still pinned */
    tells_the_truth();
    CK_OK(eep_engine_rebalance(engine, true));
    step();
    check_serves(1);
    check_goes_on_moving();
    leave();
}
END_TEST

START_TEST(a_version_that_one_node_has_is_not_followed)
{
    open_as(0, 2);
    lies("change of layout", 1, busy);
    (void)rebalance();
    check_serves(0);
    lies("step", 0, lags_behind);
    for (int i = 0; i < 3; i++) {
        CK_OK(eep_engine_rebalance(engine, true));
        step();
        check_serves(0);
    }
    leave();
}
END_TEST

START_TEST(a_commit_that_failed_elsewhere_ends_moving)
{
    open_as((uint32_t)_i, 2);
    lies("commit of a move", 1, broken_disk);
    const struct eep_rebalance_status status = rebalance();
    ck_assert_int_eq(status.state, EEP_REBALANCE_OFF);
    ck_assert_uint_eq(record_version(), 1);
    check_serves(0);
    ck_assert_int_eq(eep_engine_rebalance(engine, false), EEP_ERR_UNSUPPORTED);
    leave();
}
END_TEST

START_TEST(a_check_that_failed_elsewhere_ends_the_engine)
{
    bool idle = false;
    enum eep_status status = EEP_OK;

    open_as(0, 2);
    engine->mover->params.verify = true;
    lies("check of all slots", 1, broken_disk);
    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < STEPS_MAX && status == EEP_OK && !idle; i++) {
        status = eep_engine_step(engine, &idle);
    }
    ck_assert_int_eq(status, EEP_ERR_IO);
    leave();
}
END_TEST

/* Two experts of the version that is changed to change places, here only. */
static void mixes_up_slots(void *word)
{
    int32_t *map = engine->mover->next_layout->phys2log;
    const int32_t first = map[0];

    (void)word;
    map[0] = map[1];
    map[1] = first;
}

START_TEST(a_check_that_failed_here_ends_the_engine)
{
    bool idle = false;
    enum eep_status status = EEP_OK;

    open_as(0, 2);
    engine->mover->params.verify = true;
    lies("change of layout", 1, mixes_up_slots);
    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < STEPS_MAX && status == EEP_OK && !idle; i++) {
        status = eep_engine_step(engine, &idle);
    }
    ck_assert_int_eq(status, EEP_ERR_FATAL);
    leave();
}
END_TEST

/* ---- the check of all slots ---- */

START_TEST(bytes_of_another_expert_are_seen)
{
    open_as(0, 2);
    CK_OK(eep_verify_slots(engine));
    const int32_t first = engine->layout->phys2log[0];
    engine->layout->phys2log[0] = engine->layout->phys2log[1];
    engine->layout->phys2log[1] = first;
    ck_assert_int_eq(eep_verify_slots(engine), EEP_ERR_FATAL);
    leave();
}
END_TEST

START_TEST(another_frame_than_the_versions_is_seen)
{
    open_as(0, 2);
    const struct eep_experts_source source = eep_engine_source(engine);
    const struct eep_slot slot = {0}, other = {1};

    CK_OK(eep_experts_change(engine->experts, &source, 0, slot,
                             eep_wcache_view_slot(engine->view, 0, other)));
    ck_assert_int_eq(eep_verify_slots(engine), EEP_ERR_FATAL);
    leave();
}
END_TEST

/* ---- a start ---- */

/* As first_view.c and recover.c begin their words. */
struct pin_word {
    int32_t status;
    uint32_t late;
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
};

struct record_word {
    int32_t status;
    uint32_t found;
    uint64_t version, prepared;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
};

static void pins_another_version(void *word)
{
    ((struct pin_word *)word)->version++;
}

static void pins_another_map(void *word)
{
    ((struct pin_word *)word)->digest[0] ^= 1;
}

START_TEST(no_start_with_two_versions)
{
    choose_larger_model();
    lies("layout version", 1, (_i == 0) ? pins_another_version : pins_another_map);
    open_as(0, 2);
    ck_assert_int_eq(lie.seen, 2); /* it was tried again */
    check_serves(0);
    check_goes_on_moving();
    leave();
}
END_TEST

START_TEST(a_start_that_never_gets_one_version_ends)
{
    lies("layout version", 0, pins_another_version);
    ck_assert_int_eq(try_open(0, 2, EEP_NS_PER_S / 10), EEP_ERR_AGAIN);
    leave();
}
END_TEST

/* Another process moves and dies in a round of the move. */
static void left_by_dead_as(uint32_t rank, const char *round, uint32_t spare)
{
    const pid_t pid = fork();
    int status;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        lies(round, 1, dies);
        open_as(rank, spare);
        (void)rebalance();
        _exit(1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void left_by_dead_mover(const char *round, uint32_t spare)
{
    left_by_dead_as(0, round, spare);
}

enum { RECORD = 1, PENDING = 2, PREPARED = 4 };

static void is_current_there(void *word)
{
    struct record_word *w = word;

    w->found = RECORD;
    w->version = w->prepared;
}

static void has_begun_only(void *word)
{
    struct record_word *w = word;

    w->found = RECORD | PENDING;
}

static void has_another_map(void *word)
{
    ((struct record_word *)word)->digest[0] ^= 1;
}

/* Visits of the round of that name: memory for it, the look before the lock, the one after it. */
enum { LOOK_BEFORE = 2, LOOK_AFTER = 3 };

static void is_clean(void *word)
{
    ck_assert_uint_eq(((struct record_word *)word)->found, RECORD);
}

START_TEST(who_leaves_in_a_move_leaves_nothing_behind)
{
    open_as(0, (uint32_t)_i);
    lies("step", 0, still_fills);
    CK_OK(eep_engine_rebalance(engine, false));
    for (int i = 0; i < 50; i++) {
        step();
    }
    ck_assert_int_eq(engine->mover->phase, EEP_MOVE_FILLING);
    leave();
    lies("weight cache records", LOOK_BEFORE, is_clean);
    open_as(0, (uint32_t)_i);
    ck_assert_int_eq(lie.seen, LOOK_BEFORE);
    check_serves(0);
    leave();
}
END_TEST

START_TEST(what_one_node_has_committed_is_made_current)
{
    left_by_dead_mover("prepare of a move", 2);
    lies("weight cache records", LOOK_AFTER, is_current_there);
    open_as(0, 2);
    ck_assert_uint_eq(record_version(), 1);
    check_serves(1);
    leave();
}
END_TEST

START_TEST(what_no_node_has_committed_is_dropped)
{
    left_by_dead_mover("prepare of a move", 2);
    lies("weight cache records", LOOK_AFTER, has_begun_only);
    open_as(0, 2);
    ck_assert_uint_eq(record_version(), 0);
    check_serves(0);
    leave();
}
END_TEST

/* What was seen before the lock may be over. */
START_TEST(only_the_look_after_the_lock_counts)
{
    left_by_dead_mover("prepare of a move", 2);
    if (_i == 0) {
        lies("weight cache records", LOOK_BEFORE, is_current_there);
    } else {
        lies("locks of the weight caches", 2, is_current_there); /* with it go the old words */
    }
    open_as(0, 2);
    ck_assert_uint_eq(record_version(), 0);
    check_serves(0);
    leave();
}
END_TEST

static void is_one_ahead(void *word)
{
    ((struct record_word *)word)->version++;
}

static void is_ahead_until_raised(void *word)
{
    struct record_word *w = word;

    w->version = EEP_MAX(w->version, (uint64_t)5);
}

START_TEST(nodes_with_one_map_come_to_the_higher_version)
{
    lies("weight cache records", 0, is_ahead_until_raised);
    open_as((uint32_t)_i, 2);
    ck_assert_uint_eq(record_version(), 5);
    check_serves(5);
    ck_assert(!is_mover());
    leave();
}
END_TEST

START_TEST(nodes_that_cannot_be_brought_together_are_refused)
{
    lies("weight cache records", 0, is_one_ahead); /* than whatever this node reaches */
    ck_assert_int_eq(try_open(0, 2, EEP_NS_PER_S), EEP_ERR_CACHE_BAD);
    leave();
}
END_TEST

START_TEST(nodes_with_different_maps_are_refused)
{
    lies("weight cache records", 0, has_another_map);
    ck_assert_int_eq(try_open(0, 2, EEP_NS_PER_S), EEP_ERR_STALE);
    leave();
}
END_TEST

START_TEST(a_recovery_takes_the_first_nodes_lock_first)
{
    left_by_dead_as(1, "prepare of a move", 2);
    lies("locks of the weight caches", 1, had_its_lock_first);
    open_as(1, 2);
    ck_assert_int_ge(lie.seen, 3); /* it was tried again */
    ck_assert_uint_eq(record_version(), 0);
    ck_assert(!is_mover());
    leave();
}
END_TEST

static void not_a_mover_now(void *word)
{
    (void)word;
    ck_assert(!is_mover());
}

static void is_busy(void *word)
{
    *(int32_t *)word = EEP_ERR_AGAIN;
    lies("weight cache records", 1, not_a_mover_now);
}

START_TEST(a_recovery_that_cannot_have_all_locks_gives_them_back)
{
    left_by_dead_mover("prepare of a move", 2);
    lies("locks of the weight caches", 2, is_busy);
    open_as(0, 2);
    ck_assert_int_ge(lie.seen, 1);
    ck_assert_uint_eq(record_version(), 0);
    leave();
}
END_TEST

static void add_own_moves(TCase *tcase)
{
    tcase_add_loop_test(tcase, a_move_that_all_agree_on_is_published, 0, 2);
    tcase_add_loop_test(tcase, a_move_in_place_that_all_agree_on_is_published, 0, 2);
    tcase_add_loop_test(tcase, moves_follow_each_other, 0, 6);
    tcase_add_loop_test(tcase, the_node_with_the_fewest_spare_frames_counts, 0, 2);
    tcase_add_loop_test(tcase, an_expert_that_stays_in_its_seat_is_not_copied, 0, 2);
    tcase_add_loop_test(tcase, what_one_node_cannot_do_none_makes_current, 0, 2 * COUNT(failures));
    tcase_add_loop_test(tcase, a_lock_that_cannot_be_had_everywhere_is_given_back, 0, 2);
    tcase_add_test(tcase, the_first_nodes_lock_is_taken_first);
    tcase_add_loop_test(tcase, nothing_is_planned_without_the_lock, 0, 2);
    tcase_add_loop_test(tcase, nothing_is_published_while_one_node_fills, 0, 2);
    tcase_add_loop_test(tcase, nothing_is_published_while_one_rank_of_a_node_fills, 0, 2);
    tcase_add_loop_test(tcase, a_rank_votes_when_its_last_copy_has_come, 0, 2);
    tcase_add_loop_test(tcase, a_copy_without_a_frame_rolls_all_back, 0, 2);
    tcase_add_loop_test(tcase, a_copy_within_a_node_without_a_frame_rolls_all_back, 0, 2);
    tcase_add_loop_test(tcase, a_copy_that_failed_on_one_node_rolls_all_back, 0, 2);
    tcase_add_loop_test(tcase, damaged_bytes_are_not_used, 0, 2);
    tcase_add_loop_test(tcase, damaged_bytes_are_not_used_in_place, 0, 2);
    tcase_add_loop_test(tcase, all_change_to_a_version_or_none, 0, COUNT(other_pins));
    tcase_add_test(tcase, a_version_that_one_node_has_is_not_followed);
    tcase_add_loop_test(tcase, a_commit_that_failed_elsewhere_ends_moving, 0, 2);
    tcase_add_test(tcase, a_check_that_failed_elsewhere_ends_the_engine);
    tcase_add_test(tcase, a_check_that_failed_here_ends_the_engine);
    tcase_add_test(tcase, bytes_of_another_expert_are_seen);
    tcase_add_test(tcase, another_frame_than_the_versions_is_seen);
}

static void add_starts(TCase *tcase)
{
    tcase_add_loop_test(tcase, no_start_with_two_versions, 0, 2);
    tcase_add_test(tcase, a_start_that_never_gets_one_version_ends);
    tcase_add_loop_test(tcase, who_leaves_in_a_move_leaves_nothing_behind, 0, 3);
    tcase_add_test(tcase, what_one_node_has_committed_is_made_current);
    tcase_add_test(tcase, what_no_node_has_committed_is_dropped);
    tcase_add_loop_test(tcase, only_the_look_after_the_lock_counts, 0, 2);
    tcase_add_loop_test(tcase, nodes_with_one_map_come_to_the_higher_version, 0, 2);
    tcase_add_test(tcase, nodes_that_cannot_be_brought_together_are_refused);
    tcase_add_test(tcase, nodes_with_different_maps_are_refused);
    tcase_add_test(tcase, a_recovery_takes_the_first_nodes_lock_first);
    tcase_add_test(tcase, a_recovery_that_cannot_have_all_locks_gives_them_back);
}

int main(void)
{
    Suite *suite = suite_create("moves");
    TCase *tcase = tcase_create("moves");
    SRunner *runner;

    tcase_add_checked_fixture(tcase, make_dir, remove_dir);
    add_own_moves(tcase);
    add_starts(tcase);
    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
