/*
 * Membership: who is in the job, who executes which seat, and how both change. A state machine
 * without I/O: it decides and never does. Callers feed events and get back actions.
 *
 *                      ┌────────────── seen dead, fenced, revoked ──────────────┐
 *     serving ──► (this process: shrinking) ──agreed──► reseating ──all done──► serving
 *
 *     operation: planned ► starting ► loading ► ready ► switching ──agreed──► done
 *                    └─────────┴─────────┴────────┴─────────┴── any failure ──► rolled back
 *
 * Two kinds of events. **Local** ones (EEP_SEEN_*, EEP_FENCED, EEP_REVOKED, EEP_SHRINK_FAILED,
 * EEP_TICK) are what one process sees; they change only what is local: suspicion and shrinking.
 * **Agreed** ones (all others) are the same on every member and come in the same order everywhere,
 * since they travel in the messages of steps; they alone change `struct eep_member_state`, which
 * therefore has the same bytes on all members at the same `position`. A member that is behind the
 * others at a recovery, and a joiner, adopt the state of one that is ahead.
 *
 *     member.c      life of the machine, events, time     plan.c        who joins, who leaves
 *     recover.c     suspicion, a new epoch, reseating     seats.c       who executes what
 *     operation.c   requests, answers, history, ends      experts.c     sources, survival
 *     phases.c      an operation's phases                 invariants.c  what must hold
 *
 * No clock, lock or input and output inside, no allocation but in eep_member_create(). A machine
 * belongs to one thread at a time. doc/membership.md has the words, the waits and the deadlines.
 */
#ifndef EEP_MEMBER_H
#define EEP_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layout/layout.h"

#define EEP_MEMBERS_MAX 256u /* known at a time; ids go on without end */
#define EEP_SEATS_MAX 256u
#define EEP_NODES_MAX 64u /* a set of nodes is one word */
#define EEP_NO_MEMBER UINT32_MAX
#define EEP_OPERATION_ID_BYTES 40u /* with its end: a UUID fits */
#define EEP_OPERATION_HISTORY 16u  /* ended operations whose answers are still known */

/** What is known of a member. Values travel. */
enum eep_life {
    EEP_LIFE_NONE,     /* no such member */
    EEP_LIFE_JOINING,  /* an operation lets it in; not in the epoch yet */
    EEP_LIFE_ACTIVE,   /* in the epoch */
    EEP_LIFE_DRAINING, /* in the epoch, an operation lets it leave */
    EEP_LIFE_PARKED,   /* alive, outside, may be activated */
    EEP_LIFE_DEAD,
    EEP_LIFE_LEFT,   /* ended as asked */
    EEP_LIFE_SILENT, /* local, never in the state: in the epoch, but not heard by this process */
};

/** State of a seat. Values travel. */
enum eep_seat_state {
    EEP_SEAT_RESERVED, /* holds nothing, executed by nobody */
    EEP_SEAT_ACTIVE,
    EEP_SEAT_LEAVING, /* given up at the next switch: each of its experts is in another seat */
    EEP_SEAT_LOST,    /* has an executor that still fills its frames */
};

enum eep_member_mode {
    EEP_MODE_SERVING,
    EEP_MODE_RESEATING, /* a new epoch: members take over seats; no forward pass meanwhile */
};

enum eep_operation_kind {
    EEP_OPERATION_NONE,
    EEP_OPERATION_SCALE,
    EEP_OPERATION_DRAIN,
    EEP_OPERATION_ABORT, /* only in requests: names the operation to abort */
};

enum eep_operation_phase {
    EEP_PHASE_NONE,
    EEP_PHASE_PLANNED,   /* accepted; waits for the end of a recovery */
    EEP_PHASE_STARTING,  /* joiners are woken or spawned; leavers hand over their requests */
    EEP_PHASE_LOADING,   /* members load what they will execute and their node has not */
    EEP_PHASE_READY,     /* all come to a point where no move of experts is under way */
    EEP_PHASE_SWITCHING, /* the new communicator is made and agreed on */
    EEP_PHASE_DONE,
    EEP_PHASE_ROLLED_BACK,
};

