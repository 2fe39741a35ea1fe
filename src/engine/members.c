/*
 * Who executes which seat: the engine's side of the membership machine (src/member), which decides.
 * All ranks feed it the same events at the same positions, so it says the same on all of them.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/backup.h"
#include "engine/mover.h"
#include "member/member.h"

#define DUTIES_MAX (2 * EEP_ACTIONS_MAX)
#define ANSWERS_MAX 32u
#define WORK_NS (1 * EEP_NS_PER_MS) /* loading between two steps */

struct eep_members {
    struct eep_member *machine, *trial; /* trial: of a recovery that is not over */
    uint32_t *ids;                      /* (EEP_MEMBERS_MAX), by rank: member that each one is */
    uint32_t *trial_ids;
    uint32_t *node_of; /* (started): by member; nodes are numbered as at the start */
    uint32_t started, active, self, seats;
    enum eep_on_loss on_loss;
    bool can_spawn;
    uint32_t reseat; /* serial that reports of reseating name */

    /* What this process has to do for an operation. */
    struct eep_member_action duties[DUTIES_MAX]; /* of a trial, until it counts; duty_count */
    uint32_t duty_count;
    bool holds;                    /* no move of experts may begin */
    bool leaves;                   /* this process is to leave */
    uint32_t switch_serial;        /* a new world is to be made; 0: not now */
    uint32_t prepare_serial;       /* to be reported when none is under way; 0: not asked */
    uint32_t load_serial;          /* to be reported when the seats are there */
    uint32_t load_seat, load_slot; /* how far that is */
    uint32_t report_serial;        /* on its way to the others; 0: none */
    int32_t report_status;
    uint64_t told_ns; /* rank 0: when time was told last */
    struct eep_spawned_list spawned;
    struct eep_member_action answers[ANSWERS_MAX];
    uint32_t answer_first, answer_count; /* counted over all time */

    struct eep_member_actions actions;
};

static uint32_t seats_of(const struct eep_engine *e)
{
    return e->layout != NULL ? e->layout->seats : e->xport->topo.size;
}

/* It is told of no layout, so it gives up no seat: the weight cache's record has a slot for every
 * seat that there is, and experts in it. */
static enum eep_status create_machine(const struct eep_members *m, struct eep_member **machine_out)
{
    const struct eep_member_params params = {
        .started = m->started,
        .active = m->active,
        .node_of = m->node_of,
        .seats = m->seats,
        .seats_max = m->seats,
        .on_loss = m->on_loss,
        .can_spawn = m->can_spawn,
    };

    return eep_member_create(&params, m->self, machine_out);
}

static enum eep_status create(struct eep_engine *e, struct eep_members *m)
{
    const bool parked = e->xport->topo.rank == EEP_NO_RANK;

    m->started = e->processes;
    m->active = parked ? e->processes : e->xport->topo.size; /* parked: told by the ranks */
    m->self = e->self;
    m->can_spawn = e->one_machine;
    m->seats = seats_of(e);
    m->on_loss = e->on_loss == EEP_LOSS_RESPAWN ? EEP_ON_LOSS_RESPAWN : EEP_ON_LOSS_CONTINUE;
    EEP_TRY(eep_mem_alloc(EEP_MEMBERS_MAX, sizeof(uint32_t), "members", &m->ids));
    EEP_TRY(eep_mem_alloc(EEP_MEMBERS_MAX, sizeof(uint32_t), "members", &m->trial_ids));
    EEP_TRY(eep_mem_alloc(m->started, sizeof(uint32_t), "nodes of members", &m->node_of));
    for (uint32_t r = 0; r < m->started; r++) {
        m->ids[r] = r;
        m->node_of[r] = e->start_node_of != NULL ? e->start_node_of[r] : 0; /* told by the ranks */
    }
    return create_machine(m, &m->machine);
}

static enum eep_status take_executors(struct eep_engine *e)
{
    const uint32_t ranks = EEP_MAX(e->xport->topo.size, 1u); /* parked: told later */

    if (e->layout == NULL) {
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(e->layout->seats, sizeof(uint32_t), "executors", &e->executors));
    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        e->executors[seat] = eep_layout_executor(seat, e->layout->seats, ranks);
    }
    return EEP_OK;
}

static bool fits(const struct eep_engine *e)
{
    return e->processes <= EEP_MEMBERS_MAX && e->start_nodes <= EEP_NODES_MAX &&
           seats_of(e) <= EEP_SEATS_MAX;
}

