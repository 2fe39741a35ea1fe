/*
 * What the files of this folder share. A text passes through them in this order:
 *
 *     added.c        added tokens that are matched in the text as it is are cut out
 *     normalize.c    the rest is normalised (Unicode NFC and its kin)
 *     added.c        added tokens that are matched in normalised text are cut out
 *     pretokenize.c  the rest is cut into pieces, by patterns (pattern.c)
 *     bpe.c          each piece becomes tokens of the vocabulary (vocab.c)
 *     template.c     ids before and after the whole
 *
 * and back by decoder.c. There are two families of vocabularies. In byte-level ones (GPT-2, Qwen,
 * Llama 3, DeepSeek) a token is a string of bytes, each written as a printable character. In those
 * that come from SentencePiece (Llama 2, Mixtral) a token is a string of characters, a space is
 * written as U+2581, and a character without a token as its bytes <0xE4><0xBD><0xA0>.
 */
#ifndef EEP_TEXT_TEXT_INT_H
#define EEP_TEXT_TEXT_INT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define EEP_TOKEN_IDS_MAX (UINT32_C(1) << 24) /* ids are below this */
#define EEP_NO_TOKEN UINT32_MAX

/** Bytes that grow; all zero is empty. */
struct eep_text_buffer {
    char *data;
    size_t size;
    size_t room;
};

/** Token ids that grow; all zero is empty. */
struct eep_id_list {
    uint32_t *ids;
    size_t count;
    size_t room;
};

/** Make room for `count` items of `size` bytes in a block that holds `room` of them. */
EEP_MUST_CHECK enum eep_status eep_text_grow(void *items /* pointer to the pointer */, size_t *room,
                                             size_t used, size_t count, size_t size);
EEP_MUST_CHECK enum eep_status eep_text_append(struct eep_text_buffer *buffer, const char *data,
                                               size_t bytes);
void eep_text_buffer_free(struct eep_text_buffer *buffer);
EEP_MUST_CHECK enum eep_status eep_id_append(struct eep_id_list *list, uint32_t id);

/* utf8.c */

/** Bytes of the character at `text`, 1 to 4; 0 if it is not valid UTF-8. `bytes` > 0. */
size_t eep_utf8_length(const char *text, size_t bytes);
/** Bytes at the beginning that are valid UTF-8. */
size_t eep_utf8_valid_bytes(const char *text, size_t bytes);
/** Code point of a valid character. */
uint32_t eep_utf8_decode(const char *text);
/** Write a code point below U+0800, as those of eep_byte_char() are; returns 1 or 2 bytes. */
size_t eep_utf8_encode(uint32_t code, char out[2]);
/** Start of the valid character that ends before `end`. */
size_t eep_utf8_before(const char *text, size_t end);
/** Append `data`, U+FFFD for each largest part that begins a character and does not end it. */
EEP_MUST_CHECK enum eep_status eep_utf8_append_lossy(struct eep_text_buffer *buffer,
                                                     const char *data, size_t bytes);
/** Unicode's White_Space. */
bool eep_utf8_is_space(uint32_t code);
/** A letter, mark, digit or connector, as \w of regular expressions. */
bool eep_utf8_is_word(uint32_t code);

/** The printable code point that stands for a byte in byte-level vocabularies. */
uint32_t eep_byte_char(unsigned char byte);
/** Token text to bytes, written to `out` (`bytes` bytes are enough); false if a character of it
 * stands for no byte. */
bool eep_byte_chars_decode(const char *token, size_t bytes, char *out, size_t *bytes_out);

/* json access with messages; `path` is the file, `where` the object */

/** A member of an object that may be absent (or null): NULL then. */
const json_t *eep_text_get(const json_t *object, const char *key);
/** The string `type` of a component. */
EEP_MUST_CHECK enum eep_status eep_text_type(const char *path, const char *where,
                                             const json_t *component, const char **type_out);
EEP_MUST_CHECK enum eep_status eep_text_bool(const char *path, const char *where,
                                             const json_t *object, const char *key, bool absent,
                                             bool *value_out);
/** A token id. */
EEP_MUST_CHECK enum eep_status eep_text_id(const char *path, const char *where, const json_t *value,
                                           uint32_t *id_out);
