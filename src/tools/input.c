#include "tools/input.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "tools/engine_opts.h"

#define LINE_BYTES_MAX ((size_t)64 << 20)
#define PIECE ((size_t)64 << 10)

struct eep_input {
    int fd;
    bool own; /* to be closed */
    bool is_file, grows, at_end;
    char end_path[PATH_MAX];
    char *data; /* first .. end are not given out yet */
    size_t first, end, capacity;
    size_t looked; /* no line ends before it */
};

static enum eep_status open_it(struct eep_input *in)
{
    const char *path;
    struct stat info;

    EEP_TRY(eep_input_path(&path));
    in->own = path != NULL;
    /* A descriptor of our own, so that not waiting is not what others of the terminal get too. */
    in->fd = path != NULL ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : STDIN_FILENO;
    if (in->fd < 0 || fstat(in->fd, &info) != 0) {
        return EEP_FAIL(EEP_ERR_IO,
                        "standard input cannot be opened on rank 0 (%s: %s); put the input into a "
                        "file",
                        path, strerror(errno));
    }
    in->is_file = S_ISREG(info.st_mode);
    in->grows = path != NULL && getenv("EEP_STDIN_GROWS") != NULL;
    snprintf(in->end_path, sizeof(in->end_path), "%s.end", path != NULL ? path : "");
    return EEP_OK;
}

enum eep_status eep_input_open(struct eep_input **input_out)
{
    struct eep_input *in;

    EEP_TRY(eep_mem_alloc(1, sizeof(*in), "standard input", &in));
    in->fd = -1;
    const enum eep_status status = open_it(in);

    if (status != EEP_OK) {
        eep_input_close(in);
        return status;
    }
    *input_out = in;
    return EEP_OK;
}

void eep_input_close(struct eep_input *in)
{
    if (in != NULL) {
        if (in->own && in->fd >= 0) {
            close(in->fd);
        }
        free(in->data);
        eep_mem_free(in);
    }
}

bool eep_input_is_file(const struct eep_input *in)
{
    return in->is_file;
}

static enum eep_status make_room(struct eep_input *in)
{
    if (in->first > 0) {
        memmove(in->data, in->data + in->first, in->end - in->first);
        in->end -= in->first;
        in->looked -= in->first;
        in->first = 0;
    }
    if (in->end + PIECE > in->capacity) {
        const size_t capacity = 2 * (in->end + PIECE);
        void *grown = in->end <= LINE_BYTES_MAX ? realloc(in->data, capacity) : NULL;

        if (grown == NULL) {
            return EEP_FAIL(EEP_ERR_NOMEM, "standard input: a line of more than %zu bytes",
                            in->end);
        }
        in->data = grown;
        in->capacity = capacity;
    }
    return EEP_OK;
}

/* Something to read without waiting? A descriptor that is not ours may not say so by itself. */
static bool is_ready(const struct eep_input *in)
{
    struct pollfd poll_fd = {.fd = in->fd, .events = POLLIN};

    return in->is_file || poll(&poll_fd, 1, 0) > 0;
}

static enum eep_status read_some(struct eep_input *in)
{
    const bool finished = !in->grows || access(in->end_path, F_OK) == 0; /* before the read */

    if (!is_ready(in)) {
        return EEP_OK;
    }
    EEP_TRY(make_room(in));
    const ssize_t got = read(in->fd, in->data + in->end, PIECE);

    if (got < 0 && errno != EAGAIN && errno != EINTR) {
        return EEP_FAIL(EEP_ERR_IO, "standard input cannot be read: %s", strerror(errno));
    }
    in->end += got > 0 ? (size_t)got : 0;
    in->at_end = got == 0 && finished;
    return EEP_OK;
}

enum eep_status eep_input_line(struct eep_input *in, const char **line_out, size_t *bytes_out,
                               bool *ended_out)
{
    *line_out = NULL;
    *ended_out = false;
    for (int tries = 0; tries < 2; tries++) {
        char *at =
            in->data != NULL ? memchr(in->data + in->looked, '\n', in->end - in->looked) : NULL;

        if (at == NULL && in->at_end && in->first < in->end) {
            at = in->data + in->end; /* the last line has no end */
        }
        if (at != NULL) {
            *line_out = in->data + in->first;
            *bytes_out = (size_t)(at - *line_out);
            in->first = EEP_MIN((size_t)(at - in->data) + 1, in->end);
            in->looked = in->first;
            return EEP_OK;
        }
        in->looked = in->end;
        if (tries == 0 && !in->at_end) {
            EEP_TRY(read_some(in));
        }
    }
    *ended_out = in->at_end && in->first == in->end;
    return EEP_OK;
}

void eep_input_wait(const struct eep_input *in, int ms)
{
    struct pollfd poll_fd = {.fd = in->fd, .events = POLLIN};

    if (in->is_file) {
        (void)usleep((useconds_t)EEP_MIN(ms, 5) * 1000u);
    } else {
        (void)poll(&poll_fd, 1, ms);
    }
}
