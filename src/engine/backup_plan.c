/*
 * Which rank is to hold a backup of which expert. All ranks plan the same from what they have told
 * each other: the memory that is left, and what they hold.
 */
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/backup.h"
#include "engine/look.h"
#include "member/member.h"

#define KEPT_FREE 8u /* this part of the available memory is left alone */

/* ---- what the ranks say ---- */

static enum eep_status gather(struct eep_engine *e)
{
    const struct eep_xport_ops *ops = e->xport->ops;
    struct eep_backup *b = e->backup;
    const struct eep_backup_word mine = {.machine = eep_threads_machine(),
                                         .available = eep_mem_available_bytes(),
                                         .own = eep_kv_bytes(e->kv)};

    EEP_TRY(ops->allgather(e->xport, "room for a backup", &mine, sizeof(mine), b->rooms));
    return ops->allgather(e->xport, "backup", b->held, b->words * sizeof(*b->held), b->held_all);
}

static uint32_t count_held(const struct eep_backup *b, uint32_t rank)
{
    const uint64_t *held = b->held_all + rank * b->words;
    uint32_t count = 0;

    for (size_t i = 0; i < b->words; i++) {
        count += (uint32_t)__builtin_popcountll(held[i]);
    }
    return count;
}

/* Ranks of one machine share what is left of it. What is held already is taken. */
static void reckon_room(struct eep_backup *b)
{
    for (uint32_t r = 0; r < b->ranks; r++) {
        uint64_t available = UINT64_MAX, own = 0, ranks = 0;

        for (uint32_t other = 0; other < b->ranks; other++) {
            if (b->rooms[other].machine == b->rooms[r].machine) {
                available = EEP_MIN(available, b->rooms[other].available);
                own += b->rooms[other].own;
                ranks++;
            }
        }
        available -= available / KEPT_FREE;
        const uint64_t left = available - EEP_MIN(available, own);

        b->room[r] = count_held(b, r) + (uint32_t)EEP_MIN(left / ranks / b->stride, b->pairs);
        b->used[r] = 0;
    }
}

/* ---- where to ---- */

/* Who would execute the seats if a node were lost. */
static void find_heirs(struct eep_engine *e, uint32_t node)
{
    const struct eep_member_state *state = eep_engine_member_state(e);
    const uint32_t *ids = eep_engine_member_ids(e);
    const uint32_t seats = e->layout->seats;
    struct eep_backup *b = e->backup;
    struct eep_seat_candidate others[EEP_MEMBERS_MAX];
    uint32_t next[EEP_SEATS_MAX], count = 0;

    for (uint32_t r = 0; r < b->ranks; r++) {
        if (e->xport->topo.node_of[r] != node) {
            others[count++] = (struct eep_seat_candidate){.id = ids[r], .node = b->node[r]};
        }
    }
    memset(b->heirs + (size_t)node * seats, 0xff, seats * sizeof(*b->heirs)); /* EEP_NO_RANK */
    if (count == 0) {
        return;
    }
    eep_seats_assign(others, count, state->seats, seats, false, next);
    for (uint32_t seat = 0; seat < seats; seat++) {
        uint32_t heir = 0;

        while (heir < b->ranks && ids[heir] != next[seat]) {
            heir++;
        }
        b->heirs[(size_t)node * seats + seat] = heir < b->ranks ? heir : EEP_NO_RANK;
    }
}

static bool has_room(const struct eep_backup *b, uint32_t rank, uint32_t at_most)
{
    return b->used[rank] < EEP_MIN(b->room[rank], at_most);
}

/* A rank with room on the nodes that follow; of one node the one with the least. */
static uint32_t find_room(const struct eep_engine *e, uint32_t node, uint32_t at_most)
{
    const struct eep_topology *topo = &e->xport->topo;
    const struct eep_backup *b = e->backup;
    uint32_t best = EEP_NO_RANK, best_away = UINT32_MAX;

    for (uint32_t r = 0; r < b->ranks; r++) {
        const uint32_t away = (topo->node_of[r] + topo->nodes - node) % topo->nodes;

        if (away != 0 && has_room(b, r, at_most) &&
            (away < best_away || (away == best_away && b->used[r] < b->used[best]))) {
            best = r;
            best_away = away;
        }
    }
    return best;
}

/* ---- one expert ---- */

