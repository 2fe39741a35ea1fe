/*
 * The forward pass on one rank against Hugging Face: every layer's activations, routing and MoE
 * block of the three checkpoints, and logits and MoE blocks of the small odd models.
 *
 * Tolerances are those that tests/data documents for a float32 runtime: 1e-4 + 1e-4 |golden| for
 * hidden states and logits, 2e-5 for router logits and weights, expert ids exactly.
 */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "model/forward.h"
#include "moe/block.h"
#include "testutil.h"

enum { MAX_ROWS = 64 };

/* A whole model on one rank. */
struct rig {
    const struct eep_kernels *kernels;
    struct eep_xport *xport;
    struct eep_ckpt *ckpt;
    struct eep_model_config config;
    struct eep_layout *layout;
    struct eep_route *route;
    struct eep_experts *experts;
    struct eep_model *model;
    struct eep_kv *kv;
    struct eep_forward *forward;
    struct eep_moe_block *block;
    uint32_t blocks[8], positions[MAX_ROWS];
    struct eep_attention_seq seq;
};

static void rig_open(struct rig *r, const char *dir)
{
    static const uint32_t executors[1] = {0};

    CK_OK(eep_kernels_find(NULL, &r->kernels));
    CK_OK(eep_loopback_open(&r->xport));
    CK_OK(eep_ckpt_open(dir, &r->ckpt));
    CK_OK(eep_model_config_read(r->ckpt, &r->config));
    CK_OK(eep_model_check_tensors(&r->config, r->ckpt));
    CK_OK(eep_model_load(&r->config, r->ckpt, r->kernels, &r->model));
    CK_OK(eep_layout_initial(r->config.moe_layers, r->config.experts, 1, 0, &r->layout));
    CK_OK(eep_route_create(r->layout, executors, &r->xport->topo, &r->route));
    const struct eep_experts_source source = {.config = &r->config,
                                              .ckpt = r->ckpt,
                                              .kernels = r->kernels,
                                              .layout = r->layout,
                                              .rank = 0,
                                              .executors = executors};
    CK_OK(eep_experts_load(&source, NULL, NULL, &r->experts));
    ck_assert_uint_eq(eep_experts_count(r->experts),
                      (uint64_t)r->config.moe_layers * r->config.experts);
    CK_OK(eep_kv_create(r->config.layers, r->config.kv_heads, r->config.head_dim, 8, &r->kv));
    ck_assert(eep_kv_take(r->kv, 8, r->blocks));
    CK_OK(eep_forward_create(r->model, r->kv, MAX_ROWS, 256, &r->forward));
    const struct eep_moe_block_params params = {.kernels = r->kernels,
                                                .xport = r->xport,
                                                .experts = r->experts,
                                                .route = r->route,
                                                .router = {.kind = r->config.router,
                                                           .experts = r->config.experts,
                                                           .top_k = r->config.top_k,
                                                           .norm_topk = r->config.norm_topk},
                                                .hidden = r->config.hidden,
                                                .expert_width = r->config.expert_width,
                                                .max_tokens = MAX_ROWS};
    CK_OK(eep_moe_block_create(&params, &r->block));
}

static void rig_close(struct rig *r)
{
    eep_moe_block_destroy(r->block);
    eep_forward_destroy(r->forward);
    eep_kv_destroy(r->kv);
    eep_experts_destroy(r->experts);
    eep_route_destroy(r->route);
    eep_layout_destroy(r->layout);
    eep_model_destroy(r->model);
    eep_model_config_free(&r->config);
    eep_ckpt_close(r->ckpt);
    r->xport->ops->close(r->xport, EEP_OK);
}

static void begin(struct rig *r, const uint32_t *ids, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++) {
        r->positions[i] = i;
    }
    r->seq = (struct eep_attention_seq){.rows = rows, .blocks = r->blocks};
    const struct eep_batch batch = {
        .rows = rows, .tokens = ids, .positions = r->positions, .seqs = &r->seq, .seq_count = 1};
    eep_forward_begin(r->forward, &batch);
}

struct shared_work {
    struct rig *rig;
    uint32_t layer;
};

