/* The tokenizer: stored ids, variants of the file, any bytes, what is refused. */
#include <pthread.h>

#include "base/clock.h"
#include "base/rng.h"
#include "ckpt/ckpt.h"
#include "data.h"
#include "text/text_int.h"
#include "text/tokenizer.h"

static char dir[DATA_PATH_MAX];
static struct eep_tokenizer *tokenizer;

static void open_at(const char *path)
{
    enum eep_status status = eep_tokenizer_open(path, &tokenizer);

    ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
}

static void set_up(void)
{
    scratch_make(dir);
    open_at(data_path("tiny-qwen3-moe"));
}

static void tear_down(void)
{
    eep_tokenizer_close(tokenizer);
    tokenizer = NULL;
    scratch_remove(dir);
}

static json_t *tiny_json(void)
{
    return load_json(data_path("tiny-qwen3-moe/tokenizer.json"));
}

/* The tokenizer of a changed file, in place of the one that is open. */
static enum eep_status reopen(const json_t *json)
{
    eep_tokenizer_close(tokenizer);
    tokenizer = NULL;
    scratch_write_json(dir, "tokenizer.json", json);
    return eep_tokenizer_open(dir, &tokenizer);
}

static size_t encode(const char *text, size_t bytes, uint32_t **ids_out)
{
    size_t count;
    enum eep_status status = eep_tokenizer_encode(tokenizer, text, bytes, ids_out, &count);

    ck_assert_msg(status == EEP_OK, "%s", eep_error_text());
    ck_assert_ptr_nonnull(*ids_out);
    return count;
}

static void assert_ids(const char *label, const char *text, size_t bytes, const json_t *want)
{
    uint32_t *ids;
    size_t count = encode(text, bytes, &ids);

    ck_assert_msg(count == json_array_size(want), "%s: '%s': %zu ids", label, text, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_msg(ids[i] == json_integer_value(json_array_get(want, i)),
                      "%s: '%s': id %zu is %u", label, text, i, ids[i]);
    }
    free(ids);
}

static void assert_decoded(const char *label, const json_t *ids_json, const json_t *want)
{
    size_t count = json_array_size(ids_json);
    uint32_t *ids = calloc(count + 1, sizeof(*ids));
    char *text;

    for (size_t i = 0; i < count; i++) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(ids_json, i));
    }
    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, ids, count, false, &text), EEP_OK);
    ck_assert_msg(memcmp(text, json_string_value(want), json_string_length(want) + 1) == 0,
                  "%s: '%s', not '%s'", label, text, json_string_value(want));
    free(text);
    free(ids);
}

START_TEST(stored_cases_are_exact)
{
    json_t *cases = load_json(data_path("tiny-qwen3-moe/golden/tokenizer_cases.json"));
    json_t *entry;
    size_t i;

    json_array_foreach(cases, i, entry)
    {
        const json_t *text = json_object_get(entry, "text");
        const json_t *ids = json_object_get(entry, "ids");

        assert_ids("case", json_string_value(text), json_string_length(text), ids);
        assert_decoded("case", ids, json_object_get(entry, "decoded"));
    }
    json_decref(cases);
}
END_TEST

START_TEST(held_out_text_is_exact)
{
    static const char *const kinds[] = {"english", "code"};
    static char text[1 << 17];
    struct eep_safetensors *file;
    char name[32];
    uint32_t *ids;
    FILE *in = fopen(data_path("tiny-qwen3-moe/golden/heldout_%s.txt", kinds[_i]), "rb");
    size_t bytes = fread(text, 1, sizeof(text), in);

    fclose(in);
    ck_assert_int_eq(
        eep_safetensors_open(data_path("tiny-qwen3-moe/golden/heldout.safetensors"), &file),
        EEP_OK);
    snprintf(name, sizeof(name), "%s_ids", kinds[_i]);
    const struct eep_tensor *want = eep_safetensors_find(file, name);
    size_t count = encode(text, bytes, &ids);

    ck_assert_uint_eq(count, want->count);
    ck_assert_mem_eq(ids, want->data, want->bytes);
    char *decoded;

    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, ids, count, false, &decoded), EEP_OK);
    ck_assert_uint_eq(strlen(decoded), bytes);
    ck_assert_mem_eq(decoded, text, bytes); /* all of it is NFC */
    free(decoded);
    free(ids);
    eep_safetensors_close(file);
}
END_TEST

