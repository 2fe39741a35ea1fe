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
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine_int.h"

#define PACKING_VERSION 1 /* of panels and frames: kernels/kernels.h, model/ffn.h */
#define WAIT_NS (300 * EEP_NS_PER_S)

/* ---- which cache ---- */

/* One tensor, and its file's size and time when the file is another than the last one's. */
static bool digest_tensor(EVP_MD_CTX *hash, const struct eep_tensor *tensor, const char **last)
{
    struct stat info;
    uint64_t numbers[3] = {tensor->dtype, tensor->dims, tensor->bytes};
    bool ok = EVP_DigestUpdate(hash, tensor->name, strlen(tensor->name) + 1) == 1 &&
              EVP_DigestUpdate(hash, numbers, sizeof(numbers)) == 1 &&
              EVP_DigestUpdate(hash, tensor->shape, tensor->dims * sizeof(tensor->shape[0])) == 1;

    if (ok && (*last == NULL || strcmp(*last, tensor->file) != 0)) {
        *last = tensor->file;
        ok = stat(tensor->file, &info) == 0;
        numbers[0] = (uint64_t)info.st_size;
        numbers[1] = (uint64_t)info.st_mtim.tv_sec;
        numbers[2] = (uint64_t)info.st_mtim.tv_nsec;
        ok = ok && EVP_DigestUpdate(hash, numbers, sizeof(numbers)) == 1;
    }
    return ok;
}

/*
 * A checkpoint's identity without reading its data: config, every tensor's name, type and shape,
 * and each file's size and time of change.
 */
static enum eep_status checkpoint_digest(const struct eep_ckpt *ckpt, uint8_t digest_out[32])
{
    char *config = json_dumps(eep_ckpt_config(ckpt), JSON_SORT_KEYS | JSON_COMPACT);
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    const char *last = NULL;
    bool ok = config != NULL && hash != NULL && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 &&
              EVP_DigestUpdate(hash, config, strlen(config) + 1) == 1;

    for (size_t i = 0; ok && i < eep_ckpt_count(ckpt); i++) {
        ok = digest_tensor(hash, eep_ckpt_at(ckpt, i), &last);
    }
    ok = ok && EVP_DigestFinal_ex(hash, digest_out, NULL) == 1;
    EVP_MD_CTX_free(hash);
    free(config);
    return ok ? EEP_OK
              : EEP_FAIL(EEP_ERR_IO, "%s: the checkpoint's digest cannot be taken",
                         eep_ckpt_dir(ckpt));
}

/* Real nodes are known by their names; pretended ones share a machine and are numbered too. */
static void name_node(const struct eep_engine *e, char name_out[EEP_WCACHE_NODE_MAX])
{
    char host[EEP_WCACHE_NODE_MAX - 12] = "";

    (void)gethostname(host, sizeof(host) - 1);
    if (e->pretended) {
        snprintf(name_out, EEP_WCACHE_NODE_MAX, "%s.%" PRIu32, host, e->xport->topo.node);
    } else {
        snprintf(name_out, EEP_WCACHE_NODE_MAX, "%s", host[0] != '\0' ? host : "node");
    }
}

static enum eep_status make_key(const struct eep_engine *e, struct eep_wcache_key *key)
{
    const struct eep_experts_source source = eep_engine_source(e);
    enum eep_dtype dtype;

    memset(key, 0, sizeof(*key));
    EEP_TRY(checkpoint_digest(e->ckpt, key->checkpoint));
    EEP_TRY(eep_experts_content(&source, &key->frame_bytes, &dtype));
    key->packing = PACKING_VERSION;
    key->dtype = dtype;
    key->layers = e->layout->layers;
    key->experts = e->layout->experts;
    key->seats = e->layout->seats;
    key->slots_per_seat = e->layout->slots_per_seat;
    name_node(e, key->node);
    return EEP_OK;
}

struct shape {
    uint32_t seats;
    uint32_t slots_per_seat;
};

/* A cache of this checkpoint on this node: of the wanted shape, else the newest of another one. */
static enum eep_status find_shape(const struct eep_engine *e, const struct eep_wcache_key *key,
                                  struct shape *shape_out)
{
    struct eep_wcache_info *infos;
    uint64_t newest = 0;
    size_t count;

