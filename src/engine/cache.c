/*
 * Weights in the node's cache: attach first, load after.
 *
 *     find    rank 0 looks for a cache of this checkpoint; one of another shape (seats, slots) is
 *             used as it is, since members execute the seats that there are
 *     open    every rank attaches to the cache of its node, or creates it
 *     agree   all records with the same map, none dirty or pending; else every rank fails with the
 *             same reason
 *     load    what is missing is filled by the ranks that execute it, dense weights once per node;
 *             then a version is pinned and its frames are used where they lie
 *
 * Failures of one rank become those of all, so that none is left waiting.
 */
#include <inttypes.h>
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/backup.h"
#include "engine/cache_int.h"

#define DROP_NS (100 * EEP_NS_PER_MS) /* then somebody else is looked for that makes it again */

/* ---- open ---- */

static uint32_t seats_of_node(const struct eep_engine *e, uint32_t seats)
{
    const struct eep_topology *topo = &e->xport->topo;
    uint32_t count = 0;

    for (uint32_t seat = 0; topo->size > 0 && seat < seats; seat++) {
        const uint32_t rank = eep_layout_executor(seat, seats, topo->size);

        count += topo->node_of[rank] == topo->node;
    }
    return count;
}

/* What is the same for all ranks that open the cache. */
struct opening {
    struct eep_wcache_key key;
    uint64_t dense_bytes;
    const int32_t *map;  /* of version 0, for a new cache */
    uint32_t node_seats; /* that the node will hold */
};

static enum eep_status open_with(struct eep_engine *e, const struct opening *o, bool attach_only,
                                 uint32_t spare_frames)
{
    char name[EEP_WCACHE_NAME_MAX], source[PATH_MAX];
    const struct eep_wcache_params params = {
        .dir = e->cache_dir,
        .key = o->key,
        .attach_only = attach_only,
        .phys2log = o->map,
        .spare_frames = spare_frames,
        .node_seats = o->node_seats,
        .dense_bytes = o->dense_bytes,
        .source = realpath(e->model_dir, source) != NULL ? source : e->model_dir,
        .engine = name,
        .engine_id = e->engine_id,
        .rank = e->self,
        .follows = true,
        .keep = e->cache_mode != EEP_CACHE_JOB,
        .timeout_ns = e->attach_timeout_ns,
    };

    snprintf(name, sizeof(name), "eep, process %ld, rank %u", (long)getpid(), e->self);
    return eep_wcache_open(&params, &e->cache);
}

/* One spare frame a layer lets all layers change in one version; a cache that goes with this job
 * has none unless the job means to move experts. */
static uint32_t default_spare(const struct eep_engine *e, const struct opening *o)
{
    const bool moves =
        e->cache_mode != EEP_CACHE_JOB || e->rebalance.every > 0 || e->rebalance.threshold > 0.0;

    return moves && o->key.seats > 1 ? o->key.layers : 0;
}

/* Spare frames are worth having, but not the whole cache. */
static enum eep_status create_cache(struct eep_engine *e, const struct opening *o)
{
    const bool chosen = e->spare_frames != EEP_SPARE_DEFAULT;
    const uint32_t spare = chosen ? e->spare_frames : default_spare(e, o);
    enum eep_status status = open_with(e, o, false, spare);

    if (status == EEP_ERR_NOMEM && !chosen && spare > 0) {
        status = open_with(e, o, false, 0);
        if (status == EEP_OK) {
            eep_log(EEP_LOG_INFO, "weight cache: no room for spare frames; experts will be moved "
                                  "in place");
        }
    }
    return status;
}

