/*
 * Memory is reckoned before it is taken: what each rank will hold, summed by machine, against what
 * the machine can still give.
 */
#include "base/mem.h"
#include "engine/engine_int.h"

struct need {
    uint64_t bytes;     /* of this rank */
    uint64_t available; /* on its machine, as this rank sees it */
};

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
    need_out->available = eep_mem_available_bytes();
    return EEP_OK;
}

enum eep_status eep_engine_reckon(struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;
    struct need mine = {0}, *all;
    uint64_t sum = 0, ranks = 0;

    enum eep_status status = own_need(e, &mine);
    EEP_TRY(eep_agree(e->xport, "memory", status));
    status = eep_mem_alloc(topo->size, sizeof(*all), "memory of the ranks", &all);
    EEP_TRY(eep_agree(e->xport, "memory", status));
    status = e->xport->ops->allgather(e->xport, "memory", &mine, sizeof(mine), all);
    for (uint32_t r = 0; r < topo->size; r++) {
        if (topo->node_of[r] == topo->node) {
            sum += all[r].bytes;
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
    }
    return eep_agree(e->xport, "memory", status);
}
