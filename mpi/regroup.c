/*
 * Changing the membership on purpose: processes that were started with the job but take no part
 * ("parked") become ranks, and ranks become parked. By messages over the roster (roster.c):
 *
 *     rank 0           other ranks, joiners, the rest of the parked
 *     CALL origins ──►
 *                 ◄── READY        all must answer in time: only then does anybody enter MPI
 *     GO (or STOP) ──►
 *     all: shrink of the roster, split into the new world and the rest, agree ─► new world
 *
 * Guests, who were spawned by rank 0, are let in by the first call that names one of them, all
 * together: before the split, the roster and they are merged into a new roster, over the bridge
 * between rank 0 and them.
 *
 * Nobody blocks before GO, so a process that is stopped, busy or dead costs a deadline and nothing
 * else. A death after GO makes the split or the agreement fail on all: then the old world is still
 * there, but is left by recover(), as the dead may have been one of its ranks.
 *
 * Parked processes that are not named take part from within roster_wait() and roster_take().
 */
#include <string.h>

#include "base/clock.h"
#include "roster_int.h"

#define PARKED_WAITS 5 /* as long as a rank, for the ranks to call */

/* ---- a new world ---- */

/* Nobody was lost, so nothing is under way on it. */
static void free_communicator(MPI_Comm *comm)
{
    if (*comm != MPI_COMM_NULL) {
        (void)MPI_Comm_free(comm);
    }
}

/* The old world ends; this process is a rank of the new one, or parked. */
static enum eep_status change_world(struct eep_world *world, const struct eep_entry *e)
{
    eep_node_close(world);
    eep_world_forget_topology(world);
    free_communicator(&world->control);
    free_communicator(&world->data);
    world->control = e->control;
    world->data = e->data;
    world->broken = EEP_OK;
    world->death = false;
    if (!e->named) {
        world->xport.topo.rank = EEP_NO_RANK;
        return EEP_OK;
    }
    EEP_TRY(eep_world_find_place(world, "regrouping"));
    world->was = world->xport.topo.rank;
    return eep_world_settle(world);
}

/* ---- getting ready ---- */

static bool is_rank(const struct eep_world *world)
{
    return world->xport.topo.rank != EEP_NO_RANK;
}

struct meeting {
    struct eep_wait wait;
    struct eep_world *world;
    uint64_t deadline_ns;
    uint64_t serial;         /* of the call */
    uint32_t leader;         /* origin of its sender */
    const uint32_t *origins; /* (count): of a call that is waited for */
    uint32_t count;
    struct eep_verdict verdict; /* status EEP_ERR_AGAIN: none yet */
};

static bool is_late(struct meeting *m)
{
    if (eep_clock_ns() < m->deadline_ns) {
        return false;
    }
    m->verdict.status = EEP_ERR_TIMEOUT;
    return true;
}

/* The leader: all have answered, or will not. Says so again when asked again. */
static bool all_ready(struct eep_wait *wait)
{
    struct meeting *m = (struct meeting *)wait;
    const struct eep_roster *r = m->world->roster;

    if (m->verdict.status != EEP_ERR_AGAIN) {
        return true;
    }
    eep_roster_pump(m->world);
    m->verdict.lost = EEP_NO_RANK;
    for (uint32_t o = 0; o < r->processes; o++) {
        const struct eep_process *p = &r->process[o];

        if (!p->called) {
            continue;
        }
        if (p->dead && (p->active || eep_roster_names(r->call->origins, r->call->count, o))) {
            m->verdict.lost = o;
            m->verdict.status = p->active ? EEP_ERR_PEER_LOST : EEP_ERR_STALE;
            return true;
        }
        if (!p->dead && p->ready != m->serial && m->verdict.lost == EEP_NO_RANK) {
            m->verdict.lost = o;
        }
    }
    if (m->verdict.lost != EEP_NO_RANK) {
        return is_late(m);
    }
    m->verdict.status = EEP_OK;
    return true;
}

/* The others: the leader has decided, or is gone. */
static bool is_decided(struct meeting *m)
{
    const struct eep_roster *r = m->world->roster;

    eep_roster_pump(m->world);
    if (r->verdict.serial == m->serial) {
        m->verdict = r->verdict;
        return true;
    }
    if (r->process[m->leader].dead) {
        m->verdict = (struct eep_verdict){.status = EEP_ERR_PEER_LOST, .lost = m->leader};
        return true;
    }
    if (r->call->serial != m->serial) {
        m->verdict.status = EEP_ERR_TIMEOUT; /* it calls anew */
        return true;
    }
    return is_late(m);
}

static void send_call(struct eep_world *world, const struct eep_call *call)
{
    struct eep_roster *r = world->roster;
    const uint32_t first_guest = eep_roster_first_guest(r);

    for (uint32_t o = 0; o < r->processes; o++) {
        /* Parked processes that have died before are not missed, unless they are named. */
        const bool named = eep_roster_names(call->origins, call->count, o);
        const bool waits = o >= first_guest && call->first_guest == EEP_NO_RANK; /* as a guest */

        r->process[o].called = o != world->origin && (named || (!r->process[o].dead && !waits));
        if (r->process[o].called) {
            (void)eep_roster_post(world, o, EEP_CALL_TAG, call, eep_call_bytes(call->count));
        }
    }
}

