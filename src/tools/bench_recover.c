/*
 * `eep bench recover`: what the loss of ranks costs. All ranks generate; the last one, or with
 * --whole-node all ranks of its node, kills itself between two layers of a step; then the next one,
 * until one is left. A page of shared memory tells the others when that was.
 *
 *     killed ─noticed─► a call fails ─agreed─► who is left ─reseated─► seats are executed ─► first
 * token
 *
 * Figures are rank 0's. Ranks on other machines would read another clock, so it is for one machine.
 */
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/look.h"
#include "tools/bench.h"
#include "tools/engine_opts.h"
#include "tools/shared_page.h"
#include "tools/tools.h"

#define TARGET_AGREED_MS 50.0   /* noticed and agreed */
#define TARGET_RESEATED_MS 20.0 /* when no byte moves */
#define TARGET_TOKEN_MS 150.0   /* and one step */
#define STEPS_BETWEEN 40u
#define PROMPT_TOKENS 16u

static const struct eep_command_help help = {
    .usage = "eep bench recover --model DIR [options]",
    .summary = "Kill rank after rank while they generate, until one is left, and time how the\n"
               "others go on. Run it on two ranks or more of one machine.",
    .epilog = "With --json one object per loss. Targets with four ranks on one machine: noticed\n"
              "and agreed 50 ms, reseated 20 ms when no byte moves, first token 150 ms and a step.",
};

struct bench_recover {
    struct eep_engine_opts engine_opts;
    uint32_t sequences;
    bool whole_node, json;
    struct eep_engine *engine;
    _Atomic uint64_t *killed_ns; /* shared by the ranks */
    double step_ms;              /* median before the loss */
};

/* ---- load ---- */

static enum eep_status submit(struct bench_recover *b)
{
    const uint32_t ranks = eep_engine_ranks(b->engine), vocab = eep_engine_vocab(b->engine);
    const uint32_t tokens = STEPS_BETWEEN * (ranks + 2);
    uint32_t prompt[PROMPT_TOKENS];

    for (uint32_t i = 0; i < b->sequences * ranks; i++) {
        struct eep_request request = {.prompt = prompt,
                                      .prompt_count = PROMPT_TOKENS,
                                      .max_tokens = tokens,
                                      .top_p = 1.0,
                                      .ignore_eos = true};
        uint64_t id;

        for (uint32_t j = 0; j < PROMPT_TOKENS; j++) {
            prompt[j] = (i * 31 + j * 7 + 1) % vocab;
        }
        EEP_TRY(eep_engine_submit(b->engine, &request, &id));
    }
    return EEP_OK;
}

static enum eep_status run_quietly(struct bench_recover *b)
{
    double ms[STEPS_BETWEEN];
    struct eep_event event;
    bool idle = false;

    for (uint32_t i = 0; i < STEPS_BETWEEN; i++) {
        const uint64_t begin_ns = eep_clock_ns();

        EEP_TRY(eep_engine_step(b->engine, &idle));
        ms[i] = (double)(eep_clock_ns() - begin_ns) * 1e-6;
        while (eep_engine_next_event(b->engine, &event)) {
        }
        if (idle) {
            return EEP_FAIL(EEP_ERR_INVALID, "the requests ended before the ranks did");
        }
    }
    eep_bench_sort(ms, STEPS_BETWEEN);
    b->step_ms = ms[STEPS_BETWEEN / 2];
    return EEP_OK;
}

/* ---- losses ---- */

