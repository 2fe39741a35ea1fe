/*
 * What moves between ranks: the interface of a transport, filled in by mpi/ and by the in-process
 * loopback.
 *
 * Control: small collectives, called by all ranks in the same order, each with a name that a
 * deadline's message shows. Data: an exchange, which carries token rows to the ranks that execute
 * their experts (dispatch) and the experts' outputs back (combine).
 *
 *     x rows ──dispatch──► received rows + (row, slot) pairs ──experts──► y rows ──combine──► rows
 *     (token, hidden)      each token once per rank            one per pair      (token, top-k)
 *
 * Every wait has a name and a deadline, notices a lost peer, spins only briefly and then yields.
 * A transport belongs to one thread at a time.
 */
#ifndef EEP_XPORT_H
#define EEP_XPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define EEP_NO_RANK UINT32_MAX
#define EEP_NEVER_NS UINT64_MAX
#define EEP_SPAWN_MAX 64u          /* processes at a time */
#define EEP_ROSTER_BYTES_MAX 4096u /* in one message between processes */

/** Where this rank stands. Fixed for the life of the transport (one epoch). */
struct eep_topology {
    uint32_t rank;
    uint32_t size;
    uint32_t node; /* 0 .. nodes-1; nodes are numbered by their lowest rank */
    uint32_t nodes;
    uint32_t node_rank; /* 0 = the node's lowest rank, its authority */
    uint32_t node_size;
    const uint32_t *node_of; /* (size): node of each rank */
    /* (size): number of each rank's process, for the job's life: its rank among all that were
     * started. A parked process has rank EEP_NO_RANK and size 0. */
    const uint32_t *origin_of;
    uint32_t processes; /* of the job, with the parked and the dead: origins are below it */
};

/** Size of an exchange; the same on every rank. */
struct eep_exchange_params {
    uint32_t max_tokens; /* of one rank in one dispatch */
    uint32_t top_k;
    size_t x_row_bytes; /* a token row on its way out */
    size_t y_row_bytes; /* an expert's output row on its way back; multiple of a cache line */
};

/** What a rank sends. Plain data of the caller, needed until dispatch returns. */
struct eep_dispatch {
    uint32_t tokens;       /* rows in x, 0 .. max_tokens */
    const uint32_t *ranks; /* (tokens, top_k): executing rank, or EEP_NO_RANK to leave one out */
    const uint32_t *slots; /* (tokens, top_k): physical slot there */
};

/**
 * What a rank has received: rows, and pairs of a row and the slot that it goes to, both ordered by
 * source rank, token, top-k position. Of other ranks, each token that has a pair here is a row; of
 * this rank, all tokens are, since they stay where the caller put them. Owned by the exchange: y is
 * valid until the next dispatch, the rest until the caller writes exchange_rows again.
 */
struct eep_received {
    const void *x; /* (rows), x_row_bytes apart, contiguous */
    uint32_t rows;
    uint32_t pairs;
    const uint32_t *pair_row;  /* (pairs): index into x */
    const uint32_t *pair_slot; /* (pairs) */
    void *y; /* (pairs), y_row_bytes apart: the caller writes each pair's output */
};

struct eep_xport;
struct eep_exchange;

/**
 * A node's board: memory of its authority (node rank 0) that the node's other ranks reach by
 * one-sided operations alone, so that a rank that has died, or is busy, holds nobody up.
 */
struct eep_board;

/** New processes of the job. */
struct eep_spawn {
    char *const *argv;   /* program, as a path, and arguments; ends with NULL; copied */
    uint32_t count;      /* 1 .. EEP_SPAWN_MAX */
    uint32_t beside;     /* they belong to the pretended node of this process, or, EEP_NO_RANK, of
                            rank 0; without pretended nodes to the machine's */
    uint64_t serial;     /* not 0: given to them as xport.spawn_serial */
    uint64_t timeout_ns; /* for all to have joined; 0 = 30 s */
};

/** A message that is on its way beside the steps. */
struct eep_transfer;

struct eep_xport_ops {
    const char *name;

    /** Gather `bytes` from each rank into out (size, bytes) on every rank. */
    enum eep_status (*allgather)(struct eep_xport *x, const char *what, const void *in,
                                 size_t bytes, void *out);

    /** Copy `bytes` of `root` to all. */
    enum eep_status (*broadcast)(struct eep_xport *x, const char *what, uint32_t root, void *buffer,
                                 size_t bytes);

    /** Gather in_bytes of each rank, in rank order and without gaps, into `out` on `root`.
     *  `bytes` (size): what each rank sends; known to all (allgather it first). */
    enum eep_status (*gather)(struct eep_xport *x, const char *what, uint32_t root, const void *in,
                              size_t in_bytes, const size_t *bytes, void *out);