static void run_shared(void *context)
{
    const struct shared_work *work = context;
    struct rig *r = work->rig;

    eep_forward_shared(r->forward, work->layer, eep_moe_block_input(r->block),
                       eep_moe_block_stride(r->block));
}

static void run_block(struct rig *r, uint32_t layer, uint32_t moe_layer, uint32_t rows,
                      struct eep_moe_choice *choice)
{
    struct shared_work work = {.rig = r, .layer = layer};

    CK_OK(eep_moe_block_run(r->block, moe_layer, &r->model->layers[layer].router, rows, run_shared,
                            &work, eep_forward_routed(r->forward), eep_forward_stride(r->forward),
                            choice));
}

static void run_layer(struct rig *r, uint32_t layer, uint32_t *moe_layer, uint32_t rows)
{
    struct eep_moe_choice choice;

    eep_forward_attention(r->forward, layer);
    if (!r->config.layer_is_moe[layer]) {
        eep_forward_dense(r->forward, layer);
        return;
    }
    eep_forward_mlp_input(r->forward, layer, eep_moe_block_input(r->block),
                          eep_moe_block_stride(r->block));
    run_block(r, layer, (*moe_layer)++, rows, &choice);
    eep_forward_add_routed(r->forward);
}

/* Rows of `got` (rows, n) against a golden tensor. */
static void check_rows(const char *what, const float *got, size_t stride, const float *golden,
                       uint32_t rows, uint32_t n, double absolute, double relative)
{
    double worst = 0.0;
    uint32_t at = 0;

    for (uint32_t i = 0; i < rows * n; i++) {
        const double want = golden[i], is = got[(i / n) * stride + i % n];
        const double excess = fabs(is - want) / (absolute + relative * fabs(want));

        if (!(excess <= worst)) {
            worst = excess;
            at = i;
        }
    }
    ck_assert_msg(worst <= 1.0, "%s: row %u column %u is %.9g, golden %.9g", what, at / n, at % n,
                  (double)got[(at / n) * stride + at % n], (double)golden[at]);
}

static const void *golden(const struct eep_safetensors *file, uint32_t layer, const char *part)
{
    char name[64];

    snprintf(name, sizeof(name), "layers.%u.%s", layer, part);
    const struct eep_tensor *tensor = eep_safetensors_find(file, name);
    ck_assert_msg(tensor != NULL, "no golden tensor %s", name);
    return tensor->data;
}

static void check_hidden(struct rig *r, const struct eep_safetensors *file, uint32_t layer,
                         const char *part, const float *got, size_t stride, uint32_t rows)
{
    char what[96];

    snprintf(what, sizeof(what), "layer %u %s", layer, part);
    check_rows(what, got, stride, golden(file, layer, part), rows, r->config.hidden, 1e-4, 1e-4);
}

static void check_choice(struct rig *r, const struct eep_safetensors *file, uint32_t layer,
                         const struct eep_moe_choice *choice, uint32_t rows)
{
    const size_t count = (size_t)rows * r->config.top_k;

    ck_assert_uint_eq(choice->failures, 0);
    ck_assert_mem_eq(choice->experts, golden(file, layer, "topk_ids"), count * sizeof(uint32_t));
    check_rows("topk_weights", choice->weights, r->config.top_k,
               golden(file, layer, "topk_weights"), rows, r->config.top_k, 2e-5, 0.0);
}

static void check_scores(struct rig *r, const struct eep_safetensors *file, uint32_t layer,
                         uint32_t rows)
{
    static float scores[MAX_ROWS * 64];
    const struct eep_gemm gemm = {.w = &r->model->layers[layer].router,
                                  .x = eep_moe_block_input(r->block),
                                  .x_stride = eep_moe_block_stride(r->block),
                                  .rows = rows,
                                  .y = scores,
                                  .y_stride = 64};

    r->kernels->gemm(&gemm);
    check_rows("router_logits", scores, 64, golden(file, layer, "router_logits"), rows,
               r->config.experts, 2e-5, 2e-5);
}

