/*
 * Making an engine: join, check on rank 0, agree, load.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/mover.h"

#define DEFAULT_BATCH_TOKENS 512u
#define DEFAULT_SEQUENCES 64u
#define DEFAULT_KV_TOKENS 16384u
#define DEFAULT_ATTACH_NS (300 * EEP_NS_PER_S)
#define MAX_BATCH_TOKENS 65536u
#define MAX_SEQUENCES 65536u

static bool has(const struct eep_engine_params *p, uint64_t field)
{
    return (p->fields & field) != 0;
}

static enum eep_status check_rebalance(const struct eep_engine *e)
{
    const struct eep_rebalance_params *r = &e->rebalance;

    if (r->every == 0 && r->threshold == 0.0) {
        return EEP_OK;
    }
    if (e->cache_mode == EEP_CACHE_OFF) {
        return EEP_FAIL(EEP_ERR_INVALID, "experts move only in a weight cache; leave out "
                                         "--weight-cache=off or the rebalancing");
    }
    if (!(r->threshold == 0.0 || (r->threshold >= 1.0 && r->threshold <= 1e6)) ||
        !(r->min_gain >= 0.0 && r->min_gain < 1.0)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "a rebalance at imbalance %g with a gain of at least %g: the imbalance is "
                        "largest / mean load, so 1 or more, and the gain a part of 1",
                        r->threshold, r->min_gain);
    }
    if (r->policy < EEP_BALANCE_EEP || r->policy > EEP_BALANCE_SHUFFLE) {
        return EEP_FAIL(EEP_ERR_INVALID, "there is no balancing policy %d", (int)r->policy);
    }
    return EEP_OK;
}

static enum eep_status check_sizes(const struct eep_engine *e, const struct eep_engine_params *p)
{
    const uint32_t size = has(p, EEP_ENGINE_EP_SIZE) ? e->ep_size : e->processes;

    if (size < 1 || size > e->processes) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%u ranks to begin with (ep-size): 1 to %u are possible, as many as "
                        "processes were started",
                        size, e->processes);
    }
    if (has(p, EEP_ENGINE_MAX_EP_SIZE) && e->max_ep_size < size) {
        return EEP_FAIL(EEP_ERR_INVALID, "at most %u ranks (max-ep-size), but %u to begin with",
                        e->max_ep_size, size);
    }
    if (has(p, EEP_ENGINE_MAX_EP_SIZE) && has(p, EEP_ENGINE_LAYOUT)) {
        return EEP_FAIL(EEP_ERR_INVALID, "a layout file already says how many seats there are; "
                                         "leave out max-ep-size");
    }
    return EEP_OK;
}

static enum eep_status check_backup(const struct eep_engine *e)
{
    if (e->backup_mode < EEP_BACKUP_NONE || e->backup_mode > EEP_BACKUP_PARTNER) {
        return EEP_FAIL(EEP_ERR_INVALID, "there is no backup mode %d", (int)e->backup_mode);
    }
    if (e->backup_mode != EEP_BACKUP_NONE &&
        (e->cache_mode == EEP_CACHE_OFF || e->on_loss == EEP_LOSS_STOP)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "a backup is of use only with a weight cache and when a loss is survived; "
                        "leave out %s or the backup",
                        e->cache_mode == EEP_CACHE_OFF ? "--weight-cache=off" : "--on-loss=stop");
    }
    return EEP_OK;
}

/* A process that was spawned takes what the ranks have. */
static bool is_spawned(const struct eep_engine *e)
{
    return e->start_node_of == NULL;
}

