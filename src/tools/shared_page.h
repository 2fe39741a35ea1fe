/*
 * Memory that the ranks of rank 0's machine share, so that what one of them wrote there survives
 * it.
 */
#ifndef EEP_TOOLS_SHARED_PAGE_H
#define EEP_TOOLS_SHARED_PAGE_H

#include <stddef.h>

#include <eep/engine.h>

#include "base/status.h"

/**
 * Make it, zeroed, and open it on the ranks that can. Collective.
 *
 * @param page_out  a pointer to a pointer of any type: NULL on a rank that cannot, on another
 * machine than rank 0 or without /dev/shm
 */
EEP_MUST_CHECK enum eep_status eep_shared_page_open(struct eep_engine *engine, size_t bytes,
                                                    void *page_out);

/** NULL is allowed. */
void eep_shared_page_close(void *page, size_t bytes);

#endif