    /** Collective. Memory for the sizes given, shared on a node. */
    enum eep_status (*exchange_open)(struct eep_xport *x, const struct eep_exchange_params *params,
                                     struct eep_exchange **exchange_out);

    /** The rows that the caller fills before dispatch: (max_tokens), x_row_bytes apart. They must
     *  not be written between dispatch and the return of combine. */
    void *(*exchange_rows)(struct eep_exchange *exchange);

    /** Collective, ranks without tokens too. */
    enum eep_status (*dispatch)(struct eep_exchange *exchange, const struct eep_dispatch *send,
                                struct eep_received *received_out);

    /** Collective; the caller has written received.y. Sets rows_out (tokens, top_k) to the output
     *  row of each (token, top-k position), NULL where it was left out; readable until the next
     *  dispatch. */
    enum eep_status (*combine)(struct eep_exchange *exchange, const void **rows_out);

    /** Local. NULL is allowed. */
    void (*exchange_close)(struct eep_exchange *exchange);

    /** Bytes of memory that the exchange holds for this rank. */
    size_t (*exchange_bytes)(const struct eep_exchange *exchange);

    /** Collective. Zeroed; `bytes` is the same on all ranks of a node. */
    enum eep_status (*board_open)(struct eep_xport *x, const char *what, size_t bytes,
                                  struct eep_board **board_out);

    /** Write to the board of this rank's node, the authority too; done there when it returns. */
    enum eep_status (*board_put)(struct eep_board *board, size_t offset, const void *in,
                                 size_t bytes);

    /** Read from it. What others wrote before a collective that both sides took part in is seen. */
    enum eep_status (*board_get)(struct eep_board *board, size_t offset, void *out, size_t bytes);

    /** Add to a 64-bit number at a multiple of 8, in one step against all others. */
    enum eep_status (*board_add)(struct eep_board *board, size_t offset, uint64_t value,
                                 uint64_t *before_out);

    /** Collective while nobody is lost, else local. NULL is allowed. */
    void (*board_close)(struct eep_board *board);

    /**
     * Begin to send `bytes` to a rank, or to receive them from it; the buffer is the transport's
     * until the end. Sender and receiver name the same `tag` (0 .. 2^20 - 1), one transfer at a
     * time for each pair of ranks, direction and tag. Not to this rank itself.
     */
    enum eep_status (*transfer_begin)(struct eep_xport *x, const char *what, uint32_t peer,
                                      uint32_t tag, bool send, void *buffer, size_t bytes,
                                      struct eep_transfer **transfer_out);

    /**
     * Move the transfer on and look; does not wait, and takes no longer than the copy of about a
     * MiB. `progress_out` counts bytes from the start that have arrived (or left); the transfer has
     * ended, and is freed, when it equals `bytes` or an error is returned.
     */
    enum eep_status (*transfer_test)(struct eep_transfer *transfer, size_t *progress_out);

    /**
     * After a call failed with EEP_ERR_PEER_LOST: go on with the ranks that are left. They get new
     * numbers, in their old order, and topo is new. Exchanges and boards of before must have been
     * closed; transfers of before are lost, and their buffers must stay. Collective among those
     * that are left: all of them come here, since all calls fail from a loss on.
     *
     * @param was_out              (old size) rank that each new rank had
     * @retval EEP_ERR_PEER_LOST   one more was lost: call it again
     * @retval EEP_ERR_UNSUPPORTED the launcher has no fault tolerance
     */
    enum eep_status (*recover)(struct eep_xport *x, uint32_t *was_out);

    /**
     * Make a new world of the processes `origins` (count), distinct, in the order of their new
     * ranks: rank i is process origins[i]. Called, with the same list, by all ranks of the present
     * world and by the parked processes that are named; other parked processes take part from
     * within roster_wait() and roster_take(), which they must be calling. Exchanges, boards and
     * transfers of before must have ended. A rank that is not named is parked afterwards. topo is
     * new.
     *
     * Ranks stand still for as long as the slowest process takes to come here, at most answer_ns.
     * A parked process waits five times as long for the ranks to come, and returns as soon as they
     * have given up.
     *
     * Spawned processes are let in by the first call that names one of them, all together; those
     * that are not named are parked then.
     *
     * @retval EEP_ERR_TIMEOUT    some process did not come; all is as before
     * @retval EEP_ERR_STALE      a process that is named, and no rank, has died; all is as before
     * @retval EEP_ERR_PEER_LOST  a process died: ranks (topo.rank is not EEP_NO_RANK) call
     *                            recover(), and find by topo.origin_of who is left; parked
     *                            processes are parked as before
     * @retval EEP_ERR_UNSUPPORTED the launcher has no fault tolerance, or there is one rank only
     */
    enum eep_status (*regroup)(struct eep_xport *x, const uint32_t *origins, uint32_t count);

