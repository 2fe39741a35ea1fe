/*
 * From config.json to struct eep_model_config. Every value comes from the file, is the documented
 * default of a key that may be absent, or is refused with the key's name; then the values are
 * checked against each other.
 */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/arch_int.h"

/* Limits, far above any model, that keep sizes computed from these in 64 bits. */
#define LAYERS_MAX 10000
#define EXPERTS_MAX 65536
#define HEADS_MAX 65536
#define WIDTH_MAX (UINT32_C(1) << 24)
#define VOCAB_MAX (UINT32_C(1) << 28)
#define POSITIONS_MAX (UINT32_C(1) << 30)

struct reader {
    const char *dir;
    const json_t *json;
};

#define FAIL_KEY(reader, status, fmt, ...)                                                         \
    EEP_FAIL((status), "%s/config.json: " fmt, (reader)->dir, __VA_ARGS__)

/* The value of a key; NULL if it is absent or null. */
static const json_t *get(const struct reader *reader, const char *key)
{
    const json_t *value = json_object_get(reader->json, key);

    return json_is_null(value) ? NULL : value;
}

static enum eep_status fail_absent(const struct reader *reader, const char *key)
{
    return FAIL_KEY(reader, EEP_ERR_FORMAT, "has no %s, and there is no default for it", key);
}

static enum eep_status to_count(const struct reader *reader, const char *key, const json_t *value,
                                uint32_t min, uint32_t max, uint32_t *count_out)
{
    if (!json_is_integer(value)) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is not an integer", key);
    }
    json_int_t number = json_integer_value(value);

    if (number < (json_int_t)min || number > (json_int_t)max) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is %lld; it must be from %u to %u", key,
                        (long long)number, min, max);
    }
    *count_out = (uint32_t)number;
    return EEP_OK;
}

static enum eep_status read_count(const struct reader *reader, const char *key, uint32_t max,
                                  uint32_t *count_out)
{
    const json_t *value = get(reader, key);

    return value == NULL ? fail_absent(reader, key)
                         : to_count(reader, key, value, 1, max, count_out);
}

static enum eep_status read_bool(const struct reader *reader, const char *key, bool absent,
                                 bool *value_out)
{
    const json_t *value = get(reader, key);

    if (value != NULL && !json_is_boolean(value)) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is neither true nor false", key);
    }
    *value_out = value != NULL ? json_is_true(value) : absent;
    return EEP_OK;
}

static enum eep_status to_positive(const struct reader *reader, const char *key,
                                   const json_t *value, double *number_out)
{
    double number = json_number_value(value);

    if (!json_is_number(value) || !isfinite(number) || number <= 0.0) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is not a number above 0", key);
    }
    *number_out = number;
    return EEP_OK;
}

/* A key that must have one value, the only one that is supported, or be absent. */
static enum eep_status require_text(const struct reader *reader, const char *key,
                                    const char *supported)
{
    const json_t *value = get(reader, key);

    if (value == NULL) {
        return EEP_OK;
    }
    if (!json_is_string(value)) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is not a string", key);
    }
    if (strcmp(json_string_value(value), supported) != 0) {
        return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED, "%s '%.80s' is not supported; supported: %s",
                        key, json_string_value(value), supported);
    }
    return EEP_OK;
}

/* Groups of experts must have two best ones each; for architectures that route by groups. */
static enum eep_status check_groups(const struct reader *reader)
{
    const json_t *groups = get(reader, "n_group");
    const json_t *experts = get(reader, "n_routed_experts");

    if (!json_is_integer(groups) || !json_is_integer(experts)) {
        return EEP_OK;
    }
    json_int_t g = json_integer_value(groups);
    json_int_t e = json_integer_value(experts);

    if (g < 1 || e % g != 0 || e / g < 2) {
        return FAIL_KEY(
            reader, EEP_ERR_FORMAT,
            "n_group %lld does not split n_routed_experts %lld into groups of 2 or more",
            (long long)g, (long long)e);
    }
    return EEP_OK;
}

static enum eep_status read_arch(const struct reader *reader, const struct eep_arch **arch_out)
{
    const json_t *value = get(reader, "model_type");
    char list[256] = "";
    const struct eep_arch *arch;

