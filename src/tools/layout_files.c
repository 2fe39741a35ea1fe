/* Files of the offline commands; see layout_files.h. */
#include "tools/layout_files.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define MAX_LAYERS 10000u
#define MAX_ROW EEP_EPLB_SLOTS_MAX

/* A count under any of two names; 0 if the file has none. */
static enum eep_status read_count(const char *path, const json_t *json, const char *key,
                                  const char *other_key, uint32_t *count_out)
{
    const json_t *value = json_object_get(json, key);

    if (value == NULL && other_key != NULL) {
        key = other_key;
        value = json_object_get(json, key);
    }
    if (value == NULL) {
        *count_out = 0;
        return EEP_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > INT32_MAX) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: '%s' is no positive whole number", path, key);
    }
    *count_out = (uint32_t)json_integer_value(value);
    return EEP_OK;
}

/* Rows of the same length. */
static enum eep_status check_rows(const char *path, const char *key, const json_t *rows,
                                  uint32_t *layers_out, uint32_t *length_out)
{
    const size_t layers = json_array_size(rows), length = json_array_size(json_array_get(rows, 0));

    if (layers == 0 || layers > MAX_LAYERS || length == 0 || length > MAX_ROW) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: '%s' has %zu lists, the first with %zu entries: 1 to %u lists of 1 to "
                        "%u are possible",
                        path, key, layers, length, MAX_LAYERS, MAX_ROW);
    }
    for (size_t l = 0; l < layers; l++) {
        const json_t *row = json_array_get(rows, l);

        if (!json_is_array(row) || json_array_size(row) != length) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: %s[%zu] has %zu entries where the first list has %zu", path, key,
                            l, json_array_size(row), length);
        }
    }
    *layers_out = (uint32_t)layers;
    *length_out = (uint32_t)length;
    return EEP_OK;
}

/* Failed ranks: "active_ranks": [1, 0, ...] or "dead": [3, 7]; NULL if the file names none. */
static enum eep_status read_failed(const char *path, const json_t *json, uint32_t ranks,
                                   bool **failed_out)
{
    const json_t *active = json_object_get(json, "active_ranks");
    const json_t *dead = json_object_get(json, "dead");
    bool *failed;

    *failed_out = NULL;
    if (ranks == 0 || (active == NULL && json_array_size(dead) == 0)) {
        return EEP_OK;
    }
    if (active != NULL && json_array_size(active) != ranks) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: 'active_ranks' has %zu entries for %u ranks", path,
                        json_array_size(active), ranks);
    }
    EEP_TRY(eep_mem_alloc(ranks, sizeof(*failed), "failed ranks", &failed));
    for (uint32_t r = 0; active != NULL && r < ranks; r++) {
        failed[r] = json_integer_value(json_array_get(active, r)) == 0;
    }
    for (size_t i = 0; i < json_array_size(dead); i++) {
        const json_t *rank = json_array_get(dead, i);

        if (!json_is_integer(rank) || json_integer_value(rank) < 0 ||
            json_integer_value(rank) >= ranks) {
            eep_mem_free(failed);
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: dead[%zu] is no rank of 0 .. %u", path, i,
                            ranks - 1);
        }
        failed[json_integer_value(rank)] = true;
    }
    *failed_out = failed;
    return EEP_OK;
}

/* ---- loads --------------------------------------------------------------------------------- */

static enum eep_status read_load(const char *path, const json_t *value, uint32_t layer,
                                 uint32_t expert, double *load_out)
{
    if (!json_is_number(value)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: loads[%u][%u] is no number", path, layer, expert);
    }
    *load_out = json_number_value(value);
    return EEP_OK;
}

static enum eep_status read_rows(const char *path, const json_t *rows, struct eep_loads_file *file)
{
    enum eep_status status;
    double *loads;

    if (json_is_number(json_array_get(rows, 0))) { /* one layer */
        file->layers = 1;
        file->experts = (uint32_t)EEP_MIN(json_array_size(rows), MAX_ROW);
    } else {
        EEP_TRY(check_rows(path, "loads", rows, &file->layers, &file->experts));
    }
    EEP_TRY(eep_mem_alloc((size_t)file->layers * file->experts, sizeof(*loads), "loads", &loads));
    for (uint32_t l = 0; l < file->layers; l++) {
        const json_t *row = json_array_get(rows, l);

        row = json_is_array(row) ? row : rows;
        for (uint32_t e = 0; e < file->experts; e++) {
            EEP_TRY_GOTO(read_load(path, json_array_get(row, e), l, e,
                                   &loads[(size_t)l * file->experts + e]),
                         free_loads);
        }
    }
    file->loads = loads;
    return EEP_OK;

free_loads:
    eep_mem_free(loads);
    return status;
}