START_TEST(prompts_decode_to_their_text)
{
    json_t *prompts = load_json(data_path("tiny-qwen3-moe/golden/prompts.json"));
    json_t *entry;
    size_t i;

    json_array_foreach(json_object_get(prompts, "prompts"), i, entry)
    {
        assert_decoded("prompt", json_object_get(entry, "ids"), json_object_get(entry, "text"));
    }
    ck_assert_uint_eq(i, 8);
    json_decref(prompts);
}
END_TEST

/* Set the member at a path such as "model.ignore_merges". */
static void set_member(json_t *json, const char *path, json_t *value)
{
    const char *dot = strchr(path, '.');
    char key[64];

    if (dot == NULL) {
        json_object_set(json, path, value);
        return;
    }
    snprintf(key, sizeof(key), "%.*s", (int)(dot - path), path);
    set_member(json_object_get(json, key), dot + 1, value);
}

/* Merges as "a b" instead of ["a", "b"]. */
static void write_merges_as_text(json_t *json)
{
    json_t *model = json_object_get(json, "model");
    json_t *texts = json_array();
    json_t *pair;
    size_t i;

    json_array_foreach(json_object_get(model, "merges"), i, pair)
    {
        json_array_append_new(texts,
                              json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                           json_string_value(json_array_get(pair, 1))));
    }
    json_object_set_new(model, "merges", texts);
}

static json_t *variants;

START_TEST(a_variant_of_the_file_is_exact)
{
    const json_t *variant = json_array_get(variants, (size_t)_i);
    const char *label = text_of(variant, "name");
    json_t *json = load_json(data_path("%s", text_of(variant, "base")));
    const char *path;
    json_t *value, *entry;
    size_t i;

    json_object_foreach(json_object_get(variant, "changes"), path, value)
    {
        if (strcmp(path, "model.merges") == 0) {
            write_merges_as_text(json);
        } else {
            set_member(json, path, value);
        }
    }
    ck_assert_msg(reopen(json) == EEP_OK, "%s: %s", label, eep_error_text());
    json_decref(json);
    json_array_foreach(json_object_get(variant, "cases"), i, entry)
    {
        const json_t *text = json_array_get(entry, 0);

        assert_ids(label, json_string_value(text), json_string_length(text),
                   json_array_get(entry, 1));
        assert_decoded(label, json_array_get(entry, 1), json_array_get(entry, 2));
    }
}
END_TEST

/* The bytes of the tokens, one after the other. */
static size_t join(const uint32_t *ids, size_t count, char *out, size_t room)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *text = eep_tokenizer_token(tokenizer, ids[i], &bytes);

        ck_assert_ptr_nonnull(text);
        ck_assert_uint_le(used + bytes, room);
        memcpy(out + used, text, bytes);
        used += bytes;
    }
    return used;
}

static void open_without_normalizer(void)
{
    json_t *json = tiny_json();

    json_object_set_new(json, "normalizer", json_null());
    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
}

START_TEST(any_bytes_come_back)
{
    static const char *const likely[] = {"\n",           " ",        "a",          "\xc3", "\xa9",
                                         "\xf0\x9f",     "\x98\x80", "<|im_end|>", "the ", "\0",
                                         "\xed\xa0\x80", "\xff"};
    char text[200], joined[400];

    open_without_normalizer();
    for (uint64_t round = 0; round < 3000; round++) {
        size_t bytes = 0;
        uint32_t *ids;

        while (bytes < eep_rng_bits(round, 0) % 180) {
            uint64_t bits = eep_rng_bits(round, bytes + 1);
            const char *some = likely[bits / 2 % 12];
            size_t length = bits % 2 ? 1 : EEP_MAX(strlen(some), (size_t)1);

            memcpy(text + bytes, bits % 2 ? (const char *)&bits + 4 : some, length);
            bytes += length;
        }
        size_t count = encode(text, bytes, &ids);

        ck_assert_uint_eq(join(ids, count, joined, sizeof(joined)), bytes);
        ck_assert_mem_eq(joined, text, bytes);
        free(ids);
    }
}
END_TEST

