/*
 * Cutting text into pieces: a list of steps, each of which cuts every piece of the one before, so
 * that a look-ahead sees the end of its piece and not the text behind it.
 */
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "text/text_int.h"

#define WHERE "pre_tokenizer"
#define MATCH_LIMIT 20000000 /* steps of one match; a pattern that needs more is refused */
#define JIT_STACK_MIN ((size_t)32 << 10)
#define JIT_STACK_MAX ((size_t)16 << 20)
#define DEPTH_MAX 8

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
                                   "| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct range {
    size_t begin;
    size_t end;
    bool match;
};

struct range_list {
    struct range *items;
    size_t count;
    size_t room;
};

struct eep_pretokenize_work {
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    size_t steps;
    struct {
        pcre2_match_data *match; /* NULL for a step without a pattern */
        struct range_list ranges;
        struct eep_text_buffer text; /* with what is put before it */
    } step[EEP_PRETOKENIZE_STEPS_MAX];
};

/* ---- loading ---- */

static enum eep_status add_step(const char *path, struct eep_pretokenizer *out,
                                enum eep_pretokenize_kind kind,
                                struct eep_pretokenize_step **step_out)
{
    if (out->count == EEP_PRETOKENIZE_STEPS_MAX) {
        return eep_text_unsupported(path, WHERE, "more than 16 steps");
    }
    *step_out = &out->steps[out->count++];
    (*step_out)->kind = kind;
    return EEP_OK;
}

static enum eep_status add_split(const char *path, struct eep_pretokenizer *out,
                                 const char *pattern, bool literal, enum eep_split split,
                                 bool invert)
{
    struct eep_pretokenize_step *step;

    EEP_TRY(add_step(path, out, EEP_PRETOKENIZE_SPLIT, &step));
    step->split = split;
    step->invert = invert;
    return eep_pattern_compile(path, pattern, literal, &step->code);
}

static enum eep_status load_byte_level(const char *path, const json_t *json,
                                       struct eep_pretokenizer *out)
{
    struct eep_pretokenize_step *step;
    bool prefix, regex;

    EEP_TRY(eep_text_bool(path, WHERE, json, "add_prefix_space", true, &prefix));
    EEP_TRY(eep_text_bool(path, WHERE, json, "use_regex", true, &regex));
    if (prefix) {
        EEP_TRY(add_step(path, out, EEP_PRETOKENIZE_SPACE_BEFORE, &step));
    }
    if (regex) {
        EEP_TRY(add_split(path, out, gpt2_pattern, false, EEP_SPLIT_ISOLATED, false));
    }
    out->bytes = true;
    return EEP_OK;
}

static bool split_by_name(const char *name, enum eep_split *split_out)
{
    static const char *const names[] = {
        [EEP_SPLIT_REMOVED] = "Removed",
        [EEP_SPLIT_ISOLATED] = "Isolated",
        [EEP_SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [EEP_SPLIT_WITH_NEXT] = "MergedWithNext",
        [EEP_SPLIT_CONTIGUOUS] = "Contiguous",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *split_out = (enum eep_split)i;
            return true;
        }
    }
    return false;
}

static enum eep_status load_split(const char *path, const json_t *json,
                                  struct eep_pretokenizer *out)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = json_object_get(pattern, "String");
    const json_t *behavior = json_object_get(json, "behavior");
    enum eep_split split;
    bool invert;

    if ((!json_is_string(regex) && !json_is_string(text)) || !json_is_string(behavior)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: %s: a Split without a pattern (Regex or String) and a behavior", path,
                        WHERE);
    }
    if (!split_by_name(json_string_value(behavior), &split)) {
        return eep_text_unsupported(path, "pre_tokenizer: Split with the behavior",
                                    json_string_value(behavior));
    }
    EEP_TRY(eep_text_bool(path, WHERE, json, "invert", false, &invert));
    return add_split(path, out, json_string_value(json_is_string(regex) ? regex : text),
                     !json_is_string(regex), split, invert);
}

static enum eep_status load_digits(const char *path, const json_t *json,
                                   struct eep_pretokenizer *out)
{
    bool single;

    EEP_TRY(eep_text_bool(path, WHERE, json, "individual_digits", false, &single));
    return add_split(path, out, single ? "\\p{N}" : "\\p{N}+", false, EEP_SPLIT_ISOLATED, false);
}

