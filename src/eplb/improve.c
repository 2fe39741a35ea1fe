/*
 * Descent: the fullest seat first, until it is at the target, no move helps, or the budget is used.
 */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "eplb/eplb_int.h"

void eplb_descend(struct eep_eplb *b, int64_t target)
{
    for (;;) {
        struct eplb_move best = {.after = eplb_max_load(b)};
        bool found;

        if (best.after <= target) {
            return;
        }
        found = eplb_find_swap(b, &best);
        if (!found || best.after > target) {
            found |= eplb_find_replace(b, &best);
        }
        if (!found) {
            return;
        }
        eplb_apply(b, &best);
    }
}

void eplb_improve(struct eep_eplb *b)
{
    const int64_t target = b->bound + b->bound / 4096;

    eplb_descend(b, target);
}
