/* `eep layout explain`: what a layout means, layer by layer. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tools/layout_tool.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep layout explain FILE [options]",
    .summary =
        "Tell for each layer how often experts are replicated, what the loss of a rank or a\n"
        "node would take, and with --loads how even the loads of the ranks are.",
};

struct explain {
    const char *path, *loads_path, *which;
    uint32_t ranks, nodes, layer;
    bool json;
    struct eep_map_file file;
    struct eep_loads_file loads;
    struct eep_layout_losses losses;
    uint32_t *counts;    /* (experts) */
    uint32_t *histogram; /* (seats * slots + 1) experts with so many replicas */
    double *seat_loads;  /* (seats) */
};

static enum eep_status read_files(struct explain *x)
{
    EEP_TRY(eep_map_file_read(x->path, x->ranks, &x->file));
    x->file.shape.nodes = EEP_MIN(x->nodes, x->file.shape.seats);
    if (x->layer != UINT32_MAX && x->layer >= x->file.layers) {
        return EEP_FAIL(EEP_ERR_INVALID, "--layer %u: %s has layers 0 .. %u", x->layer, x->path,
                        x->file.layers - 1);
    }
    if (x->loads_path == NULL) {
        return EEP_OK;
    }
    EEP_TRY(eep_loads_file_read(x->loads_path, x->which, &x->loads));
    if (x->loads.layers != x->file.layers || x->loads.experts < x->file.experts) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s has %u layers of %u experts, but %s has %u of %u",
                        x->loads_path, x->loads.layers, x->loads.experts, x->path, x->file.layers,
                        x->file.experts);
    }
    x->file.shape.experts = x->loads.experts;
    return EEP_OK;
}

static json_t *replicas_json(const struct explain *x)
{
    json_t *replicas = json_object();

    for (uint32_t n = 0; n <= x->file.shape.slots; n++) {
        char key[16];

        if (x->histogram[n] > 0) {
            snprintf(key, sizeof(key), "%u", n);
            json_object_set_new(replicas, key, json_integer(x->histogram[n]));
        }
    }
    return replicas;
}

static json_t *loads_json(const struct explain *x, const struct eep_eplb_balance *balance)
{
    json_t *loads = json_array();

    for (uint32_t s = 0; s < x->file.shape.seats; s++) {
        json_array_append_new(loads, json_real(x->seat_loads[s]));
    }
    return json_pack("{s:f, s:f, s:f, s:o}", "balancedness", balance->balancedness, "max_load",
                     balance->max_load, "mean_load", balance->mean_load, "rank_loads", loads);
}

static enum eep_status print_json(const struct explain *x, uint32_t layer, uint32_t empty,
                                  const struct eep_eplb_balance *balance)
{
    const struct eep_layout_losses *l = &x->losses;
    json_t *json = json_pack("{s:i, s:o, s:i, s:b, s:i, s:i}", "layer", (int)layer, "replicas",
                             replicas_json(x), "empty_slots", (int)empty, "survives_any_rank",
                             l->rank_count == 0 && x->histogram[0] == 0, "lost_with_worst_rank",
                             (int)l->rank_count, "worst_rank", (int)l->worst_rank);

    if (json != NULL && x->file.shape.nodes > 1) {
        json_object_set_new(json, "survives_any_node",
                            json_boolean(l->node_count == 0 && x->histogram[0] == 0));
        json_object_set_new(json, "lost_with_worst_node", json_integer(l->node_count));
        json_object_set_new(json, "worst_node", json_integer(l->worst_node));
    }
    if (json != NULL && balance != NULL) {
        json_t *loads = loads_json(x, balance);

        json_object_update(json, loads);
        json_decref(loads);
    }
    return eep_layout_print_json(json);
}

static void print_loss(const char *what, uint32_t count, uint32_t which)
{
    if (count == 0) {
        printf("  the loss of any one %s leaves every expert a slot\n", what);
    } else {
        printf("  the loss of %s %u would take the only slots of %u experts\n", what, which, count);
    }
}

/* The ranks whose loads are the largest and the smallest. */
static void print_loads(const struct explain *x, const struct eep_eplb_balance *balance)
{
    uint32_t fullest = 0, emptiest = 0;

    for (uint32_t s = 1; s < x->file.shape.seats; s++) {
        fullest = x->seat_loads[s] > x->seat_loads[fullest] ? s : fullest;
        emptiest = x->seat_loads[s] < x->seat_loads[emptiest] ? s : emptiest;
    }
    printf("  balancedness %.4f: rank loads from %.6g (rank %u) to %.6g (rank %u), mean %.6g\n",
           balance->balancedness, x->seat_loads[emptiest], emptiest, balance->max_load, fullest,
           balance->mean_load);
}

