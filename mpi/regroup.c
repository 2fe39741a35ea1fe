/*
 * Changing the membership on purpose: processes that were started with the job but take no part
 * ("parked") become ranks, and ranks become parked.
 *
 * All processes of the job share one communicator, the roster, for their whole life. It is never
 * revoked, and only named processes are received from, so that it goes on working whoever dies. A
 * process's rank there is its origin, its number for the job's life.
 *
 *     rank 0           other ranks, joiners, the rest of the parked
 *     CALL origins ──►
 *                 ◄── READY        all must answer in time: only then does anybody enter MPI
 *     GO (or STOP) ──►
 *     all: shrink of the roster, split into the new world and the rest, agree ─► new world
 *
 * Nobody blocks before GO, so a process that is stopped, busy or dead costs a deadline and nothing
 * else. A death after GO makes the split or the agreement fail on all: then the old world is still
 * there, but is left by recover(), as the dead may have been one of its ranks.
 *
 * Parked processes that are not named take part from within roster_wait() and roster_take().
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "mpi_int.h"

#define NOTE_TAG 1 /* the caller's messages */
#define CALL_TAG 2
#define READY_TAG 3
#define VERDICT_TAG 4
#define LEFT_TAG 5 /* from a rank that ends: status; the job's end when it is EEP_OK */

#define ANSWER_NS (10 * EEP_NS_PER_S) /* for all to be ready */
#define ENTER_NS (60 * EEP_NS_PER_S)  /* for calls that MPI has no deadline for */
#define NAP_NS_MIN (EEP_NS_PER_MS / 20)
#define NAP_NS_MAX (5 * EEP_NS_PER_MS)
#define SEND_NS (200 * EEP_NS_PER_MS) /* for the last messages to go out */

struct eep_call {
    uint64_t serial; /* of this attempt; no other has it */
    uint32_t count;
    uint32_t origins[]; /* (count): of the new world, ascending */
};

struct verdict {
    uint64_t serial;
    int32_t status; /* EEP_OK: go */
    uint32_t lost;  /* origin, with EEP_ERR_PEER_LOST */
};

static size_t call_bytes(uint32_t count)
{
    return sizeof(struct eep_call) + count * sizeof(uint32_t);
}

/* ---- messages ---- */

struct eep_letter {
    struct eep_letter *next;
    MPI_Request request;
    unsigned char data[];
};

/* Forget what has left; what cannot be delivered any more is left to the process's end. */
static bool all_sent(struct eep_world *world)
{
    struct eep_letter **at = &world->letters;

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
    return world->letters == NULL;
}

static enum eep_status send_letter(struct eep_world *world, uint32_t origin, int tag,
                                   const void *data, size_t bytes)
{
    struct eep_letter *letter = malloc(sizeof(*letter) + bytes);

    if (letter == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "a message to process %u: no memory", origin);
    }
    (void)all_sent(world);
    if (bytes > 0) {
        memcpy(letter->data, data, bytes);
    }
    if (MPI_Isend(letter->data, (int)bytes, MPI_BYTE, (int)origin, tag, world->roster,
                  &letter->request) != MPI_SUCCESS) {
        free(letter);
        return EEP_FAIL(EEP_ERR_PEER_LOST, "process %u is lost", origin);
    }
    letter->next = world->letters;
    world->letters = letter;
    return EEP_OK;
}

/* A message with this tag, if there is one; at most `capacity` bytes of it. */
static bool take_letter(struct eep_world *world, int tag, uint32_t *from_out, void *data,
                        size_t capacity, size_t *bytes_out)
{
    for (uint32_t r = 0; r < world->processes; r++) {
        MPI_Status status;
        int there = 0, bytes = 0;

        if (MPI_Iprobe((int)r, tag, world->roster, &there, &status) != MPI_SUCCESS || !there ||
            MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS || (size_t)bytes > capacity) {
            continue;
        }
        if (MPI_Recv(data, bytes, MPI_BYTE, (int)r, tag, world->roster, MPI_STATUS_IGNORE) ==
            MPI_SUCCESS) {
            *from_out = r;
            *bytes_out = (size_t)bytes;
            return true;
        }
    }
    return false;
}

/* ---- who is left ---- */

