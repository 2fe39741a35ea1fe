/* `eep generate`: text from a checkpoint. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/ckpt.h"
#include "tools/admin.h"
#include "tools/engine_opts.h"
#include "tools/prompts.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep generate --model DIR (--prompt TEXT | --prompt-ids 1,2,3 | --prompts-file FILE) "
             "[options]",
    .summary = "Generate text. One prompt streams to stdout; several are printed in their order.\n"
               "Under mpirun the experts and the prompts are spread over the ranks.",
    .epilog =
        "A prompts file has one JSON object per line: {\"prompt\": \"...\"} or\n"
        "{\"prompt_ids\": [...]}, and optionally max_tokens, temperature, top_k, top_p, seed,\n"
        "ignore_eos. --json prints per prompt {\"index\": 0, \"prompt_tokens\": 12,\n"
        "\"token_ids\": [...], \"text\": \"...\"} (text is null without a tokenizer.json).",
};

struct generate {
    struct eep_engine_opts engine_opts;
    struct eep_prompt_source source;
    bool json;
    const char *logits_out;
    struct eep_tool_admin_opts admin_opts;

    struct eep_engine *engine;
    struct eep_tool_admin *admin; /* NULL: no endpoint on this rank */
    uint32_t *prompt_counts;      /* (count) */
    size_t count;
    bool *ended;          /* (count) */
    char (*reasons)[128]; /* (count): why a request failed, or "" */
    size_t next_print;    /* requests before it are printed */
    size_t streamed;      /* tokens of a single prompt that are on the screen */
    bool no_text;         /* the model has no tokenizer */
    size_t failures;
};

/* Text of tokens; NULL when the model has no tokenizer. The caller frees it. */
static enum eep_status text_of(struct generate *g, const uint32_t *ids, size_t count,
                               char **text_out)
{
    *text_out = NULL;
    return g->no_text ? EEP_OK : eep_engine_decode(g->engine, ids, count, text_out);
}

static enum eep_status print_json(struct generate *g, size_t index)
{
    size_t count;
    char *text;
    const uint32_t *ids = eep_engine_tokens(g->engine, index, &count);

    EEP_TRY(text_of(g, ids, count, &text));
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(list, json_integer(ids[i]));
    }
    json_t *line = json_pack("{s:I, s:I, s:o, s:s?}", "index", (json_int_t)index, "prompt_tokens",
                             (json_int_t)g->prompt_counts[index], "token_ids", list, "text", text);
    if (line != NULL && g->reasons[index][0] != '\0') {
        json_object_set_new(line, "error", json_string(g->reasons[index]));
    }
    free(text);
    const bool written = line != NULL && json_dumpf(line, stdout, JSON_COMPACT) == 0 &&
                         putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(line);
    return written ? EEP_OK
                   : EEP_FAIL(EEP_ERR_IO, "results cannot be written: %s", strerror(errno));
}

static enum eep_status print_text(struct generate *g, size_t index)
{
    size_t count;
    char *text;
    const uint32_t *ids = eep_engine_tokens(g->engine, index, &count);

    EEP_TRY(text_of(g, ids, count, &text));
    printf("[%zu] ", index);
    for (size_t i = 0; text == NULL && i < count; i++) {
        printf("%s%" PRIu32, i > 0 ? "," : "", ids[i]);
    }
    printf("%s\n", text != NULL ? text : "");
    free(text);
    return fflush(stdout) == 0
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_IO, "results cannot be written: %s", strerror(errno));
}

/* True if the text ends in the middle of a character. */
static bool ends_cut(const char *text)
{
    const size_t length = strlen(text);

    return length >= 3 && strcmp(text + length - 3, "\xef\xbf\xbd") == 0;
}

/* The new part of a single prompt's text, held back while a character is incomplete. All of it is
 * decoded anew, since what a token looks like may depend on those before it. */
static enum eep_status stream(struct generate *g)
{
    size_t count;
    char *text;
    const uint32_t *ids = eep_engine_tokens(g->engine, 0, &count);

