/* `eep eval`: perplexity of a text in windows, each from an empty cache. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/engine_opts.h"
#include "tools/tools.h"

static const struct eep_command_help help = {
    .usage = "eep eval --model DIR --text FILE [options]",
    .summary = "Perplexity of a text: its tokens are cut into windows without overlap, each is\n"
               "scored from an empty cache (tokens 1 .. window-1 of it), the rest is dropped.",
    .epilog = "--json prints {\"tokens\": scored tokens, \"nll\": their negative log-likelihood\n"
              "(sum, natural logarithm), \"mean_nll\": nll / tokens, \"perplexity\":\n"
              "exp(mean_nll), \"windows\": ..., \"text_tokens\": ...}.",
};

struct eval {
    struct eep_engine_opts engine_opts;
    const char *text;
    uint32_t window;
    bool json;

    struct eep_engine *engine;
    uint32_t *ids;
    size_t id_count;
    size_t windows;
    double *nll; /* (windows) */
};

/* The text's ids on every rank. */
static enum eep_status read_text(struct eval *v)
{
    enum eep_status status = EEP_OK;
    void *ids = NULL;
    size_t bytes = 0, count = 0;

    if (eep_engine_rank(v->engine) == 0) {
        uint32_t *encoded = NULL;
        char *text;

        status = eep_read_file(v->text, &text, &bytes);
        if (status == EEP_OK) {
            status = eep_engine_encode(v->engine, text, bytes, &encoded, &count);
            free(text);
        }
        ids = encoded;
        bytes = count * sizeof(*v->ids);
    }
    status = eep_share_buffer(v->engine, status, &ids, &bytes);
    v->ids = ids;
    v->id_count = bytes / sizeof(*v->ids);
    return status;
}

static enum eep_status submit_windows(struct eval *v)
{
    size_t window = v->window;

    if (v->id_count < 2) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: %zu tokens are too few to score; 2 are needed",
                        v->text, v->id_count);
    }
    window = window < v->id_count ? window : v->id_count; /* a short text is one short window */
    v->windows = v->id_count / window;
    v->nll = calloc(v->windows, sizeof(*v->nll));
    EEP_TRY(eep_engine_agree(
        v->engine, "windows",
        v->nll != NULL ? EEP_OK
                       : EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu windows", v->windows)));
    for (size_t w = 0; w < v->windows; w++) {
        const struct eep_request request = {
            .prompt = v->ids + w * window, .prompt_count = window, .top_p = 1.0, .score = true};
        uint64_t id;

        EEP_TRY(eep_engine_submit(v->engine, &request, &id));
    }
    v->window = (uint32_t)window;
    return EEP_OK;
}

static enum eep_status run_steps(struct eval *v)
{
    const bool shows = eep_engine_rank(v->engine) == 0 && isatty(STDERR_FILENO);
    struct eep_event event;
    size_t done = 0;
    bool idle = false;

    while (!idle) {
        EEP_TRY(eep_engine_step(v->engine, &idle));
        while (eep_engine_next_event(v->engine, &event)) {
            if (event.kind == EEP_EVENT_FAILED) {
                return EEP_FAIL(EEP_ERR_FORMAT, "window %llu: %s",
                                (unsigned long long)event.request, event.reason);
            }
            v->nll[event.request] = event.nll;
            done++;
        }
        if (shows) {
            fprintf(stderr, "\rscoring %zu of %zu windows%s", done, v->windows,
                    idle ? "\r\033[K" : "");
        }
    }
    return EEP_OK;
}

static enum eep_status print_result(const struct eval *v)
{
    const double tokens = (double)v->windows * (v->window - 1);
    double nll = 0.0;

    for (size_t w = 0; w < v->windows; w++) {
        nll += v->nll[w]; /* in the order of the text, whoever scored them */
    }
    if (v->json) {
        json_t *line =
            json_pack("{s:I, s:f, s:f, s:f, s:I, s:I}", "tokens", (json_int_t)tokens, "nll", nll,
                      "mean_nll", nll / tokens, "perplexity", exp(nll / tokens), "windows",
                      (json_int_t)v->windows, "text_tokens", (json_int_t)v->id_count);
        if (line == NULL || json_dumpf(line, stdout, JSON_COMPACT) != 0) {
            json_decref(line);
            return EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
        }
        json_decref(line);
        putchar('\n');
    } else {
        printf("perplexity %.4f (%.0f tokens in %zu windows of %u, mean nll %.6f)\n",
               exp(nll / tokens), tokens, v->windows, v->window, nll / tokens);
    }
    return fflush(stdout) == 0 ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

static enum eep_status run(struct eval *v)
{
    enum eep_status status = EEP_OK;

    EEP_TRY(eep_engine_opts_create(&v->engine_opts, &v->engine));
    EEP_TRY(read_text(v));
    EEP_TRY(submit_windows(v));
    EEP_TRY(eep_engine_load(v->engine));
    EEP_TRY(run_steps(v));
    if (eep_engine_rank(v->engine) == 0) {
        status = print_result(v);
    }
    EEP_TRY(eep_engine_agree(v->engine, "result", status));
    return v->json ? EEP_OK : eep_print_facts(v->engine);
}

int eep_cmd_eval(int argc, char **argv)
{
    struct eval v = {.window = 256};
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + 3] = {
        {"text", EEP_OPT_STRING, &v.text, "FILE", "UTF-8 text; - is standard input (needed)"},
        {"window", EEP_OPT_U32, &v.window, "N", "tokens of a window, 2 or more (default 256)"},
        {"json", EEP_OPT_FLAG, &v.json, NULL, "the result as one JSON object"},
    };

    const int ended = eep_engine_opts_parse(&help, &v.engine_opts, opts, 3, argc, argv);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (v.text == NULL) {
        return eep_opts_wrong(&help, "--text is needed");
    }
    if (v.window < 2) {
        return eep_opts_wrong(&help, "--window must be 2 or more");
    }
    const enum eep_status status = run(&v);
    const int exit_status = eep_tool_end(v.engine, status);
    free(v.ids);
    free(v.nll);
    return exit_status;
}
