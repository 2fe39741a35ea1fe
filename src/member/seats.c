/*
 * Who executes which seat. Every member computes it by itself from the same input, so each choice
 * has one answer: fewest seats, then the node with the fewest, then the lowest id, then the lowest
 * seat.
 */
#include "member/member_int.h"

struct assignment {
    const struct eep_seat_candidate *candidates;
    uint32_t count;
    const struct eep_seat_record *seats;
    uint32_t seat_count;
    uint32_t *next;
    uint32_t load[EEP_MEMBERS_MAX];    /* seats of each candidate */
    uint32_t node_load[EEP_NODES_MAX]; /* and of each node: they are its memory */
};

#define NOBODY UINT32_MAX

static uint32_t index_of(const struct assignment *a, uint32_t id)
{
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->candidates[i].id == id) {
            return i;
        }
    }
    return NOBODY;
}

static void tally(struct assignment *a, uint32_t candidate, int32_t change)
{
    a->load[candidate] += (uint32_t)change;
    a->node_load[a->candidates[candidate].node] += (uint32_t)change;
}

static void give(struct assignment *a, uint32_t seat, uint32_t candidate)
{
    const uint32_t before = index_of(a, a->next[seat]);

    if (before != NOBODY) {
        tally(a, before, -1);
    }
    a->next[seat] = a->candidates[candidate].id;
    tally(a, candidate, 1);
}

static bool has_less(const struct assignment *a, uint32_t one, uint32_t other)
{
    if (a->load[one] != a->load[other]) {
        return a->load[one] < a->load[other];
    }
    return a->node_load[a->candidates[one].node] < a->node_load[a->candidates[other].node];
}

/* The candidate with the fewest seats on one of these nodes. */
static uint32_t least_loaded(const struct assignment *a, uint64_t nodes)
{
    uint32_t best = NOBODY;

    for (uint32_t i = 0; i < a->count; i++) {
        if ((nodes & eep_node_bit(a->candidates[i].node)) != 0 &&
            (best == NOBODY || has_less(a, i, best))) {
            best = i;
        }
    }
    return best;
}

/* The candidate with the most seats on one of these nodes. */
static uint32_t most_loaded(const struct assignment *a, uint64_t nodes)
{
    uint32_t best = NOBODY;

    for (uint32_t i = 0; i < a->count; i++) {
        if ((nodes & eep_node_bit(a->candidates[i].node)) != 0 &&
            (best == NOBODY || a->load[i] > a->load[best])) {
            best = i;
        }
    }
    return best;
}

/* The highest seat of a candidate: it goes first, so that the first ones stay where they began. */
static uint32_t last_seat_of(const struct assignment *a, uint32_t candidate)
{
    for (uint32_t seat = a->seat_count; seat-- > 0;) {
        if (a->next[seat] == a->candidates[candidate].id) {
            return seat;
        }
    }
    return NOBODY;
}

static uint32_t first_reserved(const struct assignment *a)
{
    for (uint32_t seat = 0; seat < a->seat_count; seat++) {
        if (a->seats[seat].state == EEP_SEAT_RESERVED && a->next[seat] == EEP_NO_MEMBER) {
            return seat;
        }
    }
    return NOBODY;
}

static void keep_what_stays(struct assignment *a)
{
    for (uint32_t seat = 0; seat < a->seat_count; seat++) {
        const struct eep_seat_record *s = &a->seats[seat];
        const uint32_t owner = s->state == EEP_SEAT_RESERVED ? NOBODY : index_of(a, s->executor);

        a->next[seat] = owner == NOBODY ? EEP_NO_MEMBER : s->executor;
        if (owner != NOBODY) {
            tally(a, owner, 1);
        }
    }
}

static void adopt_orphans(struct assignment *a)
{
    for (uint32_t seat = 0; seat < a->seat_count; seat++) {
        if (a->seats[seat].state != EEP_SEAT_RESERVED && a->next[seat] == EEP_NO_MEMBER) {
            const uint32_t near = least_loaded(a, a->seats[seat].held_on);

            give(a, seat, near != NOBODY ? near : least_loaded(a, UINT64_MAX));
        }
    }
}

/* Move a seat from the fullest to `to` within these nodes, if the first has so many. */
static bool take_from(struct assignment *a, uint32_t to, uint64_t nodes, uint32_t at_least)
{
    const uint32_t from = most_loaded(a, nodes);

    if (from == NOBODY || a->load[from] < at_least) {
        return false;
    }
    give(a, last_seat_of(a, from), to);
    return true;
}

/* Members without a seat get one. */
static void seat_newcomers(struct assignment *a)
{
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->load[i] > 0 || take_from(a, i, eep_node_bit(a->candidates[i].node), 2)) {
            continue;
        }
        const uint32_t seat = first_reserved(a);

        if (seat != NOBODY) {
            give(a, seat, i);
        } else {
            take_from(a, i, UINT64_MAX, 2);
        }
    }
}

/* Counts differ by one at most, on each of these nodes taken together. */
static void level_counts(struct assignment *a, uint64_t nodes)
{
    for (;;) {
        const uint32_t to = least_loaded(a, nodes);

        if (to == NOBODY || !take_from(a, to, nodes, a->load[to] + 2)) {
            return;
        }
    }
}

void eep_seats_assign(const struct eep_seat_candidate *candidates, uint32_t count,
                      const struct eep_seat_record *seats, uint32_t seat_count, bool level,
                      uint32_t *next_out)
{
    struct assignment a = {.candidates = candidates,
                           .count = count,
                           .seats = seats,
                           .seat_count = seat_count,
                           .next = next_out};

    EEP_ASSERT(count > 0 && count <= EEP_MEMBERS_MAX);
    keep_what_stays(&a);
    adopt_orphans(&a);
    if (level) {
        seat_newcomers(&a);
        for (uint32_t node = 0; node < EEP_NODES_MAX; node++) {
            level_counts(&a, eep_node_bit(node));
        }
        level_counts(&a, UINT64_MAX);
    }
}

/* Another served seat than `seat` has the expert of this slot. */
static bool is_elsewhere(const struct eep_layout *layout, const bool *served, uint32_t seat,
                         uint32_t layer, uint32_t expert)
{
    const uint64_t pair = (uint64_t)layer * layout->experts + expert;

    for (uint32_t i = layout->replica_first[pair]; i < layout->replica_first[pair + 1]; i++) {
        const uint32_t other = layout->replica_slots[i] / layout->slots_per_seat;

        if (other != seat && served[other]) {
            return true;
        }
    }
    return false;
}

bool eep_seat_is_redundant(const struct eep_layout *layout, const bool *served, uint32_t seat)
{
    const uint32_t slots = layout->slots_per_seat;

    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        for (uint32_t i = 0; i < slots; i++) {
            const int32_t expert =
                eep_layout_expert(layout, layer, (struct eep_slot){seat * slots + i});

            if (expert != EEP_NO_EXPERT &&
                !is_elsewhere(layout, served, seat, layer, (uint32_t)expert)) {
                return false;
            }
        }
    }
    return true;
}
