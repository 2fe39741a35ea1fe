/*
 * The router: from a token's expert scores to its top-k experts and their weights.
 *
 * SOFTMAX_TOPK (Qwen-MoE, Mixtral): p = softmax of all logits; the k largest p; weights p, or
 * p / sum of the chosen p when norm_topk (Shazeer et al. 2017; Qwen3-MoE, Mixtral).
 * SIGMOID_GROUPED (DeepSeek-V3): s = sigmoid(logit); the choice is made by s + bias: a group's
 * score is the sum of its two best, the topk_group best groups stay, the k best of those are
 * chosen; weights s (without the bias), divided by their sum when norm_topk, times scale.
 *
 * Ties go to the lower expert id and the lower group id. Experts come in order of falling score,
 * and that is the order in which their outputs are summed.
 *
 * A row with a score that is not finite chooses experts 0 .. k-1 with weight 0 and is reported; no
 * other row is touched.
 */
#ifndef EEP_MOE_ROUTER_H
#define EEP_MOE_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "model/config.h"

#define EEP_ROUTER_MAX_EXPERTS 4096

struct eep_router {
    enum eep_router_kind kind;
    uint32_t experts; /* 1 .. EEP_ROUTER_MAX_EXPERTS */
    uint32_t top_k;   /* 1 .. experts */
    bool norm_topk;
    /* SIGMOID_GROUPED only: */
    uint32_t groups;     /* divides experts; experts / groups >= 2 unless groups == 1 */
    uint32_t top_groups; /* top_groups * (experts / groups) >= top_k */
    float scale;
    const float *bias; /* (experts) or NULL */
};

/** Check the numbers against each other; the text names the config key. */
EEP_MUST_CHECK enum eep_status eep_router_check(const struct eep_router *router);

/**
 * Choose for each row.
 *
 * @param scores   (rows, experts), row stride score_stride: logits; overwritten
 * @param ids_out      (rows, top_k)
 * @param weights_out  (rows, top_k)
 * @param failed_out   (rows): set to true where scores are not finite, else false
 *
 * Returns how many rows failed. Thread-safe.
 */
size_t eep_router_choose(const struct eep_router *router, const struct eep_kernels *kernels,
                         float *scores, size_t score_stride, size_t rows, uint32_t *ids_out,
                         float *weights_out, bool *failed_out);

#endif
