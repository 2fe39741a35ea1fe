/*
 * The files of a weight cache, byte by byte; doc/weight-cache.md tells their rules.
 *
 *     record   [header][control][attached processes][copy 0][copy 1][digests of experts]
 *     seat-NNN [header][frame headers ...][frame 0][frame 1]...
 *     dense    [header][one blob]
 *
 * All integers are little-endian (eep runs on nothing else; the header says so). Nothing in these
 * files is trusted: every field is checked before it is used.
 */
#ifndef EEP_WCACHE_FORMAT_H
#define EEP_WCACHE_FORMAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "wcache/wcache.h"

#define WC_FORMAT 1u
#define WC_BYTE_ORDER 0x01020304u
#define WC_RECORD_MAGIC UINT64_C(0x3130434552504545) /* "EEPREC01" */
#define WC_COPY_MAGIC UINT64_C(0x3130505943504545)   /* "EEPCYP01" */
#define WC_SEAT_MAGIC UINT64_C(0x3130544153504545)   /* "EEPSAT01" */
#define WC_DENSE_MAGIC UINT64_C(0x31304e4544504545)  /* "EEPDEN01" */
#define WC_FRAME_MAGIC 0x4d524645u                   /* "EFRM" */

/* Bounds on what a record may claim, so that no size overflows. */
#define WC_LAYERS_MAX EEP_WCACHE_LAYERS_MAX
#define WC_EXPERTS_MAX 65536u
#define WC_SEATS_MAX 65536u
#define WC_SLOTS_MAX 65536u
#define WC_SPARE_MAX (1u << 20)
#define WC_FRAME_BYTES_MAX (UINT64_C(1) << 40)
#define WC_TABLE_MAX (UINT64_C(1) << 28) /* layers * seats * slots of a seat */
#define WC_VERSION_MAX ((UINT64_C(1) << 46) - 1)
#define WC_ATTACH_MAX 512u

/* Byte locks of the record, far behind its bytes; a lock needs no byte to be there. */
#define WC_LOCK_BASE (INT64_C(1) << 40)
#define WC_LOCK_MOVER (WC_LOCK_BASE + 0)
#define WC_LOCK_DENSE (WC_LOCK_BASE + 1)
#define WC_LOCK_ATTACH (WC_LOCK_BASE + 0x1000)  /* + index of the attached process */
#define WC_LOCK_SEAT (WC_LOCK_BASE + 0x1000000) /* + seat */

/* ---- words ------------------------------------------------------------------------------------
 *
 * A word is one aligned 64-bit value that changes atomically: 48 bits of content and 16 bits of a
 * hash of content and salt, so that a flipped bit or a word in another's place is seen.
 */
#define WC_SALT_CURRENT UINT64_C(0xc1)
#define WC_SALT_PREPARED UINT64_C(0xb2)
#define WC_SALT_MOVE UINT64_C(0xa3)
#define WC_SALT_KEEP UINT64_C(0x94)
#define WC_SALT_SEAT UINT64_C(0x85)
#define WC_SALT_DENSE UINT64_C(0x76)

static inline uint64_t wc_word(uint64_t salt, uint64_t content)
{
    return content << 16 | eep_rng_mix(content ^ salt << 56) >> 48;
}

static inline bool wc_word_read(uint64_t salt, uint64_t word, uint64_t *content_out)
{
    *content_out = word >> 16;
    return wc_word(salt, *content_out) == word;
}

/* Content of `current` and `prepared`: a version and the copy that holds it. In `prepared` 0 is
 * none, which is no value of it: version 0 is never prepared. */
static inline uint64_t wc_place(uint64_t version, uint32_t copy)
{
    return version << 1 | copy;
}

/* Content of `move`: its state and its number, so that a late change to a dead move fails. */
enum wc_move { WC_MOVE_IDLE = 1, WC_MOVE_PENDING = 2, WC_MOVE_DIRTY = 3 };

static inline uint64_t wc_move_content(enum wc_move state, uint64_t number)
{
    return (number << 8 & ((UINT64_C(1) << 48) - 1)) | (uint64_t)state;
}

/* Content of the state of a seat and of `dense`. */
enum wc_fill { WC_FILL_OPEN = 1, WC_FILL_VALID = 2 };

/* ---- record -----------------------------------------------------------------------------------
 */

struct wc_digest {
    uint64_t low;
    uint64_t high;
};

