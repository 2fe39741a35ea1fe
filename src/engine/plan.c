/*
 * From the counted loads to the wanted map, some layers between two steps, so that planning holds
 * nobody up. Every rank plans the same.
 *
 * An expert that stays in its seat stays in its slot: each slot that differs then is one copy.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/mover.h"

#define LAYERS_A_TIME 8     /* about 2 ms at 288 slots */
#define TOKENS_PER_EXPERT 4 /* fewer say nothing about the next ones */

/* Nodes as the balancer counts them, if the seats lie so; else one. */
static uint32_t balancer_nodes(const struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;
    const struct eep_eplb_shape shape = {.seats = e->layout->seats, .nodes = topo->nodes};

    for (uint32_t seat = 0; seat < shape.seats; seat++) {
        if (topo->node_of[e->executors[seat]] != eep_eplb_node_of(&shape, seat)) {
            return 1;
        }
    }
    return topo->nodes <= shape.seats ? topo->nodes : 1;
}

enum eep_status eep_plan_create(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    const struct eep_layout *l = e->layout;
    const uint32_t slots = eep_layout_slots(l);
    const size_t table = (size_t)l->layers * slots;
    const struct eep_eplb_shape shape = {.experts = l->experts,
                                         .slots = slots,
                                         .seats = l->seats,
                                         .nodes = balancer_nodes(e),
                                         .groups = 1};

    EEP_TRY(eep_eplb_create(&shape, &m->eplb));
    EEP_TRY(eep_mem_alloc(table, sizeof(*m->target), "wanted layout", &m->target));
    EEP_TRY(eep_mem_alloc(slots, sizeof(*m->layer_map), "wanted layout", &m->layer_map));
    EEP_TRY(eep_mem_alloc(l->experts, sizeof(*m->layer_counts), "replicas", &m->layer_counts));
    EEP_TRY(eep_mem_alloc(l->experts, sizeof(*m->shuffled), "loads", &m->shuffled));
    EEP_TRY(eep_mem_alloc(l->layers, sizeof(*m->results), "plans", &m->results));
    return eep_mem_alloc(l->layers, sizeof(*m->order), "order of layers", &m->order);
}

void eep_plan_free(struct eep_mover *m)
{
    eep_eplb_destroy(m->eplb);
    eep_mem_free(m->target);
    eep_mem_free(m->layer_map);
    eep_mem_free(m->layer_counts);
    eep_mem_free(m->shuffled);
    eep_mem_free(m->results);
    eep_mem_free(m->order);
}

void eep_plan_begin(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;

    memcpy(m->target, e->layout->phys2log,
           (size_t)e->layout->layers * eep_layout_slots(e->layout) * sizeof(*m->target));
    m->planned = 0;
    m->order_count = 0;
    m->moved_layers = 0;
    m->begin_ns = eep_clock_ns();
}

/*
 * Keep what stays in its seat where it is; what is new takes the slots that are left, in order.
 * `wanted` (slots of a seat) is used up.
 */
static void settle_seat(const int32_t *current, int32_t *wanted, uint32_t slots, int32_t *out)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < slots; i++) {
        out[i] = EEP_NO_EXPERT;
        for (uint32_t j = 0; j < slots && current[i] != EEP_NO_EXPERT; j++) {
            if (wanted[j] == current[i]) {
                out[i] = current[i];
                wanted[j] = EEP_NO_EXPERT;
                break;
            }
        }
    }
    for (uint32_t j = 0; j < slots; j++) {
        if (wanted[j] != EEP_NO_EXPERT) {
            while (out[next] != EEP_NO_EXPERT) {
                next++;
            }
            out[next] = wanted[j];
        }
    }
}

static uint32_t settle_layer(struct eep_engine *e, uint32_t layer)
{
    struct eep_mover *m = e->mover;
    const struct eep_layout *l = e->layout;
    const uint32_t slots = eep_layout_slots(l), per_seat = l->slots_per_seat;
    const int32_t *current = l->phys2log + (size_t)layer * slots;
    int32_t *target = m->target + (size_t)layer * slots;
    uint32_t copies = 0;

    for (uint32_t first = 0; first < slots; first += per_seat) {
        settle_seat(current + first, m->layer_map + first, per_seat, target + first);
    }
    for (uint32_t p = 0; p < slots; p++) {
        copies += target[p] != current[p] && target[p] != EEP_NO_EXPERT;
    }
    return copies;
}

static const double *loads_of(struct eep_engine *e, uint32_t layer)
{
    struct eep_mover *m = e->mover;
    const uint64_t seed = eep_rng_mix(m->status.version + 1) ^ layer;

    if (m->params.policy != EEP_BALANCE_SHUFFLE) {
        return m->loads + (size_t)layer * e->layout->experts;
    }
    for (uint32_t i = 0; i < e->layout->experts; i++) {
        m->shuffled[i] = floor(1.0 + 1e6 * eep_rng_uniform(seed, i));
    }
    return m->shuffled;
}

