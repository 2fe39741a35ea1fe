/*
 * Reading the record: its header, the words of the control page, whole versions, and who is there.
 *
 * Order in which the words change (move.c), and so the order in which they are read here:
 *
 *     prepare   prepared := v+1
 *     commit    current := v+1 (the flip), move := idle, prepared := none
 *
 * `prepared` is read before `current`: equal ones mean that the flip was done, and whatever `move`
 * still says is over.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "wcache/wcache_int.h"

/* ---- header -----------------------------------------------------------------------------------
 */

static enum eep_status check_magic(const char *what, const struct wc_header *header)
{
    if (header->magic != WC_RECORD_MAGIC) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: is no record of a weight cache", what);
    }
    if (header->format != WC_FORMAT || header->byte_order != WC_BYTE_ORDER) {
        return EEP_FAIL(
            EEP_ERR_STALE,
            "%s: has format %u and byte order %08x; this eep uses %u and %08x; drop the "
            "cache",
            what, header->format, header->byte_order, WC_FORMAT, WC_BYTE_ORDER);
    }
    if (!wc_digest_equal(header->check, wc_header_check(header))) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: the header's checksum is wrong; drop the cache",
                        what);
    }
    if (header->uid != (uint32_t)geteuid()) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: was made by user %u, not by %u", what, header->uid,
                        (unsigned)geteuid());
    }
    return EEP_OK;
}

enum eep_status wc_header_read(const char *what, const struct wc_header *header,
                               uint64_t file_bytes, struct eep_wcache_key *key_out,
                               struct wc_shape *shape_out)
{
    struct eep_wcache_key key = {0};

    EEP_TRY(check_magic(what, header));
    key = (struct eep_wcache_key){.packing = header->packing,
                                  .dtype = header->dtype,
                                  .layers = header->layers,
                                  .experts = header->experts,
                                  .seats = header->seats,
                                  .slots_per_seat = header->slots_per_seat,
                                  .frame_bytes = header->frame_bytes};
    memcpy(key.checkpoint, header->checkpoint, sizeof(key.checkpoint));
    memcpy(key.node, header->node, sizeof(key.node));
    if (wc_shape_init(&key, header->spare_frames, header->dense_bytes, shape_out) != EEP_OK ||
        memchr(header->source, '\0', sizeof(header->source)) == NULL) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s: a field of the header is out of range", what);
    }
    if (shape_out->record_bytes != header->record_bytes || file_bytes != header->record_bytes) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD,
                        "%s: has %llu bytes, its header says %llu, its numbers need %llu; drop the "
                        "cache",
                        what, (unsigned long long)file_bytes,
                        (unsigned long long)header->record_bytes,
                        (unsigned long long)shape_out->record_bytes);
    }
    *key_out = key;
    return EEP_OK;
}

void wc_record_bind(struct eep_wcache *c)
{
    c->header = (struct wc_header *)c->record;
    c->control = (struct wc_control *)(c->record + sizeof(struct wc_header));
    c->attached = (struct wc_attach *)(c->control + 1);
    c->digests = (struct wc_expert_digest *)(c->record + c->shape.digests_offset);
}

/* ---- words ------------------------------------------------------------------------------------
 */

static enum eep_status read_word(struct eep_wcache *c, const char *name, _Atomic uint64_t *word,
                                 uint64_t salt, uint64_t *content_out)
{
    const uint64_t value = atomic_load(word);

    if (wc_word_read(salt, value, content_out)) {
        return EEP_OK;
    }
    return EEP_FAIL(EEP_ERR_CACHE_BAD,
                    "%s/record: the word '%s' is damaged (%016llx); drop the cache", c->path, name,
                    (unsigned long long)value);
}

enum eep_status wc_state_read(struct eep_wcache *c, struct wc_state *state_out)
{
    uint64_t prepared, move, current, keep;
    struct wc_state s = {0};

