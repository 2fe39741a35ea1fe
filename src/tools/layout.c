/*
 * `eep layout`: looks at expert layouts without a model. Here: which part, what the parts share,
 * and diff; the others are in layout_verify.c, layout_explain.c, layout_plan.c.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tools/layout_files.h"
#include "tools/layout_tool.h"
#include "tools/opts.h"
#include "tools/tools.h"

static const struct eep_command_help layout_help = {
    .usage = "eep layout plan|verify|diff|explain [options] [FILE...]",
    .summary = "Look at expert layouts, and plan them, without a model.\n\n"
               "  plan      a layout for given loads\n"
               "  verify    does each expert have a slot, and none two on one rank?\n"
               "  diff      which slots differ, and what the change copies\n"
               "  explain   replicas, loads of the ranks, what a layout survives\n\n"
               "`eep layout PART --help` tells a part's options.",
    .epilog = "files of layouts:\n"
              "  {\"seats\": R, \"slots_per_seat\": S, \"phys2log\": [[R * S ids or -1], ...]}\n"
              "  the output of `eep layout plan --json`, or reference outputs of the balancer\n"
              "files of loads:\n"
              "  {\"loads\": [[a number per expert], ... one list per MoE layer]}",
};

int eep_layout_parse(const struct eep_command_help *help, const struct eep_opt *opts,
                     size_t opt_count, int argc, char **argv, struct eep_layout_words *words)
{
    words->count = 0;
    while (argc > 1) {
        int rest;
        const int result = eep_opts_parse(help, opts, opt_count, argc, argv, &rest);

        if (result != EEP_OPTS_GO_ON) {
            return result;
        }
        for (bool plain = strcmp(argv[rest - 1], "--") == 0; rest < argc; rest++) {
            if (words->count == EEP_LAYOUT_FILES_MAX) {
                eep_opts_wrong(help, "more than %d files", EEP_LAYOUT_FILES_MAX);
                return EEP_EXIT_USAGE;
            }
            words->files[words->count++] = argv[rest];
            if (!plain) {
                break;
            }
        }
        argc -= EEP_MIN(rest, argc - 1);
        argv += rest;
    }
    return EEP_OPTS_GO_ON;
}

enum eep_status eep_layout_print_json(json_t *json)
{
    const bool written = json != NULL && json_dumpf(json, stdout, JSON_COMPACT) == 0;

    json_decref(json);
    putchar('\n');
    return written ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

/* ---- what the loss of a rank takes
 * ------------------------------------------------------------------ */

/* First and last seat, and node, of each expert: equal when there is only one. */
enum eep_status eep_layout_losses(const struct eep_eplb_shape *shape, const int32_t *map,
                                  struct eep_layout_losses *losses)
{
    const uint32_t stride = eep_eplb_slots_per_seat(shape);
    uint32_t *first, *last;

    memset(losses->of_rank, 0, shape->seats * sizeof(uint32_t));
    memset(losses->of_node, 0, shape->nodes * sizeof(uint32_t));
    losses->worst_rank = losses->worst_node = losses->rank_count = losses->node_count = 0;
    EEP_TRY(eep_mem_alloc(2 * (size_t)shape->experts, sizeof(*first), "seats of experts", &first));
    last = first + shape->experts;
    memset(first, 0xff, 2 * (size_t)shape->experts * sizeof(*first));
    for (uint32_t p = 0; p < shape->seats * stride; p++) {
        if (map[p] != EEP_NO_EXPERT) {
            last[map[p]] = p / stride;
            first[map[p]] = EEP_MIN(first[map[p]], p / stride);
        }
    }
    for (uint32_t e = 0; e < shape->experts; e++) {
        if (first[e] == UINT32_MAX) {
            continue;
        }
        const uint32_t node = eep_eplb_node_of(shape, first[e]);

        losses->of_rank[first[e]] += first[e] == last[e];
        losses->of_node[node] += node == eep_eplb_node_of(shape, last[e]);
    }
    for (uint32_t s = 0; s < shape->seats; s++) {
        if (losses->of_rank[s] > losses->rank_count) {
            losses->worst_rank = s;
            losses->rank_count = losses->of_rank[s];
        }
    }
    for (uint32_t n = 0; n < shape->nodes; n++) {
        if (losses->of_node[n] > losses->node_count) {
            losses->worst_node = n;
            losses->node_count = losses->of_node[n];
        }
    }
    eep_mem_free(first);
    return EEP_OK;
}

enum eep_status eep_layout_losses_make(const struct eep_eplb_shape *shape,
                                       struct eep_layout_losses *losses_out)
{
    struct eep_layout_losses losses = {0};

    EEP_TRY(eep_mem_alloc((size_t)shape->seats + shape->nodes, sizeof(uint32_t), "losses",
                          &losses.of_rank));
    losses.of_node = losses.of_rank + shape->seats;
    *losses_out = losses;
    return EEP_OK;
}

/* ---- diff ---------------------------------------------------------------------------------- */