START_TEST(what_is_not_utf8_is_encoded_byte_by_byte)
{
    uint32_t *ids;
    char *text;
    size_t count = encode("ab\xff\xc3", 4, &ids);

    ck_assert_uint_ge(count, 3);
    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, ids, count, false, &text), EEP_OK);
    ck_assert_str_eq(text, "ab\xef\xbf\xbd\xef\xbf\xbd");
    free(text);
    free(ids);
}
END_TEST

START_TEST(broken_utf8_becomes_one_mark_for_each_part)
{
    static const struct {
        const char *bytes;
        const char *shown;
    } rows[] = {
        /* U+FFFD as U+FFFD; largest parts as in Unicode's chapter 3.9 */
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                                 "A"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
         "A\xef\xbf\xbd\xef\xbf\xbd"
         "B"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct eep_text_buffer buffer = {0};

        ck_assert_int_eq(eep_utf8_append_lossy(&buffer, rows[i].bytes, strlen(rows[i].bytes)),
                         EEP_OK);
        ck_assert_uint_eq(buffer.size, strlen(rows[i].shown));
        ck_assert_mem_eq(buffer.data, rows[i].shown, buffer.size);
        eep_text_buffer_free(&buffer);
    }
}
END_TEST

START_TEST(characters_have_their_code_points)
{
    static const struct {
        const char *text;
        uint32_t code;
        bool is_word;
        bool is_space;
    } rows[] = {
        {"a", 'a', true, false},
        {" ", ' ', false, true},
        {"\xc3\xa9", 0xe9, true, false},
        {"\xe4\xbd\xa0", 0x4f60, true, false},
        {"\xe3\x80\x80", 0x3000, false, true},
        {"\xe1\xa0\x8e", 0x180e, false, false},
        {"\xf0\x90\x8d\x88", 0x10348, true, false},
        {"\xf0\x9f\x98\x80", 0x1f600, false, false},
        {"\xf4\x8f\xbf\xbf", 0x10ffff, false, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ck_assert_uint_eq(eep_utf8_length(rows[i].text, strlen(rows[i].text)),
                          strlen(rows[i].text));
        ck_assert_uint_eq(eep_utf8_decode(rows[i].text), rows[i].code);
        ck_assert_int_eq(eep_utf8_is_word(rows[i].code), rows[i].is_word);
        ck_assert_int_eq(eep_utf8_is_space(rows[i].code), rows[i].is_space);
    }
}
END_TEST

START_TEST(every_byte_has_its_character)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char character[4], back[4];
        size_t bytes = eep_utf8_encode(eep_byte_char((unsigned char)byte), character);
        size_t count;

        ck_assert(eep_byte_chars_decode(character, bytes, back, &count));
        ck_assert_uint_eq(count, 1);
        ck_assert_uint_eq((unsigned char)back[0], byte);
    }
}
END_TEST

/* ---- merges against the plain definition ---- */

/* Merge by looking for the best pair again and again; tokens are texts. */
static size_t merge_plainly(const json_t *ranks, char parts[][64], size_t count)
{
    for (;;) {
        json_int_t best = -1;
        size_t place = 0;

        for (size_t i = 0; i + 1 < count; i++) {
            char key[160];

            snprintf(key, sizeof(key), "%s %s", parts[i], parts[i + 1]);
            const json_t *rank = json_object_get(ranks, key);

            if (rank != NULL && (best < 0 || json_integer_value(rank) < best)) {
                best = json_integer_value(rank);
                place = i;
            }
        }
        if (best < 0) {
            return count;
        }
        size_t left = strlen(parts[place]);

        memcpy(parts[place] + left, parts[place + 1], strlen(parts[place + 1]) + 1);
        memmove(parts[place + 1], parts[place + 2], (count - place - 2) * 64);
        count--;
    }
}

