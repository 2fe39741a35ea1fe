/*
 * Makes a random Qwen3-MoE checkpoint of any shape, for benchmarks: config.json and
 * model.safetensors, written tensor by tensor so that it needs no memory of its size.
 *
 * Weights are uniform with the variance that keeps activations of order 1, norms are near 1. The
 * same options give the same bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/dtype.h"
#include "base/rng.h"

struct shape {
    uint32_t hidden, layers, experts, top_k, width, heads, kv_heads, head_dim, vocab, positions;
    bool f32;
    uint64_t seed;
};

enum pass {
    PASS_HEADER,
    PASS_DATA,
};

struct writer {
    const struct shape *shape;
    FILE *file;
    enum pass pass;
    uint64_t offset;  /* of the next tensor in the data */
    uint64_t tensors; /* written in this pass */
};

static void die(const char *what)
{
    fprintf(stderr, "mkckpt: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void write_bytes(struct writer *w, const void *data, size_t bytes)
{
    if (fwrite(data, 1, bytes, w->file) != bytes) {
        die("cannot write");
    }
}

/* `count` values of one tensor: centre + scale * uniform(-1, 1). */
static void write_values(struct writer *w, uint64_t count, float centre, float scale)
{
    unsigned char buffer[1 << 16];
    const uint64_t seed = eep_rng_bits(w->shape->seed, w->tensors);
    size_t used = 0;

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t bits = eep_rng_bits(seed, i >> 1);
        const int32_t draw = (int32_t)(i & 1 ? bits >> 32 : bits);
        const float value = centre + scale * (float)draw * 0x1.0p-31f;
        const uint16_t half = eep_f32_to_bf16(value);
        const size_t bytes = w->shape->f32 ? 4 : 2;

        memcpy(buffer + used, w->shape->f32 ? (const void *)&value : (const void *)&half, bytes);
        used += bytes;
        if (used == sizeof(buffer)) {
            write_bytes(w, buffer, used);
            used = 0;
        }
    }
    write_bytes(w, buffer, used);
}

/* One tensor (rows, columns), or a norm (columns) when rows is 0. */
static void tensor(struct writer *w, const char *name, uint32_t rows, uint32_t columns)
{
    const uint64_t count = (uint64_t)(rows > 0 ? rows : 1) * columns;
    const uint64_t bytes = count * (w->shape->f32 ? 4 : 2);

    if (w->pass == PASS_HEADER) {
        fprintf(w->file, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->offset > 0 ? "," : "", name,
                w->shape->f32 ? "F32" : "BF16");
        if (rows > 0) {
            fprintf(w->file, "%" PRIu32 ",", rows);
        }
        fprintf(w->file, "%" PRIu32 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", columns,
                w->offset, w->offset + bytes);
    } else if (rows > 0) {
        write_values(w, count, 0.0f, sqrtf(3.0f / (float)columns));
    } else {
        write_values(w, count, 1.0f, 0.1f);
    }
    w->offset += bytes;
    w->tensors++;
}

static void layer_tensor(struct writer *w, uint32_t layer, const char *part, uint32_t rows,
                         uint32_t columns)
{
    char name[128];

    snprintf(name, sizeof(name), "model.layers.%" PRIu32 ".%s.weight", layer, part);
    tensor(w, name, rows, columns);
}

static void expert_tensors(struct writer *w, uint32_t layer, uint32_t expert)
{
    const struct shape *s = w->shape;
    char part[64];

    snprintf(part, sizeof(part), "mlp.experts.%" PRIu32 ".gate_proj", expert);
    layer_tensor(w, layer, part, s->width, s->hidden);
    snprintf(part, sizeof(part), "mlp.experts.%" PRIu32 ".up_proj", expert);
    layer_tensor(w, layer, part, s->width, s->hidden);
    snprintf(part, sizeof(part), "mlp.experts.%" PRIu32 ".down_proj", expert);
    layer_tensor(w, layer, part, s->hidden, s->width);
}

static void all_tensors(struct writer *w)
{
    const struct shape *s = w->shape;

    w->offset = w->tensors = 0;
    tensor(w, "model.embed_tokens.weight", s->vocab, s->hidden);
    for (uint32_t l = 0; l < s->layers; l++) {
        layer_tensor(w, l, "input_layernorm", 0, s->hidden);
        layer_tensor(w, l, "self_attn.q_proj", s->heads * s->head_dim, s->hidden);
        layer_tensor(w, l, "self_attn.k_proj", s->kv_heads * s->head_dim, s->hidden);
        layer_tensor(w, l, "self_attn.v_proj", s->kv_heads * s->head_dim, s->hidden);
        layer_tensor(w, l, "self_attn.o_proj", s->hidden, s->heads * s->head_dim);
        layer_tensor(w, l, "self_attn.q_norm", 0, s->head_dim);
        layer_tensor(w, l, "self_attn.k_norm", 0, s->head_dim);
        layer_tensor(w, l, "post_attention_layernorm", 0, s->hidden);
        layer_tensor(w, l, "mlp.gate", s->experts, s->hidden);
        for (uint32_t e = 0; e < s->experts; e++) {
            expert_tensors(w, l, e);
        }
    }
    tensor(w, "model.norm.weight", 0, s->hidden);
    tensor(w, "lm_head.weight", s->vocab, s->hidden);
}

static void write_config(const struct shape *s, const char *path)
{
    FILE *file = fopen(path, "w");

    if (file == NULL) {
        die(path);
    }
    fprintf(file,
            "{\n \"architectures\": [\"Qwen3MoeForCausalLM\"],\n \"model_type\": \"qwen3_moe\",\n"
            " \"torch_dtype\": \"%s\",\n \"hidden_size\": %u,\n \"intermediate_size\": %u,\n"
            " \"moe_intermediate_size\": %u,\n \"num_hidden_layers\": %u,\n"
            " \"num_attention_heads\": %u,\n \"num_key_value_heads\": %u,\n \"head_dim\": %u,\n"
            " \"vocab_size\": %u,\n \"num_experts\": %u,\n \"num_experts_per_tok\": %u,\n"
            " \"norm_topk_prob\": true,\n \"decoder_sparse_step\": 1,\n"
            " \"mlp_only_layers\": [],\n \"hidden_act\": \"silu\",\n \"rms_norm_eps\": 1e-06,\n"
            " \"rope_theta\": 1000000.0,\n \"rope_scaling\": null,\n"
            " \"max_position_embeddings\": %u,\n \"tie_word_embeddings\": false,\n"
            " \"attention_bias\": false,\n \"use_sliding_window\": false\n}\n",
            s->f32 ? "float32" : "bfloat16", s->hidden, 3 * s->hidden, s->width, s->layers,
            s->heads, s->kv_heads, s->head_dim, s->vocab, s->experts, s->top_k, s->positions);
    if (fclose(file) != 0) {
        die(path);
    }
}

static void write_model(const struct shape *s, const char *path)
{
    char *header = NULL;
    size_t header_bytes = 0;
    struct writer w = {.shape = s, .pass = PASS_HEADER};

    w.file = open_memstream(&header, &header_bytes);
    if (w.file == NULL) {
        die("header");
    }
    fputc('{', w.file);
    all_tensors(&w);
    fputc('}', w.file);
    fclose(w.file);

    w.file = fopen(path, "wb");
    if (w.file == NULL) {
        die(path);
    }
    const uint64_t length = (header_bytes + 7) / 8 * 8;
    write_bytes(&w, &length, sizeof(length)); /* little endian, as all machines of eep are */
    write_bytes(&w, header, header_bytes);
    write_bytes(&w, "       ", length - header_bytes);
    w.pass = PASS_DATA;
    all_tensors(&w);
    if (fclose(w.file) != 0) {
        die(path);
    }
    free(header);
    printf("%s: %" PRIu64 " tensors, %.2f GB\n", path, w.tensors, (double)w.offset * 1e-9);
}

static void usage(void)
{
    fprintf(stderr, "usage: mkckpt DIR [hidden=2048] [layers=4] [experts=64] [top_k=8] [width=768] "
                    "[heads=32] [kv_heads=4] [head_dim=128] [vocab=2048] [positions=4096] "
                    "[dtype=bf16|f32] [seed=1]\n");
    exit(2);
}

int main(int argc, char **argv)
{
    struct shape s = {.hidden = 2048,
                      .layers = 4,
                      .experts = 64,
                      .top_k = 8,
                      .width = 768,
                      .heads = 32,
                      .kv_heads = 4,
                      .head_dim = 128,
                      .vocab = 2048,
                      .positions = 4096,
                      .seed = 1};
    const struct {
        const char *name;
        uint32_t *value;
    } numbers[] = {
        {"hidden", &s.hidden},       {"layers", &s.layers},     {"experts", &s.experts},
        {"top_k", &s.top_k},         {"width", &s.width},       {"heads", &s.heads},
        {"kv_heads", &s.kv_heads},   {"head_dim", &s.head_dim}, {"vocab", &s.vocab},
        {"positions", &s.positions},
    };
    char path[4096];

    if (argc < 2) {
        usage();
    }
    for (int i = 2; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        const size_t length = equals != NULL ? (size_t)(equals - argv[i]) : 0;
        bool known = false;

        for (size_t n = 0; length > 0 && n < sizeof(numbers) / sizeof(numbers[0]); n++) {
            if (strlen(numbers[n].name) == length &&
                memcmp(argv[i], numbers[n].name, length) == 0) {
                *numbers[n].value = (uint32_t)strtoul(equals + 1, NULL, 10);
                known = *numbers[n].value > 0;
            }
        }
        if (strncmp(argv[i], "seed=", 5) == 0) {
            s.seed = strtoull(argv[i] + 5, NULL, 10);
            known = true;
        } else if (strcmp(argv[i], "dtype=f32") == 0 || strcmp(argv[i], "dtype=bf16") == 0) {
            s.f32 = argv[i][6] == 'f';
            known = true;
        }
        if (!known) {
            usage();
        }
    }
    if (mkdir(argv[1], 0777) != 0 && errno != EEXIST) {
        die(argv[1]);
    }
    snprintf(path, sizeof(path), "%s/config.json", argv[1]);
    write_config(&s, path);
    snprintf(path, sizeof(path), "%s/model.safetensors", argv[1]);
    write_model(&s, path);
    return 0;
}
