/*
 * Backups on their way, and those that this rank holds. See backup.h.
 */
#include "engine/backup.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/look.h"

#define ROUND_BYTES ((uint64_t)64 << 20) /* to one rank */
#define ROUND_EXPERTS 16u
#define TRIES 3u

enum job_state { JOB_WAITING, JOB_UNDER_WAY, JOB_DONE };

struct eep_backup_flight {
    size_t pair;
    bool sends, over;
    unsigned char *bytes;             /* where they come from or arrive */
    uint64_t taken;                   /* of what arrived, in the store */
    struct eep_wcache_digest *digest; /* NULL when it sends, or there was no memory */
    struct eep_parcel parcel;
};

/* ---- what this rank holds ---- */

static unsigned char *place(const struct eep_backup *b, size_t pair)
{
    return b->store + pair * b->stride;
}

static enum eep_status open_store(struct eep_backup *b)
{
    const size_t bytes = b->pairs * b->stride;
    void *memory;

    b->file = memfd_create("eep-backup", MFD_CLOEXEC);
    if (b->file < 0 || ftruncate(b->file, (off_t)bytes) != 0) {
        return EEP_FAIL(EEP_ERR_NOMEM, "a backup of %zu bytes cannot be opened: %m", bytes);
    }
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, b->file, 0);
    if (memory == MAP_FAILED) {
        return EEP_FAIL(EEP_ERR_NOMEM, "a backup of %zu bytes cannot be mapped: %m", bytes);
    }
    b->store = memory;
    return EEP_OK;
}

/* A hole takes no memory. */
static void free_place(const struct eep_backup *b, size_t pair)
{
    (void)fallocate(b->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(pair * b->stride),
                    (off_t)b->stride);
}

void eep_backup_drop(struct eep_backup *b, size_t pair)
{
    b->held[pair / 64] &= ~(UINT64_C(1) << (pair % 64));
    free_place(b, pair);
}

const void *eep_backup_find(const struct eep_engine *e, uint32_t layer, struct eep_expert expert,
                            struct eep_wcache_content *content_out)
{
    const struct eep_backup *b = e->backup;
    const size_t pair = (size_t)layer * e->layout->experts + expert.id;

    if (b == NULL || !eep_backup_has(b->held, pair)) {
        return NULL;
    }
    *content_out = b->contents[pair];
    return place(b, pair);
}

/* ---- life ---- */

static enum eep_status create(struct eep_engine *e)
{
    struct eep_wcache_status cache;
    struct eep_backup *b;

    EEP_TRY(eep_mem_alloc(1, sizeof(*b), "backup", &b));
    e->backup = b;
    b->file = -1;
    EEP_TRY(eep_wcache_status(e->cache, &cache));
    b->stride = cache.frame_stride;
    b->pairs = (size_t)e->layout->layers * e->layout->experts;
    b->words = eep_backup_words(e->layout);
    b->per_rank = (uint32_t)EEP_MIN(EEP_MAX(ROUND_BYTES / b->stride, 1u), ROUND_EXPERTS);
    EEP_TRY(open_store(b));
    EEP_TRY(eep_mem_alloc(b->pairs, sizeof(*b->contents), "backup", &b->contents));
    EEP_TRY(eep_mem_alloc(b->words, sizeof(*b->held), "backup", &b->held));
    EEP_TRY(eep_mem_alloc(b->pairs, sizeof(*b->holder), "backup", &b->holder));
    EEP_TRY(eep_mem_alloc(b->pairs, sizeof(*b->on), "backup", &b->on));
    return eep_mem_alloc(b->pairs, sizeof(*b->jobs), "backup", &b->jobs);
}

static enum eep_status take_tables(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;
    const struct eep_topology *topo = &e->xport->topo;
    const uint32_t ranks = topo->size;

    b->ranks = ranks;
    EEP_TRY(eep_mem_alloc(ranks * b->words, sizeof(*b->held_all), "backup", &b->held_all));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(*b->rooms), "backup", &b->rooms));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(*b->used), "backup", &b->used));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(*b->room), "backup", &b->room));
    EEP_TRY(eep_mem_alloc(ranks, sizeof(*b->node), "backup", &b->node));
    EEP_TRY(eep_mem_alloc(2 * (size_t)ranks, sizeof(*b->load), "backup", &b->load));
    EEP_TRY(eep_mem_alloc((size_t)topo->nodes * e->layout->seats, sizeof(*b->heirs), "backup",
                          &b->heirs));
    EEP_TRY(eep_mem_alloc(2 * (size_t)b->per_rank, sizeof(*b->flights), "backup", &b->flights));
    return eep_mem_map(b->per_rank * b->stride, "backup on its way", &b->arrived);
}

