/*
 * The weight cache of a node: experts in files of shared memory that outlive every process.
 *
 *     BASE/eep-KEY/record    who may change what, and which expert is in which slot, by version
 *     BASE/eep-KEY/dense     one blob: the weights that are not experts
 *     BASE/eep-KEY/seat-NNN  frames: one expert's packed weights each, and spare ones
 *
 * Many readers, one writer, copy on write: a crash at any instruction leaves the old or the new
 * version, never a mixture. It survives the death of processes, not that of the machine. All here
 * is local to one node; that several nodes change together is the caller's protocol, for which
 * prepare, commit and resolve are separate.
 *
 * Life of a cache, in the order of calls:
 *
 *     open                                   attach, or create with the map of version 0
 *     status                                 what is there: version, digest, prepared, dirty
 *     resolve, repair, wait                  if a mover died or is at work
 *     dense_open [fill, dense_end]           each part is filled once per node: the first process
 *     seat_open [frame_begin/end, seat_end]  fills, the others wait; a dead filler is replaced
 *     pin -> view                            route with a version; slot -> frame
 *     begin, take, frame_begin/end,          a move, while views of all engines stay valid
 *       prepare, commit, leave | abort
 *     unpin, close                           the last one removes a cache that nobody keeps
 *
 * Processes: each rank of each engine on the node opens the cache once; a second open of the same
 * cache in one process is refused, since closing it would drop the locks of the first (POSIX byte
 * locks). Never open the record file by other means in such a process. A handle does not work in a
 * forked child. Ranks of one engine give the same engine id; one of them, the node's authority, is
 * the mover and calls begin, prepare, commit, abort, resolve and repair; any of them may take and
 * fill frames of the seats that it executes while their engine's move is pending.
 *
 * Threads: one thread at a time per handle, except that eep_wcache_view_slot(),
 * eep_wcache_frame_begin(), eep_wcache_frame_end() for different frames and
 * eep_wcache_frame_digest() and the two populate functions may run beside each other and beside
 * everything but close.
 *
 * Failures: EEP_ERR_AGAIN is "busy" (try later); EEP_ERR_STALE and EEP_ERR_INVALID are "refused"
 * (another state, key or argument; trying again does not help); EEP_ERR_CACHE_BAD is damage or a
 * dirty record: nothing was changed, repair or drop it; EEP_ERR_TIMEOUT a wait that ended;
 * EEP_ERR_NOMEM no room; EEP_ERR_IO a system call, named. The text has the reason.
 */
#ifndef EEP_WCACHE_H
#define EEP_WCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ids.h"
#include "base/status.h"

#define EEP_WCACHE_NODE_MAX 64
#define EEP_WCACHE_NAME_MAX 64
#define EEP_WCACHE_SOURCE_MAX 2048
#define EEP_WCACHE_LAYERS_MAX 512
#define EEP_WCACHE_PATH_MAX 1024
#define EEP_WCACHE_DIGEST_BYTES 32 /* SHA-256 */

#define EEP_WCACHE_NO_FRAME UINT32_MAX   /* in a table: this node holds no frame for the slot */
#define EEP_WCACHE_NO_VERSION UINT64_MAX /* in a status: nothing is prepared */

struct eep_wcache;      /* an attached cache */
struct eep_wcache_view; /* a pinned version: immutable */

/**
 * What must be equal for a cache to be used; together with the user it names the directory. Two
 * caches whose keys differ in anything live side by side.
 */
struct eep_wcache_key {
    uint8_t checkpoint[32]; /* digest of the checkpoint, the caller's choice of which */
    uint32_t packing;       /* version of the packed format */
    uint32_t dtype;         /* enum eep_dtype of the experts */
    uint32_t layers;        /* MoE layers, at most EEP_WCACHE_LAYERS_MAX */
    uint32_t experts;       /* of each */
    uint32_t seats;         /* of the whole world, not of this node */
    uint32_t slots_per_seat;
    uint64_t frame_bytes;           /* content of a frame; padding to pages is added */
    char node[EEP_WCACHE_NODE_MAX]; /* name of the node, zero-terminated, not empty */
};

struct eep_wcache_params {
    const char *dir; /* base directory, made with mode 0700 if missing; NULL: the default */
    struct eep_wcache_key key;
    bool attach_only; /* never create: EEP_ERR_STALE if there is none */

