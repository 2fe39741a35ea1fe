/*
 * The next version: the current one with new rows, written into the other copy and sealed, so that
 * the flip is all that is left to do.
 *
 * Seats that are not full on this node have the frames that a fill would use (wc_frames_initial),
 * in every version: whoever fills such a seat later needs no record change.
 */
#include <inttypes.h>
#include <string.h>

#include "base/fault.h"
#include "wcache/wcache_int.h"

static bool in_move(const struct eep_wcache_move *move, uint32_t layer)
{
    return (move->layers[layer / 64] >> (layer % 64) & 1) != 0;
}

/* ---- checking a row ---------------------------------------------------------------------------
 */

static enum eep_status check_experts(const struct eep_wcache *c, const struct eep_wcache_row *row,
                                     bool *seen)
{
    memset(seen, 0, c->shape.experts * sizeof(*seen));
    for (uint32_t p = 0; p < c->shape.slots; p++) {
        const int32_t expert = row->phys2log[p];

        if (expert < EEP_NO_EXPERT || expert >= (int64_t)c->shape.experts) {
            return EEP_FAIL(EEP_ERR_INVALID, "%s: new row of layer %u, slot %u: no expert %d",
                            c->path, row->layer, p, expert);
        }
        if (expert != EEP_NO_EXPERT) {
            seen[expert] = true;
        }
    }
    for (uint32_t e = 0; e < c->shape.experts; e++) {
        if (!seen[e]) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "%s: new row of layer %u: expert %u is left without a "
                            "slot",
                            c->path, row->layer, e);
        }
    }
    return EEP_OK;
}

static enum eep_status check_rows(const struct eep_wcache *c, const struct eep_wcache_move *move,
                                  const struct eep_wcache_row *rows, uint32_t count)
{
    enum eep_status status = EEP_OK;
    bool *seen;

    EEP_TRY(eep_mem_alloc(c->shape.experts, sizeof(*seen), "experts of a row", &seen));
    for (uint32_t i = 0; i < count && status == EEP_OK; i++) {
        status = rows[i].layer < c->shape.layers && in_move(move, rows[i].layer)
                     ? check_experts(c, &rows[i], seen)
                     : EEP_FAIL(EEP_ERR_INVALID, "%s: layer %u is not in the move", c->path,
                                rows[i].layer);
    }
    eep_mem_free(seen);
    return status;
}

/* ---- applying rows ----------------------------------------------------------------------------
 */

static void apply_row(const struct eep_wcache *c, struct wc_copy *copy,
                      const struct eep_wcache_row *row)
{
    const uint64_t at = (uint64_t)row->layer * c->shape.slots;
    int32_t *map = wc_copy_map(copy) + at;
    uint32_t *frames = wc_copy_frames(copy, &c->shape) + at;

    for (uint32_t p = 0; p < c->shape.slots; p++) {
        map[p] = row->phys2log[p];
        frames[p] = map[p] == EEP_NO_EXPERT ? EEP_WCACHE_NO_FRAME : row->frames[p];
    }
}

/* Each frame of a full seat once, and in range. `used` is left marked. */
static enum eep_status check_unique(const struct eep_wcache *c, struct wc_copy *copy, uint32_t seat,
                                    bool *used)
{
    const struct wc_shape *shape = &c->shape;

    memset(used, 0, shape->seat_frames * sizeof(*used));
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t local = 0; local < shape->slots_per_seat; local++) {
            const uint64_t i =
                (uint64_t)layer * shape->slots + (uint64_t)seat * shape->slots_per_seat + local;
            const uint32_t frame = wc_copy_frames(copy, shape)[i];

            if (wc_copy_map(copy)[i] == EEP_NO_EXPERT) {
                continue;
            }
            if (frame >= shape->seat_frames || used[frame]) {
                return EEP_FAIL(
                    EEP_ERR_INVALID,
                    "%s: layer %u, slot %u of seat %u: frame %u is given twice or is not "
                    "below %u",
                    c->path, layer, local, seat, frame, shape->seat_frames);
            }
            used[frame] = true;
        }
    }
    return EEP_OK;
}

/* What left the layout may be reused when no view is older than this version. */
static void set_retired(const struct eep_wcache *c, struct wc_copy *copy, uint32_t seat,
                        const bool *used, const bool *used_before)
{
    uint64_t *retired = wc_copy_retired(copy, &c->shape) + (uint64_t)seat * c->shape.seat_frames;

    for (uint32_t f = 0; f < c->shape.seat_frames; f++) {
        if (used[f]) {
            retired[f] = 0;
        } else if (used_before[f]) {
            retired[f] = copy->version;
        }
    }
}

/* A rank of another engine that outlived its mover may still write a frame that came up free. */
static enum eep_status check_writers(struct eep_wcache *c, uint32_t seat)
{
    const uint32_t holder = atomic_load(&wc_seat_header(c->seats[seat].headers)->holder);
    bool locked;
    int64_t byte;

