/*
 * Ids that must not mix are types: taking one for another is the likely mistake, and the compiler
 * finds it. Arrays on the wire and in files hold the plain integers.
 */
#ifndef EEP_BASE_IDS_H
#define EEP_BASE_IDS_H

#include <stdint.h>

struct eep_expert {
    uint32_t id; /* logical expert of the checkpoint, 0 .. experts-1 */
};
struct eep_slot {
    uint32_t id; /* physical slot: seat * slots_per_seat + local slot */
};
struct eep_seat {
    uint32_t id; /* share of the experts, 0 .. seats-1 */
};
struct eep_rank {
    uint32_t id; /* MPI rank, valid within one epoch */
};

#define EEP_NO_EXPERT INT32_C(-1) /* in a map: the slot is empty; never 0, which is an expert */

#endif
