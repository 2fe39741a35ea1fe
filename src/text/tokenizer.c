/* The tokenizer: reads tokenizer.json, and runs the parts in the order of text_int.h. */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "text/text_int.h"

#define FILE_NAME "tokenizer.json"
#define FILE_BYTES_MAX ((size_t)256 << 20)

/* A token as text output has it. */
struct token {
    const char *text; /* in token_bytes; NULL where there is no token of that id */
    uint32_t bytes;
    bool special;
    bool is_byte; /* one byte, of a character that has no token */
};

struct eep_tokenizer {
    char *path;
    json_t *json; /* owns the strings of vocabulary and added tokens */
    struct eep_normalizer normalizer;
    struct eep_pretokenizer pretokenizer;
    struct eep_bpe *bpe;
    struct eep_added_token *added;
    size_t added_count;
    struct eep_added in_raw;        /* matched in the text as it is */
    struct eep_added in_normalized; /* matched after normalisation */
    struct eep_template template;
    struct eep_decoder decoder;
    struct token *tokens; /* (size) */
    uint32_t size;
    char *token_bytes;
};

/* ---- loading ---- */

static enum eep_status read_added(struct eep_tokenizer *tokenizer)
{
    const json_t *list = eep_text_get(tokenizer->json, "added_tokens");

    if (list != NULL && !json_is_array(list)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: added_tokens is not a list", tokenizer->path);
    }
    EEP_TRY(eep_mem_alloc(json_array_size(list), sizeof(*tokenizer->added), "added tokens",
                          &tokenizer->added));
    for (size_t i = 0; i < json_array_size(list); i++) {
        EEP_TRY(
            eep_added_token_read(tokenizer->path, json_array_get(list, i), &tokenizer->added[i]));
        tokenizer->added_count++;
    }
    EEP_TRY(eep_added_init(&tokenizer->in_raw, tokenizer->added, tokenizer->added_count, false,
                           &tokenizer->normalizer));
    return eep_added_init(&tokenizer->in_normalized, tokenizer->added, tokenizer->added_count, true,
                          &tokenizer->normalizer);
}

static void count_added(const struct eep_added *set, uint32_t *size, size_t *bytes)
{
    for (size_t i = 0; i < set->count; i++) {
        *size = EEP_MAX(*size, set->patterns[i].token->id + 1);
        *bytes += set->patterns[i].bytes;
    }
}

/* Sizes of the tables of tokens by id; the ids have been checked. */
static void count_tokens(const struct eep_tokenizer *tokenizer, json_t *vocab, uint32_t *size_out,
                         size_t *bytes_out)
{
    const char *text;
    json_t *value;
    uint32_t size = 0;
    size_t bytes = 0;

    json_object_foreach(vocab, text, value)
    {
        size = EEP_MAX(size, (uint32_t)json_integer_value(value) + 1);
        bytes += strlen(text);
    }
    count_added(&tokenizer->in_raw, &size, &bytes);
    count_added(&tokenizer->in_normalized, &size, &bytes);
    *size_out = size;
    *bytes_out = bytes;
}

/* Store what a token's text stands for. */
static void store_token(const struct eep_decoder *decoder, struct token *token, const char *text,
                        size_t bytes, char **store)
{
    size_t used;

    token->is_byte = eep_decoder_token(decoder, text, bytes, *store, &used);
    token->text = *store;
    token->bytes = (uint32_t)used;
    *store += used;
}

static enum eep_status store_vocab(struct eep_tokenizer *tokenizer, json_t *vocab, char **store)
{
    const char *text;
    json_t *value;

    json_object_foreach(vocab, text, value)
    {
        struct token *token = &tokenizer->tokens[json_integer_value(value)];

        if (token->text != NULL) {
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: model: vocab has two tokens with the id %lld",
                            tokenizer->path, (long long)json_integer_value(value));
        }
        store_token(&tokenizer->decoder, token, text, strlen(text), store);
    }
    return EEP_OK;
}

