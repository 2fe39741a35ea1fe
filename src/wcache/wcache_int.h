/*
 * What the files of src/wcache share: the handle, locks, and helpers on the record.
 */
#ifndef EEP_WCACHE_INT_H
#define EEP_WCACHE_INT_H

#include <sys/types.h>

#include "wcache/format.h"

/* A seat that this process mapped. */
struct wc_seat {
    const unsigned char *headers; /* read-only, what stands before the frames; NULL: not seen yet */
    const unsigned char *bytes;   /* read-only, all of the file; NULL: not open */
    unsigned char *writable;      /* a second mapping, made for the first write; or NULL */
    bool locked;                  /* this process holds the fill lock */
    bool filling;                 /* the first fill is this process's */
    uint64_t taken_move;          /* number of the move that `taken` belongs to */
    bool *taken;                  /* (seat_frames) frames that this process may write; NULL: none */
    bool *mapped;                 /* (seat_frames) all pages are mapped, twice; NULL: none */
};

struct eep_wcache_view {
    struct eep_wcache *cache;
    struct eep_wcache_view *next;
    uint64_t version;
    struct wc_copy *copy; /* own */
};

struct eep_wcache {
    char path[EEP_WCACHE_PATH_MAX]; /* of the directory */
    char name[80];                  /* its last part */
    int dir_fd, record_fd;
    dev_t device; /* of the record: a second open in this process is refused */
    ino_t inode;
    pid_t owner; /* a forked child holds none of the locks */
    struct eep_wcache *next_open;

    struct wc_shape shape;
    unsigned char *record; /* shared, writable */
    uint64_t record_bytes; /* mapped */
    struct wc_header *header;
    struct wc_control *control;
    struct wc_attach *attached; /* (WC_ATTACH_MAX) */
    struct wc_expert_digest *digests;

    bool created;
    bool visitor; /* never removes it */
    bool discard; /* remove the cache at the close, if it is the last one */
    uint64_t timeout_ns;
    uint64_t engine_id;
    uint32_t place; /* in `attached`; WC_ATTACH_MAX: none */
    bool mover;     /* holds the mover's lock */
    bool moving;    /* its move is pending */
    uint64_t move_number;
    struct eep_wcache_view *views;
    struct wc_seat *seats; /* (seats) */

    unsigned char *dense;          /* read-only, the file */
    unsigned char *dense_writable; /* while this process fills */
};

/* ---- system calls (sys.c) ---------------------------------------------------------------------
 */

/** EEP_ERR_IO with the call, the object and errno's text. */
#define WC_FAIL_SYS(call, what) EEP_FAIL(EEP_ERR_IO, "%s: %s: %s", (what), (call), wc_errno_text())
const char *wc_errno_text(void);

/** Write-lock one byte; false: another process has it. */
EEP_MUST_CHECK enum eep_status wc_lock_try(int fd, int64_t byte, bool *locked_out);
EEP_MUST_CHECK enum eep_status wc_unlock(int fd, int64_t byte);
/** Is there a lock of another process in [first, first + count)? Own locks are not seen. */
EEP_MUST_CHECK enum eep_status wc_lock_other(int fd, int64_t first, int64_t count,
                                             int64_t *byte_out, bool *found_out);
/** Sleep a little on the way to a deadline; false when it has passed. */
bool wc_pause(uint64_t deadline_ns, unsigned *round);
/** now + timeout, without overflow. */
uint64_t wc_deadline(uint64_t timeout_ns);

/** Map a file of the directory; checks owner, type and size. write: read-write, else read-only. */
EEP_MUST_CHECK enum eep_status wc_map_file(const struct eep_wcache *c, const char *name,
                                           uint64_t bytes, bool write, unsigned char **out);
/** Make a file of that size under a hidden name, `init` its first bytes, then give it its name.
 * Nothing is left on failure. */
EEP_MUST_CHECK enum eep_status wc_make_file(const char *where, int dir_fd, const char *name,
                                            uint64_t bytes, const void *first, size_t first_bytes);
/** Room below a directory: what the file system and, for memory, the machine can give. */
EEP_MUST_CHECK enum eep_status wc_check_room(const char *where, int dir_fd, uint64_t needed);
/** Map all pages of a mapping now. */
void wc_populate(const void *bytes, uint64_t count);
/** The same for pages that will be written next. */
void wc_populate_write(void *bytes, uint64_t count);

/* ---- directories (dir.c) ----------------------------------------------------------------------
 */

struct wc_base {
    int fd;      /* of the base directory */
    int lock_fd; /* held: nobody else creates, attaches or drops below it */
    char path[EEP_WCACHE_PATH_MAX];
};