    EEP_TRY(text_of(g, ids, count, &text));
    if (text == NULL) {
        for (; g->streamed < count; g->streamed++) {
            printf("%s%" PRIu32, g->streamed > 0 ? "," : "", ids[g->streamed]);
        }
    } else if (strlen(text) > g->streamed && (g->ended[0] || !ends_cut(text))) {
        fputs(text + g->streamed, stdout);
        g->streamed = strlen(text);
    }
    free(text);
    return fflush(stdout) == 0
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_IO, "results cannot be written: %s", strerror(errno));
}

static enum eep_status print_ended(struct generate *g)
{
    const bool streams = g->count == 1 && !g->json;

    if (streams) {
        EEP_TRY(stream(g));
    }
    for (; g->next_print < g->count && g->ended[g->next_print]; g->next_print++) {
        if (g->reasons[g->next_print][0] != '\0') {
            eep_log(EEP_LOG_ERROR, "prompt %zu: %s", g->next_print, g->reasons[g->next_print]);
        }
        if (streams) {
            putchar('\n');
        } else {
            EEP_TRY(g->json ? print_json(g, g->next_print) : print_text(g, g->next_print));
        }
    }
    return EEP_OK;
}

static void take_events(struct generate *g)
{
    struct eep_event event;

    while (eep_engine_next_event(g->engine, &event)) {
        if (event.kind == EEP_EVENT_FAILED) {
            g->failures++;
            snprintf(g->reasons[event.request], sizeof(g->reasons[0]), "%s", event.reason);
        }
        if (event.kind != EEP_EVENT_TOKEN) {
            g->ended[event.request] = true;
        }
    }
}

static enum eep_status run_steps(struct generate *g)
{
    enum eep_status printed = EEP_OK;
    bool idle = false;

    while (!idle) {
        EEP_TRY(eep_engine_step(g->engine, &idle));
        eep_tool_admin_step(g->admin);
        take_events(g);
        if (eep_engine_rank(g->engine) == 0 && printed == EEP_OK) {
            printed = print_ended(g);
        }
    }
    return eep_engine_has_left(g->engine) ? EEP_OK
                                          : eep_engine_agree(g->engine, "results", printed);
}

