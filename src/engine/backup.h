/*
 * Backup: every expert in the memory of a node that does not execute it, so that the loss of a node
 * needs no disk. Made while serving, between the steps; experts with replicas on two nodes need
 * none.
 *
 *     planning ─► round ─all ranks have said that it is over─► next round ... ─► resting
 *        ▲                  │ something failed                                     │
 *        └──────────────────┴──────────── another layout, other ranks ─────────────┘
 *
 *     backup.c       what this rank holds, rounds, what is said    backup_plan.c  who holds what
 *     refill.c       uses it after the loss of a node
 *
 * An expert is held by the rank that would execute it if its node were lost, so that no byte
 * travels then; but by each rank no more than an even share. The rest goes to the nodes that follow
 * that of the expert, as there is room.
 *
 * It lies in memory of that rank's own, not in the weight cache: there is no second file format
 * with states that a crash may leave. The price: with the rank its part is gone, and is made again
 * from the frames, which are still there.
 *
 * All ranks come to the same plan, and a round is a part of it that all begin and end together: so
 * who gives up a plan, as the layout changes, owes nobody a transfer. While a round is under way no
 * layout changes, since its frames are being read.
 */
#ifndef EEP_ENGINE_BACKUP_H
#define EEP_ENGINE_BACKUP_H

#include "engine/mover.h"

struct eep_backup_job {
    uint32_t layer, expert;
    uint32_t slot; /* that it comes from */
    uint32_t from, to;
    uint32_t state; /* enum job_state of backup.c */
};

/* What each rank says before a plan. */
struct eep_backup_word {
    uint64_t machine;
    uint64_t available; /* memory that the machine could give, by this rank's look */
    uint64_t own;       /* of it for this rank's KV cache, at most */
};

struct eep_backup_flight; /* an expert between two ranks */

struct eep_backup {
    uint64_t stride; /* bytes from one expert to the next */
    size_t pairs;    /* (MoE layer, expert) = layer * experts + expert */
    size_t words;    /* of 64 pairs */

    /* This rank's part: a place for each pair, which takes memory only while it is held. */
    unsigned char *store;
    int file;
    struct eep_wcache_content *contents; /* (pairs) */
    uint64_t *held;                      /* (words) */

    /* The same on every rank, but for `held`. */
    uint32_t *holder;    /* (pairs): rank that holds it, or EEP_NO_RANK */
    uint64_t *on;        /* (pairs): its node as a bit, by the nodes of members */
    uint64_t version;    /* of the layout that was planned for */
    bool planned, again; /* for these ranks; a part of it failed and is to be tried again */
    uint32_t tries;
    struct eep_backup_job *jobs; /* (pairs): what is to be made, job_count of them */
    size_t job_count, next;      /* those before `next` are made */
    uint32_t serial;             /* of the last round */
    uint32_t missing;            /* experts that find no room */
    uint64_t failures;
    bool warned; /* of those */

    /* Of the present ranks. */
    uint32_t ranks;
    uint64_t *held_all;            /* (ranks, words) */
    struct eep_backup_word *rooms; /* (ranks) */
    uint32_t *used, *room;         /* (ranks): experts held or to be held, and how many may be */
    uint32_t fair;                 /* an even share of a rank */
    uint32_t *heirs; /* (nodes, seats): rank that executes each seat without the node */
    uint32_t *node;  /* (ranks): node of each, as members know it */

    /* The round that is under way. */
    bool copying;
    uint32_t per_rank;                 /* experts to or from one rank in a round, at most */
    uint32_t *load;                    /* (2, ranks): experts to and from each rank */
    struct eep_backup_flight *flights; /* (2 * per_rank) */
    uint32_t flight_count, in_flight;
    /* (per_rank), stride apart: where they arrive. Not in `store`: what is on its way when a rank
     * is lost may come later still. */
    unsigned char *arrived;
    uint32_t done_serial, done_failed; /* what this rank tells */
};

/** For the ranks that there are now. Failing is a warning. Collective. */
EEP_MUST_CHECK enum eep_status eep_backup_begin_world(struct eep_engine *engine);
/** These ranks are no more; what is held stays. Local. */
void eep_backup_end_world(struct eep_engine *engine);
/** End what is under way, in order. Collective. */
EEP_MUST_CHECK enum eep_status eep_backup_stop(struct eep_engine *engine);
/** Local. */
void eep_backup_destroy(struct eep_engine *engine);

/** Put this rank's part into the step's message. */
void eep_backup_tell(const struct eep_engine *engine, struct eep_wire_step *head);
/** Go on with the round that is under way, for about `budget_ns`. Local, but for when it ends. */
EEP_MUST_CHECK enum eep_status eep_backup_go_on(struct eep_engine *engine, uint64_t budget_ns);
/** Begin the next round, if there is something to be made. Collective. */
EEP_MUST_CHECK enum eep_status eep_backup_begin(struct eep_engine *engine);
/** A round is under way: the layout must stay. The same on every rank. */
bool eep_backup_is_copying(const struct eep_engine *engine);

/** An expert that this rank holds, with the digest that its bytes should have; NULL: it does not.
 */
const void *eep_backup_find(const struct eep_engine *engine, uint32_t layer,
                            struct eep_expert expert, struct eep_wcache_content *content_out);
/** 64-bit words of a set of experts: bit layer * experts + expert. */
static inline size_t eep_backup_words(const struct eep_layout *layout)
{
    return ((size_t)layout->layers * layout->experts + 63) / 64;
}

/* backup_plan.c */
/** Who holds what; what is to be made; and drop what is not needed here any more. Collective. */
EEP_MUST_CHECK enum eep_status eep_backup_plan(struct eep_engine *engine);
/** Local. */
void eep_backup_drop(struct eep_backup *backup, size_t pair);

static inline bool eep_backup_has(const uint64_t *set, size_t pair)
{
    return (set[pair / 64] >> (pair % 64) & 1) != 0;
}

#endif
