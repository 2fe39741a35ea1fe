/*
 * Sizes, digests and checks of what stands in the files. No I/O here.
 */
#include "wcache/format.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/assert.h"
#include "wcache/xxh.h"

/* ---- digests ----------------------------------------------------------------------------------
 */

struct wc_digest wc_xxh128(const void *bytes, size_t count)
{
    const XXH128_hash_t hash = XXH3_128bits(bytes, count);

    return (struct wc_digest){hash.low64, hash.high64};
}

uint64_t wc_xxh64(const void *bytes, size_t count, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, count, seed);
}

enum eep_status eep_wcache_map_digest(uint32_t layers, uint32_t experts, uint32_t seats,
                                      uint32_t slots_per_seat, const int32_t *phys2log,
                                      uint8_t digest_out[EEP_WCACHE_DIGEST_BYTES])
{
    static const char magic[8] = "EEPMAP1";
    const uint32_t counts[4] = {layers, experts, seats, slots_per_seat};
    const size_t table = (size_t)layers * seats * slots_per_seat;
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool ok = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1 &&
                    EVP_DigestUpdate(context, magic, sizeof(magic)) == 1 &&
                    EVP_DigestUpdate(context, counts, sizeof(counts)) == 1 &&
                    EVP_DigestUpdate(context, phys2log, table * sizeof(*phys2log)) == 1 &&
                    EVP_DigestFinal_ex(context, digest, &bytes) == 1;

    EVP_MD_CTX_free(context);
    if (!ok || bytes != EEP_WCACHE_DIGEST_BYTES) {
        return EEP_FAIL(EEP_ERR_NOMEM, "SHA-256 of a layout: libcrypto failed");
    }
    memcpy(digest_out, digest, EEP_WCACHE_DIGEST_BYTES);
    return EEP_OK;
}

struct wc_digest wc_header_check(const struct wc_header *header)
{
    return wc_xxh128(header, offsetof(struct wc_header, check));
}

struct wc_digest wc_block_check(const struct wc_move_block *block)
{
    return wc_xxh128(block, offsetof(struct wc_move_block, check));
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

static enum eep_status bounded(const char *what, uint64_t value, uint64_t low, uint64_t high)
{
    return value >= low && value <= high
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_INVALID, "weight cache: %s is %llu; it takes %llu to %llu", what,
                          (unsigned long long)value, (unsigned long long)low,
                          (unsigned long long)high);
}

static enum eep_status check_key(const struct eep_wcache_key *key, uint32_t spare_frames,
                                 uint64_t dense_bytes)
{
    EEP_TRY(bounded("the number of layers", key->layers, 1, WC_LAYERS_MAX));
    EEP_TRY(bounded("the number of experts", key->experts, 1, WC_EXPERTS_MAX));
    EEP_TRY(bounded("the number of seats", key->seats, 1, WC_SEATS_MAX));
    EEP_TRY(bounded("the number of slots of a seat", key->slots_per_seat, 1, WC_SLOTS_MAX));
    EEP_TRY(bounded("the number of spare frames", spare_frames, 0, WC_SPARE_MAX));
    EEP_TRY(bounded("the size of a frame", key->frame_bytes, 1, WC_FRAME_BYTES_MAX));
    EEP_TRY(bounded("the size of the dense weights", dense_bytes, 0, WC_FRAME_BYTES_MAX));
    EEP_TRY(bounded("slots in all", (uint64_t)key->layers * key->seats * key->slots_per_seat,
                    key->experts, WC_TABLE_MAX));
    if (key->node[0] == '\0' || memchr(key->node, '\0', sizeof(key->node)) == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "weight cache: the node has no name, or one of %d bytes "
                        "and more",
                        EEP_WCACHE_NODE_MAX);
    }
    return EEP_OK;
}

enum eep_status wc_shape_init(const struct eep_wcache_key *key, uint32_t spare_frames,
                              uint64_t dense_bytes, struct wc_shape *shape_out)
{
    struct wc_shape s = {.layers = key->layers,
                         .experts = key->experts,
                         .seats = key->seats,
                         .slots_per_seat = key->slots_per_seat,
                         .frame_bytes = key->frame_bytes,
                         .dense_bytes = dense_bytes};
    uint64_t attached_end;

    EEP_TRY(check_key(key, spare_frames, dense_bytes));
    s.slots = s.seats * s.slots_per_seat;
    s.table = (uint64_t)s.layers * s.slots;
    s.seat_frames = s.layers * s.slots_per_seat + spare_frames;
    s.frame_stride = eep_round_up(s.frame_bytes, EEP_PAGE);
    s.copy_bytes = sizeof(struct wc_copy) + s.table * (sizeof(int32_t) + sizeof(uint32_t)) +
                   (uint64_t)s.seats * s.seat_frames * sizeof(uint64_t);
    attached_end = sizeof(struct wc_header) + sizeof(struct wc_control) +
                   WC_ATTACH_MAX * sizeof(struct wc_attach);
    s.copy_offset[0] = eep_round_up(attached_end, EEP_PAGE);
    s.copy_offset[1] = s.copy_offset[0] + eep_round_up(s.copy_bytes, EEP_PAGE);
    s.digests_offset = s.copy_offset[1] + eep_round_up(s.copy_bytes, EEP_PAGE);
    s.record_bytes = eep_round_up(s.digests_offset + (uint64_t)s.layers * s.experts *
                                                         sizeof(struct wc_expert_digest),
                                  EEP_PAGE);
    s.seat_data = sizeof(struct wc_seat_header) +
                  eep_round_up((uint64_t)s.seat_frames * sizeof(struct wc_frame), EEP_PAGE);
    if (s.frame_stride > (UINT64_C(1) << 56) / s.seat_frames) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "weight cache: %u frames of %llu bytes are too much for a "
                        "seat",
                        s.seat_frames, (unsigned long long)s.frame_bytes);
    }
    s.seat_bytes = s.seat_data + s.seat_frames * s.frame_stride;
    s.dense_file_bytes =
        dense_bytes == 0 ? 0 : sizeof(struct wc_dense_header) + eep_round_up(dense_bytes, EEP_PAGE);
    *shape_out = s;
    return EEP_OK;
}

