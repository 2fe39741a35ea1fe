/*
 * Byte-pair encoding. A piece starts as its bytes (or characters); of all neighbours that the file
 * can merge, the pair of the lowest rank is merged, the leftmost of equals, until none is left.
 * Candidates wait in a heap, symbols form a list, so a piece of n bytes takes n log n steps; an
 * entry of the heap whose symbols have changed since is dropped when it comes up.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"
#include "text/text_int.h"

#define MERGES_MIN 16
#define NO_PAIR UINT64_MAX
#define NO_SYMBOL UINT32_MAX

/* What a pair of tokens becomes. */
struct merge {
    uint64_t pair; /* left id << 32 | right id; NO_PAIR = free slot */
    uint32_t rank;
    uint32_t id;
};

struct eep_bpe {
    struct eep_vocab vocab; /* token texts as in the file */
    struct merge *merges;   /* open hash table */
    size_t merges_mask;
    bool bytes;             /* pieces start as bytes, else as characters */
    uint32_t byte_ids[256]; /* EEP_NO_TOKEN where the vocabulary lacks a byte */
    uint32_t unknown;       /* for what has no token; EEP_NO_TOKEN: that is an error */
    bool fuse_unknown;      /* neighbours of that kind are one token */
    bool whole_first;       /* ignore_merges: a piece that is a token is that token */
};

struct symbol {
    uint32_t id;
    uint32_t before;
    uint32_t after;
};

struct candidate {
    uint64_t order; /* rank << 32 | place of the left symbol */
    uint64_t pair;
    uint32_t id;
};

struct eep_bpe_work {
    struct symbol *symbols;
    size_t symbols_room;
    struct candidate *heap;
    size_t heap_room;
    size_t heap_count;
    struct eep_text_buffer chars; /* a piece as it is written in the vocabulary */
};

/* ---- loading ---- */

static uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

static struct merge *merge_slot(const struct eep_bpe *bpe, uint64_t pair)
{
    size_t slot = (size_t)eep_rng_mix(pair) & bpe->merges_mask;

    while (bpe->merges[slot].pair != pair && bpe->merges[slot].pair != NO_PAIR) {
        slot = (slot + 1) & bpe->merges_mask;
    }
    return &bpe->merges[slot];
}

static enum eep_status load_vocab(const char *path, const json_t *json, struct eep_bpe *bpe)
{
    const char *text;
    json_t *value;

    if (!json_is_object(json)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: model: vocab is not an object", path);
    }
    EEP_TRY(eep_vocab_init(&bpe->vocab, json_object_size(json)));
    json_object_foreach((json_t *)json, text, value)
    {
        uint32_t id;

        EEP_TRY(eep_text_id(path, text, value, &id));
        (void)eep_vocab_add(&bpe->vocab, text, strlen(text), id); /* the parser refuses doubles */
    }
    return EEP_OK;
}

/* The tokens of single bytes: in byte-level vocabularies, or <0x00> and so on with byte_fallback.
 */
static void find_bytes(struct eep_bpe *bpe, bool fallback)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        size_t bytes = bpe->bytes ? eep_utf8_encode(eep_byte_char((unsigned char)byte), text)
                                  : (size_t)snprintf(text, sizeof(text), "<0x%02X>", byte);

        bpe->byte_ids[byte] =
            bpe->bytes || fallback ? eep_vocab_find(&bpe->vocab, text, bytes) : EEP_NO_TOKEN;
    }
}

static enum eep_status find_unknown(const char *path, const json_t *json, struct eep_bpe *bpe)
{
    const json_t *token = eep_text_get(json, "unk_token");

    bpe->unknown = EEP_NO_TOKEN;
    if (token != NULL && !json_is_string(token)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: model: unk_token is not a string", path);
    }
    if (token != NULL) {
        bpe->unknown = eep_bpe_find(bpe, json_string_value(token));
    }
    return eep_text_bool(path, "model", json, "fuse_unk", false, &bpe->fuse_unknown);
}

/* The two texts of a merge, "a b" or ["a", "b"]. */
static bool split_merge(const json_t *json, const char **left, size_t *left_bytes,
                        const char **right, size_t *right_bytes)
{
    if (json_is_array(json) && json_array_size(json) == 2) {
        const json_t *first = json_array_get(json, 0);
        const json_t *second = json_array_get(json, 1);

        *left = json_string_value(first);
        *right = json_string_value(second);
        *left_bytes = json_string_length(first);
        *right_bytes = json_string_length(second);
        return *left != NULL && *right != NULL;
    }
    const char *text = json_string_value(json);
    const char *space = text != NULL ? strchr(text, ' ') : NULL;

    if (space == NULL || strchr(space + 1, ' ') != NULL) {
        return false;
    }
    *left = text;
    *left_bytes = (size_t)(space - text);
    *right = space + 1;
    *right_bytes = strlen(space + 1);
    return true;
}

