/*
 * `eep cache`: the weight caches of this node. Works without an engine and beside running ones.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "base/rng.h"
#include "ckpt/ckpt.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/ffn.h"
#include "tools/opts.h"
#include "tools/tools.h"
#include "wcache/wcache.h"

#define WAIT_NS (10 * EEP_NS_PER_S)
#define REASONS_MAX 20

static const struct eep_command_help help = {
    .usage = "eep cache ls|verify|repair|drop [--cache-dir DIR] [--json] [NAME ...]",
    .summary =
        "The weight caches of this node: all below the directory, or those named.\n\n"
        "  ls      what there is, and who uses it\n"
        "  verify  check the bytes of every slot, and of the dense weights, by their digests\n"
        "  repair  fill bad frames again, from another frame of the node or the checkpoint\n"
        "          that the cache was filled from; needs that no engine uses the cache\n"
        "  drop    remove; refused while an engine is attached",
    .epilog =
        "--json prints an object for each cache. Exit status 1: a cache is bad or unusable, or\n"
        "an action failed.",
};

struct cache_opts {
    const char *dir;
    bool json;
};

/* ---- output -----------------------------------------------------------------------------------
 */

static void print_json(json_t *object)
{
    if (object == NULL || json_dumpf(object, stdout, JSON_COMPACT) != 0) {
        (void)fprintf(stderr, "eep: error: the result cannot be written\n");
    }
    putchar('\n');
    json_decref(object);
}

static void hex_text(const uint8_t *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
}

static const char *state_text(const struct eep_wcache_info *info)
{
    static const char *const names[] = {"clean", "moving", "stalled", "dirty"};

    return info->status != EEP_OK ? "unusable" : names[info->state];
}

static json_t *version_json(uint64_t version)
{
    return version == EEP_WCACHE_NO_VERSION ? json_null() : json_integer((json_int_t)version);
}

/* The engine and layers of a pending or dirty move. */
static json_t *move_json(const struct eep_wcache_info *info)
{
    json_t *layers;

    if (info->state == EEP_WCACHE_CLEAN || info->move.engine[0] == '\0') {
        return json_null();
    }
    layers = json_array();
    for (uint32_t layer = 0; layer < info->key.layers; layer++) {
        if (info->move.layers[layer / 64] >> (layer % 64) & 1) {
            json_array_append_new(layers, json_integer(layer));
        }
    }
    return json_pack("{s:s, s:o, s:I}", "engine", info->move.engine, "layers", layers,
                     "base_version", (json_int_t)info->move.base_version);
}

static json_t *key_json(const struct eep_wcache_key *key)
{
    char checkpoint[65];

    hex_text(key->checkpoint, sizeof(key->checkpoint), checkpoint);
    return json_pack(
        "{s:s, s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:s}", "checkpoint", checkpoint, "packing",
        (int)key->packing, "dtype",
        key->dtype < EEP_DTYPE_COUNT ? eep_dtype_name((enum eep_dtype)key->dtype) : "?", "layers",
        (int)key->layers, "experts", (int)key->experts, "seats", (int)key->seats, "slots_per_seat",
        (int)key->slots_per_seat, "frame_bytes", (json_int_t)key->frame_bytes, "node", key->node);
}

static void list_json(const struct eep_wcache_info *info)
{
    char digest[2 * EEP_WCACHE_DIGEST_BYTES + 1];

    if (info->status != EEP_OK) {
        print_json(json_pack("{s:s, s:s, s:s, s:I}", "name", info->name, "state", "unusable",
                             "reason", info->reason, "bytes", (json_int_t)info->bytes));
        return;
    }
    hex_text(info->digest, sizeof(info->digest), digest);
    print_json(json_pack(
        "{s:s, s:s, s:o, s:I, s:s, s:o, s:o, s:i, s:I, s:b, s:i, s:i, s:i, s:b, s:I, s:f, s:s}",
        "name", info->name, "state", state_text(info), "key", key_json(&info->key), "version",
        (json_int_t)info->version, "digest", digest, "prepared_version",
        version_json(info->prepared_version), "move", move_json(info), "spare_frames",
        (int)info->spare_frames, "dense_bytes", (json_int_t)info->dense_bytes, "dense_filled",
        info->dense_filled, "seats_held", (int)info->seats_held, "seats_filled",
        (int)info->seats_filled, "attached", (int)info->attached, "keep", info->keep, "bytes",
        (json_int_t)info->bytes, "created", (double)info->created_ns / 1e9, "source",
        info->source));
}

