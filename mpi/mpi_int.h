/*
 * Private to mpi/: the world, the node's shared-memory segment, waiting, and what the parts offer
 * each other. See README.md of this folder for the map of files.
 */
#ifndef EEP_MPI_INT_H
#define EEP_MPI_INT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mpi.h>

#include "base/mem.h"
#include "base/status.h"
#include "xport/xport.h"

#define EEP_MAIL_BYTES ((size_t)64 << 10) /* a rank's mailbox for control collectives */
#define EEP_LEAVE_TEXT_MAX 440

/*
 * The head of a node's segment. Only atomics are written after the segment was
 * made, `lost`, `event` and `silent_ns` by anybody, the rest of a rank's block by that rank alone.
 */
struct eep_node_head {
    char magic[8];
    uint32_t version;
    uint32_t ranks;
    uint64_t bytes;                                /* of head, rank blocks and mailboxes */
    _Alignas(EEP_CACHE_LINE) atomic_uint event;    /* futex: counts notices to sleepers */
    _Alignas(EEP_CACHE_LINE) atomic_uint sleepers; /* > 0: notices must be sent; may be too high */
    atomic_uint lost; /* world rank + 1 of the first loss that anybody of the node saw; 0 = none */
};

struct eep_node_rank {
    _Alignas(EEP_CACHE_LINE) _Atomic uint64_t round; /* control rounds that this rank has begun */
    _Alignas(EEP_CACHE_LINE) atomic_uint leaving;    /* 1: has given up; leave_text is complete */
    char leave_text[EEP_LEAVE_TEXT_MAX];
    _Alignas(EEP_CACHE_LINE) atomic_uint owner; /* robust futex; the kernel marks it at the end */
    int32_t pid;
    uint64_t pid_namespace;                            /* in which pid means something */
    _Alignas(EEP_CACHE_LINE) _Atomic uint64_t beat_ns; /* its last sign of life */
    atomic_uint exiting;                               /* 1: ends by exit() without having left */
    _Atomic uint64_t silent_ns; /* not 0: was without one for so long, and was killed for it */
};

_Static_assert(sizeof(struct eep_node_head) == 3 * EEP_CACHE_LINE, "shared between processes");
_Static_assert(sizeof(struct eep_node_rank) == 10 * EEP_CACHE_LINE, "shared between processes");

/** This process's view of its node's segment. */
struct eep_node {
    int fd;
    uint64_t end; /* bytes of the file that are given out; the same on all ranks of the node */
    struct eep_node_head *head;
    struct eep_node_rank *ranks;
    struct eep_node_rank **block_of; /* (size): NULL for ranks of other machines */
    unsigned char *mail;             /* (ranks, 2, EEP_MAIL_BYTES) */
    uint64_t round;                  /* control rounds that this rank has begun */
    const uint32_t *rank_of;         /* (node_size): world rank of each rank of the node */
};

struct eep_world {
    struct eep_xport xport; /* first: the interface's head */
    MPI_Comm control;       /* with `data` MPI_COMM_NULL while this process is parked */
    MPI_Comm data;
    struct eep_roster *roster; /* all processes of the job; see roster_int.h */
    bool ulfm;                 /* the launcher switched fault tolerance on */
    bool crowded;              /* more ranks than cores here: do not spin */
    uint64_t timeout_ns;
    uint64_t silent_after_ns; /* or EEP_NEVER_NS */
    uint64_t answer_ns;       /* for all to be ready to regroup */
    struct eep_node node;
    uint32_t *node_of;           /* (size) */
    uint32_t *node_rank_of;      /* (size): place of each rank within its node */
    uint32_t *node_ranks;        /* (node_size): world ranks of this node */
    bool *is_here;               /* (size): on this machine */
    uint32_t *origin_of;         /* (size) */
    uint32_t node_size;          /* pretended nodes: ranks of each; 0: real ones */
    uint32_t origin;             /* rank at the start of the job */
    uint32_t losses;             /* worlds that ended by one */
    bool outgrown;               /* MPI_COMM_WORLD is not all of the job */
    struct eep_spawn_try *spawn; /* under way, or NULL */
    uint32_t was;                /* rank in the last world that all ranks of it had joined */
    bool death;                  /* a rank of this world ended without leaving */
    enum eep_status broken;      /* EEP_OK, or why no collective call can work any more */
};

