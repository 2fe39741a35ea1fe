/*
 * `eep bench recover`: what the loss of ranks costs. All ranks generate; the last one, or with
 * --whole-node all ranks of its node, kills itself between two layers of a step; then the next one,
 * until one is left. A page of shared memory tells the others when that was.
 *
 *     killed ─noticed─► a call fails ─agreed─► who is left ─reseated─► seats are executed ─► first
 * token
 *
 * Figures are rank 0's. Ranks on other machines would read another clock, so it is for one machine.
 */
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/look.h"
#include "tools/bench.h"
#include "tools/engine_opts.h"
#include "tools/shared_page.h"
#include "tools/tools.h"

#define TARGET_AGREED_MS 50.0   /* noticed and agreed */
#define TARGET_RESEATED_MS 20.0 /* when no byte moves */
#define TARGET_TOKEN_MS 150.0   /* and one step */
#define STEPS_BETWEEN 40u
#define PROMPT_TOKENS 16u
#define STEPS_FOR_BACKUP 1000u /* until it is whole */
#define COPY_BYTES ((size_t)256 << 20)

static const struct eep_command_help help = {
    .usage = "eep bench recover --model DIR [options]",
    .summary = "Kill rank after rank while they generate, until one is left, and time how the\n"
               "others go on. Run it on two ranks or more of one machine.",
    .epilog =
        "With --json one object per loss. Targets with four ranks on one machine: noticed\n"
        "and agreed 50 ms, reseated 20 ms when no byte moves, first token 150 ms and a step.\n"
        "With --backup=partner a loss comes when the backup is whole.",
};

struct bench_recover {
    struct eep_engine_opts engine_opts;
    uint32_t sequences;
    bool whole_node, json;
    struct eep_engine *engine;
    _Atomic uint64_t *killed_ns;       /* shared by the ranks */
    double step_ms;                    /* median before the loss */
    double copy_gib_s, copy_new_gib_s; /* of one thread: between buffers, into new shared memory */
};

/* ---- load ---- */

static enum eep_status submit(struct bench_recover *b)
{
    const uint32_t ranks = eep_engine_ranks(b->engine), vocab = eep_engine_vocab(b->engine);
    const bool has_backup = (b->engine_opts.backup != NULL);
    const uint32_t tokens = STEPS_BETWEEN * (ranks + 2) + (has_backup ? STEPS_FOR_BACKUP : 0);
    uint32_t prompt[PROMPT_TOKENS];

    for (uint32_t i = 0; i < b->sequences * ranks; i++) {
        struct eep_request request = {.prompt = prompt,
                                      .prompt_count = PROMPT_TOKENS,
                                      .max_tokens = tokens,
                                      .top_p = 1.0,
                                      .ignore_eos = true};
        uint64_t id;

        for (uint32_t j = 0; j < PROMPT_TOKENS; j++) {
            prompt[j] = (i * 31 + j * 7 + 1) % vocab;
        }
        EEP_TRY(eep_engine_submit(b->engine, &request, &id));
    }
    return EEP_OK;
}

static enum eep_status run_step(struct bench_recover *b)
{
    struct eep_event event;
    bool idle = false;

    EEP_TRY(eep_engine_step(b->engine, &idle));
    while (eep_engine_next_event(b->engine, &event)) {
    }
    return idle ? EEP_FAIL(EEP_ERR_INVALID, "the requests ended before the ranks did") : EEP_OK;
}

static enum eep_status run_quietly(struct bench_recover *b)
{
    struct eep_backup_facts backup;
    double ms[STEPS_BETWEEN];

    for (uint32_t i = 0; i < STEPS_BETWEEN; i++) {
        const uint64_t begin_ns = eep_clock_ns();

        EEP_TRY(run_step(b));
        ms[i] = (double)(eep_clock_ns() - begin_ns) * 1e-6;
    }
    eep_engine_backup(b->engine, &backup);
    while (backup.enabled && !backup.whole && backup.missing == 0) {
        EEP_TRY(run_step(b));
        eep_engine_backup(b->engine, &backup);
    }
    eep_bench_sort(ms, STEPS_BETWEEN);
    b->step_ms = ms[STEPS_BETWEEN / 2];
    return EEP_OK;
}

/* ---- losses ---- */