    /* For a new cache; those of an existing one stand, and dense_bytes must equal them. */
    const int32_t *phys2log; /* (layers, seats * slots_per_seat): the map of version 0 */
    uint32_t spare_frames;   /* of each seat, beyond layers * slots_per_seat */
    uint32_t node_seats;     /* how many seats this node will hold: checked against the room */
    uint64_t dense_bytes;    /* 0: no dense file */
    const char *source;      /* where the weights came from (the model directory), for people and
                                for `eep cache repair`; NULL: "" */

    /* This process. */
    const char *engine; /* name that others are told, cut to EEP_WCACHE_NAME_MAX - 1 bytes */
    uint64_t engine_id; /* not 0; the same on all ranks of an engine, no other engine has it */
    uint32_t rank;
    bool follows; /* it pins newer versions between its steps; if not, it blocks other movers */
    bool keep;    /* the cache stays when the last process closes it; once set it stays set */

    bool visitor; /* a tool: its close leaves the cache there, whoever is last */

    uint64_t timeout_ns; /* longest wait for another process that creates or drops a cache */
};

/** The default base directory: /dev/shm/eep-UID. */
void eep_wcache_dir_default(char path_out[EEP_WCACHE_PATH_MAX]);

/**
 * SHA-256 of a map: "EEPMAP1" and a zero byte, then as little-endian 32-bit integers layers,
 * experts, seats, slots of a seat and all of phys2log. The version is not part of it.
 */
EEP_MUST_CHECK enum eep_status eep_wcache_map_digest(uint32_t layers, uint32_t experts,
                                                     uint32_t seats, uint32_t slots_per_seat,
                                                     const int32_t *phys2log,
                                                     uint8_t digest_out[EEP_WCACHE_DIGEST_BYTES]);

/** Files of this key with that many seats on this node, in bytes; 0 if the key is out of bounds. */
uint64_t eep_wcache_bytes_needed(const struct eep_wcache_params *params);

/* ---- open, query, close
 * ------------------------------------------------------------------------*/

/**
 * Attach to the cache of a key, or create it: its record with version 0; dense and seats are made
 * when they are opened. From here to the close this process is present: others see that it lives,
 * and drop refuses. Nothing is left behind on failure.
 *
 * @param cache_out  close it with eep_wcache_close(); set only on EEP_OK
 *
 * @retval EEP_ERR_INVALID    a parameter; the same cache is open in this process
 * @retval EEP_ERR_STALE      another owner or open to others, another format version, another key
 *                            under this name, other dense bytes; none there and attach_only
 * @retval EEP_ERR_CACHE_BAD  short, or a field or checksum is wrong; left as it is
 * @retval EEP_ERR_NOMEM      no room: the text has what is needed and what there is
 * @retval EEP_ERR_TIMEOUT    another process creates or drops for too long
 * @retval EEP_ERR_AGAIN      all places for attached processes are taken
 */
EEP_MUST_CHECK enum eep_status eep_wcache_open(const struct eep_wcache_params *params,
                                               struct eep_wcache **cache_out);

/**
 * Leave: views end, locks are dropped. The last process removes the cache unless one that attached
 * to it wanted to keep it. NULL is allowed. In a forked child it only unmaps.
 */
void eep_wcache_close(struct eep_wcache *cache);

/** Remove the cache when it is closed by the last one, whatever `keep` says: after a failed fill.
 */
void eep_wcache_close_discard(struct eep_wcache *cache);

struct eep_wcache_move {
    uint64_t engine_id;
    char engine[EEP_WCACHE_NAME_MAX];
    uint64_t base_version;
    uint64_t layers[EEP_WCACHE_LAYERS_MAX / 64]; /* bit layer % 64 of word layer / 64 */
};

enum eep_wcache_state {
    EEP_WCACHE_CLEAN,   /* nobody moves */
    EEP_WCACHE_MOVING,  /* a mover lives: wait, or go on with the current version */
    EEP_WCACHE_STALLED, /* the mover is gone; no byte in use was touched: the current version
                           stands, and a prepared one waits for resolve */
    EEP_WCACHE_DIRTY,   /* the mover is gone in an in-place move: repair, or resolve forward */
};

