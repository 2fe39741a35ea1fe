/*
 * The public algorithm of DeepSeek, bit for bit (github.com/deepseek-ai/EPLB, eplb.py, commit
 * d52c72d; DeepSeek-V3 technical report, arXiv 2412.19437, section 3.4).
 *
 *   1. groups of experts -> nodes, by packing;
 *   2. replicas within each node: the largest load per replica gets the next slot;
 *   3. replicas -> seats within each node, by packing.
 *
 * Packing: items by falling weight, each to the lightest pack with room, the lowest number on a
 * tie. Global form: one group, one node. The original sorts with an order among equal weights that
 * depends on library and processor; here the lower index comes first. Loads and sums are float32 as
 * there, except with failed seats, where the original (SGLang 0.5.23, elasticity_aware) adds in
 * float64.
 */
#include <string.h>

#include "base/mem.h"
#include "eplb/eplb_int.h"
#include "eplb/sort.h"

static uint32_t float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits; /* ordered as the numbers are, for those that are not negative */
}

/* Largest weight first, then the lower index. */
static uint64_t falling_key(float weight, uint32_t index)
{
    return (uint64_t)(0x7f800000u - float_bits(weight)) << 32 | index;
}

/* Packs with room in a heap: the lightest, then the lower index, on top. */
struct packs {
    double *sum;     /* (count) */
    uint32_t *items; /* (count) */
    uint32_t *heap;  /* (size) numbers of packs */
    uint32_t size;
};

static bool lighter(const struct packs *packs, uint32_t a, uint32_t b)
{
    return packs->sum[a] < packs->sum[b] || (packs->sum[a] == packs->sum[b] && a < b);
}

static void sink(struct packs *packs, uint32_t at)
{
    const uint32_t pack = packs->heap[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= packs->size) {
            break;
        }
        if (child + 1 < packs->size && lighter(packs, packs->heap[child + 1], packs->heap[child])) {
            child++;
        }
        if (!lighter(packs, packs->heap[child], pack)) {
            break;
        }
        packs->heap[at] = packs->heap[child];
        at = child;
    }
    packs->heap[at] = pack;
}

/*
 * Spread `count` items over `packs` of the same size. pack_out[i]: its pack; place_out[i]: its
 * place there, by order of arrival.
 */
static void pack(struct eep_eplb *b, const float *weights, uint32_t count, uint32_t packs_count,
                 bool float64, uint32_t *pack_out, uint32_t *place_out)
{
    const uint32_t room = count / packs_count;
    struct packs packs = {
        .sum = b->seat_loads, .items = b->want, .heap = b->order, .size = packs_count};

    if (room == 1) {
        for (uint32_t i = 0; i < count; i++) {
            pack_out[i] = i;
            place_out[i] = 0;
        }
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        b->keys[i] = falling_key(weights[i], i);
    }
    eplb_sort(b->keys, b->spare, count, 4, 7);
    for (uint32_t i = 0; i < packs_count; i++) {
        packs.sum[i] = 0.0;
        packs.items[i] = 0;
        packs.heap[i] = i; /* all equal: in order is a heap */
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t item = (uint32_t)b->keys[i], to = packs.heap[0];

        pack_out[item] = to;
        place_out[item] = packs.items[to]++;
        if (float64) {
            packs.sum[to] += (double)weights[item];
        } else {
            packs.sum[to] = (double)((float)packs.sum[to] + weights[item]);
        }
        if (packs.items[to] == room) {
            packs.heap[0] = packs.heap[--packs.size];
        }
        if (packs.size > 0) {
            sink(&packs, 0);
        }
    }
}

/* Replicas of `experts` experts in `slots` slots: item i of them is expert expert_out[i]. */
static void replicate(struct eep_eplb *b, const float *weights, uint32_t experts, uint32_t slots,
                      uint32_t *expert_out, uint32_t *count)
{
    for (uint32_t e = 0; e < experts; e++) {
        expert_out[e] = e;
        count[e] = 1;
        b->keys[e] = falling_key(weights[e], e);
    }
    eplb_heap_make(b->keys, experts);
    for (uint32_t i = experts; i < slots; i++) {
        const uint32_t e = (uint32_t)b->keys[0];

        expert_out[i] = e;
        count[e]++;
        b->keys[0] = falling_key(weights[e] / (float)count[e], e);
        eplb_heap_sink(b->keys, experts, 0);
    }
}

/* How this call is divided: 1 group and 1 node in the global form. */
struct division {
    uint32_t groups, nodes;
    uint32_t seats; /* live */
    bool float64;   /* sums of packs */
};