static bool is_named(const uint32_t *origins, uint32_t count, uint32_t origin)
{
    for (uint32_t i = 0; i < count; i++) {
        if (origins[i] == origin) {
            return true;
        }
    }
    return false;
}

static void set_active(struct eep_world *world, const uint32_t *origins, uint32_t count)
{
    for (uint32_t o = 0; o < world->processes; o++) {
        world->active[o] = is_named(origins, count, o);
    }
}

/* Parked: note who has left. True with the status when the job has ended. */
static bool job_ended(struct eep_world *world, enum eep_status *status_out)
{
    uint32_t from;
    int32_t left;
    size_t bytes;

    while (take_letter(world, LEFT_TAG, &from, &left, sizeof(left), &bytes)) {
        if (left == EEP_OK) {
            *status_out = EEP_FAIL(EEP_ERR_REVOKED, "the job has ended");
            return true;
        }
        world->active[from] = false;
    }
    eep_ulfm_drop_failed(world, world->active);
    for (uint32_t o = 0; o < world->processes; o++) {
        if (world->active[o]) {
            return false;
        }
    }
    *status_out = EEP_FAIL(EEP_ERR_PEER_LOST, "all ranks have ended");
    return true;
}

enum eep_status eep_roster_open(struct eep_world *world, uint32_t active)
{
    const size_t processes = world->processes;

    EEP_TRY(eep_mem_alloc(processes, sizeof(bool), "roster", &world->active));
    EEP_TRY(eep_mem_alloc(processes, sizeof(bool), "roster", &world->called));
    EEP_TRY(eep_mem_alloc(1, call_bytes(world->processes), "roster", &world->call));
    for (uint32_t o = 0; o < world->processes; o++) {
        world->active[o] = o < active;
    }
    world->called_by = EEP_NO_RANK;
    return EEP_OK;
}

void eep_roster_tell_end(struct eep_world *world, enum eep_status status)
{
    const int32_t left = status;
    const uint64_t end_ns = eep_clock_ns() + SEND_NS;

    if (world->active == NULL || (status == EEP_OK && world->xport.topo.rank != 0)) {
        return;
    }
    for (uint32_t o = 0; o < world->processes; o++) {
        world->called[o] = !world->active[o];
    }
    eep_ulfm_drop_failed(world, world->called);
    for (uint32_t o = 0; o < world->processes; o++) {
        if (world->called[o] && o != world->origin) {
            (void)send_letter(world, o, LEFT_TAG, &left, sizeof(left));
        }
    }
    while (!all_sent(world) && eep_clock_ns() < end_ns) {
        eep_wait_nap(EEP_NS_PER_MS / 10);
    }
}

/* ---- entering MPI together ---- */

struct entry {
    MPI_Comm all; /* the processes that are left */
    MPI_Comm control, data;
    bool named;
};

/* All of the new world are in `all`: every process sees the same. */
static bool all_there(struct eep_world *world, MPI_Comm all, const uint32_t *origins,
                      uint32_t count)
{
    MPI_Group roster, left;
    bool there = true;

    (void)MPI_Comm_group(world->roster, &roster);
    (void)MPI_Comm_group(all, &left);
    for (uint32_t i = 0; i < count; i++) {
        const int origin = (int)origins[i];
        int rank = MPI_UNDEFINED;

        (void)MPI_Group_translate_ranks(roster, 1, &origin, left, &rank);
        there = there && rank != MPI_UNDEFINED;
    }
    (void)MPI_Group_free(&roster);
    (void)MPI_Group_free(&left);
    return there;
}