static enum eep_status check_params(const struct eep_engine *e, const struct eep_engine_params *p)
{
    EEP_TRY(is_spawned(e) ? EEP_OK : check_sizes(e, p));
    if (e->max_batch_tokens < 1 || e->max_batch_tokens > MAX_BATCH_TOKENS) {
        return EEP_FAIL(EEP_ERR_INVALID, "max_batch_tokens is %u; eep takes 1 to %u",
                        e->max_batch_tokens, MAX_BATCH_TOKENS);
    }
    if (e->max_sequences < 1 || e->max_sequences > MAX_SEQUENCES) {
        return EEP_FAIL(EEP_ERR_INVALID, "max_sequences is %u; eep takes 1 to %u", e->max_sequences,
                        MAX_SEQUENCES);
    }
    if (has(p, EEP_ENGINE_KV_TOKENS) && p->kv_tokens < EEP_KV_BLOCK) {
        return EEP_FAIL(EEP_ERR_INVALID, "a KV cache of %llu positions is below one block of %u",
                        (unsigned long long)p->kv_tokens, EEP_KV_BLOCK);
    }
    if (e->cache_mode < EEP_CACHE_OFF || e->cache_mode > EEP_CACHE_REQUIRE) {
        return EEP_FAIL(EEP_ERR_INVALID, "there is no weight cache mode %d", (int)e->cache_mode);
    }
    EEP_TRY(check_rebalance(e));
    if (e->on_loss < EEP_LOSS_STOP || e->on_loss > EEP_LOSS_RESPAWN) {
        return EEP_FAIL(EEP_ERR_INVALID, "there is no mode %d of what to do on a loss",
                        (int)e->on_loss);
    }
    EEP_TRY(check_backup(e));
    if (has(p, EEP_ENGINE_LAYOUT) && e->redundant > 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "a layout file already says which experts have replicas; "
                                         "leave out the redundant experts");
    }
    return EEP_OK;
}

static enum eep_status set_params(struct eep_engine *e, const struct eep_engine_params *p)
{
    e->redundant = has(p, EEP_ENGINE_REDUNDANT) ? p->redundant : 0;
    e->max_batch_tokens =
        has(p, EEP_ENGINE_MAX_BATCH_TOKENS) ? p->max_batch_tokens : DEFAULT_BATCH_TOKENS;
    e->max_sequences = has(p, EEP_ENGINE_MAX_SEQUENCES) ? p->max_sequences : DEFAULT_SEQUENCES;
    e->kv_tokens = has(p, EEP_ENGINE_KV_TOKENS) ? p->kv_tokens : 0;
    e->threads = has(p, EEP_ENGINE_THREADS) ? p->threads : 0;
    if (has(p, EEP_ENGINE_PROGRESS)) {
        e->progress = p->progress;
        e->progress_context = p->progress_context;
    }
    e->cache_mode = has(p, EEP_ENGINE_CACHE) ? p->cache : EEP_CACHE_OFF;
    e->spare_frames = has(p, EEP_ENGINE_SPARE_FRAMES) ? p->spare_frames : EEP_SPARE_DEFAULT;
    e->attach_timeout_ns =
        has(p, EEP_ENGINE_ATTACH_TIMEOUT) ? p->attach_timeout_ns : DEFAULT_ATTACH_NS;
    if (has(p, EEP_ENGINE_REBALANCE)) {
        e->rebalance = p->rebalance;
    }
    e->on_loss = has(p, EEP_ENGINE_ON_LOSS) ? p->on_loss : EEP_LOSS_SHRINK;
    e->ep_size = has(p, EEP_ENGINE_EP_SIZE) ? p->ep_size : 0;
    e->max_ep_size = has(p, EEP_ENGINE_MAX_EP_SIZE) ? p->max_ep_size : 0;
    e->backup_mode = has(p, EEP_ENGINE_BACKUP) ? p->backup : EEP_BACKUP_NONE;
    e->own_shape = has(p, EEP_ENGINE_LAYOUT) || has(p, EEP_ENGINE_REDUNDANT);
    e->pretended = has(p, EEP_ENGINE_NODE_SIZE) || getenv("EEP_NODE_SIZE") != NULL;
    e->cache_dir = has(p, EEP_ENGINE_CACHE_DIR) ? strdup(p->cache_dir) : NULL;
    e->model_dir = strdup(p->model != NULL ? p->model : "");
    e->layout_path = has(p, EEP_ENGINE_LAYOUT) ? strdup(p->layout) : NULL;
    if (e->model_dir == NULL || (has(p, EEP_ENGINE_LAYOUT) && e->layout_path == NULL) ||
        (has(p, EEP_ENGINE_CACHE_DIR) && e->cache_dir == NULL)) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for the engine's parameters");
    }
    EEP_TRY(check_params(e, p));
    return eep_kernels_find(has(p, EEP_ENGINE_KERNELS) ? p->kernels : getenv("EEP_KERNELS"),
                            &e->kernels);
}

