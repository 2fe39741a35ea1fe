/*
 * Shared by the files of src/eplb: the state of one layer while it is planned.
 *
 *     slot p of seat p / stride:   in_slot[p] -> expert,  slot_share[p] = share[expert]
 *     expert e:                    head[e] -> p -> next[p] -> ...   its slots, as a list
 *     seat s:                      load[s] = sum of slot_share over its slots
 *     order[0 .. live_seats - 1]:  live seats by rising load, then index
 *
 * Loads are scaled by a power of two and kept as integers, so sums have no rounding and moves can
 * be undone exactly. After every change of the state the sums, lists and the order agree.
 */
#ifndef EEP_EPLB_INT_H
#define EEP_EPLB_INT_H

#include <stddef.h>

#include "eplb/eplb.h"

#define EPLB_NO_SLOT UINT32_MAX
/* Work, in units of about 1.5 ns; with a budget moves are rarer and cost more. */
#define EPLB_WORK_FRESH 80000u
#define EPLB_WORK_THRIFTY 55000u
#define EPLB_WORK_COVER 12000u
#define EPLB_SCALE_BITS 40 /* the scaled loads of a layer add up to 2^40 .. 2^41 */

struct eep_eplb {
    struct eep_eplb_shape shape;
    uint32_t stride;    /* slots per seat in maps */
    uint32_t map_slots; /* shape.seats * stride */
    uint32_t words;     /* of 64 experts */
    size_t arena_bytes;

    /* ---- the question, set once per call ---- */
    uint32_t *seat_slots; /* (seats) usable slots; 0 for a failed seat */
    uint32_t *seat_node;  /* (seats) */
    uint32_t *slot_seat;  /* (map slots) */
    int64_t *weight;      /* (experts) scaled load */
    uint64_t *had;        /* (seats, words) pairs of the current map: they cost no copy */
    uint32_t live_seats;  /* with at least one usable slot */
    uint32_t live_slots;  /* usable */
    uint32_t max_copies;  /* the budget; only inserting lost experts may pass it */
    bool spread;          /* enough slots for every expert on two nodes: keep it so */
    bool pairs_stay;      /* while single experts are covered: no expert goes from two replicas to
                             one */
    bool thrifty;         /* among moves that reach the goal, the one with the fewest copies */
    int64_t bound;        /* scaled lower bound of the largest seat load */

    /* ---- the state ---- */
    int32_t *in_slot;      /* (map slots) expert or EEP_NO_EXPERT */
    int64_t *slot_share;   /* (map slots) 0 when empty */
    uint32_t *next, *prev; /* (map slots) slots of one expert; EPLB_NO_SLOT ends the list */
    uint32_t *head;        /* (experts) */
    uint32_t *count;       /* (experts) replicas */
    uint32_t *want;        /* (experts) replicas that eplb_place() makes */
    int64_t *share;        /* (experts) weight / count */
    int64_t *share_more;   /* (experts) share with one replica more */
    int64_t *share_less;   /* (experts) share with one replica less; 0 when that is none */
    uint16_t *on_node;     /* (experts, nodes) replicas there; only with more than one node */
    uint64_t *has;         /* (seats, words) which experts a seat holds */
    int64_t *load;         /* (seats) */
    uint32_t *order;       /* (live seats) */
    uint32_t copies;       /* pairs in `has` that are not in `had` */

    /* ---- scratch ---- */
    int32_t *best;          /* (map slots) the best map so far */
    int32_t *other;         /* (map slots) */
    int32_t *kept;          /* (map slots) */
    uint64_t *keys, *spare; /* (the larger of map slots, experts) */
    uint32_t *lists[5];     /* (the larger of map slots, experts) */
    float *floats[2];       /* (the larger of map slots, experts) */
    double *seat_loads;     /* (seats) */
    uint64_t work;          /* pairs of slots that the search has looked at */
    uint64_t work_max;      /* then it ends */
    uint64_t random;        /* counter of the draws */
};

static inline bool eplb_bit(const uint64_t *set, uint32_t words, uint32_t seat, int32_t expert)
{
    return set[(size_t)seat * words + (uint32_t)expert / 64] >> ((uint32_t)expert % 64) & 1;
}

static inline bool eplb_has(const struct eep_eplb *b, uint32_t seat, int32_t expert)
{
    return eplb_bit(b->has, b->words, seat, expert);
}

static inline bool eplb_had(const struct eep_eplb *b, uint32_t seat, int32_t expert)
{
    return eplb_bit(b->had, b->words, seat, expert);
}

