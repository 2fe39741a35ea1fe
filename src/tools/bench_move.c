/*
 * `eep bench move`: experts that move, beside plain copies and beside steps without a move, in one
 * run. Each rebalance goes to an arbitrary layout, so nearly every expert moves.
 *
 *     copy   a whole layout is moved while nothing is computed: bytes of this rank's frames over
 *            the time from asking to the last version, planning, digests and the two phases and
 *            all; beside memcpy of as many cold bytes between frames in one thread of each rank
 *     steps  generation in blocks of steps, in turn with moves under way and without
 *
 * Figures are rank 0's; all ranks do the same at the same time.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tools/bench.h"
#include "tools/engine_opts.h"
#include "tools/tools.h"

#define BLOCK 40u                    /* steps with moves, then as many without */
#define COPY_PIECE ((size_t)8 << 20) /* about an expert */

static const struct eep_command_help help = {
    .usage = "eep bench move --model DIR [options]",
    .summary = "Experts that move beside plain copies, and steps with a move under way beside\n"
               "steps without. Run it on two ranks or more.",
    .epilog =
        "With --json one object per part. copy: bytes per second of a whole move, of a plain\n"
        "copy, and the ratio (target 0.9). steps: 99th percentile and longest step with and\n"
        "without a move (target of the ratio at the 99th percentile 1.3), and the longest\n"
        "change of version between two steps.",
};

struct bench_move {
    struct eep_engine_opts engine_opts;
    uint32_t repeats, steps, sequences;
    bool json;
    struct eep_engine *engine;
};

struct times {
    double *ms;
    size_t count;
};

static double percentile(struct times *t, double part)
{
    eep_bench_sort(t->ms, t->count);
    return t->count > 0 ? t->ms[(size_t)((double)(t->count - 1) * part)] : 0.0;
}

static enum eep_status agree_memory(struct bench_move *b, bool ok)
{
    return eep_engine_agree(b->engine, "memory",
                            ok ? EEP_OK : EEP_FAIL(EEP_ERR_NOMEM, "no memory for the benchmark"));
}

static enum eep_status print_line(json_t *row, const struct bench_move *b, const char *text)
{
    bool written = row != NULL;

    if (eep_engine_rank(b->engine) == 0) {
        written =
            written && (b->json ? json_dumpf(row, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF
                                : puts(text) != EOF);
    }
    json_decref(row);
    return written ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

/* ---- copy ---- */

static enum eep_status still_running(struct bench_move *b, struct eep_rebalance_status *status)
{
    eep_engine_rebalance_status(b->engine, status);
    return status->state == EEP_REBALANCE_IDLE
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_INVALID, "the experts did not move: %s", status->reason);
}

/* Moves a whole layout; nothing else runs. */
static enum eep_status move_all(struct bench_move *b, double *seconds_out, uint64_t *bytes_out)
{
    struct eep_rebalance_status before, after;
    bool idle = false;

    eep_engine_rebalance_status(b->engine, &before);
    EEP_TRY(eep_engine_agree(b->engine, "start", EEP_OK));
    const uint64_t begin_ns = eep_clock_ns();
    EEP_TRY(eep_engine_rebalance(b->engine, false));
    while (!idle) {
        EEP_TRY(eep_engine_step(b->engine, &idle));
    }
    *seconds_out = (double)(eep_clock_ns() - begin_ns) * 1e-9;
    EEP_TRY(still_running(b, &after));
    *bytes_out = after.bytes - before.bytes;
    return EEP_OK;
}

/* As many bytes between two regions that were not touched for a while. */
static void copy_plain(unsigned char *from, unsigned char *to, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += COPY_PIECE) {
        memcpy(to + done, from + done, EEP_MIN(COPY_PIECE, bytes - done));
    }
}

static enum eep_status print_copy(struct bench_move *b, uint64_t bytes, double eep, double plain)
{
    struct eep_engine_facts f;
    char text[256];

    EEP_TRY(eep_engine_facts(b->engine, &f));
    snprintf(text, sizeof(text),
             "copy   %7.1f MiB a rank on %u ranks: %6.2f GB/s, plain copy %6.2f GB/s, ratio %.2f "
             "(target 0.9)",
             (double)bytes / (1 << 20), f.ranks, eep * 1e-9, plain * 1e-9, eep / plain);
    return print_line(json_pack("{s:s, s:s, s:i, s:i, s:I, s:f, s:f, s:f, s:f}", "bench", "move",
                                "part", "copy", "ranks", (int)f.ranks, "nodes", (int)f.nodes,
                                "bytes", (json_int_t)bytes, "bytes_per_s", eep, "copy_bytes_per_s",
                                plain, "ratio", eep / plain, "target", 0.9),
                      b, text);
}

