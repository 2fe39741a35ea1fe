#include "tools/engine_opts.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "tools/tools.h"

void eep_engine_opts_table(struct eep_engine_opts *v, struct eep_opt *opts_out)
{
    const struct eep_opt table[EEP_ENGINE_OPT_COUNT] = {
        {"model", EEP_OPT_STRING, &v->model, "DIR", "Hugging Face model directory (needed)"},
        {"redundant-experts", EEP_OPT_U32, &v->redundant, "R",
         "extra expert slots of each MoE layer, for replicas (default 0)"},
        {"layout", EEP_OPT_STRING, &v->layout, "FILE", "explicit initial expert layout (JSON)"},
        {"chunk", EEP_OPT_U32, &v->chunk, "N",
         "rows of a rank in one step: prompts are cut into chunks\nof at most N tokens "
         "(default 512)"},
        {"max-sequences", EEP_OPT_U32, &v->max_sequences, "N",
         "requests that a rank runs at a time (default 64)"},
        {"kv-tokens", EEP_OPT_U64, &v->kv_tokens, "N",
         "positions of a rank's KV cache (default: as needed)"},
        {"threads", EEP_OPT_U32, &v->threads, "N",
         "threads per rank (default: the machine's cores over its ranks)"},
        {"kernels", EEP_OPT_STRING, &v->kernels, "NAME", "ref, avx2, avx512, neon or auto"},
        {"node-size", EEP_OPT_U32, &v->node_size, "K",
         "every K ranks count as one node (default: real nodes)"},
        {"timeout", EEP_OPT_U32, &v->timeout_s, "SECONDS",
         "longest wait for another rank (default 600)"},
        {"weight-cache", EEP_OPT_STRING, &v->cache, "MODE",
         "packed weights in the node's shared memory: off; job (default):\nuntil the end; keep: "
         "for "
         "the next start; require: keep, or fail"},
        {"cache-dir", EEP_OPT_STRING, &v->cache_dir, "DIR",
         "where caches are (default /dev/shm/eep-UID); means keep\nunless --weight-cache says "
         "otherwise"},
        {"spare-frames", EEP_OPT_U32, &v->spare_frames, "N",
         "expert frames of each seat beyond its slots, in a new cache,\nso that experts move "
         "without a pause (default: one a layer)"},
        {"attach-timeout", EEP_OPT_U32, &v->attach_timeout_s, "SECONDS",
         "longest wait for another engine that fills or changes the\ncache (default 300)"},
        {"on-loss", EEP_OPT_STRING, &v->on_loss, "shrink|respawn|stop",
         "when a rank is lost: the others take over and go on (default);\nthe same, and a parked "
         "process takes its place; or the job stops"},
        {"ep-size", EEP_OPT_U32, &v->ep_size, "N",
         "begin with N ranks; the other processes are parked until\n'eepctl scale' calls them "
         "(default: all)"},
        {"max-ep-size", EEP_OPT_U32, &v->max_ep_size, "N",
         "make seats for N ranks (default: as many as processes)"},
        {"silent-after", EEP_OPT_U32, &v->silent_after_s, "SECONDS",
         "a rank whose process stands still for so long is killed and\ncounts as lost (default 10; "
         "0: never)"},
        {"backup", EEP_OPT_STRING, &v->backup, "none|partner",
         "keep every expert in the memory of one more node, so that the\nloss of a node needs no "
         "disk (default none)"},
        {"rebalance-every", EEP_OPT_U64, &v->rebalance.every, "STEPS",
         "move experts to balance the load every so many steps"},
        {"rebalance-threshold", EEP_OPT_DOUBLE, &v->rebalance.threshold, "X",
         "... or when the fullest seat has X times the mean load"},
        {"rebalance-window", EEP_OPT_U32, &v->rebalance.window, "STEPS",
         "steps whose load counts (default: as --rebalance-every, or 256)"},
        {"rebalance-min-gain", EEP_OPT_DOUBLE, &v->rebalance.min_gain, "PART",
         "smallest part of a layer's largest load that a move must\ntake off (default 0.005)"},
        {"rebalance-max-copies", EEP_OPT_U32, &v->rebalance.max_copies, "N",
         "experts copied for a layer at a time (default: no limit)"},
        {"rebalance-layers-per-chunk", EEP_OPT_U32, &v->rebalance.layers_per_chunk, "N",
         "layers that change at once (default: as spare frames allow)"},
        {"rebalance-policy", EEP_OPT_STRING, &v->rebalance_policy, "NAME",
         "eep (default), deepseek, or shuffle: any layout, for tests"},
        {"rebalance-dry-run", EEP_OPT_FLAG, &v->rebalance.dry_run, NULL,
         "say what would move, and move nothing"},
        {"verify-moves", EEP_OPT_FLAG, &v->rebalance.verify, NULL,
         "after each move compare every slot with the checkpoint (slow)"},
    };

    v->spare_frames = UINT32_MAX;
    v->silent_after_s = UINT32_MAX;
    memcpy(opts_out, table, sizeof(table));
}

