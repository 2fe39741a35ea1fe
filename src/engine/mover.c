/*
 * When experts move: the triggers, the machine that plans and moves them chunk by chunk between
 * steps, and what is said about it.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/backup.h"
#include "engine/mover.h"

#define DEFAULT_WINDOW 256u
#define DEFAULT_GAIN 0.005
#define FILL_PART 0.15 /* of a step's time goes into copies */
#define FILL_LEAST_NS (100 * EEP_NS_PER_US)
#define IDLE_FILL_NS (50 * EEP_NS_PER_MS)

/* ---- create and destroy ---- */

static enum eep_status find_authorities(struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;

    EEP_TRY(eep_mem_alloc(topo->nodes, sizeof(uint32_t), "authorities", &e->mover->authority));
    for (uint32_t r = topo->size; r-- > 0;) {
        e->mover->authority[topo->node_of[r]] = r; /* the lowest one stays */
    }
    return EEP_OK;
}

static enum eep_status take_tables(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    const struct eep_layout *l = e->layout;
    const uint32_t ranks = e->xport->topo.size, slots = eep_layout_slots(l);
    const size_t loads = (size_t)l->layers * l->experts, table = (size_t)l->layers * slots;

    EEP_TRY(eep_mem_alloc(loads, sizeof(uint32_t), "expert loads", &m->counts));
    EEP_TRY(eep_mem_alloc(loads, sizeof(uint32_t), "expert loads", &m->counts_before));
    EEP_TRY(eep_mem_alloc(((size_t)ranks + 1) * loads, sizeof(uint32_t), "expert loads",
                          &m->counts_all));
    EEP_TRY(eep_mem_alloc(loads, sizeof(double), "expert loads", &m->loads));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(*m->words), "words of moves", &m->words));
    EEP_TRY(eep_mem_alloc(l->layers, sizeof(uint32_t), "layers of a move", &m->chunk.layers));
    EEP_TRY(eep_mem_alloc(table, sizeof(struct eep_copy), "copies of a move", &m->chunk.copies));
    EEP_TRY(eep_mem_alloc(table, sizeof(int32_t), "layout of a move", &m->chunk.map));
    EEP_TRY(eep_mem_alloc(l->seats, sizeof(uint32_t), "copies per seat", &m->seat_copies));
    EEP_TRY(eep_mem_alloc(l->experts, sizeof(uint32_t), "slots per expert", &m->experts_left));
    EEP_TRY(eep_mem_alloc(slots, sizeof(uint32_t), "chain of copies", &m->chain));
    EEP_TRY(find_authorities(e));
    return eep_plan_create(e);
}

static enum eep_status create_own(struct eep_engine *e)
{
    struct eep_wcache_status status;
    struct eep_mover *m;

    EEP_TRY(eep_mem_alloc(1, sizeof(*m), "mover", &m));
    e->mover = m;
    m->params = e->rebalance;
    m->params.min_gain = m->params.min_gain > 0.0 ? m->params.min_gain : DEFAULT_GAIN;
    if (m->params.window == 0) {
        m->params.window =
            m->params.every > 0 ? (uint32_t)EEP_MIN(m->params.every, 1u << 20) : DEFAULT_WINDOW;
    }
    EEP_TRY(eep_wcache_status(e->cache, &status));
    m->cache_spare = status.spare_frames;
    m->status.version = eep_wcache_view_version(e->view);
    snprintf(m->status.reason, sizeof(m->status.reason), "none was asked for");
    return take_tables(e);
}

/* Caches that were made at different times may have different numbers; plans are the same on all.
 */
static enum eep_status agree_on_spare(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    struct eep_move_word word = {.version = m->cache_spare};

    EEP_TRY(eep_move_round(e, "spare frames", &word, m->words));
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        m->cache_spare = (uint32_t)EEP_MIN((uint64_t)m->cache_spare, m->words[r].version);
    }
    return EEP_OK;
}

enum eep_status eep_mover_create(struct eep_engine *e)
{
    EEP_TRY(eep_agree(e->xport, "mover", create_own(e)));
    EEP_TRY(agree_on_spare(e));
    EEP_TRY(eep_agree(e->xport, "board of moves", eep_move_board_open(e)));
    return eep_backup_begin_world(e);
}

void eep_mover_destroy(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;

    if (m == NULL) {
        return;
    }
    eep_backup_end_world(e);
    eep_fill_end(m->fill);
    eep_follow_forget(e);
    e->xport->ops->board_close(m->board);
    eep_plan_free(m);
    eep_mem_free(m->counts);
    eep_mem_free(m->counts_before);
    eep_mem_free(m->counts_all);
    eep_mem_free(m->loads);
    eep_mem_free(m->words);
    eep_mem_free(m->chunk.layers);
    eep_mem_free(m->chunk.copies);
    eep_mem_free(m->chunk.map);
    eep_mem_free(m->seat_copies);
    eep_mem_free(m->experts_left);
    eep_mem_free(m->chain);
    eep_mem_free(m->authority);
    eep_mem_free(m);
    e->mover = NULL;
}

