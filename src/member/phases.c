/*
 * The phases of an operation. Each is one wait: who is asked to act, until when, and what follows
 * when all have. A loss sends the operation back to its first phase, with the members that are
 * left; what they loaded already they report at once.
 */
#include <string.h>

#include "member/member_int.h"

static bool is_phase(const struct eep_member_state *s, enum eep_operation_phase phase)
{
    return s->operation.phase == phase;
}

static void begin_phase(struct eep_member *m, enum eep_operation_phase phase, uint64_t limit_ns)
{
    eep_set_phase(m, phase);
    eep_wait_begin(m, &m->state.operation_wait, limit_ns, m->state.operation.deadline_ns);
}

static void ask(struct eep_member *m, enum eep_member_action_kind kind, uint32_t member,
                uint32_t by)
{
    struct eep_member_action *action = eep_emit(m, kind, member, by);

    action->serial = m->state.operation_wait.serial;
    action->deadline_ns = m->state.operation_wait.deadline_ns;
}

void eep_phase_forget_seats(struct eep_member_state *s)
{
    for (uint32_t i = 0; i < s->seats_max; i++) {
        s->seats[i].next = EEP_NO_MEMBER;
        if (s->seats[i].state == EEP_SEAT_LEAVING) {
            s->seats[i].state = EEP_SEAT_ACTIVE;
        }
    }
}

void eep_phase_hold(struct eep_member *m)
{
    begin_phase(m, EEP_PHASE_PLANNED, m->params.operation_ns);
}

/* ---- who is waited for ---- */

bool eep_phase_expects(const struct eep_member_state *s, const struct eep_member_record *r)
{
    const bool has_reported = r->done_serial == s->operation_wait.serial;

    switch (s->operation.phase) {
    case EEP_PHASE_STARTING:
        return s->operation.grows != 0
                   ? r->life == EEP_LIFE_JOINING && (r->flags & EEP_MEMBER_APPEARED) == 0
                   : r->life == EEP_LIFE_DRAINING && !has_reported;
    case EEP_PHASE_LOADING:
        return (r->flags & EEP_MEMBER_LOADS) != 0 && !has_reported;
    case EEP_PHASE_READY:
        return eep_member_in_epoch(r) && !has_reported;
    default:
        return false;
    }
}

static bool is_complete(const struct eep_member_state *s)
{
    if (s->operation.phase < EEP_PHASE_STARTING || s->operation.phase > EEP_PHASE_READY ||
        (is_phase(s, EEP_PHASE_STARTING) && s->operation.spawning > 0)) {
        return false;
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (eep_phase_expects(s, &s->members[i])) {
            return false;
        }
    }
    return true;
}

/* ---- starting ---- */

static uint32_t joining(const struct eep_member_state *s)
{
    uint32_t count = s->operation.spawning;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        count += s->members[i].life == EEP_LIFE_JOINING;
    }
    return count;
}

/* After a loss: who was asked to wake or spawn the joiners may have died before it did. */
static void ask_again(struct eep_member *m)
{
    struct eep_member_state *s = &m->state;
    const struct eep_member_record *spawner = eep_member_find(s, s->operation.spawner);

    if (spawner == NULL || !eep_member_in_epoch(spawner)) {
        s->operation.spawning = 0; /* those that appear yet are parked */
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &s->members[i];

        if (r->life == EEP_LIFE_JOINING && (r->flags & EEP_MEMBER_APPEARED) == 0) {
            ask(m, EEP_DO_ACTIVATE, r->id, eep_lowest_of_epoch(s));
        }
    }
}

/* Wake as many as are missing, then spawn. False: nobody is there that could join. */
static bool start_joiners(struct eep_member *m)
{
    struct eep_member_state *s = &m->state;
    struct eep_operation *op = &s->operation;

    ask_again(m);
    const uint32_t there = eep_member_size(s) + joining(s);
    uint32_t missing = op->target > there ? op->target - there : 0;
    bool joins[EEP_MEMBERS_MAX];

    missing -= eep_plan_joiners(s, missing, joins);
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (joins[i]) {
            eep_set_life(m, &s->members[i], EEP_LIFE_JOINING);
            ask(m, EEP_DO_ACTIVATE, s->members[i].id, eep_lowest_of_epoch(s));
        }
    }
    if (missing > 0 && m->params.can_spawn) {
        op->spawning += missing;
        op->spawner = eep_lowest_of_epoch(s);
        ask(m, EEP_DO_SPAWN, EEP_NO_MEMBER, eep_lowest_of_epoch(s));
        m->out->items[m->out->count - 1].count = missing;
    }
    return joining(s) > 0;
}