enum eep_status eep_members_create(struct eep_engine *e)
{
    EEP_TRY(take_executors(e));
    if (e->on_loss == EEP_LOSS_STOP || e->processes == 1) {
        return EEP_OK;
    }
    if (!fits(e)) {
        if (e->xport->topo.rank == 0) {
            eep_log(EEP_LOG_WARN,
                    "the loss of a rank ends the job: %u processes on %u nodes with %u seats are "
                    "more than membership handles (%u, %u, %u)",
                    e->processes, e->start_nodes, seats_of(e), EEP_MEMBERS_MAX, EEP_NODES_MAX,
                    EEP_SEATS_MAX);
        }
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(1, sizeof(*e->members), "membership", &e->members));
    EEP_TRY(create(e, e->members));
    return e->xport->ops->roster_send != NULL ? eep_joiners_create(e) : EEP_OK;
}

void eep_members_free(struct eep_engine *e)
{
    EEP_MEM_RELEASE(e->executors);
    eep_joiners_free(e);
    if (e->members != NULL) {
        eep_member_destroy(e->members->machine);
        eep_member_destroy(e->members->trial);
        eep_mem_free(e->members->ids);
        eep_mem_free(e->members->trial_ids);
        eep_mem_free(e->members->node_of);
        EEP_MEM_RELEASE(e->members);
    }
}

static uint32_t rank_of(const struct eep_engine *e, uint32_t id)
{
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        if (e->members->trial_ids[r] == id) {
            return r;
        }
    }
    EEP_ASSERT(!"a member of the epoch");
    return EEP_NO_RANK;
}

/* What the machine says now about the seats. */
static void set_executors(struct eep_engine *e)
{
    const struct eep_member_state *state = eep_member_state(e->members->trial);

    for (uint32_t seat = 0; e->layout != NULL && seat < e->layout->seats; seat++) {
        e->executors[seat] = rank_of(e, state->seats[seat].executor);
    }
}

/* ---- what is to be done ---- */

static void report(struct eep_members *m, uint32_t serial, enum eep_status status)
{
    m->report_serial = serial;
    m->report_status = (int32_t)status;
}

static void forget_duties(struct eep_members *m)
{
    m->holds = false;
    m->leaves = false;
    m->prepare_serial = 0;
    m->load_serial = 0;
    m->switch_serial = 0;
}

static void queue_answer(struct eep_members *m, const struct eep_member_action *answer)
{
    if (m->answer_count - m->answer_first == ANSWERS_MAX) {
        m->answer_first++; /* nobody asks for them */
    }
    m->answers[m->answer_count++ % ANSWERS_MAX] = *answer;
}

/* Leavers that end are lost as planned; for all else a new world is made. */
static void begin_switch(struct eep_members *m, uint32_t serial)
{
    const struct eep_operation *op = &eep_member_state(m->machine)->operation;

    if (op->grows != 0 || op->leavers_exit == 0) {
        m->switch_serial = serial;
    } else {
        m->leaves = eep_member_life(m->machine, m->self) == EEP_LIFE_DRAINING;
    }
}

static void act(struct eep_engine *e, const struct eep_member_action *action)
{
    struct eep_members *m = e->members;
    const bool mine = action->by == m->self || action->by == EEP_NO_MEMBER;
    const bool first = e->xport->topo.rank == 0; /* does what the coordinator is to do */

    switch (action->kind) {
    case EEP_DO_DRAIN: /* its requests are handed over when it is gone */
        if (mine) {
            report(m, action->serial, EEP_OK);
        }
        break;
    case EEP_DO_LOAD: /* what is loaded must stay what the layout says */
        m->holds = true;
        if (mine) {
            m->load_serial = action->serial;
            m->load_seat = m->load_slot = 0;
        } else if (first && eep_member_life(m->machine, action->member) == EEP_LIFE_JOINING) {
            eep_joiners_ask(e, action);
        }
        break;
    case EEP_DO_PREPARE:
        m->holds = true;
        m->prepare_serial = action->serial;
        break;
    case EEP_DO_SWITCH:
        begin_switch(m, action->serial);
        break;
    case EEP_DO_SERVE:
    case EEP_DO_ROLL_BACK:
        forget_duties(m);
        break;
    case EEP_DO_ACTIVATE:
    case EEP_DO_SPAWN:
    case EEP_DO_PARK:
    case EEP_DO_EXIT:
        if (first && e->joiners != NULL) {
            eep_joiners_ask(e, action);
        }
        break;
    case EEP_DO_ANSWER:
        if (first) {
            queue_answer(m, action);
        }
        break;
    default:
        break;
    }
}

