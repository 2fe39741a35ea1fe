/*
 * Seats and the dense blob: files that one process of the node fills while the others wait.
 *
 *     no file -> file, OPEN -> file, VALID        each under the fill lock of that file
 *
 * A filler that dies leaves OPEN and a free lock; the next one goes on. While a seat is filled for
 * the first time nobody may begin a move: the filler takes the lock first and then looks for a
 * move, a mover publishes its move first and then looks for locks, so one of them sees the other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "wcache/wcache_int.h"

void wc_seat_name(uint32_t seat, char name_out[32])
{
    snprintf(name_out, 32, "seat-%03u", seat);
}

static void unmap(const void *bytes, uint64_t count)
{
    if (bytes != NULL) {
        munmap((void *)bytes, count);
    }
}

void wc_seats_close(struct eep_wcache *c)
{
    for (uint32_t i = 0; i < c->shape.seats; i++) {
        struct wc_seat *seat = &c->seats[i];

        unmap(seat->headers, c->shape.seat_data);
        unmap(seat->bytes, c->shape.seat_bytes);
        unmap(seat->writable, c->shape.seat_bytes);
        eep_mem_free(seat->taken);
        eep_mem_free(seat->mapped);
    }
}

void wc_dense_close(struct eep_wcache *c)
{
    unmap(c->dense, c->shape.dense_file_bytes);
    unmap(c->dense_writable, c->shape.dense_file_bytes);
}

/* ---- locks ------------------------------------------------------------------------------------
 */

enum eep_status wc_seat_lock(struct eep_wcache *c, uint32_t seat, bool *locked_out)
{
    if (c->seats[seat].locked) {
        *locked_out = true;
        return EEP_OK;
    }
    EEP_TRY(wc_lock_try(c->record_fd, WC_LOCK_SEAT + seat, locked_out));
    c->seats[seat].locked = *locked_out;
    return EEP_OK;
}

void wc_seat_unlock(struct eep_wcache *c, uint32_t seat)
{
    if (c->seats[seat].locked && wc_unlock(c->record_fd, WC_LOCK_SEAT + seat) == EEP_OK) {
        c->seats[seat].locked = false;
    }
}

/* ---- looking at a file ------------------------------------------------------------------------
 */

static enum eep_status is_there(struct eep_wcache *c, const char *name, bool *there_out)
{
    struct stat info;

    *there_out = fstatat(c->dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    return *there_out || errno == ENOENT ? EEP_OK : WC_FAIL_SYS("stat", c->path);
}

static enum eep_status check_seat_header(struct eep_wcache *c, uint32_t seat,
                                         const struct wc_seat_header *header)
{
    if (header->magic != WC_SEAT_MAGIC || header->format != WC_FORMAT || header->seat != seat ||
        header->frame_bytes != c->shape.frame_bytes || header->frames != c->shape.seat_frames ||
        !wc_digest_equal(header->record, c->header->check) ||
        !wc_digest_equal(header->check,
                         wc_xxh128(header, offsetof(struct wc_seat_header, check)))) {
        return EEP_FAIL(
            EEP_ERR_CACHE_BAD,
            "%s/seat-%03u: its header is damaged, or of another seat or cache; drop the "
            "cache",
            c->path, seat);
    }
    return EEP_OK;
}

static enum eep_status fill_state(struct eep_wcache *c, const char *name, _Atomic uint64_t *word,
                                  uint64_t salt, bool *full_out)
{
    uint64_t content;

    if (!wc_word_read(salt, atomic_load(word), &content) ||
        (content != WC_FILL_OPEN && content != WC_FILL_VALID)) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s/%s: its state is damaged; drop the cache", c->path,
                        name);
    }
    *full_out = content == WC_FILL_VALID;
    return EEP_OK;
}

enum eep_status wc_seat_look(struct eep_wcache *c, uint32_t seat, bool *held_out, bool *full_out)
{
    struct wc_seat *s = &c->seats[seat];
    char name[32];
    unsigned char *bytes;
    enum eep_status status;

