/*
 * Choosing experts; see router.h for the rules. Rows are few and experts some hundreds, so the
 * choice is plain selection: k passes over a row, which keeps the tie rule evident.
 */
#include "moe/router.h"

#include <math.h>

#include "base/assert.h"
#include "kernels/math.h"

enum eep_status eep_router_check(const struct eep_router *router)
{
    if (router->experts < 1 || router->experts > EEP_ROUTER_MAX_EXPERTS) {
        return EEP_FAIL(EEP_ERR_FORMAT, "num_experts is %u; eep takes 1 to %u", router->experts,
                        EEP_ROUTER_MAX_EXPERTS);
    }
    if (router->top_k < 1 || router->top_k > router->experts) {
        return EEP_FAIL(EEP_ERR_FORMAT, "num_experts_per_tok is %u of %u experts", router->top_k,
                        router->experts);
    }
    if (router->kind != EEP_ROUTER_SIGMOID_GROUPED) {
        return EEP_OK;
    }
    const uint32_t groups = router->groups;
    if (groups < 1 || router->experts % groups != 0 ||
        (groups > 1 && router->experts / groups < 2)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "n_group is %u with %u experts: groups must be equal and of two or more",
                        groups, router->experts);
    }
    if (router->top_groups < 1 || router->top_groups > groups ||
        (uint64_t)router->top_groups * (router->experts / groups) < router->top_k) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "topk_group is %u of %u groups of %u experts, too few for "
                        "num_experts_per_tok %u",
                        router->top_groups, groups, router->experts / groups, router->top_k);
    }
    return EEP_OK;
}

/* The `k` largest of `values`, ties to the lower index, largest first. */
static void select_top(const float *values, uint32_t count, uint32_t k, uint32_t *ids_out)
{
    bool taken[EEP_ROUTER_MAX_EXPERTS];

    for (uint32_t i = 0; i < count; i++) {
        taken[i] = false;
    }
    for (uint32_t j = 0; j < k; j++) {
        uint32_t best = count;

        for (uint32_t i = 0; i < count; i++) {
            if (!taken[i] && (best == count || values[i] > values[best])) {
                best = i;
            }
        }
        EEP_ASSERT(best < count);
        taken[best] = true;
        ids_out[j] = best;
    }
}

static bool all_finite(const float *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            return false;
        }
    }
    return true;
}

/* Leave only the best groups: the others' choice values become -infinity. */
static void keep_best_groups(const struct eep_router *router, float *choice)
{
    float scores[EEP_ROUTER_MAX_EXPERTS];
    uint32_t kept[EEP_ROUTER_MAX_EXPERTS];
    bool keep[EEP_ROUTER_MAX_EXPERTS] = {false};
    const uint32_t size = router->experts / router->groups;

    for (uint32_t g = 0; g < router->groups; g++) {
        uint32_t two[2];

        select_top(choice + (size_t)g * size, size, EEP_MIN(size, 2u), two);
        scores[g] = choice[g * size + two[0]] + (size > 1 ? choice[g * size + two[1]] : 0.0f);
    }
    select_top(scores, router->groups, router->top_groups, kept);
    for (uint32_t j = 0; j < router->top_groups; j++) {
        keep[kept[j]] = true;
    }
    for (uint32_t e = 0; e < router->experts; e++) {
        if (!keep[e / size]) {
            choice[e] = -INFINITY;
        }
    }
}

static void choose_grouped(const struct eep_router *router, float *scores, uint32_t *ids)
{
    float choice[EEP_ROUTER_MAX_EXPERTS];

    for (uint32_t e = 0; e < router->experts; e++) {
        scores[e] = 1.0f / (1.0f + eep_expf(-scores[e]));
        choice[e] = scores[e] + (router->bias != NULL ? router->bias[e] : 0.0f);
    }
    if (router->groups > 1) {
        keep_best_groups(router, choice);
    }
    select_top(choice, router->experts, router->top_k, ids);
}

static void set_weights(const struct eep_router *router, const float *scores, const uint32_t *ids,
                        float *weights)
{
    const bool grouped = router->kind == EEP_ROUTER_SIGMOID_GROUPED;
    float sum = 0.0f;

    for (uint32_t j = 0; j < router->top_k; j++) {
        weights[j] = scores[ids[j]];
        sum += weights[j];
    }
    if (router->norm_topk) {
        sum += grouped ? 1e-20f : 0.0f; /* as the model's own code does */
        for (uint32_t j = 0; j < router->top_k; j++) {
            weights[j] /= sum;
        }
    }
    for (uint32_t j = 0; grouped && j < router->top_k; j++) {
        weights[j] *= router->scale;
    }
}

size_t eep_router_choose(const struct eep_router *router, const struct eep_kernels *kernels,
                         float *scores, size_t score_stride, size_t rows, uint32_t *ids_out,
                         float *weights_out, bool *failed_out)
{
    const uint32_t k = router->top_k;
    size_t failures = 0;

    for (size_t r = 0; r < rows; r++) {
        failed_out[r] = !all_finite(scores + r * score_stride, router->experts);
        failures += failed_out[r];
    }
    if (router->kind == EEP_ROUTER_SOFTMAX_TOPK) {
        kernels->softmax(scores, score_stride, rows, router->experts);
    }
    for (size_t r = 0; r < rows; r++) {
        float *row = scores + r * score_stride;
        uint32_t *ids = ids_out + r * k;
        float *weights = weights_out + r * k;

        if (failed_out[r]) {
            for (uint32_t j = 0; j < k; j++) {
                ids[j] = j;
                weights[j] = 0.0f;
            }
            continue;
        }
        if (router->kind == EEP_ROUTER_SIGMOID_GROUPED) {
            choose_grouped(router, row, ids);
        } else {
            select_top(row, router->experts, k, ids);
        }
        set_weights(router, row, ids, weights);
    }
    return failures;
}