struct diff {
    uint32_t ranks;
    uint64_t expert_bytes;
    bool json;
    uint64_t slots, copies; /* of all layers */
    json_t *layers;
};

static enum eep_status diff_layer(struct diff *d, const struct eep_map_file *a,
                                  const struct eep_map_file *b, uint32_t layer)
{
    const int32_t *old = a->map + (size_t)layer * a->shape.slots;
    const int32_t *new = b->map + (size_t)layer * b->shape.slots;
    const uint32_t copies = eep_eplb_copies(&b->shape, NULL, old, new);
    json_t *slots = json_array();
    uint32_t count = 0;

    for (uint32_t p = 0; p < a->shape.slots; p++) {
        if (old[p] == new[p]) {
            continue;
        }
        count++;
        if (d->json) {
            json_array_append_new(slots, json_pack("[i, i, i]", (int)p, old[p], new[p]));
        } else {
            printf("layer %u rank %u slot %u: %d -> %d\n", layer,
                   p / (b->shape.slots / b->shape.seats), p, old[p], new[p]);
        }
    }
    d->slots += count;
    d->copies += copies;
    if (count > 0) {
        json_array_append_new(d->layers, json_pack("{s:i, s:i, s:O}", "layer", (int)layer, "copies",
                                                   (int)copies, "slots", slots));
    }
    json_decref(slots);
    return EEP_OK;
}

static enum eep_status diff_files(struct diff *d, const char *old_path, const char *new_path)
{
    struct eep_map_file a = {0}, b = {0};
    enum eep_status status;

    EEP_TRY_GOTO(eep_map_file_read(old_path, d->ranks, &a), free_files);
    EEP_TRY_GOTO(eep_map_file_read(new_path, d->ranks, &b), free_files);
    if (a.layers != b.layers || a.shape.seats != b.shape.seats || a.shape.slots != b.shape.slots) {
        status =
            EEP_FAIL(EEP_ERR_FORMAT,
                     "%s has %u layers, %u ranks, %u slots; %s has %u, %u, %u: only layouts of "
                     "the same shape can be compared",
                     old_path, a.layers, a.shape.seats, a.shape.slots, new_path, b.layers,
                     b.shape.seats, b.shape.slots);
        goto free_files;
    }
    d->layers = json_array();
    for (uint32_t l = 0; l < a.layers; l++) {
        EEP_TRY_GOTO(diff_layer(d, &a, &b, l), free_layers);
    }
    const uint64_t bytes = d->copies * d->expert_bytes;
    if (d->json) {
        status = eep_layout_print_json(
            json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:O}", "old", old_path, "new", new_path,
                      "equal", d->slots == 0, "slots", (json_int_t)d->slots, "copies",
                      (json_int_t)d->copies, "bytes", (json_int_t)bytes, "layers", d->layers));
    } else {
        printf("%llu slots differ in %zu of %u layers; %llu copies, %.3f GB\n",
               (unsigned long long)d->slots, json_array_size(d->layers), a.layers,
               (unsigned long long)d->copies, (double)bytes * 1e-9);
    }
free_layers:
    json_decref(d->layers);
free_files:
    eep_map_file_free(&a);
    eep_map_file_free(&b);
    return status;
}

int eep_layout_diff(int argc, char **argv)
{
    static const struct eep_command_help help = {
        .usage = "eep layout diff OLD NEW [options]",
        .summary = "Tell which slots differ between two layouts, and the copies that the change\n"
                   "costs: pairs of rank and expert that NEW has and OLD has not.",
    };
    struct diff d = {0};
    struct eep_layout_words words;
    const struct eep_opt opts[] = {
        {"ranks", EEP_OPT_U32, &d.ranks, "R", "of files that do not say"},
        {"expert-bytes", EEP_OPT_U64, &d.expert_bytes, "N", "of one expert, to tell bytes"},
        {"json", EEP_OPT_FLAG, &d.json, NULL, "one JSON object"},
    };

    const int ended =
        eep_layout_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, &words);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (words.count != 2) {
        return eep_opts_wrong(&help, "two files are needed, not %u", words.count);
    }
    if (eep_tool_speaks() && diff_files(&d, words.files[0], words.files[1]) != EEP_OK) {
        return eep_tool_failed();
    }
    return EEP_EXIT_OK;
}

/* ---- the command --------------------------------------------------------------------------- */

int eep_cmd_layout(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } parts[] = {
        {"plan", eep_layout_plan},
        {"verify", eep_layout_verify},
        {"diff", eep_layout_diff},
        {"explain", eep_layout_explain},
    };
    int rest;

    const int ended = eep_opts_parse(&layout_help, NULL, 0, argc < 2 ? argc : 2, argv, &rest);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (argc < 2) {
        return eep_opts_wrong(&layout_help, "which part?");
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strcmp(argv[1], parts[i].name) == 0) {
            return parts[i].run(argc - 1, argv + 1);
        }
    }
    return eep_opts_wrong(&layout_help, "there is no part '%s'", argv[1]);
}
