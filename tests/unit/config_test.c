/* config.json to a model's shape, tensors by role: listed cases, both forms, every key changed. */
#include "base/clock.h"
#include "data.h"
#include "model/config.h"

static char dir[DATA_PATH_MAX];
static json_t *cases;

static void set_up(void)
{
    scratch_make(dir);
}

static void tear_down(void)
{
    scratch_remove(dir);
}

/* Open, read and check everything, as the preflight does. */
static enum eep_status preflight(const char *path)
{
    struct eep_ckpt *ckpt;
    struct eep_model_config config;

    EEP_TRY(eep_ckpt_open(path, &ckpt));
    enum eep_status status = eep_model_config_read(ckpt, &config);

    if (status == EEP_OK) {
        status = eep_model_check_tensors(&config, ckpt);
        eep_model_config_free(&config);
    }
    eep_ckpt_close(ckpt);
    return status;
}

static bool is_deepseek(const char *path)
{
    json_error_t error;
    char config_path[2 * DATA_PATH_MAX];

    snprintf(config_path, sizeof(config_path), "%s/config.json", path);
    json_t *config = json_load_file(config_path, 0, &error);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    bool is = type != NULL && strcmp(type, "deepseek_v3") == 0;

    json_decref(config);
    return is;
}

START_TEST(a_listed_model_has_its_outcome)
{
    const json_t *entry = json_array_get(cases, (size_t)_i);
    const char *path = data_path("cases/%s", text_of(entry, "path"));
    enum eep_status status = preflight(path);

    if (strcmp(text_of(entry, "want"), "reject") == 0) {
        assert_refused_as_listed(entry, status);
    } else if (is_deepseek(path)) {
        ck_assert_int_eq(status, EEP_ERR_UNSUPPORTED);
        assert_error_has("model_type 'deepseek_v3' is not supported yet");
        assert_error_has("qwen3_moe, qwen2_moe, mixtral");
    } else {
        ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
    }
}
END_TEST

static void read_config(const char *path, struct eep_model_config *config_out)
{
    struct eep_ckpt *ckpt;
    enum eep_status status = eep_ckpt_open(path, &ckpt);

    ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
    status = eep_model_config_read(ckpt, config_out);
    ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
    status = eep_model_check_tensors(config_out, ckpt);
    ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
    eep_ckpt_close(ckpt);
}

static void assert_same_config(const struct eep_model_config *has,
                               const struct eep_model_config *want)
{
    ck_assert_ptr_eq(has->arch, want->arch);
#define SAME(field) ck_assert_msg(has->field == want->field, "%s differs", #field)
    SAME(hidden);
    SAME(layers);
    SAME(vocab);
    SAME(heads);
    SAME(kv_heads);
    SAME(head_dim);
    SAME(max_positions);
    SAME(window);
    SAME(rms_eps);
    SAME(rope_theta);
    SAME(qkv_bias);
    SAME(o_bias);
    SAME(qk_norm);
    SAME(tied);
    SAME(router);
    SAME(experts);
    SAME(top_k);
    SAME(norm_topk);
    SAME(expert_width);
    SAME(dense_width);
    SAME(shared_width);
    SAME(shared_gated);
    SAME(moe_layers);
    SAME(eos_count);
#undef SAME
    ck_assert_mem_eq(has->layer_is_moe, want->layer_is_moe, want->layers);
    ck_assert_mem_eq(has->eos, want->eos, want->eos_count * sizeof(want->eos[0]));
}

static bool moe4[] = {true, true, true, true};

