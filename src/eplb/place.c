/*
 * Maps from nothing, and slots for experts that have none.
 *
 * Replicas: the expert with the largest load per replica gets the next slot, which makes the
 * largest replica as small as it can be, but never more replicas than seats. Placement: the largest
 * share first, each into the emptiest seat with room that holds no other replica of it (longest
 * processing time first, Graham 1969).
 */
#include "base/assert.h"
#include "base/mem.h"
#include "eplb/eplb_int.h"
#include "eplb/sort.h"

#define SHARE_MAX (INT64_C(1) << 42) /* above any share */

/* Orders experts by falling share; those without load by replicas, then all by number. */
static uint64_t share_key(int64_t share, uint32_t replicas, uint32_t expert)
{
    const uint64_t high =
        share > 0 ? (uint64_t)(SHARE_MAX - share) : (uint64_t)SHARE_MAX + replicas;

    return high << 16 | expert;
}

int64_t eplb_choose_counts(struct eep_eplb *b, uint32_t least)
{
    uint32_t left = b->live_slots - least * b->shape.experts, size = b->shape.experts;
    int64_t total = 0, largest = 0;

    for (uint32_t e = 0; e < b->shape.experts; e++) {
        b->want[e] = least;
        b->keys[e] = share_key(b->weight[e] / least, least, e);
        total += b->weight[e];
    }
    eplb_heap_make(b->keys, size);
    while (left > 0 && size > 0) {
        const uint32_t e = b->keys[0] & 0xffff;

        if (b->want[e] == b->live_seats) { /* one in every seat */
            b->keys[0] = b->keys[--size];
        } else {
            b->want[e]++;
            left--;
            b->keys[0] = share_key(b->weight[e] / b->want[e], b->want[e], e);
        }
        eplb_heap_sink(b->keys, size, 0);
    }
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        largest = EEP_MAX(largest, b->weight[e] / b->want[e]);
    }
    return EEP_MAX(largest, total / b->live_seats);
}

static uint32_t empty_slot(const struct eep_eplb *b, uint32_t seat)
{
    const uint32_t first = seat * b->stride;

    for (uint32_t p = first; p < first + b->seat_slots[seat]; p++) {
        if (b->in_slot[p] == EEP_NO_EXPERT) {
            return p;
        }
    }
    return EPLB_NO_SLOT;
}

/* A seat grew: move it to where it belongs in the order. */
static void raise_seat(struct eep_eplb *b, uint32_t at)
{
    const uint32_t seat = b->order[at];

    for (; at + 1 < b->live_seats; at++) {
        const uint32_t next = b->order[at + 1];

        if (b->load[next] > b->load[seat] || (b->load[next] == b->load[seat] && next > seat)) {
            break;
        }
        b->order[at] = next;
    }
    b->order[at] = seat;
}

/* All seats with room hold the expert already: make room in one that does not, by passing
 * something else on. */
static bool make_room(struct eep_eplb *b, int32_t expert, uint32_t *slot_out)
{
    uint32_t room = EPLB_NO_SLOT;

    for (uint32_t i = 0; i < b->live_seats && room == EPLB_NO_SLOT; i++) {
        room = empty_slot(b, b->order[i]);
    }
    if (room == EPLB_NO_SLOT) {
        return false;
    }
    const uint32_t to = b->slot_seat[room];
    for (uint32_t i = 0; i < b->live_seats; i++) {
        const uint32_t seat = b->order[i], first = seat * b->stride;

        if (eplb_has(b, seat, expert)) {
            continue;
        }
        for (uint32_t p = first; p < first + b->seat_slots[seat]; p++) {
            if (!eplb_has(b, to, b->in_slot[p])) {
                eplb_swap(b, p, room);
                *slot_out = p;
                return true;
            }
        }
    }
    return false;
}

static bool deal_one(struct eep_eplb *b, int32_t expert, int64_t share)
{
    uint32_t slot;

    for (int node_rule = 1; node_rule >= 0; node_rule--) {
        for (uint32_t i = 0; i < b->live_seats; i++) {
            const uint32_t seat = b->order[i];

            if (node_rule ? !eplb_may_add(b, expert, seat) : eplb_has(b, seat, expert)) {
                continue;
            }
            slot = empty_slot(b, seat);
            if (slot != EPLB_NO_SLOT) {
                eplb_deal(b, slot, expert, share);
                raise_seat(b, i);
                return true;
            }
        }
        if (b->shape.nodes == 1) {
            break;
        }
    }
    if (!make_room(b, expert, &slot)) {
        return false;
    }
    eplb_deal(b, slot, expert, share);
    eplb_reorder(b);
    return true;
}