static enum eep_status check_division(const struct eep_eplb *b, const struct eep_eplb_ask *ask,
                                      struct division *d_out)
{
    const struct eep_eplb_shape *shape = &b->shape;
    struct division d = {
        .groups = shape->groups, .nodes = shape->nodes, .seats = b->live_seats, .float64 = false};

    if (shape->slots % shape->seats != 0) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "policy deepseek: %u slots do not divide by %u ranks: %u experts and %u "
                        "redundant slots; the next count that fits is %u redundant",
                        shape->slots, shape->seats, shape->experts, shape->slots - shape->experts,
                        eep_eplb_map_slots(shape) - shape->experts);
    }
    if (ask->failed != NULL && d.seats < shape->seats) {
        d.groups = d.nodes = 1;
        d.float64 = true;
    } else if (d.groups % d.nodes != 0) {
        d.groups = d.nodes = 1;
    }
    if (shape->experts % d.groups != 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "policy deepseek: %u experts do not divide by %u groups",
                        shape->experts, d.groups);
    }
    if (d.seats % d.nodes != 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "policy deepseek: %u ranks do not divide by %u nodes",
                        d.seats, d.nodes);
    }
    *d_out = d;
    return EEP_OK;
}

/* Step 1: the experts in the order of their node; expert_of[i] is the i-th. */
static void groups_to_nodes(struct eep_eplb *b, const struct division *d, const double *loads,
                            uint32_t *expert_of)
{
    const uint32_t group_size = b->shape.experts / d->groups;
    const uint32_t node_groups = d->groups / d->nodes;
    uint32_t *node = b->lists[1], *place = b->lists[2];
    float *sums = b->floats[0];

    for (uint32_t g = 0; g < d->groups; g++) {
        sums[g] = 0.0f;
        for (uint32_t i = 0; i < group_size; i++) {
            sums[g] += (float)loads[g * group_size + i];
        }
    }
    pack(b, sums, d->groups, d->nodes, d->float64, node, place);
    for (uint32_t g = 0; g < d->groups; g++) {
        const uint32_t first = (node[g] * node_groups + place[g]) * group_size;

        for (uint32_t i = 0; i < group_size; i++) {
            expert_of[first + i] = g * group_size + i;
        }
    }
}

/* Steps 2 and 3 for one node. */
static void fill_node(struct eep_eplb *b, const struct division *d, const double *loads,
                      const uint32_t *expert_of, int32_t *map)
{
    const uint32_t experts = b->shape.experts / d->nodes, seats = d->seats / d->nodes;
    const uint32_t slots = seats * b->stride;
    uint32_t *item_expert = b->lists[1], *seat = b->lists[2], *place = b->lists[3];
    uint32_t *count = b->lists[4];
    float *weights = b->floats[0], *shares = b->floats[1];

    for (uint32_t e = 0; e < experts; e++) {
        weights[e] = (float)loads[expert_of[e]] + 0.0f; /* -0 becomes 0 */
    }
    replicate(b, weights, experts, slots, item_expert, count);
    for (uint32_t i = 0; i < slots; i++) {
        shares[i] = weights[item_expert[i]] / (float)count[item_expert[i]];
    }
    pack(b, shares, slots, seats, d->float64, seat, place);
    for (uint32_t i = 0; i < slots; i++) {
        map[seat[i] * b->stride + place[i]] = (int32_t)expert_of[item_expert[i]];
    }
}

/* From live seats in order to their places among all seats. */
static void spread_over_failed(const struct eep_eplb *b, const bool *failed, int32_t *map)
{
    uint32_t live = b->live_seats;

    for (uint32_t s = b->shape.seats; s-- > 0;) {
        int32_t *row = map + (size_t)s * b->stride;

        if (failed[s]) {
            for (uint32_t i = 0; i < b->stride; i++) {
                row[i] = EEP_NO_EXPERT;
            }
        } else if (--live != s) {
            memcpy(row, map + (size_t)live * b->stride, b->stride * sizeof(*row));
        }
    }
}

enum eep_status eplb_deepseek(struct eep_eplb *b, const struct eep_eplb_ask *ask, int32_t *map_out)
{
    uint32_t *expert_of = b->lists[0];
    struct division d;

    EEP_TRY(check_division(b, ask, &d));
    groups_to_nodes(b, &d, ask->loads, expert_of);
    for (uint32_t node = 0; node < d.nodes; node++) {
        fill_node(b, &d, ask->loads, expert_of + (size_t)node * (b->shape.experts / d.nodes),
                  map_out + (size_t)node * (d.seats / d.nodes) * b->stride);
    }
    if (d.seats < b->shape.seats) {
        spread_over_failed(b, ask->failed, map_out);
    }
    return EEP_OK;
}