static bool make_world(struct eep_world *world, struct entry *e)
{
    const int color = e->named ? 1 : MPI_UNDEFINED;

    if (MPI_Comm_split(e->all, color, (int)world->origin, &e->control) != MPI_SUCCESS) {
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

static bool enter(struct eep_world *world, const uint32_t *origins, uint32_t count, struct entry *e)
{
    bool ok = false;

    *e = (struct entry){.all = MPI_COMM_NULL,
                        .control = MPI_COMM_NULL,
                        .data = MPI_COMM_NULL,
                        .named = is_named(origins, count, world->origin)};
    eep_watch_begin("regrouping", EEP_MIN(world->timeout_ns, ENTER_NS), 1);
    if (eep_ulfm_shrink_one(world->roster, &e->all)) {
        if (all_there(world, e->all, origins, count)) {
            ok = make_world(world, e);
            if (!ok) {
                eep_ulfm_revoke_one(e->all); /* others may wait in it */
            }
        }
        ok = eep_ulfm_agree(e->all, ok);
        if (ok) {
            (void)MPI_Comm_free(&e->all);
        }
    }
    eep_watch_end();
    return ok;
}

/* The old world ends; this process is a rank of the new one, or parked. */
static enum eep_status change_world(struct eep_world *world, const struct entry *e)
{
    int rank, size;

    eep_node_close(world);
    eep_world_forget_topology(world);
    world->control = e->control;
    world->data = e->data;
    world->broken = EEP_OK;
    world->death = false;
    if (!e->named) {
        world->xport.topo.rank = EEP_NO_RANK;
        return EEP_OK;
    }
    EEP_MPI_TRY(world, "regrouping", MPI_Comm_rank(e->control, &rank));
    EEP_MPI_TRY(world, "regrouping", MPI_Comm_size(e->control, &size));
    world->xport.topo.rank = world->was = (uint32_t)rank;
    world->xport.topo.size = (uint32_t)size;
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
    const struct eep_call *call;
    uint32_t leader;        /* origin of the caller; of a CALL that is waited for: out */
    bool *ready;            /* (processes), of the leader */
    struct verdict verdict; /* status EEP_ERR_AGAIN: none yet */
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
    uint64_t serial;
    uint32_t from;
    size_t bytes;
    bool all = true;

    if (m->verdict.status != EEP_ERR_AGAIN) {
        return true;
    }
    while (take_letter(m->world, READY_TAG, &from, &serial, sizeof(serial), &bytes)) {
        m->ready[from] = m->ready[from] || serial == m->call->serial;
    }
    m->verdict.lost = eep_ulfm_failed_origin(m->world, m->world->called);
    if (m->verdict.lost != EEP_NO_RANK) {
        m->verdict.status = EEP_ERR_PEER_LOST;
        return true;
    }
    for (uint32_t o = 0; o < m->world->processes; o++) {
        all = all && (!m->world->called[o] || m->ready[o]);
    }
    if (all) {
        m->verdict.status = EEP_OK;
    }
    return all || is_late(m);
}

static bool is_dead(struct eep_world *world, uint32_t origin)
{
    memset(world->called, 0, world->processes * sizeof(bool));
    world->called[origin] = true;
    return eep_ulfm_failed_origin(world, world->called) != EEP_NO_RANK;
}

/* The others: the leader has decided, or is gone. */
static bool is_decided(struct meeting *m)
{
    struct verdict verdict;
    uint32_t from;
    size_t bytes;

    while (take_letter(m->world, VERDICT_TAG, &from, &verdict, sizeof(verdict), &bytes)) {
        if (verdict.serial == m->call->serial) {
            m->verdict = verdict;
            return true;
        }
    }
    if (is_dead(m->world, m->leader)) {
        m->verdict = (struct verdict){.status = EEP_ERR_PEER_LOST, .lost = m->leader};
        return true;
    }
    return is_late(m);
}

static enum eep_status lead(struct meeting *m)
{
    struct eep_world *world = m->world;
    enum eep_status status = EEP_OK;

    for (uint32_t o = 0; o < world->processes; o++) {
        world->called[o] = o != world->origin;
    }
    /* Parked processes that have died before are not missed, unless they are named. */
    eep_ulfm_drop_failed(world, world->called);
    for (uint32_t i = 0; i < m->call->count; i++) {
        world->called[m->call->origins[i]] = m->call->origins[i] != world->origin;
    }
    for (uint32_t o = 0; o < world->processes && status == EEP_OK; o++) {
        if (world->called[o]) {
            (void)send_letter(world, o, CALL_TAG, m->call, call_bytes(m->call->count));
        }
    }
    m->wait.ready = all_ready;
    status = eep_wait_until(world, &m->wait);
    if (status != EEP_OK) {
        m->verdict = (struct verdict){.status = status, .lost = EEP_NO_RANK};
    }
    m->verdict.serial = m->call->serial;
    for (uint32_t o = 0; o < world->processes; o++) {
        if (world->called[o]) {
            (void)send_letter(world, o, VERDICT_TAG, &m->verdict, sizeof(m->verdict));
        }
    }
    return status;
}

/* Once ready, this process does what the leader decides, whatever it sees itself: else it would be
 * missed by those that enter MPI. */
static enum eep_status follow(struct meeting *m)
{
    const uint64_t start = eep_clock_ns();

    EEP_TRY(send_letter(m->world, m->leader, READY_TAG, &m->call->serial, sizeof(uint64_t)));
    while (!is_decided(m)) {
        eep_wait_nap(EEP_MIN(EEP_MAX((eep_clock_ns() - start) / 100, NAP_NS_MIN), NAP_NS_MAX));
    }
    return EEP_OK;
}

/* The verdict as a status. After a loss the ranks of the old world must recover. */
static enum eep_status judge(struct eep_world *world, const struct verdict *verdict)
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
    default:
        return EEP_FAIL((enum eep_status)verdict->status,
                        "regrouping: some process has not answered for %.0f s",
                        (double)ANSWER_NS / (double)EEP_NS_PER_S);
    }
}

