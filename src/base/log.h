/*
 * The log: to standard error, lower case, subject first, then cause.
 *
 * error (cannot go on as asked), warn (odd, goes on), info (changes of membership, layout, epoch),
 * debug (per object), trace (per step). The level comes from EEP_LOG (default warn).
 */
#ifndef EEP_BASE_LOG_H
#define EEP_BASE_LOG_H

#include "base/status.h"

enum eep_log_level {
    EEP_LOG_ERROR,
    EEP_LOG_WARN,
    EEP_LOG_INFO,
    EEP_LOG_DEBUG,
    EEP_LOG_TRACE,
};

/** Lines above `level` are dropped. Not thread-safe: call it at start. */
void eep_log_level_set(enum eep_log_level level);

/** Read EEP_LOG; an unknown name is refused with the known ones. */
EEP_MUST_CHECK enum eep_status eep_log_level_from_env(void);

/** The rank that each line shows; -1 (the default) shows none. Not thread-safe. */
void eep_log_rank_set(int rank);

/** Write one line; `fmt` without a newline. Thread-safe: a line is one write. */
void eep_log(enum eep_log_level level, const char *fmt, ...) EEP_PRINTF(2, 3);

#endif
