/*
 * The balancer's entrance: checks the question, makes the state, decides whether a plan pays.
 */
#include "eplb/eplb.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "eplb/eplb_int.h"

/* ---- making ------------------------------------------------------------------------------ */

static enum eep_status check_shape(const struct eep_eplb_shape *shape)
{
    if (shape->experts == 0 || shape->seats == 0 || shape->nodes == 0 || shape->groups == 0) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "nothing to balance: %u experts, %u ranks, %u nodes, %u groups",
                        shape->experts, shape->seats, shape->nodes, shape->groups);
    }
    if (shape->experts > EEP_EPLB_EXPERTS_MAX || shape->seats > UINT16_MAX ||
        shape->slots > EEP_EPLB_SLOTS_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%u experts, %u ranks, %u slots are above the limits %u, %u, %u",
                        shape->experts, shape->seats, shape->slots, EEP_EPLB_EXPERTS_MAX,
                        UINT16_MAX, EEP_EPLB_SLOTS_MAX);
    }
    if (shape->nodes > shape->seats) {
        return EEP_FAIL(EEP_ERR_INVALID, "%u nodes for %u ranks: a node has a rank at least",
                        shape->nodes, shape->seats);
    }
    if (shape->slots < shape->experts) {
        return EEP_FAIL(EEP_ERR_INVALID, "%u slots cannot hold %u experts: %u or more are needed",
                        shape->slots, shape->experts, shape->experts);
    }
    return EEP_OK;
}

/* Take `count` objects of `size` from the arena; with base NULL only count them. */
static void *take(char *base, size_t *used, size_t count, size_t size)
{
    void *here = base != NULL ? base + *used : NULL;

    *used += eep_round_up(count * size, EEP_CACHE_LINE);
    return here;
}

static size_t lay_out(struct eep_eplb *b, char *base)
{
    const uint32_t experts = b->shape.experts, seats = b->shape.seats, slots = b->map_slots;
    const uint32_t larger = EEP_MAX(slots, experts);
    const size_t bits = (size_t)seats * b->words;
    size_t used = 0;

    b->seat_slots = take(base, &used, seats, sizeof(*b->seat_slots));
    b->seat_node = take(base, &used, seats, sizeof(*b->seat_node));
    b->slot_seat = take(base, &used, slots, sizeof(*b->slot_seat));
    b->weight = take(base, &used, experts, sizeof(*b->weight));
    b->had = take(base, &used, bits, sizeof(*b->had));
    b->in_slot = take(base, &used, slots, sizeof(*b->in_slot));
    b->slot_share = take(base, &used, slots, sizeof(*b->slot_share));
    b->next = take(base, &used, slots, sizeof(*b->next));
    b->prev = take(base, &used, slots, sizeof(*b->prev));
    b->head = take(base, &used, experts, sizeof(*b->head));
    b->count = take(base, &used, experts, sizeof(*b->count));
    b->want = take(base, &used, EEP_MAX(experts, seats), sizeof(*b->want));
    b->share = take(base, &used, experts, sizeof(*b->share));
    b->share_more = take(base, &used, experts, sizeof(*b->share_more));
    b->share_less = take(base, &used, experts, sizeof(*b->share_less));
    b->on_node = take(base, &used, b->shape.nodes > 1 ? (size_t)experts * b->shape.nodes : 0,
                      sizeof(*b->on_node));
    b->has = take(base, &used, bits, sizeof(*b->has));
    b->load = take(base, &used, seats, sizeof(*b->load));
    b->order = take(base, &used, seats, sizeof(*b->order));
    b->best = take(base, &used, slots, sizeof(*b->best));
    b->other = take(base, &used, slots, sizeof(*b->other));
    b->kept = take(base, &used, slots, sizeof(*b->kept));
    b->keys = take(base, &used, larger, sizeof(*b->keys));
    b->spare = take(base, &used, larger, sizeof(*b->spare));
    for (size_t i = 0; i < sizeof(b->lists) / sizeof(b->lists[0]); i++) {
        b->lists[i] = take(base, &used, larger, sizeof(*b->lists[i]));
    }
    for (size_t i = 0; i < sizeof(b->floats) / sizeof(b->floats[0]); i++) {
        b->floats[i] = take(base, &used, larger, sizeof(*b->floats[i]));
    }
    b->seat_loads = take(base, &used, seats, sizeof(*b->seat_loads));
    return used;
}