static enum eep_status commit(struct eep_world *world, const uint32_t *origins, uint32_t count)
{
    struct entry e;

    if (!enter(world, origins, count, &e)) {
        if (is_rank(world)) {
            eep_world_begin_loss(world);
        }
        return EEP_FAIL(EEP_ERR_PEER_LOST, "a process was lost while the ranks were regrouped");
    }
    set_active(world, origins, count);
    return is_rank(world) || e.named ? change_world(world, &e) : EEP_OK;
}

/* ---- the interface ---- */

static enum eep_status check_origins(const struct eep_world *world, const uint32_t *origins,
                                     uint32_t count)
{
    if (!world->ulfm) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "the ranks cannot be regrouped: fault tolerance is "
                                             "off (start with scripts/mpi-run, eep launch, or "
                                             "mpirun --with-ft ulfm)");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (origins[i] >= world->processes || (i > 0 && origins[i] <= origins[i - 1])) {
            return EEP_FAIL(EEP_ERR_INVALID, "regrouping: process %u of %u, in ascending order",
                            origins[i], world->processes);
        }
    }
    return count > 0 ? EEP_OK : EEP_FAIL(EEP_ERR_INVALID, "regrouping: nobody would be left");
}

/* The next call, or the one that was taken while this process waited for messages. */
static bool is_called(struct eep_wait *wait)
{
    struct meeting *m = (struct meeting *)wait;
    size_t bytes;

    if (m->leader == EEP_NO_RANK && m->world->called_by != EEP_NO_RANK) {
        m->leader = m->world->called_by;
        m->world->called_by = EEP_NO_RANK;
    }
    return m->leader != EEP_NO_RANK ||
           take_letter(m->world, CALL_TAG, &m->leader, m->world->call,
                       call_bytes(m->world->processes), &bytes) ||
           is_late(m);
}

/* A verdict before this process was ready: the attempt was given up. */
static bool is_over(struct eep_world *world)
{
    struct verdict verdict;
    uint32_t from;
    size_t bytes;
    bool over = false;

    while (take_letter(world, VERDICT_TAG, &from, &verdict, sizeof(verdict), &bytes)) {
        over = over || verdict.serial == world->call->serial;
    }
    return over;
}

static enum eep_status take_part(struct eep_world *world, uint32_t leader)
{
    struct meeting m = {.wait = {.what = "regrouping"},
                        .world = world,
                        .deadline_ns = eep_clock_ns() + ANSWER_NS + EEP_NS_PER_S,
                        .call = world->call,
                        .leader = leader,
                        .verdict = {.status = EEP_ERR_AGAIN}};

    EEP_TRY(follow(&m));
    EEP_TRY(judge(world, &m.verdict));
    return commit(world, world->call->origins, world->call->count);
}

static enum eep_status call_all(struct eep_world *world, const uint32_t *origins, uint32_t count)
{
    struct meeting m = {.wait = {.what = "regrouping"},
                        .world = world,
                        .deadline_ns = eep_clock_ns() + ANSWER_NS,
                        .call = world->call,
                        .verdict = {.status = EEP_ERR_AGAIN}};

    EEP_TRY(eep_mem_alloc(world->processes, sizeof(bool), "regrouping", &m.ready));
    world->call->serial = eep_clock_ns() * world->processes + world->origin;
    world->call->count = count;
    memcpy(world->call->origins, origins, count * sizeof(*origins));
    const enum eep_status status = lead(&m);
    eep_mem_free(m.ready);
    EEP_TRY(status);
    EEP_TRY(judge(world, &m.verdict));
    return commit(world, origins, count);
}

