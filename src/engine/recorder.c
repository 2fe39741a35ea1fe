/*
 * How many tokens each expert of each MoE layer got in the last steps: the load that the balancer
 * goes by. A rank counts its own tokens; sums are made when they are needed.
 */
#include <string.h>

#include "base/mem.h"
#include "engine/mover.h"

static size_t table_size(const struct eep_engine *e)
{
    return (size_t)e->layout->layers * e->layout->experts;
}

void eep_recorder_count(struct eep_engine *e, uint32_t layer, const struct eep_moe_choice *choice,
                        uint32_t rows)
{
    const uint32_t top_k = e->config.top_k;
    uint32_t *counts = e->mover->counts + (size_t)layer * e->layout->experts;

    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t k = 0; k < top_k && !choice->failed[row]; k++) {
            counts[choice->experts[(size_t)row * top_k + k]]++;
        }
    }
}

bool eep_recorder_step(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;

    if (++m->half_steps < EEP_MAX(m->params.window / 2, 1u)) {
        return false;
    }
    uint32_t *older = m->counts_before;

    m->counts_before = m->counts;
    m->counts = older;
    memset(m->counts, 0, table_size(e) * sizeof(*m->counts));
    m->half_steps = 0;
    return true;
}

void eep_recorder_reset(struct eep_engine *e)
{
    memset(e->mover->counts, 0, table_size(e) * sizeof(uint32_t));
    memset(e->mover->counts_before, 0, table_size(e) * sizeof(uint32_t));
    e->mover->half_steps = 0;
}

enum eep_status eep_recorder_gather(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    const size_t size = table_size(e);
    const uint32_t ranks = e->xport->topo.size;
    uint32_t *mine = m->counts_all + (size_t)ranks * size;

    for (size_t i = 0; i < size; i++) {
        mine[i] = m->counts[i] + m->counts_before[i];
    }
    EEP_TRY(e->xport->ops->allgather(e->xport, "expert loads", mine, size * sizeof(*mine),
                                     m->counts_all));
    for (size_t i = 0; i < size; i++) {
        uint64_t sum = 0;

        for (uint32_t r = 0; r < ranks; r++) {
            sum += m->counts_all[(size_t)r * size + i];
        }
        m->loads[i] = (double)sum;
    }
    return EEP_OK;
}

double eep_recorder_imbalance(const struct eep_engine *e)
{
    const struct eep_mover *m = e->mover;
    const struct eep_layout *l = e->layout;
    const struct eep_eplb_shape *shape = eep_eplb_shape(m->eplb);
    double sum = 0.0;

    for (uint32_t layer = 0; layer < l->layers; layer++) {
        const int32_t *map = l->phys2log + (size_t)layer * eep_layout_slots(l);
        struct eep_eplb_balance balance;

        eep_eplb_count(shape, NULL, map, m->layer_counts);
        eep_eplb_measure(shape, m->loads + (size_t)layer * l->experts, NULL, map, m->layer_counts,
                         NULL, &balance);
        sum += balance.balancedness > 0.0 ? 1.0 / balance.balancedness : 1.0;
    }
    return l->layers > 0 ? sum / l->layers : 1.0;
}
