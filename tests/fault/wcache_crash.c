/*
 * Kills processes at named points of the weight cache, and checks what the next one finds.
 *
 *     wcache_crash points NAME ...   for each point and each visit of it: a process that does all
 * that a cache can do is killed there; then the record is the old or the new version, every slot
 * holds the bytes that its map names, and moves work wcache_crash stress SECONDS SEED   readers
 * with pins beside movers that are killed at random wcache_crash speed MIB         times of
 * filling, attaching, verifying
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "tests/fault/wcache_util.h"

static char dir[256];

/* What the killed process was about, in memory that outlives it. */
static struct shared {
    uint64_t old_version, new_version;
    int32_t old_map[WT_TABLE], new_map[WT_TABLE];
    bool may_be_gone; /* it is being dropped */
    uint64_t moves, checks, kills;
    char failure[EEP_ERROR_TEXT_MAX];
} * shared;

static void fresh_dir(void)
{
    char command[300];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    if (system(command) != 0 || mkdir(dir, 0700) != 0) {
        perror(dir);
        exit(1);
    }
}

static struct eep_wcache_params params(const char *engine, uint64_t id)
{
    static int32_t map[WT_TABLE];

    wt_map(map);
    return wt_params(dir, map, engine, id);
}

static enum eep_status attach_as(const char *engine, uint64_t id, struct eep_wcache **c_out)
{
    const struct eep_wcache_params p = params(engine, id);

    return eep_wcache_open(&p, c_out);
}

/* ---- the process that is killed ---------------------------------------------------------------
 */

/* The versions that may be found from now on: the current one, and the one with that map. */
static enum eep_status expect(struct eep_wcache *c, const struct wt_move *plan)
{
    EEP_TRY(eep_wcache_map(c, &shared->old_version, shared->old_map));
    memcpy(shared->new_map, shared->old_map, sizeof(shared->new_map));
    for (uint32_t i = 0; plan != NULL && i < plan->layer_count; i++) {
        memcpy(shared->new_map + plan->layers[i] * WT_SLOTS, plan->map[i], sizeof(plan->map[i]));
    }
    shared->new_version = shared->old_version + 1;
    return EEP_OK;
}

static enum eep_status tracked_prepare(struct eep_wcache *c, uint32_t first, uint64_t seed,
                                       bool in_place)
{
    struct wt_move m;
    int32_t map[WT_TABLE];
    uint64_t version;

    EEP_TRY(eep_wcache_map(c, &version, map));
    wt_plan(map, first, 2, seed, &m);
    EEP_TRY(expect(c, &m));
    return wt_prepare(c, first, 2, seed, in_place, &m);
}

static enum eep_status tracked_move(struct eep_wcache *c, uint32_t first, uint64_t seed,
                                    bool in_place)
{
    uint64_t version;

    EEP_TRY(tracked_prepare(c, first, seed, in_place));
    EEP_TRY(eep_wcache_commit(c, &version));
    return wt_check(c);
}

static enum eep_status untouched_in_place(struct eep_wcache *c)
{
    struct eep_wcache_frame frame;

    EEP_TRY(eep_wcache_begin(c, (uint32_t[]){1}, 1, eep_wcache_version(c)));
    EEP_TRY(eep_wcache_take_in_place(c, 1, (struct eep_slot){1}, &frame));
    return eep_wcache_abort(c);
}

/* A mover of its own that dies with a version prepared, or right after its flip. */
static enum eep_status dead_mover(uint64_t seed, bool in_place, bool flips)
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0) {
        struct eep_wcache *c;
        uint64_t version;

        unsetenv("EEP_FAULT_AT");
        if (flips) {
            setenv("EEP_FAULT_AT", "wcache.flip.done", 1);
        }
        eep_fault_rearm();
        if (attach_as("dead mover", 77, &c) != EEP_OK || wt_fill(c) != EEP_OK ||
            tracked_prepare(c, 1, seed, in_place) != EEP_OK ||
            (flips && eep_wcache_commit(c, &version) != EEP_OK)) {
            _exit(1);
        }
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid ||
        (flips ? !WIFSIGNALED(status) : status != 0)) {
        return EEP_FAIL(EEP_ERR_IO, "test: the dead mover failed (%d)", status);
    }
    return EEP_OK;
}

