/*
 * `eep bench model`: prompt and generation speed of a whole checkpoint. Prompts are made of token
 * ids drawn by a fixed seed; they are long enough to count and greedy, so every run does the same
 * work.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "tools/bench.h"
#include "tools/engine_opts.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep bench model --model DIR [options]",
    .summary = "Prompt and generation speed of a checkpoint: each row is a run of --sequences\n"
               "requests of --prompt-tokens ids and --max-tokens answers.",
    .epilog = "scripts/make-checkpoint makes a random Qwen3-MoE checkpoint of any shape.",
};

struct bench_model {
    struct eep_engine_opts engine_opts;
    uint32_t prompt_tokens;
    uint32_t max_tokens;
    uint32_t repeats;
    struct eep_u32_list sequences;
    bool json;
    struct eep_engine *engine;
};

static enum eep_status submit(struct bench_model *b, uint32_t sequences, uint32_t repeat)
{
    uint32_t *ids = malloc(b->prompt_tokens * sizeof(*ids));
    enum eep_status status = eep_engine_agree(
        b->engine, "prompts", ids != NULL ? EEP_OK : EEP_FAIL(EEP_ERR_NOMEM, "no memory"));

    for (uint32_t s = 0; s < sequences && status == EEP_OK; s++) {
        const struct eep_request request = {.prompt = ids,
                                            .prompt_count = b->prompt_tokens,
                                            .max_tokens = b->max_tokens,
                                            .top_p = 1.0,
                                            .ignore_eos = true};
        uint64_t id;

        for (uint32_t i = 0; i < b->prompt_tokens; i++) {
            ids[i] = (uint32_t)(eep_rng_bits(repeat * 1000u + s, i) % eep_engine_vocab(b->engine));
        }
        status = eep_engine_submit(b->engine, &request, &id);
    }
    free(ids);
    return status;
}

static double rate(uint64_t count, uint64_t ns)
{
    return ns > 0 ? (double)count * 1e9 / (double)ns : 0.0;
}

/* One run; its speeds are the differences of the engine's counters. */
static enum eep_status run_once(struct bench_model *b, uint32_t sequences, uint32_t repeat,
                                double *prompt_out, double *generation_out)
{
    struct eep_engine_facts before, after;
    struct eep_event event;
    bool idle = false;

    EEP_TRY(submit(b, sequences, repeat));
    EEP_TRY(eep_engine_facts(b->engine, &before));
    while (!idle) {
        EEP_TRY(eep_engine_step(b->engine, &idle));
        while (eep_engine_next_event(b->engine, &event)) {
            if (event.kind == EEP_EVENT_FAILED) {
                return EEP_FAIL(EEP_ERR_FORMAT, "request %llu: %s",
                                (unsigned long long)event.request, event.reason);
            }
        }
    }
    EEP_TRY(eep_engine_facts(b->engine, &after));
    *prompt_out =
        rate(after.prompt_tokens - before.prompt_tokens, after.prompt_ns - before.prompt_ns);
    *generation_out = rate(after.generation_step_tokens - before.generation_step_tokens,
                           after.generation_ns - before.generation_ns);
    return EEP_OK;
}

