/*
 * Going on in another world: after a loss, in the middle of a step, or because members join or
 * park, between two steps:
 *
 *     drop       what belongs to the world of before: mover, exchange, routes
 *     recover    the transport makes a world of those that are left (or, on purpose: regroup)
 *     level      a rank that the others are one step ahead of takes that step from them; a step
 *                that nobody has completed is made again; those that join are given the state
 *     reseat     the membership machine gives the lost seats to others; their frames are still in
 *                the node's memory, or are filled again; moves that were under way are settled
 *     hand over  requests of the lost ranks, to be computed again from their tokens
 *
 * Each part is collective; one more loss in any of them starts all over, from the tables of before
 * the first one: what is tried counts only when all have come to its end (eep_engine.epoch). What a
 * step has told (tokens, ends, new requests) is the same on all ranks or is not told: a rank
 * completes a step only when all have sent their part of it, so ranks differ by one step at most,
 * and the one that is ahead still has all parts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/mover.h"

/* What each rank says of itself. */
struct level_word {
    uint64_t position;
    uint64_t epoch;
    uint32_t wire_ranks;
    uint32_t posted_bytes; /* of the last step */
    uint32_t asked;        /* enum asked: a rebalance that was to come */
    uint32_t joins;        /* 1: has no state yet */
};

_Static_assert(sizeof(struct level_word) == 32, "travels between ranks");

enum asked { ASKED = 1, ASKED_DRY = 2, ASKED_FINISH = 4 };

/* What outlives the parts that are made again. Tables have room for the ranks of both worlds. */
struct survival {
    uint32_t asked; /* enum asked */
    struct eep_rebalance_status moves;
    uint32_t size_before; /* ranks in the tables of e->epoch */
    uint32_t *was;        /* rank that each rank has in those tables; EEP_NO_RANK: it joins */
    uint32_t *tried;      /* likewise, in those that were tried, of size_tried ranks */
    uint32_t size_tried;
    uint32_t *last; /* likewise, in the world before the last loss */
    bool has_tried; /* the tables are those of a try that was cut off */
    bool hopeless;
    bool joins;               /* this process does, and has no state yet */
    bool on_purpose;          /* nobody was lost when it began */
    uint32_t left_before;     /* members that had left as asked */
    struct level_word *words; /* of the ranks */
    uint64_t begin_ns, stop_ns;
    char text[EEP_ERROR_TEXT_MAX];
    char names[256];           /* of those that are gone */
    uint32_t gone, came, from; /* ranks; and how many there were */
};

bool eep_engine_survives(const struct eep_engine *e, enum eep_status status)
{
    return status == EEP_ERR_PEER_LOST && e->loaded && e->members != NULL;
}

/* ---- drop ---- */

static uint32_t asked_of(const struct eep_mover *m)
{
    const bool pending = m->asked || (m->finish && m->phase != EEP_MOVE_IDLE);

    return (pending ? ASKED : 0u) | (pending && (m->asked_dry || m->dry_run) ? ASKED_DRY : 0u) |
           (m->finish ? ASKED_FINISH : 0u);
}

/* Once: a mover that was made again in an attempt that was cut off knows nothing of it. */
static void remember_moves(const struct eep_engine *e, struct survival *s)
{
    if (e->mover != NULL) {
        s->asked = asked_of(e->mover);
        s->moves = e->mover->status;
    }
}

static void drop_world(struct eep_engine *e)
{
    eep_mover_destroy(e);
    if (e->cache != NULL) {
        eep_wcache_abandon(e->cache);
    }
    eep_moe_block_destroy(e->block);
    e->block = NULL;
    eep_route_destroy(e->route);
    e->route = NULL;
    eep_experts_destroy(e->experts);
    e->experts = NULL;
    if (e->view != NULL) {
        eep_wcache_unpin(e->cache, e->view);
        e->view = NULL;
    }
}

/* ---- recover ---- */

static enum eep_status recover(struct eep_engine *e, struct survival *s)
{
    enum eep_status status;

    do {
        status = e->xport->ops->recover(e->xport, s->last);
    } while (status == EEP_ERR_PEER_LOST);
    if (status == EEP_ERR_UNSUPPORTED) {
        eep_error_text_set(s->text);
        s->hopeless = true;
        return EEP_ERR_PEER_LOST;
    }
    EEP_TRY(status);
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        s->was[r] = s->was[s->last[r]]; /* last[r] >= r: not overwritten yet */
        s->tried[r] = s->tried[s->last[r]];
    }
    return EEP_OK;
}

