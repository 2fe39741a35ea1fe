/*
 * `eep bench dispatch`: dispatch and combine beside MPI_Alltoallv of the same bytes and beside
 * plain copies of them into shared memory, in one run with rounds in turn.
 *
 * Every rank has `tokens` rows of BF16 and sends each to the ranks of top_k random distinct
 * experts, one row per (token, rank); one row per (token, expert) comes back and is summed in top-k
 * order.
 *
 *     eep        dispatch: lists, flags, rows             combine: flag, sum from where rows are
 *     alltoallv  MPI_Alltoallv of rows packed before      MPI_Alltoallv back, then the sum
 *     copy       barrier, memcpy of rows packed before    the same back, then the sum
 *                into the receivers' windows, barrier
 *
 * What the others need besides - counts, lists of slots, packing - is not in their time, but is in
 * eep's. `both` runs dispatch and combine one after the other, without experts between; `bare`
 * times of the others leave out the sum. Before each timed call the rows to send are written anew,
 * and after each dispatch the rows received are read, as layers would, so that caches hold what
 * they would hold. The time is that of the slowest rank.
 */
#include "tools/bench.h"

#include <jansson.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "tools/opts.h"
#include "tools/tools.h"
#include "xport/peers.h"

#define MAX_REPEATS 10000u

static const struct eep_command_help help = {
    .usage = "eep bench dispatch [options]",
    .summary = "Dispatch and combine of BF16 tokens beside MPI_Alltoallv and plain copies of the\n"
               "same bytes. Run it with mpirun, scripts/mpi-run or eep launch.",
    .epilog =
        "With --json one object per shape and part (dispatch, combine, both): best and median\n"
        "times of the slowest rank in us, and eep's share of the others'. The sum in top-k\n"
        "order is in combine and both, except in the others' bare times.",
};

struct options {
    const char *shape;
    uint32_t experts, top_k, repeats, threads;
    const char *kernels;
    bool json;
};

struct shape {
    uint32_t tokens, hidden;
};

enum way { EEP, ALLTOALLV, COPY, WAYS };
enum part { DISPATCH, COMBINE, BOTH, PARTS };

static const char *const part_names[PARTS] = {"dispatch", "combine", "both"};

/* Times of one way and part, (repeats) each, seconds. */
struct times {
    double *all;
    double *bare; /* without the sum */
};

struct bench {
    struct eep_xport *xport;
    const struct eep_kernels *kernels;
    const struct options *o;
    struct shape shape;
    size_t row_bytes;
    size_t pairs;     /* tokens * top_k */
    uint32_t repeats; /* timed rounds */
    uint32_t *ranks, *slots;
    float *weights;
    struct eep_exchange *exchange;
    struct eep_peers *peers; /* NULL: nothing to compare with */
    uint32_t *counts;        /* (4, size): rows out and in, rows back out and in */
    struct eep_received received;
    const void **rows[WAYS]; /* (pairs): rows to sum */
    float *out[WAYS];        /* (tokens, hidden) */
    uint16_t *fresh;         /* a row to write anew from */
    struct times times[WAYS][PARTS];
    double *gather; /* (size) */
    volatile uint64_t read_sum;
    uint64_t bytes; /* most that a rank sends: rows out and back */
};

/* ---- traffic ---- */

static void choose_routes(struct bench *b)
{
    const uint32_t top_k = b->o->top_k, size = b->xport->topo.size;
    uint64_t counter = 0;

    for (uint32_t t = 0; t < b->shape.tokens; t++) {
        uint32_t *slots = b->slots + (size_t)t * top_k;

        for (uint32_t j = 0; j < top_k;) {
            const uint32_t expert =
                (uint32_t)(eep_rng_bits(77 + b->xport->topo.rank, counter++) % b->o->experts);
            bool used = false;

            for (uint32_t i = 0; i < j; i++) {
                used = used || slots[i] == expert;
            }
            if (!used) {
                b->ranks[(size_t)t * top_k + j] =
                    (uint32_t)((uint64_t)expert * size / b->o->experts);
                slots[j++] = expert;
            }
        }
    }
    for (size_t i = 0; i < b->pairs; i++) {
        b->weights[i] = (float)eep_rng_uniform(5, i);
    }
}