    *full_out = false;
    *held_out = s->headers != NULL;
    wc_seat_name(seat, name);
    if (!*held_out) {
        EEP_TRY(is_there(c, name, held_out));
    }
    if (!*held_out) {
        return EEP_OK;
    }
    if (s->headers == NULL) {
        /* The whole file is mapped to check its length; its pages are not touched. */
        EEP_TRY(wc_map_file(c, name, c->shape.seat_bytes, false, &bytes));
        status = check_seat_header(c, seat, wc_seat_header(bytes));
        if (status != EEP_OK) {
            unmap(bytes, c->shape.seat_bytes);
            return status;
        }
        munmap(bytes + c->shape.seat_data, c->shape.seat_bytes - c->shape.seat_data);
        s->headers = bytes;
    }
    return fill_state(c, name, &wc_seat_header(s->headers)->state, WC_SALT_SEAT, full_out);
}

/* ---- making and mapping -----------------------------------------------------------------------
 */

static enum eep_status make_seat(struct eep_wcache *c, uint32_t seat)
{
    char name[32];
    struct wc_seat_header header = {.magic = WC_SEAT_MAGIC,
                                    .format = WC_FORMAT,
                                    .seat = seat,
                                    .frame_bytes = c->shape.frame_bytes,
                                    .frames = c->shape.seat_frames,
                                    .record = c->header->check};

    header.check = wc_xxh128(&header, offsetof(struct wc_seat_header, check));
    atomic_store(&header.state, wc_word(WC_SALT_SEAT, WC_FILL_OPEN));
    wc_seat_name(seat, name);
    return wc_make_file(c->path, c->dir_fd, name, c->shape.seat_bytes, &header, sizeof(header));
}

enum eep_status wc_seat_map(struct eep_wcache *c, uint32_t seat)
{
    struct wc_seat *s = &c->seats[seat];
    char name[32];
    unsigned char *bytes;

    if (s->bytes == NULL) {
        wc_seat_name(seat, name);
        EEP_TRY(wc_map_file(c, name, c->shape.seat_bytes, false, &bytes));
        s->bytes = bytes;
    }
    return EEP_OK;
}

enum eep_status wc_seat_writable(struct eep_wcache *c, uint32_t seat)
{
    struct wc_seat *s = &c->seats[seat];
    char name[32];

    if (s->writable != NULL) {
        return EEP_OK;
    }
    wc_seat_name(seat, name);
    return wc_map_file(c, name, c->shape.seat_bytes, true, &s->writable);
}

/* Every slot's frame must hold what the map says. */
static enum eep_status check_seat_frames(struct eep_wcache *c, uint32_t seat)
{
    const struct wc_shape *shape = &c->shape;
    const char *trouble = NULL;
    char text[256];
    struct wc_copy *copy;

    EEP_TRY(wc_snapshot(c, false, &copy));
    for (uint32_t layer = 0; layer < shape->layers && trouble == NULL; layer++) {
        for (uint32_t local = 0; local < shape->slots_per_seat && trouble == NULL; local++) {
            const uint64_t i =
                (uint64_t)layer * shape->slots + (uint64_t)seat * shape->slots_per_seat + local;

            trouble = wc_frame_trouble(c, seat, wc_copy_frames(copy, shape)[i], layer,
                                       wc_copy_map(copy)[i], false, text);
        }
    }
    eep_mem_free(copy);
    return trouble == NULL
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_CACHE_BAD,
                          "%s/seat-%03u: %s; repair the cache (eep cache repair) or drop "
                          "it",
                          c->path, seat, trouble);
}

/* Part `part` of `parts` of a mapping, in whole pages. */
static void populate_part(const unsigned char *bytes, uint64_t count, uint32_t part, uint32_t parts)
{
    const uint64_t step = eep_round_up(eep_div_up(count, parts), EEP_PAGE);
    const uint64_t first = EEP_MIN(step * part, count);

    EEP_ASSERT(part < parts);
    if (first < count) {
        wc_populate(bytes + first, EEP_MIN(step, count - first));
    }
}

void eep_wcache_seat_populate(const struct eep_wcache *cache, struct eep_seat seat, uint32_t part,
                              uint32_t parts)
{
    EEP_ASSERT(seat.id < cache->shape.seats && cache->seats[seat.id].bytes != NULL);
    populate_part(cache->seats[seat.id].bytes, cache->shape.seat_bytes, part, parts);
}

