/*
 * Fewer experts that one node alone has, for as good as no balance.
 *
 * A plan gives a hot expert three replicas or more where two with other neighbours would do. Such a
 * replica becomes the second one, on another node, of an expert that only one node has; then seats
 * are levelled again by exchanges that keep what was won. As many replicas are given away as leave
 * the fullest seat within the limit: all that there are, else half as many, and so on.
 */
#include <string.h>

#include "base/mem.h"
#include "eplb/eplb_int.h"
#include "eplb/sort.h"

#define TRIES 4
#define TRIES_THRIFTY 2
#define SLOT_BITS 20 /* EEP_EPLB_SLOTS_MAX */

_Static_assert(EEP_EPLB_SLOTS_MAX <= 1u << SLOT_BITS, "slots fit into keys");

static bool on_one_node(const struct eep_eplb *b, uint32_t expert)
{
    const uint32_t seat = b->slot_seat[b->head[expert]];

    return b->on_node[(size_t)expert * b->shape.nodes + b->seat_node[seat]] == b->count[expert];
}

/* A slot that is empty, or whose expert has as many nodes without it: two, or one. */
static bool may_give(const struct eep_eplb *b, uint32_t slot)
{
    const uint32_t seat = b->slot_seat[slot];
    const int32_t expert = b->in_slot[slot];

    if (slot - seat * b->stride >= b->seat_slots[seat] || expert == EEP_NO_EXPERT) {
        return slot - seat * b->stride < b->seat_slots[seat];
    }
    return on_one_node(b, (uint32_t)expert)
               ? b->count[expert] > 1
               : b->count[expert] > 2 && eplb_may_drop(b, expert, seat);
}

/* Into b->keys, those first that make the other replicas grow least. */
static uint32_t list_givers(struct eep_eplb *b)
{
    uint32_t count = 0;

    for (uint32_t p = 0; p < b->map_slots; p++) {
        if (may_give(b, p)) {
            const int32_t e = b->in_slot[p];
            const int64_t share = e == EEP_NO_EXPERT ? 0 : b->share_less[e];

            b->keys[count++] = (uint64_t)share << SLOT_BITS | p;
        }
    }
    eplb_sort(b->keys, b->spare, count, 0, 7);
    b->work += b->map_slots + 8 * count;
    return count;
}

/* An expert that may come into a slot. */
struct taker {
    int32_t expert;
    uint32_t cost; /* copies */
    int64_t share; /* that it brings */
};

/* One that the seat had comes first, then the heaviest that leaves the seat no fuller than the
 * bound, then the lightest. */
static bool is_better(const struct taker *t, const struct taker *best, int64_t room)
{
    if (best->expert == EEP_NO_EXPERT || t->cost != best->cost) {
        return best->expert == EEP_NO_EXPERT || t->cost < best->cost;
    }
    return best->share <= room ? t->share <= room && t->share > best->share
                               : t->share < best->share;
}

/* Which expert of one other node takes the slot. */
static int32_t find_taker(struct eep_eplb *b, uint32_t slot)
{
    const uint32_t seat = b->slot_seat[slot];
    const int32_t old = b->in_slot[slot];
    const uint32_t back = old != EEP_NO_EXPERT && !eplb_had(b, seat, old);
    const int64_t room = b->bound - (b->load[seat] - b->slot_share[slot]);
    struct taker best = {.expert = EEP_NO_EXPERT};

    b->work += b->shape.experts;
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        const struct taker t = {.expert = (int32_t)e,
                                .cost = !eplb_had(b, seat, (int32_t)e),
                                .share = b->share_more[e]};

        if (on_one_node(b, e) && eplb_may_add(b, (int32_t)e, seat) &&
            (uint64_t)b->copies + t.cost <= (uint64_t)b->max_copies + back &&
            is_better(&t, &best, room)) {
            best = t;
        }
    }
    return best.expert;
}

/* At most `most` replicas change hands; how many did. */
static uint32_t give(struct eep_eplb *b, uint32_t most)
{
    const uint32_t givers = list_givers(b);
    uint32_t given = 0;

    for (uint32_t i = 0; i < givers && given < most; i++) {
        const uint32_t slot = (uint32_t)(b->keys[i] & ((1u << SLOT_BITS) - 1));

        if (!may_give(b, slot)) {
            continue;
        }
        const int32_t taker = find_taker(b, slot);

        if (taker != EEP_NO_EXPERT) {
            eplb_put(b, slot, taker);
            given++;
        }
    }
    return given;
}

void eplb_cover(struct eep_eplb *b, int64_t target, int64_t limit)
{
    uint32_t most = UINT32_MAX;
    bool found = false;

    memcpy(b->kept, b->in_slot, b->map_slots * sizeof(*b->kept));
    b->pairs_stay = true;
    const int tries = b->thrifty ? TRIES_THRIFTY : TRIES;

    for (int i = 0; i < tries && most > 0 && !found; i++) {
        eplb_set_map(b, b->kept);
        b->work = 0;
        b->work_max = EPLB_WORK_COVER;
        most = give(b, most);
        if (most > 0) {
            eplb_improve(b, target);
            found = eplb_max_load(b) <= limit;
            most /= 2;
        }
    }
    b->pairs_stay = false;
    if (!found) {
        eplb_set_map(b, b->kept);
    }
}
