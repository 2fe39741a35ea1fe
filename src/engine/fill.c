/*
 * The copies that this rank makes for a chunk: into spare frames of its seats, from frames of its
 * node or from another rank, in pieces between steps; or, for a move in place, into staging memory
 * first. What a copy brings is checked by its digest; an expert that cannot be had from a frame is
 * packed from the checkpoint again.
 *
 *     this node's frame ──pieces──► spare frame ─digest─► valid
 *     another node's    ──transfer─►
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/mover.h"

#define PIECE ((uint64_t)256 << 10)
#define TRANSFERS 2                      /* on their way at a time, each direction */
#define VIEW_WAIT_NS (60 * EEP_NS_PER_S) /* for other engines to let go of old versions */

enum job_state {
    JOB_WAITING,
    JOB_RUNNING,
    JOB_DONE,
    JOB_FAILED,
};

struct job {
    const struct eep_copy *copy;
    uint32_t index; /* of the copy in the chunk: names its transfers */
    bool sends;
    enum job_state state;
    struct eep_wcache_frame frame;
    struct eep_wcache_fill *fill; /* while it runs, not in place */
    unsigned char *bytes;         /* where they go to or come from */
    unsigned char *arrived; /* not in place: what another rank sends lands here first, since it may
                               come after a loss, when the frame is somebody else's */
    uint64_t done;
    struct eep_parcel parcel; /* between two ranks */
    bool dropped;             /* it could not be filled: thrown away when it has arrived */
    bool touched;             /* in place: the frame was overwritten */
};

struct eep_fill {
    struct eep_wcache *cache;
    struct job *jobs;
    uint32_t count, left;
    uint32_t transfers[2]; /* receiving, sending */
    bool in_place;
    bool hurry;
    unsigned char *staging; /* in place: (jobs that fill), frame_bytes each */
    uint64_t staging_bytes;
    uint64_t waits_ns; /* since when no frame could be had; 0: not waiting */
    enum eep_status outcome;
    char text[256];
};

/* ---- begin and end ---- */

static uint64_t frame_stride(const struct eep_engine *e)
{
    return eep_round_up(e->frame_bytes, EEP_PAGE);
}

static void add_job(struct eep_fill *fill, const struct eep_engine *e, uint32_t index, bool sends)
{
    const struct eep_copy *copy = &e->mover->chunk.copies[index];
    struct job *job = &fill->jobs[fill->count++];

    *job = (struct job){.copy = copy, .index = index, .sends = sends};
    if (sends) {
        job->bytes = (unsigned char *)(uintptr_t)eep_wcache_view_slot(
            e->view, copy->layer, (struct eep_slot){copy->source_slot});
        EEP_ASSERT(job->bytes != NULL);
        eep_parcel_describe(e, &job->parcel, copy->layer, (struct eep_expert){copy->expert});
    }
}

enum eep_status eep_fill_begin(struct eep_engine *e, struct eep_fill **fill_out)
{
    const struct eep_chunk *chunk = &e->mover->chunk;
    const uint32_t rank = e->xport->topo.rank;
    struct eep_fill *fill;
    uint64_t own = 0;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, sizeof(*fill), "copies of a move", &fill));
    fill->cache = e->cache;
    fill->in_place = chunk->in_place;
    EEP_TRY_GOTO(eep_mem_alloc(EEP_MAX(2 * chunk->copy_count, 1u), sizeof(*fill->jobs),
                               "copies of a move", &fill->jobs),
                 destroy);
    for (uint32_t i = 0; i < chunk->copy_count; i++) {
        if (chunk->copies[i].to == rank) {
            add_job(fill, e, i, false);
            own++;
        }
        if (chunk->copies[i].from == rank) {
            add_job(fill, e, i, true);
        }
    }
    fill->left = fill->count;
    if (fill->in_place && own > 0) {
        fill->staging_bytes = own * frame_stride(e);
        EEP_TRY_GOTO(eep_mem_map(fill->staging_bytes, "experts on their way", &fill->staging),
                     destroy);
    }
    *fill_out = fill;
    return EEP_OK;

destroy:
    eep_fill_end(fill);
    return status;
}

void eep_fill_hurry(struct eep_fill *fill)
{
    fill->hurry = true;
}

/* Something is on its way: its memory stays with the transport after a loss. */
static bool is_under_way(const struct eep_fill *fill)
{
    for (uint32_t i = 0; i < fill->count; i++) {
        if (fill->jobs[i].state == JOB_RUNNING && fill->jobs[i].copy->from != EEP_NO_RANK) {
            return true;
        }
    }
    return false;
}

void eep_fill_end(struct eep_fill *fill)
{
    if (fill == NULL) {
        return;
    }
    for (uint32_t i = 0; i < fill->count; i++) {
        eep_wcache_fill_drop(fill->jobs[i].fill);
        fill->jobs[i].fill = NULL;
    }
    if (is_under_way(fill)) {
        return;
    }
    for (uint32_t i = 0; i < fill->count; i++) {
        eep_mem_free(fill->jobs[i].arrived);
    }
    eep_mem_unmap(fill->staging, fill->staging_bytes);
    eep_mem_free(fill->jobs);
    eep_mem_free(fill);
}