/* Choose again: after a loss others, fewer, or none may have to leave. */
static bool start_leavers(struct eep_member *m)
{
    struct eep_member_state *s = &m->state;
    bool leaves[EEP_MEMBERS_MAX];
    const uint32_t size = eep_member_size(s);
    const uint32_t count = size > s->operation.target || s->operation.kind == EEP_OPERATION_DRAIN
                               ? eep_plan_leavers(s, &s->operation, leaves)
                               : 0;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        struct eep_member_record *r = &s->members[i];
        const bool goes = count > 0 && count < size && leaves[i];

        if (goes) {
            eep_set_life(m, r, EEP_LIFE_DRAINING);
            ask(m, EEP_DO_DRAIN, r->id, r->id);
        } else if (r->life == EEP_LIFE_DRAINING) {
            eep_set_life(m, r, EEP_LIFE_ACTIVE);
            eep_emit(m, EEP_DO_UNDRAIN, r->id, r->id);
        }
    }
    return count > 0 && count < size;
}

static void advance(struct eep_member *m);

void eep_phase_start(struct eep_member *m)
{
    begin_phase(m, EEP_PHASE_STARTING, m->params.start_ns);
    if (m->state.operation.grows != 0 ? start_joiners(m) : start_leavers(m)) {
        advance(m);
        return;
    }
    /* Nobody has to join or can leave: it is as asked, or those who could make it so are gone. */
    const uint32_t size = eep_member_size(&m->state), target = m->state.operation.target;
    bool leaves[EEP_MEMBERS_MAX];
    const bool is_as_asked =
        m->state.operation.grows != 0
            ? size >= target
            : size <= target && eep_plan_leavers(&m->state, &m->state.operation, leaves) == 0;

    if (is_as_asked) {
        eep_operation_end(m, EEP_PHASE_DONE, size == target ? EEP_REASON_NONE : EEP_REASON_SHORT,
                          EEP_OK);
    } else {
        eep_operation_roll_back(
            m, m->state.operation.grows != 0 ? EEP_REASON_NO_JOINERS : EEP_REASON_TOO_SMALL,
            EEP_ERR_PEER_LOST);
    }
}

/* ---- loading, ready, switching ---- */

/* Where a member executes a seat after the switch that its node does not hold, it loads. */
static void mark_loads(struct eep_member_state *s)
{
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        s->members[i].flags &= ~EEP_MEMBER_LOADS;
        if (s->members[i].life == EEP_LIFE_JOINING) {
            s->members[i].flags |= EEP_MEMBER_LOADS; /* dense weights at least */
        }
    }
    for (uint32_t i = 0; i < s->seats_max; i++) {
        struct eep_member_record *r = eep_record_find(s, s->seats[i].next);

        if (r != NULL && (s->seats[i].held_on & eep_node_bit(r->node)) == 0) {
            r->flags |= EEP_MEMBER_LOADS;
        }
    }
}

static void take_plan(struct eep_member_state *s, const struct eep_plan *plan)
{
    for (uint32_t i = 0; i < s->seats_max; i++) {
        s->seats[i].next = plan->next[i];
        if (plan->next[i] == EEP_NO_MEMBER && s->seats[i].state == EEP_SEAT_ACTIVE) {
            s->seats[i].state = EEP_SEAT_LEAVING;
        }
    }
}

static void load(struct eep_member *m)
{
    struct eep_member_state *s = &m->state;
    bool takes[EEP_MEMBERS_MAX];
    struct eep_plan plan;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        takes[i] = s->members[i].life == EEP_LIFE_ACTIVE || s->members[i].life == EEP_LIFE_JOINING;
    }
    eep_plan_candidates(s, takes, &plan);
    eep_plan_seats(m, s->operation.grows != 0, &plan);
    if (!plan.fits) {
        eep_operation_roll_back(m, EEP_REASON_NO_ROOM, EEP_ERR_NOMEM);
        return;
    }
    begin_phase(m, EEP_PHASE_LOADING, m->params.load_ns);
    take_plan(s, &plan);
    mark_loads(s);
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (eep_phase_expects(s, &s->members[i])) {
            ask(m, EEP_DO_LOAD, s->members[i].id, s->members[i].id);
        }
    }
}