    if (value == NULL) {
        return fail_absent(reader, "model_type");
    }
    if (!json_is_string(value)) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is not a string", "model_type");
    }
    *arch_out = eep_arch_find(json_string_value(value));
    if (*arch_out != NULL) {
        return EEP_OK;
    }
    bool planned = eep_arch_is_planned(json_string_value(value));

    if (planned) {
        EEP_TRY(check_groups(reader));
    }
    for (size_t i = 0; (arch = eep_arch_at(i)) != NULL; i++) {
        size_t used = strlen(list);

        snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", arch->model_type);
    }
    return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED, "model_type '%.80s' is not %s; supported: %s",
                    json_string_value(value), planned ? "supported yet" : "known", list);
}

/* One key under several names; where a file has more than one they must agree. */
static enum eep_status read_experts(const struct reader *reader, struct eep_model_config *config)
{
    const char *const *keys = config->arch->experts_keys;
    const char *found = NULL;

    for (size_t i = 0; i < EEP_ARCH_KEY_NAMES && keys[i] != NULL; i++) {
        const json_t *value = get(reader, keys[i]);
        uint32_t count;

        if (value == NULL) {
            continue;
        }
        EEP_TRY(to_count(reader, keys[i], value, 1, EXPERTS_MAX, &count));
        if (found != NULL && count != config->experts) {
            return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is %u, but %s is %u", keys[i], count, found,
                            config->experts);
        }
        found = keys[i];
        config->experts = count;
    }
    if (found == NULL) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "has no %s (or %s), and there is no default for it",
                        keys[0], keys[1]);
    }
    EEP_TRY(read_count(reader, "num_experts_per_tok", EXPERTS_MAX, &config->top_k));
    if (config->top_k > config->experts) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "num_experts_per_tok is %u, but %s is %u",
                        config->top_k, found, config->experts);
    }
    config->router = config->arch->router;
    config->norm_topk = true;
    return config->arch->norm_topk_always
               ? EEP_OK
               : read_bool(reader, "norm_topk_prob", false, &config->norm_topk);
}

static enum eep_status read_sizes(const struct reader *reader, struct eep_model_config *config)
{
    EEP_TRY(read_count(reader, "hidden_size", WIDTH_MAX, &config->hidden));
    EEP_TRY(read_count(reader, "num_hidden_layers", LAYERS_MAX, &config->layers));
    EEP_TRY(read_count(reader, "vocab_size", VOCAB_MAX, &config->vocab));
    EEP_TRY(read_count(reader, "max_position_embeddings", POSITIONS_MAX, &config->max_positions));
    EEP_TRY(read_count(reader, config->arch->expert_width_key, WIDTH_MAX, &config->expert_width));
    EEP_TRY(require_text(reader, "hidden_act", "silu"));
    return read_bool(reader, "tie_word_embeddings", false, &config->tied);
}

static enum eep_status read_heads(const struct reader *reader, struct eep_model_config *config)
{
    const json_t *head_dim = get(reader, "head_dim");

    EEP_TRY(read_count(reader, "num_attention_heads", HEADS_MAX, &config->heads));
    config->kv_heads = config->heads; /* what a null means */
    if (!json_is_null(json_object_get(reader->json, "num_key_value_heads"))) {
        EEP_TRY(read_count(reader, "num_key_value_heads", HEADS_MAX, &config->kv_heads));
    }
    if (config->heads % config->kv_heads != 0) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT,
                        "num_attention_heads %u is not a multiple of num_key_value_heads %u",
                        config->heads, config->kv_heads);
    }
    if (head_dim != NULL) {
        EEP_TRY(to_count(reader, "head_dim", head_dim, 1, WIDTH_MAX, &config->head_dim));
    } else if (config->hidden % config->heads == 0) {
        config->head_dim = config->hidden / config->heads;
    } else {
        return FAIL_KEY(reader, EEP_ERR_FORMAT,
                        "has no head_dim, and hidden_size %u is not a multiple of "
                        "num_attention_heads %u",
                        config->hidden, config->heads);
    }
    if (config->head_dim % 2 != 0) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "head_dim is %u; rotary positions need it even",
                        config->head_dim);
    }
    if ((uint64_t)config->heads * config->head_dim > WIDTH_MAX) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT,
                        "num_attention_heads %u times head_dim %u is above %u", config->heads,
                        config->head_dim, WIDTH_MAX);
    }
    return EEP_OK;
}