/** Why an operation ended as it did, or was refused. */
enum eep_operation_reason {
    EEP_REASON_NONE,
    EEP_REASON_ABORTED,
    EEP_REASON_TIMEOUT,      /* of the operation or of a phase */
    EEP_REASON_FAILED,       /* a member reported a failure: status has it */
    EEP_REASON_JOINER_LOST,  /* a joiner died */
    EEP_REASON_SHORT,        /* done, but smaller than asked: members were lost on the way */
    EEP_REASON_NO_JOINERS,   /* refused: not enough parked ones, and none can be spawned */
    EEP_REASON_TOO_LARGE,    /* refused: beyond max_size */
    EEP_REASON_TOO_SMALL,    /* refused: nobody would be left */
    EEP_REASON_NO_ROOM,      /* refused: the rest cannot hold all seats in memory */
    EEP_REASON_NOT_A_MEMBER, /* refused: a member to drain is not active */
    EEP_REASON_UNKNOWN,      /* refused: no operation of that id to abort */
    EEP_REASON_BUSY,         /* another operation runs */
    EEP_REASON_TOO_LATE,     /* an abort while it switches: it ends by itself */
    EEP_REASON_BAD_REQUEST,  /* no id, an unknown kind, an empty list */
};

/** What to do when a member was lost. */
enum eep_on_loss {
    EEP_ON_LOSS_CONTINUE, /* go on smaller */
    EEP_ON_LOSS_RESPAWN,  /* then scale to the size that was last reached on purpose */
};

/** Who waits, for what, how long. Every state that waits has one. */
struct eep_member_wait {
    uint32_t serial; /* of this wait; reports that name another are old. 0: nothing is waited for */
    uint32_t owner;  /* the lowest member that is still to act */
    uint64_t deadline_ns; /* in agreed time */
};

/** A member. Ids are given in order and never again. */
struct eep_member_record {
    uint32_t id;
    uint32_t life; /* enum eep_life; EEP_LIFE_NONE: the record is free */
    uint32_t node;
    uint32_t done_serial; /* the last wait that it completed */
    uint32_t flags;       /* EEP_MEMBER_* */
    uint32_t since;       /* audit record of its last change; of those that are dead or left, the
                             oldest record is used again */
};

#define EEP_MEMBER_APPEARED 1u /* a joiner that is there */
#define EEP_MEMBER_LOADS 2u    /* is to load something before the switch */
#define EEP_MEMBER_NAMED 4u    /* was named in a request to drain */
#define EEP_MEMBER_SPAWNED 8u  /* ends when it leaves, since nobody started it as a parked one */
#define EEP_MEMBER_MISSED 16u  /* was woken and did not come: woken again after all others */

struct eep_seat_record {
    uint32_t state;    /* enum eep_seat_state */
    uint32_t executor; /* EEP_NO_MEMBER for a reserved seat */
    uint32_t next;     /* executor after the switch that is under way, or EEP_NO_MEMBER */
    uint32_t reserved;
    uint64_t held_on; /* nodes (bits) whose memory has the seat's frames */
};

/** An operation, running or ended. */
struct eep_operation {
    char id[EEP_OPERATION_ID_BYTES]; /* padded with zeros */
    uint32_t kind;                   /* enum eep_operation_kind */
    uint32_t phase;                  /* enum eep_operation_phase */
    uint32_t reason;                 /* enum eep_operation_reason */
    int32_t status;                  /* enum eep_status; EEP_OK while it runs */
    uint32_t target;                 /* members asked for */
    uint32_t size_before;            /* members of the epoch when it was accepted */
    uint32_t grows;                  /* 1: members join; 0: members leave */
    uint32_t leavers_exit;           /* 1: they end; 0: they park */
    uint32_t spawning;               /* spawned joiners that are still to appear */
    uint32_t spawner;                /* who spawns them */
    uint32_t reserved;
    uint32_t first_serial; /* its first wait: joiners answer it or a later one */
    uint64_t begin_ns;     /* in agreed time */
    uint64_t deadline_ns;
};

/**
 * What all members agree on. Plain data without gaps: it is sent whole to joiners and to members
 * that are behind, and compared by its digest. Only the machine writes it.
 */
