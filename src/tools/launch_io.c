#include "tools/launch_io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#define PIECE ((size_t)64 << 10)

/* ---- files ---- */

static void path_in(const struct eep_launch_io *io, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", io->dir, name);
}

static enum eep_status create(const struct eep_launch_io *io, const char *name, int *fd_out)
{
    char path[PATH_MAX];

    path_in(io, name, path);
    *fd_out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    return *fd_out >= 0
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_IO, "launch: cannot create %s: %s", path, strerror(errno));
}

static enum eep_status write_all(int fd, const char *what, const void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t got = write(fd, (const char *)data + at, bytes - at);

        if (got < 0 && errno != EINTR) {
            return EEP_FAIL(EEP_ERR_IO, "launch: %s cannot be written: %s", what, strerror(errno));
        }
        at += got > 0 ? (size_t)got : 0;
    }
    return EEP_OK;
}

enum eep_status eep_launch_io_open(struct eep_launch_io *io, bool keeps_input, bool filters)
{
    const char *base = getenv("TMPDIR");
    char path[PATH_MAX];

    *io = (struct eep_launch_io){
        .input = -1, .output = -1, .job_end = -1, .list = -1, .filters = filters};
    snprintf(io->dir, sizeof(io->dir), "%s/eep-launch-XXXXXX",
             base != NULL && base[0] != '\0' ? base : "/tmp");
    if (mkdtemp(io->dir) == NULL) {
        const int error = errno;

        snprintf(path, sizeof(path), "%s", io->dir);
        io->dir[0] = '\0';
        return EEP_FAIL(EEP_ERR_IO, "launch: cannot create %s: %s; TMPDIR names another place",
                        path, strerror(error));
    }
    if (keeps_input) {
        EEP_TRY(create(io, "input", &io->input));
        path_in(io, "input", path);
        (void)setenv("EEP_STDIN", path, 1);
        (void)setenv("EEP_STDIN_GROWS", "1", 1);
    } else {
        (void)unsetenv("EEP_STDIN_GROWS");
    }
    if (filters) {
        EEP_TRY(create(io, "delivered", &io->list));
        path_in(io, "delivered", path);
        (void)setenv(EEP_DELIVERED_ENV, path, 1);
        (void)signal(SIGPIPE, SIG_IGN); /* a write fails instead, and the job is ended */
    } else {
        (void)unsetenv(EEP_DELIVERED_ENV);
    }
    return EEP_OK;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

void eep_launch_io_close(struct eep_launch_io *io)
{
    static const char *const names[] = {"input", "input.end", "delivered"};
    char path[PATH_MAX];

    close_fd(&io->input);
    close_fd(&io->list);
    close_fd(&io->output);
    close_fd(&io->job_end);
    for (size_t i = 0; io->dir[0] != '\0' && i < sizeof(names) / sizeof(names[0]); i++) {
        path_in(io, names[i], path);
        (void)unlink(path);
    }
    if (io->dir[0] != '\0') {
        (void)rmdir(io->dir);
    }
    free(io->line);
    eep_index_free(&io->delivered);
}

/* ---- input ---- */

static enum eep_status keep_input(struct eep_launch_io *io)
{
    char data[16384];
    const ssize_t got = read(STDIN_FILENO, data, sizeof(data));
    int fd;

    if (got < 0) {
        return errno == EINTR || errno == EAGAIN
                   ? EEP_OK
                   : EEP_FAIL(EEP_ERR_IO, "launch: standard input cannot be read: %s",
                              strerror(errno));
    }
    if (got > 0) {
        return write_all(io->input, "the kept input", data, (size_t)got);
    }
    io->input_ended = true;
    EEP_TRY(create(io, "input.end", &fd));
    close(fd);
    return EEP_OK;
}

/* ---- output ---- */

/* The index of an answer, and whether it is an error. */
static bool is_answer(const char *line, size_t bytes, uint64_t *index_out, bool *error_out)
{
    json_t *object = json_loadb(line, bytes, 0, NULL);
    const json_t *index = json_object_get(object, "index");
    const bool is = json_is_integer(index) && json_integer_value(index) >= 0;

    if (is) {
        *index_out = (uint64_t)json_integer_value(index);
        *error_out = json_object_get(object, "error") != NULL;
    }
    json_decref(object);
    return is;
}

/* Where the last answer in a line begins: before it there may be a piece of one whose rank ended.
 */
static size_t last_begin(const char *line, size_t bytes)
{
    static const char begin[] = "{\"index\":";
    const size_t length = sizeof(begin) - 1;

    for (size_t at = bytes >= length ? bytes - length : 0; at > 0; at--) {
        if (memcmp(line + at, begin, length) == 0) {
            return at;
        }
    }
    return 0;
}

/* A whole line, with its end. */
static enum eep_status pass_line(struct eep_launch_io *io, const char *line, size_t bytes)
{
    uint64_t index;
    bool error;
    char text[32];