START_TEST(merges_are_those_of_the_definition)
{
    json_t *json = tiny_json();
    json_t *model = json_object_get(json, "model");
    json_t *ranks = json_object();
    json_t *pair;
    size_t rank;

    write_merges_as_text(json);
    json_array_foreach(json_object_get(model, "merges"), rank, pair)
    {
        json_object_set_new(ranks, json_string_value(pair), json_integer((json_int_t)rank));
    }
    for (uint64_t round = 0; round < 400; round++) {
        static char parts[64][64];
        char text[64];
        size_t bytes = 1 + eep_rng_bits(round, 0) % 40;
        uint32_t *ids;

        for (size_t i = 0; i < bytes; i++) { /* one word of few letters: many merges */
            text[i] = "theraninos"[eep_rng_bits(round, i + 1) % 10];
            snprintf(parts[i], sizeof(parts[i]), "%c", text[i]);
        }
        size_t want = merge_plainly(ranks, parts, bytes);
        size_t count = encode(text, bytes, &ids);

        ck_assert_uint_eq(count, want);
        for (size_t i = 0; i < count; i++) {
            ck_assert_uint_eq(ids[i], json_integer_value(json_object_get(
                                          json_object_get(model, "vocab"), parts[i])));
        }
        free(ids);
    }
    json_decref(ranks);
    json_decref(json);
}
END_TEST

START_TEST(a_long_word_does_not_take_long)
{
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    uint32_t *ids;

    for (size_t i = 0; i < BYTES; i++) {
        text[i] = "theraninos"[eep_rng_bits(5, i) % 10];
    }
    uint64_t start_ns = eep_clock_ns();
    size_t count = encode(text, BYTES, &ids);

    /* well below a second; with one search for each merge it would be hours */
    ck_assert_uint_lt(eep_clock_ns() - start_ns, 20 * EEP_NS_PER_S);
    ck_assert_uint_gt(count, BYTES / 8);
    free(ids);
    memset(text, ' ', BYTES);
    start_ns = eep_clock_ns();
    encode(text, BYTES, &ids);
    ck_assert_uint_lt(eep_clock_ns() - start_ns, 20 * EEP_NS_PER_S);
    free(ids);
    free(text);
}
END_TEST

/* Encodes the same text again and again; NULL if the ids were always the same. */
static void *encode_often(void *context)
{
    const json_t *want = context;
    const char *text = json_string_value(json_object_get(want, "text"));
    const json_t *want_ids = json_object_get(want, "ids");

    for (int round = 0; round < 300; round++) {
        uint32_t *ids;
        size_t count;

        if (eep_tokenizer_encode(tokenizer, text, strlen(text), &ids, &count) != EEP_OK ||
            count != json_array_size(want_ids)) {
            return context;
        }
        for (size_t i = 0; i < count; i++) {
            if (ids[i] != json_integer_value(json_array_get(want_ids, i))) {
                return context;
            }
        }
        free(ids);
    }
    return NULL;
}

START_TEST(threads_may_share_a_tokenizer)
{
    enum { THREADS = 4 };
    json_t *cases = load_json(data_path("tiny-qwen3-moe/golden/tokenizer_cases.json"));
    pthread_t threads[THREADS];

    for (size_t i = 0; i < THREADS; i++) {
        ck_assert_int_eq(
            pthread_create(&threads[i], NULL, encode_often, json_array_get(cases, i + 4)), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *wrong;

        ck_assert_int_eq(pthread_join(threads[i], &wrong), 0);
        ck_assert_ptr_null(wrong);
    }
    json_decref(cases);
}
END_TEST

/* ---- tokens ---- */

START_TEST(tokens_can_be_asked_for)
{
    size_t bytes;
    char *text;
    const uint32_t ids[] = {39, 2045, 99999, 72, 2047};

    ck_assert_uint_eq(eep_tokenizer_size(tokenizer), 2048);
    ck_assert_int_eq(eep_tokenizer_added_id(tokenizer, "<|im_start|>"), 2046);
    ck_assert_int_eq(eep_tokenizer_added_id(tokenizer, "Hello"), -1);
    ck_assert(eep_tokenizer_is_special(tokenizer, 2045));
    ck_assert(!eep_tokenizer_is_special(tokenizer, 0));
    ck_assert(!eep_tokenizer_is_special(tokenizer, 99999));
    ck_assert_ptr_null(eep_tokenizer_token(tokenizer, 2048, &bytes));
    ck_assert_ptr_nonnull(eep_tokenizer_token(tokenizer, 220, &bytes));
    ck_assert_uint_eq(bytes, 1);
    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, ids, 5, true, &text), EEP_OK);
    ck_assert_str_eq(text, "Hi");
    free(text);
    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, ids, 5, false, &text), EEP_OK);
    ck_assert_str_eq(text, "H<|endoftext|>i<|im_end|>");
    free(text);
    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, NULL, 0, false, &text), EEP_OK);
    ck_assert_str_eq(text, "");
    free(text);
}
END_TEST

