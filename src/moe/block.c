/*
 * The MoE block; see block.h. Buffers are sized for the worst case, that all ranks send every pair
 * here, and mapped so that only what is used costs memory.
 */
#include "moe/block.h"

#include "base/assert.h"
#include "base/mem.h"

struct eep_moe_block {
    struct eep_moe_block_params params;
    struct eep_exchange *exchange;
    size_t stride; /* floats of a row in the exchange, both ways */

    /* Of this rank's own tokens. */
    float *scores; /* (max_tokens, panel_round(experts)) */
    uint32_t *ids; /* (max_tokens, top_k) from here on */
    float *weights;
    uint32_t *ranks;
    uint32_t *slots;
    const void **rows;
    bool *failed; /* (max_tokens) */

    /* Of what is executed here. */
    size_t max_pairs;
    uint32_t max_slots;           /* physical slots of a layer */
    uint32_t *slot_rows;          /* (max_slots + 1): counts, then starts */
    uint32_t *x_rows;             /* (max_pairs), grouped by slot */
    uint32_t *y_rows;             /* (max_pairs) */
    struct eep_ffn_group *groups; /* (max_slots) */
    void *scratch;
    size_t scratch_bytes;
    size_t mapped[8]; /* sizes of the mapped buffers, for unmapping */
};

/* Buffers that are mapped, with their sizes in the order of `mapped`. */
static enum eep_status map_buffers(struct eep_moe_block *b)
{
    const struct eep_moe_block_params *p = &b->params;
    const size_t pairs = (size_t)p->max_tokens * p->router.top_k;
    const struct {
        void *out;
        size_t bytes;
        const char *what;
    } buffers[8] = {
        {&b->scores, p->max_tokens * eep_panel_round(p->router.experts) * sizeof(float), "scores"},
        {&b->ids, pairs * sizeof(uint32_t), "expert choice"},
        {&b->weights, pairs * sizeof(float), "expert weights"},
        {&b->ranks, pairs * sizeof(uint32_t), "ranks of pairs"},
        {&b->slots, pairs * sizeof(uint32_t), "slots of pairs"},
        {&b->rows, pairs * sizeof(void *), "combined rows"},
        {&b->x_rows, b->max_pairs * 2 * sizeof(uint32_t), "grouped rows"},
        {&b->scratch, b->scratch_bytes, "expert scratch"},
    };

    for (int i = 0; i < 8; i++) {
        EEP_TRY(eep_mem_map(buffers[i].bytes, buffers[i].what, buffers[i].out));
        b->mapped[i] = buffers[i].bytes;
    }
    b->y_rows = b->x_rows + b->max_pairs;
    return EEP_OK;
}

enum eep_status eep_moe_block_create(const struct eep_moe_block_params *params,
                                     struct eep_moe_block **block_out)
{
    struct eep_xport *xport = params->xport;
    struct eep_moe_block *b;
    enum eep_status status;

    EEP_TRY(eep_router_check(&params->router));
    EEP_TRY(eep_mem_alloc(1, sizeof(*b), "MoE block", &b));
    *b = (struct eep_moe_block){.params = *params, .stride = eep_panel_round(params->hidden)};
    b->max_pairs = (size_t)xport->topo.size * params->max_tokens * params->router.top_k;
    b->max_slots = eep_route_slots(params->route);
    b->scratch_bytes = params->kernels->ffn_scratch_bytes(b->max_pairs, params->expert_width);
    EEP_TRY_GOTO(map_buffers(b), destroy);
    EEP_TRY_GOTO(eep_mem_alloc(params->max_tokens, sizeof(bool), "row states", &b->failed),
                 destroy);
    EEP_TRY_GOTO(
        eep_mem_alloc((size_t)b->max_slots + 1, sizeof(uint32_t), "slot counts", &b->slot_rows),
        destroy);
    EEP_TRY_GOTO(eep_mem_alloc(b->max_slots, sizeof(*b->groups), "expert groups", &b->groups),
                 destroy);
    const struct eep_exchange_params exchange = {
        .max_tokens = params->max_tokens,
        .top_k = params->router.top_k,
        .x_row_bytes = b->stride * sizeof(float),
        .y_row_bytes = b->stride * sizeof(float),
    };
    EEP_TRY_GOTO(xport->ops->exchange_open(xport, &exchange, &b->exchange), destroy);
    *block_out = b;
    return EEP_OK;

destroy:
    eep_moe_block_destroy(b);
    return status;
}

void eep_moe_block_destroy(struct eep_moe_block *b)
{
    if (b == NULL) {
        return;
    }
    void *const buffers[8] = {b->scores, b->ids,  b->weights, b->ranks,
                              b->slots,  b->rows, b->x_rows,  b->scratch};

    for (int i = 0; i < 8; i++) {
        eep_mem_unmap(buffers[i], b->mapped[i]);
    }
    if (b->exchange != NULL) {
        b->params.xport->ops->exchange_close(b->exchange);
    }
    eep_mem_free(b->failed);
    eep_mem_free(b->slot_rows);
    eep_mem_free(b->groups);
    eep_mem_free(b);
}

