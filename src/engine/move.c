/*
 * The world-wide two phases: begin on every node, fill, prepare on every node, and only when all
 * have prepared the same version and digest, commit. Each round is one all-gather, so every rank
 * knows what the others said and comes to the same conclusion.
 *
 * A crash between two nodes' commits is settled at the next start (recover.c): a version that any
 * node has made current is made current everywhere.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/mover.h"

static bool is_authority(const struct eep_engine *e)
{
    return e->xport->topo.node_rank == 0;
}

/* ---- rounds ---- */

enum eep_status eep_move_round(struct eep_engine *e, const char *what, struct eep_move_word *word,
                               struct eep_move_word *all_out)
{
    const uint32_t ranks = e->xport->topo.size;
    const enum eep_status own = (enum eep_status)word->status;

    if (eep_status_lost(own) >= EEP_LOST_PEER) {
        return own;
    }
    if (own != EEP_OK) {
        snprintf(word->text, sizeof(word->text), "%s", eep_error_text());
    }
    EEP_TRY(e->xport->ops->allgather(e->xport, what, word, sizeof(*word), all_out));
    for (uint32_t r = 0; r < ranks; r++) {
        if (all_out[r].status != EEP_OK) {
            char text[sizeof(all_out[r].text)];

            snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, all_out[r].text);
            eep_error_text_set(text);
            return (enum eep_status)all_out[r].status;
        }
    }
    return EEP_OK;
}

/* A round in which only the status counts. */
static enum eep_status agree(struct eep_engine *e, const char *what, enum eep_status status)
{
    struct eep_move_word word = {.status = status};

    return eep_move_round(e, what, &word, e->mover->words);
}

/* True if all authorities said the version and digest that rank 0 said. */
static bool all_same(const struct eep_engine *e)
{
    const struct eep_mover *m = e->mover;

    for (uint32_t n = 0; n < e->xport->topo.nodes; n++) {
        const struct eep_move_word *word = &m->words[m->authority[n]];

        if (word->version != m->words[0].version ||
            memcmp(word->digest, m->words[0].digest, sizeof(word->digest)) != 0) {
            return false;
        }
    }
    return true;
}

static bool ends_the_engine(enum eep_status status)
{
    return status != EEP_OK && eep_status_lost(status) >= EEP_LOST_PEER;
}

/* ---- the board ---- */

enum eep_status eep_move_board_open(struct eep_engine *e)
{
    const size_t table = (size_t)e->layout->layers * eep_layout_slots(e->layout);

    return e->xport->ops->board_open(e->xport, "board of moves",
                                     EEP_BOARD_FRAMES + table * sizeof(uint32_t), &e->mover->board);
}

static enum eep_status board_number(struct eep_engine *e, size_t offset, uint64_t *value_out)
{
    return e->xport->ops->board_get(e->mover->board, offset, value_out, sizeof(*value_out));
}

static enum eep_status cast_vote(struct eep_engine *e, enum eep_status outcome)
{
    const struct eep_xport_ops *ops = e->xport->ops;
    uint64_t before;

    if (outcome != EEP_OK) {
        EEP_TRY(ops->board_add(e->mover->board, EEP_BOARD_FAILED, 1, &before));
    }
    return ops->board_add(e->mover->board, EEP_BOARD_FILLED, 1, &before);
}

uint32_t eep_move_vote(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    uint64_t filled, failed;

    if (m->phase != EEP_MOVE_FILLING || !is_authority(e) ||
        board_number(e, EEP_BOARD_FILLED, &filled) != EEP_OK ||
        board_number(e, EEP_BOARD_FAILED, &failed) != EEP_OK ||
        filled - m->votes_before < e->xport->topo.node_size) {
        return EEP_VOTE_NONE;
    }
    return failed == m->failed_before ? EEP_VOTE_FILLED : EEP_VOTE_FAILED;
}

/* ---- the lock ---- */

/* The first node's first, so that two engines do not each get a part. */
enum eep_status eep_move_lock(struct eep_engine *e, bool *ok_out)
{
    struct eep_mover *m = e->mover;
    enum eep_status status = EEP_OK;

