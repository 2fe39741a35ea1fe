/*
 * All processes of the job, for their whole life, ranks and parked ones: messages between them, and
 * who has died.
 *
 * They share one communicator, the roster, which is never revoked, so that it goes on working
 * whoever dies. A process's rank there is its origin, its number for the job's life.
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

#define SEND_NS (200 * EEP_NS_PER_MS) /* for the last messages to go out */
#define NAP_NS_MIN (EEP_NS_PER_MS / 20)
#define NAP_NS_MAX (5 * EEP_NS_PER_MS)
#define PUMPS_MAX 64 /* messages that are taken in at a time */

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

enum eep_status eep_roster_open(struct eep_world *world, uint32_t processes, uint32_t active)
{
    struct eep_roster *r;

    EEP_TRY(eep_mem_alloc(1, sizeof(*r), "roster", &r));
    *r = (struct eep_roster){.comm = MPI_COMM_NULL, .processes = processes, .leader = EEP_NO_RANK};
    world->roster = r;
    EEP_TRY(eep_mem_alloc(processes, sizeof(bool), "roster", &r->active));
    EEP_TRY(eep_mem_alloc(processes, sizeof(bool), "roster", &r->dead));
    EEP_TRY(eep_mem_alloc(processes, sizeof(bool), "roster", &r->called));
    EEP_TRY(eep_mem_alloc(processes, sizeof(uint64_t), "roster", &r->ready));
    EEP_TRY(eep_mem_alloc(1, eep_call_bytes(processes), "roster", &r->call));
    for (uint32_t o = 0; o < active; o++) {
        r->active[o] = true;
    }
    EEP_MPI_TRY(world, "joining", MPI_Comm_dup(MPI_COMM_WORLD, &r->comm));
    EEP_MPI_TRY(world, "joining", MPI_Comm_set_errhandler(r->comm, MPI_ERRORS_RETURN));
    return EEP_OK;
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

enum eep_status eep_roster_post(struct eep_world *world, uint32_t origin, int tag, const void *data,
                                size_t bytes)
{
    struct eep_roster *r = world->roster;
    struct eep_letter *letter = malloc(sizeof(*letter) + bytes);

    if (letter == NULL) {
        return EEP_FAIL(EEP_ERR_NOMEM, "a message to process %u: no memory", origin);
    }
    (void)all_sent(r);
    if (bytes > 0) {
        memcpy(letter->data, data, bytes);
    }
    if (r->dead[origin] || MPI_Isend(letter->data, (int)bytes, MPI_BYTE, (int)origin, tag, r->comm,
                                     &letter->request) != MPI_SUCCESS) {
        free(letter);
        return EEP_FAIL(EEP_ERR_PEER_LOST, "process %u is lost", origin);
    }
    letter->next = r->letters;
    r->letters = letter;
    return EEP_OK;
}

void eep_roster_tell_end(struct eep_world *world, enum eep_status status)
{
    struct eep_roster *r = world->roster;
    const int32_t left = status;
    const uint64_t end_ns = eep_clock_ns() + SEND_NS;

    if (r == NULL || r->comm == MPI_COMM_NULL ||
        (status == EEP_OK && world->xport.topo.rank != 0)) {
        return;
    }
    eep_ulfm_mark_failed(world, r->comm, r->dead);
    for (uint32_t o = 0; o < r->processes; o++) {
        if (!r->active[o] && !r->dead[o] && o != world->origin) {
            (void)eep_roster_post(world, o, EEP_LEFT_TAG, &left, sizeof(left));
        }
    }
    while (!all_sent(r) && eep_clock_ns() < end_ns) {
        eep_wait_nap(EEP_NS_PER_MS / 10);
    }
}

/* ---- in ---- */

/* Begin to receive one more message, if there is one. */
static bool begin_mail(struct eep_world *world)
{
    struct eep_roster *r = world->roster;
    struct eep_mail **at = &r->mail;
    MPI_Status status;
    int there = 0, bytes = 0;

    if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, r->comm, &there, &status) != MPI_SUCCESS) {
        eep_ulfm_acknowledge(r->comm); /* one that has died must not hide the others */
        if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, r->comm, &there, &status) != MPI_SUCCESS) {
            return false;
        }
    }
    if (!there || MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS) {
        return false;
    }
    struct eep_mail *mail = malloc(sizeof(*mail) + (size_t)bytes);
    if (mail == NULL) {
        return false; /* it stays where it is */
    }
    *mail = (struct eep_mail){
        .from = (uint32_t)status.MPI_SOURCE, .tag = status.MPI_TAG, .bytes = (size_t)bytes};
    if (MPI_Irecv(mail->data, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, r->comm,
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

/* True when a message of another kind than the caller's was dealt with. */
static bool deal_with(struct eep_world *world, const struct eep_mail *mail)
{
    struct eep_roster *r = world->roster;

    switch (mail->tag) {
    case EEP_CALL_TAG:
        if (!r->dead[mail->from] && mail->bytes <= eep_call_bytes(r->processes)) {
            memcpy(r->call, mail->data, mail->bytes);
            r->leader = mail->from;
        }
        return true;
    case EEP_READY_TAG:
        memcpy(&r->ready[mail->from], mail->data, sizeof(uint64_t));
        return true;
    case EEP_VERDICT_TAG:
        memcpy(&r->verdict, mail->data, sizeof(r->verdict));
        return true;
    case EEP_LEFT_TAG: {
        int32_t status;

        memcpy(&status, mail->data, sizeof(status));
        r->job_over = r->job_over || status == EEP_OK;
        r->active[mail->from] = false;
        return true;
    }
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

void eep_roster_pump(struct eep_world *world)
{
    struct eep_roster *r = world->roster;
    struct eep_mail **at = &r->mail;

    (void)all_sent(r);
    for (int i = 0; i < PUMPS_MAX && begin_mail(world); i++) {
    }
    eep_ulfm_mark_failed(world, r->comm, r->dead);
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
    return world->roster->dead[origin];
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

bool eep_roster_has_note(const struct eep_world *world)
{
    return *next_note(world->roster) != NULL;
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

/* Parked: true with the status when the job has ended. */
static bool job_ended(const struct eep_roster *r, enum eep_status *status_out)
{
    if (r->job_over) {
        *status_out = EEP_FAIL(EEP_ERR_REVOKED, "the job has ended");
        return true;
    }
    for (uint32_t o = 0; o < r->processes; o++) {
        if (r->active[o] && !r->dead[o]) {
            return false;
        }
    }
    *status_out = EEP_FAIL(EEP_ERR_PEER_LOST, "all ranks have ended");
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
        if (xport->topo.rank == EEP_NO_RANK && job_ended(world->roster, &status)) {
            return status;
        }
        if (waited_ns >= timeout_ns) {
            return EEP_FAIL(EEP_ERR_TIMEOUT, "no message for %.3f s",
                            (double)waited_ns / (double)EEP_NS_PER_S);
        }
        eep_wait_nap(EEP_MIN(EEP_MAX(waited_ns / 100, NAP_NS_MIN), NAP_NS_MAX));
    }
}