static void advance(struct eep_member *m)
{
    while (is_complete(&m->state)) {
        switch (m->state.operation.phase) {
        case EEP_PHASE_STARTING:
            load(m);
            break;
        case EEP_PHASE_LOADING:
            begin_phase(m, EEP_PHASE_READY, m->params.switch_ns);
            ask(m, EEP_DO_PREPARE, EEP_NO_MEMBER, EEP_NO_MEMBER);
            break;
        default:
            begin_phase(m, EEP_PHASE_SWITCHING, m->params.switch_ns);
            ask(m, EEP_DO_SWITCH, EEP_NO_MEMBER, EEP_NO_MEMBER);
            m->out->items[m->out->count - 1].epoch = m->state.epoch + 1;
            break;
        }
    }
}

/* ---- events ---- */

static void newcomer(struct eep_member *m, const struct eep_member_event *event)
{
    struct eep_member_state *s = &m->state;
    struct eep_operation *op = &s->operation;
    const bool is_awaited =
        eep_operation_runs(s) && op->spawning > 0 && event->serial >= op->first_serial;
    struct eep_member_record *r =
        event->node < EEP_NODES_MAX ? eep_record_new(m, event->node) : NULL;

    if (r == NULL) {
        eep_emit(m, EEP_DO_EXIT, EEP_NO_MEMBER, eep_lowest_of_epoch(s));
        if (is_awaited) {
            eep_operation_roll_back(m, EEP_REASON_FAILED, EEP_ERR_NOMEM);
        }
        return;
    }
    r->flags = event->serial != 0 ? EEP_MEMBER_SPAWNED : 0;
    if (is_awaited) {
        op->spawning--;
        r->flags |= EEP_MEMBER_APPEARED;
        eep_set_life(m, r, EEP_LIFE_JOINING);
    } else {
        eep_set_life(m, r, EEP_LIFE_PARKED); /* too late for its operation: the next can use it */
        eep_emit(m, EEP_DO_PARK, r->id, r->id);
    }
}

/* Nobody waits for it any more, and whoever was to tell it so may have died first. */
static void send_back(struct eep_member *m, uint32_t id, struct eep_member_record *r)
{
    if (r == NULL || r->life == EEP_LIFE_LEFT) {
        eep_emit(m, EEP_DO_EXIT, id, id);
    } else if (r->life == EEP_LIFE_PARKED) {
        r->flags &= ~EEP_MEMBER_MISSED;
        eep_emit(m, EEP_DO_PARK, id, id);
    }
}

void eep_phase_appeared(struct eep_member *m, const struct eep_member_event *event)
{
    struct eep_member_state *s = &m->state;
    struct eep_member_record *r = eep_record_find(s, event->member);

    if (event->member == EEP_NO_MEMBER) {
        newcomer(m, event);
    } else if (r == NULL || r->life != EEP_LIFE_JOINING) {
        send_back(m, event->member, r);
    } else if (event->serial >= s->operation.first_serial) {
        r->flags = (r->flags & ~EEP_MEMBER_MISSED) | EEP_MEMBER_APPEARED;
    }
    advance(m);
}

void eep_phase_done(struct eep_member *m, const struct eep_member_event *event)
{
    struct eep_member_state *s = &m->state;
    struct eep_member_record *r = eep_record_find(s, event->member);

    if (!eep_operation_runs(s) || event->serial != s->operation_wait.serial || r == NULL ||
        !(eep_member_in_epoch(r) || r->life == EEP_LIFE_JOINING)) {
        return;
    }
    if (event->status != EEP_OK) {
        eep_operation_roll_back(m, EEP_REASON_FAILED, (enum eep_status)event->status);
        return;
    }
    r->done_serial = event->serial;
    advance(m);
}

void eep_phase_gone(struct eep_member *m, const struct eep_member_event *event)
{
    struct eep_member_record *r = eep_record_find(&m->state, event->member);

    if (r == NULL || (r->life != EEP_LIFE_PARKED && r->life != EEP_LIFE_JOINING)) {
        return;
    }
    const bool was_joining = r->life == EEP_LIFE_JOINING;

    eep_set_life(m, r, EEP_LIFE_DEAD);
    if (was_joining) {
        eep_operation_roll_back(m, EEP_REASON_JOINER_LOST, EEP_ERR_PEER_LOST);
    }
}

void eep_phase_passed(struct eep_member *m)
{
    const struct eep_member_state *s = &m->state;

    if (eep_operation_runs(s) &&
        (s->now_ns >= s->operation_wait.deadline_ns || s->now_ns >= s->operation.deadline_ns)) {
        eep_operation_roll_back(m, EEP_REASON_TIMEOUT, EEP_ERR_TIMEOUT);
    }
}