static enum eep_status run_copy(struct bench_move *b)
{
    struct times moves = {calloc(b->repeats, sizeof(double)), 0};
    struct times copies = {calloc(b->repeats, sizeof(double)), 0};
    unsigned char *memory = NULL;
    uint64_t bytes = 0, largest = 0;
    double seconds;
    enum eep_status status = agree_memory(b, moves.ms != NULL && copies.ms != NULL);

    EEP_TRY_GOTO(status, end);
    EEP_TRY_GOTO(move_all(b, &seconds, &largest), end); /* how much it is, and pages are there */
    largest += largest / 2;                             /* each layout is another one */
    status = eep_mem_alloc(2, largest + 1, "plain copies", &memory);
    EEP_TRY_GOTO(eep_engine_agree(b->engine, "memory", status), end);
    memset(memory, 1, 2 * (largest + 1));
    for (uint32_t r = 0; r < b->repeats; r++) {
        EEP_TRY_GOTO(move_all(b, &seconds, &bytes), end);
        bytes = EEP_MIN(bytes, largest);
        moves.ms[moves.count++] = (double)bytes / seconds;
        EEP_TRY_GOTO(eep_engine_agree(b->engine, "start", EEP_OK), end);
        const uint64_t begin_ns = eep_clock_ns();
        copy_plain(memory, memory + largest + 1, bytes);
        EEP_TRY_GOTO(eep_engine_agree(b->engine, "end", EEP_OK), end); /* of the slowest rank */
        copies.ms[copies.count++] = (double)bytes / ((double)(eep_clock_ns() - begin_ns) * 1e-9);
    }
    status = print_copy(b, bytes, percentile(&moves, 0.5), percentile(&copies, 0.5));
end:
    eep_mem_free(memory);
    free(moves.ms);
    free(copies.ms);
    return status;
}

/* ---- steps ---- */

static enum eep_status submit(struct bench_move *b)
{
    uint32_t ids[16];

    for (uint32_t s = 0; s < b->sequences; s++) {
        const struct eep_request request = {
            .prompt = ids,
            .prompt_count = 16,
            .max_tokens = EEP_MIN(eep_engine_max_positions(b->engine) - 16, 8 * (b->steps + 64)),
            .top_p = 1.0,
            .ignore_eos = true};
        uint64_t id;

        for (uint32_t i = 0; i < 16; i++) {
            ids[i] = (uint32_t)(eep_rng_bits(s, i) % eep_engine_vocab(b->engine));
        }
        EEP_TRY(eep_engine_submit(b->engine, &request, &id));
    }
    return EEP_OK;
}

static enum eep_status timed_step(struct bench_move *b, struct times *times)
{
    struct eep_event event;
    bool idle;
    const uint64_t begin_ns = eep_clock_ns();

    EEP_TRY(eep_engine_step(b->engine, &idle));
    if (times != NULL && times->count < b->steps) {
        times->ms[times->count++] = (double)(eep_clock_ns() - begin_ns) * 1e-6;
    }
    while (eep_engine_next_event(b->engine, &event)) {
    }
    return idle ? EEP_FAIL(EEP_ERR_INVALID, "the model's context is too short for %u steps",
                           b->steps)
                : EEP_OK;
}

static enum eep_status block_of_steps(struct bench_move *b, struct times *times, bool moving)
{
    struct eep_rebalance_status status;

    for (uint32_t i = 0; i < BLOCK; i++) {
        eep_engine_rebalance_status(b->engine, &status);
        if (moving && status.state != EEP_REBALANCE_RUNNING) {
            EEP_TRY(eep_engine_rebalance(b->engine, false));
        }
        EEP_TRY(timed_step(b, times));
    }
    for (eep_engine_rebalance_status(b->engine, &status); status.state == EEP_REBALANCE_RUNNING;
         eep_engine_rebalance_status(b->engine, &status)) {
        EEP_TRY(timed_step(b, moving ? times : NULL));
    }
    return EEP_OK;
}

