/*
 * The transport as ranks see it, run by tests/mpi/exchange and tests/mpi/loss through
 * scripts/mpi-run:
 *
 *     exchange_test [rounds]              control collectives, boards, transfers and exchanges,
 *                                         every byte checked
 *     exchange_test idle                  ranks that wait for a late one must not burn a core
 *     exchange_test busy MS               rank 0 computes for so long while the others wait
 *     exchange_test kill|exit|fail|stop RANK ROUND
 *                                         rank RANK goes in round ROUND; the others must fail
 *
 *     exchange_test survive kill|exit|... COUNT ROUND [LEFT]
 *                                         COUNT ranks at a time go; the others go on, until one is
 *                                         left, or LEFT are. ... is one of the ways in go(), or
 * fail: to leave with an error
 *
 *     exchange_test regroup ACTIVE CYCLES [PROCESS US]
 *                                         ACTIVE ranks at the start, then others, again and again;
 *                                         PROCESS is killed US microseconds after the first change
 *                                         has begun there, and the others go on
 *
 *     exchange_test absent                two ranks; process 2 is to join with process 3, which is
 *                                         stopped, then dies: nobody waits for long, rank 0 sees
 * the death, and process 2 joins alone
 *
 * Every rank knows the seed, so each computes what all others send and compares. Status 0: right;
 * 1: a call failed (its text is on stderr); 3: wrong data.
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
#include "base/rng.h"
#include "xport/xport.h"

#define WRONG 3
#define SLOTS 64u

static struct eep_xport *xport;
static uint64_t counter;

static uint64_t draw(uint64_t seed)
{
    return eep_rng_bits(seed, counter++);
}

_Noreturn static void wrong(const char *condition, const char *fmt, ...) EEP_PRINTF(2, 3);

static void wrong(const char *condition, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    eep_log(EEP_LOG_ERROR, "wrong (%s): %s", condition, text);
    exit(WRONG);
}

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            wrong(#condition, __VA_ARGS__);                                                        \
        }                                                                                          \
    } while (0)

/* ---- control ---- */

static void fill(unsigned char *to, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (unsigned char)(eep_rng_bits(seed, i / 8) >> (i % 8 * 8));
    }
}

static void check_fill(const unsigned char *data, size_t bytes, uint64_t seed, const char *what)
{
    for (size_t i = 0; i < bytes; i++) {
        CHECK(data[i] == (unsigned char)(eep_rng_bits(seed, i / 8) >> (i % 8 * 8)), "%s byte %zu",
              what, i);
    }
}

static enum eep_status test_allgather(size_t bytes, unsigned char *in, unsigned char *out)
{
    const struct eep_topology *topo = &xport->topo;

    fill(in, bytes, bytes + topo->rank);
    EEP_TRY(xport->ops->allgather(xport, "test allgather", in, bytes, out));
    for (uint32_t r = 0; r < topo->size; r++) {
        check_fill(out + r * bytes, bytes, bytes + r, "allgather");
    }
    return EEP_OK;
}

static enum eep_status test_gather(size_t bytes, uint32_t root, unsigned char *in,
                                   unsigned char *out)
{
    const struct eep_topology *topo = &xport->topo;
    size_t sizes[64], start = 0;

    for (uint32_t r = 0; r < topo->size; r++) {
        sizes[r] = r % 3 == 1 ? 0 : bytes / (r + 1);
    }
    fill(in, sizes[topo->rank], bytes + topo->rank);
    EEP_TRY(xport->ops->gather(xport, "test gather", root, in, sizes[topo->rank], sizes, out));
    for (uint32_t r = 0; r < topo->size && topo->rank == root; r++) {
        check_fill(out + start, sizes[r], bytes + r, "gather");
        start += sizes[r];
    }
    return EEP_OK;
}

static enum eep_status test_control(void)
{
    static const size_t sizes[] = {0, 1, 7, 4096, 65535, 65536, 65537, 300001};
    const struct eep_topology *topo = &xport->topo;
    unsigned char *in = malloc(300001), *out = malloc(300001 * (size_t)topo->size);

    CHECK(in != NULL && out != NULL, "memory");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint32_t root = (uint32_t)i % topo->size;

        EEP_TRY(test_allgather(sizes[i], in, out));
        EEP_TRY(test_gather(sizes[i], root, in, out));
        fill(in, sizes[i], topo->rank == root ? 5 : 6);
        EEP_TRY(xport->ops->broadcast(xport, "test broadcast", root, in, sizes[i]));
        check_fill(in, sizes[i], 5, "broadcast");
    }
    free(in);
    free(out);
    return EEP_OK;
}

/* ---- board ---- */

/* Each rank writes its part, reads the others' after a collective, and all count together. */
static enum eep_status test_board(void)
{
    const struct eep_topology *topo = &xport->topo;
    const size_t part = 1000;
    const uint64_t adds = 50;
    struct eep_board *board;
    unsigned char bytes[1000];
    uint64_t before, sum = 0, last = 0;
    uint32_t all[64];