void eep_wcache_dense_populate(const struct eep_wcache *cache, uint32_t part, uint32_t parts)
{
    EEP_ASSERT(cache->dense != NULL);
    populate_part(cache->dense, cache->shape.dense_file_bytes, part, parts);
}

/* ---- opening a seat ---------------------------------------------------------------------------
 */

static enum eep_status fail_waiting(struct eep_wcache *c, const char *name, uint32_t holder,
                                    uint64_t timeout_ns)
{
    char engine[EEP_WCACHE_NAME_MAX];

    wc_attach_name(c, holder, engine);
    return EEP_FAIL(EEP_ERR_TIMEOUT, "%s/%s: waited %.1f s for engine '%s', which fills it",
                    c->path, name, (double)timeout_ns / (double)EEP_NS_PER_S, engine);
}

/* A move that lives, or a version that waits for its decision, would change the map under the fill.
 */
static enum eep_status wait_for_quiet(struct eep_wcache *c, uint64_t timeout_ns)
{
    struct wc_state state;

    EEP_TRY(eep_wcache_wait(c, timeout_ns));
    EEP_TRY(wc_state_read(c, &state));
    return state.prepared ? EEP_FAIL(EEP_ERR_STALE,
                                     "%s: version %llu is prepared and waits for its decision "
                                     "(resolve) before a seat is filled",
                                     c->path, (unsigned long long)state.prepared_version)
                          : EEP_OK;
}

/* This process holds the fill lock and the seat is not full. */
static enum eep_status start_fill(struct eep_wcache *c, uint32_t seat, bool held,
                                  uint64_t timeout_ns)
{
    bool full;

    if (!held) {
        EEP_TRY(make_seat(c, seat));
        EEP_FAULT("wcache.seat.made");
    }
    EEP_TRY(wc_seat_look(c, seat, &held, &full));
    EEP_TRY(wc_seat_map(c, seat));
    EEP_TRY(wc_seat_writable(c, seat));
    atomic_store(&wc_seat_header(c->seats[seat].writable)->holder, c->place);
    EEP_TRY(wait_for_quiet(c, timeout_ns));
    c->seats[seat].filling = true;
    EEP_FAULT("wcache.seat.filling");
    return EEP_OK;
}

enum eep_status eep_wcache_seat_full(struct eep_wcache *cache, struct eep_seat seat, bool *full_out)
{
    bool held;

    EEP_TRY(wc_check_owner(cache));
    if (seat.id >= cache->shape.seats) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: there is no seat %u", cache->path, seat.id);
    }
    return wc_seat_look(cache, seat.id, &held, full_out);
}

/* One look: *done_out when the seat is full or is this process's to fill. */
static enum eep_status try_open(struct eep_wcache *c, uint32_t seat, uint64_t timeout_ns,
                                bool *done_out, bool *fill_out)
{
    enum eep_status status;
    bool held, full, locked = false;

    *done_out = true;
    *fill_out = false;
    EEP_TRY(wc_seat_look(c, seat, &held, &full));
    if (!full) {
        EEP_TRY(wc_seat_lock(c, seat, &locked));
        if (!locked) {
            *done_out = false;
            return EEP_OK;
        }
        EEP_TRY(wc_seat_look(c, seat, &held, &full)); /* it may have become full meanwhile */
    }
    if (!full) {
        *fill_out = true;
        status = start_fill(c, seat, held, timeout_ns);
        if (status != EEP_OK) {
            wc_seat_unlock(c, seat);
        }
        return status;
    }
    if (locked) {
        wc_seat_unlock(c, seat);
    }
    EEP_TRY(wc_seat_map(c, seat));
    return check_seat_frames(c, seat);
}

