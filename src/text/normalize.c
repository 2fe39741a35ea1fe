/* Normalisers: Unicode's four normal forms by utf8proc, and sequences of them. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/assert.h"
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
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (strcmp(type, forms[i].type) == 0) {
            out->options[out->count++] = forms[i].options;
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

/* One step, from `text` to a new block for free(). */
static enum eep_status apply(const char *text, size_t bytes, int options, char **result_out,
                             size_t *bytes_out)
{
    utf8proc_uint8_t *result;
    utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                         &result, (utf8proc_option_t)options);

    if (size == UTF8PROC_ERROR_NOMEM) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory to normalise %zu bytes of text", bytes);
    }
    if (size < 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "a text of %zu bytes cannot be normalised: %s", bytes,
                        utf8proc_errmsg(size));
    }
    *result_out = (char *)result;
    *bytes_out = (size_t)size;
    return EEP_OK;
}

enum eep_status eep_normalize(const struct eep_normalizer *normalizer, const char *text,
                              size_t bytes, struct eep_text_buffer *out)
{
    char *own = NULL;

    for (size_t step = 0; step < normalizer->count && bytes > 0; step++) {
        char *result = NULL;
        size_t size = 0;

        if (is_stable(text, bytes, normalizer->options[step])) {
            continue;
        }
        enum eep_status status = apply(text, bytes, normalizer->options[step], &result, &size);

        free(own);
        if (status != EEP_OK) {
            return status;
        }
        text = own = result;
        bytes = size;
    }
    enum eep_status status = eep_text_append(out, text, bytes);
    free(own);
    return status;
}
