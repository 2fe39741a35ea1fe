/*
 * The search for the map with the lowest fullest seat.
 *
 * One descent takes the fullest seat and the move that helps it most, until it is at the goal, no
 * move helps, or the budget of copies is used. Its result depends on the goal: a descent that stops
 * at less has copies left for other seats. So with a budget the lowest goal that can be met is
 * searched by halving; and while a result is above the target, descents start again from the best
 * map with a few random changes (iterated local search). The draws are numbers of a counter and the
 * work is counted in pairs of slots looked at, not in time: the same on every rank.
 */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "eplb/eplb_int.h"

#define WORK_PER_MOVE 60u
#define HALVINGS 6

/* The best map so far; kept in b->best. */
struct best {
    int64_t max_load;
    uint32_t copies;
};

/* Back to a map. */
static void restart(struct eep_eplb *b, const int32_t *map)
{
    b->work += 4 * b->map_slots + 4 * b->shape.experts;
    eplb_set_map(b, map);
}

/* `eager`: try to change replicas whenever exchanges alone do not reach the goal at once, else only
 * when no exchange helps at all. */
static void descend(struct eep_eplb *b, int64_t goal, bool eager)
{
    /* Every move makes the largest loads smaller, so this ends; the limit is for odd loads where it
     * would end late. Usual are fewer moves than seats times four. */
    for (uint32_t moves = 0; moves < 16 * b->map_slots; moves++) {
        struct eplb_move best = {.after = eplb_max_load(b)};
        bool found;

        if (best.after <= goal) {
            return;
        }
        b->work += WORK_PER_MOVE + b->live_seats;
        found = eplb_find_swap(b, goal, &best);
        if (!found || (eager && best.after > goal)) {
            found |= eplb_find_replace(b, goal, &best);
        }
        if (!found) {
            return;
        }
        eplb_apply(b, &best);
    }
}

static void consider(struct eep_eplb *b, struct best *best)
{
    const int64_t max_load = eplb_max_load(b);

    if (max_load < best->max_load || (max_load == best->max_load && b->copies <= best->copies)) {
        *best = (struct best){.max_load = max_load, .copies = b->copies};
        memcpy(b->best, b->in_slot, b->map_slots * sizeof(*b->best));
    }
}

/* The lowest goal that a descent from the map in b->other can meet within the budget. */
static void search_goal(struct eep_eplb *b, int64_t target, bool eager, struct best *best)
{
    int64_t low = target, high = best->max_load;

    for (int i = 0; i < HALVINGS && high - low > target / 4096 && b->work < b->work_max; i++) {
        const int64_t goal = low + (high - low) / 2;

        restart(b, b->other);
        descend(b, goal, eager);
        if (eplb_max_load(b) <= goal) {
            high = goal;
        } else {
            low = goal;
        }
        consider(b, best);
        high = EEP_MIN(high, best->max_load);
    }
}

static uint32_t draw(struct eep_eplb *b, uint32_t below)
{
    return (uint32_t)((eep_rng_bits(1, b->random++) >> 32) * below >> 32);
}

/* A slot of the fullest seat, where descents get stuck, or any. */
static uint32_t draw_slot(struct eep_eplb *b)
{
    const uint32_t full = eplb_fullest(b);

    if (draw(b, 2) == 0) {
        return full * b->stride + draw(b, b->seat_slots[full]);
    }
    return draw(b, b->map_slots);
}

/* One to six random changes. */
static void kick(struct eep_eplb *b)
{
    const uint32_t changes = 1 + draw(b, 6);

    for (uint32_t done = 0, tries = 0; done < changes && tries < 12; tries++) {
        const uint32_t slot = draw_slot(b);

        b->work += WORK_PER_MOVE / 3;
        if (draw(b, 2) == 0) {
            done += eplb_swap_if_allowed(b, slot, draw(b, b->map_slots));
        } else {
            done += eplb_replace_if_allowed(b, slot, (int32_t)draw(b, b->shape.experts));
        }
    }
}

/* From the best map, or on from the last one, by exchanges first or by replicas first: measured on
 * small cases, where a search that always starts from the best stays where it is. */
static void search_around(struct eep_eplb *b, int64_t target, struct best *best)
{
    while (best->max_load > target && b->work < b->work_max) {
        if (draw(b, 2) != 0) {
            restart(b, b->best);
        }
        kick(b);
        descend(b, target, draw(b, 2) != 0);
        consider(b, best);
    }
}

void eplb_improve(struct eep_eplb *b, int64_t target)
{
    struct best best = {.max_load = INT64_MAX};
    bool eager = false;

    memcpy(b->other, b->in_slot, b->map_slots * sizeof(*b->other));
    descend(b, target, false);
    consider(b, &best);
    if (b->thrifty && best.max_load > target) {
        const int64_t lazy = best.max_load;

        restart(b, b->other);
        descend(b, target, true);
        consider(b, &best);
        eager = best.max_load < lazy;
        if (b->max_copies != EEP_EPLB_NO_LIMIT) {
            search_goal(b, target, eager, &best);
        }
    }
    search_around(b, target, &best);
    eplb_set_map(b, b->best);
}