static enum eep_status print_steps(struct bench_move *b, struct times *moving, struct times *still)
{
    const double p99 = percentile(moving, 0.99), p99_still = percentile(still, 0.99);
    const double p50 = percentile(moving, 0.5), p50_still = percentile(still, 0.5);
    struct eep_rebalance_status status;
    char text[256];

    eep_engine_rebalance_status(b->engine, &status);
    snprintf(
        text, sizeof(text),
        "steps  with moves p50 %.2f p99 %.2f longest %.2f ms, without %.2f %.2f %.2f ms, ratio "
        "of p99 %.2f (target 1.3), longest change of version %.2f ms",
        p50, p99, percentile(moving, 1.0), p50_still, p99_still, percentile(still, 1.0),
        p99 / p99_still, (double)status.flip_ns * 1e-6);
    return print_line(
        json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "bench",
                  "move", "part", "steps", "steps", (json_int_t)moving->count, "p50_ms", p50,
                  "p50_still_ms", p50_still, "p99_ms", p99, "p99_still_ms", p99_still, "longest_ms",
                  percentile(moving, 1.0), "longest_still_ms", percentile(still, 1.0), "ratio",
                  p99 / p99_still, "target", 1.3, "flip_ms", (double)status.flip_ns * 1e-6,
                  "versions", (json_int_t)status.chunks),
        b, text);
}

static enum eep_status run_steps(struct bench_move *b)
{
    struct times moving = {calloc(b->steps, sizeof(double)), 0};
    struct times still = {calloc(b->steps, sizeof(double)), 0};
    enum eep_status status = agree_memory(b, moving.ms != NULL && still.ms != NULL);

    EEP_TRY_GOTO(status, end);
    EEP_TRY_GOTO(submit(b), end);
    for (uint32_t i = 0; i < 8; i++) {
        EEP_TRY_GOTO(timed_step(b, NULL), end); /* prompts, and warming up */
    }
    while (moving.count < b->steps || still.count < b->steps) {
        EEP_TRY_GOTO(block_of_steps(b, &still, false), end);
        EEP_TRY_GOTO(block_of_steps(b, &moving, true), end);
    }
    status = print_steps(b, &moving, &still);
end:
    free(moving.ms);
    free(still.ms);
    return status;
}

static enum eep_status run(struct bench_move *b)
{
    if (b->engine_opts.rebalance_policy == NULL) {
        b->engine_opts.rebalance_policy = "shuffle";
    }
    if (b->engine_opts.cache == NULL && b->engine_opts.cache_dir == NULL) {
        b->engine_opts.cache = "job";
    }
    if (b->engine_opts.rebalance.every == 0) {
        b->engine_opts.rebalance.every = UINT64_MAX; /* only on request, but with spare frames */
    }
    if (b->engine_opts.kv_tokens == 0) {
        b->engine_opts.kv_tokens = (uint64_t)b->sequences * (8 * (b->steps + 64) + 64);
    }
    EEP_TRY(eep_engine_opts_create(&b->engine_opts, &b->engine));
    if (eep_engine_ranks(b->engine) < 2) {
        return EEP_FAIL(EEP_ERR_INVALID, "experts move between ranks: run it on two or more");
    }
    EEP_TRY(eep_engine_load(b->engine));
    EEP_TRY(run_copy(b));
    return run_steps(b);
}

int eep_bench_move(int argc, char **argv)
{
    struct bench_move b = {.repeats = 5, .steps = 400, .sequences = 4};
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + 4] = {
        {"repeats", EEP_OPT_U32, &b.repeats, "N", "whole layouts moved for copy (default 5)"},
        {"steps", EEP_OPT_U32, &b.steps, "N", "steps with a move and without (default 400)"},
        {"sequences", EEP_OPT_U32, &b.sequences, "N", "requests that generate (default 4)"},
        {"json", EEP_OPT_FLAG, &b.json, NULL, "one JSON object per part"},
    };

    const int ended = eep_engine_opts_parse(&help, &b.engine_opts, opts, 4, argc, argv);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (b.repeats == 0 || b.repeats > 1000 || b.steps < 10 || b.steps > 100000 ||
        b.sequences == 0 || b.sequences > 1024) {
        return eep_opts_wrong(&help, "--repeats must be 1 to 1000, --steps 10 to 100000, "
                                     "--sequences 1 to 1024");
    }
    const enum eep_status status = run(&b);
    return eep_tool_end(b.engine, status);
}
