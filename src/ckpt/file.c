/* Opening and reading files whose size is known before anything is allocated for them. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/ckpt_int.h"

#define READ_CHUNK ((size_t)1 << 30)

enum eep_status eep_ckpt_copy_text(const char *text, char **copy_out)
{
    size_t bytes = strlen(text) + 1;
    char *copy;

    EEP_TRY(eep_mem_alloc(bytes, 1, "a name", &copy));
    memcpy(copy, text, bytes);
    *copy_out = copy;
    return EEP_OK;
}

enum eep_status eep_ckpt_open_file(const char *path, int *fd_out, uint64_t *bytes_out)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    if (fstat(fd, &info) != 0) {
        int error = errno;

        close(fd);
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be examined: %s", path, strerror(error));
    }
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return EEP_FAIL(EEP_ERR_IO, "%s: is not a regular file", path);
    }
    *fd_out = fd;
    *bytes_out = (uint64_t)info.st_size;
    return EEP_OK;
}

enum eep_status eep_ckpt_read_at(int fd, const char *path, uint64_t offset, size_t bytes, void *to)
{
    size_t done = 0;

    while (done < bytes) {
        size_t want = EEP_MIN(bytes - done, READ_CHUNK);
        ssize_t got = pread(fd, (char *)to + done, want, (off_t)(offset + done));

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return EEP_FAIL(EEP_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        }
        if (got == 0) {
            return EEP_FAIL(EEP_ERR_IO,
                            "%s: ends at byte %llu, it became shorter while it was read", path,
                            (unsigned long long)(offset + done));
        }
        done += (size_t)got;
    }
    return EEP_OK;
}
