/* Shared by the files of src/layout. */
#ifndef EEP_LAYOUT_INT_H
#define EEP_LAYOUT_INT_H

#include "layout/layout.h"

/** An empty layout with all slots EEP_NO_EXPERT. */
EEP_MUST_CHECK enum eep_status eep_layout_create(uint32_t layers, uint32_t experts, uint32_t seats,
                                                 uint32_t slots_per_seat,
                                                 struct eep_layout **layout_out);

/** Derive the replica lists; refuses an expert without a slot. */
EEP_MUST_CHECK enum eep_status eep_layout_index(struct eep_layout *layout);

#endif