/** Open the base directory; with `create` make it. *missing_out: it is not there (no failure). */
EEP_MUST_CHECK enum eep_status wc_base_open(const char *dir, bool create, struct wc_base *base_out,
                                            bool *missing_out);
/** Take the base's lock and remove what a crash left half-made. */
EEP_MUST_CHECK enum eep_status wc_base_lock(struct wc_base *base, uint64_t timeout_ns);
void wc_base_close(struct wc_base *base);

void wc_cache_name(const struct eep_wcache_key *key, char name_out[80]);
/** Open a cache's directory: owner and mode are checked. *missing_out as above. */
EEP_MUST_CHECK enum eep_status wc_dir_open(const struct wc_base *base, const char *name,
                                           int *fd_out, bool *missing_out);
/** Make a cache with its record. The base is locked. */
EEP_MUST_CHECK enum eep_status wc_dir_create(const struct wc_base *base, const char *name,
                                             const struct eep_wcache_params *params);
/** Remove a cache's directory with all in it. The base is locked. */
EEP_MUST_CHECK enum eep_status wc_dir_remove(const struct wc_base *base, const char *name);
/** The handle of a record that is open in this process, or NULL. */
struct eep_wcache *wc_open_handle(int dir_fd);
void wc_open_handle_add(struct eep_wcache *c);
void wc_open_handle_remove(struct eep_wcache *c);

/* ---- record (record.c) ------------------------------------------------------------------------
 */

/** Check a record's header and the sizes in it. */
EEP_MUST_CHECK enum eep_status wc_header_read(const char *what, const struct wc_header *header,
                                              uint64_t file_bytes, struct eep_wcache_key *key_out,
                                              struct wc_shape *shape_out);
void wc_record_bind(struct eep_wcache *c);

/** What the control page says, each word checked. */
struct wc_state {
    uint64_t version;
    uint32_t copy;
    bool prepared; /* and not yet current */
    uint64_t prepared_version;
    uint32_t prepared_copy;
    enum wc_move move; /* IDLE also when the flip of a move was its last act */
    uint64_t number;
    bool keep;
};
EEP_MUST_CHECK enum eep_status wc_state_read(struct eep_wcache *c, struct wc_state *state_out);
/** A private copy of a version, whole and checked; eep_mem_free() it. `prepared`: that one. */
EEP_MUST_CHECK enum eep_status wc_snapshot(struct eep_wcache *c, bool prepared,
                                           struct wc_copy **copy_out);
/** The move that is pending or dirty. */
EEP_MUST_CHECK enum eep_status wc_move_read(struct eep_wcache *c, struct eep_wcache_move *move_out);
/** "engine 'x' (layers 0-3, 7; base version 5)" */
const char *wc_move_text(struct eep_wcache *c, char text[512]);

static inline struct wc_copy *wc_copy_at(struct eep_wcache *c, uint32_t copy)
{
    return (struct wc_copy *)(c->record + c->shape.copy_offset[copy]);
}

/** Does a process hold the mover's lock? (This one counts.) */
EEP_MUST_CHECK enum eep_status wc_mover_lives(struct eep_wcache *c, bool *lives_out);
/** An engine is there, and it is not this one. */
bool wc_is_other(const struct wc_attach *attach, uint64_t engine_id);
/** Visit the places of living attached processes, this one too; stop when visit returns false. */
EEP_MUST_CHECK enum eep_status wc_attached_each(struct eep_wcache *c,
                                                bool (*visit)(void *context, uint32_t place,
                                                              struct wc_attach *attach),
                                                void *context);
/** EEP_ERR_CACHE_BAD, naming engine, layers and base version. */
enum eep_status wc_fail_dirty(struct eep_wcache *c);
/** A handle in a forked child is refused. */
EEP_MUST_CHECK enum eep_status wc_check_owner(const struct eep_wcache *c);
/** The engine of a place in the table of attached ones, for texts. */
void wc_attach_name(struct eep_wcache *c, uint32_t place, char name_out[EEP_WCACHE_NAME_MAX]);

/* ---- seats and frames (seat.c, frame.c) -------------------------------------------------------
 */

