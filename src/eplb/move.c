/*
 * Single moves that make the fullest seat less full: exchange one of its experts with a lighter one of
 * another seat, or turn a replica of one expert into a replica of another.
 */
#include "base/mem.h"
#include "eplb/eplb_int.h"

/* Copies that a change of one pair costs. */
static int32_t cost_in(const struct eep_eplb *b, uint32_t seat, int32_t expert)
{
    return expert == EEP_NO_EXPERT ? 0 : !eplb_had(b, seat, expert);
}

static bool affordable(const struct eep_eplb *b, int32_t cost)
{
    return cost <= 0 || (uint64_t)b->copies + (uint32_t)cost <= b->max_copies;
}

static bool may_swap(const struct eep_eplb *b, uint32_t p, uint32_t q, int32_t *cost_out)
{
    const uint32_t from = b->slot_seat[p], to = b->slot_seat[q];
    const int32_t x = b->in_slot[p], y = b->in_slot[q];

    if (eplb_has(b, to, x) || (y != EEP_NO_EXPERT && eplb_has(b, from, y)) ||
        !eplb_may_pass(b, x, from, to) ||
        (y != EEP_NO_EXPERT && !eplb_may_pass(b, y, to, from))) {
        return false;
    }
    *cost_out = cost_in(b, to, x) - cost_in(b, from, x) + cost_in(b, from, y) - cost_in(b, to, y);
    return affordable(b, *cost_out);
}

/* The pairs of two seats. */
static bool swap_between(struct eep_eplb *b, uint32_t from, uint32_t to, struct eplb_move *best)
{
    const int64_t high = b->load[from], low = b->load[to];
    const uint32_t p0 = from * b->stride, q0 = to * b->stride;
    bool found = false;

    b->work += b->seat_slots[from];
    for (uint32_t p = p0; p < p0 + b->seat_slots[from]; p++) {
        const int64_t share = b->slot_share[p];

        if (high - share >= best->after) {
            continue; /* even giving it away alone does not help enough */
        }
        b->work += b->seat_slots[to];
        for (uint32_t q = q0; q < q0 + b->seat_slots[to]; q++) {
            const int64_t less = share - b->slot_share[q];
            const int64_t after = EEP_MAX(high - less, low + less);
            int32_t cost;

            if (after < best->after && less > 0 && may_swap(b, p, q, &cost)) {
                *best = (struct eplb_move){
                    .after = after, .slot = p, .with = q, .cost = cost, .expert = EEP_NO_EXPERT};
                found = true;
            }
        }
    }
    return found;
}

bool eplb_find_swap(struct eep_eplb *b, struct eplb_move *best)
{
    const uint32_t from = eplb_fullest(b);
    bool found = false;

    for (uint32_t i = 0; i + 1 < b->live_seats; i++) {
        const uint32_t to = b->order[i];

        if ((b->load[from] + b->load[to]) / 2 >= best->after) {
            break; /* the other seats are fuller still */
        }
        found |= swap_between(b, from, to, best);
    }
    return found;
}

/* Largest load of the seats that change when `slot` changes to `expert`, both counts included. */
static int64_t after_replace(const struct eep_eplb *b, uint32_t slot, int32_t expert, int64_t more,
                             int64_t limit)
{
    const int32_t old = b->in_slot[slot];
    const uint32_t seat = b->slot_seat[slot];
    const int64_t share = b->weight[expert] / (b->count[expert] + 1);
    const int64_t less = b->share[expert] - share;
    int64_t after = b->load[seat] - b->slot_share[slot] + share;

    if (old == EEP_NO_EXPERT || after >= limit) {
        return after;
    }
    for (uint32_t p = b->head[old]; p != EPLB_NO_SLOT; p = b->next[p]) {
        const uint32_t other = b->slot_seat[p];

        if (p != slot) {
            const int64_t load = b->load[other] + more - (eplb_has(b, other, expert) ? less : 0);

            after = EEP_MAX(after, load);
        }
    }
    return after;
}

static void try_replace(struct eep_eplb *b, uint32_t slot, int32_t expert, int64_t more,
                        int64_t rest, struct eplb_move *best, bool *found)
{
    const uint32_t seat = b->slot_seat[slot];
    const int32_t old = b->in_slot[slot];
    const int64_t after = EEP_MAX(rest, after_replace(b, slot, expert, more, best->after));

    if (after >= best->after || !eplb_may_add(b, expert, seat)) {
        return;
    }
    const int32_t cost = cost_in(b, seat, expert) - cost_in(b, seat, old);
    if (affordable(b, cost)) {
        *best = (struct eplb_move){
            .after = after, .slot = slot, .with = EPLB_NO_SLOT, .expert = expert, .cost = cost};
        *found = true;
    }
}

bool eplb_find_replace(struct eep_eplb *b, struct eplb_move *best)
{
    const uint32_t full = eplb_fullest(b), first = full * b->stride;
    bool found = false;

    for (uint32_t p = 0; p < b->map_slots; p++) {
        const uint32_t seat = b->slot_seat[p];
        const int32_t old = b->in_slot[p];
        int64_t more = 0;

        if (p - seat * b->stride >= b->seat_slots[seat]) {
            continue;
        }
        if (old != EEP_NO_EXPERT) {
            if (b->count[old] < 2 || !eplb_may_drop(b, old, seat)) {
                continue;
            }
            more = b->weight[old] / (b->count[old] - 1) - b->share[old];
        }
        if (seat == full) { /* something lighter comes into the fullest seat */
            b->work += b->shape.experts;
            for (uint32_t e = 0; e < b->shape.experts; e++) {
                if (b->weight[e] / (b->count[e] + 1) < b->slot_share[p]) {
                    try_replace(b, p, (int32_t)e, more, 0, best, &found);
                }
            }
            continue;
        }
        if (b->load[seat] - b->slot_share[p] >= best->after) {
            continue;
        }
        b->work += b->seat_slots[full]; /* the fullest seat shares one of its experts once more */
        for (uint32_t q = first; q < first + b->seat_slots[full]; q++) {
            const int32_t e = b->in_slot[q];

            if (e == EEP_NO_EXPERT || e == old) {
                continue;
            }
            const int64_t rest = b->load[full] - b->share[e] + b->weight[e] / (b->count[e] + 1) +
                                 (old != EEP_NO_EXPERT && eplb_has(b, full, old) ? more : 0);
            if (rest < best->after) {
                try_replace(b, p, e, more, rest, best, &found);
            }
        }
    }
    return found;
}

void eplb_apply(struct eep_eplb *b, const struct eplb_move *move)
{
    if (move->with == EPLB_NO_SLOT) {
        eplb_put(b, move->slot, move->expert);
    } else {
        eplb_swap(b, move->slot, move->with);
    }
}
