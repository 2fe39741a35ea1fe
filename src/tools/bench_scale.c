/*
 * `eep bench scale`: what it costs that ranks join and leave while the others serve. Rank 0 asks
 * for more ranks, then for as few as before, and so on; requests run all the time. Processes that
 * are parked join; beyond them new ones are started.
 *
 *     quiet steps ─► asked ─► joiners load, steps go on ─► steps stand still ─► done ─► quiet steps
 *                             longest time between the ends of two steps of rank 0
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/look.h"
#include "tools/bench.h"
#include "tools/engine_opts.h"
#include "tools/tools.h"

#define TARGET_GAP_MS 100.0 /* beyond a step */
#define QUIET_STEPS 60u
#define AFTER_STEPS 10u /* still count as the change's */
#define PROMPT_TOKENS 16u
#define REQUEST_TOKENS 200u
#define LIMIT_NS (120 * EEP_NS_PER_S) /* for one change */

static const struct eep_command_help help = {
    .usage = "eep bench scale --model DIR --ep-size N [--to M] [options]",
    .summary =
        "Let ranks join and leave while they generate, and time how long steps stand still.\n"
        "Run it on more processes than N, or with M above their number.",
    .epilog =
        "With --json one object per change. Target: no two steps are further apart than 100 ms\n"
        "and a normal step.",
};

enum phase { QUIET, CHANGING, SETTLING };

struct bench_scale {
    struct eep_engine_opts engine_opts;
    uint32_t sequences, cycles, to;
    bool json;
    struct eep_engine *engine;

    /* Of rank 0. */
    enum phase phase;
    uint32_t changes, steps; /* so far; of this phase */
    uint32_t from, wanted;   /* ranks, of the change under way */
    uint64_t posted;
    uint64_t last_ns, asked_ns, done_ns;
    double quiet_ms[QUIET_STEPS], step_ms, longest_ms;
};

/* ---- load ---- */

static enum eep_status post_one(struct bench_scale *b)
{
    const uint32_t vocab = eep_engine_vocab(b->engine);
    uint32_t prompt[PROMPT_TOKENS];
    const struct eep_request request = {.prompt = prompt,
                                        .prompt_count = PROMPT_TOKENS,
                                        .max_tokens = REQUEST_TOKENS,
                                        .top_p = 1.0,
                                        .ignore_eos = true};

    for (uint32_t j = 0; j < PROMPT_TOKENS; j++) {
        prompt[j] = (uint32_t)((b->posted * 31 + j * 7 + 1) % vocab);
    }
    EEP_TRY(eep_engine_post(b->engine, &request));
    b->posted++;
    return EEP_OK;
}

/* As many as all ranks can have. */
static enum eep_status keep_busy(struct bench_scale *b)
{
    const uint64_t waiting = b->posted - eep_engine_requests(b->engine);
    const uint64_t open = eep_engine_unfinished(b->engine) + waiting;

    for (uint64_t n = open; n < (uint64_t)b->sequences * b->to; n++) {
        EEP_TRY(post_one(b));
    }
    return EEP_OK;
}

/* ---- changes ---- */

static enum eep_status ask(struct bench_scale *b)
{
    struct eep_member_request request = {.kind = EEP_OPERATION_SCALE};

    b->from = eep_engine_ranks(b->engine);
    b->wanted = b->from < b->to ? b->to : b->engine_opts.ep_size;
    request.target = b->wanted;
    snprintf(request.id, sizeof(request.id), "bench-%u", b->changes);
    b->asked_ns = eep_clock_ns();
    b->longest_ms = 0;
    return eep_engine_ask_members(b->engine, &request);
}

static bool print_json(const struct bench_scale *b, double took_ms, double still_ms)
{
    json_t *json = json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:I}", "bench", "scale",
                             "from", (int)b->from, "to", (int)b->wanted, "took_ms", took_ms,
                             "still_ms", still_ms, "longest_step_ms", b->longest_ms, "step_ms",
                             b->step_ms, "target_longest_ms", TARGET_GAP_MS + b->step_ms,
                             "resident_bytes", (json_int_t)eep_mem_resident_bytes());
    const bool written =
        json != NULL && json_dumpf(json, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;

    json_decref(json);
    return written;
}

static bool print_text(const struct bench_scale *b, double took_ms, double still_ms)
{
    return printf("%u -> %u ranks: done after %7.1f ms, steps stood still for %5.1f ms, longest "
                  "step %6.1f ms (%.0f); a step %.2f ms; rank 0 holds %.1f MiB\n",
                  b->from, b->wanted, took_ms, still_ms, b->longest_ms, TARGET_GAP_MS + b->step_ms,
                  b->step_ms, (double)eep_mem_resident_bytes() / (1 << 20)) > 0;
}

