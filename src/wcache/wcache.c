/*
 * Attaching to a cache and leaving it; what its record says.
 */
#include "wcache/wcache.h"

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
#include "base/log.h"
#include "wcache/wcache_int.h"

#define CLOSE_TIMEOUT_NS (10 * EEP_NS_PER_S)

/* ---- open -------------------------------------------------------------------------------------
 */

static enum eep_status check_params(const struct eep_wcache_params *params)
{
    struct wc_shape shape;

    if (params->engine == NULL || params->engine[0] == '\0' || params->engine_id == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "a weight cache needs a name and an id of the engine");
    }
    return wc_shape_init(&params->key, params->spare_frames, params->dense_bytes, &shape);
}

static bool same_key(const struct eep_wcache_key *a, const struct eep_wcache_key *b)
{
    return memcmp(a->checkpoint, b->checkpoint, sizeof(a->checkpoint)) == 0 &&
           a->packing == b->packing && a->dtype == b->dtype && a->layers == b->layers &&
           a->experts == b->experts && a->seats == b->seats &&
           a->slots_per_seat == b->slots_per_seat && a->frame_bytes == b->frame_bytes &&
           strcmp(a->node, b->node) == 0;
}

/* The descriptor that carries this process's locks. */
static enum eep_status open_record(struct eep_wcache *c, uint64_t *bytes_out)
{
    struct stat info;

    c->record_fd = openat(c->dir_fd, "record", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (c->record_fd < 0) {
        return errno == ENOENT || errno == ELOOP
                   ? EEP_FAIL(EEP_ERR_CACHE_BAD, "%s/record: is missing or a link; drop the cache",
                              c->path)
                   : WC_FAIL_SYS("open record", c->path);
    }
    if (fstat(c->record_fd, &info) != 0) {
        return WC_FAIL_SYS("fstat record", c->path);
    }
    if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "%s/record: is no regular file of user %u with mode 600 (owner %u, mode "
                        "%03o)",
                        c->path, (unsigned)geteuid(), (unsigned)info.st_uid,
                        (unsigned)info.st_mode & 0777);
    }
    c->device = info.st_dev;
    c->inode = info.st_ino;
    *bytes_out = (uint64_t)info.st_size;
    return EEP_OK;
}

static enum eep_status map_record(struct eep_wcache *c, const struct eep_wcache_params *params)
{
    char what[EEP_WCACHE_PATH_MAX + 16];
    struct wc_header header;
    struct eep_wcache_key key;
    uint64_t bytes;
    void *memory;

    EEP_TRY(open_record(c, &bytes));
    snprintf(what, sizeof(what), "%s/record", c->path);
    if (bytes < sizeof(header) ||
        pread(c->record_fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header)) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: has %llu bytes, less than a header; drop the cache",
                        what, (unsigned long long)bytes);
    }
    EEP_TRY(wc_header_read(what, &header, bytes, &key, &c->shape));
    if (!same_key(&key, &params->key)) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "%s: belongs to another checkpoint, packing, shape or node than its name "
                        "says; drop the cache",
                        what);
    }
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, c->record_fd, 0);
    if (memory == MAP_FAILED) {
        return WC_FAIL_SYS("mmap", what);
    }
    c->record = memory;
    c->record_bytes = bytes;
    wc_record_bind(c);
    return EEP_OK;
}

static enum eep_status check_record(struct eep_wcache *c, const struct eep_wcache_params *params)
{
    struct wc_copy *copy;

    if (!params->attach_only && c->shape.dense_bytes != params->dense_bytes) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "%s: holds %llu bytes of dense weights, this engine needs %llu; drop the "
                        "cache",
                        c->path, (unsigned long long)c->shape.dense_bytes,
                        (unsigned long long)params->dense_bytes);
    }
    EEP_TRY(wc_snapshot(c, false, &copy));
    eep_mem_free(copy);
    return EEP_OK;
}

/* Presence: the lock byte first, then what the place says. */
static enum eep_status take_place(struct eep_wcache *c, const struct eep_wcache_params *params)
{
    bool locked = false;
    struct wc_attach *attach;

    for (c->place = 0; c->place < WC_ATTACH_MAX; c->place++) {
        EEP_TRY(wc_lock_try(c->record_fd, WC_LOCK_ATTACH + c->place, &locked));
        if (locked) {
            break;
        }
    }
    if (!locked) {
        return EEP_FAIL(EEP_ERR_AGAIN, "%s: %u processes are attached, more cannot be", c->path,
                        WC_ATTACH_MAX);
    }
    attach = &c->attached[c->place];
    EEP_FAULT("wcache.attach.locked");
    atomic_store(&attach->pin, WC_NO_PIN);
    atomic_store(&attach->follows, params->follows ? 1u : 0u);
    atomic_store(&attach->rank, params->rank);
    snprintf(attach->name, sizeof(attach->name), "%s", params->engine);
    atomic_store(&attach->engine, params->engine_id);
    if (params->keep) {
        atomic_store(&c->control->keep, wc_word(WC_SALT_KEEP, 1));
    }
    EEP_FAULT("wcache.attach.present");
    return EEP_OK;
}