/* What the README of the models says of them; arch is filled in from what was read. */
static const struct {
    const char *model;
    const char *arch;
    struct eep_model_config config;
} tiny[] = {
    {"tiny-qwen3-moe",
     "qwen3_moe",
     {.hidden = 128,
      .layers = 4,
      .vocab = 2048,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 32,
      .max_positions = 2048,
      .rms_eps = 1e-6f,
      .rope_theta = 1e6,
      .qk_norm = true,
      .experts = 16,
      .top_k = 4,
      .norm_topk = true,
      .expert_width = 64,
      .moe_layers = 4,
      .layer_is_moe = moe4,
      .eos = {2045},
      .eos_count = 1}},
    {"tiny-qwen2-moe",
     "qwen2_moe",
     {.hidden = 72,
      .layers = 3,
      .vocab = 2048,
      .heads = 6,
      .kv_heads = 6,
      .head_dim = 12,
      .max_positions = 2048,
      .rms_eps = 1e-6f,
      .rope_theta = 1e6,
      .qkv_bias = true,
      .experts = 12,
      .top_k = 3,
      .expert_width = 40,
      .shared_width = 88,
      .shared_gated = true,
      .moe_layers = 3,
      .layer_is_moe = moe4,
      .eos = {2045},
      .eos_count = 1}},
    {"tiny-mixtral",
     "mixtral",
     {.hidden = 64,
      .layers = 2,
      .vocab = 2048,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 16,
      .max_positions = 2048,
      .rms_eps = 1e-5f,
      .rope_theta = 1e6,
      .experts = 8,
      .top_k = 2,
      .norm_topk = true,
      .expert_width = 96,
      .moe_layers = 2,
      .layer_is_moe = moe4,
      .eos = {2045},
      .eos_count = 1}},
};

START_TEST(both_forms_give_the_shape)
{
    struct eep_model_config config, hub;
    struct eep_model_config want = tiny[_i].config;
    json_t *json = load_json(data_path("%s/config.hub.json", tiny[_i].model));

    read_config(data_path("%s", tiny[_i].model), &config);
    scratch_write_json(dir, "config.json", json);
    json_decref(json);
    scratch_link_all(dir, data_path("%s", tiny[_i].model));
    read_config(dir, &hub);
    ck_assert_str_eq(eep_model_arch_name(&config), tiny[_i].arch);
    want.arch = config.arch;
    assert_same_config(&config, &want);
    assert_same_config(&hub, &want);
    eep_model_config_free(&config);
    eep_model_config_free(&hub);
}
END_TEST

/* One key of a model's config.json changed: what comes of it. */
struct change {
    const char *model;
    const char *key;
    const char *value; /* as JSON; NULL removes the key */
    enum eep_status want;
    const char *says; /* NULL where it is accepted */
};

#define Q3 "cases/model/ok-qwen3"
#define MX "cases/model/ok-mixtral"
#define Q2 "tiny-qwen2-moe"
#define BAD EEP_ERR_FORMAT
#define NOT_YET EEP_ERR_UNSUPPORTED