/* The words for what has changed, by the one who speaks for all. */
static void say(const struct eep_engine *e, const struct eep_member_audit *audit)
{
    static const char *const kinds[] = {"epoch", "mode", "member", "seat", "operation"};

    if (e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_DEBUG, "membership: %s %u: %u -> %u, epoch %" PRIu64, kinds[audit->what],
                audit->subject, audit->from, audit->to, audit->epoch);
    }
}

static enum eep_status feed_to(struct eep_engine *e, struct eep_member *machine,
                               const struct eep_member_event *event)
{
    struct eep_members *m = e->members;

    EEP_TRY(eep_member_step(machine, event, eep_clock_ns(), &m->actions));
    for (uint32_t i = 0; i < m->actions.audit_count; i++) {
        say(e, &m->actions.audits[i]);
    }
    return EEP_OK;
}

/* An event of a step. */
static enum eep_status feed(struct eep_engine *e, const struct eep_member_event *event)
{
    struct eep_members *m = e->members;

    EEP_TRY(feed_to(e, m->machine, event));
    for (uint32_t i = 0; i < m->actions.count; i++) {
        act(e, &m->actions.items[i]);
    }
    return EEP_OK;
}

/* An event of a recovery that may not come to its end: what is to be done waits until then. */
static enum eep_status feed_trial(struct eep_engine *e, const struct eep_member_event *event)
{
    struct eep_members *m = e->members;

    EEP_TRY(feed_to(e, m->trial, event));
    for (uint32_t i = 0; i < m->actions.count; i++) {
        const struct eep_member_action *action = &m->actions.items[i];

        if (action->kind == EEP_DO_RESEAT) {
            m->reseat = action->serial;
        } else if (action->kind > EEP_DO_RESTART) {
            EEP_ASSERT(m->duty_count < DUTIES_MAX);
            m->duties[m->duty_count++] = *action;
        }
    }
    return EEP_OK;
}

/* ---- with each step ---- */

/* Something waits for time to pass. */
static bool is_changing(const struct eep_members *m)
{
    const struct eep_member_state *state = eep_member_state(m->machine);

    return state->operation.phase != EEP_PHASE_NONE ||
           (m->on_loss == EEP_ON_LOSS_RESPAWN && eep_member_size(state) < state->wanted_size);
}

void eep_members_tell(struct eep_engine *e, struct eep_wire_step *head)
{
    struct eep_members *m = e->members;

    head->passed_ns = 0;
    head->done_serial = 0;
    head->done_status = EEP_OK;
    if (m == NULL) {
        return;
    }
    head->done_serial = m->report_serial;
    head->done_status = m->report_status;
    if (e->xport->topo.rank == 0) {
        const uint64_t now_ns = eep_clock_ns();

        head->passed_ns = is_changing(m) && m->told_ns != 0 ? now_ns - m->told_ns : 0;
        m->told_ns = now_ns;
    }
}

enum eep_status eep_members_heard(struct eep_engine *e, uint32_t ranks)
{
    struct eep_members *m = e->members;

    if (m == NULL) {
        return EEP_OK;
    }
    const uint64_t passed_ns = eep_requests_heard(e, 0)->passed_ns;

    if (passed_ns > 0) {
        EEP_TRY(feed(e, &(struct eep_member_event){.kind = EEP_PASSED, .passed_ns = passed_ns}));
    }
    for (uint32_t r = 0; r < ranks; r++) {
        const struct eep_wire_step *head = eep_requests_heard(e, r);

        if (head->done_serial == 0) {
            continue;
        }
        if (m->ids[r] == m->self && m->report_serial == head->done_serial) {
            m->report_serial = 0;
        }
        EEP_TRY(feed(e, &(struct eep_member_event){.kind = EEP_DONE,
                                                   .member = m->ids[r],
                                                   .serial = head->done_serial,
                                                   .status = head->done_status}));
    }
    return EEP_OK;
}

enum eep_status eep_members_asked(struct eep_engine *e, const struct eep_member_request *request)
{
    return feed(e, &(struct eep_member_event){.kind = EEP_REQUEST, .request = *request});
}