/* The node that alone executes it; EEP_NO_RANK: two do. */
static uint32_t only_node(const struct eep_engine *e, size_t pair)
{
    const struct eep_layout *l = e->layout;
    uint32_t node = EEP_NO_RANK;

    for (uint32_t i = l->replica_first[pair]; i < l->replica_first[pair + 1]; i++) {
        const uint32_t seat = l->replica_slots[i] / l->slots_per_seat;
        const uint32_t other = e->xport->topo.node_of[e->executors[seat]];

        if (node != EEP_NO_RANK && node != other) {
            return EEP_NO_RANK;
        }
        node = other;
    }
    return node;
}

/* The lowest rank of another node that holds it, and may go on to. */
static uint32_t find_holder(const struct eep_engine *e, size_t pair, uint32_t node)
{
    const struct eep_backup *b = e->backup;

    for (uint32_t r = 0; r < b->ranks; r++) {
        if (e->xport->topo.node_of[r] != node && eep_backup_has(b->held_all + r * b->words, pair)) {
            return r;
        }
    }
    return EEP_NO_RANK;
}

static void plan_new(struct eep_engine *e, size_t pair, uint32_t node)
{
    const struct eep_layout *l = e->layout;
    struct eep_backup *b = e->backup;
    const uint32_t first = l->replica_first[pair], count = l->replica_first[pair + 1] - first;
    const uint32_t slot = l->replica_slots[first + b->tries % count];
    const uint32_t seat = slot / l->slots_per_seat;
    uint32_t to = b->heirs[(size_t)node * l->seats + seat];

    if (to == EEP_NO_RANK || !has_room(b, to, b->fair)) {
        to = find_room(e, node, b->fair);
    }
    if (to == EEP_NO_RANK) {
        to = find_room(e, node, UINT32_MAX);
    }
    if (to == EEP_NO_RANK) {
        b->missing++;
        return;
    }
    b->used[to]++;
    b->jobs[b->job_count++] = (struct eep_backup_job){.layer = (uint32_t)(pair / l->experts),
                                                      .expert = (uint32_t)(pair % l->experts),
                                                      .slot = slot,
                                                      .from = e->executors[seat],
                                                      .to = to};
}

/* What is held stays where it is, if it is of use there. */
static void keep_held(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;
    const uint32_t me = e->xport->topo.rank;
    size_t wanted = 0;

    for (size_t pair = 0; pair < b->pairs; pair++) {
        const uint32_t node = only_node(e, pair);
        const uint32_t holder = node != EEP_NO_RANK ? find_holder(e, pair, node) : EEP_NO_RANK;

        wanted += node != EEP_NO_RANK;
        b->holder[pair] = holder;
        b->on[pair] = holder != EEP_NO_RANK ? UINT64_C(1) << b->node[holder] : 0;
        if (holder != EEP_NO_RANK) {
            b->used[holder]++;
        }
        if (holder != me && eep_backup_has(b->held, pair)) {
            eep_backup_drop(b, pair);
        }
    }
    b->fair = (uint32_t)((wanted + b->ranks - 1) / b->ranks);
}

static void warn_missing(struct eep_engine *e)
{
    struct eep_backup *b = e->backup;

    if (b->missing > 0 && !b->warned && e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_WARN, "backup: %u experts (%.1f MiB) have none: %s", b->missing,
                (double)b->missing * (double)b->stride / (1 << 20),
                e->xport->topo.nodes == 1 ? "there is no other node"
                                          : "the other nodes have no memory left for them");
    }
    b->warned = b->missing > 0;
}

enum eep_status eep_backup_plan(struct eep_engine *e)
{
    const struct eep_member_state *state = eep_engine_member_state(e);
    const uint32_t *ids = eep_engine_member_ids(e);
    struct eep_backup *b = e->backup;

    EEP_TRY(gather(e));
    for (uint32_t r = 0; r < b->ranks; r++) {
        b->node[r] = eep_member_find(state, ids[r])->node;
    }
    for (uint32_t node = 0; node < e->xport->topo.nodes; node++) {
        find_heirs(e, node);
    }
    reckon_room(b);
    b->job_count = b->next = b->missing = 0;
    keep_held(e);
    for (size_t pair = 0; pair < b->pairs; pair++) {
        const uint32_t node = only_node(e, pair);

        if (node != EEP_NO_RANK && b->holder[pair] == EEP_NO_RANK) {
            plan_new(e, pair, node);
        }
    }
    warn_missing(e);
    b->version = eep_wcache_view_version(e->view);
    b->planned = true;
    b->again = false;
    return EEP_OK;
}