void eep_mover_stop(struct eep_engine *e)
{
    enum eep_status status = eep_backup_stop(e);

    if (status == EEP_OK && e->mover != NULL && e->mover->phase == EEP_MOVE_FILLING) {
        status = eep_move_stop(e);
    }
    if (status != EEP_OK) {
        e->broken = status;
        e->apart = true;
    }
}

/* ---- what is said ---- */

void eep_mover_say(struct eep_engine *e, enum eep_rebalance_state state, const char *fmt, ...)
{
    struct eep_mover *m = e->mover;
    const bool warns = state == EEP_REBALANCE_FAILED || state == EEP_REBALANCE_OFF;
    char before[sizeof(m->status.reason)];
    va_list args;

    memcpy(before, m->status.reason, sizeof(before));
    va_start(args, fmt);
    vsnprintf(m->status.reason, sizeof(m->status.reason), fmt, args);
    va_end(args);
    m->status.state = state;
    if (e->xport->topo.rank == 0 && strcmp(before, m->status.reason) != 0) { /* said once */
        eep_log(warns ? EEP_LOG_WARN : EEP_LOG_INFO, "rebalance: %s", m->status.reason);
    }
}

void eep_mover_off(struct eep_engine *e, const char *fmt, ...)
{
    char text[200];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    e->mover->off = true;
    e->mover->phase = EEP_MOVE_IDLE;
    eep_mover_say(e, EEP_REBALANCE_OFF, "stopped for good: %s", text);
}

/* ---- triggers ---- */

static volatile sig_atomic_t asked_by_signal;

static void on_signal(int number)
{
    (void)number;
    asked_by_signal = 1;
}

enum eep_status eep_engine_rebalance_on(int signal)
{
    struct sigaction now = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;

    if (sigaction(signal, NULL, &old) != 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "signal %d cannot be handled", signal);
    }
    if (old.sa_handler == SIG_DFL && sigaction(signal, &now, NULL) != 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "signal %d cannot be handled", signal);
    }
    return EEP_OK;
}

void eep_mover_tell(struct eep_engine *e, struct eep_wire_step *head)
{
    head->move = EEP_VOTE_NONE;
    head->asked = EEP_ASK_NOTHING;
    head->record_version = 0;
    if (e->mover != NULL) {
        head->move = eep_move_vote(e);
        head->record_version = eep_wcache_version(e->cache);
        head->asked = asked_by_signal != 0 ? EEP_ASK_REBALANCE : EEP_ASK_NOTHING;
        asked_by_signal = 0;
    }
    eep_backup_tell(e, head);
}

static bool is_asked(const struct eep_engine *e)
{
    bool asked = e->mover->asked;

    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        asked = asked || eep_requests_heard(e, r)->asked == EEP_ASK_REBALANCE;
    }
    e->mover->asked = false;
    return asked;
}

static enum eep_status trigger(struct eep_engine *e, const char *why, bool gathered)
{
    struct eep_mover *m = e->mover;
    bool ok = true;

    m->since_steps = 0;
    if (m->off) {
        return EEP_OK;
    }
    if (!m->dry_run) {
        EEP_TRY(eep_move_lock(e, &ok));
    }
    if (!ok) {
        eep_mover_say(e, EEP_REBALANCE_BUSY, "put off: %s", eep_error_text());
        return EEP_OK;
    }
    if (!gathered) {
        EEP_TRY(eep_recorder_gather(e));
    }
    if (e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_DEBUG, "rebalance: planning, %s", why);
    }
    eep_plan_begin(e);
    m->status.state = EEP_REBALANCE_RUNNING;
    m->phase = EEP_MOVE_PLANNING;
    return EEP_OK;
}

static enum eep_status look_for_trigger(struct eep_engine *e, bool half_done)
{
    struct eep_mover *m = e->mover;

    if (is_asked(e)) {
        m->dry_run = m->asked_dry || m->params.dry_run;
        m->asked_dry = false;
        return trigger(e, "asked for", false);
    }
    m->dry_run = m->params.dry_run;
    if (m->params.every > 0 && m->since_steps >= m->params.every) {
        return trigger(e, "by steps", false);
    }
    if (m->params.threshold > 0.0 && half_done && !m->off) {
        EEP_TRY(eep_recorder_gather(e));
        if (eep_recorder_imbalance(e) >= m->params.threshold) {
            return trigger(e, "by imbalance", true);
        }
    }
    return EEP_OK;
}

/* ---- the machine ---- */

static void say_done(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    const double seconds = (double)(eep_clock_ns() - m->begin_ns) * 1e-9;

    m->status.rebalances++;
    m->phase = EEP_MOVE_IDLE;
    eep_mover_say(e, EEP_REBALANCE_IDLE,
                  "%" PRIu64 " experts of %u layers moved in %.3f s, imbalance %.3f -> %.3f, "
                  "layout version %" PRIu64,
                  m->status.planned_copies, m->order_count, seconds, m->status.imbalance_before,
                  m->status.imbalance_after, m->status.version);
}

