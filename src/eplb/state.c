/*
 * The state of a layer while it is planned, and the changes that keep its sums, lists and order
 * consistent; see eplb_int.h.
 */
#include <string.h>

#include "base/assert.h"
#include "eplb/eplb_int.h"

void eplb_clear(struct eep_eplb *b)
{
    const uint32_t experts = b->shape.experts;

    memset(b->in_slot, 0xff, b->map_slots * sizeof(*b->in_slot));
    memset(b->slot_share, 0, b->map_slots * sizeof(*b->slot_share));
    memset(b->head, 0xff, experts * sizeof(*b->head));
    memset(b->count, 0, experts * sizeof(*b->count));
    memset(b->has, 0, (size_t)b->shape.seats * b->words * sizeof(*b->has));
    memset(b->load, 0, b->shape.seats * sizeof(*b->load));
    if (b->shape.nodes > 1) {
        memset(b->on_node, 0, (size_t)experts * b->shape.nodes * sizeof(*b->on_node));
    }
    b->copies = 0;
    b->live_seats = 0;
    for (uint32_t s = 0; s < b->shape.seats; s++) {
        if (b->seat_slots[s] > 0) {
            b->order[b->live_seats++] = s;
        }
    }
}

/* Put an expert into the lists and sets, loads and shares left alone. */
static void link_slot(struct eep_eplb *b, uint32_t slot, int32_t expert)
{
    const uint32_t seat = b->slot_seat[slot];
    const uint32_t first = b->head[expert];

    b->in_slot[slot] = expert;
    b->next[slot] = first;
    b->prev[slot] = EPLB_NO_SLOT;
    if (first != EPLB_NO_SLOT) {
        b->prev[first] = slot;
    }
    b->head[expert] = slot;
    b->has[(size_t)seat * b->words + (uint32_t)expert / 64] |= UINT64_C(1)
                                                               << ((uint32_t)expert % 64);
    b->copies += !eplb_had(b, seat, expert);
    if (b->shape.nodes > 1) {
        b->on_node[(size_t)expert * b->shape.nodes + b->seat_node[seat]]++;
    }
}

static void unlink_slot(struct eep_eplb *b, uint32_t slot, int32_t expert)
{
    const uint32_t seat = b->slot_seat[slot];
    const uint32_t next = b->next[slot], prev = b->prev[slot];

    if (next != EPLB_NO_SLOT) {
        b->prev[next] = prev;
    }
    if (prev != EPLB_NO_SLOT) {
        b->next[prev] = next;
    } else {
        b->head[expert] = next;
    }
    b->has[(size_t)seat * b->words + (uint32_t)expert / 64] &=
        ~(UINT64_C(1) << ((uint32_t)expert % 64));
    b->copies -= !eplb_had(b, seat, expert);
    if (b->shape.nodes > 1) {
        b->on_node[(size_t)expert * b->shape.nodes + b->seat_node[seat]]--;
    }
    b->in_slot[slot] = EEP_NO_EXPERT;
}

void eplb_set_count(struct eep_eplb *b, int32_t expert, uint32_t count)
{
    const int64_t share = count > 0 ? b->weight[expert] / count : 0;

    b->count[expert] = count;
    b->share[expert] = share;
    b->share_more[expert] = b->weight[expert] / (count + 1);
    b->share_less[expert] = count > 1 ? b->weight[expert] / (count - 1) : 0;
    for (uint32_t p = b->head[expert]; p != EPLB_NO_SLOT; p = b->next[p]) {
        b->load[b->slot_seat[p]] += share - b->slot_share[p];
        b->slot_share[p] = share;
    }
}

/* By insertion: few seats are out of order. */
void eplb_reorder(struct eep_eplb *b)
{
    for (uint32_t i = 1; i < b->live_seats; i++) {
        const uint32_t seat = b->order[i];
        uint32_t j = i;

        while (j > 0) {
            const uint32_t other = b->order[j - 1];

            if (b->load[other] < b->load[seat] ||
                (b->load[other] == b->load[seat] && other < seat)) {
                break;
            }
            b->order[j] = other;
            j--;
        }
        b->order[j] = seat;
    }
}

