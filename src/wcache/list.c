/*
 * All caches below a base directory: what they are, also when they are damaged; and removing one.
 *
 * A cache that this process has open is seen through its handle: a second descriptor of its record
 * would drop its locks when it is closed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wcache/wcache_int.h"

#define PREFIX "eep-"

/* ---- one cache --------------------------------------------------------------------------------
 */

/* A handle good enough for reading the record; not attached. */
static enum eep_status peek(struct eep_wcache *c, struct eep_wcache_key *key_out)
{
    char what[EEP_WCACHE_PATH_MAX + 16];
    struct stat info;
    void *memory;

    snprintf(what, sizeof(what), "%s/record", c->path);
    c->record_fd = openat(c->dir_fd, "record", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (c->record_fd < 0 || fstat(c->record_fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: is missing or no file", what);
    }
    if (info.st_size < (off_t)sizeof(struct wc_header)) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: has %lld bytes, less than a header", what,
                        (long long)info.st_size);
    }
    c->record_bytes = (uint64_t)info.st_size;
    memory = mmap(NULL, c->record_bytes, PROT_READ, MAP_SHARED, c->record_fd, 0);
    if (memory == MAP_FAILED) {
        return WC_FAIL_SYS("mmap", what);
    }
    c->record = memory;
    EEP_TRY(wc_header_read(what, memory, c->record_bytes, key_out, &c->shape));
    wc_record_bind(c);
    return EEP_OK;
}