START_TEST(ids_may_have_gaps)
{
    json_t *json = tiny_json();
    json_t *added = json_object_get(json, "added_tokens");
    size_t bytes;
    char *text;
    const uint32_t ids[] = {5000, 4999};

    json_object_set_new(json_array_get(added, 2), "id", json_integer(5000));
    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
    ck_assert_uint_eq(eep_tokenizer_size(tokenizer), 5001);
    ck_assert_ptr_null(eep_tokenizer_token(tokenizer, 4999, &bytes));
    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, ids, 2, false, &text), EEP_OK);
    ck_assert_str_eq(text, "<|im_end|>");
    free(text);
}
END_TEST

START_TEST(a_byte_without_token_is_refused_when_it_occurs)
{
    json_t *json = tiny_json();
    uint32_t *ids;
    size_t count;

    json_object_del(json_object_get(json_object_get(json, "model"), "vocab"),
                    "\xc3\xbe"); /* 0xfe */
    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
    free((encode("fine", 4, &ids), ids));
    ck_assert_int_eq(eep_tokenizer_encode(tokenizer, "\xfe", 1, &ids, &count), EEP_ERR_UNSUPPORTED);
    assert_error_has("0xfe");
}
END_TEST

/* ---- refusals ---- */

#define SPLIT(pattern)                                                                             \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": " \
    "\"" pattern "\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\"}]}"
#define BAD EEP_ERR_FORMAT
#define NOT_YET EEP_ERR_UNSUPPORTED