static enum eep_status after_dead_movers(struct eep_wcache *c)
{
    struct eep_wcache_repair repaired;
    uint64_t version;

    eep_wcache_mover_release(c);
    EEP_TRY(dead_mover(100, false, false));
    EEP_TRY(eep_wcache_resolve(c, true, &version));
    EEP_TRY(wt_check(c));
    eep_wcache_mover_release(c);
    EEP_TRY(dead_mover(200, true, false));
    EEP_TRY(eep_wcache_resolve(c, false, &version));
    EEP_TRY(expect(c, NULL));
    EEP_TRY(eep_wcache_repair(c, false, 0, wt_refill, NULL, &repaired));
    EEP_TRY(wt_check(c));
    eep_wcache_mover_release(c);
    EEP_TRY(dead_mover(300, false, true));
    return tracked_move(c, 0, 301, false);
}

static enum eep_status everything(void)
{
    struct eep_wcache *c;

    EEP_TRY(attach_as("victim", 5, &c));
    EEP_TRY(wt_fill(c));
    EEP_TRY(wt_check(c));
    EEP_TRY(tracked_move(c, 0, 1, false));
    EEP_TRY(tracked_move(c, 1, 2, true));
    EEP_TRY(tracked_prepare(c, 0, 3, false));
    EEP_TRY(eep_wcache_abort(c));
    EEP_TRY(untouched_in_place(c));
    EEP_TRY(after_dead_movers(c));
    EEP_TRY(expect(c, NULL));
    shared->may_be_gone = true;
    eep_wcache_close_discard(c);
    return EEP_OK;
}

/* ---- the one that comes after -----------------------------------------------------------------
 */

static enum eep_status check_version(struct eep_wcache *c, const struct eep_wcache_status *s)
{
    int32_t map[WT_TABLE], start[WT_TABLE];
    uint64_t version;

    EEP_TRY(eep_wcache_map(c, &version, map));
    wt_map(start);
    if (s->created || (shared->old_version == 0 && version == 0)) {
        return version == 0 && memcmp(map, start, sizeof(map)) == 0 &&
                       (shared->may_be_gone || shared->old_version == 0)
                   ? EEP_OK
                   : EEP_FAIL(EEP_ERR_CACHE_BAD, "test: a cache that was there is gone");
    }
    if ((version == shared->old_version && memcmp(map, shared->old_map, sizeof(map)) == 0) ||
        (version == shared->new_version && memcmp(map, shared->new_map, sizeof(map)) == 0)) {
        return EEP_OK;
    }
    return EEP_FAIL(EEP_ERR_CACHE_BAD,
                    "test: version %llu is neither the old one (%llu) nor the new one",
                    (unsigned long long)version, (unsigned long long)shared->old_version);
}

static enum eep_status heal(struct eep_wcache *c, bool forward)
{
    struct eep_wcache_repair repaired;
    struct eep_wcache_status s;
    uint64_t version;

    EEP_TRY(eep_wcache_status(c, &s));
    EEP_TRY(check_version(c, &s));
    if (s.prepared_version != EEP_WCACHE_NO_VERSION) {
        EEP_TRY(eep_wcache_resolve(c, forward, &version));
        EEP_TRY(eep_wcache_status(c, &s));
    }
    if (s.state == EEP_WCACHE_DIRTY) {
        EEP_TRY(eep_wcache_repair(c, false, 0, wt_refill, NULL, &repaired));
        EEP_TRY(eep_wcache_status(c, &s));
    }
    return s.state != EEP_WCACHE_DIRTY && s.state != EEP_WCACHE_MOVING
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_CACHE_BAD, "test: state %d after the repair", (int)s.state);
}

