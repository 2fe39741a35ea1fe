/*
 * `eep bench moe`: the MoE block beside the limits of this machine, in one run.
 *
 * The block is what a step computes: router, softmax and top-k, the rows grouped by expert, the
 * grouped FFN, the sum in top-k order. All experts of one layer are in memory. Hidden rows and
 * router weights are random, so routing is too. Weights are random numbers in packed form.
 *
 * The limit of a row is the longer of
 *
 *     bytes of all distinct experts that the tokens use, and of the router, at read bandwidth
 *     multiply-adds of all rows, at the peak of multiply-adds in registers
 *
 * It is measured right before every call, with the same threads and vectors and for about as long
 * (as many bytes, of other memory): other load on the machine then hits both. `ratio` is the best
 * call over the best limit, `ratio_median` the median over calls, each over its own limit.
 *
 * Weights must come from memory, not from the caches: a single token is the one of many whose
 * experts have rested longest; more tokens use more weights than caches hold.
 */
#include "tools/bench.h"

#include <jansson.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "moe/router.h"
#include "tools/opts.h"
#include "tools/tools.h"

#define POOL_ROWS 512 /* hidden rows to choose from; at least the tokens of a call */
/* Calls of fewer rows of experts than this are repeated more often, up to so many times. */
#define SHORT_CALL_ROWS 512
#define SHORT_CALL_TIMES ((size_t)16)
#define LIMIT_BYTES ((size_t)640 << 20)              /* memory to measure read bandwidth on */
#define LIMIT_BYTES_MIN ((double)((size_t)32 << 20)) /* less would time the team, not memory */
#define LIMIT_FMA_SECONDS 0.02                       /* a round of eep_kernels_measure_fma() */
#define LIMIT_FMA_ROUNDS_MAX 8
#define MAX_TOKENS 65536

static const struct eep_command_help help = {
    .usage = "eep bench moe [options]",
    .summary = "The MoE block of a given shape, as tokens/s and as a share of this machine's read\n"
               "bandwidth or FMA peak, which are measured in the same run.",
    .epilog = "With --json one object per row. ratio: best call over best limit; ratio_median:\n"
              "median of the calls, each over the limit measured right before it.",
};

struct options {
    uint32_t hidden, experts, top_k, width, threads, repeats;
    const char *dtype;
    const char *kernels;
    struct eep_u32_list tokens;
    bool json;
};

/* One layer of experts, and the buffers of a call. */
struct bench {
    const struct options *o;
    const struct eep_kernels *kernels;
    enum eep_dtype dtype;
    size_t tokens_max;
    size_t pool; /* rows of x */

    char *weights; /* all frames, one after the other */
    size_t frame_bytes;
    struct eep_ffn_weights *experts; /* (experts) */
    struct eep_panels router_panels;
    void *router_data;
    struct eep_router router;

    float *x;         /* (pool, hidden) */
    uint32_t *routes; /* (pool, top_k): experts of each row, known before */
    uint32_t *picked; /* (tokens_max): rows of x of this call */
    uint64_t *rested; /* (experts): the last call that used each */
    uint64_t calls;   /* so far */

    char *limit; /* LIMIT_BYTES */
    size_t limit_at;

    float *in;                    /* (tokens_max, hidden) */
    float *scores;                /* (pool or tokens_max, panel_round(experts)) */
    uint32_t *ids;                /* (tokens_max, top_k) */
    float *gates;                 /* (tokens_max, top_k) */
    bool *failed;                 /* (pool or tokens_max) */
    uint32_t *order;              /* (tokens_max * top_k) x rows and then y rows, by expert */
    struct eep_ffn_group *groups; /* (experts) */
    float *out_rows;              /* (tokens_max * top_k, panel_round(hidden)) */
    const void **parts;           /* (tokens_max, top_k) */
    float *out;                   /* (tokens_max, hidden) */
    void *scratch;
};

/* What a number of tokens costs, at least. */
struct work {
    double bytes;
    double fmas;
};

/* One call. */
struct call {
    double seconds;
    double limit; /* bytes or multiply-adds per second, measured right before */
    struct work work;
};

/* ---- set-up ---- */

