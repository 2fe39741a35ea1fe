/*
 * Single moves that make the fullest seat less full: exchange one of its experts with a lighter one
 * of another seat, or turn a replica of one expert into a replica of another.
 */
#include "base/mem.h"
#include "eplb/eplb_int.h"

#define PARTNERS_MAX 128 /* emptiest seats that an exchange is looked for with */

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
        !eplb_may_pass(b, x, from, to) || (y != EEP_NO_EXPERT && !eplb_may_pass(b, y, to, from))) {
        return false;
    }
    *cost_out = cost_in(b, to, x) - cost_in(b, from, x) + cost_in(b, from, y) - cost_in(b, to, y);
    return affordable(b, *cost_out);
}

/* Is a move better than the best so far? Below the goal the cheaper, else the one that helps more.
 */
static bool is_better(const struct eep_eplb *b, int64_t after, int32_t cost, int64_t goal,
                      const struct eplb_move *best)
{
    if (b->thrifty && after <= goal && best->after <= goal) {
        return cost != best->cost ? cost < best->cost : after > best->after;
    }
    return after < best->after;
}

/* The pairs of two seats. */
static bool swap_between(struct eep_eplb *b, uint32_t from, uint32_t to, int64_t goal,
                         struct eplb_move *best)
{
    const int64_t high = b->load[from], low = b->load[to];
    const int64_t limit = EEP_MAX(goal + 1, best->after);
    const uint32_t p0 = from * b->stride, q0 = to * b->stride;
    bool found = false;

    b->work += b->seat_slots[from];
    for (uint32_t p = p0; p < p0 + b->seat_slots[from]; p++) {
        const int64_t share = b->slot_share[p];

        if (high - share >= limit) {
            continue; /* even giving it away alone does not help enough */
        }
        b->work += b->seat_slots[to];
        for (uint32_t q = q0; q < q0 + b->seat_slots[to]; q++) {
            const int64_t less = share - b->slot_share[q];
            const int64_t after = EEP_MAX(high - less, low + less);
            int32_t cost;

            if (after < limit && less > 0 && may_swap(b, p, q, &cost) &&
                is_better(b, after, cost, goal, best)) {
                *best = (struct eplb_move){
                    .after = after, .slot = p, .with = q, .cost = cost, .expert = EEP_NO_EXPERT};
                found = true;
            }
        }
    }
    return found;
}

bool eplb_find_swap(struct eep_eplb *b, int64_t goal, struct eplb_move *best)
{
    const uint32_t from = eplb_fullest(b);
    bool found = false;

    for (uint32_t i = 0; i + 1 < b->live_seats && i < PARTNERS_MAX; i++) {
        const uint32_t to = b->order[i];

        if ((b->load[from] + b->load[to]) / 2 >= EEP_MAX(goal, best->after)) {
            break; /* the other seats are fuller still */
        }
        found |= swap_between(b, from, to, goal, best);
        if (best->after <= goal && (!b->thrifty || best->cost <= 0)) {
            break;
        }
    }
    return found;
}

/* Room for a change: an expert leaves `slot`, so that its other replicas get more. */
struct gap {
    uint32_t slot, seat;
    int32_t old;    /* or EEP_NO_EXPERT */
    int64_t more;   /* for each other replica of it */
    int64_t others; /* the largest load of their seats then */
};

static bool open_gap(const struct eep_eplb *b, uint32_t slot, int64_t limit, struct gap *gap)
{
    const uint32_t seat = b->slot_seat[slot];
    const int32_t old = b->in_slot[slot];

    *gap = (struct gap){.slot = slot, .seat = seat, .old = old};
    if (slot - seat * b->stride >= b->seat_slots[seat]) {
        return false;
    }
    if (old == EEP_NO_EXPERT) {
        return true;
    }
    if (b->count[old] < 2) {
        return false;
    }
    gap->more = b->share_less[old] - b->share[old];
    for (uint32_t p = b->head[old]; p != EPLB_NO_SLOT; p = b->next[p]) {
        if (p != slot) {
            gap->others = EEP_MAX(gap->others, b->load[b->slot_seat[p]] + gap->more);
        }
    }
    return gap->others < limit && eplb_may_drop(b, old, seat);
}