/* Nothing but one cache and the lock. */
static enum eep_status check_leftovers(void)
{
    DIR *stream = opendir(dir);
    const struct dirent *entry;
    char found[300] = "";

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (strncmp(entry->d_name, ".new", 4) == 0 || strncmp(entry->d_name, ".drop", 5) == 0) {
            snprintf(found, sizeof(found), "%s", entry->d_name);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return found[0] == '\0' ? EEP_OK : EEP_FAIL(EEP_ERR_IO, "test: %s was left", found);
}

static enum eep_status recover(bool forward)
{
    struct eep_wcache_verify v;
    struct eep_wcache *c;

    EEP_TRY(attach_as("successor", 6, &c));
    EEP_TRY(heal(c, forward));
    EEP_TRY(wt_fill(c));
    EEP_TRY(wt_check(c));
    EEP_TRY(eep_wcache_verify(c, NULL, NULL, NULL, &v));
    if (v.bad != 0 || v.frames != WT_TABLE) { /* one slot may be empty, dense counts */
        int32_t map[WT_TABLE];
        uint64_t version, empty = 0;

        EEP_TRY(eep_wcache_map(c, &version, map));
        for (uint32_t i = 0; i < WT_TABLE; i++) {
            empty += map[i] == EEP_NO_EXPERT;
        }
        if (v.bad != 0 || v.frames != WT_TABLE + 1 - empty) {
            return EEP_FAIL(EEP_ERR_CACHE_BAD, "test: %llu of %llu frames are bad",
                            (unsigned long long)v.bad, (unsigned long long)v.frames);
        }
    }
    EEP_TRY(wt_move(c, 0, 3, 500, false));
    EEP_TRY(wt_check(c));
    EEP_TRY(wt_move(c, 0, 2, 501, true));
    EEP_TRY(wt_check(c));
    EEP_TRY(check_leftovers());
    eep_wcache_close(c);
    return EEP_OK;
}

/* ---- all points -------------------------------------------------------------------------------
 */

/* True if the process was killed at that visit; false if it ended in order before. */
static bool kill_at(const char *point, unsigned visit)
{
    char at[160];
    int status = 0;
    pid_t pid;

    fresh_dir();
    memset(shared, 0, sizeof(*shared));
    pid = fork();
    if (pid == 0) {
        snprintf(at, sizeof(at), "%s:%u", point, visit);
        setenv("EEP_FAULT_AT", at, 1);
        eep_fault_rearm();
        if (everything() != EEP_OK) {
            fprintf(stderr, "%s: %s\n", at, eep_error_text());
            _exit(1);
        }
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid ||
        (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))) {
        fprintf(stderr, "%s:%u: the victim ended with %x\n", point, visit, status);
        exit(1);
    }
    return WIFSIGNALED(status);
}

static int kill_everywhere(int count, char **points)
{
    int failed = 0, killed = 0;

    for (int i = 0; i < count; i++) {
        unsigned visit = 1;

        /* Each of the first visits, then every third: later ones repeat earlier moves. */
        while (kill_at(points[i], visit)) {
            killed++;
            if (recover(visit % 2 == 1) != EEP_OK) {
                printf("%s, visit %u: %s\n", points[i], visit, eep_error_text());
                failed++;
                break;
            }
            visit += visit < 6 ? 1 : 7;
        }
        if (visit == 1) {
            printf("%s: never reached\n", points[i]);
            failed++;
        }
    }
    printf("killed %d times at %d points\n", killed, count);
    return failed;
}

/* ---- stress -----------------------------------------------------------------------------------
 */

static void fail_child(const char *who)
{
    snprintf(shared->failure, sizeof(shared->failure), "%s: %s", who, eep_error_text());
    _exit(1);
}

