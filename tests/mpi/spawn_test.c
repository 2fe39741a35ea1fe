/*
 * Processes that are started while the ranks work, run by tests/mpi/spawn through scripts/mpi-run:
 *
 *     spawn_test life     two ranks; two more are spawned, let in and killed, again and again,
 * until none of the first is left spawn_test bad      what cannot be spawned, and processes that
 * end before they are let in; the ranks go on meanwhile, and the next spawn works spawn_test orphan
 * rank 0 is killed while others wait to be let in: those end, the ranks go on spawn_test refused it
 * is refused, with the reason spawn_test joined   what the new processes run
 *
 * Status 0: right; 1: a call failed (its text is on stderr); 3: wrong data.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "xport/xport.h"

#define WRONG 3
#define RANKS_MAX 16u
#define ROW_BYTES 256u

static struct eep_xport *xport;
static char *program;

_Noreturn static void wrong(const char *condition, int line, const char *fmt, ...) EEP_PRINTF(3, 4);

static void wrong(const char *condition, int line, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    eep_log(EEP_LOG_ERROR, "wrong (%s), line %d: %s", condition, line, text);
    exit(WRONG);
}

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            wrong(#condition, __LINE__, __VA_ARGS__);                                              \
        }                                                                                          \
    } while (0)

/* ---- work of the ranks ---- */

/* Each rank sends one row to each, and gets it back. */
static enum eep_status exchange(void)
{
    const uint32_t size = xport->topo.size, me = xport->topo.rank;
    const struct eep_exchange_params params = {1, RANKS_MAX, ROW_BYTES, ROW_BYTES};
    uint32_t ranks[RANKS_MAX], slots[RANKS_MAX] = {0};
    const struct eep_dispatch send = {1, ranks, slots};
    struct eep_exchange *exchange;
    struct eep_received got;
    const void *rows[RANKS_MAX];

    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        ranks[r] = r < size ? r : EEP_NO_RANK;
    }
    EEP_TRY(xport->ops->exchange_open(xport, &params, &exchange));
    memset(xport->ops->exchange_rows(exchange), (int)(me + 1), ROW_BYTES);
    enum eep_status status = xport->ops->dispatch(exchange, &send, &got);
    if (status == EEP_OK) {
        CHECK(got.pairs == size, "%u pairs", got.pairs);
        for (uint32_t p = 0; p < got.pairs; p++) {
            const unsigned char *row =
                (const unsigned char *)got.x + (size_t)got.pair_row[p] * ROW_BYTES;

            CHECK(row[0] == p + 1 && row[ROW_BYTES - 1] == p + 1, "row of rank %u", p);
            memset((unsigned char *)got.y + (size_t)p * ROW_BYTES, row[0] + 100, ROW_BYTES);
        }
        status = xport->ops->combine(exchange, rows);
    }
    for (uint32_t r = 0; r < size && status == EEP_OK; r++) {
        CHECK(((const unsigned char *)rows[r])[7] == me + 101, "answer of rank %u", r);
    }
    xport->ops->exchange_close(exchange);
    return status;
}

static enum eep_status work(void)
{
    struct eep_board *board;
    uint64_t before;
    uint32_t all[RANKS_MAX];

    EEP_TRY(xport->ops->allgather(xport, "work", &xport->topo.rank, sizeof(uint32_t), all));
    for (uint32_t r = 0; r < xport->topo.size; r++) {
        CHECK(all[r] == r, "rank %u", r);
    }
    EEP_TRY(xport->ops->board_open(xport, "work", 8, &board));
    enum eep_status status = xport->ops->board_add(board, 0, 1, &before);
    xport->ops->board_close(board);
    EEP_TRY(status);
    return exchange();
}

/* ---- what rank 0 tells the others ---- */

enum what { WORK, REGROUP, DIE, END };

struct order {
    enum what what;
    uint32_t count;
    uint32_t origins[RANKS_MAX];
};

static uint32_t me(void)
{
    return xport->topo.origin_of[xport->topo.rank];
}

/* `part` counts losses; some have come later, and ask. A loss may be seen in turns. */
static enum eep_status recover(uint32_t *part)
{
    uint32_t was[RANKS_MAX], parts[RANKS_MAX];
    enum eep_status status;

    do {
        status = xport->ops->recover(xport, was);
        if (status == EEP_OK) {
            status = work();
        }
        if (status == EEP_OK) {
            status = xport->ops->allgather(xport, "part", part, sizeof(*part), parts);
        }
    } while (status == EEP_ERR_PEER_LOST);
    for (uint32_t r = 0; r < xport->topo.size && status == EEP_OK; r++) {
        *part = EEP_MAX(*part, parts[r]);
    }
    return status;
}

static enum eep_status regroup(const struct order *o)
{
    EEP_TRY(xport->ops->regroup(xport, o->origins, o->count));
    CHECK(xport->topo.size == o->count &&
              memcmp(xport->topo.origin_of, o->origins, o->count * sizeof(uint32_t)) == 0,
          "%u ranks", xport->topo.size);
    return work();
}