static void unmap(void *bytes, uint64_t count)
{
    if (bytes != NULL) {
        munmap(bytes, count);
    }
}

static void release(struct eep_wcache *c)
{
    while (c->views != NULL) {
        struct eep_wcache_view *view = c->views;

        c->views = view->next;
        eep_mem_free(view->copy);
        eep_mem_free(view);
    }
    if (c->seats != NULL) {
        wc_seats_close(c);
    }
    wc_dense_close(c);
    unmap(c->record, c->record_bytes);
    if (c->record_fd >= 0) {
        close(c->record_fd); /* drops all locks */
    }
    if (c->dir_fd >= 0) {
        close(c->dir_fd);
    }
    eep_mem_free(c->seats);
    eep_mem_free(c);
}

/* The base is locked. */
static enum eep_status attach(struct eep_wcache *c, const struct wc_base *base,
                              const struct eep_wcache_params *params)
{
    bool missing;

    EEP_TRY(wc_dir_open(base, c->name, &c->dir_fd, &missing));
    if (missing && params->attach_only) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: there is no such weight cache", c->path);
    }
    if (missing) {
        EEP_TRY(wc_dir_create(base, c->name, params));
        c->created = true;
        EEP_TRY(wc_dir_open(base, c->name, &c->dir_fd, &missing));
    }
    if (wc_open_handle(c->dir_fd) != NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: is open in this process already", c->path);
    }
    EEP_TRY(map_record(c, params));
    EEP_TRY(check_record(c, params));
    EEP_TRY(eep_mem_alloc(c->shape.seats, sizeof(*c->seats), "seats", &c->seats));
    return take_place(c, params);
}

enum eep_status eep_wcache_open(const struct eep_wcache_params *params,
                                struct eep_wcache **cache_out)
{
    struct wc_base base;
    struct eep_wcache *c;
    enum eep_status status;
    bool missing;

    EEP_TRY(check_params(params));
    EEP_TRY(wc_base_open(params->dir, !params->attach_only, &base, &missing));
    if (missing) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: there are no weight caches",
                        params->dir != NULL ? params->dir : "the default directory");
    }
    EEP_TRY_GOTO(eep_mem_alloc(1, sizeof(*c), "weight cache", &c), close);
    c->dir_fd = c->record_fd = -1;
    c->place = WC_ATTACH_MAX;
    c->engine_id = params->engine_id;
    c->visitor = params->visitor;
    c->owner = getpid();
    wc_cache_name(&params->key, c->name);
    snprintf(c->path, sizeof(c->path), "%.*s/%s", (int)(sizeof(c->path) - sizeof(c->name) - 2),
             base.path, c->name);
    EEP_TRY_GOTO(wc_base_lock(&base, params->timeout_ns), release);
    EEP_TRY_GOTO(attach(c, &base, params), remove);
    wc_open_handle_add(c);
    wc_base_close(&base);
    *cache_out = c;
    return EEP_OK;

remove:
    if (c->created) {
        char text[EEP_ERROR_TEXT_MAX];

        snprintf(text, sizeof(text), "%s", eep_error_text());
        if (wc_dir_remove(&base, c->name) != EEP_OK) {
            eep_log(EEP_LOG_WARN, "weight cache: %s", eep_error_text());
        }
        eep_error_text_set(text);
    }
release:
    release(c);
close:
    wc_base_close(&base);
    return status;
}

/* ---- close ------------------------------------------------------------------------------------
 */

/* The last one, and nobody wants to keep it? The base is locked. */
static bool should_remove(struct eep_wcache *c)
{
    struct wc_state state;
    int64_t byte;
    bool others = true;

    return wc_lock_other(c->record_fd, WC_LOCK_ATTACH, WC_ATTACH_MAX, &byte, &others) == EEP_OK &&
           !others && !c->visitor &&
           (c->discard || (wc_state_read(c, &state) == EEP_OK && !state.keep));
}

static void leave_place(struct eep_wcache *c)
{
    struct wc_base base;
    bool missing, dropped = true;
    char dir[EEP_WCACHE_PATH_MAX];

    if (c->moving) {
        eep_log(EEP_LOG_WARN, "weight cache %s: closed while its own move is pending", c->path);
    }
    snprintf(dir, sizeof(dir), "%.*s", (int)(strlen(c->path) - strlen(c->name) - 1), c->path);
    EEP_FAULT("wcache.close.begun");
    if (wc_base_open(dir, false, &base, &missing) != EEP_OK || missing ||
        wc_base_lock(&base, CLOSE_TIMEOUT_NS) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "weight cache: cannot tell who is last: %s", eep_error_text());
        return;
    }
    if (should_remove(c)) {
        dropped = wc_dir_remove(&base, c->name) == EEP_OK;
    } else {
        atomic_store(&c->attached[c->place].pin, WC_NO_PIN);
        atomic_store(&c->attached[c->place].engine, 0);
    }
    if (!dropped) {
        eep_log(EEP_LOG_WARN, "weight cache: %s", eep_error_text());
    }
    wc_open_handle_remove(c);
    if (c->record_fd >= 0) {
        close(c->record_fd); /* before the base is free: the next one counts who is there */
        c->record_fd = -1;
    }
    wc_base_close(&base);
}

