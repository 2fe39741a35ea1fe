/* `eep generate`: text from a checkpoint. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "tools/admin.h"
#include "tools/engine_opts.h"
#include "tools/generate_index.h"
#include "tools/generate_stream.h"
#include "tools/prompts.h"
#include "tools/shared_page.h"
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
        "\"token_ids\": [...], \"text\": \"...\"} (text is null without a tokenizer.json).\n"
        "With --prompts-file - --json prompts are answered as they come; a wrong line then gets\n"
        "{\"index\": 1, \"error\": \"...\"}, and the exit status at the end is 1.",
};

/* What became of a request; the same on every rank. */
struct answer {
    bool ended;
    char *reason; /* why it failed; NULL: it did not; owned */
};

#define STEPS_BACK 4           /* without a page these are printed again after a loss */
#define PRINT_AGAIN_AT_MOST 64 /* and so many answers when somebody drops what comes twice */

/* How far rank 0 has come with reading and printing, shared with the ranks of its machine: when it
 * is lost, the next rank 0 goes on from there. Written after each write to its standard output. */
struct print_page {
    _Atomic uint64_t printed;  /* answers, in the order in which they are printed */
    _Atomic uint64_t wrong;    /* wrong lines that were told */
    _Atomic uint64_t lines;    /* of the input that were taken */
    _Atomic uint64_t streamed; /* of a single prompt's text */
};

struct generate {
    struct eep_engine_opts engine_opts;
    struct eep_prompt_source source;
    bool json, unordered;
    const char *logits_out;
    struct eep_tool_admin_opts admin_opts;

    struct eep_engine *engine;
    struct eep_tool_admin *admin; /* NULL: no endpoint on this rank */
    struct eep_index_set delivered;
    bool streaming;         /* requests come on standard input while others run */
    bool is_first;          /* this process is rank 0 */
    struct answer *answers; /* (capacity), by request */
    uint64_t *order;        /* (capacity), requests as they ended: the order of printing, when
                               unordered */
    uint64_t capacity, ended;
    uint64_t leading;           /* the requests before it have ended */
    uint64_t ready[STEPS_BACK]; /* answers that could be printed after each of the last steps */
    uint64_t steps;
    uint64_t failures;

    struct print_page *page;  /* NULL: none */
    struct eep_stream stream; /* of rank 0 */
    uint64_t printed;         /* answers */
    uint64_t wrong;           /* wrong lines told */
    size_t streamed;          /* of a single prompt's text, on the screen already */
    bool no_text;             /* the model has no tokenizer */
};

/* Text of tokens; NULL when the model has no tokenizer. The caller frees it. */
static enum eep_status text_of(struct generate *g, const uint32_t *ids, size_t count,
                               char **text_out)
{
    *text_out = NULL;
    return g->no_text ? EEP_OK : eep_engine_decode(g->engine, ids, count, text_out);
}

static enum eep_status not_written(void)
{
    return EEP_FAIL(EEP_ERR_IO, "results cannot be written: %s", strerror(errno));
}

/* One write for a whole line, so that it is torn as rarely as can be. Takes over the object. */
static enum eep_status write_line(json_t *object)
{
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    const bool written = text != NULL && puts(text) >= 0 && fflush(stdout) == 0;

    free(text);
    json_decref(object);
    return written ? EEP_OK : not_written();
}

static enum eep_status print_json(struct generate *g, uint64_t request)
{
    size_t count;
    char *text;
    const uint32_t *ids = eep_engine_tokens(g->engine, request, &count);

    EEP_TRY(text_of(g, ids, count, &text));
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(list, json_integer(ids[i]));
    }
    json_t *line =
        json_pack("{s:I, s:I, s:o, s:s?}", "index", (json_int_t)eep_engine_tag(g->engine, request),
                  "prompt_tokens", (json_int_t)eep_engine_prompt_tokens(g->engine, request),
                  "token_ids", list, "text", text);
    if (line != NULL && g->answers[request].reason != NULL) {
        json_object_set_new(line, "error", json_string(g->answers[request].reason));
    }
    free(text);
    return write_line(line);
}