void eplb_set_map(struct eep_eplb *b, const int32_t *map)
{
    eplb_clear(b);
    for (uint32_t p = 0; p < b->map_slots; p++) {
        const uint32_t seat = b->slot_seat[p];

        if (map[p] == EEP_NO_EXPERT || p - seat * b->stride >= b->seat_slots[seat] ||
            eplb_has(b, seat, map[p])) {
            continue;
        }
        link_slot(b, p, map[p]);
        b->count[map[p]]++;
    }
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        eplb_set_count(b, (int32_t)e, b->count[e]);
    }
    eplb_reorder(b);
}

void eplb_deal(struct eep_eplb *b, uint32_t slot, int32_t expert, int64_t share)
{
    link_slot(b, slot, expert);
    b->slot_share[slot] = share;
    b->load[b->slot_seat[slot]] += share;
    b->share[expert] = share;
    b->count[expert]++;
}

void eplb_put(struct eep_eplb *b, uint32_t slot, int32_t expert)
{
    const uint32_t seat = b->slot_seat[slot];
    const int32_t old = b->in_slot[slot];

    if (old != EEP_NO_EXPERT) {
        unlink_slot(b, slot, old);
        b->load[seat] -= b->slot_share[slot];
        b->slot_share[slot] = 0;
        eplb_set_count(b, old, b->count[old] - 1);
    }
    if (expert != EEP_NO_EXPERT) {
        EEP_ASSERT(!eplb_has(b, seat, expert));
        link_slot(b, slot, expert);
        eplb_set_count(b, expert, b->count[expert] + 1);
    }
    eplb_reorder(b);
}

void eplb_swap(struct eep_eplb *b, uint32_t slot_a, uint32_t slot_b)
{
    const uint32_t seat_a = b->slot_seat[slot_a], seat_b = b->slot_seat[slot_b];
    const int32_t a = b->in_slot[slot_a], c = b->in_slot[slot_b];
    const int64_t share_a = b->slot_share[slot_a], share_c = b->slot_share[slot_b];

    EEP_ASSERT(seat_a != seat_b);
    if (a != EEP_NO_EXPERT) {
        unlink_slot(b, slot_a, a);
    }
    if (c != EEP_NO_EXPERT) {
        unlink_slot(b, slot_b, c);
        EEP_ASSERT(!eplb_has(b, seat_a, c));
        link_slot(b, slot_a, c);
    }
    if (a != EEP_NO_EXPERT) {
        EEP_ASSERT(!eplb_has(b, seat_b, a));
        link_slot(b, slot_b, a);
    }
    b->slot_share[slot_a] = share_c;
    b->slot_share[slot_b] = share_a;
    b->load[seat_a] += share_c - share_a;
    b->load[seat_b] += share_a - share_c;
    eplb_reorder(b);
}

bool eplb_may_add(const struct eep_eplb *b, int32_t expert, uint32_t seat)
{
    if (eplb_has(b, seat, expert)) {
        return false;
    }
    return b->shape.nodes == 1 || b->count[expert] == 0 ||
           b->on_node[(size_t)expert * b->shape.nodes + b->seat_node[seat]] < b->count[expert];
}

bool eplb_may_drop(const struct eep_eplb *b, int32_t expert, uint32_t seat)
{
    const uint32_t left = b->count[expert] - 1;

    if (left == 0) {
        return false;
    }
    if (b->shape.nodes == 1) {
        return true;
    }
    if (left == 1) {
        return !b->spread && !b->pairs_stay;
    }
    uint32_t node = UINT32_MAX; /* of the replicas that stay */
    for (uint32_t p = b->head[expert]; p != EPLB_NO_SLOT; p = b->next[p]) {
        const uint32_t other = b->slot_seat[p];

        if (other == seat) {
            continue;
        }
        if (node != UINT32_MAX && node != b->seat_node[other]) {
            return true;
        }
        node = b->seat_node[other];
    }
    return false;
}

bool eplb_may_pass(const struct eep_eplb *b, int32_t expert, uint32_t from, uint32_t to)
{
    if (b->shape.nodes == 1 || b->count[expert] == 1 || b->seat_node[from] == b->seat_node[to]) {
        return true;
    }
    return b->on_node[(size_t)expert * b->shape.nodes + b->seat_node[to]] + 1u < b->count[expert];
}