/* Memory that the files take, and how many of them are seats. */
static uint64_t count_files(int dir_fd, uint32_t *seats_out)
{
    const int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    struct stat info;
    uint64_t bytes = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (fstatat(dir_fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode)) {
            bytes += (uint64_t)info.st_blocks * 512;
            *seats_out += strncmp(entry->d_name, "seat-", 5) == 0;
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return bytes;
}

static bool count_one(void *context, uint32_t place, struct wc_attach *attach)
{
    (void)place;
    (void)attach;
    (*(uint32_t *)context)++;
    return true;
}

static enum eep_status look_states(struct eep_wcache *c, struct eep_wcache_info *info)
{
    struct wc_state state;
    bool lives;

    EEP_TRY(wc_state_read(c, &state));
    info->keep = state.keep;
    info->prepared_version = state.prepared ? state.prepared_version : EEP_WCACHE_NO_VERSION;
    info->state = state.prepared ? EEP_WCACHE_STALLED : EEP_WCACHE_CLEAN;
    if (state.move != WC_MOVE_IDLE) {
        EEP_TRY(wc_move_read(c, &info->move));
        EEP_TRY(wc_mover_lives(c, &lives));
        info->state = lives                         ? EEP_WCACHE_MOVING
                      : state.move == WC_MOVE_DIRTY ? EEP_WCACHE_DIRTY
                                                    : EEP_WCACHE_STALLED;
    }
    return EEP_OK;
}

static enum eep_status look_files(struct eep_wcache *c, struct eep_wcache_info *info)
{
    bool held, full;

    for (uint32_t seat = 0; seat < c->shape.seats; seat++) {
        EEP_TRY(wc_seat_look(c, seat, &held, &full));
        info->seats_filled += full;
    }
    if (c->shape.dense_bytes > 0) {
        unsigned char *bytes;
        uint64_t content;
        struct stat file;

        if (fstatat(c->dir_fd, "dense", &file, AT_SYMLINK_NOFOLLOW) != 0) {
            return EEP_OK;
        }
        EEP_TRY(wc_map_file(c, "dense", c->shape.dense_file_bytes, false, &bytes));
        info->dense_filled =
            wc_word_read(WC_SALT_DENSE, atomic_load(&((struct wc_dense_header *)bytes)->state),
                         &content) &&
            content == WC_FILL_VALID;
        munmap(bytes, c->shape.dense_file_bytes);
    }
    return EEP_OK;
}

static enum eep_status look(struct eep_wcache *c, struct eep_wcache_info *info)
{
    struct wc_copy *copy;

    info->spare_frames = c->header->spare_frames;
    info->dense_bytes = c->shape.dense_bytes;
    info->created_ns = c->header->created_ns;
    memcpy(info->source, c->header->source, sizeof(info->source));
    EEP_TRY(wc_attached_each(c, count_one, &info->attached));
    EEP_TRY(look_states(c, info));
    EEP_TRY(look_files(c, info));
    EEP_TRY(wc_snapshot(c, false, &copy));
    info->version = copy->version;
    memcpy(info->digest, copy->map_digest, sizeof(info->digest));
    eep_mem_free(copy);
    return EEP_OK;
}

static void peek_end(struct eep_wcache *c)
{
    if (c->seats != NULL) {
        wc_seats_close(c);
        eep_mem_free(c->seats);
    }
    if (c->record != NULL) {
        munmap(c->record, c->record_bytes);
    }
    if (c->record_fd >= 0) {
        close(c->record_fd);
    }
}

static enum eep_status look_closed(struct eep_wcache *c, struct eep_wcache_info *info)
{
    EEP_TRY(peek(c, &info->key));
    EEP_TRY(eep_mem_alloc(c->shape.seats, sizeof(*c->seats), "seats", &c->seats));
    return look(c, info);
}

static enum eep_status look_open(struct eep_wcache *c, struct eep_wcache_info *info)
{
    struct wc_shape shape;

    EEP_TRY(wc_header_read(c->path, c->header, c->record_bytes, &info->key, &shape));
    return look(c, info);
}

static void look_at(const struct wc_base *base, struct eep_wcache_info *info)
{
    struct eep_wcache *c = NULL, *open_handle;
    bool missing = false;
    enum eep_status status;
    int fd = -1;

    status = wc_dir_open(base, info->name, &fd, &missing);
    if (status == EEP_OK && !missing) {
        info->bytes = count_files(fd, &info->seats_held);
        open_handle = wc_open_handle(fd);
        status = open_handle != NULL ? look_open(open_handle, info)
                                     : eep_mem_alloc(1, sizeof(*c), "weight cache", &c);
        if (c != NULL) {
            c->dir_fd = fd;
            c->record_fd = -1;
            c->place = WC_ATTACH_MAX;
            snprintf(c->path, sizeof(c->path), "%.*s/%s",
                     (int)(sizeof(c->path) - sizeof(info->name) - 2), base->path, info->name);
            status = look_closed(c, info);
            peek_end(c);
            eep_mem_free(c);
        }
        close(fd);
    } else if (missing) {
        status = EEP_FAIL(EEP_ERR_STALE, "%s: was removed just now", info->name);
    }
    info->status = status;
    if (status != EEP_OK) {
        snprintf(info->reason, sizeof(info->reason), "%.*s", (int)sizeof(info->reason) - 1,
                 eep_error_text());
    }
}

/* ---- list -------------------------------------------------------------------------------------
 */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct eep_wcache_info *)a)->name,
                  ((const struct eep_wcache_info *)b)->name);
}

/* The names of up to `room` caches; returns how many there are. */
static size_t read_names(const struct wc_base *base, struct eep_wcache_info *infos, size_t room)
{
    const int fd = openat(base->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    size_t count = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0 ||
            strlen(entry->d_name) >= sizeof(infos->name)) {
            continue;
        }
        if (count < room) {
            snprintf(infos[count].name, sizeof(infos[count].name), "%.79s", entry->d_name);
        }
        count++;
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return count;
}