struct bar {
    int percent;
};

static void show_bar(void *context, uint64_t done, uint64_t total)
{
    struct bar *bar = context;
    const int percent = total > 0 ? (int)(100 * done / total) : 100;

    if (percent == bar->percent) {
        return;
    }
    bar->percent = percent;
    fprintf(stderr, "\rloading experts %3d %%%s", percent, percent == 100 ? "\r\033[K" : "");
    fflush(stderr);
}

/* The place of a name in a list that ends with NULL, which is the value of its enum; -1: it is not
 * there. */
static int find_name(const char *const *names, const char *name)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static int cache_mode(const struct eep_engine_opts *v)
{
    static const char *const names[] = {"off", "job", "keep", "require", NULL};

    if (v->cache == NULL) {
        return v->cache_dir != NULL ? EEP_CACHE_KEEP : EEP_CACHE_JOB;
    }
    return find_name(names, v->cache);
}

static int balance_policy(const struct eep_engine_opts *v)
{
    static const char *const names[] = {"eep", "deepseek", "shuffle", NULL};

    return find_name(names, v->rebalance_policy != NULL ? v->rebalance_policy : "eep");
}

static int loss_mode(const struct eep_engine_opts *v)
{
    static const char *const names[] = {"stop", "shrink", "respawn", NULL};

    return find_name(names, v->on_loss != NULL ? v->on_loss : "shrink");
}

static int backup_mode(const struct eep_engine_opts *v)
{
    static const char *const names[] = {"none", "partner", NULL};

    return find_name(names, v->backup != NULL ? v->backup : "none");
}

int eep_engine_opts_check(const struct eep_engine_opts *v, const struct eep_command_help *help)
{
    if (balance_policy(v) < 0) {
        return eep_opts_wrong(help, "--rebalance-policy must be eep, deepseek or shuffle, not '%s'",
                              v->rebalance_policy);
    }
    if (loss_mode(v) < 0) {
        return eep_opts_wrong(help, "--on-loss must be shrink, respawn or stop, not '%s'",
                              v->on_loss);
    }
    if (backup_mode(v) < 0) {
        return eep_opts_wrong(help, "--backup must be none or partner, not '%s'", v->backup);
    }
    if (!v->can_park && (v->ep_size != 0 || loss_mode(v) == EEP_LOSS_RESPAWN)) {
        return eep_opts_wrong(help, "nobody can join this command: leave out --ep-size and "
                                    "--on-loss=respawn");
    }
    if (v->model == NULL) {
        return eep_opts_wrong(help, "--model is needed");
    }
    if (cache_mode(v) < 0) {
        return eep_opts_wrong(help, "--weight-cache must be off, job, keep or require, not '%s'",
                              v->cache);
    }
    return EEP_EXIT_OK;
}

int eep_engine_opts_parse(const struct eep_command_help *help, struct eep_engine_opts *v,
                          struct eep_opt *opts, size_t own, int argc, char **argv)
{
    eep_engine_opts_table(v, opts + own);
    const int ended = eep_opts_parse(help, opts, own + EEP_ENGINE_OPT_COUNT, argc, argv, NULL);

    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    const int usage = eep_engine_opts_check(v, help);

    return usage == EEP_EXIT_OK ? EEP_OPTS_GO_ON : usage;
}

static void report_refusal(void *context, enum eep_status status)
{
    (void)context;
    eep_tool_report(status);
}