static void send_verdict(struct eep_world *world, const struct eep_verdict *verdict)
{
    const struct eep_roster *r = world->roster;

    for (uint32_t o = 0; o < r->processes; o++) {
        if (r->process[o].called) {
            (void)eep_roster_post(world, o, EEP_VERDICT_TAG, verdict, sizeof(*verdict));
        }
    }
}

/* Once ready, this process does what the leader decides, whatever it sees itself: else it would be
 * missed by those that enter MPI. */
static enum eep_status follow(struct meeting *m)
{
    const uint64_t start = eep_clock_ns();

    m->world->roster->answered = m->serial;
    EEP_TRY(eep_roster_post(m->world, m->leader, EEP_READY_TAG, &m->serial, sizeof(m->serial)));
    while (!is_decided(m)) {
        eep_wait_nap_after(eep_clock_ns() - start, EEP_ROSTER_NAP_NS);
    }
    return EEP_OK;
}

/* The verdict as a status. After a loss the ranks of the old world must recover. */
static enum eep_status judge(struct eep_world *world, const struct eep_verdict *verdict)
{
    switch ((enum eep_status)verdict->status) {
    case EEP_OK:
        return EEP_OK;
    case EEP_ERR_PEER_LOST:
        if (is_rank(world)) {
            eep_world_begin_loss(world);
        }
        return EEP_FAIL(EEP_ERR_PEER_LOST, "process %u was lost while the ranks were regrouped",
                        verdict->lost);
    case EEP_ERR_STALE:
        return EEP_FAIL(EEP_ERR_STALE, "regrouping: process %u has died; it was not yet a rank",
                        verdict->lost);
    default:
        if (verdict->lost == EEP_NO_RANK) {
            return EEP_FAIL((enum eep_status)verdict->status,
                            "regrouping: the ranks have given up, or not called yet");
        }
        return EEP_FAIL((enum eep_status)verdict->status,
                        "regrouping: process %u has not answered for %.1f s; it may be stopped or "
                        "far slower than the others",
                        verdict->lost, (double)world->answer_ns / (double)EEP_NS_PER_S);
    }
}

static void set_active(struct eep_roster *r, const struct eep_call *call)
{
    for (uint32_t o = 0; o < r->processes; o++) {
        r->process[o].active = eep_roster_names(call->origins, call->count, o);
    }
}

/* The guests cannot be let in any more: they end. */
static void give_guests_up(struct eep_world *world, const struct eep_call *call)
{
    struct eep_roster *r = world->roster;

    if (eep_roster_is_guest(world)) {
        r->process[r->bridge.origins[0]].active = false; /* there is nobody to wait for */
    } else if (call->first_guest != EEP_NO_RANK && r->bridge.comm != MPI_COMM_NULL) {
        eep_roster_drop_guests(world);
    }
}

static enum eep_status commit(struct eep_world *world, uint32_t leader)
{
    const struct eep_call *call = world->roster->call;
    struct eep_entry e;

    EEP_TRY(eep_roster_grow(world, call->processes, 0));
    call = world->roster->call;
    if (!eep_enter(world, call, leader, &e)) {
        give_guests_up(world, call);
        if (is_rank(world)) {
            eep_world_begin_loss(world);
        }
        return EEP_FAIL(EEP_ERR_PEER_LOST, "a process was lost while the ranks were regrouped");
    }
    world->outgrown = world->outgrown || call->first_guest != EEP_NO_RANK;
    set_active(world->roster, call);
    return is_rank(world) || e.named ? change_world(world, &e) : EEP_OK;
}

/* ---- the leader ---- */

static enum eep_status check_origins(const struct eep_world *world, const uint32_t *origins,
                                     uint32_t count)
{
    if (!world->ulfm) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "the ranks cannot be regrouped: fault tolerance is "
                                             "off (start with scripts/mpi-run, eep launch, or "
                                             "mpirun --with-ft ulfm)");
    }
    for (uint32_t i = 0; i < count; i++) {
        /* Guests are known to the leader alone. */
        if ((world->xport.topo.rank == 0 && origins[i] >= world->roster->processes) ||
            eep_roster_names(origins, i, origins[i])) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "regrouping: process %u of %u; each must exist and be named once",
                            origins[i], world->roster->processes);
        }
    }
    return count > 0 ? EEP_OK : EEP_FAIL(EEP_ERR_INVALID, "regrouping: nobody would be left");
}