static const struct {
    const char *path;
    const char *value; /* as JSON */
    enum eep_status want;
    const char *says;
} changes[] = {
    {"normalizer", "{\"type\": \"Lowercase\"}", NOT_YET, "Lowercase"},
    {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Strip\"}]}", NOT_YET,
     "Strip"},
    {"normalizer", "{}", BAD, "normalizer"},
    {"normalizer", "7", BAD, "normalizer"},
    {"normalizer", "{\"type\": \"Sequence\"}", BAD, "normalizers"},
    {"pre_tokenizer", "null", NOT_YET, "ByteLevel"}, /* the decoder's does not fit */
    {"pre_tokenizer", "{\"type\": \"Whitespace\"}", NOT_YET, "Whitespace"},
    {"pre_tokenizer", "{\"type\": \"Digits\"}", NOT_YET, "ByteLevel"},
    {"pre_tokenizer",
     "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": "
     "\"Digits\"}]}",
     NOT_YET, "Digits"},
    {"pre_tokenizer", "{\"type\": \"Sequence\"}", BAD, "pretokenizers"},
    {"pre_tokenizer", "{\"type\": \"Split\"}", BAD, "Split"},
    {"pre_tokenizer",
     "{\"type\": \"Split\", \"pattern\": {\"String\": \"x\"}, \"behavior\": \"Sideways\"}", NOT_YET,
     "Sideways"},
    {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"use_regex\": 1}", BAD, "use_regex"},
    {"pre_tokenizer", SPLIT("("), BAD, "pattern"},
    {"pre_tokenizer", SPLIT("[a[b]]"), NOT_YET, "set in a set"},
    {"pre_tokenizer", SPLIT("[a&&b]"), NOT_YET, "intersection"},
    {"pre_tokenizer", SPLIT("a{1,3}+"), NOT_YET, "repeat"},
    {"pre_tokenizer", SPLIT("\\\\h"), NOT_YET, "escape"},
    {"pre_tokenizer", SPLIT("[\\\\S]"), NOT_YET, "\\S"},
    {"pre_tokenizer", SPLIT("a\\\\"), NOT_YET, "backslash"},
    {"post_processor", "{\"type\": \"BertProcessing\"}", NOT_YET, "BertProcessing"},
    {"post_processor", "{\"type\": \"TemplateProcessing\"}", BAD, "TemplateProcessing"},
    {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": []}", NOT_YET,
     "TemplateProcessing"},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}]}", BAD,
     "<s>"},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}, "
     "{\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [9999]}}}",
     BAD, "9999"},
    {"decoder", "{\"type\": \"WordPiece\"}", NOT_YET, "WordPiece"},
    {"decoder", "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}]}", NOT_YET, "Fuse"},
    {"decoder", "null", EEP_OK, NULL},
    {"model", "null", BAD, "model"},
    {"model.type", "\"WordPiece\"", NOT_YET, "WordPiece"},
    {"model.type", "7", BAD, "type"},
    {"model.type", "null", EEP_OK, NULL},
    {"model.dropout", "0.1", NOT_YET, "dropout"},
    {"model.byte_fallback", "1", BAD, "byte_fallback"},
    {"model.unk_token", "1", BAD, "unk_token"},
    {"model.fuse_unk", "1", BAD, "fuse_unk"},
    {"model.continuing_subword_prefix", "\"##\"", NOT_YET, "continuing_subword_prefix"},
    {"model.end_of_word_suffix", "\"</w>\"", NOT_YET, "end_of_word_suffix"},
    {"model.ignore_merges", "\"x\"", BAD, "ignore_merges"},
    {"model.vocab", "[]", BAD, "vocab"},
    {"model.vocab", "{\"a\": -1}", BAD, "'a'"},
    {"model.vocab", "{\"a\": 0.5}", BAD, "'a'"},
    {"model.vocab", "{\"a\": 4294967295}", BAD, "'a'"},
    {"model.merges", "{}", BAD, "merges"},
    {"model.merges", "[\"a\"]", BAD, "merge number 0"},
    {"model.merges", "[\"a b c\"]", BAD, "merge number 0"},
    {"model.merges", "[[\"a\", 1]]", BAD, "merge number 0"},
    {"model.merges", "[[\"q\", \"z\"]]", BAD, "merge number 0"},
    {"model.merges", "[]", EEP_OK, NULL},
    {"added_tokens", "{}", BAD, "added_tokens"},
    {"added_tokens", "[{\"id\": 2045}]", BAD, "content"},
    {"added_tokens", "[{\"id\": -1, \"content\": \"x\"}]", BAD, "'x'"},
    {"added_tokens", "[{\"id\": 5, \"content\": \"<x>\"}]", BAD, "<x>"},
    {"added_tokens", "[{\"id\": 5, \"content\": \"a\"}]", BAD, "'a'"},
    {"added_tokens", "[{\"id\": 64, \"content\": \"a\"}]", EEP_OK, NULL},
    {"added_tokens", "[]", EEP_OK, NULL},
};

START_TEST(a_changed_file_has_its_outcome)
{
    json_t *json = tiny_json();
    json_t *value = json_loads(changes[_i].value, JSON_DECODE_ANY, NULL);

    ck_assert_msg(value != NULL, "%s", changes[_i].value);
    set_member(json, changes[_i].path, value);
    json_decref(value);
    enum eep_status status = reopen(json);

    ck_assert_msg(status == changes[_i].want, "%s %s: %d: %s", changes[_i].path, changes[_i].value,
                  status, eep_error_text());
    if (status != EEP_OK) {
        assert_error_has(changes[_i].says);
        assert_error_has("tokenizer.json");
    }
    json_decref(json);
}
END_TEST

