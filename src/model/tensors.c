/*
 * Tensors by role: their names, shapes and dtypes, and the preflight over all of them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "model/arch_int.h"

#define NAME_BYTES_MAX 256
#define SHAPE_TEXT_MAX 200

/* Whose tensors a role is for, within the layers that have it. */
bool eep_model_has_role(const struct eep_model_config *config, enum eep_role role, uint32_t layer)
{
    bool moe = config->layer_is_moe[layer];

    switch (role) {
    case EEP_ROLE_Q_BIAS:
    case EEP_ROLE_K_BIAS:
    case EEP_ROLE_V_BIAS:
        return config->qkv_bias;
    case EEP_ROLE_O_BIAS:
        return config->o_bias;
    case EEP_ROLE_Q_NORM:
    case EEP_ROLE_K_NORM:
        return config->qk_norm;
    case EEP_ROLE_ROUTER:
    case EEP_ROLE_EXPERT_GATE:
    case EEP_ROLE_EXPERT_UP:
    case EEP_ROLE_EXPERT_DOWN:
        return moe;
    case EEP_ROLE_SHARED_GATE:
    case EEP_ROLE_SHARED_UP:
    case EEP_ROLE_SHARED_DOWN:
        return moe && config->shared_width > 0;
    case EEP_ROLE_SHARED_SCORE:
        return moe && config->shared_gated;
    case EEP_ROLE_DENSE_GATE:
    case EEP_ROLE_DENSE_UP:
    case EEP_ROLE_DENSE_DOWN:
        return !moe;
    default:
        return role < EEP_ROLE_COUNT;
    }
}

/* The shape that a role must have; returns the number of dimensions. */
static uint32_t shape_of(const struct eep_model_config *config, enum eep_role role,
                         uint64_t shape_out[2])
{
    const uint64_t q_rows = (uint64_t)config->heads * config->head_dim;
    const uint64_t kv_rows = (uint64_t)config->kv_heads * config->head_dim;
    const uint64_t hidden = config->hidden;
    const struct {
        uint64_t rows;
        uint64_t columns; /* 0: one dimension */
    } shapes[EEP_ROLE_COUNT] = {
        [EEP_ROLE_EMBED] = {config->vocab, hidden},
        [EEP_ROLE_HEAD] = {config->vocab, hidden},
        [EEP_ROLE_FINAL_NORM] = {hidden, 0},
        [EEP_ROLE_ATTN_NORM] = {hidden, 0},
        [EEP_ROLE_MLP_NORM] = {hidden, 0},
        [EEP_ROLE_Q] = {q_rows, hidden},
        [EEP_ROLE_K] = {kv_rows, hidden},
        [EEP_ROLE_V] = {kv_rows, hidden},
        [EEP_ROLE_O] = {hidden, q_rows},
        [EEP_ROLE_Q_BIAS] = {q_rows, 0},
        [EEP_ROLE_K_BIAS] = {kv_rows, 0},
        [EEP_ROLE_V_BIAS] = {kv_rows, 0},
        [EEP_ROLE_O_BIAS] = {hidden, 0},
        [EEP_ROLE_Q_NORM] = {config->head_dim, 0},
        [EEP_ROLE_K_NORM] = {config->head_dim, 0},
        [EEP_ROLE_ROUTER] = {config->experts, hidden},
        [EEP_ROLE_EXPERT_GATE] = {config->expert_width, hidden},
        [EEP_ROLE_EXPERT_UP] = {config->expert_width, hidden},
        [EEP_ROLE_EXPERT_DOWN] = {hidden, config->expert_width},
        [EEP_ROLE_SHARED_GATE] = {config->shared_width, hidden},
        [EEP_ROLE_SHARED_UP] = {config->shared_width, hidden},
        [EEP_ROLE_SHARED_DOWN] = {hidden, config->shared_width},
        [EEP_ROLE_SHARED_SCORE] = {1, hidden},
        [EEP_ROLE_DENSE_GATE] = {config->dense_width, hidden},
        [EEP_ROLE_DENSE_UP] = {config->dense_width, hidden},
        [EEP_ROLE_DENSE_DOWN] = {hidden, config->dense_width},
    };

    shape_out[0] = shapes[role].rows;
    shape_out[1] = shapes[role].columns;
    return shapes[role].columns == 0 ? 1 : 2;
}