enum eep_status eep_fill_outcome(const struct eep_fill *fill)
{
    if (fill->outcome != EEP_OK) {
        eep_error_text_set(fill->text);
    }
    return fill->outcome;
}

/* ---- one job ---- */

static void end_job(struct eep_fill *fill, struct job *job, enum eep_status status)
{
    job->state = status == EEP_OK ? JOB_DONE : JOB_FAILED;
    eep_mem_free(job->arrived);
    job->arrived = NULL;
    fill->left--;
    if (job->copy->from != EEP_NO_RANK) {
        fill->transfers[job->sends]--;
    }
    if (status != EEP_OK && fill->outcome == EEP_OK) {
        fill->outcome = status;
        snprintf(fill->text, sizeof(fill->text), "%s", eep_error_text());
    }
}

/* A frame for the job; AGAIN: later. */
static enum eep_status take_frame(struct eep_engine *e, struct eep_fill *fill, struct job *job)
{
    const struct eep_seat seat = {job->copy->slot / e->layout->slots_per_seat};

    if (fill->in_place) {
        uint32_t before = 0;

        for (const struct job *j = fill->jobs; j < job; j++) {
            before += !j->sends;
        }
        job->bytes = fill->staging + before * frame_stride(e);
        return EEP_OK;
    }
    if (job->copy->from != EEP_NO_RANK && job->arrived == NULL) {
        EEP_TRY(eep_mem_alloc(1, e->frame_bytes, "expert on its way", &job->arrived));
    }
    job->bytes = job->arrived;
    EEP_TRY(eep_wcache_take(e->cache, seat, &job->frame));
    return eep_wcache_fill_begin(e->cache, job->frame, job->copy->layer,
                                 (struct eep_expert){job->copy->expert}, &job->fill);
}

/* Starts it if it can be started now. Errors are those of the transport. */
static enum eep_status start_job(struct eep_engine *e, struct eep_fill *fill, struct job *job)
{
    const bool moves = job->copy->from != EEP_NO_RANK;

    if (moves && fill->transfers[job->sends] == TRANSFERS) {
        return EEP_OK;
    }
    enum eep_status status = job->sends ? EEP_OK : take_frame(e, fill, job);
    if (status == EEP_ERR_AGAIN) {
        fill->waits_ns = fill->waits_ns != 0 ? fill->waits_ns : eep_clock_ns();
        if (!fill->hurry && eep_clock_ns() - fill->waits_ns < VIEW_WAIT_NS) {
            return EEP_OK;
        }
    }
    fill->waits_ns = 0;
    if (status != EEP_OK && moves) {
        /* The sender sends all the same: take it in and throw it away. */
        fill->outcome = fill->outcome != EEP_OK ? fill->outcome : status;
        snprintf(fill->text, sizeof(fill->text), "%s", eep_error_text());
        if (job->arrived == NULL) {
            EEP_TRY(eep_mem_alloc(1, e->frame_bytes, "expert to drop", &job->arrived));
        }
        job->bytes = job->arrived;
        job->dropped = true;
        status = EEP_OK;
    }
    fill->transfers[job->sends] += moves;
    job->state = JOB_RUNNING;
    EEP_FAULT("move.fill.begun");
    if (status != EEP_OK) {
        end_job(fill, job, status);
        return EEP_OK;
    }
    return moves ? eep_parcel_begin(e, &job->parcel, job->sends ? job->copy->to : job->copy->from,
                                    job->index, job->sends, job->bytes)
                 : EEP_OK;
}

static enum eep_status pack_again(struct eep_engine *e, struct job *job)
{
    const struct eep_expert expert = {job->copy->expert};

    eep_log(EEP_LOG_WARN, "expert %u of MoE layer %u is read from the checkpoint again: %s",
            expert.id, job->copy->layer, eep_error_text());
    return eep_cache_pack(e, job->frame, job->copy->layer, expert);
}

/* All bytes are there. */
static enum eep_status finish_fill(struct eep_engine *e, struct eep_fill *fill, struct job *job)
{
    enum eep_status status = EEP_OK;

    EEP_FAULT("move.fill.copied");
    if (job->fill != NULL) {
        status = eep_wcache_fill_end(job->fill, eep_parcel_content(&job->parcel), NULL);
        job->fill = NULL;
        if (status == EEP_ERR_CACHE_BAD) {
            status = pack_again(e, job);
        }
    }
    if (job->dropped) {
        status = fill->outcome;
        eep_error_text_set(fill->text);
    }
    e->mover->status.bytes += e->frame_bytes;
    e->mover->status.copies++;
    EEP_FAULT("move.fill.done");
    end_job(fill, job, status);
    return EEP_OK;
}