/* The highest rank, or all of its node. */
static bool is_victim(const struct bench_recover *b)
{
    const struct eep_member_state *m = eep_engine_member_state(b->engine);
    const uint32_t *ids = eep_engine_member_ids(b->engine);
    const uint32_t rank = eep_engine_rank(b->engine), last = eep_engine_ranks(b->engine) - 1;

    return rank == last || (b->whole_node && eep_member_find(m, ids[rank])->node ==
                                                 eep_member_find(m, ids[last])->node);
}

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

/* Copies of one thread, in GiB/s: between two buffers, and into new shared memory, which is what
 * filling lost experts does. */
static double copy_rate(void *to, const void *from)
{
    const uint64_t begin_ns = eep_clock_ns();

    memcpy(to, from, COPY_BYTES);
    return (double)COPY_BYTES / (1 << 30) * 1e9 / (double)(eep_clock_ns() - begin_ns);
}

static enum eep_status measure_new(struct bench_recover *b, const void *from)
{
    for (int round = 0; round < 3; round++) {
        const int file = memfd_create("eep-bench", MFD_CLOEXEC);
        void *to = MAP_FAILED;

        if (file >= 0 && ftruncate(file, (off_t)COPY_BYTES) == 0) {
            to = mmap(NULL, COPY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        }
        if (to != MAP_FAILED) {
            const double rate = copy_rate(to, from);

            b->copy_new_gib_s = EEP_MAX(b->copy_new_gib_s, rate);
            munmap(to, COPY_BYTES);
        }
        if (file >= 0) {
            close(file);
        }
        if (to == MAP_FAILED) {
            return EEP_FAIL(EEP_ERR_NOMEM, "no shared memory to measure copies: %m");
        }
    }
    return EEP_OK;
}

static enum eep_status measure_copy(struct bench_recover *b)
{
    char *from = NULL, *to = NULL;

    if (eep_engine_rank(b->engine) != 0) {
        return EEP_OK;
    }
    enum eep_status status = eep_mem_map(COPY_BYTES, "bytes to copy", &from);

