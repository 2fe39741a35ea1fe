/*
 * Moving experts while the engine serves. All ranks run the same machine on the same inputs, which
 * travel with each step's all-gather; between two steps it does a bounded part of the work.
 *
 *     idle ─trigger─► planning ─► begin ─► filling ─all nodes filled─► prepare, commit, switch ─┐
 *       ▲               │ none     │ busy,    ▲                         │ failed: abort         │
 *       └───────────────┴──────────┘ refused  └────── next chunk ───────┴───────────────────────┘
 *
 *     recorder.c  tokens per layer and expert        fill.c    the copies that this rank makes
 *     plan.c      loads -> the wanted map             move.c    the world-wide two phases
 *     chunk.c     the wanted map -> one version's     follow.c  changing to a version: an own one,
 *                 worth of copies                               or that of another engine
 *     mover.c     triggers, the machine, its status      verify.c  proof of every slot's bytes
 *     parcel.c    an expert between two ranks        backup.h   a second machine beside this one
 *
 * Within a node the ranks tell their authority (the node's rank 0) what they filled by one-sided
 * operations on its board; the authorities alone change the records.
 */
#ifndef EEP_ENGINE_MOVER_H
#define EEP_ENGINE_MOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine_int.h"
#include "eplb/eplb.h"

/* A node's board: what its ranks have done for the chunk, and the frames that they filled. */
#define EEP_BOARD_FILLED 0u  /* chunks that ranks have filled or given up, counted over all time */
#define EEP_BOARD_FAILED 8u  /* those of them that they gave up */
#define EEP_BOARD_FRAMES 64u /* (layers, slots) frame numbers, 32 bits each */

/** What a node's authority says about the fills of its node. */
enum eep_move_vote {
    EEP_VOTE_NONE, /* some rank still fills, or nothing is under way */
    EEP_VOTE_FILLED,
    EEP_VOTE_FAILED, /* all have ended, one failed */
};

/** What a rank passes on from outside. */
enum eep_move_ask {
    EEP_ASK_NOTHING,
    EEP_ASK_REBALANCE,
    EEP_ASK_ADMIN_MOVE, /* by eep_engine_ask_rebalance() */
    EEP_ASK_ADMIN_PLAN, /* likewise, a dry run */
};

enum eep_move_phase {
    EEP_MOVE_IDLE,
    EEP_MOVE_PLANNING,
    EEP_MOVE_BEGINNING, /* a plan is there; the next chunk is to begin */
    EEP_MOVE_FILLING,
};

/** One expert that goes to one slot. The same list on every rank. */
struct eep_copy {
    uint32_t layer;
    uint32_t slot;
    uint32_t expert;
    uint32_t to;          /* rank that executes the slot and fills the frame */
    uint32_t from;        /* rank that sends it, or EEP_NO_RANK: the node of `to` has it */
    uint32_t source_slot; /* slot of the current map that holds it, on the node of `from` or `to` */
};

/** Experts of one version. */
struct eep_chunk {
    uint32_t *layers; /* (MoE layers) those that change, ascending; layer_count of them */
    uint32_t layer_count;
    struct eep_copy *copies; /* (layers * slots) */
    uint32_t copy_count;
    int32_t *map; /* (layers, slots) of the whole model after this chunk */
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    bool in_place;
};

/* What each rank says in a round of the two phases; fixed width, since it travels. */
struct eep_move_word {
    int32_t status;
    uint32_t reserved;
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    char text[208];
};

_Static_assert(sizeof(struct eep_move_word) == 256, "travels between ranks");

struct eep_fill; /* what this rank copies for a chunk */

struct eep_mover {
    struct eep_rebalance_params params; /* defaults filled in */
    enum eep_move_phase phase;
    bool dry_run;   /* the rebalance that is planned */
    bool off;       /* stopped for good */
    bool is_mover;  /* the nodes' locks are this engine's */
    bool asked;     /* by eep_engine_rebalance(), not begun yet */
    bool asked_dry; /* likewise */
    bool finish;    /* it was asked for: made to its end also without requests */

    /* recorder.c: two halves of the window, the older one complete. */
    uint32_t *counts, *counts_before; /* (layers, experts) of this rank's tokens */
    uint32_t *counts_all;             /* (ranks, layers, experts) */
    double *loads;                    /* (layers, experts) of all ranks */
    uint64_t half_steps;              /* steps in `counts` */
    uint64_t since_steps;             /* steps since the last trigger */

