/*
 * Checking frames by their bytes, and filling bad ones again.
 *
 * A repair is itself an in-place move: the record is dirty until its last act, so a crash in it
 * leads to the next repair.
 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "wcache/wcache_int.h"

struct repair {
    struct eep_wcache *c;
    struct wc_copy *copy; /* the current version */
    eep_wcache_refill_fn refill;
    void *context;
    struct eep_wcache_repair result;
};

static uint64_t slot_index(const struct wc_shape *shape, uint32_t seat, uint32_t layer,
                           uint32_t local)
{
    return (uint64_t)layer * shape->slots + (uint64_t)seat * shape->slots_per_seat + local;
}

/* Map every full seat of this node. */
static enum eep_status open_seats(struct eep_wcache *c)
{
    bool held, full;

    for (uint32_t seat = 0; seat < c->shape.seats; seat++) {
        EEP_TRY(wc_seat_look(c, seat, &held, &full));
        if (full) {
            EEP_TRY(wc_seat_map(c, seat));
        }
    }
    return EEP_OK;
}

static bool is_full(struct eep_wcache *c, uint32_t seat)
{
    bool held, full;

    return wc_seat_look(c, seat, &held, &full) == EEP_OK && full;
}

/* ---- repair -----------------------------------------------------------------------------------
 */

/* The bytes of another good frame with that expert, or NULL. */
static const void *other_frame(struct repair *r, uint32_t layer, int32_t expert, uint64_t not_this)
{
    const struct wc_shape *shape = &r->c->shape;
    char text[256];

    for (uint32_t p = 0; p < shape->slots; p++) {
        const uint64_t i = (uint64_t)layer * shape->slots + p;
        const uint32_t seat = p / shape->slots_per_seat;
        const uint32_t frame = wc_copy_frames(r->copy, shape)[i];

        if (i != not_this && wc_copy_map(r->copy)[i] == expert && is_full(r->c, seat) &&
            wc_frame_trouble(r->c, seat, frame, layer, expert, true, text) == NULL) {
            return wc_frame_data(shape, r->c->seats[seat].bytes, frame);
        }
    }
    return NULL;
}

static enum eep_status refill_slot(struct repair *r, uint32_t seat, uint64_t slot)
{
    const struct wc_shape *shape = &r->c->shape;
    const uint32_t layer = (uint32_t)(slot / shape->slots);
    const uint32_t frame = wc_copy_frames(r->copy, shape)[slot];
    const int32_t expert = wc_copy_map(r->copy)[slot];
    const void *source = other_frame(r, layer, expert, slot);
    const struct eep_expert id = {(uint32_t)expert};
    struct wc_digest digest;
    void *bytes;

    EEP_TRY(wc_seat_writable(r->c, seat));
    bytes = wc_frame_data(shape, r->c->seats[seat].writable, frame);
    if (source == NULL && r->refill == NULL) {
        return EEP_FAIL(
            EEP_ERR_CACHE_BAD,
            "%s/seat-%03u: frame %u: no other frame of this node has layer %u, expert %d",
            r->c->path, seat, frame, layer, expert);
    }
    wc_frame_open(r->c, seat, frame);
    if (source != NULL) {
        memcpy(bytes, source, shape->frame_bytes);
    } else {
        EEP_TRY(r->refill(r->context, layer, id, bytes));
    }
    EEP_FAULT("wcache.repair.refilled");
    EEP_TRY(wc_frame_close(r->c, seat, frame, layer, id.id, NULL, &digest));
    r->result.refilled++;
    return EEP_OK;
}

typedef enum eep_status (*slot_fn)(struct repair *r, uint32_t seat, uint64_t slot);

/* Calls bad() for each slot of these layers whose frame is not right. */
static enum eep_status each_bad(struct repair *r, const uint64_t *layers, slot_fn bad)
{
    const struct wc_shape *shape = &r->c->shape;
    char text[256];

