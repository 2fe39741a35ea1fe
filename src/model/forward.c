/*
 * The parts of the forward pass; see forward.h.
 */
#include "model/forward.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"

enum buffer { /* of float, mapped in one piece each */
              HIDDEN,
              NORMED,
              Q,
              K,
              V,
              ATTENDED,
              PROJECTED, /* output of a projection back to hidden: attention, dense MLP, routed
                            experts */
              SHARED,
              SCORE, /* the shared expert's gate */
              COS_SIN,
              BUFFERS
};

struct eep_forward {
    const struct eep_model *model;
    struct eep_kv *kv;
    uint32_t max_rows;
    uint32_t max_context;
    size_t stride;              /* floats of a row of HIDDEN, NORMED, PROJECTED, SHARED */
    size_t q_stride, kv_stride; /* of Q and ATTENDED; of K and V */
    float *buffers[BUFFERS];
    size_t buffer_bytes[BUFFERS];
    void *scratch; /* of attention or an FFN, never both at a time */
    size_t scratch_bytes;
    uint32_t *all_rows;         /* 0, 1, 2, ... max_rows - 1 */
    float *inverse_frequencies; /* (head_dim / 2) */
    struct eep_batch batch;     /* of the current step */
};

static void set_frequencies(struct eep_forward *f)
{
    const uint32_t dim = f->model->config->head_dim;

    for (uint32_t i = 0; i < dim / 2; i++) {
        f->inverse_frequencies[i] =
            (float)(1.0 / pow(f->model->config->rope_theta, (double)(2 * i) / dim));
    }
}

static size_t scratch_bytes(const struct eep_model *model, uint32_t max_rows, uint32_t max_context)
{
    const struct eep_model_config *c = model->config;
    const uint32_t width = EEP_MAX(c->shared_width, c->dense_width);
    const size_t attention =
        model->kernels->attention_scratch_bytes(c->heads, c->head_dim, max_context);

    return EEP_MAX(attention, model->kernels->ffn_scratch_bytes(max_rows, width));
}

static enum eep_status map_buffers(struct eep_forward *f)
{
    const struct eep_model_config *c = f->model->config;
    const size_t floats[BUFFERS] = {
        [HIDDEN] = f->stride,    [NORMED] = f->stride, [Q] = f->q_stride,
        [K] = f->kv_stride,      [V] = f->kv_stride,   [ATTENDED] = f->q_stride,
        [PROJECTED] = f->stride, [SHARED] = f->stride, [SCORE] = EEP_PANEL,
        [COS_SIN] = c->head_dim,
    };

    for (int i = 0; i < BUFFERS; i++) {
        const size_t bytes = floats[i] * f->max_rows * sizeof(float);

        EEP_TRY(eep_mem_map(bytes, "activations", &f->buffers[i]));
        f->buffer_bytes[i] = bytes;
    }
    EEP_TRY(eep_mem_map(f->scratch_bytes, "scratch", &f->scratch));
    EEP_TRY(eep_mem_alloc(f->max_rows, sizeof(uint32_t), "row numbers", &f->all_rows));
    return eep_mem_alloc(c->head_dim / 2, sizeof(float), "RoPE frequencies",
                         &f->inverse_frequencies);
}

enum eep_status eep_forward_create(const struct eep_model *model, struct eep_kv *kv,
                                   uint32_t max_rows, uint32_t max_context,
                                   struct eep_forward **forward_out)
{
    const struct eep_model_config *c = model->config;
    struct eep_forward *f;

    EEP_TRY(eep_mem_alloc(1, sizeof(*f), "forward pass", &f));
    *f = (struct eep_forward){.model = model,
                              .kv = kv,
                              .max_rows = max_rows,
                              .max_context = max_context,
                              .stride = eep_panel_round(c->hidden),
                              .q_stride = eep_panel_round((size_t)c->heads * c->head_dim),
                              .kv_stride = eep_panel_round((size_t)c->kv_heads * c->head_dim),
                              .scratch_bytes = scratch_bytes(model, max_rows, max_context)};
    enum eep_status status = map_buffers(f);
    if (status != EEP_OK) {
        eep_forward_destroy(f);
        return status;
    }
    for (uint32_t r = 0; r < max_rows; r++) {
        f->all_rows[r] = r;
    }
    set_frequencies(f);
    *forward_out = f;
    return EEP_OK;
}

void eep_forward_destroy(struct eep_forward *f)
{
    if (f == NULL) {
        return;
    }
    for (int i = 0; i < BUFFERS; i++) {
        eep_mem_unmap(f->buffers[i], f->buffer_bytes[i]);
    }
    eep_mem_unmap(f->scratch, f->scratch_bytes);
    eep_mem_free(f->all_rows);
    eep_mem_free(f->inverse_frequencies);
    eep_mem_free(f);
}