    EEP_TRY(xport->ops->board_open(xport, "test board", 8 + topo->node_size * part, &board));
    EEP_TRY(xport->ops->board_get(board, 0, &sum, sizeof(sum)));
    CHECK(sum == 0, "a board begins with %llu", (unsigned long long)sum);
    fill(bytes, part, topo->rank);
    EEP_TRY(xport->ops->board_put(board, 8 + topo->node_rank * part, bytes, part));
    EEP_TRY(xport->ops->allgather(xport, "board", &topo->rank, 4, all));
    for (uint32_t r = 0, i = 0; r < topo->size; r++) {
        if (topo->node_of[r] == topo->node) {
            EEP_TRY(xport->ops->board_get(board, 8 + i++ * part, bytes, part));
            check_fill(bytes, part, r, "board");
        }
    }
    for (uint64_t i = 0; i < adds; i++) {
        EEP_TRY(xport->ops->board_add(board, 0, 3, &before));
        CHECK(before % 3 == 0 && (i == 0 || before > last), "added to %llu after %llu",
              (unsigned long long)before, (unsigned long long)last);
        last = before;
    }
    EEP_TRY(xport->ops->allgather(xport, "board", &topo->rank, 4, all));
    EEP_TRY(xport->ops->board_get(board, 0, &sum, sizeof(sum)));
    CHECK(sum == 3 * adds * topo->node_size, "%llu", (unsigned long long)sum);
    xport->ops->board_close(board);
    return EEP_OK;
}

/* ---- transfers ---- */

#define TRANSFERS 3u /* to each rank, at a time */

static size_t transfer_size(uint32_t from, uint32_t to, uint32_t i)
{
    static const size_t sizes[] = {16, 1 << 20, (5 << 20) + 12345, 1, (1 << 20) + 1, 3 << 20};

    return sizes[(from * 5 + to * 3 + i) % (sizeof(sizes) / sizeof(sizes[0]))];
}

static uint64_t transfer_seed(uint32_t from, uint32_t to, uint32_t i)
{
    return 7000 + (from * 64 + to) * 64 + i;
}

struct bulk {
    struct eep_transfer *transfer;
    unsigned char *data;
    size_t bytes, progress;
};

static enum eep_status begin_bulk(struct bulk *b, uint32_t peer, uint32_t i, bool send)
{
    const uint32_t me = xport->topo.rank, from = send ? me : peer, to = send ? peer : me;

    *b = (struct bulk){.bytes = transfer_size(from, to, i)};
    b->data = malloc(b->bytes);
    CHECK(b->data != NULL, "memory");
    if (send) {
        fill(b->data, b->bytes, transfer_seed(from, to, i));
    }
    return xport->ops->transfer_begin(xport, "bulk", peer, i, send, b->data, b->bytes,
                                      &b->transfer);
}

static enum eep_status move_on(struct bulk *all, size_t count, size_t *left)
{
    for (size_t i = 0; i < count; i++) {
        size_t progress;

        if (all[i].progress == all[i].bytes) {
            continue;
        }
        EEP_TRY(xport->ops->transfer_test(all[i].transfer, &progress));
        CHECK(progress >= all[i].progress && progress <= all[i].bytes, "progress %zu", progress);
        all[i].progress = progress;
        *left -= progress == all[i].bytes;
    }
    return EEP_OK;
}

/* Rank 0 sends less than rank 1 waits for: that is told. */
static enum eep_status test_short_transfer(void)
{
    const uint32_t me = xport->topo.rank;
    unsigned char data[16] = {0};
    const size_t bytes = me == 0 ? sizeof(data) / 2 : sizeof(data);
    struct eep_transfer *transfer;
    enum eep_status status = EEP_OK;
    size_t progress = 0;

    if (xport->topo.size < 2 || me > 1) {
        return EEP_OK;
    }
    EEP_TRY(xport->ops->transfer_begin(xport, "short", 1 - me, 7, me == 0, data, bytes, &transfer));
    while (status == EEP_OK && progress < bytes) {
        status = xport->ops->transfer_test(transfer, &progress);
    }
    CHECK(status == (me == 0 ? EEP_OK : EEP_ERR_FORMAT), "status %d", (int)status);
    return EEP_OK;
}

/* From each rank to each, several at a time, with collectives in between as steps have them. */
static enum eep_status test_transfers(void)
{
    const uint32_t size = xport->topo.size, me = xport->topo.rank;
    const size_t count = (size_t)(size - 1) * TRANSFERS * 2;
    struct bulk *all = calloc(count + 1, sizeof(*all)), *b = all;
    size_t left = count, most = 1;
    uint64_t lefts[64];

