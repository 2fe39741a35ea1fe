#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

static enum eep_log_level log_level = EEP_LOG_WARN;
static int log_rank = -1;

void eep_log_level_set(enum eep_log_level level)
{
    log_level = level;
}

void eep_log_rank_set(int rank)
{
    log_rank = rank;
}

enum eep_status eep_log_level_from_env(void)
{
    const char *name = getenv("EEP_LOG");

    if (name == NULL || name[0] == '\0') {
        return EEP_OK;
    }
    for (int level = EEP_LOG_ERROR; level <= EEP_LOG_TRACE; level++) {
        if (strcmp(name, level_names[level]) == 0) {
            log_level = (enum eep_log_level)level;
            return EEP_OK;
        }
    }
    return EEP_FAIL(EEP_ERR_INVALID, "EEP_LOG is '%s'; use error, warn, info, debug or trace",
                    name);
}

void eep_log(enum eep_log_level level, const char *fmt, ...)
{
    char line[EEP_ERROR_TEXT_MAX + 64];
    va_list args;

    if (level > log_level) {
        return;
    }
    int used = log_rank >= 0
                   ? snprintf(line, sizeof(line), "eep[%d]: %s: ", log_rank, level_names[level])
                   : snprintf(line, sizeof(line), "eep: %s: ", level_names[level]);
    va_start(args, fmt);
    int more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, fmt, args);
    va_end(args);
    size_t length = (size_t)used + (more > 0 ? (size_t)more : 0);
    if (length > sizeof(line) - 2) {
        length = sizeof(line) - 2;
    }
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) {
        /* Nobody is left to tell. */
    }
}

_Noreturn void eep_assert_failed(const char *condition, const char *file, int line)
{
    eep_log(EEP_LOG_ERROR, "internal error: assertion '%s' failed at %s:%d; please report it",
            condition, file, line);
    abort();
}
