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
    const unsigned char *base; /* NULL while measuring */
    unsigned char *fill;       /* the same to be written; NULL: it is filled already */
    uint64_t used;
};

/* A part of the memory: where to read it, and where to write it if that is to be done. */
struct part {
    const void *data; /* NULL while measuring */
    void *fill;
};

static struct part take(struct walk *walk, uint64_t bytes)
{
    const uint64_t at = walk->used;

    walk->used += eep_round_up(bytes, EEP_CACHE_LINE);
    return (struct part){.data = walk->base != NULL ? walk->base + at : NULL,
                         .fill = walk->fill != NULL ? walk->fill + at : NULL};
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
    const struct part part = take(walk, eep_panels_bytes(dtype, n, k));

    if (part.fill != NULL) {
        walk->kernels->pack(dtype, n, k, tensor->dtype, tensor->data, part.fill, 1);
    }
    *panels_out = (struct eep_panels){.dtype = dtype, .n = n, .k = k, .data = part.data};
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
    const struct part part = take(walk, eep_panel_round(tensor->count) * sizeof(float));

    if (part.fill != NULL) {
        eep_dtype_widen(tensor->dtype, tensor->data, tensor->count, part.fill);
    }
    *vector_out = part.data;
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
    const struct part part = take(walk, eep_ffn_frame_bytes(&shape));

    if (part.fill != NULL) {
        EEP_TRY(eep_ffn_pack(walk->config, walk->ckpt, walk->kernels, gate, layer, 0, part.fill,
                             weights_out));
    }
    if (part.data != NULL) {
        eep_ffn_describe(&shape, part.data, weights_out);
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

enum eep_status eep_model_attach(const struct eep_model_config *config, const struct eep_ckpt *ckpt,
                                 const struct eep_kernels *kernels, const void *memory, void *fill,
                                 struct eep_model **model_out)
{
    struct walk walk = {
        .config = config, .ckpt = ckpt, .kernels = kernels, .base = memory, .fill = fill};
    struct eep_model *model;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, sizeof(*model), "model", &model));
    *model = (struct eep_model){.config = config, .kernels = kernels, .memory = memory};
    EEP_TRY_GOTO(
        eep_mem_alloc(config->layers, sizeof(*model->layers), "model layers", &model->layers),
        destroy);
    EEP_TRY_GOTO(eep_model_tensor(config, ckpt, EEP_ROLE_EMBED, 0, 0, &model->embed), destroy);
    EEP_TRY_GOTO(add_all(&walk, model), destroy);
    model->bytes = walk.used;
    *model_out = model;
    return EEP_OK;

destroy:
    eep_model_destroy(model);
    return status;
}

enum eep_status eep_model_load(const struct eep_model_config *config, const struct eep_ckpt *ckpt,
                               const struct eep_kernels *kernels, struct eep_model **model_out)
{
    uint64_t bytes;
    void *memory;

    EEP_TRY(eep_model_bytes_needed(config, ckpt, &bytes));
    EEP_TRY(eep_mem_map(bytes, "dense weights", &memory));
    const enum eep_status status =
        eep_model_attach(config, ckpt, kernels, memory, memory, model_out);
    if (status != EEP_OK) {
        eep_mem_unmap(memory, bytes);
        return status;
    }
    EEP_ASSERT((*model_out)->bytes == bytes);
    (*model_out)->own_memory = memory;
    return EEP_OK;
}

void eep_model_destroy(struct eep_model *model)
{
    if (model == NULL) {
        return;
    }
    eep_mem_unmap(model->own_memory, model->bytes);
    eep_mem_free(model->layers);
    eep_mem_free(model);
}