    for (uint32_t seat = 0; seat < shape->seats; seat++) {
        for (uint32_t layer = 0; layer < shape->layers && is_full(r->c, seat); layer++) {
            for (uint32_t local = 0; local < shape->slots_per_seat; local++) {
                const uint64_t i = slot_index(shape, seat, layer, local);

                if ((layers[layer / 64] >> (layer % 64) & 1) == 0 ||
                    wc_copy_map(r->copy)[i] == EEP_NO_EXPERT) {
                    continue;
                }
                r->result.checked++;
                if (wc_frame_trouble(r->c, seat, wc_copy_frames(r->copy, shape)[i], layer,
                                     wc_copy_map(r->copy)[i], true, text) != NULL) {
                    eep_log(EEP_LOG_WARN, "weight cache %s/seat-%03u: %s", r->c->path, seat, text);
                    EEP_TRY(bad(r, seat, i));
                }
            }
        }
    }
    return EEP_OK;
}

/* The fill locks of all full seats: nobody else writes frames. */
static enum eep_status lock_seats(struct eep_wcache *c)
{
    bool locked;

    for (uint32_t seat = 0; seat < c->shape.seats; seat++) {
        if (is_full(c, seat)) {
            EEP_TRY(wc_seat_lock(c, seat, &locked));
            if (!locked) {
                return EEP_FAIL(EEP_ERR_AGAIN, "%s: busy: frames of seat %u are being written",
                                c->path, seat);
            }
        }
    }
    return EEP_OK;
}

static enum eep_status mark_dirty(struct repair *r, const struct wc_state *state,
                                  const uint64_t *layers)
{
    char name[EEP_WCACHE_NAME_MAX];
    bool found;

    if (state->move != WC_MOVE_DIRTY) {
        r->c->move_number = state->number + 1;
        wc_move_start(r->c, WC_MOVE_DIRTY, layers, state->version);
    }
    EEP_FAULT("wcache.repair.dirty");
    EEP_TRY(wc_other_view(r->c, &found, name));
    if (!found) {
        return EEP_OK;
    }
    if (state->move != WC_MOVE_DIRTY) {
        wc_move_set(r->c, WC_MOVE_IDLE, r->c->move_number); /* nothing was touched yet */
    }
    return EEP_FAIL(EEP_ERR_AGAIN, "%s: busy: engine '%s' has a view; repair when it is gone",
                    r->c->path, name);
}

static enum eep_status note_bad(struct repair *r, uint32_t seat, uint64_t slot)
{
    (void)seat;
    (void)slot;
    r->result.refilled++;
    return EEP_OK;
}

/* The record is clean: is there anything to do? */
static enum eep_status count_bad(struct repair *r, const uint64_t *layers, uint64_t *bad_out)
{
    EEP_TRY(each_bad(r, layers, note_bad));
    *bad_out = r->result.refilled;
    if (*bad_out > 0) {
        r->result = (struct eep_wcache_repair){0};
    }
    return EEP_OK;
}

static enum eep_status repair_locked(struct repair *r, bool all, uint64_t version)
{
    struct eep_wcache *c = r->c;
    struct eep_wcache_move move = {0};
    struct wc_state state;
    uint64_t bad = 1;

    EEP_TRY(wc_state_read(c, &state));
    if (state.prepared) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "%s: version %llu is prepared and waits for its decision "
                        "(resolve)",
                        c->path, (unsigned long long)state.prepared_version);
    }
    r->result.version = state.version;
    if (state.move == WC_MOVE_PENDING) {
        wc_move_set(c, WC_MOVE_IDLE, state.number);
        state.move = WC_MOVE_IDLE;
    }
    if (state.move == WC_MOVE_DIRTY) {
        EEP_TRY(wc_move_read(c, &move));
    }
    if (all) {
        memset(move.layers, 0xff, sizeof(move.layers));
    } else if (state.move != WC_MOVE_DIRTY) {
        return EEP_OK;
    }
    version = version == 0 ? state.version + 1 : version;
    if (version <= state.version || version > WC_VERSION_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: a repair cannot publish version %llu on %llu",
                        c->path, (unsigned long long)version, (unsigned long long)state.version);
    }
    EEP_TRY(wc_snapshot(c, false, &r->copy));
    EEP_TRY(open_seats(c));
    EEP_TRY(lock_seats(c));
    if (state.move != WC_MOVE_DIRTY) {
        EEP_TRY(count_bad(r, move.layers, &bad));
    }
    if (bad == 0) {
        r->result.version = state.version;
        return EEP_OK;
    }
    EEP_TRY(mark_dirty(r, &state, move.layers));
    EEP_TRY(each_bad(r, move.layers, refill_slot));
    EEP_FAULT("wcache.repair.filled");
    EEP_TRY(wc_publish_same(c, version));
    r->result.version = version;
    return EEP_OK;
}