/* ---- wait.c ---- */

/** What is waited for; the head of a larger struct that `ready` knows. */
struct eep_wait {
    const char *what; /* shown in error texts */
    bool (*ready)(struct eep_wait *wait);
    uint32_t missing; /* set by ready(): a world rank that is waited for, or EEP_NO_RANK */
};

/**
 * Wait until wait->ready(). Spins briefly, yields, then sleeps with growing care for the cores.
 *
 * @retval EEP_ERR_PEER_LOST  a rank died or gave up; the text names it and what was waited for
 * @retval EEP_ERR_TIMEOUT    the deadline passed
 */
EEP_MUST_CHECK enum eep_status eep_wait_until(struct eep_world *world, struct eep_wait *wait);

/** Sleep, to look again. */
void eep_wait_nap(uint64_t ns);

/** The longer, the longer it was waited already, up to `most_ns`. */
void eep_wait_nap_after(uint64_t waited_ns, uint64_t most_ns);

/** Wake the ranks of this node that sleep in eep_wait_until(), after a flag was set. */
void eep_wait_notify(struct eep_world *world);

/** Wait for a request; an error of it becomes our status. The request is leaked on failure. */
EEP_MUST_CHECK enum eep_status eep_wait_request(struct eep_world *world, const char *what,
                                                MPI_Request *request);

/** The same for several. */
EEP_MUST_CHECK enum eep_status eep_wait_requests(struct eep_world *world, const char *what,
                                                 MPI_Request *requests, size_t count);

/* ---- ulfm.c ---- */

/** True if the launcher switched ULFM on. */
bool eep_ulfm_active(void);

/** World rank of a rank that MPI knows to be dead, or EEP_NO_RANK. Makes MPI progress. */
uint32_t eep_ulfm_failed_rank(struct eep_world *world);

/** Tell MPI that a rank has ended: the launcher tells it later, or not at all (after a status other
 *  than 0). False: this Open MPI has no way for that. */
bool eep_ulfm_report(struct eep_world *world, uint32_t rank);

/** Revoke the world's communicators: all calls of the others on them fail. */
void eep_ulfm_revoke(struct eep_world *world);

/** MPI's code for that if somebody has done so, or MPI_SUCCESS. */
int eep_ulfm_revocation(struct eep_world *world);

/** After that, make new ones of those that are left. Collective among them. False: they could not
 *  agree. */
bool eep_ulfm_shrink(struct eep_world *world, MPI_Comm *control, MPI_Comm *data);

/** The steps of that on a communicator of the caller; false on all alike. */
bool eep_ulfm_shrink_one(MPI_Comm comm, MPI_Comm *left_out);
bool eep_ulfm_agree(MPI_Comm comm, bool ok);
void eep_ulfm_revoke_one(MPI_Comm comm);

/** The lowest rank of `comm`, from `from` on, that MPI knows to be dead, or EEP_NO_RANK. */
uint32_t eep_ulfm_next_failed(struct eep_world *world, MPI_Comm comm, uint32_t from);

/** Receive from any source again, though some ranks have died. */
void eep_ulfm_acknowledge(MPI_Comm comm);

/** Do not pass on what Open MPI says, while a window is made. */
void eep_ulfm_quiet(bool quiet);

/** Whether an MPI return code tells of a lost peer. */
bool eep_ulfm_is_loss(int error_class);

/* ---- start.c ---- */

/** True if the environment says that a launcher started this process. */
bool eep_start_launched(void);