    if (status == EEP_OK) {
        status = eep_mem_map(COPY_BYTES, "bytes to copy", &to);
    }
    for (int round = 0; status == EEP_OK && round < 3; round++) { /* the first one maps the pages */
        memset(from, round + 1, COPY_BYTES);
        const double rate = copy_rate(to, from);

        b->copy_gib_s = EEP_MAX(b->copy_gib_s, rate);
    }
    if (status == EEP_OK) {
        status = measure_new(b, from);
    }
    eep_mem_unmap(from, COPY_BYTES);
    eep_mem_unmap(to, COPY_BYTES);
    return status;
}

/* Of all ranks together. */
static double filled_gib_s(const struct eep_loss_facts *f)
{
    return f->filled_ns > 0 ? (double)f->filled_bytes / (1 << 30) * 1e9 / (double)f->filled_ns
                            : 0.0;
}

/* What is printed of a loss. */
struct row {
    uint32_t ranks_before, ranks;
    double noticed_ms, token_ms;
    const struct eep_loss_facts *facts;
};

static bool print_json(const struct bench_recover *b, const struct row *r)
{
    const struct eep_loss_facts *f = r->facts;
    json_t *times =
        json_pack("{s:s, s:i, s:i, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "bench",
                  "recover", "ranks_before", (int)r->ranks_before, "ranks", (int)r->ranks, "node",
                  (int)b->whole_node, "noticed_ms", r->noticed_ms, "agreed_ms", ms(f->agreed_ns),
                  "reseated_ms", ms(f->reseated_ns), "first_token_ms", r->token_ms, "step_ms",
                  b->step_ms, "target_agreed_ms", TARGET_AGREED_MS, "target_reseated_ms",
                  TARGET_RESEATED_MS, "target_first_token_ms", TARGET_TOKEN_MS + b->step_ms);
    json_t *filled =
        json_pack("{s:f, s:f, s:f, s:f, s:I, s:I}", "filled_mib",
                  (double)f->filled_bytes / (1 << 20), "filled_gib_s", filled_gib_s(f),
                  "copy_gib_s", b->copy_gib_s, "copy_new_gib_s", b->copy_new_gib_s, "from_backup",
                  (json_int_t)f->from_backup, "from_checkpoint", (json_int_t)f->from_checkpoint);
    const bool written = times != NULL && filled != NULL &&
                         json_object_update(times, filled) == 0 &&
                         json_dumpf(times, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF;

    json_decref(times);
    json_decref(filled);
    return written;
}

static bool print_text(const struct bench_recover *b, const struct row *r)
{
    const struct eep_loss_facts *f = r->facts;

    if (printf("%u -> %u ranks: noticed %6.1f ms, agreed %5.1f ms (together %.0f), reseated %5.1f "
               "ms (%.0f), first token after %6.1f ms (%.0f); a step %.2f ms\n",
               r->ranks_before, r->ranks, r->noticed_ms, ms(f->agreed_ns), TARGET_AGREED_MS,
               ms(f->reseated_ns), TARGET_RESEATED_MS, r->token_ms, TARGET_TOKEN_MS + b->step_ms,
               b->step_ms) < 0) {
        return false;
    }
    return f->filled_bytes == 0 ||
           printf("               %.1f MiB filled again at %.2f GiB/s; a thread copies %.2f GiB/s, "
                  "into new shared memory %.2f GiB/s\n",
                  (double)f->filled_bytes / (1 << 20), filled_gib_s(f), b->copy_gib_s,
                  b->copy_new_gib_s) > 0;
}

static enum eep_status print_loss(struct bench_recover *b, uint32_t ranks_before,
                                  uint64_t killed_ns)
{
    const struct eep_loss_facts *f = eep_engine_losses(b->engine);
    const double noticed = ms(f->since_ns > killed_ns ? f->since_ns - killed_ns : 0);
    const struct row row = {.ranks_before = ranks_before,
                            .ranks = eep_engine_ranks(b->engine),
                            .noticed_ms = noticed,
                            .token_ms = noticed + ms(f->first_step_ns),
                            .facts = f};

    if (eep_engine_rank(b->engine) != 0) {
        return EEP_OK;
    }
    const bool written = b->json ? print_json(b, &row) : print_text(b, &row);

    return written && fflush(stdout) == 0 ? EEP_OK
                                          : EEP_FAIL(EEP_ERR_IO, "the result cannot be written");
}

static enum eep_status lose_one(struct bench_recover *b)
{
    const uint32_t before = eep_engine_ranks(b->engine);
    struct eep_event event;
    bool idle;

    if (is_victim(b)) {
        atomic_store(b->killed_ns, eep_clock_ns());
        (void)kill(getpid(), SIGKILL);
    }
    /* Ranks that die one after the other cost more than one recovery. */
    do {
        EEP_TRY(eep_engine_step(b->engine, &idle));
        while (eep_engine_next_event(b->engine, &event)) {
        }
    } while (eep_engine_losses(b->engine)->first_step_ns == 0 && !idle);
    return print_loss(b, before, atomic_load(b->killed_ns));
}

static enum eep_status run(struct bench_recover *b)
{
    EEP_TRY(eep_engine_opts_create(&b->engine_opts, &b->engine));
    EEP_TRY(submit(b));
    EEP_TRY(eep_engine_load(b->engine));
    if (eep_engine_member_state(b->engine) == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "the loss of a rank ends this engine: it needs two ranks or "
                        "more, and --on-loss=shrink");
    }
    EEP_TRY(eep_engine_agree(b->engine, "copies", measure_copy(b)));
    EEP_TRY(eep_shared_page_open(b->engine, sizeof(*b->killed_ns), &b->killed_ns));
    EEP_TRY(eep_engine_agree(b->engine, "shared page",
                             b->killed_ns != NULL
                                 ? EEP_OK
                                 : EEP_FAIL(EEP_ERR_IO, "the ranks must be on one machine, with "
                                                        "/dev/shm")));
    while (eep_engine_ranks(b->engine) > 1) {
        EEP_TRY(run_quietly(b));
        EEP_TRY(lose_one(b));
    }
    return EEP_OK;
}

int eep_bench_recover(int argc, char **argv)
{
    struct bench_recover b = {.sequences = 4};
    struct eep_opt opts[EEP_ENGINE_OPT_COUNT + 3] = {
        {"sequences", EEP_OPT_U32, &b.sequences, "N", "requests per rank (default 4)"},
        {"whole-node", EEP_OPT_FLAG, &b.whole_node, NULL, "all ranks of a node at once"},
        {"json", EEP_OPT_FLAG, &b.json, NULL, "one JSON object per loss"},
    };

    const int ended = eep_engine_opts_parse(&help, &b.engine_opts, opts, 3, argc, argv);
    if (ended != EEP_OPTS_GO_ON) {
        return ended;
    }
    if (b.sequences == 0) {
        return eep_opts_wrong(&help, "--sequences must be at least 1");
    }
    return eep_tool_end(b.engine, run(&b));
}