static enum eep_status print_text(struct generate *g, uint64_t request)
{
    size_t count;
    char *text;
    const uint32_t *ids = eep_engine_tokens(g->engine, request, &count);

    EEP_TRY(text_of(g, ids, count, &text));
    printf("[%" PRIu64 "] ", eep_engine_tag(g->engine, request));
    for (size_t i = 0; text == NULL && i < count; i++) {
        printf("%s%" PRIu32, i > 0 ? "," : "", ids[i]);
    }
    printf("%s\n", text != NULL ? text : "");
    free(text);
    return fflush(stdout) == 0 ? EEP_OK : not_written();
}

/* True if the text ends in the middle of a character. */
static bool ends_cut(const char *text)
{
    const size_t length = strlen(text);

    return length >= 3 && strcmp(text + length - 3, "\xef\xbf\xbd") == 0;
}

/* The new part of a single prompt's text, held back while a character is incomplete. All of it is
 * decoded anew, since what a token looks like may depend on those before it. */
static enum eep_status stream_text(struct generate *g)
{
    size_t count;
    char *text;
    const uint32_t *ids = eep_engine_tokens(g->engine, 0, &count);

    EEP_TRY(text_of(g, ids, count, &text));
    if (text == NULL) {
        for (; g->streamed < count; g->streamed++) {
            printf("%s%" PRIu32, g->streamed > 0 ? "," : "", ids[g->streamed]);
        }
    } else if (strlen(text) > g->streamed && (g->answers[0].ended || !ends_cut(text))) {
        fputs(text + g->streamed, stdout);
        g->streamed = strlen(text);
    }
    free(text);
    const bool written = fflush(stdout) == 0;

    if (g->page != NULL) {
        g->page->streamed = g->streamed;
    }
    return written ? EEP_OK : not_written();
}

/* ---- printing, on rank 0 ---- */

static bool streams_text(const struct generate *g)
{
    return !g->json && !g->streaming && eep_engine_requests(g->engine) == 1;
}

static enum eep_status print_wrong(struct generate *g)
{
    const struct eep_wrong_line *line = g->stream.wrong;

    EEP_TRY(
        write_line(json_pack("{s:I, s:s}", "index", (json_int_t)line->index, "error", line->text)));
    eep_stream_drop_wrong(&g->stream);
    g->wrong++;
    if (g->page != NULL) {
        g->page->wrong = g->wrong;
    }
    return EEP_OK;
}

static enum eep_status print_answer(struct generate *g)
{
    const uint64_t request = g->unordered ? g->order[g->printed] : g->printed;

    if (g->answers[request].reason != NULL) {
        eep_log(EEP_LOG_ERROR, "prompt %" PRIu64 ": %s", eep_engine_tag(g->engine, request),
                g->answers[request].reason);
    }
    if (streams_text(g)) {
        putchar('\n');
    } else {
        EEP_TRY(g->json ? print_json(g, request) : print_text(g, request));
    }
    g->printed++;
    if (g->page != NULL) {
        g->page->printed = g->printed;
    }
    return EEP_OK;
}

/* Answers that can be printed so far. */
static uint64_t ready(const struct generate *g)
{
    return g->unordered ? g->ended : g->leading;
}

static enum eep_status print_ready(struct generate *g)
{
    if (streams_text(g)) {
        EEP_TRY(stream_text(g));
    }
    for (;;) {
        const struct eep_wrong_line *wrong = g->stream.wrong;

        if (wrong != NULL && (g->unordered || wrong->after <= g->printed)) {
            EEP_TRY(print_wrong(g));
        } else if (g->printed < ready(g)) {
            EEP_TRY(print_answer(g));
        } else {
            return fflush(stdout) == 0 ? EEP_OK : not_written();
        }
    }
}

