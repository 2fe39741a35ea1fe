/*
 * What the program around an engine sees of it beyond the public API, and may wish: for the admin
 * endpoint of rank 0. All of it is local: no other rank has to call the same.
 */
#ifndef EEP_ENGINE_LOOK_H
#define EEP_ENGINE_LOOK_H

#include <eep/engine.h>

#include "layout/layout.h"

struct eep_engine_look {
    uint64_t requests, unfinished;
    uint64_t steps, prompt_tokens, generated_tokens; /* of all ranks */
    bool can_rebalance;              /* there is a weight cache, and there are experts */
    bool rebalance_pending;          /* asked for, planned or under way */
    const struct eep_layout *layout; /* that is routed with; until the next step */
};

void eep_engine_look(const struct eep_engine *engine, struct eep_engine_look *look_out);

/**
 * As eep_engine_rebalance(), but called by one rank alone: the others hear of it in the next step.
 * Only if look.can_rebalance. It has ended when rebalance_pending is false after a step;
 * eep_engine_rebalance_status() tells how.
 */
void eep_engine_ask_rebalance(struct eep_engine *engine, bool dry_run);

#endif