/* An added token is shown as it is looked for: normalised, if it is matched in such text. */
static enum eep_status store_added(struct eep_tokenizer *tokenizer, const struct eep_added *set,
                                   char **store)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct eep_added_token *added = set->patterns[i].token;
        struct token *token = &tokenizer->tokens[added->id];
        uint32_t known = eep_bpe_find(tokenizer->bpe, added->text);

        if (known != EEP_NO_TOKEN ? known != added->id : token->text != NULL) {
            return EEP_FAIL(EEP_ERR_FORMAT,
                            "%s: added_tokens: '%.200s' has the id %u, but there is another token "
                            "or id for it",
                            tokenizer->path, added->text, added->id);
        }
        store_token(&tokenizer->decoder, token, set->patterns[i].text, set->patterns[i].bytes,
                    store);
        token->special = added->special;
    }
    return EEP_OK;
}

static enum eep_status build_tokens(struct eep_tokenizer *tokenizer)
{
    json_t *vocab = json_object_get(json_object_get(tokenizer->json, "model"), "vocab");
    size_t bytes;

    count_tokens(tokenizer, vocab, &tokenizer->size, &bytes);
    if (tokenizer->size == 0) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: has no tokens", tokenizer->path);
    }
    EEP_TRY(
        eep_mem_alloc(tokenizer->size, sizeof(*tokenizer->tokens), "tokens", &tokenizer->tokens));
    EEP_TRY(eep_mem_alloc(bytes, 1, "bytes of tokens", &tokenizer->token_bytes));
    char *store = tokenizer->token_bytes;

    EEP_TRY(store_vocab(tokenizer, vocab, &store));
    EEP_TRY(store_added(tokenizer, &tokenizer->in_raw, &store));
    return store_added(tokenizer, &tokenizer->in_normalized, &store);
}

static enum eep_status check_template_ids(const struct eep_tokenizer *tokenizer,
                                          const struct eep_id_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->ids[i] >= tokenizer->size || tokenizer->tokens[list->ids[i]].text == NULL) {
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: post_processor: there is no token with the id %u",
                            tokenizer->path, list->ids[i]);
        }
    }
    return EEP_OK;
}

static enum eep_status load_parts(struct eep_tokenizer *tokenizer)
{
    const char *path = tokenizer->path;
    json_t *json = tokenizer->json;

    EEP_TRY(eep_normalizer_load(path, json_object_get(json, "normalizer"), &tokenizer->normalizer));
    EEP_TRY(eep_pretokenizer_load(path, json_object_get(json, "pre_tokenizer"),
                                  &tokenizer->pretokenizer));
    EEP_TRY(eep_bpe_load(path, json_object_get(json, "model"), tokenizer->pretokenizer.bytes,
                         &tokenizer->bpe));
    json_object_del(json_object_get(json, "model"),
                    "merges"); /* half of the memory, and done with */
    EEP_TRY(eep_decoder_load(path, json_object_get(json, "decoder"), tokenizer->pretokenizer.bytes,
                             &tokenizer->decoder));
    EEP_TRY(read_added(tokenizer));
    EEP_TRY(build_tokens(tokenizer));
    EEP_TRY(eep_template_load(path, json_object_get(json, "post_processor"), &tokenizer->template));
    EEP_TRY(check_template_ids(tokenizer, &tokenizer->template.before));
    return check_template_ids(tokenizer, &tokenizer->template.after);
}

static enum eep_status make_path(const char *dir, char **path_out)
{
    size_t bytes = strlen(dir) + sizeof("/" FILE_NAME);

    EEP_TRY(eep_mem_alloc(bytes, 1, "a path", path_out));
    snprintf(*path_out, bytes, "%s/%s", dir, FILE_NAME);
    return EEP_OK;
}

enum eep_status eep_tokenizer_open(const char *dir, struct eep_tokenizer **out)
{
    enum eep_status status;
    struct eep_tokenizer *tokenizer;

    EEP_TRY(eep_mem_alloc(1, sizeof(*tokenizer), "tokenizer", &tokenizer));
    EEP_TRY_GOTO(make_path(dir, &tokenizer->path), close_tokenizer);
    EEP_TRY_GOTO(eep_json_load(tokenizer->path, FILE_BYTES_MAX, &tokenizer->json), close_tokenizer);
    EEP_TRY_GOTO(load_parts(tokenizer), close_tokenizer);
    *out = tokenizer;
    return EEP_OK;
close_tokenizer:
    eep_tokenizer_close(tokenizer);
    return status;
}