static void check_layer(struct rig *r, const struct eep_safetensors *file, uint32_t layer,
                        uint32_t rows)
{
    const size_t stride = eep_forward_stride(r->forward);
    struct eep_moe_choice choice;

    check_hidden(r, file, layer, "hidden_in", eep_forward_hidden(r->forward), stride, rows);
    eep_forward_attention(r->forward, layer);
    eep_forward_mlp_input(r->forward, layer, eep_moe_block_input(r->block),
                          eep_moe_block_stride(r->block));
    check_hidden(r, file, layer, "moe_input", eep_moe_block_input(r->block),
                 eep_moe_block_stride(r->block), rows);
    check_scores(r, file, layer, rows);
    run_block(r, layer, layer, rows, &choice);
    check_choice(r, file, layer, &choice, rows);
    check_hidden(r, file, layer, "routed_output", eep_forward_routed(r->forward), stride, rows);
    eep_forward_add_routed(r->forward);
    check_hidden(r, file, layer, "moe_output", eep_forward_routed(r->forward), stride, rows);
    check_hidden(r, file, layer, "hidden_out", eep_forward_hidden(r->forward), stride, rows);
}

static void check_checkpoint(const char *name)
{
    struct eep_safetensors *file;
    struct rig rig = {0};
    char dir[64], path[96];

    snprintf(dir, sizeof(dir), "%s", name);
    snprintf(path, sizeof(path), "%s/golden/moe_block.safetensors", name);
    rig_open(&rig, test_path(dir));
    CK_OK(eep_safetensors_open(test_path(path), &file));
    const struct eep_tensor *ids = eep_safetensors_find(file, "ids");
    const uint32_t rows = (uint32_t)ids->count, last = rows - 1;
    static float logits[8192];

    ck_assert_uint_eq(rows, 64);
    begin(&rig, ids->data, rows);
    for (uint32_t layer = 0; layer < rig.config.layers; layer++) {
        check_layer(&rig, file, layer, rows);
    }
    eep_forward_logits(rig.forward, &last, 1, logits, eep_panel_round(rig.config.vocab));
    const struct eep_tensor *final = eep_safetensors_find(file, "final_norm");
    check_rows("final_norm", eep_forward_final(rig.forward), eep_forward_stride(rig.forward),
               (const float *) final->data + (size_t)last * rig.config.hidden, 1, rig.config.hidden,
               1e-4, 1e-4);
    eep_safetensors_close(file);
    rig_close(&rig);
}

START_TEST(qwen3_moe_equals_the_reference)
{
    check_checkpoint("tiny-qwen3-moe");
}
END_TEST

START_TEST(qwen2_moe_equals_the_reference)
{
    check_checkpoint("tiny-qwen2-moe");
}
END_TEST

START_TEST(mixtral_equals_the_reference)
{
    check_checkpoint("tiny-mixtral");
}
END_TEST

/* A JSON list of lists as floats. */
static uint32_t read_matrix(const json_t *list, float *out)
{
    size_t row, column, n = 0;
    json_t *values, *value;

    json_array_foreach(list, row, values)
    {
        json_array_foreach(values, column, value)
        {
            out[n++] = (float)json_number_value(value);
        }
    }
    return (uint32_t)n;
}

/* The stored input and output of each MoE layer's block. */
static void check_case_blocks(struct rig *r, const json_t *blocks)
{
    static float x[64 * 64], want[64 * 64];
    uint32_t moe_layer = 0;

    for (uint32_t layer = 0; layer < r->config.layers; layer++) {
        char key[16];

        if (!r->config.layer_is_moe[layer]) {
            continue;
        }
        snprintf(key, sizeof(key), "%u", layer);
        const json_t *block = json_object_get(blocks, key);
        ck_assert_msg(json_is_object(block), "no reference of layer %s", key);
        const uint32_t rows = read_matrix(json_object_get(block, "x"), x) / r->config.hidden;
        ck_assert_uint_eq(read_matrix(json_object_get(block, "y"), want), rows * r->config.hidden);
        const uint32_t ids[MAX_ROWS] = {0};
        struct eep_moe_choice choice;

        begin(r, ids, rows);
        for (uint32_t i = 0; i < rows; i++) {
            memcpy(eep_moe_block_input(r->block) + i * eep_moe_block_stride(r->block),
                   x + i * r->config.hidden, r->config.hidden * sizeof(float));
        }
        run_block(r, layer, moe_layer++, rows, &choice);
        eep_forward_add_routed(r->forward);
        check_rows(key, eep_forward_routed(r->forward), eep_forward_stride(r->forward), want, rows,
                   r->config.hidden, 1e-4, 0.0);
    }
}

