/*
 * The balancer: from the load of each expert of a MoE layer to the expert in each slot.
 *
 *     loads  [9 1 1 5 ...]   one number per logical expert, any unit (token counts)
 *                |  replicas, placement, moves within a budget of copies
 *     map    seat 0 [0 5 2] seat 1 [0 3 1] ...    EEP_NO_EXPERT in slots that are unused or failed
 *
 * A pure function: no clock, lock, allocation or input and output inside; the same input gives the
 * same bytes on every rank, compiler and machine, since it adds, compares and divides integers
 * (and, in the compatible policy, single IEEE operations) in one fixed order. doc/balancing.md has
 * the rules, the figures and the sources.
 *
 * Load of a seat: the sum over its slots of loads[expert] / replicas[expert]; replicas share
 * evenly. Balancedness: mean / largest load of a live seat; 1 is perfect, and 1 where nothing was
 * counted. Copies: (seat, expert) pairs that the new map has and the old one had not: what must be
 * sent.
 */
#ifndef EEP_EPLB_H
#define EEP_EPLB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ids.h"
#include "base/status.h"

enum eep_eplb_policy {
    /* The public algorithm of DeepSeek (github.com/deepseek-ai/EPLB, eplb.py, commit d52c72d),
     * equal sorting keys with the lower index first; knows neither the current map nor a budget.
     * With failed seats as SGLang's elasticity_aware: global, over the live seats in order. */
    EEP_EPLB_DEEPSEEK,
    /* Lowest largest seat load for the fewest copies; never two replicas in one seat; replicas
     * spread over nodes. */
    EEP_EPLB_EEP,
};

/** What stays the same from one call to the next. */
struct eep_eplb_shape {
    uint32_t experts; /* logical experts of a layer, up to EEP_EPLB_EXPERTS_MAX */
    uint32_t slots;   /* of all seats together, failed ones included; when they do not divide
                         evenly, the first slots % seats seats have one more */
    uint32_t seats;
    uint32_t nodes;  /* seats of node n: n * seats / nodes .. (n + 1) * seats / nodes - 1 */
    uint32_t groups; /* expert groups, for the hierarchical form of EEP_EPLB_DEEPSEEK */
};

#define EEP_EPLB_EXPERTS_MAX 65535u
#define EEP_EPLB_SLOTS_MAX (1u << 20)
#define EEP_EPLB_LOAD_MAX 0x1p64 /* of one expert: counts of 64 bits fit */
#define EEP_EPLB_NO_LIMIT UINT32_MAX

/** One question: the layout of one layer. */
struct eep_eplb_ask {
    enum eep_eplb_policy policy;
    const double *loads;    /* (experts), 0 .. EEP_EPLB_LOAD_MAX */
    const bool *failed;     /* (seats), or NULL: all live */
    const int32_t *current; /* (map slots), or NULL: nothing is loaded yet */
    uint32_t max_copies;    /* EEP_EPLB_EEP with `current`: at most so many copies, unless experts
                               without a live slot need more; EEP_EPLB_NO_LIMIT */
    double min_gain;        /* keep `current` unless the largest seat load falls by at least this
                               part of it; 0 = any gain counts */
    double min_total;       /* keep `current` when fewer tokens were counted in all */
    bool balance_first;     /* EEP_EPLB_EEP: with slots enough for every expert on two nodes, do not
                               keep two replicas of each where that costs balance; with fewer, do not
                               look for plans that leave fewer experts on one node */
};

enum eep_eplb_verdict {
    EEP_EPLB_FRESH,     /* there was no current map */
    EEP_EPLB_MOVED,     /* the new map is better by at least min_gain */
    EEP_EPLB_REPAIRED,  /* experts had no live slot, were on one node without need or twice in a
                           seat; balanced as well */
    EEP_EPLB_NO_LOAD,   /* nothing was counted: current kept */
    EEP_EPLB_FEW,       /* less than min_total was counted: current kept */
    EEP_EPLB_BALANCED,  /* current is at the lower bound already */
    EEP_EPLB_NO_GAIN,   /* the best plan found gains less than min_gain: current kept */
    EEP_EPLB_NO_BUDGET, /* no copy is allowed: current kept */
};

/** How good a map is. */
struct eep_eplb_balance {
    double balancedness; /* mean / largest load of the live seats */
    double max_load;     /* of a seat, in the unit of the loads */
    double mean_load;
};

struct eep_eplb_result {
    enum eep_eplb_verdict verdict;
    struct eep_eplb_balance before; /* of `current`; zeros when there was none */
    struct eep_eplb_balance after;
    double lower_bound;   /* no map with even shares has a smaller largest seat load */
    uint32_t copies;      /* from `current`; all replicas when there was none */
    uint32_t lost;        /* experts that had no live slot: their copies come first */
    uint32_t doubled;     /* slots that repeat an expert of their seat (only EEP_EPLB_DEEPSEEK) */
    uint32_t single_node; /* experts whose slots are all on one node; 0: any one node may go */
    double best_gain;     /* part by which the largest load would fall with the best plan found,
                             also when it was not taken */
    uint32_t best_copies; /* what that plan would copy */
    uint32_t turn;        /* eep_eplb_plan_layers(): 1 for the layer to move first, by the load that
                             its copies take from the fullest seat; 0: nothing moves */
};

