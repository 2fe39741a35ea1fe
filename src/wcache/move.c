/*
 * Moves: one mover by a lock, a version written beside the current one, and the flip.
 *
 *     idle --begin--> pending --prepare--> pending, v+1 prepared --commit--> idle, v+1 current
 *                       | take_in_place                                (repair.c: dirty -> idle)
 *                       v
 *                     dirty ---prepare--> dirty, v+1 prepared --commit--> idle, v+1 current
 *
 * A mover that dies while pending has touched no byte that a version in use points to: the state is
 * cleared by the next one. A mover that dies while dirty may have: that state stays until it is
 * repaired or a complete prepared version is made current.
 *
 * The number of the move is part of its word, so that a rank that outlived its mover cannot make
 * another mover's move dirty.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fault.h"
#include "base/log.h"
#include "wcache/wcache_int.h"

/* ---- the mover's lock and words ---------------------------------------------------------------
 */

enum eep_status wc_mover_take(struct eep_wcache *c)
{
    char name[EEP_WCACHE_NAME_MAX];
    bool locked;

    if (c->mover) {
        return EEP_OK;
    }
    EEP_TRY(wc_lock_try(c->record_fd, WC_LOCK_MOVER, &locked));
    if (!locked) {
        wc_attach_name(
            c, (uint32_t)EEP_MIN(atomic_load(&c->control->mover_place), (uint64_t)WC_ATTACH_MAX),
            name);
        return EEP_FAIL(EEP_ERR_AGAIN, "%s: busy: engine '%s' is the mover", c->path, name);
    }
    c->mover = true;
    c->moving = false;
    atomic_store(&c->control->mover_place, c->place);
    return EEP_OK;
}

enum eep_status eep_wcache_mover_take(struct eep_wcache *cache)
{
    EEP_TRY(wc_check_owner(cache));
    return wc_mover_take(cache);
}

void eep_wcache_mover_release(struct eep_wcache *cache)
{
    EEP_ASSERT(!cache->moving);
    if (cache->mover && wc_unlock(cache->record_fd, WC_LOCK_MOVER) == EEP_OK) {
        cache->mover = false;
    }
}

void eep_wcache_abandon(struct eep_wcache *cache)
{
    eep_wcache_leave(cache);
    cache->moving = false;
    eep_wcache_mover_release(cache);
}

void wc_move_set(struct eep_wcache *c, enum wc_move state, uint64_t number)
{
    EEP_ASSERT(c->mover);
    atomic_store(&c->control->move, wc_word(WC_SALT_MOVE, wc_move_content(state, number)));
}

static void set_prepared(struct eep_wcache *c, uint64_t content)
{
    EEP_ASSERT(c->mover);
    atomic_store(&c->control->prepared, wc_word(WC_SALT_PREPARED, content));
}

void wc_prepared_set(struct eep_wcache *c, uint64_t version, uint32_t copy)
{
    set_prepared(c, wc_place(version, copy));
}

void wc_move_start(struct eep_wcache *c, enum wc_move state, const uint64_t *layers,
                   uint64_t base_version)
{
    struct wc_move_block *block = &c->control->block;

    memset(block, 0, sizeof(*block));
    block->number = c->move_number;
    block->engine = c->engine_id;
    block->base_version = base_version;
    memcpy(block->name, c->attached[c->place].name, sizeof(block->name));
    memcpy(block->layers, layers, sizeof(block->layers));
    EEP_FAULT("wcache.move.described");
    block->check = wc_block_check(block);
    EEP_FAULT("wcache.move.sealed");
    wc_move_set(c, state, c->move_number);
    EEP_FAULT("wcache.move.published");
}

void wc_move_tidy(struct eep_wcache *c)
{
    struct wc_state state;
    uint64_t content;

    EEP_ASSERT(c->mover);
    if (wc_word_read(WC_SALT_PREPARED, atomic_load(&c->control->prepared), &content) &&
        content != 0 && wc_state_read(c, &state) == EEP_OK && !state.prepared) {
        wc_move_set(c, WC_MOVE_IDLE, state.number);
        EEP_FAULT("wcache.tidy.idle");
        set_prepared(c, 0);
    }
}