static void print_text(const struct explain *x, uint32_t layer, uint32_t empty,
                       const struct eep_eplb_balance *balance)
{
    const char *comma = "";

    printf("layer %u: ", layer);
    for (uint32_t n = 0; n <= x->file.shape.slots; n++) {
        if (x->histogram[n] > 0) {
            printf("%s%u experts with %u %s", comma, x->histogram[n], n, n == 1 ? "slot" : "slots");
            comma = ", ";
        }
    }
    printf("; %u slots empty\n", empty);
    print_loss("rank", x->losses.rank_count, x->losses.worst_rank);
    if (x->file.shape.nodes > 1) {
        print_loss("node", x->losses.node_count, x->losses.worst_node);
    }
    if (balance != NULL) {
        print_loads(x, balance);
    }
}

static enum eep_status explain_layer(struct explain *x, uint32_t layer)
{
    const struct eep_eplb_shape *shape = &x->file.shape;
    const int32_t *map = x->file.map + (size_t)layer * shape->slots;
    const bool loaded = x->loads_path != NULL;
    struct eep_eplb_balance balance;
    uint32_t used = 0;

    eep_eplb_count(shape, NULL, map, x->counts);
    memset(x->histogram, 0, ((size_t)shape->slots + 1) * sizeof(*x->histogram));
    for (uint32_t e = 0; e < shape->experts; e++) {
        x->histogram[x->counts[e]]++;
        used += x->counts[e];
    }
    EEP_TRY(eep_layout_losses(shape, map, &x->losses));
    if (loaded) {
        eep_eplb_measure(shape, x->loads.loads + (size_t)layer * shape->experts, NULL, map,
                         x->counts, x->seat_loads, &balance);
    }
    if (x->json) {
        return print_json(x, layer, shape->slots - used, loaded ? &balance : NULL);
    }
    print_text(x, layer, shape->slots - used, loaded ? &balance : NULL);
    return EEP_OK;
}

static enum eep_status explain(struct explain *x)
{
    const struct eep_eplb_shape *shape = &x->file.shape;

    EEP_TRY(read_files(x));
    EEP_TRY(eep_layout_losses_make(shape, &x->losses));
    EEP_TRY(eep_mem_alloc(shape->experts, sizeof(*x->counts), "replicas", &x->counts));
    EEP_TRY(
        eep_mem_alloc((size_t)shape->slots + 1, sizeof(*x->histogram), "replicas", &x->histogram));
    EEP_TRY(eep_mem_alloc(shape->seats, sizeof(*x->seat_loads), "loads", &x->seat_loads));
    if (!x->json) {
        printf("%s: %u layers, %u experts, %u ranks x %u slots, %u nodes\n", x->path,
               x->file.layers, shape->experts, shape->seats, shape->slots / shape->seats,
               shape->nodes);
    }
    for (uint32_t l = 0; l < x->file.layers; l++) {
        if (x->layer == UINT32_MAX || x->layer == l) {
            EEP_TRY(explain_layer(x, l));
        }
    }
    return EEP_OK;
}

int eep_layout_explain(int argc, char **argv)
{
    struct explain x = {.nodes = 1, .layer = UINT32_MAX};
    struct eep_layout_words words;
    enum eep_status status = EEP_OK;
    const struct eep_opt opts[] = {
        {"loads", EEP_OPT_STRING, &x.loads_path, "FILE", "loads of the experts (JSON)"},
        {"case", EEP_OPT_STRING, &x.which, "N", "which of several instances in the loads"},
        {"ranks", EEP_OPT_U32, &x.ranks, "R", "of a file that does not say"},
        {"nodes", EEP_OPT_U32, &x.nodes, "M", "nodes that the ranks are on (default 1)"},
        {"layer", EEP_OPT_U32, &x.layer, "L", "only this one"},
        {"json", EEP_OPT_FLAG, &x.json, NULL, "one JSON object per layer"},
    };

    const int ended =
        eep_layout_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, &words);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (words.count != 1 || x.nodes == 0) {
        return eep_opts_wrong(&help,
                              words.count != 1 ? "one file is needed" : "--nodes is 1 or more");
    }
    x.path = words.files[0];
    if (eep_tool_speaks()) {
        status = explain(&x);
    }
    eep_map_file_free(&x.file);
    eep_loads_file_free(&x.loads);
    eep_mem_free(x.losses.of_rank);
    eep_mem_free(x.counts);
    eep_mem_free(x.histogram);
    eep_mem_free(x.seat_loads);
    return status == EEP_OK ? EEP_EXIT_OK : eep_tool_failed();
}
