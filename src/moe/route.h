/*
 * From logical experts to the slots and ranks that compute them: the replica of an expert that a
 * token uses is one of this rank's own, else of its node, else any, spread evenly.
 *
 * Which replica computes a token never changes a bit of the result; it only moves the work.
 */
#ifndef EEP_MOE_ROUTE_H
#define EEP_MOE_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/layout.h"
#include "xport/xport.h"

struct eep_route;

/**
 * Build the table for one layout and one epoch's ranks. Destroy it with eep_route_destroy().
 *
 * @param executors  (seats): rank that computes each seat's slots; copied
 */
EEP_MUST_CHECK enum eep_status eep_route_create(const struct eep_layout *layout,
                                                const uint32_t *executors,
                                                const struct eep_topology *topo,
                                                struct eep_route **route_out);
void eep_route_destroy(struct eep_route *route);

/** Physical slots of a layer of the layout that the table was built for. */
uint32_t eep_route_slots(const struct eep_route *route);

/**
 * Choose slots for `count` (token, top-k position) pairs of a MoE layer.
 *
 * @param skip  (count / top_k): tokens whose pairs get EEP_NO_RANK
 */
void eep_route_choose(struct eep_route *route, uint32_t layer, const uint32_t *experts,
                      uint32_t tokens, uint32_t top_k, const bool *skip, uint32_t *ranks_out,
                      uint32_t *slots_out);

#endif
