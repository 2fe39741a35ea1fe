/* What the commands that run an engine share: its options, loading bar, prompts from rank 0. */
#ifndef EEP_TOOLS_ENGINE_OPTS_H
#define EEP_TOOLS_ENGINE_OPTS_H

#include <eep/engine.h>

#include "base/status.h"
#include "tools/opts.h"

/** Values of the options that every engine command takes; zero = not given. */
struct eep_engine_opts {
    const char *model;
    const char *layout;
    const char *kernels;
    uint32_t redundant;
    uint32_t chunk;
    uint32_t max_sequences;
    uint32_t threads;
    uint32_t node_size;
    uint64_t kv_tokens;
    uint32_t timeout_s;
    const char *cache; /* off, job, keep or require */
    const char *cache_dir;
    uint32_t spare_frames; /* UINT32_MAX: not given */
    uint32_t attach_timeout_s;
    const char *on_loss;           /* shrink, respawn or stop */
    uint32_t ep_size, max_ep_size; /* 0: not given */
    bool can_park; /* no option: the command knows what to do while its process is no rank */
    uint32_t silent_after_s;      /* UINT32_MAX: not given */
    const char *backup;           /* none or partner */
    const char *rebalance_policy; /* eep, deepseek or shuffle */
    struct eep_rebalance_params rebalance;
};

/** Where the job's standard input can be opened on rank 0's machine; NULL: it is this process's
 *  own. EEP_ERR_UNSUPPORTED under a plain mpirun. */
EEP_MUST_CHECK enum eep_status eep_input_path(const char **path_out);

#define EEP_ENGINE_OPT_COUNT 28

/** Write the table of those options into opts_out (EEP_ENGINE_OPT_COUNT entries). */
void eep_engine_opts_table(struct eep_engine_opts *values, struct eep_opt *opts_out);

/** Check what can be checked before an engine is made: EEP_EXIT_OK, or EEP_EXIT_USAGE and said. */
int eep_engine_opts_check(const struct eep_engine_opts *values,
                          const struct eep_command_help *help);

/**
 * Parse a command's options, `own` of them, behind which opts has room for EEP_ENGINE_OPT_COUNT,
 * and check those of the engine.
 *
 * @return EEP_OPTS_GO_ON, or the exit status that the command ends with
 */
int eep_engine_opts_parse(const struct eep_command_help *help, struct eep_engine_opts *values,
                          struct eep_opt *opts, size_t own, int argc, char **argv);

/** Make an engine as the options say; a loading bar is shown on rank 0's terminal. Collective. */
EEP_MUST_CHECK enum eep_status eep_engine_opts_create(const struct eep_engine_opts *values,
                                                      struct eep_engine **engine_out);

/**
 * Copy a buffer that rank 0 has made to all ranks. Collective.
 *
 * @param status  of rank 0's making it; a failure becomes that of all ranks
 * @param data    rank 0: the bytes, from malloc(), replaced on the others (NULL there); free() it
 */
EEP_MUST_CHECK enum eep_status eep_share_buffer(struct eep_engine *engine, enum eep_status status,
                                                void **data, size_t *bytes);

/** Read a whole file ("-" = standard input). data_out is NUL-terminated behind `bytes`; free(). */
EEP_MUST_CHECK enum eep_status eep_read_file(const char *path, char **data_out, size_t *bytes_out);

/** A few lines of facts on stderr (rank 0). Collective. */
EEP_MUST_CHECK enum eep_status eep_print_facts(struct eep_engine *engine);

#endif