static inline uint32_t eplb_fullest(const struct eep_eplb *b)
{
    return b->order[b->live_seats - 1];
}

static inline int64_t eplb_max_load(const struct eep_eplb *b)
{
    return b->load[eplb_fullest(b)];
}

/* ---- state.c: changes that keep the state consistent ---- */

/** All slots empty, nothing counted. */
void eplb_clear(struct eep_eplb *b);
/** The state of a map; slots that repeat an expert of their seat become empty. */
void eplb_set_map(struct eep_eplb *b, const int32_t *map);
/** Put `expert` (or EEP_NO_EXPERT) into a slot in place of what is there; not for one that the seat
 * holds already. */
void eplb_put(struct eep_eplb *b, uint32_t slot, int32_t expert);
/** Put one more replica into an empty slot, its final share being known. */
void eplb_deal(struct eep_eplb *b, uint32_t slot, int32_t expert, int64_t share);
/** Another number of replicas: every slot of the expert has another share. */
void eplb_set_count(struct eep_eplb *b, int32_t expert, uint32_t count);
/** Exchange the contents of two slots of different seats. */
void eplb_swap(struct eep_eplb *b, uint32_t slot_a, uint32_t slot_b);
/** May `expert` be put into a seat that has it not, and its replicas not all be on one node? */
bool eplb_may_add(const struct eep_eplb *b, int32_t expert, uint32_t seat);
/** May `expert` leave a seat, another replica staying and they not all on one node? */
bool eplb_may_drop(const struct eep_eplb *b, int32_t expert, uint32_t seat);
/** May `expert` go from one seat to another, as its node rule asks? */
bool eplb_may_pass(const struct eep_eplb *b, int32_t expert, uint32_t from, uint32_t to);
/** Sort `order` after loads changed. */
void eplb_reorder(struct eep_eplb *b);

/* ---- place.c: maps from nothing, and slots for what is lost ---- */

/** Replicas of each expert into want, `least` or more: the largest share gets the next slot.
 * Returns the scaled lower bound that follows. */
int64_t eplb_choose_counts(struct eep_eplb *b, uint32_t least);
/** Put all replicas into slots, the largest first, each into the emptiest seat that may have it. */
void eplb_place(struct eep_eplb *b);
/** Give every expert without a slot one, and each a second node where slots allow and the budget
 * has copies. Returns how many had no slot. */
uint32_t eplb_repair(struct eep_eplb *b);

/* ---- move.c, improve.c: moves that lower the fullest seat ---- */

struct eplb_move {
    int64_t after; /* largest load of the seats that it changes */
    uint32_t slot; /* of the fullest seat, or the slot that changes */
    uint32_t with; /* swap: the other slot; EPLB_NO_SLOT: `slot` is overwritten by `expert` */
    int32_t expert;
    int32_t cost; /* copies that it adds, negative when it gives some back */
};

/** The best exchange of a slot of the fullest seat with another's; false if none is better than
 * best->after, which the caller sets. Once moves reach `goal`, no better one is looked for, or when
 * thrifty a cheaper one. */
bool eplb_find_swap(struct eep_eplb *b, int64_t goal, struct eplb_move *best);
/** The best change of one replica of one expert into one of another. */
bool eplb_find_replace(struct eep_eplb *b, int64_t goal, struct eplb_move *best);
void eplb_apply(struct eep_eplb *b, const struct eplb_move *move);

/** Exchange two slots, or overwrite one, if they are different, the rules allow it and the budget
 * has the copies. */
bool eplb_swap_if_allowed(struct eep_eplb *b, uint32_t slot_a, uint32_t slot_b);
bool eplb_replace_if_allowed(struct eep_eplb *b, uint32_t slot, int32_t expert);

/** The best map that the search finds from the state's map; it stops when no seat is fuller than
 * `target`. */
void eplb_improve(struct eep_eplb *b, int64_t target);

/* ---- cover.c ---- */

/** Turn replicas that balance hardly needs into second ones of experts that only one node has, as
 * many as leave no seat fuller than `limit`; `target` as for eplb_improve(). For several nodes. */
void eplb_cover(struct eep_eplb *b, int64_t target, int64_t limit);

/* ---- deepseek.c ---- */

EEP_MUST_CHECK enum eep_status eplb_deepseek(struct eep_eplb *b, const struct eep_eplb_ask *ask,
                                             int32_t *map_out);

#endif
