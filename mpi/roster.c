/*
 * All processes of the job, for their whole life, ranks and parked ones: messages between them, and
 * who has died.
 *
 * They share one communicator, the roster, which is never revoked, so that it goes on working
 * whoever dies. A process's number for the job's life is its origin: its rank among those that
 * mpirun started, or what follows for those that were spawned. Spawned processes are guests at
 * first: only the process that spawned them can reach them, over a communicator of their own, the
 * bridge; when they are let in (regroup.c), there is a new roster with them.
 *
 * Nothing here waits. What comes is looked for from any process and with any tag by one call, and
 * received by requests that are only looked at, since a large message of a process that has been
 * stopped may never be complete. Messages of one process are taken in the order in which they were
 * sent.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "roster_int.h"

#define SEND_NS EEP_NS_PER_S      /* for the last messages to go out, and to be heard */
#define OLD_NS (2 * EEP_NS_PER_S) /* for messages on their way when there is a new roster */
#define PUMPS_MAX 64              /* messages that are taken in at a time */

struct eep_letter {
    struct eep_letter *next;
    MPI_Request request;
    unsigned char data[];
};

struct eep_mail {
    struct eep_mail *next;
    MPI_Request request;
    uint32_t from;
    int tag;
    size_t bytes;
    bool here;
    unsigned char data[];
};

bool eep_roster_names(const uint32_t *origins, uint32_t count, uint32_t origin)
{
    for (uint32_t i = 0; i < count; i++) {
        if (origins[i] == origin) {
            return true;
        }
    }
    return false;
}

/* ---- who there is ---- */

enum eep_status eep_roster_call_room(struct eep_roster *r, uint32_t count)
{
    const size_t bytes = eep_call_bytes(count);
    struct eep_call *call;

    if (bytes <= r->call_room) {
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(1, bytes, "roster", &call));
    if (r->call != NULL) {
        memcpy(call, r->call, r->call_room);
    }
    eep_mem_free(r->call);
    r->call = call;
    r->call_room = bytes;
    return EEP_OK;
}

enum eep_status eep_roster_grow(struct eep_world *world, uint32_t processes, uint32_t home)
{
    struct eep_roster *r = world->roster;
    struct eep_process *process;

    if (processes <= r->processes) {
        return EEP_OK;
    }
    EEP_TRY(eep_roster_call_room(r, processes));
    EEP_TRY(eep_mem_alloc(processes, sizeof(*process), "roster", &process));
    if (r->processes > 0) {
        memcpy(process, r->process, r->processes * sizeof(*process));
    }
    for (uint32_t o = r->processes; o < processes; o++) {
        process[o].home = home;
    }
    eep_mem_free(r->process);
    r->process = process;
    r->processes = world->xport.topo.processes = processes;
    return EEP_OK;
}

void eep_roster_recovered(struct eep_world *world)
{
    const struct eep_topology *topo = &world->xport.topo;
    struct eep_roster *r = world->roster;

    for (uint32_t o = 0; o < r->processes; o++) {
        const bool active = eep_roster_names(topo->origin_of, topo->size, o);

        r->process[o].dead = r->process[o].dead || (r->process[o].active && !active);
        r->process[o].active = active;
    }
}

void eep_channel_set(struct eep_channel *channel, MPI_Comm comm, uint32_t size, uint32_t *origins)
{
    eep_mem_free(channel->origins);
    *channel = (struct eep_channel){.comm = comm, .size = size, .origins = origins};
}

static void end_channel(struct eep_channel *channel)
{
    eep_channel_set(channel, MPI_COMM_NULL, 0, NULL);
}

enum eep_status eep_roster_open(struct eep_world *world)
{
    struct eep_roster *r;