static void count_traffic(struct bench *b)
{
    const uint32_t size = b->xport->topo.size, top_k = b->o->top_k;
    uint32_t *out = b->counts, *back = b->counts + 2 * (size_t)size;

    memset(b->counts, 0, 4 * (size_t)size * sizeof(uint32_t));
    for (uint32_t t = 0; t < b->shape.tokens; t++) {
        for (uint32_t r = 0; r < size; r++) {
            uint32_t pairs = 0;

            for (uint32_t j = 0; j < top_k; j++) {
                pairs += b->ranks[(size_t)t * top_k + j] == r;
            }
            out[r] += pairs > 0;
            back[r] += pairs;
        }
    }
}

/* What each rank sends here, and what is to go back: the transpose of all ranks' counts. */
static enum eep_status transpose_traffic(struct bench *b)
{
    const struct eep_topology *topo = &b->xport->topo;
    const size_t size = topo->size;
    uint32_t *all;

    EEP_TRY(eep_mem_alloc(4 * size * size, sizeof(*all), "bench", &all));
    EEP_TRY(b->xport->ops->allgather(b->xport, "bench", b->counts, 4 * size * sizeof(*all), all));
    for (size_t r = 0; r < size; r++) {
        const uint32_t *theirs = all + 4 * size * r;
        uint64_t bytes = 0;

        b->counts[size + r] = theirs[topo->rank];
        b->counts[3 * size + r] = theirs[2 * size + topo->rank];
        for (size_t to = 0; to < size; to++) {
            bytes += ((uint64_t)theirs[to] + theirs[2 * size + to]) * b->row_bytes;
        }
        b->bytes = EEP_MAX(b->bytes, bytes);
    }
    eep_mem_free(all);
    return EEP_OK;
}

/* Where each (token, top-k position) finds its row among those that came back packed by rank. */
static void point_rows(struct bench *b, enum way way, const unsigned char *packed)
{
    size_t start = 0;

    for (uint32_t r = 0; r < b->xport->topo.size; r++) {
        for (size_t i = 0; i < b->pairs; i++) {
            if (b->ranks[i] == r) {
                b->rows[way][i] = packed + start++ * b->row_bytes;
            }
        }
    }
}

/* ---- rows ---- */

static uint16_t number(uint64_t seed, uint64_t i)
{
    return eep_f32_to_bf16((float)eep_rng_uniform(seed, i) - 0.5F);
}

/* Write `count` rows anew: the same bytes each time, row i from place i % 61 of `fresh`. */
static void write_rows(const struct bench *b, void *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        memcpy((unsigned char *)to + i * b->row_bytes, b->fresh + i % 61, b->row_bytes);
    }
}

static size_t sum_counts(const struct bench *b, int which)
{
    const uint32_t size = b->xport->topo.size;
    size_t sum = 0;

    for (uint32_t r = 0; r < size; r++) {
        sum += b->counts[(size_t)which * size + r];
    }
    return sum;
}

static void write_out(const struct bench *b, enum way way)
{
    if (way == EEP) {
        write_rows(b, b->xport->ops->exchange_rows(b->exchange), b->shape.tokens);
    } else {
        write_rows(b, eep_peers_send_rows(b->peers, (enum eep_peers_way)(way - ALLTOALLV), false),
                   sum_counts(b, 0));
    }
}

/* eep's y rows may be written after a dispatch only. */
static void write_back(const struct bench *b, enum way way)
{
    if (way == EEP) {
        write_rows(b, b->received.y, b->received.pairs);
    } else {
        write_rows(b, eep_peers_send_rows(b->peers, (enum eep_peers_way)(way - ALLTOALLV), true),
                   sum_counts(b, 3));
    }
}

/* Read what has come, a number per cache line, as experts would: else copies into another rank's
 * memory would find their lines still in the writer's own cache. */
static void read_rows(struct bench *b, enum way way)
{
    const unsigned char *rows = b->received.x;
    size_t bytes = b->received.rows * b->row_bytes;
    uint64_t sum = 0;

    if (way != EEP) {
        rows = eep_peers_received_rows(b->peers, (enum eep_peers_way)(way - ALLTOALLV), false);
        bytes = sum_counts(b, 1) * b->row_bytes;
    }
    for (size_t i = 0; i < bytes; i += EEP_CACHE_LINE) {
        sum += rows[i];
    }
    b->read_sum += sum;
}