enum eep_status eep_members_told(struct eep_engine *e, const struct eep_member_event *event,
                                 uint32_t origin)
{
    struct eep_spawned_list *spawned = &e->members->spawned;

    if (event->kind == EEP_APPEARED && event->member == EEP_NO_MEMBER) {
        const uint64_t at = spawned->count++ % EEP_MEMBERS_MAX;

        spawned->items[at].id = eep_member_state(e->members->machine)->next_id;
        spawned->items[at].origin = origin;
    }
    return feed(e, event);
}

struct eep_spawned_list *eep_members_spawned(struct eep_engine *e)
{
    return &e->members->spawned;
}

uint32_t eep_members_origin(const struct eep_engine *e, uint32_t id)
{
    const struct eep_spawned_list *spawned = &e->members->spawned;
    const uint64_t kept = EEP_MIN(spawned->count, (uint64_t)EEP_MEMBERS_MAX);

    for (uint64_t n = spawned->count - kept; n < spawned->count; n++) {
        if (spawned->items[n % EEP_MEMBERS_MAX].id == id) {
            return spawned->items[n % EEP_MEMBERS_MAX].origin;
        }
    }
    return id;
}

/* The newest one: a number of processes that came to nothing is given again. */
uint32_t eep_members_of_origin(const struct eep_engine *e, uint32_t origin)
{
    const struct eep_spawned_list *spawned = &e->members->spawned;
    const uint64_t kept = EEP_MIN(spawned->count, (uint64_t)EEP_MEMBERS_MAX);

    for (uint64_t n = spawned->count; n-- > spawned->count - kept;) {
        if (spawned->items[n % EEP_MEMBERS_MAX].origin == origin) {
            return spawned->items[n % EEP_MEMBERS_MAX].id;
        }
    }
    return origin < e->members->started ? origin : EEP_NO_MEMBER;
}

void eep_members_failed(struct eep_engine *e, uint32_t serial, enum eep_status status)
{
    report(e->members, serial, status);
}

const struct eep_member *eep_members_machine(const struct eep_engine *e)
{
    return e->members->machine;
}

uint32_t eep_members_left(const struct eep_engine *e)
{
    const struct eep_member_state *state = eep_member_state(e->members->machine);
    uint32_t left = 0;

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        left += state->members[i].life == EEP_LIFE_LEFT;
    }
    return left;
}

bool eep_members_leaving(const struct eep_engine *e)
{
    return e->members != NULL && e->members->leaves;
}

/* Ranks stay in their order, so that the first one goes on; those that join come behind them. */
bool eep_members_switching(const struct eep_engine *e, uint32_t *origins_out, uint32_t *count_out)
{
    const struct eep_members *m = e->members;
    uint32_t count = 0;

    if (m == NULL || m->switch_serial == 0) {
        return false;
    }
    for (uint32_t r = 0; r < e->xport->topo.size; r++) {
        if (eep_member_life(m->machine, m->ids[r]) != EEP_LIFE_DRAINING) {
            origins_out[count++] = e->xport->topo.origin_of[r];
        }
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &eep_member_state(m->machine)->members[i];

        if (r->life == EEP_LIFE_JOINING) {
            origins_out[count++] = eep_members_origin(e, r->id);
        }
    }
    *count_out = count;
    return true;
}

void eep_members_not_switched(struct eep_engine *e, enum eep_status status)
{
    struct eep_members *m = e->members;

    if (e->xport->topo.rank == 0) {
        report(m, m->switch_serial, status);
    }
    m->switch_serial = 0;
}

enum eep_status eep_members_adopt(struct eep_engine *e, const struct eep_member_state *state)
{
    return eep_member_adopt(e->members->machine, state);
}

bool eep_members_hold(const struct eep_engine *e)
{
    return e->members != NULL && e->members->holds;
}

/* A seat that this process executes after the switch and its node does not hold. */
static bool is_to_load(const struct eep_members *m, uint32_t seat)
{
    const struct eep_member_state *state = eep_member_state(m->machine);
    const struct eep_seat_record *record = &state->seats[seat];

    return record->next == m->self &&
           (record->held_on & UINT64_C(1) << eep_member_find(state, m->self)->node) == 0;
}

static enum eep_status load_some(struct eep_engine *e, bool *done_out)
{
    struct eep_members *m = e->members;
    const uint64_t end_ns = eep_clock_ns() + WORK_NS;

    for (; m->load_seat < m->seats && e->cache != NULL; m->load_seat++, m->load_slot = 0) {
        bool done = !is_to_load(m, m->load_seat);

        while (!done) {
            EEP_TRY(eep_cache_fill_slot(e, (struct eep_seat){m->load_seat}, &m->load_slot, &done));
            if (!done && eep_clock_ns() >= end_ns) {
                *done_out = false;
                return EEP_OK;
            }
        }
    }
    *done_out = true;
    return EEP_OK;
}

