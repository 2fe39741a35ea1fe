/* The parts of `eep layout`, and what they share. */
#ifndef EEP_TOOLS_LAYOUT_TOOL_H
#define EEP_TOOLS_LAYOUT_TOOL_H

#include <jansson.h>

#include "tools/layout_files.h"
#include "tools/opts.h"

/* argv[0] is the part's name. They return the exit status. */
int eep_layout_plan(int argc, char **argv);
int eep_layout_verify(int argc, char **argv);
int eep_layout_diff(int argc, char **argv);
int eep_layout_explain(int argc, char **argv);

#define EEP_LAYOUT_FILES_MAX 64

/** The words of a command line that are no options; they point into argv. */
struct eep_layout_words {
    const char *files[EEP_LAYOUT_FILES_MAX];
    uint32_t count;
};

/** As eep_opts_parse(), but options and files may come in any order. */
int eep_layout_parse(const struct eep_command_help *help, const struct eep_opt *opts,
                     size_t opt_count, int argc, char **argv, struct eep_layout_words *words);

/** Print an object on a line of its own, and drop it; NULL fails. */
EEP_MUST_CHECK enum eep_status eep_layout_print_json(json_t *json);

/* Experts of a layer that would have no slot without one rank, or one node. */
struct eep_layout_losses {
    uint32_t *of_rank;               /* (seats) experts whose only seat it is */
    uint32_t *of_node;               /* (nodes) */
    uint32_t worst_rank, worst_node; /* where most would be lost */
    uint32_t rank_count, node_count; /* how many there */
};

/** Memory for the losses of one layer; free of_rank with eep_mem_free(). */
EEP_MUST_CHECK enum eep_status eep_layout_losses_make(const struct eep_eplb_shape *shape,
                                                      struct eep_layout_losses *losses_out);

/** What would be lost of one layer. */
EEP_MUST_CHECK enum eep_status eep_layout_losses(const struct eep_eplb_shape *shape,
                                                 const int32_t *map,
                                                 struct eep_layout_losses *losses);

#endif