/* ---- one call ---- */

static enum eep_status dispatch(struct bench *b, enum way way)
{
    const struct eep_dispatch send = {b->shape.tokens, b->ranks, b->slots};

    if (way == EEP) {
        return b->xport->ops->dispatch(b->exchange, &send, &b->received);
    }
    if (way == COPY) {
        EEP_TRY(eep_peers_barrier(b->peers));
    }
    return eep_peers_move(b->peers, (enum eep_peers_way)(way - ALLTOALLV), false);
}

static enum eep_status combine(struct bench *b, enum way way, double *bare_out)
{
    const uint64_t start = eep_clock_ns();

    if (way == EEP) {
        EEP_TRY(b->xport->ops->combine(b->exchange, b->rows[EEP]));
    } else {
        if (way == COPY) {
            EEP_TRY(eep_peers_barrier(b->peers));
        }
        EEP_TRY(eep_peers_move(b->peers, (enum eep_peers_way)(way - ALLTOALLV), true));
    }
    *bare_out = (double)(eep_clock_ns() - start) * 1e-9;
    b->kernels->weighted_sum(EEP_BF16, b->rows[way], b->weights, b->shape.tokens, b->o->top_k,
                             b->shape.hidden, b->out[way], eep_panel_round(b->shape.hidden));
    return EEP_OK;
}

static enum eep_status line_up(struct bench *b)
{
    unsigned char none = 0;

    return b->peers != NULL ? eep_peers_barrier(b->peers)
                            : b->xport->ops->allgather(b->xport, "bench", &none, 0, b->gather);
}

/* The slowest rank's time. */
static enum eep_status slowest(struct bench *b, double *seconds)
{
    EEP_TRY(b->xport->ops->allgather(b->xport, "bench", seconds, sizeof(*seconds), b->gather));
    for (uint32_t r = 0; r < b->xport->topo.size; r++) {
        *seconds = EEP_MAX(*seconds, b->gather[r]);
    }
    return EEP_OK;
}

static enum eep_status keep(struct bench *b, enum way way, enum part part, int round, double all,
                            double bare)
{
    EEP_TRY(slowest(b, &all));
    EEP_TRY(slowest(b, &bare));
    if (round >= 0) {
        b->times[way][part].all[round] = all;
        b->times[way][part].bare[round] = bare;
    }
    return EEP_OK;
}

/* Dispatch and combine timed apart, then together. Rounds below zero warm up. */
static enum eep_status run_way(struct bench *b, enum way way, int round)
{
    double bare = 0;

    write_out(b, way);
    EEP_TRY(line_up(b));
    uint64_t start = eep_clock_ns();
    EEP_TRY(dispatch(b, way));
    const double out_s = (double)(eep_clock_ns() - start) * 1e-9;
    read_rows(b, way);
    write_back(b, way);
    EEP_TRY(keep(b, way, DISPATCH, round, out_s, out_s));
    EEP_TRY(line_up(b));
    start = eep_clock_ns();
    EEP_TRY(combine(b, way, &bare));
    EEP_TRY(keep(b, way, COMBINE, round, (double)(eep_clock_ns() - start) * 1e-9, bare));

    write_out(b, way);
    EEP_TRY(line_up(b));
    start = eep_clock_ns();
    EEP_TRY(dispatch(b, way));
    const double middle = (double)(eep_clock_ns() - start) * 1e-9;
    EEP_TRY(combine(b, way, &bare));
    const double all = (double)(eep_clock_ns() - start) * 1e-9;
    read_rows(b, way);
    return keep(b, way, BOTH, round, all, middle + bare);
}

/* All ways must have summed the same rows. */
static enum eep_status compare(const struct bench *b, enum way way)
{
    const size_t stride = eep_panel_round(b->shape.hidden);

    for (size_t t = 0; t < b->shape.tokens; t++) {
        if (memcmp(b->out[EEP] + t * stride, b->out[way] + t * stride,
                   b->shape.hidden * sizeof(float)) != 0) {
            return EEP_FAIL(EEP_ERR_FATAL, "bench dispatch: the sums of token %zu differ", t);
        }
    }
    return EEP_OK;
}

/* ---- set-up ---- */

