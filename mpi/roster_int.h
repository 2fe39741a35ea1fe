/*
 * Private to roster.c, regroup.c: all processes of the job, ranks and parked, and the
 * messages between them.
 */
#ifndef EEP_ROSTER_INT_H
#define EEP_ROSTER_INT_H

#include "mpi_int.h"

/* Tags of messages. */
enum {
    EEP_NOTE_TAG = 1, /* the caller's */
    EEP_CALL_TAG,
    EEP_READY_TAG,
    EEP_VERDICT_TAG,
    EEP_LEFT_TAG, /* from a rank that ends: status; the job's end when it is EEP_OK */
};

/** The leader asks for a new world. */
struct eep_call {
    uint64_t serial; /* of this attempt; no other has it */
    uint32_t count;
    uint32_t origins[]; /* (count): process of each new rank */
};

/** What it decided when all had answered, or not. */
struct eep_verdict {
    uint64_t serial;
    int32_t status; /* EEP_OK: go */
    uint32_t lost;  /* origin, with EEP_ERR_PEER_LOST; that did not answer, with EEP_ERR_TIMEOUT */
};

struct eep_letter;
struct eep_mail;

struct eep_roster {
    MPI_Comm comm;              /* all processes of the job; a process's rank there is its origin */
    uint32_t processes;         /* so many */
    bool *active;               /* (processes): was in the world that was made last */
    bool *dead;                 /* (processes): known to be */
    bool *called;               /* (processes): work space of the leader */
    uint64_t *ready;            /* (processes): serial that each has answered to, for the leader */
    struct eep_letter *letters; /* on their way out */
    struct eep_mail *mail; /* have come, or are coming, in order; notes of the caller at last */
    struct eep_call *call; /* the last one that came; room for the largest */
    uint32_t leader;       /* who sent it, or EEP_NO_RANK */
    uint64_t answered;     /* serial of the last call that this process took part in */
    struct eep_verdict verdict; /* the last one that came */
    bool job_over;              /* the ranks ended in order */
};

static inline size_t eep_call_bytes(uint32_t count)
{
    return sizeof(struct eep_call) + count * sizeof(uint32_t);
}

/** Send to a process; it is copied, and does not wait. A loss is known to eep_roster_pump() too. */
enum eep_status eep_roster_post(struct eep_world *world, uint32_t origin, int tag, const void *data,
                                size_t bytes);

/** Take in what has come, and note who has died. Makes MPI progress. */
void eep_roster_pump(struct eep_world *world);

/** A message of the caller waits to be taken. */
bool eep_roster_has_note(const struct eep_world *world);

/** Parked: answer a call in the middle of something else, unless it names this process. */
void eep_regroup_answer(struct eep_world *world);

bool eep_roster_names(const uint32_t *origins, uint32_t count, uint32_t origin);

#endif