    CHECK(all != NULL, "memory");
    for (uint32_t peer = 0; peer < size; peer++) {
        for (uint32_t i = 0; i < TRANSFERS && peer != me; i++) {
            EEP_TRY(begin_bulk(b++, peer, i, false));
            EEP_TRY(begin_bulk(b++, peer, TRANSFERS - 1 - i, true)); /* tags tell them apart */
        }
    }
    while (most > 0) {
        const uint64_t mine = left;

        EEP_TRY(move_on(all, count, &left));
        EEP_TRY(xport->ops->allgather(xport, "left", &mine, sizeof(mine), lefts));
        most = 0;
        for (uint32_t r = 0; r < size; r++) {
            most = EEP_MAX(most, lefts[r]);
        }
    }
    b = all;
    for (uint32_t peer = 0; peer < size; peer++) {
        for (uint32_t i = 0; i < TRANSFERS && peer != me; i++, b += 2) {
            check_fill(b->data, b->bytes, transfer_seed(peer, me, i), "transfer");
            free(b[0].data);
            free(b[1].data);
        }
    }
    free(all);
    return EEP_OK;
}

static void check_topology(uint32_t node_size)
{
    const struct eep_topology *topo = &xport->topo;
    const uint32_t k = node_size == 0 ? topo->size : node_size;

    CHECK(topo->nodes == (topo->size + k - 1) / k, "nodes %u", topo->nodes);
    CHECK(topo->node == topo->rank / k && topo->node_rank == topo->rank % k, "place");
    for (uint32_t r = 0; r < topo->size; r++) {
        CHECK(topo->node_of[r] == r / k, "node of rank %u", r);
    }
}

/* ---- exchanges ---- */

struct shape {
    uint32_t max_tokens, top_k;
    size_t x_row_bytes, y_row_bytes;
};

/* What one rank sends in one round. */
struct plan {
    uint32_t tokens;
    uint32_t *ranks, *slots;
};

enum pattern { RANDOM, ALL_TO_ONE, ONE_SENDS, NOBODY, SPARSE, OWN, DOUBLES, FULL, PATTERNS };

static uint32_t tokens_of(const struct shape *shape, uint32_t rank, uint64_t round, uint64_t seed)
{
    switch ((enum pattern)(round % PATTERNS)) {
    case ONE_SENDS:
        return rank == round / PATTERNS % xport->topo.size ? shape->max_tokens : 0;
    case NOBODY:
        return 0;
    case FULL:
    case ALL_TO_ONE:
        return shape->max_tokens;
    default:
        return (uint32_t)(draw(seed) % (shape->max_tokens + 1));
    }
}

static uint32_t rank_of(uint32_t rank, uint64_t round, uint32_t token, uint64_t seed)
{
    const uint32_t any = (uint32_t)(draw(seed) % xport->topo.size);

    switch ((enum pattern)(round % PATTERNS)) {
    case ALL_TO_ONE:
        return (uint32_t)(round / PATTERNS % xport->topo.size);
    case SPARSE:
        return draw(seed) % 3 == 0 ? any : EEP_NO_RANK;
    case OWN:
        return rank;
    case DOUBLES:
        return (rank + token) % xport->topo.size;
    default:
        return any;
    }
}

static void make_plan(const struct shape *shape, uint32_t rank, uint64_t round, struct plan *plan)
{
    const uint64_t seed = round * 1000 + rank;

    counter = 0;
    plan->tokens = tokens_of(shape, rank, round, seed);
    for (uint32_t t = 0; t < plan->tokens; t++) {
        for (uint32_t j = 0; j < shape->top_k; j++) {
            plan->ranks[t * shape->top_k + j] = rank_of(rank, round, t, seed);
            plan->slots[t * shape->top_k + j] = (uint32_t)(draw(seed) % SLOTS);
        }
    }
}

static void alloc_plan(const struct shape *shape, struct plan *plan)
{
    plan->ranks = malloc(sizeof(uint32_t) * shape->max_tokens * shape->top_k);
    plan->slots = malloc(sizeof(uint32_t) * shape->max_tokens * shape->top_k);
    CHECK(plan->ranks != NULL && plan->slots != NULL, "memory");
}

static void free_plan(struct plan *plan)
{
    free(plan->ranks);
    free(plan->slots);
}

static uint64_t row_seed(uint64_t round, uint32_t rank, uint32_t token, uint32_t j)
{
    return ((round * 64 + rank) * 100000 + token) * 64 + j;
}

/* All that has come here must be what all plans together say, in their order. */
static void check_received(const struct shape *shape, uint64_t round,
                           const struct eep_received *got, struct plan *plan)
{
    const unsigned char *x = got->x;
    uint32_t row = 0, pair = 0;

    for (uint32_t source = 0; source < xport->topo.size; source++) {
        make_plan(shape, source, round, plan);
        for (uint32_t t = 0; t < plan->tokens; t++) {
            const uint32_t before = pair;

            for (uint32_t j = 0; j < shape->top_k; j++) {
                const uint32_t i = t * shape->top_k + j;

                if (plan->ranks[i] != xport->topo.rank) {
                    continue;
                }
                CHECK(pair < got->pairs, "round %llu", (unsigned long long)round);
                CHECK(got->pair_row[pair] == row, "row %u", got->pair_row[pair]);
                CHECK(got->pair_slot[pair] == plan->slots[i], "slot %u", got->pair_slot[pair]);
                fill((unsigned char *)got->y + pair * shape->y_row_bytes, shape->y_row_bytes,
                     row_seed(round, source, t, 1 + j));
                pair++;
            }
            if (pair > before || source == xport->topo.rank) { /* own rows are all there */
                check_fill(x + row * shape->x_row_bytes, shape->x_row_bytes,
                           row_seed(round, source, t, 0), "received row");
                row++;
            }
        }
    }
    CHECK(row == got->rows && pair == got->pairs, "rows %u of %u, pairs %u of %u", got->rows, row,
          got->pairs, pair);
}

