/*
 * `eep bench eplb`: the balancer's figures beside the bars it is held to. A row is one
 * configuration of all its layers: from nothing, after a drift of the loads, or after ranks were
 * lost. Time is the processor time of one thread, the fastest of --repeats runs.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "tools/bench.h"
#include "tools/layout_files.h"
#include "tools/opts.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep bench eplb [options]",
    .summary = "The balancer: evenness against the lower bound, copies, and processor time of a\n"
               "layer, beside the bars. A: 128 experts in 130 slots on 2 ranks; B: 256 in 288 on\n"
               "32 (measured loads of DeepSeek-V3); C: 384 in 448 on 64; D: 256 in 320 on 40.",
    .epilog =
        "\"over\" is how far the largest rank load is above max(mean, largest replica), which\n"
        "no layout with even shares can be below. The data is tests/data/eplb of the source.",
};

/* The configurations; experts come with the loads. */
enum config { A, B, B_NODES, B_GROUPS, C, C_NODES, D, D_NODES, CONFIGS };

static const struct eep_eplb_shape shapes[CONFIGS] = {
    [A] = {.slots = 130, .seats = 2, .nodes = 1, .groups = 1},
    [B] = {.slots = 288, .seats = 32, .nodes = 1, .groups = 1},
    [B_NODES] = {.slots = 288, .seats = 32, .nodes = 4, .groups = 1},
    [B_GROUPS] = {.slots = 288, .seats = 32, .nodes = 4, .groups = 8},
    [C] = {.slots = 448, .seats = 64, .nodes = 1, .groups = 1},
    [C_NODES] = {.slots = 448, .seats = 64, .nodes = 8, .groups = 1},
    [D] = {.slots = 320, .seats = 40, .nodes = 1, .groups = 1},
    [D_NODES] = {.slots = 320, .seats = 40, .nodes = 5, .groups = 1},
};

static const uint32_t dead_ranks[] = {5, 17, 33}; /* of D */

struct row {
    const char *name;
    enum eep_eplb_policy policy;
    enum config config;
    const char *before; /* loads of the layout that is there, by the compatible policy; or NULL */
    const char *loads;
    bool dead;
    uint32_t max_copies;     /* a layer */
    double bar_balancedness; /* 0: as near the lower bound as a new layout must be */
    bool balance_first;      /* whatever is on one node */
};

#define LOADS_A "loads/a_48x128.json"
#define LOADS_C "loads/c_61x384.json"
#define LOADS_D "loads/d_60x256.json"
#define PREFILL "traces/dsv3_prefill_in4096.json"
#define DECODE "traces/dsv3_decode_in1000out1000.json"
#define DRIFTED "loads/b_prefill_in4096_noise10.json"
#define OLD EEP_EPLB_DEEPSEEK
#define EEP EEP_EPLB_EEP
#define ANY EEP_EPLB_NO_LIMIT

