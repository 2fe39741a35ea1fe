/*
 * How far rank 0 has come with reading and printing, in memory that the ranks of its machine share:
 * when it is lost, the next rank 0 goes on from there.
 */
#ifndef EEP_TOOLS_GENERATE_PAGE_H
#define EEP_TOOLS_GENERATE_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#include <eep/engine.h>

#include "base/status.h"

/** Written by rank 0 after each write to its standard output. */
struct eep_print_page {
    _Atomic uint64_t printed;  /* answers, in the order in which they are printed */
    _Atomic uint64_t wrong;    /* wrong lines that were told */
    _Atomic uint64_t lines;    /* of the input that were taken */
    _Atomic uint64_t streamed; /* of a single prompt's text: see generate.c */
};

/**
 * Make the page and open it on the ranks that can. Collective.
 *
 * @param page_out  NULL on a rank that cannot: on another machine than rank 0, or without /dev/shm
 */
EEP_MUST_CHECK enum eep_status eep_print_page_open(struct eep_engine *engine,
                                                   struct eep_print_page **page_out);

/** NULL is allowed. */
void eep_print_page_close(struct eep_print_page *page);

#endif
