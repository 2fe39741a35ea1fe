/*
 * Decoders: how the texts of tokens become text. Byte-level vocabularies have one way; for those of
 * SentencePiece a list of steps is read into the four things that such lists are made of.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_int.h"

#define WHERE "decoder"
#define DEPTH_MAX 8

/* What has been read so far. */
struct loading {
    const char *path;
    struct eep_decoder *decoder;
    bool byte_level;
    bool fused; /* what follows sees the whole text */
};

static enum eep_status load_replace(struct loading *loading, const json_t *json)
{
    struct eep_decoder *decoder = loading->decoder;

    if (decoder->replace != NULL || decoder->byte_tokens || loading->fused) {
        return eep_text_unsupported(loading->path, WHERE, "Replace after other steps");
    }
    decoder->replace =
        json_string_value(json_object_get(json_object_get(json, "pattern"), "String"));
    decoder->with = json_string_value(json_object_get(json, "content"));
    if (decoder->replace == NULL || decoder->replace[0] == '\0' || decoder->with == NULL) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Replace without a pattern (String) and content",
                        loading->path, WHERE);
    }
    if (strlen(decoder->with) > strlen(decoder->replace)) {
        return eep_text_unsupported(loading->path, WHERE, "Replace by something longer");
    }
    return EEP_OK;
}

static enum eep_status load_strip(struct loading *loading, const json_t *json)
{
    const char *content = json_string_value(json_object_get(json, "content"));
    const json_t *start = json_object_get(json, "start");
    const json_t *stop = json_object_get(json, "stop");

    if (content == NULL || !json_is_integer(start) || !json_is_integer(stop) ||
        json_integer_value(start) < 0 || json_integer_value(start) > INT32_MAX) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Strip without content, start and stop",
                        loading->path, WHERE);
    }
    if (!loading->fused || strlen(content) != 1 || json_integer_value(stop) != 0 ||
        loading->decoder->strip_max != 0) {
        return eep_text_unsupported(loading->path, WHERE, "Strip of that form");
    }
    loading->decoder->strip = content[0];
    loading->decoder->strip_max = (uint32_t)json_integer_value(start);
    return EEP_OK;
}

static enum eep_status load(struct loading *loading, const json_t *json, int depth);

static enum eep_status load_sequence(struct loading *loading, const json_t *json, int depth)
{
    const json_t *list = json_object_get(json, "decoders");

    if (!json_is_array(list)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Sequence without a list of decoders",
                        loading->path, WHERE);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        EEP_TRY(load(loading, json_array_get(list, i), depth + 1));
    }
    return EEP_OK;
}

static enum eep_status load(struct loading *loading, const json_t *json, int depth)
{
    const char *type;

    EEP_TRY(eep_text_type(loading->path, WHERE, json, &type));
    if (strcmp(type, "Sequence") == 0 && depth < DEPTH_MAX) {
        return load_sequence(loading, json, depth);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        loading->byte_level = true;
    } else if (loading->decoder->bytes) { /* only ByteLevel makes sense of such tokens */
        return eep_text_unsupported(loading->path, WHERE, type);
    } else if (strcmp(type, "Replace") == 0) {
        return load_replace(loading, json);
    } else if (strcmp(type, "ByteFallback") == 0 && !loading->fused) {
        loading->decoder->byte_tokens = true;
    } else if (strcmp(type, "Fuse") == 0) {
        loading->fused = true;
    } else if (strcmp(type, "Strip") == 0) {
        return load_strip(loading, json);
    } else {
        return eep_text_unsupported(loading->path, WHERE, type);
    }
    return EEP_OK;
}

enum eep_status eep_decoder_load(const char *path, const json_t *json, bool bytes,
                                 struct eep_decoder *decoder_out)
{
    struct eep_decoder decoder = {.bytes = bytes};
    struct loading loading = {.path = path, .decoder = &decoder};

    if (json != NULL && !json_is_null(json)) {
        EEP_TRY(load(&loading, json, 0));
    } else if (!bytes) { /* in a byte-level vocabulary it is plain what the tokens say */
        return eep_text_unsupported(path, WHERE, "null");
    }
    if (!bytes && (loading.byte_level || !loading.fused)) {
        return eep_text_unsupported(path, WHERE,
                                    loading.byte_level ? "ByteLevel, without that "
                                                         "pre_tokenizer"
                                                       : "without Fuse");
    }
    *decoder_out = decoder;
    return EEP_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte of a token such as <0x0A>, or -1. */
static int byte_of(const char *text, size_t bytes)
{
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || hex_digit(text[3]) < 0 ||
        hex_digit(text[4]) < 0) {
        return -1;
    }
    return hex_digit(text[3]) << 4 | hex_digit(text[4]);
}

bool eep_decoder_token(const struct eep_decoder *decoder, const char *text, size_t bytes, char *out,
                       size_t *bytes_out)
{
    int byte = decoder->byte_tokens ? byte_of(text, bytes) : -1;
    size_t length = decoder->replace != NULL ? strlen(decoder->replace) : 0;
    size_t used = 0;

    if (decoder->bytes && eep_byte_chars_decode(text, bytes, out, bytes_out)) {
        return false;
    }
    if (byte >= 0) {
        out[0] = (char)byte;
        *bytes_out = 1;
        return true;
    }
    for (size_t at = 0; at < bytes;) { /* a token of no byte-level form stands for itself */
        if (length > 0 && bytes - at >= length &&
            memcmp(text + at, decoder->replace, length) == 0) {
            memcpy(out + used, decoder->with, strlen(decoder->with));
            used += strlen(decoder->with);
            at += length;
        } else {
            out[used++] = text[at++];
        }
    }
    *bytes_out = used;
    return false;
}
