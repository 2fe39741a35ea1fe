/*
 * What the program around an engine sees of it beyond the public API, and may wish: for the admin
 * endpoint of rank 0. All of it is local: no other rank has to call the same.
 */
#ifndef EEP_ENGINE_LOOK_H
#define EEP_ENGINE_LOOK_H

#include <eep/engine.h>

#include "layout/layout.h"
#include "member/member.h"

struct eep_engine_look {
    uint64_t requests, unfinished;
    uint64_t steps, prompt_tokens, generated_tokens; /* of all ranks */
    bool can_rebalance;              /* there is a weight cache, and there are experts */
    bool rebalance_pending;          /* asked for, planned or under way */
    const struct eep_layout *layout; /* that is routed with; until the next step */
};

/** Facts without those of other ranks: memory is NULL. Also of a parked process. */
EEP_MUST_CHECK enum eep_status eep_engine_own_facts(const struct eep_engine *engine,
                                                    struct eep_engine_facts *facts_out);

/** Processes that were started, and seats of the layout. */
uint32_t eep_engine_processes(const struct eep_engine *engine);
uint32_t eep_engine_seats(const struct eep_engine *engine);

void eep_engine_look(const struct eep_engine *engine, struct eep_engine_look *look_out);

/**
 * As eep_engine_rebalance(), but called by one rank alone: the others hear of it in the next step.
 * Only if look.can_rebalance. It has ended when rebalance_pending is false after a step;
 * eep_engine_rebalance_status() tells how.
 */
void eep_engine_ask_rebalance(struct eep_engine *engine, bool dry_run);

/**
 * Rank 0: ask for a change of the membership. The answer, and later that of its end, come by
 * eep_engine_next_answer(). Only when eep_engine_member_state() is not NULL.
 *
 * @retval EEP_ERR_AGAIN  many requests wait to be taken already: after the next step
 */
EEP_MUST_CHECK enum eep_status eep_engine_ask_members(struct eep_engine *engine,
                                                      const struct eep_member_request *request);

/** Answers of the coordinator, which is rank 0; false: there is none. */
bool eep_engine_next_answer(struct eep_engine *engine, struct eep_member_action *answer_out);

/** Who is in the job; until the next step. NULL: a loss ends this engine. */
const struct eep_member_state *eep_engine_member_state(const struct eep_engine *engine);

/** (ranks): member that each rank is. */
const uint32_t *eep_engine_member_ids(const struct eep_engine *engine);

/** Rank that computes each seat's slots: (layout->seats). */
const uint32_t *eep_engine_executors(const struct eep_engine *engine);

/** What losses cost; times of the last one. */
struct eep_loss_facts {
    uint64_t losses, ranks_lost;
    uint64_t noticed_ns;    /* since the lost rank's last sign of life, at most */
    uint64_t agreed_ns;     /* then until those that are left knew who they are */
    uint64_t reseated_ns;   /* then until all seats were executed again */
    uint64_t first_step_ns; /* from noticing to the end of the first step; 0: not yet */
    uint64_t from_node, from_other_node, from_backup, from_checkpoint; /* experts filled again */
    uint64_t filled_bytes, filled_ns; /* of all ranks, and how long that took */
    uint64_t since_ns;                /* when it was noticed, by eep_clock_ns() */
    uint64_t switches;                /* new worlds on purpose */
    uint64_t switch_ns;               /* how long steps stood still for the last one */
};

const struct eep_loss_facts *eep_engine_losses(const struct eep_engine *engine);

/** The backup: experts in the memory of nodes that do not execute them. */
struct eep_backup_facts {
    bool enabled;       /* the rest is 0 without */
    bool whole;         /* every expert that needs one for the present layout has one */
    uint64_t experts;   /* of a layer, that are held */
    uint64_t bytes;     /* of all ranks */
    uint64_t missing;   /* experts that find no room, or could not be copied */
    uint64_t failures;  /* copies that did not arrive whole */
    const uint64_t *on; /* (layers, experts): nodes (bits, as members have them) that hold one;
                           until the next step */
};

void eep_engine_backup(const struct eep_engine *engine, struct eep_backup_facts *facts_out);

#endif
