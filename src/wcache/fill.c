/*
 * Filling a frame in pieces, between other work. The digest is taken of what stands in the frame
 * (not of what was sent there), tile by tile, while the tile is still in the processor's cache.
 */
#include <string.h>

#include "base/assert.h"
#include "wcache/wcache_int.h"
#include "wcache/xxh.h"

#define TILE ((uint64_t)4 << 10) /* larger ones leave the first-level cache */

struct eep_wcache_fill {
    struct eep_wcache *cache;
    struct eep_wcache_frame frame;
    uint32_t layer;
    struct eep_expert expert;
    unsigned char *bytes;
    uint64_t done;
    bool map; /* its pages are not mapped yet */
    XXH3_state_t *hash;
};

enum eep_status eep_wcache_fill_begin(struct eep_wcache *cache, struct eep_wcache_frame frame,
                                      uint32_t layer, struct eep_expert expert,
                                      struct eep_wcache_fill **fill_out)
{
    struct eep_wcache_fill *fill;

    EEP_TRY(wc_check_writer(cache, frame));
    EEP_TRY(wc_check_expert(cache, layer, expert));
    EEP_TRY(eep_mem_alloc(1, sizeof(*fill), "filling a frame", &fill));
    fill->hash = XXH3_createState();
    if (fill->hash == NULL || XXH3_128bits_reset(fill->hash) != XXH_OK) {
        eep_wcache_fill_drop(fill);
        return EEP_FAIL(EEP_ERR_NOMEM, "%s: no memory for a digest", cache->path);
    }
    fill->cache = cache;
    fill->frame = frame;
    fill->layer = layer;
    fill->expert = expert;
    fill->map =
        cache->seats[frame.seat].mapped == NULL || !cache->seats[frame.seat].mapped[frame.index];
    wc_frame_open(cache, frame.seat, frame.index);
    fill->bytes = wc_frame_data(&cache->shape, cache->seats[frame.seat].writable, frame.index);
    *fill_out = fill;
    return EEP_OK;
}

static void take_in(struct eep_wcache_fill *fill, uint64_t bytes)
{
    EEP_ASSERT(bytes <= fill->cache->shape.frame_bytes - fill->done);
    const XXH_errorcode rc = XXH3_128bits_update(fill->hash, fill->bytes + fill->done, bytes);

    EEP_ASSERT(rc == XXH_OK);
    fill->done += bytes;
}

/* Who executes the slot reads it through another mapping: its pages are mapped now, not in the
 * first step with the new version. */
static void map_for_readers(const struct eep_wcache_fill *fill, uint64_t from)
{
    const struct wc_seat *seat = &fill->cache->seats[fill->frame.seat];
    const uint64_t first = from / EEP_PAGE * EEP_PAGE;

    if (fill->map && seat->bytes != NULL) {
        wc_populate(wc_frame_data(&fill->cache->shape, seat->bytes, fill->frame.index) + first,
                    fill->done - first);
    }
}

void eep_wcache_fill_copy(struct eep_wcache_fill *fill, const void *source, uint64_t bytes)
{
    const unsigned char *from = source;
    const uint64_t begin = fill->done;

    EEP_ASSERT(bytes <= fill->cache->shape.frame_bytes - fill->done);
    if (fill->map) {
        wc_populate_write(fill->bytes + fill->done, bytes);
    }
    while (bytes > 0) {
        const uint64_t tile = EEP_MIN(bytes, TILE);

        /* memmove() goes to the C library; gcc makes `rep movs` of memcpy() with so small a bound,
         * which is slower. */
        memmove(fill->bytes + fill->done, from, tile);
        take_in(fill, tile);
        from += tile;
        bytes -= tile;
    }
    map_for_readers(fill, begin);
}

void eep_wcache_fill_written(struct eep_wcache_fill *fill, uint64_t bytes)
{
    const uint64_t begin = fill->done;

    take_in(fill, bytes);
    map_for_readers(fill, begin);
}

void *eep_wcache_fill_bytes(struct eep_wcache_fill *fill)
{
    return fill->bytes;
}

uint64_t eep_wcache_fill_done(const struct eep_wcache_fill *fill)
{
    return fill->done;
}

/* Only a hint: without memory for it pages are looked at again each time. */
static void note_mapped(struct eep_wcache *c, struct eep_wcache_frame frame)
{
    struct wc_seat *s = &c->seats[frame.seat];

    if (s->bytes != NULL &&
        (s->mapped != NULL || eep_mem_alloc(c->shape.seat_frames, sizeof(*s->mapped),
                                            "mapped frames", &s->mapped) == EEP_OK)) {
        s->mapped[frame.index] = true;
    }
}

enum eep_status eep_wcache_fill_end(struct eep_wcache_fill *fill,
                                    const struct eep_wcache_content *expected,
                                    struct eep_wcache_content *content_out)
{
    struct eep_wcache *c = fill->cache;
    struct wc_digest wanted = {0, 0};
    enum eep_status status;

    EEP_ASSERT(fill->done == c->shape.frame_bytes);
    const XXH128_hash_t hash = XXH3_128bits_digest(fill->hash);
    const struct wc_digest digest = {.low = hash.low64, .high = hash.high64};

    if (expected != NULL) {
        wanted = (struct wc_digest){expected->low, expected->high};
    }
    note_mapped(c, fill->frame);
    status = wc_check_writer(c, fill->frame); /* its move may be over by now */
    if (status == EEP_OK) {
        status = wc_frame_close_as(c, fill->frame.seat, fill->frame.index, fill->layer,
                                   fill->expert.id, expected != NULL ? &wanted : NULL, digest);
    }
    if (status == EEP_OK && content_out != NULL) {
        *content_out = (struct eep_wcache_content){digest.low, digest.high};
    }
    eep_wcache_fill_drop(fill);
    return status;
}

void eep_wcache_fill_drop(struct eep_wcache_fill *fill)
{
    if (fill == NULL) {
        return;
    }
    XXH3_freeState(fill->hash);
    eep_mem_free(fill);
}
