/* Reading the balancer's test data: tests/data/eplb. */
#ifndef EEP_EPLB_DATA_H
#define EEP_EPLB_DATA_H

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "eplb/eplb.h"
#include "testutil.h"

static inline json_t *read_json(const char *name)
{
    json_error_t error;
    json_t *json = json_load_file(test_path(name), 0, &error);

    ck_assert_msg(json != NULL, "%s: %s", name, error.text);
    return json;
}

static inline uint32_t get_count(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    ck_assert_msg(json_is_integer(value), "no %s", key);
    return (uint32_t)json_integer_value(value);
}

/* Loads of several layers: (layers, experts). */
struct loads {
    uint32_t layers, experts;
    double *values;
};

static inline double *loads_of(const struct loads *loads, uint32_t layer)
{
    return loads->values + (size_t)layer * loads->experts;
}

static inline void fill_loads(const json_t *rows, struct loads *loads)
{
    for (uint32_t l = 0; l < loads->layers; l++) {
        const json_t *row = json_array_get(rows, l);

        ck_assert_uint_eq(json_array_size(row), loads->experts);
        for (uint32_t e = 0; e < loads->experts; e++) {
            loads_of(loads, l)[e] = json_number_value(json_array_get(row, e));
        }
    }
}

static inline struct loads make_loads(uint32_t layers, uint32_t experts)
{
    struct loads loads = {layers, experts, calloc((size_t)layers * experts, sizeof(double))};

    ck_assert_ptr_nonnull(loads.values);
    return loads;
}

static inline struct loads read_loads(const char *name)
{
    char path[256];

    snprintf(path, sizeof(path), "eplb/%s", name);
    json_t *json = read_json(path);
    struct loads loads = make_loads(get_count(json, "num_layers"), get_count(json, "num_experts"));
    fill_loads(json_object_get(json, "loads"), &loads);
    json_decref(json);
    return loads;
}

/* A balancer with room for one answer. */
struct bench {
    struct eep_eplb_shape shape;
    struct eep_eplb *eplb;
    uint32_t slots;
    int32_t *map;
    uint32_t *count;
    struct eep_eplb_result result;
};

static inline struct bench make_bench(struct eep_eplb_shape shape)
{
    struct bench b = {.shape = shape, .slots = eep_eplb_map_slots(&shape)};

    CK_OK(eep_eplb_create(&shape, &b.eplb));
    b.map = calloc(b.slots, sizeof(*b.map));
    b.count = calloc(shape.experts, sizeof(*b.count));
    ck_assert_ptr_nonnull(b.map);
    ck_assert_ptr_nonnull(b.count);
    return b;
}

static inline void free_bench(struct bench *b)
{
    eep_eplb_destroy(b->eplb);
    free(b->map);
    free(b->count);
}

static inline void plan(struct bench *b, const struct eep_eplb_ask *ask)
{
    CK_OK(eep_eplb_plan(b->eplb, ask, b->map, b->count, &b->result));
}

/*
 * What must hold of any answer, counted here independently of the balancer: every expert on a live
 * seat, nothing on failed seats and in slots that are not there, `count` right, no expert twice in
 * a seat (unless `doubles`). Returns the copies from `current`.
 */
static inline uint32_t check_map(const struct bench *b, const bool *failed, const int32_t *current,
                                 bool doubles)
{
    const uint32_t stride = eep_eplb_slots_per_seat(&b->shape);
    uint32_t *seen = calloc(b->shape.experts, sizeof(*seen)), copies = 0;

    for (uint32_t s = 0; s < b->shape.seats; s++) {
        const bool live = failed == NULL || !failed[s];

        for (uint32_t i = 0; i < stride; i++) {
            const int32_t e = b->map[s * stride + i];
            bool again = false, had = false;

            ck_assert_int_ge(e, EEP_NO_EXPERT);
            ck_assert_int_lt(e, (int32_t)b->shape.experts);
            if (!live || i >= eep_eplb_seat_slots(&b->shape, s)) {
                ck_assert_int_eq(e, EEP_NO_EXPERT);
            }
            if (e == EEP_NO_EXPERT) {
                continue;
            }
            for (uint32_t j = 0; j < i; j++) {
                again |= b->map[s * stride + j] == e;
            }
            ck_assert_msg(doubles || !again, "expert %d twice on seat %u", e, s);
            for (uint32_t j = 0; current != NULL && j < stride; j++) {
                had |= current[s * stride + j] == e;
            }
            copies += !had && !again;
            seen[e]++;
        }
    }
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        ck_assert_msg(seen[e] > 0, "expert %u has no live slot", e);
        ck_assert_uint_eq(seen[e], b->count[e]);
    }
    free(seen);
    return copies;
}

/* Seats of "5,17,33". */
static inline void mark_failed(bool *failed, uint32_t seats, const char *list)
{
    memset(failed, 0, seats * sizeof(*failed));
    for (const char *at = list; at != NULL && *at != '\0'; at += *at == ',') {
        char *end;
        const unsigned long seat = strtoul(at, &end, 10);

        ck_assert_uint_lt(seat, seats);
        failed[seat] = true;
        at = end;
    }
}

#endif