struct eep_wcache_status {
    const char *path; /* of the directory; lives as long as the handle */
    bool created;     /* this open made the cache */
    bool keep;
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    enum eep_wcache_state state;
    bool in_place;                                    /* of the move, when state is not CLEAN */
    struct eep_wcache_move move;                      /* likewise */
    uint64_t prepared_version;                        /* EEP_WCACHE_NO_VERSION: nothing prepared */
    uint8_t prepared_digest[EEP_WCACHE_DIGEST_BYTES]; /* of it */
    bool mover;                                       /* this process holds the mover's lock */
    uint32_t attached;                                /* processes, this one counted */
    uint32_t attached_others;                         /* those of other engines */
    uint32_t spare_frames;                            /* of each seat */
    uint64_t dense_bytes;
    uint64_t frame_stride; /* bytes from a frame to the next */
};

/** What the record says now. EEP_ERR_CACHE_BAD if it became unreadable. */
EEP_MUST_CHECK enum eep_status eep_wcache_status(struct eep_wcache *cache,
                                                 struct eep_wcache_status *status_out);

/**
 * Copy the map of the current version, for start-up, before anything is pinned.
 *
 * @param phys2log  (layers, seats * slots_per_seat)
 */
EEP_MUST_CHECK enum eep_status eep_wcache_map(struct eep_wcache *cache, uint64_t *version_out,
                                              int32_t *phys2log);

/** The same for the prepared version; EEP_ERR_STALE when nothing is prepared. */
EEP_MUST_CHECK enum eep_status eep_wcache_map_prepared(struct eep_wcache *cache,
                                                       uint64_t *version_out, int32_t *phys2log);

/**
 * Wait until no living mover has a move pending.
 *
 * @retval EEP_ERR_TIMEOUT    names the mover, its layers and its base version
 * @retval EEP_ERR_CACHE_BAD  the move ended with the record dirty: names the same
 */
EEP_MUST_CHECK enum eep_status eep_wcache_wait(struct eep_wcache *cache, uint64_t timeout_ns);

/* ---- first fill --------------------------------------------------------------------------------
 *
 * A frame is one seat's block number; a slot's frame is where the current version has its expert.
 */
struct eep_wcache_frame {
    uint32_t seat;
    uint32_t index;
};

/**
 * Map the dense blob, making the file first if needed.
 *
 * @param fill_out  true: this process holds the fill lock and must write all of
 *                  eep_wcache_dense_fill() and then call eep_wcache_dense_end(). false: it is full
 *
 * @retval EEP_ERR_TIMEOUT    another process fills for longer than that; names it
 * @retval EEP_ERR_NOMEM      no room, with the numbers; the file is gone again
 * @retval EEP_ERR_CACHE_BAD  short or a wrong header
 */
EEP_MUST_CHECK enum eep_status eep_wcache_dense_open(struct eep_wcache *cache, uint64_t timeout_ns,
                                                     bool *fill_out);
/** Page-aligned, for writing; only while this process fills. Lasts until dense_end. */
void *eep_wcache_dense_fill(struct eep_wcache *cache);
/** Take its digest, publish it, drop the fill lock. */
EEP_MUST_CHECK enum eep_status eep_wcache_dense_end(struct eep_wcache *cache);
/** Page-aligned, read-only; NULL until opened. Lasts until close. */
const void *eep_wcache_dense(const struct eep_wcache *cache);

/** Is that seat on this node, and full? Opens nothing. */
EEP_MUST_CHECK enum eep_status eep_wcache_seat_full(struct eep_wcache *cache, struct eep_seat seat,
                                                    bool *full_out);

/**
 * Nobody on this node executes that seat any more, and its frames will not follow the map: it is
 * closed, by each process for itself, and counts as not full; who opens it again fills what differs
 * by then. One that is being filled, or in a cache that another engine uses, stays full.
 */
EEP_MUST_CHECK enum eep_status eep_wcache_seat_forget(struct eep_wcache *cache,
                                                      struct eep_seat seat);

/**
 * Map a seat, making its file first if needed; the headers of all its slots' frames are checked.
 * Does nothing for a seat that is open and full.
 *
 * @param fill_out  true: this process holds the seat's fill lock; for each slot for which
 *                  eep_wcache_slot_filled() is false it calls frame_begin and frame_end, then
 *                  eep_wcache_seat_end(). Frames that a dead filler finished are not lost.
 *                  false: it is full
 *
 * @retval EEP_ERR_TIMEOUT    another process fills, or a mover is at work, for longer than that
 * @retval EEP_ERR_NOMEM      no room, with the numbers; the file is gone again
 * @retval EEP_ERR_CACHE_BAD  short, another seat's, a header that is wrong or holds another expert
 *                            than the map says; a dirty record
 */
