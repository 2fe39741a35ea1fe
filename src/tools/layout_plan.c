/* `eep layout plan`: a layout for given loads, offline. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "tools/layout_files.h"
#include "tools/layout_tool.h"
#include "tools/opts.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep layout plan --loads FILE --slots N --ranks R [options]",
    .summary = "Plan a layout for the loads of a file, without a model: which expert is in which\n"
               "slot, how many replicas each has, how even the ranks' loads are, what it copies.\n"
               "What FILE says about slots, ranks, nodes, groups and failed ranks is the default.",
    .epilog = "A layer's balancedness is the mean load of the live ranks over the largest. Copies\n"
              "are pairs of rank and expert that the layout has and --current has not.\n"
              "`eep layout --help` tells the forms of the files.",
};

struct options {
    const char *policy, *loads, *which, *current, *layout_out;
    uint32_t slots, ranks, nodes, groups, repeats;
    struct eep_u32_list dead;
    uint64_t max_copies, max_copies_total, expert_bytes;
    double min_gain, min_tokens;
    bool balance_first, json, verbose;
};

struct planned {
    struct options opts;
    struct eep_loads_file file;
    struct eep_eplb_shape shape;
    uint32_t slots; /* of a layer's map */
    bool *failed;   /* (seats) */
    uint32_t failed_count;
    int32_t *current; /* (layers, slots) or NULL */
    int32_t *maps;
    uint32_t *counts;
    struct eep_eplb_result *results;
    double us_per_layer;
};

/* ---- the question -------------------------------------------------------------------------- */

static enum eep_status set_shape(struct planned *p)
{
    const struct options *o = &p->opts;
    const struct eep_loads_file *f = &p->file;

    p->shape = (struct eep_eplb_shape){
        .experts = f->experts,
        .slots = o->slots != 0 ? o->slots : f->slots,
        .seats = o->ranks != 0 ? o->ranks : f->ranks,
        .nodes = o->nodes != 0 ? o->nodes : EEP_MAX(f->nodes, 1u),
        .groups = o->groups != 0 ? o->groups : EEP_MAX(f->groups, 1u),
    };
    if (p->shape.slots == 0 || p->shape.seats == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s does not say how many %s there are: give --%s",
                        o->loads, p->shape.slots == 0 ? "slots" : "ranks",
                        p->shape.slots == 0 ? "slots" : "ranks");
    }
    return EEP_OK;
}

static enum eep_status set_failed(struct planned *p)
{
    EEP_TRY(eep_mem_alloc(p->shape.seats, sizeof(*p->failed), "failed ranks", &p->failed));
    for (size_t i = 0; i < p->opts.dead.count; i++) {
        const uint32_t rank = p->opts.dead.values[i];

        if (rank >= p->shape.seats) {
            return EEP_FAIL(EEP_ERR_INVALID, "--dead %u: the ranks are 0 .. %u", rank,
                            p->shape.seats - 1);
        }
        p->failed[rank] = true;
    }
    if (p->opts.dead.values == NULL && p->file.failed != NULL) {
        memcpy(p->failed, p->file.failed, EEP_MIN(p->shape.seats, p->file.ranks) * sizeof(bool));
    }
    for (uint32_t s = 0; s < p->shape.seats; s++) {
        p->failed_count += p->failed[s];
    }
    return EEP_OK;
}

/* The current layout may be that of fewer ranks, or of smaller ones: the rest of the slots is new.
 */
static enum eep_status set_current(struct planned *p)
{
    const char *path = p->opts.current;
    const uint32_t stride = eep_eplb_slots_per_seat(&p->shape);
    struct eep_map_file file;
    enum eep_status status = EEP_OK;