/* Panels of small random numbers, normal ones: any 32 bits become two BF16 or one F32. */
static void fill_panels(enum eep_dtype dtype, void *data, size_t bytes, uint64_t seed)
{
    uint64_t *words = data;
    uint64_t keep = dtype == EEP_BF16 ? UINT64_C(0x807f807f807f807f) : UINT64_C(0x807fffff807fffff);
    uint64_t set = dtype == EEP_BF16 ? UINT64_C(0x3c003c003c003c00) : UINT64_C(0x3c0000003c000000);

#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes / sizeof(*words); i++) {
        words[i] = (eep_rng_mix(seed + i) & keep) | set;
    }
}

static enum eep_status make_weights(struct bench *b)
{
    const struct options *o = b->o;
    size_t gate_up = eep_ffn_gate_up_bytes(b->dtype, o->hidden, o->width);
    size_t down = eep_ffn_down_bytes(b->dtype, o->hidden, o->width);
    size_t router = eep_panels_bytes(b->dtype, o->experts, o->hidden);

    b->frame_bytes = eep_round_up(gate_up + down, EEP_PAGE);
    EEP_TRY(eep_mem_alloc(o->experts, b->frame_bytes, "experts", &b->weights));
    EEP_TRY(eep_mem_alloc(o->experts, sizeof(*b->experts), "expert table", &b->experts));
    EEP_TRY(eep_mem_alloc(router, 1, "router", &b->router_data));
    fill_panels(b->dtype, b->weights, o->experts * b->frame_bytes, 1);
    fill_panels(b->dtype, b->router_data, router, 2);
    for (uint32_t e = 0; e < o->experts; e++) {
        char *frame = b->weights + e * b->frame_bytes;

        b->experts[e] =
            (struct eep_ffn_weights){b->dtype, o->hidden, o->width, frame, frame + gate_up};
    }
    b->router_panels = (struct eep_panels){b->dtype, o->experts, o->hidden, b->router_data};
    b->router = (struct eep_router){
        .kind = EEP_ROUTER_SOFTMAX_TOPK,
        .experts = o->experts,
        .top_k = o->top_k,
        .norm_topk = true,
    };
    return eep_router_check(&b->router);
}

static enum eep_status make_buffers(struct bench *b)
{
    const struct options *o = b->o;
    size_t pairs = b->tokens_max * o->top_k;
    size_t score_floats = b->pool * eep_panel_round(o->experts);
    const struct {
        void *out;
        size_t count, size;
    } buffers[] = {
        {&b->x, b->pool * o->hidden, sizeof(float)},
        {&b->routes, b->pool * o->top_k, sizeof(uint32_t)},
        {&b->picked, b->tokens_max, sizeof(uint32_t)},
        {&b->rested, o->experts, sizeof(uint64_t)},
        {&b->limit, LIMIT_BYTES, 1},
        {&b->in, b->tokens_max * o->hidden, sizeof(float)},
        {&b->scores, score_floats, sizeof(float)},
        {&b->ids, b->pool * o->top_k, sizeof(uint32_t)},
        {&b->gates, b->pool * o->top_k, sizeof(float)},
        {&b->failed, b->pool, sizeof(bool)},
        {&b->order, 2 * pairs, sizeof(uint32_t)},
        {&b->groups, o->experts, sizeof(*b->groups)},
        {&b->out_rows, pairs * eep_panel_round(o->hidden), sizeof(float)},
        {&b->parts, pairs, sizeof(*b->parts)},
        {&b->out, b->tokens_max * o->hidden, sizeof(float)},
        {&b->scratch, b->kernels->ffn_scratch_bytes(pairs, o->width), 1},
    };

    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        EEP_TRY(eep_mem_alloc(buffers[i].count, buffers[i].size, "bench moe", buffers[i].out));
    }
    for (size_t i = 0; i < b->pool * o->hidden; i++) {
        b->x[i] = (float)eep_rng_uniform(3, i) * 2.0f - 1.0f;
    }
    return EEP_OK;
}

static void destroy(struct bench *b)
{
    void *const memory[] = {b->weights, b->experts, b->router_data, b->x,     b->routes, b->picked,
                            b->in,      b->scores,  b->ids,         b->gates, b->failed, b->order,
                            b->groups,  b->parts,   b->out_rows,    b->out,   b->scratch};

    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        eep_mem_free(memory[i]);
    }
}

