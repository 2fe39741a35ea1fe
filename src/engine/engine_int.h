/*
 * The engine's state, shared by the files of src/engine.
 *
 *     engine.c    creating, loading, leaving        requests.c  the table and its events
 *     members.c   who executes which seat           posts.c     requests that come while it serves
 *     survive.c   going on after a loss, and in a new world
 *     park.c      life of a process that is no rank   joiners.c   rank 0 and such processes
 *     state.c     what a process that joins is given  notes.h     what they tell each other
 *     agree.c     one status for all ranks          batch.c     which rows this rank's step takes
 *     memory.c    reckoning before taking           step.c      the forward pass, sampling
 *     threads.c   cores per rank (hwloc, OpenMP)    facts.c     what is reported
 *     cache.c     weights in the node's cache       recover.c   nodes brought to one version
 *     own.c       seats in this process's memory
 *     mover.h     experts that move while it serves: mover.c, recorder.c, plan.c, chunk.c, fill.c,
 *                 move.c, follow.c
 *     backup.h    experts in the memory of nodes that do not execute them: backup.c, backup_plan.c
 *
 * Every rank holds the whole request table with all tokens; only the owner of a request holds its
 * KV cache, its logits and its score. Owners tell the others by the events of each step's
 * all-gather, so that any rank could go on with any request from its tokens.
 */
#ifndef EEP_ENGINE_INT_H
#define EEP_ENGINE_INT_H

#include <eep/engine.h>

#include "base/status.h"
#include "ckpt/ckpt.h"
#include "engine/look.h"
#include "layout/layout.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/sampler.h"
#include "moe/block.h"
#include "text/tokenizer.h"
#include "wcache/wcache.h"
#include "xport/xport.h"

struct eep_backup;
struct eep_mover;
struct eep_members;
struct eep_park;
struct eep_joiners;

#define EEP_SPARE_DEFAULT UINT32_MAX /* spare frames as memory allows */
#define EEP_LOGIT_ROWS 64u           /* rows that go through the LM head at a time */

enum eep_request_state {
    EEP_REQUEST_WAITING, /* not begun by its owner */
    EEP_REQUEST_RUNNING, /* the owner computes it; on other ranks it stays WAITING */
    EEP_REQUEST_DONE,
    EEP_REQUEST_FAILED,
};

/* What an owner tells the others; fixed width, since it travels. */
enum eep_wire_kind {
    EEP_WIRE_TOKEN,
    EEP_WIRE_LAST_TOKEN,    /* and the request is done */
    EEP_WIRE_SCORED,        /* value = the bits of the double */
    EEP_WIRE_FAILED_ROUTER, /* value = layer */
    EEP_WIRE_FAILED_LOGITS,
    EEP_WIRE_REPLAYED,
};

struct eep_wire_event {
    uint32_t request;
    uint32_t kind;
    uint64_t value;
};

struct eep_request_entry {
    /* The same on every rank. */
    uint32_t owner;         /* rank that runs it */
    uint32_t settled_owner; /* before the recovery that is under way */
    enum eep_request_state state;
    struct eep_sampling sampling;
    uint32_t prompt_count;
    uint32_t max_tokens;
    bool ignore_eos, keep_logits, score;
    uint64_t tag;
    bool replays; /* ended, but its logits were lost with their rank and are computed again */
    enum eep_request_state ended_as; /* then its state again */
    struct eep_wire_event ended;     /* how it ended */
    uint64_t ended_at;               /* and as which one of all, from 1; 0: not yet */
    uint32_t *tokens;     /* (prompt_count + max_tokens): prompt, then what was generated */
    uint32_t token_count; /* of them known */
    /* Only the owner's. */
    uint32_t computed; /* tokens whose K and V are stored */
    uint32_t *blocks;  /* KV blocks, block_count of them while RUNNING */
    uint32_t block_count;
    float *logits;   /* (max_tokens, vocab) when kept */
    double nll;      /* of the scored tokens so far */
    double nll_next; /* with the step that is not over */
};

enum eep_wire_flag {
    EEP_WIRE_INPUT_ENDS = 1, /* rank 0: no more requests will come */
    EEP_WIRE_STOP = 2,       /* rank 0: all are to be idle */
};