static void list_text(const struct eep_wcache_info *info)
{
    printf("%s  %s  %.2f GiB\n", info->name, state_text(info),
           (double)info->bytes / (1024.0 * 1024.0 * 1024.0));
    if (info->status != EEP_OK) {
        printf("  %s\n", info->reason);
        return;
    }
    printf("  %s, node %s\n", info->source[0] != '\0' ? info->source : "(source not recorded)",
           info->key.node);
    printf(
        "  version %llu; %u layers, %u experts, %u seats of %u slots; %u of %u seats of this node "
        "full%s\n",
        (unsigned long long)info->version, info->key.layers, info->key.experts, info->key.seats,
        info->key.slots_per_seat, info->seats_filled, info->seats_held,
        info->dense_bytes > 0 && !info->dense_filled ? ", dense weights not" : "");
    printf("  %u processes attached; %s\n", info->attached,
           info->keep ? "kept" : "goes with the last of them");
    if (info->move.engine[0] != '\0' && info->state != EEP_WCACHE_CLEAN) {
        printf("  a move of engine '%s' from version %llu on %s\n", info->move.engine,
               (unsigned long long)info->move.base_version,
               info->state == EEP_WCACHE_MOVING ? "is at work" : "was not finished");
    }
}

static bool do_list(const struct cache_opts *opts, const struct eep_wcache_info *info)
{
    if (opts->json) {
        list_json(info);
    } else {
        list_text(info);
    }
    return true;
}

/* ---- attaching as a tool ----------------------------------------------------------------------
 */

static enum eep_status attach(const struct cache_opts *opts, const struct eep_wcache_info *info,
                              struct eep_wcache **c_out)
{
    const struct eep_wcache_params params = {
        .dir = opts->dir,
        .key = info->key,
        .attach_only = true,
        .engine = "eep cache",
        .engine_id = eep_rng_bits((uint64_t)getpid(), eep_clock_ns()) | 1,
        .follows = true,
        .visitor = true,
        .timeout_ns = WAIT_NS,
    };

    return info->status == EEP_OK ? eep_wcache_open(&params, c_out)
                                  : EEP_FAIL(info->status, "%s", info->reason);
}

/* ---- verify -----------------------------------------------------------------------------------
 */

static void add_reason(void *context, const char *reason)
{
    json_t *reasons = context;

    if (json_array_size(reasons) < REASONS_MAX) {
        json_array_append_new(reasons, json_string(reason));
    }
}

static void verify_text(const struct eep_wcache_info *info, const struct eep_wcache_verify *v,
                        const json_t *reasons)
{
    const json_t *reason;
    size_t i;

    printf("%s: %llu frames, %llu bad\n", info->name, (unsigned long long)v->frames,
           (unsigned long long)v->bad);
    json_array_foreach(reasons, i, reason)
    {
        printf("  %s\n", json_string_value(reason));
    }
    if (v->bad > json_array_size(reasons)) {
        printf("  ...\n");
    }
}

static bool failed(const struct cache_opts *opts, const struct eep_wcache_info *info)
{
    if (opts->json) {
        print_json(json_pack("{s:s, s:s, s:s}", "name", info->name, "status", "failed", "reason",
                             eep_error_text()));
    } else {
        printf("%s: %s\n", info->name, eep_error_text());
    }
    return false;
}

static bool do_verify(const struct cache_opts *opts, const struct eep_wcache_info *info)
{
    const uint64_t begin = eep_clock_ns();
    struct eep_wcache_verify v;
    struct eep_wcache *c = NULL;
    enum eep_status status;
    json_t *reasons = json_array();

    status = attach(opts, info, &c);
    if (status == EEP_OK) {
        status = eep_wcache_verify(c, NULL, add_reason, reasons, &v);
    }
    if (status != EEP_OK) {
        failed(opts, info);
    } else if (opts->json) {
        print_json(json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:O}", "name", info->name, "status",
                             v.bad == 0 ? "good" : "bad", "frames", (json_int_t)v.frames, "bad",
                             (json_int_t)v.bad, "bytes", (json_int_t)v.bytes, "seconds",
                             (double)(eep_clock_ns() - begin) / 1e9, "reasons", reasons));
    } else {
        verify_text(info, &v, reasons);
    }
    eep_wcache_close(c);
    json_decref(reasons);
    return status == EEP_OK && v.bad == 0;
}