enum eep_status eep_wcache_seat_open(struct eep_wcache *cache, struct eep_seat seat,
                                     uint64_t timeout_ns, bool *fill_out)
{
    const uint64_t deadline = wc_deadline(timeout_ns);
    struct wc_state state;
    unsigned round = 0;
    bool done, lives;
    char name[32];

    EEP_TRY(wc_check_owner(cache));
    if (seat.id >= cache->shape.seats) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: has %u seats, there is no seat %u", cache->path,
                        cache->shape.seats, seat.id);
    }
    if (cache->seats[seat.id].filling) {
        *fill_out = true;
        return EEP_OK;
    }
    EEP_TRY(wc_state_read(cache, &state));
    EEP_TRY(wc_mover_lives(cache, &lives));
    if (state.move == WC_MOVE_DIRTY && !lives) {
        return wc_fail_dirty(cache);
    }
    if (state.move == WC_MOVE_DIRTY && cache->seats[seat.id].bytes == NULL) {
        EEP_TRY(eep_wcache_wait(cache, timeout_ns));
    }
    do {
        EEP_TRY(try_open(cache, seat.id, timeout_ns, &done, fill_out));
        if (done) {
            return EEP_OK;
        }
    } while (wc_pause(deadline, &round));
    wc_seat_name(seat.id, name);
    return fail_waiting(cache, name,
                        cache->seats[seat.id].headers != NULL
                            ? atomic_load(&wc_seat_header(cache->seats[seat.id].headers)->holder)
                            : WC_ATTACH_MAX,
                        timeout_ns);
}

enum eep_status eep_wcache_seat_end(struct eep_wcache *cache, struct eep_seat seat)
{
    struct wc_seat *s;

    EEP_TRY(wc_check_owner(cache));
    if (seat.id >= cache->shape.seats || !cache->seats[seat.id].filling) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: seat %u is not being filled by this process",
                        cache->path, seat.id);
    }
    s = &cache->seats[seat.id];
    EEP_TRY(check_seat_frames(cache, seat.id));
    EEP_FAULT("wcache.seat.checked");
    atomic_store(&wc_seat_header(s->writable)->state, wc_word(WC_SALT_SEAT, WC_FILL_VALID));
    EEP_FAULT("wcache.seat.valid");
    s->filling = false;
    wc_seat_unlock(cache, seat.id);
    /* Pages need not be mapped twice; the mapping is for the next write, the file keeps them. */
    (void)madvise(s->writable, cache->shape.seat_bytes, MADV_DONTNEED);
    eep_mem_free(s->mapped);
    s->mapped = NULL;
    return EEP_OK;
}

/* Views look at no seat that is not open. */
static void close_seat(struct eep_wcache *c, uint32_t seat)
{
    struct wc_seat *s = &c->seats[seat];

    if (!s->locked && !s->filling) {
        unmap(s->bytes, c->shape.seat_bytes);
        s->bytes = NULL;
    }
}

enum eep_status eep_wcache_seat_forget(struct eep_wcache *cache, struct eep_seat seat)
{
    struct eep_wcache_status status;
    bool full, locked;

    EEP_TRY(eep_wcache_seat_full(cache, seat, &full));
    close_seat(cache, seat.id);
    if (!full) {
        return EEP_OK;
    }
    EEP_TRY(eep_wcache_status(cache, &status));
    if (status.attached_others > 0) {
        return EEP_OK;
    }
    EEP_TRY(wc_seat_lock(cache, seat.id, &locked));
    if (!locked) {
        return EEP_OK;
    }
    const enum eep_status written = wc_seat_writable(cache, seat.id);

    if (written == EEP_OK) {
        atomic_store(&wc_seat_header(cache->seats[seat.id].writable)->state,
                     wc_word(WC_SALT_SEAT, WC_FILL_OPEN));
    }
    wc_seat_unlock(cache, seat.id);
    return written;
}

/* ---- dense ------------------------------------------------------------------------------------
 */

static enum eep_status check_dense_header(struct eep_wcache *c, struct wc_dense_header *header,
                                          bool *full_out)
{
    EEP_TRY(fill_state(c, "dense", &header->state, WC_SALT_DENSE, full_out));
    if (header->magic != WC_DENSE_MAGIC || header->format != WC_FORMAT ||
        header->bytes != c->shape.dense_bytes ||
        !wc_digest_equal(header->record, c->header->check) ||
        (*full_out &&
         !wc_digest_equal(header->check,
                          wc_xxh128(header, offsetof(struct wc_dense_header, check))))) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD,
                        "%s/dense: its header is damaged or of another cache; drop the cache",
                        c->path);
    }
    return EEP_OK;
}

static enum eep_status make_dense(struct eep_wcache *c)
{
    struct wc_dense_header header = {.magic = WC_DENSE_MAGIC,
                                     .format = WC_FORMAT,
                                     .bytes = c->shape.dense_bytes,
                                     .record = c->header->check};