/* Written once, before the record gets its name. */
struct wc_header {
    uint64_t magic;
    uint32_t format;
    uint32_t byte_order;
    uint64_t record_bytes; /* of the whole file */
    uint32_t uid;
    uint32_t packing;
    uint32_t dtype;
    uint32_t layers;
    uint32_t experts;
    uint32_t seats;
    uint32_t slots_per_seat;
    uint32_t spare_frames; /* of each seat; not part of the key */
    uint64_t frame_bytes;
    uint64_t dense_bytes;
    uint8_t checkpoint[32];
    char node[EEP_WCACHE_NODE_MAX];
    uint64_t created_ns; /* Unix time; also tells a new cache of a key from an older one */
    char source[EEP_WCACHE_SOURCE_MAX];
    uint8_t reserved[1856];
    struct wc_digest check; /* XXH3-128 of all before it */
};
_Static_assert(sizeof(struct wc_header) == EEP_PAGE, "size of the record header");
_Static_assert(offsetof(struct wc_header, uid) == 24, "offset of uid");
_Static_assert(offsetof(struct wc_header, frame_bytes) == 56, "offset of frame_bytes");
_Static_assert(offsetof(struct wc_header, checkpoint) == 72, "offset of checkpoint");
_Static_assert(offsetof(struct wc_header, node) == 104, "offset of node");
_Static_assert(offsetof(struct wc_header, created_ns) == 168, "offset of created_ns");
_Static_assert(offsetof(struct wc_header, source) == 176, "offset of source");
_Static_assert(offsetof(struct wc_header, check) == 4080, "offset of the header's checksum");

/* Whose move it is and what it may change; written while the state is idle, by the mover alone. */
struct wc_move_block {
    uint64_t number;
    uint64_t engine;
    uint64_t base_version;
    char name[EEP_WCACHE_NAME_MAX];
    uint64_t layers[WC_LAYERS_MAX / 64]; /* a bit for each layer */
    struct wc_digest check;
};
_Static_assert(sizeof(struct wc_move_block) == 168, "size of the move block");

struct wc_control {
    _Atomic uint64_t current;     /* word: the flip is one store here */
    _Atomic uint64_t prepared;    /* word */
    _Atomic uint64_t move;        /* word */
    _Atomic uint64_t keep;        /* word: 1 = stays when the last process leaves */
    _Atomic uint64_t mover_place; /* of the last mover in the table of attached ones; for texts */
    uint64_t reserved[3];
    struct wc_move_block block;
    uint8_t padding[EEP_PAGE - 64 - sizeof(struct wc_move_block)];
};
_Static_assert(sizeof(struct wc_control) == EEP_PAGE, "size of the control page");
_Static_assert(offsetof(struct wc_control, block) == 64, "offset of the move block");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "atomics work between processes");

#define WC_NO_PIN UINT64_MAX

/* One per attached process; means something only while that process holds its lock byte. */
struct wc_attach {
    _Atomic uint64_t pin; /* lowest version in use, or WC_NO_PIN */
    _Atomic uint64_t engine;
    _Atomic uint32_t follows;
    _Atomic uint32_t rank;
    char name[EEP_WCACHE_NAME_MAX];
    uint8_t reserved[40];
};
_Static_assert(sizeof(struct wc_attach) == 128, "size of an attached process");

/*
 * A version of the layout. Behind the header, with T = layers * seats * slots of a seat:
 *     int32_t  phys2log[T]        the expert in a slot, -1 for none
 *     uint32_t frames[T]          the slot's frame in its seat's file, WC_NO_FRAME for none
 *     uint64_t retired[seats * F] the version with which a frame left the layout; 0: it is in it,
 *                                 or never was
 */
struct wc_copy {
    uint64_t magic;
    uint64_t version;
    uint8_t map_digest[32];
    uint64_t bytes; /* header and tables */
    uint64_t reserved;
    struct wc_digest check; /* XXH3-128 of header, check being 0, and tables */
};
_Static_assert(sizeof(struct wc_copy) == 80, "size of a copy's header");

/* The content of an expert, written when it is first loaded. */
struct wc_expert_digest {
    struct wc_digest digest;
    uint64_t check; /* wc_expert_check() of it, else not known */
};
_Static_assert(sizeof(struct wc_expert_digest) == 24, "size of an expert's digest");

static inline uint64_t wc_expert_check(const struct wc_digest *digest, uint64_t index)
{
    return eep_rng_mix(eep_rng_mix(digest->low) ^ digest->high ^ index << 32) | 1;
}

/* ---- seats and dense --------------------------------------------------------------------------
 */

struct wc_seat_header {
    uint64_t magic;
    uint32_t format;
    uint32_t seat;
    uint64_t frame_bytes;
    uint64_t frames;
    struct wc_digest record; /* checksum of the record's header: the cache that it belongs to */
    struct wc_digest check;  /* XXH3-128 of all before it */
    _Atomic uint64_t state;  /* word */
    _Atomic uint32_t holder; /* place of the last that took the fill lock; for texts */
    uint8_t reserved[EEP_PAGE - 76];
};
_Static_assert(sizeof(struct wc_seat_header) == EEP_PAGE, "size of a seat's header");
_Static_assert(offsetof(struct wc_seat_header, check) == 48, "offset of a seat's checksum");