static const struct row rows[] = {
    {"A", OLD, A, NULL, LOADS_A, false, ANY, 0, false},
    {"B", OLD, B, NULL, PREFILL, false, ANY, 0, false},
    {"B, 4 nodes, 8 groups", OLD, B_GROUPS, NULL, PREFILL, false, ANY, 0, false},
    {"C", OLD, C, NULL, LOADS_C, false, ANY, 0, false},
    {"D, 3 ranks dead", OLD, D, NULL, LOADS_D, true, ANY, 0, false},
    {"A", EEP, A, NULL, LOADS_A, false, ANY, 0, false},
    {"B", EEP, B, NULL, PREFILL, false, ANY, 0, false},
    {"B, 4 nodes", EEP, B_NODES, NULL, PREFILL, false, ANY, 0, false},
    {"B, 4 nodes, as is", EEP, B_NODES, NULL, PREFILL, false, ANY, 0, true},
    {"B, answers, 4 nodes", EEP, B_NODES, NULL, DECODE, false, ANY, 0, false},
    {"B, answers, 4 nodes, as is", EEP, B_NODES, NULL, DECODE, false, ANY, 0, true},
    {"C, 8 nodes", EEP, C_NODES, NULL, LOADS_C, false, ANY, 0, false},
    {"C, 8 nodes, as is", EEP, C_NODES, NULL, LOADS_C, false, ANY, 0, true},
    {"D, 5 nodes", EEP, D_NODES, NULL, LOADS_D, false, ANY, 0, false},
    {"D, 5 nodes, as is", EEP, D_NODES, NULL, LOADS_D, false, ANY, 0, true},
    {"B, answers", EEP, B, NULL, DECODE, false, ANY, 0, false},
    {"C", EEP, C, NULL, LOADS_C, false, ANY, 0, false},
    {"D", EEP, D, NULL, LOADS_D, false, ANY, 0, false},
    {"D, 3 ranks dead", EEP, D, NULL, LOADS_D, true, ANY, 0, false},
    {"B drift: recompute", OLD, B, PREFILL, DRIFTED, false, ANY, 0, false},
    {"B drift: 8 copies", EEP, B, PREFILL, DRIFTED, false, 8, 0.96, false},
    {"B drift: 31 copies", EEP, B, PREFILL, DRIFTED, false, 31, 0.9935, false},
    {"B drift: 31, 4 nodes", EEP, B_NODES, PREFILL, DRIFTED, false, 31, 0.9935, false},
    {"B drift: 31, 4 nodes, as is", EEP, B_NODES, PREFILL, DRIFTED, false, 31, 0.9935, true},
    {"B drift: 55, 4 nodes", EEP, B_NODES, PREFILL, DRIFTED, false, 55, 0.999, false},
    {"B drift: 55, 4 nodes, as is", EEP, B_NODES, PREFILL, DRIFTED, false, 55, 0.999, true},
    {"B drift, 4 nodes", EEP, B_NODES, PREFILL, DRIFTED, false, ANY, 0, false},
    {"B drift, 4 nodes, as is", EEP, B_NODES, PREFILL, DRIFTED, false, ANY, 0, true},
    {"B drift: 55 copies", EEP, B, PREFILL, DRIFTED, false, 55, 0.999, false},
    {"B drift: no limit", EEP, B, PREFILL, DRIFTED, false, ANY, 0, false},
    {"B prompts to answers", EEP, B, PREFILL, DECODE, false, 31, 0.981, false},
    {"A drift: 2 copies", EEP, A, LOADS_A, "loads/a_48x128_noise10.json", false, 2, 0.999, false},
    {"C drift: 63 copies", EEP, C, LOADS_C, "loads/c_61x384_noise10.json", false, 63, 0.994, false},
    {"D loses 3: least", EEP, D, LOADS_D, LOADS_D, true, 0, 0.693, false},
    {"D loses 3: 71 copies", EEP, D, LOADS_D, LOADS_D, true, 71, 0.994, false},
};

#define BAR_OVER 0.0005        /* above the lower bound, mean of the layers */
#define BAR_WORST_OVER 0.001   /* the same of any layer */
#define BAR_US_COMPATIBLE 60.0 /* a layer; asked at 288 slots, kept at 448 too */
#define BAR_US 250.0

struct figures {
    double balancedness, worst, over, worst_over, us_per_layer;
    double copies, least_copies; /* a layer; the least: experts that had no live slot */
    double single;               /* experts of a layer that only one node has */
    uint32_t doubled;
};

/* 0: there is none. */
struct bars {
    double balancedness, over, worst_over, copies, us_per_layer;
};

struct bench_eplb {
    const char *data;
    uint32_t repeats;
    bool json;
};

static uint64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static enum eep_status read_loads(const struct bench_eplb *bench, const char *name,
                                  struct eep_loads_file *file_out)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", bench->data, name);
    const enum eep_status status = eep_loads_file_read(path, NULL, file_out);
    if (status != EEP_OK) {
        (void)eep_fail_context(status, "the benchmark's data (--data)");
    }
    return status;
}

/* Memory of a row: all layers. */
struct work {
    int32_t *current, *maps;
    uint32_t *counts;
    struct eep_eplb_result *results;
    bool *failed;
};

static enum eep_status make_work(const struct eep_eplb_shape *shape, uint32_t layers,
                                 struct work *w)
{
    const size_t slots = (size_t)layers * eep_eplb_map_slots(shape);

    EEP_TRY(eep_mem_alloc(slots, sizeof(*w->current), "layout", &w->current));
    EEP_TRY(eep_mem_alloc(slots, sizeof(*w->maps), "layout", &w->maps));
    EEP_TRY(
        eep_mem_alloc((size_t)layers * shape->experts, sizeof(*w->counts), "replicas", &w->counts));
    EEP_TRY(eep_mem_alloc(layers, sizeof(*w->results), "results", &w->results));
    return eep_mem_alloc(shape->seats, sizeof(*w->failed), "failed ranks", &w->failed);
}