/** MPI_Init_thread with eep's settings. */
EEP_MUST_CHECK enum eep_status eep_start_mpi(void);

/** From now on MPI gives the core away while it waits: there may be more processes than cores. */
void eep_start_yield(void);

/** End the process with `exit_status` unless eep_watch_end() is called in time. */
void eep_watch_begin(const char *what, uint64_t limit_ns, int exit_status);
void eep_watch_end(void);

/* ---- presence.c ---- */

/** Show to the other ranks of this machine that this process lives, in this rank's block. */
EEP_MUST_CHECK enum eep_status eep_presence_begin(struct eep_world *world);

/** No more; before the block is unmapped. */
void eep_presence_end(void);

/** A sign of life between two beats, so that the time of an end is known better. */
void eep_presence_show(struct eep_world *world);

/** Has the process of this block ended, or was it killed for its silence? */
bool eep_presence_ended(struct eep_node_rank *block);

/** SIGKILL for it. False: it has ended, or cannot be reached. */
bool eep_presence_kill(struct eep_node_rank *block);

/** A rank of this machine that has ended, or was silent and was killed, or EEP_NO_RANK. */
uint32_t eep_presence_lost_rank(struct eep_world *world);

/* ---- world.c ---- */

/** Turn an MPI return code into our status; "MPI_X" in `call`. */
EEP_MUST_CHECK enum eep_status eep_mpi_status(struct eep_world *world, int rc, const char *call,
                                              const char *what);

/** Record that `rank` is gone; returns EEP_ERR_PEER_LOST with a text that names the first loss. */
enum eep_status eep_world_lost(struct eep_world *world, uint32_t rank, const char *what);

/** A loss begins, if none is known. */
void eep_world_begin_loss(struct eep_world *world);

/** A rank of another node that has told that it gave up, or EEP_NO_RANK. */
uint32_t eep_world_far_leaver(struct eep_world *world);

/** This process's rank, and how many there are, in the world's communicator. */
EEP_MUST_CHECK enum eep_status eep_world_find_place(struct eep_world *world, const char *what);

/** Find the topology and make the node's segment, once rank and size are known. Collective. */
EEP_MUST_CHECK enum eep_status eep_world_settle(struct eep_world *world);
void eep_world_forget_topology(struct eep_world *world);

/* ---- recover.c ---- */

enum eep_status eep_world_recover(struct eep_xport *xport, uint32_t *was_out);

/* ---- roster.c ---- */

/** Nobody yet. */
EEP_MUST_CHECK enum eep_status eep_roster_open(struct eep_world *world);

/** All that were started; the first `active` of them are ranks. Collective. */
EEP_MUST_CHECK enum eep_status eep_roster_start(struct eep_world *world, uint32_t processes,
                                                uint32_t active);

/** After a loss: the ranks of before that are none now are dead. */
void eep_roster_recovered(struct eep_world *world);

/** Was this process spawned, and not yet let in? */
bool eep_roster_is_guest(const struct eep_world *world);

/** Tell the parked that this rank ends, and so (rank 0, EEP_OK) the job. */
void eep_roster_tell_end(struct eep_world *world, enum eep_status status);

enum eep_status eep_roster_send(struct eep_xport *xport, uint32_t origin, const void *data,
                                size_t bytes);
bool eep_roster_take(struct eep_xport *xport, uint32_t *from_out, void *data, size_t capacity,
                     size_t *bytes_out);
bool eep_roster_lost(struct eep_xport *xport, uint32_t origin);
enum eep_status eep_roster_wait(struct eep_xport *xport, uint64_t timeout_ns);

/* ---- spawn.c ---- */

/** True in a process that was spawned by another one of the job. */
bool eep_spawned(void);

/** Join as a guest of that process, parked. */
EEP_MUST_CHECK enum eep_status eep_spawn_join(struct eep_world *world);

enum eep_status eep_spawn_begin(struct eep_xport *xport, const struct eep_spawn *spawn);
enum eep_status eep_spawn_test(struct eep_xport *xport, uint32_t *first_out);