/* The guests come in with the first one of them that is named. */
static uint32_t guests_to_let_in(const struct eep_roster *r, const uint32_t *origins,
                                 uint32_t count)
{
    const uint32_t first = eep_roster_first_guest(r);

    for (uint32_t i = 0; i < count && first != EEP_NO_RANK; i++) {
        if (eep_channel_rank(&r->bridge, origins[i], NULL) && origins[i] >= first) {
            return first;
        }
    }
    return EEP_NO_RANK;
}

static enum eep_status call_all(struct eep_world *world, const uint32_t *origins, uint32_t count)
{
    struct eep_roster *r = world->roster;
    struct meeting m = {.wait = {.what = "regrouping", .ready = all_ready},
                        .world = world,
                        .deadline_ns = eep_clock_ns() + world->answer_ns,
                        .serial = eep_clock_ns() * EEP_PROCESSES_MAX + world->origin,
                        .verdict = {.status = EEP_ERR_AGAIN, .lost = EEP_NO_RANK}};

    EEP_TRY(eep_roster_call_room(r, count));
    eep_roster_pump(world); /* for the last deaths */
    m.verdict.serial = r->call->serial = m.serial;
    r->call->processes = r->processes;
    r->call->first_guest = guests_to_let_in(r, origins, count);
    r->call->count = count;
    memcpy(r->call->origins, origins, count * sizeof(*origins));
    send_call(world, r->call);
    const enum eep_status status = eep_wait_until(world, &m.wait);
    if (status != EEP_OK) {
        m.verdict.status = status;
        m.verdict.lost = EEP_NO_RANK;
    }
    send_verdict(world, &m.verdict);
    EEP_TRY(status);
    EEP_TRY(judge(world, &m.verdict));
    return commit(world, world->origin);
}

/* ---- the others ---- */

/* A call that this process has not answered, and that still holds. */
static bool is_called(const struct eep_roster *r)
{
    return r->leader != EEP_NO_RANK && !r->process[r->leader].dead &&
           r->call->serial != r->answered && r->call->serial != r->verdict.serial;
}

static enum eep_status take_part(struct eep_world *world)
{
    struct meeting m = {.wait = {.what = "regrouping"},
                        .world = world,
                        .deadline_ns = eep_clock_ns() + world->answer_ns + EEP_NS_PER_S,
                        .serial = world->roster->call->serial,
                        .leader = world->roster->leader,
                        .verdict = {.status = EEP_ERR_AGAIN, .lost = EEP_NO_RANK}};

    EEP_TRY(follow(&m));
    EEP_TRY(judge(world, &m.verdict));
    return commit(world, m.leader);
}

static bool is_same(const struct eep_call *call, const struct meeting *m)
{
    return call->count == m->count &&
           memcmp(call->origins, m->origins, m->count * sizeof(*m->origins)) == 0;
}

/* A rank goes on waiting when it sees the call of an attempt that it has left before the leader. A
 * parked process that is told something else meanwhile is not wanted any more: the leader has died,
 * and another one speaks. */
static bool is_wanted(struct eep_wait *wait)
{
    struct meeting *m = (struct meeting *)wait;
    const struct eep_roster *r = m->world->roster;

    eep_roster_pump(m->world);
    if (is_called(r) && (!is_rank(m->world) || is_same(r->call, m))) {
        return true;
    }
    if (!is_rank(m->world) && eep_roster_has_note(m->world)) {
        m->verdict.status = EEP_ERR_TIMEOUT;
        return true;
    }
    return is_late(m);
}

enum eep_status eep_world_regroup(struct eep_xport *xport, const uint32_t *origins, uint32_t count)
{
    struct eep_world *world = (struct eep_world *)xport;
    const bool parked = xport->topo.rank == EEP_NO_RANK;
    struct meeting m = {.wait = {.what = "regrouping", .ready = is_wanted},
                        .world = world,
                        .deadline_ns =
                            eep_clock_ns() + (parked ? PARKED_WAITS : 1) * world->answer_ns,
                        .origins = origins,
                        .count = count,
                        .verdict = {.status = EEP_ERR_AGAIN, .lost = EEP_NO_RANK}};

    EEP_TRY(check_origins(world, origins, count));
    if (world->broken != EEP_OK) {
        return EEP_FAIL(world->broken, "regrouping: the ranks lost touch earlier");
    }
    if (xport->topo.rank == 0) {
        return call_all(world, origins, count);
    }
    EEP_TRY(eep_wait_until(world, &m.wait));
    if (!is_called(world->roster)) {
        return judge(world, &m.verdict);
    }
    if (!is_same(world->roster->call, &m)) { /* left to roster_wait(), or to the next call */
        return EEP_FAIL(EEP_ERR_PEER_LOST, "regrouping: this attempt was given up for another");
    }
    return take_part(world);
}

void eep_regroup_answer(struct eep_world *world)
{
    const struct eep_roster *r = world->roster;

    if (!is_rank(world) && is_called(r) &&
        !eep_roster_names(r->call->origins, r->call->count, world->origin)) {
        (void)take_part(world); /* it stays parked, whatever comes of it */
    }
}