float *eep_moe_block_input(struct eep_moe_block *b)
{
    return b->params.xport->ops->exchange_rows(b->exchange);
}

size_t eep_moe_block_stride(const struct eep_moe_block *b)
{
    return b->stride;
}

void eep_moe_block_reroute(struct eep_moe_block *b, struct eep_route *route)
{
    EEP_ASSERT(eep_route_slots(route) == b->max_slots);
    b->params.route = route;
}

uint64_t eep_moe_block_bytes(const struct eep_moe_block *b)
{
    uint64_t bytes = b->params.xport->ops->exchange_bytes(b->exchange);

    for (int i = 0; i < 8; i++) {
        bytes += b->mapped[i];
    }
    return bytes;
}

static void choose_experts(struct eep_moe_block *b, uint32_t layer, const struct eep_panels *router,
                           uint32_t tokens, struct eep_moe_choice *choice_out)
{
    const struct eep_moe_block_params *p = &b->params;
    const size_t stride = eep_panel_round(p->router.experts);
    const struct eep_gemm gemm = {.w = router,
                                  .x = eep_moe_block_input(b),
                                  .x_stride = b->stride,
                                  .rows = tokens,
                                  .y = b->scores,
                                  .y_stride = stride};

    p->kernels->gemm(&gemm);
    choice_out->failures = eep_router_choose(&p->router, p->kernels, b->scores, stride, tokens,
                                             b->ids, b->weights, b->failed);
    choice_out->experts = b->ids;
    choice_out->weights = b->weights;
    choice_out->failed = b->failed;
    eep_route_choose(p->route, layer, b->ids, tokens, p->router.top_k, b->failed, b->ranks,
                     b->slots);
}

/* Sort the received pairs by slot (stable, by counting); returns how many slots have rows. */
static size_t group_pairs(struct eep_moe_block *b, uint32_t layer,
                          const struct eep_received *received)
{
    uint32_t start = 0;
    size_t group_count = 0;

    for (uint32_t s = 0; s <= b->max_slots; s++) {
        b->slot_rows[s] = 0;
    }
    for (uint32_t i = 0; i < received->pairs; i++) {
        EEP_ASSERT(received->pair_slot[i] < b->max_slots);
        b->slot_rows[received->pair_slot[i]]++;
    }
    for (uint32_t s = 0; s < b->max_slots; s++) {
        const uint32_t rows = b->slot_rows[s];

        b->slot_rows[s] = start;
        if (rows == 0) {
            continue;
        }
        const struct eep_ffn_weights *w =
            eep_experts_slot(b->params.experts, layer, (struct eep_slot){s});
        EEP_ASSERT(w != NULL); /* a sender believed that this rank executes the slot */
        b->groups[group_count++] = (struct eep_ffn_group){
            .w = w, .rows = rows, .x_rows = b->x_rows + start, .y_rows = b->y_rows + start};
        start += rows;
    }
    for (uint32_t i = 0; i < received->pairs; i++) {
        const uint32_t at = b->slot_rows[received->pair_slot[i]]++;

        b->x_rows[at] = received->pair_row[i];
        b->y_rows[at] = i;
    }
    return group_count;
}

static void run_experts(struct eep_moe_block *b, uint32_t layer,
                        const struct eep_received *received)
{
    EEP_ASSERT(received->pairs <= b->max_pairs);
    const struct eep_ffn ffn = {.groups = b->groups,
                                .group_count = group_pairs(b, layer, received),
                                .hidden = b->params.hidden,
                                .width = b->params.expert_width,
                                .x = received->x,
                                .x_stride = b->stride,
                                .y = received->y,
                                .y_stride = b->stride,
                                .scratch = b->scratch};

    if (ffn.group_count > 0) {
        b->params.kernels->ffn(&ffn);
    }
}

enum eep_status eep_moe_block_run(struct eep_moe_block *b, uint32_t layer,
                                  const struct eep_panels *router, uint32_t tokens,
                                  void (*overlap)(void *context), void *context, float *out,
                                  size_t out_stride, struct eep_moe_choice *choice_out)
{
    const struct eep_moe_block_params *p = &b->params;
    const struct eep_xport_ops *ops = p->xport->ops;
    struct eep_received received;

    EEP_ASSERT(tokens <= p->max_tokens);
    choose_experts(b, layer, router, tokens, choice_out);
    const struct eep_dispatch send = {.tokens = tokens, .ranks = b->ranks, .slots = b->slots};
    EEP_TRY(ops->dispatch(b->exchange, &send, &received));
    if (overlap != NULL) {
        overlap(context);
    }
    run_experts(b, layer, &received);
    EEP_TRY(ops->combine(b->exchange, b->rows));
    p->kernels->weighted_sum(EEP_F32, b->rows, b->weights, tokens, p->router.top_k, p->hidden, out,
                             out_stride);
    return EEP_OK;
}