struct eep_wire_step {
    int32_t status; /* of this rank; not EEP_OK: all leave the step loop */
    uint32_t event_count;
    uint32_t prompt_rows; /* rows of the step that were not a generated token's */
    uint32_t generation_rows;
    uint32_t move;           /* of a node's first rank: enum eep_move_vote */
    uint32_t asked;          /* enum eep_move_ask */
    uint64_t record_version; /* of a node's first rank: what its cache's record is at */
    uint32_t posted_bytes;   /* rank 0: of requests that are broadcast next */
    uint32_t flags;          /* enum eep_wire_flag */
    uint64_t passed_ns;      /* rank 0, while members change: since its last step */
    uint32_t done_serial;    /* what this rank has completed for that; 0: nothing */
    int32_t done_status;
    uint32_t backup_serial; /* round of the backup that this rank has ended */
    uint32_t backup_failed; /* experts that did not arrive whole in it */
    /* followed by event_count events, max_sequences reserved */
};

_Static_assert(sizeof(struct eep_wire_event) == 16, "travels between ranks");
_Static_assert(sizeof(struct eep_wire_step) == 64, "travels between ranks");

/* Members that were spawned, the newest EEP_MEMBERS_MAX of them: what the transport calls their
 * processes. Those that were started with the job have one number for both. */
struct eep_spawned_list {
    uint64_t count; /* over all time; the n-th at n % EEP_MEMBERS_MAX */
    struct {
        uint32_t id, origin;
    } items[EEP_MEMBERS_MAX];
};

_Static_assert(sizeof(struct eep_spawned_list) == 8 + 8 * EEP_MEMBERS_MAX, "travels");

/* Requests on their way to all ranks, packed. */
struct eep_posts {
    unsigned char *data;
    size_t bytes, capacity;
};

/* What this process may use; `places` is equal for processes that may use the same. */
struct eep_cores {
    uint32_t count; /* 0: the number of threads was chosen */
    uint64_t places;
};

struct eep_engine {
    /* Parameters, defaults filled in. */
    char *model_dir, *layout_path;
    uint32_t redundant, max_batch_tokens, max_sequences, threads;
    uint64_t kv_tokens; /* 0 until it is known */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
    enum eep_cache_mode cache_mode;
    char *cache_dir; /* NULL: the default */
    bool own_shape;  /* the caller said how many slots there are */
    bool pretended;  /* nodes are pretended */
    uint32_t spare_frames;
    uint64_t attach_timeout_ns;
    struct eep_rebalance_params rebalance;
    enum eep_loss_mode on_loss;
    uint32_t ep_size;     /* 0: all that were started */
    uint32_t max_ep_size; /* likewise */
    enum eep_backup_mode backup_mode;

    /* From eep_engine_create(). */
    struct eep_xport *xport;
    uint32_t processes;      /* that were started with the job */
    uint32_t *start_node_of; /* (processes): nodes are named as at the start; NULL: spawned later */
    struct eep_cores cores;
    uint32_t start_nodes;
    uint32_t self;      /* the member that this process is; EEP_NO_MEMBER: it is not told yet */
    uint32_t home_node; /* as at the start */
    bool one_machine;   /* all processes are on one */
    const struct eep_kernels *kernels;
    struct eep_ckpt *ckpt;
    uint8_t checkpoint_digest[32]; /* of the checkpoint; data are not read */
    struct eep_model_config config;
    struct eep_layout *layout;
    uint32_t *executors; /* (seats): rank that computes each seat's slots; NULL without experts */
    struct eep_tokenizer *tokenizer; /* NULL until first used */
    enum eep_status broken;          /* a failure after which no collective call works */
    bool apart;                      /* it was not agreed on: the ranks are not in step any more */

    /* From eep_engine_load(). */
    bool loaded;
    struct eep_wcache *cache;     /* NULL: weights are in this process's own memory */
    struct eep_wcache_view *view; /* the version that is routed with */
    bool cache_filled;            /* this process filled a part of the cache */
    uint64_t cache_ns, map_ns;    /* of the start: opening it and loading, mapping its pages */
    uint64_t frame_bytes;         /* content of a frame of the cache */
    struct eep_mover *mover;      /* NULL without a cache */
    struct eep_backup *backup;    /* NULL without one */
    struct eep_members *members;  /* NULL: a loss ends the engine */
    struct eep_joiners *joiners;  /* NULL: no process is parked, and none can be */
    struct eep_park *park;        /* of this process while it is no rank; else NULL */
    struct eep_experts **own;     /* (own_seats): without a cache; NULL where not held */
    uint32_t own_seats;
    uint64_t engine_id; /* of the cache's users */
    struct eep_route *route;
    struct eep_experts *experts;
    struct eep_model *model;
    struct eep_kv *kv;
    struct eep_forward *forward;
    struct eep_moe_block *block; /* NULL when no layer is MoE */
    float *logits;               /* (EEP_LOGIT_ROWS, logits_stride) */
    size_t logits_stride;
    struct eep_sampler_entry *sampler_work; /* (vocab) */