static bool has_way(const struct bench *b, enum way way)
{
    return way == EEP || (b->peers != NULL && (way == ALLTOALLV || b->xport->topo.nodes == 1));
}

static enum eep_status alloc_times(struct bench *b)
{
    for (int way = 0; way < WAYS; way++) {
        for (int part = 0; part < PARTS; part++) {
            struct times *times = &b->times[way][part];

            EEP_TRY(eep_mem_alloc(2 * (size_t)b->repeats, sizeof(double), "bench", &times->all));
            times->bare = times->all + b->repeats;
        }
    }
    return EEP_OK;
}

static enum eep_status alloc_buffers(struct bench *b)
{
    const size_t size = b->xport->topo.size;
    const size_t row_elements = b->shape.hidden;

    EEP_TRY(alloc_times(b));
    EEP_TRY(eep_mem_alloc(b->pairs, sizeof(uint32_t), "bench", &b->ranks));
    EEP_TRY(eep_mem_alloc(b->pairs, sizeof(uint32_t), "bench", &b->slots));
    EEP_TRY(eep_mem_alloc(b->pairs, sizeof(float), "bench", &b->weights));
    EEP_TRY(eep_mem_alloc(4 * size, sizeof(uint32_t), "bench", &b->counts));
    EEP_TRY(eep_mem_alloc(size, sizeof(double), "bench", &b->gather));
    EEP_TRY(eep_mem_alloc(row_elements + 61, sizeof(uint16_t), "bench", &b->fresh));
    for (size_t i = 0; i < row_elements + 61; i++) {
        b->fresh[i] = number(9, i);
    }
    for (int way = 0; way < WAYS; way++) {
        EEP_TRY(eep_mem_alloc(b->pairs, sizeof(void *), "bench", &b->rows[way]));
        EEP_TRY(eep_mem_alloc((size_t)b->shape.tokens * eep_panel_round(b->shape.hidden),
                              sizeof(float), "bench sums", &b->out[way]));
    }
    return EEP_OK;
}

static enum eep_status open_ways(struct bench *b)
{
    const struct eep_exchange_params params = {.max_tokens = b->shape.tokens,
                                               .top_k = b->o->top_k,
                                               .x_row_bytes = b->row_bytes,
                                               .y_row_bytes = b->row_bytes};
    const uint32_t size = b->xport->topo.size;
    const struct eep_peers_traffic traffic = {.out_rows = b->counts,
                                              .in_rows = b->counts + size,
                                              .out_back = b->counts + 3 * (size_t)size,
                                              .in_back = b->counts + 2 * (size_t)size,
                                              .x_row_bytes = b->row_bytes,
                                              .y_row_bytes = b->row_bytes};

    EEP_TRY(b->xport->ops->exchange_open(b->xport, &params, &b->exchange));
    const enum eep_status status = eep_peers_open(b->xport, &traffic, &b->peers);
    if (status == EEP_ERR_UNSUPPORTED) {
        return EEP_OK;
    }
    EEP_TRY(status);
    for (enum way way = ALLTOALLV; way < WAYS; way++) {
        if (has_way(b, way)) {
            point_rows(
                b, way,
                eep_peers_received_rows(b->peers, (enum eep_peers_way)(way - ALLTOALLV), true));
        }
    }
    return EEP_OK;
}

static void close_bench(struct bench *b)
{
    eep_peers_close(b->peers);
    if (b->exchange != NULL) {
        b->xport->ops->exchange_close(b->exchange);
    }
    for (int way = 0; way < WAYS; way++) {
        eep_mem_free((void *)b->rows[way]);
        eep_mem_free(b->out[way]);
        for (int part = 0; part < PARTS; part++) {
            eep_mem_free(b->times[way][part].all);
        }
    }
    eep_mem_free(b->fresh);
    eep_mem_free(b->gather);
    eep_mem_free(b->counts);
    eep_mem_free(b->weights);
    eep_mem_free(b->slots);
    eep_mem_free(b->ranks);
}

/* ---- results ---- */

struct summary {
    double best, median; /* us */
};

static struct summary summarize(double *seconds, uint32_t count)
{
    eep_bench_sort(seconds, count);
    return (struct summary){seconds[0] * 1e6, seconds[count / 2] * 1e6};
}