    EEP_TRY(eep_map_file_read(path, p->shape.seats, &file));
    const uint32_t old_stride = file.shape.slots / file.shape.seats;
    if (file.layers != p->file.layers || file.experts > p->file.experts) {
        status = EEP_FAIL(EEP_ERR_FORMAT,
                          "%s: has %u layers and %u experts, but the loads have %u and %u", path,
                          file.layers, file.experts, p->file.layers, p->file.experts);
    } else if (file.shape.seats > p->shape.seats || old_stride > stride) {
        status = EEP_FAIL(EEP_ERR_FORMAT,
                          "%s: has %u ranks x %u slots, more than the %u x %u of the plan; ranks "
                          "that went are told by --dead",
                          path, file.shape.seats, old_stride, p->shape.seats, stride);
    } else {
        status =
            eep_mem_alloc((size_t)file.layers * p->slots, sizeof(*p->current), path, &p->current);
    }
    for (size_t i = 0; status == EEP_OK && i < (size_t)file.layers * p->slots; i++) {
        p->current[i] = EEP_NO_EXPERT;
    }
    for (size_t i = 0; status == EEP_OK && i < (size_t)file.layers * file.shape.slots; i++) {
        const size_t layer = i / file.shape.slots, slot = i % file.shape.slots;

        p->current[layer * p->slots + slot / old_stride * stride + slot % old_stride] = file.map[i];
    }
    eep_map_file_free(&file);
    return status;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The plan, several times for its processor time. */
static enum eep_status run(struct planned *p)
{
    const uint32_t layers = p->file.layers;
    const struct eep_eplb_ask ask = {
        .policy = strcmp(p->opts.policy, "eep") == 0 ? EEP_EPLB_EEP : EEP_EPLB_DEEPSEEK,
        .loads = p->file.loads,
        .failed = p->failed_count > 0 ? p->failed : NULL,
        .current = p->current,
        .max_copies = (uint32_t)EEP_MIN(p->opts.max_copies, EEP_EPLB_NO_LIMIT),
        .min_gain = p->opts.min_gain,
        .min_total = p->opts.min_tokens,
        .balance_first = p->opts.balance_first,
    };
    struct eep_eplb *eplb;
    uint64_t best = UINT64_MAX;
    enum eep_status status = EEP_OK;

    EEP_TRY(eep_eplb_create(&p->shape, &eplb));
    EEP_TRY_GOTO(eep_mem_alloc((size_t)layers * p->slots, sizeof(*p->maps), "layout", &p->maps),
                 destroy);
    EEP_TRY_GOTO(eep_mem_alloc((size_t)layers * p->shape.experts, sizeof(*p->counts), "replicas",
                               &p->counts),
                 destroy);
    EEP_TRY_GOTO(eep_mem_alloc(layers, sizeof(*p->results), "results", &p->results), destroy);
    for (uint32_t i = 0; i < p->opts.repeats; i++) {
        const uint64_t start = cpu_ns();

        EEP_TRY_GOTO(eep_eplb_plan_layers(eplb, &ask, layers, p->opts.max_copies_total, p->maps,
                                          p->counts, p->results),
                     destroy);
        best = EEP_MIN(best, cpu_ns() - start);
    }
    p->us_per_layer = (double)best / 1000.0 / layers;
destroy:
    eep_eplb_destroy(eplb);
    return status;
}

/* ---- the answer ---------------------------------------------------------------------------- */

struct sums {
    double before, after, worst, over, worst_over;
    uint64_t copies, lost, doubled;
    uint32_t most_copies, single_node;
};

static struct sums sum_up(const struct planned *p)
{
    const uint32_t layers = p->file.layers;
    struct sums s = {.worst = 1.0};

    for (uint32_t l = 0; l < layers; l++) {
        const struct eep_eplb_result *r = &p->results[l];
        const double over =
            r->lower_bound > 0.0 ? EEP_MAX(0.0, r->after.max_load / r->lower_bound - 1.0) : 0.0;

        s.before += r->before.balancedness / layers;
        s.after += r->after.balancedness / layers;
        s.worst = EEP_MIN(s.worst, r->after.balancedness);
        s.over += over / layers;
        s.worst_over = EEP_MAX(s.worst_over, over);
        s.copies += r->copies;
        s.most_copies = EEP_MAX(s.most_copies, r->copies);
        s.lost += r->lost;
        s.doubled += r->doubled;
        s.single_node = EEP_MAX(s.single_node, r->single_node);
    }
    return s;
}

static json_t *numbers(const int32_t *values, uint32_t count)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(list, json_integer(values[i]));
    }
    return list;
}

static json_t *layer_json(const struct planned *p, uint32_t layer)
{
    const struct eep_eplb_result *r = &p->results[layer];

    return json_pack("{s:i, s:s, s:f, s:f, s:f, s:f, s:i, s:i, s:i, s:i, s:f, s:i, s:i}", "layer",
                     (int)layer, "verdict", eep_eplb_verdict_text(r->verdict),
                     "balancedness_before", r->before.balancedness, "balancedness",
                     r->after.balancedness, "max_load", r->after.max_load, "lower_bound_max_load",
                     r->lower_bound, "copies", (int)r->copies, "lost", (int)r->lost, "doubled",
                     (int)r->doubled, "experts_on_one_node", (int)r->single_node, "best_gain",
                     r->best_gain, "best_copies", (int)r->best_copies, "turn", (int)r->turn);
}