/* All kept logits into one safetensors file, on rank 0. */
static enum eep_status write_logits(struct generate *g)
{
    struct eep_tensor_out *tensors = calloc(g->count, sizeof(*tensors));
    char(*names)[32] = calloc(g->count, sizeof(*names));
    float **logits = calloc(g->count, sizeof(*logits));
    const bool have_all = tensors != NULL && names != NULL && logits != NULL;
    enum eep_status status = eep_engine_agree(
        g->engine, "logits",
        have_all ? EEP_OK : EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu tensors", g->count));

    for (size_t i = 0; i < g->count && status == EEP_OK; i++) {
        size_t rows;

        status = eep_engine_collect_logits(g->engine, i, &logits[i], &rows);
        if (status == EEP_OK) {
            snprintf(names[i], sizeof(names[i]), "logits.%zu", i);
            tensors[i] = (struct eep_tensor_out){.name = names[i],
                                                 .dtype = EEP_F32,
                                                 .dims = 2,
                                                 .shape = {rows, eep_engine_vocab(g->engine)},
                                                 .data = logits[i]};
        }
    }
    if (status == EEP_OK) {
        if (eep_engine_rank(g->engine) == 0) {
            status = eep_safetensors_write(g->logits_out, tensors, g->count);
        }
        status = eep_engine_agree(g->engine, "logits file", status);
    }
    for (size_t i = 0; logits != NULL && i < g->count; i++) {
        free(logits[i]);
    }
    free(logits);
    free(names);
    free(tensors);
    return status;
}

static enum eep_status prepare(struct generate *g)
{
    EEP_TRY(eep_engine_opts_create(&g->engine_opts, &g->engine));
    EEP_TRY(eep_prompts_submit(g->engine, &g->source, &g->prompt_counts, &g->count));
    g->ended = calloc(g->count, sizeof(*g->ended));
    g->reasons = calloc(g->count, sizeof(*g->reasons));
    const bool have_all = g->ended != NULL && g->reasons != NULL;
    EEP_TRY(eep_engine_agree(
        g->engine, "results",
        have_all ? EEP_OK : EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu results", g->count)));

    /* Only rank 0 needs text; a model that has ids alone is all right. */
    if (eep_engine_rank(g->engine) == 0) {
        char path[4096];

        snprintf(path, sizeof(path), "%s/tokenizer.json", g->engine_opts.model);
        FILE *file = fopen(path, "r");
        g->no_text = file == NULL && errno == ENOENT;
        if (file != NULL) {
            fclose(file);
        }
    }
    EEP_TRY(eep_engine_load(g->engine));
    return eep_tool_admin_open(&g->admin_opts, g->engine, &g->admin);
}

static enum eep_status run(struct generate *g)
{
    EEP_TRY(prepare(g));
    EEP_TRY(run_steps(g));
    if (eep_engine_has_left(g->engine)) {
        return EEP_OK;
    }
    if (g->logits_out != NULL) {
        EEP_TRY(write_logits(g));
    }
    return g->json ? EEP_OK : eep_print_facts(g->engine);
}

static int check_usage(const struct generate *g)
{
    const int sources =
        (g->source.text != NULL) + (g->source.ids.count != 0) + (g->source.file != NULL);

    if (eep_engine_opts_check(&g->engine_opts, &help) != EEP_EXIT_OK ||
        eep_tool_admin_check(&g->admin_opts, &help) != EEP_EXIT_OK) {
        return EEP_EXIT_USAGE;
    }
    if (sources != 1) {
        return eep_opts_wrong(&help, "exactly one of --prompt, --prompt-ids and --prompts-file is "
                                     "needed");
    }
    return EEP_EXIT_OK;
}

int eep_cmd_generate(int argc, char **argv)
{
    struct generate g = {.source.defaults = {.max_tokens = 128, .top_p = 1.0}};
    struct eep_request *d = &g.source.defaults;
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + EEP_TOOL_ADMIN_OPT_COUNT + 11] = {
        {"prompt", EEP_OPT_STRING, &g.source.text, "TEXT", "one prompt"},
        {"prompt-ids", EEP_OPT_U32_LIST, &g.source.ids, "1,2,3", "one prompt as token ids"},
        {"prompts-file", EEP_OPT_STRING, &g.source.file, "FILE",
         "prompts, one JSON object per line; - is standard input"},
        {"max-tokens", EEP_OPT_U32, &d->max_tokens, "N", "tokens to generate (default 128)"},
        {"temperature", EEP_OPT_DOUBLE, &d->temperature, "T", "0 = greedy (default)"},
        {"top-k", EEP_OPT_U32, &d->top_k, "K", "sample from the K most likely (0 = all)"},
        {"top-p", EEP_OPT_DOUBLE, &d->top_p, "P", "sample from the likeliest set of probability P"},
        {"seed", EEP_OPT_U64, &d->seed, "N", "seed of the draws (default 0)"},
        {"ignore-eos", EEP_OPT_FLAG, &d->ignore_eos, NULL, "go on after an end-of-text token"},
        {"json", EEP_OPT_FLAG, &g.json, NULL, "one JSON object per prompt on stdout"},
        {"logits-out", EEP_OPT_STRING, &g.logits_out, "FILE",
         "write the logits that each token was chosen from (safetensors)"},
    };
    int exit_status = EEP_EXIT_OK;

    eep_engine_opts_table(&g.engine_opts, opts + 11);
    eep_tool_admin_table(&g.admin_opts, opts + 11 + EEP_ENGINE_OPT_COUNT);
    switch (eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL)) {
    case EEP_OPTS_HELP:
        return EEP_EXIT_OK;
    case EEP_OPTS_USAGE:
        return EEP_EXIT_USAGE;
    case EEP_OPTS_OK:
        exit_status = check_usage(&g);
        break;
    }
    if (exit_status == EEP_EXIT_OK) {
        d->keep_logits = g.logits_out != NULL;
        g.admin_opts.model = g.engine_opts.model;
        const enum eep_status status = run(&g);

        eep_tool_admin_close(g.admin);
        exit_status = eep_tool_end(g.engine, status);
        if (g.failures > 0) {
            exit_status = EEP_EXIT_FAILED;
        }
    }
    free(g.source.ids.values);
    free(g.prompt_counts);
    free(g.ended);
    free(g.reasons);
    return exit_status;
}