    *ok_out = true;
    if (m->is_mover) {
        return EEP_OK;
    }
    for (int round = 0; round < 2 && status == EEP_OK; round++) {
        const bool first = e->xport->topo.node == 0;
        enum eep_status own = EEP_OK;

        if (is_authority(e) && first == (round == 0)) {
            own = eep_wcache_mover_take(e->cache);
        }
        status = agree(e, "mover's lock", own);
    }
    if (ends_the_engine(status)) {
        return status;
    }
    *ok_out = m->is_mover = status == EEP_OK;
    if (m->is_mover) {
        if (e->xport->topo.rank == 0) {
            eep_log(EEP_LOG_INFO, "this engine moves experts from now on, layout version %" PRIu64,
                    m->status.version);
        }
        return EEP_OK;
    }
    if (is_authority(e)) {
        char text[256];

        snprintf(text, sizeof(text), "%s", eep_error_text());
        eep_wcache_mover_release(e->cache);
        eep_error_text_set(text);
    }
    return EEP_OK;
}

/* ---- begin ---- */

static enum eep_status start_filling(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    enum eep_status status =
        eep_wcache_map_digest(e->layout->layers, e->layout->experts, e->layout->seats,
                              e->layout->slots_per_seat, m->chunk.map, m->chunk.digest);

    if (status == EEP_OK) {
        status = eep_follow_prepare(e);
    }
    if (status == EEP_OK) {
        status = eep_fill_begin(e, &m->fill);
    }
    if (status == EEP_OK && is_authority(e)) {
        status = board_number(e, EEP_BOARD_FILLED, &m->votes_before);
    }
    if (status == EEP_OK && is_authority(e)) {
        status = board_number(e, EEP_BOARD_FAILED, &m->failed_before);
    }
    return status;
}

static void drop_chunk(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;

    eep_fill_end(m->fill);
    m->fill = NULL;
    m->voted = false;
    eep_follow_forget(e);
}

/* Those that began give it up again. Local. */
static enum eep_status undo_begin(struct eep_engine *e, bool began)
{
    EEP_FAULT("move.abort");
    const enum eep_status status = began ? eep_wcache_abort(e->cache) : EEP_OK;

    eep_wcache_leave(e->cache);
    drop_chunk(e);
    return status;
}

/* How a refused begin is told: what passes by itself, and what does not. */
static void say_refused(struct eep_engine *e, enum eep_status status)
{
    if (status == EEP_ERR_AGAIN || status == EEP_ERR_STALE || status == EEP_ERR_NOMEM) {
        eep_mover_say(e, EEP_REBALANCE_BUSY, "put off: %s", eep_error_text());
    } else {
        eep_mover_off(e, "%s", eep_error_text());
    }
    e->mover->phase = EEP_MOVE_IDLE;
}

/* Seats that other nodes execute since members have changed, and that lie here still. */
static enum eep_status forget_strays(struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;

    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        if (topo->node_of[e->executors[seat]] != topo->node) {
            EEP_TRY(eep_wcache_seat_forget(e->cache, (struct eep_seat){seat}));
        }
    }
    return EEP_OK;
}

enum eep_status eep_move_begin(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    enum eep_status own, status;
    bool began = false;

    EEP_FAULT("move.begin");
    own = forget_strays(e);
    if (own == EEP_OK && is_authority(e)) {
        own = eep_wcache_begin(e->cache, m->chunk.layers, m->chunk.layer_count,
                               eep_wcache_view_version(e->view));
        began = own == EEP_OK;
    }
    if (own == EEP_OK) {
        own = start_filling(e);
    }
    EEP_FAULT("move.begun");
    status = agree(e, "begin of a move", own);
    if (ends_the_engine(status)) {
        return status;
    }
    if (status != EEP_OK) {
        char text[256];

        snprintf(text, sizeof(text), "%s", eep_error_text());
        (void)undo_begin(e, began);
        eep_error_text_set(text);
        say_refused(e, status);
        return EEP_OK;
    }
    m->phase = EEP_MOVE_FILLING;
    return EEP_OK;
}

/* ---- publish ---- */

/* The frames of a row: what the version in use has, but for what was filled. */
static enum eep_status row_frames(struct eep_engine *e, uint32_t layer, uint32_t *frames_out)
{
    const struct eep_chunk *chunk = &e->mover->chunk;
    const uint32_t slots = eep_layout_slots(e->layout);
    const size_t at = (size_t)layer * slots;