    atomic_store(&header.state, wc_word(WC_SALT_DENSE, WC_FILL_OPEN));
    return wc_make_file(c->path, c->dir_fd, "dense", c->shape.dense_file_bytes, &header,
                        sizeof(header));
}

enum eep_status wc_dense_look(struct eep_wcache *c, bool *held_out, bool *full_out)
{
    *full_out = false;
    *held_out = c->dense != NULL;
    if (!*held_out) {
        EEP_TRY(is_there(c, "dense", held_out));
        if (!*held_out) {
            return EEP_OK;
        }
        EEP_TRY(wc_map_file(c, "dense", c->shape.dense_file_bytes, false, &c->dense));
    }
    return check_dense_header(c, (struct wc_dense_header *)c->dense, full_out);
}

static enum eep_status start_dense(struct eep_wcache *c, bool held)
{
    bool full;

    if (!held) {
        EEP_TRY(make_dense(c));
        EEP_FAULT("wcache.dense.made");
        EEP_TRY(wc_dense_look(c, &held, &full));
    }
    EEP_TRY(wc_map_file(c, "dense", c->shape.dense_file_bytes, true, &c->dense_writable));
    atomic_store(&((struct wc_dense_header *)c->dense_writable)->holder, c->place);
    return EEP_OK;
}

static enum eep_status try_dense(struct eep_wcache *c, bool *done_out, bool *fill_out)
{
    enum eep_status status;
    bool held, full, locked;

    *done_out = true;
    *fill_out = false;
    EEP_TRY(wc_dense_look(c, &held, &full));
    if (full) {
        return EEP_OK;
    }
    EEP_TRY(wc_lock_try(c->record_fd, WC_LOCK_DENSE, &locked));
    if (!locked) {
        *done_out = false;
        return EEP_OK;
    }
    status = wc_dense_look(c, &held, &full);
    if (status == EEP_OK && !full) {
        *fill_out = true;
        status = start_dense(c, held);
    }
    if (status != EEP_OK || full) {
        EEP_TRY(wc_unlock(c->record_fd, WC_LOCK_DENSE));
    }
    return status;
}

enum eep_status eep_wcache_dense_open(struct eep_wcache *cache, uint64_t timeout_ns, bool *fill_out)
{
    const uint64_t deadline = wc_deadline(timeout_ns);
    unsigned round = 0;
    bool done;

    EEP_TRY(wc_check_owner(cache));
    if (cache->shape.dense_bytes == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: has no dense weights", cache->path);
    }
    *fill_out = cache->dense_writable != NULL;
    if (*fill_out) {
        return EEP_OK;
    }
    do {
        EEP_TRY(try_dense(cache, &done, fill_out));
        if (done) {
            return EEP_OK;
        }
    } while (wc_pause(deadline, &round));
    return fail_waiting(cache, "dense",
                        cache->dense != NULL
                            ? atomic_load(&((struct wc_dense_header *)cache->dense)->holder)
                            : WC_ATTACH_MAX,
                        timeout_ns);
}

void *eep_wcache_dense_fill(struct eep_wcache *cache)
{
    return cache->dense_writable != NULL ? cache->dense_writable + sizeof(struct wc_dense_header)
                                         : NULL;
}

const void *eep_wcache_dense(const struct eep_wcache *cache)
{
    return cache->dense != NULL ? cache->dense + sizeof(struct wc_dense_header) : NULL;
}

enum eep_status eep_wcache_dense_end(struct eep_wcache *cache)
{
    struct wc_dense_header *header = (struct wc_dense_header *)cache->dense_writable;

    EEP_TRY(wc_check_owner(cache));
    if (header == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: dense is not being filled by this process",
                        cache->path);
    }
    header->digest = wc_xxh128(eep_wcache_dense_fill(cache), cache->shape.dense_bytes);
    header->check = wc_xxh128(header, offsetof(struct wc_dense_header, check));
    EEP_FAULT("wcache.dense.checked");
    atomic_store(&header->state, wc_word(WC_SALT_DENSE, WC_FILL_VALID));
    EEP_FAULT("wcache.dense.valid");
    unmap(cache->dense_writable, cache->shape.dense_file_bytes);
    cache->dense_writable = NULL;
    return wc_unlock(cache->record_fd, WC_LOCK_DENSE);
}