static void set_pair(json_t *row, const char *name, struct summary s)
{
    char key[64];

    snprintf(key, sizeof(key), "%s_us", name);
    json_object_set_new(row, key, json_real(s.best));
    snprintf(key, sizeof(key), "%s_us_median", name);
    json_object_set_new(row, key, json_real(s.median));
}

static void set_ratio(json_t *row, const char *name, struct summary mine, struct summary theirs)
{
    char key[64];

    snprintf(key, sizeof(key), "ratio_%s", name);
    json_object_set_new(row, key, json_real(mine.best / theirs.best));
    snprintf(key, sizeof(key), "ratio_%s_median", name);
    json_object_set_new(row, key, json_real(mine.median / theirs.median));
}

static void print_json(const struct bench *b, enum part part, const struct summary *all,
                       const struct summary *bare)
{
    static const char *const names[WAYS] = {"eep", "alltoallv", "copy"};
    json_t *row =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:s, s:I, s:i}", "bench", "dispatch",
                  "ranks", (int)b->xport->topo.size, "nodes", (int)b->xport->topo.nodes, "tokens",
                  (int)b->shape.tokens, "hidden", (int)b->shape.hidden, "dtype", "BF16", "experts",
                  (int)b->o->experts, "top_k", (int)b->o->top_k, "part", part_names[part], "bytes",
                  (json_int_t)b->bytes, "repeats", (int)b->repeats);

    json_object_set_new(row, "us", json_real(all[EEP].best));
    json_object_set_new(row, "us_median", json_real(all[EEP].median));
    for (enum way way = ALLTOALLV; way < WAYS; way++) {
        char name[32];

        if (!has_way(b, way)) {
            continue;
        }
        set_pair(row, names[way], all[way]);
        set_ratio(row, names[way], all[EEP], all[way]);
        if (part != DISPATCH) {
            snprintf(name, sizeof(name), "%s_bare", names[way]);
            set_pair(row, name, bare[way]);
        }
    }
    json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(5));
    printf("\n");
    json_decref(row);
}

static void print_text(const struct bench *b, enum part part, const struct summary *all,
                       const struct summary *bare)
{
    static const char *const names[WAYS] = {"eep", "alltoallv", "copy"};

    printf("%u ranks  %5u x %-5u %-9s", b->xport->topo.size, b->shape.tokens, b->shape.hidden,
           part_names[part]);
    for (enum way way = EEP; way < WAYS; way++) {
        if (has_way(b, way)) {
            printf("  %s %.1f (%.1f) us", names[way], all[way].best, all[way].median);
        }
        if (way != EEP && has_way(b, way)) {
            printf(" = x%.2f (x%.2f)", all[EEP].best / all[way].best,
                   all[EEP].median / all[way].median);
        }
        if (way != EEP && has_way(b, way) && part != DISPATCH) {
            printf(" bare %.1f (%.1f)", bare[way].best, bare[way].median);
        }
    }
    printf("\n");
}

static void report(struct bench *b)
{
    for (enum part part = DISPATCH; part < PARTS; part++) {
        struct summary all[WAYS], bare[WAYS];

        for (enum way way = EEP; way < WAYS; way++) {
            all[way] = summarize(b->times[way][part].all, b->repeats);
            bare[way] = summarize(b->times[way][part].bare, b->repeats);
        }
        (b->o->json ? print_json : print_text)(b, part, all, bare);
    }
    fflush(stdout);
}

/* ---- a shape ---- */

static uint32_t default_repeats(const struct bench *b)
{
    const double bytes = (double)b->pairs * (double)b->row_bytes;

    return bytes > 64e6 ? 11 : bytes > 4e6 ? 51 : 301;
}

static enum eep_status run_rounds(struct bench *b)
{
    const int warm_up = b->repeats > 20 ? 10 : 2;

    for (int round = -warm_up; round < (int)b->repeats; round++) {
        for (enum way way = EEP; way < WAYS; way++) {
            if (has_way(b, way)) {
                EEP_TRY(run_way(b, way, round));
            }
        }
    }
    return EEP_OK;
}