EEP_MUST_CHECK enum eep_status eep_wcache_seat_open(struct eep_wcache *cache, struct eep_seat seat,
                                                    uint64_t timeout_ns, bool *fill_out);

/**
 * Map the pages of an open seat now, so that serving does not fault them in one by one. It takes
 * about 0.1 s for a GiB and thread, so it is split: each thread does one `part` of `parts`.
 * Thread-safe, also beside everything but close.
 */
void eep_wcache_seat_populate(const struct eep_wcache *cache, struct eep_seat seat, uint32_t part,
                              uint32_t parts);
/** The same for dense. */
void eep_wcache_dense_populate(const struct eep_wcache *cache, uint32_t part, uint32_t parts);

/** Check that all slots of the seat are filled, publish it, drop the fill lock. */
EEP_MUST_CHECK enum eep_status eep_wcache_seat_end(struct eep_wcache *cache, struct eep_seat seat);

/** The frame of a slot in the current version; false: the slot is empty. The seat is open. */
bool eep_wcache_slot_frame(struct eep_wcache *cache, uint32_t layer, struct eep_slot slot,
                           struct eep_wcache_frame *frame_out);

/** True if the slot is empty or its frame holds its expert, as the headers say. The seat is open.
 */
bool eep_wcache_slot_filled(struct eep_wcache *cache, uint32_t layer, struct eep_slot slot);

/**
 * Start to write a frame: of a seat that this process fills, or one that it took. All frame_bytes
 * bytes must be written, padding too, the same for each replica of an expert.
 *
 * @param bytes_out  page-aligned; valid until seat_end, leave, commit or abort
 *
 * @retval EEP_ERR_INVALID  the frame is not this process's to write
 */
EEP_MUST_CHECK enum eep_status eep_wcache_frame_begin(struct eep_wcache *cache,
                                                      struct eep_wcache_frame frame,
                                                      void **bytes_out);

struct eep_wcache_content {
    uint64_t low, high; /* XXH3-128 of frame_bytes bytes */
};

/**
 * Take the digest of a written frame and mark it valid. The first time that this node sees the
 * expert its digest is recorded; later ones must be equal.
 *
 * @param expected     what the source of the copy says; NULL if it says nothing
 * @param content_out  the digest, for other nodes; NULL if not wanted
 *
 * @retval EEP_ERR_CACHE_BAD  other bytes than expected or recorded; the frame is not valid
 */
EEP_MUST_CHECK enum eep_status eep_wcache_frame_end(struct eep_wcache *cache,
                                                    struct eep_wcache_frame frame, uint32_t layer,
                                                    struct eep_expert expert,
                                                    const struct eep_wcache_content *expected,
                                                    struct eep_wcache_content *content_out);

/** The digest of an expert as this node recorded it; false: it never held it. */
bool eep_wcache_frame_digest(const struct eep_wcache *cache, uint32_t layer,
                             struct eep_expert expert, struct eep_wcache_content *content_out);

/*
 * Filling a frame piece by piece, ascending and without gaps, between other work: what
 * frame_begin, writing and frame_end do at once. The digest is taken of the frame's bytes while
 * they are still in the processor's cache.
 */
struct eep_wcache_fill;

/** As frame_begin. `fill_out` is ended by fill_end or fill_drop. */
EEP_MUST_CHECK enum eep_status eep_wcache_fill_begin(struct eep_wcache *cache,
                                                     struct eep_wcache_frame frame, uint32_t layer,
                                                     struct eep_expert expert,
                                                     struct eep_wcache_fill **fill_out);

/** Copy the next bytes from `source`; no more than are left. */
void eep_wcache_fill_copy(struct eep_wcache_fill *fill, const void *source, uint64_t bytes);

/** Where the frame's bytes lie (the whole frame), for those who write them by other means. */
void *eep_wcache_fill_bytes(struct eep_wcache_fill *fill);

/** The next bytes have been written there: take them in. */
void eep_wcache_fill_written(struct eep_wcache_fill *fill, uint64_t bytes);

/** Bytes that were taken in so far, of frame_bytes. */
uint64_t eep_wcache_fill_done(const struct eep_wcache_fill *fill);