/** A balancer for one shape: its working memory. Not thread-safe; one per thread. */
struct eep_eplb;

/** Slots of a seat in the map: the largest number that any seat has. */
static inline uint32_t eep_eplb_slots_per_seat(const struct eep_eplb_shape *shape)
{
    return (shape->slots + shape->seats - 1) / shape->seats;
}

/** Entries of a map: seats * slots per seat. */
static inline uint32_t eep_eplb_map_slots(const struct eep_eplb_shape *shape)
{
    return shape->seats * eep_eplb_slots_per_seat(shape);
}

/** Slots that a seat really has; the rest of its entries in the map are EEP_NO_EXPERT. */
static inline uint32_t eep_eplb_seat_slots(const struct eep_eplb_shape *shape, uint32_t seat)
{
    return shape->slots / shape->seats + (seat < shape->slots % shape->seats);
}

static inline uint32_t eep_eplb_node_of(const struct eep_eplb_shape *shape, uint32_t seat)
{
    return (uint32_t)((((uint64_t)seat + 1) * shape->nodes - 1) / shape->seats);
}

/**
 * Make a balancer; the only place that allocates.
 *
 * @param shape     copied
 * @param eplb_out  destroy it with eep_eplb_destroy(); set only on EEP_OK
 *
 * @retval EEP_ERR_INVALID  a count is 0 or too large, or there are fewer slots than experts; the
 * text has the numbers
 */
EEP_MUST_CHECK enum eep_status eep_eplb_create(const struct eep_eplb_shape *shape,
                                               struct eep_eplb **eplb_out);

/** The shape that a balancer was made for. */
const struct eep_eplb_shape *eep_eplb_shape(const struct eep_eplb *eplb);

/** NULL is allowed. */
void eep_eplb_destroy(struct eep_eplb *eplb);

/**
 * Plan one layer.
 *
 * @param map_out     (map slots) the expert in each slot or EEP_NO_EXPERT; may not overlap
 * `current`
 * @param count_out   (experts) replicas of each expert in live slots
 *
 * @retval EEP_ERR_INVALID  a load is no number, negative or too large; `current` names an expert
 *                          that does not exist; the live slots cannot hold all experts; the counts
 *                          do not fit EEP_EPLB_DEEPSEEK. The text names the value and what would
 *                          fit. The outputs are undefined then.
 */
EEP_MUST_CHECK enum eep_status eep_eplb_plan(struct eep_eplb *eplb, const struct eep_eplb_ask *ask,
                                             int32_t *map_out, uint32_t *count_out,
                                             struct eep_eplb_result *result_out);

/**
 * Plan several layers with one budget for all: the layers whose copies gain most come first, and
 * experts without a live slot before all others.
 *
 * @param ask               as in eep_eplb_plan(), with loads (layers, experts) and current (layers,
 *                          map slots); max_copies holds for each layer
 * @param max_copies_total  for all layers together; UINT64_MAX: no limit
 * @param maps_out          (layers, map slots)
 * @param counts_out        (layers, experts)
 * @param results_out       (layers)
 *
 * @retval EEP_ERR_INVALID  as eep_eplb_plan(), the text names the layer
 */
EEP_MUST_CHECK enum eep_status eep_eplb_plan_layers(struct eep_eplb *eplb,
                                                    const struct eep_eplb_ask *ask, uint32_t layers,
                                                    uint64_t max_copies_total, int32_t *maps_out,
                                                    uint32_t *counts_out,
                                                    struct eep_eplb_result *results_out);

/**
 * The balance of any map, failed seats left out.
 *
 * @param seat_loads_out  (seats) or NULL
 */
void eep_eplb_measure(const struct eep_eplb_shape *shape, const double *loads, const bool *failed,
                      const int32_t *map, const uint32_t *counts, double *seat_loads_out,
                      struct eep_eplb_balance *balance_out);

/** Replicas of each expert in the live slots of a map. */
void eep_eplb_count(const struct eep_eplb_shape *shape, const bool *failed, const int32_t *map,
                    uint32_t *count_out);

/** Pairs (seat, expert) of `map` on live seats that `current` has not; NULL: all pairs. */
uint32_t eep_eplb_copies(const struct eep_eplb_shape *shape, const bool *failed,
                         const int32_t *current, const int32_t *map);

/** What a verdict means, in words. */
const char *eep_eplb_verdict_text(enum eep_eplb_verdict verdict);

#endif