void wc_flip(struct eep_wcache *c, uint64_t version, uint32_t copy)
{
    struct wc_state state;

    const enum eep_status status = wc_state_read(c, &state);

    EEP_ASSERT(c->mover && status == EEP_OK);
    EEP_ASSERT(version > state.version && copy != state.copy);
    EEP_FAULT("wcache.flip.begun");
    atomic_store(&c->control->current, wc_word(WC_SALT_CURRENT, wc_place(version, copy)));
    EEP_FAULT("wcache.flip.done");
    wc_move_set(c, WC_MOVE_IDLE, state.number);
    EEP_FAULT("wcache.flip.idle");
    set_prepared(c, 0);
    EEP_FAULT("wcache.flip.cleared");
}

/* ---- begin ------------------------------------------------------------------------------------
 */

static enum eep_status layer_bits(const struct eep_wcache *c, const uint32_t *layers,
                                  uint32_t count, uint64_t bits[EEP_WCACHE_LAYERS_MAX / 64])
{
    memset(bits, 0, EEP_WCACHE_LAYERS_MAX / 8);
    if (count == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: refused: a move of no layers", c->path);
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bit = UINT64_C(1) << (layers[i] % 64);

        if (layers[i] >= c->shape.layers || (bits[layers[i] / 64] & bit) != 0) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "%s: refused: layer %u is given twice or is not below %u", c->path,
                            layers[i], c->shape.layers);
        }
        bits[layers[i] / 64] |= bit;
    }
    return EEP_OK;
}

struct finder {
    uint64_t engine_id;
    uint32_t place; /* of what was found */
    bool found;
};

static bool find_nonfollower(void *context, uint32_t place, struct wc_attach *attach)
{
    struct finder *finder = context;

    finder->found = wc_is_other(attach, finder->engine_id) && atomic_load(&attach->follows) == 0;
    finder->place = place;
    return !finder->found;
}

static bool find_view(void *context, uint32_t place, struct wc_attach *attach)
{
    struct finder *finder = context;

    finder->found =
        wc_is_other(attach, finder->engine_id) && atomic_load(&attach->pin) != WC_NO_PIN;
    finder->place = place;
    return !finder->found;
}

enum eep_status wc_other_view(struct eep_wcache *c, bool *found_out,
                              char name_out[EEP_WCACHE_NAME_MAX])
{
    struct finder finder = {.engine_id = c->engine_id};

    EEP_TRY(wc_attached_each(c, find_view, &finder));
    *found_out = finder.found;
    wc_attach_name(c, finder.place, name_out);
    return EEP_OK;
}

static enum eep_status check_begin(struct eep_wcache *c, const struct wc_state *state,
                                   uint64_t base_version)
{
    struct finder finder = {.engine_id = c->engine_id};
    char name[EEP_WCACHE_NAME_MAX];

    if (state->move == WC_MOVE_DIRTY) {
        return state->prepared ? EEP_FAIL(EEP_ERR_STALE,
                                          "%s: refused: version %llu is prepared and waits for its "
                                          "decision (resolve)",
                                          c->path, (unsigned long long)state->prepared_version)
                               : wc_fail_dirty(c);
    }
    if (state->prepared) {
        return EEP_FAIL(
            EEP_ERR_STALE,
            "%s: refused: version %llu is prepared and waits for its decision (resolve)", c->path,
            (unsigned long long)state->prepared_version);
    }
    if (state->version != base_version || state->version >= WC_VERSION_MAX) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: refused: the current version is %llu, not %llu",
                        c->path, (unsigned long long)state->version,
                        (unsigned long long)base_version);
    }
    EEP_TRY(wc_attached_each(c, find_nonfollower, &finder));
    if (finder.found) {
        wc_attach_name(c, finder.place, name);
        return EEP_FAIL(EEP_ERR_AGAIN,
                        "%s: busy: engine '%s' is attached and does not follow newer versions",
                        c->path, name);
    }
    return EEP_OK;
}

