/*
 * The MoE block of a step: route, dispatch, grouped experts, combine in top-k order.
 *
 *     x (tokens, hidden) ─ router ─ choose ─ dispatch ─► experts of this rank ─► combine ─► out
 *
 * The block is collective: every rank calls it for every MoE layer, also with zero tokens. After
 * set-up it allocates nothing.
 */
#ifndef EEP_MOE_BLOCK_H
#define EEP_MOE_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "moe/experts.h"
#include "moe/route.h"
#include "moe/router.h"
#include "xport/xport.h"

struct eep_moe_block;

/** What a block works with; all of it is borrowed and must outlive the block. */
struct eep_moe_block_params {
    const struct eep_kernels *kernels;
    struct eep_xport *xport;
    const struct eep_experts *experts;
    struct eep_route *route;
    struct eep_router router;
    uint32_t hidden;
    uint32_t expert_width;
    uint32_t max_tokens; /* of this rank in one step; the same on all ranks */
};

/** Collective. Destroy it with eep_moe_block_destroy(). */
EEP_MUST_CHECK enum eep_status eep_moe_block_create(const struct eep_moe_block_params *params,
                                                    struct eep_moe_block **block_out);
/** Local. NULL is allowed. */
void eep_moe_block_destroy(struct eep_moe_block *block);

/** Where the caller puts the block's input before eep_moe_block_run(): (max_tokens, hidden),
 *  row stride eep_moe_block_stride() floats. */
float *eep_moe_block_input(struct eep_moe_block *block);
size_t eep_moe_block_stride(const struct eep_moe_block *block);

/** What eep_moe_block_run() leaves behind for the recorder and tests; owned by the block. */
struct eep_moe_choice {
    const uint32_t *experts; /* (tokens, top_k) */
    const float *weights;    /* (tokens, top_k) */
    const bool *failed;      /* (tokens): the row's scores were not finite; its output is zero */
    size_t failures;
};

/**
 * Run one MoE layer on `tokens` rows of the input. Collective.
 *
 * @param layer   MoE layer, dense ones not counted
 * @param router  (experts, hidden) weights of this layer
 * @param overlap called between dispatch and the experts (work that needs no other rank: a shared
 *                expert), or NULL
 * @param out     (tokens, hidden): the routed experts' sum, row stride out_stride
 *
 * Errors are those of the transport.
 */
EEP_MUST_CHECK enum eep_status eep_moe_block_run(struct eep_moe_block *block, uint32_t layer,
                                                 const struct eep_panels *router, uint32_t tokens,
                                                 void (*overlap)(void *context), void *context,
                                                 float *out, size_t out_stride,
                                                 struct eep_moe_choice *choice_out);

/** Route by another table, for a layout of the same shape; between two steps. */
void eep_moe_block_reroute(struct eep_moe_block *block, struct eep_route *route);

/** Bytes of buffers that the block may use at most, the exchange's not counted; and those. */
uint64_t eep_moe_block_bytes(const struct eep_moe_block *block);

#endif