    /* plan.c */
    struct eep_eplb *eplb;
    int32_t *target;                 /* (layers, slots) */
    int32_t *layer_map;              /* (slots) */
    uint32_t *layer_counts;          /* (experts) */
    double *shuffled;                /* (experts) */
    struct eep_eplb_result *results; /* (layers) */
    uint32_t planned;                /* layers that are planned */
    uint32_t *order;                 /* (layers) those with copies, the best first */
    uint32_t order_count;
    uint32_t moved_layers; /* of `order`, done */
    uint64_t begin_ns;

    /* chunk.c, fill.c, move.c */
    struct eep_chunk chunk;
    uint32_t *seat_copies;  /* (seats) of the chunk that is built */
    uint32_t *experts_left; /* (experts) slots that a layer's expert has while it is built */
    uint32_t *chain;        /* (slots) copies that must be made together */
    uint32_t cache_spare;   /* spare frames of a seat of this cache */
    struct eep_fill *fill;
    bool voted;                  /* this rank has told its node that its copies have ended */
    struct eep_move_word *words; /* (ranks) of the last round */
    struct eep_board *board;
    uint64_t votes_before; /* of the board, when the chunk began */
    uint64_t failed_before;

    /* follow.c */
    struct eep_layout *next_layout; /* for chunk.map, made while filling; NULL: not made */
    struct eep_route *next_route;

    /* Per node: its authority's rank. */
    uint32_t *authority; /* (nodes) */

    struct eep_rebalance_status status;
};

/* mover.c */
EEP_MUST_CHECK enum eep_status eep_mover_create(struct eep_engine *engine);
/** Local, before the cache is closed; a move that is pending stays behind and is harmless. */
void eep_mover_destroy(struct eep_engine *engine);
/** Give up what is under way, in order. Collective; for an engine that leaves. */
void eep_mover_stop(struct eep_engine *engine);
/** Put this rank's part into the step's message. */
void eep_mover_tell(struct eep_engine *engine, struct eep_wire_step *head);
/** The part of the work that fits between two steps. Collective. */
EEP_MUST_CHECK enum eep_status eep_mover_between_steps(struct eep_engine *engine, uint64_t step_ns);
/** A chunk has begun and is not published: steps go on until it is. */
bool eep_mover_is_busy(const struct eep_engine *engine);
/** Record an outcome: into the status, and rank 0 into the log. */
void eep_mover_say(struct eep_engine *engine, enum eep_rebalance_state state, const char *fmt, ...)
    EEP_PRINTF(3, 4);
/** Stop for good. */
void eep_mover_off(struct eep_engine *engine, const char *fmt, ...) EEP_PRINTF(2, 3);

/* recorder.c */
void eep_recorder_count(struct eep_engine *engine, uint32_t layer,
                        const struct eep_moe_choice *choice, uint32_t rows);
/** A step is over. True when a half of the window is complete. */
bool eep_recorder_step(struct eep_engine *engine);
/** Sum over the ranks into mover->loads. Collective. */
EEP_MUST_CHECK enum eep_status eep_recorder_gather(struct eep_engine *engine);
void eep_recorder_reset(struct eep_engine *engine);
/** Largest / mean load of a seat by mover->loads, on average over the layers; 1 without loads. */
double eep_recorder_imbalance(const struct eep_engine *engine);

/* plan.c */
EEP_MUST_CHECK enum eep_status eep_plan_create(struct eep_engine *engine);
void eep_plan_free(struct eep_mover *mover);
void eep_plan_begin(struct eep_engine *engine);
/** Plan some more layers; `done_out`: all are, and mover->order says what moves. */
EEP_MUST_CHECK enum eep_status eep_plan_some(struct eep_engine *engine, bool *done_out);

/* chunk.c */
/** The next copies of the plan, at most `spare` into each seat; 0: in place. False: none is left.
 */
bool eep_chunk_next(struct eep_engine *engine, uint32_t spare);

/* parcel.c */

/** An expert on its way between two ranks, with its digest. */
struct eep_parcel {
    struct eep_wcache_content content; /* what the sender says; zeros: it does not know */
    struct eep_transfer *transfer, *digest_transfer;
    size_t done; /* bytes that came or went */
};

#define EEP_PARCELS_MAX (1u << 19) /* numbers that are told apart */