static void check_returned(const struct shape *shape, uint64_t round, const struct plan *plan,
                           const void **rows)
{
    for (uint32_t i = 0; i < plan->tokens * shape->top_k; i++) {
        if (plan->ranks[i] == EEP_NO_RANK) {
            CHECK(rows[i] == NULL, "pair %u", i);
        } else {
            CHECK(rows[i] != NULL, "pair %u", i);
            check_fill(rows[i], shape->y_row_bytes,
                       row_seed(round, xport->topo.rank, i / shape->top_k, 1 + i % shape->top_k),
                       "returned row");
        }
    }
}

static enum eep_status run_round(struct eep_exchange *exchange, const struct shape *shape,
                                 uint64_t round, struct plan *plan, const void **rows)
{
    unsigned char *x = xport->ops->exchange_rows(exchange);
    struct eep_received got;

    make_plan(shape, xport->topo.rank, round, plan);
    for (uint32_t t = 0; t < plan->tokens; t++) {
        fill(x + t * shape->x_row_bytes, shape->x_row_bytes,
             row_seed(round, xport->topo.rank, t, 0));
    }
    const struct eep_dispatch send = {plan->tokens, plan->ranks, plan->slots};
    EEP_TRY(xport->ops->dispatch(exchange, &send, &got));
    check_received(shape, round, &got, plan);
    EEP_TRY(xport->ops->combine(exchange, rows));
    make_plan(shape, xport->topo.rank, round, plan);
    check_returned(shape, round, plan, rows);
    return EEP_OK;
}

/* Now and then one rank is late, so that the others run into its flags from all sides. */
static void be_late(uint64_t round)
{
    if (eep_rng_bits(99, round) % 7 == 0 && round % xport->topo.size == xport->topo.rank) {
        usleep((useconds_t)(eep_rng_bits(98, round) % 4000));
    }
}

static enum eep_status test_shape(const struct shape *shape, uint64_t rounds)
{
    const struct eep_exchange_params params = {shape->max_tokens, shape->top_k, shape->x_row_bytes,
                                               shape->y_row_bytes};
    struct eep_exchange *exchanges[2];
    struct plan plan;
    const void **rows = malloc(sizeof(*rows) * shape->max_tokens * shape->top_k);

    CHECK(rows != NULL, "memory");
    alloc_plan(shape, &plan);
    EEP_TRY(xport->ops->exchange_open(xport, &params, &exchanges[0]));
    EEP_TRY(xport->ops->exchange_open(xport, &params, &exchanges[1]));
    for (uint64_t round = 0; round < rounds; round++) {
        be_late(round);
        EEP_TRY(run_round(exchanges[round % 5 == 3], shape, round, &plan, rows));
    }
    CHECK(xport->ops->exchange_bytes(exchanges[0]) > shape->max_tokens * shape->x_row_bytes,
          "exchange_bytes");
    xport->ops->exchange_close(exchanges[1]);
    xport->ops->exchange_close(exchanges[0]);
    free_plan(&plan);
    free((void *)rows);
    return EEP_OK;
}

static enum eep_status test_all(uint64_t rounds)
{
    static const struct shape shapes[] = {
        {1, 1, 64, 64}, {5, 2, 40, 128}, {33, 8, 256, 64}, {300, 4, 1000, 4096}, {64, 3, 8192, 64},
    };

    EEP_TRY(test_control());
    EEP_TRY(test_board());
    EEP_TRY(test_transfers());
    EEP_TRY(test_short_transfer());
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        EEP_TRY(test_shape(&shapes[i], i == 3 ? EEP_MIN(rounds, PATTERNS) : rounds));
    }
    return test_control();
}

/* ---- idle ---- */

static double cpu_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Rank 0 is late by 1.5 s for a control collective, then for a dispatch. */
static enum eep_status test_idle(void)
{
    const struct shape shape = {16, 4, 512, 512};
    const struct eep_exchange_params params = {shape.max_tokens, shape.top_k, shape.x_row_bytes,
                                               shape.y_row_bytes};
    struct eep_exchange *exchange;
    struct plan plan;
    const void *rows[64];
    uint32_t all[64];

    alloc_plan(&shape, &plan);
    EEP_TRY(xport->ops->exchange_open(xport, &params, &exchange));
    for (int turn = 0; turn < 2; turn++) {
        const double start = cpu_s();

        if (xport->topo.rank == 0) {
            usleep(1500000);
        }
        if (turn == 0) {
            EEP_TRY(xport->ops->allgather(xport, "idle", &xport->topo.rank, 4, all));
        } else {
            EEP_TRY(run_round(exchange, &shape, 0, &plan, rows));
        }
        CHECK(cpu_s() - start < 0.3, "%.2f s of a core in a wait of 1.5 s", cpu_s() - start);
    }
    xport->ops->exchange_close(exchange);
    free_plan(&plan);
    return EEP_OK;
}