enum eep_status eep_wcache_repair(struct eep_wcache *cache, bool all, uint64_t version,
                                  eep_wcache_refill_fn refill, void *context,
                                  struct eep_wcache_repair *result_out)
{
    struct repair r = {.c = cache, .refill = refill, .context = context};
    enum eep_status status;

    EEP_TRY(wc_check_owner(cache));
    if (cache->moving) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: an own move is pending; commit or abort it",
                        cache->path);
    }
    EEP_TRY(wc_mover_take(cache));
    wc_move_tidy(cache);
    EEP_FAULT("wcache.repair.begun");
    status = repair_locked(&r, all, version);
    eep_wcache_leave(cache);
    eep_mem_free(r.copy);
    if (status == EEP_OK) {
        *result_out = r.result;
    }
    return status;
}

/* ---- verify -----------------------------------------------------------------------------------
 */

struct verify {
    struct eep_wcache *c;
    void (*report)(void *context, const char *reason);
    void *context;
    struct eep_wcache_verify result;
};

static void tell(struct verify *v, const char *file, const char *reason)
{
    char text[512];

    v->result.bad++;
    if (v->report != NULL) {
        snprintf(text, sizeof(text), "%s: %s", file, reason);
        v->report(v->context, text);
    }
}

static void verify_seat(struct verify *v, const struct eep_wcache_view *view, uint32_t seat)
{
    const struct wc_shape *shape = &v->c->shape;
    char text[256], name[32];

    wc_seat_name(seat, name);
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t local = 0; local < shape->slots_per_seat; local++) {
            const uint64_t i = slot_index(shape, seat, layer, local);
            const int32_t expert = wc_copy_map(view->copy)[i];

            if (expert == EEP_NO_EXPERT) {
                continue;
            }
            v->result.frames++;
            v->result.bytes += shape->frame_bytes;
            if (wc_frame_trouble(v->c, seat, wc_copy_frames(view->copy, shape)[i], layer, expert,
                                 true, text) != NULL) {
                tell(v, name, text);
            }
        }
    }
}

static enum eep_status verify_dense(struct verify *v)
{
    const struct wc_dense_header *header;
    bool held, full;

    EEP_TRY(wc_dense_look(v->c, &held, &full));
    if (!full) {
        return EEP_OK;
    }
    header = (const struct wc_dense_header *)v->c->dense;
    v->result.frames++;
    v->result.bytes += v->c->shape.dense_bytes;
    if (!wc_digest_equal(header->digest,
                         wc_xxh128(eep_wcache_dense(v->c), v->c->shape.dense_bytes))) {
        tell(v, "dense", "its bytes do not have its digest");
    }
    return EEP_OK;
}

static enum eep_status verify_view(struct verify *v, const struct eep_wcache_view *view,
                                   const struct eep_seat *only)
{
    bool held, full;

    for (uint32_t seat = 0; seat < v->c->shape.seats; seat++) {
        if (only != NULL && only->id != seat) {
            continue;
        }
        EEP_TRY(wc_seat_look(v->c, seat, &held, &full));
        if (full) {
            EEP_TRY(wc_seat_map(v->c, seat));
            verify_seat(v, view, seat);
        }
    }
    return only == NULL && v->c->shape.dense_bytes > 0 ? verify_dense(v) : EEP_OK;
}

/* Pinned without the check of headers that eep_wcache_pin() makes: bad ones are to be counted. */
enum eep_status eep_wcache_verify(struct eep_wcache *cache, const struct eep_seat *seat,
                                  void (*report)(void *context, const char *reason), void *context,
                                  struct eep_wcache_verify *result_out)
{
    struct verify v = {.c = cache, .report = report, .context = context};
    struct eep_wcache_view *view;
    enum eep_status status;

    EEP_TRY(wc_pin(cache, false, &view));
    status = verify_view(&v, view, seat);
    eep_wcache_unpin(cache, view);
    if (status == EEP_OK) {
        *result_out = v.result;
    }
    return status;
}