    EEP_TRY(eep_mem_alloc(1, sizeof(*r), "roster", &r));
    *r = (struct eep_roster){.all.comm = MPI_COMM_NULL,
                             .old = {{.comm = MPI_COMM_NULL}, {.comm = MPI_COMM_NULL}},
                             .bridge.comm = MPI_COMM_NULL,
                             .crossing = MPI_COMM_NULL,
                             .mates = MPI_COMM_NULL,
                             .leader = EEP_NO_RANK};
    world->roster = r;
    return eep_roster_call_room(r, 1);
}

enum eep_status eep_roster_start(struct eep_world *world, uint32_t processes, uint32_t active)
{
    struct eep_roster *r = world->roster;
    MPI_Comm comm;
    uint32_t *origins;

    EEP_TRY(eep_roster_grow(world, processes, 0));
    EEP_TRY(eep_mem_alloc(processes, sizeof(*origins), "roster", &origins));
    for (uint32_t o = 0; o < processes; o++) {
        origins[o] = r->process[o].home = o;
        r->process[o].active = o < active;
    }
    EEP_MPI_TRY(world, "joining", MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    EEP_MPI_TRY(world, "joining", MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    eep_channel_set(&r->all, comm, processes, origins);
    return EEP_OK;
}

enum eep_status eep_roster_read(struct eep_world *world, MPI_Comm comm, uint32_t **origins_out)
{
    uint32_t *origins;
    int size = 0;

    EEP_MPI_TRY(world, "regrouping", MPI_Comm_size(comm, &size));
    EEP_TRY(eep_mem_alloc((size_t)size, sizeof(*origins), "roster", &origins));
    if (MPI_Allgather(&world->origin, 1, MPI_UINT32_T, origins, 1, MPI_UINT32_T, comm) !=
        MPI_SUCCESS) {
        eep_mem_free(origins);
        return EEP_FAIL(EEP_ERR_PEER_LOST, "a process was lost while others were let in");
    }
    *origins_out = origins;
    return EEP_OK;
}

void eep_roster_renew(struct eep_world *world, MPI_Comm comm, uint32_t *origins)
{
    struct eep_roster *r = world->roster;
    int size = 0;

    (void)MPI_Comm_size(comm, &size);
    for (uint32_t o = 0; o < r->processes; o++) {
        r->process[o].dead = !eep_roster_names(origins, (uint32_t)size, o);
    }
    end_channel(&r->old[0]);
    end_channel(&r->old[1]);
    r->old[0] = r->all;
    r->old[1] = r->bridge;
    r->old_until_ns = eep_clock_ns() + OLD_NS;
    r->bridge = (struct eep_channel){.comm = MPI_COMM_NULL};
    r->mates = MPI_COMM_NULL;
    r->all = (struct eep_channel){.comm = comm, .size = (uint32_t)size, .origins = origins};
}

bool eep_roster_is_guest(const struct eep_world *world)
{
    return world->roster != NULL && world->roster->mates != MPI_COMM_NULL;
}

uint32_t eep_roster_first_guest(const struct eep_roster *r)
{
    return r->bridge.comm != MPI_COMM_NULL && r->mates == MPI_COMM_NULL ? r->bridge.origins[1]
                                                                        : EEP_NO_RANK;
}

void eep_roster_drop_guests(struct eep_world *world)
{
    struct eep_roster *r = world->roster;
    const int32_t left = EEP_ERR_PEER_LOST;

    for (uint32_t i = 1; i < r->bridge.size; i++) {
        (void)eep_roster_post(world, r->bridge.origins[i], EEP_LEFT_TAG, &left, sizeof(left));
    }
    for (uint32_t i = 1; i < r->bridge.size; i++) {
        r->process[r->bridge.origins[i]].dead = true;
    }
    end_channel(&r->bridge);
}

/* ---- out ---- */

/* Forget what has left; what cannot be delivered any more is left to the process's end. */
static bool all_sent(struct eep_roster *r)
{
    struct eep_letter **at = &r->letters;

    while (*at != NULL) {
        struct eep_letter *letter = *at;
        int done = 0;

        if (MPI_Request_get_status(letter->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            *at = letter->next;
        } else if (done) {
            (void)MPI_Wait(&letter->request, MPI_STATUS_IGNORE);
            *at = letter->next;
            free(letter);
        } else {
            at = &letter->next;
        }
    }
    return r->letters == NULL;
}

bool eep_channel_rank(const struct eep_channel *channel, uint32_t origin, int *rank_out)
{
    for (uint32_t i = 0; i < channel->size; i++) {
        if (channel->origins[i] == origin) {
            if (rank_out != NULL) {
                *rank_out = (int)i;
            }
            return true;
        }
    }
    return false;
}

enum eep_status eep_roster_post(struct eep_world *world, uint32_t origin, int tag, const void *data,
                                size_t bytes)
{
    struct eep_roster *r = world->roster;
    struct eep_letter *letter = malloc(sizeof(*letter) + bytes);

    if (letter == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "a message to process %u: no memory", origin);
    }
    int rank = 0;
    const struct eep_channel *channel = eep_channel_rank(&r->all, origin, &rank)      ? &r->all
                                        : eep_channel_rank(&r->bridge, origin, &rank) ? &r->bridge
                                                                                      : NULL;

    (void)all_sent(r);
    if (bytes > 0) {
        memcpy(letter->data, data, bytes);
    }
    if (r->process[origin].dead || channel == NULL ||
        MPI_Isend(letter->data, (int)bytes, MPI_BYTE, rank, tag, channel->comm, &letter->request) !=
            MPI_SUCCESS) {
        free(letter);
        return EEP_FAIL(EEP_ERR_PEER_LOST, "process %u is lost, or not yet among the others",
                        origin);
    }
    letter->next = r->letters;
    r->letters = letter;
    return EEP_OK;
}

static void mark_dead_of(struct eep_world *world, const struct eep_channel *channel)
{
    struct eep_roster *r = world->roster;
    uint32_t rank = 0;

    while (channel->comm != MPI_COMM_NULL &&
           (rank = eep_ulfm_next_failed(world, channel->comm, rank)) < channel->size) {
        r->process[channel->origins[rank++]].dead = true;
    }
}

static void mark_dead(struct eep_world *world)
{
    mark_dead_of(world, &world->roster->all);
    mark_dead_of(world, &world->roster->bridge);
}

/* A message of a process that has ended meanwhile may be lost. */
static bool all_have_heard(struct eep_world *world)
{
    const struct eep_roster *r = world->roster;

    for (uint32_t o = 0; o < r->processes; o++) {
        if (r->process[o].called && !r->process[o].dead && r->process[o].ready != EEP_END_HEARD) {
            return false;
        }
    }
    return true;
}

void eep_roster_tell_end(struct eep_world *world, enum eep_status status)
{
    struct eep_roster *r = world->roster;
    const int32_t left = status;
    const uint64_t end_ns = eep_clock_ns() + SEND_NS;

    if (r == NULL || (status == EEP_OK && world->xport.topo.rank != 0)) {
        return;
    }
    mark_dead(world);
    for (uint32_t o = 0; o < r->processes; o++) {
        r->process[o].called = !r->process[o].active && !r->process[o].dead && o != world->origin;
        if (r->process[o].called) {
            (void)eep_roster_post(world, o, EEP_LEFT_TAG, &left, sizeof(left));
        }
    }
    while ((!all_sent(r) || !all_have_heard(world)) && eep_clock_ns() < end_ns) {
        eep_roster_pump(world);
        eep_wait_nap(EEP_NS_PER_MS / 10);
    }
}

/* ---- in ---- */

static bool is_there(MPI_Comm comm, MPI_Status *status)
{
    int there = 0;

    if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &there, status) != MPI_SUCCESS) {
        eep_ulfm_acknowledge(comm); /* one that has died must not hide the others */
        there = 0;
        (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &there, status);
    }
    return there != 0;
}