/* Everything about the checkpoint that can be known without reading weights. */
static enum eep_status check_checkpoint(struct eep_engine *e)
{
    struct eep_router router;

    EEP_TRY(eep_ckpt_open(e->model_dir, &e->ckpt));
    EEP_TRY(eep_model_config_read(e->ckpt, &e->config));
    EEP_TRY(eep_model_check_tensors(&e->config, e->ckpt));
    EEP_TRY(eep_cache_checkpoint_digest(e->ckpt, e->checkpoint_digest));
    if (e->config.moe_layers == 0) {
        return EEP_OK;
    }
    router = (struct eep_router){
        .kind = e->config.router, .experts = e->config.experts, .top_k = e->config.top_k};
    EEP_TRY(eep_router_check(&router));
    if (is_spawned(e)) {
        return EEP_OK;
    }
    if (e->layout_path != NULL) {
        return eep_layout_load(e->layout_path, e->config.moe_layers, e->config.experts, &e->layout);
    }
    return eep_layout_initial(e->config.moe_layers, e->config.experts,
                              e->max_ep_size > 0 ? e->max_ep_size : e->processes, e->redundant,
                              &e->layout);
}

/* Rank 0 first, so that a bad checkpoint is read by one rank only and refused with one message. */
static enum eep_status preflight(struct eep_engine *e)
{
    const bool first = e->xport->topo.rank == 0;

    EEP_TRY(eep_agree(e->xport, "checkpoint on rank 0", first ? check_checkpoint(e) : EEP_OK));
    return eep_agree(e->xport, "checkpoint", first ? EEP_OK : check_checkpoint(e));
}

/* 0 of the caller is never; 0 of the transport is its default. */
static uint64_t silent_after(const struct eep_engine_params *p)
{
    if (!has(p, EEP_ENGINE_SILENT_AFTER)) {
        return 0;
    }
    return p->silent_after_ns > 0 ? p->silent_after_ns : EEP_NEVER_NS;
}

static enum eep_status join(struct eep_engine *e, const struct eep_engine_params *p)
{
    const struct eep_world_params world = {
        .node_size = has(p, EEP_ENGINE_NODE_SIZE) ? p->node_size : 0,
        .timeout_ns = has(p, EEP_ENGINE_TIMEOUT) ? p->timeout_ns : 0,
        .silent_after_ns = silent_after(p),
    };

    EEP_TRY(eep_world_open(&world, &e->xport));
    const struct eep_topology *topo = &e->xport->topo;

    e->self = topo->rank;
    if (topo->rank == EEP_NO_RANK) { /* spawned: it is told what it must know */
        e->one_machine = true;
        return EEP_OK;
    }
    if (topo->size > 1) {
        eep_log_rank_set((int)topo->rank);
    }
    e->processes = topo->size;
    e->start_nodes = topo->nodes;
    e->home_node = topo->node;
    EEP_TRY(eep_mem_alloc(topo->size, sizeof(uint32_t), "nodes", &e->start_node_of));
    memcpy(e->start_node_of, topo->node_of, topo->size * sizeof(*e->start_node_of));
    return EEP_OK;
}

/* Are all processes on one machine, whatever nodes are pretended? */
static enum eep_status look_at_machines(struct eep_engine *e)
{
    const uint64_t mine = eep_threads_machine();
    uint64_t *all;

