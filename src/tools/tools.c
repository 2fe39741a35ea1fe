#include "tools/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"

#define LINGER_FIRST_NS (20 * EEP_NS_PER_MS)
#define LINGER_OTHERS_NS (300 * EEP_NS_PER_MS)

/* This process's rank as a launcher tells it; NULL without one. */
static const char *launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *rank = getenv(names[i]);

        if (rank != NULL) {
            return rank;
        }
    }
    return NULL;
}

bool eep_tool_speaks(void)
{
    const char *rank = launched_rank();

    return rank == NULL || strcmp(rank, "0") == 0;
}

void eep_tool_linger(int exit_status)
{
    struct timespec time = {.tv_nsec = eep_tool_speaks() ? LINGER_FIRST_NS : LINGER_OTHERS_NS};

    if (exit_status != EEP_EXIT_OK && launched_rank() != NULL) {
        fflush(NULL);
        (void)nanosleep(&time, NULL);
    }
}

int eep_tool_failed(void)
{
    const char *text = eep_error_text();

    eep_log(EEP_LOG_ERROR, "%s", text[0] != '\0' ? text : "failed without a reason");
    return EEP_EXIT_FAILED;
}

void eep_tool_report(enum eep_status status)
{
    /* What all ranks agreed on is said by one; a peer that is lost or silent may be just that one.
     */
    if (status != EEP_OK && (eep_tool_speaks() || status == EEP_ERR_TIMEOUT ||
                             eep_status_lost(status) >= EEP_LOST_PEER)) {
        (void)eep_tool_failed();
    }
}

int eep_tool_end(struct eep_engine *engine, enum eep_status status)
{
    if (engine != NULL) {
        eep_tool_report(status);
    }
    eep_engine_destroy(engine);
    return status == EEP_OK ? EEP_EXIT_OK : EEP_EXIT_FAILED;
}
