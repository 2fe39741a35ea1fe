/*
 * A small weight cache for tests: its key, bytes that follow from (layer, expert), moves, and the
 * check that every slot holds the bytes that the map names. Functions return a status; the text has
 * the reason.
 */
#ifndef EEP_TESTS_WCACHE_UTIL_H
#define EEP_TESTS_WCACHE_UTIL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "wcache/wcache.h"

#define WT_LAYERS 3u
#define WT_EXPERTS 6u
#define WT_SEATS 2u
#define WT_SLOTS_PER_SEAT 4u
#define WT_SLOTS (WT_SEATS * WT_SLOTS_PER_SEAT)
#define WT_TABLE (WT_LAYERS * WT_SLOTS)
#define WT_FRAME_BYTES 5000u
#define WT_DENSE_BYTES 9000u
#define WT_TIMEOUT_NS (10 * EEP_NS_PER_S)

/* The bytes of an expert; of dense with expert = WT_DENSE. */
#define WT_DENSE 0xffffffu

static inline void wt_bytes(uint32_t layer, uint32_t expert, unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        const uint64_t word = eep_rng_bits((uint64_t)layer << 32 | expert, i);

        memcpy(bytes + i, &word, EEP_MIN(sizeof(word), count - i));
    }
}

static inline bool wt_is(const void *bytes, uint32_t layer, uint32_t expert, size_t count)
{
    unsigned char wanted[WT_DENSE_BYTES];

    wt_bytes(layer, expert, wanted, count);
    return memcmp(bytes, wanted, count) == 0;
}

/* Experts in order, then again: two have two slots; the last slot of the last layer is empty. */
static inline void wt_map(int32_t *map)
{
    for (uint32_t i = 0; i < WT_TABLE; i++) {
        map[i] = (int32_t)(i % WT_SLOTS % WT_EXPERTS);
    }
    map[WT_TABLE - 1] = EEP_NO_EXPERT;
}

static inline struct eep_wcache_params wt_params(const char *dir, const int32_t *map,
                                                 const char *engine, uint64_t engine_id)
{
    return (struct eep_wcache_params){
        .dir = dir,
        .key = {.checkpoint = {1, 2, 3},
                .packing = 1,
                .dtype = 1,
                .layers = WT_LAYERS,
                .experts = WT_EXPERTS,
                .seats = WT_SEATS,
                .slots_per_seat = WT_SLOTS_PER_SEAT,
                .frame_bytes = WT_FRAME_BYTES,
                .node = "node-0"},
        .phys2log = map,
        .spare_frames = 6,
        .node_seats = WT_SEATS,
        .dense_bytes = WT_DENSE_BYTES,
        .source = "test",
        .engine = engine,
        .engine_id = engine_id,
        .follows = true,
        .keep = true,
        .timeout_ns = WT_TIMEOUT_NS,
    };
}

static inline enum eep_status wt_fill_seat(struct eep_wcache *c, uint32_t seat)
{
    int32_t map[WT_TABLE];
    uint64_t version;
    bool fill;

    EEP_TRY(eep_wcache_seat_open(c, (struct eep_seat){seat}, WT_TIMEOUT_NS, &fill));
    if (!fill) {
        return EEP_OK;
    }
    EEP_TRY(eep_wcache_map(c, &version, map));
    for (uint32_t layer = 0; layer < WT_LAYERS; layer++) {
        for (uint32_t local = 0; local < WT_SLOTS_PER_SEAT; local++) {
            const struct eep_slot slot = {seat * WT_SLOTS_PER_SEAT + local};
            const int32_t expert = map[layer * WT_SLOTS + slot.id];
            struct eep_wcache_frame frame;
            void *bytes;

            if (eep_wcache_slot_filled(c, layer, slot)) {
                continue;
            }
            if (!eep_wcache_slot_frame(c, layer, slot, &frame)) {
                return EEP_FAIL(EEP_ERR_INVALID, "test: no frame for layer %u, slot %u", layer,
                                slot.id);
            }
            EEP_TRY(eep_wcache_frame_begin(c, frame, &bytes));
            wt_bytes(layer, (uint32_t)expert, bytes, WT_FRAME_BYTES);
            EEP_TRY(eep_wcache_frame_end(c, frame, layer, (struct eep_expert){(uint32_t)expert},
                                         NULL, NULL));
        }
    }
    return eep_wcache_seat_end(c, (struct eep_seat){seat});
}