uint64_t eep_forward_bytes(const struct eep_forward *f)
{
    uint64_t bytes = f->scratch_bytes;

    for (int i = 0; i < BUFFERS; i++) {
        bytes += f->buffer_bytes[i];
    }
    return bytes;
}

const float *eep_forward_hidden(const struct eep_forward *f)
{
    return f->buffers[HIDDEN];
}

size_t eep_forward_stride(const struct eep_forward *f)
{
    return f->stride;
}

/* cos and sin of each row's angles, in float32 as the reference computes them: the angle is the
 * float32 product of position and frequency. */
static void set_angles(struct eep_forward *f)
{
    const uint32_t half = f->model->config->head_dim / 2;

    for (uint32_t r = 0; r < f->batch.rows; r++) {
        float *row = f->buffers[COS_SIN] + (size_t)r * half * 2;

        for (uint32_t i = 0; i < half; i++) {
            const float angle = (float)f->batch.positions[r] * f->inverse_frequencies[i];

            row[2 * i] = (float)cos((double)angle);
            row[2 * i + 1] = (float)sin((double)angle);
        }
    }
}

void eep_forward_begin(struct eep_forward *f, const struct eep_batch *batch)
{
    const struct eep_tensor *embed = f->model->embed;
    const uint32_t hidden = f->model->config->hidden;
    const size_t row_bytes = hidden * eep_dtype_bytes(embed->dtype);

    EEP_ASSERT(batch->rows <= f->max_rows);
    f->batch = *batch;
    for (uint32_t r = 0; r < batch->rows; r++) {
        EEP_ASSERT(batch->tokens[r] < f->model->config->vocab);
        eep_dtype_widen(embed->dtype,
                        (const unsigned char *)embed->data + batch->tokens[r] * row_bytes, hidden,
                        f->buffers[HIDDEN] + r * f->stride);
    }
    set_angles(f);
}

static void gemm(const struct eep_forward *f, const struct eep_panels *w, const float *x,
                 size_t x_stride, const float *bias, float *y, size_t y_stride)
{
    const struct eep_gemm args = {.w = w,
                                  .x = x,
                                  .x_stride = x_stride,
                                  .rows = f->batch.rows,
                                  .y = y,
                                  .y_stride = y_stride,
                                  .bias = bias};

    f->model->kernels->gemm(&args);
}

static void norm(const struct eep_forward *f, const float *weight, float *out, size_t out_stride)
{
    const struct eep_model_config *c = f->model->config;

    f->model->kernels->rmsnorm(f->buffers[HIDDEN], f->stride, f->batch.rows, 1, c->hidden, weight,
                               c->rms_eps, out, out_stride);
}

/* Per-head norm (Qwen3) and RoPE of q or k, in place. */
static void prepare_heads(const struct eep_forward *f, float *x, size_t stride, uint32_t heads,
                          const float *weight)
{
    const struct eep_model_config *c = f->model->config;
    const struct eep_kernels *kernels = f->model->kernels;

    if (weight != NULL) {
        kernels->rmsnorm(x, stride, f->batch.rows, heads, c->head_dim, weight, c->rms_eps, x,
                         stride);
    }
    kernels->rope(x, stride, f->batch.rows, heads, c->head_dim, f->buffers[COS_SIN]);
}

static void attend(const struct eep_forward *f, uint32_t layer)
{
    const struct eep_model_config *c = f->model->config;
    const struct eep_kv_layer cache = eep_kv_layer(f->kv, layer);
    const struct eep_attention attention = {
        .cache = &cache,
        .seqs = f->batch.seqs,
        .seq_count = f->batch.seq_count,
        .heads = c->heads,
        .scale = (float)(1.0 / sqrt((double)c->head_dim)),
        .window = c->window,
        .q = f->buffers[Q],
        .q_stride = f->q_stride,
        .out = f->buffers[ATTENDED],
        .out_stride = f->q_stride,
        .scratch = f->scratch,
        .max_context = f->max_context,
    };

    f->model->kernels->kv_store(&cache, f->batch.seqs, f->batch.seq_count, f->buffers[K],
                                f->kv_stride, f->buffers[V], f->kv_stride);
    f->model->kernels->attention(&attention);
}

static void add_to_hidden(const struct eep_forward *f, const float *y)
{
    f->model->kernels->add(f->buffers[HIDDEN], f->stride, y, f->stride, f->batch.rows,
                           f->model->config->hidden);
}

