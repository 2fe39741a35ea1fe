/* Normalisers: Unicode's four normal forms by utf8proc, Prepend, Replace, and sequences of them. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/text_int.h"

#define WHERE "normalizer"
#define DEPTH_MAX 8

static const struct {
    const char *type;
    int options;
} forms[] = {
    {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
    {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
    {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
};

static enum eep_status load(const char *path, const json_t *json, int depth,
                            struct eep_normalizer *out);

static enum eep_status load_sequence(const char *path, const json_t *json, int depth,
                                     struct eep_normalizer *out)
{
    const json_t *list = json_object_get(json, "normalizers");

    if (!json_is_array(list)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Sequence without a list of normalizers", path,
                        WHERE);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        EEP_TRY(load(path, json_array_get(list, i), depth + 1, out));
    }
    return EEP_OK;
}

static enum eep_status load_prepend(const char *path, const json_t *json,
                                    struct eep_normalize_step *step)
{
    step->with = json_string_value(json_object_get(json, "prepend"));
    return step->with != NULL
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Prepend without prepend", path, WHERE);
}

static enum eep_status load_replace(const char *path, const json_t *json,
                                    struct eep_normalize_step *step)
{
    const json_t *pattern = json_object_get(json, "pattern");

    if (json_object_get(pattern, "Regex") != NULL) {
        return eep_text_unsupported(path, WHERE, "Replace with a Regex");
    }
    step->replace = json_string_value(json_object_get(pattern, "String"));
    step->with = json_string_value(json_object_get(json, "content"));
    if (step->replace == NULL || step->replace[0] == '\0' || step->with == NULL) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Replace without a pattern and content", path,
                        WHERE);
    }
    return EEP_OK;
}

static enum eep_status load(const char *path, const json_t *json, int depth,
                            struct eep_normalizer *out)
{
    const char *type;

    if (depth > DEPTH_MAX || out->count == EEP_NORMALIZE_STEPS_MAX) {
        return eep_text_unsupported(path, WHERE, "more than 8 steps");
    }
    EEP_TRY(eep_text_type(path, WHERE, json, &type));
    if (strcmp(type, "Sequence") == 0) {
        return load_sequence(path, json, depth, out);
    }
    struct eep_normalize_step *step = &out->steps[out->count++];

    if (strcmp(type, "Prepend") == 0) {
        return load_prepend(path, json, step);
    }
    if (strcmp(type, "Replace") == 0) {
        return load_replace(path, json, step);
    }
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (strcmp(type, forms[i].type) == 0) {
            step->form = forms[i].options;
            return EEP_OK;
        }
    }
    return eep_text_unsupported(path, WHERE, type);
}

enum eep_status eep_normalizer_load(const char *path, const json_t *json,
                                    struct eep_normalizer *normalizer_out)
{
    memset(normalizer_out, 0, sizeof(*normalizer_out));
    return json == NULL || json_is_null(json) ? EEP_OK : load(path, json, 0, normalizer_out);
}

/* Is the text in all normal forms as it is: ASCII, or for the composed form below U+0300? */
static bool is_stable(const char *text, size_t bytes, int options)
{
    unsigned char limit =
        (options & UTF8PROC_COMPAT) || !(options & UTF8PROC_COMPOSE) ? 0x80 : 0xcc;

    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] >= limit) {
            return false;
        }
    }
    return true;
}

static enum eep_status apply_form(const char *text, size_t bytes, int options,
                                  struct eep_text_buffer *out)
{
    utf8proc_uint8_t *result = NULL;
    utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                         &result, (utf8proc_option_t)options);

    if (size == UTF8PROC_ERROR_NOMEM) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory to normalise %zu bytes of text", bytes);
    }
    if (size < 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "a text of %zu bytes cannot be normalised: %s", bytes,
                        utf8proc_errmsg(size));
    }
    enum eep_status status = eep_text_append(out, (const char *)result, (size_t)size);

    free(result);
    return status;
}

static enum eep_status apply_replace(const char *text, size_t bytes,
                                     const struct eep_normalize_step *step,
                                     struct eep_text_buffer *out)
{
    size_t length = strlen(step->replace);
    size_t with = strlen(step->with);
    const char *found;

    while (bytes > 0 && (found = memmem(text, bytes, step->replace, length)) != NULL) {
        EEP_TRY(eep_text_append(out, text, (size_t)(found - text)));
        EEP_TRY(eep_text_append(out, step->with, with));
        bytes -= (size_t)(found - text) + length;
        text = found + length;
    }
    return eep_text_append(out, text, bytes);
}

static enum eep_status apply(const char *text, size_t bytes, const struct eep_normalize_step *step,
                             struct eep_text_buffer *out)
{
    if (step->form != 0) {
        return apply_form(text, bytes, step->form, out);
    }
    if (step->replace != NULL) {
        return apply_replace(text, bytes, step, out);
    }
    EEP_TRY(eep_text_append(out, step->with, strlen(step->with)));
    return eep_text_append(out, text, bytes);
}

enum eep_status eep_normalize(const struct eep_normalizer *normalizer, const char *text,
                              size_t bytes, struct eep_text_buffer *out)
{
    struct eep_text_buffer buffers[2] = {{0}, {0}};
    enum eep_status status = EEP_OK;
    size_t turn = 0;

    for (size_t i = 0; i < normalizer->count && bytes > 0; i++) {
        const struct eep_normalize_step *step = &normalizer->steps[i];
        struct eep_text_buffer *next = &buffers[turn]; /* `text` may be in the other one */

        if (step->form != 0 && is_stable(text, bytes, step->form)) {
            continue;
        }
        next->size = 0;
        EEP_TRY_GOTO(apply(text, bytes, step, next), free_buffers);
        text = next->data;
        bytes = next->size;
        turn = 1 - turn;
    }
    status = eep_text_append(out, text, bytes);
free_buffers:
    eep_text_buffer_free(&buffers[0]);
    eep_text_buffer_free(&buffers[1]);
    return status;
}