/* ---- repair -----------------------------------------------------------------------------------
 */

/* The checkpoint that a cache was filled from; opened when the first frame needs it. */
struct source {
    const struct eep_wcache_info *info;
    const struct eep_kernels *kernels;
    struct eep_model_config config;
    struct eep_ckpt *ckpt;
    bool ready;
};

static enum eep_status open_source(struct source *s)
{
    if (s->ready) {
        return EEP_OK;
    }
    if (s->info->source[0] == '\0') {
        return EEP_FAIL(EEP_ERR_CACHE_BAD, "the cache does not say what it was filled from");
    }
    EEP_TRY(eep_kernels_find(NULL, &s->kernels));
    EEP_TRY(eep_ckpt_open(s->info->source, &s->ckpt));
    EEP_TRY(eep_model_config_read(s->ckpt, &s->config));
    s->ready = true;
    EEP_TRY(eep_model_check_tensors(&s->config, s->ckpt));
    if (s->config.moe_layers != s->info->key.layers || s->config.experts != s->info->key.experts) {
        return EEP_FAIL(EEP_ERR_STALE, "%s has %u MoE layers of %u experts, the cache %u of %u",
                        s->info->source, s->config.moe_layers, s->config.experts,
                        s->info->key.layers, s->info->key.experts);
    }
    return EEP_OK;
}

static void close_source(struct source *s)
{
    if (s->ready) {
        eep_model_config_free(&s->config);
    }
    eep_ckpt_close(s->ckpt);
}

/* The model's layer of a MoE layer. */
static uint32_t model_layer(const struct eep_model_config *config, uint32_t moe_layer)
{
    uint32_t layer = 0;

    while (!config->layer_is_moe[layer] || moe_layer-- > 0) {
        layer++;
    }
    return layer;
}

/* That the bytes are the right ones is checked by the digest that the cache has of the expert. */
static enum eep_status refill(void *context, uint32_t layer, struct eep_expert expert, void *bytes)
{
    struct source *s = context;
    struct eep_ffn_weights weights;
    struct eep_ffn_shape shape;
    uint32_t of_model;

    EEP_TRY(open_source(s));
    of_model = model_layer(&s->config, layer);
    EEP_TRY(eep_ffn_shape(&s->config, s->ckpt, EEP_ROLE_EXPERT_GATE, of_model, expert.id, &shape));
    if (eep_ffn_frame_bytes(&shape) > s->info->key.frame_bytes) {
        return EEP_FAIL(EEP_ERR_STALE, "%s: an expert takes %llu bytes, a frame has %llu",
                        s->info->source, (unsigned long long)eep_ffn_frame_bytes(&shape),
                        (unsigned long long)s->info->key.frame_bytes);
    }
    memset(bytes, 0, s->info->key.frame_bytes);
    return eep_ffn_pack(&s->config, s->ckpt, s->kernels, EEP_ROLE_EXPERT_GATE, of_model, expert.id,
                        bytes, &weights);
}

static bool do_repair(const struct cache_opts *opts, const struct eep_wcache_info *info)
{
    struct source source = {.info = info};
    struct eep_wcache_repair r;
    struct eep_wcache *c = NULL;
    enum eep_status status;

    status = attach(opts, info, &c);
    if (status == EEP_OK) {
        status = eep_wcache_repair(c, true, 0, refill, &source, &r);
    }
    if (status != EEP_OK) {
        failed(opts, info);
    } else if (opts->json) {
        print_json(json_pack("{s:s, s:s, s:I, s:I, s:I}", "name", info->name, "status", "good",
                             "checked", (json_int_t)r.checked, "refilled", (json_int_t)r.refilled,
                             "version", (json_int_t)r.version));
    } else {
        printf("%s: %llu frames, %llu filled again; version %llu\n", info->name,
               (unsigned long long)r.checked, (unsigned long long)r.refilled,
               (unsigned long long)r.version);
    }
    close_source(&source);
    eep_wcache_close(c);
    return status == EEP_OK;
}