enum eep_status eep_wcache_list(const char *dir, struct eep_wcache_info **infos_out,
                                size_t *count_out)
{
    struct eep_wcache_info *infos;
    struct wc_base base;
    enum eep_status status;
    size_t room, count;
    bool missing;

    EEP_TRY(wc_base_open(dir, false, &base, &missing));
    if (missing) {
        EEP_TRY(eep_mem_alloc(0, sizeof(*infos), "list of weight caches", infos_out));
        *count_out = 0;
        return EEP_OK;
    }
    room = read_names(&base, NULL, 0);
    status = eep_mem_alloc(room, sizeof(*infos), "list of weight caches", &infos);
    if (status == EEP_OK) {
        count = read_names(&base, infos, room);
        count = EEP_MIN(count, room);
        qsort(infos, count, sizeof(*infos), by_name);
        for (size_t i = 0; i < count; i++) {
            look_at(&base, &infos[i]);
        }
        *infos_out = infos;
        *count_out = count;
    }
    wc_base_close(&base);
    return status;
}

/* ---- drop -------------------------------------------------------------------------------------
 */

/* Refuses while a process is attached; a record that cannot be opened has none. */
static enum eep_status check_unused(const struct wc_base *base, const char *name, int dir_fd)
{
    struct eep_wcache c = {.dir_fd = dir_fd, .record_fd = -1, .place = WC_ATTACH_MAX};
    struct eep_wcache_key key;
    char engine[EEP_WCACHE_NAME_MAX] = "unknown";
    enum eep_status status;
    bool used = false;
    int64_t byte = 0;

    if (wc_open_handle(dir_fd) != NULL) {
        return EEP_FAIL(EEP_ERR_AGAIN, "%s/%s: is open in this process", base->path, name);
    }
    snprintf(c.path, sizeof(c.path), "%s", name);
    status = peek(&c, &key);
    if (c.record_fd >= 0) {
        EEP_TRY(wc_lock_other(c.record_fd, WC_LOCK_ATTACH, WC_ATTACH_MAX, &byte, &used));
    }
    if (used && status == EEP_OK) {
        wc_attach_name(&c, (uint32_t)(byte - WC_LOCK_ATTACH), engine);
    }
    peek_end(&c);
    return used ? EEP_FAIL(EEP_ERR_AGAIN, "%s/%s: engine '%s' is attached; end it first",
                           base->path, name, engine)
                : EEP_OK;
}

/* Unlike wc_dir_open() this does not mind a mode that is too open: what is to go may be damaged. */
static enum eep_status open_to_drop(const struct wc_base *base, const char *name, int *fd_out)
{
    struct stat info;
    const int fd = openat(base->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0) {
        return errno == ENOENT ? EEP_FAIL(EEP_ERR_INVALID, "%s/%s: there is no such weight cache",
                                          base->path, name)
                               : WC_FAIL_SYS("open", name);
    }
    if (fstat(fd, &info) != 0 || info.st_uid != geteuid()) {
        close(fd);
        return EEP_FAIL(EEP_ERR_STALE, "%s/%s: belongs to user %u, not to %u", base->path, name,
                        (unsigned)info.st_uid, (unsigned)geteuid());
    }
    *fd_out = fd;
    return EEP_OK;
}

enum eep_status eep_wcache_drop(const char *dir, const char *name, uint64_t timeout_ns)
{
    struct wc_base base;
    enum eep_status status;
    bool missing;
    int fd = -1;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || strchr(name, '/') != NULL ||
        strlen(name) >= 80) {
        return EEP_FAIL(EEP_ERR_INVALID, "'%s' is no name of a weight cache", name);
    }
    EEP_TRY(wc_base_open(dir, false, &base, &missing));
    if (missing) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: there is no such weight cache", name);
    }
    EEP_TRY_GOTO(wc_base_lock(&base, timeout_ns), close);
    EEP_TRY_GOTO(open_to_drop(&base, name, &fd), close);
    EEP_TRY_GOTO(check_unused(&base, name, fd), close);
    status = wc_dir_remove(&base, name);

close:
    if (fd >= 0) {
        close(fd);
    }
    wc_base_close(&base);
    return status;
}
