/*
 * Fault points: named places at which a test can kill, end, stop or delay this process.
 *
 *     EEP_FAULT("wcache.commit.flipped");
 *
 * Nothing is compiled in unless configure had --enable-faults, and nothing happens then unless the
 * environment asks for it:
 *
 *     EEP_FAULT_AT=NAME[:N][@RANK][,...]
 *                             act when the point is reached for the N-th time (default the first),
 *                             in the process whose launcher says that it is that rank
 *     EEP_FAULT_ACTION=kill|exit|stop|sleep[:MS]
 *                             SIGKILL to self (default), exit at once with status 66, SIGSTOP to
 *                             self, sleep MS milliseconds (default 1000) and go on
 *     EEP_FAULT_RANK=R        the rank for those that name none (default: all)
 *     EEP_FAULT_LOG=FILE      append the name of each point that this process reached, once, and
 *                             before the action: shows that a run reached it
 *
 * A wrong value ends the process with a message: a test that arms nothing must not pass.
 */
#ifndef EEP_BASE_FAULT_H
#define EEP_BASE_FAULT_H

#include <stdbool.h>

#include "config.h"

#ifdef EEP_FAULTS
#define EEP_FAULT(name) eep_fault_reached(name)
#else
#define EEP_FAULT(name) ((void)sizeof(name))
#endif

#define EEP_FAULT_EXIT_STATUS 66

/** True if fault points are compiled in. */
bool eep_fault_compiled_in(void);

/** The point `name` (a literal: its address is kept) was reached. Thread-safe. */
void eep_fault_reached(const char *name);

/**
 * Read the environment again and forget what was counted and logged: for a test that forks and arms
 * its child. Not thread-safe.
 */
void eep_fault_rearm(void);

#endif
