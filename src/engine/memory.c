/*
 * Memory is reckoned before it is taken: what each rank will hold, summed by machine, against what
 * the machine can still give.
 */
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_int.h"

struct need {
    uint64_t bytes;     /* of this rank */
    uint64_t backup;    /* beside that, for its share of a backup */
    uint64_t available; /* on its machine, as this rank sees it */
};

/* Its even share; what it really gets is planned when the weights are there (backup_plan.c). */
static uint64_t backup_need(const struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;

    if (e->backup_mode == EEP_BACKUP_NONE || e->cache == NULL || topo->nodes == 1) {
        return 0;
    }
    const uint64_t pairs = (uint64_t)e->config.moe_layers * e->config.experts;

    return (pairs + topo->size - 1) / topo->size * e->frame_bytes;
}

static enum eep_status own_need(struct eep_engine *e, struct need *need_out)
{
    const struct eep_model_config *c = &e->config;
    const struct eep_experts_source source = eep_engine_source(e);
    uint64_t weights = 0;

    if (e->cache == NULL) { /* else the cache has its memory, or finds out while filling */
        EEP_TRY(eep_model_bytes_needed(c, e->ckpt, &weights));
        weights += e->layout != NULL ? eep_experts_bytes_needed(&source) : 0;
    }
    need_out->bytes = weights + eep_kv_bytes_needed(c->layers, c->kv_heads, c->head_dim,
                                                    eep_kv_blocks(e->kv_tokens));
    need_out->backup = backup_need(e);
    need_out->available = eep_mem_available_bytes();
    return EEP_OK;
}

/* A backup is worth having, and no more: what finds no room is left out. */
static void warn_of_backup(const struct eep_engine *e, uint64_t need, uint64_t backup,
                           uint64_t available)
{
    if (available != 0 && need + backup > available && e->xport->topo.node_rank == 0) {
        eep_log(EEP_LOG_WARN,
                "backup: node %u has no room for all of it: %.2f GiB beside %.2f GiB, %.2f GiB are "
                "available; experts that find room on no node have none",
                e->xport->topo.node, (double)backup / (1 << 30), (double)need / (1 << 30),
                (double)available / (1 << 30));
    }
}

enum eep_status eep_engine_reckon(struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;
    struct need mine = {0}, *all;
    uint64_t sum = 0, backup = 0, ranks = 0;

    enum eep_status status = own_need(e, &mine);
    EEP_TRY(eep_agree(e->xport, "memory", status));
    status = eep_mem_alloc(topo->size, sizeof(*all), "memory of the ranks", &all);
    EEP_TRY(eep_agree(e->xport, "memory", status));
    status = e->xport->ops->allgather(e->xport, "memory", &mine, sizeof(mine), all);
    for (uint32_t r = 0; r < topo->size; r++) {
        if (topo->node_of[r] == topo->node) {
            sum += all[r].bytes;
            backup += all[r].backup;
            ranks++;
        }
    }
    eep_mem_free(all);
    if (status == EEP_OK && mine.available != 0 && sum > mine.available) {
        status =
            EEP_FAIL(EEP_ERR_NOMEM,
                     "node %u: its %llu ranks need %.2f GiB for weights and KV cache, %.2f GiB "
                     "are available; use more nodes, fewer redundant experts or a smaller KV "
                     "cache",
                     topo->node, (unsigned long long)ranks, (double)sum / (1 << 30),
                     (double)mine.available / (1 << 30));
    } else if (status == EEP_OK && backup > 0) {
        warn_of_backup(e, sum, backup, mine.available);
    }
    return eep_agree(e->xport, "memory", status);
}