static void forget_world(struct eep_backup *b)
{
    for (size_t pair = 0; b->holder != NULL && pair < b->pairs; pair++) {
        b->holder[pair] = EEP_NO_RANK;
        b->on[pair] = 0;
    }
    b->planned = b->again = false;
    b->tries = b->serial = b->done_serial = b->done_failed = 0;
    b->job_count = b->next = b->missing = 0;
}

static enum eep_status begin_world(struct eep_engine *e)
{
    if (e->backup == NULL) {
        EEP_TRY(create(e));
    }
    forget_world(e->backup);
    return take_tables(e);
}

enum eep_status eep_backup_begin_world(struct eep_engine *e)
{
    if (e->backup_mode == EEP_BACKUP_NONE) {
        return EEP_OK;
    }
    if (e->members == NULL) {
        if (e->xport->topo.rank == 0) {
            eep_log(EEP_LOG_WARN, "no backup: the loss of a rank ends this job");
        }
        return EEP_OK;
    }
    const enum eep_status status = eep_agree(e->xport, "backup", begin_world(e));

    if (status == EEP_OK || eep_status_lost(status) >= EEP_LOST_PEER) {
        return status;
    }
    if (e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_WARN, "no backup: %s", eep_error_text());
    }
    eep_backup_destroy(e);
    e->backup_mode = EEP_BACKUP_NONE;
    return EEP_OK;
}

void eep_backup_end_world(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;

    if (b == NULL) {
        return;
    }
    for (uint32_t i = 0; i < b->flight_count; i++) {
        eep_wcache_digest_drop(b->flights[i].digest);
    }
    if (b->in_flight == 0) { /* else they belong to the transport, after a loss */
        eep_mem_free(b->flights);
        eep_mem_unmap(b->arrived, b->per_rank * b->stride);
    }
    b->flights = NULL;
    b->arrived = NULL;
    EEP_MEM_RELEASE(b->held_all);
    EEP_MEM_RELEASE(b->rooms);
    EEP_MEM_RELEASE(b->used);
    EEP_MEM_RELEASE(b->room);
    EEP_MEM_RELEASE(b->node);
    EEP_MEM_RELEASE(b->load);
    EEP_MEM_RELEASE(b->heirs);
    b->flight_count = b->in_flight = 0;
    b->copying = false;
    forget_world(b);
}

void eep_backup_destroy(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;

    if (b == NULL) {
        return;
    }
    eep_backup_end_world(e);
    if (b->store != NULL) {
        munmap(b->store, b->pairs * b->stride);
    }
    if (b->file >= 0) {
        close(b->file);
    }
    eep_mem_free(b->contents);
    eep_mem_free(b->held);
    eep_mem_free(b->holder);
    eep_mem_free(b->on);
    eep_mem_free(b->jobs);
    eep_mem_free(b);
    e->backup = NULL;
}

/* ---- one expert on its way ---- */

static enum eep_status take_off(struct eep_engine *e, const struct eep_backup_job *job,
                                uint32_t number)
{
    struct eep_backup *b = e->backup;
    struct eep_backup_flight *f = &b->flights[b->flight_count];
    const bool sends = job->from == e->xport->topo.rank;

    *f = (struct eep_backup_flight){.pair = (size_t)job->layer * e->layout->experts + job->expert,
                                    .sends = sends};
    if (sends) {
        f->bytes = (unsigned char *)(uintptr_t)eep_wcache_view_slot(e->view, job->layer,
                                                                    (struct eep_slot){job->slot});
        EEP_ASSERT(f->bytes != NULL); /* a slot that this rank executes */
        eep_parcel_describe(e, &f->parcel, job->layer, (struct eep_expert){job->expert});
    } else {
        f->bytes = b->arrived + b->load[job->to] * b->stride; /* behind those of this round */
        if (eep_wcache_digest_begin(&f->digest) != EEP_OK) {
            f->digest = NULL;
        }
    }
    b->flight_count++;
    b->in_flight++;
    return eep_parcel_begin(e, &f->parcel, sends ? job->to : job->from,
                            EEP_PARCELS_MAX - 1 - number, sends, f->bytes);
}