static enum eep_status print_row(struct bench_model *b, uint32_t sequences, double *prompt,
                                 double *generation)
{
    struct eep_engine_facts f;
    const uint32_t n = b->repeats;

    EEP_TRY(eep_engine_facts(b->engine, &f));
    if (eep_engine_rank(b->engine) != 0) {
        return EEP_OK;
    }
    eep_bench_sort(prompt, n);
    eep_bench_sort(generation, n);
    if (!b->json) {
        printf("%3u sequences x %u prompt tokens: %9.1f tokens/s (best %.1f)   %u generated each: "
               "%8.2f tokens/s (best %.2f)\n",
               sequences, b->prompt_tokens, prompt[n / 2], prompt[n - 1], b->max_tokens,
               generation[n / 2], generation[n - 1]);
        return EEP_OK;
    }
    json_t *row =
        json_pack("{s:s, s:i, s:i, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "bench", "model",
                  "ranks", (int)f.ranks, "threads", (int)f.threads, "kernels", f.kernels,
                  "sequences", (int)sequences, "prompt_tokens", (int)b->prompt_tokens, "max_tokens",
                  (int)b->max_tokens, "prompt_tokens_per_s", prompt[n - 1],
                  "prompt_tokens_per_s_median", prompt[n / 2], "generation_tokens_per_s",
                  generation[n - 1], "generation_tokens_per_s_median", generation[n / 2]);
    const bool written = row != NULL && json_dumpf(row, stdout, JSON_COMPACT) == 0;
    json_decref(row);
    putchar('\n');
    return written ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

static enum eep_status run_row(struct bench_model *b, uint32_t sequences)
{
    double *values = calloc(2 * (size_t)b->repeats, sizeof(*values));
    enum eep_status status = eep_engine_agree(
        b->engine, "values", values != NULL ? EEP_OK : EEP_FAIL(EEP_ERR_NOMEM, "no memory"));

    for (uint32_t r = 0; r < b->repeats && status == EEP_OK; r++) {
        status = run_once(b, sequences, r, &values[r], &values[b->repeats + r]);
    }
    if (status == EEP_OK) {
        status = print_row(b, sequences, values, values + b->repeats);
    }
    free(values);
    return status;
}

static enum eep_status run(struct bench_model *b)
{
    uint32_t most = 1;

    for (size_t i = 0; i < b->sequences.count; i++) {
        most = b->sequences.values[i] > most ? b->sequences.values[i] : most;
    }
    if (b->engine_opts.kv_tokens == 0) { /* room for the largest row on one rank, whole blocks */
        b->engine_opts.kv_tokens = (uint64_t)most * (b->prompt_tokens + b->max_tokens + 32);
    }
    EEP_TRY(eep_engine_opts_create(&b->engine_opts, &b->engine));
    EEP_TRY(eep_engine_load(b->engine));
    for (size_t i = 0; i < b->sequences.count; i++) {
        EEP_TRY(run_row(b, b->sequences.values[i]));
    }
    return b->json ? EEP_OK : eep_print_facts(b->engine);
}

int eep_bench_model(int argc, char **argv)
{
    static const uint32_t default_sequences[] = {1, 16};
    struct bench_model b = {.prompt_tokens = 512, .max_tokens = 64, .repeats = 3};
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + 5] = {
        {"prompt-tokens", EEP_OPT_U32, &b.prompt_tokens, "N", "of each request (default 512)"},
        {"max-tokens", EEP_OPT_U32, &b.max_tokens, "N", "generated for each (default 64)"},
        {"sequences", EEP_OPT_U32_LIST, &b.sequences, "1,16", "requests at a time, a row each"},
        {"repeats", EEP_OPT_U32, &b.repeats, "N", "runs of each row (default 3)"},
        {"json", EEP_OPT_FLAG, &b.json, NULL, "one JSON object per row"},
    };

    const int ended = eep_engine_opts_parse(&help, &b.engine_opts, opts, 5, argc, argv);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (b.prompt_tokens == 0 || b.max_tokens < 2 || b.repeats == 0 || b.repeats > 1000) {
        return eep_opts_wrong(&help, "--prompt-tokens must be 1 or more, --max-tokens 2 or more, "
                                     "--repeats 1 to 1000");
    }
    const bool own = b.sequences.values == NULL;
    if (own) {
        b.sequences = (struct eep_u32_list){(uint32_t *)default_sequences, 2};
    }
    const enum eep_status status = run(&b);
    const int exit_status = eep_tool_end(b.engine, status);
    if (!own) {
        free(b.sequences.values);
    }
    return exit_status;
}
