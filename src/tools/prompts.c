/*
 * Prompts travel from rank 0 to all ranks as one buffer: for each, the request with its prompt
 * count, then the ids.
 */
#include "tools/prompts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tools/engine_opts.h"

struct buffer {
    unsigned char *data;
    size_t bytes;
    size_t capacity;
    uint64_t count; /* requests, with those that were left out */
    const struct eep_index_set *delivered;
};

static enum eep_status append(struct buffer *b, const void *data, size_t bytes)
{
    if (b->bytes + bytes > b->capacity) {
        const size_t capacity = 2 * (b->bytes + bytes) + 4096;
        void *grown = realloc(b->data, capacity);

        if (grown == NULL) {
            return EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu bytes of prompts", capacity);
        }
        b->data = grown;
        b->capacity = capacity;
    }
    memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return EEP_OK;
}

/* A request and its prompt, which is given up. */
static enum eep_status append_request(struct buffer *b, struct eep_request *request)
{
    uint32_t *ids = (uint32_t *)(uintptr_t)request->prompt;
    enum eep_status status = EEP_OK;

    request->prompt = NULL;
    request->tag = b->count++;
    if (!eep_index_has(b->delivered, request->tag)) {
        status = append(b, request, sizeof(*request));
        if (status == EEP_OK) {
            status = append(b, ids, request->prompt_count * sizeof(*ids));
        }
    }
    free(ids);
    return status;
}

static enum eep_status take_text(struct eep_engine *engine, const char *text, size_t bytes,
                                 struct eep_request *request)
{
    uint32_t *ids;

    EEP_TRY(eep_engine_encode(engine, text, bytes, &ids, &request->prompt_count));
    request->prompt = ids;
    return EEP_OK;
}

static enum eep_status take_ids(const json_t *list, struct eep_request *request)
{
    const size_t count = json_array_size(list);
    uint32_t *ids = malloc((count > 0 ? count : 1) * sizeof(*ids));

    if (ids == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu prompt ids", count);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(list, i);

        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > UINT32_MAX) {
            free(ids);
            return EEP_FAIL(EEP_ERR_FORMAT, "prompt_ids[%zu] is no token id", i);
        }
        ids[i] = (uint32_t)json_integer_value(id);
    }
    request->prompt = ids;
    request->prompt_count = count;
    return EEP_OK;
}

static enum eep_status wrong_field(const char *key, const char *wanted)
{
    return EEP_FAIL(EEP_ERR_FORMAT, "'%s' must be %s", key, wanted);
}

static enum eep_status read_count(const json_t *value, const char *key, uint64_t max,
                                  uint64_t *count_out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > max) {
        return wrong_field(key, "a whole number, 0 or more");
    }
    *count_out = (uint64_t)json_integer_value(value);
    return EEP_OK;
}

/* One optional field of a line into the request. */
static enum eep_status read_field(const char *key, const json_t *value, struct eep_request *r)
{
    uint64_t count;

    if (strcmp(key, "max_tokens") == 0 || strcmp(key, "top_k") == 0) {
        EEP_TRY(read_count(value, key, UINT32_MAX, &count));
        *(key[0] == 'm' ? &r->max_tokens : &r->top_k) = (uint32_t)count;
        return EEP_OK;
    }
    if (strcmp(key, "seed") == 0) {
        return read_count(value, key, INT64_MAX, &r->seed);
    }
    if (strcmp(key, "temperature") == 0 || strcmp(key, "top_p") == 0) {
        if (!json_is_number(value)) {
            return wrong_field(key, "a number");
        }
        *(key[1] == 'e' ? &r->temperature : &r->top_p) = json_number_value(value);
        return EEP_OK;
    }
    if (strcmp(key, "ignore_eos") == 0) {
        if (!json_is_boolean(value)) {
            return wrong_field(key, "true or false");
        }
        r->ignore_eos = json_is_true(value);
        return EEP_OK;
    }
    if (strcmp(key, "prompt") == 0 || strcmp(key, "prompt_ids") == 0) {
        return EEP_OK;
    }
    return EEP_FAIL(EEP_ERR_FORMAT,
                    "unknown field '%s'; known: prompt, prompt_ids, max_tokens, temperature, "
                    "top_k, top_p, seed, ignore_eos",
                    key);
}

static enum eep_status take_line(struct eep_engine *engine, json_t *line,
                                 struct eep_request *request)
{
    const json_t *text = json_object_get(line, "prompt"),
                 *ids = json_object_get(line, "prompt_ids");
    const char *key;
    json_t *value;