void eep_tokenizer_close(struct eep_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    eep_template_free(&tokenizer->template);
    eep_mem_free(tokenizer->token_bytes);
    eep_mem_free(tokenizer->tokens);
    eep_added_free(&tokenizer->in_normalized);
    eep_added_free(&tokenizer->in_raw);
    eep_mem_free(tokenizer->added);
    eep_pretokenizer_free(&tokenizer->pretokenizer);
    eep_bpe_free(tokenizer->bpe);
    json_decref(tokenizer->json);
    eep_mem_free(tokenizer->path);
    eep_mem_free(tokenizer);
}

/* ---- encoding ---- */

struct encoding {
    const struct eep_tokenizer *tokenizer;
    struct eep_pretokenize_work *pretokenize;
    struct eep_bpe_work *bpe;
    struct eep_text_buffer normalized;
    struct eep_id_list out;
    const char *text; /* all of it */
    bool is_first;    /* the stretch in `normalized` is the beginning of the text */
};

static enum eep_status take_piece(void *context, const char *piece, size_t bytes)
{
    struct encoding *encoding = context;

    return eep_bpe_encode(encoding->tokenizer->bpe, encoding->bpe, piece, bytes, &encoding->out);
}

/* A stretch of normalised text, or an added token in it. */
static enum eep_status take_normalized(void *context, const struct eep_added_token *token,
                                       const char *text, size_t bytes)
{
    struct encoding *encoding = context;

    if (token != NULL) {
        return eep_id_append(&encoding->out, token->id);
    }
    bool is_first = encoding->is_first && text == encoding->normalized.data;

    return eep_pretokenize(&encoding->tokenizer->pretokenizer, encoding->pretokenize, text, bytes,
                           is_first, take_piece, encoding);
}

/* A stretch of the text as it is, or an added token in it. */
static enum eep_status take_raw(void *context, const struct eep_added_token *token,
                                const char *text, size_t bytes)
{
    struct encoding *encoding = context;
    struct eep_text_buffer *normalized = &encoding->normalized;

    if (token != NULL) {
        return eep_id_append(&encoding->out, token->id);
    }
    encoding->is_first = text == encoding->text;
    normalized->size = 0;
    EEP_TRY(eep_normalize(&encoding->tokenizer->normalizer, text, bytes, normalized));
    return eep_added_cut(&encoding->tokenizer->in_normalized, normalized->data, normalized->size,
                         take_normalized, encoding);
}

static enum eep_status encode_text(struct encoding *encoding, const char *text, size_t bytes)
{
    size_t at = 0;

    while (at < bytes) {
        size_t valid = eep_utf8_valid_bytes(text + at, bytes - at);

        EEP_TRY(eep_added_cut(&encoding->tokenizer->in_raw, text + at, valid, take_raw, encoding));
        at += valid;
        if (at < bytes) { /* a byte that is part of no character */
            EEP_TRY(take_piece(encoding, text + at, 1));
            at++;
        }
    }
    return EEP_OK;
}

static enum eep_status append_all(struct encoding *encoding, const struct eep_id_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        EEP_TRY(eep_id_append(&encoding->out, list->ids[i]));
    }
    return EEP_OK;
}

static enum eep_status encode(struct encoding *encoding, const char *text, size_t bytes)
{
    const struct eep_tokenizer *tokenizer = encoding->tokenizer;

    EEP_TRY(eep_pretokenize_work_create(&tokenizer->pretokenizer, &encoding->pretokenize));
    EEP_TRY(eep_bpe_work_create(&encoding->bpe));
    EEP_TRY(
        eep_text_grow(&encoding->out.ids, &encoding->out.room, 0, bytes / 4 + 1, sizeof(uint32_t)));
    EEP_TRY(append_all(encoding, &tokenizer->template.before));
    EEP_TRY(encode_text(encoding, text, bytes));
    return append_all(encoding, &tokenizer->template.after);
}