    if (is_spawned(e)) {
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(e->processes, sizeof(*all), "machines", &all));
    const enum eep_status status =
        e->xport->ops->allgather(e->xport, "machines", &mine, sizeof(mine), all);

    e->one_machine = true;
    for (uint32_t r = 0; r < e->processes; r++) {
        e->one_machine = e->one_machine && all[r] == mine;
    }
    eep_mem_free(all);
    return status;
}

enum eep_status eep_engine_create(const struct eep_engine_params *params,
                                  struct eep_engine **engine_out)
{
    struct eep_engine *e = NULL;
    enum eep_status status;

    EEP_TRY_GOTO(eep_mem_alloc(1, sizeof(*e), "engine", &e), refuse);
    EEP_TRY_GOTO(join(e, params), destroy);
    EEP_TRY_GOTO(eep_agree(e->xport, "parameters", set_params(e, params)), destroy);
    status = eep_mem_alloc(e->xport->topo.size, sizeof(*e->memory), "memory facts", &e->memory);
    if (status == EEP_OK) {
        status = eep_mem_alloc(e->xport->topo.size, sizeof(uint32_t), "requests of the ranks",
                               &e->owned);
    }
    EEP_TRY_GOTO(eep_agree(e->xport, "memory facts", status), destroy);
    status = eep_threads_set(e, e->threads);
    EEP_TRY_GOTO(eep_agree(e->xport, "threads", status), destroy);
    EEP_TRY_GOTO(look_at_machines(e), destroy);
    EEP_TRY_GOTO(preflight(e), destroy);
    EEP_TRY_GOTO(is_spawned(e) ? eep_park(e) : EEP_OK, destroy);
    *engine_out = e;
    return EEP_OK;

destroy:
    e->broken = status;
refuse:
    if (has(params, EEP_ENGINE_REFUSED)) {
        params->refused(params->refused_context, status);
    }
    eep_engine_destroy(e);
    return status;
}

struct eep_experts_source eep_engine_source(const struct eep_engine *e)
{
    return (struct eep_experts_source){.config = &e->config,
                                       .ckpt = e->ckpt,
                                       .kernels = e->kernels,
                                       .layout = e->layout,
                                       .rank = e->xport->topo.rank,
                                       .executors = e->executors};
}

/* The weights that this rank needs, in its own memory. Local. */
static enum eep_status load_weights(struct eep_engine *e)
{
    EEP_TRY(eep_model_load(&e->config, e->ckpt, e->kernels, &e->model));
    return e->layout != NULL ? eep_own_attach(e) : EEP_OK;
}

/* What must be the same for a process that joins. */
uint64_t eep_engine_likeness(const struct eep_engine *e)
{
    const uint64_t numbers[] = {sizeof(struct eep_wire_step),
                                sizeof(struct eep_member_state),
                                e->max_batch_tokens,
                                e->max_sequences,
                                e->config.layers,
                                e->config.hidden,
                                e->config.vocab,
                                e->config.experts};
    uint64_t hash = eep_hash_bytes(EEP_HASH_START, numbers, sizeof(numbers));

    hash = eep_hash_bytes(hash, e->checkpoint_digest, sizeof(e->checkpoint_digest));
    return eep_hash_bytes(hash, PACKAGE_VERSION, sizeof(PACKAGE_VERSION));
}

enum eep_status eep_engine_take_buffers(struct eep_engine *e)
{
    const struct eep_model_config *c = &e->config;
    const uint32_t max_context = (uint32_t)EEP_MIN((uint64_t)c->max_positions, e->kv_tokens);