static enum eep_status print_json(const struct planned *p)
{
    const struct sums s = sum_up(p);
    json_t *maps = json_array(), *counts = json_array(), *layers = json_array(),
           *dead = json_array();

    for (uint32_t l = 0; l < p->file.layers; l++) {
        json_array_append_new(maps, numbers(p->maps + (size_t)l * p->slots, p->slots));
        json_array_append_new(
            counts,
            numbers((const int32_t *)p->counts + (size_t)l * p->shape.experts, p->shape.experts));
        json_array_append_new(layers, layer_json(p, l));
    }
    for (uint32_t r = 0; r < p->shape.seats; r++) {
        if (p->failed[r]) {
            json_array_append_new(dead, json_integer(r));
        }
    }
    json_t *json = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "policy",
                             p->opts.policy, "num_layers", (int)p->file.layers, "num_experts",
                             (int)p->shape.experts, "num_slots", (int)p->shape.slots, "num_ranks",
                             (int)p->shape.seats, "num_nodes", (int)p->shape.nodes, "num_groups",
                             (int)p->shape.groups, "seats", (int)p->shape.seats, "slots_per_seat",
                             (int)eep_eplb_slots_per_seat(&p->shape), "dead", dead);
    json_t *figures = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:o, s:o, s:o}", "balancedness_before",
        s.before, "balancedness", s.after, "worst", s.worst, "over_lower_bound", s.over,
        "worst_over_lower_bound", s.worst_over, "copies", (json_int_t)s.copies, "lost",
        (json_int_t)s.lost, "doubled", (json_int_t)s.doubled, "us_per_layer", p->us_per_layer,
        "phy2log", maps, "logcnt", counts, "layers", layers);
    bool written = json != NULL && figures != NULL && json_object_update(json, figures) == 0;

    if (written && p->opts.expert_bytes > 0) {
        written =
            json_object_set_new(json, "bytes",
                                json_integer((json_int_t)(s.copies * p->opts.expert_bytes))) == 0;
    }
    written = written && json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0;
    json_decref(json);
    json_decref(figures);
    putchar('\n');
    return written ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

static void print_verdicts(const struct planned *p)
{
    for (int v = EEP_EPLB_FRESH; v <= EEP_EPLB_NO_BUDGET; v++) {
        uint32_t count = 0;

        for (uint32_t l = 0; l < p->file.layers; l++) {
            count += (int)p->results[l].verdict == v;
        }
        if (count > 0) {
            printf("%u of %u layers: %s\n", count, p->file.layers, eep_eplb_verdict_text(v));
        }
    }
}

static void print_layers(const struct planned *p)
{
    for (uint32_t l = 0; l < p->file.layers; l++) {
        const struct eep_eplb_result *r = &p->results[l];

        printf("layer %3u: balancedness %.4f -> %.4f, %u copies; %s", l, r->before.balancedness,
               r->after.balancedness, r->copies, eep_eplb_verdict_text(r->verdict));
        if (r->verdict == EEP_EPLB_NO_GAIN) {
            printf(" (largest load -%.2f %% for %u copies)", 100.0 * r->best_gain, r->best_copies);
        }
        putchar('\n');
    }
}

static void print_text(const struct planned *p)
{
    const struct sums s = sum_up(p);
    const uint32_t layers = p->file.layers;

    printf("policy %s: %u layers, %u experts, %u slots on %u ranks, %u nodes, %u ranks failed\n",
           p->opts.policy, layers, p->shape.experts, p->shape.slots, p->shape.seats, p->shape.nodes,
           p->failed_count);
    if (p->current != NULL) {
        printf("balancedness %.4f before\n", s.before);
    }
    printf("balancedness %.4f, worst layer %.4f; largest load %.3f %% above the lower bound, at "
           "worst %.3f %%\n",
           s.after, s.worst, 100.0 * s.over, 100.0 * s.worst_over);
    printf("%llu copies: %.1f a layer, %u at most", (unsigned long long)s.copies,
           (double)s.copies / layers, s.most_copies);
    if (p->opts.expert_bytes > 0) {
        printf(", %.2f GB", (double)s.copies * (double)p->opts.expert_bytes * 1e-9);
    }
    printf("; %llu experts had no live slot\n", (unsigned long long)s.lost);
    if (p->shape.nodes > 1) {
        printf("up to %u experts of a layer are on one node only\n", s.single_node);
    }
    print_verdicts(p);
    printf("%.1f us a layer\n", p->us_per_layer);
    if (p->opts.verbose) {
        print_layers(p);
    }
}

