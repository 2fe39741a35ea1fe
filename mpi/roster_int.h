/*
 * Private to roster.c, regroup.c, spawn.c: all processes of the job, ranks and parked, and the
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
    EEP_WELCOME_TAG, /* to a guest */
    EEP_LEFT_TAG,    /* from a rank that ends: status; the job's end when it is EEP_OK */
};

/** The leader asks for a new world. */
struct eep_call {
    uint64_t serial;      /* of this attempt; no other has it */
    uint32_t processes;   /* of the job, with the guests */
    uint32_t first_guest; /* origin, or EEP_NO_RANK: no guests are let in */
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

/** A communicator whose members send each other messages. */
struct eep_channel {
    MPI_Comm comm; /* MPI_COMM_NULL: none */
    uint32_t size;
    uint32_t *origins; /* (size): process of each rank */
};

/** What is known of a process. */
struct eep_process {
    uint32_t home;  /* the process on whose pretended node it is, of those that mpirun started */
    bool active;    /* was in the world that was made last */
    bool dead;      /* known to be */
    bool called;    /* by the leader, in its present attempt */
    uint64_t ready; /* serial that it has answered to, for the leader */
};

/** Between two looks at what has come, at most. */
#define EEP_ROSTER_NAP_NS (5 * EEP_NS_PER_MS)

/** In the place of a call's serial: that the job ends is heard. */
#define EEP_END_HEARD UINT64_MAX

struct eep_roster {
    struct eep_channel all;    /* those who were let in */
    struct eep_channel old[2]; /* those before: messages may still come by them for a while, ... */
    uint64_t old_until_ns;     /* ... until then */
    /* Between a process that spawned others and these, its guests, until they are let in: it is
     * rank 0, they follow in the order of their origins. */
    struct eep_channel bridge;
    MPI_Comm crossing;           /* the same processes, for letting the guests in */
    MPI_Comm mates;              /* a guest: all that were spawned with it */
    struct eep_process *process; /* (processes) */
    uint32_t processes;          /* of the job; origins are below it */
    struct eep_letter *letters;  /* on their way out */
    struct eep_mail *mail; /* have come, or are coming, in order; notes of the caller at last */
    struct eep_call *call; /* the last one that came */
    size_t call_room;      /* bytes that `call` has room for */
    uint32_t leader;       /* who sent it, or EEP_NO_RANK */
    uint64_t answered;     /* serial of the last call that this process took part in */
    struct eep_verdict verdict; /* the last one that came */
    bool job_over;              /* the ranks ended in order */
};

#define EEP_PROCESSES_MAX 65536u

static inline size_t eep_call_bytes(uint32_t count)
{
    return sizeof(struct eep_call) + count * sizeof(uint32_t);
}

/** So many processes there are now; those that are new are parked, on the node of `home`. */
EEP_MUST_CHECK enum eep_status eep_roster_grow(struct eep_world *world, uint32_t processes,
                                               uint32_t home);

/** Make room in `call` for so many; it keeps its content. */
EEP_MUST_CHECK enum eep_status eep_roster_call_room(struct eep_roster *roster, uint32_t count);

/** A channel over a new communicator, whose ranks are these processes; the array is taken over. */
void eep_channel_set(struct eep_channel *channel, MPI_Comm comm, uint32_t size, uint32_t *origins);

/** Rank of a process in the channel; false: it is not there. NULL is allowed. */
bool eep_channel_rank(const struct eep_channel *channel, uint32_t origin, int *rank_out);

/** Origins of the ranks of a communicator that is to be the roster. Collective over it. */
EEP_MUST_CHECK enum eep_status eep_roster_read(struct eep_world *world, MPI_Comm comm,
                                               uint32_t **origins_out);

/** Over `comm`, all go on with each other; the channels of before end. The array is taken over. */
void eep_roster_renew(struct eep_world *world, MPI_Comm comm, uint32_t *origins);

/** Guests that cannot be let in any more are told to end, and count as dead. */
void eep_roster_drop_guests(struct eep_world *world);

/** Origin of the first guest of this process, or EEP_NO_RANK. */
uint32_t eep_roster_first_guest(const struct eep_roster *roster);

/** Send to a process; it is copied, and does not wait. A loss is known to eep_roster_pump() too. */
enum eep_status eep_roster_post(struct eep_world *world, uint32_t origin, int tag, const void *data,
                                size_t bytes);

/** Take in what has come, and note who has died. Makes MPI progress. */
void eep_roster_pump(struct eep_world *world);

/** A message of the caller waits to be taken. */
bool eep_roster_has_note(const struct eep_world *world);

/** Parked: answer a call in the middle of something else, unless it names this process. */
void eep_regroup_answer(struct eep_world *world);

/* ---- enter.c ---- */

/** What a process gets when there is a new world. */
struct eep_entry {
    MPI_Comm control, data;
    bool named;
    uint32_t rank; /* then */
};

/** Collective over the processes that were called. False: some died, and all are told so. */
bool eep_enter(struct eep_world *world, const struct eep_call *call, uint32_t leader,
               struct eep_entry *entry_out);

bool eep_roster_names(const uint32_t *origins, uint32_t count, uint32_t origin);

#endif