enum eep_status eep_eplb_create(const struct eep_eplb_shape *shape, struct eep_eplb **eplb_out)
{
    struct eep_eplb *b;
    char *arena;

    EEP_TRY(check_shape(shape));
    struct eep_eplb sizes = {.shape = *shape,
                             .stride = eep_eplb_slots_per_seat(shape),
                             .map_slots = eep_eplb_map_slots(shape),
                             .words = (shape->experts + 63) / 64};
    const size_t head = eep_round_up(sizeof(*b), EEP_CACHE_LINE);
    EEP_TRY(eep_mem_alloc(1, head + lay_out(&sizes, NULL), "balancer", &arena));
    b = (struct eep_eplb *)(void *)arena;
    *b = sizes;
    (void)lay_out(b, arena + head);
    for (uint32_t s = 0; s < shape->seats; s++) {
        b->seat_node[s] = eep_eplb_node_of(shape, s);
        for (uint32_t i = 0; i < b->stride; i++) {
            b->slot_seat[s * b->stride + i] = s;
        }
    }
    *eplb_out = b;
    return EEP_OK;
}

const struct eep_eplb_shape *eep_eplb_shape(const struct eep_eplb *eplb)
{
    return &eplb->shape;
}

void eep_eplb_destroy(struct eep_eplb *eplb)
{
    eep_mem_free(eplb);
}

/* ---- the question -------------------------------------------------------------------------- */

static enum eep_status set_seats(struct eep_eplb *b, const bool *failed)
{
    b->live_seats = b->live_slots = 0;
    for (uint32_t s = 0; s < b->shape.seats; s++) {
        b->seat_slots[s] = failed != NULL && failed[s] ? 0 : eep_eplb_seat_slots(&b->shape, s);
        b->live_seats += b->seat_slots[s] > 0;
        b->live_slots += b->seat_slots[s];
    }
    if (b->live_slots < b->shape.experts) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%u of %u ranks are live; their %u slots cannot hold %u experts: %u more "
                        "are needed",
                        b->live_seats, b->shape.seats, b->live_slots, b->shape.experts,
                        b->shape.experts - b->live_slots);
    }
    return EEP_OK;
}

static enum eep_status check_loads(const struct eep_eplb *b, const double *loads, double *total_out)
{
    double total = 0.0;

    for (uint32_t e = 0; e < b->shape.experts; e++) {
        if (!(loads[e] >= 0.0 && loads[e] <= EEP_EPLB_LOAD_MAX)) { /* also when it is NaN */
            return EEP_FAIL(EEP_ERR_INVALID,
                            "the load of expert %u is %g: it must be a number from 0 to 2^64", e,
                            loads[e]);
        }
        total += loads[e];
    }
    *total_out = total;
    return EEP_OK;
}

static enum eep_status check_map(const struct eep_eplb *b, const int32_t *map)
{
    for (uint32_t p = 0; map != NULL && p < b->map_slots; p++) {
        if (map[p] < EEP_NO_EXPERT || map[p] >= (int32_t)b->shape.experts) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "the current layout has expert %d in slot %u; experts are 0 .. %u",
                            map[p], p, b->shape.experts - 1);
        }
    }
    return EEP_OK;
}

/* Loads as integers whose sum has EPLB_SCALE_BITS + 1 bits; the scale is a power of two. */
static void set_weights(struct eep_eplb *b, const double *loads, double total)
{
    int exponent = 0;

    (void)frexp(total, &exponent); /* total < 2^exponent; exact, as ldexp() */
    /* in two steps, since 2^bits may be above the largest number */
    const int bits = EPLB_SCALE_BITS + 1 - exponent;
    const double first = ldexp(1.0, bits / 2), second = ldexp(1.0, bits - bits / 2);
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        b->weight[e] = (int64_t)(loads[e] * first * second);
    }
}