static void free_work(struct work *w)
{
    eep_mem_free(w->current);
    eep_mem_free(w->maps);
    eep_mem_free(w->counts);
    eep_mem_free(w->results);
    eep_mem_free(w->failed);
}

static void sum_up(const struct eep_eplb_result *results, uint32_t layers, struct figures *f)
{
    uint64_t copies = 0, lost = 0;

    for (uint32_t l = 0; l < layers; l++) {
        const struct eep_eplb_result *r = &results[l];
        const double over = r->after.max_load / r->lower_bound - 1.0;

        f->balancedness += r->after.balancedness / layers;
        f->worst = EEP_MIN(f->worst, r->after.balancedness);
        f->over += over / layers;
        f->worst_over = EEP_MAX(f->worst_over, over);
        copies += r->copies;
        lost += r->lost;
        f->doubled += r->doubled;
        f->single += (double)r->single_node / layers;
    }
    f->copies = (double)copies / layers;
    f->least_copies = (double)lost / layers;
}

static enum eep_status measure(const struct bench_eplb *bench, const struct row *row,
                               struct eep_eplb *eplb, const struct eep_loads_file *before,
                               const struct eep_loads_file *loads, struct work *w,
                               struct figures *figures_out)
{
    struct figures f = {.worst = 1.0};
    struct eep_eplb_ask ask = {
        .policy = EEP_EPLB_DEEPSEEK, .loads = before->loads, .max_copies = EEP_EPLB_NO_LIMIT};
    uint64_t best = UINT64_MAX;

    if (row->before != NULL) {
        EEP_TRY(eep_eplb_plan_layers(eplb, &ask, loads->layers, UINT64_MAX, w->current, w->counts,
                                     w->results));
    }
    for (size_t i = 0; row->dead && i < sizeof(dead_ranks) / sizeof(dead_ranks[0]); i++) {
        w->failed[dead_ranks[i]] = true;
    }
    ask = (struct eep_eplb_ask){.policy = row->policy,
                                .loads = loads->loads,
                                .failed = row->dead ? w->failed : NULL,
                                .current = row->before != NULL ? w->current : NULL,
                                .max_copies = row->max_copies,
                                .balance_first = row->balance_first};
    for (uint32_t i = 0; i < bench->repeats; i++) {
        const uint64_t start = cpu_ns();

        EEP_TRY(eep_eplb_plan_layers(eplb, &ask, loads->layers, UINT64_MAX, w->maps, w->counts,
                                     w->results));
        best = EEP_MIN(best, cpu_ns() - start);
    }
    f.us_per_layer = (double)best / 1000.0 / loads->layers;
    sum_up(w->results, loads->layers, &f);
    *figures_out = f;
    return EEP_OK;
}

static struct bars bars_of(const struct row *row, const struct figures *f)
{
    struct bars bars = {.us_per_layer = BAR_US_COMPATIBLE};

    if (row->policy == EEP_EPLB_DEEPSEEK) {
        return bars; /* its balance is what it is */
    }
    bars.us_per_layer = BAR_US;
    bars.balancedness = row->bar_balancedness;
    if (row->bar_balancedness == 0.0) {
        bars.over = BAR_OVER;
        bars.worst_over = BAR_WORST_OVER;
    }
    if (row->max_copies != ANY) {
        bars.copies = EEP_MAX((double)row->max_copies, f->least_copies);
    }
    return bars;
}

static bool is_met(const struct row *row, const struct figures *f)
{
    const struct bars bars = bars_of(row, f);

    return f->balancedness >= bars.balancedness && (bars.over == 0.0 || f->over <= bars.over) &&
           (bars.worst_over == 0.0 || f->worst_over <= bars.worst_over) &&
           (bars.copies == 0.0 || f->copies <= bars.copies) &&
           f->us_per_layer <= bars.us_per_layer &&
           (row->policy == EEP_EPLB_DEEPSEEK || f->doubled == 0);
}

static const char *policy_name(const struct row *row)
{
    return row->policy == EEP_EPLB_EEP ? "eep" : "deepseek";
}