/* Make the layout that the cache's record has this engine's. */
static enum eep_status adopt_layout(struct eep_engine *e, const struct eep_wcache_key *key,
                                    uint64_t *version_out)
{
    const size_t count = (size_t)key->layers * key->seats * key->slots_per_seat;
    struct eep_layout *layout;
    int32_t *map;

    EEP_TRY(eep_mem_alloc(count, sizeof(*map), "layout of the weight cache", &map));
    enum eep_status status = eep_wcache_map(e->cache, version_out, map);
    if (status == EEP_OK && e->layout_path != NULL &&
        memcmp(map, e->layout->phys2log, count * sizeof(*map)) != 0) {
        status =
            EEP_FAIL(EEP_ERR_STALE,
                     "the weight cache's layout (version %" PRIu64 ") is not that of %s; leave "
                     "out --layout to use it, or drop it (eep cache drop)",
                     *version_out, e->layout_path);
    }
    if (status == EEP_OK) {
        status = eep_layout_from_map(key->layers, key->experts, key->seats, key->slots_per_seat,
                                     map, &layout);
    }
    eep_mem_free(map);
    if (status == EEP_OK) {
        eep_layout_destroy(e->layout);
        e->layout = layout;
    }
    return status;
}

/* Without room for a cache an engine goes on in its own memory, unless that was ruled out. */
static enum eep_status give_up(struct eep_engine *e, enum eep_status status)
{
    if (status != EEP_ERR_NOMEM || e->cache_mode == EEP_CACHE_REQUIRE) {
        return status;
    }
    if (e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_WARN, "no weight cache: %s", eep_error_text());
    }
    if (e->cache != NULL && e->cache_filled) {
        eep_wcache_close_discard(e->cache);
    } else {
        eep_wcache_close(e->cache);
    }
    e->cache = NULL;
    e->cache_filled = false;
    return EEP_OK;
}

/* The map of version 0 for a cache of that shape, when it is to be made. */
static enum eep_status reshape(struct eep_engine *e, struct eep_wcache_key *key,
                               const struct eep_cache_shape *shape)
{
    struct eep_layout *layout;

    if (shape->seats == key->seats && shape->slots == key->slots_per_seat) {
        return EEP_OK;
    }
    key->seats = shape->seats;
    key->slots_per_seat = shape->slots;
    const uint64_t slots = (uint64_t)shape->seats * shape->slots;
    EEP_TRY(eep_layout_initial(
        e->config.moe_layers, e->config.experts, shape->seats,
        (uint32_t)(slots > e->config.experts ? slots - e->config.experts : 0), &layout));
    eep_layout_destroy(e->layout);
    e->layout = layout;
    return EEP_OK;
}

/* What each rank's node has; the first node that has one decides for all. */
struct nodes {
    struct eep_cache_shape *all; /* (ranks) */
    struct eep_cache_shape mine;
    uint32_t first; /* rank on a node that has a cache, or EEP_NO_RANK */
    bool some_lack; /* while others have one */
};

static enum eep_status look_for_caches(struct eep_engine *e, const struct eep_wcache_key *key,
                                       enum eep_status status, struct nodes *nodes)
{
    const uint32_t ranks = e->xport->topo.size;

    if (status == EEP_OK) {
        status = eep_mem_alloc(ranks, sizeof(*nodes->all), "weight caches", &nodes->all);
    }
    if (status == EEP_OK) {
        status = eep_cache_find(e, key, &nodes->mine);
    }
    EEP_TRY(eep_agree(e->xport, "weight cache", status));
    EEP_TRY(e->xport->ops->allgather(e->xport, "weight caches", &nodes->mine, sizeof(nodes->mine),
                                     nodes->all));
    nodes->first = EEP_NO_RANK;
    for (uint32_t r = ranks; r-- > 0;) {
        nodes->first = nodes->all[r].found != 0 ? r : nodes->first;
        nodes->some_lack = nodes->some_lack || nodes->all[r].found == 0;
    }
    nodes->some_lack = nodes->some_lack && nodes->first != EEP_NO_RANK;
    return EEP_OK;
}