static enum eep_status read_biases(const struct reader *reader, struct eep_model_config *config)
{
    const struct eep_arch *arch = config->arch;

    config->qk_norm = arch->qk_norm;
    if (arch->qkv_bias_key != NULL) {
        EEP_TRY(read_bool(reader, arch->qkv_bias_key, arch->qkv_bias_default, &config->qkv_bias));
    }
    config->o_bias = arch->o_bias_too && config->qkv_bias;
    return EEP_OK;
}

/* The kind of rotary embedding, under either of its keys, must be the plain one. */
static enum eep_status check_rope_kind(const struct reader *reader, const char *key,
                                       const json_t *rope)
{
    static const char *const kind_keys[] = {"rope_type", "type"};
    const char *inner;
    json_t *value;

    json_object_foreach((json_t *)rope, inner, value)
    {
        if (json_is_object(value)) {
            return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED,
                            "%s of each kind of layer ('%.80s') is not supported", key, inner);
        }
    }
    bool named = false;

    for (int i = 0; i < 2; i++) {
        const json_t *kind = json_object_get(rope, kind_keys[i]);

        if (kind == NULL || json_is_null(kind)) {
            continue;
        }
        named = true;
        if (!json_is_string(kind) || strcmp(json_string_value(kind), "default") != 0) {
            return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED,
                            "%s: %s '%.80s' is not supported; supported: default", key,
                            kind_keys[i], json_is_string(kind) ? json_string_value(kind) : "?");
        }
    }
    if (!named && json_object_get(rope, "factor") != NULL) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s has a factor and no rope_type", key);
    }
    return EEP_OK;
}

static enum eep_status read_rope_object(const struct reader *reader, const char *key,
                                        const json_t **rope_out)
{
    *rope_out = get(reader, key);
    if (*rope_out == NULL) {
        return EEP_OK;
    }
    if (!json_is_object(*rope_out)) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is not an object", key);
    }
    return check_rope_kind(reader, key, *rope_out);
}

/* The share of each head that is rotated must be all of it. */
static enum eep_status check_rotary_share(const struct reader *reader, const json_t *value)
{
    if (value != NULL && !json_is_null(value) && json_number_value(value) != 1.0) {
        return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED, "%s other than 1 is not supported",
                        "partial_rotary_factor");
    }
    return EEP_OK;
}

static enum eep_status read_rope(const struct reader *reader, struct eep_model_config *config)
{
    const json_t *scaling, *parameters;
    const json_t *top = get(reader, "rope_theta");

    EEP_TRY(read_rope_object(reader, "rope_scaling", &scaling));
    EEP_TRY(read_rope_object(reader, "rope_parameters", &parameters));
    EEP_TRY(check_rotary_share(reader, get(reader, "partial_rotary_factor")));
    EEP_TRY(check_rotary_share(reader, json_object_get(parameters, "partial_rotary_factor")));
    const json_t *inner = json_object_get(parameters, "rope_theta");

    config->rope_theta = config->arch->rope_theta_default;
    if (top != NULL) {
        EEP_TRY(to_positive(reader, "rope_theta", top, &config->rope_theta));
    }
    if (inner != NULL && !json_is_null(inner)) {
        EEP_TRY(to_positive(reader, "rope_parameters.rope_theta", inner, &config->rope_theta));
        if (top != NULL && json_number_value(top) != config->rope_theta) {
            return FAIL_KEY(reader, EEP_ERR_FORMAT,
                            "rope_theta is %g, but rope_parameters.rope_theta is %g",
                            json_number_value(top), config->rope_theta);
        }
    }
    return EEP_OK;
}

static enum eep_status read_norm_eps(const struct reader *reader, struct eep_model_config *config)
{
    const json_t *value = get(reader, "rms_norm_eps");
    double eps = config->arch->rms_eps_default;

    if (value != NULL) {
        EEP_TRY(to_positive(reader, "rms_norm_eps", value, &eps));
    }
    config->rms_eps = (float)eps;
    return EEP_OK;
}