static const struct change changes[] = {
    /* counts and widths have no default and sane values */
    {Q3, "hidden_size", NULL, BAD, "hidden_size"},
    {Q3, "hidden_size", "\"16\"", BAD, "hidden_size"},
    {Q3, "hidden_size", "16.0", BAD, "hidden_size"},
    {Q3, "hidden_size", "0", BAD, "hidden_size"},
    {Q3, "hidden_size", "-16", BAD, "hidden_size is -16"},
    {Q3, "hidden_size", "9223372036854775807", BAD, "hidden_size"},
    {Q3, "hidden_size", "32", BAD, "[32, 16]"},
    {Q3, "num_hidden_layers", NULL, BAD, "num_hidden_layers"},
    {Q3, "num_hidden_layers", "4000000000", BAD, "num_hidden_layers"},
    {Q3, "num_hidden_layers", "1", BAD, "layer 1, but num_hidden_layers in config.json is 1"},
    {Q3, "num_hidden_layers", "10000", BAD, "layers.2."},
    {Q3, "vocab_size", NULL, BAD, "vocab_size"},
    {Q3, "vocab_size", "33", BAD, "model.embed_tokens.weight"},
    {Q3, "max_position_embeddings", NULL, BAD, "max_position_embeddings"},
    {Q3, "moe_intermediate_size", NULL, BAD, "moe_intermediate_size"},
    {Q3, "moe_intermediate_size", "9", BAD, "gate_proj"},
    {Q3, "intermediate_size", NULL, EEP_OK, NULL}, /* no dense layer needs it */
    {MX, "intermediate_size", NULL, BAD, "intermediate_size"},
    {Q2, "shared_expert_intermediate_size", NULL, BAD, "shared_expert_intermediate_size"},
    {Q2, "shared_expert_intermediate_size", "null", BAD, "shared_expert_intermediate_size"},
    {Q2, "shared_expert_intermediate_size", "0", BAD, "shared_expert"}, /* but tensors are there */
    {Q2, "shared_expert_intermediate_size", "87", BAD, "[87, 72]"},
    /* heads */
    {Q3, "num_attention_heads", NULL, BAD, "num_attention_heads"},
    {Q3, "num_key_value_heads", NULL, BAD, "num_key_value_heads"},
    {Q3, "num_key_value_heads", "null", BAD, "k_proj"}, /* as many as heads: not this file */
    {Q3, "num_key_value_heads", "3", BAD, "num_key_value_heads 3"},
    {Q3, "num_key_value_heads", "0", BAD, "num_key_value_heads"},
    {Q3, "head_dim", NULL, EEP_OK, NULL}, /* 16 / 2 */
    {Q3, "head_dim", "null", EEP_OK, NULL},
    {MX, "head_dim", "null", EEP_OK, NULL},
    {Q3, "head_dim", "7", BAD, "head_dim is 7"},
    {Q3, "head_dim", "16", BAD, "q_proj"},
    {Q2, "num_attention_heads", "5", BAD, "num_key_value_heads 6"},
    /* experts */
    {Q3, "num_experts", NULL, BAD, "num_experts"},
    {Q3, "num_experts", "0", BAD, "num_experts"},
    {Q3, "num_experts", "3", BAD, "model.layers.0.mlp.gate.weight"},
    {Q3, "num_experts", "5", BAD, "[5, 16]"},
    {Q3, "num_local_experts", "4", EEP_OK, NULL},
    {Q3, "num_local_experts", "5", BAD, "num_local_experts is 5, but num_experts is 4"},
    {MX, "num_local_experts", NULL, BAD, "num_local_experts"},
    {Q3, "num_experts_per_tok", NULL, BAD, "num_experts_per_tok"},
    {Q3, "num_experts_per_tok", "0", BAD, "num_experts_per_tok"},
    {Q3, "num_experts_per_tok", "4", EEP_OK, NULL},
    {MX, "num_experts_per_tok", "5", BAD, "num_experts_per_tok is 5, but num_local_experts is 4"},
    {Q3, "norm_topk_prob", "1", BAD, "norm_topk_prob"},
    /* kinds of layers */
    {Q3, "decoder_sparse_step", "0", BAD, "decoder_sparse_step"},
    {Q3, "decoder_sparse_step", "2", BAD, "model.layers.0.mlp.gate_proj.weight"},
    {Q3, "decoder_sparse_step", "3", NOT_YET, "no MoE layer"},
    {Q3, "mlp_only_layers", "[0]", BAD, "model.layers.0.mlp.gate_proj.weight"},
    {Q3, "mlp_only_layers", "[0, 1]", NOT_YET, "no MoE layer"},
    {Q3, "mlp_only_layers", "[2]", BAD, "mlp_only_layers"},
    {Q3, "mlp_only_layers", "[-1]", BAD, "mlp_only_layers"},
    {Q3, "mlp_only_layers", "1", BAD, "mlp_only_layers"},
    {Q3, "mlp_only_layers", "null", EEP_OK, NULL},
    {"cases/model/mlp-only-layers", "intermediate_size", NULL, BAD, "intermediate_size"},
    {"cases/model/mlp-only-layers", "mlp_only_layers", "[]", BAD, "model.layers.0.mlp.gate.weight"},
    {"cases/model/mlp-only-layers", "mlp_only_layers", "[1]", BAD,
     "model.layers.0.mlp.gate.weight"},
    /* biases, tied head */
    {Q3, "attention_bias", "true", BAD, "q_proj.bias"},
    {Q3, "attention_bias", NULL, EEP_OK, NULL},
    {Q3, "attention_bias", "\"yes\"", BAD, "attention_bias"},
    {Q2, "qkv_bias", NULL, EEP_OK, NULL}, /* this family has it by default */
    {Q2, "qkv_bias", "false", BAD, "_proj.bias"},
    {Q3, "tie_word_embeddings", "true", EEP_OK, NULL}, /* lm_head is there, and not used */
    {"cases/model/tied-no-head", "tie_word_embeddings", "false", BAD, "lm_head.weight"},
    {"cases/model/tied-no-head", "tie_word_embeddings", NULL, BAD, "tie_word_embeddings"},
    /* what is computed otherwise */
    {Q3, "hidden_act", "\"gelu\"", NOT_YET, "hidden_act 'gelu'"},
    {Q3, "hidden_act", "1", BAD, "hidden_act"},
    {Q3, "hidden_act", NULL, EEP_OK, NULL},
    {Q3, "rope_scaling", "null", EEP_OK, NULL},
    {Q3, "rope_scaling", "{\"rope_type\": \"default\"}", EEP_OK, NULL},
    {Q3, "rope_scaling", "{\"type\": \"yarn\", \"factor\": 4.0}", NOT_YET, "yarn"},
    {Q3, "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 4.0}", NOT_YET, "linear"},
    {Q3, "rope_scaling", "{\"factor\": 4.0}", BAD, "rope_scaling"},
    {Q3, "rope_scaling", "\"yarn\"", BAD, "rope_scaling"},
    {Q3, "rope_parameters", "{\"rope_type\": \"llama3\"}", NOT_YET, "llama3"},
    {Q3, "rope_parameters", "{\"rope_theta\": 10000.0}", BAD, "rope_parameters.rope_theta"},
    {Q3, "rope_parameters", "{\"rope_theta\": 1e6, \"rope_type\": \"default\"}", EEP_OK, NULL},
    {Q3, "rope_parameters", "{\"full_attention\": {\"rope_theta\": 1.0}}", NOT_YET,
     "full_attention"},
    {Q3, "partial_rotary_factor", "0.5", NOT_YET, "partial_rotary_factor"},
    {Q3, "partial_rotary_factor", "1.0", EEP_OK, NULL},
    {Q3, "rope_theta", "0", BAD, "rope_theta"},
    {Q3, "rope_theta", "\"x\"", BAD, "rope_theta"},
    {Q3, "rms_norm_eps", "-1e-6", BAD, "rms_norm_eps"},
    {Q3, "rms_norm_eps", NULL, EEP_OK, NULL},
    {Q3, "model_type", NULL, BAD, "model_type"},
    {Q3, "model_type", "7", BAD, "model_type"},
    {Q3, "model_type", "\"gpt_oss\"", NOT_YET, "model_type 'gpt_oss' is not supported yet"},
    {Q3, "model_type", "\"olmoe\"", NOT_YET, "'olmoe' is not supported yet"},
    {Q3, "model_type", "\"Qwen3_moe\"", NOT_YET, "'Qwen3_moe' is not known"},
    {Q3, "model_type", "\"mixtral\"", BAD, "num_local_experts"},
    {Q3, "quantization_config", "{\"quant_method\": \"awq\"}", NOT_YET, "awq"},
    {Q3, "quantization_config", "null", EEP_OK, NULL},
    {Q3, "torch_dtype", "\"float64\"", EEP_OK, NULL}, /* the tensors decide */
    /* eos */
    {Q3, "eos_token_id", "\"</s>\"", BAD, "eos_token_id"},
    {Q3, "eos_token_id", "[1, null]", BAD, "eos_token_id"},
    {Q3, "eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8]", EEP_OK, NULL},
    {Q3, "eos_token_id", "[1, 2, 3, 4, 5, 6, 7, 8, 9]", NOT_YET, "eos_token_id"},
    {Q3, "eos_token_id", "151643", EEP_OK, NULL}, /* of a larger vocabulary; ignored */
    {Q3, "eos_token_id", "null", EEP_OK, NULL},
};