/* A seat that is not full and whose fill lock is held: its filler relies on the map. What a dead
 * filler left counts as not there; whoever fills it later goes by the map of then. */
static enum eep_status check_fills(struct eep_wcache *c)
{
    bool held, full, locked;
    int64_t byte;

    for (uint32_t seat = 0; seat < c->shape.seats; seat++) {
        EEP_TRY(wc_seat_look(c, seat, &held, &full));
        if (!full) {
            EEP_TRY(wc_lock_other(c->record_fd, WC_LOCK_SEAT + seat, 1, &byte, &locked));
            if (locked || c->seats[seat].filling) {
                return EEP_FAIL(EEP_ERR_AGAIN, "%s: busy: seat %u is being filled", c->path, seat);
            }
        }
    }
    return EEP_OK;
}

/* The mover's lock is held. */
static enum eep_status begin_locked(struct eep_wcache *c, const uint64_t *bits,
                                    uint64_t base_version)
{
    struct wc_state state;
    enum eep_status status;

    wc_move_tidy(c);
    EEP_TRY(wc_state_read(c, &state));
    EEP_TRY(check_begin(c, &state, base_version));
    if (state.move == WC_MOVE_PENDING) {
        char text[512];

        eep_log(EEP_LOG_INFO, "weight cache %s: cleared the move of %s, which is gone", c->path,
                wc_move_text(c, text));
        wc_move_set(c, WC_MOVE_IDLE, state.number);
    }
    c->move_number = state.number + 1;
    wc_move_start(c, WC_MOVE_PENDING, bits, base_version);
    status = check_fills(c);
    if (status != EEP_OK) {
        wc_move_set(c, WC_MOVE_IDLE, c->move_number);
        return status;
    }
    c->moving = true;
    return EEP_OK;
}

enum eep_status eep_wcache_begin(struct eep_wcache *cache, const uint32_t *layers,
                                 uint32_t layer_count, uint64_t base_version)
{
    const bool was_mover = cache->mover;
    uint64_t bits[EEP_WCACHE_LAYERS_MAX / 64];
    enum eep_status status;

    EEP_TRY(wc_check_owner(cache));
    EEP_TRY(layer_bits(cache, layers, layer_count, bits));
    if (cache->moving) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: refused: an own move is pending", cache->path);
    }
    EEP_TRY(wc_mover_take(cache));
    EEP_FAULT("wcache.begin.locked");
    status = begin_locked(cache, bits, base_version);
    if (status != EEP_OK && !was_mover) {
        eep_wcache_mover_release(cache);
    }
    return status;
}

/* ---- taking frames ----------------------------------------------------------------------------
 */

/* The pending move, if it is one of this process's engine. */
static enum eep_status own_move(struct eep_wcache *c, struct wc_state *state_out,
                                struct eep_wcache_move *move_out)
{
    EEP_TRY(wc_state_read(c, state_out));
    if (state_out->move == WC_MOVE_IDLE) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: no move is pending", c->path);
    }
    EEP_TRY(wc_move_read(c, move_out));
    return move_out->engine_id == c->engine_id
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_INVALID, "%s: the pending move is that of engine '%s'", c->path,
                          move_out->engine);
}

/* Hold the seat's fill lock, and know what was taken for this move. */
static enum eep_status enter_seat(struct eep_wcache *c, uint32_t seat, uint64_t number)
{
    struct wc_seat *s = &c->seats[seat];
    char name[EEP_WCACHE_NAME_MAX];
    bool locked;