    EEP_TRY(wc_lock_other(c->record_fd, WC_LOCK_SEAT + seat, 1, &byte, &locked));
    if (locked &&
        (holder >= WC_ATTACH_MAX || atomic_load(&c->attached[holder].engine) != c->engine_id)) {
        return EEP_FAIL(EEP_ERR_AGAIN, "%s: busy: another engine writes frames of seat %u", c->path,
                        seat);
    }
    return EEP_OK;
}

static enum eep_status settle_seat(struct eep_wcache *c, struct wc_copy *old, struct wc_copy *copy,
                                   uint32_t seat, bool *used)
{
    bool *used_before = used + c->shape.seat_frames;
    bool held, full;

    EEP_TRY(wc_seat_look(c, seat, &held, &full));
    if (!held || !full) {
        wc_frames_initial(&c->shape, wc_copy_map(copy), seat, wc_copy_frames(copy, &c->shape));
        memset(wc_copy_retired(copy, &c->shape) + (uint64_t)seat * c->shape.seat_frames, 0,
               c->shape.seat_frames * sizeof(uint64_t));
        return EEP_OK;
    }
    EEP_TRY(check_writers(c, seat));
    EEP_TRY(check_unique(c, old, seat, used_before));
    EEP_TRY(check_unique(c, copy, seat, used));
    set_retired(c, copy, seat, used, used_before);
    return EEP_OK;
}

/* ---- prepare ----------------------------------------------------------------------------------
 */

static enum eep_status fill_copy(struct eep_wcache *c, const struct wc_state *state,
                                 const struct eep_wcache_row *rows, uint32_t row_count,
                                 uint64_t version)
{
    struct wc_copy *old = wc_copy_at(c, state->copy);
    struct wc_copy *copy = wc_copy_at(c, 1 - state->copy);
    enum eep_status status = EEP_OK;
    bool *used;

    EEP_TRY(eep_mem_alloc(2, c->shape.seat_frames * sizeof(*used), "frames in use", &used));
    memcpy(copy, old, c->shape.copy_bytes);
    copy->version = version;
    EEP_FAULT("wcache.prepare.copied");
    for (uint32_t i = 0; i < row_count; i++) {
        apply_row(c, copy, &rows[i]);
    }
    for (uint32_t seat = 0; seat < c->shape.seats && status == EEP_OK; seat++) {
        status = settle_seat(c, old, copy, seat, used);
    }
    eep_mem_free(used);
    EEP_FAULT("wcache.prepare.tables");
    return status == EEP_OK ? wc_copy_seal(copy, &c->shape) : status;
}

enum eep_status wc_publish_same(struct eep_wcache *c, uint64_t version)
{
    struct wc_state state;

    EEP_TRY(wc_state_read(c, &state));
    EEP_TRY(fill_copy(c, &state, NULL, 0, version));
    EEP_FAULT("wcache.repair.sealed");
    wc_prepared_set(c, version, 1 - state.copy);
    EEP_FAULT("wcache.repair.prepared");
    wc_flip(c, version, 1 - state.copy);
    return EEP_OK;
}

enum eep_status eep_wcache_raise(struct eep_wcache *cache, uint64_t version)
{
    struct wc_state state;

    EEP_TRY(wc_check_owner(cache));
    if (!cache->mover) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: not the mover", cache->path);
    }
    wc_move_tidy(cache);
    EEP_TRY(wc_state_read(cache, &state));
    if (state.move != WC_MOVE_IDLE || state.prepared) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: a move is not over", cache->path);
    }
    if (state.version > version) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%s: version %" PRIu64 " is current and cannot become %" PRIu64,
                        cache->path, state.version, version);
    }
    return state.version == version ? EEP_OK : wc_publish_same(cache, version);
}

enum eep_status eep_wcache_prepare(struct eep_wcache *cache, const struct eep_wcache_row *rows,
                                   uint32_t row_count, uint64_t *version_out,
                                   uint8_t digest_out[EEP_WCACHE_DIGEST_BYTES])
{
    struct eep_wcache_move move;
    struct wc_state state;
    struct wc_copy *copy;

    EEP_TRY(wc_check_owner(cache));
    if (!cache->moving) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: no own move is pending", cache->path);
    }
    EEP_TRY(wc_state_read(cache, &state));
    EEP_TRY(wc_move_read(cache, &move));
    EEP_TRY(check_rows(cache, &move, rows, row_count));
    atomic_store(&cache->control->prepared, wc_word(WC_SALT_PREPARED, 0));
    EEP_FAULT("wcache.prepare.begun");
    EEP_TRY(fill_copy(cache, &state, rows, row_count, state.version + 1));
    copy = wc_copy_at(cache, 1 - state.copy);
    EEP_TRY(wc_copy_check(copy, &cache->shape, state.version + 1, cache->path));
    if (wc_check_layers(cache, copy, move.layers, false) != EEP_OK) {
        return eep_fail_context(EEP_ERR_INVALID, "the new version is not what the frames hold");
    }
    EEP_FAULT("wcache.prepare.sealed");
    wc_prepared_set(cache, state.version + 1, 1 - state.copy);
    EEP_FAULT("wcache.prepare.published");
    *version_out = state.version + 1;
    memcpy(digest_out, copy->map_digest, EEP_WCACHE_DIGEST_BYTES);
    return EEP_OK;
}
