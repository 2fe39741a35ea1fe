/* Who joins, who leaves, and who executes what then. Reads the state and changes nothing. */
#include <string.h>

#include "member/member_int.h"

static void members_by_node(const struct eep_member_state *s, const bool leaves[EEP_MEMBERS_MAX],
                            uint32_t counts[EEP_NODES_MAX])
{
    memset(counts, 0, EEP_NODES_MAX * sizeof(*counts));
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        counts[s->members[i].node] += eep_member_in_epoch(&s->members[i]) && !leaves[i];
    }
}

/* From the node with the most members: on a node that keeps one, no byte moves. The highest id of
 * it, so that the coordinator stays as long as possible. */
static uint32_t next_leaver(const struct eep_member_state *s, const bool leaves[EEP_MEMBERS_MAX])
{
    uint32_t counts[EEP_NODES_MAX], best = EEP_MEMBERS_MAX;

    members_by_node(s, leaves, counts);
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &s->members[i];

        if (!eep_member_in_epoch(r) || leaves[i]) {
            continue;
        }
        if (best == EEP_MEMBERS_MAX || counts[r->node] > counts[s->members[best].node] ||
            (counts[r->node] == counts[s->members[best].node] && r->id > s->members[best].id)) {
            best = i;
        }
    }
    return best;
}

uint32_t eep_plan_leavers(const struct eep_member_state *s, const struct eep_operation *op,
                          bool leaves[EEP_MEMBERS_MAX])
{
    const uint32_t size = eep_member_size(s);
    uint32_t count = 0;

    memset(leaves, 0, EEP_MEMBERS_MAX * sizeof(*leaves));
    if (op->kind == EEP_OPERATION_DRAIN) {
        for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
            leaves[i] = eep_member_in_epoch(&s->members[i]) &&
                        (s->members[i].flags & EEP_MEMBER_NAMED) != 0;
            count += leaves[i];
        }
        return count;
    }
    for (; size - count > op->target; count++) {
        leaves[next_leaver(s, leaves)] = true;
    }
    return count;
}

/* Seats of a node beyond one for each of its members: what a joiner there takes for nothing. */
static int32_t surplus_of(const struct eep_member_state *s, const bool joins[EEP_MEMBERS_MAX],
                          uint32_t node)
{
    int32_t surplus = 0;

    for (uint32_t i = 0; i < s->seats_max; i++) {
        const struct eep_member_record *r = eep_member_find(s, s->seats[i].executor);

        surplus += r != NULL && r->node == node;
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &s->members[i];

        surplus -=
            r->node == node && (eep_member_in_epoch(r) || r->life == EEP_LIFE_JOINING || joins[i]);
    }
    return EEP_MAX(surplus, 0);
}

/* Those that did not come when they were woken last; they may hang. */
static bool is_worse(const struct eep_member_record *r, const struct eep_member_record *best)
{
    return (r->flags & EEP_MEMBER_MISSED) > (best->flags & EEP_MEMBER_MISSED);
}

static uint32_t next_joiner(const struct eep_member_state *s, const bool joins[EEP_MEMBERS_MAX])
{
    uint32_t best = EEP_MEMBERS_MAX;
    int32_t best_surplus = 0;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &s->members[i];

        if (r->life != EEP_LIFE_PARKED || joins[i]) {
            continue;
        }
        const int32_t surplus = surplus_of(s, joins, r->node);

        if (best == EEP_MEMBERS_MAX || is_worse(&s->members[best], r) ||
            (!is_worse(r, &s->members[best]) &&
             (surplus > best_surplus ||
              (surplus == best_surplus && r->id < s->members[best].id)))) {
            best = i;
            best_surplus = surplus;
        }
    }
    return best;
}

uint32_t eep_plan_joiners(const struct eep_member_state *s, uint32_t wanted,
                          bool joins[EEP_MEMBERS_MAX])
{
    uint32_t count = 0;

    memset(joins, 0, EEP_MEMBERS_MAX * sizeof(*joins));
    for (; count < wanted; count++) {
        const uint32_t one = next_joiner(s, joins);

        if (one == EEP_MEMBERS_MAX) {
            break;
        }
        joins[one] = true;
    }
    return count;
}

void eep_plan_candidates(const struct eep_member_state *s, const bool takes[EEP_MEMBERS_MAX],
                         struct eep_plan *plan)
{
    plan->count = 0;
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (!takes[i]) {
            continue;
        }
        const struct eep_seat_candidate one = {s->members[i].id, s->members[i].node};
        uint32_t at = plan->count++;

        for (; at > 0 && plan->candidates[at - 1].id > one.id; at--) {
            plan->candidates[at] = plan->candidates[at - 1];
        }
        plan->candidates[at] = one;
    }
}

static uint32_t node_in_plan(const struct eep_plan *plan, uint32_t id)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->candidates[i].id == id) {
            return plan->candidates[i].node;
        }
    }
    return EEP_NODES_MAX;
}

/* Seats that only add replicas and would have to be copied to another node are given up. */
static void give_up_seats(const struct eep_member *m, struct eep_plan *plan)
{
    const struct eep_member_state *s = &m->state;
    bool served[EEP_SEATS_MAX] = {false};

    if (m->layout == NULL || m->layout->seats > s->seats_max) {
        return;
    }
    for (uint32_t i = 0; i < s->seats_max; i++) {
        served[i] = plan->next[i] != EEP_NO_MEMBER;
    }
    for (uint32_t i = 0; i < m->layout->seats; i++) {
        const uint32_t node = node_in_plan(plan, plan->next[i]);

        if (node < EEP_NODES_MAX && (s->seats[i].held_on & eep_node_bit(node)) == 0 &&
            eep_seat_is_redundant(m->layout, served, i)) {
            plan->next[i] = EEP_NO_MEMBER;
            served[i] = false;
        }
    }
}

static void count_moves(const struct eep_member *m, struct eep_plan *plan)
{
    const struct eep_member_state *s = &m->state;
    uint32_t held[EEP_NODES_MAX] = {0}, before[EEP_NODES_MAX] = {0};

    for (uint32_t i = 0; i < s->seats_max; i++) {
        const struct eep_member_record *r = eep_member_find(s, s->seats[i].executor);

        before[r != NULL ? r->node : 0] += r != NULL;
    }
    plan->moved = 0;
    plan->loaded = 0;
    plan->fits = true;
    for (uint32_t i = 0; i < s->seats_max; i++) {
        const uint32_t node = node_in_plan(plan, plan->next[i]);

        if (node == EEP_NODES_MAX) {
            continue;
        }
        held[node]++;
        plan->moved += plan->next[i] != s->seats[i].executor;
        plan->loaded += (s->seats[i].held_on & eep_node_bit(node)) == 0;
        /* What a loss left too full may stay, or get emptier. */
        if (m->params.node_seats_max != 0 &&
            held[node] > EEP_MAX(m->params.node_seats_max, before[node])) {
            plan->fits = false;
            plan->have = m->params.node_seats_max;
            plan->want = held[node];
        }
    }
}

void eep_plan_seats(const struct eep_member *m, bool level, struct eep_plan *plan)
{
    eep_seats_assign(plan->candidates, plan->count, m->state.seats, m->state.seats_max, level,
                     plan->next);
    if (!level) {
        give_up_seats(m, plan);
    }
    count_moves(m, plan);
}
