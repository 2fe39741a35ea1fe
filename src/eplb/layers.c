/*
 * Several layers with one budget: each is planned by itself, then the copies go to the layers where
 * one copy takes most from the fullest seat.
 */
#include "base/mem.h"
#include "eplb/eplb.h"

struct plan {
    struct eep_eplb *eplb;
    const struct eep_eplb_ask *ask; /* of all layers */
    const struct eep_eplb_shape *shape;
    int32_t *maps;
    uint32_t *counts;
    struct eep_eplb_result *results;
};

static enum eep_status plan_layer(const struct plan *plan, uint32_t layer, uint32_t max_copies)
{
    const uint32_t slots = eep_eplb_map_slots(plan->shape), experts = plan->shape->experts;
    struct eep_eplb_ask ask = *plan->ask;

    ask.loads += (size_t)layer * experts;
    if (ask.current != NULL) {
        ask.current += (size_t)layer * slots;
    }
    ask.max_copies = EEP_MIN(ask.max_copies, max_copies);
    const enum eep_status status =
        eep_eplb_plan(plan->eplb, &ask, plan->maps + (size_t)layer * slots,
                      plan->counts + (size_t)layer * experts, &plan->results[layer]);
    if (status != EEP_OK) {
        (void)eep_fail_context(status, "MoE layer %u", layer);
    }
    return status;
}

/* Does layer a come before layer b? */
static bool is_before(const struct eep_eplb_result *a, const struct eep_eplb_result *b)
{
    const double gain_a = (a->before.max_load - a->after.max_load) * b->copies;
    const double gain_b = (b->before.max_load - b->after.max_load) * a->copies;

    if ((a->lost > 0) != (b->lost > 0)) {
        return a->lost > 0;
    }
    return gain_a > gain_b; /* gain per copy, without a division by nothing */
}

/* The next layer that has copies and no turn yet; `layers` if there is none. */
static uint32_t next_layer(const struct eep_eplb_result *results, uint32_t layers)
{
    uint32_t best = layers;

    for (uint32_t l = 0; l < layers; l++) {
        if (results[l].turn == 0 && results[l].copies > 0 &&
            (best == layers || is_before(&results[l], &results[best]))) {
            best = l;
        }
    }
    return best;
}

enum eep_status eep_eplb_plan_layers(struct eep_eplb *eplb, const struct eep_eplb_ask *ask,
                                     uint32_t layers, uint64_t max_copies_total, int32_t *maps_out,
                                     uint32_t *counts_out, struct eep_eplb_result *results_out)
{
    const struct plan plan = {.eplb = eplb,
                              .ask = ask,
                              .shape = eep_eplb_shape(eplb),
                              .maps = maps_out,
                              .counts = counts_out,
                              .results = results_out};
    uint64_t left = ask->current != NULL ? max_copies_total : UINT64_MAX;
    uint32_t turn = 0;

    for (uint32_t l = 0; l < layers; l++) {
        EEP_TRY(plan_layer(&plan, l, EEP_EPLB_NO_LIMIT));
    }
    for (uint32_t l = next_layer(results_out, layers); l < layers;
         l = next_layer(results_out, layers)) {
        if (results_out[l].copies > left) {
            EEP_TRY(plan_layer(&plan, l, (uint32_t)left));
        }
        left -= EEP_MIN(left, results_out[l].copies);
        if (results_out[l].copies > 0) {
            results_out[l].turn = ++turn;
        }
    }
    return EEP_OK;
}