/** As frame_end, with all bytes taken in (asserted). Frees `fill` also on failure. */
EEP_MUST_CHECK enum eep_status eep_wcache_fill_end(struct eep_wcache_fill *fill,
                                                   const struct eep_wcache_content *expected,
                                                   struct eep_wcache_content *content_out);

/** Give it up; the frame stays taken and not valid. NULL is allowed. */
void eep_wcache_fill_drop(struct eep_wcache_fill *fill);

/* The digest that a frame with these bytes would have, of bytes that lie elsewhere, piece by piece.
 */
struct eep_wcache_digest;

EEP_MUST_CHECK enum eep_status eep_wcache_digest_begin(struct eep_wcache_digest **digest_out);
void eep_wcache_digest_add(struct eep_wcache_digest *digest, const void *bytes, uint64_t count);
/** Frees it. */
struct eep_wcache_content eep_wcache_digest_end(struct eep_wcache_digest *digest);
/** NULL is allowed. */
void eep_wcache_digest_drop(struct eep_wcache_digest *digest);

/* ---- views -------------------------------------------------------------------------------------
 *
 * A view is a version that this process routes with. Its frames stay as they are until it is
 * unpinned (but for an in-place move of its own engine). To follow: pin the new one, then unpin the
 * old one, between two steps.
 */

/**
 * Pin the current version.
 *
 * @param view_out  eep_wcache_unpin() it; close ends it too
 *
 * @retval EEP_ERR_AGAIN      another engine's in-place move is at work
 * @retval EEP_ERR_CACHE_BAD  the record is dirty (names engine, layers, base version) or damaged
 */
EEP_MUST_CHECK enum eep_status eep_wcache_pin(struct eep_wcache *cache,
                                              struct eep_wcache_view **view_out);
/** NULL is allowed. */
void eep_wcache_unpin(struct eep_wcache *cache, struct eep_wcache_view *view);

/** The current version: one load, for every step. Compare with eep_wcache_view_version(). */
uint64_t eep_wcache_version(const struct eep_wcache *cache);

uint64_t eep_wcache_view_version(const struct eep_wcache_view *view);
const uint8_t *eep_wcache_view_digest(const struct eep_wcache_view *view);
/** (layers, seats * slots_per_seat); lasts as long as the view. */
const int32_t *eep_wcache_view_map(const struct eep_wcache_view *view);
/** The frame numbers of the slots, same shape; EEP_WCACHE_NO_FRAME for empty ones. */
const uint32_t *eep_wcache_view_frames(const struct eep_wcache_view *view);

/** The bytes of a slot's expert; NULL if it is empty or its seat is not open here. */
const void *eep_wcache_view_slot(const struct eep_wcache_view *view, uint32_t layer,
                                 struct eep_slot slot);

/* ---- moves
 * -------------------------------------------------------------------------------------*/

/**
 * Begin a move of these layers. Takes the mover's lock if it is free and keeps it, also after the
 * move, until eep_wcache_mover_release() or close. What a dead mover left pending is cleared,
 * unless it is prepared or dirty.
 *
 * @retval EEP_ERR_AGAIN      busy: another engine is the mover; an attached engine does not follow;
 *                            a seat is being filled
 * @retval EEP_ERR_STALE      refused: the current version is another; an own move is pending; a
 *                            prepared version waits for resolve
 * @retval EEP_ERR_INVALID    refused: no layers, one twice or out of range
 * @retval EEP_ERR_CACHE_BAD  refused: the record is dirty: names engine, layers, base version
 */
EEP_MUST_CHECK enum eep_status eep_wcache_begin(struct eep_wcache *cache, const uint32_t *layers,
                                                uint32_t layer_count, uint64_t base_version);

/**
 * Take a spare frame of an open seat for the pending move of this process's engine; also holds the
 * seat's fill lock from now on. Any rank of the engine, one per seat.
 *
 * @retval EEP_ERR_AGAIN    busy: frames are free only when older views end (the text says how
 * many), or another process holds the seat's fill lock
 * @retval EEP_ERR_NOMEM    all spare frames of the seat are taken by this move, or it has none:
 * commit in smaller chunks, or move in place
 * @retval EEP_ERR_INVALID  no move of this engine is pending; the seat is not open
 */
EEP_MUST_CHECK enum eep_status eep_wcache_take(struct eep_wcache *cache, struct eep_seat seat,
                                               struct eep_wcache_frame *frame_out);