void eep_members_work(struct eep_engine *e)
{
    struct eep_members *m = e->members;

    if (m == NULL || m->report_serial != 0 || eep_backup_is_copying(e) ||
        (e->mover != NULL && e->mover->phase != EEP_MOVE_IDLE)) {
        return; /* what has begun comes to its end first */
    }
    if (m->load_serial != 0) {
        bool done = true;
        const enum eep_status status = load_some(e, &done);

        if (status != EEP_OK || done) {
            report(m, m->load_serial, status);
            m->load_serial = 0;
        }
    } else if (m->prepare_serial != 0) {
        report(m, m->prepare_serial, EEP_OK);
        m->prepare_serial = 0;
    }
}

/* ---- in a new world ---- */

/* The members of the world, by rank, and ascending. */
static void find_members(const struct eep_engine *e, uint32_t *by_rank, uint32_t *ascending)
{
    const struct eep_topology *topo = &e->xport->topo;

    for (uint32_t r = 0; r < topo->size; r++) {
        uint32_t at = r;

        by_rank[r] = eep_members_of_origin(e, topo->origin_of[r]);
        for (; at > 0 && ascending[at - 1] > by_rank[r]; at--) {
            ascending[at] = ascending[at - 1];
        }
        ascending[at] = by_rank[r];
    }
}

enum eep_status eep_members_try(struct eep_engine *e)
{
    struct eep_members *m = e->members;
    uint32_t ascending[EEP_MEMBERS_MAX];

    eep_member_destroy(m->trial);
    m->trial = NULL;
    EEP_TRY(create_machine(m, &m->trial));
    EEP_TRY(eep_member_adopt(m->trial, eep_member_state(m->machine)));
    const struct eep_member_state *state = eep_member_state(m->trial);

    find_members(e, m->trial_ids, ascending);
    m->duty_count = 0;
    EEP_TRY(feed_trial(e, &(struct eep_member_event){.kind = EEP_REVOKED}));
    EEP_TRY(feed_trial(e, &(struct eep_member_event){.kind = EEP_AGREED,
                                                     .epoch = state->epoch + 1,
                                                     .position = state->position,
                                                     .set = ascending,
                                                     .set_count = e->xport->topo.size}));
    set_executors(e);
    return EEP_OK;
}

bool eep_members_seat_is_lost(const struct eep_engine *e, uint32_t seat)
{
    return eep_member_state(e->members->trial)->seats[seat].state == EEP_SEAT_LOST;
}

enum eep_status eep_members_commit(struct eep_engine *e)
{
    struct eep_members *m = e->members;
    uint32_t *ids = m->ids;

    /* Those of the trial, though some may be lost again by now: all have reported. */
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &eep_member_state(m->trial)->members[i];

        if (eep_member_in_epoch(r)) {
            EEP_TRY(feed_trial(e, &(struct eep_member_event){
                                      .kind = EEP_DONE, .member = r->id, .serial = m->reseat}));
        }
    }
    EEP_ASSERT(eep_member_state(m->trial)->mode == EEP_MODE_SERVING);
    eep_member_destroy(m->machine);
    m->machine = m->trial;
    m->trial = NULL;
    m->ids = m->trial_ids;
    m->trial_ids = ids;
    m->report_serial = 0;
    forget_duties(m);
    for (uint32_t i = 0; i < m->duty_count; i++) {
        act(e, &m->duties[i]);
    }
    m->duty_count = 0;
    return EEP_OK;
}

/* ---- looking ---- */

bool eep_engine_next_answer(struct eep_engine *e, struct eep_member_action *answer_out)
{
    struct eep_members *m = e->members;

    if (m == NULL || m->answer_first == m->answer_count) {
        return false;
    }
    *answer_out = m->answers[m->answer_first++ % ANSWERS_MAX];
    return true;
}

const struct eep_member_state *eep_engine_member_state(const struct eep_engine *e)
{
    return e->members != NULL ? eep_member_state(e->members->machine) : NULL;
}

const uint32_t *eep_engine_member_ids(const struct eep_engine *e)
{
    return e->members->ids;
}

const uint32_t *eep_engine_executors(const struct eep_engine *e)
{
    return e->executors;
}

const struct eep_loss_facts *eep_engine_losses(const struct eep_engine *e)
{
    return &e->loss;
}