    if (s->bytes == NULL || s->filling) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: seat %u is not open and full here", c->path, seat);
    }
    if (s->taken == NULL) {
        EEP_TRY(eep_mem_alloc(c->shape.seat_frames, sizeof(*s->taken), "taken frames", &s->taken));
    }
    EEP_TRY(wc_seat_writable(c, seat));
    EEP_TRY(wc_seat_lock(c, seat, &locked));
    if (!locked) {
        wc_attach_name(c, atomic_load(&wc_seat_header(s->headers)->holder), name);
        return EEP_FAIL(EEP_ERR_AGAIN, "%s: busy: engine '%s' writes frames of seat %u", c->path,
                        name, seat);
    }
    atomic_store(&wc_seat_header(s->writable)->holder, c->place);
    if (s->taken_move != number) {
        memset(s->taken, 0, c->shape.seat_frames * sizeof(*s->taken));
        s->taken_move = number;
    }
    return EEP_OK;
}

static bool lowest_pin(void *context, uint32_t place, struct wc_attach *attach)
{
    uint64_t *lowest = context;

    (void)place;
    *lowest = EEP_MIN(*lowest, atomic_load(&attach->pin));
    return true;
}

/* Mark the frames of a seat that a version uses. */
static void mark_used(const struct wc_shape *shape, struct wc_copy *copy, uint32_t seat, bool *used)
{
    const uint32_t *frames = wc_copy_frames(copy, shape);

    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t local = 0; local < shape->slots_per_seat; local++) {
            const uint32_t frame = frames[(uint64_t)layer * shape->slots +
                                          (uint64_t)seat * shape->slots_per_seat + local];

            if (frame < shape->seat_frames) {
                used[frame] = true;
            }
        }
    }
}

struct spare {
    uint32_t first;  /* a free one; seat_frames if there is none */
    uint32_t free;   /* how many are */
    uint32_t pinned; /* how many will be when views end */
};

static enum eep_status find_spare(struct eep_wcache *c, uint32_t seat, struct spare *spare_out)
{
    const struct wc_seat *s = &c->seats[seat];
    struct spare spare = {.first = c->shape.seat_frames};
    struct wc_state state;
    uint64_t lowest = WC_NO_PIN;
    const uint64_t *retired;
    bool *used;

    EEP_TRY(wc_state_read(c, &state));
    EEP_TRY(wc_attached_each(c, lowest_pin, &lowest));
    EEP_TRY(eep_mem_alloc(c->shape.seat_frames, sizeof(*used), "frames in use", &used));
    mark_used(&c->shape, wc_copy_at(c, state.copy), seat, used);
    retired = wc_copy_retired(wc_copy_at(c, state.copy), &c->shape) +
              (uint64_t)seat * c->shape.seat_frames;
    for (uint32_t f = 0; f < c->shape.seat_frames; f++) {
        if (used[f] || (s->taken != NULL && s->taken_move == state.number && s->taken[f])) {
            continue;
        }
        if (retired[f] > lowest) {
            spare.pinned++;
        } else if (spare.free++ == 0) {
            spare.first = f;
        }
    }
    eep_mem_free(used);
    *spare_out = spare;
    return EEP_OK;
}

enum eep_status eep_wcache_take(struct eep_wcache *cache, struct eep_seat seat,
                                struct eep_wcache_frame *frame_out)
{
    struct eep_wcache_move move;
    struct wc_state state;
    struct spare spare;

    EEP_TRY(wc_check_owner(cache));
    EEP_TRY(own_move(cache, &state, &move));
    if (seat.id >= cache->shape.seats) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: there is no seat %u", cache->path, seat.id);
    }
    EEP_TRY(enter_seat(cache, seat.id, state.number));
    EEP_TRY(find_spare(cache, seat.id, &spare));
    if (spare.free == 0) {
        return spare.pinned > 0
                   ? EEP_FAIL(EEP_ERR_AGAIN,
                              "%s: busy: seat %u: %u spare frames are free when engines let go of "
                              "older versions",
                              cache->path, seat.id, spare.pinned)
                   : EEP_FAIL(
                         EEP_ERR_NOMEM,
                         "%s: seat %u: none of its %u spare frames is left for this move; move "
                         "fewer layers at a time, or in place",
                         cache->path, seat.id, cache->header->spare_frames);
    }
    cache->seats[seat.id].taken[spare.first] = true;
    EEP_FAULT("wcache.take.done");
    *frame_out = (struct eep_wcache_frame){seat.id, spare.first};
    return EEP_OK;
}

