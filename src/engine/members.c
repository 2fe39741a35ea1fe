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
#include "engine/engine_int.h"
#include "member/member.h"

struct eep_members {
    struct eep_member *machine, *trial; /* trial: of a recovery that is not over */
    uint32_t *ids;                      /* (ranks): member that each rank is */
    uint32_t *trial_ids;
    uint32_t *node_of; /* (started): by member; nodes are numbered as at the start */
    uint32_t started, self, seats;
    uint32_t reseat; /* serial that reports of reseating name */
    struct eep_member_actions actions;
};

static uint32_t seats_of(const struct eep_engine *e)
{
    return e->layout != NULL ? e->layout->seats : e->xport->topo.size;
}

static enum eep_status create_machine(const struct eep_members *m, struct eep_member **machine_out)
{
    const struct eep_member_params params = {
        .started = m->started,
        .active = m->started,
        .node_of = m->node_of,
        .seats = m->seats,
        .seats_max = m->seats,
    };

    return eep_member_create(&params, m->self, machine_out);
}

static enum eep_status create(struct eep_engine *e, struct eep_members *m)
{
    const struct eep_topology *topo = &e->xport->topo;

    m->started = topo->size;
    m->self = topo->rank;
    m->seats = seats_of(e);
    EEP_TRY(eep_mem_alloc(topo->size, sizeof(uint32_t), "members", &m->ids));
    EEP_TRY(eep_mem_alloc(topo->size, sizeof(uint32_t), "members", &m->trial_ids));
    EEP_TRY(eep_mem_alloc(topo->size, sizeof(uint32_t), "nodes of members", &m->node_of));
    for (uint32_t r = 0; r < topo->size; r++) {
        m->ids[r] = r;
        m->node_of[r] = topo->node_of[r];
    }
    return create_machine(m, &m->machine);
}

static enum eep_status take_executors(struct eep_engine *e)
{
    if (e->layout == NULL) {
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(e->layout->seats, sizeof(uint32_t), "executors", &e->executors));
    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        e->executors[seat] = eep_layout_executor(seat, e->layout->seats, e->xport->topo.size);
    }
    return EEP_OK;
}

enum eep_status eep_members_create(struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;

    EEP_TRY(take_executors(e));
    if (e->on_loss == EEP_LOSS_STOP || topo->size == 1) {
        return EEP_OK;
    }
    if (topo->size > EEP_MEMBERS_MAX || topo->nodes > EEP_NODES_MAX ||
        seats_of(e) > EEP_SEATS_MAX) {
        if (topo->rank == 0) {
            eep_log(EEP_LOG_WARN,
                    "the loss of a rank ends the job: %u ranks on %u nodes with %u seats are more "
                    "than membership handles (%u, %u, %u)",
                    topo->size, topo->nodes, seats_of(e), EEP_MEMBERS_MAX, EEP_NODES_MAX,
                    EEP_SEATS_MAX);
        }
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(1, sizeof(*e->members), "membership", &e->members));
    return create(e, e->members);
}

void eep_members_free(struct eep_engine *e)
{
    eep_mem_free(e->executors);
    e->executors = NULL;
    if (e->members != NULL) {
        eep_member_destroy(e->members->machine);
        eep_member_destroy(e->members->trial);
        eep_mem_free(e->members->ids);
        eep_mem_free(e->members->trial_ids);
        eep_mem_free(e->members->node_of);
        eep_mem_free(e->members);
        e->members = NULL;
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

static enum eep_status feed(struct eep_engine *e, const struct eep_member_event *event)
{
    struct eep_members *m = e->members;

    EEP_TRY(eep_member_step(m->trial, event, eep_clock_ns(), &m->actions));
    for (uint32_t i = 0; i < m->actions.count; i++) {
        if (m->actions.items[i].kind == EEP_DO_RESEAT) {
            m->reseat = m->actions.items[i].serial;
        }
    }
    return EEP_OK;
}

enum eep_status eep_members_try(struct eep_engine *e, const uint32_t *was)
{
    struct eep_members *m = e->members;
    const uint32_t size = e->xport->topo.size;

    eep_member_destroy(m->trial);
    m->trial = NULL;
    EEP_TRY(create_machine(m, &m->trial));
    EEP_TRY(eep_member_adopt(m->trial, eep_member_state(m->machine)));
    const struct eep_member_state *state = eep_member_state(m->trial);

    for (uint32_t r = 0; r < size; r++) {
        m->trial_ids[r] = m->ids[was[r]];
    }
    EEP_TRY(feed(e, &(struct eep_member_event){.kind = EEP_REVOKED}));
    EEP_TRY(feed(e, &(struct eep_member_event){.kind = EEP_AGREED,
                                               .epoch = state->epoch + 1,
                                               .position = state->position,
                                               .set = m->trial_ids,
                                               .set_count = size}));
    set_executors(e);
    return EEP_OK;
}

enum eep_status eep_members_commit(struct eep_engine *e)
{
    struct eep_members *m = e->members;
    uint32_t *ids = m->ids;

    /* Those of the trial, though some may be lost again by now: all have reported. */
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &eep_member_state(m->trial)->members[i];

        if (r->life == EEP_LIFE_ACTIVE) {
            EEP_TRY(feed(e, &(struct eep_member_event){
                                .kind = EEP_DONE, .member = r->id, .serial = m->reseat}));
        }
    }
    EEP_ASSERT(eep_member_state(m->trial)->mode == EEP_MODE_SERVING);
    eep_member_destroy(m->machine);
    m->machine = m->trial;
    m->trial = NULL;
    m->ids = m->trial_ids;
    m->trial_ids = ids;
    return EEP_OK;
}