/* ---- regroup.c ---- */

enum eep_status eep_world_regroup(struct eep_xport *xport, const uint32_t *origins, uint32_t count);

/* ---- world.c ---- */

/* Return when an MPI call fails. */
#define EEP_MPI_TRY(world, what, call) EEP_TRY(eep_mpi_status((world), (call), #call, (what)))

/* ---- shm.c ---- */

/** Make and attach the node's segment. Collective over the world. */
EEP_MUST_CHECK enum eep_status eep_node_open(struct eep_world *world);
void eep_node_close(struct eep_world *world);

/** A rank of this machine that gave up or ended, as its world rank, or EEP_NO_RANK. */
uint32_t eep_node_gone_rank(struct eep_world *world);

/** Map `bytes` more of the segment's file. Collective over the world, the same order everywhere;
 *  bytes must be the same on all ranks of a node. Nothing is allocated yet. */
EEP_MUST_CHECK enum eep_status eep_node_map(struct eep_world *world, const char *what, size_t bytes,
                                            uint64_t *offset_out, void *base_out);

/** Map a part of the file a second time, over the pages at `address`. */
EEP_MUST_CHECK enum eep_status eep_node_map_over(struct eep_world *world, const char *what,
                                                 uint64_t offset, size_t bytes, void *address);

/** Take memory for a part of the file, so that touching it cannot fail later. */
EEP_MUST_CHECK enum eep_status eep_node_reserve(struct eep_world *world, const char *what,
                                                uint64_t offset, size_t bytes);

/** Give a part's memory back. */
void eep_node_release(struct eep_world *world, uint64_t offset, size_t bytes);

/* ---- control.c ---- */

enum eep_status eep_control_allgather(struct eep_xport *xport, const char *what, const void *in,
                                      size_t bytes, void *out);
enum eep_status eep_control_broadcast(struct eep_xport *xport, const char *what, uint32_t root,
                                      void *buffer, size_t bytes);
enum eep_status eep_control_gather(struct eep_xport *xport, const char *what, uint32_t root,
                                   const void *in, size_t in_bytes, const size_t *bytes, void *out);

/** One status for all: the first failure, with its text. For set-up. */
EEP_MUST_CHECK enum eep_status eep_control_agree(struct eep_world *world, const char *what,
                                                 enum eep_status status);

/* ---- exchange.c ---- */

enum eep_status eep_exchange_open(struct eep_xport *xport, const struct eep_exchange_params *params,
                                  struct eep_exchange **exchange_out);
void *eep_exchange_rows(struct eep_exchange *exchange);
enum eep_status eep_exchange_dispatch(struct eep_exchange *exchange,
                                      const struct eep_dispatch *send,
                                      struct eep_received *received_out);
enum eep_status eep_exchange_combine(struct eep_exchange *exchange, const void **rows_out);
void eep_exchange_close(struct eep_exchange *exchange);
size_t eep_exchange_bytes(const struct eep_exchange *exchange);

/* ---- board.c ---- */

enum eep_status eep_board_open(struct eep_xport *xport, const char *what, size_t bytes,
                               struct eep_board **board_out);
enum eep_status eep_board_put(struct eep_board *board, size_t offset, const void *in, size_t bytes);
enum eep_status eep_board_get(struct eep_board *board, size_t offset, void *out, size_t bytes);
enum eep_status eep_board_add(struct eep_board *board, size_t offset, uint64_t value,
                              uint64_t *before_out);
void eep_board_close(struct eep_board *board);

/* ---- transfer.c ---- */

enum eep_status eep_transfer_begin(struct eep_xport *xport, const char *what, uint32_t peer,
                                   uint32_t tag, bool send, void *buffer, size_t bytes,
                                   struct eep_transfer **transfer_out);
enum eep_status eep_transfer_test(struct eep_transfer *transfer, size_t *progress_out);

#endif