void eep_wcache_close(struct eep_wcache *cache)
{
    if (cache == NULL) {
        return;
    }
    if (cache->owner == getpid()) {
        leave_place(cache);
    }
    wc_open_handle_remove(cache);
    release(cache);
}

void eep_wcache_close_discard(struct eep_wcache *cache)
{
    if (cache != NULL) {
        cache->discard = true;
    }
    eep_wcache_close(cache);
}

/* ---- status -----------------------------------------------------------------------------------
 */

struct counts {
    uint64_t engine_id;
    uint32_t attached, others;
};

static bool count_attached(void *context, uint32_t place, struct wc_attach *attach)
{
    struct counts *counts = context;

    (void)place;
    counts->attached++;
    counts->others += wc_is_other(attach, counts->engine_id);
    return true;
}

static enum eep_status move_status(struct eep_wcache *c, const struct wc_state *state,
                                   struct eep_wcache_status *s)
{
    bool lives;

    if (state->move == WC_MOVE_IDLE) {
        s->state = state->prepared ? EEP_WCACHE_STALLED : EEP_WCACHE_CLEAN;
        return EEP_OK;
    }
    EEP_TRY(wc_move_read(c, &s->move));
    EEP_TRY(wc_mover_lives(c, &lives));
    s->in_place = state->move == WC_MOVE_DIRTY;
    s->state = lives ? EEP_WCACHE_MOVING : s->in_place ? EEP_WCACHE_DIRTY : EEP_WCACHE_STALLED;
    return EEP_OK;
}

static enum eep_status fill_digests(struct eep_wcache *c, const struct wc_state *state,
                                    struct eep_wcache_status *s)
{
    struct wc_copy *copy;

    EEP_TRY(wc_snapshot(c, false, &copy));
    s->version = copy->version;
    memcpy(s->digest, copy->map_digest, sizeof(s->digest));
    eep_mem_free(copy);
    s->prepared_version = EEP_WCACHE_NO_VERSION;
    /* A damaged prepared version is reported when it is resolved: it can still be rolled back. */
    if (state->prepared) {
        s->prepared_version = state->prepared_version;
        memcpy(s->prepared_digest, wc_copy_at(c, state->prepared_copy)->map_digest,
               sizeof(s->prepared_digest));
    }
    return EEP_OK;
}

enum eep_status eep_wcache_status(struct eep_wcache *cache, struct eep_wcache_status *status_out)
{
    struct eep_wcache_status s = {.path = cache->path,
                                  .created = cache->created,
                                  .mover = cache->mover,
                                  .spare_frames = cache->header->spare_frames,
                                  .dense_bytes = cache->shape.dense_bytes,
                                  .frame_stride = cache->shape.frame_stride};
    struct counts counts = {.engine_id = cache->engine_id};
    struct wc_state state;

    EEP_TRY(wc_state_read(cache, &state));
    s.keep = state.keep;
    EEP_TRY(fill_digests(cache, &state, &s));
    EEP_TRY(move_status(cache, &state, &s));
    EEP_TRY(wc_attached_each(cache, count_attached, &counts));
    s.attached = counts.attached;
    s.attached_others = counts.others;
    *status_out = s;
    return EEP_OK;
}

enum eep_status eep_wcache_wait(struct eep_wcache *cache, uint64_t timeout_ns)
{
    const uint64_t deadline = wc_deadline(timeout_ns);
    struct wc_state state;
    unsigned round = 0;
    bool lives;
    char text[512];

    do {
        EEP_TRY(wc_state_read(cache, &state));
        if (state.move == WC_MOVE_IDLE) {
            return EEP_OK;
        }
        EEP_TRY(wc_mover_lives(cache, &lives));
        if (!lives) {
            EEP_TRY(wc_state_read(cache, &state)); /* its last act may have been the commit */
            return state.move == WC_MOVE_DIRTY ? wc_fail_dirty(cache) : EEP_OK;
        }
    } while (wc_pause(deadline, &round));
    return EEP_FAIL(EEP_ERR_TIMEOUT, "%s: waited %.1f s for the move of %s", cache->path,
                    (double)timeout_ns / (double)EEP_NS_PER_S, wc_move_text(cache, text));
}