/* ---- drop -------------------------------------------------------------------------------------
 */

static bool do_drop(const struct cache_opts *opts, const struct eep_wcache_info *info)
{
    if (eep_wcache_drop(opts->dir, info->name, WAIT_NS) != EEP_OK) {
        return failed(opts, info);
    }
    if (opts->json) {
        print_json(json_pack("{s:s, s:s, s:I}", "name", info->name, "status", "dropped", "bytes",
                             (json_int_t)info->bytes));
    } else {
        printf("%s: dropped, %.2f GiB\n", info->name,
               (double)info->bytes / (1024.0 * 1024.0 * 1024.0));
    }
    return true;
}

/* ---- the command ------------------------------------------------------------------------------
 */

typedef bool (*action_fn)(const struct cache_opts *opts, const struct eep_wcache_info *info);

static action_fn find_action(const char *name)
{
    static const struct {
        const char *name;
        action_fn run;
    } actions[] = {
        {"ls", do_list}, {"verify", do_verify}, {"repair", do_repair}, {"drop", do_drop}};

    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(actions[i].name, name) == 0) {
            return actions[i].run;
        }
    }
    return NULL;
}

static bool is_named(const struct eep_wcache_info *info, int count, char **names)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], info->name) == 0) {
            return true;
        }
    }
    return count == 0;
}

/* A name that is no cache's is an error, before anything is done. */
static enum eep_status check_names(const struct eep_wcache_info *infos, size_t info_count,
                                   int count, char **names)
{
    for (int i = 0; i < count; i++) {
        bool found = false;

        for (size_t k = 0; k < info_count; k++) {
            found = found || strcmp(names[i], infos[k].name) == 0;
        }
        if (!found) {
            return EEP_FAIL(EEP_ERR_INVALID, "there is no weight cache '%s'", names[i]);
        }
    }
    return EEP_OK;
}

static int run(const struct cache_opts *opts, action_fn action, int count, char **names)
{
    char path[EEP_WCACHE_PATH_MAX];
    struct eep_wcache_info *infos;
    size_t info_count;
    bool good = true;

    if (eep_wcache_list(opts->dir, &infos, &info_count) != EEP_OK) {
        return eep_tool_failed();
    }
    if (check_names(infos, info_count, count, names) != EEP_OK) {
        eep_mem_free(infos);
        return eep_tool_failed();
    }
    for (size_t i = 0; i < info_count; i++) {
        if (is_named(&infos[i], count, names)) {
            good = action(opts, &infos[i]) && good;
        }
    }
    if (info_count == 0 && !opts->json) {
        eep_wcache_dir_default(path);
        printf("no weight caches in %s\n", opts->dir != NULL ? opts->dir : path);
    }
    eep_mem_free(infos);
    return fflush(stdout) == 0 && good ? EEP_EXIT_OK : EEP_EXIT_FAILED;
}

int eep_cmd_cache(int argc, char **argv)
{
    struct cache_opts o = {.dir = NULL};
    const struct eep_opt opts[] = {
        {"cache-dir", EEP_OPT_STRING, &o.dir, "DIR",
         "where the caches are (default /dev/shm/eep-UID)"},
        {"json", EEP_OPT_FLAG, &o.json, NULL, "an object for each cache"},
    };
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
    const int skip = verb != NULL ? 1 : 0;
    int rest;

    const int ended = eep_opts_parse(&help, opts, sizeof(opts) / sizeof(opts[0]), argc - skip,
                                     argv + skip, &rest);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (verb == NULL) {
        return eep_opts_wrong(&help, "which of ls, verify, repair and drop?");
    }
    if (find_action(verb) == NULL) {
        return eep_opts_wrong(&help, "there is no 'cache %s'", verb);
    }
    for (int i = skip + rest; i < argc; i++) {
        if (argv[i][0] == '-') {
            return eep_opts_wrong(&help, "options come before names: %s", argv[i]);
        }
    }
    return run(&o, find_action(verb), argc - skip - rest, argv + skip + rest);
}
