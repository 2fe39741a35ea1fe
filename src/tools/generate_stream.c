#include "tools/generate_stream.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tools/prompts.h"

#define UNFINISHED_MAX 4096 /* then the input waits */
#define LINES_PER_STEP 256
#define IDLE_WAIT_MS 20 /* the other ranks wait for rank 0's next step meanwhile */

static enum eep_status add_wrong(struct eep_stream *s, const char *text)
{
    struct eep_wrong_line *line;

    if (s->wrong_met++ < s->past.wrong) {
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(1, sizeof(*line), "a wrong line", &line));
    line->index = s->index;
    line->after = s->requests;
    line->text = strdup(text);
    if (line->text == NULL) {
        eep_mem_free(line);
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for a wrong line");
    }
    *s->wrong_end = line;
    s->wrong_end = &line->next;
    return EEP_OK;
}

void eep_stream_drop_wrong(struct eep_stream *s)
{
    struct eep_wrong_line *line = s->wrong;

    s->wrong = line->next;
    if (s->wrong == NULL) {
        s->wrong_end = &s->wrong;
    }
    free(line->text);
    eep_mem_free(line);
}

static bool is_wrong_line(enum eep_status status)
{
    return status == EEP_ERR_INVALID || status == EEP_ERR_FORMAT || status == EEP_ERR_UNSUPPORTED;
}

/* An answer that was delivered, or a request that an earlier rank 0 had handed in. */
static bool is_past(struct eep_stream *s)
{
    if (s->requests < s->past.requests && eep_engine_tag(s->engine, s->requests) == s->index) {
        s->requests++;
        return true;
    }
    return eep_index_has(s->delivered, s->index);
}

/* The request that was parsed last; it stays held while the engine has no room. */
static enum eep_status post_held(struct eep_stream *s)
{
    enum eep_status status = eep_engine_post(s->engine, &s->held);

    if (status == EEP_ERR_AGAIN) {
        return EEP_OK;
    }
    s->is_held = false;
    free((void *)(uintptr_t)s->held.prompt);
    if (status == EEP_OK) {
        s->requests++;
    } else if (is_wrong_line(status)) {
        status = add_wrong(s, eep_error_text());
    }
    s->index++;
    return status;
}

static enum eep_status take_line(struct eep_stream *s, const char *line, size_t bytes)
{
    if (eep_prompts_blank(line, bytes)) {
        return EEP_OK;
    }
    if (is_past(s)) {
        s->index++;
        return EEP_OK;
    }
    enum eep_status status = eep_prompts_parse(s->engine, s->defaults, line, bytes, &s->held);

    if (status == EEP_OK) {
        s->held.tag = s->index;
        s->is_held = true;
        return post_held(s);
    }
    if (is_wrong_line(status)) {
        status = add_wrong(s, eep_error_text());
        s->index++;
    }
    return status;
}

static enum eep_status take_lines(struct eep_stream *s)
{
    const uint64_t first = s->requests;

    if (s->is_held) {
        EEP_TRY(post_held(s));
    }
    while (!s->ended && !s->is_held && s->requests - first < LINES_PER_STEP &&
           eep_engine_unfinished(s->engine) < UNFINISHED_MAX) {
        const char *line;
        size_t bytes;

        EEP_TRY(eep_input_line(s->input, &line, &bytes, &s->ended));
        if (line == NULL) {
            break;
        }
        EEP_TRY(take_line(s, line, bytes));
    }
    return EEP_OK;
}

enum eep_status eep_stream_take(struct eep_stream *s)
{
    EEP_TRY(take_lines(s));
    if (!s->ended && s->requests == eep_engine_requests(s->engine) && s->wrong == NULL &&
        eep_engine_unfinished(s->engine) == 0) {
        eep_input_wait(s->input, IDLE_WAIT_MS);
        EEP_TRY(take_lines(s));
    }
    if (s->ended && !s->is_held) {
        eep_engine_close_input(s->engine);
    }
    return EEP_OK;
}

/* What a pipe gave to a rank 0 that is lost cannot be read again. */
static enum eep_status pass_lines_of_pipe(struct eep_stream *s)
{
    for (; s->index < s->past.lines; s->index++) {
        if (!is_past(s)) {
            EEP_TRY(add_wrong(s, "the line was read by a rank that was lost, and cannot be read "
                                 "again; under eep launch it can"));
        }
    }
    return EEP_OK;
}

enum eep_status eep_stream_open(struct eep_stream *s, struct eep_engine *engine,
                                const struct eep_request *defaults,
                                const struct eep_index_set *delivered,
                                const struct eep_stream_past *past)
{
    *s = (struct eep_stream){
        .engine = engine, .defaults = defaults, .delivered = delivered, .past = *past};
    s->wrong_end = &s->wrong;
    EEP_TRY(eep_input_open(&s->input));
    return eep_input_is_file(s->input) ? EEP_OK : pass_lines_of_pipe(s);
}

void eep_stream_close(struct eep_stream *s)
{
    while (s->wrong != NULL) {
        eep_stream_drop_wrong(s);
    }
    if (s->is_held) {
        free((void *)(uintptr_t)s->held.prompt);
    }
    eep_input_close(s->input);
    *s = (struct eep_stream){0};
}