/* `pattern` with its {L} and {E} filled in. */
static void make_name(const char *pattern, uint32_t layer, uint32_t expert,
                      char name_out[NAME_BYTES_MAX])
{
    size_t used = 0;

    for (const char *c = pattern; *c != '\0';) {
        int wrote = 1;

        EEP_ASSERT(used + 12 < NAME_BYTES_MAX);
        if (strncmp(c, "{L}", 3) == 0 || strncmp(c, "{E}", 3) == 0) {
            wrote = snprintf(name_out + used, NAME_BYTES_MAX - used, "%" PRIu32,
                             c[1] == 'L' ? layer : expert);
            c += 3;
        } else {
            name_out[used] = *c++;
        }
        used += (size_t)wrote;
    }
    name_out[used] = '\0';
}

static const char *shape_text(uint32_t dims, const uint64_t *shape, char text[SHAPE_TEXT_MAX])
{
    size_t used = 1;

    strcpy(text, "[");
    for (uint32_t dim = 0; dim < dims; dim++) {
        used += (size_t)snprintf(text + used, SHAPE_TEXT_MAX - used, "%s%" PRIu64,
                                 dim > 0 ? ", " : "", shape[dim]);
    }
    snprintf(text + used, SHAPE_TEXT_MAX - used, "]");
    return text;
}

static enum eep_status check_shape(const struct eep_model_config *config, enum eep_role role,
                                   const struct eep_tensor *tensor)
{
    uint64_t shape[2];
    char has[SHAPE_TEXT_MAX], wants[SHAPE_TEXT_MAX];
    uint32_t dims = shape_of(config, role, shape);

    if (tensor->dims == dims && memcmp(tensor->shape, shape, dims * sizeof(shape[0])) == 0) {
        return EEP_OK;
    }
    return EEP_FAIL(EEP_ERR_FORMAT, "%s: tensor '%s' has shape %s, but config.json makes it %s",
                    tensor->file, tensor->name, shape_text(tensor->dims, tensor->shape, has),
                    shape_text(dims, shape, wants));
}

static bool is_f8(enum eep_dtype dtype)
{
    return dtype == EEP_F8_E4M3 || dtype == EEP_F8_E5M2;
}

static enum eep_status check_dtype(const struct eep_tensor *tensor)
{
    if (tensor->dtype == EEP_BF16 || tensor->dtype == EEP_F16 || tensor->dtype == EEP_F32) {
        return EEP_OK;
    }
    return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                    "%s: tensor '%s' has dtype %s, which is not supported here; supported: BF16, "
                    "F16, F32",
                    tensor->file, tensor->name, eep_dtype_name(tensor->dtype));
}

static enum eep_status fail_missing(const struct eep_ckpt *ckpt, enum eep_role role,
                                    const char *name)
{
    return EEP_FAIL(EEP_ERR_FORMAT, "%s: tensor '%s', which config.json calls for, is missing%s",
                    eep_ckpt_source(ckpt), name,
                    role == EEP_ROLE_HEAD ? " (and tie_word_embeddings is not true)" : "");
}

enum eep_status eep_model_tensor(const struct eep_model_config *config, const struct eep_ckpt *ckpt,
                                 enum eep_role role, uint32_t layer, uint32_t expert,
                                 const struct eep_tensor **tensor_out)
{
    char name[NAME_BYTES_MAX];

    EEP_ASSERT(role < EEP_ROLE_COUNT && config->arch->names[role] != NULL);
    EEP_ASSERT(layer < config->layers && expert < config->experts);
    if (role == EEP_ROLE_HEAD && config->tied) {
        role = EEP_ROLE_EMBED;
    }
    make_name(config->arch->names[role], layer, expert, name);
    const struct eep_tensor *tensor = eep_ckpt_find(ckpt, name);

    if (tensor == NULL) {
        return fail_missing(ckpt, role, name);
    }
    EEP_TRY(check_shape(config, role, tensor));
    EEP_TRY(check_dtype(tensor));
    *tensor_out = tensor;
    return EEP_OK;
}

/* All tensors of a role, counted. */
static enum eep_status check_role(const struct eep_model_config *config,
                                  const struct eep_ckpt *ckpt, enum eep_role role, uint32_t layer,
                                  size_t *used)
{
    uint32_t experts = eep_role_has_expert(role) ? config->experts : 1;
    const struct eep_tensor *tensor;

    if (!eep_model_has_role(config, role, layer)) {
        return EEP_OK;
    }
    for (uint32_t expert = 0; expert < experts; expert++) {
        EEP_TRY(eep_model_tensor(config, ckpt, role, layer, expert, &tensor));
        ++*used;
    }
    return EEP_OK;
}