/* ---- the loop ---- */

/* Room for every request that the engine has. */
static enum eep_status make_room(struct generate *g)
{
    const uint64_t needed = eep_engine_requests(g->engine);
    const uint64_t capacity = needed + needed / 2 + 64;

    if (needed <= g->capacity) {
        return EEP_OK;
    }
    struct answer *answers = realloc(g->answers, capacity * sizeof(*answers));
    g->answers = answers != NULL ? answers : g->answers;
    uint64_t *order = realloc(g->order, capacity * sizeof(*order));
    g->order = order != NULL ? order : g->order;
    if (answers == NULL || order == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for %" PRIu64 " results", capacity);
    }
    memset(answers + g->capacity, 0, (capacity - g->capacity) * sizeof(*answers));
    g->capacity = capacity;
    return EEP_OK;
}

static enum eep_status take_events(struct generate *g)
{
    struct eep_event event;

    EEP_TRY(make_room(g));
    while (eep_engine_next_event(g->engine, &event)) {
        if (event.kind == EEP_EVENT_FAILED) {
            g->failures++;
            g->answers[event.request].reason = strdup(event.reason);
        }
        if (event.kind == EEP_EVENT_FAILED || event.kind == EEP_EVENT_DONE) {
            g->answers[event.request].ended = true;
            g->order[g->ended++] = event.request;
        }
    }
    while (g->leading < eep_engine_requests(g->engine) && g->answers[g->leading].ended) {
        g->leading++;
    }
    g->ready[g->steps++ % STEPS_BACK] = ready(g);
    return EEP_OK;
}

/* This process is rank 0 from now on, at the start or since those before it are lost: it reads and
 * prints on where they stopped, and prints again what may not have come out. */
static enum eep_status become_first(struct generate *g)
{
    struct eep_stream_past past = {.requests = eep_engine_requests(g->engine)};
    const bool drops_doubles = g->json && getenv(EEP_DELIVERED_ENV) != NULL;

    g->is_first = true;
    if (g->page != NULL) {
        g->printed = g->page->printed;
        g->wrong = g->page->wrong;
        g->streamed = g->page->streamed;
        past.lines = g->page->lines;
    } else if (g->steps >= STEPS_BACK) {
        g->printed = g->ready[g->steps % STEPS_BACK];
    }
    if (drops_doubles) {
        g->printed -= EEP_MIN(g->printed, PRINT_AGAIN_AT_MOST);
    }
    if (!g->streaming) {
        return EEP_OK;
    }
    if (past.requests > 0) {
        past.lines = EEP_MAX(past.lines, eep_engine_tag(g->engine, past.requests - 1) + 1);
    }
    past.wrong = drops_doubles ? 0 : g->wrong;
    EEP_TRY(eep_index_read(&g->delivered));
    return eep_stream_open(&g->stream, g->engine, &g->source.defaults, &g->delivered, &past);
}

/* Rank 0's part between two steps. */
static enum eep_status work_as_first(struct generate *g)
{
    if (!g->is_first) {
        EEP_TRY(become_first(g));
    }
    EEP_TRY(print_ready(g));
    if (g->streaming) {
        EEP_TRY(eep_stream_take(&g->stream));
        if (g->page != NULL) {
            g->page->lines = g->stream.index;
        }
        EEP_TRY(print_ready(g)); /* wrong lines */
    }
    return EEP_OK;
}

static void forget_answers(struct generate *g)
{
    for (uint64_t i = 0; i < g->capacity; i++) {
        free(g->answers[i].reason);
        g->answers[i] = (struct answer){.ended = false};
    }
    g->ended = g->leading = g->steps = g->failures = 0;
    memset(g->ready, 0, sizeof(g->ready));
}