/** Refuse what a file asks for; inline, so that callers are seen to stop. */
static inline enum eep_status eep_text_unsupported(const char *path, const char *where,
                                                   const char *what)
{
    return EEP_FAIL(EEP_ERR_UNSUPPORTED, "%s: %s '%.200s' is not supported", path, where, what);
}

/* vocab.c */

/** Strings with ids; made once, then only read. */
struct eep_vocab {
    struct eep_vocab_entry {
        const char *text;
        uint32_t bytes;
        uint32_t id;
    } * slots;
    size_t mask;
};

EEP_MUST_CHECK enum eep_status eep_vocab_init(struct eep_vocab *vocab, size_t count);
void eep_vocab_free(struct eep_vocab *vocab);
/** Add a string (not copied); false if it is there. */
bool eep_vocab_add(struct eep_vocab *vocab, const char *text, size_t bytes, uint32_t id);
/** EEP_NO_TOKEN if it is not there. */
uint32_t eep_vocab_find(const struct eep_vocab *vocab, const char *text, size_t bytes);

/* normalize.c */

#define EEP_NORMALIZE_STEPS_MAX 8

/** The strings belong to the JSON that it was read from. */
struct eep_normalizer {
    struct eep_normalize_step {
        int form;            /* options of utf8proc; 0: the step is one of the others */
        const char *replace; /* what is replaced by `with`; NULL: `with` is put before the text */
        const char *with;
    } steps[EEP_NORMALIZE_STEPS_MAX];
    size_t count;
};

EEP_MUST_CHECK enum eep_status eep_normalizer_load(const char *path, const json_t *json,
                                                   struct eep_normalizer *normalizer_out);
/** Append valid UTF-8 text, normalised. */
EEP_MUST_CHECK enum eep_status eep_normalize(const struct eep_normalizer *normalizer,
                                             const char *text, size_t bytes,
                                             struct eep_text_buffer *out);

/* pattern.c */

/** Compile a pattern (of Oniguruma's syntax) so that PCRE2 matches the same. */
EEP_MUST_CHECK enum eep_status eep_pattern_compile(const char *path, const char *pattern,
                                                   bool literal, pcre2_code **code_out);

/* pretokenize.c */

#define EEP_PRETOKENIZE_STEPS_MAX 16

enum eep_pretokenize_kind {
    EEP_PRETOKENIZE_SPLIT,
    EEP_PRETOKENIZE_SPACE_BEFORE, /* put a space before the text if it does not begin with one */
    EEP_PRETOKENIZE_METASPACE,    /* write spaces as another character, perhaps with one before */
};

/** Where a Metaspace step puts its character before the text, if it does not begin with it. */
enum eep_prepend {
    EEP_PREPEND_NEVER,
    EEP_PREPEND_FIRST, /* at the very beginning of the text only */
    EEP_PREPEND_ALWAYS,
};

enum eep_split {
    EEP_SPLIT_REMOVED,
    EEP_SPLIT_ISOLATED,
    EEP_SPLIT_WITH_PREVIOUS,
    EEP_SPLIT_WITH_NEXT,
    EEP_SPLIT_CONTIGUOUS,
};

struct eep_pretokenizer {
    struct eep_pretokenize_step {
        enum eep_pretokenize_kind kind;
        pcre2_code *code; /* Split */
        enum eep_split split;
        bool invert;
        const char *replacement; /* Metaspace; of the JSON that it was read from */
        enum eep_prepend prepend;
    } steps[EEP_PRETOKENIZE_STEPS_MAX];
    size_t count;
    bool bytes; /* ByteLevel was the last step: tokens are made of bytes, else of characters */
};

struct eep_pretokenize_work;

/** Takes one piece of the text. */
typedef enum eep_status (*eep_piece_fn)(void *context, const char *piece, size_t bytes);

EEP_MUST_CHECK enum eep_status eep_pretokenizer_load(const char *path, const json_t *json,
                                                     struct eep_pretokenizer *out);
void eep_pretokenizer_free(struct eep_pretokenizer *pretokenizer);
/** What one thread needs to run it; may be used again and again. */
EEP_MUST_CHECK enum eep_status eep_pretokenize_work_create(
    const struct eep_pretokenizer *pretokenizer, struct eep_pretokenize_work **work_out);