static inline enum eep_status wt_fill(struct eep_wcache *c)
{
    bool fill;

    EEP_TRY(eep_wcache_dense_open(c, WT_TIMEOUT_NS, &fill));
    if (fill) {
        wt_bytes(0, WT_DENSE, eep_wcache_dense_fill(c), WT_DENSE_BYTES);
        EEP_TRY(eep_wcache_dense_end(c));
    }
    for (uint32_t seat = 0; seat < WT_SEATS; seat++) {
        EEP_TRY(wt_fill_seat(c, seat));
    }
    return EEP_OK;
}

/* Every slot of a view holds the bytes that its map names; the map has its digest. */
static inline enum eep_status wt_check_view(const struct eep_wcache_view *view)
{
    const int32_t *map = eep_wcache_view_map(view);
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];

    EEP_TRY(eep_wcache_map_digest(WT_LAYERS, WT_EXPERTS, WT_SEATS, WT_SLOTS_PER_SEAT, map, digest));
    if (memcmp(digest, eep_wcache_view_digest(view), sizeof(digest)) != 0) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "test: the digest is not that of the map");
    }
    for (uint32_t i = 0; i < WT_TABLE; i++) {
        const uint32_t layer = i / WT_SLOTS;
        const struct eep_slot slot = {i % WT_SLOTS};
        const void *bytes = eep_wcache_view_slot(view, layer, slot);

        if (map[i] == EEP_NO_EXPERT
                ? bytes != NULL
                : bytes == NULL || !wt_is(bytes, layer, (uint32_t)map[i], WT_FRAME_BYTES)) {
            return EEP_FAIL(
                EEP_ERR_CACHE_BAD, "test: version %llu: layer %u, slot %u does not hold expert %d",
                (unsigned long long)eep_wcache_view_version(view), layer, slot.id, map[i]);
        }
    }
    return EEP_OK;
}

static inline enum eep_status wt_check(struct eep_wcache *c)
{
    struct eep_wcache_view *view;
    enum eep_status status;

    EEP_TRY(eep_wcache_pin(c, &view));
    status = wt_check_view(view);
    eep_wcache_unpin(c, view);
    if (status == EEP_OK && eep_wcache_dense(c) != NULL &&
        !wt_is(eep_wcache_dense(c), 0, WT_DENSE, WT_DENSE_BYTES)) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "test: dense has other bytes");
    }
    return status;
}

/* A new row: two slots are swapped, and one that has a replica elsewhere gets another expert. */
static inline void wt_new_row(const int32_t *row, uint64_t seed, int32_t *new_row)
{
    const uint32_t a = (uint32_t)(eep_rng_bits(seed, 0) % WT_SLOTS);
    const uint32_t b = (uint32_t)(eep_rng_bits(seed, 1) % WT_SLOTS);
    const uint32_t p = (uint32_t)(eep_rng_bits(seed, 2) % WT_SLOTS);
    uint32_t replicas = 0;

    memcpy(new_row, row, WT_SLOTS * sizeof(*row));
    new_row[a] = row[b];
    new_row[b] = row[a];
    for (uint32_t i = 0; i < WT_SLOTS; i++) {
        replicas += new_row[i] == new_row[p];
    }
    if (new_row[p] == EEP_NO_EXPERT || replicas > 1) {
        new_row[p] = (int32_t)(eep_rng_bits(seed, 3) % WT_EXPERTS);
    }
}