    /* Requests. */
    struct eep_request_entry *requests;
    size_t request_count, request_capacity;
    size_t unfinished;           /* the same on every rank */
    uint64_t ends;               /* requests that have ended so far; likewise */
    size_t next_own;             /* requests before it are not waiting on this rank */
    uint32_t *owned;             /* (ranks): unfinished requests of each */
    bool open;                   /* more requests may come; the same on every rank */
    bool stopped;                /* all are to be idle; likewise */
    bool left;                   /* this rank has left the others, as asked */
    uint32_t flags;              /* enum eep_wire_flag that this rank has to tell */
    struct eep_posts posts;      /* rank 0: not taken yet */
    struct eep_posts posts_last; /* of the last step */
    struct eep_posts posts_next; /* of the step that is not over */

    /* This rank's running requests and the rows of its current step. */
    uint32_t *running; /* (max_sequences) request numbers, in order of admission */
    uint32_t running_count;
    uint32_t *row_tokens, *row_positions; /* (max_batch_tokens) */
    uint32_t *row_seq;                    /* (max_batch_tokens): index into seqs */
    struct eep_attention_seq *seqs;       /* (max_sequences) */
    uint32_t *seq_request;                /* (max_sequences) */
    int32_t *seq_failed;                  /* (max_sequences): layer of a failed row, or -1 */
    struct eep_batch batch;
    uint32_t prompt_rows, generation_rows;

    /* Events: of this step on their way out, and those that the caller has not read yet. */
    unsigned char *wire_out, *wire_in; /* one, (ranks) of wire_bytes; wire_in: of the last step */
    unsigned char *wire_next;          /* (ranks): of the step that is not over */
    uint32_t wire_ranks;               /* of wire_in and wire_next */
    uint64_t position;                 /* steps that this rank has applied to its table */
    uint64_t epoch;                    /* recoveries that it has completed */
    size_t wire_bytes;
    struct eep_event *events;
    size_t event_first, event_count, event_capacity;

    uint32_t ask; /* enum eep_move_ask: goes out with the next step */

    /* Counters. */
    uint64_t prompt_tokens, generated_tokens, prompt_ns, generation_ns, generation_step_tokens;
    uint64_t steps, load_ns;
    struct eep_rank_memory *memory; /* (ranks) */
    struct eep_loss_facts loss;
};

/* engine.c: where this rank's experts come from. */
struct eep_experts_source eep_engine_source(const struct eep_engine *engine);
EEP_MUST_CHECK enum eep_status eep_engine_create_block(struct eep_engine *engine);

/* agree.c */
EEP_MUST_CHECK enum eep_status eep_agree(struct eep_xport *xport, const char *what,
                                         enum eep_status status);

/* cache.c: the weight cache, when there is one. Collective. */
/** Attach or create, and take over the layout of its record; e->cache stays NULL without one. */
EEP_MUST_CHECK enum eep_status eep_cache_open(struct eep_engine *engine);
/** Give the seats that this rank executes now, and those of its node, to e->experts again, after a
 *  loss. Collective. */
EEP_MUST_CHECK enum eep_status eep_cache_reload(struct eep_engine *engine);
/** Fill what is missing, pin a version, set e->model and e->experts. Gives the cache up, and
 *  leaves e->cache NULL, when there is no room and it is not required. */
EEP_MUST_CHECK enum eep_status eep_cache_load(struct eep_engine *engine);
/** Local. After the model and the experts are destroyed. */
void eep_cache_close(struct eep_engine *engine);
/** This process is to join: open the cache of its node, or make one, and fill what is missing of
 *  the seats that are marked in `mine`; e->layout is that of the ranks. `in_use`: ranks of the node
 *  use it, so that it is as it must be. Local. */
EEP_MUST_CHECK enum eep_status eep_cache_join(struct eep_engine *engine, const bool *mine,
                                              bool in_use);

/* own.c: seats without a cache. Local. */
/** From the checkpoint, unless it is there. */
EEP_MUST_CHECK enum eep_status eep_own_load_seat(struct eep_engine *engine, uint32_t seat);
/** Those that this rank executes, loaded where they are not; sets e->experts. */
EEP_MUST_CHECK enum eep_status eep_own_attach(struct eep_engine *engine);
/** Give up those that it does not. */
void eep_own_trim(struct eep_engine *engine);
void eep_own_free(struct eep_engine *engine);