/* Begin to receive one more message, if there is one. */
static bool begin_mail(struct eep_roster *r, const struct eep_channel *channel)
{
    struct eep_mail **at = &r->mail;
    MPI_Status status;
    int bytes = 0;

    if (channel->comm == MPI_COMM_NULL || !is_there(channel->comm, &status) ||
        MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS) {
        return false;
    }
    struct eep_mail *mail = malloc(sizeof(*mail) + (size_t)bytes);
    if (mail == NULL) {
        return false; /* it stays where it is */
    }
    *mail = (struct eep_mail){
        .from = channel->origins[status.MPI_SOURCE], .tag = status.MPI_TAG, .bytes = (size_t)bytes};
    if (MPI_Irecv(mail->data, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, channel->comm,
                  &mail->request) != MPI_SUCCESS) {
        free(mail);
        return false;
    }
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = mail;
    return true;
}

static void take_in(struct eep_roster *r, const struct eep_channel *channel)
{
    for (int i = 0; i < PUMPS_MAX && begin_mail(r, channel); i++) {
    }
}

/* True when a message of another kind than the caller's was dealt with. */
static bool deal_with(struct eep_world *world, const struct eep_mail *mail)
{
    const uint64_t heard = EEP_END_HEARD;
    struct eep_roster *r = world->roster;
    struct eep_call head;
    int32_t left;

    switch (mail->tag) {
    case EEP_CALL_TAG:
        memcpy(&head, mail->data, sizeof(head));
        if (!r->process[mail->from].dead && eep_roster_call_room(r, head.count) == EEP_OK) {
            memcpy(r->call, mail->data, mail->bytes);
            r->leader = mail->from;
        }
        return true;
    case EEP_READY_TAG:
        memcpy(&r->process[mail->from].ready, mail->data, sizeof(uint64_t));
        return true;
    case EEP_VERDICT_TAG:
        memcpy(&r->verdict, mail->data, sizeof(r->verdict));
        return true;
    case EEP_LEFT_TAG:
        memcpy(&left, mail->data, sizeof(left));
        r->job_over = r->job_over || left == EEP_OK;
        r->process[mail->from].active = false;
        if (left == EEP_OK) {
            (void)eep_roster_post(world, mail->from, EEP_READY_TAG, &heard, sizeof(heard));
        }
        return true;
    default:
        return false;
    }
}

