/*
 * Packing the dense weights. The same walk over the model's parts runs twice: once to measure,
 * once to fill, so that the two cannot disagree.
 */
#include "model/model.h"

#include "base/assert.h"
#include "base/mem.h"
#include "model/ffn.h"

struct walk {
    const struct eep_model_config *config;
    const struct eep_ckpt *ckpt;
    const struct eep_kernels *kernels;
    unsigned char *base; /* NULL while measuring */
    uint64_t used;
};

/* The next `bytes` of the mapping; NULL while measuring. */
static void *take(struct walk *walk, uint64_t bytes)
{
    const uint64_t at = walk->used;

    walk->used += eep_round_up(bytes, EEP_CACHE_LINE);
    return walk->base != NULL ? walk->base + at : NULL;
}

/* A matrix (n, k) as panels; BF16 stays BF16, all else becomes F32. Absent roles stay zero. */
static enum eep_status add_panels(struct walk *walk, enum eep_role role, uint32_t layer,
                                  struct eep_panels *panels_out)
{
    const struct eep_tensor *tensor;

    if (!eep_model_has_role(walk->config, role, layer)) {
        return EEP_OK;
    }
    EEP_TRY(eep_model_tensor(walk->config, walk->ckpt, role, layer, 0, &tensor));
    const enum eep_dtype dtype = tensor->dtype == EEP_BF16 ? EEP_BF16 : EEP_F32;
    const uint32_t n = (uint32_t)tensor->shape[0], k = (uint32_t)tensor->shape[1];
    void *data = take(walk, eep_panels_bytes(dtype, n, k));

    if (data != NULL) {
        walk->kernels->pack(dtype, n, k, tensor->dtype, tensor->data, data, 1);
        *panels_out = (struct eep_panels){.dtype = dtype, .n = n, .k = k, .data = data};
    }
    return EEP_OK;
}

/* A vector as float32, padded with zeros to whole panels. */
static enum eep_status add_vector(struct walk *walk, enum eep_role role, uint32_t layer,
                                  const float **vector_out)
{
    const struct eep_tensor *tensor;

    if (!eep_model_has_role(walk->config, role, layer)) {
        return EEP_OK;
    }
    EEP_TRY(eep_model_tensor(walk->config, walk->ckpt, role, layer, 0, &tensor));
    float *data = take(walk, eep_panel_round(tensor->count) * sizeof(float));

    if (data != NULL) {
        eep_dtype_widen(tensor->dtype, tensor->data, tensor->count, data);
        *vector_out = data;
    }
    return EEP_OK;
}

static enum eep_status add_ffn(struct walk *walk, enum eep_role gate, uint32_t layer,
                               struct eep_ffn_weights *weights_out)
{
    struct eep_ffn_shape shape;

    if (!eep_model_has_role(walk->config, gate, layer)) {
        return EEP_OK;
    }
    EEP_TRY(eep_ffn_shape(walk->config, walk->ckpt, gate, layer, 0, &shape));
    void *frame = take(walk, eep_ffn_frame_bytes(&shape));

    if (frame != NULL) {
        return eep_ffn_pack(walk->config, walk->ckpt, walk->kernels, gate, layer, 0, frame,
                            weights_out);
    }
    return EEP_OK;
}

static enum eep_status add_layer(struct walk *walk, uint32_t index, struct eep_model_layer *layer)
{
    EEP_TRY(add_vector(walk, EEP_ROLE_ATTN_NORM, index, &layer->attn_norm));
    EEP_TRY(add_vector(walk, EEP_ROLE_MLP_NORM, index, &layer->mlp_norm));
    EEP_TRY(add_panels(walk, EEP_ROLE_Q, index, &layer->q));
    EEP_TRY(add_panels(walk, EEP_ROLE_K, index, &layer->k));
    EEP_TRY(add_panels(walk, EEP_ROLE_V, index, &layer->v));
    EEP_TRY(add_panels(walk, EEP_ROLE_O, index, &layer->o));
    EEP_TRY(add_vector(walk, EEP_ROLE_Q_BIAS, index, &layer->q_bias));
    EEP_TRY(add_vector(walk, EEP_ROLE_K_BIAS, index, &layer->k_bias));
    EEP_TRY(add_vector(walk, EEP_ROLE_V_BIAS, index, &layer->v_bias));
    EEP_TRY(add_vector(walk, EEP_ROLE_O_BIAS, index, &layer->o_bias));
    EEP_TRY(add_vector(walk, EEP_ROLE_Q_NORM, index, &layer->q_norm));
    EEP_TRY(add_vector(walk, EEP_ROLE_K_NORM, index, &layer->k_norm));
    EEP_TRY(add_panels(walk, EEP_ROLE_ROUTER, index, &layer->router));
    EEP_TRY(add_ffn(walk, EEP_ROLE_SHARED_GATE, index, &layer->shared));
    EEP_TRY(add_panels(walk, EEP_ROLE_SHARED_SCORE, index, &layer->shared_score));
    return add_ffn(walk, EEP_ROLE_DENSE_GATE, index, &layer->dense);
}

/* All parts in the order in which a step reads them; `layers` and `model` are filled in only when
 * the walk has memory. */
static enum eep_status add_all(struct walk *walk, struct eep_model *model)
{
    for (uint32_t index = 0; index < walk->config->layers; index++) {
        struct eep_model_layer unused = {0};

        EEP_TRY(add_layer(walk, index, walk->base != NULL ? &model->layers[index] : &unused));
    }
    EEP_TRY(add_vector(walk, EEP_ROLE_FINAL_NORM, 0, &model->final_norm));
    return add_panels(walk, EEP_ROLE_HEAD, 0, &model->head);
}

enum eep_status eep_model_bytes_needed(const struct eep_model_config *config,
                                       const struct eep_ckpt *ckpt, uint64_t *bytes_out)
{
    struct walk walk = {.config = config, .ckpt = ckpt};
    struct eep_model unused = {0};

    EEP_TRY(add_all(&walk, &unused));
    *bytes_out = walk.used;
    return EEP_OK;
}

enum eep_status eep_model_load(const struct eep_model_config *config, const struct eep_ckpt *ckpt,
                               const struct eep_kernels *kernels, struct eep_model **model_out)
{
    struct walk walk = {.config = config, .ckpt = ckpt, .kernels = kernels};
    struct eep_model *model;
    enum eep_status status;
    uint64_t bytes;

    EEP_TRY(eep_model_bytes_needed(config, ckpt, &bytes));
    EEP_TRY(eep_mem_alloc(1, sizeof(*model), "model", &model));
    *model = (struct eep_model){.config = config, .kernels = kernels};
    EEP_TRY_GOTO(
        eep_mem_alloc(config->layers, sizeof(*model->layers), "model layers", &model->layers),
        destroy);
    EEP_TRY_GOTO(eep_mem_map(bytes, "dense weights", &model->memory), destroy);
    model->bytes = bytes;
    EEP_TRY_GOTO(eep_model_tensor(config, ckpt, EEP_ROLE_EMBED, 0, 0, &model->embed), destroy);
    walk.base = model->memory;
    EEP_TRY_GOTO(add_all(&walk, model), destroy);
    EEP_ASSERT(walk.used == bytes);
    *model_out = model;
    return EEP_OK;

destroy:
    eep_model_destroy(model);
    return status;
}

void eep_model_destroy(struct eep_model *model)
{
    if (model == NULL) {
        return;
    }
    eep_mem_unmap(model->memory, model->bytes);
    eep_mem_free(model->layers);
    eep_mem_free(model);
}