/* facts.c */
/** Memory facts of as many ranks as there are now. Local. */
EEP_MUST_CHECK enum eep_status eep_facts_resize(struct eep_engine *engine);

/* engine.c: parts of loading, for a process that joins. Local. */
EEP_MUST_CHECK enum eep_status eep_engine_take_buffers(struct eep_engine *engine);
/** The same number where program, checkpoint and parameters are alike. */
uint64_t eep_engine_likeness(const struct eep_engine *engine);
EEP_MUST_CHECK enum eep_status eep_cache_checkpoint_digest(const struct eep_ckpt *ckpt,
                                                           uint8_t digest_out[32]);
/** What belongs to a rank, given up. The world is another matter. */
void eep_engine_release(struct eep_engine *engine);

/** Fill a frame with an expert of the checkpoint. Local. */
EEP_MUST_CHECK enum eep_status eep_cache_pack(struct eep_engine *engine,
                                              struct eep_wcache_frame frame, uint32_t layer,
                                              struct eep_expert expert);
/** The same from memory. What does not have the digest of `content` (NULL: none is known) is
 * damaged, and is read from the checkpoint. Local. */
EEP_MUST_CHECK enum eep_status eep_cache_copy(struct eep_engine *engine,
                                              struct eep_wcache_frame frame, uint32_t layer,
                                              struct eep_expert expert, const void *bytes,
                                              const struct eep_wcache_content *content,
                                              bool *damaged_out);
/** Fill a slot of a seat that is not on this node, ahead of a change of members; `slot` counts up.
 *  Local. */
EEP_MUST_CHECK enum eep_status eep_cache_fill_slot(struct eep_engine *engine, struct eep_seat seat,
                                                   uint32_t *slot, bool *done_out);

/* refill.c: open the seats that this rank executes after a loss, and fill those that its node does
 * not hold. Collective. */
EEP_MUST_CHECK enum eep_status eep_refill_lost(struct eep_engine *engine);

/* recover.c: after the cache is open. What a dead mover left is ended the same way on all nodes,
 * and all nodes hold the same map at the same version afterwards. Collective. */
EEP_MUST_CHECK enum eep_status eep_cache_recover(struct eep_engine *engine);

/** True for a seat that this rank executes. */
bool eep_engine_executes(const struct eep_engine *engine, uint32_t seat);

/* memory.c: refuse what the nodes cannot hold, before anything is taken. Collective. */
EEP_MUST_CHECK enum eep_status eep_engine_reckon(struct eep_engine *engine);

/* threads.c */
/** Find this process's cores, and set its OpenMP team; `wanted` 0 = by the cores. Collective. */
EEP_MUST_CHECK enum eep_status eep_threads_set(struct eep_engine *engine, uint32_t wanted);
/** The same cores for other ranks. Collective. */
EEP_MUST_CHECK enum eep_status eep_threads_share(struct eep_engine *engine);
/** The same number for all processes of one machine, whatever nodes are pretended. */
uint64_t eep_threads_machine(void);

/* requests.c */
/** What a rank said in the last exchange. */
const struct eep_wire_step *eep_requests_heard(const struct eep_engine *engine, uint32_t rank);
void eep_requests_free(struct eep_engine *engine);
/** Forget all requests, events and posts; before this rank's batch and KV cache are freed. */
void eep_requests_clear(struct eep_engine *engine);
/** Add an entry as it is, with r->token_count tokens. Local. */
EEP_MUST_CHECK enum eep_status eep_requests_append(struct eep_engine *engine,
                                                   const struct eep_request_entry *r,
                                                   const uint32_t *tokens);
/** Events of what happened before this rank came; `ends` requests have ended. Local. */
EEP_MUST_CHECK enum eep_status eep_requests_tell_past(struct eep_engine *engine, uint64_t ends);
/** Nothing has begun: requests to the ranks that there are now. Local. */
EEP_MUST_CHECK enum eep_status eep_requests_share_out(struct eep_engine *engine);
/** Positions that all requests of one rank need at once at most; the largest over the ranks. */
uint64_t eep_requests_kv_tokens(const struct eep_engine *engine);
/** Put an event of an own request on the wire; at most one per running request and step. */
void eep_requests_tell(struct eep_engine *engine, struct eep_wire_event event);
/** The step in wire_next and posts_next, of so many ranks, has happened: apply it. Local; failures
 *  are those of memory. */
