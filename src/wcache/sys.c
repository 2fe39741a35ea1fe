/*
 * System calls: byte locks, files that appear whole or not at all, mappings, room.
 *
 * Byte locks are POSIX record locks: they belong to the process, are not inherited by fork, and the
 * kernel drops them however the process ends. They also fall when the process closes any descriptor
 * of the file: so a process has one descriptor of a record, and opens no second one.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "wcache/wcache_int.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; the C library may be older */
#endif

const char *wc_errno_text(void)
{
    static _Thread_local char text[128];

    return strerror_r(errno, text, sizeof(text));
}

/* ---- locks ------------------------------------------------------------------------------------
 */

static struct flock lock_of(short type, int64_t first, int64_t count)
{
    return (struct flock){
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = (off_t)count};
}

enum eep_status wc_lock_try(int fd, int64_t byte, bool *locked_out)
{
    struct flock lock = lock_of(F_WRLCK, byte, 1);

    if (fcntl(fd, F_SETLK, &lock) == 0) {
        *locked_out = true;
        return EEP_OK;
    }
    if (errno == EAGAIN || errno == EACCES) {
        *locked_out = false;
        return EEP_OK;
    }
    return WC_FAIL_SYS("fcntl(F_SETLK)", "weight cache");
}

enum eep_status wc_unlock(int fd, int64_t byte)
{
    struct flock lock = lock_of(F_UNLCK, byte, 1);

    return fcntl(fd, F_SETLK, &lock) == 0 ? EEP_OK : WC_FAIL_SYS("fcntl(F_UNLCK)", "weight cache");
}

enum eep_status wc_lock_other(int fd, int64_t first, int64_t count, int64_t *byte_out,
                              bool *found_out)
{
    struct flock lock = lock_of(F_WRLCK, first, count);

    if (fcntl(fd, F_GETLK, &lock) != 0) {
        return WC_FAIL_SYS("fcntl(F_GETLK)", "weight cache");
    }
    *found_out = lock.l_type != F_UNLCK;
    /* The lock that is reported may begin before the range that was asked for. */
    *byte_out = *found_out && lock.l_start > first ? (int64_t)lock.l_start : first;
    return EEP_OK;
}

uint64_t wc_deadline(uint64_t timeout_ns)
{
    const uint64_t now = eep_clock_ns();

    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* First short, so that a quick holder costs little, then up to 5 ms. */
bool wc_pause(uint64_t deadline_ns, unsigned *round)
{
    const uint64_t pause_ns = EEP_MIN(UINT64_C(50000) << EEP_MIN(*round, 7u), 5 * EEP_NS_PER_MS);
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)pause_ns};

    if (eep_clock_ns() >= deadline_ns) {
        return false;
    }
    nanosleep(&pause, NULL);
    (*round)++;
    return true;
}

/* ---- files ------------------------------------------------------------------------------------
 */

void wc_populate(const void *bytes, uint64_t count)
{
    if (madvise((void *)bytes, count, MADV_POPULATE_READ) == 0) {
        return;
    }
    for (uint64_t i = 0; i < count; i += EEP_PAGE) { /* an older kernel */
        (void)*((const volatile unsigned char *)bytes + i);
    }
}

void wc_populate_write(void *bytes, uint64_t count)
{
    const uintptr_t first = (uintptr_t)bytes / EEP_PAGE * EEP_PAGE;

    /* An older kernel maps them one by one when they are written. */
    (void)madvise((void *)first, (uintptr_t)bytes + count - first, MADV_POPULATE_WRITE);
}

static enum eep_status check_file(const char *what, int fd, uint64_t bytes)
{
    struct stat info;

    if (fstat(fd, &info) != 0) {
        return WC_FAIL_SYS("fstat", what);
    }
    if (!S_ISREG(info.st_mode)) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: not a regular file", what);
    }
    if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "%s: belongs to user %u with mode %03o; a weight cache is used only by the "
                        "user who made it (%u) and with mode 600",
                        what, (unsigned)info.st_uid, (unsigned)info.st_mode & 0777,
                        (unsigned)geteuid());
    }
    if ((uint64_t)info.st_size != bytes) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: has %lld bytes instead of %llu; drop the cache",
                        what, (long long)info.st_size, (unsigned long long)bytes);
    }
    return EEP_OK;
}

