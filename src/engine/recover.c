/*
 * At the start: what a mover that died left on the nodes is ended the same way everywhere, and all
 * records come to one version of one map.
 *
 *     look     every node's record; one that changes now is waited for
 *     lock     the mover's lock of every node, the first node's first, so that no other engine
 *              recovers or moves meanwhile; then look again: only that look counts
 *     resolve  a prepared version that some node has made current is made current everywhere, any
 *              other is dropped
 *     repair   dirty layers, by digest, when all nodes are resolved
 *     raise    the nodes with a lower version to the highest
 *
 * doc/model.md says why in this order. Each part is one round of all ranks.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_int.h"

#define LOCK_PAUSE_US 20000

enum found {
    FOUND_RECORD = 1,
    FOUND_PENDING = 2, /* of a mover that is gone */
    FOUND_PREPARED = 4,
    FOUND_DIRTY = 8,
};

struct node_word {
    int32_t status;
    uint32_t found; /* of enum found */
    uint64_t version, prepared;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    char text[EEP_ERROR_TEXT_MAX < 456 ? EEP_ERROR_TEXT_MAX : 456];
};

struct recovery {
    struct eep_engine *e;
    struct node_word *all; /* (ranks) of the last round */
    struct node_word mine;
    uint64_t deadline_ns;
    bool locked; /* this rank took its node's lock */
};

static bool is_authority(const struct recovery *r)
{
    return r->e->xport->topo.node_rank == 0 && r->e->cache != NULL;
}

/* ---- rounds ---- */

static enum eep_status go_round(struct recovery *r, const char *what, enum eep_status own)
{
    const struct eep_xport *x = r->e->xport;

    if (eep_status_lost(own) >= EEP_LOST_PEER) {
        return own;
    }
    r->mine.status = own;
    r->mine.text[0] = '\0';
    if (own != EEP_OK) {
        snprintf(r->mine.text, sizeof(r->mine.text), "%s", eep_error_text());
    }
    EEP_TRY(x->ops->allgather(r->e->xport, what, &r->mine, sizeof(r->mine), r->all));
    for (uint32_t i = 0; i < x->topo.size; i++) {
        if (r->all[i].status != EEP_OK) {
            r->all[i].text[sizeof(r->all[i].text) - 1] = '\0';
            eep_error_text_set(r->all[i].text);
            return (enum eep_status)r->all[i].status;
        }
    }
    return EEP_OK;
}

static enum eep_status look(struct recovery *r, bool wait)
{
    struct eep_wcache_status status;

    r->mine.found = 0;
    if (!is_authority(r)) {
        return EEP_OK;
    }
    if (wait) {
        const enum eep_status waited =
            eep_wcache_wait(r->e->cache, r->deadline_ns - EEP_MIN(eep_clock_ns(), r->deadline_ns));

        if (waited != EEP_OK && waited != EEP_ERR_CACHE_BAD) {
            return waited; /* of a dirty record the status says more */
        }
    }
    EEP_TRY(eep_wcache_status(r->e->cache, &status));
    r->mine.found = FOUND_RECORD;
    r->mine.found |= status.state == EEP_WCACHE_STALLED ? FOUND_PENDING : 0;
    r->mine.found |= status.state == EEP_WCACHE_DIRTY ? FOUND_DIRTY : 0;
    r->mine.version = status.version;
    memcpy(r->mine.digest, status.digest, sizeof(r->mine.digest));
    if (status.prepared_version != EEP_WCACHE_NO_VERSION) {
        r->mine.found |= FOUND_PREPARED;
        r->mine.prepared = status.prepared_version;
    }
    return EEP_OK;
}

/* ---- what the nodes said ---- */

static const struct node_word *next_record(const struct recovery *r, uint32_t *rank)
{
    while (*rank < r->e->xport->topo.size) {
        const struct node_word *word = &r->all[(*rank)++];

        if ((word->found & FOUND_RECORD) != 0) {
            return word;
        }
    }
    return NULL;
}

static bool is_clean(const struct recovery *r)
{
    const struct node_word *first = NULL, *word;

    for (uint32_t rank = 0; (word = next_record(r, &rank)) != NULL;) {
        first = first != NULL ? first : word;
        if (word->found != FOUND_RECORD || word->version != first->version) {
            return false;
        }
    }
    return true;
}

static bool anybody(const struct recovery *r, uint32_t found)
{
    const struct node_word *word;

    for (uint32_t rank = 0; (word = next_record(r, &rank)) != NULL;) {
        if ((word->found & found) != 0) {
            return true;
        }
    }
    return false;
}

static uint64_t highest(const struct recovery *r)
{
    const struct node_word *word;
    uint64_t version = 0;

    for (uint32_t rank = 0; (word = next_record(r, &rank)) != NULL;) {
        version = EEP_MAX(version, word->version);
    }
    return version;
}

static enum eep_status check_same_map(const struct recovery *r)
{
    const struct node_word *first = NULL, *word;

    for (uint32_t rank = 0; (word = next_record(r, &rank)) != NULL;) {
        first = first != NULL ? first : word;
        if (memcmp(word->digest, first->digest, sizeof(word->digest)) != 0) {
            return EEP_FAIL(EEP_ERR_STALE,
                            "the nodes' weight caches hold different layouts: node %u version "
                            "%" PRIu64 ", node %u version %" PRIu64 "; drop one (eep cache drop)",
                            r->e->xport->topo.node_of[first - r->all], first->version,
                            r->e->xport->topo.node_of[rank - 1], word->version);
        }
    }
    return EEP_OK;
}