struct eep_member_state {
    uint64_t position; /* agreed events applied since the start */
    uint64_t epoch;
    uint64_t now_ns;        /* agreed time: what EEP_PASSED events add up to */
    uint64_t audit_count;   /* audit records so far */
    uint64_t respawn_at_ns; /* when the next attempt to replace lost members may begin */
    uint32_t mode;          /* enum eep_member_mode */
    uint32_t next_id;
    uint32_t serial;      /* of the last wait */
    uint32_t wanted_size; /* members after the last change that was asked for */
    uint32_t seats_max;
    uint32_t history_count; /* ended operations, over all time; the last ones are kept */
    uint32_t reseats;       /* attempts of the recovery under way */
    uint32_t reserved;
    struct eep_member_wait reseat_wait;
    struct eep_member_wait operation_wait;
    struct eep_operation operation;                      /* phase EEP_PHASE_NONE: none runs */
    struct eep_operation history[EEP_OPERATION_HISTORY]; /* ended one n at n % the size */
    struct eep_member_record members[EEP_MEMBERS_MAX];   /* in no order */
    struct eep_seat_record seats[EEP_SEATS_MAX];         /* seats_max of them */
};

/* ---- events --------------------------------------------------------------------------------- */

enum eep_member_event_kind {
    /* Local: what this process sees. */
    EEP_SEEN_DEAD,     /* member */
    EEP_SEEN_SILENT,   /* member: no heartbeat */
    EEP_SEEN_ALIVE,    /* member: its heartbeat is back before it was fenced */
    EEP_FENCED,        /* member: it was killed since it was silent */
    EEP_REVOKED,       /* somebody revoked the epoch's communicator */
    EEP_SHRINK_FAILED, /* a shrink or the agreement after it failed: another member is lost */
    EEP_TICK,          /* nothing but the time */
    /* Agreed: the same on all members, in the same order. */
    EEP_AGREED,   /* epoch, set, set_count, position: a new communicator has these members */
    EEP_PASSED,   /* passed_ns: by the coordinator's clock since its last message; what is over
                     an hour is a broken clock and counts as one */
    EEP_REQUEST,  /* request */
    EEP_APPEARED, /* member, node, serial: a parked member woke up. Without a member: a new process,
                     spawned (serial) or parked (0); it gets the next id */
    EEP_DONE,     /* member, serial, status: it completed what the wait `serial` asked, or failed */
    EEP_GONE,     /* member: one outside the epoch (parked, joining) has died */
};

/** A request of an administrator. */
struct eep_member_request {
    enum eep_operation_kind kind;
    char id[EEP_OPERATION_ID_BYTES]; /* chosen by who asks; the same id twice is one operation */
    uint32_t target;                 /* EEP_OPERATION_SCALE: members wanted */
    const uint32_t *drain;           /* EEP_OPERATION_DRAIN: (drain_count) ids; read, not kept */
    uint32_t drain_count;
    bool dry_run;        /* answer what would be done; nothing changes, nothing is aborted */
    bool leavers_exit;   /* leavers end instead of parking */
    uint64_t timeout_ns; /* of the whole operation; 0 = default */
};

struct eep_member_event {
    enum eep_member_event_kind kind;
    uint32_t member;
    uint32_t node;
    uint32_t serial;
    int32_t status; /* enum eep_status */
    uint64_t passed_ns;
    uint64_t epoch;
    uint64_t position;   /* that all members of `set` have reached (by adopting, if need be) */
    const uint32_t *set; /* (set_count) ids, ascending; read, not kept */
    uint32_t set_count;
    struct eep_member_request request;
};

/* ---- actions -------------------------------------------------------------------------------- */