/* In old files add_prefix_space says whether to prepend. */
static enum eep_status read_prepend(const char *path, const json_t *json,
                                    enum eep_prepend *prepend_out)
{
    const json_t *scheme = eep_text_get(json, "prepend_scheme");
    const char *text = scheme != NULL ? json_string_value(scheme) : "always";
    bool prefix;

    EEP_TRY(eep_text_bool(path, WHERE, json, "add_prefix_space", true, &prefix));
    if (text == NULL) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: prepend_scheme is not a string", path, WHERE);
    }
    if (strcmp(text, "never") == 0 || (scheme == NULL && !prefix)) {
        *prepend_out = EEP_PREPEND_NEVER;
    } else if (strcmp(text, "first") == 0) {
        *prepend_out = EEP_PREPEND_FIRST;
    } else if (strcmp(text, "always") == 0) {
        *prepend_out = EEP_PREPEND_ALWAYS;
    } else {
        return eep_text_unsupported(path, "pre_tokenizer: Metaspace with the prepend_scheme", text);
    }
    return EEP_OK;
}

static enum eep_status load_metaspace(const char *path, const json_t *json,
                                      struct eep_pretokenizer *out)
{
    const char *replacement = json_string_value(json_object_get(json, "replacement"));
    struct eep_pretokenize_step *step;
    bool cut;

    if (replacement == NULL || replacement[0] == '\0' ||
        eep_utf8_length(replacement, strlen(replacement)) != strlen(replacement)) {
        return EEP_FAIL(EEP_ERR_FORMAT,
                        "%s: %s: a Metaspace without a replacement of one character", path, WHERE);
    }
    EEP_TRY(add_step(path, out, EEP_PRETOKENIZE_METASPACE, &step));
    step->replacement = replacement;
    EEP_TRY(read_prepend(path, json, &step->prepend));
    EEP_TRY(eep_text_bool(path, WHERE, json, "split", true, &cut));
    return cut ? add_split(path, out, replacement, true, EEP_SPLIT_WITH_NEXT, false) : EEP_OK;
}

static enum eep_status load(const char *path, const json_t *json, int depth,
                            struct eep_pretokenizer *out);

static enum eep_status load_sequence(const char *path, const json_t *json, int depth,
                                     struct eep_pretokenizer *out)
{
    const json_t *list = json_object_get(json, "pretokenizers");

    if (!json_is_array(list)) {
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: %s: a Sequence without a list of pretokenizers", path,
                        WHERE);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        EEP_TRY(load(path, json_array_get(list, i), depth + 1, out));
    }
    return EEP_OK;
}

static enum eep_status load(const char *path, const json_t *json, int depth,
                            struct eep_pretokenizer *out)
{
    const char *type;

    EEP_TRY(eep_text_type(path, WHERE, json, &type));
    if (depth > DEPTH_MAX) {
        return eep_text_unsupported(path, WHERE, "a Sequence nested deeply");
    }
    if (out->bytes) { /* what follows would see the characters that stand for bytes */
        return eep_text_unsupported(path, "pre_tokenizer: after ByteLevel,", type);
    }
    if (strcmp(type, "Sequence") == 0) {
        return load_sequence(path, json, depth, out);
    }
    if (strcmp(type, "Split") == 0) {
        return load_split(path, json, out);
    }
    if (strcmp(type, "Digits") == 0) {
        return load_digits(path, json, out);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return load_byte_level(path, json, out);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return load_metaspace(path, json, out);
    }
    return eep_text_unsupported(path, WHERE, type);
}

enum eep_status eep_pretokenizer_load(const char *path, const json_t *json,
                                      struct eep_pretokenizer *out)
{
    struct eep_pretokenizer loaded;

    memset(&loaded, 0, sizeof(loaded));
    enum eep_status status =
        json == NULL || json_is_null(json) ? EEP_OK : load(path, json, 0, &loaded);

    if (status != EEP_OK) {
        eep_pretokenizer_free(&loaded);
        return status;
    }
    *out = loaded;
    return EEP_OK;
}

void eep_pretokenizer_free(struct eep_pretokenizer *pretokenizer)
{
    for (size_t i = 0; i < pretokenizer->count; i++) {
        pcre2_code_free(pretokenizer->steps[i].code);
    }
    memset(pretokenizer, 0, sizeof(*pretokenizer));
}

/* ---- running ---- */