/* Nodes without a cache take over the others' map, and its version. */
static enum eep_status join_nodes(struct eep_engine *e, struct opening *o,
                                  const struct nodes *nodes)
{
    const size_t table = (size_t)e->layout->layers * eep_layout_slots(e->layout);
    const uint32_t from = nodes->first;
    enum eep_status status = EEP_OK;
    uint64_t version = 0;

    EEP_TRY(eep_agree(e->xport, "weight cache layout",
                      e->cache != NULL ? adopt_layout(e, &o->key, &version) : EEP_OK));
    EEP_TRY(e->xport->ops->broadcast(e->xport, "layout version", from, &version, sizeof(version)));
    EEP_TRY(e->xport->ops->broadcast(e->xport, "layout", from, e->layout->phys2log,
                                     table * sizeof(int32_t)));
    if (e->cache == NULL) {
        o->map = e->layout->phys2log;
        status = create_cache(e, o);
    }
    EEP_TRY(eep_agree(e->xport, "open weight cache", status));
    return eep_cache_recover(e); /* new ones are at version 0 */
}

/* Caches that do not go together are made again, with the newest map. `before`: what the look at
 * them gave, EEP_OK or that they have different maps. */
static enum eep_status renew(struct eep_engine *e, struct opening *o, enum eep_status before)
{
    enum eep_status status = EEP_OK;
    char text[EEP_ERROR_TEXT_MAX];
    uint64_t version;
    bool dropped;

    snprintf(text, sizeof(text), "%s", eep_error_text());
    EEP_TRY(eep_agree(e->xport, "weight cache layout",
                      e->cache != NULL ? adopt_layout(e, &o->key, &version) : EEP_OK));
    EEP_TRY(eep_cache_drop_unfit(e, before != EEP_OK, &dropped));
    if (!dropped) {
        eep_error_text_set(text);
        return before;
    }
    if (e->cache == NULL) {
        o->map = e->layout->phys2log;
        status = create_cache(e, o);
    }
    EEP_TRY(eep_agree(e->xport, "open weight cache", status));
    return eep_cache_recover(e);
}

static enum eep_status open_caches(struct eep_engine *e, struct opening *o,
                                   const struct nodes *nodes)
{
    enum eep_status status = EEP_OK;

    o->map = e->layout->phys2log;
    if (!nodes->some_lack) {
        status = create_cache(e, o);
    } else if (nodes->mine.found != 0) {
        status = open_with(e, o, true, 0);
    }
    EEP_TRY(eep_agree(e->xport, "open weight cache", status));
    status = eep_cache_recover(e);
    if (status == EEP_OK && nodes->some_lack) {
        status = join_nodes(e, o, nodes);
    }
    if (e->xport->topo.nodes == 1 || (status != EEP_OK && status != EEP_ERR_STALE)) {
        return status;
    }
    return renew(e, o, status);
}

enum eep_status eep_cache_open(struct eep_engine *e)
{
    struct opening o = {0};
    struct nodes nodes = {0};
    uint64_t version;

    if (e->cache_mode == EEP_CACHE_OFF || e->layout == NULL) {
        return EEP_OK;
    }
    enum eep_status status = eep_cache_key(e, &o.key);
    if (status == EEP_OK) {
        status = eep_model_bytes_needed(&e->config, e->ckpt, &o.dense_bytes);
    }
    e->frame_bytes = o.key.frame_bytes;
    status = look_for_caches(e, &o.key, status, &nodes);
    if (status == EEP_OK && nodes.first != EEP_NO_RANK) {
        nodes.mine.seats = nodes.all[nodes.first].seats;
        nodes.mine.slots = nodes.all[nodes.first].slots;
        status = eep_agree(e->xport, "weight cache shape", reshape(e, &o.key, &nodes.mine));
    }
    eep_mem_free(nodes.all);
    EEP_TRY(status);
    o.node_seats = seats_of_node(e, o.key.seats);
    e->engine_id = eep_rng_mix(eep_clock_ns() ^ (uint64_t)getpid() << 32) | 1;
    EEP_TRY(
        e->xport->ops->broadcast(e->xport, "engine id", 0, &e->engine_id, sizeof(e->engine_id)));
    status = open_caches(e, &o, &nodes);
    if (status != EEP_OK) {
        return give_up(e, status);
    }
    return eep_agree(e->xport, "weight cache layout", adopt_layout(e, &o.key, &version));
}

static enum eep_status has_map(struct eep_engine *e, const struct opening *o, bool *has_out)
{
    const size_t count = (size_t)o->key.layers * o->key.seats * o->key.slots_per_seat;
    uint64_t version;
    int32_t *map;

