/*
 * Views: a version that this process routes with, and the pin that keeps its frames.
 *
 * The pin is a hazard pointer. A reader stores its pin and then looks whether the version is still
 * the current one; a mover flips and then looks at the pins before it reuses a frame. All four are
 * sequentially consistent, so a mover that misses the pin has flipped before the reader looked, and
 * the reader sees that and tries again.
 */
#include <string.h>

#include "base/assert.h"
#include "base/fault.h"
#include "wcache/wcache_int.h"

static void set_pin(struct eep_wcache *c, uint64_t lowest)
{
    for (const struct eep_wcache_view *v = c->views; v != NULL; v = v->next) {
        lowest = EEP_MIN(lowest, v->copy->version);
    }
    atomic_store(&c->attached[c->place].pin, lowest);
}

/* May a view begin in this state? */
static enum eep_status check_state(struct eep_wcache *c, const struct wc_state *state)
{
    char text[512];
    bool lives;

    if (state->move != WC_MOVE_DIRTY) {
        return EEP_OK;
    }
    EEP_TRY(wc_mover_lives(c, &lives));
    return lives ? EEP_FAIL(EEP_ERR_AGAIN, "%s: %s moves experts in place; wait for it", c->path,
                            wc_move_text(c, text))
                 : wc_fail_dirty(c);
}

/* Pin, copy, look again: *stable_out if what was copied was pinned all the time. */
static enum eep_status pin_once(struct eep_wcache *c, struct wc_copy **copy_out, bool *stable_out)
{
    struct wc_state before, after;

    EEP_TRY(wc_state_read(c, &before));
    EEP_TRY(check_state(c, &before));
    set_pin(c, before.version);
    EEP_FAULT("wcache.pin.stored");
    EEP_TRY(wc_snapshot(c, false, copy_out));
    *stable_out = false;
    if ((*copy_out)->version == before.version && wc_state_read(c, &after) == EEP_OK) {
        *stable_out = after.version == before.version;
        if (*stable_out) {
            return check_state(c, &after); /* an in-place move may have begun in between */
        }
    }
    eep_mem_free(*copy_out);
    *copy_out = NULL;
    return EEP_OK;
}

/* Frames of all open seats must hold what the version says. */
static enum eep_status check_frames(struct eep_wcache *c, struct wc_copy *copy)
{
    const struct wc_shape *shape = &c->shape;
    char text[256];

    for (uint64_t i = 0; i < shape->table; i++) {
        const uint32_t layer = (uint32_t)(i / shape->slots);
        const uint32_t seat = (uint32_t)(i % shape->slots) / shape->slots_per_seat;
        const char *trouble;

        if (c->seats[seat].bytes == NULL || c->seats[seat].filling) {
            continue;
        }
        trouble = wc_frame_trouble(c, seat, wc_copy_frames(copy, shape)[i], layer,
                                   wc_copy_map(copy)[i], false, text);
        if (trouble != NULL) {
            return EEP_FAIL(EEP_ERR_CACHE_BAD,
                            "%s/seat-%03u: %s; repair the cache (eep cache "
                            "repair) or drop it",
                            c->path, seat, trouble);
        }
    }
    return EEP_OK;
}

enum eep_status wc_pin(struct eep_wcache *cache, bool check, struct eep_wcache_view **view_out)
{
    struct eep_wcache_view *view;
    struct wc_copy *copy = NULL;
    bool stable = false;
    enum eep_status status;

    EEP_TRY(wc_check_owner(cache));
    EEP_TRY(eep_mem_alloc(1, sizeof(*view), "view of a weight cache", &view));
    do {
        status = pin_once(cache, &copy, &stable);
    } while (status == EEP_OK && !stable);
    if (status == EEP_OK && check) {
        status = check_frames(cache, copy);
    }
    if (status != EEP_OK) {
        set_pin(cache, WC_NO_PIN);
        eep_mem_free(copy);
        eep_mem_free(view);
        return status;
    }
    *view = (struct eep_wcache_view){.cache = cache, .next = cache->views, .copy = copy};
    cache->views = view;
    EEP_FAULT("wcache.pin.done");
    *view_out = view;
    return EEP_OK;
}

enum eep_status eep_wcache_pin(struct eep_wcache *cache, struct eep_wcache_view **view_out)
{
    return wc_pin(cache, true, view_out);
}

void eep_wcache_unpin(struct eep_wcache *cache, struct eep_wcache_view *view)
{
    if (view == NULL) {
        return;
    }
    EEP_ASSERT(view->cache == cache);
    for (struct eep_wcache_view **at = &cache->views; *at != NULL; at = &(*at)->next) {
        if (*at == view) {
            *at = view->next;
            break;
        }
    }
    set_pin(cache, WC_NO_PIN);
    eep_mem_free(view->copy);
    eep_mem_free(view);
}

uint64_t eep_wcache_view_version(const struct eep_wcache_view *view)
{
    return view->copy->version;
}

const uint8_t *eep_wcache_view_digest(const struct eep_wcache_view *view)
{
    return view->copy->map_digest;
}

const int32_t *eep_wcache_view_map(const struct eep_wcache_view *view)
{
    return wc_copy_map(view->copy);
}

const uint32_t *eep_wcache_view_frames(const struct eep_wcache_view *view)
{
    return wc_copy_frames(view->copy, &view->cache->shape);
}

const void *eep_wcache_view_slot(const struct eep_wcache_view *view, uint32_t layer,
                                 struct eep_slot slot)
{
    const struct wc_shape *shape = &view->cache->shape;
    const struct wc_seat *seat = &view->cache->seats[slot.id / shape->slots_per_seat];
    const uint32_t frame =
        wc_copy_frames(view->copy, shape)[(uint64_t)layer * shape->slots + slot.id];

    return seat->bytes == NULL || frame == EEP_WCACHE_NO_FRAME
               ? NULL
               : wc_frame_data(shape, seat->bytes, frame);
}