uint32_t eep_wcache_spare_count(struct eep_wcache *cache, struct eep_seat seat)
{
    struct spare spare;

    return seat.id < cache->shape.seats && find_spare(cache, seat.id, &spare) == EEP_OK ? spare.free
                                                                                        : 0;
}

/* Dirty first, then look for views: a reader stores its pin first and then looks for dirt. It stays
 * dirty when a view is found, since another rank of the engine may have found none a moment later.
 */
static enum eep_status make_dirty(struct eep_wcache *c, const struct wc_state *state)
{
    uint64_t old = wc_word(WC_SALT_MOVE, wc_move_content(WC_MOVE_PENDING, state->number));
    const uint64_t dirty = wc_word(WC_SALT_MOVE, wc_move_content(WC_MOVE_DIRTY, state->number));
    char name[EEP_WCACHE_NAME_MAX];
    bool found;

    if (!atomic_compare_exchange_strong(&c->control->move, &old, dirty) && old != dirty) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: the move is over", c->path);
    }
    EEP_FAULT("wcache.dirty.published");
    EEP_TRY(wc_other_view(c, &found, name));
    return found ? EEP_FAIL(EEP_ERR_AGAIN,
                            "%s: busy: engine '%s' has a view; an in-place move must wait", c->path,
                            name)
                 : EEP_OK;
}

enum eep_status eep_wcache_take_in_place(struct eep_wcache *cache, uint32_t layer,
                                         struct eep_slot slot, struct eep_wcache_frame *frame_out)
{
    struct eep_wcache_frame frame;
    struct eep_wcache_move move;
    struct wc_state state;

    EEP_TRY(wc_check_owner(cache));
    EEP_TRY(own_move(cache, &state, &move));
    if (layer >= cache->shape.layers || slot.id >= cache->shape.slots ||
        (move.layers[layer / 64] >> (layer % 64) & 1) == 0 ||
        !eep_wcache_slot_frame(cache, layer, slot, &frame)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%s: layer %u is not in the move, or slot %u of it is empty or not there",
                        cache->path, layer, slot.id);
    }
    EEP_TRY(enter_seat(cache, frame.seat, state.number));
    EEP_TRY(make_dirty(cache, &state));
    cache->seats[frame.seat].taken[frame.index] = true;
    *frame_out = frame;
    return EEP_OK;
}

void eep_wcache_leave(struct eep_wcache *cache)
{
    for (uint32_t seat = 0; seat < cache->shape.seats; seat++) {
        struct wc_seat *s = &cache->seats[seat];

        if (s->locked && !s->filling) {
            if (s->taken != NULL) {
                memset(s->taken, 0, cache->shape.seat_frames * sizeof(*s->taken));
            }
            wc_seat_unlock(cache, seat);
        }
    }
}

/* ---- commit and abort -------------------------------------------------------------------------
 */

enum eep_status eep_wcache_commit(struct eep_wcache *cache, uint64_t *version_out)
{
    struct wc_state state;

    EEP_TRY(wc_check_owner(cache));
    if (!cache->moving) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: no own move is pending", cache->path);
    }
    EEP_TRY(wc_state_read(cache, &state));
    if (!state.prepared) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: nothing is prepared", cache->path);
    }
    EEP_FAULT("wcache.commit.begun");
    wc_flip(cache, state.prepared_version, state.prepared_copy);
    cache->moving = false;
    eep_wcache_leave(cache);
    EEP_FAULT("wcache.commit.done");
    *version_out = state.prepared_version;
    return EEP_OK;
}