EEP_MUST_CHECK enum eep_status eep_requests_take(struct eep_engine *engine, uint32_t ranks);
/** The owners of now are those that the next eep_requests_reassign() goes by. Local. */
void eep_requests_settle(struct eep_engine *engine);
/** Ranks were lost: `now_of` is the new rank of each one of the last eep_requests_settle(), or
 *  EEP_NO_RANK. The same on every rank. Local. */
EEP_MUST_CHECK enum eep_status eep_requests_reassign(struct eep_engine *engine,
                                                     const uint32_t *now_of);
/** Add a request to the table. Local; the same on every rank. */
EEP_MUST_CHECK enum eep_status eep_requests_add(struct eep_engine *engine,
                                                const struct eep_request *request);
EEP_MUST_CHECK enum eep_status eep_requests_check(const struct eep_engine *engine,
                                                  const struct eep_request *request);
/** What a request asks for, as one word that travels. */
enum eep_request_flag {
    EEP_IGNORES_EOS = 1,
    EEP_KEEPS_LOGITS = 2,
    EEP_SCORES = 4,
    EEP_REPLAYS = 8
};
static inline uint32_t eep_request_flags(bool ignore_eos, bool keep_logits, bool score)
{
    return (ignore_eos ? EEP_IGNORES_EOS : 0u) | (keep_logits ? EEP_KEEPS_LOGITS : 0u) |
           (score ? EEP_SCORES : 0u);
}

/** Tokens whose K and V a request's owner is to compute. */
static inline uint32_t eep_request_rows(const struct eep_request_entry *r)
{
    return r->token_count - r->replays;
}

/* posts.c */
/** Take the requests that rank 0 handed in into the table. Local. */
EEP_MUST_CHECK enum eep_status eep_posts_apply(struct eep_engine *engine,
                                               const struct eep_posts *posts);
/** Rank 0: tell all ranks of an event of the membership with the next step. `origin`: as for
 *  eep_members_told(). */
EEP_MUST_CHECK enum eep_status eep_posts_add_event(struct eep_engine *engine,
                                                   const struct eep_member_event *event,
                                                   uint32_t origin);
/** Make room for as many bytes. */
EEP_MUST_CHECK enum eep_status eep_posts_reserve(struct eep_posts *posts, size_t bytes);

/* members.c */
/** Set e->executors; e->members too when a loss can be survived. Local, the same on every rank. */
EEP_MUST_CHECK enum eep_status eep_members_create(struct eep_engine *engine);
void eep_members_free(struct eep_engine *engine);
/** The world is another one: e->executors as if those of it that are members, or join, had taken
 * over the seats. Again from the last commit when one more is lost. Local, the same on every rank.
 */
EEP_MUST_CHECK enum eep_status eep_members_try(struct eep_engine *engine);
/** In what is tried: no living node holds the seat. */
bool eep_members_seat_is_lost(const struct eep_engine *engine, uint32_t seat);
/** All have taken over what they were given: what was tried counts. Local, the same everywhere. */
EEP_MUST_CHECK enum eep_status eep_members_commit(struct eep_engine *engine);

/** Put this rank's part into the step's message, and hear those of all. Local. */
void eep_members_tell(struct eep_engine *engine, struct eep_wire_step *head);
EEP_MUST_CHECK enum eep_status eep_members_heard(struct eep_engine *engine, uint32_t ranks);
/** A request of an administrator, the same on every rank. */
EEP_MUST_CHECK enum eep_status eep_members_asked(struct eep_engine *engine,
                                                 const struct eep_member_request *request);
/** Members that have left as asked, so far. */
uint32_t eep_members_left(const struct eep_engine *engine);
/** An event of a member that is no rank, the same on every rank. `origin`: the process of a new
 *  one. */
EEP_MUST_CHECK enum eep_status eep_members_told(struct eep_engine *engine,
                                                const struct eep_member_event *event,
                                                uint32_t origin);
/** The process that a member is, and back (EEP_NO_MEMBER: none). */
uint32_t eep_members_origin(const struct eep_engine *engine, uint32_t id);
uint32_t eep_members_of_origin(const struct eep_engine *engine, uint32_t origin);
/** Rank 0: what the operation waits for has failed. */
void eep_members_failed(struct eep_engine *engine, uint32_t serial, enum eep_status status);
struct eep_spawned_list *eep_members_spawned(struct eep_engine *engine);
/** This rank is to leave after the next step: when that is over, all others have seen the one that
 *  told them so. */