    if (!json_is_object(line)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "not a JSON object");
    }
    json_object_foreach(line, key, value)
    {
        EEP_TRY(read_field(key, value, request));
    }
    if ((text != NULL) == (ids != NULL)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "needs either 'prompt' or 'prompt_ids'");
    }
    if (text != NULL) {
        return json_is_string(text)
                   ? take_text(engine, json_string_value(text), json_string_length(text), request)
                   : wrong_field("prompt", "a string");
    }
    return json_is_array(ids) ? take_ids(ids, request)
                              : wrong_field("prompt_ids", "a list of token ids");
}

enum eep_status eep_prompts_parse(struct eep_engine *engine, const struct eep_request *defaults,
                                  const char *line, size_t bytes, struct eep_request *request_out)
{
    json_error_t error;
    json_t *json = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    enum eep_status status;

    *request_out = *defaults;
    status = json != NULL ? take_line(engine, json, request_out)
                          : EEP_FAIL(EEP_ERR_FORMAT, "not valid JSON: %s", error.text);
    json_decref(json);
    return status;
}

bool eep_prompts_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (strchr(" \t\r", text[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static enum eep_status read_lines(struct eep_engine *engine, struct buffer *b,
                                  const struct eep_prompt_source *source, const char *data,
                                  size_t bytes)
{
    size_t number = 1;

    for (size_t at = 0; at < bytes; number++) {
        const char *end = memchr(data + at, '\n', bytes - at);
        const size_t length = end != NULL ? (size_t)(end - data) - at : bytes - at;
        enum eep_status status = EEP_OK;

        if (!eep_prompts_blank(data + at, length)) {
            struct eep_request request;

            status = eep_prompts_parse(engine, &source->defaults, data + at, length, &request);
            if (status == EEP_OK) {
                status = append_request(b, &request);
            }
        }
        if (status != EEP_OK) {
            return eep_fail_context(status, "%s, line %zu", source->file, number);
        }
        at += length + 1;
    }
    return b->count > 0 ? EEP_OK
                        : EEP_FAIL(EEP_ERR_FORMAT, "%s: there is no prompt in it", source->file);
}

/* Rank 0: all prompts into one buffer. */
static enum eep_status read_prompts(struct eep_engine *engine,
                                    const struct eep_prompt_source *source, struct buffer *b)
{
    char *data;
    size_t bytes;
    struct eep_request request = source->defaults;

    if (source->text != NULL) {
        EEP_TRY(take_text(engine, source->text, strlen(source->text), &request));
        return append_request(b, &request);
    }
    if (source->file == NULL) {
        const size_t size = source->ids.count * sizeof(uint32_t);
        uint32_t *ids = malloc(size > 0 ? size : 1);

        if (ids == NULL) {
            return EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu prompt ids", source->ids.count);
        }
        memcpy(ids, source->ids.values, size);
        request.prompt = ids;
        request.prompt_count = source->ids.count;
        return append_request(b, &request);
    }
    EEP_TRY(eep_read_file(source->file, &data, &bytes));
    const enum eep_status status = read_lines(engine, b, source, data, bytes);
    free(data);
    return status;
}

/* All ranks: submit what the buffer holds. */
static enum eep_status submit_all(struct eep_engine *engine, const struct buffer *b)
{
    size_t at = 0;

    while (at < b->bytes) {
        struct eep_request request;
        uint64_t id;

        memcpy(&request, b->data + at, sizeof(request));
        at += sizeof(request);
        request.prompt = (const uint32_t *)(b->data + at); /* sizes are multiples of 4 */
        at += request.prompt_count * sizeof(uint32_t);
        EEP_TRY(eep_engine_submit(engine, &request, &id));
    }
    return EEP_OK;
}

enum eep_status eep_prompts_submit(struct eep_engine *engine,
                                   const struct eep_prompt_source *source)
{
    struct buffer b = {.delivered = source->delivered};
    enum eep_status status = EEP_OK;
    void *data;

    if (eep_engine_rank(engine) == 0) {
        status = read_prompts(engine, source, &b);
    }
    data = b.data;
    status = eep_share_buffer(engine, status, &data, &b.bytes);
    b.data = data;
    if (status == EEP_OK) {
        status = submit_all(engine, &b);
    }
    free(b.data);
    return status;
}