static void set_had(struct eep_eplb *b, const int32_t *current)
{
    memset(b->had, 0, (size_t)b->shape.seats * b->words * sizeof(*b->had));
    for (uint32_t p = 0; current != NULL && p < b->map_slots; p++) {
        const uint32_t seat = b->slot_seat[p];

        if (current[p] != EEP_NO_EXPERT && b->seat_slots[seat] > 0) {
            b->had[(size_t)seat * b->words + (uint32_t)current[p] / 64] |=
                UINT64_C(1) << ((uint32_t)current[p] % 64);
        }
    }
}

/* Every expert can have replicas on two nodes: each node holds it once for that purpose. */
static bool can_spread(const struct eep_eplb *b)
{
    uint64_t room = 0;

    if (b->shape.nodes == 1) {
        return false;
    }
    for (uint32_t s = 0; s < b->shape.seats;) {
        const uint32_t node = b->seat_node[s];
        uint64_t slots = 0;

        for (; s < b->shape.seats && b->seat_node[s] == node; s++) {
            slots += b->seat_slots[s];
        }
        room += EEP_MIN(slots, b->shape.experts);
    }
    return room >= 2 * (uint64_t)b->shape.experts;
}

/* ---- the answer ---------------------------------------------------------------------------- */

static uint32_t doubled(const struct eep_eplb *b, const int32_t *map)
{
    uint32_t count = 0;

    for (uint32_t p = 0; p < b->map_slots; p++) {
        for (uint32_t q = b->slot_seat[p] * b->stride; q < p && map[p] != EEP_NO_EXPERT; q++) {
            if (map[q] == map[p]) {
                count++;
                break;
            }
        }
    }
    return count;
}

static uint32_t single_node(struct eep_eplb *b, const int32_t *map)
{
    uint32_t *node_of = b->lists[0], count = b->shape.experts; /* node + 1, 0: none yet */

    memset(node_of, 0, b->shape.experts * sizeof(*node_of));
    for (uint32_t p = 0; p < b->map_slots; p++) {
        const uint32_t seat = b->slot_seat[p];

        if (map[p] == EEP_NO_EXPERT || b->seat_slots[seat] == 0) {
            continue;
        }
        const uint32_t node = b->seat_node[seat] + 1, seen = node_of[map[p]];
        if (seen == 0) {
            node_of[map[p]] = node;
        } else if (seen != UINT32_MAX && seen != node) {
            node_of[map[p]] = UINT32_MAX;
            count--;
        }
    }
    return count;
}

/* The part of a load by which it would fall. */
static double fall(const struct eep_eplb_balance *before, const struct eep_eplb_balance *after)
{
    return before->max_load > 0.0 ? (before->max_load - after->max_load) / before->max_load : 0.0;
}

static bool is_usable(const struct eep_eplb *b, uint32_t slot)
{
    const uint32_t seat = b->slot_seat[slot];

    return slot - seat * b->stride < b->seat_slots[seat];
}

/* No move: the current map, but nothing on failed seats. */
static void keep(const struct eep_eplb *b, const struct eep_eplb_ask *ask,
                 enum eep_eplb_verdict verdict, int32_t *map_out, struct eep_eplb_result *result)
{
    for (uint32_t p = 0; p < b->map_slots; p++) {
        map_out[p] = is_usable(b, p) ? ask->current[p] : EEP_NO_EXPERT;
    }
    result->verdict = verdict;
}

/* Does a seat of `current`, whose state this is, have an expert twice? */
static bool is_flawed(const struct eep_eplb *b, const int32_t *current)
{
    for (uint32_t p = 0; p < b->map_slots; p++) {
        if (is_usable(b, p) && current[p] != b->in_slot[p]) {
            return true;
        }
    }
    return false;
}

/* How near the lower bound is near enough: a fresh map costs nothing but time, moves cost copies.
 */
static int64_t fresh_target(const struct eep_eplb *b)
{
    return b->bound + b->bound / 8192;
}