static void check_case(const char *folder, const char *name, const json_t *reference)
{
    static const uint32_t ids[] = {3, 7, 1, 30, 12, 5}, all[] = {0, 1, 2, 3, 4, 5};
    static float logits[6 * 64], want[6 * 64];
    struct rig rig = {0};
    uint32_t moe_layer = 0;
    char dir[128];

    snprintf(dir, sizeof(dir), "%s/%s", folder, name);
    rig_open(&rig, test_path(dir));
    begin(&rig, ids, 6);
    for (uint32_t layer = 0; layer < rig.config.layers; layer++) {
        run_layer(&rig, layer, &moe_layer, 6);
    }
    eep_forward_logits(rig.forward, all, 6, logits, 64);
    ck_assert_uint_eq(read_matrix(json_object_get(reference, "logits"), want),
                      6 * rig.config.vocab);
    check_rows(name, logits, 64, want, 6, rig.config.vocab, 1e-4, 0.0);
    check_case_blocks(&rig, json_object_get(reference, "moe"));
    rig_close(&rig);
}

START_TEST(odd_models_equal_their_references)
{
    json_error_t error;
    json_t *all = json_load_file(test_path("cases/reference.json"), 0, &error), *reference;
    const char *name;
    int checked = 0;

    ck_assert_ptr_nonnull(all);
    json_object_foreach(all, name, reference)
    {
        const bool deepseek = strcmp(name, "ok-deepseek") == 0 || strcmp(name, "mtp-layer") == 0 ||
                              strcmp(name, "shared-null") == 0;

        if (name[0] != '_' && !deepseek) {
            check_case("cases/model", name, reference);
            checked++;
        }
    }
    ck_assert_int_ge(checked, 8);
    json_decref(all);
}
END_TEST

START_TEST(windows_biases_and_mixed_layers_equal_their_references)
{
    json_error_t error;
    json_t *all = json_load_file(test_path("more/reference.json"), 0, &error), *reference;
    const char *name;
    int checked = 0;

    ck_assert_ptr_nonnull(all);
    json_object_foreach(all, name, reference)
    {
        if (name[0] != '_') {
            check_case("more", name, reference);
            checked++;
        }
    }
    ck_assert_int_eq(checked, 4);
    json_decref(all);
}
END_TEST

START_TEST(a_row_of_nan_fails_alone)
{
    const uint32_t ids[3] = {3, 7, 1};
    struct rig rig = {0};
    struct eep_moe_choice choice;
    static float alone[256];

    rig_open(&rig, test_path("cases/model/ok-qwen3"));
    float *input = eep_moe_block_input(rig.block);
    const size_t stride = eep_moe_block_stride(rig.block);

    for (int with_nan = 0; with_nan < 2; with_nan++) {
        begin(&rig, ids, 3);
        for (uint32_t i = 0; i < 3; i++) {
            for (uint32_t j = 0; j < rig.config.hidden; j++) {
                input[i * stride + j] = i == 1 && with_nan ? NAN : (float)(i + j) * 0.1f;
            }
        }
        run_block(&rig, 0, 0, 3, &choice);
        ck_assert_uint_eq(choice.failures, with_nan);
        ck_assert(!choice.failed[0] && choice.failed[1] == with_nan && !choice.failed[2]);
        const float *out = eep_forward_routed(rig.forward);
        const size_t out_stride = eep_forward_stride(rig.forward);

        for (uint32_t i = 0; i < 3; i += 2) {
            if (with_nan) {
                ck_assert_mem_eq(out + i * out_stride, alone + i * 64,
                                 rig.config.hidden * sizeof(float));
            } else {
                memcpy(alone + i * 64, out + i * out_stride, rig.config.hidden * sizeof(float));
            }
        }
    }
    rig_close(&rig);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        qwen3_moe_equals_the_reference,
        qwen2_moe_equals_the_reference,
        mixtral_equals_the_reference,
        odd_models_equal_their_references,
        windows_biases_and_mixed_layers_equal_their_references,
        a_row_of_nan_fails_alone,
    };

    return run_tests("model", tests, COUNT(tests));
}