/* ---- the block ---- */

static void route(struct bench *b, const float *x, size_t tokens)
{
    size_t stride = eep_panel_round(b->o->experts);
    const struct eep_gemm gemm = {
        .w = &b->router_panels,
        .x = x,
        .x_stride = b->o->hidden,
        .rows = tokens,
        .y = b->scores,
        .y_stride = stride,
    };

    b->kernels->gemm(&gemm);
    (void)eep_router_choose(&b->router, b->kernels, b->scores, stride, tokens, b->ids, b->gates,
                            b->failed);
}

/* Rows by expert, ascending; output row of (token, j) is token * top_k + j. */
static size_t group_rows(struct bench *b, size_t tokens)
{
    const struct options *o = b->o;
    size_t pairs = tokens * o->top_k;
    uint32_t begin = 0;

    for (uint32_t e = 0; e < o->experts; e++) {
        b->groups[e] = (struct eep_ffn_group){.w = &b->experts[e]};
    }
    for (size_t i = 0; i < pairs; i++) {
        b->groups[b->ids[i]].rows++;
    }
    for (uint32_t e = 0; e < o->experts; e++) {
        b->groups[e].x_rows = b->order + begin;
        b->groups[e].y_rows = b->order + pairs + begin;
        begin += b->groups[e].rows;
        b->groups[e].rows = 0;
    }
    for (size_t i = 0; i < pairs; i++) {
        struct eep_ffn_group *group = &b->groups[b->ids[i]];
        size_t at = (size_t)(group->x_rows - b->order) + group->rows++;

        b->order[at] = (uint32_t)(i / o->top_k);
        b->order[pairs + at] = (uint32_t)i;
    }
    return pairs;
}

static void run_block(struct bench *b, size_t tokens)
{
    const struct options *o = b->o;
    size_t stride = eep_panel_round(o->hidden);

    route(b, b->in, tokens);
    size_t pairs = group_rows(b, tokens);
    const struct eep_ffn ffn = {
        .groups = b->groups,
        .group_count = o->experts,
        .hidden = o->hidden,
        .width = o->width,
        .x = b->in,
        .x_stride = o->hidden,
        .y = b->out_rows,
        .y_stride = stride,
        .scratch = b->scratch,
    };

    b->kernels->ffn(&ffn);
    for (size_t i = 0; i < pairs; i++) {
        b->parts[i] = b->out_rows + i * stride;
    }
    b->kernels->weighted_sum(EEP_F32, b->parts, b->gates, tokens, o->top_k, o->hidden, b->out,
                             o->hidden);
}

/* ---- calls ---- */

/* The call in which an expert of the row was last used. */
static uint64_t last_use(const struct bench *b, uint32_t row)
{
    uint64_t last = 0;

    for (uint32_t j = 0; j < b->o->top_k; j++) {
        last = EEP_MAX(last, b->rested[b->routes[row * b->o->top_k + j]]);
    }
    return last;
}

static void pick_rows(struct bench *b, size_t tokens)
{
    uint32_t best = (uint32_t)(eep_rng_bits(4, b->calls) % b->pool);

    for (size_t t = 0; t < tokens; t++) {
        b->picked[t] = (uint32_t)(eep_rng_bits(5 + b->calls, t) % b->pool);
    }
    if (tokens == 1) {
        for (uint32_t row = 0; row < b->pool; row++) {
            best = last_use(b, row) < last_use(b, best) ? row : best;
        }
        b->picked[0] = best;
    }
    b->calls++;
    for (size_t t = 0; t < tokens; t++) {
        for (uint32_t j = 0; j < b->o->top_k; j++) {
            b->rested[b->routes[b->picked[t] * b->o->top_k + j]] = b->calls;
        }
    }
}

/* Of the rows that were picked last. */
static struct work work_of(const struct bench *b, size_t tokens)
{
    const struct options *o = b->o;
    size_t distinct = 0;