    *shape_out = (struct shape){key->seats, key->slots_per_seat};
    EEP_TRY(eep_wcache_list(e->cache_dir, &infos, &count));
    for (size_t i = 0; i < count; i++) {
        struct eep_wcache_key other = infos[i].key;
        const struct shape shape = {other.seats, other.slots_per_seat};

        other.seats = key->seats;
        other.slots_per_seat = key->slots_per_seat;
        if (infos[i].status != EEP_OK || memcmp(&other, key, sizeof(other)) != 0) {
            continue;
        }
        if (shape.seats == key->seats && shape.slots_per_seat == key->slots_per_seat) {
            *shape_out = shape;
            break;
        }
        if (infos[i].created_ns >= newest) {
            newest = infos[i].created_ns;
            *shape_out = shape;
        }
    }
    eep_mem_free(infos);
    if (e->own_shape &&
        (shape_out->seats != key->seats || shape_out->slots_per_seat != key->slots_per_seat)) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "the weight cache of this checkpoint has %u seats of %u slots, %u seats of "
                        "%u slots are asked for; leave out --redundant-experts and --layout to use "
                        "it, or drop it (eep cache drop)",
                        shape_out->seats, shape_out->slots_per_seat, key->seats,
                        key->slots_per_seat);
    }
    return EEP_OK;
}

/* ---- open ---- */

static uint32_t seats_of_node(const struct eep_engine *e, uint32_t seats)
{
    const struct eep_topology *topo = &e->xport->topo;
    uint32_t count = 0;

    for (uint32_t seat = 0; seat < seats; seat++) {
        const uint32_t rank = eep_layout_executor(seat, seats, topo->size);

        count += topo->node_of[rank] == topo->node;
    }
    return count;
}

static enum eep_status open_cache(struct eep_engine *e, const struct eep_wcache_key *key,
                                  uint64_t engine_id, uint64_t dense_bytes, const int32_t *map)
{
    char name[EEP_WCACHE_NAME_MAX], source[PATH_MAX];
    const struct eep_wcache_params params = {
        .dir = e->cache_dir,
        .key = *key,
        .phys2log = map,
        .node_seats = seats_of_node(e, key->seats),
        .dense_bytes = dense_bytes,
        .source = realpath(e->model_dir, source) != NULL ? source : e->model_dir,
        .engine = name,
        .engine_id = engine_id,
        .rank = e->xport->topo.rank,
        .follows = true,
        .keep = e->cache_mode != EEP_CACHE_JOB,
        .timeout_ns = WAIT_NS,
    };

    snprintf(name, sizeof(name), "eep, process %ld, rank %u", (long)getpid(), e->xport->topo.rank);
    return eep_wcache_open(&params, &e->cache);
}

/* Make the layout that the cache's record has this engine's. */
static enum eep_status adopt_layout(struct eep_engine *e, const struct eep_wcache_key *key)
{
    const size_t count = (size_t)key->layers * key->seats * key->slots_per_seat;
    struct eep_layout *layout;
    uint64_t version;
    int32_t *map;

