/*
 * JSON files by jansson, strictly: the top value is an object, no name occurs twice, nothing
 * follows. Jansson names a doubled key only when it is short, so it is looked up in the text here.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/ckpt_int.h"

/* Byte offset of the quote that opens the string whose closing quote is at `end`. */
static size_t string_start(const char *text, size_t end)
{
    size_t start = end;

    while (start > 0) {
        size_t slashes = 0;

        start--;
        if (text[start] != '"') {
            continue;
        }
        while (slashes < start && text[start - 1 - slashes] == '\\') {
            slashes++;
        }
        if (slashes % 2 == 0) {
            break;
        }
    }
    return start;
}

static enum eep_status fail_duplicate(const char *text, size_t bytes, const char *path,
                                      const json_error_t *error)
{
    /* jansson stops right after the second occurrence of the key */
    size_t end = error->position > 0 ? (size_t)error->position - 1 : 0;

    if (end >= bytes || text[end] != '"') {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: duplicate name in line %d: %s", path, error->line,
                        error->text);
    }
    size_t start = string_start(text, end) + 1;
    size_t length = end > start ? end - start : 0;

    return EEP_FAIL(EEP_ERR_FORMAT, "%s: duplicate name '%.*s': it must occur once", path,
                    (int)EEP_MIN(length, (size_t)200), text + start);
}

enum eep_status eep_json_parse(const char *text, size_t bytes, const char *path, json_t **json_out)
{
    json_error_t error;
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);

    if (json == NULL) {
        switch (json_error_code(&error)) {
        case json_error_out_of_memory:
            return EEP_FAIL(EEP_ERR_NOMEM, "%s: out of memory while parsing JSON", path);
        case json_error_duplicate_key:
            return fail_duplicate(text, bytes, path, &error);
        default:
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: is not valid JSON: line %d, column %d: %s", path,
                            error.line, error.column, error.text);
        }
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: the JSON in it is not an object", path);
    }
    *json_out = json;
    return EEP_OK;
}

enum eep_status eep_json_load(const char *path, size_t max_bytes, json_t **json_out)
{
    enum eep_status status = EEP_OK;
    uint64_t bytes;
    char *text = NULL;
    int fd;

    EEP_TRY(eep_ckpt_open_file(path, &fd, &bytes));
    if (bytes > max_bytes) {
        status = EEP_FAIL(EEP_ERR_FORMAT, "%s: %llu bytes are above the limit of %zu for this file",
                          path, (unsigned long long)bytes, max_bytes);
        goto close_file;
    }
    EEP_TRY_GOTO(eep_mem_alloc((size_t)bytes, 1, path, &text), close_file);
    EEP_TRY_GOTO(eep_ckpt_read_at(fd, path, 0, (size_t)bytes, text), free_text);
    status = eep_json_parse(text, (size_t)bytes, path, json_out);
free_text:
    eep_mem_free(text);
close_file:
    close(fd);
    return status;
}