static int64_t moves_target(const struct eep_eplb *b)
{
    return b->bound + b->bound / 2048;
}

static void count_lost(struct eep_eplb *b, const struct eep_eplb_ask *ask,
                       struct eep_eplb_result *result)
{
    eep_eplb_count(&b->shape, ask->failed, ask->current, b->lists[0]);
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        result->lost += b->lists[0][e] == 0;
    }
}

/* With several nodes and slots for replicas, but not enough of them for all experts on two nodes.
 */
static bool covers(const struct eep_eplb *b, const struct eep_eplb_ask *ask)
{
    return b->shape.nodes > 1 && b->live_slots > b->shape.experts && !b->spread &&
           !ask->balance_first;
}

/* How full a seat may get for fewer experts on one node: no fuller than any is, or than what moves
 * no more, so that the next plan for the same loads takes nothing back. */
static int64_t cover_limit(const struct eep_eplb *b)
{
    return EEP_MAX(eplb_max_load(b), moves_target(b));
}

/* From the current map; what was lost comes first. */
static void plan_moves(struct eep_eplb *b, const struct eep_eplb_ask *ask, bool few,
                       int32_t *map_out, struct eep_eplb_result *result)
{
    eplb_set_map(b, ask->current);
    const bool flawed = is_flawed(b, ask->current);
    const uint32_t copies_before = b->copies;
    eplb_repair(b);
    const bool repaired = b->copies != copies_before;
    b->thrifty = true;
    const bool near = eplb_max_load(b) <= moves_target(b);
    if (!few && !near) {
        eplb_improve(b, moves_target(b));
    }
    memcpy(map_out, b->in_slot, b->map_slots * sizeof(*map_out));
    eep_eplb_measure(&b->shape, ask->loads, ask->failed, map_out, b->count, NULL, &result->after);
    result->best_gain = fall(&result->before, &result->after);
    result->best_copies = b->copies;
    if (repaired || (flawed && result->best_gain >= 0.0)) {
        result->verdict = EEP_EPLB_REPAIRED;
    } else if (result->best_gain > 0.0 && result->best_gain >= ask->min_gain) {
        result->verdict = EEP_EPLB_MOVED;
    } else if (near) {
        keep(b, ask, EEP_EPLB_BALANCED, map_out, result);
    } else if (ask->max_copies == 0) {
        keep(b, ask, EEP_EPLB_NO_BUDGET, map_out, result);
    } else {
        keep(b, ask, EEP_EPLB_NO_GAIN, map_out, result);
    }
    if (result->verdict == EEP_EPLB_MOVED && covers(b, ask) && b->copies < b->max_copies) {
        eplb_cover(b, moves_target(b), cover_limit(b));
        memcpy(map_out, b->in_slot, b->map_slots * sizeof(*map_out));
    }
}

static void plan_fresh(struct eep_eplb *b, const struct eep_eplb_ask *ask, int32_t *map_out)
{
    eplb_place(b);
    eplb_repair(b);
    b->thrifty = false;
    eplb_improve(b, fresh_target(b));
    if (covers(b, ask)) {
        eplb_cover(b, fresh_target(b), cover_limit(b));
    }
    memcpy(map_out, b->in_slot, b->map_slots * sizeof(*map_out));
}

static void plan_eep(struct eep_eplb *b, const struct eep_eplb_ask *ask, bool few, int32_t *map_out,
                     struct eep_eplb_result *result)
{
    b->spread = !ask->balance_first && can_spread(b);
    b->max_copies = ask->current != NULL ? ask->max_copies : EEP_EPLB_NO_LIMIT;
    b->work = b->random = 0;
    b->work_max = ask->current != NULL || covers(b, ask) ? EPLB_WORK_THRIFTY : EPLB_WORK_FRESH;
    b->pairs_stay = false;
    if (b->spread) {
        b->bound = eplb_choose_counts(b, 2);
    }
    if (ask->current != NULL) {
        plan_moves(b, ask, few, map_out, result);
    } else {
        plan_fresh(b, ask, map_out);
    }
}