static enum eep_status print_json(const struct row *row, const struct figures *f)
{
    const struct bars bars = bars_of(row, f);
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:i, s:f, s:b, s:f, s:f, s:f, s:f, s:f}", "bench",
        "eplb", "config", row->name, "policy", policy_name(row), "balancedness", f->balancedness,
        "worst", f->worst, "over_lower_bound", f->over, "worst_over_lower_bound", f->worst_over,
        "doubled", (int)f->doubled, "us_per_layer", f->us_per_layer, "met", is_met(row, f),
        "bar_us_per_layer", bars.us_per_layer, "bar_balancedness", bars.balancedness,
        "bar_over_lower_bound", bars.over, "bar_worst_over_lower_bound", bars.worst_over,
        "bar_copies_per_layer", bars.copies);

    if (json != NULL && row->before != NULL) {
        json_object_set_new(json, "copies_per_layer", json_real(f->copies));
    }
    if (json != NULL && shapes[row->config].nodes > 1) {
        json_object_set_new(json, "on_one_node_per_layer", json_real(f->single));
    }
    const bool written = json != NULL && json_dumpf(json, stdout, JSON_COMPACT) == 0;
    json_decref(json);
    putchar('\n');
    return written ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

/* A figure and its bar, or only the figure. */
static void print_figure(const char *name, double value, double bar, const char *sign, int width,
                         int digits)
{
    char text[32] = "";

    if (bar > 0.0) {
        snprintf(text, sizeof(text), "(%s %.*f)", sign, digits, bar);
    }
    printf("  %s %*.*f %-10s", name, width, digits, value, text);
}

static void print_text(const struct row *row, const struct figures *f)
{
    const struct bars bars = bars_of(row, f);

    printf("%-27s %-8s", row->name, policy_name(row));
    print_figure("even", f->balancedness, bars.balancedness, ">=", 6, 4);
    print_figure("over %", 100.0 * f->over, 100.0 * bars.over, "<=", 7, 3);
    print_figure("worst", 100.0 * f->worst_over, 100.0 * bars.worst_over, "<=", 7, 3);
    if (row->before != NULL) {
        print_figure("copies", f->copies, bars.copies, "<=", 5, 1);
    } else {
        printf("  %-23s", "");
    }
    print_figure("us", f->us_per_layer, bars.us_per_layer, "<=", 5, 1);
    if (shapes[row->config].nodes > 1) {
        printf("  on one node %5.1f", f->single);
    }
    printf(" %s\n", is_met(row, f) ? "met" : "NOT MET");
}

static enum eep_status run_row(const struct bench_eplb *bench, const struct row *row)
{
    struct eep_loads_file before = {0}, loads = {0};
    struct eep_eplb_shape shape = shapes[row->config];
    struct eep_eplb *eplb = NULL;
    struct work work = {0};
    struct figures f;
    enum eep_status status;

    EEP_TRY_GOTO(read_loads(bench, row->loads, &loads), free_all);
    if (row->before != NULL) {
        EEP_TRY_GOTO(read_loads(bench, row->before, &before), free_all);
        if (before.layers != loads.layers || before.experts != loads.experts) {
            status = EEP_FAIL(EEP_ERR_FORMAT, "%s and %s have other counts of layers or experts",
                              row->before, row->loads);
            goto free_all;
        }
    }
    shape.experts = loads.experts;
    EEP_TRY_GOTO(eep_eplb_create(&shape, &eplb), free_all);
    EEP_TRY_GOTO(make_work(&shape, loads.layers, &work), free_all);
    EEP_TRY_GOTO(measure(bench, row, eplb, &before, &loads, &work, &f), free_all);
    if (bench->json) {
        EEP_TRY_GOTO(print_json(row, &f), free_all);
    } else {
        print_text(row, &f);
    }
free_all:
    eep_eplb_destroy(eplb);
    free_work(&work);
    eep_loads_file_free(&before);
    eep_loads_file_free(&loads);
    return status;
}

/* ---- small cases whose optimum is known ------------------------------------------------------ */

#define SMALL "golden/small_optimum.json"
#define BAR_OPTIMUM 0.05 /* above it, at worst */

struct small {
    uint32_t cases;
    double worst, mean, us; /* above the optimum; of the slowest case */
};