enum eep_member_action_kind {
    /* Of this process alone. */
    EEP_DO_SHRINK,  /* revoke, shrink, all-gather positions, adopt, agree; then EEP_AGREED or
                       EEP_SHRINK_FAILED, by deadline_ns of the local clock */
    EEP_DO_FENCE,   /* kill `member`; `by` does it, the others wait for the outcome */
    EEP_DO_REPORT,  /* put EEP_GONE of `member` into the next step's message */
    EEP_DO_DIE,     /* this process is out of the agreed set: end at once, touch nothing */
    EEP_DO_RESTART, /* shrinking, or reseating (then the same on all members), has failed so often
                       that the launcher should start the job again; trying goes on until it does */
    /* The same on all members; `by` acts, the others take note. */
    EEP_DO_RESEAT,   /* all: execute the seats by state->seats[].executor; fill those that are
                        EEP_SEAT_LOST; report `serial` */
    EEP_DO_SERVE,    /* all: steps go on in `epoch`. What was asked for in epochs before is over,
                        also for a member that has adopted a state and so missed the actions
                        before it: who is not draining now takes requests again */
    EEP_DO_ACTIVATE, /* by the coordinator: wake parked `member`, which answers with `serial` */
    EEP_DO_SPAWN,    /* by the coordinator: start `count` processes that appear with `serial` */
    EEP_DO_DRAIN,    /* by `member`: take no new requests, hand over those that run; report */
    EEP_DO_UNDRAIN,  /* by `member`: take requests again */
    EEP_DO_LOAD,     /* by `member`: load dense weights if it has none, and the seats whose `next`
                        it is and that its node does not hold; report `serial`. All: no move of
                        experts begins from now on, or what is loaded grows old */
    EEP_DO_PREPARE, /* all of the epoch: finish the chunk of a move under way, begin none; report */
    EEP_DO_SWITCH,  /* after this step: make the communicator of `epoch` of all that are active or
                       joining, without those draining; give joiners the state; agree: EEP_AGREED,
                       or EEP_DONE with a failure and `serial` in the old epoch. Events of the same
                       step may still lead to EEP_DO_ROLL_BACK: then it is off */
    EEP_DO_PARK,    /* by `member`: drop what it holds for this job and wait */
    EEP_DO_EXIT,    /* by `member`: end. EEP_NO_MEMBER, by the coordinator: the new process that
                       has just appeared, for which there is no room */
    EEP_DO_ROLL_BACK, /* all: forget what the operation prepared; moves of experts may go on */
    EEP_DO_ANSWER,    /* by the coordinator: tell who asked; operation, code, numbers */
};

/** The kind of an answer; the HTTP status that fits it is EEP_ANSWER_*. */
enum eep_answer {
    EEP_ANSWER_ACCEPTED = 202,
    EEP_ANSWER_ENDED = 200, /* operation.phase says how; also the answer of a dry run */
    EEP_ANSWER_REFUSED = 400,
    EEP_ANSWER_BUSY = 409,
};

struct eep_member_action {
    enum eep_member_action_kind kind;
    uint32_t member;
    uint32_t by; /* who does it; EEP_NO_MEMBER: every member */
    uint32_t serial;
    uint32_t count;
    uint64_t epoch;
    uint64_t deadline_ns; /* EEP_DO_SHRINK: local clock; else agreed time; 0: none */
    /* EEP_DO_ANSWER */
    enum eep_answer code;
    enum eep_operation_reason reason;
    uint32_t have, want; /* the numbers of a refusal; of a dry run: seats that change their
                            executor, and those of them that must be loaded */
    char operation[EEP_OPERATION_ID_BYTES];
};

/** What changed, one record each. */
enum eep_audit_what {
    EEP_AUDIT_EPOCH,     /* from and to: low 32 bits of the epochs */
    EEP_AUDIT_MODE,      /* enum eep_member_mode */
    EEP_AUDIT_MEMBER,    /* subject: its id; enum eep_life */
    EEP_AUDIT_SEAT,      /* subject: seat; executors */
    EEP_AUDIT_OPERATION, /* subject: enum eep_operation_reason; enum eep_operation_phase */
};

struct eep_member_audit {
    uint64_t sequence; /* without gaps from 0; the same record has the same one on every member */
    uint64_t now_ns;   /* agreed time */
    uint64_t epoch;
    enum eep_audit_what what;
    uint32_t subject, from, to;
    char operation[EEP_OPERATION_ID_BYTES]; /* that runs, or "" */
};

#define EEP_ACTIONS_MAX (3 * EEP_MEMBERS_MAX + 64)
#define EEP_AUDITS_MAX (2 * EEP_SEATS_MAX + 4 * EEP_MEMBERS_MAX + 64)