void eep_forward_attention(struct eep_forward *f, uint32_t layer)
{
    const struct eep_model_config *c = f->model->config;
    const struct eep_model_layer *w = &f->model->layers[layer];
    float **b = f->buffers;

    if (f->batch.rows == 0) {
        return;
    }
    norm(f, w->attn_norm, b[NORMED], f->stride);
    gemm(f, &w->q, b[NORMED], f->stride, w->q_bias, b[Q], f->q_stride);
    gemm(f, &w->k, b[NORMED], f->stride, w->k_bias, b[K], f->kv_stride);
    gemm(f, &w->v, b[NORMED], f->stride, w->v_bias, b[V], f->kv_stride);
    prepare_heads(f, b[Q], f->q_stride, c->heads, w->q_norm);
    prepare_heads(f, b[K], f->kv_stride, c->kv_heads, w->k_norm);
    attend(f, layer);
    gemm(f, &w->o, b[ATTENDED], f->q_stride, w->o_bias, b[PROJECTED], f->stride);
    add_to_hidden(f, b[PROJECTED]);
}

void eep_forward_mlp_input(struct eep_forward *f, uint32_t layer, float *out, size_t out_stride)
{
    norm(f, f->model->layers[layer].mlp_norm, out, out_stride);
}

static void run_ffn(const struct eep_forward *f, const struct eep_ffn_weights *w, const float *x,
                    size_t x_stride, float *y)
{
    const struct eep_ffn_group group = {
        .w = w, .rows = f->batch.rows, .x_rows = f->all_rows, .y_rows = f->all_rows};
    const struct eep_ffn ffn = {.groups = &group,
                                .group_count = 1,
                                .hidden = w->hidden,
                                .width = w->width,
                                .x = x,
                                .x_stride = x_stride,
                                .y = y,
                                .y_stride = f->stride,
                                .scratch = f->scratch};

    f->model->kernels->ffn(&ffn);
}

void eep_forward_dense(struct eep_forward *f, uint32_t layer)
{
    if (f->batch.rows == 0) {
        return;
    }
    eep_forward_mlp_input(f, layer, f->buffers[NORMED], f->stride);
    run_ffn(f, &f->model->layers[layer].dense, f->buffers[NORMED], f->stride,
            f->buffers[PROJECTED]);
    add_to_hidden(f, f->buffers[PROJECTED]);
}

void eep_forward_shared(struct eep_forward *f, uint32_t layer, const float *x, size_t x_stride)
{
    const struct eep_model_layer *w = &f->model->layers[layer];

    if (f->model->config->shared_width == 0 || f->batch.rows == 0) {
        return;
    }
    run_ffn(f, &w->shared, x, x_stride, f->buffers[SHARED]);
    if (f->model->config->shared_gated) {
        gemm(f, &w->shared_score, x, x_stride, NULL, f->buffers[SCORE], EEP_PANEL);
    }
}

float *eep_forward_routed(struct eep_forward *f)
{
    return f->buffers[PROJECTED];
}

void eep_forward_add_routed(struct eep_forward *f)
{
    const struct eep_model_config *c = f->model->config;
    const struct eep_kernels *kernels = f->model->kernels;
    float *routed = f->buffers[PROJECTED];

    if (c->shared_width != 0 && c->shared_gated) {
        kernels->add_gated(routed, f->stride, f->buffers[SHARED], f->stride, f->buffers[SCORE],
                           EEP_PANEL, f->batch.rows, c->hidden);
    } else if (c->shared_width != 0) {
        kernels->add(routed, f->stride, f->buffers[SHARED], f->stride, f->batch.rows, c->hidden);
    }
    add_to_hidden(f, routed);
}

void eep_forward_logits(struct eep_forward *f, const uint32_t *rows, uint32_t count,
                        float *logits_out, size_t logits_stride)
{
    const struct eep_model_config *c = f->model->config;

    for (uint32_t i = 0; i < count; i++) {
        EEP_ASSERT(rows[i] < f->batch.rows);
        memcpy(f->buffers[PROJECTED] + i * f->stride, f->buffers[HIDDEN] + rows[i] * f->stride,
               c->hidden * sizeof(float));
    }
    f->model->kernels->rmsnorm(f->buffers[PROJECTED], f->stride, count, 1, c->hidden,
                               f->model->final_norm, c->rms_eps, f->buffers[NORMED], f->stride);
    const struct eep_gemm args = {.w = &f->model->head,
                                  .x = f->buffers[NORMED],
                                  .x_stride = f->stride,
                                  .rows = count,
                                  .y = logits_out,
                                  .y_stride = logits_stride};
    f->model->kernels->gemm(&args);
}

const float *eep_forward_final(const struct eep_forward *f)
{
    return f->buffers[NORMED];
}