    EEP_TRY(eep_mem_alloc(count, sizeof(*map), "layout of the weight cache", &map));
    enum eep_status status = eep_wcache_map(e->cache, &version, map);
    if (status == EEP_OK && e->layout_path != NULL &&
        memcmp(map, e->layout->phys2log, count * sizeof(*map)) != 0) {
        status =
            EEP_FAIL(EEP_ERR_STALE,
                     "the weight cache's layout (version %" PRIu64 ") is not that of %s; leave "
                     "out --layout to use it, or drop it (eep cache drop)",
                     version, e->layout_path);
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

struct found {
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
};

_Static_assert(sizeof(struct found) == 40, "travels between ranks");

static enum eep_status look_at_record(const struct eep_engine *e, struct found *found_out)
{
    struct eep_wcache_status status;

    EEP_TRY(eep_wcache_wait(e->cache, WAIT_NS));
    EEP_TRY(eep_wcache_status(e->cache, &status));
    if (status.state == EEP_WCACHE_DIRTY || status.prepared_version != EEP_WCACHE_NO_VERSION) {
        return EEP_FAIL(EEP_ERR_CACHE_BAD,
                        "the weight cache %s was left in the middle of a move from version %" PRIu64
                        " by '%s'; run eep cache repair, or drop it",
                        status.path, status.move.base_version, status.move.engine);
    }
    found_out->version = status.version;
    memcpy(found_out->digest, status.digest, sizeof(found_out->digest));
    return EEP_OK;
}

/* All nodes must hold the same map. Versions may differ: a repair publishes the same map anew. */
static enum eep_status compare_records(struct eep_engine *e, const struct found *mine)
{
    const uint32_t ranks = e->xport->topo.size;
    struct found *all = NULL;
    enum eep_status status =
        eep_agree(e->xport, "weight cache records",
                  eep_mem_alloc(ranks, sizeof(*all), "weight cache records", &all));

    if (status == EEP_OK) {
        status =
            e->xport->ops->allgather(e->xport, "weight cache records", mine, sizeof(*mine), all);
    }
    for (uint32_t r = 1; status == EEP_OK && r < ranks; r++) {
        if (memcmp(all[r].digest, all[0].digest, sizeof(all[0].digest)) != 0) {
            status = EEP_FAIL(EEP_ERR_STALE,
                              "the nodes' weight caches hold different layouts: node %u version "
                              "%" PRIu64 ", node %u version %" PRIu64 "; drop one (eep cache drop)",
                              e->xport->topo.node_of[0], all[0].version, e->xport->topo.node_of[r],
                              all[r].version);
        }
    }
    eep_mem_free(all);
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
static enum eep_status reshape(struct eep_engine *e, struct eep_wcache_key *key, struct shape shape,
                               struct eep_layout **reshaped_out)
{
    *reshaped_out = NULL;
    if (shape.seats == key->seats && shape.slots_per_seat == key->slots_per_seat) {
        return EEP_OK;
    }
    key->seats = shape.seats;
    key->slots_per_seat = shape.slots_per_seat;
    const uint64_t slots = (uint64_t)shape.seats * shape.slots_per_seat;
    return eep_layout_initial(e->config.moe_layers, e->config.experts, shape.seats,
                              (uint32_t)(slots > e->config.experts ? slots - e->config.experts : 0),
                              reshaped_out);
}

enum eep_status eep_cache_open(struct eep_engine *e)
{
    struct eep_layout *reshaped = NULL;
    struct eep_wcache_key key;
    struct shape shape = {0};
    struct found found = {0};
    uint64_t dense_bytes, engine_id;

    if (e->cache_mode == EEP_CACHE_OFF || e->layout == NULL) {
        return EEP_OK;
    }
    enum eep_status status = make_key(e, &key);
    if (status == EEP_OK) {
        status = eep_model_bytes_needed(&e->config, e->ckpt, &dense_bytes);
    }
    if (status == EEP_OK && e->xport->topo.rank == 0) {
        status = find_shape(e, &key, &shape);
    }
    EEP_TRY(eep_agree(e->xport, "weight cache", status));
    EEP_TRY(e->xport->ops->broadcast(e->xport, "weight cache shape", 0, &shape, sizeof(shape)));
    engine_id = eep_rng_mix(eep_clock_ns() ^ (uint64_t)getpid() << 32) | 1;
    EEP_TRY(e->xport->ops->broadcast(e->xport, "engine id", 0, &engine_id, sizeof(engine_id)));
    EEP_TRY(eep_agree(e->xport, "weight cache shape", reshape(e, &key, shape, &reshaped)));
    status = open_cache(e, &key, engine_id, dense_bytes,
                        reshaped != NULL ? reshaped->phys2log : e->layout->phys2log);
    eep_layout_destroy(reshaped);
    status = eep_agree(e->xport, "open weight cache", status);
    if (status != EEP_OK) {
        return give_up(e, status);
    }
    EEP_TRY(eep_agree(e->xport, "weight cache record", look_at_record(e, &found)));
    EEP_TRY(compare_records(e, &found));
    return eep_agree(e->xport, "weight cache layout", adopt_layout(e, &key));
}

/* ---- load ---- */

static enum eep_status load_dense(struct eep_engine *e)
{
    bool fill;

    EEP_TRY(eep_wcache_dense_open(e->cache, WAIT_NS, &fill));
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

/* True for a seat that this rank executes. */
static bool is_own(const struct eep_engine *e, uint32_t seat)
{
    return eep_layout_executor(seat, e->layout->seats, e->xport->topo.size) == e->xport->topo.rank;
}

static enum eep_status fill_slot(struct eep_engine *e, uint32_t layer, struct eep_slot slot,
                                 uint64_t frame_bytes)
{
    const struct eep_experts_source source = eep_engine_source(e);
    const struct eep_expert expert = {(uint32_t)eep_layout_expert(e->layout, layer, slot)};
    struct eep_wcache_frame frame;
    void *bytes;

    if (!eep_wcache_slot_frame(e->cache, layer, slot, &frame) ||
        eep_wcache_slot_filled(e->cache, layer, slot)) {
        return EEP_OK;
    }
    EEP_TRY(eep_wcache_frame_begin(e->cache, frame, &bytes));
    EEP_TRY(eep_experts_pack(&source, layer, expert, bytes, frame_bytes));
    return eep_wcache_frame_end(e->cache, frame, layer, expert, NULL, NULL);
}

static enum eep_status load_seat(struct eep_engine *e, struct eep_seat seat, uint64_t frame_bytes)
{
    const uint32_t slots = e->layout->slots_per_seat;
    bool fill;

    EEP_TRY(eep_wcache_seat_open(e->cache, seat, WAIT_NS, &fill));
    if (!fill) {
        return EEP_OK;
    }
    e->cache_filled = true;
    for (uint32_t layer = 0; layer < e->layout->layers; layer++) {
        for (uint32_t s = 0; s < slots; s++) {
            EEP_TRY(fill_slot(e, layer, (struct eep_slot){seat.id * slots + s}, frame_bytes));
        }
        if (e->progress != NULL) {
            e->progress(e->progress_context, layer + 1, e->layout->layers);
        }
    }
    return eep_wcache_seat_end(e->cache, seat);
}

/* Pages are mapped before serving, not on first touch; each thread does its share of each file. */
static void populate(const struct eep_engine *e)
{
#pragma omp parallel
    {
        const uint32_t part = (uint32_t)omp_get_thread_num();
        const uint32_t parts = (uint32_t)omp_get_num_threads();

        eep_wcache_dense_populate(e->cache, part, parts);
        for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
            if (is_own(e, seat)) {
                eep_wcache_seat_populate(e->cache, (struct eep_seat){seat}, part, parts);
            }
        }
    }
}

static enum eep_status load_parts(struct eep_engine *e)
{
    const struct eep_experts_source source = eep_engine_source(e);
    uint64_t frame_bytes;
    enum eep_dtype dtype;

    EEP_TRY(eep_experts_content(&source, &frame_bytes, &dtype));
    EEP_TRY(load_dense(e));
    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        if (is_own(e, seat)) {
            EEP_TRY(load_seat(e, (struct eep_seat){seat}, frame_bytes));
        }
    }
    populate(e);
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

    EEP_TRY(eep_wcache_pin(e->cache, &e->view));
    if (memcmp(eep_wcache_view_map(e->view), e->layout->phys2log,
               (size_t)e->layout->layers * eep_layout_slots(e->layout) * sizeof(int32_t)) != 0) {
        return EEP_FAIL(EEP_ERR_AGAIN,
                        "another engine has changed the layout while this one started; try again");
    }
    return eep_experts_attach(&source, frame_of, e, &e->experts);
}

enum eep_status eep_cache_load(struct eep_engine *e)
{
    if (e->cache == NULL) {
        return EEP_OK;
    }
    const enum eep_status status = eep_agree(e->xport, "fill weight cache", load_parts(e));
    if (status != EEP_OK) {
        eep_model_destroy(e->model);
        e->model = NULL;
        return give_up(e, status);
    }
    return eep_agree(e->xport, "attach to weight cache", attach_experts(e));
}

void eep_cache_close(struct eep_engine *e)
{
    if (e->cache == NULL) {
        return;
    }
    eep_wcache_unpin(e->cache, e->view);
    eep_wcache_close(e->cache);
}
