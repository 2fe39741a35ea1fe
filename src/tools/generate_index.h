/*
 * A set of indexes of prompts: those whose answers `eep launch` has passed on already.
 */
#ifndef EEP_TOOLS_GENERATE_INDEX_H
#define EEP_TOOLS_GENERATE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/** Names the file in the environment of a job: an index per line. */
#define EEP_DELIVERED_ENV "EEP_DELIVERED"

/** {0} is the empty set. */
struct eep_index_set {
    uint64_t *words;
    size_t word_count;
    uint64_t count; /* members */
};

bool eep_index_has(const struct eep_index_set *set, uint64_t index);

/** @retval EEP_ERR_NOMEM, EEP_ERR_FORMAT  an index of 2^40 or more */
EEP_MUST_CHECK enum eep_status eep_index_add(struct eep_index_set *set, uint64_t index);

/** Add those of the file that the environment names; none when it names none that is here. */
EEP_MUST_CHECK enum eep_status eep_index_read(struct eep_index_set *set);

void eep_index_free(struct eep_index_set *set);

#endif