static bool is_whole(const struct eep_engine *e, struct eep_backup_flight *f,
                     struct eep_wcache_content *content_out)
{
    const struct eep_wcache_content *said = eep_parcel_content(&f->parcel);

    if (f->digest == NULL) {
        return false;
    }
    *content_out = eep_wcache_digest_end(f->digest);
    f->digest = NULL;
    if (said != NULL && (said->low != content_out->low || said->high != content_out->high)) {
        eep_log(EEP_LOG_WARN, "backup: expert %zu of MoE layer %zu arrived with another digest",
                f->pair % e->layout->experts, f->pair / e->layout->experts);
        return false;
    }
    return true;
}

static void land(struct eep_engine *e, struct eep_backup_flight *f)
{
    struct eep_backup *b = e->backup;

    f->over = true;
    b->in_flight--;
    if (f->sends) {
        return;
    }
    if (is_whole(e, f, &b->contents[f->pair])) {
        b->held[f->pair / 64] |= UINT64_C(1) << (f->pair % 64);
    } else {
        free_place(b, f->pair);
        b->done_failed++;
    }
    EEP_FAULT("backup.landed");
}

static enum eep_status look_at(struct eep_engine *e, struct eep_backup_flight *f, bool *moved)
{
    const size_t before = f->parcel.done;

    EEP_TRY(eep_parcel_test(e, &f->parcel));
    const size_t fresh = f->parcel.done - before;

    if (fresh > 0 && !f->sends) {
        memcpy(place(e->backup, f->pair) + before, f->bytes + before, fresh);
        if (f->digest != NULL) {
            eep_wcache_digest_add(f->digest, f->bytes + before, fresh);
        }
    }
    if (eep_parcel_is_over(&f->parcel)) {
        land(e, f);
    }
    *moved = *moved || fresh > 0;
    return EEP_OK;
}

static enum eep_status look_at_all(struct eep_engine *e, uint64_t budget_ns)
{
    struct eep_backup *b = e->backup;
    const uint64_t end_ns = eep_clock_ns() + budget_ns;

    /* Also while nothing moves: the other side looks at the same time, and needs the core. */
    while (b->in_flight > 0) {
        bool moved = false;

        for (uint32_t i = 0; i < b->flight_count; i++) {
            if (!b->flights[i].over) {
                EEP_TRY(look_at(e, &b->flights[i], &moved));
            }
            if (eep_clock_ns() >= end_ns) {
                return EEP_OK;
            }
        }
        if (!moved) {
            (void)sched_yield();
        }
    }
    return EEP_OK;
}

/* ---- rounds ---- */

static enum eep_status begin_round(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;
    uint32_t *const to = b->load, *const from = b->load + b->ranks, number = 0;

    memset(b->load, 0, 2 * (size_t)b->ranks * sizeof(*b->load));
    b->serial++;
    b->copying = true;
    b->flight_count = 0;
    b->done_failed = 0;
    for (size_t i = b->next; i < b->job_count; i++) {
        struct eep_backup_job *job = &b->jobs[i];
        const bool fits = to[job->to] < b->per_rank && from[job->from] < b->per_rank;

        if (job->state != JOB_WAITING || !fits) {
            continue;
        }
        job->state = JOB_UNDER_WAY;
        if (job->to == e->xport->topo.rank || job->from == e->xport->topo.rank) {
            EEP_TRY(take_off(e, job, number));
        }
        to[job->to]++;
        from[job->from]++;
        number++;
    }
    EEP_FAULT("backup.begun");
    return EEP_OK;
}

/* All have ended their parts, as they said in the last step; so all come here in that step. */
static bool all_ended(const struct eep_engine *e, uint32_t *failed_out)
{
    *failed_out = 0;
    for (uint32_t r = 0; r < e->backup->ranks; r++) {
        const struct eep_wire_step *head = eep_requests_heard(e, r);

        if (head->backup_serial != e->backup->serial) {
            return false;
        }
        *failed_out += head->backup_failed;
    }
    return true;
}