static enum eep_status test_busy(uint64_t ms)
{
    const uint64_t start_ns = eep_clock_ns();
    uint32_t all[64];

    while (xport->topo.rank == 0 && eep_clock_ns() - start_ns < ms * EEP_NS_PER_MS) {
        counter++;
    }
    return xport->ops->allgather(xport, "busy", &xport->topo.rank, 4, all);
}

/* ---- losses ---- */

static void go(const char *how)
{
    printf("gone at %.6f\n", (double)eep_clock_ns() * 1e-9);
    (void)fflush(stdout);
    if (strcmp(how, "kill") == 0) {
        (void)raise(SIGKILL);
    } else if (strcmp(how, "stop") == 0) {
        (void)raise(SIGSTOP);
    } else if (strcmp(how, "crash") == 0) {
        (void)raise(SIGSEGV);
    } else if (strcmp(how, "exit") == 0) {
        exit(7);
    } else if (strcmp(how, "exit0") == 0) {
        exit(0);
    } else if (strcmp(how, "_exit") == 0) {
        _exit(7);
    } else if (strcmp(how, "_exit0") == 0) {
        _exit(0);
    }
}

/* Rounds of an exchange and a board; in round `last`, ranks first .. first + count - 1 go. */
static enum eep_status test_rounds(const struct shape *shape, const char *how, uint32_t first,
                                   uint32_t count, uint64_t last)
{
    const struct eep_exchange_params params = {shape->max_tokens, shape->top_k, shape->x_row_bytes,
                                               shape->y_row_bytes};
    const uint32_t rank = xport->topo.rank;
    struct eep_exchange *exchange = NULL;
    struct eep_board *board = NULL;
    enum eep_status status;
    struct plan plan;
    const void *rows[64];
    char text[EEP_ERROR_TEXT_MAX];
    uint64_t before;

    alloc_plan(shape, &plan);
    EEP_TRY_GOTO(xport->ops->board_open(xport, "test board", 8, &board), end);
    EEP_TRY_GOTO(xport->ops->exchange_open(xport, &params, &exchange), end);
    for (uint64_t round = 0; round < last + 1000000; round++) {
        if (round == last && rank >= first && rank < first + count) {
            if (strcmp(how, "fail") == 0) {
                return EEP_FAIL(EEP_ERR_NOMEM, "made to fail by the test");
            }
            go(how);
        }
        EEP_TRY_GOTO(xport->ops->board_add(board, 0, 1, &before), end);
        const enum eep_status outcome = run_round(exchange, shape, round, &plan, rows);
        if (outcome != EEP_OK) {
            snprintf(text, sizeof(text), "%s", eep_error_text());
            EEP_TRY_GOTO(xport->ops->board_add(board, 0, 1, &before), end); /* still works */
            eep_error_text_set(text);
            status = outcome;
            break;
        }
    }
end:
    xport->ops->exchange_close(exchange);
    xport->ops->board_close(board);
    free_plan(&plan);
    return status;
}

static enum eep_status test_loss(const char *how, uint32_t rank, uint64_t last)
{
    const struct shape shape = {16, 4, 512, 512};

    return test_rounds(&shape, how, rank, 1, last);
}

/* ---- going on after losses ---- */

static void check_times(void)
{
    const struct eep_loss_times *loss = &xport->loss;

    CHECK(loss->last_seen_ns <= loss->noticed_ns && loss->noticed_ns > 0 &&
              loss->noticed_ns <= loss->agreed_ns && loss->agreed_ns <= eep_clock_ns(),
          "times of a loss");
    if (xport->topo.rank == 0) {
        printf("noticed at %.6f, agreed %.1f ms later, recovered %.1f ms later\n",
               (double)loss->noticed_ns * 1e-9, (double)(loss->agreed_ns - loss->noticed_ns) * 1e-6,
               (double)(eep_clock_ns() - loss->noticed_ns) * 1e-6);
        (void)fflush(stdout);
    }
}

/* One rank after the other is lost, in turns of rounds, until one is left; or several at a time. */
static enum eep_status test_survive(const char *how, uint32_t at_a_time, uint64_t last,
                                    uint32_t left)
{
    const struct shape shape = {16, 4, 512, 512};
    uint32_t was[64];

    while (xport->topo.size > left) {
        const uint32_t before = xport->topo.size;
        const uint32_t dead = EEP_MIN(at_a_time, before - 1);
        const uint32_t first = (uint32_t)(eep_rng_bits(5, before) % (before - dead + 1));
        enum eep_status status = test_rounds(&shape, how, first, dead, last);

        if (status == EEP_ERR_NOMEM) {
            return status; /* made to fail */
        }
        CHECK(status == EEP_ERR_PEER_LOST, "status %d: %s", (int)status, eep_error_text());
        if (xport->topo.rank >= first && xport->topo.rank < first + dead) {
            go(how); /* it has seen the others' end before its own */
        }
        for (;;) {
            status = xport->ops->recover(xport, was);
            if (status == EEP_OK) {
                check_times();
            }
            /* Those that die together may be seen one after the other. */
            if (status == EEP_OK && xport->topo.size > before - dead) {
                status = test_rounds(&shape, "", 0, 0, last);
                CHECK(status == EEP_ERR_PEER_LOST, "status %d", (int)status);
            }
            if (status != EEP_ERR_PEER_LOST) {
                break;
            }
        }
        EEP_TRY(status);
        CHECK(xport->topo.size == before - dead, "%u ranks", xport->topo.size);
        for (uint32_t r = 0; r < xport->topo.size; r++) {
            CHECK(was[r] < before && (r == 0 || was[r] > was[r - 1]), "was %u", was[r]);
        }
        EEP_TRY(test_all(8));
    }
    return EEP_OK;
}