/* An FP8 tensor without its scales is broken, whoever reads it: said before "not supported". */
static enum eep_status check_scales(const struct eep_ckpt *ckpt)
{
    for (size_t i = 0; i < eep_ckpt_count(ckpt); i++) {
        const struct eep_tensor *tensor = eep_ckpt_at(ckpt, i);
        char name[NAME_BYTES_MAX];

        if (!is_f8(tensor->dtype)) {
            continue;
        }
        int length = snprintf(name, sizeof(name), "%s_scale_inv", tensor->name);

        if (length < NAME_BYTES_MAX && eep_ckpt_find(ckpt, name) == NULL) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: tensor '%s' has dtype %s, but its scales, '%s', "
                            "are missing",
                            tensor->file, tensor->name, eep_dtype_name(tensor->dtype), name);
        }
    }
    return EEP_OK;
}

/* Read a decimal number of at most 9 digits; NULL if there is none. */
static const char *scan_number(const char *text, uint32_t *number_out)
{
    char *end;

    if (*text < '0' || *text > '9') {
        return NULL;
    }
    unsigned long number = strtoul(text, &end, 10);

    if (end - text > 9) {
        return NULL;
    }
    *number_out = (uint32_t)number;
    return end;
}

/* Does `name` fit `pattern`? Fills in layer and expert where the pattern has them. */
static bool match_name(const char *pattern, const char *name, uint32_t *layer, uint32_t *expert)
{
    while (*pattern != '\0') {
        if (strncmp(pattern, "{L}", 3) == 0 || strncmp(pattern, "{E}", 3) == 0) {
            name = scan_number(name, pattern[1] == 'L' ? layer : expert);
            if (name == NULL) {
                return false;
            }
            pattern += 3;
        } else if (*pattern++ != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

/* The role of a tensor by its name, for this architecture; EEP_ROLE_COUNT if it has none. */
static enum eep_role role_of(const struct eep_arch *arch, const char *name, uint32_t *layer,
                             uint32_t *expert)
{
    for (int role = 0; role < EEP_ROLE_COUNT; role++) {
        *layer = 0;
        *expert = 0;
        if (arch->names[role] != NULL && match_name(arch->names[role], name, layer, expert)) {
            return (enum eep_role)role;
        }
    }
    return EEP_ROLE_COUNT;
}

/* A tensor that the shape has no place for: config.json and the files disagree. */
static enum eep_status check_known(const struct eep_model_config *config,
                                   const struct eep_tensor *tensor, size_t *unknown)
{
    uint32_t layer, expert;
    enum eep_role role = role_of(config->arch, tensor->name, &layer, &expert);

    if (role == EEP_ROLE_COUNT) {
        if (*unknown == 0) {
            eep_log(EEP_LOG_WARN, "%s: tensor '%.200s' is not used", tensor->file, tensor->name);
        }
        ++*unknown;
        return EEP_OK;
    }
    if (role == EEP_ROLE_HEAD && config->tied) {
        eep_log(EEP_LOG_WARN,
                "%s: tensor '%s' is not used, tie_word_embeddings takes the embedding",
                tensor->file, tensor->name);
        return EEP_OK;
    }
    if (layer >= config->layers) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor '%s' is of layer %u, but num_hidden_layers in config.json is "
                        "%u",
                        tensor->file, tensor->name, layer, config->layers);
    }
    if (expert >= config->experts || !eep_model_has_role(config, role, layer)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: tensor '%s' is there, but by config.json the model has no such tensor",
                        tensor->file, tensor->name);
    }
    return EEP_OK;
}

static enum eep_status check_unused(const struct eep_model_config *config,
                                    const struct eep_ckpt *ckpt)
{
    size_t unknown = 0;

    for (size_t i = 0; i < eep_ckpt_count(ckpt); i++) {
        EEP_TRY(check_known(config, eep_ckpt_at(ckpt, i), &unknown));
    }
    if (unknown > 1) {
        eep_log(EEP_LOG_WARN, "%s: %zu tensors are not used", eep_ckpt_dir(ckpt), unknown);
    }
    return EEP_OK;
}

enum eep_status eep_model_check_tensors(const struct eep_model_config *config,
                                        const struct eep_ckpt *ckpt)
{
    size_t used = 0;

    EEP_TRY(check_scales(ckpt));
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        for (int role = 0; role < EEP_ROLE_COUNT; role++) {
            bool counted = layer == 0 || eep_role_has_layer((enum eep_role)role);

            if (counted && !(role == EEP_ROLE_HEAD && config->tied)) {
                EEP_TRY(check_role(config, ckpt, (enum eep_role)role, layer, &used));
            }
        }
    }
    return used == eep_ckpt_count(ckpt) ? EEP_OK : check_unused(config, ckpt);
}
