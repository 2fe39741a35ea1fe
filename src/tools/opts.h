/*
 * Command-line options as a table: parsing, the messages for wrong ones, and --help all come from
 * it. Every rank parses the same words; only the first one speaks.
 */
#ifndef EEP_TOOLS_OPTS_H
#define EEP_TOOLS_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum eep_opt_kind {
    EEP_OPT_FLAG,     /* bool: --name sets it */
    EEP_OPT_STRING,   /* const char *: points into argv */
    EEP_OPT_U32,      /* uint32_t */
    EEP_OPT_U64,      /* uint64_t */
    EEP_OPT_DOUBLE,   /* double, finite */
    EEP_OPT_U32_LIST, /* struct eep_u32_list: 1,2,3 */
};

/** A list that an option gave; `values` is free()d by the caller, NULL while it was not given. */
struct eep_u32_list {
    uint32_t *values;
    size_t count;
};

struct eep_opt {
    const char *name; /* without the dashes */
    enum eep_opt_kind kind;
    void *value;          /* of the kind's type, holds the default before parsing */
    const char *argument; /* what --help calls the argument; NULL for a flag */
    const char *help;     /* one line, or several with \n */
};

/** A command: what --help shows. */
struct eep_command_help {
    const char *usage;   /* "eep generate --model DIR ..." */
    const char *summary; /* a sentence or a paragraph */
    const char *epilog;  /* after the options; NULL for none */
};

/** The options were parsed, and the command goes on; no exit status has that number. */
#define EEP_OPTS_GO_ON (-1)

/**
 * Parse argv[1 .. argc-1]: --name value, --name=value, --flag, --no-flag, "--" ends options.
 *
 * @param rest_out  index of the first word that is no option, argc if there is none; NULL: such a
 *                  word is wrong usage
 *
 * @return EEP_OPTS_GO_ON, or the exit status that the command ends with: help was asked for and is
 *         printed on stdout, or the usage is wrong and that is said on stderr
 */
int eep_opts_parse(const struct eep_command_help *help, const struct eep_opt *opts,
                   size_t opt_count, int argc, char **argv, int *rest_out);

/** Say what is wrong with the usage, on the first rank's stderr; returns EEP_EXIT_USAGE. */
int eep_opts_wrong(const struct eep_command_help *help, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
