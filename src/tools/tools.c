#include "tools/tools.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

bool eep_tool_speaks(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *rank = getenv(names[i]);

        if (rank != NULL) {
            return strcmp(rank, "0") == 0;
        }
    }
    return true;
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