    EEP_TRY(read_word(c, "prepared", &c->control->prepared, WC_SALT_PREPARED, &prepared));
    EEP_TRY(read_word(c, "move", &c->control->move, WC_SALT_MOVE, &move));
    EEP_TRY(read_word(c, "current", &c->control->current, WC_SALT_CURRENT, &current));
    EEP_TRY(read_word(c, "keep", &c->control->keep, WC_SALT_KEEP, &keep));
    s.version = current >> 1;
    s.copy = current & 1;
    s.prepared = prepared != 0 && prepared != current;
    s.prepared_version = prepared >> 1;
    s.prepared_copy = prepared & 1;
    s.move = (enum wc_move)(move & 0xff);
    s.number = move >> 8;
    s.keep = keep == 1;
    if (s.move < WC_MOVE_IDLE || s.move > WC_MOVE_DIRTY || keep > 1) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "%s/record: no state has the number %d", c->path,
                        (int)s.move);
    }
    if (prepared != 0 && prepared == current) {
        s.move = WC_MOVE_IDLE;
    }
    *state_out = s;
    return EEP_OK;
}

uint64_t eep_wcache_version(const struct eep_wcache *cache)
{
    return atomic_load_explicit(&cache->control->current, memory_order_acquire) >> 17;
}

/* ---- versions ---------------------------------------------------------------------------------
 */

static enum eep_status snapshot_once(struct eep_wcache *c, bool prepared, struct wc_copy *copy,
                                     bool *stable_out)
{
    struct wc_state before, after;

    EEP_TRY(wc_state_read(c, &before));
    if (prepared && !before.prepared) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: no version is prepared", c->path);
    }
    EEP_FAULT("wcache.snapshot.begun");
    memcpy(copy, wc_copy_at(c, prepared ? before.prepared_copy : before.copy), c->shape.copy_bytes);
    atomic_thread_fence(memory_order_seq_cst);
    EEP_TRY(wc_state_read(c, &after));
    *stable_out = before.version == after.version && before.copy == after.copy &&
                  (!prepared || before.prepared_version == after.prepared_version);
    if (!*stable_out) {
        return EEP_OK; /* a mover was quicker; what was copied may be mixed */
    }
    return wc_copy_check(copy, &c->shape, prepared ? before.prepared_version : before.version,
                         c->path);
}

enum eep_status wc_snapshot(struct eep_wcache *c, bool prepared, struct wc_copy **copy_out)
{
    struct wc_copy *copy;
    bool stable = false;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, c->shape.copy_bytes, "layout of a weight cache", &copy));
    do {
        status = snapshot_once(c, prepared, copy, &stable);
    } while (status == EEP_OK && !stable);
    if (status != EEP_OK) {
        eep_mem_free(copy);
        return status;
    }
    *copy_out = copy;
    return EEP_OK;
}

static enum eep_status copy_map(struct eep_wcache *cache, bool prepared, uint64_t *version_out,
                                int32_t *phys2log)
{
    struct wc_copy *copy;

    EEP_TRY(wc_snapshot(cache, prepared, &copy));
    *version_out = copy->version;
    memcpy(phys2log, wc_copy_map(copy), cache->shape.table * sizeof(*phys2log));
    eep_mem_free(copy);
    return EEP_OK;
}

enum eep_status eep_wcache_map(struct eep_wcache *cache, uint64_t *version_out, int32_t *phys2log)
{
    return copy_map(cache, false, version_out, phys2log);
}

enum eep_status eep_wcache_map_prepared(struct eep_wcache *cache, uint64_t *version_out,
                                        int32_t *phys2log)
{
    return copy_map(cache, true, version_out, phys2log);
}

/* ---- who is there -----------------------------------------------------------------------------
 */

enum eep_status wc_mover_lives(struct eep_wcache *c, bool *lives_out)
{
    int64_t byte;

    if (c->mover) {
        *lives_out = c->moving; /* what is pending otherwise is a dead one's */
        return EEP_OK;
    }
    return wc_lock_other(c->record_fd, WC_LOCK_MOVER, 1, &byte, lives_out);
}

/* A place whose engine is 0 was never used or was left in order. One that is being taken just now
 * has no pin yet, and will see all that was stored before this. */