enum eep_status eep_world_regroup(struct eep_xport *xport, const uint32_t *origins, uint32_t count)
{
    struct eep_world *world = (struct eep_world *)xport;
    struct meeting m = {.wait = {.what = "regrouping", .ready = is_called},
                        .world = world,
                        .deadline_ns = eep_clock_ns() + ANSWER_NS,
                        .verdict = {.status = EEP_ERR_AGAIN}};

    EEP_TRY(check_origins(world, origins, count));
    if (world->broken != EEP_OK) {
        return EEP_FAIL(world->broken, "regrouping: the ranks lost touch earlier");
    }
    if (xport->topo.rank == 0) {
        return call_all(world, origins, count);
    }
    for (;;) {
        m.leader = EEP_NO_RANK;
        EEP_TRY(eep_wait_until(world, &m.wait));
        EEP_TRY(m.leader == EEP_NO_RANK ? judge(world, &m.verdict) : EEP_OK);
        if (is_over(world) || is_dead(world, m.leader)) {
            continue;
        }
        if (world->call->count == count &&
            memcmp(world->call->origins, origins, count * sizeof(*origins)) == 0) {
            return take_part(world, m.leader);
        }
        if (!is_rank(world)) {
            world->called_by = m.leader; /* for the next call of this function, or for nobody */
        }
        return EEP_FAIL(EEP_ERR_PEER_LOST, "regrouping: this attempt was given up for another");
    }
}

enum eep_status eep_roster_send(struct eep_xport *xport, uint32_t origin, const void *data,
                                size_t bytes)
{
    struct eep_world *world = (struct eep_world *)xport;

    EEP_ASSERT(origin < world->processes && origin != world->origin &&
               bytes <= EEP_ROSTER_BYTES_MAX);
    return send_letter(world, origin, NOTE_TAG, data, bytes);
}

/* Parked, and not named: answer a call in the middle of something else. One that names this process
 * is left to eep_world_regroup(). */
static void answer_call(struct eep_world *world)
{
    uint32_t leader = world->called_by;
    size_t bytes;

    if (is_rank(world) ||
        (leader == EEP_NO_RANK && !take_letter(world, CALL_TAG, &leader, world->call,
                                               call_bytes(world->processes), &bytes))) {
        return;
    }
    world->called_by = leader;
    if (!is_named(world->call->origins, world->call->count, world->origin)) {
        world->called_by = EEP_NO_RANK;
        (void)take_part(world, leader);
    } else if (is_over(world) || is_dead(world, leader)) {
        world->called_by = EEP_NO_RANK;
    }
}

bool eep_roster_take(struct eep_xport *xport, uint32_t *from_out, void *data, size_t capacity,
                     size_t *bytes_out)
{
    struct eep_world *world = (struct eep_world *)xport;

    (void)all_sent(world);
    answer_call(world);
    return take_letter(world, NOTE_TAG, from_out, data, capacity, bytes_out);
}

static bool note_is_there(struct eep_world *world)
{
    for (uint32_t r = 0; r < world->processes; r++) {
        int there = 0;

        if (MPI_Iprobe((int)r, NOTE_TAG, world->roster, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
            there) {
            return true;
        }
    }
    return false;
}

enum eep_status eep_roster_wait(struct eep_xport *xport, uint64_t timeout_ns)
{
    struct eep_world *world = (struct eep_world *)xport;
    const uint64_t start = eep_clock_ns();
    enum eep_status status;

    for (;;) {
        const uint64_t waited_ns = eep_clock_ns() - start;

        (void)all_sent(world);
        answer_call(world);
        if (note_is_there(world)) {
            return EEP_OK;
        }
        if (!is_rank(world) && job_ended(world, &status)) {
            return status;
        }
        if (waited_ns >= timeout_ns) {
            return EEP_FAIL(EEP_ERR_TIMEOUT, "no message for %.3f s",
                            (double)waited_ns / (double)EEP_NS_PER_S);
        }
        eep_wait_nap(EEP_MIN(EEP_MAX(waited_ns / 100, NAP_NS_MIN), NAP_NS_MAX));
    }
}
