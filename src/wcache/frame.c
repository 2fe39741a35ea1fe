/*
 * Frames: who may write one, and what makes it valid.
 *
 *     header FILLING -> bytes -> digest, expert, checksum -> header VALID
 *
 * A frame is written only by the process that holds its seat's fill lock, so two never write the
 * same one, also when a mover died and another came while a rank of the first was still copying.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fault.h"
#include "wcache/wcache_int.h"

/* ---- digests of experts -----------------------------------------------------------------------
 */

static uint64_t expert_index(const struct eep_wcache *c, uint32_t layer, uint32_t expert)
{
    return (uint64_t)layer * c->shape.experts + expert;
}

bool wc_expert_known(const struct eep_wcache *c, uint32_t layer, uint32_t expert,
                     struct wc_digest *digest_out)
{
    const uint64_t index = expert_index(c, layer, expert);
    struct wc_expert_digest *entry = &c->digests[index];
    const uint64_t check = __atomic_load_n(&entry->check, __ATOMIC_ACQUIRE);

    digest_out->low = __atomic_load_n(&entry->digest.low, __ATOMIC_RELAXED);
    digest_out->high = __atomic_load_n(&entry->digest.high, __ATOMIC_RELAXED);
    return check == wc_expert_check(digest_out, index);
}

/* Processes that load replicas of one expert at a time write the same values; a writer that died in
 * between leaves an entry that is not known, and the next one writes it. */
static void expert_record(struct eep_wcache *c, uint32_t layer, uint32_t expert,
                          const struct wc_digest *digest)
{
    const uint64_t index = expert_index(c, layer, expert);
    struct wc_expert_digest *entry = &c->digests[index];

    __atomic_store_n(&entry->digest.low, digest->low, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->digest.high, digest->high, __ATOMIC_RELAXED);
    EEP_FAULT("wcache.frame.recording");
    __atomic_store_n(&entry->check, wc_expert_check(digest, index), __ATOMIC_RELEASE);
}

bool eep_wcache_frame_digest(const struct eep_wcache *cache, uint32_t layer,
                             struct eep_expert expert, struct eep_wcache_content *content_out)
{
    struct wc_digest digest;

    if (layer >= cache->shape.layers || expert.id >= cache->shape.experts ||
        !wc_expert_known(cache, layer, expert.id, &digest)) {
        return false;
    }
    *content_out = (struct eep_wcache_content){digest.low, digest.high};
    return true;
}

/* ---- writing ----------------------------------------------------------------------------------
 */

void wc_frame_open(struct eep_wcache *c, uint32_t seat, uint32_t index)
{
    struct wc_frame *frame = wc_frame_header(c->seats[seat].writable, index);

    EEP_ASSERT(c->seats[seat].locked);
    atomic_store(&frame->state, WC_FRAME_FILLING);
    atomic_thread_fence(memory_order_seq_cst); /* before the first byte */
    EEP_FAULT("wcache.frame.filling");
}

enum eep_status wc_frame_close_as(struct eep_wcache *c, uint32_t seat, uint32_t index,
                                  uint32_t layer, uint32_t expert, const struct wc_digest *expected,
                                  struct wc_digest digest)
{
    struct wc_frame *frame = wc_frame_header(c->seats[seat].writable, index);
    struct wc_digest known;
    const bool is_known = wc_expert_known(c, layer, expert, &known);

    EEP_FAULT("wcache.frame.hashed");
    if ((expected != NULL && !wc_digest_equal(digest, *expected)) ||
        (is_known && !wc_digest_equal(digest, known))) {
        return EEP_FAIL(
            EEP_ERR_CACHE_BAD,
            "%s/seat-%03u: frame %u: the bytes of layer %u, expert %u have another digest "
            "than %s",
            c->path, seat, index, layer, expert,
            expected != NULL && !wc_digest_equal(digest, *expected)
                ? "their source says"
                : "the first copy of this expert on this node");
    }
    if (!is_known) {
        expert_record(c, layer, expert, &digest);
    }
    frame->magic = WC_FRAME_MAGIC;
    frame->layer = layer;
    frame->expert = (int32_t)expert;
    frame->digest = digest;
    frame->generation++;
    EEP_FAULT("wcache.frame.described");
    wc_frame_seal(frame, seat, index);
    EEP_FAULT("wcache.frame.valid");
    return EEP_OK;
}

enum eep_status wc_frame_close(struct eep_wcache *c, uint32_t seat, uint32_t index, uint32_t layer,
                               uint32_t expert, const struct wc_digest *expected,
                               struct wc_digest *digest_out)
{
    *digest_out =
        wc_xxh128(wc_frame_data(&c->shape, c->seats[seat].writable, index), c->shape.frame_bytes);
    return wc_frame_close_as(c, seat, index, layer, expert, expected, *digest_out);
}

/* Taken for a move that still stands? */
static bool is_taken(struct eep_wcache *c, const struct wc_seat *s, uint32_t index)
{
    struct wc_state state;

    return s->taken != NULL && s->taken[index] && wc_state_read(c, &state) == EEP_OK &&
           state.move != WC_MOVE_IDLE && state.number == s->taken_move;
}

enum eep_status wc_check_writer(struct eep_wcache *c, struct eep_wcache_frame frame)
{
    const struct wc_seat *s;