/* The file that "loads_file" names: in the folder of `path`, or the one above. */
static enum eep_status read_other(const char *path, const char *name, struct eep_loads_file *file)
{
    const char *slash = strrchr(path, '/');
    const int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    char other[4096];
    enum eep_status status = EEP_ERR_IO;
    json_t *json;

    for (int above = 0; above < 2 && status == EEP_ERR_IO; above++) {
        const int length =
            snprintf(other, sizeof(other), "%.*s%s%s", folder, path, above ? "../" : "", name);

        if (length < 0 || (size_t)length >= sizeof(other)) {
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: 'loads_file' is too long a path", path);
        }
        status = eep_json_load(other, MAX_FILE_BYTES, &json);
    }
    if (status != EEP_OK) {
        return status;
    }
    status = read_rows(other, json_object_get(json, "loads"), file);
    json_decref(json);
    return status;
}

/* The object to read: the file itself, or one of its instances. */
static enum eep_status pick_instance(const char *path, const json_t *json, const char *which,
                                     const json_t **one_out)
{
    const json_t *list = json_object_get(json, "instances");
    char *end = NULL;

    list = list != NULL ? list : json_object_get(json, "cases");
    if (list == NULL || which == NULL) {
        if (list != NULL) {
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: has %zu instances: say which by --case", path,
                            json_array_size(list));
        }
        if (which != NULL) {
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: has no instances, so --case %s means nothing",
                            path, which);
        }
        *one_out = json;
        return EEP_OK;
    }
    const unsigned long index = strtoul(which, &end, 10);
    *one_out = end != which && *end == '\0' ? json_array_get(list, index) : NULL;
    for (size_t i = 0; i < json_array_size(list) && *one_out == NULL; i++) {
        const char *id = json_string_value(json_object_get(json_array_get(list, i), "id"));

        *one_out = id != NULL && strcmp(id, which) == 0 ? json_array_get(list, i) : NULL;
    }
    return *one_out != NULL ? EEP_OK
                            : EEP_FAIL(EEP_ERR_FORMAT, "%s: has no instance '%s' among its %zu",
                                       path, which, json_array_size(list));
}

static enum eep_status read_loads(const char *path, const json_t *json, const char *which,
                                  struct eep_loads_file *file)
{
    const json_t *one, *rows, *other;
    uint32_t redundant;

    EEP_TRY(pick_instance(path, json, which, &one));
    EEP_TRY(read_count(path, one, "num_slots", "slots", &file->slots));
    EEP_TRY(read_count(path, one, "num_ranks", "ranks", &file->ranks));
    EEP_TRY(read_count(path, one, "num_nodes", "nodes", &file->nodes));
    EEP_TRY(read_count(path, one, "num_groups", "groups", &file->groups));
    rows = json_object_get(one, "loads");
    rows = rows != NULL ? rows : json_object_get(one, "load");
    other = json_object_get(one, "loads_file");
    if (rows != NULL) {
        EEP_TRY(read_rows(path, rows, file));
    } else if (json_is_string(other)) {
        EEP_TRY(read_other(path, json_string_value(other), file));
    } else {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: has no 'loads'", path);
    }
    if (file->slots == 0 && json_integer_value(json_object_get(one, "redundant")) > 0) {
        EEP_TRY(read_count(path, one, "redundant", NULL, &redundant));
        file->slots = file->experts + redundant;
    } else if (file->slots == 0 && json_object_get(one, "redundant") != NULL) {
        file->slots = file->experts;
    }
    return read_failed(path, one, file->ranks, &file->failed);
}

enum eep_status eep_loads_file_read(const char *path, const char *which,
                                    struct eep_loads_file *file_out)
{
    struct eep_loads_file file = {0};
    json_t *json;

    EEP_TRY(eep_json_load(path, MAX_FILE_BYTES, &json));
    const enum eep_status status = read_loads(path, json, which, &file);
    json_decref(json);
    if (status == EEP_OK) {
        *file_out = file;
    } else {
        eep_loads_file_free(&file);
    }
    return status;
}

void eep_loads_file_free(struct eep_loads_file *file)
{
    eep_mem_free(file->loads);
    eep_mem_free(file->failed);
    *file = (struct eep_loads_file){0};
}

/* ---- layouts ------------------------------------------------------------------------------- */