/* No rank: others read and print. When this process comes back it is told again what has ended. */
static enum eep_status sit_out(struct generate *g, bool *ended_out)
{
    eep_tool_admin_rest(g->admin);
    eep_stream_close(&g->stream);
    g->is_first = false;
    forget_answers(g);
    EEP_TRY(eep_engine_wait(g->engine, ended_out));
    return *ended_out ? EEP_OK : take_events(g);
}

/* Every collective call is a step, which survives a loss. When rank 0 cannot go on, it stops all.
 */
static enum eep_status run_steps(struct generate *g)
{
    enum eep_status status = EEP_OK;
    bool idle = false;

    while (!idle) {
        if (eep_engine_is_parked(g->engine)) {
            EEP_TRY(sit_out(g, &idle));
            continue;
        }
        if (eep_engine_rank(g->engine) == 0 && status == EEP_OK) {
            status = work_as_first(g);
            if (status != EEP_OK) {
                eep_engine_stop(g->engine);
            }
        }
        EEP_TRY(eep_engine_step(g->engine, &idle));
        if (eep_engine_has_left(g->engine)) {
            return status;
        }
        if (eep_engine_is_parked(g->engine)) {
            continue;
        }
        eep_tool_admin_step(g->admin);
        EEP_TRY(take_events(g));
    }
    if (eep_engine_rank(g->engine) == 0 && status == EEP_OK) {
        status = g->is_first ? EEP_OK : become_first(g);
        status = status == EEP_OK ? print_ready(g) : status;
    }
    return status;
}

/* All kept logits into one safetensors file, on rank 0. */
static enum eep_status write_logits(struct generate *g)
{
    const uint64_t count = eep_engine_requests(g->engine);
    struct eep_tensor_out *tensors = calloc(count + 1, sizeof(*tensors));
    char(*names)[32] = calloc(count + 1, sizeof(*names));
    float **logits = calloc(count + 1, sizeof(*logits));
    const bool have_all = tensors != NULL && names != NULL && logits != NULL;
    enum eep_status status = eep_engine_agree(
        g->engine, "logits",
        have_all ? EEP_OK : EEP_FAIL(EEP_ERR_NOMEM, "no memory for %" PRIu64 " tensors", count));

    for (uint64_t i = 0; i < count && status == EEP_OK; i++) {
        size_t rows;

        status = eep_engine_collect_logits(g->engine, i, &logits[i], &rows);
        if (status == EEP_OK) {
            snprintf(names[i], sizeof(names[i]), "logits.%" PRIu64, eep_engine_tag(g->engine, i));
            tensors[i] = (struct eep_tensor_out){.name = names[i],
                                                 .dtype = EEP_F32,
                                                 .dims = 2,
                                                 .shape = {rows, eep_engine_vocab(g->engine)},
                                                 .data = logits[i]};
        }
    }
    if (status == EEP_OK) {
        if (eep_engine_rank(g->engine) == 0) {
            status = eep_safetensors_write(g->logits_out, tensors, count);
        }
        status = eep_engine_agree(g->engine, "logits file", status);
    }
    for (uint64_t i = 0; logits != NULL && i < count; i++) {
        free(logits[i]);
    }
    free(logits);
    free(names);
    free(tensors);
    return status;
}

static enum eep_status prepare_here(struct generate *g)
{
    char path[4096];

    /* A model that has ids alone is all right. */
    snprintf(path, sizeof(path), "%s/tokenizer.json", g->engine_opts.model);
    g->no_text = access(path, F_OK) != 0 && errno == ENOENT;
    EEP_TRY(eep_engine_load(g->engine));
    return eep_tool_admin_open(&g->admin_opts, g->engine, &g->admin);
}