enum eep_status eep_engine_opts_create(const struct eep_engine_opts *v,
                                       struct eep_engine **engine_out)
{
    static struct bar bar = {.percent = -1};
    struct eep_engine_params params = {
        .fields = EEP_ENGINE_REFUSED | EEP_ENGINE_CACHE | EEP_ENGINE_REBALANCE,
        .refused = report_refusal,
        .cache = (enum eep_cache_mode)cache_mode(v),
        .cache_dir = v->cache_dir,
        .model = v->model,
        .layout = v->layout,
        .kernels = v->kernels,
        .redundant = v->redundant,
        .max_batch_tokens = v->chunk,
        .max_sequences = v->max_sequences,
        .threads = v->threads,
        .node_size = v->node_size,
        .kv_tokens = v->kv_tokens,
        .timeout_ns = (uint64_t)v->timeout_s * UINT64_C(1000000000),
        .spare_frames = v->spare_frames,
        .attach_timeout_ns = (uint64_t)v->attach_timeout_s * UINT64_C(1000000000),
        .rebalance = v->rebalance,
        .on_loss = (enum eep_loss_mode)loss_mode(v),
        .ep_size = v->ep_size,
        .max_ep_size = v->max_ep_size,
        .silent_after_ns = (uint64_t)v->silent_after_s * UINT64_C(1000000000),
        .backup = v->backup != NULL && strcmp(v->backup, "partner") == 0 ? EEP_BACKUP_PARTNER
                                                                         : EEP_BACKUP_NONE,
    };
    const struct {
        bool given;
        uint64_t field;
    } fields[] = {
        {v->layout != NULL, EEP_ENGINE_LAYOUT},
        {v->kernels != NULL, EEP_ENGINE_KERNELS},
        {v->redundant != 0, EEP_ENGINE_REDUNDANT},
        {v->chunk != 0, EEP_ENGINE_MAX_BATCH_TOKENS},
        {v->max_sequences != 0, EEP_ENGINE_MAX_SEQUENCES},
        {v->threads != 0, EEP_ENGINE_THREADS},
        {v->node_size != 0, EEP_ENGINE_NODE_SIZE},
        {v->kv_tokens != 0, EEP_ENGINE_KV_TOKENS},
        {v->timeout_s != 0, EEP_ENGINE_TIMEOUT},
        {v->cache_dir != NULL, EEP_ENGINE_CACHE_DIR},
        {v->spare_frames != UINT32_MAX, EEP_ENGINE_SPARE_FRAMES},
        {v->attach_timeout_s != 0, EEP_ENGINE_ATTACH_TIMEOUT},
        {v->on_loss != NULL, EEP_ENGINE_ON_LOSS},
        {v->silent_after_s != UINT32_MAX, EEP_ENGINE_SILENT_AFTER},
        {v->ep_size != 0, EEP_ENGINE_EP_SIZE},
        {v->max_ep_size != 0, EEP_ENGINE_MAX_EP_SIZE},
        {v->backup != NULL, EEP_ENGINE_BACKUP},
    };

    params.rebalance.policy = (enum eep_balance_policy)balance_policy(v);

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        params.fields |= fields[i].given ? fields[i].field : 0;
    }
    if (eep_tool_speaks() && isatty(STDERR_FILENO)) {
        params.fields |= EEP_ENGINE_PROGRESS;
        params.progress = show_bar;
        params.progress_context = &bar;
    }
    eep_ckpt_guard_sigbus();
    EEP_TRY(eep_engine_rebalance_on(SIGUSR1));
    return eep_engine_create(&params, engine_out);
}

enum eep_status eep_share_buffer(struct eep_engine *engine, enum eep_status status, void **data,
                                 size_t *bytes)
{
    uint64_t size = *bytes;

    EEP_TRY(eep_engine_agree(engine, "input", status));
    EEP_TRY(eep_engine_broadcast(engine, &size, sizeof(size)));
    if (eep_engine_rank(engine) != 0) {
        *data = malloc(size > 0 ? size : 1);
        *bytes = size;
        if (*data == NULL) {
            status = EEP_FAIL(EEP_ERR_NOMEM, "no memory for %llu bytes of input",
                              (unsigned long long)size);
        }
    }
    EEP_TRY(eep_engine_agree(engine, "input", status));
    return size > 0 ? eep_engine_broadcast(engine, *data, size) : EEP_OK;
}

static enum eep_status read_all(const char *path, FILE *file, char **data_out, size_t *bytes_out)
{
    size_t used = 0, capacity = 1 << 16;
    char *data = malloc(capacity);

    while (data != NULL) {
        used += fread(data + used, 1, capacity - used - 1, file);
        if (ferror(file)) {
            free(data);
            return EEP_FAIL(EEP_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        }
        if (feof(file)) {
            data[used] = '\0';
            *data_out = data;
            *bytes_out = used;
            return EEP_OK;
        }
        if (used + 1 == capacity) {
            char *grown = realloc(data, 2 * capacity);

            if (grown == NULL) {
                free(data);
                data = NULL;
                break;
            }
            data = grown;
            capacity *= 2;
        }
    }
    return EEP_FAIL(EEP_ERR_NOMEM, "%s: no memory for more than %zu bytes", path, used);
}

/*
 * Standard input of the job. Open MPI 5 hands rank 0 what comes in on mpirun's standard input, but
 * not that it has ended; so eep launch and scripts/mpi-run say where it is to be opened.
 */
enum eep_status eep_input_path(const char **path_out)
{
    *path_out = getenv("EEP_STDIN");
    if (*path_out == NULL && getenv("OMPI_COMM_WORLD_SIZE") != NULL) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                        "standard input under a plain mpirun: Open MPI 5 does not pass its end on; "
                        "use 'eep launch', scripts/mpi-run, or a file");
    }
    return EEP_OK;
}