static enum eep_status plan(struct planned *p)
{
    EEP_TRY(eep_loads_file_read(p->opts.loads, p->opts.which, &p->file));
    EEP_TRY(set_shape(p));
    if (p->shape.slots < p->shape.experts || p->shape.slots > EEP_EPLB_SLOTS_MAX ||
        p->shape.seats > UINT16_MAX) { /* before memory is asked for */
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%u slots on %u ranks for %u experts: %u to %u slots and "
                        "1 to %u ranks are possible",
                        p->shape.slots, p->shape.seats, p->shape.experts, p->shape.experts,
                        EEP_EPLB_SLOTS_MAX, UINT16_MAX);
    }
    p->slots = eep_eplb_map_slots(&p->shape);
    EEP_TRY(set_failed(p));
    if (p->opts.current != NULL) {
        EEP_TRY(set_current(p));
    }
    EEP_TRY(run(p));
    if (p->opts.layout_out != NULL) {
        EEP_TRY(eep_map_file_write(p->opts.layout_out, p->file.layers, &p->shape, p->maps));
    }
    if (p->opts.json) {
        return print_json(p);
    }
    print_text(p);
    return EEP_OK;
}

int eep_layout_plan(int argc, char **argv)
{
    struct planned p = {.opts = {.policy = "eep",
                                 .repeats = 3,
                                 .max_copies = EEP_EPLB_NO_LIMIT,
                                 .max_copies_total = UINT64_MAX}};
    struct options *o = &p.opts;
    const struct eep_opt opts[] = {
        {"loads", EEP_OPT_STRING, &o->loads, "FILE", "loads of the experts (JSON); needed"},
        {"case", EEP_OPT_STRING, &o->which, "N", "which of several instances in FILE"},
        {"policy", EEP_OPT_STRING, &o->policy, "NAME", "eep (default) or deepseek"},
        {"slots", EEP_OPT_U32, &o->slots, "N", "slots of all ranks"},
        {"ranks", EEP_OPT_U32, &o->ranks, "R", "ranks (seats)"},
        {"nodes", EEP_OPT_U32, &o->nodes, "M", "nodes that the ranks are on (default 1)"},
        {"groups", EEP_OPT_U32, &o->groups, "G", "expert groups, for policy deepseek (default 1)"},
        {"dead", EEP_OPT_U32_LIST, &o->dead, "3,7", "failed ranks"},
        {"current", EEP_OPT_STRING, &o->current, "FILE", "the layout that is loaded now"},
        {"max-copies", EEP_OPT_U64, &o->max_copies, "K",
         "at most so many copies a layer, for policy eep; lost\nexperts are copied all the same"},
        {"max-copies-total", EEP_OPT_U64, &o->max_copies_total, "K",
         "at most so many copies in all, where they gain most"},
        {"expert-bytes", EEP_OPT_U64, &o->expert_bytes, "N", "of one expert, to tell bytes"},
        {"min-gain", EEP_OPT_DOUBLE, &o->min_gain, "X",
         "keep a layer unless its largest load falls by this part"},
        {"min-tokens", EEP_OPT_DOUBLE, &o->min_tokens, "N",
         "keep a layer when less was counted in it"},
        {"balance-first", EEP_OPT_FLAG, &o->balance_first, NULL,
         "not every expert on two nodes, where slots allow\nthat but it costs balance"},
        {"layout-out", EEP_OPT_STRING, &o->layout_out, "FILE", "write the layout for --layout"},
        {"repeats", EEP_OPT_U32, &o->repeats, "N", "runs; the fastest is told (default 3)"},
        {"verbose", EEP_OPT_FLAG, &o->verbose, NULL, "a line per layer"},
        {"json", EEP_OPT_FLAG, &o->json, NULL, "one JSON object"},
    };

    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (o->loads == NULL) {
        return eep_opts_wrong(&help, "--loads is needed");
    }
    if (strcmp(o->policy, "eep") != 0 && strcmp(o->policy, "deepseek") != 0) {
        return eep_opts_wrong(&help, "--policy is eep or deepseek, not '%s'", o->policy);
    }
    if (o->repeats == 0 || o->min_gain < 0.0 || o->min_gain > 1.0) {
        return eep_opts_wrong(&help, "--repeats must be 1 or more, --min-gain 0 to 1");
    }
    const enum eep_status status = eep_tool_speaks() ? plan(&p) : EEP_OK;
    eep_loads_file_free(&p.file);
    eep_mem_free(p.failed);
    eep_mem_free(p.current);
    eep_mem_free(p.maps);
    eep_mem_free(p.counts);
    eep_mem_free(p.results);
    free(o->dead.values);
    return status == EEP_OK ? EEP_EXIT_OK : eep_tool_failed();
}