    for (uint32_t e = 0; e < o->experts; e++) {
        distinct += b->rested[e] == b->calls;
    }
    double expert_values = 3.0 * (double)o->hidden * (double)o->width;
    double router_values = (double)o->hidden * (double)o->experts;
    return (struct work){
        .bytes =
            ((double)distinct * expert_values + router_values) * (double)eep_dtype_bytes(b->dtype),
        .fmas = (double)tokens * ((double)o->top_k * expert_values + router_values),
    };
}

/* Read about as much as the call will, from where the last measurement ended. */
static double measure_read(struct bench *b, double bytes)
{
    double wanted = EEP_MIN(EEP_MAX(bytes, LIMIT_BYTES_MIN), (double)LIMIT_BYTES);
    size_t count = eep_round_up((size_t)wanted, EEP_PAGE);

    if (b->limit_at + count > LIMIT_BYTES) {
        b->limit_at = 0;
    }
    const char *from = b->limit + b->limit_at;
    b->limit_at += count;
    return eep_kernels_measure_read(b->kernels, from, count);
}

/* For about as long as the last call took. */
static double measure_fma(const struct bench *b, double seconds)
{
    double wanted = seconds / LIMIT_FMA_SECONDS;
    int rounds = wanted < 1.0 ? 1 : (int)EEP_MIN(wanted, (double)LIMIT_FMA_ROUNDS_MAX);
    double time = 0.0;

    for (int i = 0; i < rounds; i++) {
        time += 1.0 / eep_kernels_measure_fma(b->kernels);
    }
    return rounds / time;
}

static struct call run_call(struct bench *b, size_t tokens, bool by_fma, double seconds)
{
    const size_t hidden = b->o->hidden;
    struct call call;

    pick_rows(b, tokens);
    for (size_t t = 0; t < tokens; t++) {
        memcpy(b->in + t * hidden, b->x + b->picked[t] * hidden, hidden * sizeof(float));
    }
    call.work = work_of(b, tokens);
    call.limit = by_fma ? measure_fma(b, seconds) : measure_read(b, call.work.bytes);
    uint64_t begin = eep_clock_ns();
    run_block(b, tokens);
    call.seconds = (double)(eep_clock_ns() - begin) * 1e-9;
    return call;
}

/* ---- results ---- */

struct result {
    double seconds, seconds_median;
    double rate, rate_median; /* of bytes or multiply-adds */
    double limit, limit_median;
    double ratio, ratio_median;
    bool by_fma; /* which limit binds */
};

/* Sorts; the median, and the greatest in *most_out. */
static double median(double *values, size_t count, double *most_out)
{
    eep_bench_sort(values, count);
    *most_out = values[count - 1];
    return values[count / 2];
}

static struct result summarise(const struct call *calls, size_t count, bool by_fma, double *values)
{
    struct result r = {.by_fma = by_fma};
    double most;

    for (size_t i = 0; i < count; i++) {
        values[i] = 1.0 / calls[i].seconds;
    }
    r.seconds_median = 1.0 / median(values, count, &most);
    r.seconds = 1.0 / most;
    for (size_t i = 0; i < count; i++) {
        values[i] = (by_fma ? calls[i].work.fmas : calls[i].work.bytes) / calls[i].seconds;
    }
    r.rate_median = median(values, count, &r.rate);
    for (size_t i = 0; i < count; i++) {
        values[i] = calls[i].limit;
    }
    r.limit_median = median(values, count, &r.limit);
    for (size_t i = 0; i < count; i++) {
        values[i] =
            (by_fma ? calls[i].work.fmas : calls[i].work.bytes) / calls[i].seconds / calls[i].limit;
    }
    r.ratio_median = median(values, count, &most);
    r.ratio = r.rate / r.limit;
    return r;
}