    EEP_TRY(eep_mem_alloc(count, sizeof(*map), "layout of the weight cache", &map));
    const enum eep_status status = eep_wcache_map(e->cache, &version, map);

    *has_out = status == EEP_OK && memcmp(map, o->map, count * sizeof(*map)) == 0;
    eep_mem_free(map);
    return status;
}

/* One that was left when the node's last rank parked may have an older map than the ranks: it is
 * made again. Other joiners of the node may be at the same. */
static enum eep_status open_fresh(struct eep_engine *e, const struct opening *o)
{
    const uint64_t deadline_ns = eep_clock_ns() + e->attach_timeout_ns;
    char name[EEP_WCACHE_PATH_MAX];
    struct eep_wcache_status cache;
    enum eep_status status;
    bool fresh;

    for (;;) {
        EEP_TRY(create_cache(e, o));
        EEP_TRY(has_map(e, o, &fresh));
        if (fresh) {
            return EEP_OK;
        }
        EEP_TRY(eep_wcache_status(e->cache, &cache));
        if (cache.attached_others > 0) {
            return EEP_FAIL(EEP_ERR_STALE,
                            "this node's weight cache has another layout (version %" PRIu64
                            ") than the ranks, and another engine uses it: end that one",
                            cache.version);
        }
        EEP_TRY(eep_cache_leave(e, name));
        status = eep_cache_drop(e, name, DROP_NS);
        if (status != EEP_OK && (status != EEP_ERR_AGAIN || eep_clock_ns() > deadline_ns)) {
            return status;
        }
        eep_log(EEP_LOG_INFO, "weight cache: its layout is older than that of the ranks; it is "
                              "made again");
    }
}

/* A node's first process that joins makes its cache. */
static enum eep_status open_to_join(struct eep_engine *e, const bool *mine, bool in_use)
{
    struct opening o = {.map = e->layout->phys2log};
    struct eep_cache_shape shape;

    EEP_TRY(eep_cache_key(e, &o.key));
    EEP_TRY(eep_model_bytes_needed(&e->config, e->ckpt, &o.dense_bytes));
    EEP_TRY(eep_cache_find(e, &o.key, &shape));
    if (shape.found != 0 && (shape.seats != o.key.seats || shape.slots != o.key.slots_per_seat)) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "this node's weight cache has %u seats of %u slots, the ranks have %u of "
                        "%u; drop it (eep cache drop)",
                        shape.seats, shape.slots, o.key.seats, o.key.slots_per_seat);
    }
    for (uint32_t seat = 0; seat < o.key.seats; seat++) {
        o.node_seats += mine[seat];
    }
    e->frame_bytes = o.key.frame_bytes;
    return in_use ? open_with(e, &o, true, 0) : open_fresh(e, &o);
}

/* ---- load ---- */

static enum eep_status load_dense(struct eep_engine *e)
{
    bool fill;

    EEP_TRY(eep_wcache_dense_open(e->cache, e->attach_timeout_ns, &fill));
    if (fill) {
        void *memory = eep_wcache_dense_fill(e->cache);

        e->cache_filled = true;
        EEP_TRY(eep_model_attach(&e->config, e->ckpt, e->kernels, memory, memory, &e->model));
        eep_model_destroy(e->model); /* it points to the writable mapping, which ends now */
        e->model = NULL;
        EEP_TRY(eep_wcache_dense_end(e->cache));
    }
    return eep_model_attach(&e->config, e->ckpt, e->kernels, eep_wcache_dense(e->cache), NULL,
                            &e->model);
}

bool eep_engine_executes(const struct eep_engine *e, uint32_t seat)
{
    return e->executors[seat] == e->xport->topo.rank;
}

enum eep_status eep_cache_pack(struct eep_engine *e, struct eep_wcache_frame frame, uint32_t layer,
                               struct eep_expert expert)
{
    const struct eep_experts_source source = eep_engine_source(e);
    void *bytes;

