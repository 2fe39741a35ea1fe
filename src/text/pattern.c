/*
 * Patterns of tokenizer.json are written for Oniguruma (Ruby's syntax) and matched by PCRE2 here.
 * For what such patterns use the two agree, with these exceptions: \s is Unicode's White_Space
 * there, and has U+180E besides in PCRE2, so it is spelled out; \h, sets within sets, "&&" in a
 * set, and "+" after a counted repeat mean something else, and are refused.
 */
#include <string.h>

#include "text/text_int.h"

#define SPACE_RANGES                                                                               \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"  \
    "\\x{205f}\\x{3000}"

static enum eep_status fail_pattern(const char *path, const char *pattern, const char *why)
{
    return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                    "%s: pre_tokenizer: the pattern '%.300s' has %s, which is "
                    "not supported",
                    path, pattern, why);
}

/* Translate the escape at `at`; `*used` is how long it is. */
static enum eep_status translate_escape(const char *path, const char *pattern, const char *at,
                                        bool in_set, struct eep_text_buffer *out, size_t *used)
{
    *used = at[1] == '\0' ? 1 : 2;
    switch (at[1]) {
    case 's':
        return in_set ? eep_text_append(out, SPACE_RANGES, strlen(SPACE_RANGES))
                      : eep_text_append(out, "[" SPACE_RANGES "]", strlen(SPACE_RANGES) + 2);
    case 'S':
        if (in_set) {
            return fail_pattern(path, pattern, "\\S in a set");
        }
        return eep_text_append(out, "[^" SPACE_RANGES "]", strlen(SPACE_RANGES) + 3);
    case 'h':
    case 'H':
    case 'X':
    case 'R':
    case 'K':
        return fail_pattern(path, pattern, "an escape (\\h, \\X, \\R or \\K)");
    case '\0':
        return fail_pattern(path, pattern, "a lone backslash at its end");
    default:
        return eep_text_append(out, at, 2);
    }
}

/* Is the "}" at `at` the end of a counted repeat? */
static bool ends_repeat(const char *pattern, const char *at)
{
    const char *c = at;

    while (c > pattern && ((c[-1] >= '0' && c[-1] <= '9') || c[-1] == ',')) {
        c--;
    }
    return c < at && c > pattern && c[-1] == '{' && !(c - 1 > pattern && c[-2] == 'x');
}

static enum eep_status translate(const char *path, const char *pattern, struct eep_text_buffer *out)
{
    bool in_set = false;
    bool set_begins = false;

    for (const char *c = pattern; *c != '\0';) {
        size_t used = 1;
        bool begins = set_begins;

        set_begins = false;
        if (*c == '\\') {
            EEP_TRY(translate_escape(path, pattern, c, in_set, out, &used));
            c += used;
            continue;
        }
        if (in_set && *c == '[') {
            return fail_pattern(path, pattern, "a set in a set");
        }
        if (in_set && strncmp(c, "&&", 2) == 0) {
            return fail_pattern(path, pattern, "an intersection of sets");
        }
        if (!in_set && strncmp(c, "}+", 2) == 0 && ends_repeat(pattern, c)) {
            return fail_pattern(path, pattern, "a '+' after a counted repeat");
        }
        if (!in_set && *c == '[') {
            in_set = true;
            set_begins = true;
        } else if (in_set && *c == '^' && begins) {
            set_begins = true; /* a "]" may still be the first member */
        } else if (in_set && *c == ']' && !begins) {
            in_set = false;
        }
        EEP_TRY(eep_text_append(out, c, 1));
        c++;
    }
    return EEP_OK;
}

static enum eep_status compile(const char *path, const char *shown, const char *pattern,
                               size_t bytes, uint32_t options, pcre2_code **code_out)
{
    int error;
    PCRE2_SIZE at;
    char text[160];
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, bytes, options | PCRE2_UTF, &error, &at, NULL);

    if (code == NULL) {
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof(text));
        return EEP_FAIL(EEP_ERR_FORMAT, "%s: pre_tokenizer: the pattern '%.300s' is not valid: %s",
                        path, shown, text);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it, it is only slower */
    *code_out = code;
    return EEP_OK;
}

enum eep_status eep_pattern_compile(const char *path, const char *pattern, bool literal,
                                    pcre2_code **code_out)
{
    struct eep_text_buffer translated = {0};

    if (literal) {
        return compile(path, pattern, pattern, strlen(pattern), PCRE2_LITERAL, code_out);
    }
    enum eep_status status = translate(path, pattern, &translated);

    if (status == EEP_OK) {
        status = compile(path, pattern, translated.data != NULL ? translated.data : "",
                         translated.size, PCRE2_UCP | PCRE2_MULTILINE, code_out);
    }
    eep_text_buffer_free(&translated);
    return status;
}
