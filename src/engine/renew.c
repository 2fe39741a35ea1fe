/*
 * Nodes whose cache cannot go with the others': it has another map (the engine ran and moved
 * experts on other nodes meanwhile), or it holds seats that another node executes now, which would
 * stay behind when experts move. The newest map is taken, and such a cache is made again: every map
 * gives the same bits. A cache that another engine uses is never touched.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/cache_int.h"

#define DROP_NS (10 * EEP_NS_PER_S)

/* What each rank says of the cache of its node. */
struct fitness {
    uint32_t found; /* 0: there is none */
    uint32_t node;
    uint32_t others; /* processes of other engines that use it */
    uint32_t strays; /* seats in it that other nodes execute; counted when experts are to move */
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
};

_Static_assert(sizeof(struct fitness) == 56, "travels between ranks");

static bool wants_moves(const struct eep_engine *e)
{
    return e->rebalance.every > 0 || e->rebalance.threshold > 0.0;
}

static enum eep_status look(struct eep_engine *e, struct fitness *mine)
{
    const struct eep_topology *topo = &e->xport->topo;
    const uint32_t seats = e->layout->seats;
    struct eep_wcache_status status;

    if (e->cache == NULL) {
        return EEP_OK;
    }
    EEP_TRY(eep_wcache_status(e->cache, &status));
    mine->found = 1;
    mine->node = topo->node;
    mine->others = status.attached_others;
    mine->version = status.version;
    memcpy(mine->digest, status.digest, sizeof(mine->digest));
    for (uint32_t seat = 0; seat < seats && wants_moves(e); seat++) {
        const uint32_t rank = eep_layout_executor(seat, seats, topo->size);
        bool full = false;

        if (topo->node_of[rank] != topo->node) {
            EEP_TRY(eep_wcache_seat_full(e->cache, (struct eep_seat){seat}, &full));
        }
        mine->strays += full;
    }
    return EEP_OK;
}

static uint32_t newest(const struct fitness *all, uint32_t ranks)
{
    uint32_t best = 0;

    for (uint32_t r = 1; r < ranks; r++) {
        if (all[r].found > all[best].found ||
            (all[r].found != 0 && all[r].version > all[best].version)) {
            best = r;
        }
    }
    return best;
}

static bool is_fit(const struct fitness *one, const struct fitness *best)
{
    return one->found == 0 ||
           (one->strays == 0 && memcmp(one->digest, best->digest, sizeof(one->digest)) == 0);
}

static enum eep_status check_unused(const struct fitness *all, uint32_t ranks,
                                    const struct fitness *best)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (!is_fit(&all[r], best) && all[r].others > 0) {
            return EEP_FAIL(EEP_ERR_STALE,
                            "node %u's weight cache (layout version %" PRIu64
                            ") does not go with the newest one (version %" PRIu64
                            ", node %u), and another engine uses it: end that one, or use another "
                            "--cache-dir",
                            all[r].node, all[r].version, best->version, best->node);
        }
    }
    return EEP_OK;
}

enum eep_status eep_cache_leave(struct eep_engine *e, char name_out[EEP_WCACHE_PATH_MAX])
{
    struct eep_wcache_status status;
    const char *slash;

    EEP_TRY(eep_wcache_status(e->cache, &status));
    slash = strrchr(status.path, '/');
    snprintf(name_out, EEP_WCACHE_PATH_MAX, "%s", slash != NULL ? slash + 1 : status.path);
    eep_wcache_close(e->cache);
    e->cache = NULL;
    return EEP_OK;
}

enum eep_status eep_cache_drop(const struct eep_engine *e, const char *name, uint64_t timeout_ns)
{
    const enum eep_status status = eep_wcache_drop(e->cache_dir, name, timeout_ns);

    return status == EEP_ERR_INVALID ? EEP_OK : status; /* it went with its last user */
}

/* The newest map on all ranks; then the unfit caches go. */
static enum eep_status replace(struct eep_engine *e, const struct fitness *all,
                               const struct fitness *best)
{
    const struct eep_topology *topo = &e->xport->topo;
    const struct fitness *mine = &all[topo->rank];
    const size_t table = (size_t)e->layout->layers * eep_layout_slots(e->layout);
    const bool unfit = !is_fit(mine, best);
    char name[EEP_WCACHE_PATH_MAX] = "";
    enum eep_status status = EEP_OK;

    EEP_TRY(e->xport->ops->broadcast(e->xport, "layout", (uint32_t)(best - all),
                                     e->layout->phys2log, table * sizeof(int32_t)));
    if (unfit) {
        if (topo->node_rank == 0) {
            eep_log(EEP_LOG_WARN, "weight cache of node %u: %s; it is made again", topo->node,
                    mine->strays > 0 ? "it holds experts that other nodes execute now"
                                     : "its layout is older than that of other nodes");
        }
        status = eep_cache_leave(e, name);
    }
    EEP_TRY(eep_agree(e->xport, "leave weight cache", status));
    status = unfit && topo->node_rank == 0 ? eep_cache_drop(e, name, DROP_NS) : EEP_OK;
    return eep_agree(e->xport, "drop weight cache", status);
}

enum eep_status eep_cache_drop_unfit(struct eep_engine *e, bool stale, bool *dropped_out)
{
    const uint32_t ranks = e->xport->topo.size;
    struct fitness mine = {0};
    struct fitness *all = NULL;
    bool unfit = false;

    *dropped_out = false;
    if (!stale && !wants_moves(e)) {
        return EEP_OK;
    }
    enum eep_status status = eep_mem_alloc(ranks, sizeof(*all), "weight caches", &all);
    if (status == EEP_OK) {
        status = look(e, &mine);
    }
    EEP_TRY_GOTO(eep_agree(e->xport, "weight caches of the nodes", status), end);
    EEP_TRY_GOTO(
        e->xport->ops->allgather(e->xport, "weight caches of the nodes", &mine, sizeof(mine), all),
        end);
    const struct fitness *best = &all[newest(all, ranks)];
    for (uint32_t r = 0; r < ranks; r++) {
        unfit = unfit || !is_fit(&all[r], best);
    }
    if (unfit) {
        EEP_TRY_GOTO(check_unused(all, ranks, best), end);
        status = replace(e, all, best);
        *dropped_out = status == EEP_OK;
    }
end:
    eep_mem_free(all);
    return status;
}
