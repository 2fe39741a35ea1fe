/*
 * The processes of a launched job, found by a name of the job in their environment.
 */
#ifndef EEP_TOOLS_LAUNCH_PROCS_H
#define EEP_TOOLS_LAUNCH_PROCS_H

#include <stdint.h>

/** Choose the job's name; what is started from now on has it in its environment, EEP_JOB_ID. */
void eep_procs_name_job(void);

/** Ranks of the job that are alive on this machine. */
uint32_t eep_procs_ranks(void);

/** Kill what is left of the job on this machine, and wait until it is gone, 2 s at most. */
void eep_procs_kill(void);

#endif
