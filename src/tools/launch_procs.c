#include "tools/launch_procs.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/clock.h"

#define ENVIRONMENT_BYTES_MAX ((size_t)1 << 20)
#define GONE_NS (2 * EEP_NS_PER_S)

static char job[80]; /* EEP_JOB_ID=... */

void eep_procs_name_job(void)
{
    snprintf(job, sizeof(job), "EEP_JOB_ID=%ld.%llu", (long)getpid(),
             (unsigned long long)eep_clock_ns());
    (void)putenv(job);
}

/* Has an environment, strings one after the other, this one? With a value, or as a prefix. */
static bool has(const char *strings, size_t bytes, const char *wanted, bool whole)
{
    const size_t length = strlen(wanted);

    for (size_t at = 0; at < bytes; at += strlen(strings + at) + 1) {
        if (whole ? strcmp(strings + at, wanted) == 0
                  : strncmp(strings + at, wanted, length) == 0) {
            return true;
        }
    }
    return false;
}

/* For each process of the job: count it, or those that are ranks; kill it. A process that has ended
 * and was not waited for has no environment any more. */
static uint32_t visit(bool ranks_only, bool kills)
{
    char *text = malloc(ENVIRONMENT_BYTES_MAX);
    DIR *dir = opendir("/proc");
    const struct dirent *entry;
    uint32_t count = 0;

    while (text != NULL && dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[300];
        FILE *file;

        if (!isdigit((unsigned char)entry->d_name[0])) {
            continue;
        }
        snprintf(path, sizeof(path), "/proc/%s/environ", entry->d_name);
        file = fopen(path, "r");
        if (file == NULL) {
            continue; /* another user's, or gone */
        }
        const size_t bytes = fread(text, 1, ENVIRONMENT_BYTES_MAX - 1, file);

        fclose(file);
        text[bytes] = '\0';
        if (has(text, bytes, job, true) && (!ranks_only || has(text, bytes, "PMIX_RANK=", false))) {
            count++;
            if (kills) {
                (void)kill((pid_t)strtol(entry->d_name, NULL, 10), SIGKILL);
            }
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    free(text);
    return count;
}

uint32_t eep_procs_ranks(void)
{
    return visit(true, false);
}

void eep_procs_kill(void)
{
    const uint64_t end = eep_clock_ns() + GONE_NS;

    while (visit(false, true) > 0 && eep_clock_ns() < end) {
        (void)usleep(10000);
    }
}