/* The highest rank, or all of its node. */
static bool is_victim(const struct bench_recover *b)
{
    const struct eep_member_state *m = eep_engine_member_state(b->engine);
    const uint32_t *ids = eep_engine_member_ids(b->engine);
    const uint32_t rank = eep_engine_rank(b->engine), last = eep_engine_ranks(b->engine) - 1;

    return rank == last || (b->whole_node && eep_member_find(m, ids[rank])->node ==
                                                 eep_member_find(m, ids[last])->node);
}

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static enum eep_status print_loss(struct bench_recover *b, uint32_t ranks_before,
                                  uint64_t killed_ns)
{
    const struct eep_loss_facts *f = eep_engine_losses(b->engine);
    const double noticed = ms(f->since_ns > killed_ns ? f->since_ns - killed_ns : 0);
    const double token = noticed + ms(f->first_step_ns);
    const uint32_t ranks = eep_engine_ranks(b->engine);
    bool written = true;

    if (eep_engine_rank(b->engine) != 0) {
        return EEP_OK;
    }
    if (b->json) {
        json_t *row =
            json_pack("{s:s, s:i, s:i, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "bench",
                      "recover", "ranks_before", (int)ranks_before, "ranks", (int)ranks, "node",
                      (int)b->whole_node, "noticed_ms", noticed, "agreed_ms", ms(f->agreed_ns),
                      "reseated_ms", ms(f->reseated_ns), "first_token_ms", token, "step_ms",
                      b->step_ms, "target_agreed_ms", TARGET_AGREED_MS, "target_reseated_ms",
                      TARGET_RESEATED_MS, "target_first_token_ms", TARGET_TOKEN_MS + b->step_ms);

        written = row != NULL && json_dumpf(row, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;
        json_decref(row);
    } else {
        written = printf("%u -> %u ranks: noticed %6.1f ms, agreed %5.1f ms (together %.0f), "
                         "reseated %5.1f ms (%.0f), first token after %6.1f ms (%.0f); a step %.2f "
                         "ms\n",
                         ranks_before, ranks, noticed, ms(f->agreed_ns), TARGET_AGREED_MS,
                         ms(f->reseated_ns), TARGET_RESEATED_MS, token,
                         TARGET_TOKEN_MS + b->step_ms, b->step_ms) > 0;
    }
    return written && fflush(stdout) == 0 ? EEP_OK
                                          : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

static enum eep_status lose_one(struct bench_recover *b)
{
    const uint32_t before = eep_engine_ranks(b->engine);
    struct eep_event event;
    bool idle;

    if (is_victim(b)) {
        atomic_store(b->killed_ns, eep_clock_ns());
        (void)kill(getpid(), SIGKILL);
    }
    /* Ranks that die one after the other cost more than one recovery. */
    do {
        EEP_TRY(eep_engine_step(b->engine, &idle));
        while (eep_engine_next_event(b->engine, &event)) {
        }
    } while (eep_engine_losses(b->engine)->first_step_ns == 0 && !idle);
    return print_loss(b, before, atomic_load(b->killed_ns));
}

static enum eep_status run(struct bench_recover *b)
{
    EEP_TRY(eep_engine_opts_create(&b->engine_opts, &b->engine));
    EEP_TRY(submit(b));
    EEP_TRY(eep_engine_load(b->engine));
    if (eep_engine_member_state(b->engine) == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "the loss of a rank ends this engine: it needs two ranks or "
                        "more, and --on-loss=shrink");
    }
    EEP_TRY(eep_shared_page_open(b->engine, sizeof(*b->killed_ns), &b->killed_ns));
    EEP_TRY(eep_engine_agree(b->engine, "shared page",
                             b->killed_ns != NULL
                                 ? EEP_OK
                                 : EEP_FAIL(EEP_ERR_IO, "the ranks must be on one machine, with "
                                                        "/dev/shm")));
    while (eep_engine_ranks(b->engine) > 1) {
        EEP_TRY(run_quietly(b));
        EEP_TRY(lose_one(b));
    }
    return EEP_OK;
}

int eep_bench_recover(int argc, char **argv)
{
    struct bench_recover b = {.sequences = 4};
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + 3] = {
        {"sequences", EEP_OPT_U32, &b.sequences, "N", "requests per rank (default 4)"},
        {"whole-node", EEP_OPT_FLAG, &b.whole_node, NULL, "all ranks of a node at once"},
        {"json", EEP_OPT_FLAG, &b.json, NULL, "one JSON object per loss"},
    };

    eep_engine_opts_table(&b.engine_opts, opts + 3);
    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (eep_engine_opts_check(&b.engine_opts, &help) != EEP_EXIT_OK) {
        return EEP_EXIT_USAGE;
    }
    if (b.sequences == 0) {
        return eep_opts_wrong(&help, "--sequences must be at least 1");
    }
    return eep_tool_end(b.engine, run(&b));
}