/* The same for the tokenizer whose tokens are characters. */
static const struct {
    const char *path;
    const char *value;
    enum eep_status want;
    const char *says;
} spm_changes[] = {
    {"decoder", "null", NOT_YET, "decoder"},
    {"decoder", "{\"type\": \"ByteLevel\"}", NOT_YET, "ByteLevel"},
    {"decoder", "{\"type\": \"ByteFallback\"}", NOT_YET, "Fuse"},
    {"decoder", "{\"type\": \"Sequence\"}", BAD, "decoders"},
    {"decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}",
     NOT_YET, "ByteFallback"},
    {"decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Strip\", "
     "\"content\": \" \", \"start\": 0, \"stop\": 1}]}",
     NOT_YET, "Strip"},
    {"decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Strip\"}]}", BAD,
     "Strip"},
    {"decoder", "{\"type\": \"Replace\"}", BAD, "Replace"},
    {"decoder", "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"bc\"}",
     NOT_YET, "longer"},
    {"normalizer", "{\"type\": \"Prepend\"}", BAD, "Prepend"},
    {"normalizer", "{\"type\": \"Replace\"}", BAD, "Replace"},
    {"normalizer", "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, \"content\": \"b\"}",
     NOT_YET, "Regex"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\"}", BAD, "Metaspace"},
    {"pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"ab\"}", BAD, "replacement"},
    {"pre_tokenizer",
     "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"sometimes\"}",
     NOT_YET, "sometimes"},
    {"pre_tokenizer", "{\"type\": \"ByteLevel\"}", NOT_YET, "decoder"},
    {"model.unk_token", "null", EEP_OK, NULL},
};

START_TEST(a_changed_file_of_characters_has_its_outcome)
{
    json_t *json = load_json(data_path("tokenizer/spm.json"));
    json_t *value = json_loads(spm_changes[_i].value, JSON_DECODE_ANY, NULL);

    ck_assert_msg(value != NULL, "%s", spm_changes[_i].value);
    set_member(json, spm_changes[_i].path, value);
    json_decref(value);
    enum eep_status status = reopen(json);

    ck_assert_msg(status == spm_changes[_i].want, "%s %s: %d: %s", spm_changes[_i].path,
                  spm_changes[_i].value, status, eep_error_text());
    if (status != EEP_OK) {
        assert_error_has(spm_changes[_i].says);
        assert_error_has("tokenizer.json");
    }
    json_decref(json);
}
END_TEST

START_TEST(a_character_without_token_is_refused_when_it_occurs)
{
    json_t *json = load_json(data_path("tokenizer/spm.json"));
    json_t *model = json_object_get(json, "model");
    uint32_t *ids;
    size_t count;

    json_object_set_new(model, "byte_fallback", json_false());
    json_object_set_new(model, "unk_token", json_null());
    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
    free((encode("fine", 4, &ids), ids));
    ck_assert_int_eq(eep_tokenizer_encode(tokenizer, "\xe4\xbd\xa0", 3, &ids, &count),
                     EEP_ERR_UNSUPPORTED);
    assert_error_has("U+4F60");
    ck_assert_int_eq(eep_tokenizer_encode(tokenizer, "\xff", 1, &ids, &count), EEP_ERR_UNSUPPORTED);
    assert_error_has("0xff");
}
END_TEST

START_TEST(byte_tokens_that_are_no_text_show_one_by_one)
{
    json_t *json = load_json(data_path("tokenizer/spm.json"));
    uint32_t *ids;
    char *text;

    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
    size_t count = encode("a\xe4\xbd", 3, &ids);

    ck_assert_int_eq(eep_tokenizer_decode(tokenizer, ids, count, true, &text), EEP_OK);
    ck_assert_str_eq(text, "a\xef\xbf\xbd\xef\xbf\xbd");
    free(text);
    free(ids);
}
END_TEST

START_TEST(two_tokens_of_one_id_are_refused)
{
    json_t *json = tiny_json();

    json_object_set_new(json_object_get(json_object_get(json, "model"), "vocab"), "qqq",
                        json_integer(7));
    ck_assert_int_eq(reopen(json), EEP_ERR_FORMAT);
    assert_error_has("id 7");
    json_decref(json);
}
END_TEST