static enum eep_status work_init(const struct eep_pretokenizer *pretokenizer,
                                 struct eep_pretokenize_work *work)
{
    work->steps = pretokenizer->count;
    work->context = pcre2_match_context_create(NULL);
    work->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (work->context == NULL || work->stack == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory to match patterns");
    }
    pcre2_set_match_limit(work->context, MATCH_LIMIT);
    pcre2_jit_stack_assign(work->context, NULL, work->stack);
    for (size_t i = 0; i < work->steps; i++) {
        if (pretokenizer->steps[i].kind != EEP_PRETOKENIZE_SPLIT) {
            continue;
        }
        work->step[i].match =
            pcre2_match_data_create_from_pattern(pretokenizer->steps[i].code, NULL);
        if (work->step[i].match == NULL) {
            return EEP_FAIL(EEP_ERR_NOMEM, "no memory to match patterns");
        }
    }
    return EEP_OK;
}

enum eep_status eep_pretokenize_work_create(const struct eep_pretokenizer *pretokenizer,
                                            struct eep_pretokenize_work **work_out)
{
    struct eep_pretokenize_work *work;

    EEP_TRY(eep_mem_alloc(1, sizeof(*work), "work space of a tokenizer", &work));
    enum eep_status status = work_init(pretokenizer, work);

    if (status != EEP_OK) {
        eep_pretokenize_work_destroy(work);
        return status;
    }
    *work_out = work;
    return EEP_OK;
}

void eep_pretokenize_work_destroy(struct eep_pretokenize_work *work)
{
    if (work == NULL) {
        return;
    }
    for (size_t i = 0; i < work->steps; i++) {
        pcre2_match_data_free(work->step[i].match);
        eep_mem_free(work->step[i].ranges.items);
        eep_text_buffer_free(&work->step[i].text);
    }
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    eep_mem_free(work);
}

static enum eep_status add_range(struct range_list *list, size_t begin, size_t end, bool match)
{
    EEP_TRY(eep_text_grow(&list->items, &list->room, list->count, list->count + 1,
                          sizeof(*list->items)));
    list->items[list->count++] = (struct range){begin, end, match};
    return EEP_OK;
}

/* The next match from `from` on; *begin_out == SIZE_MAX if there is none. */
static enum eep_status find_match(const pcre2_code *code, pcre2_match_data *match,
                                  pcre2_match_context *context, const char *text, size_t bytes,
                                  size_t from, size_t *begin_out, size_t *end_out)
{
    int got = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, match, context);

    if (got == PCRE2_ERROR_JIT_STACKLIMIT) { /* the interpreter keeps its stack on the heap */
        got = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          match, context);
    }
    *begin_out = SIZE_MAX;
    if (got == PCRE2_ERROR_NOMATCH) {
        return EEP_OK;
    }
    if (got < 0) {
        char text_of_error[160];

        pcre2_get_error_message(got, (PCRE2_UCHAR *)text_of_error, sizeof(text_of_error));
        return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                        "a pattern of the pre_tokenizer failed on this text: %s", text_of_error);
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match);

    *begin_out = place[0];
    *end_out = place[1];
    return EEP_OK;
}

/* The whole text as ranges, alternately between matches and matches. An empty match cuts. */
static enum eep_status find_ranges(const struct eep_pretokenize_step *step, pcre2_match_data *match,
                                   pcre2_match_context *context, const char *text, size_t bytes,
                                   struct range_list *list)
{
    size_t last = 0; /* end of the last range */
    size_t last_match_end = SIZE_MAX;
    size_t from = 0;

    list->count = 0;
    while (from <= bytes) {
        size_t begin, end;

        EEP_TRY(find_match(step->code, match, context, text, bytes, from, &begin, &end));
        if (begin == SIZE_MAX) {
            break;
        }
        from = end;
        if (begin == end) {
            from += end < bytes ? eep_utf8_length(text + end, bytes - end) : 1;
            if (end == last_match_end) {
                continue;
            }
        }
        last_match_end = end;
        if (begin > last) {
            EEP_TRY(add_range(list, last, begin, step->invert));
        }
        EEP_TRY(add_range(list, begin, end, !step->invert));
        last = end;
    }
    return last < bytes ? add_range(list, last, bytes, step->invert) : EEP_OK;
}