/* Returns PEER_LOST when somebody died on the way, as ordered. */
static enum eep_status obey(const struct order *o)
{
    switch (o->what) {
    case WORK:
        return work();
    case REGROUP:
        return regroup(o);
    case DIE:
        if (me() == o->origins[0]) {
            (void)raise(SIGKILL);
        }
        return work();
    default:
        return EEP_OK;
    }
}

/* Rank 0. */
static enum eep_status give(const struct order *o)
{
    struct order copy = *o;

    EEP_TRY(xport->ops->broadcast(xport, "order", 0, &copy, sizeof(copy)));
    return obey(o);
}

static enum eep_status give_work(void)
{
    return give(&(struct order){.what = WORK});
}

/* ---- rank 0 ---- */

/* Starts `count` processes and works until they are there, or not. */
static enum eep_status spawn(char *const *argv, uint32_t count, uint32_t *first)
{
    const struct eep_spawn s = {.argv = argv,
                                .count = count,
                                .beside = EEP_NO_RANK,
                                .serial = 77,
                                .timeout_ns = 4 * EEP_NS_PER_S};
    const uint64_t begin_ns = eep_clock_ns();
    uint64_t longest_ns = 0;
    enum eep_status status;
    uint32_t steps = 0;

    EEP_TRY(xport->ops->spawn_begin(xport, &s));
    CHECK(xport->ops->spawn_begin(xport, &s) == EEP_ERR_INVALID, "two at a time");
    while ((status = xport->ops->spawn_test(xport, first)) == EEP_ERR_AGAIN) {
        const uint64_t step_ns = eep_clock_ns();

        EEP_TRY(give_work());
        longest_ns = EEP_MAX(longest_ns, eep_clock_ns() - step_ns);
        steps++;
    }
    printf("spawned %u in %.0f ms, %u steps meanwhile, the longest %.1f ms: %s\n", count,
           (double)(eep_clock_ns() - begin_ns) * 1e-6, steps, (double)longest_ns * 1e-6,
           status == EEP_OK ? "there" : eep_error_text());
    (void)fflush(stdout);
    return status;
}

static enum eep_status spawn_good(uint32_t count, uint32_t *first)
{
    char word[] = "joined";
    char *const argv[] = {program, word, NULL};

    return spawn(argv, count, first);
}

/* Lets them in behind all ranks of now. */
static enum eep_status let_in(uint32_t first, uint32_t count)
{
    struct order o = {.what = REGROUP, .count = xport->topo.size + count};
    const uint64_t begin_ns = eep_clock_ns();

    memcpy(o.origins, xport->topo.origin_of, xport->topo.size * sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        o.origins[xport->topo.size + i] = first + i;
    }
    for (uint32_t i = 0; i < count; i++) {
        EEP_TRY(xport->ops->roster_send(xport, first + i, &o, sizeof(o)));
    }
    EEP_TRY(give(&o));
    printf("let in after %.1f ms\n", (double)(eep_clock_ns() - begin_ns) * 1e-6);
    return EEP_OK;
}

static enum eep_status grow(uint32_t count)
{
    uint32_t first;

    EEP_TRY(spawn_good(count, &first));
    return let_in(first, count);
}

/* The loss is the caller's to recover from. */
static enum eep_status kill_rank(uint32_t rank)
{
    return give(&(struct order){.what = DIE, .count = 1, .origins = {xport->topo.origin_of[rank]}});
}

static enum eep_status end(void)
{
    return give(&(struct order){.what = END});
}

/* ---- the stories ---- */

/* One part after the other, by whoever is rank 0; a part that ends in a loss is over. */
static enum eep_status live(uint32_t part)
{
    switch (part) {
    case 0:
        EEP_TRY(grow(2)); /* 0 1 | 2 3 */
        return kill_rank(2);
    case 1:
        EEP_TRY(grow(2)); /* 0 1 3 | 4 5 */
        return kill_rank(0);
    case 2:
        EEP_TRY(grow(1)); /* 1 3 4 5 | 6, by another rank 0 */
        return kill_rank(0);
    case 3:
        CHECK(xport->topo.size == 4 && me() == 3, "%u ranks", xport->topo.size);
        EEP_TRY(grow(1)); /* 3 4 5 6 | 7, by one that was spawned itself */
        return kill_rank(2);
    default:
        CHECK(xport->topo.size == 4 && xport->topo.processes == 8, "%u ranks", xport->topo.size);
        return end();
    }
}

static void expect_failure(const char *path, enum eep_status expected)
{
    char copy[256], command[] = "-c", text[] = "kill -9 $$";
    char *const argv[] = {copy, command, text, NULL};
    uint32_t first;

    snprintf(copy, sizeof(copy), "%s", path);
    const enum eep_status status = spawn(argv, 1, &first);
    CHECK(status == expected, "status %d for %s: %s", (int)status, path, eep_error_text());
}

static void await_loss(uint32_t origin)
{
    const uint64_t begin_ns = eep_clock_ns();
    struct order o;
    uint32_t from;
    size_t bytes;

    while (!xport->ops->roster_lost(xport, origin)) {
        CHECK(eep_clock_ns() - begin_ns < 5 * EEP_NS_PER_S, "the loss is not told");
        CHECK(!xport->ops->roster_take(xport, &from, &o, sizeof(o), &bytes), "a message");
        usleep(500);
    }
}