bool eep_members_leaving(const struct eep_engine *engine);
/** A new world is to be made: its processes, in the order of their ranks (EEP_MEMBERS_MAX). False:
 *  not now. The same on every rank. */
bool eep_members_switching(const struct eep_engine *engine, uint32_t *origins_out,
                           uint32_t *count_out);
/** It could not be made. */
void eep_members_not_switched(struct eep_engine *engine, enum eep_status status);
/** This process is to join: take over a rank's state. Local. */
EEP_MUST_CHECK enum eep_status eep_members_adopt(struct eep_engine *engine,
                                                 const struct eep_member_state *state);
/** What it says. */
const struct eep_member *eep_members_machine(const struct eep_engine *engine);
/** No move of experts may begin. The same on every rank. */
bool eep_members_hold(const struct eep_engine *engine);
/** What this rank has to do for a change of members, a bounded part. Local. */
void eep_members_work(struct eep_engine *engine);

/* survive.c */
/** True if the engine can go on after `status`. */
bool eep_engine_survives(const struct eep_engine *engine, enum eep_status status);
/** Go on with those that are left. Collective among them. */
EEP_MUST_CHECK enum eep_status eep_engine_survive(struct eep_engine *engine);
/** Go on in a world of these processes, in the order of its ranks; this one may be parked
 *  afterwards. When it cannot be made, in the one of before. Collective. */
EEP_MUST_CHECK enum eep_status eep_engine_switch(struct eep_engine *engine, const uint32_t *origins,
                                                 uint32_t count);
/** The same on a process that is no rank and has loaded.
 *  @param joined_out  false, on a failure: it is as before */
EEP_MUST_CHECK enum eep_status eep_engine_arrive(struct eep_engine *engine, const uint32_t *origins,
                                                 uint32_t count, bool *joined_out);

/* park.c */
/** At the start: the processes beyond ep_size are parked. Collective among all. */
EEP_MUST_CHECK enum eep_status eep_park_rest(struct eep_engine *engine);
/** This process is no rank, or none any more: give all up. Local. */
EEP_MUST_CHECK enum eep_status eep_park(struct eep_engine *engine);
void eep_park_free(struct eep_engine *engine);

/* joiners.c: rank 0 and the processes that are no ranks. Local. */
EEP_MUST_CHECK enum eep_status eep_joiners_create(struct eep_engine *engine);
void eep_joiners_free(struct eep_engine *engine);
/** Pass on what such a member is to do. */
void eep_joiners_ask(struct eep_engine *engine, const struct eep_member_action *action);
/** Those of the new world's processes that are to join: come. */
void eep_joiners_call(struct eep_engine *engine, const uint32_t *origins, uint32_t count);
/** Between two steps: what they have answered goes out with the next one. */
EEP_MUST_CHECK enum eep_status eep_joiners_hear(struct eep_engine *engine);

/* state.c */
/** What goes with the tables, for a rank that joins. */
struct eep_handed {
    uint32_t *was; /* (ranks): rank that each one of now had in the tables; EEP_NO_RANK: it joins */
    uint32_t ranks_before; /* in the tables */
    struct eep_rebalance_status moves;
};
/** Rank `from` gives what it knows; this rank takes it over if it `takes`. Collective. */
EEP_MUST_CHECK enum eep_status eep_state_share(struct eep_engine *engine, uint32_t from,
                                               struct eep_handed *handed, bool takes);

/** Exchange the events of the step and apply them: the table is the same everywhere afterwards.
 *  What the others said about moves is in e->wire_in. */
EEP_MUST_CHECK enum eep_status eep_requests_exchange(struct eep_engine *engine);

/* batch.c */
EEP_MUST_CHECK enum eep_status eep_batch_create(struct eep_engine *engine);
/** Tables of as many ranks as there are now. */
EEP_MUST_CHECK enum eep_status eep_batch_resize(struct eep_engine *engine);
/** The rows of the step are computed: count them. */
void eep_batch_commit(struct eep_engine *engine);
/** Forget the step's rows and what they led to: it is made again. */
void eep_batch_discard(struct eep_engine *engine);
void eep_batch_free(struct eep_engine *engine);
/** Admit waiting requests and choose the rows of the next step. */
EEP_MUST_CHECK enum eep_status eep_batch_build(struct eep_engine *engine);
/** Give a finished request's blocks back and take it off the running list. */
void eep_batch_retire(struct eep_engine *engine, uint32_t request);

#endif
