/* The architectures. To add one, add its descriptor here; see arch_int.h. */
#include <string.h>

#include "model/arch_int.h"

/* Attention and norms are called alike in all of these. */
#define LAYER "model.layers.{L}."
#define COMMON_NAMES                                                                               \
    [EEP_ROLE_EMBED] = "model.embed_tokens.weight", [EEP_ROLE_HEAD] = "lm_head.weight",            \
    [EEP_ROLE_FINAL_NORM] = "model.norm.weight",                                                   \
    [EEP_ROLE_ATTN_NORM] = LAYER "input_layernorm.weight",                                         \
    [EEP_ROLE_MLP_NORM] = LAYER "post_attention_layernorm.weight",                                 \
    [EEP_ROLE_Q] = LAYER "self_attn.q_proj.weight",                                                \
    [EEP_ROLE_K] = LAYER "self_attn.k_proj.weight",                                                \
    [EEP_ROLE_V] = LAYER "self_attn.v_proj.weight",                                                \
    [EEP_ROLE_O] = LAYER "self_attn.o_proj.weight",                                                \
    [EEP_ROLE_Q_BIAS] = LAYER "self_attn.q_proj.bias",                                             \
    [EEP_ROLE_K_BIAS] = LAYER "self_attn.k_proj.bias",                                             \
    [EEP_ROLE_V_BIAS] = LAYER "self_attn.v_proj.bias",                                             \
    [EEP_ROLE_O_BIAS] = LAYER "self_attn.o_proj.bias",                                             \
    [EEP_ROLE_Q_NORM] = LAYER "self_attn.q_norm.weight",                                           \
    [EEP_ROLE_K_NORM] = LAYER "self_attn.k_norm.weight"

#define QWEN_MLP_NAMES                                                                             \
    [EEP_ROLE_ROUTER] = LAYER "mlp.gate.weight",                                                   \
    [EEP_ROLE_EXPERT_GATE] = LAYER "mlp.experts.{E}.gate_proj.weight",                             \
    [EEP_ROLE_EXPERT_UP] = LAYER "mlp.experts.{E}.up_proj.weight",                                 \
    [EEP_ROLE_EXPERT_DOWN] = LAYER "mlp.experts.{E}.down_proj.weight",                             \
    [EEP_ROLE_SHARED_GATE] = LAYER "mlp.shared_expert.gate_proj.weight",                           \
    [EEP_ROLE_SHARED_UP] = LAYER "mlp.shared_expert.up_proj.weight",                               \
    [EEP_ROLE_SHARED_DOWN] = LAYER "mlp.shared_expert.down_proj.weight",                           \
    [EEP_ROLE_SHARED_SCORE] = LAYER "mlp.shared_expert_gate.weight",                               \
    [EEP_ROLE_DENSE_GATE] = LAYER "mlp.gate_proj.weight",                                          \
    [EEP_ROLE_DENSE_UP] = LAYER "mlp.up_proj.weight",                                              \
    [EEP_ROLE_DENSE_DOWN] = LAYER "mlp.down_proj.weight"

static const struct eep_arch archs[] = {
    {
        .model_type = "qwen3_moe",
        .experts_keys = {"num_experts", "num_local_experts"},
        .expert_width_key = "moe_intermediate_size",
        .dense_width_key = "intermediate_size",
        .qkv_bias_key = "attention_bias",
        .o_bias_too = true,
        .rms_eps_default = 1e-6,
        .rope_theta_default = 10000.0,
        .window = EEP_WINDOW_BY_FLAG,
        .sparse = EEP_SPARSE_STEP,
        .router = EEP_ROUTER_SOFTMAX_TOPK,
        .qk_norm = true,
        .names = {COMMON_NAMES, QWEN_MLP_NAMES},
    },
    {
        .model_type = "qwen2_moe",
        .experts_keys = {"num_experts", "num_local_experts"},
        .expert_width_key = "moe_intermediate_size",
        .dense_width_key = "intermediate_size",
        .shared_width_key = "shared_expert_intermediate_size",
        .qkv_bias_key = "qkv_bias",
        .qkv_bias_default = true,
        .rms_eps_default = 1e-6,
        .rope_theta_default = 10000.0,
        .window = EEP_WINDOW_BY_FLAG,
        .sparse = EEP_SPARSE_STEP,
        .router = EEP_ROUTER_SOFTMAX_TOPK,
        .shared_gated = true,
        .names = {COMMON_NAMES, QWEN_MLP_NAMES},
    },
    {
        .model_type = "mixtral",
        .experts_keys = {"num_local_experts", "num_experts"},
        .expert_width_key = "intermediate_size",
        .rms_eps_default = 1e-5,
        .rope_theta_default = 1000000.0,
        .window = EEP_WINDOW_BY_KEY,
        .sparse = EEP_SPARSE_ALL,
        .router = EEP_ROUTER_SOFTMAX_TOPK,
        .norm_topk_always = true,
        .names = {COMMON_NAMES, [EEP_ROLE_ROUTER] = LAYER "block_sparse_moe.gate.weight",
                  [EEP_ROLE_EXPERT_GATE] = LAYER "block_sparse_moe.experts.{E}.w1.weight",
                  [EEP_ROLE_EXPERT_UP] = LAYER "block_sparse_moe.experts.{E}.w3.weight",
                  [EEP_ROLE_EXPERT_DOWN] = LAYER "block_sparse_moe.experts.{E}.w2.weight"},
    },
};

static const char *const planned[] = {"deepseek_v2", "deepseek_v3", "gpt_oss", "olmoe"};

const struct eep_arch *eep_arch_at(size_t index)
{
    return index < sizeof(archs) / sizeof(archs[0]) ? &archs[index] : NULL;
}

const struct eep_arch *eep_arch_find(const char *model_type)
{
    const struct eep_arch *arch;

    for (size_t i = 0; (arch = eep_arch_at(i)) != NULL; i++) {
        if (strcmp(arch->model_type, model_type) == 0) {
            return arch;
        }
    }
    return NULL;
}

bool eep_arch_is_planned(const char *model_type)
{
    for (size_t i = 0; i < sizeof(planned) / sizeof(planned[0]); i++) {
        if (strcmp(planned[i], model_type) == 0) {
            return true;
        }
    }
    return false;
}

bool eep_role_has_layer(enum eep_role role)
{
    return role >= EEP_ROLE_ATTN_NORM;
}

bool eep_role_has_expert(enum eep_role role)
{
    return role >= EEP_ROLE_EXPERT_GATE && role <= EEP_ROLE_EXPERT_DOWN;
}