static enum eep_status plan_layer(struct eep_engine *e, uint32_t layer)
{
    struct eep_mover *m = e->mover;
    const struct eep_layout *l = e->layout;
    const int32_t *current = l->phys2log + (size_t)layer * eep_layout_slots(l);
    const bool shuffle = m->params.policy == EEP_BALANCE_SHUFFLE;
    const struct eep_eplb_ask ask = {
        .policy = m->params.policy == EEP_BALANCE_DEEPSEEK ? EEP_EPLB_DEEPSEEK : EEP_EPLB_EEP,
        .loads = loads_of(e, layer),
        .current = shuffle ? NULL : current,
        .max_copies = m->params.max_copies > 0 ? m->params.max_copies : EEP_EPLB_NO_LIMIT,
        .min_gain = m->params.min_gain,
        .min_total = shuffle ? 0.0 : (double)TOKENS_PER_EXPERT * l->experts,
    };

    enum eep_status status =
        eep_eplb_plan(m->eplb, &ask, m->layer_map, m->layer_counts, &m->results[layer]);
    if (status != EEP_OK) {
        return eep_fail_context(status, "MoE layer %u", layer);
    }
    m->results[layer].copies = settle_layer(e, layer);
    return EEP_OK;
}

/* The compatible policy knows no smallest gain or load: both are asked of its plans too. */
static bool pays(const struct eep_engine *e, const struct eep_eplb_result *r)
{
    if (r->copies == 0 || e->mover->params.policy != EEP_BALANCE_DEEPSEEK) {
        return r->copies > 0;
    }
    return r->before.mean_load * e->layout->seats >=
               (double)TOKENS_PER_EXPERT * e->layout->experts &&
           r->before.max_load - r->after.max_load >= e->mover->params.min_gain * r->before.max_load;
}

/* Layers that move, those with the largest relief first; the rest keep their map. */
static void order_layers(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    const uint32_t slots = eep_layout_slots(e->layout);

    for (uint32_t layer = 0; layer < e->layout->layers; layer++) {
        const struct eep_eplb_result *r = &m->results[layer];
        const double gain = r->before.max_load - r->after.max_load;
        uint32_t at = m->order_count;

        if (!pays(e, r)) {
            memcpy(m->target + (size_t)layer * slots, e->layout->phys2log + (size_t)layer * slots,
                   slots * sizeof(*m->target));
            continue;
        }
        for (; at > 0; at--) {
            const struct eep_eplb_result *o = &m->results[m->order[at - 1]];

            if (o->before.max_load - o->after.max_load >= gain) {
                break;
            }
            m->order[at] = m->order[at - 1];
        }
        m->order[at] = layer;
        m->order_count++;
    }
}

static double inverse(double balancedness)
{
    return balancedness > 0.0 ? 1.0 / balancedness : 1.0;
}

static void sum_up(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;
    const uint32_t layers = e->layout->layers;
    double after = 0.0, gain = 0.0;
    uint64_t copies = 0, best_copies = 0, tokens = 0;

    m->status.imbalance_before = eep_recorder_imbalance(e);
    for (uint32_t layer = 0; layer < layers; layer++) {
        const struct eep_eplb_result *r = &m->results[layer];
        const bool moves = pays(e, r);

        after += inverse(moves ? r->after.balancedness : r->before.balancedness);
        copies += moves ? r->copies : 0;
        best_copies += r->best_copies;
        gain = EEP_MAX(gain, r->best_gain);
        tokens += (uint64_t)(r->before.mean_load * e->layout->seats);
    }
    m->status.imbalance_after = after / layers;
    m->status.planned_copies = copies;
    if (m->order_count == 0) {
        eep_mover_say(e, EEP_REBALANCE_NO_MOVE,
                      "%s; imbalance %.3f, the best plan would copy %llu experts and "
                      "take at most %.2f %% off a layer's largest load (%llu tokens counted)",
                      eep_eplb_verdict_text(m->results[0].verdict), m->status.imbalance_before,
                      (unsigned long long)best_copies, 100.0 * gain, (unsigned long long)tokens);
    }
}

enum eep_status eep_plan_some(struct eep_engine *e, bool *done_out)
{
    struct eep_mover *m = e->mover;
    const uint32_t end = EEP_MIN(m->planned + LAYERS_A_TIME, e->layout->layers);

    *done_out = false;
    for (; m->planned < end; m->planned++) {
        EEP_TRY(plan_layer(e, m->planned));
    }
    if (m->planned == e->layout->layers) {
        order_layers(e);
        sum_up(e);
        *done_out = true;
    }
    return EEP_OK;
}