/** What one event led to, in order. Owned by the caller; overwritten by each step. */
struct eep_member_actions {
    uint32_t count, audit_count;
    struct eep_member_action items[EEP_ACTIONS_MAX];
    struct eep_member_audit audits[EEP_AUDITS_MAX];
};

/* ---- the machine ---------------------------------------------------------------------------- */

/** How the job begins. The same on every member. */
struct eep_member_params {
    uint32_t started;        /* members that were started, ids 0 .. started-1 */
    uint32_t active;         /* the first so many are active, the others parked */
    const uint32_t *node_of; /* (started): below EEP_NODES_MAX; read, not kept */
    uint32_t seats;          /* active ones, shared out in order */
    uint32_t seats_max;      /* with the reserved ones */
    uint32_t max_size;       /* members of an epoch; 0 = EEP_MEMBERS_MAX */
    uint32_t node_seats_max; /* seats whose frames fit into a node's memory; 0 = any number */
    bool can_spawn;
    enum eep_on_loss on_loss;
    /* Time limits; 0 = the default, which is in brackets. */
    uint64_t operation_ns; /* whole operation (600 s) */
    uint64_t start_ns;     /* joiners appear, leavers drain (60 s) */
    uint64_t load_ns;      /* (300 s) */
    uint64_t switch_ns;    /* ready, and switching (30 s each) */
    uint64_t reseat_ns;    /* then it is asked for again (60 s) */
    uint64_t shrink_ns;    /* local clock: one attempt (10 s) */
    uint64_t fence_ns;     /* local clock: then a silent member counts as dead (2 s) */
    uint64_t respawn_ns;   /* between attempts to replace lost members (60 s) */
};

struct eep_member;

/**
 * Make the machine of one member; the only place that allocates.
 *
 * @param self       this member's id: below params->started, or, for a joiner, the id that it was
 *                   given; a joiner must adopt a state before its first agreed event
 * @param member_out destroy it with eep_member_destroy(); set only on EEP_OK
 *
 * @retval EEP_ERR_INVALID  a count is 0, too large or contradicts another; the text has both
 */
EEP_MUST_CHECK enum eep_status eep_member_create(const struct eep_member_params *params,
                                                 uint32_t self, struct eep_member **member_out);

/** NULL is allowed. */
void eep_member_destroy(struct eep_member *m);

/**
 * The expert layout that is current: between two steps, on all members at the same position.
 *
 * @param layout  borrowed until the next call or destroy; NULL: unknown, no seat is given up then
 */
void eep_member_set_layout(struct eep_member *m, const struct eep_layout *layout);

/**
 * Feed one event.
 *
 * @param now_ns       this process's clock; used for what is local only
 * @param actions_out  what is to be done, and what changed; empty on failure
 *
 * @retval EEP_ERR_REVOKED  an agreed event other than EEP_AGREED while this process shrinks: its
 *                          epoch is over; drop the event
 * @retval EEP_ERR_STALE    EEP_AGREED with another position than this member's: adopt first; or
 *                          with an epoch that is not newer: drop it
 * @retval EEP_ERR_INVALID  EEP_AGREED with an empty or unsorted set, or with a member that can be
 *                          in no epoch; the text names it
 *
 * Reports on unknown members are no failure: they are ignored.
 */
EEP_MUST_CHECK enum eep_status eep_member_step(struct eep_member *m,
                                               const struct eep_member_event *event,
                                               uint64_t now_ns,
                                               struct eep_member_actions *actions_out);

/**
 * Take over the agreed state of a member that is ahead, or that lets this one in.
 *
 * @retval EEP_ERR_STALE  `state` is behind this member's own, or of an older epoch
 * @retval EEP_ERR_FORMAT it breaks an invariant, or differs from this member's own at the same
 *                        position; the text says which
 */
EEP_MUST_CHECK enum eep_status eep_member_adopt(struct eep_member *m,
                                                const struct eep_member_state *state);

/** What all agree on; valid until the next call with `m`. */
const struct eep_member_state *eep_member_state(const struct eep_member *m);