void eplb_place(struct eep_eplb *b)
{
    const uint32_t experts = b->shape.experts;

    eplb_clear(b);
    for (uint32_t e = 0; e < experts; e++) {
        b->keys[e] = share_key(b->weight[e] / b->want[e], b->want[e], e);
    }
    eplb_sort(b->keys, b->spare, experts, 2, 7);
    for (uint32_t i = 0; i < experts; i++) {
        const int32_t e = (int32_t)(b->keys[i] & 0xffff);
        const int64_t share = b->weight[e] / b->want[e];
        uint32_t placed = 0;

        while (placed < b->want[e] && deal_one(b, e, share)) {
            placed++;
        }
        EEP_ASSERT(placed > 0);
        eplb_set_count(b, e, placed);
        if (placed < b->want[e]) {
            eplb_reorder(b);
        }
    }
}

/* The largest load among the seats that change when `expert` comes into a slot. */
static int64_t after_put(const struct eep_eplb *b, uint32_t slot, int32_t expert)
{
    const int32_t old = b->in_slot[slot];
    const uint32_t seat = b->slot_seat[slot];
    int64_t after =
        b->load[seat] - b->slot_share[slot] + b->weight[expert] / (b->count[expert] + 1);

    if (old != EEP_NO_EXPERT) {
        const int64_t more = b->weight[old] / (b->count[old] - 1) - b->share[old];

        for (uint32_t p = b->head[old]; p != EPLB_NO_SLOT; p = b->next[p]) {
            const int64_t load = b->load[b->slot_seat[p]] + more;

            after = p != slot && load > after ? load : after;
        }
    }
    return after;
}

/* The slot where one more replica of `expert` hurts least; false if there is none. `strict`: the
 * node rule holds for the expert that comes and the one that goes. */
static bool find_home(const struct eep_eplb *b, int32_t expert, bool strict, uint32_t *slot_out)
{
    int64_t best = INT64_MAX;

    for (uint32_t p = 0; p < b->map_slots; p++) {
        const uint32_t seat = b->slot_seat[p];
        const int32_t old = b->in_slot[p];

        if (p - seat * b->stride >= b->seat_slots[seat] || eplb_has(b, seat, expert) ||
            (strict && !eplb_may_add(b, expert, seat)) ||
            (old != EEP_NO_EXPERT && (strict ? !eplb_may_drop(b, old, seat) : b->count[old] < 2))) {
            continue;
        }
        const int64_t after = after_put(b, p, expert);
        if (after < best) {
            best = after;
            *slot_out = p;
        }
    }
    return best != INT64_MAX;
}

static bool on_one_node(const struct eep_eplb *b, uint32_t expert)
{
    const uint32_t seat = b->slot_seat[b->head[expert]];

    return b->on_node[(size_t)expert * b->shape.nodes + b->seat_node[seat]] == b->count[expert];
}

uint32_t eplb_repair(struct eep_eplb *b)
{
    const uint32_t experts = b->shape.experts;
    uint32_t lost = 0, slot;

    for (uint32_t e = 0; e < experts; e++) {
        if (b->count[e] == 0) {
            b->keys[lost++] = share_key(b->weight[e], 0, e);
        }
    }
    eplb_sort(b->keys, b->spare, lost, 2, 7);
    for (uint32_t i = 0; i < lost; i++) {
        const int32_t e = (int32_t)(b->keys[i] & 0xffff);
        const bool found = find_home(b, e, true, &slot) || find_home(b, e, false, &slot);

        EEP_ASSERT(found); /* there are as many live slots as experts, so one is free or repeated */
        eplb_put(b, slot, e);
    }
    for (uint32_t e = 0; b->spread && e < experts; e++) {
        if (on_one_node(b, e) && b->copies < b->max_copies &&
            find_home(b, (int32_t)e, true, &slot)) {
            eplb_put(b, slot, (int32_t)e);
        }
    }
    return lost;
}