static enum eep_status fail_merge(const char *path, size_t rank, const char *why)
{
    return EEP_FAIL(EEP_ERR_FORMAT, "%s: model: merge number %zu %s", path, rank, why);
}

static enum eep_status load_merge(const char *path, const json_t *json, size_t rank,
                                  struct eep_text_buffer *joined, struct eep_bpe *bpe)
{
    const char *left, *right;
    size_t left_bytes, right_bytes;

    if (!split_merge(json, &left, &left_bytes, &right, &right_bytes)) {
        return fail_merge(path, rank, "is neither \"a b\" nor [\"a\", \"b\"]");
    }
    joined->size = 0;
    EEP_TRY(eep_text_append(joined, left, left_bytes));
    EEP_TRY(eep_text_append(joined, right, right_bytes));
    uint32_t left_id = eep_vocab_find(&bpe->vocab, left, left_bytes);
    uint32_t right_id = eep_vocab_find(&bpe->vocab, right, right_bytes);
    uint32_t id = eep_vocab_find(&bpe->vocab, joined->data, joined->size);

    if (left_id == EEP_NO_TOKEN || right_id == EEP_NO_TOKEN || id == EEP_NO_TOKEN) {
        return fail_merge(path, rank, "has a part, or makes a token, that is not in the vocab");
    }
    struct merge *merge = merge_slot(bpe, pair_of(left_id, right_id));

    *merge =
        (struct merge){pair_of(left_id, right_id), (uint32_t)rank, id}; /* the last one counts */
    return EEP_OK;
}

static enum eep_status load_merges(const char *path, const json_t *json, struct eep_bpe *bpe)
{
    struct eep_text_buffer joined = {0};
    size_t slots = MERGES_MIN;
    size_t count = json_array_size(json);
    enum eep_status status = EEP_OK;

    if (!json_is_array(json) || count > EEP_TOKEN_IDS_MAX) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: model: merges is not a list of at most %u", path,
                        EEP_TOKEN_IDS_MAX);
    }
    while (slots < 2 * count) {
        slots *= 2;
    }
    EEP_TRY(eep_mem_alloc(slots, sizeof(*bpe->merges), "merges", &bpe->merges));
    memset(bpe->merges, 0xff, slots * sizeof(*bpe->merges)); /* NO_PAIR */
    bpe->merges_mask = slots - 1;
    EEP_TRY_GOTO(eep_text_append(&joined, "", 1), free_joined); /* never NULL */
    for (size_t rank = 0; rank < count; rank++) {
        EEP_TRY_GOTO(load_merge(path, json_array_get(json, rank), rank, &joined, bpe), free_joined);
    }
free_joined:
    eep_text_buffer_free(&joined);
    return status;
}

/* A member that must be absent, null, "" or 0. */
static enum eep_status require_unset(const char *path, const json_t *json, const char *key)
{
    const json_t *value = eep_text_get(json, key);
    bool unset = value == NULL || (json_is_string(value) && json_string_length(value) == 0) ||
                 (json_is_number(value) && json_number_value(value) == 0.0) || json_is_false(value);

    return unset ? EEP_OK : eep_text_unsupported(path, "model: BPE with", key);
}

static enum eep_status check_kind(const char *path, const json_t *json)
{
    const json_t *type = eep_text_get(json, "type"); /* absent in old files */

    if (!json_is_object(json)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: has no model", path);
    }
    if (type != NULL && !json_is_string(type)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: model: type is not a string", path);
    }
    if (type != NULL && strcmp(json_string_value(type), "BPE") != 0) {
        return eep_text_unsupported(path, "model", json_string_value(type));
    }
    EEP_TRY(require_unset(path, json, "dropout"));
    EEP_TRY(require_unset(path, json, "continuing_subword_prefix"));
    return require_unset(path, json, "end_of_word_suffix");
}

static enum eep_status load(const char *path, const json_t *json, struct eep_bpe *bpe)
{
    bool fallback;

    EEP_TRY(check_kind(path, json));
    EEP_TRY(eep_text_bool(path, "model", json, "ignore_merges", false, &bpe->whole_first));
    EEP_TRY(eep_text_bool(path, "model", json, "byte_fallback", false, &fallback));
    EEP_TRY(load_vocab(path, json_object_get(json, "vocab"), bpe));
    find_bytes(bpe, fallback);
    EEP_TRY(find_unknown(path, json, bpe));
    return load_merges(path, json_object_get(json, "merges"), bpe);
}