    if (!is_answer(line, bytes, &index, &error)) {
        const size_t begin = last_begin(line, bytes);

        line += begin;
        bytes -= begin;
        if (!is_answer(line, bytes, &index, &error)) {
            const bool torn = strncmp(line, "{\"index\":", EEP_MIN(bytes, 9)) == 0;

            return torn ? EEP_OK : write_all(STDOUT_FILENO, "standard output", line, bytes);
        }
    }
    if (eep_index_has(&io->delivered, index)) {
        return EEP_OK;
    }
    EEP_TRY(write_all(STDOUT_FILENO, "standard output", line, bytes));
    EEP_TRY(eep_index_add(&io->delivered, index));
    io->errors += error;
    const int length = snprintf(text, sizeof(text), "%" PRIu64 "\n", index);

    return write_all(io->list, "the list of delivered answers", text, (size_t)length);
}

static enum eep_status pass_lines(struct eep_launch_io *io, size_t looked)
{
    size_t first = 0;
    const char *end;

    while ((end = memchr(io->line + EEP_MAX(first, looked), '\n',
                         io->line_bytes - EEP_MAX(first, looked))) != NULL) {
        const size_t next = (size_t)(end - io->line) + 1;

        EEP_TRY(pass_line(io, io->line + first, next - first));
        first = next;
    }
    memmove(io->line, io->line + first, io->line_bytes - first);
    io->line_bytes -= first;
    return EEP_OK;
}

/* @param more_out  false: nothing was there, or the job has closed it */
static enum eep_status pass_output(struct eep_launch_io *io, bool *more_out)
{
    const size_t looked = io->line_bytes;

    *more_out = false;
    if (io->line_bytes + PIECE > io->line_capacity) {
        const size_t capacity = 2 * (io->line_bytes + PIECE);
        char *grown = realloc(io->line, capacity);

        if (grown == NULL) {
            return EEP_FAIL(EEP_ERR_NOMEM, "launch: no memory for a line of %zu bytes", capacity);
        }
        io->line = grown;
        io->line_capacity = capacity;
    }
    const ssize_t got = read(io->output, io->line + io->line_bytes, PIECE);

    if (got == 0) {
        close_fd(&io->output);
    }
    if (got <= 0) {
        return EEP_OK;
    }
    *more_out = true;
    io->line_bytes += (size_t)got;
    return pass_lines(io, looked);
}

/* ---- turns ---- */

enum eep_status eep_launch_io_begin(struct eep_launch_io *io, int *output_out)
{
    int ends[2];

    *output_out = -1;
    if (!io->filters) {
        return EEP_OK;
    }
    if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
        return EEP_FAIL(EEP_ERR_IO, "launch: no pipe for the job's output: %s", strerror(errno));
    }
    io->output = ends[0];
    io->job_end = ends[1];
    io->line_bytes = 0; /* what is left of the start before was torn */
    *output_out = io->job_end;
    return EEP_OK;
}

void eep_launch_io_started(struct eep_launch_io *io)
{
    close_fd(&io->job_end);
}

enum eep_status eep_launch_io_turn(struct eep_launch_io *io, int ms)
{
    struct pollfd fds[2] = {
        {.fd = io->input >= 0 && !io->input_ended ? STDIN_FILENO : -1, .events = POLLIN},
        {.fd = io->output, .events = POLLIN},
    };
    bool more;

    if (poll(fds, 2, ms) <= 0) {
        return EEP_OK;
    }
    if (fds[0].revents != 0) {
        EEP_TRY(keep_input(io));
    }
    return fds[1].revents != 0 ? pass_output(io, &more) : EEP_OK;
}

enum eep_status eep_launch_io_end(struct eep_launch_io *io)
{
    enum eep_status status = EEP_OK;
    bool more = true;

    while (status == EEP_OK && more && io->output >= 0) {
        status = pass_output(io, &more);
    }
    close_fd(&io->output);
    return status;
}