/* ---- the parts ---- */

static void unlock(struct recovery *r)
{
    if (r->locked) {
        eep_wcache_mover_release(r->e->cache);
        r->locked = false;
    }
}

/* EEP_ERR_AGAIN: another engine has a lock; this one then has none. */
static enum eep_status lock_all(struct recovery *r)
{
    enum eep_status status = EEP_OK;
    uint32_t first = 0;

    (void)next_record(r, &first);
    for (int round = 0; round < 2 && status == EEP_OK; round++) {
        enum eep_status own = EEP_OK;

        if (is_authority(r) && (r->e->xport->topo.rank + 1 == first) == (round == 0)) {
            own = eep_wcache_mover_take(r->e->cache);
            r->locked = own == EEP_OK;
        }
        status = go_round(r, "locks of the weight caches", own);
    }
    if (status != EEP_OK) {
        char text[EEP_ERROR_TEXT_MAX];

        snprintf(text, sizeof(text), "%s", eep_error_text());
        unlock(r);
        eep_error_text_set(text);
    }
    EEP_FAULT("recover.locked");
    return status;
}

static enum eep_status resolve(struct recovery *r)
{
    const struct node_word *mine = &r->all[r->e->xport->topo.rank];
    enum eep_status own = EEP_OK;

    if (is_authority(r) && (mine->found & (FOUND_PENDING | FOUND_PREPARED)) != 0) {
        const bool forward = (mine->found & FOUND_PREPARED) != 0 && highest(r) >= mine->prepared;
        uint64_t version;

        own = eep_wcache_resolve(r->e->cache, forward, &version);
        eep_log(EEP_LOG_INFO,
                "weight cache: what a lost mover left was rolled %s, version %" PRIu64,
                forward ? "forward" : "back", version);
    }
    EEP_FAULT("recover.resolved");
    return go_round(r, "resolving the weight caches", own);
}

static enum eep_status refill(void *context, uint32_t layer, struct eep_expert expert, void *bytes)
{
    const struct eep_engine *e = context;
    const struct eep_experts_source source = eep_engine_source(e);

    return eep_experts_pack(&source, layer, expert, bytes, e->frame_bytes);
}

static enum eep_status repair(struct recovery *r, uint64_t version)
{
    const struct node_word *mine = &r->all[r->e->xport->topo.rank];
    enum eep_status own = EEP_OK;

    if (is_authority(r) && (mine->found & FOUND_DIRTY) != 0) {
        struct eep_wcache_repair result;

        own = eep_wcache_repair(r->e->cache, false, version, refill, r->e, &result);
        if (own == EEP_OK) {
            eep_log(EEP_LOG_WARN,
                    "weight cache: repaired after a move in place that was cut off: %" PRIu64
                    " of %" PRIu64 " frames filled again, version %" PRIu64,
                    result.refilled, result.checked, result.version);
        }
    }
    EEP_FAULT("recover.repaired");
    return go_round(r, "repair of the weight caches", own);
}

static enum eep_status raise_all(struct recovery *r, uint64_t version)
{
    const struct node_word *mine = &r->all[r->e->xport->topo.rank];
    enum eep_status own = EEP_OK;

    if (is_authority(r) && (mine->found & FOUND_DIRTY) == 0) {
        own = eep_wcache_raise(r->e->cache, version);
    }
    EEP_FAULT("recover.raised");
    return go_round(r, "one version for the weight caches", own);
}

static enum eep_status recover_locked(struct recovery *r)
{
    EEP_TRY(go_round(r, "weight cache records", look(r, false)));
    EEP_TRY(resolve(r));
    EEP_TRY(go_round(r, "weight cache records", look(r, false)));
    EEP_TRY(check_same_map(r));
    const uint64_t version = highest(r) + (anybody(r, FOUND_DIRTY) ? 1 : 0);
    EEP_TRY(repair(r, version));
    EEP_TRY(raise_all(r, version));
    EEP_TRY(go_round(r, "weight cache records", look(r, false)));
    return is_clean(r) ? check_same_map(r)
                       : EEP_FAIL(EEP_ERR_CACHE_BAD,
                                  "the nodes' weight caches could not be brought to one version; "
                                  "drop them (eep cache drop)");
}

static enum eep_status recover(struct recovery *r)
{
    enum eep_status status;

    for (;;) {
        EEP_TRY(go_round(r, "weight cache records", look(r, true)));
        if (is_clean(r)) {
            return check_same_map(r);
        }
        status = lock_all(r);
        if (status == EEP_OK) {
            status = recover_locked(r);
            unlock(r);
            return status;
        }
        if (status != EEP_ERR_AGAIN) {
            return status;
        }
        /* Rank 0's clock says for all when to give up. */
        uint8_t late = eep_clock_ns() >= r->deadline_ns;

        usleep(LOCK_PAUSE_US);
        EEP_TRY(r->e->xport->ops->broadcast(r->e->xport, "time-out of attaching", 0, &late, 1));
        if (late != 0) {
            return eep_fail_context(EEP_ERR_TIMEOUT, "attaching took longer than allowed");
        }
    }
}

enum eep_status eep_cache_recover(struct eep_engine *e)
{
    struct recovery r = {.e = e, .deadline_ns = eep_clock_ns() + e->attach_timeout_ns};

    EEP_TRY(eep_agree(e->xport, "weight cache records",
                      eep_mem_alloc(e->xport->topo.size, sizeof(*r.all), "records", &r.all)));
    const enum eep_status status = recover(&r);

    unlock(&r);
    eep_mem_free(r.all);
    return status;
}