    EEP_TRY(wc_check_owner(c));
    if (frame.seat >= c->shape.seats || frame.index >= c->shape.seat_frames) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: there is no frame %u of seat %u", c->path,
                        frame.index, frame.seat);
    }
    s = &c->seats[frame.seat];
    if (s->writable == NULL || !s->locked || (!s->filling && !is_taken(c, s, frame.index))) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%s: frame %u of seat %u is not this process's to write; take it first, or "
                        "the move is over",
                        c->path, frame.index, frame.seat);
    }
    return EEP_OK;
}

enum eep_status wc_check_expert(const struct eep_wcache *c, uint32_t layer,
                                struct eep_expert expert)
{
    if (layer >= c->shape.layers || expert.id >= c->shape.experts) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: there is no expert %u in layer %u", c->path,
                        expert.id, layer);
    }
    return EEP_OK;
}

enum eep_status eep_wcache_frame_begin(struct eep_wcache *cache, struct eep_wcache_frame frame,
                                       void **bytes_out)
{
    EEP_TRY(wc_check_writer(cache, frame));
    wc_frame_open(cache, frame.seat, frame.index);
    *bytes_out = wc_frame_data(&cache->shape, cache->seats[frame.seat].writable, frame.index);
    return EEP_OK;
}

enum eep_status eep_wcache_frame_end(struct eep_wcache *cache, struct eep_wcache_frame frame,
                                     uint32_t layer, struct eep_expert expert,
                                     const struct eep_wcache_content *expected,
                                     struct eep_wcache_content *content_out)
{
    struct wc_digest wanted = {0, 0}, digest;

    EEP_TRY(wc_check_writer(cache, frame));
    EEP_TRY(wc_check_expert(cache, layer, expert));
    if (expected != NULL) {
        wanted = (struct wc_digest){expected->low, expected->high};
    }
    EEP_TRY(wc_frame_close(cache, frame.seat, frame.index, layer, expert.id,
                           expected != NULL ? &wanted : NULL, &digest));
    if (content_out != NULL) {
        *content_out = (struct eep_wcache_content){digest.low, digest.high};
    }
    return EEP_OK;
}

/* ---- checking ---------------------------------------------------------------------------------
 */

const char *wc_frame_trouble(struct eep_wcache *c, uint32_t seat, uint32_t index, uint32_t layer,
                             int32_t expert, bool bytes, char text[256])
{
    const struct wc_seat *s = &c->seats[seat];
    const struct wc_frame *frame;
    struct wc_digest known;

    if (expert == EEP_NO_EXPERT) {
        return NULL;
    }
    EEP_ASSERT(s->headers != NULL && (!bytes || s->bytes != NULL) && index < c->shape.seat_frames);
    frame = wc_frame_header(s->headers, index);
    if (!wc_frame_holds(frame, seat, index, layer, expert)) {
        snprintf(
            text, 256,
            "frame %u should hold layer %u, expert %d; its header is damaged or says layer %u, "
            "expert %d, state %u",
            index, layer, expert, frame->layer, frame->expert, atomic_load(&frame->state));
        return text;
    }
    if (!wc_expert_known(c, layer, (uint32_t)expert, &known) ||
        !wc_digest_equal(known, frame->digest)) {
        snprintf(text, 256,
                 "frame %u: layer %u, expert %d: its digest is not the one that was recorded",
                 index, layer, expert);
        return text;
    }
    if (bytes &&
        !wc_digest_equal(frame->digest, wc_xxh128(wc_frame_data(&c->shape, s->bytes, index),
                                                  c->shape.frame_bytes))) {
        snprintf(text, 256, "frame %u: the bytes of layer %u, expert %d do not have its digest",
                 index, layer, expert);
        return text;
    }
    return NULL;
}

/* The current table, read in place: a mover publishes a new one by the flip only. */
static bool current_slot(struct eep_wcache *c, uint32_t layer, struct eep_slot slot,
                         struct eep_wcache_frame *frame_out, int32_t *expert_out)
{
    const uint64_t i = (uint64_t)layer * c->shape.slots + slot.id;
    struct wc_state before, after;

    EEP_ASSERT(layer < c->shape.layers && slot.id < c->shape.slots);
    do {
        struct wc_copy *copy;

        if (wc_state_read(c, &before) != EEP_OK) {
            return false;
        }
        copy = wc_copy_at(c, before.copy);
        *expert_out = wc_copy_map(copy)[i];
        frame_out->seat = slot.id / c->shape.slots_per_seat;
        frame_out->index = wc_copy_frames(copy, &c->shape)[i];
        atomic_thread_fence(memory_order_seq_cst);
        if (wc_state_read(c, &after) != EEP_OK) {
            return false;
        }
    } while (before.version != after.version);
    return *expert_out != EEP_NO_EXPERT && frame_out->index < c->shape.seat_frames;
}

bool eep_wcache_slot_frame(struct eep_wcache *cache, uint32_t layer, struct eep_slot slot,
                           struct eep_wcache_frame *frame_out)
{
    int32_t expert;

    return current_slot(cache, layer, slot, frame_out, &expert);
}

bool eep_wcache_slot_filled(struct eep_wcache *cache, uint32_t layer, struct eep_slot slot)
{
    struct eep_wcache_frame frame;
    int32_t expert = EEP_NO_EXPERT;
    char text[256];

    if (!current_slot(cache, layer, slot, &frame, &expert)) {
        return expert == EEP_NO_EXPERT;
    }
    return cache->seats[frame.seat].headers != NULL &&
           wc_frame_trouble(cache, frame.seat, frame.index, layer, expert, false, text) == NULL;
}