/* ---- changes of membership ---- */

#define PROCESSES_MAX 16u
#define LAST_STEP 1000000u

/* Who is to be a rank; also the message to those that join. */
struct members {
    uint32_t step; /* of the plan */
    uint32_t count;
    uint32_t origins[PROCESSES_MAX];
};

static struct {
    uint32_t me, processes;
    uint32_t victim, victim_us; /* processes: nobody */
    double ms_max, ms_sum;
    uint32_t changes;
} group;

/* What follows on each other: all, two, three with one of before, all others, all but one; in an
 * order that changes each time. */
static struct members plan_members(uint32_t step)
{
    struct members m = {.step = step};

    for (uint32_t i = 0; i < group.processes; i++) {
        const uint32_t turned = (i + step / 2) % group.processes;
        const uint32_t o = step % 2 == 0 ? turned : group.processes - 1 - turned;
        const bool in = step % 5 == 0   ? true
                        : step % 5 == 1 ? o == 1 || o == 3
                        : step % 5 == 2 ? o >= 1 && o <= 3
                        : step % 5 == 3 ? o % 2 == 0
                                        : o != step % group.processes;

        if (in) {
            m.origins[m.count++] = o;
        }
    }
    return m;
}

static bool has(const uint32_t *origins, uint32_t count, uint32_t origin)
{
    for (uint32_t i = 0; i < count; i++) {
        if (origins[i] == origin) {
            return true;
        }
    }
    return false;
}

static void die_later(uint32_t us)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    const struct itimerspec when = {
        .it_value = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 + 1}};
    timer_t timer;

    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
              timer_settime(timer, 0, &when, NULL) == 0,
          "timer");
}

static enum eep_status change(const struct members *m)
{
    const uint64_t begin_ns = eep_clock_ns();

    if (group.me == group.victim) {
        die_later(group.victim_us);
        group.victim = group.processes;
    }
    EEP_TRY(xport->ops->regroup(xport, m->origins, m->count));
    const double ms = (double)(eep_clock_ns() - begin_ns) * 1e-6;
    group.ms_max = EEP_MAX(group.ms_max, ms);
    group.ms_sum += ms;
    group.changes++;
    CHECK((xport->topo.rank != EEP_NO_RANK) == has(m->origins, m->count, group.me), "place");
    if (xport->topo.rank != EEP_NO_RANK) {
        CHECK(xport->topo.size == m->count &&
                  memcmp(xport->topo.origin_of, m->origins, m->count * sizeof(uint32_t)) == 0 &&
                  m->origins[xport->topo.rank] == group.me,
              "%u ranks", xport->topo.size);
    } else {
        CHECK(xport->topo.size == 0, "%u ranks", xport->topo.size);
    }
    return EEP_OK;
}

/* Rank 0 calls those that join; all change. */
static enum eep_status call_and_change(const struct members *m)
{
    const struct eep_topology *topo = &xport->topo;

    for (uint32_t i = 0; i < m->count && topo->rank == 0; i++) {
        if (!has(topo->origin_of, topo->size, m->origins[i])) {
            (void)xport->ops->roster_send(xport, m->origins[i], m, sizeof(*m));
        }
    }
    return change(m);
}

static enum eep_status work_a_little(void)
{
    const struct shape shape = {33, 8, 256, 64};

    EEP_TRY(test_control());
    EEP_TRY(test_board());
    return test_shape(&shape, 9);
}

/* Until this process is a rank, or the job ends. */
static enum eep_status be_parked(uint32_t *step_out)
{
    unsigned char note[EEP_ROSTER_BYTES_MAX];
    struct members m;
    uint32_t from;
    size_t bytes;

    while (xport->topo.rank == EEP_NO_RANK) {
        enum eep_status status = xport->ops->roster_wait(xport, 30 * EEP_NS_PER_S);

        if (status != EEP_OK) {
            return status;
        }
        CHECK(xport->ops->roster_take(xport, &from, note, sizeof(note), &bytes), "no message");
        CHECK(bytes == sizeof(m), "%zu bytes", bytes);
        memcpy(&m, note, sizeof(m));
        status = change(&m);
        if (status != EEP_OK && (status != EEP_ERR_PEER_LOST || xport->topo.rank != EEP_NO_RANK)) {
            return status;
        }
        *step_out = m.step;
    }
    return EEP_OK;
}