static void reader(uint64_t id)
{
    struct eep_wcache_view *view, *next;
    struct eep_wcache *c;

    /* Once, a mover is quicker than a reader that copies a version. */
    setenv("EEP_FAULT_AT", "wcache.snapshot.begun:9", 1);
    setenv("EEP_FAULT_ACTION", "sleep:20", 1);
    eep_fault_rearm();
    if (attach_as("reader", id, &c) != EEP_OK || wt_fill(c) != EEP_OK ||
        eep_wcache_pin(c, &view) != EEP_OK) {
        fail_child("reader");
    }
    for (uint64_t i = 0;; i++) {
        if (wt_check_view(view) != EEP_OK) {
            fail_child("reader");
        }
        __atomic_fetch_add(&shared->checks, 1, __ATOMIC_RELAXED);
        if (eep_rng_bits(id, i) % 3 == 0) { /* follow */
            if (eep_wcache_pin(c, &next) != EEP_OK) {
                fail_child("reader follows");
            }
            eep_wcache_unpin(c, view);
            view = next;
        }
    }
}

/* Take over, then move until killed. */
static void mover(uint64_t seed)
{
    struct eep_wcache *c;
    uint64_t version;

    if (attach_as("mover", 1000 + seed % 7, &c) != EEP_OK || wt_fill(c) != EEP_OK ||
        eep_wcache_resolve(c, seed % 2 == 0, &version) != EEP_OK) {
        fail_child("mover");
    }
    for (uint64_t i = 0;; i++) {
        const enum eep_status status = wt_move(c, (uint32_t)i, 1, eep_rng_bits(seed, i), false);

        if (status == EEP_OK) {
            __atomic_fetch_add(&shared->moves, 1, __ATOMIC_RELAXED);
        } else if (status != EEP_ERR_AGAIN && status != EEP_ERR_NOMEM) {
            fail_child("move");
        } else if (eep_wcache_abort(c) != EEP_OK) {
            fail_child("abort");
        }
        if (wt_check(c) != EEP_OK) {
            fail_child("mover checks");
        }
    }
}

#define READERS 2

static pid_t start(void (*body)(uint64_t), uint64_t argument)
{
    const pid_t pid = fork();

    if (pid == 0) {
        body(argument);
    }
    return pid;
}

static void end(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status)) {
        fprintf(stderr, "a child ended by itself: %s\n", shared->failure);
        exit(1);
    }
    shared->kills++;
}

static int stress(unsigned seconds, uint64_t seed)
{
    const uint64_t stop = eep_clock_ns() + seconds * EEP_NS_PER_S;
    pid_t readers[READERS], moving;
    struct eep_wcache *c;
    uint64_t round = 0;

    fresh_dir();
    memset(shared, 0, sizeof(*shared));
    if (attach_as("filler", 1, &c) != EEP_OK || wt_fill(c) != EEP_OK) {
        fprintf(stderr, "%s\n", eep_error_text());
        return 1;
    }
    eep_wcache_close(c);
    for (uint64_t i = 0; i < READERS; i++) {
        readers[i] = start(reader, 10 + i);
    }
    for (; eep_clock_ns() < stop; round++) {
        moving = start(mover, seed + round);
        usleep((useconds_t)(3000 + eep_rng_bits(seed, round) % 60000));
        end(moving);
        if (round % 4 == 3) {
            end(readers[round / 4 % READERS]);
            readers[round / 4 % READERS] = start(reader, 100 + round);
        }
    }
    for (uint64_t i = 0; i < READERS; i++) {
        end(readers[i]);
    }
    printf("seed %llu: %llu moves, %llu checks of all slots, %llu kills\n",
           (unsigned long long)seed, (unsigned long long)shared->moves,
           (unsigned long long)shared->checks, (unsigned long long)shared->kills);
    return shared->moves >= 200 && shared->checks >= 200 ? 0 : 1;
}

/* ---- times ------------------------------------------------------------------------------------
 */

static double ms_since(uint64_t begin)
{
    return (double)(eep_clock_ns() - begin) / 1e6;
}

static enum eep_status fill_big(struct eep_wcache *c, const int32_t *map)
{
    bool fill;