/* A directory with the files of `model`, and its config.json with a key changed. */
static void make_changed(const char *model, const char *key, const char *value)
{
    json_t *json = load_json(data_path("%s/config.json", model));

    if (value == NULL) {
        json_object_del(json, key);
    } else {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);

        ck_assert_ptr_nonnull(parsed);
        json_object_set_new(json, key, parsed);
    }
    if (strcmp(key, "model_type") == 0 && value != NULL && strcmp(value, "\"mixtral\"") == 0) {
        json_object_del(json, "num_experts");
    }
    scratch_write_json(dir, "config.json", json);
    json_decref(json);
    scratch_link_all(dir, data_path("%s", model));
}

START_TEST(a_changed_key_has_its_outcome)
{
    const struct change *change = &changes[_i];

    make_changed(change->model, change->key, change->value);
    enum eep_status status = preflight(dir);

    ck_assert_msg(status == change->want, "%s %s: status %d: %s", change->key,
                  change->value != NULL ? change->value : "absent", status,
                  status != EEP_OK ? eep_error_text() : "accepted");
    if (status != EEP_OK) {
        assert_error_has(change->says);
        assert_error_has(dir);
    }
}
END_TEST

START_TEST(windows)
{
    static const struct {
        const char *model;
        const char *json; /* keys to set */
        enum eep_status want;
        uint32_t window;
    } rows[] = {
        {MX, "{\"sliding_window\": 32}", EEP_OK, 32},
        {MX, "{\"sliding_window\": 0}", EEP_OK, 0},
        {MX, "{\"sliding_window\": 4096}", EEP_OK, 0}, /* above max_position_embeddings */
        {MX, "{\"sliding_window\": -1}", EEP_ERR_FORMAT, 0},
        {Q3, "{\"sliding_window\": 32}", EEP_OK, 0}, /* use_sliding_window is absent */
        {Q3, "{\"sliding_window\": 32, \"use_sliding_window\": false}", EEP_OK, 0},
        {Q3, "{\"sliding_window\": 32, \"use_sliding_window\": true}", EEP_OK, 32},
        {Q3, "{\"sliding_window\": null, \"use_sliding_window\": true}", EEP_OK, 0},
        {Q3, "{\"sliding_window\": 32, \"use_sliding_window\": true, \"max_window_layers\": 1}",
         EEP_ERR_UNSUPPORTED, 0},
        {Q3,
         "{\"sliding_window\": 32, \"use_sliding_window\": true, \"max_window_layers\": 1, "
         "\"layer_types\": [\"full_attention\", \"full_attention\"]}",
         EEP_OK, 0},
        {Q3,
         "{\"sliding_window\": 32, \"use_sliding_window\": true, "
         "\"layer_types\": [\"sliding_attention\", \"sliding_attention\"]}",
         EEP_OK, 32},
        {Q3,
         "{\"sliding_window\": 32, \"use_sliding_window\": true, "
         "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         EEP_ERR_UNSUPPORTED, 0},
        {Q3,
         "{\"sliding_window\": 32, \"use_sliding_window\": true, \"layer_types\": [\"x\", \"x\"]}",
         EEP_ERR_UNSUPPORTED, 0},
        {Q3,
         "{\"sliding_window\": 32, \"use_sliding_window\": true, "
         "\"layer_types\": [\"full_attention\"]}",
         EEP_ERR_FORMAT, 0},
    };
    json_t *json = load_json(data_path("%s/config.json", rows[_i].model));
    json_t *keys = json_loads(rows[_i].json, 0, NULL);
    struct eep_ckpt *ckpt;
    struct eep_model_config config;

    json_object_update(json, keys);
    scratch_write_json(dir, "config.json", json);
    json_decref(keys);
    json_decref(json);
    scratch_link_all(dir, data_path("%s", rows[_i].model));
    ck_assert_int_eq(eep_ckpt_open(dir, &ckpt), EEP_OK);
    enum eep_status status = eep_model_config_read(ckpt, &config);

    ck_assert_msg(status == rows[_i].want, "%s: %d", rows[_i].json, status);
    if (status == EEP_OK) {
        ck_assert_uint_eq(config.window, rows[_i].window);
        eep_model_config_free(&config);
    }
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(eos_is_the_union_of_both_files)
{
    static const char generation[] = "{\"eos_token_id\": [2, 5, 7]}";
    struct eep_model_config config;

    scratch_write(dir, "generation_config.json", generation, strlen(generation));
    make_changed(Q3, "eos_token_id", "[2, 3, 99]");
    read_config(dir, &config);
    ck_assert_uint_eq(config.eos_count, 4);
    ck_assert_uint_eq(config.eos[0], 2);
    ck_assert_uint_eq(config.eos[1], 3);
    ck_assert_uint_eq(config.eos[2], 5);
    ck_assert_uint_eq(config.eos[3], 7);
    eep_model_config_free(&config);
}
END_TEST

START_TEST(a_bad_eos_of_generation_config_names_that_file)
{
    static const char generation[] = "{\"eos_token_id\": true}";

    scratch_write(dir, "generation_config.json", generation, strlen(generation));
    scratch_link_all(dir, data_path(Q3));
    ck_assert_int_eq(preflight(dir), EEP_ERR_FORMAT);
    assert_error_has("generation_config.json");
}
END_TEST

START_TEST(tensors_have_their_roles)
{
    struct eep_ckpt *ckpt;
    struct eep_model_config config;
    const struct eep_tensor *tensor;

    ck_assert_int_eq(eep_ckpt_open(data_path("tiny-mixtral"), &ckpt), EEP_OK);
    ck_assert_int_eq(eep_model_config_read(ckpt, &config), EEP_OK);
    static const struct {
        enum eep_role role;
        const char *name;
    } rows[] = {
        {EEP_ROLE_EXPERT_GATE, "model.layers.1.block_sparse_moe.experts.7.w1.weight"},
        {EEP_ROLE_EXPERT_UP, "model.layers.1.block_sparse_moe.experts.7.w3.weight"},
        {EEP_ROLE_EXPERT_DOWN, "model.layers.1.block_sparse_moe.experts.7.w2.weight"},
        {EEP_ROLE_ROUTER, "model.layers.1.block_sparse_moe.gate.weight"},
        {EEP_ROLE_O, "model.layers.1.self_attn.o_proj.weight"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool per_expert = i < 3;

        ck_assert_int_eq(
            eep_model_tensor(&config, ckpt, rows[i].role, 1, per_expert ? 7 : 0, &tensor), EEP_OK);
        ck_assert_str_eq(tensor->name, rows[i].name);
    }
    ck_assert(!eep_model_has_role(&config, EEP_ROLE_Q_NORM, 0));
    ck_assert(!eep_model_has_role(&config, EEP_ROLE_DENSE_UP, 0));
    ck_assert(!eep_model_has_role(&config, EEP_ROLE_SHARED_UP, 0));
    ck_assert(eep_model_has_role(&config, EEP_ROLE_EXPERT_UP, 1));
    eep_model_config_free(&config);
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(a_tied_head_is_the_embedding)
{
    struct eep_ckpt *ckpt;
    struct eep_model_config config;
    const struct eep_tensor *tensor;

    ck_assert_int_eq(eep_ckpt_open(data_path("cases/model/tied-no-head"), &ckpt), EEP_OK);
    ck_assert_int_eq(eep_model_config_read(ckpt, &config), EEP_OK);
    ck_assert_int_eq(eep_model_tensor(&config, ckpt, EEP_ROLE_HEAD, 0, 0, &tensor), EEP_OK);
    ck_assert_str_eq(tensor->name, "model.embed_tokens.weight");
    eep_model_config_free(&config);
    eep_ckpt_close(ckpt);
}
END_TEST

START_TEST(dense_layers_are_told_apart)
{
    struct eep_model_config config;

    read_config(data_path("cases/model/mlp-only-layers"), &config);
    ck_assert(!config.layer_is_moe[0]);
    ck_assert(config.layer_is_moe[1]);
    ck_assert_uint_eq(config.moe_layers, 1);
    ck_assert_uint_eq(config.dense_width, 24);
    ck_assert(eep_model_has_role(&config, EEP_ROLE_DENSE_UP, 0));
    ck_assert(!eep_model_has_role(&config, EEP_ROLE_ROUTER, 0));
    ck_assert(!eep_model_has_role(&config, EEP_ROLE_DENSE_UP, 1));
    eep_model_config_free(&config);
}
END_TEST

/* ---- models made here: one layer, hidden 2, experts of width 1, all zero ---- */

#define MADE_TENSORS_MAX 4000

struct made {
    struct eep_tensor_out tensors[MADE_TENSORS_MAX];
    char names[MADE_TENSORS_MAX][96];
    size_t count;
};

static struct made made;
static const float zeros[4096];

static void add(const char *name, enum eep_dtype dtype, uint32_t dims, uint64_t rows,
                uint64_t columns)
{
    ck_assert_uint_lt(made.count, MADE_TENSORS_MAX);
    snprintf(made.names[made.count], sizeof(made.names[0]), "%s", name);
    made.tensors[made.count] =
        (struct eep_tensor_out){made.names[made.count], dtype, dims, {rows, columns}, zeros};
    made.count++;
}

static void add_experts(uint32_t experts, enum eep_dtype dtype)
{
    for (uint32_t expert = 0; expert < experts; expert++) {
        static const char *const parts[] = {"gate", "up", "down"};

        for (int part = 0; part < 3; part++) {
            char name[64];

            snprintf(name, sizeof(name), "model.layers.0.mlp.experts.%u.%s_proj.weight", expert,
                     parts[part]);
            add(name, dtype, 2, part < 2 ? 1 : 2, part < 2 ? 2 : 1);
        }
    }
}

static void make_model(uint32_t experts, enum eep_dtype dtype)
{
    static const char *const attention[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    char name[64];

    made.count = 0;
    add("model.embed_tokens.weight", EEP_F32, 2, 3, 2);
    add("lm_head.weight", EEP_F32, 2, 3, 2);
    add("model.norm.weight", EEP_F32, 1, 2, 0);
    add("model.layers.0.input_layernorm.weight", EEP_F32, 1, 2, 0);
    add("model.layers.0.post_attention_layernorm.weight", EEP_F32, 1, 2, 0);
    add("model.layers.0.self_attn.q_norm.weight", EEP_F32, 1, 2, 0);
    add("model.layers.0.self_attn.k_norm.weight", EEP_F32, 1, 2, 0);
    add("model.layers.0.mlp.gate.weight", EEP_F32, 2, experts, 2);
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "model.layers.0.self_attn.%s.weight", attention[i]);
        add(name, EEP_F32, 2, 2, 2);
    }
    add_experts(experts, dtype);
    json_t *json = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}",
                             "model_type", "qwen3_moe", "hidden_size", 2, "num_hidden_layers", 1,
                             "vocab_size", 3, "max_position_embeddings", 8, "num_attention_heads",
                             1, "num_key_value_heads", 1, "head_dim", 2, "num_experts",
                             (int)experts, "num_experts_per_tok", 1, "moe_intermediate_size", 1);

    ck_assert_ptr_nonnull(json);
    scratch_write_json(dir, "config.json", json);
    json_decref(json);
}

static enum eep_status preflight_made(void)
{
    char path[2 * DATA_PATH_MAX];

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    ck_assert_int_eq(eep_safetensors_write(path, made.tensors, made.count), EEP_OK);
    return preflight(dir);
}

START_TEST(a_thousand_experts_are_checked_quickly)
{
    make_model(1024, EEP_BF16);
    uint64_t start_ns = eep_clock_ns();

    ck_assert_int_eq(preflight_made(), EEP_OK);
    ck_assert_uint_lt(eep_clock_ns() - start_ns, 5 * EEP_NS_PER_S); /* about 10 ms */
}
END_TEST

START_TEST(expert_names_do_not_stop_at_ten)
{
    make_model(12, EEP_BF16);
    snprintf(made.names[made.count - 1], sizeof(made.names[0]), "%s", "x");
    ck_assert_int_eq(preflight_made(), EEP_ERR_FORMAT);
    assert_error_has("model.layers.0.mlp.experts.11.down_proj.weight");
}
END_TEST

START_TEST(dtypes_that_cannot_be_computed_with_are_named)
{
    static const enum eep_dtype dtypes[] = {EEP_F64, EEP_I8, EEP_U8, EEP_I32, EEP_BOOL};

    make_model(2, dtypes[_i]);
    ck_assert_int_eq(preflight_made(), EEP_ERR_UNSUPPORTED);
    assert_error_has("model.layers.0.mlp.experts.0.gate_proj.weight");
    assert_error_has(eep_dtype_name(dtypes[_i]));
}
END_TEST

START_TEST(whole_fp8_is_not_supported_yet)
{
    make_model(2, EEP_F8_E4M3);
    size_t weights = made.count;

    for (size_t i = weights - 6; i < weights; i++) { /* those of the two experts */
        char name[96];

        snprintf(name, sizeof(name), "%s_scale_inv", made.names[i]);
        add(name, EEP_F32, 2, 1, 1);
    }
    ck_assert_int_eq(preflight_made(), EEP_ERR_UNSUPPORTED);
    assert_error_has("F8_E4M3");
}
END_TEST

START_TEST(f16_and_mixed_dtypes_are_used)
{
    make_model(2, EEP_F16);
    made.tensors[made.count - 1].dtype = EEP_F32;
    ck_assert_int_eq(preflight_made(), EEP_OK);
}
END_TEST

START_TEST(tensors_that_the_config_denies_are_refused)
{
    static const char *const names[] = {
        "model.layers.0.self_attn.q_proj.bias",  "model.layers.0.mlp.shared_expert.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight",     "model.layers.0.mlp.experts.2.up_proj.weight",
        "model.layers.1.input_layernorm.weight",
    };

    make_model(2, EEP_BF16);
    add(names[_i], EEP_BF16, 2, 1, 2);
    ck_assert_int_eq(preflight_made(), EEP_ERR_FORMAT);
    assert_error_has(names[_i]);
}
END_TEST

START_TEST(tensors_of_no_role_are_left_alone)
{
    make_model(2, EEP_BF16);
    add("model.layers.0.self_attn.rotary_emb.inv_freq", EEP_F32, 1, 1, 0);
    add("visual.patch_embed.weight", EEP_F32, 1, 1, 0);
    ck_assert_int_eq(preflight_made(), EEP_OK);
}
END_TEST

static enum eep_status attempt(void *context)
{
    return preflight(context);
}

START_TEST(every_allocation_may_fail)
{
    char path[DATA_PATH_MAX];

    strcpy(path, data_path(Q3));
    ck_assert_uint_ge(fail_each_allocation(attempt, path), 20);
}
END_TEST

#define ADD_LOOP(test, count) tcase_add_loop_test(tests, test, 0, (int)(count))

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *tests = tcase_create("config");

    cases = listed_cases("model/");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    ADD_LOOP(a_listed_model_has_its_outcome, json_array_size(cases));
    ADD_LOOP(both_forms_give_the_shape, 3);
    ADD_LOOP(a_changed_key_has_its_outcome, sizeof(changes) / sizeof(changes[0]));
    ADD_LOOP(windows, 14);
    tcase_add_test(tests, eos_is_the_union_of_both_files);
    tcase_add_test(tests, a_bad_eos_of_generation_config_names_that_file);
    tcase_add_test(tests, tensors_have_their_roles);
    tcase_add_test(tests, a_tied_head_is_the_embedding);
    tcase_add_test(tests, dense_layers_are_told_apart);
    tcase_add_test(tests, a_thousand_experts_are_checked_quickly);
    tcase_add_test(tests, expert_names_do_not_stop_at_ten);
    ADD_LOOP(dtypes_that_cannot_be_computed_with_are_named, 5);
    tcase_add_test(tests, whole_fp8_is_not_supported_yet);
    tcase_add_test(tests, f16_and_mixed_dtypes_are_used);
    ADD_LOOP(tensors_that_the_config_denies_are_refused, 5);
    tcase_add_test(tests, tensors_of_no_role_are_left_alone);
    tcase_add_test(tests, every_allocation_may_fail);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    json_decref(cases);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