/* ---- level ---- */

static enum eep_status take_last_step(struct eep_engine *e, uint32_t from,
                                      const struct level_word *word, bool behind)
{
    const struct eep_xport_ops *ops = e->xport->ops;

    EEP_TRY(eep_posts_reserve(&e->posts_next, word->posted_bytes));
    unsigned char *wire = behind ? e->wire_next : e->wire_in;
    struct eep_posts *posts = behind ? &e->posts_next : &e->posts_last;

    EEP_TRY(ops->broadcast(e->xport, "last step", from, wire, word->wire_ranks * e->wire_bytes));
    if (word->posted_bytes > 0) {
        EEP_TRY(ops->broadcast(e->xport, "new requests", from, posts->data, word->posted_bytes));
    }
    if (!behind) {
        return EEP_OK;
    }
    e->posts_next.bytes = word->posted_bytes;
    return eep_requests_take(e, word->wire_ranks);
}

/* What was tried counts: others have gone on with it. */
static enum eep_status commit(struct eep_engine *e, struct survival *s)
{
    memcpy(s->was, s->tried, e->xport->topo.size * sizeof(*s->was));
    s->size_before = s->size_tried;
    s->has_tried = false;
    e->epoch++;
    eep_requests_settle(e);
    return eep_members_commit(e);
}

/* A rank that has the state gives it to those that join. */
static enum eep_status hand_state(struct eep_engine *e, struct survival *s)
{
    struct eep_handed handed = {.was = s->was, .ranks_before = s->size_before, .moves = s->moves};
    uint32_t from = EEP_NO_RANK;
    bool wanted = false;

    for (uint32_t r = e->xport->topo.size; r-- > 0;) {
        wanted = wanted || s->words[r].joins != 0;
        from = s->words[r].joins == 0 ? r : from;
    }
    if (!wanted) {
        return EEP_OK;
    }
    if (from == EEP_NO_RANK) {
        return EEP_FAIL(EEP_ERR_FATAL, "all ranks that had the requests were lost while others "
                                       "joined");
    }
    EEP_TRY(eep_state_share(e, from, &handed, s->joins));
    s->size_before = handed.ranks_before;
    s->moves = handed.moves;
    s->joins = false;
    return EEP_OK;
}

/* The ranks that have a state, at one position, with tables of one epoch; *done_out: they are. */
static enum eep_status level_once(struct eep_engine *e, struct survival *s, bool *done_out)
{
    const struct level_word mine = {.position = e->position,
                                    .epoch = e->epoch,
                                    .wire_ranks = e->wire_ranks,
                                    .posted_bytes = (uint32_t)e->posts_last.bytes,
                                    .asked = s->asked,
                                    .joins = s->joins};
    uint64_t epoch = 0;
    uint32_t ahead = EEP_NO_RANK, behind = EEP_NO_RANK;

    EEP_TRY(e->xport->ops->allgather(e->xport, "level", &mine, sizeof(mine), s->words));
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        const struct level_word *w = &s->words[r];

        if (w->joins != 0) {
            continue;
        }
        ahead = ahead == EEP_NO_RANK || w->position > s->words[ahead].position ? r : ahead;
        behind = behind == EEP_NO_RANK || w->position < s->words[behind].position ? r : behind;
        epoch = EEP_MAX(epoch, w->epoch);
        s->asked |= w->asked;
    }
    if (!s->joins && e->epoch < epoch) {
        EEP_ASSERT(s->has_tried && e->epoch + 1 == epoch);
        EEP_TRY(commit(e, s));
    }
    *done_out = ahead == EEP_NO_RANK || s->words[behind].position == s->words[ahead].position;
    if (*done_out) {
        return EEP_OK;
    }
    if (s->words[behind].position + 1 != s->words[ahead].position) {
        return EEP_FAIL(EEP_ERR_FATAL,
                        "rank %u is at step %" PRIu64 " and rank %u at step %" PRIu64
                        ": more than one apart",
                        ahead, s->words[ahead].position, behind, s->words[behind].position);
    }
    EEP_ASSERT(!s->joins); /* a new world begins when all are at one position */
    return take_last_step(e, ahead, &s->words[ahead], mine.position != s->words[ahead].position);
}