static void copy_piece(struct eep_engine *e, struct job *job)
{
    const uint64_t bytes = EEP_MIN(PIECE, e->frame_bytes - job->done);
    const unsigned char *source =
        eep_wcache_view_slot(e->view, job->copy->layer, (struct eep_slot){job->copy->source_slot});

    EEP_ASSERT(source != NULL);
    if (job->fill != NULL) {
        eep_wcache_fill_copy(job->fill, source + job->done, bytes);
    } else {
        memcpy(job->bytes + job->done, source + job->done, bytes);
    }
    job->done += bytes;
}

/* What came or went since the last look. */
static enum eep_status look_at_parcel(struct eep_engine *e, struct job *job)
{
    EEP_TRY(eep_parcel_test(e, &job->parcel));
    if (job->fill != NULL && job->parcel.done > job->done) {
        eep_wcache_fill_copy(job->fill, job->arrived + job->done, job->parcel.done - job->done);
    }
    job->done = job->parcel.done;
    return EEP_OK;
}

static enum eep_status run_job(struct eep_engine *e, struct eep_fill *fill, struct job *job)
{
    if (job->copy->from == EEP_NO_RANK) {
        copy_piece(e, job);
    } else {
        EEP_TRY(look_at_parcel(e, job));
    }
    if (job->done < e->frame_bytes || !eep_parcel_is_over(&job->parcel)) {
        return EEP_OK;
    }
    if (job->sends) {
        end_job(fill, job, EEP_OK);
        return EEP_OK;
    }
    return finish_fill(e, fill, job);
}

enum eep_status eep_fill_some(struct eep_engine *e, struct eep_fill *fill, uint64_t budget_ns,
                              bool *done_out)
{
    const uint64_t end_ns = eep_clock_ns() + budget_ns;
    bool again = fill->left > 0;

    /* One local copy at a time, to its end; transfers side by side. */
    while (again) {
        bool copying = false;

        for (uint32_t i = 0; i < fill->count; i++) {
            struct job *job = &fill->jobs[i];
            const bool local = job->copy->from == EEP_NO_RANK;

            if (job->state == JOB_WAITING && !(local && copying)) {
                EEP_TRY(start_job(e, fill, job));
            }
            if (job->state == JOB_RUNNING) {
                EEP_TRY(run_job(e, fill, job));
                copying = copying || local;
            }
            if (local && copying && eep_clock_ns() >= end_ns) {
                break;
            }
        }
        again = copying && fill->left > 0 && eep_clock_ns() < end_ns;
    }
    *done_out = fill->left == 0;
    return EEP_OK;
}

/* ---- what the authority needs to know ---- */

enum eep_status eep_fill_publish(struct eep_engine *e, struct eep_fill *fill)
{
    const uint32_t slots = eep_layout_slots(e->layout);

    for (uint32_t i = 0; i < fill->count; i++) {
        const struct job *job = &fill->jobs[i];
        const size_t at = (size_t)job->copy->layer * slots + job->copy->slot;

        if (!job->sends) {
            EEP_TRY(e->xport->ops->board_put(e->mover->board,
                                             EEP_BOARD_FRAMES + at * sizeof(uint32_t),
                                             &job->frame.index, sizeof(job->frame.index)));
        }
    }
    return EEP_OK;
}

/* ---- in place ---- */

static enum eep_status overwrite(struct eep_engine *e, struct job *job)
{
    const struct eep_copy *copy = job->copy;
    const struct eep_slot slot = {copy->slot};
    void *bytes;

    if (eep_layout_expert(e->layout, copy->layer, slot) == EEP_NO_EXPERT) {
        const struct eep_seat seat = {copy->slot / e->layout->slots_per_seat};

        EEP_TRY(eep_wcache_take(e->cache, seat, &job->frame)); /* the one that it never used */
    } else {
        EEP_TRY(eep_wcache_take_in_place(e->cache, copy->layer, slot, &job->frame));
        job->touched = true;
    }
    EEP_TRY(eep_wcache_frame_begin(e->cache, job->frame, &bytes));
    EEP_FAULT("move.overwrite.begun");
    memcpy(bytes, job->bytes, e->frame_bytes);
    return eep_wcache_frame_end(e->cache, job->frame, copy->layer,
                                (struct eep_expert){copy->expert}, eep_parcel_content(&job->parcel),
                                NULL);
}

enum eep_status eep_fill_overwrite(struct eep_engine *e, struct eep_fill *fill)
{
    EEP_TRY(eep_fill_outcome(fill));
    for (uint32_t i = 0; i < fill->count; i++) {
        if (!fill->jobs[i].sends) {
            EEP_TRY(overwrite(e, &fill->jobs[i]));
        }
    }
    EEP_FAULT("move.overwrite.done");
    return EEP_OK;
}

enum eep_status eep_fill_undo(struct eep_engine *e, struct eep_fill *fill)
{
    for (uint32_t i = 0; i < fill->count; i++) {
        const struct job *job = &fill->jobs[i];
        const struct eep_slot slot = {job->copy->slot};

        if (!job->touched) {
            continue;
        }
        const struct eep_expert expert = {
            (uint32_t)eep_layout_expert(e->layout, job->copy->layer, slot)};
        EEP_TRY(eep_cache_pack(e, job->frame, job->copy->layer, expert));
    }
    return EEP_OK;
}