void wc_seat_name(uint32_t seat, char name_out[32]);
EEP_MUST_CHECK enum eep_status wc_seat_lock(struct eep_wcache *c, uint32_t seat, bool *locked_out);
void wc_seat_unlock(struct eep_wcache *c, uint32_t seat);
/** Map all of a seat read-only. */
EEP_MUST_CHECK enum eep_status wc_seat_map(struct eep_wcache *c, uint32_t seat);
EEP_MUST_CHECK enum eep_status wc_seat_writable(struct eep_wcache *c, uint32_t seat);
/** Map the headers of a seat if there is a file, and say whether it is full. */
EEP_MUST_CHECK enum eep_status wc_seat_look(struct eep_wcache *c, uint32_t seat, bool *held_out,
                                            bool *full_out);
/** Map dense read-only if it is there; *full_out as its header says. */
EEP_MUST_CHECK enum eep_status wc_dense_look(struct eep_wcache *c, bool *held_out, bool *full_out);
/** eep_wcache_pin(), with or without the check of all headers. */
EEP_MUST_CHECK enum eep_status wc_pin(struct eep_wcache *c, bool check,
                                      struct eep_wcache_view **view_out);
/** Publish the current map as a new version and make it current. The mover only. */
EEP_MUST_CHECK enum eep_status wc_publish_same(struct eep_wcache *c, uint64_t version);
void wc_seats_close(struct eep_wcache *c);
void wc_dense_close(struct eep_wcache *c);

static inline struct wc_seat_header *wc_seat_header(const unsigned char *file)
{
    return (struct wc_seat_header *)file;
}

static inline struct wc_frame *wc_frame_header(const unsigned char *file, uint32_t index)
{
    return (struct wc_frame *)(file + sizeof(struct wc_seat_header)) + index;
}

static inline unsigned char *wc_frame_data(const struct wc_shape *shape, const unsigned char *file,
                                           uint32_t index)
{
    return (unsigned char *)file + shape->seat_data + index * shape->frame_stride;
}

/** The digest that is recorded for an expert; false: none. */
bool wc_expert_known(const struct eep_wcache *c, uint32_t layer, uint32_t expert,
                     struct wc_digest *digest_out);
/** Mark a frame as being written / as holding what was written. */
void wc_frame_open(struct eep_wcache *c, uint32_t seat, uint32_t index);
EEP_MUST_CHECK enum eep_status wc_frame_close(struct eep_wcache *c, uint32_t seat, uint32_t index,
                                              uint32_t layer, uint32_t expert,
                                              const struct wc_digest *expected,
                                              struct wc_digest *digest_out);
/** The same with the digest of the bytes, which the caller has taken already. */
EEP_MUST_CHECK enum eep_status wc_frame_close_as(struct eep_wcache *c, uint32_t seat,
                                                 uint32_t index, uint32_t layer, uint32_t expert,
                                                 const struct wc_digest *expected,
                                                 struct wc_digest digest);
/** May this process write the frame? */
EEP_MUST_CHECK enum eep_status wc_check_writer(struct eep_wcache *c, struct eep_wcache_frame frame);
EEP_MUST_CHECK enum eep_status wc_check_expert(const struct eep_wcache *c, uint32_t layer,
                                               struct eep_expert expert);
/** Header and bytes of a slot's frame against the map: NULL if good, else the reason. */
const char *wc_frame_trouble(struct eep_wcache *c, uint32_t seat, uint32_t index, uint32_t layer,
                             int32_t expert, bool bytes, char text[256]);

/* ---- moves (move.c) ---------------------------------------------------------------------------
 */

EEP_MUST_CHECK enum eep_status wc_mover_take(struct eep_wcache *c);
void wc_move_set(struct eep_wcache *c, enum wc_move state, uint64_t number);
/** Publish a dirty or pending move of this process: the block first, then the word. */
void wc_move_start(struct eep_wcache *c, enum wc_move state, const uint64_t *layers,
                   uint64_t base_version);
/** Finish a commit that died right after its flip. The mover only. */
void wc_move_tidy(struct eep_wcache *c);
/** Flip to the prepared copy and clear the move. The mover only. */
void wc_flip(struct eep_wcache *c, uint64_t version, uint32_t copy);
/** Do the frames of these layers, in the full seats of this node, hold what a version says? */
EEP_MUST_CHECK enum eep_status wc_check_layers(struct eep_wcache *c, struct wc_copy *copy,
                                               const uint64_t layers[EEP_WCACHE_LAYERS_MAX / 64],
                                               bool bytes);
/** Publish version `copy` (sealed in the copy that is not current) as prepared. The mover only. */
void wc_prepared_set(struct eep_wcache *c, uint64_t version, uint32_t copy);
/** Does another engine have a view? Names it. */
EEP_MUST_CHECK enum eep_status wc_other_view(struct eep_wcache *c, bool *found_out,
                                             char name_out[EEP_WCACHE_NAME_MAX]);

#endif