enum wc_frame_state { WC_FRAME_FREE = 0, WC_FRAME_FILLING = 1, WC_FRAME_VALID = 2 };

/* Changed by the process that holds the seat's fill lock. FREE and FILLING carry no checksum. */
struct wc_frame {
    uint32_t magic;
    _Atomic uint32_t state;
    uint32_t layer;
    int32_t expert;
    struct wc_digest digest; /* of frame_bytes bytes */
    uint64_t generation;     /* how often this frame was filled */
    uint64_t reserved[2];
    uint64_t check; /* XXH3-64 of all before it, with the state VALID and salted by its place */
};
_Static_assert(sizeof(struct wc_frame) == 64, "size of a frame header");
_Static_assert(offsetof(struct wc_frame, check) == 56, "offset of a frame's checksum");

struct wc_dense_header {
    uint64_t magic;
    uint32_t format;
    uint32_t reserved0;
    uint64_t bytes;
    struct wc_digest record;
    struct wc_digest digest; /* of the blob; set before the state becomes VALID */
    struct wc_digest check;  /* XXH3-128 of all before it */
    _Atomic uint64_t state;  /* word */
    _Atomic uint32_t holder; /* as in a seat */
    uint8_t reserved[EEP_PAGE - 84];
};
_Static_assert(sizeof(struct wc_dense_header) == EEP_PAGE, "size of dense's header");

/* ---- sizes that follow from a header ----------------------------------------------------------
 */

struct wc_shape {
    uint32_t layers, experts, seats, slots_per_seat;
    uint32_t slots;        /* of one layer: seats * slots_per_seat */
    uint32_t seat_frames;  /* F: frames of a seat, spare ones too */
    uint64_t table;        /* T */
    uint64_t frame_bytes;  /* content */
    uint64_t frame_stride; /* content rounded up to pages */
    uint64_t copy_bytes;
    uint64_t copy_offset[2];
    uint64_t digests_offset;
    uint64_t record_bytes;
    uint64_t seat_data;  /* offset of frame 0 in a seat's file */
    uint64_t seat_bytes; /* of that file */
    uint64_t dense_bytes;
    uint64_t dense_file_bytes;
};

/** Sizes for a key; EEP_ERR_INVALID names the number that is out of bounds. */
EEP_MUST_CHECK enum eep_status wc_shape_init(const struct eep_wcache_key *key,
                                             uint32_t spare_frames, uint64_t dense_bytes,
                                             struct wc_shape *shape_out);

/* The tables of a copy. */
static inline int32_t *wc_copy_map(struct wc_copy *copy)
{
    return (int32_t *)(copy + 1);
}

static inline uint32_t *wc_copy_frames(struct wc_copy *copy, const struct wc_shape *shape)
{
    return (uint32_t *)(wc_copy_map(copy) + shape->table);
}

static inline uint64_t *wc_copy_retired(struct wc_copy *copy, const struct wc_shape *shape)
{
    return (uint64_t *)(wc_copy_frames(copy, shape) + shape->table);
}

/* ---- digests ----------------------------------------------------------------------------------
 */

struct wc_digest wc_xxh128(const void *bytes, size_t count);
uint64_t wc_xxh64(const void *bytes, size_t count, uint64_t seed);

static inline bool wc_digest_equal(struct wc_digest a, struct wc_digest b)
{
    return a.low == b.low && a.high == b.high;
}

/** Set the map digest and the checksum of a copy whose tables and version are set. */
EEP_MUST_CHECK enum eep_status wc_copy_seal(struct wc_copy *copy, const struct wc_shape *shape);

/** Check all of a copy; `what` and the version that it must hold are for the text. */
EEP_MUST_CHECK enum eep_status wc_copy_check(const struct wc_copy *copy,
                                             const struct wc_shape *shape, uint64_t version,
                                             const char *what);

/** The frames of one seat for a map, in the order of its slots: what nobody moved yet. */
void wc_frames_initial(const struct wc_shape *shape, const int32_t *phys2log, uint32_t seat,
                       uint32_t *frames);

void wc_frame_seal(struct wc_frame *frame, uint32_t seat, uint32_t index);
/** Does the header hold that expert, valid and with a good checksum? */
bool wc_frame_holds(const struct wc_frame *frame, uint32_t seat, uint32_t index, uint32_t layer,
                    int32_t expert);

/* The checksums of headers. */
struct wc_digest wc_header_check(const struct wc_header *header);
struct wc_digest wc_block_check(const struct wc_move_block *block);

#endif