/* Join and drop ranges as the step says, in place. */
static void join_ranges(enum eep_split split, struct range_list *list)
{
    struct range *items = list->items;
    size_t kept = 0;
    bool previous = false;

    for (size_t i = 0; i < list->count; i++) {
        const struct range range = items[i];
        bool join = false;

        switch (split) {
        case EEP_SPLIT_ISOLATED:
            break;
        case EEP_SPLIT_REMOVED:
            if (range.match) {
                continue;
            }
            break;
        case EEP_SPLIT_WITH_PREVIOUS:
            join = range.match && !previous;
            break;
        case EEP_SPLIT_WITH_NEXT:
            join = !range.match && previous;
            break;
        case EEP_SPLIT_CONTIGUOUS:
            join = range.match == previous;
            break;
        }
        previous = range.match;
        if (join && kept > 0) {
            items[kept - 1].end = range.end;
        } else {
            items[kept++] = range;
        }
    }
    list->count = kept;
}

struct run {
    const struct eep_pretokenizer *pretokenizer;
    struct eep_pretokenize_work *work;
    eep_piece_fn take;
    void *context;
};

static enum eep_status run_step(const struct run *run, size_t index, const char *text, size_t bytes,
                                bool is_first);

static enum eep_status run_space_before(const struct run *run, size_t index, const char *text,
                                        size_t bytes, bool is_first)
{
    struct eep_text_buffer *buffer = &run->work->step[index].text;

    if (text[0] == ' ') {
        return run_step(run, index + 1, text, bytes, is_first);
    }
    buffer->size = 0;
    EEP_TRY(eep_text_append(buffer, " ", 1));
    EEP_TRY(eep_text_append(buffer, text, bytes));
    return run_step(run, index + 1, buffer->data, buffer->size, is_first);
}

static enum eep_status run_metaspace(const struct run *run, size_t index, const char *text,
                                     size_t bytes, bool is_first)
{
    const struct eep_pretokenize_step *step = &run->pretokenizer->steps[index];
    struct eep_text_buffer *buffer = &run->work->step[index].text;
    size_t length = strlen(step->replacement);
    bool has = text[0] == ' ' || (bytes >= length && memcmp(text, step->replacement, length) == 0);

    buffer->size = 0;
    if (!has &&
        (step->prepend == EEP_PREPEND_ALWAYS || (step->prepend == EEP_PREPEND_FIRST && is_first))) {
        EEP_TRY(eep_text_append(buffer, step->replacement, length));
    }
    for (size_t i = 0; i < bytes; i++) {
        EEP_TRY(text[i] == ' ' ? eep_text_append(buffer, step->replacement, length)
                               : eep_text_append(buffer, text + i, 1));
    }
    return run_step(run, index + 1, buffer->data, buffer->size, is_first);
}

static enum eep_status run_split(const struct run *run, size_t index, const char *text,
                                 size_t bytes, bool is_first)
{
    const struct eep_pretokenize_step *step = &run->pretokenizer->steps[index];
    struct range_list *list = &run->work->step[index].ranges;

    EEP_TRY(find_ranges(step, run->work->step[index].match, run->work->context, text, bytes, list));
    join_ranges(step->split, list);
    for (size_t i = 0; i < list->count; i++) {
        const struct range range = list->items[i];

        EEP_TRY(run_step(run, index + 1, text + range.begin, range.end - range.begin,
                         is_first && range.begin == 0));
    }
    return EEP_OK;
}

/* Bounded by EEP_PRETOKENIZE_STEPS_MAX. */
static enum eep_status run_step(const struct run *run, size_t index, const char *text, size_t bytes,
                                bool is_first)
{
    if (bytes == 0) {
        return EEP_OK;
    }
    if (index == run->pretokenizer->count) {
        return run->take(run->context, text, bytes);
    }
    switch (run->pretokenizer->steps[index].kind) {
    case EEP_PRETOKENIZE_SPLIT:
        return run_split(run, index, text, bytes, is_first);
    case EEP_PRETOKENIZE_SPACE_BEFORE:
        return run_space_before(run, index, text, bytes, is_first);
    case EEP_PRETOKENIZE_METASPACE:
        return run_metaspace(run, index, text, bytes, is_first);
    }
    EEP_ASSERT(!"a kind of step");
    return EEP_ERR_FATAL;
}

enum eep_status eep_pretokenize(const struct eep_pretokenizer *pretokenizer,
                                struct eep_pretokenize_work *work, const char *text, size_t bytes,
                                bool is_first, eep_piece_fn take, void *context)
{
    const struct run run = {pretokenizer, work, take, context};

    EEP_ASSERT(work->steps == pretokenizer->count);
    return run_step(&run, 0, text, bytes, is_first);
}