    EEP_TRY(eep_wcache_seat_open(c, (struct eep_seat){0}, WT_TIMEOUT_NS, &fill));
    for (uint32_t layer = 0; fill && layer < 24; layer++) {
        for (uint32_t p = 0; p < 32; p++) {
            struct eep_wcache_frame frame;
            void *bytes;

            if (!eep_wcache_slot_frame(c, layer, (struct eep_slot){p}, &frame)) {
                return EEP_FAIL(EEP_ERR_INVALID, "no frame");
            }
            EEP_TRY(eep_wcache_frame_begin(c, frame, &bytes));
            memset(bytes, (int)(layer * 32 + p + 1), 4096);
            EEP_TRY(eep_wcache_frame_end(
                c, frame, layer, (struct eep_expert){(uint32_t)map[layer * 32 + p]}, NULL, NULL));
        }
    }
    return eep_wcache_seat_end(c, (struct eep_seat){0});
}

/* One seat of 24 layers x 32 slots. */
static enum eep_status speed(uint64_t mib)
{
    int32_t map[24 * 32];
    struct eep_wcache_params p = params("speed", 1);
    struct eep_wcache_verify v;
    struct eep_wcache_view *view;
    struct eep_wcache *c;
    uint64_t begin;
    double open_ms;
    bool fill;

    for (uint32_t i = 0; i < 24 * 32; i++) {
        map[i] = (int32_t)(i % 32);
    }
    p.key.layers = 24;
    p.key.experts = p.key.slots_per_seat = 32;
    p.key.seats = p.node_seats = 1;
    p.key.frame_bytes = (mib << 20) / (24 * 32);
    p.phys2log = map;
    p.dense_bytes = 0;
    fresh_dir();
    begin = eep_clock_ns();
    EEP_TRY(eep_wcache_open(&p, &c));
    EEP_TRY(fill_big(c, map));
    printf("fill: %.1f ms (zeroing by the kernel, mapping, digests)\n", ms_since(begin));
    eep_wcache_close(c);
    for (int i = 0; i < 3; i++) {
        begin = eep_clock_ns();
        EEP_TRY(eep_wcache_open(&p, &c));
        open_ms = ms_since(begin);
        EEP_TRY(eep_wcache_seat_open(c, (struct eep_seat){0}, 0, &fill));
        EEP_TRY(eep_wcache_pin(c, &view));
        printf("attach: %.2f ms, of which the record %.2f ms\n", ms_since(begin), open_ms);
        begin = eep_clock_ns();
        eep_wcache_seat_populate(c, (struct eep_seat){0}, 0, 1);
        printf("map its pages: %.1f ms in one thread\n", ms_since(begin));
        begin = eep_clock_ns();
        EEP_TRY(eep_wcache_verify(c, NULL, NULL, NULL, &v));
        printf("verify: %.1f ms, %.1f GB/s, %llu bad\n", ms_since(begin),
               (double)v.bytes / 1e6 / ms_since(begin), (unsigned long long)v.bad);
        eep_wcache_close(c);
    }
    EEP_TRY(eep_wcache_open(&p, &c));
    eep_wcache_close_discard(c);
    return EEP_OK;
}

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    int failed = 1;

    if (eep_log_level_from_env() != EEP_OK) {
        return 2;
    }
    snprintf(dir, sizeof(dir), "%s/eep-crash-%d", base != NULL ? base : "/dev/shm", (int)getpid());
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return 1;
    }
    if (argc == 2 && strcmp(argv[1], "compiled-in") == 0) {
        return eep_fault_compiled_in() ? 0 : 1;
    }
    if (argc > 2 && strcmp(argv[1], "points") == 0) {
        failed = kill_everywhere(argc - 2, argv + 2);
    } else if (argc == 4 && strcmp(argv[1], "stress") == 0) {
        failed = stress((unsigned)atoi(argv[2]), strtoull(argv[3], NULL, 0));
    } else if (argc == 3 && strcmp(argv[1], "speed") == 0) {
        failed = speed(strtoull(argv[2], NULL, 0)) != EEP_OK;
        if (failed) {
            fprintf(stderr, "%s\n", eep_error_text());
        }
    } else {
        fprintf(stderr, "usage: wcache_crash points NAME ... | stress SECONDS SEED | speed MIB\n");
        return 2;
    }
    fresh_dir();
    rmdir(dir);
    return failed == 0 ? 0 : 1;
}
