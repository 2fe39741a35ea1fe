/*
 * Descriptors of architectures: what their keys in config.json and their tensors are called, and
 * which of the usual features they have. The reader in config.c and the look-up in tensors.c know
 * no architecture by name; a new one is a new entry in arch.c.
 */
#ifndef EEP_MODEL_ARCH_INT_H
#define EEP_MODEL_ARCH_INT_H

#include "model/config.h"

#define EEP_ARCH_KEY_NAMES 3

/** When attention is limited to a window. */
enum eep_window_rule {
    EEP_WINDOW_BY_KEY,  /* sliding_window alone; null and 0 are none */
    EEP_WINDOW_BY_FLAG, /* only with use_sliding_window; from layer max_window_layers on */
};

/** Which layers have experts. */
enum eep_sparse_rule {
    EEP_SPARSE_ALL,
    EEP_SPARSE_STEP, /* decoder_sparse_step and mlp_only_layers */
};

struct eep_arch {
    const char *model_type;

    /* keys of config.json */
    const char *experts_keys[EEP_ARCH_KEY_NAMES]; /* names of the same key, NULL at the end */
    const char *expert_width_key;
    const char *dense_width_key;  /* NULL: no dense layers */
    const char *shared_width_key; /* NULL: no shared expert */
    const char *qkv_bias_key;     /* NULL: none has a bias */
    bool qkv_bias_default;
    bool o_bias_too; /* qkv_bias_key is also that of the output projection */

    /* documented defaults of keys that may be absent; none of a count or a width */
    double rms_eps_default;
    double rope_theta_default;

    enum eep_window_rule window;
    enum eep_sparse_rule sparse;
    enum eep_router_kind router;
    bool norm_topk_always; /* else by norm_topk_prob, which is false where it is absent */
    bool qk_norm;
    bool shared_gated;

    /* Names of tensors, {L} and {E} for layer and expert. NULL: no model of the family has it. */
    const char *names[EEP_ROLE_COUNT];
};

/** The descriptor of a model_type, or NULL. */
const struct eep_arch *eep_arch_find(const char *model_type);

/** The i-th descriptor, or NULL after the last. */
const struct eep_arch *eep_arch_at(size_t index);

/** Is it an architecture that eep knows of and does not support yet? */
bool eep_arch_is_planned(const char *model_type);

/** Has the role a tensor per layer, and per expert? */
bool eep_role_has_layer(enum eep_role role);
bool eep_role_has_expert(enum eep_role role);

#endif
