/*
 * The base directory and the directories of caches.
 *
 *     BASE/.lock         locked while a cache is created, attached to, left or dropped
 *     BASE/.new-NAME     a cache that is being made; gets its name when its record is whole
 *     BASE/.drop-NAME    a cache that is being removed
 *     BASE/NAME/         a cache
 *
 * A crash leaves at most a hidden directory, which the next one that locks the base removes.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "wcache/wcache_int.h"

#define NEW ".new-"
#define DROP ".drop-"

/* POSIX locks do not tell the threads of a process apart. */
static pthread_mutex_t base_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct eep_wcache *open_handles;

void eep_wcache_dir_default(char path_out[EEP_WCACHE_PATH_MAX])
{
    snprintf(path_out, EEP_WCACHE_PATH_MAX, "/dev/shm/eep-%u", (unsigned)geteuid());
}

/* ---- base -------------------------------------------------------------------------------------
 */

/* Others may neither write the base nor do anything with a cache. */
static enum eep_status check_dir(const char *what, int fd, unsigned forbidden)
{
    struct stat info;

    if (fstat(fd, &info) != 0) {
        return WC_FAIL_SYS("fstat", what);
    }
    if (info.st_uid != geteuid()) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "%s: belongs to user %u, not to %u who runs eep; name another --cache-dir",
                        what, (unsigned)info.st_uid, (unsigned)geteuid());
    }
    if ((info.st_mode & forbidden) != 0) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "%s: mode %03o lets other users in; make it 0700 (chmod go-rwx)", what,
                        (unsigned)info.st_mode & 0777);
    }
    return EEP_OK;
}

enum eep_status wc_base_open(const char *dir, bool create, struct wc_base *base_out,
                             bool *missing_out)
{
    struct wc_base base = {.fd = -1, .lock_fd = -1};
    const int nofollow = dir == NULL ? O_NOFOLLOW : 0; /* anybody may write /dev/shm */

    *missing_out = false;
    eep_wcache_dir_default(base.path);
    if (dir != NULL) {
        if (strlen(dir) + 100 > sizeof(base.path)) {
            return EEP_FAIL(EEP_ERR_INVALID, "the cache directory's name is too long: %s", dir);
        }
        snprintf(base.path, sizeof(base.path), "%s", dir);
    }
    if (create && mkdir(base.path, 0700) != 0 && errno != EEXIST) {
        return WC_FAIL_SYS("mkdir", base.path);
    }
    base.fd = open(base.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | nofollow);
    if (base.fd < 0) {
        if (errno == ENOENT && !create) {
            *missing_out = true;
            return EEP_OK;
        }
        return WC_FAIL_SYS("open", base.path);
    }
    if (check_dir(base.path, base.fd, dir == NULL ? 077 : 022) != EEP_OK) {
        close(base.fd);
        return EEP_ERR_STALE;
    }
    *base_out = base;
    return EEP_OK;
}

