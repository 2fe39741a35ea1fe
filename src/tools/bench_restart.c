/*
 * `eep bench restart`: from starting the program to its first token, with a weight cache that is
 * there and without. Each start is a process of its own, launcher and all, that generates one
 * token:
 *
 *     disk    no cache, and the checkpoint's files thrown out of the page cache before
 *     memory  no cache, the files in the page cache
 *     fill    a cache is made
 *     attach  it is there
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "tools/bench.h"
#include "tools/opts.h"
#include "tools/tools.h"
#include "wcache/wcache.h"

#define MAX_REPEATS 100u
#define WORDS_MAX 24
#define DROP_NS (10 * EEP_NS_PER_S)
#define TARGET_RATIO 10.0 /* of a checkpoint of 2 GB or more */
#define TARGET_BYTES 2e9
#define TARGET_ATTACH_MS 50.0 /* the engine's part of a start */

extern char **environ;

enum start { FROM_DISK, FROM_MEMORY, FILL, ATTACH, STARTS };

static const char *const start_names[STARTS] = {"disk", "memory", "fill", "attach"};

struct bench_restart {
    const char *model;
    uint32_t ranks, repeats;
    bool json;
    char dir[64];                         /* of the cache */
    double bytes;                         /* of the checkpoint */
    double token_ms[STARTS][MAX_REPEATS]; /* from the start to the first token */
    double cache_ms[STARTS][MAX_REPEATS]; /* the cache's part of it, as the engine says */
};

static const struct eep_command_help help = {
    .usage = "eep bench restart --model DIR [options]",
    .summary = "From starting the program to its first token: with a weight cache that is there,\n"
               "and without. Run it alone, not under mpirun: it starts the ranks itself.",
    .epilog =
        "\"attach\" is also compared with 'memory', where the checkpoint's files need not be\n"
        "read from disk: target 10 times sooner for 2 GB or more. \"cache\" is the time to\n"
        "find the cache, check its headers (target 50 ms) or fill it; mapping its pages is\n"
        "not part of that.",
};

/* ---- the checkpoint's files ---- */

/* Sum up, or throw out of the page cache, the files of the checkpoint. */
static enum eep_status each_file(struct bench_restart *b, bool drop)
{
    DIR *dir = opendir(b->model);
    struct dirent *entry;

    if (dir == NULL) {
        return EEP_FAIL(EEP_ERR_IO, "--model %s: %s", b->model, strerror(errno));
    }
    while ((entry = readdir(dir)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');
        struct stat info;
        int fd;

        if (dot == NULL || strcmp(dot, ".safetensors") != 0) {
            continue;
        }
        fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            if (drop) {
                (void)fdatasync(fd); /* pages that were not written yet cannot be dropped */
                (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            } else if (fstat(fd, &info) == 0) {
                b->bytes += (double)info.st_size;
            }
            close(fd);
        }
    }
    closedir(dir);
    return EEP_OK;
}

/* ---- one start ---- */

struct child {
    pid_t pid;
    int out, err; /* read ends */
};

static enum eep_status spawn(const char *const *words, struct child *child)
{
    posix_spawn_file_actions_t actions;
    int out[2], err[2];