static enum eep_status go_on_planning(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    bool done;

    /* All ranks plan the same, so they fail the same. */
    if (eep_plan_some(e, &done) != EEP_OK) {
        eep_mover_off(e, "%s", eep_error_text());
        return EEP_OK;
    }
    if (!done) {
        return EEP_OK;
    }
    m->phase = m->order_count > 0 && !m->dry_run ? EEP_MOVE_BEGINNING : EEP_MOVE_IDLE;
    if (m->order_count > 0 && m->dry_run) {
        eep_mover_say(e, EEP_REBALANCE_IDLE,
                      "dry run: %" PRIu64 " experts (%.1f MiB) of %u layers would move, imbalance "
                      "%.3f -> %.3f",
                      m->status.planned_copies,
                      (double)m->status.planned_copies * (double)e->frame_bytes / (1 << 20),
                      m->order_count, m->status.imbalance_before, m->status.imbalance_after);
    }
    return EEP_OK;
}

static enum eep_status begin_chunk(struct eep_engine *e)
{
    if (!eep_chunk_next(e, e->mover->cache_spare)) {
        say_done(e);
        return EEP_OK;
    }
    return eep_move_begin(e);
}

/* True if another engine has published a version on all nodes. */
static bool is_behind(const struct eep_engine *e)
{
    const struct eep_mover *m = e->mover;
    const uint64_t version = eep_requests_heard(e, m->authority[0])->record_version;

    for (uint32_t n = 1; n < e->xport->topo.nodes; n++) {
        if (eep_requests_heard(e, m->authority[n])->record_version != version) {
            return false;
        }
    }
    return version > m->status.version;
}

static enum eep_status catch_up(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    bool changed;

    EEP_TRY(eep_follow(e, &changed));
    if (changed) {
        m->status.followed++;
        m->phase = EEP_MOVE_IDLE; /* a plan for the layout of before is worth nothing */
        if (e->xport->topo.rank == 0) {
            eep_log(EEP_LOG_INFO, "followed another engine to layout version %" PRIu64,
                    m->status.version);
        }
    }
    return EEP_OK;
}

/* Members change: a plan for those of before is worth nothing. */
static void put_off(struct eep_engine *e)
{
    if (e->mover->phase != EEP_MOVE_IDLE) {
        e->mover->phase = EEP_MOVE_IDLE;
        eep_mover_say(e, EEP_REBALANCE_BUSY, "put off: members come or go");
    }
}

/* The machine's next part. A chunk waits for the round of a backup, and the next round for it. */
static enum eep_status take_turn(struct eep_engine *e, uint64_t budget_ns, bool half_done)
{
    struct eep_mover *m = e->mover;

    switch (m->phase) {
    case EEP_MOVE_IDLE:
        return e->unfinished == 0 && !m->asked ? EEP_OK : look_for_trigger(e, half_done);
    case EEP_MOVE_PLANNING:
        return go_on_planning(e);
    case EEP_MOVE_BEGINNING:
        return eep_backup_is_copying(e) ? EEP_OK : begin_chunk(e);
    case EEP_MOVE_FILLING:
        return eep_move_fill(e, budget_ns);
    }
    return EEP_OK;
}

enum eep_status eep_mover_between_steps(struct eep_engine *e, uint64_t step_ns)
{
    struct eep_mover *m = e->mover;
    const bool idle = e->unfinished == 0;
    const uint64_t budget_ns =
        idle ? IDLE_FILL_NS : (uint64_t)EEP_MAX((double)step_ns * FILL_PART, (double)FILL_LEAST_NS);
    bool half_done = false;

    if (!idle) {
        half_done = eep_recorder_step(e);
        m->since_steps++;
    }
    EEP_TRY(eep_backup_go_on(e, budget_ns));
    if (m->phase != EEP_MOVE_FILLING && eep_members_hold(e)) {
        put_off(e);
        return EEP_OK;
    }
    if (m->phase != EEP_MOVE_FILLING && !eep_backup_is_copying(e) && is_behind(e)) {
        EEP_TRY(catch_up(e));
    }
    EEP_TRY(take_turn(e, budget_ns, half_done));
    return m->phase != EEP_MOVE_FILLING ? eep_backup_begin(e) : EEP_OK;
}

bool eep_mover_is_busy(const struct eep_engine *e)
{
    return e->mover != NULL && (e->mover->phase == EEP_MOVE_FILLING || e->mover->asked ||
                                (e->mover->finish && e->mover->phase != EEP_MOVE_IDLE));
}

/* ---- the caller's side ---- */

enum eep_status eep_engine_rebalance(struct eep_engine *e, bool dry_run)
{
    struct eep_mover *m = e->mover;

    EEP_TRY(e->broken);
    if (m == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "experts move only in a weight cache, and in a model that has experts");
    }
    if (m->off) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "rebalancing is %s", m->status.reason);
    }
    m->asked = true;
    m->asked_dry = dry_run;
    m->finish = true;
    return EEP_OK;
}

void eep_engine_rebalance_status(const struct eep_engine *e,
                                 struct eep_rebalance_status *status_out)
{
    *status_out = (struct eep_rebalance_status){.reason = "there is no weight cache"};
    if (e->mover != NULL) {
        *status_out = e->mover->status;
    }
}