static enum eep_status print_change(const struct bench_scale *b)
{
    const struct eep_loss_facts *f = eep_engine_losses(b->engine);
    const double took_ms = (double)(b->done_ns - b->asked_ns) * 1e-6;
    const double still_ms = (double)f->switch_ns * 1e-6;
    const bool written =
        b->json ? print_json(b, took_ms, still_ms) : print_text(b, took_ms, still_ms);

    return written && fflush(stdout) == 0 ? EEP_OK
                                          : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

static enum eep_status hear_answers(struct bench_scale *b)
{
    struct eep_member_action answer;

    while (eep_engine_next_answer(b->engine, &answer)) {
        if (answer.code == EEP_ANSWER_ACCEPTED) {
            continue;
        }
        if (answer.reason != EEP_REASON_NONE) {
            return EEP_FAIL(EEP_ERR_INVALID, "%u ranks to %u: %s (have %u, want %u)", b->from,
                            b->wanted, eep_reason_text(answer.reason), answer.have, answer.want);
        }
        b->done_ns = eep_clock_ns();
        b->phase = SETTLING;
        b->steps = 0;
    }
    return b->phase == CHANGING && eep_clock_ns() - b->asked_ns > LIMIT_NS
               ? EEP_FAIL(EEP_ERR_TIMEOUT, "%u ranks to %u: not done after 120 s", b->from,
                          b->wanted)
               : EEP_OK;
}

/* A step of rank 0 has ended. */
static enum eep_status count_step(struct bench_scale *b)
{
    const uint64_t now_ns = eep_clock_ns();
    const double ms = b->last_ns != 0 ? (double)(now_ns - b->last_ns) * 1e-6 : 0.0;

    b->last_ns = now_ns;
    b->longest_ms = EEP_MAX(b->longest_ms, ms);
    EEP_TRY(hear_answers(b));
    if (b->phase == QUIET) {
        b->quiet_ms[b->steps++] = ms;
        if (b->steps == QUIET_STEPS) {
            eep_bench_sort(b->quiet_ms, QUIET_STEPS);
            b->step_ms = b->quiet_ms[QUIET_STEPS / 2];
            b->phase = CHANGING;
            return ask(b);
        }
    } else if (b->phase == SETTLING && ++b->steps == AFTER_STEPS) {
        b->phase = QUIET;
        b->steps = 0;
        b->changes++;
        return print_change(b);
    }
    return EEP_OK;
}

/* ---- all ranks ---- */

static enum eep_status step(struct bench_scale *b, bool *idle)
{
    struct eep_event event;

    if (eep_engine_rank(b->engine) == 0) {
        if (b->changes == 2 * b->cycles) {
            eep_engine_stop(b->engine);
        } else {
            EEP_TRY(keep_busy(b));
        }
    }
    EEP_TRY(eep_engine_step(b->engine, idle));
    while (!eep_engine_is_parked(b->engine) && eep_engine_next_event(b->engine, &event)) {
    }
    return eep_engine_rank(b->engine) == 0 && !*idle ? count_step(b) : EEP_OK;
}

static enum eep_status run(struct bench_scale *b)
{
    bool ended = false;

    EEP_TRY(eep_engine_opts_create(&b->engine_opts, &b->engine));
    eep_engine_open(b->engine);
    EEP_TRY(eep_engine_load(b->engine));
    if (b->to == 0) {
        b->to = eep_engine_processes(b->engine);
    }
    if (!eep_engine_is_parked(b->engine) && eep_engine_member_state(b->engine) == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "ranks cannot join or leave here: it needs two processes "
                                         "or more, and --on-loss=shrink");
    }
    while (!ended) {
        EEP_TRY(eep_engine_is_parked(b->engine) ? eep_engine_wait(b->engine, &ended)
                                                : step(b, &ended));
    }
    return EEP_OK;
}

int eep_bench_scale(int argc, char **argv)
{
    struct bench_scale b = {.engine_opts.can_park = true, .sequences = 4, .cycles = 3};
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + 4] = {
        {"sequences", EEP_OPT_U32, &b.sequences, "N", "requests for each of M ranks (default 4)"},
        {"cycles", EEP_OPT_U32, &b.cycles, "N", "up and down so often (default 3)"},
        {"to", EEP_OPT_U32, &b.to, "M", "ranks to grow to (default: as many as processes)"},
        {"json", EEP_OPT_FLAG, &b.json, NULL, "one JSON object per change"},
    };

    const int ended = eep_engine_opts_parse(&help, &b.engine_opts, opts, 4, argc, argv);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (b.sequences == 0 || b.cycles == 0 || b.engine_opts.ep_size == 0) {
        return eep_opts_wrong(&help, "--ep-size is needed; --sequences and --cycles must be at "
                                     "least 1");
    }
    return eep_tool_end(b.engine, run(&b));
}
