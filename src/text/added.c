/*
 * Added tokens: strings that are found in the text before anything else is done with it, special
 * ones such as <|endoftext|> among them. At each place the longest one wins.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/text_int.h"

#define WHERE "added_tokens"

enum eep_status eep_added_token_read(const char *path, const json_t *json,
                                     struct eep_added_token *token_out)
{
    const json_t *content = json_object_get(json, "content");
    struct eep_added_token token;

    if (!json_is_string(content)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: an entry has no content", path, WHERE);
    }
    token.text = json_string_value(content);
    token.bytes = json_string_length(content);
    EEP_TRY(eep_text_id(path, token.text, json_object_get(json, "id"), &token.id));
    EEP_TRY(eep_text_bool(path, WHERE, json, "special", false, &token.special));
    EEP_TRY(eep_text_bool(path, WHERE, json, "normalized", !token.special, &token.normalized));
    EEP_TRY(eep_text_bool(path, WHERE, json, "single_word", false, &token.single_word));
    EEP_TRY(eep_text_bool(path, WHERE, json, "lstrip", false, &token.lstrip));
    EEP_TRY(eep_text_bool(path, WHERE, json, "rstrip", false, &token.rstrip));
    *token_out = token;
    return EEP_OK;
}

static int by_first_and_length(const void *left, const void *right)
{
    const struct eep_added_pattern *a = left;
    const struct eep_added_pattern *b = right;

    if (a->text[0] != b->text[0]) {
        return (unsigned char)a->text[0] < (unsigned char)b->text[0] ? -1 : 1;
    }
    if (a->bytes != b->bytes) {
        return a->bytes > b->bytes ? -1 : 1;
    }
    return a->token < b->token ? -1 : a->token > b->token; /* of equals the first in the file */
}

static enum eep_status add_pattern(struct eep_added *added, const struct eep_added_token *token,
                                   const struct eep_normalizer *normalizer)
{
    struct eep_text_buffer text = {0};
    enum eep_status status = token->normalized
                                 ? eep_normalize(normalizer, token->text, token->bytes, &text)
                                 : eep_text_append(&text, token->text, token->bytes);

    if (status != EEP_OK || text.size == 0) { /* an empty one is never found */
        eep_text_buffer_free(&text);
        return status;
    }
    added->patterns[added->count++] = (struct eep_added_pattern){token, text.data, text.size};
    return EEP_OK;
}

enum eep_status eep_added_init(struct eep_added *added, const struct eep_added_token *tokens,
                               size_t count, bool normalized,
                               const struct eep_normalizer *normalizer)
{
    EEP_TRY(eep_mem_alloc(count, sizeof(*added->patterns), "added tokens", &added->patterns));
    for (size_t i = 0; i < count; i++) {
        if (tokens[i].normalized == normalized) {
            EEP_TRY(add_pattern(added, &tokens[i], normalizer));
        }
    }
    qsort(added->patterns, added->count, sizeof(*added->patterns), by_first_and_length);
    for (size_t i = 0; i < added->count; i++) {
        added->first[(unsigned char)added->patterns[i].text[0] + 1]++;
    }
    for (size_t byte = 0; byte < 256; byte++) {
        added->first[byte + 1] += added->first[byte];
    }
    return EEP_OK;
}

void eep_added_free(struct eep_added *added)
{
    for (size_t i = 0; i < added->count; i++) {
        eep_mem_free(added->patterns[i].text);
    }
    eep_mem_free(added->patterns);
    memset(added, 0, sizeof(*added));
}

/* The longest pattern at the beginning of `text`, or NULL. */
static const struct eep_added_pattern *pattern_at(const struct eep_added *added, const char *text,
                                                  size_t bytes)
{
    unsigned char byte = (unsigned char)text[0];

    for (uint32_t i = added->first[byte]; i < added->first[byte + 1]; i++) {
        const struct eep_added_pattern *pattern = &added->patterns[i];

        if (pattern->bytes <= bytes && memcmp(pattern->text, text, pattern->bytes) == 0) {
            return pattern;
        }
    }
    return NULL;
}

static bool stands_alone(const char *text, size_t bytes, size_t begin, size_t end)
{
    bool word_before =
        begin > 0 && eep_utf8_is_word(eep_utf8_decode(text + eep_utf8_before(text, begin)));
    bool word_after = end < bytes && eep_utf8_is_word(eep_utf8_decode(text + end));

    return !word_before && !word_after;
}

/* Take in the white space beside a token that asks for it, back to `floor`. */
static void widen(const struct eep_added_token *token, const char *text, size_t bytes, size_t floor,
                  size_t *begin, size_t *end)
{
    while (token->lstrip && *begin > floor) {
        size_t before = eep_utf8_before(text, *begin);

        if (!eep_utf8_is_space(eep_utf8_decode(text + before))) {
            break;
        }
        *begin = before;
    }
    while (token->rstrip && *end < bytes && eep_utf8_is_space(eep_utf8_decode(text + *end))) {
        *end += eep_utf8_length(text + *end, bytes - *end);
    }
}

enum eep_status eep_added_cut(const struct eep_added *added, const char *text, size_t bytes,
                              eep_stretch_fn take, void *context)
{
    size_t last = 0; /* all before it is taken */
    size_t at = 0;

    while (added->count > 0 && at < bytes) {
        const struct eep_added_pattern *pattern = pattern_at(added, text + at, bytes - at);

        if (pattern == NULL) {
            at++;
            continue;
        }
        size_t begin = at;
        size_t end = at + pattern->bytes;

        at = end;
        if (pattern->token->single_word && !stands_alone(text, bytes, begin, end)) {
            continue;
        }
        widen(pattern->token, text, bytes, last, &begin, &end);
        if (begin > last) {
            EEP_TRY(take(context, NULL, text + last, begin - last));
        }
        EEP_TRY(take(context, pattern->token, text + begin, end - begin));
        last = end; /* but at: white space taken in may hold the next token */
    }
    return last < bytes ? take(context, NULL, text + last, bytes - last) : EEP_OK;
}