static enum eep_status run_small_case(const struct bench_eplb *bench, const char *path,
                                      const json_t *instance, struct small *small)
{
    const double optimum = json_number_value(json_object_get(instance, "opt_max_over_mean"));
    struct eep_loads_file file;
    struct eep_eplb *eplb = NULL;
    struct work work = {0};
    uint64_t best = UINT64_MAX;
    enum eep_status status;
    char which[16];

    snprintf(which, sizeof(which), "%u", small->cases);
    EEP_TRY(eep_loads_file_read(path, which, &file));
    const struct eep_eplb_shape shape = {file.experts, file.slots, file.ranks, 1, 1};
    const struct eep_eplb_ask ask = {
        .policy = EEP, .loads = file.loads, .max_copies = EEP_EPLB_NO_LIMIT};
    EEP_TRY_GOTO(eep_eplb_create(&shape, &eplb), free_all);
    EEP_TRY_GOTO(make_work(&shape, 1, &work), free_all);
    for (uint32_t i = 0; i < bench->repeats; i++) {
        const uint64_t start = cpu_ns();

        EEP_TRY_GOTO(eep_eplb_plan(eplb, &ask, work.maps, work.counts, work.results), free_all);
        best = EEP_MIN(best, cpu_ns() - start);
    }
    const double part =
        work.results->after.max_load / work.results->after.mean_load / optimum - 1.0;
    small->worst = EEP_MAX(small->worst, part);
    small->mean += part;
    small->us = EEP_MAX(small->us, (double)best / 1000.0);
    small->cases++;
free_all:
    eep_eplb_destroy(eplb);
    free_work(&work);
    eep_loads_file_free(&file);
    return status;
}

static enum eep_status run_small(const struct bench_eplb *bench)
{
    struct small small = {.worst = -1.0};
    enum eep_status status = EEP_OK;
    json_t *json, *instance;
    char path[4096];
    size_t i;

    snprintf(path, sizeof(path), "%s/" SMALL, bench->data);
    EEP_TRY(eep_json_load(path, (size_t)1 << 24, &json));
    json_array_foreach(json_object_get(json, "instances"), i, instance)
    {
        EEP_TRY_GOTO(run_small_case(bench, path, instance, &small), free_json);
    }
    if (small.cases == 0) {
        status = EEP_FAIL(EEP_ERR_FORMAT, "%s: has no instances", path);
        goto free_json;
    }
    small.mean /= small.cases;
    const bool met = small.worst <= BAR_OPTIMUM && small.us <= BAR_US;
    if (bench->json) {
        printf("{\"bench\":\"eplb\",\"config\":\"small\",\"policy\":\"eep\",\"cases\":%u,"
               "\"worst_over_optimum\":%.6f,\"mean_over_optimum\":%.6f,\"us_per_layer\":%.3f,"
               "\"bar_worst_over_optimum\":%g,\"bar_us_per_layer\":%g,\"met\":%s}\n",
               small.cases, small.worst, small.mean, small.us, BAR_OPTIMUM, BAR_US,
               met ? "true" : "false");
    } else {
        printf(
            "%u small cases: at worst %.2f %% above the best known (<= %.0f), mean %.2f; slowest "
            "%.1f us (<= %.1f) %s\n",
            small.cases, 100.0 * small.worst, 100.0 * BAR_OPTIMUM, 100.0 * small.mean, small.us,
            BAR_US, met ? "met" : "NOT MET");
    }
free_json:
    json_decref(json);
    return status;
}

int eep_bench_eplb(int argc, char **argv)
{
    struct bench_eplb bench = {.repeats = 5};
    const char *source = getenv("EEP_SRC");
    char data[4096];
    const struct eep_opt opts[] = {
        {"data", EEP_OPT_STRING, &bench.data, "DIR",
         "folder of the loads (default tests/data/eplb, in EEP_SRC\nif that is set)"},
        {"repeats", EEP_OPT_U32, &bench.repeats, "N", "runs of each row (default 5)"},
        {"json", EEP_OPT_FLAG, &bench.json, NULL, "one JSON object per row"},
    };

    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (bench.repeats == 0) {
        return eep_opts_wrong(&help, "--repeats must be 1 or more");
    }
    if (bench.data == NULL) {
        snprintf(data, sizeof(data), "%s%stests/data/eplb", source != NULL ? source : "",
                 source != NULL ? "/" : "");
        bench.data = data;
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && eep_tool_speaks(); i++) {
        if (run_row(&bench, &rows[i]) != EEP_OK) {
            return eep_tool_failed();
        }
    }
    if (eep_tool_speaks() && run_small(&bench) != EEP_OK) {
        return eep_tool_failed();
    }
    return EEP_EXIT_OK;
}