enum eep_status eep_tokenizer_encode(const struct eep_tokenizer *tokenizer, const char *text,
                                     size_t bytes, uint32_t **ids_out, size_t *count_out)
{
    struct encoding encoding = {.tokenizer = tokenizer, .text = text};
    enum eep_status status = encode(&encoding, text, bytes);

    eep_pretokenize_work_destroy(encoding.pretokenize);
    eep_bpe_work_destroy(encoding.bpe);
    eep_text_buffer_free(&encoding.normalized);
    if (status != EEP_OK) {
        eep_mem_free(encoding.out.ids);
        return status;
    }
    *ids_out = encoding.out.ids;
    *count_out = encoding.out.count;
    return EEP_OK;
}

/* ---- tokens and decoding ---- */

uint32_t eep_tokenizer_size(const struct eep_tokenizer *tokenizer)
{
    return tokenizer->size;
}

const char *eep_tokenizer_token(const struct eep_tokenizer *tokenizer, uint32_t id,
                                size_t *bytes_out)
{
    if (id >= tokenizer->size || tokenizer->tokens[id].text == NULL) {
        return NULL;
    }
    *bytes_out = tokenizer->tokens[id].bytes;
    return tokenizer->tokens[id].text;
}

bool eep_tokenizer_is_special(const struct eep_tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->size && tokenizer->tokens[id].special;
}

int64_t eep_tokenizer_added_id(const struct eep_tokenizer *tokenizer, const char *text)
{
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        if (strcmp(tokenizer->added[i].text, text) == 0) {
            return tokenizer->added[i].id;
        }
    }
    return -1;
}

/* What follows `from` are byte tokens: if they are no characters, each shows as U+FFFD. */
static enum eep_status end_byte_run(struct eep_text_buffer *out, size_t from)
{
    size_t run = out->size - from;

    if (run == 0 || eep_utf8_valid_bytes(out->data + from, run) == run) {
        return EEP_OK;
    }
    out->size = from;
    for (size_t i = 0; i < run; i++) {
        EEP_TRY(eep_text_append(out, "\xef\xbf\xbd", 3));
    }
    return EEP_OK;
}

static enum eep_status join_tokens(const struct eep_tokenizer *tokenizer, const uint32_t *ids,
                                   size_t count, bool skip_special, struct eep_text_buffer *out)
{
    size_t run_from = SIZE_MAX; /* where byte tokens began; SIZE_MAX: the last was none */

    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = eep_tokenizer_token(tokenizer, ids[i], &bytes);

        if (text == NULL || (skip_special && tokenizer->tokens[ids[i]].special)) {
            continue;
        }
        if (!tokenizer->tokens[ids[i]].is_byte && run_from != SIZE_MAX) {
            EEP_TRY(end_byte_run(out, run_from));
            run_from = SIZE_MAX;
        } else if (tokenizer->tokens[ids[i]].is_byte && run_from == SIZE_MAX) {
            run_from = out->size;
        }
        EEP_TRY(eep_text_append(out, text, bytes));
    }
    return run_from != SIZE_MAX ? end_byte_run(out, run_from) : EEP_OK;
}

/* Bytes at the beginning that the decoder takes away. */
static size_t stripped_bytes(const struct eep_decoder *decoder, const struct eep_text_buffer *text)
{
    size_t bytes = 0;

    while (bytes < text->size && bytes < decoder->strip_max &&
           text->data[bytes] == decoder->strip) {
        bytes++;
    }
    return bytes;
}

enum eep_status eep_tokenizer_decode(const struct eep_tokenizer *tokenizer, const uint32_t *ids,
                                     size_t count, bool skip_special, char **text_out)
{
    struct eep_text_buffer joined = {0};
    struct eep_text_buffer text = {0};
    enum eep_status status = join_tokens(tokenizer, ids, count, skip_special, &joined);

    if (status == EEP_OK && joined.size > 0) {
        size_t from = stripped_bytes(&tokenizer->decoder, &joined);

        status = eep_utf8_append_lossy(&text, joined.data + from, joined.size - from);
    }
    if (status == EEP_OK) {
        status = eep_text_append(&text, "", 1);
    }
    eep_text_buffer_free(&joined);
    if (status != EEP_OK) {
        eep_text_buffer_free(&text);
        return status;
    }
    *text_out = text.data;
    return EEP_OK;
}
