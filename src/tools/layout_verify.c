/* `eep layout verify`: what is wrong with layouts. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tools/layout_tool.h"
#include "tools/tools.h"

#define PROBLEMS_MAX 20 /* that are told for a file */

struct verify {
    uint32_t experts, ranks, nodes;
    bool survives, json;
    uint32_t problem_count;
    json_t *problems; /* the first PROBLEMS_MAX, as texts */
};

static void problem(struct verify *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void problem(struct verify *v, const char *fmt, ...)
{
    char text[256];
    va_list args;

    if (v->problem_count++ < PROBLEMS_MAX) {
        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        json_array_append_new(v->problems, json_string(text));
    }
}

static bool seat_holds(const int32_t *seat_map, uint32_t count, int32_t expert)
{
    for (uint32_t i = 0; i < count; i++) {
        if (seat_map[i] == expert) {
            return true;
        }
    }
    return false;
}

/* Another seat without this expert, so that two in one seat waste a slot. */
static bool elsewhere(const struct eep_eplb_shape *shape, const int32_t *map, int32_t expert)
{
    const uint32_t stride = eep_eplb_slots_per_seat(shape);

    for (uint32_t s = 0; s < shape->seats; s++) {
        const int32_t *seat_map = map + (size_t)s * stride;
        bool empty = true;

        for (uint32_t i = 0; i < stride; i++) {
            empty = empty && seat_map[i] == EEP_NO_EXPERT;
        }
        if (!empty && !seat_holds(seat_map, stride, expert)) {
            return true;
        }
    }
    return false;
}

static void verify_layer(struct verify *v, const struct eep_map_file *file, uint32_t layer,
                         const uint32_t *counts)
{
    const struct eep_eplb_shape *shape = &file->shape;
    const int32_t *map = file->map + (size_t)layer * shape->slots;
    const uint32_t stride = eep_eplb_slots_per_seat(shape);

    for (uint32_t e = 0; e < shape->experts; e++) {
        if (counts[e] == 0) {
            problem(v, "layer %u: expert %u has no slot", layer, e);
        }
    }
    for (uint32_t p = 0; p < shape->slots; p++) {
        const uint32_t first = p / stride * stride;

        if (map[p] != EEP_NO_EXPERT && seat_holds(map + first, p - first, map[p]) &&
            elsewhere(shape, map, map[p])) {
            problem(v, "layer %u: slot %u repeats expert %d of rank %u, which other ranks have not",
                    layer, p, map[p], p / stride);
        }
    }
}

static enum eep_status verify_layers(struct verify *v, struct eep_map_file *file)
{
    struct eep_layout_losses losses;
    uint32_t *counts;
    enum eep_status status;

    if (v->experts != 0 && file->experts > v->experts) {
        problem(v, "expert %u is named, but there are experts 0 .. %u only", file->experts - 1,
                v->experts - 1);
    }
    file->shape.experts = EEP_MAX(file->experts, v->experts);
    file->shape.nodes = EEP_MIN(v->nodes, file->shape.seats);
    EEP_TRY(eep_layout_losses_make(&file->shape, &losses));
    EEP_TRY_GOTO(eep_mem_alloc(file->shape.experts, sizeof(*counts), "replicas", &counts),
                 free_losses);
    for (uint32_t l = 0; l < file->layers; l++) {
        const int32_t *map = file->map + (size_t)l * file->shape.slots;

        eep_eplb_count(&file->shape, NULL, map, counts);
        verify_layer(v, file, l, counts);
        EEP_TRY_GOTO(eep_layout_losses(&file->shape, map, &losses), free_counts);
        const bool by_node = file->shape.nodes > 1;
        const uint32_t lost = by_node ? losses.node_count : losses.rank_count;
        if (v->survives && lost > 0) {
            problem(v, "layer %u: %u experts would be lost with %s %u", l, lost,
                    by_node ? "node" : "rank", by_node ? losses.worst_node : losses.worst_rank);
        }
    }
free_counts:
    eep_mem_free(counts);
free_losses:
    eep_mem_free(losses.of_rank);
    return status;
}

static enum eep_status verify_file(struct verify *v, const char *path)
{
    struct eep_map_file file = {0};
    size_t i;
    json_t *text;

    v->problem_count = 0;
    v->problems = json_array();
    enum eep_status status = eep_map_file_read(path, v->ranks, &file);
    if (status == EEP_ERR_FORMAT) {
        const char *said = eep_error_text();
        const size_t name = strlen(path);

        /* the file is named in front of every problem */
        problem(v, "%s",
                strncmp(said, path, name) == 0 && said[name] == ':' ? said + name + 2 : said);
        status = EEP_OK;
    } else if (status == EEP_OK) {
        status = verify_layers(v, &file);
    }
    if (status == EEP_OK && v->json) {
        status = eep_layout_print_json(
            json_pack("{s:s, s:b, s:i, s:O, s:i, s:i, s:i, s:i}", "file", path, "ok",
                      v->problem_count == 0, "problem_count", (int)v->problem_count, "problems",
                      v->problems, "layers", (int)file.layers, "experts", (int)file.shape.experts,
                      "seats", (int)file.shape.seats, "slots", (int)file.shape.slots));
    } else if (status == EEP_OK) {
        json_array_foreach(v->problems, i, text)
        {
            printf("%s: %s\n", path, json_string_value(text));
        }
        if (v->problem_count > PROBLEMS_MAX) {
            printf("%s: and %u more\n", path, v->problem_count - PROBLEMS_MAX);
        } else if (v->problem_count == 0) {
            printf("%s: good: %u layers, %u experts, %u ranks x %u slots\n", path, file.layers,
                   file.shape.experts, file.shape.seats, file.shape.slots / file.shape.seats);
        }
    }
    json_decref(v->problems);
    eep_map_file_free(&file);
    return status;
}

int eep_layout_verify(int argc, char **argv)
{
    static const struct eep_command_help help = {
        .usage = "eep layout verify FILE... [options]",
        .summary =
            "Check layouts: each expert has a slot in each layer, and no rank holds an expert\n"
            "twice while another has it not. Exit status 1 when something is wrong.",
    };
    struct verify v = {.nodes = 1};
    struct eep_layout_words words;
    bool bad = false;
    const struct eep_opt opts[] = {
        {"experts", EEP_OPT_U32, &v.experts, "E",
         "experts of a layer (default: the largest number + 1)"},
        {"ranks", EEP_OPT_U32, &v.ranks, "R", "of a file that does not say"},
        {"nodes", EEP_OPT_U32, &v.nodes, "M", "nodes that the ranks are on (default 1)"},
        {"survives", EEP_OPT_FLAG, &v.survives, NULL,
         "wrong also when the loss of one node (one rank, on a\nsingle node) loses an expert"},
        {"json", EEP_OPT_FLAG, &v.json, NULL, "one JSON object per file"},
    };

    const int ended =
        eep_layout_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, &words);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (words.count == 0 || v.nodes == 0 || v.experts > EEP_EPLB_EXPERTS_MAX) {
        return eep_opts_wrong(&help, words.count == 0
                                         ? "which file?"
                                         : "--nodes is 1 or more, --experts up to 65535");
    }
    for (uint32_t i = 0; i < words.count && eep_tool_speaks(); i++) {
        if (verify_file(&v, words.files[i]) != EEP_OK) {
            return eep_tool_failed();
        }
        bad |= v.problem_count > 0;
    }
    return bad ? EEP_EXIT_FAILED : EEP_EXIT_OK;
}