/* The lists of slots, wherever they are. */
static const json_t *find_map(const json_t *json, const char **key_out)
{
    const char *const keys[] = {"phys2log", "phy2log"};
    const char *name;
    json_t *output;

    for (size_t i = 0; i < 2; i++) {
        *key_out = keys[i];
        if (json_object_get(json, keys[i]) != NULL) {
            return json_object_get(json, keys[i]);
        }
    }
    json_object_foreach(json_object_get(json, "outputs"), name, output)
    {
        if (json_object_get(output, *key_out) != NULL) {
            return json_object_get(output, *key_out);
        }
    }
    return NULL;
}

static enum eep_status read_slots(const char *path, const char *key, const json_t *rows,
                                  const bool *failed, struct eep_map_file *file)
{
    const uint32_t slots = file->shape.slots, stride = slots / file->shape.seats;

    for (uint32_t l = 0; l < file->layers; l++) {
        for (uint32_t p = 0; p < slots; p++) {
            const json_t *id = json_array_get(json_array_get(rows, l), p);
            const json_int_t value = json_integer_value(id);

            if (!json_is_integer(id) || value < EEP_NO_EXPERT || value >= EEP_EPLB_EXPERTS_MAX) {
                return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s[%u][%u] is no expert of 0 .. %u and not -1",
                                path, key, l, p, EEP_EPLB_EXPERTS_MAX - 1);
            }
            const bool dead = failed != NULL && failed[p / stride];
            file->map[(size_t)l * slots + p] = dead ? EEP_NO_EXPERT : (int32_t)value;
            file->experts = EEP_MAX(file->experts, (uint32_t)(value + 1));
        }
    }
    return EEP_OK;
}

static enum eep_status read_map(const char *path, const json_t *json, uint32_t ranks,
                                struct eep_map_file *file)
{
    const char *key;
    const json_t *rows = find_map(json, &key);
    uint32_t stride, length, experts;
    bool *failed;

    if (rows == NULL) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: has no 'phys2log'", path);
    }
    EEP_TRY(read_count(path, json, "seats", "num_ranks", &file->shape.seats));
    EEP_TRY(read_count(path, json, "slots_per_seat", NULL, &stride));
    EEP_TRY(read_count(path, json, "num_experts", "experts", &experts));
    EEP_TRY(check_rows(path, key, rows, &file->layers, &length));
    file->experts = experts;
    if (file->shape.seats == 0) {
        EEP_TRY(read_count(path, json, "ranks", NULL, &file->shape.seats));
    }
    if (file->shape.seats == 0) {
        file->shape.seats = ranks;
    }
    if (file->shape.seats == 0) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: has no 'seats'; say how many by --ranks", path);
    }
    if (length % file->shape.seats != 0 || (stride != 0 && length / file->shape.seats != stride)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s[0] has %u entries, not %u seats x %u slots", path,
                        key, length, file->shape.seats, stride);
    }
    file->shape.slots = length;
    file->shape.nodes = file->shape.groups = 1;
    EEP_TRY(eep_mem_alloc((size_t)file->layers * length, sizeof(*file->map), path, &file->map));
    EEP_TRY(read_failed(path, json, file->shape.seats, &failed));
    const enum eep_status status = read_slots(path, key, rows, failed, file);
    eep_mem_free(failed);
    file->shape.experts = file->experts;
    return status;
}

enum eep_status eep_map_file_read(const char *path, uint32_t ranks, struct eep_map_file *file_out)
{
    struct eep_map_file file = {0};
    json_t *json;

    EEP_TRY(eep_json_load(path, MAX_FILE_BYTES, &json));
    const enum eep_status status = read_map(path, json, ranks, &file);
    json_decref(json);
    if (status == EEP_OK) {
        *file_out = file;
    } else {
        eep_map_file_free(&file);
    }
    return status;
}

void eep_map_file_free(struct eep_map_file *file)
{
    eep_mem_free(file->map);
    *file = (struct eep_map_file){0};
}

enum eep_status eep_map_file_write(const char *path, uint32_t layers,
                                   const struct eep_eplb_shape *shape, const int32_t *map)
{
    const uint32_t slots = eep_eplb_map_slots(shape);
    FILE *file = fopen(path, "w");

    if (file == NULL) {
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    fprintf(file, "{\"seats\": %u, \"slots_per_seat\": %u, \"phys2log\": [", shape->seats,
            eep_eplb_slots_per_seat(shape));
    for (uint32_t l = 0; l < layers; l++) {
        fprintf(file, "%s\n[", l > 0 ? "," : "");
        for (uint32_t p = 0; p < slots; p++) {
            fprintf(file, "%s%d", p > 0 ? ", " : "", map[(size_t)l * slots + p]);
        }
        fprintf(file, "]");
    }
    fprintf(file, "\n]}\n");
    const bool written = ferror(file) == 0;
    if (fclose(file) != 0 || !written) {
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    return EEP_OK;
}