    memcpy(frames_out, eep_wcache_view_frames(e->view) + at, slots * sizeof(*frames_out));
    for (uint32_t i = 0; i < chunk->copy_count; i++) {
        const struct eep_copy *copy = &chunk->copies[i];

        if (copy->layer == layer && e->xport->topo.node_of[copy->to] == e->xport->topo.node) {
            EEP_TRY(e->xport->ops->board_get(
                e->mover->board, EEP_BOARD_FRAMES + (at + copy->slot) * sizeof(uint32_t),
                &frames_out[copy->slot], sizeof(*frames_out)));
        }
    }
    return EEP_OK;
}

static enum eep_status prepare(struct eep_engine *e, struct eep_move_word *word)
{
    const struct eep_chunk *chunk = &e->mover->chunk;
    const uint32_t slots = eep_layout_slots(e->layout);
    struct eep_wcache_row *rows = NULL;
    uint32_t *frames = NULL;
    enum eep_status status;

    EEP_TRY_GOTO(eep_mem_alloc(chunk->layer_count, sizeof(*rows), "rows of a move", &rows), end);
    EEP_TRY_GOTO(eep_mem_alloc((size_t)chunk->layer_count * slots, sizeof(*frames),
                               "rows of a move", &frames),
                 end);
    for (uint32_t i = 0; i < chunk->layer_count; i++) {
        const uint32_t layer = chunk->layers[i];

        EEP_TRY_GOTO(row_frames(e, layer, frames + (size_t)i * slots), end);
        rows[i] = (struct eep_wcache_row){.layer = layer,
                                          .phys2log = chunk->map + (size_t)layer * slots,
                                          .frames = frames + (size_t)i * slots};
    }
    EEP_FAULT("move.prepare");
    EEP_TRY_GOTO(
        eep_wcache_prepare(e->cache, rows, chunk->layer_count, &word->version, word->digest), end);
    if (memcmp(word->digest, chunk->digest, sizeof(chunk->digest)) != 0) {
        status = EEP_FAIL(EEP_ERR_FATAL, "the record prepared another map than the engine's");
    }
end:
    eep_mem_free(rows);
    eep_mem_free(frames);
    return status;
}

/* Back to the version before: frames that were overwritten first, on every rank. */
static enum eep_status give_up(struct eep_engine *e, enum eep_status why)
{
    struct eep_mover *m = e->mover;
    char text[256];
    enum eep_status status = EEP_OK;

    snprintf(text, sizeof(text), "%s", eep_error_text());
    if (m->chunk.in_place) {
        status = agree(e, "undoing a move in place", eep_fill_undo(e, m->fill));
        if (ends_the_engine(status)) {
            return status;
        }
    }
    if (status == EEP_OK) {
        status = agree(e, "abort of a move", undo_begin(e, is_authority(e)));
    }
    if (ends_the_engine(status)) {
        return status;
    }
    drop_chunk(e);
    m->phase = EEP_MOVE_IDLE;
    if (status != EEP_OK) {
        if (m->chunk.in_place) {
            return EEP_FAIL(EEP_ERR_FATAL,
                            "a move in place could not be undone (%s); start again: the cache "
                            "repairs itself",
                            text);
        }
        eep_mover_off(e, "a move could not be rolled back: %s", eep_error_text());
    } else if (why == EEP_ERR_AGAIN || why == EEP_ERR_NOMEM) {
        eep_mover_say(e, EEP_REBALANCE_BUSY, "put off: %s", text);
    } else {
        eep_mover_say(e, EEP_REBALANCE_FAILED, "rolled back: %s", text);
    }
    return EEP_OK;
}

/* All nodes have prepared the same. */
static enum eep_status commit(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    uint64_t version = 0;

    EEP_FAULT("move.commit");
    const enum eep_status own = is_authority(e) ? eep_wcache_commit(e->cache, &version) : EEP_OK;
    EEP_FAULT("move.committed");
    const enum eep_status status = agree(e, "commit of a move", own);
    if (ends_the_engine(status)) {
        return status;
    }
    eep_wcache_leave(e->cache);
    if (status != EEP_OK) {
        /* The old version stays pinned everywhere, so serving goes on with it. */
        eep_mover_off(e,
                      "a node could not make the new layout current, the layout of before is used "
                      "until the next start: %s",
                      eep_error_text());
        m->phase = EEP_MOVE_IDLE;
        drop_chunk(e);
        return EEP_OK;
    }
    m->status.chunks++;
    return EEP_OK;
}

