/* What is reported about an engine. */
#include "base/mem.h"
#include "engine/engine_int.h"
#include "engine/look.h"

static struct eep_rank_memory own_memory(const struct eep_engine *e)
{
    struct eep_rank_memory m = {.resident = eep_mem_resident_bytes(), .node = e->xport->topo.node};

    if (e->loaded) {
        m.dense = e->model->bytes;
        m.frames = e->experts != NULL ? eep_experts_bytes(e->experts) : 0;
        m.experts = e->experts != NULL ? (uint32_t)eep_experts_count(e->experts) : 0;
        m.kv = eep_kv_bytes(e->kv);
        m.buffers =
            eep_forward_bytes(e->forward) + (e->block != NULL ? eep_moe_block_bytes(e->block) : 0);
    }
    return m;
}

enum eep_status eep_facts_resize(struct eep_engine *e)
{
    struct eep_rank_memory *memory;

    EEP_TRY(eep_mem_alloc(e->xport->topo.size, sizeof(*memory), "memory facts", &memory));
    eep_mem_free(e->memory);
    e->memory = memory;
    return EEP_OK;
}

static uint64_t cache_bytes(const struct eep_engine *e, const struct eep_wcache_status *status)
{
    const struct eep_topology *topo = &e->xport->topo;
    const struct eep_layout *l = e->layout;
    uint64_t frames = 0;

    for (uint32_t seat = 0; seat < l->seats; seat++) {
        if (topo->node_of[e->executors[seat]] == topo->node) {
            frames += (uint64_t)l->layers * l->slots_per_seat + status->spare_frames;
        }
    }
    return frames * status->frame_stride + status->dense_bytes;
}

enum eep_status eep_engine_own_facts(const struct eep_engine *e, struct eep_engine_facts *facts_out)
{
    const struct eep_topology *topo = &e->xport->topo;

    *facts_out = (struct eep_engine_facts){
        .architecture = eep_model_arch_name(&e->config),
        .kernels = e->kernels->name,
        .ranks = topo->size,
        .nodes = topo->nodes,
        .threads = e->threads,
        .layers = e->config.layers,
        .moe_layers = e->config.moe_layers,
        .experts = e->config.experts,
        .top_k = e->config.top_k,
        .seats = e->layout != NULL ? e->layout->seats : 0,
        .slots_per_seat = e->layout != NULL ? e->layout->slots_per_seat : 0,
        .redundant = e->redundant,
        .prompt_tokens = e->prompt_tokens,
        .generated_tokens = e->generated_tokens,
        .prompt_ns = e->prompt_ns,
        .generation_ns = e->generation_ns,
        .generation_step_tokens = e->generation_step_tokens,
        .steps = e->steps,
        .load_ns = e->load_ns,
        .cache_attached = e->cache != NULL && !e->cache_filled,
        .layout_version = e->view != NULL ? eep_wcache_view_version(e->view) : 0,
    };
    if (e->cache != NULL) {
        struct eep_wcache_status status;

        EEP_TRY(eep_wcache_status(e->cache, &status));
        facts_out->cache_path = status.path;
        facts_out->cache_ns = e->cache_ns;
        facts_out->map_ns = e->map_ns;
        facts_out->cache_bytes = cache_bytes(e, &status);
        facts_out->cache_kept = status.keep;
    }
    return EEP_OK;
}

enum eep_status eep_engine_facts(struct eep_engine *e, struct eep_engine_facts *facts_out)
{
    const struct eep_rank_memory mine = own_memory(e);

    EEP_TRY(e->broken);
    EEP_TRY(e->xport->ops->allgather(e->xport, "facts", &mine, sizeof(mine), e->memory));
    EEP_TRY(eep_engine_own_facts(e, facts_out));
    facts_out->memory = e->memory;
    return EEP_OK;
}

uint32_t eep_engine_processes(const struct eep_engine *e)
{
    return e->processes;
}

uint32_t eep_engine_seats(const struct eep_engine *e)
{
    return e->layout != NULL ? e->layout->seats : 0;
}