void eep_pretokenize_work_destroy(struct eep_pretokenize_work *work);
/** Cut valid UTF-8 text and hand each piece that is not empty to `take`, in order. `is_first`: it
 * is the beginning of the whole text. */
EEP_MUST_CHECK enum eep_status eep_pretokenize(const struct eep_pretokenizer *pretokenizer,
                                               struct eep_pretokenize_work *work, const char *text,
                                               size_t bytes, bool is_first, eep_piece_fn take,
                                               void *context);

/* bpe.c */

struct eep_bpe;
struct eep_bpe_work;

/** `json` is the tokenizer's model; its vocab outlives the result. `bytes`: see eep_pretokenizer.
 */
EEP_MUST_CHECK enum eep_status eep_bpe_load(const char *path, const json_t *json, bool bytes,
                                            struct eep_bpe **bpe_out);
void eep_bpe_free(struct eep_bpe *bpe);
/** Id of a token by its text in the file, or EEP_NO_TOKEN. */
uint32_t eep_bpe_find(const struct eep_bpe *bpe, const char *text);
EEP_MUST_CHECK enum eep_status eep_bpe_work_create(struct eep_bpe_work **work_out);
void eep_bpe_work_destroy(struct eep_bpe_work *work);
/** Append the tokens of one piece; any bytes. */
EEP_MUST_CHECK enum eep_status eep_bpe_encode(const struct eep_bpe *bpe, struct eep_bpe_work *work,
                                              const char *piece, size_t bytes,
                                              struct eep_id_list *out);

/* added.c */

struct eep_added_token {
    const char *text; /* as in the file */
    size_t bytes;
    uint32_t id;
    bool special;
    bool normalized;
    bool single_word;
    bool lstrip;
    bool rstrip;
};

/** The added tokens of a file that are matched in the same pass. */
struct eep_added {
    struct eep_added_pattern {
        const struct eep_added_token *token;
        char *text; /* what is looked for: normalised where the token is */
        size_t bytes;
    } * patterns; /* by first byte, then by length, the longest first */
    size_t count;
    uint32_t first[257]; /* patterns that begin with byte b: first[b] .. first[b + 1] */
};

/** Takes a stretch of text, or the token found in it. */
typedef enum eep_status (*eep_stretch_fn)(void *context, const struct eep_added_token *token,
                                          const char *text, size_t bytes);

EEP_MUST_CHECK enum eep_status eep_added_token_read(const char *path, const json_t *json,
                                                    struct eep_added_token *token_out);
/** Those of `tokens` with that `normalized`; they outlive the result. */
EEP_MUST_CHECK enum eep_status eep_added_init(struct eep_added *added,
                                              const struct eep_added_token *tokens, size_t count,
                                              bool normalized,
                                              const struct eep_normalizer *normalizer);
void eep_added_free(struct eep_added *added);
/** Cut valid UTF-8 text at the tokens: leftmost first, longest at one place. */
EEP_MUST_CHECK enum eep_status eep_added_cut(const struct eep_added *added, const char *text,
                                             size_t bytes, eep_stretch_fn take, void *context);

/* decoder.c */

/** How tokens become text; the strings belong to the JSON that it was read from. */
struct eep_decoder {
    bool bytes;          /* token texts are characters that stand for bytes */
    bool byte_tokens;    /* <0x0A> is a byte */
    const char *replace; /* what is replaced by `with` in each token; NULL: nothing */
    const char *with;
    char strip;         /* taken away at the beginning of the text */
    uint32_t strip_max; /* at most so often */
};

EEP_MUST_CHECK enum eep_status eep_decoder_load(const char *path, const json_t *json, bool bytes,
                                                struct eep_decoder *decoder_out);
/** What a token's text stands for, at most as many bytes; true if it is a byte token. */
bool eep_decoder_token(const struct eep_decoder *decoder, const char *text, size_t bytes, char *out,
                       size_t *bytes_out);

/* template.c */

struct eep_template {
    struct eep_id_list before;
    struct eep_id_list after;
};

EEP_MUST_CHECK enum eep_status eep_template_load(const char *path, const json_t *json,
                                                 struct eep_template *template_out);
void eep_template_free(struct eep_template *template);

#endif