enum eep_status eep_bpe_load(const char *path, const json_t *json, bool bytes,
                             struct eep_bpe **bpe_out)
{
    struct eep_bpe *bpe;

    EEP_TRY(eep_mem_alloc(1, sizeof(*bpe), "tokenizer model", &bpe));
    bpe->bytes = bytes;
    enum eep_status status = load(path, json, bpe);

    if (status != EEP_OK) {
        eep_bpe_free(bpe);
        return status;
    }
    *bpe_out = bpe;
    return EEP_OK;
}

void eep_bpe_free(struct eep_bpe *bpe)
{
    if (bpe != NULL) {
        eep_vocab_free(&bpe->vocab);
        eep_mem_free(bpe->merges);
        eep_mem_free(bpe);
    }
}

uint32_t eep_bpe_find(const struct eep_bpe *bpe, const char *text)
{
    return eep_vocab_find(&bpe->vocab, text, strlen(text));
}

/* ---- encoding ---- */

enum eep_status eep_bpe_work_create(struct eep_bpe_work **work_out)
{
    return eep_mem_alloc(1, sizeof(**work_out), "work space of a tokenizer", work_out);
}

void eep_bpe_work_destroy(struct eep_bpe_work *work)
{
    if (work != NULL) {
        eep_mem_free(work->symbols);
        eep_mem_free(work->heap);
        eep_text_buffer_free(&work->chars);
        eep_mem_free(work);
    }
}

/* The room is made before: a pair of symbols is put at most once for each change beside it. */
static void heap_push(struct eep_bpe_work *work, const struct candidate *candidate)
{
    size_t at = work->heap_count++;

    EEP_DASSERT(at < work->heap_room);
    while (at > 0 && work->heap[(at - 1) / 2].order > candidate->order) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->heap[at] = *candidate;
}

static struct candidate heap_pop(struct eep_bpe_work *work)
{
    const struct candidate top = work->heap[0];
    const struct candidate last = work->heap[--work->heap_count];
    size_t at = 0;

    for (size_t child; (child = 2 * at + 1) < work->heap_count; at = child) {
        if (child + 1 < work->heap_count && work->heap[child + 1].order < work->heap[child].order) {
            child++;
        }
        if (work->heap[child].order >= last.order) {
            break;
        }
        work->heap[at] = work->heap[child];
    }
    work->heap[at] = last;
    return top;
}

/* Put the pair of a symbol and the one after it in the heap, if the file merges it. */
static void offer(const struct eep_bpe *bpe, struct eep_bpe_work *work, uint32_t left)
{
    uint32_t right = left == NO_SYMBOL ? NO_SYMBOL : work->symbols[left].after;

    if (right == NO_SYMBOL) {
        return;
    }
    uint64_t pair = pair_of(work->symbols[left].id, work->symbols[right].id);
    const struct merge *merge = merge_slot(bpe, pair);

    if (merge->pair == pair) {
        heap_push(work, &(struct candidate){(uint64_t)merge->rank << 32 | left, pair, merge->id});
    }
}

static void merge_all(const struct eep_bpe *bpe, struct eep_bpe_work *work)
{
    while (work->heap_count > 0) {
        const struct candidate best = heap_pop(work);
        uint32_t place = (uint32_t)best.order;
        struct symbol *left = &work->symbols[place];

        if (left->id == EEP_NO_TOKEN || left->after == NO_SYMBOL ||
            pair_of(left->id, work->symbols[left->after].id) != best.pair) {
            continue; /* one of the two has been merged with another */
        }
        struct symbol *right = &work->symbols[left->after];

        left->id = best.id;
        left->after = right->after;
        right->id = EEP_NO_TOKEN;
        if (left->after != NO_SYMBOL) {
            work->symbols[left->after].before = place;
        }
        offer(bpe, work, left->before);
        offer(bpe, work, place);
    }
}

static enum eep_status fail_unknown(const struct eep_bpe *bpe, const char *text, size_t length)
{
    if (bpe->bytes || eep_utf8_length(text, length) == 0) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                        "the text has the byte 0x%02x, for which the tokenizer has no token",
                        (unsigned char)text[0]);
    }
    return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                    "the text has the character U+%04X, for which the tokenizer has no token",
                    (unsigned)eep_utf8_decode(text));
}

/* Tokens of a piece's bytes or characters, before any merge. */
struct start {
    struct eep_bpe_work *work;
    uint32_t count;
    bool unknown; /* one is due, and may be fused with the next */
};