static enum eep_status level(struct eep_engine *e, struct survival *s)
{
    bool done = false;

    while (!done) {
        EEP_TRY(level_once(e, s, &done));
    }
    s->has_tried = false;
    return hand_state(e, s);
}

/* ---- hand over ---- */

static enum eep_status reassign(struct eep_engine *e, const struct survival *s)
{
    uint32_t *now_of;

    EEP_TRY(eep_mem_alloc(s->size_before, sizeof(*now_of), "ranks", &now_of));
    for (uint32_t r = 0; r < s->size_before; r++) {
        now_of[r] = EEP_NO_RANK;
    }
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        if (s->was[r] != EEP_NO_RANK) {
            now_of[s->was[r]] = r;
        }
    }
    const enum eep_status status = eep_requests_reassign(e, now_of);

    eep_mem_free(now_of);
    return status;
}

/* Everything that has as many entries as there are ranks. Local. */
static enum eep_status resize(struct eep_engine *e, const struct survival *s)
{
    EEP_TRY(eep_facts_resize(e));
    EEP_TRY(eep_batch_resize(e));
    EEP_TRY(eep_members_try(e));
    return reassign(e, s);
}

/* ---- reseat ---- */

static void resume_moves(struct eep_engine *e, const struct survival *s)
{
    struct eep_mover *m = e->mover;
    const uint64_t version = m->status.version;

    m->status = s->moves;
    m->status.version = version;
    m->asked = (s->asked & ASKED) != 0;
    m->asked_dry = (s->asked & ASKED_DRY) != 0;
    m->finish = (s->asked & ASKED_FINISH) != 0;
    if (m->status.state == EEP_REBALANCE_RUNNING) {
        eep_mover_say(e, EEP_REBALANCE_FAILED, "given up: a rank was lost");
    }
}

static enum eep_status reseat(struct eep_engine *e, const struct survival *s)
{
    enum eep_status status = EEP_OK;

    if (e->cache != NULL) {
        EEP_TRY(eep_cache_reload(e));
    } else {
        EEP_TRY(eep_agree(e->xport, "experts of lost ranks",
                          e->layout != NULL ? eep_own_attach(e) : EEP_OK));
    }
    EEP_FAULT("survive.reseated");
    if (e->layout != NULL) {
        status = eep_route_create(e->layout, e->executors, &e->xport->topo, &e->route);
    }
    EEP_TRY(eep_agree(e->xport, "routes", status));
    EEP_TRY(eep_agree(e->xport, "exchange", eep_engine_create_block(e)));
    if (e->cache != NULL) {
        EEP_TRY(eep_mover_create(e));
        resume_moves(e, s);
    }
    return EEP_OK;
}

static bool is_gone(const struct eep_engine *e, const struct survival *s, uint32_t old)
{
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        if (s->was[r] == old) {
            return false;
        }
    }
    return true;
}

static uint32_t count_gone(const struct eep_engine *e, const struct survival *s)
{
    uint32_t gone = 0;

    for (uint32_t old = 0; old < s->size_before; old++) {
        gone += is_gone(e, s, old);
    }
    return gone;
}

/* "rank 3", or "ranks 1, 2": as they were numbered before. */
static void name_gone(const struct eep_engine *e, struct survival *s)
{
    const uint32_t gone = count_gone(e, s);
    size_t used = (size_t)snprintf(s->names, sizeof(s->names), "%s",
                                   gone == 0   ? "a process that was to join"
                                   : gone == 1 ? "rank"
                                               : "ranks");
    const char *sign = " ";

    for (uint32_t old = 0; old < s->size_before && used < sizeof(s->names); old++) {
        if (is_gone(e, s, old)) {
            used += (size_t)snprintf(s->names + used, sizeof(s->names) - used, "%s%u", sign, old);
            sign = ", ";
        }
    }
}

/* ---- all of it ---- */

static enum eep_status take_tables(struct eep_engine *e, struct survival *s, uint32_t ranks)
{
    EEP_TRY(eep_mem_alloc(ranks, sizeof(uint32_t), "ranks", &s->was));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(uint32_t), "ranks", &s->tried));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(uint32_t), "ranks", &s->last));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(*s->words), "ranks", &s->words));
    s->size_before = e->xport->topo.rank != EEP_NO_RANK ? e->xport->topo.size : 0;
    for (uint32_t r = 0; r < ranks; r++) {
        s->was[r] = r < s->size_before ? r : EEP_NO_RANK;
    }
    return EEP_OK;
}

