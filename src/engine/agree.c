/*
 * One status for all ranks: a failure of any rank becomes the failure of all, with its text, so
 * that none is left waiting for one that gave up.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "engine/engine_int.h"

struct verdict {
    int32_t status;
    char text[508];
};

_Static_assert(sizeof(struct verdict) == 512, "travels between ranks");

static enum eep_status first_failure(const struct verdict *all, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (all[r].status != EEP_OK) {
            char text[sizeof(all[r].text) + 1];

            snprintf(text, sizeof(text), "%.*s", (int)sizeof(all[r].text), all[r].text);
            eep_error_text_set(text);
            return (enum eep_status)all[r].status;
        }
    }
    return EEP_OK;
}

enum eep_status eep_agree(struct eep_xport *xport, const char *what, enum eep_status status)
{
    struct verdict mine = {.status = status};
    struct verdict *all;

    if (eep_status_lost(status) >= EEP_LOST_PEER || xport->topo.rank == EEP_NO_RANK) {
        return status; /* there is no one to agree with any more */
    }
    if (status != EEP_OK) {
        snprintf(mine.text, sizeof(mine.text), "%s", eep_error_text());
    }
    /* Not eep_mem_alloc(): its failure would leave the others waiting. */
    all = calloc(xport->topo.size, sizeof(*all));
    if (all == NULL) {
        return EEP_FAIL(EEP_ERR_FATAL, "%s: no memory to agree with the other ranks", what);
    }
    enum eep_status gathered = xport->ops->allgather(xport, what, &mine, sizeof(mine), all);
    status = gathered == EEP_OK ? first_failure(all, xport->topo.size) : gathered;
    free(all);
    return status;
}

enum eep_status eep_engine_agree(struct eep_engine *engine, const char *what,
                                 enum eep_status status)
{
    return eep_agree(engine->xport, what, status);
}