/* A move in the making: new rows for some layers. */
struct wt_move {
    uint32_t layer_count;
    uint32_t layers[WT_LAYERS];
    int32_t map[WT_LAYERS][WT_SLOTS];
    uint32_t frames[WT_LAYERS][WT_SLOTS];
    struct eep_wcache_row rows[WT_LAYERS];
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
};

/* The map that a move of `count` layers from `first` on makes of `map`. */
static inline void wt_plan(const int32_t *map, uint32_t first, uint32_t count, uint64_t seed,
                           struct wt_move *m)
{
    m->layer_count = count;
    for (uint32_t i = 0; i < count; i++) {
        m->layers[i] = (first + i) % WT_LAYERS;
        wt_new_row(map + m->layers[i] * WT_SLOTS, seed + i, m->map[i]);
        m->rows[i] = (struct eep_wcache_row){m->layers[i], m->map[i], m->frames[i]};
    }
}

/* Take and fill a frame for each slot that changes. */
static inline enum eep_status wt_copy(struct eep_wcache *c, const struct eep_wcache_view *view,
                                      bool in_place, struct wt_move *m)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const uint32_t layer = m->layers[i];
        const int32_t *old = eep_wcache_view_map(view) + layer * WT_SLOTS;

        for (uint32_t p = 0; p < WT_SLOTS; p++) {
            const struct eep_slot slot = {p};
            const struct eep_seat seat = {p / WT_SLOTS_PER_SEAT};
            struct eep_wcache_frame frame;
            void *bytes;

            m->frames[i][p] = eep_wcache_view_frames(view)[layer * WT_SLOTS + p];
            if (m->map[i][p] == old[p] || m->map[i][p] == EEP_NO_EXPERT) {
                continue;
            }
            /* An empty slot has no frame to be overwritten. */
            EEP_TRY(in_place && old[p] != EEP_NO_EXPERT
                        ? eep_wcache_take_in_place(c, layer, slot, &frame)
                        : eep_wcache_take(c, seat, &frame));
            EEP_TRY(eep_wcache_frame_begin(c, frame, &bytes));
            wt_bytes(layer, (uint32_t)m->map[i][p], bytes, WT_FRAME_BYTES);
            EEP_TRY(eep_wcache_frame_end(c, frame, layer,
                                         (struct eep_expert){(uint32_t)m->map[i][p]}, NULL, NULL));
            m->frames[i][p] = frame.index;
        }
    }
    return EEP_OK;
}

/* Plan, begin, fill, prepare. */
static inline enum eep_status wt_prepare(struct eep_wcache *c, uint32_t first, uint32_t count,
                                         uint64_t seed, bool in_place, struct wt_move *m)
{
    struct eep_wcache_view *view;
    enum eep_status status;

    EEP_TRY(eep_wcache_pin(c, &view));
    wt_plan(eep_wcache_view_map(view), first, count, seed, m);
    status = eep_wcache_begin(c, m->layers, m->layer_count, eep_wcache_view_version(view));
    if (status == EEP_OK) {
        status = wt_copy(c, view, in_place, m);
    }
    if (status == EEP_OK) {
        status = eep_wcache_prepare(c, m->rows, m->layer_count, &m->version, m->digest);
    }
    eep_wcache_unpin(c, view);
    return status;
}

static inline enum eep_status wt_move(struct eep_wcache *c, uint32_t first, uint32_t count,
                                      uint64_t seed, bool in_place)
{
    struct wt_move m;
    uint64_t version;

    EEP_TRY(wt_prepare(c, first, count, seed, in_place, &m));
    EEP_TRY(eep_wcache_commit(c, &version));
    return version == m.version ? EEP_OK : EEP_FAIL(EEP_ERR_INVALID, "test: another version");
}

static inline enum eep_status wt_refill(void *context, uint32_t layer, struct eep_expert expert,
                                        void *bytes)
{
    (void)context;
    wt_bytes(layer, expert.id, bytes, WT_FRAME_BYTES);
    return EEP_OK;
}

#endif