static void free_tables(struct survival *s)
{
    eep_mem_free(s->was);
    eep_mem_free(s->tried);
    eep_mem_free(s->last);
    eep_mem_free(s->words);
}

/* The new world's ranks take over; EEP_ERR_PEER_LOST: one more was lost. */
static enum eep_status take_over(struct eep_engine *e, struct survival *s)
{
    s->begin_ns = eep_clock_ns();
    if (e->processes > 1) {
        eep_log_rank_set((int)e->xport->topo.rank);
    }
    EEP_TRY(level(e, s));
    EEP_FAULT("survive.levelled");
    eep_batch_discard(e);
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        s->tried[r] = r;
    }
    s->size_tried = e->xport->topo.size;
    s->has_tried = true;
    EEP_TRY(eep_agree(e->xport, "tables of the ranks", resize(e, s)));
    EEP_TRY(eep_threads_share(e));
    EEP_FAULT("survive.resized");
    EEP_TRY(reseat(e, s));
    name_gone(e, s);
    s->gone = count_gone(e, s);
    s->came = e->xport->topo.size + s->gone - s->size_before;
    s->from = s->size_before;
    EEP_TRY(eep_agree(e->xport, "end of a recovery", EEP_OK));
    EEP_TRY(commit(e, s));
    eep_own_trim(e);
    return EEP_OK;
}

static enum eep_status attempt(struct eep_engine *e, struct survival *s)
{
    EEP_TRY(recover(e, s));
    EEP_FAULT("survive.recovered");
    return take_over(e, s);
}

static void say_filled(const struct eep_loss_facts *f)
{
    if (f->filled_bytes > 0) {
        eep_log(EEP_LOG_WARN,
                "%" PRIu64 " experts (%.1f MiB) were filled again in %.1f ms: %" PRIu64
                " from frames of their node, %" PRIu64 " from other nodes, %" PRIu64
                " from a backup, %" PRIu64 " from the checkpoint",
                f->from_node + f->from_other_node + f->from_backup + f->from_checkpoint,
                (double)f->filled_bytes / (1 << 20), (double)f->filled_ns * 1e-6, f->from_node,
                f->from_other_node, f->from_backup, f->from_checkpoint);
    }
}

/* Who is gone because it was asked to go is not lost. */
static void say_what_happened(struct eep_engine *e, const struct survival *s,
                              const struct eep_loss_facts *f)
{
    const bool left = s->gone > 0 && eep_members_left(e) - s->left_before == s->gone;

    eep_log(left ? EEP_LOG_INFO : EEP_LOG_WARN,
            "%s %s; %u of %u ranks go on: noticed within %.1f ms, agreed in %.1f ms, reseated in "
            "%.1f ms, %zu requests unfinished%s%s",
            s->names,
            left           ? "left as asked"
            : s->gone <= 1 ? "was lost"
                           : "were lost",
            e->xport->topo.size, s->from, (double)f->noticed_ns * 1e-6, (double)f->agreed_ns * 1e-6,
            (double)f->reseated_ns * 1e-6, e->unfinished,
            left ? "" : "; the first sign: ", left ? "" : s->text);
    say_filled(f);
}

static void report(struct eep_engine *e, const struct survival *s)
{
    const struct eep_loss_times *loss = &e->xport->loss;
    const uint64_t now_ns = eep_clock_ns();
    struct eep_loss_facts *f = &e->loss;

    f->losses++;
    f->ranks_lost += s->gone;
    f->noticed_ns = loss->last_seen_ns != 0 ? loss->noticed_ns - loss->last_seen_ns : 0;
    f->agreed_ns = s->begin_ns - loss->noticed_ns;
    f->reseated_ns = now_ns - s->begin_ns;
    f->first_step_ns = 0;
    f->since_ns = loss->noticed_ns;
    if (e->xport->topo.rank == 0) {
        say_what_happened(e, s, f);
    }
}

/* After EEP_ERR_PEER_LOST, until an attempt comes to its end. */
static enum eep_status try_again(struct eep_engine *e, struct survival *s)
{
    enum eep_status status = EEP_ERR_PEER_LOST;

    while (status == EEP_ERR_PEER_LOST && !s->hopeless) {
        drop_world(e);
        status = attempt(e, s);
    }
    if (status == EEP_OK) {
        report(e, s);
    }
    return status;
}

