/*
 * Options by table; see opts.h. getopt is not used: its messages cannot be silenced per rank and
 * it knows no types.
 */
#include "tools/opts.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

static void wrong(const struct eep_command_help *help, const char *fmt, va_list args)
{
    if (!eep_tool_speaks()) {
        return;
    }
    fprintf(stderr, "eep: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\nusage: %s\n", help->usage);
}

int eep_opts_wrong(const struct eep_command_help *help, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    wrong(help, fmt, args);
    va_end(args);
    return EEP_EXIT_USAGE;
}

static const struct eep_opt *find(const struct eep_opt *opts, size_t opt_count, const char *name,
                                  size_t length)
{
    for (size_t i = 0; i < opt_count; i++) {
        if (strlen(opts[i].name) == length && memcmp(opts[i].name, name, length) == 0) {
            return &opts[i];
        }
    }
    return NULL;
}

static bool parse_u64(const char *text, uint64_t max, uint64_t *value_out)
{
    char *end;

    if (*text < '0' || *text > '9') {
        return false;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || value > max) {
        return false;
    }
    *value_out = value;
    return true;
}

static bool parse_list(const char *text, struct eep_u32_list *list_out)
{
    size_t count = 1;
    char *copy = strdup(text), *save = NULL;

    for (const char *c = text; *c != '\0'; c++) {
        count += *c == ',';
    }
    uint32_t *values = calloc(count, sizeof(*values));
    if (copy == NULL || values == NULL) {
        free(copy);
        free(values);
        return false;
    }
    size_t used = 0;
    for (char *word = strtok_r(copy, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        uint64_t value;

        if (!parse_u64(word, UINT32_MAX, &value)) {
            used = 0;
            break;
        }
        values[used++] = (uint32_t)value;
    }
    free(copy);
    if (used != count) {
        free(values);
        return false;
    }
    free(list_out->values);
    *list_out = (struct eep_u32_list){.values = values, .count = used};
    return true;
}

static bool set_value(const struct eep_opt *opt, const char *text)
{
    uint64_t number;
    double real;
    char *end;

    switch (opt->kind) {
    case EEP_OPT_FLAG:
        return false;
    case EEP_OPT_STRING:
        *(const char **)opt->value = text;
        return true;
    case EEP_OPT_U32:
        if (!parse_u64(text, UINT32_MAX, &number)) {
            return false;
        }
        *(uint32_t *)opt->value = (uint32_t)number;
        return true;
    case EEP_OPT_U64:
        return parse_u64(text, UINT64_MAX, opt->value);
    case EEP_OPT_DOUBLE:
        real = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(real)) {
            return false;
        }
        *(double *)opt->value = real;
        return true;
    case EEP_OPT_U32_LIST:
        return parse_list(text, opt->value);
    }
    return false;
}

static const char *expected(enum eep_opt_kind kind)
{
    switch (kind) {
    case EEP_OPT_U32:
    case EEP_OPT_U64:
        return "a whole number";
    case EEP_OPT_DOUBLE:
        return "a number";
    case EEP_OPT_U32_LIST:
        return "whole numbers with commas between";
    default:
        return "a word";
    }
}

static void print_help(const struct eep_command_help *help, const struct eep_opt *opts,
                       size_t opt_count)
{
    printf("usage: %s\n\n%s\n\noptions:\n", help->usage, help->summary);
    for (size_t i = 0; i < opt_count; i++) {
        char left[64];

        snprintf(left, sizeof(left), "--%s%s%s", opts[i].name, opts[i].argument != NULL ? " " : "",
                 opts[i].argument != NULL ? opts[i].argument : "");
        printf("  %-26s ", left);
        if (strlen(left) > 26) {
            printf("\n  %-26s ", "");
        }
        for (const char *c = opts[i].help; *c != '\0'; c++) {
            putchar(*c);
            if (*c == '\n') {
                printf("  %-26s ", "");
            }
        }
        putchar('\n');
    }
    printf("  %-26s this text\n", "--help");
    if (help->epilog != NULL) {
        printf("\n%s\n", help->epilog);
    }
}

/* One option word at argv[*at]; moves *at over its argument. */
static bool parse_word(const struct eep_command_help *help, const struct eep_opt *opts,
                       size_t opt_count, int argc, char **argv, int *at)
{
    const char *name = argv[*at] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const struct eep_opt *opt = find(opts, opt_count, name, length);

    if (opt == NULL && strncmp(name, "no-", 3) == 0 && equals == NULL) {
        opt = find(opts, opt_count, name + 3, length - 3);
        if (opt != NULL && opt->kind == EEP_OPT_FLAG) {
            *(bool *)opt->value = false;
            return true;
        }
        opt = NULL;
    }
    if (opt == NULL) {
        eep_opts_wrong(help, "unknown option '%s'", argv[*at]);
        return false;
    }
    if (opt->kind == EEP_OPT_FLAG) {
        if (equals != NULL) {
            eep_opts_wrong(help, "option '--%s' takes no argument", opt->name);
            return false;
        }
        *(bool *)opt->value = true;
        return true;
    }
    if (equals == NULL && *at + 1 >= argc) {
        eep_opts_wrong(help, "option '--%s' needs %s", opt->name, expected(opt->kind));
        return false;
    }
    const char *text = equals != NULL ? equals + 1 : argv[++*at];
    if (!set_value(opt, text)) {
        eep_opts_wrong(help, "option '--%s' needs %s, not '%s'", opt->name, expected(opt->kind),
                       text);
        return false;
    }
    return true;
}

int eep_opts_parse(const struct eep_command_help *help, const struct eep_opt *opts,
                   size_t opt_count, int argc, char **argv, int *rest_out)
{
    int at = 1;

    for (; at < argc; at++) {
        if (strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            if (eep_tool_speaks()) {
                print_help(help, opts, opt_count);
            }
            return EEP_EXIT_OK;
        }
        if (argv[at][0] != '-' || argv[at][1] == '\0') {
            break;
        }
        if (argv[at][1] != '-') {
            eep_opts_wrong(help, "unknown option '%s'", argv[at]);
            return EEP_EXIT_USAGE;
        }
        if (!parse_word(help, opts, opt_count, argc, argv, &at)) {
            return EEP_EXIT_USAGE;
        }
    }
    if (rest_out != NULL) {
        *rest_out = at;
    } else if (at < argc) {
        eep_opts_wrong(help, "unexpected word '%s'", argv[at]);
        return EEP_EXIT_USAGE;
    }
    return EEP_OPTS_GO_ON;
}