    /**
     * Start new processes of the job, on this machine; by rank 0, which goes on meanwhile. They
     * join by eep_world_open(), and are parked. Until regroup() lets them in, rank 0 alone can
     * send them messages, and they end when it does. Each must call eep_world_open() within some
     * seconds; `program --version` must work, without MPI. At a time, one spawn: the next may begin
     * when the processes of this one have been let in, or are lost.
     *
     * @retval EEP_ERR_IO          the program does not exist, or cannot be run
     * @retval EEP_ERR_UNSUPPORTED the launcher has no fault tolerance, or has several machines
     */
    enum eep_status (*spawn_begin)(struct eep_xport *x, const struct eep_spawn *spawn);

    /**
     * Look whether they are there; rank 0. Does not wait. EEP_OK: they have the origins first_out,
     * first_out + 1, ..., and topo.processes has grown. If one of them dies before they are let in,
     * all are lost.
     *
     * @retval EEP_ERR_AGAIN    not yet
     * @retval EEP_ERR_TIMEOUT  not in time; they may have ended at once, and another spawn may
     *                          be tried
     * @retval other            it failed
     */
    enum eep_status (*spawn_test)(struct eep_xport *x, uint32_t *first_out);

    /**
     * Send a message to another process of the job, rank or parked; it is copied. Does not wait.
     *
     * @retval EEP_ERR_PEER_LOST  it is known to be dead; no rank of the world need be
     */
    enum eep_status (*roster_send)(struct eep_xport *x, uint32_t origin, const void *data,
                                   size_t bytes);

    /**
     * The next message, if there is one. `capacity` is at least EEP_ROSTER_BYTES_MAX. Ranks may
     * call it at any time, also between steps: it takes some microseconds when there is none.
     */
    bool (*roster_take)(struct eep_xport *x, uint32_t *from_out, void *data, size_t capacity,
                        size_t *bytes_out);

    /**
     * Is the process known to be dead? Meant for parked ones; ranks are noticed by each collective.
     * Known after 10 to 100 ms, as the launcher tells it, if roster_take() or roster_wait() is
     * called meanwhile.
     */
    bool (*roster_lost)(struct eep_xport *x, uint32_t origin);

    /**
     * Sleep until there is a message. For parked processes.
     *
     * @retval EEP_ERR_TIMEOUT    none came
     * @retval EEP_ERR_REVOKED    the ranks have ended in order: close, with EEP_OK
     * @retval EEP_ERR_PEER_LOST  all ranks have died or given up: close, with this status
     */
    enum eep_status (*roster_wait)(struct eep_xport *x, uint64_t timeout_ns);

    /** Leave in order. Collective when `status` is EEP_OK, else local and at once. */
    void (*close)(struct eep_xport *x, enum eep_status status);
};

/**
 * When the last loss went through its stages, by eep_clock_ns(); 0: not yet, or not known. New with
 * each loss, complete after recover(). For logs; always 0 on the loopback.
 */
struct eep_loss_times {
    uint64_t last_seen_ns; /* the lost rank's last sign of life; 0 when it was on another machine */
    uint64_t noticed_ns;   /* a call failed on this rank */
    uint64_t agreed_ns;    /* the ranks that are left knew who they are */
};

/** Head of every transport; implementations put their own fields behind it. */
struct eep_xport {
    const struct eep_xport_ops *ops;
    struct eep_topology topo;
    struct eep_loss_times loss;
    uint64_t spawn_serial; /* of the spawn that started this process; 0: the launcher did */
};

/** How to join the world. */
struct eep_world_params {
    uint32_t node_size; /* every so many ranks are one pretended node; 0 = as the machines are
                           (or EEP_NODE_SIZE from the environment) */
    uint32_t active; /* only the first so many processes are ranks, the rest is parked; 0 = all */
    uint64_t timeout_ns; /* longest wait for another rank; 0 = default (or EEP_TIMEOUT seconds) */
    /* With fault tolerance, a rank whose process has stood still for so long (stopped, not busy) is
     * killed and lost; 0 = 10 s (or EEP_SILENT_AFTER seconds, 0 there: never), or EEP_NEVER_NS. */
    uint64_t silent_after_ns;
    uint64_t answer_ns; /* longest wait of regroup() for a process; 0 = 2 s */
};

/**
 * Join the ranks that were started with this one: MPI when a launcher started it, else one rank.
 * Called once per process, from the main thread.
 *
 * @retval EEP_ERR_FATAL  MPI cannot be started; the text says why
 */
EEP_MUST_CHECK enum eep_status eep_world_open(const struct eep_world_params *params,
                                              struct eep_xport **xport_out);

/** One rank in this process, for --without-mpi, for runs without a launcher, and for tests. */
EEP_MUST_CHECK enum eep_status eep_loopback_open(struct eep_xport **xport_out);

#endif
