/*
 * Making the communicators of a new world, by all processes of the roster at once, after regroup.c
 * has seen that all of them are there:
 *
 *     roster ─► shrink ─┬──────────────────────────────────────────► split ─► dup ─► agree
 *                       └► intercommunicator with guests ─► merge ─┘
 *
 * A death meanwhile makes a step fail on some; they revoke what the others may wait in, so that all
 * come to the agreements, whose outcome is the same on all. What nobody can be sure of to be
 * wakened from (one side of the bridge has failed when the other has not yet begun) is ended by a
 * watch.
 */
#include "base/clock.h"
#include "roster_int.h"

#define ENTER_NS (15 * EEP_NS_PER_S) /* for calls that MPI has no deadline for */
#define CREATE_TAG 1

/* Rank of a process in `comm`, which came from the roster by a shrink, or MPI_UNDEFINED. */
static int rank_in(struct eep_world *world, MPI_Comm comm, uint32_t origin)
{
    MPI_Group roster, left;
    int old, rank = MPI_UNDEFINED;

    if (!eep_channel_rank(&world->roster->all, origin, &old)) {
        return MPI_UNDEFINED;
    }
    (void)MPI_Comm_group(world->roster->all.comm, &roster);
    (void)MPI_Comm_group(comm, &left);
    (void)MPI_Group_translate_ranks(roster, 1, &old, left, &rank);
    (void)MPI_Group_free(&roster);
    (void)MPI_Group_free(&left);
    return rank;
}

/* All of the new world who are no guests are left: every process sees the same. */
static bool all_there(struct eep_world *world, MPI_Comm left, const struct eep_call *call)
{
    for (uint32_t i = 0; i < call->count; i++) {
        if (call->origins[i] < call->first_guest &&
            rank_in(world, left, call->origins[i]) == MPI_UNDEFINED) {
            return false;
        }
    }
    return true;
}

/* An intercommunicator between the roster's processes (`own` of those) and the guests (of these).
 */
static bool meet(struct eep_world *world, MPI_Comm own, uint32_t leader, MPI_Comm *inter)
{
    const bool guest = eep_roster_is_guest(world);
    const int own_leader = guest ? 0 : rank_in(world, own, leader);
    const bool on_bridge = guest || world->origin == leader;
    const MPI_Comm bridge = on_bridge ? world->roster->crossing : MPI_COMM_NULL;

    *inter = MPI_COMM_NULL;
    bool ok = MPI_Intercomm_create(own, own_leader, bridge, guest ? 0 : 1, CREATE_TAG, inter) ==
              MPI_SUCCESS;
    if (ok) {
        (void)MPI_Comm_set_errhandler(*inter, MPI_ERRORS_RETURN);
    } else {
        eep_ulfm_revoke_one(own);
        if (on_bridge) {
            eep_ulfm_revoke_one(bridge);
        }
    }
    if (eep_ulfm_agree(own, ok)) {
        return true;
    }
    if (on_bridge) {
        eep_ulfm_revoke_one(bridge);
    }
    if (*inter != MPI_COMM_NULL) {
        eep_ulfm_revoke_one(*inter);
    }
    return false;
}

/* Let the guests in: both sides get `all`. */
static bool merge(struct eep_world *world, MPI_Comm own, uint32_t leader, MPI_Comm *all)
{
    MPI_Comm inter;

    if (!meet(world, own, leader, &inter)) {
        return false;
    }
    const bool ok = MPI_Intercomm_merge(inter, eep_roster_is_guest(world), all) == MPI_SUCCESS;
    if (ok) {
        (void)MPI_Comm_set_errhandler(*all, MPI_ERRORS_RETURN);
    } else {
        eep_ulfm_revoke_one(inter);
    }
    return eep_ulfm_agree(inter, ok);
}

static bool split(struct eep_entry *e, MPI_Comm all)
{
    const int color = e->named ? 1 : MPI_UNDEFINED;

    if (MPI_Comm_split(all, color, (int)e->rank, &e->control) != MPI_SUCCESS) {
        return false;
    }
    if (!e->named) {
        return true;
    }
    (void)MPI_Comm_set_errhandler(e->control, MPI_ERRORS_RETURN);
    if (MPI_Comm_dup(e->control, &e->data) != MPI_SUCCESS) {
        eep_ulfm_revoke_one(e->control); /* others may wait in it */
        return false;
    }
    (void)MPI_Comm_set_errhandler(e->data, MPI_ERRORS_RETURN);
    return true;
}

/* `all` is made, and perhaps a new roster; then the world's communicators. */
static bool make_world(struct eep_world *world, const struct eep_call *call, MPI_Comm all,
                       struct eep_entry *e)
{
    const bool renew = call->first_guest != EEP_NO_RANK;
    uint32_t *origins = NULL;
    bool ok = !renew || eep_roster_read(world, all, &origins) == EEP_OK;

    ok = ok && split(e, all);
    if (!ok) {
        eep_ulfm_revoke_one(all); /* others may wait in it */
    }
    ok = eep_ulfm_agree(all, ok);
    if (ok && renew) {
        eep_roster_renew(world, all, origins);
    } else if (ok) {
        (void)MPI_Comm_free(&all);
    } else {
        eep_mem_free(origins);
    }
    return ok;
}

static bool enter(struct eep_world *world, const struct eep_call *call, uint32_t leader,
                  struct eep_entry *e)
{
    MPI_Comm own = world->roster->mates, all;

    if (!eep_roster_is_guest(world)) {
        if (!eep_ulfm_shrink_one(world->roster->all.comm, &own)) {
            return false;
        }
        if (!all_there(world, own, call)) {
            if (world->origin == leader && call->first_guest != EEP_NO_RANK) {
                eep_ulfm_revoke_one(world->roster->crossing);
            }
            return false;
        }
    }
    all = own;
    if (call->first_guest != EEP_NO_RANK && !merge(world, own, leader, &all)) {
        return false;
    }
    return make_world(world, call, all, e);
}

bool eep_enter(struct eep_world *world, const struct eep_call *call, uint32_t leader,
               struct eep_entry *e)
{
    uint32_t rank = 0;

    while (rank < call->count && call->origins[rank] != world->origin) {
        rank++;
    }
    *e = (struct eep_entry){.control = MPI_COMM_NULL,
                            .data = MPI_COMM_NULL,
                            .named = rank != call->count,
                            .rank = rank};
    if (call->first_guest != EEP_NO_RANK) {
        eep_start_yield();
    }
    eep_watch_begin("regrouping", EEP_MIN(world->timeout_ns, ENTER_NS), 1);
    const bool entered = enter(world, call, leader, e);
    eep_watch_end();
    return entered;
}