/** A digest of the agreed state: equal on all members at one position. Compared at each switch. */
uint64_t eep_member_digest(const struct eep_member *m);

/** The lowest member of the epoch. */
uint32_t eep_member_coordinator(const struct eep_member *m);

/** What this process knows of a member, EEP_LIFE_SILENT too. */
enum eep_life eep_member_life(const struct eep_member *m, uint32_t id);

/** This process knows that its epoch is over and waits for the next. */
bool eep_member_is_shrinking(const struct eep_member *m);

/** NULL, or which invariant a state breaks. eep_member_step() asserts that none is broken. */
const char *eep_member_broken(const struct eep_member_state *state);

/** What is known of a member; NULL: nothing (any more). Valid as long as the state. */
const struct eep_member_record *eep_member_find(const struct eep_member_state *state, uint32_t id);

/** It takes part in the epoch, also if it is to leave. */
static inline bool eep_member_in_epoch(const struct eep_member_record *record)
{
    return record->life == EEP_LIFE_ACTIVE || record->life == EEP_LIFE_DRAINING;
}

/** Members of the epoch. */
uint32_t eep_member_size(const struct eep_member_state *state);

/** Words for people; never NULL. A phase is named by what goes on: "draining" for a shrink. */
const char *eep_life_text(enum eep_life life);
const char *eep_phase_text(const struct eep_operation *operation);
const char *eep_reason_text(enum eep_operation_reason reason);

/* ---- seats: pure functions ------------------------------------------------------------------ */

/** Who could execute seats. */
struct eep_seat_candidate {
    uint32_t id;
    uint32_t node;
};

/**
 * Assign the active seats to a set of members with as little movement as possible.
 *
 * A seat whose executor is a candidate stays. Others go to a member of a node that holds their
 * frames, else to anybody; each time to the one with the fewest seats, then of the node with the
 * fewest, then the lowest id. With `level`, a member without a seat then takes one of a member of
 * its node that has two or more (no byte moves), else a reserved one, else one of another node; and
 * counts are levelled until they differ by one at most, within a node first.
 *
 * @param candidates  (count) ascending ids, at least one
 * @param seats       (seat_count); `executor`, `state` and `held_on` are read
 * @param next_out    (seat_count): the new executor, EEP_NO_MEMBER for what stays reserved
 */
void eep_seats_assign(const struct eep_seat_candidate *candidates, uint32_t count,
                      const struct eep_seat_record *seats, uint32_t seat_count, bool level,
                      uint32_t *next_out);

/** Every expert of the seat is also in another seat that `served` (layout->seats) marks. */
bool eep_seat_is_redundant(const struct eep_layout *layout, const bool *served, uint32_t seat);

/* ---- experts: pure functions ---------------------------------------------------------------- */

/** Where a copy of an expert can be had; the lowest is the best. */
enum eep_expert_source {
    EEP_SOURCE_REPLICA, /* a frame in the memory of a live node */
    EEP_SOURCE_BACKUP,
    EEP_SOURCE_DISK,
    EEP_SOURCE_NONE,
};

struct eep_experts_ask {
    const struct eep_layout *layout;
    const uint64_t *held_on;   /* (seats): nodes (bits) that hold the seat's frames */
    const uint64_t *backup_on; /* (layers, experts): nodes that hold a backup; NULL: none does */
    uint64_t live_nodes;       /* nodes with a live member */
    uint64_t single_nodes;     /* those of them with one: its death takes the node's memory away */
    bool disk;                 /* the checkpoint can be read */
};

/** Counts of (layer, expert) pairs. */
struct eep_experts_survey {
    uint32_t by_source[EEP_SOURCE_NONE + 1]; /* pairs whose best source this is */
    uint32_t single_source; /* frames and backup of the pair are on one node altogether */
    bool survives_rank;     /* after the death of any one member all are still in memory */
    bool survives_node;     /* after the loss of any one node */
};

/**
 * Where each expert can be had, and what the layout as it lies survives without the disk.
 *
 * @param sources_out  (layers, experts) enum eep_expert_source, or NULL
 */
void eep_experts_survey(const struct eep_experts_ask *ask, uint8_t *sources_out,
                        struct eep_experts_survey *survey_out);

#endif