/** Spare frames of an open seat that a take would find now. */
uint32_t eep_wcache_spare_count(struct eep_wcache *cache, struct eep_seat seat);

/**
 * Take the frame of a slot as it is, to be overwritten. The record is dirty from here to the commit
 * or abort, also when this answers busy: try again, or abort (which then finds nothing touched).
 * The caller's own engine must not compute with the slot any more.
 *
 * @retval EEP_ERR_AGAIN    busy: another engine has a view
 * @retval EEP_ERR_INVALID  as above; the slot is empty, or not in a layer of the move
 */
EEP_MUST_CHECK enum eep_status eep_wcache_take_in_place(struct eep_wcache *cache, uint32_t layer,
                                                        struct eep_slot slot,
                                                        struct eep_wcache_frame *frame_out);

/** The new row of one layer. */
struct eep_wcache_row {
    uint32_t layer;
    const int32_t *phys2log; /* (seats * slots_per_seat) */
    const uint32_t *frames;  /* the same: the slot's frame in its seat; ignored for empty slots and
                                for  seats that this node does not hold. Besides taken frames, those
                                that  the layer has now may be given to another slot of the seat: no
                                byte  moves */
};

/**
 * Write version base + 1 beside the current one. Each slot's frame is checked by its header. The
 * mover only. May be repeated until the commit.
 *
 * @retval EEP_ERR_INVALID    a layer that was not begun, an expert or frame out of range, a frame
 *                            given twice or holding another expert, an expert left without a slot
 */
EEP_MUST_CHECK enum eep_status eep_wcache_prepare(struct eep_wcache *cache,
                                                  const struct eep_wcache_row *rows,
                                                  uint32_t row_count, uint64_t *version_out,
                                                  uint8_t digest_out[EEP_WCACHE_DIGEST_BYTES]);

/** Make the prepared version the current one. The mover only; it cannot fail after the flip. */
EEP_MUST_CHECK enum eep_status eep_wcache_commit(struct eep_wcache *cache, uint64_t *version_out);

/**
 * Give up the pending move of this engine, prepared or not. The mover, or after its death any rank
 * of its engine. After an in-place take it succeeds only if the frames hold what the current map
 * says (write the old experts back first).
 *
 * @retval EEP_ERR_CACHE_BAD  the record stays dirty
 * @retval EEP_ERR_STALE      no move of this engine is pending
 */
EEP_MUST_CHECK enum eep_status eep_wcache_abort(struct eep_wcache *cache);

/** A move of this engine is over: drop the fill locks of the seats for which this process took
 * frames. Commit and abort do it for the mover. */
void eep_wcache_leave(struct eep_wcache *cache);

/**
 * Take the mover's lock and nothing else: before it is decided, with the other nodes, what becomes
 * of what a dead mover left (first the lock of the first node, then the others'). Holding it
 * already is no failure.
 *
 * @retval EEP_ERR_AGAIN  busy: names the engine that has it
 */
EEP_MUST_CHECK enum eep_status eep_wcache_mover_take(struct eep_wcache *cache);

/**
 * Publish the current map again as a higher version, so that all nodes have the same. The mover
 * only, nothing pending, prepared or dirty. Does nothing if `version` is the current one.
 *
 * @retval EEP_ERR_STALE    not the mover, or something is pending, prepared or dirty
 * @retval EEP_ERR_INVALID  the current version is higher
 */
EEP_MUST_CHECK enum eep_status eep_wcache_raise(struct eep_wcache *cache, uint64_t version);

/**
 * Leave what this process has pending as if it had died, and let go of its locks: after the loss of
 * another rank, whose part nobody knows. What becomes of it is settled as after a death (resolve,
 * repair). Views stay.
 */
void eep_wcache_abandon(struct eep_wcache *cache);

/** Let another engine move. Nothing may be pending; asserted. */
void eep_wcache_mover_release(struct eep_wcache *cache);

/**
 * End what a dead mover prepared, as all nodes agreed: roll forward to the prepared version or
 * back. Takes the mover's lock and keeps it. Nothing prepared is no failure: what a dead mover left
 * pending without dirt is cleared. Forward checks the frames: by their headers, after an in-place
 * move by their bytes too. Back after an in-place move leaves the record dirty.
 *
 * @param version_out  the current version afterwards
 *
 * @retval EEP_ERR_AGAIN      busy: the mover lives
 * @retval EEP_ERR_CACHE_BAD  a frame is not what the prepared map says, or the version is damaged
 */