static enum eep_status run_shape(struct bench *b)
{
    b->row_bytes = (size_t)b->shape.hidden * sizeof(uint16_t);
    b->pairs = (size_t)b->shape.tokens * b->o->top_k;
    b->repeats = b->o->repeats > 0 ? b->o->repeats : default_repeats(b);
    EEP_TRY(alloc_buffers(b));
    choose_routes(b);
    count_traffic(b);
    EEP_TRY(transpose_traffic(b));
    EEP_TRY(open_ways(b));
    EEP_TRY(run_rounds(b));
    for (enum way way = ALLTOALLV; way < WAYS; way++) {
        if (has_way(b, way)) {
            EEP_TRY(compare(b, way));
        }
    }
    if (b->xport->topo.rank == 0) {
        report(b);
    }
    return EEP_OK;
}

/* ---- the command ---- */

static bool parse_shape(const char *text, struct shape *shape_out)
{
    char rest;

    return sscanf(text, "%ux%u%c", &shape_out->tokens, &shape_out->hidden, &rest) == 2 &&
           shape_out->tokens > 0 && shape_out->hidden > 0 && shape_out->tokens <= 1000000 &&
           shape_out->hidden <= 1000000 && shape_out->hidden % 32 == 0;
}

static void set_threads(const struct options *o)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const int ranks = local != NULL ? atoi(local) : 1;
    const int share = omp_get_num_procs() / EEP_MAX(ranks, 1);

    omp_set_num_threads(o->threads > 0 ? (int)o->threads : EEP_MAX(share, 1));
}

static enum eep_status run_shapes(const struct options *o, struct eep_xport *xport)
{
    struct shape shapes[3] = {{128, 7168}, {8, 2048}, {4096, 2048}};
    size_t count = 3;
    enum eep_status status = EEP_OK;

    if (o->shape != NULL && parse_shape(o->shape, &shapes[0])) {
        count = 1;
    }
    for (size_t i = 0; i < count && status == EEP_OK; i++) {
        struct bench b = {.xport = xport, .o = o, .shape = shapes[i]};

        status = eep_kernels_find(o->kernels, &b.kernels);
        if (status == EEP_OK) {
            status = run_shape(&b);
        }
        close_bench(&b);
    }
    return status;
}

static int check(const struct options *o)
{
    struct shape shape;

    if (o->shape != NULL && !parse_shape(o->shape, &shape)) {
        return eep_opts_wrong(&help, "--shape is '%s'; give TOKENSxHIDDEN, HIDDEN a multiple of 32",
                              o->shape);
    }
    if (o->top_k == 0 || o->top_k > o->experts) {
        return eep_opts_wrong(&help, "--top-k %u of --experts %u", o->top_k, o->experts);
    }
    if (o->repeats > MAX_REPEATS) {
        return eep_opts_wrong(&help, "--repeats is at most %u", MAX_REPEATS);
    }
    return EEP_EXIT_OK;
}

int eep_bench_dispatch(int argc, char **argv)
{
    struct options o = {.experts = 64, .top_k = 8};
    const struct eep_opt opts[] = {
        {"shape", EEP_OPT_STRING, &o.shape, "TxH",
         "tokens of each rank x hidden size\n(default: 128x7168, 8x2048 and 4096x2048)"},
        {"experts", EEP_OPT_U32, &o.experts, "N", "experts, spread over the ranks (default 64)"},
        {"top-k", EEP_OPT_U32, &o.top_k, "N", "experts of each token (default 8)"},
        {"repeats", EEP_OPT_U32, &o.repeats, "N", "timed rounds (default by size)"},
        {"threads", EEP_OPT_U32, &o.threads, "N", "of each rank (default: its share of the cores)"},
        {"kernels", EEP_OPT_STRING, &o.kernels, "NAME", "for the sum; as in generate"},
        {"json", EEP_OPT_FLAG, &o.json, NULL, "one JSON object per shape and part"},
    };
    const struct eep_world_params params = {.node_size = 0};
    struct eep_xport *xport;

    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    const int wrong = check(&o);
    if (wrong != EEP_EXIT_OK) {
        return wrong;
    }
    if (eep_world_open(&params, &xport) != EEP_OK) {
        return eep_tool_failed();
    }
    set_threads(&o);
    const enum eep_status status = run_shapes(&o, xport);
    const int result = status == EEP_OK ? EEP_EXIT_OK : eep_tool_failed();
    xport->ops->close(xport, status);
    return result;
}