static void print_row(const struct bench *b, size_t tokens, const struct result *r)
{
    /* A multiply-add is two operations; bytes and operations both in 10^9. */
    const double unit = r->by_fma ? 2e-9 : 1e-9;
    const char *limit_name = r->by_fma ? "fma" : "read_bandwidth";

    if (!b->o->json) {
        printf("%-5s %6zu %12.1f %10.3f %9.1f %-8s %9.1f  %-14s %6.3f %8.3f\n",
               b->dtype == EEP_BF16 ? "bf16" : "f32", tokens, (double)tokens / r->seconds,
               r->seconds * 1e3, r->rate * unit, r->by_fma ? "GFLOP/s" : "GB/s", r->limit * unit,
               limit_name, r->ratio, r->ratio_median);
        return;
    }
    json_t *row = json_pack(
        "{s:s, s:s, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:f, s:s, s:f, s:f}",
        "bench", "moe", "dtype", b->dtype == EEP_BF16 ? "bf16" : "f32", "tokens", (int)tokens,
        "threads", omp_get_max_threads(), "kernels", b->kernels->name, "hidden", (int)b->o->hidden,
        "experts", (int)b->o->experts, "top_k", (int)b->o->top_k, "width", (int)b->o->width,
        "repeats", (int)b->o->repeats, "tokens_per_s", (double)tokens / r->seconds,
        "tokens_per_s_median", (double)tokens / r->seconds_median, "ms", r->seconds * 1e3,
        "ms_median", r->seconds_median * 1e3, r->by_fma ? "gflop_per_s" : "gb_per_s",
        r->rate * unit, r->by_fma ? "gflop_per_s_median" : "gb_per_s_median", r->rate_median * unit,
        "limit", r->limit * unit, "limit_median", r->limit_median * unit, "limit_name", limit_name,
        "ratio", r->ratio, "ratio_median", r->ratio_median);
    if (row != NULL) {
        (void)json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        printf("\n");
    }
    json_decref(row);
}

/* Which limit binds, by a first measurement of both. */
static bool bound_by_fma(struct bench *b, size_t tokens)
{
    double read = 0.0, fma = 0.0;

    pick_rows(b, tokens);
    struct work work = work_of(b, tokens);
    for (int i = 0; i < 3; i++) {
        double rate = measure_read(b, (double)LIMIT_BYTES);
        double fmas = measure_fma(b, 0.0);

        read = EEP_MAX(read, rate);
        fma = EEP_MAX(fma, fmas);
    }
    return work.fmas / fma > work.bytes / read;
}

static enum eep_status run_tokens(struct bench *b, size_t tokens)
{
    size_t short_by = EEP_MAX(SHORT_CALL_ROWS / (tokens * b->o->top_k), (size_t)1);
    size_t each = EEP_MIN(short_by, SHORT_CALL_TIMES);
    size_t count = b->o->repeats * each;
    struct call *calls;
    double *values;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(count, sizeof(*calls), "calls", &calls));
    EEP_TRY_GOTO(eep_mem_alloc(count, sizeof(*values), "calls", &values), free_calls);
    bool by_fma = bound_by_fma(b, tokens);
    struct call call = run_call(b, tokens, by_fma, 0.0); /* warm-up */
    for (size_t i = 0; i < count; i++) {
        call = run_call(b, tokens, by_fma, call.seconds);
        calls[i] = call;
    }
    struct result result = summarise(calls, count, by_fma, values);
    print_row(b, tokens, &result);
    fflush(stdout);
    eep_mem_free(values);
free_calls:
    eep_mem_free(calls);
    return status;
}

static enum eep_status run_dtype(const struct options *o, const struct eep_kernels *kernels,
                                 enum eep_dtype dtype)
{
    struct bench b = {.o = o, .kernels = kernels, .dtype = dtype, .tokens_max = 1};
    enum eep_status status;

    for (size_t i = 0; i < o->tokens.count; i++) {
        b.tokens_max = EEP_MAX(b.tokens_max, (size_t)o->tokens.values[i]);
    }
    b.pool = EEP_MAX(b.tokens_max, (size_t)POOL_ROWS);
    EEP_TRY_GOTO(make_weights(&b), done);
    EEP_TRY_GOTO(make_buffers(&b), done);
    route(&b, b.x, b.pool);
    memcpy(b.routes, b.ids, b.pool * o->top_k * sizeof(*b.routes));
    for (size_t i = 0; i < o->tokens.count; i++) {
        EEP_TRY_GOTO(run_tokens(&b, o->tokens.values[i]), done);
    }
done:
    destroy(&b);
    return status;
}