/* Is an earlier message of the same process still on its way? */
static bool is_blocked(const struct eep_roster *r, const struct eep_mail *mail)
{
    for (const struct eep_mail *m = r->mail; m != mail; m = m->next) {
        if (m->from == mail->from && !m->here) {
            return true;
        }
    }
    return false;
}

/* They can be let in together only. */
static void drop_lost_guests(struct eep_world *world)
{
    struct eep_roster *r = world->roster;
    bool lost = false;

    for (uint32_t i = 1; i < r->bridge.size && r->mates == MPI_COMM_NULL; i++) {
        lost = lost || r->process[r->bridge.origins[i]].dead;
    }
    if (lost) {
        eep_roster_drop_guests(world);
    }
}

void eep_roster_pump(struct eep_world *world)
{
    struct eep_roster *r = world->roster;
    struct eep_mail **at = &r->mail;

    (void)all_sent(r);
    for (int i = 0; i < 2; i++) {
        take_in(r, &r->old[i]);
        if (r->old[i].comm != MPI_COMM_NULL && eep_clock_ns() > r->old_until_ns) {
            end_channel(&r->old[i]);
        }
    }
    take_in(r, &r->all);
    take_in(r, &r->bridge);
    mark_dead(world);
    drop_lost_guests(world);
    while (*at != NULL) {
        struct eep_mail *mail = *at;
        int done = mail->here;

        if (!mail->here &&
            MPI_Request_get_status(mail->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            *at = mail->next; /* MPI may still write to it */
            continue;
        }
        if (done && !mail->here) {
            (void)MPI_Wait(&mail->request, MPI_STATUS_IGNORE);
            mail->here = true;
        }
        if (mail->here && !is_blocked(r, mail) && deal_with(world, mail)) {
            *at = mail->next;
            free(mail);
        } else {
            at = &mail->next;
        }
    }
}

/* ---- the interface ---- */

enum eep_status eep_roster_send(struct eep_xport *xport, uint32_t origin, const void *data,
                                size_t bytes)
{
    struct eep_world *world = (struct eep_world *)xport;

    EEP_ASSERT(origin < world->roster->processes && origin != world->origin &&
               bytes <= EEP_ROSTER_BYTES_MAX);
    return eep_roster_post(world, origin, EEP_NOTE_TAG, data, bytes);
}

bool eep_roster_lost(struct eep_xport *xport, uint32_t origin)
{
    struct eep_world *world = (struct eep_world *)xport;

    EEP_ASSERT(origin < world->roster->processes);
    return world->roster->process[origin].dead;
}

/* Where the link to the next message for the caller is; NULL in it: there is none. */
static struct eep_mail **next_note(struct eep_roster *r)
{
    struct eep_mail **at = &r->mail;

    while (*at != NULL && ((*at)->tag != EEP_NOTE_TAG || !(*at)->here || is_blocked(r, *at))) {
        at = &(*at)->next;
    }
    return at;
}

bool eep_roster_take(struct eep_xport *xport, uint32_t *from_out, void *data, size_t capacity,
                     size_t *bytes_out)
{
    struct eep_world *world = (struct eep_world *)xport;

    eep_roster_pump(world);
    eep_regroup_answer(world);
    struct eep_mail **at = next_note(world->roster);
    struct eep_mail *mail = *at;
    if (mail == NULL) {
        return false;
    }
    EEP_ASSERT(mail->bytes <= capacity);
    memcpy(data, mail->data, mail->bytes);
    *from_out = mail->from;
    *bytes_out = mail->bytes;
    *at = mail->next;
    free(mail);
    return true;
}

bool eep_roster_has_note(const struct eep_world *world)
{
    return *next_note(world->roster) != NULL;
}

/* Parked: true with the status when the job has ended. */
static bool job_ended(const struct eep_world *world, enum eep_status *status_out)
{
    const struct eep_roster *r = world->roster;

    if (r->job_over) {
        *status_out = EEP_FAIL(EEP_ERR_REVOKED, "the job has ended");
        return true;
    }
    for (uint32_t o = 0; o < r->processes; o++) {
        if (r->process[o].active && !r->process[o].dead) {
            return false;
        }
    }
    *status_out = EEP_FAIL(EEP_ERR_PEER_LOST, "%s",
                           eep_roster_is_guest(world)
                               ? "the ranks have ended, or do not let this process in any more"
                               : "all ranks have ended");
    return true;
}

enum eep_status eep_roster_wait(struct eep_xport *xport, uint64_t timeout_ns)
{
    struct eep_world *world = (struct eep_world *)xport;
    const uint64_t start = eep_clock_ns();
    enum eep_status status;

    for (;;) {
        const uint64_t waited_ns = eep_clock_ns() - start;

        eep_roster_pump(world);
        eep_regroup_answer(world);
        if (*next_note(world->roster) != NULL) {
            return EEP_OK;
        }
        if (xport->topo.rank == EEP_NO_RANK && job_ended(world, &status)) {
            return status;
        }
        if (waited_ns >= timeout_ns) {
            return EEP_FAIL(EEP_ERR_TIMEOUT, "no message for %.3f s",
                            (double)waited_ns / (double)EEP_NS_PER_S);
        }
        eep_wait_nap_after(waited_ns, EEP_ROSTER_NAP_NS);
    }
}