/* After a loss: those that are left, then all that live. */
static enum eep_status regroup_after_loss(uint32_t victim)
{
    struct members m = {.step = LAST_STEP};
    enum eep_status status = EEP_ERR_PEER_LOST;
    uint32_t was[PROCESSES_MAX];

    while (status == EEP_ERR_PEER_LOST) {
        status = xport->ops->recover(xport, was);
        if (status == EEP_OK) {
            status = work_a_little();
        }
    }
    EEP_TRY(status);
    CHECK(!has(xport->topo.origin_of, xport->topo.size, victim), "the dead is a rank");
    for (uint32_t o = 0; o < group.processes; o++) {
        if (o != victim) {
            m.origins[m.count++] = o;
        }
    }
    return call_and_change(&m);
}

static enum eep_status take_turns(uint32_t steps)
{
    enum eep_status status = xport->topo.rank != EEP_NO_RANK ? work_a_little() : EEP_OK;

    for (uint32_t step = 0; step < steps && status == EEP_OK; step++) {
        if (xport->topo.rank == EEP_NO_RANK) {
            status = be_parked(&step);
        } else {
            const struct members m = plan_members(step);

            status = call_and_change(&m);
        }
        if (status == EEP_OK && xport->topo.rank != EEP_NO_RANK) {
            status = work_a_little();
        }
    }
    return status;
}

static uint32_t from_environment(const char *name)
{
    const char *text = getenv(name);

    CHECK(text != NULL, "no %s", name);
    return (uint32_t)atoi(text);
}

static enum eep_status test_regroup(int argc, char **argv)
{
    enum eep_status status;
    uint32_t step;

    group.me = from_environment("OMPI_COMM_WORLD_RANK");
    group.processes = from_environment("OMPI_COMM_WORLD_SIZE");
    const uint32_t victim = argc > 5 ? (uint32_t)atoi(argv[4]) : group.processes;
    group.victim = victim;
    group.victim_us = argc > 5 ? (uint32_t)atoi(argv[5]) : 0;
    status = take_turns((uint32_t)atoi(argv[3]));

    if (status == EEP_ERR_PEER_LOST && victim < group.processes &&
        xport->topo.rank != EEP_NO_RANK) {
        status = regroup_after_loss(victim);
        if (status == EEP_OK) {
            status = work_a_little();
        }
    }
    if (status == EEP_OK && xport->topo.rank == EEP_NO_RANK) {
        status = be_parked(&step); /* to the end */
    }
    if (status == EEP_OK && xport->topo.rank == 0) {
        printf("regrouped %u times: %.1f ms, at most %.1f ms\n", group.changes,
               group.ms_sum / EEP_MAX(group.changes, 1u), group.ms_max);
    }
    return status == EEP_ERR_REVOKED ? EEP_OK : status;
}

/* ---- processes that do not come ---- */

#define ANSWER_NS (EEP_NS_PER_S / 2)

/* All but the absent one try to be together with it, which fails in time; then go on as before. */
static enum eep_status change_in_vain(const struct members *m)
{
    const uint64_t begin_ns = eep_clock_ns();
    const uint32_t rank = xport->topo.rank, size = xport->topo.size;
    const enum eep_status status = xport->ops->regroup(xport, m->origins, m->count);
    const double ms = (double)(eep_clock_ns() - begin_ns) * 1e-6;

    CHECK(status == EEP_ERR_TIMEOUT, "status %d", (int)status);
    CHECK(ms < 900, "%.0f ms", ms);
    CHECK(xport->topo.rank == rank && xport->topo.size == size, "rank %u", xport->topo.rank);
    return EEP_OK;
}

static void send_note(uint32_t origin, const void *data, size_t bytes)
{
    CHECK(xport->ops->roster_send(xport, origin, data, bytes) == EEP_OK, "process %u", origin);
}

/* The next message, which must be this one's. */
static void receive_note(uint32_t origin, void *data, size_t size)
{
    unsigned char note[EEP_ROSTER_BYTES_MAX];
    uint32_t from = EEP_NO_RANK;
    size_t bytes = 0;

    CHECK(xport->ops->roster_wait(xport, 10 * EEP_NS_PER_S) == EEP_OK, "%s", eep_error_text());
    CHECK(xport->ops->roster_take(xport, &from, note, sizeof(note), &bytes) && from == origin &&
              bytes == size,
          "%zu bytes of process %u", bytes, from);
    memcpy(data, note, size);
}

/* How long until the process is known to be dead, in ms. */
static double kill_parked(uint32_t origin, pid_t process)
{
    const uint64_t begin_ns = eep_clock_ns();
    unsigned char note[EEP_ROSTER_BYTES_MAX];
    uint32_t from;
    size_t bytes;

    CHECK(kill(process, SIGKILL) == 0, "kill");
    while (!xport->ops->roster_lost(xport, origin)) {
        CHECK(eep_clock_ns() - begin_ns < 5 * EEP_NS_PER_S, "its death is not told");
        CHECK(!xport->ops->roster_take(xport, &from, note, sizeof(note), &bytes), "a message");
        usleep(500);
    }
    return (double)(eep_clock_ns() - begin_ns) * 1e-6;
}