enum eep_status wc_map_file(const struct eep_wcache *c, const char *name, uint64_t bytes,
                            bool write, unsigned char **out)
{
    char what[EEP_WCACHE_PATH_MAX + 40];
    enum eep_status status;
    void *memory;
    int fd;

    snprintf(what, sizeof(what), "%s/%s", c->path, name);
    fd = openat(c->dir_fd, name, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT || errno == ELOOP
                   ? EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: is missing or a link; drop the cache", what)
                   : WC_FAIL_SYS("open", what);
    }
    EEP_TRY_GOTO(check_file(what, fd, bytes), close);
    memory = mmap(NULL, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        status = WC_FAIL_SYS("mmap", what);
        goto close;
    }
    *out = memory;

close:
    close(fd);
    return status;
}

/* Take the blocks of a file now, so that no later write finds no room. */
static enum eep_status reserve(const char *what, int dir_fd, int fd, uint64_t bytes)
{
    int error;

    EEP_TRY(wc_check_room(what, dir_fd, bytes));
    do {
        error = posix_fallocate(fd, 0, (off_t)bytes);
    } while (error == EINTR);
    errno = error;
    if (error == ENOSPC || error == EDQUOT) {
        return EEP_FAIL(EEP_ERR_NOMEM,
                        "%s: there is no room for %llu bytes (%s); free some or name another "
                        "--cache-dir",
                        what, (unsigned long long)bytes, wc_errno_text());
    }
    return error == 0 ? EEP_OK : WC_FAIL_SYS("posix_fallocate", what);
}

enum eep_status wc_make_file(const char *where, int dir_fd, const char *name, uint64_t bytes,
                             const void *first, size_t first_bytes)
{
    char hidden[64], what[EEP_WCACHE_PATH_MAX + 40];
    enum eep_status status;
    int fd;

    snprintf(hidden, sizeof(hidden), ".new-%s", name);
    snprintf(what, sizeof(what), "%s/%s", where, name);
    (void)unlinkat(dir_fd, hidden, 0); /* of one that died here */
    fd = openat(dir_fd, hidden, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return WC_FAIL_SYS("open", what);
    }
    EEP_FAULT("wcache.file.opened");
    EEP_TRY_GOTO(reserve(what, dir_fd, fd, bytes), remove);
    EEP_FAULT("wcache.file.reserved");
    if (fchmod(fd, 0600) != 0 || pwrite(fd, first, first_bytes, 0) != (ssize_t)first_bytes) {
        status = WC_FAIL_SYS("write", what);
        goto remove;
    }
    EEP_FAULT("wcache.file.written");
    if (renameat(dir_fd, hidden, dir_fd, name) != 0) {
        status = WC_FAIL_SYS("rename", what);
        goto remove;
    }
    EEP_FAULT("wcache.file.named");
    close(fd);
    return EEP_OK;

remove:
    close(fd);
    (void)unlinkat(dir_fd, hidden, 0);
    return status;
}

enum eep_status wc_check_room(const char *where, int dir_fd, uint64_t needed)
{
    struct statvfs room;
    struct statfs kind;
    uint64_t available;
    const uint64_t memory = eep_mem_available_bytes();

    if (fstatvfs(dir_fd, &room) != 0 || fstatfs(dir_fd, &kind) != 0) {
        return WC_FAIL_SYS("statvfs", where);
    }
    available = (uint64_t)room.f_bavail * room.f_frsize;
    if (kind.f_type == TMPFS_MAGIC && room.f_blocks == 0) {
        available = UINT64_MAX; /* without a limit of its own */
    }
    if (kind.f_type == TMPFS_MAGIC && memory != 0) {
        available = EEP_MIN(available, memory);
    }
    if (needed > available) {
        return EEP_FAIL(EEP_ERR_NOMEM,
                        "%s: needs %llu bytes (%.1f GiB), available are %llu (%.1f GiB); free some "
                        "or name another --cache-dir",
                        where, (unsigned long long)needed, (double)needed / (1 << 30),
                        (unsigned long long)available, (double)available / (1 << 30));
    }
    return EEP_OK;
}