static void put_symbol(struct start *start, uint32_t id)
{
    start->work->symbols[start->count] =
        (struct symbol){id, start->count - 1, start->count + 1}; /* the ends are set at the end */
    start->count++;
}

/* A character as its bytes; false if one of them has no token. */
static bool put_bytes(const struct eep_bpe *bpe, struct start *start, const char *text,
                      size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bpe->bytes || bpe->byte_ids[(unsigned char)text[i]] == EEP_NO_TOKEN) {
            return false;
        }
    }
    for (size_t i = 0; i < length; i++) {
        put_symbol(start, bpe->byte_ids[(unsigned char)text[i]]);
    }
    return true;
}

/* One byte or character. An unknown one waits, also while others are put as bytes (as in the
 * library that such files are made for). */
static enum eep_status put_unit(const struct eep_bpe *bpe, struct start *start, const char *text,
                                size_t length)
{
    uint32_t id = bpe->bytes ? bpe->byte_ids[(unsigned char)text[0]]
                             : eep_vocab_find(&bpe->vocab, text, length);

    if (id != EEP_NO_TOKEN) {
        if (start->unknown) {
            put_symbol(start, bpe->unknown);
            start->unknown = false;
        }
        put_symbol(start, id);
        return EEP_OK;
    }
    if (put_bytes(bpe, start, text, length)) {
        return EEP_OK;
    }
    if (bpe->unknown == EEP_NO_TOKEN) {
        return fail_unknown(bpe, text, length);
    }
    if (start->unknown && !bpe->fuse_unknown) {
        put_symbol(start, bpe->unknown);
    }
    start->unknown = true;
    return EEP_OK;
}

static enum eep_status start_symbols(const struct eep_bpe *bpe, struct eep_bpe_work *work,
                                     const char *piece, size_t bytes, uint32_t *count_out)
{
    struct start start = {.work = work};

    EEP_TRY(eep_text_grow(&work->symbols, &work->symbols_room, 0, bytes, sizeof(*work->symbols)));
    EEP_TRY(eep_text_grow(&work->heap, &work->heap_room, 0, 3 * bytes, sizeof(*work->heap)));
    for (size_t at = 0; at < bytes;) {
        size_t length =
            bpe->bytes ? 1 : EEP_MAX(eep_utf8_length(piece + at, bytes - at), (size_t)1);

        EEP_TRY(put_unit(bpe, &start, piece + at, length));
        at += length;
    }
    if (start.unknown) {
        put_symbol(&start, bpe->unknown);
    }
    if (start.count > 0) {
        work->symbols[0].before = NO_SYMBOL;
        work->symbols[start.count - 1].after = NO_SYMBOL;
    }
    *count_out = start.count;
    return EEP_OK;
}

/* The token that is the whole piece, or EEP_NO_TOKEN. */
static enum eep_status find_whole(const struct eep_bpe *bpe, struct eep_bpe_work *work,
                                  const char *piece, size_t bytes, uint32_t *id_out)
{
    struct eep_text_buffer *chars = &work->chars;

    if (!bpe->bytes) {
        *id_out = eep_vocab_find(&bpe->vocab, piece, bytes);
        return EEP_OK;
    }
    EEP_TRY(eep_text_grow(&chars->data, &chars->room, 0, 2 * bytes, 1));
    chars->size = 0;
    for (size_t i = 0; i < bytes; i++) { /* at most two bytes each */
        chars->size +=
            eep_utf8_encode(eep_byte_char((unsigned char)piece[i]), chars->data + chars->size);
    }
    *id_out = eep_vocab_find(&bpe->vocab, chars->data, chars->size);
    return EEP_OK;
}

enum eep_status eep_bpe_encode(const struct eep_bpe *bpe, struct eep_bpe_work *work,
                               const char *piece, size_t bytes, struct eep_id_list *out)
{
    uint32_t count;

    if (bytes >= NO_SYMBOL / 4) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "a piece of text of %zu bytes is too long", bytes);
    }
    if (bpe->whole_first) {
        uint32_t id;

        EEP_TRY(find_whole(bpe, work, piece, bytes, &id));
        if (id != EEP_NO_TOKEN) {
            return eep_id_append(out, id);
        }
    }
    EEP_TRY(start_symbols(bpe, work, piece, bytes, &count));
    work->heap_count = 0;
    for (uint32_t i = 0; i + 1 < count; i++) {
        offer(bpe, work, i);
    }
    merge_all(bpe, work);
    for (uint32_t i = 0; count > 0 && i != NO_SYMBOL; i = work->symbols[i].after) {
        EEP_TRY(eep_id_append(out, work->symbols[i].id));
    }
    return EEP_OK;
}
