/*
 * Layout files: foreign input, so every number is checked before it is used.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>

#include "ckpt/ckpt.h"
#include "layout/layout.h"
#include "layout/layout_int.h"

#define MAX_FILE_BYTES ((size_t)256 << 20)

static enum eep_status read_count(const char *path, const json_t *file, const char *key,
                                  uint32_t *count_out)
{
    const json_t *value = json_object_get(file, key);

    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > INT32_MAX) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: '%s' is missing or is no positive whole number", path,
                        key);
    }
    *count_out = (uint32_t)json_integer_value(value);
    return EEP_OK;
}

static enum eep_status read_row(const char *path, const json_t *row, uint32_t layer,
                                struct eep_layout *layout)
{
    const uint32_t slots = eep_layout_slots(layout);

    if (!json_is_array(row) || json_array_size(row) != slots) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: phys2log[%u] has %zu entries, not %u seats x %u slots = %u", path,
                        layer, json_array_size(row), layout->seats, layout->slots_per_seat, slots);
    }
    for (uint32_t p = 0; p < slots; p++) {
        const json_t *id = json_array_get(row, p);

        if (!json_is_integer(id) || json_integer_value(id) < EEP_NO_EXPERT ||
            json_integer_value(id) >= layout->experts) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: phys2log[%u][%u] is no expert of 0 .. %u and not -1", path, layer,
                            p, layout->experts - 1);
        }
        layout->phys2log[(size_t)layer * slots + p] = (int32_t)json_integer_value(id);
    }
    return EEP_OK;
}

static enum eep_status read_layout(const char *path, const json_t *file, uint32_t layers,
                                   uint32_t experts, struct eep_layout **layout_out)
{
    const json_t *map = json_object_get(file, "phys2log");
    uint32_t seats, slots_per_seat;
    enum eep_status status;

    EEP_TRY(read_count(path, file, "seats", &seats));
    EEP_TRY(read_count(path, file, "slots_per_seat", &slots_per_seat));
    if (!json_is_array(map) || json_array_size(map) != layers) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: 'phys2log' is missing or has %zu lists where the model has %u MoE "
                        "layers",
                        path, json_array_size(map), layers);
    }
    if ((uint64_t)seats * slots_per_seat < experts) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: %u seats x %u slots cannot hold the model's %u experts", path, seats,
                        slots_per_seat, experts);
    }
    if (layers > 0 && (uint64_t)seats * slots_per_seat != json_array_size(json_array_get(map, 0))) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: phys2log[0] has %zu entries, not %u seats x %u slots = %" PRIu64, path,
                        json_array_size(json_array_get(map, 0)), seats, slots_per_seat,
                        (uint64_t)seats * slots_per_seat);
    }
    EEP_TRY(eep_layout_create(layers, experts, seats, slots_per_seat, layout_out));
    for (uint32_t layer = 0; layer < layers; layer++) {
        EEP_TRY_GOTO(read_row(path, json_array_get(map, layer), layer, *layout_out), destroy);
    }
    status = eep_layout_index(*layout_out);
    if (status == EEP_OK) {
        return EEP_OK;
    }
    (void)eep_fail_context(status, "%s", path);

destroy:
    eep_layout_destroy(*layout_out);
    return status;
}

enum eep_status eep_layout_load(const char *path, uint32_t layers, uint32_t experts,
                                struct eep_layout **layout_out)
{
    struct eep_layout *layout;
    json_t *file;

    EEP_TRY(eep_json_load(path, MAX_FILE_BYTES, &file));
    enum eep_status status = read_layout(path, file, layers, experts, &layout);
    json_decref(file);
    if (status == EEP_OK) {
        *layout_out = layout;
    }
    return status;
}