bool wc_is_other(const struct wc_attach *attach, uint64_t engine_id)
{
    const uint64_t engine = atomic_load(&attach->engine);

    return engine != 0 && engine != engine_id; /* 0: it has just left */
}

enum eep_status wc_attached_each(struct eep_wcache *c,
                                 bool (*visit)(void *context, uint32_t place,
                                               struct wc_attach *attach),
                                 void *context)
{
    for (uint32_t place = 0; place < WC_ATTACH_MAX; place++) {
        bool lives = place == c->place;
        int64_t byte;

        if (atomic_load(&c->attached[place].engine) == 0) {
            continue;
        }
        if (!lives) {
            EEP_TRY(wc_lock_other(c->record_fd, WC_LOCK_ATTACH + place, 1, &byte, &lives));
        }
        if (lives && !visit(context, place, &c->attached[place])) {
            return EEP_OK;
        }
    }
    return EEP_OK;
}

void wc_attach_name(struct eep_wcache *c, uint32_t place, char name_out[EEP_WCACHE_NAME_MAX])
{
    snprintf(name_out, EEP_WCACHE_NAME_MAX, "%s", "unknown");
    if (place < WC_ATTACH_MAX && c->attached[place].name[0] != '\0') {
        memcpy(name_out, c->attached[place].name, EEP_WCACHE_NAME_MAX);
        name_out[EEP_WCACHE_NAME_MAX - 1] = '\0';
    }
}

/* ---- moves, for texts -------------------------------------------------------------------------
 */

enum eep_status wc_move_read(struct eep_wcache *c, struct eep_wcache_move *move_out)
{
    struct wc_move_block block;

    memcpy(&block, &c->control->block, sizeof(block));
    if (!wc_digest_equal(block.check, wc_block_check(&block)) ||
        memchr(block.name, '\0', sizeof(block.name)) == NULL) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD,
                        "%s/record: the description of the pending move is "
                        "damaged; drop the cache",
                        c->path);
    }
    *move_out =
        (struct eep_wcache_move){.engine_id = block.engine, .base_version = block.base_version};
    memcpy(move_out->engine, block.name, sizeof(move_out->engine));
    memcpy(move_out->layers, block.layers, sizeof(move_out->layers));
    return EEP_OK;
}

static bool has_layer(const struct eep_wcache_move *move, uint32_t layer)
{
    return layer < EEP_WCACHE_LAYERS_MAX && (move->layers[layer / 64] >> (layer % 64) & 1) != 0;
}

/* "0-3, 7", cut when it becomes long. */
static void layers_text(const struct eep_wcache_move *move, char *text, size_t size)
{
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t layer = 0; layer < EEP_WCACHE_LAYERS_MAX && at + 40 < size; layer++) {
        const uint32_t first = layer;

        if (!has_layer(move, layer)) {
            continue;
        }
        while (has_layer(move, layer + 1)) {
            layer++;
        }
        at += (size_t)snprintf(text + at, size - at, "%s%u", at > 0 ? ", " : "", first);
        if (layer > first) {
            at += (size_t)snprintf(text + at, size - at, "-%u", layer);
        }
    }
}

const char *wc_move_text(struct eep_wcache *c, char text[512])
{
    struct eep_wcache_move move;
    char layers[256];

    if (wc_move_read(c, &move) != EEP_OK) {
        return "an unknown engine";
    }
    layers_text(&move, layers, sizeof(layers));
    snprintf(text, 512, "engine '%s' (layers %s; base version %llu)", move.engine, layers,
             (unsigned long long)move.base_version);
    return text;
}

enum eep_status wc_fail_dirty(struct eep_wcache *c)
{
    char text[512];

    return EEP_FAIL(EEP_ERR_CACHE_BAD,
                    "%s: dirty: %s vanished while it moved experts in place; repair the cache (eep "
                    "cache repair) or drop it",
                    c->path, wc_move_text(c, text));
}

enum eep_status wc_check_owner(const struct eep_wcache *c)
{
    return c->owner == getpid()
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_INVALID,
                          "%s: this handle was inherited by fork, and its locks were not; open the "
                          "cache anew",
                          c->path);
}