START_TEST(no_file_is_an_error)
{
    struct eep_tokenizer *none = NULL;

    ck_assert_int_eq(eep_tokenizer_open(dir, &none), EEP_ERR_IO);
    assert_error_has("tokenizer.json");
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(a_pattern_that_runs_wild_is_stopped)
{
    json_t *json = tiny_json();
    json_t *value = json_loads(SPLIT("(a|aa)+$|(a*)*b"), 0, NULL);
    char text[200];
    uint32_t *ids;
    size_t count;
    uint64_t start_ns = eep_clock_ns();

    json_object_set_new(json, "pre_tokenizer", value);
    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
    memset(text, 'a', sizeof(text));
    text[199] = 'c';
    ck_assert_int_eq(eep_tokenizer_encode(tokenizer, text, sizeof(text), &ids, &count),
                     EEP_ERR_UNSUPPORTED);
    ck_assert_uint_lt(eep_clock_ns() - start_ns, 20 * EEP_NS_PER_S);
}
END_TEST

/* ---- failing allocations ---- */

static enum eep_status open_and_close(void *context)
{
    struct eep_tokenizer *opened;

    EEP_TRY(eep_tokenizer_open(context, &opened));
    eep_tokenizer_close(opened);
    return EEP_OK;
}

static enum eep_status encode_and_decode(void *context)
{
    uint32_t *ids;
    size_t count;
    char *text;

    EEP_TRY(eep_tokenizer_encode(tokenizer, context, strlen(context), &ids, &count));
    enum eep_status status = eep_tokenizer_decode(tokenizer, ids, count, true, &text);

    free(ids);
    if (status == EEP_OK) {
        free(text);
    }
    return status;
}

START_TEST(every_allocation_may_fail)
{
    char path[DATA_PATH_MAX];
    char text[600];
    json_t *json = tiny_json();
    json_t *value = json_loads("{\"type\": \"ByteLevel\"}", 0, NULL);

    strcpy(path, data_path("tiny-qwen3-moe"));
    ck_assert_uint_ge(fail_each_allocation(open_and_close, path), 10);
    json_object_set_new(json, "pre_tokenizer", value); /* puts a space before */
    json_object_set_new(json_object_get(json, "model"), "ignore_merges", json_true());
    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memcpy(text, "<|im_end|>e\xcc\x81 ", 15);
    ck_assert_uint_ge(fail_each_allocation(encode_and_decode, text), 8);
    json = load_json(data_path("tokenizer/spm.json"));
    ck_assert_int_eq(reopen(json), EEP_OK);
    json_decref(json);
    ck_assert_uint_ge(fail_each_allocation(open_and_close, dir), 10);
    ck_assert_uint_ge(fail_each_allocation(encode_and_decode, text), 8);
}
END_TEST

#define ADD_LOOP(test, count) tcase_add_loop_test(tests, test, 0, (int)(count))

int main(void)
{
    Suite *suite = suite_create("tokenizer");
    TCase *tests = tcase_create("tokenizer");

    variants = load_json(data_path("tokenizer/variants.json"));
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, stored_cases_are_exact);
    ADD_LOOP(held_out_text_is_exact, 2);
    tcase_add_test(tests, prompts_decode_to_their_text);
    ADD_LOOP(a_variant_of_the_file_is_exact, json_array_size(variants));
    tcase_add_test(tests, any_bytes_come_back);
    tcase_add_test(tests, what_is_not_utf8_is_encoded_byte_by_byte);
    tcase_add_test(tests, broken_utf8_becomes_one_mark_for_each_part);
    tcase_add_test(tests, characters_have_their_code_points);
    tcase_add_test(tests, every_byte_has_its_character);
    tcase_add_test(tests, merges_are_those_of_the_definition);
    tcase_add_test(tests, a_long_word_does_not_take_long);
    tcase_add_test(tests, threads_may_share_a_tokenizer);
    tcase_add_test(tests, tokens_can_be_asked_for);
    tcase_add_test(tests, ids_may_have_gaps);
    tcase_add_test(tests, a_byte_without_token_is_refused_when_it_occurs);
    ADD_LOOP(a_changed_file_has_its_outcome, sizeof(changes) / sizeof(changes[0]));
    ADD_LOOP(a_changed_file_of_characters_has_its_outcome,
             sizeof(spm_changes) / sizeof(spm_changes[0]));
    tcase_add_test(tests, a_character_without_token_is_refused_when_it_occurs);
    tcase_add_test(tests, byte_tokens_that_are_no_text_show_one_by_one);
    tcase_add_test(tests, two_tokens_of_one_id_are_refused);
    tcase_add_test(tests, no_file_is_an_error);
    tcase_add_test(tests, a_pattern_that_runs_wild_is_stopped);
    tcase_add_test(tests, every_allocation_may_fail);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    json_decref(variants);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