    EEP_TRY(
        eep_kv_create(c->layers, c->kv_heads, c->head_dim, eep_kv_blocks(e->kv_tokens), &e->kv));
    EEP_TRY(eep_forward_create(e->model, e->kv, EEP_MAX(e->max_batch_tokens, EEP_LOGIT_ROWS),
                               max_context, &e->forward));
    e->logits_stride = eep_panel_round(c->vocab);
    EEP_TRY(eep_mem_alloc(EEP_LOGIT_ROWS, e->logits_stride * sizeof(float), "logits", &e->logits));
    EEP_TRY(eep_mem_alloc(c->vocab, sizeof(*e->sampler_work), "sampler", &e->sampler_work));
    return eep_batch_create(e);
}

/* Buffers of this rank. Local. */
static enum eep_status take_buffers(struct eep_engine *e)
{
    EEP_TRY(eep_engine_take_buffers(e));
    EEP_TRY(eep_batch_resize(e));
    return e->layout != NULL ? eep_route_create(e->layout, e->executors, &e->xport->topo, &e->route)
                             : EEP_OK;
}

enum eep_status eep_engine_create_block(struct eep_engine *e)
{
    const struct eep_model_config *c = &e->config;
    const struct eep_moe_block_params params = {
        .kernels = e->kernels,
        .xport = e->xport,
        .experts = e->experts,
        .route = e->route,
        .router = {.kind = c->router,
                   .experts = c->experts,
                   .top_k = c->top_k,
                   .norm_topk = c->norm_topk},
        .hidden = c->hidden,
        .expert_width = c->expert_width,
        .max_tokens = e->max_batch_tokens,
    };

    return e->layout != NULL ? eep_moe_block_create(&params, &e->block) : EEP_OK;
}

static enum eep_status load_all(struct eep_engine *e)
{
    if (e->kv_tokens == 0) {
        e->kv_tokens = e->request_count > 0 ? eep_requests_kv_tokens(e) : DEFAULT_KV_TOKENS;
    }
    for (size_t i = 0; i < e->request_count; i++) {
        const struct eep_request_entry *r = &e->requests[i];
        const uint64_t positions = (uint64_t)r->prompt_count + r->max_tokens;

        if (eep_kv_blocks(positions) > eep_kv_blocks(e->kv_tokens)) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "request %zu: %llu positions do not fit a KV cache of %llu", i,
                            (unsigned long long)positions, (unsigned long long)e->kv_tokens);
        }
    }
    const uint64_t begin_ns = eep_clock_ns();

    EEP_TRY(eep_cache_open(e));
    EEP_TRY(eep_agree(e->xport, "membership", eep_members_create(e)));
    EEP_TRY(eep_engine_reckon(e));
    EEP_TRY(eep_cache_load(e));
    e->cache_ns = eep_clock_ns() - begin_ns - e->map_ns;
    if (e->cache == NULL) {
        EEP_TRY(eep_agree(e->xport, "weights", load_weights(e)));
    }
    eep_ckpt_drop_pages(e->ckpt); /* packed now; only rows of the embedding are still read */
    EEP_TRY(eep_agree(e->xport, "buffers", take_buffers(e)));
    EEP_TRY(eep_agree(e->xport, "exchange", eep_engine_create_block(e)));
    if (e->cache != NULL) {
        return eep_mover_create(e);
    }
    if (e->rebalance.every > 0 || e->rebalance.threshold > 0.0) {
        eep_log(EEP_LOG_WARN, "no rebalancing: there is no weight cache");
    }
    if (e->backup_mode != EEP_BACKUP_NONE && e->xport->topo.rank == 0) {
        eep_log(EEP_LOG_WARN, "no backup: there is no weight cache");
    }
    return EEP_OK;
}

enum eep_status eep_engine_load(struct eep_engine *e)
{
    const uint64_t begin_ns = eep_clock_ns();