static enum eep_status run_all(const struct options *o)
{
    const struct eep_kernels *kernels;

    EEP_TRY(eep_kernels_find(o->kernels, &kernels));
    if (o->threads > 0) {
        omp_set_num_threads((int)o->threads);
    }
    if (!o->json) {
        printf("MoE block: hidden %u, %u experts, top-%u, width %u; kernels %s, %d threads, "
               "%u repeats\n%-5s %6s %12s %10s %18s %9s  %-14s %6s %8s\n",
               o->hidden, o->experts, o->top_k, o->width, kernels->name, omp_get_max_threads(),
               o->repeats, "type", "tokens", "tokens/s", "ms", "rate", "of", "limit", "ratio",
               "(median)");
    }
    if (strcmp(o->dtype, "f32") != 0) {
        EEP_TRY(run_dtype(o, kernels, EEP_BF16));
    }
    if (strcmp(o->dtype, "bf16") != 0) {
        EEP_TRY(run_dtype(o, kernels, EEP_F32));
    }
    return EEP_OK;
}

/* ---- options ---- */

static const char *wrong_option(const struct options *o)
{
    if (strcmp(o->dtype, "bf16") != 0 && strcmp(o->dtype, "f32") != 0 &&
        strcmp(o->dtype, "all") != 0) {
        return "--dtype is bf16, f32 or all";
    }
    if (o->hidden == 0 || o->width == 0 || o->hidden > 1u << 20 || o->width > 1u << 20) {
        return "--hidden and --width are 1 .. 1048576";
    }
    if (o->experts == 0 || o->experts > EEP_ROUTER_MAX_EXPERTS || o->top_k == 0 ||
        o->top_k > o->experts) {
        return "--experts is 1 .. 4096 and --top-k 1 .. experts";
    }
    if (o->repeats == 0 || o->repeats > 10000 || o->threads > 4096) {
        return "--repeats is 1 .. 10000, --threads 1 .. 4096";
    }
    for (size_t i = 0; i < o->tokens.count; i++) {
        if (o->tokens.values[i] == 0 || o->tokens.values[i] > MAX_TOKENS) {
            return "--tokens is a list of 1 .. 65536";
        }
    }
    return NULL;
}

int eep_bench_moe(int argc, char **argv)
{
    uint32_t default_tokens[] = {1, 16, 512};
    struct options o = {
        .hidden = 2048, .experts = 64, .top_k = 8, .width = 768, .repeats = 25, .dtype = "bf16"};
    const struct eep_opt opts[] = {
        {"hidden", EEP_OPT_U32, &o.hidden, "N", "hidden size (2048)"},
        {"experts", EEP_OPT_U32, &o.experts, "N", "experts, all in memory (64)"},
        {"top-k", EEP_OPT_U32, &o.top_k, "N", "experts of a token (8)"},
        {"width", EEP_OPT_U32, &o.width, "N", "inner size of an expert (768)"},
        {"dtype", EEP_OPT_STRING, &o.dtype, "TYPE", "weights: bf16 (default), f32 or all"},
        {"tokens", EEP_OPT_U32_LIST, &o.tokens, "LIST", "tokens of a call (1,16,512)"},
        {"threads", EEP_OPT_U32, &o.threads, "N", "threads (all cores)"},
        {"kernels", EEP_OPT_STRING, &o.kernels, "NAME",
         "ref, avx2, avx512, neon or auto (default); the limits use the same vectors"},
        {"repeats", EEP_OPT_U32, &o.repeats, "N", "calls of each row (25); more of short ones"},
        {"json", EEP_OPT_FLAG, &o.json, NULL, "one JSON object per row"},
    };
    int exit_status = EEP_EXIT_OK;

    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    uint32_t *given = o.tokens.values;
    if (given == NULL) {
        o.tokens = (struct eep_u32_list){default_tokens, 3};
    }
    const char *wrong = wrong_option(&o);
    if (wrong != NULL) {
        exit_status = eep_opts_wrong(&help, "%s", wrong);
    } else if (eep_tool_speaks() && run_all(&o) != EEP_OK) {
        exit_status = eep_tool_failed(); /* of several ranks the first one measures, alone */
    }
    free(given);
    return exit_status;
}