static void time_take(void)
{
    unsigned char note[EEP_ROSTER_BYTES_MAX];
    const uint64_t begin_ns = eep_clock_ns();
    const int times = 1000;
    uint32_t from;
    size_t bytes;

    for (int i = 0; i < times; i++) {
        CHECK(!xport->ops->roster_take(xport, &from, note, sizeof(note), &bytes), "a message");
    }
    printf("looking for a message takes %.2f us\n",
           (double)(eep_clock_ns() - begin_ns) * 1e-3 / times);
}

static enum eep_status be_rank_without(const struct members *all, const struct members *three)
{
    unsigned char note[EEP_ROSTER_BYTES_MAX];
    uint32_t together[64];
    pid_t stopped = 0;

    if (xport->topo.rank == 0) {
        receive_note(2, note, sizeof(note));
        check_fill(note, sizeof(note), 77, "message");
        receive_note(3, &stopped, sizeof(stopped));
        usleep(100000);
        time_take();
        send_note(2, all, sizeof(*all));
    }
    EEP_TRY(xport->ops->allgather(xport, "together", &xport->topo.rank, 4, together));
    EEP_TRY(change_in_vain(all));
    EEP_TRY(work_a_little());
    EEP_TRY(change_in_vain(all)); /* the joiner does not come either */
    EEP_TRY(work_a_little());
    if (xport->topo.rank == 0) {
        CHECK(!xport->ops->roster_lost(xport, 3), "it lives");
        printf("a death is known after %.1f ms\n", kill_parked(3, stopped));
        CHECK(xport->ops->roster_send(xport, 3, all, 8) == EEP_ERR_PEER_LOST, "sent to the dead");
        send_note(2, three, sizeof(*three));
    }
    EEP_TRY(xport->ops->allgather(xport, "together", &xport->topo.rank, 4, together));
    EEP_TRY(change(three));
    return work_a_little();
}

static enum eep_status test_absent(void)
{
    static const struct members all = {0, 4, {0, 1, 2, 3}}, three = {1, 3, {2, 0, 1}};
    unsigned char note[EEP_ROSTER_BYTES_MAX];
    const pid_t me = getpid();
    struct members m;

    group.me = from_environment("OMPI_COMM_WORLD_RANK");
    group.victim = group.processes = 4;
    if (xport->topo.rank != EEP_NO_RANK) {
        return be_rank_without(&all, &three);
    }
    if (group.me == 3) {
        send_note(0, &me, sizeof(me));
        usleep(20000);
        (void)raise(SIGSTOP); /* for ever */
    }
    fill(note, sizeof(note), 77);
    send_note(0, note, sizeof(note));
    receive_note(0, &m, sizeof(m));
    EEP_TRY(change_in_vain(&m));
    receive_note(0, &m, sizeof(m)); /* the second attempt is waited out in there */
    EEP_TRY(change(&m));
    return work_a_little();
}

int main(int argc, char **argv)
{
    const bool regroup = argc > 3 && strcmp(argv[1], "regroup") == 0;
    const bool absent = argc > 1 && strcmp(argv[1], "absent") == 0;
    const struct eep_world_params params = {.active = regroup  ? (uint32_t)atoi(argv[2])
                                                      : absent ? 2
                                                               : 0,
                                            .answer_ns = absent ? ANSWER_NS : 0};
    const char *node_size = getenv("EEP_NODE_SIZE");
    enum eep_status status = eep_world_open(&params, &xport);

    if (status != EEP_OK) {
        eep_log(EEP_LOG_ERROR, "%s", eep_error_text());
        return 1;
    }
    if (!regroup && !absent) {
        check_topology(node_size != NULL ? (uint32_t)atoi(node_size) : 0);
    }
    status = regroup                                    ? test_regroup(argc, argv)
             : absent                                   ? test_absent()
             : argc > 1 && strcmp(argv[1], "idle") == 0 ? test_idle()
             : argc > 2 && strcmp(argv[1], "busy") == 0 ? test_busy((uint64_t)atoll(argv[2]))
             : argc > 4 ? test_survive(argv[2], (uint32_t)atoi(argv[3]), (uint64_t)atoll(argv[4]),
                                       argc > 5 ? (uint32_t)atoi(argv[5]) : 1)
             : argc > 3 ? test_loss(argv[1], (uint32_t)atoi(argv[2]), (uint64_t)atoll(argv[3]))
                        : test_all(argc > 1 ? (uint64_t)atoll(argv[1]) : 40);
    if (status != EEP_OK) {
        eep_log(EEP_LOG_ERROR, "%s", eep_error_text());
    } else if (xport->topo.rank == 0) {
        printf("ok: %u ranks, %u nodes\n", xport->topo.size, xport->topo.nodes);
    }
    xport->ops->close(xport, status);
    return status == EEP_OK ? 0 : 1;
}