static enum eep_status be_bad(uint32_t part)
{
    struct order suicide = {.what = DIE};
    uint32_t first;

    CHECK(part == 0, "a loss");
    expect_failure("/nowhere/program", EEP_ERR_IO);
    expect_failure("/etc/passwd", EEP_ERR_IO);
    expect_failure("/tmp", EEP_ERR_IO);
    expect_failure("bash", EEP_ERR_INVALID);
    expect_failure("/bin/false", EEP_ERR_IO);
    expect_failure("/bin/bash", EEP_ERR_TIMEOUT); /* killed before MPI has started */
    expect_failure("/bin/true", EEP_ERR_TIMEOUT);
    EEP_TRY(spawn_good(2, &first));
    EEP_TRY(xport->ops->roster_send(xport, first + 1, &suicide, sizeof(suicide)));
    await_loss(first + 1);
    await_loss(first); /* it is not let in without the other */
    EEP_TRY(give_work());
    EEP_TRY(grow(2));
    CHECK(xport->topo.size == 4, "%u ranks", xport->topo.size);
    return end();
}

static enum eep_status be_orphan(uint32_t part)
{
    uint32_t first;

    switch (part) {
    case 0:
        EEP_TRY(spawn_good(2, &first));
        return kill_rank(0);
    case 1:
        EEP_TRY(grow(1));
        CHECK(xport->topo.size == 2, "%u ranks", xport->topo.size);
        return end();
    default:
        return EEP_FAIL(EEP_ERR_FATAL, "a loss too many");
    }
}

static enum eep_status be_refused(uint32_t part)
{
    uint32_t first;

    CHECK(part == 0, "a loss");
    const enum eep_status status = spawn_good(1, &first);
    CHECK(status == EEP_ERR_UNSUPPORTED, "status %d", (int)status);
    printf("refused: %s\n", eep_error_text());
    return end();
}

/* ---- all ---- */

/* Until this process is a rank. */
static enum eep_status be_parked(void)
{
    while (xport->topo.rank == EEP_NO_RANK) {
        struct order o;
        unsigned char note[EEP_ROSTER_BYTES_MAX];
        uint32_t from;
        size_t bytes;

        EEP_TRY(xport->ops->roster_wait(xport, 30 * EEP_NS_PER_S));
        CHECK(xport->ops->roster_take(xport, &from, note, sizeof(note), &bytes) &&
                  bytes == sizeof(o),
              "message");
        memcpy(&o, note, sizeof(o));
        if (o.what == DIE) {
            (void)raise(SIGKILL);
        }
        const enum eep_status status = regroup(&o);
        if (status != EEP_OK && (status != EEP_ERR_PEER_LOST || xport->topo.rank != EEP_NO_RANK)) {
            return status;
        }
    }
    return EEP_OK;
}

static enum eep_status follow(bool *over)
{
    struct order o;

    *over = false;
    EEP_TRY(xport->ops->broadcast(xport, "order", 0, &o, sizeof(o)));
    *over = o.what == END;
    return obey(&o);
}

static enum eep_status play(enum eep_status (*story)(uint32_t part))
{
    enum eep_status status = EEP_OK;
    uint32_t part = 0;
    bool over = false;

    if (xport->topo.rank == EEP_NO_RANK) {
        EEP_TRY(be_parked());
    }
    while (!over && status == EEP_OK) {
        if (xport->topo.rank == 0) {
            status = story(part);
            over = status == EEP_OK;
        } else {
            status = follow(&over);
        }
        if (status == EEP_ERR_PEER_LOST) {
            part++;
            status = recover(&part);
        }
    }
    return status;
}

int main(int argc, char **argv)
{
    const struct eep_world_params params = {.timeout_ns = 0};
    const char *how = argc > 1 ? argv[1] : "";

    if (strcmp(how, "--version") == 0) {
        return 0;
    }
    program = argv[0];
    enum eep_status status = eep_world_open(&params, &xport);
    if (status != EEP_OK) {
        eep_log(EEP_LOG_ERROR, "%s", eep_error_text());
        return 1;
    }
    const bool joined = strcmp(how, "joined") == 0;
    CHECK((xport->spawn_serial == 77) == joined, "serial %llu",
          (unsigned long long)xport->spawn_serial);
    /* One that was spawned into `life` may become rank 0 there, in the others not. */
    status = play(strcmp(how, "bad") == 0       ? be_bad
                  : strcmp(how, "orphan") == 0  ? be_orphan
                  : strcmp(how, "refused") == 0 ? be_refused
                                                : live);
    if (status != EEP_OK) {
        eep_log(EEP_LOG_ERROR, "%s", eep_error_text());
    } else if (xport->topo.rank == 0) {
        printf("ok: %u ranks, %u nodes\n", xport->topo.size, xport->topo.nodes);
    }
    xport->ops->close(xport, status);
    return status == EEP_OK ? 0 : 1;
}
