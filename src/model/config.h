/*
 * The shape of a model: one small descriptor per architecture turns config.json and tensor names
 * into these numbers; the forward pass knows only them.
 *
 * Values come from the file or are refused by key; there is no family default for a count or a
 * width. Both the older form of config.json (rope_theta, torch_dtype, num_experts) and that of
 * transformers 5 (rope_parameters, dtype, num_local_experts) are read.
 */
#ifndef EEP_MODEL_CONFIG_H
#define EEP_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"

#define EEP_MODEL_MAX_EOS 8

/** How expert scores become a choice and weights; see moe/router.h. */
enum eep_router_kind {
    EEP_ROUTER_SOFTMAX_TOPK,    /* softmax over all experts, then top-k (Qwen-MoE, Mixtral) */
    EEP_ROUTER_SIGMOID_GROUPED, /* sigmoid, bias for the choice, groups (DeepSeek-V3) */
};

struct eep_arch; /* descriptor of an architecture: arch.c */

struct eep_model_config {
    const struct eep_arch *arch;
    uint32_t hidden;
    uint32_t layers;
    uint32_t vocab;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t max_positions;
    uint32_t window; /* sliding attention window; 0 = none */
    float rms_eps;
    double rope_theta;
    bool qkv_bias;
    bool o_bias;
    bool qk_norm; /* RMSNorm of each head of q and k before RoPE (Qwen3) */
    bool tied;    /* the LM head is the embedding */

    enum eep_router_kind router;
    uint32_t experts; /* logical experts of a MoE layer */
    uint32_t top_k;
    bool norm_topk; /* weights are divided by their sum */
    uint32_t expert_width;
    uint32_t dense_width;  /* of layers that are not MoE; 0 if there are none */
    uint32_t shared_width; /* of the shared expert; 0 = none */
    bool shared_gated;     /* its output is multiplied by sigmoid(x . gate) (Qwen2-MoE) */
    uint32_t moe_layers;
    bool *layer_is_moe; /* (layers); owned, see eep_model_config_free() */

    uint32_t eos[EEP_MODEL_MAX_EOS]; /* of config.json and generation_config.json */
    uint32_t eos_count;
};

/** What a tensor is for. */
enum eep_role {
    EEP_ROLE_EMBED,      /* (vocab, hidden) */
    EEP_ROLE_HEAD,       /* (vocab, hidden); the embedding when tied */
    EEP_ROLE_FINAL_NORM, /* (hidden) */
    EEP_ROLE_ATTN_NORM,  /* (hidden), one per layer from here on */
    EEP_ROLE_MLP_NORM,   /* (hidden) */
    EEP_ROLE_Q,          /* (heads * head_dim, hidden) */
    EEP_ROLE_K,          /* (kv_heads * head_dim, hidden) */
    EEP_ROLE_V,
    EEP_ROLE_O, /* (hidden, heads * head_dim) */
    EEP_ROLE_Q_BIAS,
    EEP_ROLE_K_BIAS,
    EEP_ROLE_V_BIAS,
    EEP_ROLE_O_BIAS,
    EEP_ROLE_Q_NORM, /* (head_dim) */
    EEP_ROLE_K_NORM,
    EEP_ROLE_ROUTER,      /* (experts, hidden) */
    EEP_ROLE_EXPERT_GATE, /* (expert_width, hidden), one per layer and expert */
    EEP_ROLE_EXPERT_UP,
    EEP_ROLE_EXPERT_DOWN, /* (hidden, expert_width) */
    EEP_ROLE_SHARED_GATE, /* (shared_width, hidden) */
    EEP_ROLE_SHARED_UP,
    EEP_ROLE_SHARED_DOWN,
    EEP_ROLE_SHARED_SCORE, /* (1, hidden): the shared expert's sigmoid gate */
    EEP_ROLE_DENSE_GATE,   /* (dense_width, hidden), layers that are not MoE */
    EEP_ROLE_DENSE_UP,
    EEP_ROLE_DENSE_DOWN,
    EEP_ROLE_COUNT
};

/**
 * Read the shape from a checkpoint's config.json; no tensor is looked at.
 *
 * @param config_out  written only on EEP_OK; free it with eep_model_config_free()
 *
 * @retval EEP_ERR_FORMAT       a key is missing or does not fit; the text names it and its value
 * @retval EEP_ERR_UNSUPPORTED  model_type, activation, rope scaling ... that eep does not have
 */
EEP_MUST_CHECK enum eep_status eep_model_config_read(const struct eep_ckpt *ckpt,
                                                     struct eep_model_config *config_out);
void eep_model_config_free(struct eep_model_config *config);

/** The architecture's name, such as "qwen3_moe". */
const char *eep_model_arch_name(const struct eep_model_config *config);

/** True if this model has tensors of that role in that layer (layer 0 for the global ones). */
bool eep_model_has_role(const struct eep_model_config *config, enum eep_role role, uint32_t layer);

/**
 * Find the tensor of a role and check its dtype and shape.
 *
 * @param layer   0 for roles without one
 * @param expert  0 for roles without one
 *
 * @retval EEP_ERR_FORMAT       missing, or another shape (the text has both)
 * @retval EEP_ERR_UNSUPPORTED  a dtype that eep cannot compute with
 */
EEP_MUST_CHECK enum eep_status eep_model_tensor(const struct eep_model_config *config,
                                                const struct eep_ckpt *ckpt, enum eep_role role,
                                                uint32_t layer, uint32_t expert,
                                                const struct eep_tensor **tensor_out);

/** Find and check every tensor that the model needs: the preflight before anything is read. */
EEP_MUST_CHECK enum eep_status eep_model_check_tensors(const struct eep_model_config *config,
                                                       const struct eep_ckpt *ckpt);

#endif
