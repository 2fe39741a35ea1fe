/*
 * The weights of a model that are not experts: packed once, in one mapping.
 *
 * "Dense" here means everything but the routed experts: norms, attention, routers, shared experts,
 * MLPs of dense layers, the LM head. The embedding stays in the checkpoint's mapping; a step reads
 * only the rows of its tokens.
 */
#ifndef EEP_MODEL_H
#define EEP_MODEL_H

#include <stdint.h>

#include "ckpt/ckpt.h"
#include "kernels/kernels.h"
#include "model/config.h"

/** One layer; parts that the model does not have are zero. */
struct eep_model_layer {
    const float *attn_norm; /* (hidden) */
    const float *mlp_norm;  /* (hidden) */
    struct eep_panels q, k, v, o;
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* (panel_round(n)) or NULL */
    const float *q_norm, *k_norm;                   /* (head_dim) or NULL */
    struct eep_panels router;                       /* (experts, hidden) of a MoE layer */
    struct eep_ffn_weights shared;                  /* the shared expert */
    struct eep_panels shared_score;                 /* (1, hidden): its sigmoid gate */
    struct eep_ffn_weights dense;                   /* the MLP of a layer that is not MoE */
};

struct eep_model {
    const struct eep_model_config *config;
    const struct eep_kernels *kernels;
    const struct eep_tensor *embed; /* (vocab, hidden), mapped */
    const float *final_norm;
    struct eep_panels head;
    struct eep_model_layer *layers;
    const void *memory; /* all packed weights */
    uint64_t bytes;
    void *own_memory; /* the same if the model is to free it, else NULL */
};

/** Bytes that eep_model_load() will take. */
EEP_MUST_CHECK enum eep_status eep_model_bytes_needed(const struct eep_model_config *config,
                                                      const struct eep_ckpt *ckpt,
                                                      uint64_t *bytes_out);

/**
 * Pack the dense weights. config, ckpt and kernels are borrowed and must outlive the model.
 *
 * @param model_out  destroy it with eep_model_destroy(); set only on EEP_OK
 */
EEP_MUST_CHECK enum eep_status eep_model_load(const struct eep_model_config *config,
                                              const struct eep_ckpt *ckpt,
                                              const struct eep_kernels *kernels,
                                              struct eep_model **model_out);
/**
 * The same in memory of the caller, which stays its own and must outlive the model: the dense part
 * of a weight cache.
 *
 * @param memory  eep_model_bytes_needed() bytes, aligned to a page
 * @param fill    where to write them: `memory` itself as it is writable; NULL: they are there
 * already
 */
EEP_MUST_CHECK enum eep_status eep_model_attach(const struct eep_model_config *config,
                                                const struct eep_ckpt *ckpt,
                                                const struct eep_kernels *kernels,
                                                const void *memory, void *fill,
                                                struct eep_model **model_out);
/** NULL is allowed. */
void eep_model_destroy(struct eep_model *model);

#endif