/* Nobody was lost on the way. */
static void report_switch(struct eep_engine *e, const struct survival *s)
{
    struct eep_loss_facts *f = &e->loss;

    f->switches++;
    f->switch_ns = eep_clock_ns() - s->stop_ns;
    if (e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_INFO,
                "%u ranks joined, %u left: %u of %u ranks go on; steps stood still for %.1f ms "
                "(%.1f ms until there was a new world), %zu requests unfinished",
                s->came, s->gone, e->xport->topo.size, s->from, (double)f->switch_ns * 1e-6,
                (double)(s->begin_ns - s->stop_ns) * 1e-6, e->unfinished);
        say_filled(f);
    }
}

/* With the tables of a world that was whole. */
static enum eep_status begin(struct eep_engine *e, struct survival *s, uint32_t ranks)
{
    EEP_TRY(take_tables(e, s, ranks));
    eep_requests_settle(e);
    s->left_before = eep_members_left(e);
    remember_moves(e, s);
    return EEP_OK;
}

enum eep_status eep_engine_survive(struct eep_engine *e)
{
    struct survival s = {0};

    snprintf(s.text, sizeof(s.text), "%s", eep_error_text());
    EEP_TRY(begin(e, &s, e->xport->topo.size));
    const enum eep_status status = try_again(e, &s);

    free_tables(&s);
    return status;
}

/* ---- on purpose ---- */

/* Which rank each one of the new world was, by its process. */
static void find_former(const struct eep_engine *e, struct survival *s, const uint32_t *former)
{
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        s->was[r] = EEP_NO_RANK;
        for (uint32_t old = 0; old < s->size_before; old++) {
            s->was[r] = former[old] == e->xport->topo.origin_of[r] ? old : s->was[r];
        }
    }
}

/* The world is as before. */
static enum eep_status stay(struct eep_engine *e, const struct survival *s, enum eep_status why)
{
    if (e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_WARN, "the ranks stay as they are: %s", eep_error_text());
    }
    eep_members_not_switched(e, why);
    return reseat(e, s);
}

static enum eep_status go_over(struct eep_engine *e, struct survival *s, const uint32_t *origins,
                               uint32_t count)
{
    uint32_t former[EEP_MEMBERS_MAX];

    memcpy(former, e->xport->topo.origin_of, s->size_before * sizeof(*former));
    if (e->xport->topo.rank == 0) {
        eep_joiners_call(e, origins, count);
    }
    drop_world(e);
    EEP_FAULT("switch.dropped");
    const enum eep_status status = e->xport->ops->regroup(e->xport, origins, count);

    if (status == EEP_ERR_PEER_LOST) {
        return status;
    }
    if (status != EEP_OK) {
        return stay(e, s, status);
    }
    if (e->xport->topo.rank == EEP_NO_RANK) {
        return eep_park(e);
    }
    EEP_FAULT("switch.regrouped");
    find_former(e, s, former);
    s->on_purpose = true;
    return take_over(e, s);
}

enum eep_status eep_engine_switch(struct eep_engine *e, const uint32_t *origins, uint32_t count)
{
    struct survival s = {.stop_ns = eep_clock_ns()};

    EEP_TRY(begin(e, &s, EEP_MAX(count, e->xport->topo.size)));
    enum eep_status status = go_over(e, &s, origins, count);

    if (status == EEP_ERR_PEER_LOST) {
        snprintf(s.text, sizeof(s.text), "%s", eep_error_text());
        status = try_again(e, &s);
    } else if (status == EEP_OK && s.on_purpose) {
        report_switch(e, &s);
    }
    free_tables(&s);
    return status;
}

enum eep_status eep_engine_arrive(struct eep_engine *e, const uint32_t *origins, uint32_t count,
                                  bool *joined_out)
{
    struct survival s = {.joins = true};

    *joined_out = false;
    EEP_TRY(take_tables(e, &s, count));
    enum eep_status status = e->xport->ops->regroup(e->xport, origins, count);

    if (status == EEP_OK) {
        *joined_out = true;
        EEP_FAULT("switch.arrived");
        status = take_over(e, &s);
    }
    if (*joined_out && status == EEP_ERR_PEER_LOST) {
        snprintf(s.text, sizeof(s.text), "%s", eep_error_text());
        status = try_again(e, &s);
    }
    free_tables(&s);
    return status;
}