EEP_MUST_CHECK enum eep_status eep_wcache_resolve(struct eep_wcache *cache, bool forward,
                                                  uint64_t *version_out);

/* ---- damage
 * ------------------------------------------------------------------------------------*/

/**
 * Fill a frame again.
 *
 * @param bytes  frame_bytes to write
 */
typedef enum eep_status (*eep_wcache_refill_fn)(void *context, uint32_t layer,
                                                struct eep_expert expert, void *bytes);

struct eep_wcache_repair {
    uint64_t checked;  /* frames */
    uint64_t refilled; /* of them */
    uint64_t version;  /* the current one afterwards */
};

/**
 * Check the frames of the dirty layers (with `all`: of all layers) of all full seats of this node
 * by their bytes; fill bad ones again with what the current map says, from another frame of the
 * node or by `refill`; publish the same map as a new version if the record was dirty or a frame was
 * bad. Crash-safe: until the end the record stays dirty. Opens the seats itself. Takes the mover's
 * lock and keeps it.
 *
 * @param refill   NULL: only other frames of the node
 * @param version  the version to publish, above the current one, so that nodes can agree; 0: the
 * next
 *
 * @retval EEP_ERR_AGAIN      busy: a mover lives, another engine has a view
 * @retval EEP_ERR_STALE      a prepared version waits for resolve
 * @retval EEP_ERR_CACHE_BAD  a frame stays bad: no source, or its new bytes have another digest
 */
EEP_MUST_CHECK enum eep_status eep_wcache_repair(struct eep_wcache *cache, bool all,
                                                 uint64_t version, eep_wcache_refill_fn refill,
                                                 void *context,
                                                 struct eep_wcache_repair *result_out);

struct eep_wcache_verify {
    uint64_t frames; /* checked */
    uint64_t bad;    /* of them; the dense blob counts as one more frame */
    uint64_t bytes;  /* hashed */
};

/**
 * Check the bytes of every slot's frame of the full seats of this node, and of dense, against their
 * digests. The version is pinned meanwhile. Bad ones are counted, not repaired.
 *
 * @param seat    only that one, and not dense; NULL: all
 * @param report  called for each bad one with its reason; NULL is allowed
 *
 * @retval EEP_ERR_CACHE_BAD  the record is dirty or damaged; bad frames are not a failure
 */
EEP_MUST_CHECK enum eep_status eep_wcache_verify(struct eep_wcache *cache,
                                                 const struct eep_seat *seat,
                                                 void (*report)(void *context, const char *reason),
                                                 void *context,
                                                 struct eep_wcache_verify *result_out);

/* ---- all caches of a directory
 * -----------------------------------------------------------------*/

struct eep_wcache_info {
    char name[80];          /* of its directory, below the base */
    enum eep_status status; /* EEP_OK, or why it cannot be used; only name, bytes and reason then */
    char reason[512];
    struct eep_wcache_key key;
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    enum eep_wcache_state state;
    struct eep_wcache_move move;
    uint64_t prepared_version;
    uint32_t spare_frames;
    uint64_t dense_bytes;
    bool dense_filled;
    uint32_t seats_held;   /* files of seats on this node */
    uint32_t seats_filled; /* full ones */
    uint32_t attached;     /* processes */
    bool keep;
    uint64_t bytes; /* memory taken */
    uint64_t created_ns;
    char source[EEP_WCACHE_SOURCE_MAX];
};

/**
 * Look at all caches below a base directory, ascending by name; changes nothing. To attach to one
 * of them, open its key with attach_only.
 *
 * @param dir        NULL: the default. A directory that is not there has no caches
 * @param infos_out  eep_mem_free() it
 */
EEP_MUST_CHECK enum eep_status eep_wcache_list(const char *dir, struct eep_wcache_info **infos_out,
                                               size_t *count_out);

/**
 * Remove a cache by its name, also a damaged one.
 *
 * @retval EEP_ERR_AGAIN    attached: says by how many processes, and names one
 * @retval EEP_ERR_INVALID  no such cache
 * @retval EEP_ERR_STALE    another user's
 */
EEP_MUST_CHECK enum eep_status eep_wcache_drop(const char *dir, const char *name,
                                               uint64_t timeout_ns);

#endif