uint64_t eep_wcache_bytes_needed(const struct eep_wcache_params *params)
{
    struct wc_shape shape;

    if (wc_shape_init(&params->key, params->spare_frames, params->dense_bytes, &shape) != EEP_OK) {
        return 0;
    }
    return shape.record_bytes + shape.dense_file_bytes + params->node_seats * shape.seat_bytes;
}

/* ---- copies -----------------------------------------------------------------------------------
 */

/* With `check` as 0: the header first, then the tables behind it. */
static struct wc_digest copy_check(const struct wc_copy *copy, const struct wc_shape *shape)
{
    struct wc_copy header = *copy;
    struct wc_digest parts[2];

    header.check = (struct wc_digest){0, 0};
    parts[0] = wc_xxh128(&header, sizeof(header));
    parts[1] = wc_xxh128(copy + 1, shape->copy_bytes - sizeof(*copy));
    return wc_xxh128(parts, sizeof(parts));
}

enum eep_status wc_copy_seal(struct wc_copy *copy, const struct wc_shape *shape)
{
    copy->magic = WC_COPY_MAGIC;
    copy->bytes = shape->copy_bytes;
    copy->reserved = 0;
    EEP_TRY(eep_wcache_map_digest(shape->layers, shape->experts, shape->seats,
                                  shape->slots_per_seat, wc_copy_map(copy), copy->map_digest));
    copy->check = copy_check(copy, shape);
    return EEP_OK;
}

/* Experts in range, each with a slot in each layer; frames in range. The checksum already holds, so
 * this finds what a mistake of ours wrote. */
static bool tables_good(const struct wc_copy *copy, const struct wc_shape *shape)
{
    const int32_t *map = wc_copy_map((struct wc_copy *)copy);
    const uint32_t *frames = wc_copy_frames((struct wc_copy *)copy, shape);

    for (uint64_t i = 0; i < shape->table; i++) {
        if (map[i] < EEP_NO_EXPERT || map[i] >= (int64_t)shape->experts ||
            (map[i] == EEP_NO_EXPERT ? frames[i] != EEP_WCACHE_NO_FRAME
                                     : frames[i] >= shape->seat_frames)) {
            return false;
        }
    }
    return true;
}

enum eep_status wc_copy_check(const struct wc_copy *copy, const struct wc_shape *shape,
                              uint64_t version, const char *what)
{
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];

    if (copy->magic != WC_COPY_MAGIC || copy->bytes != shape->copy_bytes ||
        copy->version != version || !wc_digest_equal(copy->check, copy_check(copy, shape))) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD,
                        "%s: the layout of version %llu is damaged (magic, version, size or "
                        "checksum); drop the cache",
                        what, (unsigned long long)version);
    }
    EEP_TRY(eep_wcache_map_digest(shape->layers, shape->experts, shape->seats,
                                  shape->slots_per_seat, wc_copy_map((struct wc_copy *)copy),
                                  digest));
    if (memcmp(digest, copy->map_digest, sizeof(digest)) != 0 || !tables_good(copy, shape)) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD,
                        "%s: the layout of version %llu is no valid one; drop the cache", what,
                        (unsigned long long)version);
    }
    return EEP_OK;
}

void wc_frames_initial(const struct wc_shape *shape, const int32_t *phys2log, uint32_t seat,
                       uint32_t *frames)
{
    uint32_t next = 0;

    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t local = 0; local < shape->slots_per_seat; local++) {
            const uint64_t i =
                (uint64_t)layer * shape->slots + (uint64_t)seat * shape->slots_per_seat + local;

            frames[i] = phys2log[i] == EEP_NO_EXPERT ? EEP_WCACHE_NO_FRAME : next++;
        }
    }
    EEP_ASSERT(next <= shape->seat_frames);
}

/* ---- frames -----------------------------------------------------------------------------------
 */

static uint64_t frame_check(const struct wc_frame *frame, uint32_t seat, uint32_t index)
{
    struct wc_frame copy;

    memcpy(&copy, frame, sizeof(copy));
    atomic_store_explicit(&copy.state, WC_FRAME_VALID, memory_order_relaxed);
    return wc_xxh64(&copy, offsetof(struct wc_frame, check), (uint64_t)seat << 32 | index);
}

void wc_frame_seal(struct wc_frame *frame, uint32_t seat, uint32_t index)
{
    frame->check = frame_check(frame, seat, index);
    atomic_store_explicit(&frame->state, WC_FRAME_VALID, memory_order_release);
}

bool wc_frame_holds(const struct wc_frame *frame, uint32_t seat, uint32_t index, uint32_t layer,
                    int32_t expert)
{
    return atomic_load_explicit(&frame->state, memory_order_acquire) == WC_FRAME_VALID &&
           frame->magic == WC_FRAME_MAGIC && frame->layer == layer && frame->expert == expert &&
           frame->check == frame_check(frame, seat, index);
}