static void say_whole(const struct eep_engine *e)
{
    const struct eep_backup *b = e->backup;

    if (b->next == b->job_count && b->missing == 0 && e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_INFO,
                "backup: %zu experts (%.1f MiB) were copied for layout version %" PRIu64
                "; the loss of any one node needs no disk",
                b->job_count, (double)b->job_count * (double)b->stride / (1 << 20), b->version);
    }
}

static void end_round(struct eep_engine *e, uint32_t failed)
{
    struct eep_backup *b = e->backup;

    b->copying = false;
    b->failures += failed;
    b->again = b->again || failed > 0;
    for (size_t i = b->next; i < b->job_count && failed == 0; i++) {
        struct eep_backup_job *job = &b->jobs[i];

        if (job->state == JOB_UNDER_WAY) {
            const size_t pair = (size_t)job->layer * e->layout->experts + job->expert;

            job->state = JOB_DONE;
            b->holder[pair] = job->to;
            b->on[pair] = UINT64_C(1) << b->node[job->to];
        }
    }
    while (b->next < b->job_count && b->jobs[b->next].state == JOB_DONE) {
        b->next++;
    }
    say_whole(e);
}

enum eep_status eep_backup_go_on(struct eep_engine *e, uint64_t budget_ns)
{
    struct eep_backup *b = e->backup;
    uint32_t failed;

    if (b == NULL || !b->copying) {
        return EEP_OK;
    }
    EEP_TRY(look_at_all(e, budget_ns));
    if (b->in_flight == 0) {
        b->done_serial = b->serial;
    }
    if (all_ended(e, &failed)) {
        end_round(e, failed);
    }
    return EEP_OK;
}

/* What failed is tried again a few times, then left until something changes. */
static enum eep_status plan(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;
    const bool fresh = !b->planned || b->version != eep_wcache_view_version(e->view);

    b->tries = fresh ? 0 : b->tries + 1;
    EEP_TRY(eep_backup_plan(e));
    if (b->tries == TRIES) {
        if (e->xport->topo.rank == 0) {
            eep_log(EEP_LOG_WARN, "backup: %zu experts could not be copied and have none",
                    b->job_count);
        }
        b->missing += (uint32_t)b->job_count;
        b->job_count = 0;
    }
    return EEP_OK;
}

enum eep_status eep_backup_begin(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;

    if (b == NULL || b->copying) {
        return EEP_OK;
    }
    if (!b->planned || b->again || b->version != eep_wcache_view_version(e->view)) {
        EEP_TRY(plan(e));
    }
    return b->next < b->job_count ? begin_round(e) : EEP_OK;
}

bool eep_backup_is_copying(const struct eep_engine *e)
{
    return e->backup != NULL && e->backup->copying;
}

enum eep_status eep_backup_stop(struct eep_engine *e)
{
    while (e->backup != NULL && e->backup->in_flight > 0) {
        EEP_TRY(look_at_all(e, EEP_NS_PER_S));
    }
    return EEP_OK;
}

void eep_backup_tell(const struct eep_engine *e, struct eep_wire_step *head)
{
    head->backup_serial = e->backup != NULL ? e->backup->done_serial : 0;
    head->backup_failed = e->backup != NULL ? e->backup->done_failed : 0;
}

/* ---- looking ---- */

void eep_engine_backup(const struct eep_engine *e, struct eep_backup_facts *facts_out)
{
    const struct eep_backup *b = e->backup;

    *facts_out = (struct eep_backup_facts){.enabled = b != NULL};
    if (b == NULL) {
        return;
    }
    for (size_t pair = 0; pair < b->pairs; pair++) {
        facts_out->experts += b->holder[pair] != EEP_NO_RANK;
    }
    facts_out->bytes = facts_out->experts * b->stride;
    facts_out->missing = b->missing;
    facts_out->failures = b->failures;
    facts_out->whole = b->planned && !b->again && b->next == b->job_count && b->missing == 0 &&
                       b->version == eep_wcache_view_version(e->view);
    facts_out->on = b->on;
}