    if (pipe2(out, O_CLOEXEC) != 0) {
        return EEP_FAIL(EEP_ERR_IO, "pipe: %s", strerror(errno));
    }
    if (pipe2(err, O_CLOEXEC) != 0) {
        close(out[0]);
        close(out[1]);
        return EEP_FAIL(EEP_ERR_IO, "pipe: %s", strerror(errno));
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    const int rc = posix_spawn(&child->pid, words[0], &actions, NULL,
                               (char *const *)(uintptr_t)words, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    child->out = out[0];
    child->err = err[0];
    if (rc != 0) {
        close(out[0]);
        close(err[0]);
        return EEP_FAIL(EEP_ERR_IO, "%s: %s", words[0], strerror(rc));
    }
    return EEP_OK;
}

/* All that comes, at most size - 1 bytes; the rest is thrown away. */
static void read_all(int fd, char *text, size_t size)
{
    size_t length = 0;
    char rest[4096];
    ssize_t got;

    for (;;) {
        const bool room = length + 1 < size;

        got = room ? read(fd, text + length, size - 1 - length) : read(fd, rest, sizeof(rest));
        if (got == 0 || (got < 0 && errno != EINTR)) {
            break;
        }
        length += room && got > 0 ? (size_t)got : 0;
    }
    text[length] = '\0';
}

/* "... attached in 0.004 s" or "filled in": the engine's own figure in ms; NaN if it is not said.
 */
static double cache_of(const char *text)
{
    const char *line = strstr(text, "\ncache ");
    const char *in = line != NULL ? strstr(line, "ed in ") : NULL;

    return in != NULL ? strtod(in + strlen("ed in "), NULL) * 1e3 : strtod("nan", NULL);
}

static enum eep_status time_start(const char *const *words, double *token_ms, double *cache_ms)
{
    char text[16384], byte;
    struct child child;
    ssize_t got;
    int status = 0;
    const uint64_t begin_ns = eep_clock_ns();

    EEP_TRY(spawn(words, &child));
    do {
        got = read(child.out, &byte, 1);
    } while (got < 0 && errno == EINTR);
    *token_ms = (double)(eep_clock_ns() - begin_ns) * 1e-6;
    read_all(child.err, text, sizeof(text)); /* it ends when the child does */
    close(child.out);
    close(child.err);
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (got != 1 || status != 0) {
        char *last = strrchr(text, '\n');

        if (last != NULL && last[1] == '\0') {
            *last = '\0';
        }
        return EEP_FAIL(EEP_ERR_INVALID, "a start failed (status %d): %.300s",
                        WIFEXITED(status) ? WEXITSTATUS(status) : -1, text);
    }
    *cache_ms = cache_of(text);
    return EEP_OK;
}

static enum eep_status run_start(struct bench_restart *b, enum start start, double *token_ms,
                                 double *cache_ms)
{
    char program[4096], ranks[16];
    const char *words[WORDS_MAX];
    size_t count = 0;
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

    if (length < 0) {
        return EEP_FAIL(EEP_ERR_IO, "/proc/self/exe: %s", strerror(errno));
    }
    program[length] = '\0';
    snprintf(ranks, sizeof(ranks), "%u", b->ranks);
    words[count++] = program;
    if (b->ranks > 1) {
        const char *const launch[] = {"launch", "-n", ranks, "--"};

        for (size_t i = 0; i < sizeof(launch) / sizeof(launch[0]); i++) {
            words[count++] = launch[i];
        }
    }
    const bool cached = start == FILL || start == ATTACH;
    const char *const generate[] = {"generate",
                                    "--model",
                                    b->model,
                                    "--prompt-ids",
                                    "1,2,3",
                                    "--max-tokens",
                                    "1",
                                    "--weight-cache",
                                    cached ? "require" : "off",
                                    "--cache-dir",
                                    b->dir};
    for (size_t i = 0; i < sizeof(generate) / sizeof(generate[0]); i++) {
        words[count++] = generate[i];
    }
    words[count] = NULL;
    return time_start(words, token_ms, cache_ms);
}

static enum eep_status drop_cache(const struct bench_restart *b)
{
    struct eep_wcache_info *infos;
    enum eep_status status = EEP_OK;
    size_t count;

    EEP_TRY(eep_wcache_list(b->dir, &infos, &count));
    for (size_t i = 0; i < count && status == EEP_OK; i++) {
        status = eep_wcache_drop(b->dir, infos[i].name, DROP_NS);
    }
    eep_mem_free(infos);
    return status;
}

/* Also what a cache's directory leaves below it. */
static void remove_dir(const struct bench_restart *b)
{
    char lock[sizeof(b->dir) + 8];

    (void)drop_cache(b);
    snprintf(lock, sizeof(lock), "%s/.lock", b->dir);
    (void)unlink(lock);
    (void)rmdir(b->dir);
}

static enum eep_status run_round(struct bench_restart *b, uint32_t r)
{
    for (int start = FROM_DISK; start < STARTS; start++) {
        if (start == FROM_DISK) {
            EEP_TRY(each_file(b, true));
        }
        EEP_TRY(run_start(b, (enum start)start, &b->token_ms[start][r], &b->cache_ms[start][r]));
    }
    return drop_cache(b);
}

/* ---- what is printed ---- */

static double median(double *values, uint32_t count)
{
    eep_bench_sort(values, count);
    return values[count / 2];
}

static enum eep_status print_start(struct bench_restart *b, enum start start, double attach_ms)
{
    const double token = median(b->token_ms[start], b->repeats);
    const double cache = median(b->cache_ms[start], b->repeats);
    const bool knows_cache = cache == cache;

    if (b->json) {
        json_t *row = json_pack("{s:s, s:s, s:i, s:f, s:f, s:f}", "bench", "restart", "start",
                                start_names[start], "ranks", (int)b->ranks, "checkpoint_bytes",
                                b->bytes, "token_ms", token, "times_attach", token / attach_ms);
        bool written = row != NULL;

        if (written && knows_cache) {
            written = json_object_set_new(row, "cache_ms", json_real(cache)) == 0;
        }
        written = written && json_dumpf(row, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;
        json_decref(row);
        return written ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
    }
    printf("%-7s first token after %8.1f ms, %5.1f times attach", start_names[start], token,
           token / attach_ms);
    if (knows_cache) {
        printf(", cache %.1f ms", cache);
    }
    if (start == ATTACH) {
        printf(" (target %.0f)", TARGET_ATTACH_MS);
    } else if (start == FROM_MEMORY && b->bytes >= TARGET_BYTES) {
        printf(" (target %.0f)", TARGET_RATIO);
    }
    return putchar('\n') != EOF ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

static enum eep_status run(struct bench_restart *b)
{
    EEP_TRY(each_file(b, false));
    for (uint32_t r = 0; r < b->repeats; r++) {
        EEP_TRY(run_round(b, r));
    }
    const double attach_ms = median(b->token_ms[ATTACH], b->repeats);
    for (int start = FROM_DISK; start < STARTS; start++) {
        EEP_TRY(print_start(b, (enum start)start, attach_ms));
    }
    return EEP_OK;
}

int eep_bench_restart(int argc, char **argv)
{
    static struct bench_restart b = {.ranks = 1, .repeats = 3};
    const struct eep_opt opts[] = {
        {"model", EEP_OPT_STRING, &b.model, "DIR", "Hugging Face model directory (needed)"},
        {"ranks", EEP_OPT_U32, &b.ranks, "N", "ranks of each start (default 1)"},
        {"repeats", EEP_OPT_U32, &b.repeats, "N", "starts of each kind; the median is told (3)"},
        {"json", EEP_OPT_FLAG, &b.json, NULL, "one JSON object per kind of start"},
    };

    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (b.model == NULL) {
        return eep_opts_wrong(&help, "--model is needed");
    }
    if (b.repeats < 1 || b.repeats > MAX_REPEATS || b.ranks < 1) {
        return eep_opts_wrong(&help, "--repeats must be 1 to %u, --ranks 1 or more", MAX_REPEATS);
    }
    snprintf(b.dir, sizeof(b.dir), "/dev/shm/eep-bench-%ld", (long)getpid());
    enum eep_status status = run(&b);
    if (status != EEP_OK) {
        eep_tool_report(status);
    }
    remove_dir(&b);
    return status == EEP_OK ? EEP_EXIT_OK : EEP_EXIT_FAILED;
}