    EEP_TRY(e->broken);
    if (e->loaded) {
        return EEP_FAIL(EEP_ERR_INVALID, "the engine's weights are loaded already");
    }
    e->broken = e->park == NULL ? eep_park_rest(e) : EEP_OK;
    if (e->broken == EEP_OK && e->park != NULL) {
        return EEP_OK;
    }
    if (e->broken == EEP_OK) {
        e->broken = load_all(e);
    }
    if (e->broken == EEP_OK) {
        free(e->layout_path); /* it was that of the start */
        e->layout_path = NULL;
        e->loaded = true;
        e->load_ns = eep_clock_ns() - begin_ns;
    }
    return e->broken;
}

/* How to leave: together, also after a failure that all ranks agreed on; else at once. */
static enum eep_status leaving_status(const struct eep_engine *e)
{
    const bool together =
        !e->apart && e->broken != EEP_ERR_TIMEOUT && eep_status_lost(e->broken) < EEP_LOST_PEER;

    return together ? EEP_OK : e->broken;
}

void eep_engine_release(struct eep_engine *e)
{
    eep_mover_destroy(e);
    eep_moe_block_destroy(e->block);
    e->block = NULL;
    eep_requests_clear(e);
    eep_batch_free(e);
    EEP_MEM_RELEASE(e->sampler_work);
    EEP_MEM_RELEASE(e->logits);
    eep_forward_destroy(e->forward);
    e->forward = NULL;
    eep_kv_destroy(e->kv);
    e->kv = NULL;
    eep_experts_destroy(e->experts);
    e->experts = NULL;
    eep_own_free(e);
    eep_model_destroy(e->model);
    e->model = NULL;
    eep_cache_close(e);
    eep_route_destroy(e->route);
    e->route = NULL;
    eep_members_free(e);
    e->loaded = false;
}

void eep_engine_destroy(struct eep_engine *e)
{
    if (e == NULL) {
        return;
    }
    if (e->left) { /* nothing collective works any more, and the process ends */
        eep_cache_close(e);
        return;
    }
    if (e->mover != NULL && leaving_status(e) == EEP_OK && e->broken == EEP_OK) {
        eep_mover_stop(e);
    }
    eep_engine_release(e);
    eep_requests_free(e);
    eep_layout_destroy(e->layout);
    eep_park_free(e);
    eep_tokenizer_close(e->tokenizer);
    eep_model_config_free(&e->config);
    eep_ckpt_close(e->ckpt);
    if (e->xport != NULL) {
        e->xport->ops->close(e->xport, leaving_status(e));
    }
    eep_mem_free(e->memory);
    eep_mem_free(e->start_node_of);
    free(e->model_dir);
    free(e->layout_path);
    free(e->cache_dir);
    eep_mem_free(e);
}

uint32_t eep_engine_rank(const struct eep_engine *e)
{
    return e->xport->topo.rank;
}

uint32_t eep_engine_ranks(const struct eep_engine *e)
{
    return e->xport->topo.size;
}

uint32_t eep_engine_vocab(const struct eep_engine *e)
{
    return e->config.vocab;
}

uint32_t eep_engine_max_positions(const struct eep_engine *e)
{
    return e->config.max_positions;
}

static enum eep_status need_tokenizer(struct eep_engine *e)
{
    return e->tokenizer != NULL ? EEP_OK : eep_tokenizer_open(e->model_dir, &e->tokenizer);
}

enum eep_status eep_engine_encode(struct eep_engine *e, const char *text, size_t bytes,
                                  uint32_t **ids_out, size_t *count_out)
{
    EEP_TRY(need_tokenizer(e));
    return eep_tokenizer_encode(e->tokenizer, text, bytes, ids_out, count_out);
}

enum eep_status eep_engine_decode(struct eep_engine *e, const uint32_t *ids, size_t count,
                                  char **text_out)
{
    EEP_TRY(need_tokenizer(e));
    return eep_tokenizer_decode(e->tokenizer, ids, count, true, text_out);
}

enum eep_status eep_engine_broadcast(struct eep_engine *e, void *buffer, size_t bytes)
{
    EEP_TRY(e->broken);
    return e->xport->ops->broadcast(e->xport, "broadcast", 0, buffer, bytes);
}