/** Sender: what is known of the expert's bytes. Before eep_parcel_begin(). Local. */
void eep_parcel_describe(const struct eep_engine *engine, struct eep_parcel *parcel, uint32_t layer,
                         struct eep_expert expert);
/** Send or receive frame_bytes; both sides name the same number. The parcel stays where it is until
 *  eep_parcel_is_over(), and for ever after a loss. */
EEP_MUST_CHECK enum eep_status eep_parcel_begin(struct eep_engine *engine,
                                                struct eep_parcel *parcel, uint32_t peer,
                                                uint32_t number, bool sends, void *bytes);
/** Move it on and look. Local. */
EEP_MUST_CHECK enum eep_status eep_parcel_test(struct eep_engine *engine,
                                               struct eep_parcel *parcel);
static inline bool eep_parcel_is_over(const struct eep_parcel *parcel)
{
    return parcel->transfer == NULL && parcel->digest_transfer == NULL;
}
/** What the sender said, or NULL. */
static inline const struct eep_wcache_content *eep_parcel_content(const struct eep_parcel *parcel)
{
    return parcel->content.low != 0 || parcel->content.high != 0 ? &parcel->content : NULL;
}

/* fill.c */
EEP_MUST_CHECK enum eep_status eep_fill_begin(struct eep_engine *engine,
                                              struct eep_fill **fill_out);
/** Go on for about `budget_ns`. Local. True when all ended, well or not. Errors of the transport
 *  end the engine. */
EEP_MUST_CHECK enum eep_status eep_fill_some(struct eep_engine *engine, struct eep_fill *fill,
                                             uint64_t budget_ns, bool *done_out);
/** EEP_OK, or why a copy failed; its text is recorded. */
enum eep_status eep_fill_outcome(const struct eep_fill *fill);
/** In place: write what was staged into the slots' frames. Local. */
EEP_MUST_CHECK enum eep_status eep_fill_overwrite(struct eep_engine *engine, struct eep_fill *fill);
/** In place: write back what the current map says where something was overwritten. Local. */
EEP_MUST_CHECK enum eep_status eep_fill_undo(struct eep_engine *engine, struct eep_fill *fill);
/** Put the frames' numbers on the node's board. */
EEP_MUST_CHECK enum eep_status eep_fill_publish(struct eep_engine *engine, struct eep_fill *fill);
/** Do not wait for frames any more. */
void eep_fill_hurry(struct eep_fill *fill);
void eep_fill_end(struct eep_fill *fill);

/* move.c */
/** Make this engine the mover of all nodes; `ok_out` false: another is. Collective. */
EEP_MUST_CHECK enum eep_status eep_move_lock(struct eep_engine *engine, bool *ok_out);
/** Begin mover->chunk on all nodes. Collective. */
EEP_MUST_CHECK enum eep_status eep_move_begin(struct eep_engine *engine);
/** Fill; when all nodes have, publish. Collective. */
EEP_MUST_CHECK enum eep_status eep_move_fill(struct eep_engine *engine, uint64_t budget_ns);
/** Roll back what is under way. Collective. */
EEP_MUST_CHECK enum eep_status eep_move_stop(struct eep_engine *engine);
/** What this rank's node says now: enum eep_move_vote. */
uint32_t eep_move_vote(struct eep_engine *engine);
EEP_MUST_CHECK enum eep_status eep_move_board_open(struct eep_engine *engine);
/** A round: everybody's word; the first failure is returned, with its text, on all. Errors of the
 *  transport are told apart by eep_status_lost() >= EEP_LOST_PEER. Collective. */
EEP_MUST_CHECK enum eep_status eep_move_round(struct eep_engine *engine, const char *what,
                                              struct eep_move_word *word,
                                              struct eep_move_word *all_out);

/* follow.c */
/** Change to the version that all nodes' records are at, if all can pin it; else go on with the
 *  old one and try again later. Collective. */
EEP_MUST_CHECK enum eep_status eep_follow(struct eep_engine *engine, bool *changed_out);
/** Make the tables of mover->chunk.map ahead of the change, and throw them away. */
EEP_MUST_CHECK enum eep_status eep_follow_prepare(struct eep_engine *engine);
void eep_follow_forget(struct eep_engine *engine);

/* verify.c */
/** Compare all slots of this rank's seats with the checkpoint. Local. */
EEP_MUST_CHECK enum eep_status eep_verify_slots(struct eep_engine *engine);

#endif