/* The compatible policy knows no budget, only whether its map pays. */
static enum eep_status plan_deepseek(struct eep_eplb *b, const struct eep_eplb_ask *ask,
                                     int32_t *map_out, struct eep_eplb_result *result)
{
    EEP_TRY(eplb_deepseek(b, ask, map_out));
    if (ask->current == NULL) {
        return EEP_OK;
    }
    eep_eplb_count(&b->shape, ask->failed, map_out, b->lists[0]);
    eep_eplb_measure(&b->shape, ask->loads, ask->failed, map_out, b->lists[0], NULL,
                     &result->after);
    result->best_gain = fall(&result->before, &result->after);
    result->best_copies = eep_eplb_copies(&b->shape, ask->failed, ask->current, map_out);
    result->verdict = result->lost > 0 ? EEP_EPLB_REPAIRED : EEP_EPLB_MOVED;
    if (result->lost == 0 && ask->min_gain > 0.0 && result->best_gain < ask->min_gain) {
        keep(b, ask, EEP_EPLB_NO_GAIN, map_out, result);
    }
    return EEP_OK;
}

/* With even shares the largest seat load is at least the mean, and the largest replica. */
static double lower_bound(struct eep_eplb *b, const double *loads, double total)
{
    double bound = total / b->live_seats;

    b->bound = eplb_choose_counts(b, 1);
    for (uint32_t e = 0; e < b->shape.experts; e++) {
        bound = EEP_MAX(bound, loads[e] / b->want[e]);
    }
    return bound;
}

enum eep_status eep_eplb_plan(struct eep_eplb *b, const struct eep_eplb_ask *ask, int32_t *map_out,
                              uint32_t *count_out, struct eep_eplb_result *result_out)
{
    struct eep_eplb_result result = {.verdict = EEP_EPLB_FRESH};
    double total;

    EEP_TRY(set_seats(b, ask->failed));
    EEP_TRY(check_loads(b, ask->loads, &total));
    EEP_TRY(check_map(b, ask->current));
    set_weights(b, ask->loads, total);
    set_had(b, ask->current);
    result.lower_bound = lower_bound(b, ask->loads, total);
    if (ask->current != NULL) {
        eep_eplb_count(&b->shape, ask->failed, ask->current, count_out);
        eep_eplb_measure(&b->shape, ask->loads, ask->failed, ask->current, count_out, NULL,
                         &result.before);
        count_lost(b, ask, &result);
    }
    const bool few = total == 0.0 || total < ask->min_total;
    if (ask->current != NULL && few && result.lost == 0) {
        keep(b, ask, total == 0.0 ? EEP_EPLB_NO_LOAD : EEP_EPLB_FEW, map_out, &result);
    } else if (ask->policy == EEP_EPLB_DEEPSEEK) {
        EEP_TRY(plan_deepseek(b, ask, map_out, &result));
    } else {
        plan_eep(b, ask, few, map_out, &result);
    }
    eep_eplb_count(&b->shape, ask->failed, map_out, count_out);
    eep_eplb_measure(&b->shape, ask->loads, ask->failed, map_out, count_out, NULL, &result.after);
    result.copies = eep_eplb_copies(&b->shape, ask->failed, ask->current, map_out);
    result.doubled = doubled(b, map_out);
    result.single_node = single_node(b, map_out);
    *result_out = result;
    return EEP_OK;
}

const char *eep_eplb_verdict_text(enum eep_eplb_verdict verdict)
{
    switch (verdict) {
    case EEP_EPLB_FRESH:
        return "new layout";
    case EEP_EPLB_MOVED:
        return "moves pay";
    case EEP_EPLB_REPAIRED:
        return "repaired";
    case EEP_EPLB_NO_LOAD:
        return "no move pays: nothing was counted";
    case EEP_EPLB_FEW:
        return "no move pays: too few tokens were counted";
    case EEP_EPLB_BALANCED:
        return "no move pays: balanced already";
    case EEP_EPLB_NO_GAIN:
        return "no move pays: the best plan gains less than asked";
    case EEP_EPLB_NO_BUDGET:
        return "no move pays: no copy is allowed";
    }
    return "unknown";
}