static enum eep_status prepare(struct generate *g)
{
    EEP_TRY(eep_engine_opts_create(&g->engine_opts, &g->engine));
    if (eep_engine_is_parked(g->engine)) { /* it was spawned, and is given the prompts */
        return prepare_here(g);
    }
    if (g->streaming) {
        eep_engine_open(g->engine);
    } else {
        /* Logits are written at the end, of all prompts. */
        EEP_TRY(eep_engine_agree(g->engine, "delivered answers",
                                 g->logits_out == NULL ? eep_index_read(&g->delivered) : EEP_OK));
        EEP_TRY(eep_prompts_submit(g->engine, &g->source));
    }
    EEP_TRY(eep_engine_agree(g->engine, "results", make_room(g)));
    EEP_TRY(eep_shared_page_open(g->engine, sizeof(*g->page), &g->page));
    return prepare_here(g);
}

static enum eep_status run(struct generate *g)
{
    EEP_TRY(prepare(g));
    EEP_TRY(run_steps(g));
    if (eep_engine_has_left(g->engine) || eep_engine_is_parked(g->engine)) {
        return EEP_OK;
    }
    if (g->logits_out != NULL) {
        EEP_TRY(write_logits(g));
    }
    if (!g->json && eep_print_facts(g->engine) != EEP_OK) {
        /* A rank may be lost when all is printed; that spoils nothing. */
        eep_log(EEP_LOG_WARN, "no facts: %s", eep_error_text());
    }
    return EEP_OK;
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

/* The job's exit status is that of its last rank 0. */
static int end(struct generate *g, enum eep_status status)
{
    const bool stops =
        g->engine_opts.on_loss != NULL && strcmp(g->engine_opts.on_loss, "stop") == 0;
    /* Also while it is no rank, or was spawned and did not come to be one. */
    const bool gone_on_without =
        g->engine != NULL ? eep_engine_has_left(g->engine) || eep_engine_is_parked(g->engine)
                          : eep_status_spawned();
    int exit_status;

    eep_tool_admin_close(g->admin);
    eep_stream_close(&g->stream);
    if (gone_on_without || (eep_status_lost(status) >= EEP_LOST_PEER && !stops)) {
        eep_status_file_forget();
    }
    /* Ranks that rank 0 has stopped do not know whether it could print all. */
    if (status == EEP_OK && eep_engine_rank(g->engine) != 0) {
        eep_status_file_forget();
    }
    exit_status = eep_tool_end(g->engine, status);
    if (g->failures > 0 || g->wrong > 0) {
        exit_status = EEP_EXIT_FAILED;
    }
    forget_answers(g);
    free(g->answers);
    free(g->order);
    eep_shared_page_close(g->page, sizeof(*g->page));
    eep_index_free(&g->delivered);
    return exit_status;
}

int eep_cmd_generate(int argc, char **argv)
{
    struct generate g = {.engine_opts.can_park = true,
                         .source.defaults = {.max_tokens = 128, .top_p = 1.0}};
    struct eep_request *d = &g.source.defaults;
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + EEP_TOOL_ADMIN_OPT_COUNT + 12] = {
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
        {"unordered", EEP_OPT_FLAG, &g.unordered, NULL,
         "print each answer as soon as it is there, not in the order of\nthe prompts"},
        {"logits-out", EEP_OPT_STRING, &g.logits_out, "FILE",
         "write the logits that each token was chosen from (safetensors)"},
    };
    int exit_status;

    eep_engine_opts_table(&g.engine_opts, opts + 12);
    eep_tool_admin_table(&g.admin_opts, opts + 12 + EEP_ENGINE_OPT_COUNT);
    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc, argv, NULL);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    exit_status = check_usage(&g);
    if (exit_status == EEP_EXIT_OK) {
        d->keep_logits = g.logits_out != NULL;
        g.admin_opts.model = g.engine_opts.model;
        g.source.delivered = &g.delivered;
        g.streaming = g.json && g.source.file != NULL && strcmp(g.source.file, "-") == 0;
        exit_status = end(&g, run(&g));
    }
    free(g.source.ids.values);
    return exit_status;
}