static enum eep_status publish(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    struct eep_move_word word = {0};
    const uint64_t begin_ns = eep_clock_ns();
    bool changed;
    enum eep_status status;

    if (m->chunk.in_place) {
        enum eep_status own = eep_fill_overwrite(e, m->fill);

        own = own == EEP_OK ? eep_fill_publish(e, m->fill) : own;
        status = agree(e, "writing in place", own);
        if (status != EEP_OK) {
            return ends_the_engine(status) ? status : give_up(e, status);
        }
    }
    word.status = is_authority(e) ? prepare(e, &word) : EEP_OK;
    EEP_FAULT("move.prepared");
    status = eep_move_round(e, "prepare of a move", &word, m->words);
    if (status == EEP_OK && !all_same(e)) {
        status = EEP_FAIL(EEP_ERR_FORMAT, "the nodes prepared different versions or maps");
    }
    if (status != EEP_OK) {
        return ends_the_engine(status) ? status : give_up(e, status);
    }
    EEP_TRY(commit(e));
    if (m->phase != EEP_MOVE_FILLING) {
        return EEP_OK;
    }
    EEP_TRY(eep_follow(e, &changed));
    drop_chunk(e);
    m->phase = EEP_MOVE_BEGINNING;
    m->status.flip_ns = EEP_MAX(m->status.flip_ns, eep_clock_ns() - begin_ns);
    if (!changed) {
        eep_mover_say(e, EEP_REBALANCE_FAILED,
                      "a rank could not use the new layout yet, that of before is used: %s",
                      eep_error_text());
        m->phase = EEP_MOVE_IDLE;
    }
    return EEP_OK;
}

/* ---- fill ---- */

/* What the nodes said in the last step: filled, failed, or not yet. */
static uint32_t nodes_vote(const struct eep_engine *e)
{
    const struct eep_mover *m = e->mover;
    uint32_t result = EEP_VOTE_FILLED;

    for (uint32_t n = 0; n < e->xport->topo.nodes; n++) {
        const uint32_t vote = eep_requests_heard(e, m->authority[n])->move;

        if (vote == EEP_VOTE_NONE) {
            return EEP_VOTE_NONE;
        }
        result = vote == EEP_VOTE_FAILED ? EEP_VOTE_FAILED : result;
    }
    return result;
}

enum eep_status eep_move_fill(struct eep_engine *e, uint64_t budget_ns)
{
    struct eep_mover *m = e->mover;

    if (!m->voted) {
        bool done;

        EEP_TRY(eep_fill_some(e, m->fill, budget_ns, &done));
        if (done) {
            enum eep_status outcome = eep_fill_outcome(m->fill);

            if (outcome == EEP_OK && !m->chunk.in_place) {
                outcome = eep_fill_publish(e, m->fill);
            }
            EEP_FAULT("move.filled");
            EEP_TRY(cast_vote(e, outcome));
            m->voted = true;
        }
        return EEP_OK; /* this step's message was sent before the vote */
    }
    switch (nodes_vote(e)) {
    case EEP_VOTE_FILLED:
        return publish(e);
    case EEP_VOTE_FAILED: {
        const enum eep_status why = agree(e, "outcome of a move", eep_fill_outcome(m->fill));

        return ends_the_engine(why) ? why : give_up(e, why);
    }
    default:
        return EEP_OK;
    }
}

/* Rolls back what is under way. Collective. */
enum eep_status eep_move_stop(struct eep_engine *e)
{
    bool done = false;

    eep_fill_hurry(e->mover->fill);
    while (!done) {
        EEP_TRY(eep_fill_some(e, e->mover->fill, EEP_NS_PER_S, &done));
    }
    (void)EEP_FAIL(EEP_ERR_AGAIN, "the engine ends");
    return give_up(e, EEP_ERR_AGAIN);
}