static enum eep_status remove_tree(const struct wc_base *base, const char *name)
{
    const int fd = openat(base->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    int failed = 0;

    if (stream == NULL) {
        return WC_FAIL_SYS("opendir", name);
    }
    while ((entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            failed |= unlinkat(fd, entry->d_name, 0);
        }
    }
    closedir(stream);
    if (failed != 0 || unlinkat(base->fd, name, AT_REMOVEDIR) != 0) {
        return EEP_FAIL(EEP_ERR_IO, "%s/%s: cannot be removed: %s", base->path, name,
                        wc_errno_text());
    }
    return EEP_OK;
}

/* What a crash left half-made. */
static void sweep(const struct wc_base *base)
{
    const int fd = openat(base->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (strncmp(entry->d_name, NEW, strlen(NEW)) == 0 ||
            strncmp(entry->d_name, DROP, strlen(DROP)) == 0) {
            if (remove_tree(base, entry->d_name) != EEP_OK) {
                eep_log(EEP_LOG_WARN, "weight cache: leftover %s", eep_error_text());
            }
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
}

enum eep_status wc_base_lock(struct wc_base *base, uint64_t timeout_ns)
{
    const uint64_t deadline = wc_deadline(timeout_ns);
    unsigned round = 0;
    bool locked = false;
    enum eep_status status;

    pthread_mutex_lock(&base_mutex);
    base->lock_fd =
        openat(base->fd, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (base->lock_fd < 0) {
        status = WC_FAIL_SYS("open .lock", base->path);
        goto unlock;
    }
    do {
        EEP_TRY_GOTO(wc_lock_try(base->lock_fd, 0, &locked), close);
    } while (!locked && wc_pause(deadline, &round));
    if (!locked) {
        status = EEP_FAIL(EEP_ERR_TIMEOUT,
                          "%s: another process creates or drops a cache for more than %.1f s",
                          base->path, (double)timeout_ns / (double)EEP_NS_PER_S);
        goto close;
    }
    sweep(base);
    return EEP_OK;

close:
    close(base->lock_fd);
    base->lock_fd = -1;
unlock:
    pthread_mutex_unlock(&base_mutex);
    return status;
}

void wc_base_close(struct wc_base *base)
{
    if (base->lock_fd >= 0) {
        close(base->lock_fd); /* drops the lock */
        pthread_mutex_unlock(&base_mutex);
    }
    if (base->fd >= 0) {
        close(base->fd);
    }
    base->fd = base->lock_fd = -1;
}

/* ---- caches -----------------------------------------------------------------------------------
 */

void wc_cache_name(const struct eep_wcache_key *key, char name_out[80])
{
    struct wc_digest digest;
    struct {
        uint32_t fields[8];
        uint64_t frame_bytes;
        uint8_t checkpoint[32];
        char node[EEP_WCACHE_NODE_MAX];
    } text = {{WC_FORMAT, (uint32_t)geteuid(), key->packing, key->dtype, key->layers, key->experts,
               key->seats, key->slots_per_seat},
              key->frame_bytes,
              {0},
              {0}};

    memcpy(text.checkpoint, key->checkpoint, sizeof(text.checkpoint));
    memccpy(text.node, key->node, '\0', sizeof(text.node)); /* zeros behind the end */
    digest = wc_xxh128(&text, sizeof(text));
    snprintf(name_out, 80, "eep-%016llx%016llx", (unsigned long long)digest.high,
             (unsigned long long)digest.low);
}

enum eep_status wc_dir_open(const struct wc_base *base, const char *name, int *fd_out,
                            bool *missing_out)
{
    char what[EEP_WCACHE_PATH_MAX + 100];
    const int fd = openat(base->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    *missing_out = false;
    snprintf(what, sizeof(what), "%s/%s", base->path, name);
    if (fd < 0) {
        *missing_out = errno == ENOENT;
        return errno == ENOENT ? EEP_OK : WC_FAIL_SYS("open", what);
    }
    if (check_dir(what, fd, 077) != EEP_OK) {
        close(fd);
        return EEP_ERR_STALE;
    }
    *fd_out = fd;
    return EEP_OK;
}

static void fill_header(struct wc_header *header, const struct eep_wcache_params *params,
                        const struct wc_shape *shape)
{
    const struct eep_wcache_key *key = &params->key;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    *header = (struct wc_header){
        .magic = WC_RECORD_MAGIC,
        .format = WC_FORMAT,
        .byte_order = WC_BYTE_ORDER,
        .record_bytes = shape->record_bytes,
        .uid = (uint32_t)geteuid(),
        .packing = key->packing,
        .dtype = key->dtype,
        .layers = key->layers,
        .experts = key->experts,
        .seats = key->seats,
        .slots_per_seat = key->slots_per_seat,
        .spare_frames = params->spare_frames,
        .frame_bytes = key->frame_bytes,
        .dense_bytes = params->dense_bytes,
        .created_ns = (uint64_t)now.tv_sec * EEP_NS_PER_S + (uint64_t)now.tv_nsec,
    };
    memcpy(header->checkpoint, key->checkpoint, sizeof(header->checkpoint));
    memccpy(header->node, key->node, '\0', sizeof(header->node));
    if (params->source != NULL) {
        snprintf(header->source, sizeof(header->source), "%s", params->source);
    }
    header->check = wc_header_check(header);
}

static void fill_control(struct wc_control *control, bool keep)
{
    atomic_store(&control->current, wc_word(WC_SALT_CURRENT, wc_place(0, 0)));
    atomic_store(&control->prepared, wc_word(WC_SALT_PREPARED, 0));
    atomic_store(&control->move, wc_word(WC_SALT_MOVE, wc_move_content(WC_MOVE_IDLE, 0)));
    atomic_store(&control->keep, wc_word(WC_SALT_KEEP, keep ? 1 : 0));
}

/* Every expert of every layer needs a slot. */
static enum eep_status check_map(const struct wc_shape *shape, const int32_t *phys2log)
{
    unsigned char *seen;
    enum eep_status status = EEP_OK;

    EEP_TRY(eep_mem_alloc(shape->experts, 1, "experts of a layer", &seen));
    for (uint32_t layer = 0; layer < shape->layers && status == EEP_OK; layer++) {
        const int32_t *row = phys2log + (uint64_t)layer * shape->slots;

        memset(seen, 0, shape->experts);
        for (uint32_t p = 0; p < shape->slots && status == EEP_OK; p++) {
            if (row[p] < EEP_NO_EXPERT || row[p] >= (int64_t)shape->experts) {
                status = EEP_FAIL(EEP_ERR_INVALID, "layout: layer %u, slot %u: no expert %d", layer,
                                  p, row[p]);
            } else if (row[p] != EEP_NO_EXPERT) {
                seen[row[p]] = 1;
            }
        }
        for (uint32_t e = 0; e < shape->experts && status == EEP_OK; e++) {
            if (!seen[e]) {
                status =
                    EEP_FAIL(EEP_ERR_INVALID, "layout: layer %u: expert %u has no slot", layer, e);
            }
        }
    }
    eep_mem_free(seen);
    return status;
}

/* A whole record in memory; only what is not zero lies in its first part. */
static enum eep_status build_record(const struct eep_wcache_params *params,
                                    const struct wc_shape *shape, unsigned char **bytes_out)
{
    unsigned char *bytes;
    struct wc_copy *copy;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, shape->copy_offset[1], "weight cache record", &bytes));
    fill_header((struct wc_header *)bytes, params, shape);
    fill_control((struct wc_control *)(bytes + sizeof(struct wc_header)), params->keep);
    copy = (struct wc_copy *)(bytes + shape->copy_offset[0]);
    memcpy(wc_copy_map(copy), params->phys2log, shape->table * sizeof(int32_t));
    for (uint32_t seat = 0; seat < shape->seats; seat++) {
        wc_frames_initial(shape, params->phys2log, seat, wc_copy_frames(copy, shape));
    }
    status = wc_copy_seal(copy, shape);
    if (status != EEP_OK) {
        eep_mem_free(bytes);
        return status;
    }
    *bytes_out = bytes;
    return EEP_OK;
}

static enum eep_status make_record(const struct wc_base *base, const char *hidden,
                                   const struct wc_shape *shape, const unsigned char *bytes)
{
    enum eep_status status = EEP_OK;
    int fd = -1;

    if (mkdirat(base->fd, hidden, 0700) != 0) {
        return WC_FAIL_SYS("mkdir", base->path);
    }
    EEP_FAULT("wcache.create.directory");
    fd = openat(base->fd, hidden, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fchmod(fd, 0700) != 0) {
        status = WC_FAIL_SYS("open", base->path);
    }
    if (status == EEP_OK) {
        status = wc_make_file(base->path, fd, "record", shape->record_bytes, bytes,
                              shape->copy_offset[1]);
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

enum eep_status wc_dir_create(const struct wc_base *base, const char *name,
                              const struct eep_wcache_params *params)
{
    char hidden[100];
    struct wc_shape shape;
    unsigned char *bytes;
    enum eep_status status;

    EEP_TRY(wc_shape_init(&params->key, params->spare_frames, params->dense_bytes, &shape));
    if (params->phys2log == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "a new weight cache needs a layout");
    }
    EEP_TRY(check_map(&shape, params->phys2log));
    EEP_TRY(wc_check_room(base->path, base->fd, eep_wcache_bytes_needed(params)));
    EEP_TRY(build_record(params, &shape, &bytes));
    snprintf(hidden, sizeof(hidden), NEW "%s", name);
    status = make_record(base, hidden, &shape, bytes);
    eep_mem_free(bytes);
    if (status == EEP_OK && renameat(base->fd, hidden, base->fd, name) != 0) {
        status = WC_FAIL_SYS("rename", base->path);
    }
    if (status == EEP_OK) {
        EEP_FAULT("wcache.create.named");
        return EEP_OK;
    }
    char text[EEP_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", eep_error_text());
    if (remove_tree(base, hidden) != EEP_OK) {
        eep_log(EEP_LOG_WARN, "weight cache: %s", eep_error_text());
    }
    eep_error_text_set(text);
    return status;
}

enum eep_status wc_dir_remove(const struct wc_base *base, const char *name)
{
    char hidden[100];

    snprintf(hidden, sizeof(hidden), DROP "%s", name);
    if (renameat(base->fd, name, base->fd, hidden) != 0) {
        return WC_FAIL_SYS("rename", base->path);
    }
    EEP_FAULT("wcache.drop.renamed");
    return remove_tree(base, hidden);
}

/* ---- records that this process has open -------------------------------------------------------
 */

struct eep_wcache *wc_open_handle(int dir_fd)
{
    struct stat info;
    struct eep_wcache *c = NULL;

    if (fstatat(dir_fd, "record", &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return NULL;
    }
    pthread_mutex_lock(&open_mutex);
    for (c = open_handles; c != NULL; c = c->next_open) {
        if (c->device == info.st_dev && c->inode == info.st_ino && c->owner == getpid()) {
            break;
        }
    }
    pthread_mutex_unlock(&open_mutex);
    return c;
}

void wc_open_handle_add(struct eep_wcache *c)
{
    pthread_mutex_lock(&open_mutex);
    c->next_open = open_handles;
    open_handles = c;
    pthread_mutex_unlock(&open_mutex);
}

void wc_open_handle_remove(struct eep_wcache *c)
{
    pthread_mutex_lock(&open_mutex);
    for (struct eep_wcache **at = &open_handles; *at != NULL; at = &(*at)->next_open) {
        if (*at == c) {
            *at = c->next_open;
            break;
        }
    }
    pthread_mutex_unlock(&open_mutex);
}