    EEP_TRY(eep_wcache_frame_begin(e->cache, frame, &bytes));
    EEP_TRY(eep_experts_pack(&source, layer, expert, bytes, e->frame_bytes));
    return eep_wcache_frame_end(e->cache, frame, layer, expert, NULL, NULL);
}

enum eep_status eep_cache_copy(struct eep_engine *e, struct eep_wcache_frame frame, uint32_t layer,
                               struct eep_expert expert, const void *bytes,
                               const struct eep_wcache_content *content, bool *damaged_out)
{
    struct eep_wcache_fill *fill;

    EEP_TRY(eep_wcache_fill_begin(e->cache, frame, layer, expert, &fill));
    eep_wcache_fill_copy(fill, bytes, e->frame_bytes);
    const enum eep_status status = eep_wcache_fill_end(fill, content, NULL);

    *damaged_out = status == EEP_ERR_CACHE_BAD;
    if (*damaged_out) {
        eep_log(EEP_LOG_WARN, "expert %u of MoE layer %u is read from the checkpoint again: %s",
                expert.id, layer, eep_error_text());
        return eep_cache_pack(e, frame, layer, expert);
    }
    return status;
}

/* From this rank's own backup, if it holds one. */
static enum eep_status fill_frame(struct eep_engine *e, struct eep_wcache_frame frame,
                                  uint32_t layer, struct eep_expert expert)
{
    struct eep_wcache_content content;
    const void *held = eep_backup_find(e, layer, expert, &content);
    bool damaged;

    if (held == NULL) {
        return eep_cache_pack(e, frame, layer, expert);
    }
    EEP_TRY(eep_cache_copy(e, frame, layer, expert, held, &content, &damaged));
    if (!damaged) {
        eep_log(EEP_LOG_DEBUG, "expert %u of MoE layer %u is filled from the backup", expert.id,
                layer);
    }
    return EEP_OK;
}

static enum eep_status fill_slot(struct eep_engine *e, uint32_t layer, struct eep_slot slot)
{
    const struct eep_expert expert = {(uint32_t)eep_layout_expert(e->layout, layer, slot)};
    struct eep_wcache_frame frame;

    if (!eep_wcache_slot_frame(e->cache, layer, slot, &frame) ||
        eep_wcache_slot_filled(e->cache, layer, slot)) {
        return EEP_OK;
    }
    return fill_frame(e, frame, layer, expert);
}

static enum eep_status load_seat(struct eep_engine *e, struct eep_seat seat)
{
    const uint32_t slots = e->layout->slots_per_seat;
    bool fill;

    EEP_TRY(eep_wcache_seat_open(e->cache, seat, e->attach_timeout_ns, &fill));
    if (!fill) {
        return EEP_OK;
    }
    e->cache_filled = true;
    for (uint32_t layer = 0; layer < e->layout->layers; layer++) {
        for (uint32_t s = 0; s < slots; s++) {
            EEP_TRY(fill_slot(e, layer, (struct eep_slot){seat.id * slots + s}));
        }
        if (e->progress != NULL) {
            e->progress(e->progress_context, layer + 1, e->layout->layers);
        }
    }
    return eep_wcache_seat_end(e->cache, seat);
}

/* Pages are mapped before serving, not on first touch; each thread does its share of each file. */
static void populate(struct eep_engine *e, const bool *mine)
{
    const uint64_t begin_ns = eep_clock_ns();

#pragma omp parallel
    {
        const uint32_t part = (uint32_t)omp_get_thread_num();
        const uint32_t parts = (uint32_t)omp_get_num_threads();

        eep_wcache_dense_populate(e->cache, part, parts);
        for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
            if (mine[seat]) {
                eep_wcache_seat_populate(e->cache, (struct eep_seat){seat}, part, parts);
            }
        }
    }
    e->map_ns = eep_clock_ns() - begin_ns;
}

static enum eep_status load_parts(struct eep_engine *e, const bool *mine)
{
    EEP_TRY(load_dense(e));
    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        if (mine[seat]) {
            EEP_TRY(load_seat(e, (struct eep_seat){seat}));
        }
    }
    populate(e, mine);
    return EEP_OK;
}