/* How many layers does layer_types limit to a window? Those that are absent count as `absent`. */
static enum eep_status count_sliding(const struct reader *reader, uint32_t layers, uint32_t absent,
                                     uint32_t *sliding_out)
{
    const json_t *types = get(reader, "layer_types");

    if (types == NULL) {
        *sliding_out = absent;
        return EEP_OK;
    }
    if (!json_is_array(types) || json_array_size(types) != layers) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "layer_types is not a list of num_hidden_layers %u",
                        layers);
    }
    *sliding_out = 0;
    for (uint32_t layer = 0; layer < layers; layer++) {
        const json_t *type = json_array_get(types, layer);
        const char *text = json_is_string(type) ? json_string_value(type) : "?";

        if (strcmp(text, "sliding_attention") == 0) {
            ++*sliding_out;
        } else if (strcmp(text, "full_attention") != 0) {
            return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED, "layer_types: '%.80s' is not supported",
                            text);
        }
    }
    return EEP_OK;
}

static enum eep_status read_window(const struct reader *reader, struct eep_model_config *config)
{
    const json_t *value = get(reader, "sliding_window");
    uint32_t sliding = config->layers;
    bool used = true;
    uint32_t window = 0;

    if (config->arch->window == EEP_WINDOW_BY_FLAG) {
        const json_t *from = get(reader, "max_window_layers");

        EEP_TRY(read_bool(reader, "use_sliding_window", false, &used));
        if (used && from != NULL && json_integer_value(from) > 0) {
            sliding = 0; /* some or all layers are full: as layer_types says, or refused */
        }
    }
    if (value != NULL) {
        EEP_TRY(to_count(reader, "sliding_window", value, 0, INT32_MAX, &window));
    }
    if (!used || window == 0 || window >= config->max_positions) {
        return EEP_OK;
    }
    if (sliding == 0 && get(reader, "layer_types") == NULL) {
        return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED,
                        "sliding_window %u with %s above 0 is not supported", window,
                        "max_window_layers");
    }
    EEP_TRY(count_sliding(reader, config->layers, sliding, &sliding));
    if (sliding != 0 && sliding != config->layers) {
        return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED,
                        "layer_types: a window in %u of %u layers is not supported", sliding,
                        config->layers);
    }
    config->window = sliding != 0 ? window : 0;
    return EEP_OK;
}

static enum eep_status mark_dense(const struct reader *reader, struct eep_model_config *config)
{
    const json_t *list = get(reader, "mlp_only_layers");

    if (list != NULL && !json_is_array(list)) {
        return FAIL_KEY(reader, EEP_ERR_FORMAT, "%s is not a list", "mlp_only_layers");
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t layer;

        EEP_TRY(to_count(reader, "an entry of mlp_only_layers", json_array_get(list, i), 0,
                         config->layers - 1, &layer));
        config->layer_is_moe[layer] = false;
    }
    return EEP_OK;
}

static enum eep_status read_layers(const struct reader *reader, struct eep_model_config *config)
{
    const json_t *value = get(reader, "decoder_sparse_step");
    bool by_step = config->arch->sparse == EEP_SPARSE_STEP;
    uint32_t step = 1;

    if (by_step && value != NULL) {
        EEP_TRY(to_count(reader, "decoder_sparse_step", value, 1, INT32_MAX, &step));
    }
    EEP_TRY(eep_mem_alloc(config->layers, sizeof(bool), "kinds of layers", &config->layer_is_moe));
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        config->layer_is_moe[layer] = (layer + 1) % step == 0;
    }
    if (by_step) {
        EEP_TRY(mark_dense(reader, config));
    }
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        config->moe_layers += config->layer_is_moe[layer];
    }
    if (config->moe_layers == 0) {
        return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED, "%s and mlp_only_layers leave no MoE layer",
                        "decoder_sparse_step");
    }
    if (config->moe_layers < config->layers) {
        EEP_TRY(read_count(reader, config->arch->dense_width_key, WIDTH_MAX, &config->dense_width));
    }
    return EEP_OK;
}

static enum eep_status read_shared(const struct reader *reader, struct eep_model_config *config)
{
    const char *key = config->arch->shared_width_key;

    if (key == NULL) {
        return EEP_OK;
    }
    const json_t *value = get(reader, key);