enum eep_status wc_check_layers(struct eep_wcache *c, struct wc_copy *copy,
                                const uint64_t layers[EEP_WCACHE_LAYERS_MAX / 64], bool bytes)
{
    const struct wc_shape *shape = &c->shape;
    char text[256];
    bool held, full;

    for (uint64_t i = 0; i < shape->table; i++) {
        const uint32_t layer = (uint32_t)(i / shape->slots);
        const uint32_t seat = (uint32_t)(i % shape->slots) / shape->slots_per_seat;
        const char *trouble;

        if ((layers[layer / 64] >> (layer % 64) & 1) == 0) {
            continue;
        }
        EEP_TRY(wc_seat_look(c, seat, &held, &full));
        if (!held || !full) {
            continue;
        }
        if (bytes) {
            EEP_TRY(wc_seat_map(c, seat));
        }
        trouble = wc_frame_trouble(c, seat, wc_copy_frames(copy, shape)[i], layer,
                                   wc_copy_map(copy)[i], bytes, text);
        if (trouble != NULL) {
            return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s/seat-%03u: %s", c->path, seat, trouble);
        }
    }
    return EEP_OK;
}

enum eep_status eep_wcache_abort(struct eep_wcache *cache)
{
    const bool was_mover = cache->mover;
    struct eep_wcache_move move;
    struct wc_state state;

    EEP_TRY(wc_check_owner(cache));
    EEP_TRY(wc_mover_take(cache));
    wc_move_tidy(cache);
    if (own_move(cache, &state, &move) != EEP_OK) {
        if (!was_mover) {
            eep_wcache_mover_release(cache);
        }
        return EEP_FAIL(EEP_ERR_STALE, "%s: no own move is pending", cache->path);
    }
    EEP_FAULT("wcache.abort.begun");
    if (state.move == WC_MOVE_DIRTY &&
        wc_check_layers(cache, wc_copy_at(cache, state.copy), move.layers, true) != EEP_OK) {
        return eep_fail_context(EEP_ERR_CACHE_BAD, "the aborted move leaves the record dirty");
    }
    set_prepared(cache, 0);
    EEP_FAULT("wcache.abort.unprepared");
    wc_move_set(cache, WC_MOVE_IDLE, state.number);
    EEP_FAULT("wcache.abort.idle");
    cache->moving = false;
    eep_wcache_leave(cache);
    return EEP_OK;
}

/* ---- resolve ----------------------------------------------------------------------------------
 */

static enum eep_status roll_forward(struct eep_wcache *c, const struct wc_state *state)
{
    struct wc_copy *copy = wc_copy_at(c, state->prepared_copy);
    struct eep_wcache_move move;

    if (state->prepared_version <= state->version || state->prepared_copy == state->copy) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD,
                        "%s/record: version %llu is prepared on %llu; drop the "
                        "cache",
                        c->path, (unsigned long long)state->prepared_version,
                        (unsigned long long)state->version);
    }
    EEP_TRY(wc_copy_check(copy, &c->shape, state->prepared_version, c->path));
    EEP_TRY(wc_move_read(c, &move));
    EEP_TRY(wc_check_layers(c, copy, move.layers, state->move == WC_MOVE_DIRTY));
    EEP_FAULT("wcache.resolve.checked");
    wc_flip(c, state->prepared_version, state->prepared_copy);
    return EEP_OK;
}

static void roll_back(struct eep_wcache *c, const struct wc_state *state)
{
    set_prepared(c, 0);
    EEP_FAULT("wcache.resolve.unprepared");
    if (state->move == WC_MOVE_PENDING) {
        wc_move_set(c, WC_MOVE_IDLE, state->number);
    }
    EEP_FAULT("wcache.resolve.back");
}

enum eep_status eep_wcache_resolve(struct eep_wcache *cache, bool forward, uint64_t *version_out)
{
    struct wc_state state;

    EEP_TRY(wc_check_owner(cache));
    if (cache->moving) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: an own move is pending; commit or abort it",
                        cache->path);
    }
    EEP_TRY(wc_mover_take(cache));
    wc_move_tidy(cache);
    EEP_TRY(wc_state_read(cache, &state));
    EEP_FAULT("wcache.resolve.begun");
    if (state.prepared && forward) {
        EEP_TRY(roll_forward(cache, &state));
    } else {
        roll_back(cache, &state);
    }
    *version_out = eep_wcache_version(cache);
    return EEP_OK;
}