static enum eep_status open_input(FILE **file_out)
{
    const char *path;

    EEP_TRY(eep_input_path(&path));
    *file_out = path != NULL ? fopen(path, "rb") : stdin;
    return *file_out != NULL ? EEP_OK
                             : EEP_FAIL(EEP_ERR_IO,
                                        "standard input cannot be opened on rank 0 (%s: %s); "
                                        "put the input into a file",
                                        path, strerror(errno));
}

enum eep_status eep_read_file(const char *path, char **data_out, size_t *bytes_out)
{
    const bool standard_input = strcmp(path, "-") == 0;
    FILE *file;

    if (standard_input) {
        EEP_TRY(open_input(&file));
    } else {
        file = fopen(path, "rb");
    }
    if (file == NULL) {
        return EEP_FAIL(EEP_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    const enum eep_status status = read_all(path, file, data_out, bytes_out);
    if (file != stdin) {
        fclose(file);
    }
    return status;
}

static double per_second(uint64_t count, uint64_t ns)
{
    return ns > 0 ? (double)count * 1e9 / (double)ns : 0.0;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_memory(const struct eep_engine_facts *f)
{
    for (uint32_t r = 0; r < f->ranks; r++) {
        const struct eep_rank_memory *m = &f->memory[r];

        fprintf(stderr,
                "memory      rank %u: %.1f MiB resident (dense %.1f, %u experts %.1f, KV cache up "
                "to %.1f, buffers up to %.1f)\n",
                r, mib(m->resident), mib(m->dense), m->experts, mib(m->frames), mib(m->kv),
                mib(m->buffers));
    }
    for (uint32_t node = 0; node < f->nodes; node++) {
        uint64_t resident = 0;
        uint32_t ranks = 0;

        for (uint32_t r = 0; r < f->ranks; r++) {
            resident += f->memory[r].node == node ? f->memory[r].resident : 0;
            ranks += f->memory[r].node == node;
        }
        fprintf(stderr, "memory      node %u: %.1f MiB resident in %u ranks\n", node, mib(resident),
                ranks);
    }
}

static void print_moves(const struct eep_engine *engine)
{
    struct eep_rebalance_status r;

    eep_engine_rebalance_status(engine, &r);
    if (r.rebalances > 0 || r.chunks > 0 || r.followed > 0 || r.state != EEP_REBALANCE_IDLE) {
        fprintf(stderr,
                "rebalance   %llu times, %llu versions published, %llu followed; the last: %s\n",
                (unsigned long long)r.rebalances, (unsigned long long)r.chunks,
                (unsigned long long)r.followed, r.reason);
    }
}

/* Length of the path of the directory that a path lies in. */
static int parent_length(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? (int)(slash - path) : 0;
}

enum eep_status eep_print_facts(struct eep_engine *engine)
{
    struct eep_engine_facts f;

    EEP_TRY(eep_engine_facts(engine, &f));
    if (eep_engine_rank(engine) != 0) {
        return EEP_OK;
    }
    fprintf(stderr, "model       %s, %u layers (%u MoE), %u experts, top-%u\n", f.architecture,
            f.layers, f.moe_layers, f.experts, f.top_k);
    fprintf(stderr,
            "ranks       %u on %u node%s, %u thread%s each, %s kernels\n"
            "slots       %u seats x %u slots a layer (%u redundant)\n",
            f.ranks, f.nodes, f.nodes == 1 ? "" : "s", f.threads, f.threads == 1 ? "" : "s",
            f.kernels, f.seats, f.slots_per_seat, f.redundant);
    if (f.cache_path != NULL) {
        fprintf(stderr,
                "cache       %s, layout version %llu, %s in %.4f s, pages mapped in %.3f s\n",
                f.cache_path, (unsigned long long)f.layout_version,
                f.cache_attached ? "attached" : "filled", (double)f.cache_ns * 1e-9,
                (double)f.map_ns * 1e-9);
        if (f.cache_kept && !f.cache_attached) {
            fprintf(stderr,
                    "kept        %.1f MiB of each node's memory, for the next start; "
                    "'eep cache drop --cache-dir %.*s' frees them\n",
                    (double)f.cache_bytes / (1 << 20), parent_length(f.cache_path), f.cache_path);
        }
    }
    print_moves(engine);
    fprintf(stderr, "prompt      %llu tokens, %.1f tokens/s\n", (unsigned long long)f.prompt_tokens,
            per_second(f.prompt_tokens, f.prompt_ns));
    fprintf(stderr, "generation  %llu tokens, %.1f tokens/s\n",
            (unsigned long long)f.generated_tokens,
            per_second(f.generation_step_tokens, f.generation_ns));
    print_memory(&f);
    return EEP_OK;
}
