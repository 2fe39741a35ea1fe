/* The admin endpoint of a command that runs an engine: options, and the engine's side on rank 0. */
#ifndef EEP_TOOLS_ADMIN_H
#define EEP_TOOLS_ADMIN_H

#include <eep/engine.h>

#include "base/status.h"
#include "tools/opts.h"

struct eep_tool_admin;

/** Values of the options; NULL = not given. */
struct eep_tool_admin_opts {
    const char *endpoint; /* unix:PATH or HOST:PORT; NULL: no endpoint */
    const char *token_file;
    const char *cert_file;
    const char *key_file;
    const char *model; /* shown in the status */
};

#define EEP_TOOL_ADMIN_OPT_COUNT 4

/** Write the table of those options into opts_out (EEP_TOOL_ADMIN_OPT_COUNT entries). */
void eep_tool_admin_table(struct eep_tool_admin_opts *values, struct eep_opt *opts_out);

/** EEP_EXIT_OK, or EEP_EXIT_USAGE and said. */
int eep_tool_admin_check(const struct eep_tool_admin_opts *values,
                         const struct eep_command_help *help);

/**
 * Open the endpoint on rank 0 of an engine that has loaded, if one was asked for; when another
 * process becomes rank 0 it opens it anew. Collective among the ranks; parked processes call it
 * too.
 *
 * @param admin_out  NULL when none was asked for
 */
EEP_MUST_CHECK enum eep_status eep_tool_admin_open(const struct eep_tool_admin_opts *values,
                                                   struct eep_engine *engine,
                                                   struct eep_tool_admin **admin_out);

/** After each step: take commands, show what has changed. Waits for nobody. NULL is allowed. */
void eep_tool_admin_step(struct eep_tool_admin *admin);

/** This process is no rank any more: another one has the endpoint. NULL is allowed. */
void eep_tool_admin_rest(struct eep_tool_admin *admin);

/** Before the engine is destroyed. NULL is allowed. */
void eep_tool_admin_close(struct eep_tool_admin *admin);

#endif
