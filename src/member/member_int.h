/* Inside of the membership machine; member.h explains it. */
#ifndef EEP_MEMBER_INT_H
#define EEP_MEMBER_INT_H

#include "base/assert.h"
#include "base/mem.h"
#include "member/member.h"

/** A member that this process does not hear. */
struct eep_silence {
    uint32_t member;
    uint64_t deadline_ns; /* local clock: then it counts as dead */
};

struct eep_member {
    struct eep_member_state state;
    struct eep_member_params params; /* defaults filled in; node_of is NULL */
    uint32_t self;
    const struct eep_layout *layout; /* borrowed, or NULL */
    struct eep_member_actions *out;  /* of the step under way */

    /* Local: never in the state. */
    bool shrinking;
    uint32_t shrink_attempts; /* since the last agreement */
    uint64_t shrink_deadline_ns;
    struct eep_silence silent[EEP_MEMBERS_MAX]; /* silent_count of them */
    uint32_t silent_count;
};

/** Who would execute what; a scratch of the planner. */
struct eep_plan {
    struct eep_seat_candidate candidates[EEP_MEMBERS_MAX]; /* ascending ids */
    uint32_t count;
    uint32_t next[EEP_SEATS_MAX];
    uint32_t moved;      /* seats that change their executor */
    uint32_t loaded;     /* those of them whose new node does not hold them */
    uint32_t have, want; /* seats of a node's memory, when they do not fit */
    bool fits;
};

static inline uint64_t eep_node_bit(uint32_t node)
{
    return UINT64_C(1) << node;
}

static inline bool eep_operation_runs(const struct eep_member_state *s)
{
    return s->operation.phase != EEP_PHASE_NONE;
}

/* member.c */
struct eep_member_record *eep_record_find(struct eep_member_state *s, uint32_t id);
/** A record with the next id; NULL when all are in use. */
struct eep_member_record *eep_record_new(struct eep_member *m, uint32_t node);
uint32_t eep_lowest_of_epoch(const struct eep_member_state *s);
struct eep_member_action *eep_emit(struct eep_member *m, enum eep_member_action_kind kind,
                                   uint32_t member, uint32_t by);
void eep_audit(struct eep_member *m, enum eep_audit_what what, uint32_t subject, uint32_t from,
               uint32_t to);
void eep_set_life(struct eep_member *m, struct eep_member_record *r, enum eep_life life);
void eep_set_executor(struct eep_member *m, uint32_t seat, uint32_t executor);
void eep_set_mode(struct eep_member *m, enum eep_member_mode mode);
/** A new wait of `limit_ns`, ending at `latest_ns` at the latest; 0: no such end. */
void eep_wait_begin(struct eep_member *m, struct eep_member_wait *wait, uint64_t limit_ns,
                    uint64_t latest_ns);
/** Add, with the largest number instead of an overflow. */
uint64_t eep_later(uint64_t now_ns, uint64_t limit_ns);

/* recover.c */
void eep_recover_local(struct eep_member *m, const struct eep_member_event *event, uint64_t now_ns);
EEP_MUST_CHECK enum eep_status eep_recover_agreed(struct eep_member *m,
                                                  const struct eep_member_event *event);
/** A report on reseating. */
void eep_recover_done(struct eep_member *m, const struct eep_member_event *event);
void eep_recover_passed(struct eep_member *m);
bool eep_reseat_expects(const struct eep_member_state *s, const struct eep_member_record *r);

/* operation.c */
void eep_operation_request(struct eep_member *m, const struct eep_member_request *request);
/** With nothing else to do: replace lost members, if asked to. Only while serving. */
void eep_operation_idle(struct eep_member *m);
void eep_operation_end(struct eep_member *m, enum eep_operation_phase phase,
                       enum eep_operation_reason reason, enum eep_status status);
void eep_operation_roll_back(struct eep_member *m, enum eep_operation_reason reason,
                             enum eep_status status);
void eep_set_phase(struct eep_member *m, enum eep_operation_phase phase);

/* phases.c */
/** A loss: the operation stays where it can begin again. */
void eep_phase_hold(struct eep_member *m);
/** From the first phase, with the members that there are. Only while serving. */
void eep_phase_start(struct eep_member *m);
void eep_phase_appeared(struct eep_member *m, const struct eep_member_event *event);
void eep_phase_done(struct eep_member *m, const struct eep_member_event *event);
void eep_phase_gone(struct eep_member *m, const struct eep_member_event *event);
void eep_phase_passed(struct eep_member *m);
/** The operation waits for this member. */
bool eep_phase_expects(const struct eep_member_state *s, const struct eep_member_record *r);
/** Forget what the operation planned for seats. */
void eep_phase_forget_seats(struct eep_member_state *s);

/* plan.c: reads the state, changes nothing. Marks are by the index of the record. */
/** Members of the epoch that are to leave. */
uint32_t eep_plan_leavers(const struct eep_member_state *s, const struct eep_operation *op,
                          bool leaves[EEP_MEMBERS_MAX]);
/** Parked members to activate, `wanted` at most. */
uint32_t eep_plan_joiners(const struct eep_member_state *s, uint32_t wanted,
                          bool joins[EEP_MEMBERS_MAX]);
/** Those that are marked, ascending, as candidates of a plan. */
void eep_plan_candidates(const struct eep_member_state *s, const bool takes[EEP_MEMBERS_MAX],
                         struct eep_plan *plan);
/** Who executes what among plan->candidates. */
void eep_plan_seats(const struct eep_member *m, bool level, struct eep_plan *plan);

#endif