/* `expert` comes into the gap; `rest`: the largest load of the seats not looked at here. */
static bool try_replace(const struct eep_eplb *b, const struct gap *gap, int32_t expert,
                        int64_t rest, int64_t goal, struct eplb_move *best)
{
    const int64_t here = b->load[gap->seat] - b->slot_share[gap->slot] + b->share_more[expert];
    const int64_t after = EEP_MAX(EEP_MAX(rest, gap->others), here);

    if (after >= EEP_MAX(best->after, goal + 1) || !eplb_may_add(b, expert, gap->seat)) {
        return false;
    }
    const int32_t cost = cost_in(b, gap->seat, expert) - cost_in(b, gap->seat, gap->old);
    if (!affordable(b, cost) || !is_better(b, after, cost, goal, best)) {
        return false;
    }
    *best = (struct eplb_move){
        .after = after, .slot = gap->slot, .with = EPLB_NO_SLOT, .expert = expert, .cost = cost};
    return true;
}

/* Something lighter comes into the fullest seat. */
static bool lighten(struct eep_eplb *b, const struct gap *gap, int64_t goal, struct eplb_move *best)
{
    bool found = false;

    b->work += b->shape.experts;
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        if (b->share_more[e] < b->slot_share[gap->slot]) {
            found |= try_replace(b, gap, (int32_t)e, 0, goal, best);
        }
    }
    return found;
}

/* The fullest seat shares one of its experts with one seat more. */
static bool share_out(struct eep_eplb *b, const struct gap *gap, int64_t goal,
                      struct eplb_move *best)
{
    const uint32_t full = eplb_fullest(b), first = full * b->stride;
    const int64_t high =
        b->load[full] + (gap->old != EEP_NO_EXPERT && eplb_has(b, full, gap->old) ? gap->more : 0);
    bool found = false;

    b->work += b->seat_slots[full];
    for (uint32_t q = first; q < first + b->seat_slots[full]; q++) {
        const int32_t e = b->in_slot[q];

        if (e != EEP_NO_EXPERT && e != gap->old) {
            const int64_t rest = high - b->share[e] + b->share_more[e];

            found |= try_replace(b, gap, e, rest, goal, best);
        }
    }
    return found;
}

bool eplb_find_replace(struct eep_eplb *b, int64_t goal, struct eplb_move *best)
{
    const uint32_t full = eplb_fullest(b);
    bool found = false;
    struct gap gap;

    b->work += b->map_slots;
    for (uint32_t p = 0; p < b->map_slots; p++) {
        const int64_t limit = EEP_MAX(best->after, goal + 1);

        if (b->load[b->slot_seat[p]] - b->slot_share[p] >= limit || !open_gap(b, p, limit, &gap)) {
            continue;
        }
        found |= gap.seat == full ? lighten(b, &gap, goal, best) : share_out(b, &gap, goal, best);
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

bool eplb_swap_if_allowed(struct eep_eplb *b, uint32_t slot_a, uint32_t slot_b)
{
    int32_t cost;

    if (b->slot_seat[slot_a] == b->slot_seat[slot_b] || b->in_slot[slot_a] == EEP_NO_EXPERT ||
        b->in_slot[slot_b] == EEP_NO_EXPERT || !may_swap(b, slot_a, slot_b, &cost)) {
        return false;
    }
    eplb_swap(b, slot_a, slot_b);
    return true;
}

bool eplb_replace_if_allowed(struct eep_eplb *b, uint32_t slot, int32_t expert)
{
    const uint32_t seat = b->slot_seat[slot];
    const int32_t old = b->in_slot[slot];

    if (slot - seat * b->stride >= b->seat_slots[seat] || !eplb_may_add(b, expert, seat) ||
        (old != EEP_NO_EXPERT && !eplb_may_drop(b, old, seat)) ||
        !affordable(b, cost_in(b, seat, expert) - cost_in(b, seat, old))) {
        return false;
    }
    eplb_put(b, slot, expert);
    return true;
}