static enum eep_status load_own(struct eep_engine *e)
{
    bool *mine;

    EEP_TRY(eep_mem_alloc(e->layout->seats, sizeof(*mine), "own seats", &mine));
    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        mine[seat] = eep_engine_executes(e, seat);
    }
    const enum eep_status status = load_parts(e, mine);

    eep_mem_free(mine);
    return status;
}

/* Frames of the node's other seats are what experts are copied from when they move. */
static enum eep_status open_others(struct eep_engine *e)
{
    const struct eep_topology *topo = &e->xport->topo;

    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        const uint32_t rank = e->executors[seat];
        bool fill;

        if (topo->node_of[rank] == topo->node && rank != topo->rank) {
            EEP_TRY(eep_wcache_seat_open(e->cache, (struct eep_seat){seat}, e->attach_timeout_ns,
                                         &fill));
            EEP_ASSERT(!fill); /* its rank has filled it */
        }
    }
    return EEP_OK;
}

static const void *frame_of(void *context, uint32_t layer, struct eep_slot slot)
{
    const struct eep_engine *e = context;
    const void *frame = eep_wcache_view_slot(e->view, layer, slot);

    EEP_ASSERT(frame != NULL); /* its seat was opened by load_parts() */
    return frame;
}

static enum eep_status attach_experts(struct eep_engine *e)
{
    const struct eep_experts_source source = eep_engine_source(e);

    return eep_experts_attach(&source, frame_of, e, &e->experts);
}

enum eep_status eep_cache_load(struct eep_engine *e)
{
    if (e->cache == NULL) {
        return EEP_OK;
    }
    const enum eep_status status = eep_agree(e->xport, "fill weight cache", load_own(e));
    if (status != EEP_OK) {
        eep_model_destroy(e->model);
        e->model = NULL;
        return give_up(e, status);
    }
    EEP_TRY(eep_agree(e->xport, "seats of the node", open_others(e)));
    EEP_TRY(eep_cache_first_view(e));
    return eep_agree(e->xport, "attach to weight cache", attach_experts(e));
}

enum eep_status eep_cache_join(struct eep_engine *e, const bool *mine, bool in_use)
{
    EEP_TRY(open_to_join(e, mine, in_use));
    return load_parts(e, mine);
}

enum eep_status eep_cache_fill_slot(struct eep_engine *e, struct eep_seat seat, uint32_t *slot,
                                    bool *done_out)
{
    const uint32_t slots = e->layout->slots_per_seat;
    bool fill;

    *done_out = true;
    if (*slot == 0) {
        EEP_TRY(eep_wcache_seat_open(e->cache, seat, e->attach_timeout_ns, &fill));
        if (!fill) {
            return EEP_OK;
        }
    }
    const uint32_t layer = *slot / slots, at = seat.id * slots + *slot % slots;

    EEP_TRY(fill_slot(e, layer, (struct eep_slot){at}));
    ++*slot;
    *done_out = *slot == e->layout->layers * slots;
    return *done_out ? eep_wcache_seat_end(e->cache, seat) : EEP_OK;
}

enum eep_status eep_cache_reload(struct eep_engine *e)
{
    const struct eep_wcache_key shape = {.layers = e->layout->layers,
                                         .experts = e->layout->experts,
                                         .seats = e->layout->seats,
                                         .slots_per_seat = e->layout->slots_per_seat};
    uint64_t version;

    EEP_TRY(eep_cache_recover(e));
    EEP_TRY(eep_agree(e->xport, "weight cache layout", adopt_layout(e, &shape, &version)));
    EEP_TRY(eep_refill_lost(e));
    EEP_TRY(eep_agree(e->xport, "seats of the node", open_others(e)));
    EEP_TRY(eep_cache_first_view(e));
    return eep_agree(e->xport, "attach to weight cache", attach_experts(e));
}

void eep_cache_close(struct eep_engine *e)
{
    if (e->cache == NULL) {
        return;
    }
    eep_backup_destroy(e);
    eep_wcache_unpin(e->cache, e->view);
    eep_wcache_close(e->cache);
    e->view = NULL;
    e->cache = NULL;
}