    if (value == NULL) {
        return fail_absent(reader, key);
    }
    EEP_TRY(to_count(reader, key, value, 0, WIDTH_MAX, &config->shared_width));
    config->shared_gated = config->arch->shared_gated && config->shared_width > 0;
    return EEP_OK;
}

static enum eep_status check_quantization(const struct reader *reader)
{
    const json_t *quantization = get(reader, "quantization_config");
    const json_t *method = json_object_get(quantization, "quant_method");
    const char *text = json_is_string(method) ? json_string_value(method) : "?";

    /* fp8 is left to the look-up of tensors, which names the first that cannot be used */
    if (quantization != NULL && strcmp(text, "fp8") != 0) {
        return FAIL_KEY(reader, EEP_ERR_UNSUPPORTED,
                        "quantization_config: quant_method '%.80s' is not supported; "
                        "supported: none (BF16, F16 or F32 weights)",
                        text);
    }
    return EEP_OK;
}

static enum eep_status add_eos(const char *dir, const char *file, const json_t *value,
                               struct eep_model_config *config)
{
    if (!json_is_integer(value)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s/%s: eos_token_id is neither an id nor a list of ids",
                        dir, file);
    }
    json_int_t id = json_integer_value(value);

    if (id < 0 || id >= (json_int_t)config->vocab) { /* left over from a larger vocabulary */
        eep_log(EEP_LOG_INFO, "%s/%s: eos_token_id %lld is not below vocab_size %u, ignored", dir,
                file, (long long)id, config->vocab);
        return EEP_OK;
    }
    for (uint32_t i = 0; i < config->eos_count; i++) {
        if (config->eos[i] == (uint32_t)id) {
            return EEP_OK;
        }
    }
    if (config->eos_count == EEP_MODEL_MAX_EOS) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "%s/%s: more than %d different eos_token_id", dir,
                        file, EEP_MODEL_MAX_EOS);
    }
    config->eos[config->eos_count++] = (uint32_t)id;
    return EEP_OK;
}

static enum eep_status read_eos(const char *dir, const char *file, const json_t *json,
                                struct eep_model_config *config)
{
    const json_t *value = json_object_get(json, "eos_token_id");

    if (value == NULL || json_is_null(value)) {
        return EEP_OK;
    }
    if (!json_is_array(value)) {
        return add_eos(dir, file, value, config);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        EEP_TRY(add_eos(dir, file, json_array_get(value, i), config));
    }
    return EEP_OK;
}

static enum eep_status read_all(const struct reader *reader, const struct eep_ckpt *ckpt,
                                struct eep_model_config *config)
{
    EEP_TRY(read_arch(reader, &config->arch));
    EEP_TRY(read_sizes(reader, config));
    EEP_TRY(read_heads(reader, config));
    EEP_TRY(read_biases(reader, config));
    EEP_TRY(read_rope(reader, config));
    EEP_TRY(read_norm_eps(reader, config));
    EEP_TRY(read_window(reader, config));
    EEP_TRY(read_experts(reader, config));
    EEP_TRY(read_shared(reader, config));
    EEP_TRY(read_layers(reader, config));
    EEP_TRY(check_quantization(reader));
    EEP_TRY(read_eos(reader->dir, "config.json", reader->json, config));
    return read_eos(reader->dir, "generation_config.json", eep_ckpt_generation_config(ckpt),
                    config);
}

enum eep_status eep_model_config_read(const struct eep_ckpt *ckpt,
                                      struct eep_model_config *config_out)
{
    const struct reader reader = {eep_ckpt_dir(ckpt), eep_ckpt_config(ckpt)};
    struct eep_model_config config;

    memset(&config, 0, sizeof(config));
    enum eep_status status = read_all(&reader, ckpt, &config);

    if (status != EEP_OK) {
        eep_model_config_free(&config);
        return status;
    }
    *config_out = config;
    return EEP_OK;
}

void eep_model_config_free(struct eep_model_config *config)
{
    if (config != NULL) {
        eep_mem_free(config->layer_is_moe);
        config->layer_is_moe = NULL;
    }
}

const char *eep_model_arch_name(const struct eep_model_config *config)
{
    return config->arch->model_type;
}
