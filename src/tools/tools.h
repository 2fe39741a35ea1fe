/*
 * What the commands of the `eep` program share. Results go to stdout, logs and progress to stderr;
 * with several ranks only rank 0 writes results. Exit status: 0 done, 1 failed, 2 wrong usage.
 */
#ifndef EEP_TOOLS_H
#define EEP_TOOLS_H

#include <stdbool.h>

#include <eep/engine.h>

#include "base/status.h"

enum {
    EEP_EXIT_OK = 0,
    EEP_EXIT_FAILED = 1,
    EEP_EXIT_USAGE = 2,
};

/* The commands: argv[0] is the command's name. They return the exit status. */
int eep_cmd_generate(int argc, char **argv);
int eep_cmd_eval(int argc, char **argv);
int eep_cmd_bench(int argc, char **argv);
int eep_cmd_launch(int argc, char **argv);
int eep_cmd_cache(int argc, char **argv);
int eep_cmd_layout(int argc, char **argv);

/** True on the rank that speaks for all: rank 0, as the launcher's environment says. */
bool eep_tool_speaks(void);

/** Say what failed: once for all ranks when they agree on it. EEP_OK says nothing. */
void eep_tool_report(enum eep_status status);

/**
 * End a command that ran an engine: say what failed, leave the ranks. Returns the exit status.
 * engine may be NULL: its creation failed, which was said then.
 */
int eep_tool_end(struct eep_engine *engine, enum eep_status status);

/**
 * Tell `eep launch` this rank's exit status (launch.c); nothing without it. Every rank calls it
 * once, right before it ends. With an error, ranks above 0 wait here for rank 0 to end first.
 */
void eep_status_file_write(int status);

/**
 * This rank's exit status is not the job's: the job goes on without it, or it was broken off by a
 * loss and may be started again.
 */
void eep_status_file_forget(void);

/** This process was not started by mpirun, but by a rank of the job. */
bool eep_status_spawned(void);

/**
 * Before a rank ends with an error: let the one that speaks go first. A launcher ends the job when
 * a rank ends with an error, and may drop what another has just written. Nothing under no launcher.
 */
void eep_tool_linger(int exit_status);

/** Print the text of this thread's last failure on stderr; returns EEP_EXIT_FAILED. */
int eep_tool_failed(void);

#endif
