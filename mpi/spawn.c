/*
 * New processes of the job, started while the ranks work. Rank 0 has a thread for it, as
 * MPI_Comm_spawn() takes a quarter of a second, and does not return at all when a process ends
 * before MPI has started in it: then the thread is left where it is.
 *
 *     rank 0's thread                          a new process
 *     run `program --version`                       .
 *     MPI_Comm_spawn ────────────────────────► MPI_Init, MPI_Comm_dup(MPI_COMM_WORLD)
 *                              ◄──── HELLO
 *     all have come: MERGE ────►
 *     MPI_Intercomm_merge, dup ◄─────────────► MPI_Intercomm_merge, dup     the bridge
 *     rank 0
 *     WELCOME: its number, ... ────►           parked; a guest until regroup.c lets it in
 *
 * MPI cannot spawn reliably where the ranks are on several machines, nor without fault tolerance
 * (the end of a new process would be the job's).
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "roster_int.h"

#define PROBE_NS (15 * EEP_NS_PER_S) /* for `program --version` */
#define SPAWN_NS (30 * EEP_NS_PER_S) /* from spawn_begin() to the bridge */
#define GUEST_NS (40 * EEP_NS_PER_S) /* for the other side, in a new process */
#define LOOK_NS (EEP_NS_PER_MS / 2)

enum { HELLO_TAG = 1, MERGE_TAG };

/* What a new process must know. */
struct welcome {
    uint64_t serial;
    uint64_t timeout_ns, silent_after_ns, answer_ns;
    uint32_t first; /* origin of the first one */
    uint32_t home;
    uint32_t leader;
    uint32_t node_size;
};

/* One spawn. The thread's until `done`, then rank 0's; nobody's any more when it was given up. */
struct eep_spawn_try {
    char **argv; /* a copy */
    uint32_t count;
    uint64_t serial;
    uint32_t beside;
    uint64_t begin_ns, limit_ns;
    atomic_bool given_up;
    atomic_bool done; /* the rest is complete */
    enum eep_status status;
    char text[EEP_ERROR_TEXT_MAX];
    MPI_Comm bridge, crossing; /* see roster_int.h */
};

/* ---- does the program work? ---- */

/* The probe must not take itself for this rank: neither before MPI, nor where eep's own variables
 * say what a rank is to read and write. */
static char **environment_without_launcher(void)
{
    static const char *const prefixes[] = {"PMIX_", "PMI_", "OMPI_COMM_", "PRTE_", "EEP_"};
    size_t count = 0, kept = 0;

    while (environ[count] != NULL) {
        count++;
    }
    char **copy = calloc(count + 1, sizeof(*copy));
    for (size_t i = 0; i < count && copy != NULL; i++) {
        bool drop = false;

        for (size_t p = 0; p < sizeof(prefixes) / sizeof(prefixes[0]); p++) {
            drop = drop || strncmp(environ[i], prefixes[p], strlen(prefixes[p])) == 0;
        }
        if (!drop) {
            copy[kept++] = environ[i];
        }
    }
    return copy;
}

static int start_probe(char *program, pid_t *process_out)
{
    char version[] = "--version";
    char *const argv[] = {program, version, NULL};
    char **env = environment_without_launcher();
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, pipe;

    if (env == NULL) {
        return ENOMEM;
    }
    sigemptyset(&none);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &pipe);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawn_file_actions_init(&files);
    for (int fd = 0; fd < 3; fd++) {
        posix_spawn_file_actions_addopen(&files, fd, "/dev/null", fd == 0 ? O_RDONLY : O_WRONLY, 0);
    }
    const int error = posix_spawn(process_out, program, &files, &attributes, argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    free(env);
    return error;
}

/* A process that ends before MPI has started could not be waited for. */
static enum eep_status probe(char *program)
{
    const uint64_t deadline_ns = eep_clock_ns() + PROBE_NS;
    pid_t process = 0, ended;
    int end = 0;

    const int error = start_probe(program, &process);
    if (error != 0) {
        return EEP_FAIL(EEP_ERR_IO, "spawning: %s cannot be run: %s", program, strerror(error));
    }
    while ((ended = waitpid(process, &end, WNOHANG)) == 0 && eep_clock_ns() < deadline_ns) {
        eep_wait_nap(LOOK_NS);
    }
    if (ended == 0) {
        (void)kill(process, SIGKILL);
        (void)waitpid(process, &end, 0);
        return EEP_FAIL(EEP_ERR_IO, "spawning: '%s --version' does not end", program);
    }
    if (ended == process && (!WIFEXITED(end) || WEXITSTATUS(end) != 0)) {
        return EEP_FAIL(EEP_ERR_IO, "spawning: '%s --version' fails (wait status 0x%x)", program,
                        (unsigned)end);
    }
    return EEP_OK;
}

/* ---- the thread ---- */

static enum eep_status check_call(int rc, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (rc == MPI_SUCCESS) {
        return EEP_OK;
    }
    (void)MPI_Error_string(rc, text, &length);
    return EEP_FAIL(EEP_ERR_IO, "spawning: %s failed: %s", call, text);
}

/* On both sides, when all are there. */
static enum eep_status build_bridge(MPI_Comm inter, bool child, MPI_Comm *crossing,
                                    MPI_Comm *bridge)
{
    EEP_TRY(check_call(MPI_Intercomm_merge(inter, child, crossing), "MPI_Intercomm_merge"));
    (void)MPI_Comm_set_errhandler(*crossing, MPI_ERRORS_RETURN);
    EEP_TRY(check_call(MPI_Comm_dup(*crossing, bridge), "MPI_Comm_dup"));
    (void)MPI_Comm_set_errhandler(*bridge, MPI_ERRORS_RETURN);
    return EEP_OK;
}

static enum eep_status start_processes(const struct eep_spawn_try *t, MPI_Comm *children)
{
    MPI_Comm self;
    MPI_Info info;

    EEP_TRY(check_call(MPI_Comm_dup(MPI_COMM_SELF, &self), "MPI_Comm_dup"));
    EEP_TRY(check_call(MPI_Info_create(&info), "MPI_Info_create"));
    (void)MPI_Info_set(info, "map_by", "slot:OVERSUBSCRIBE");
    (void)MPI_Info_set(info, "bind_to", "none");
    EEP_TRY(check_call(MPI_Comm_spawn(t->argv[0], t->argv + 1, (int)t->count, info, 0, self,
                                      children, MPI_ERRCODES_IGNORE),
                       "MPI_Comm_spawn"));
    (void)MPI_Comm_set_errhandler(*children, MPI_ERRORS_RETURN);
    (void)MPI_Info_free(&info);
    return EEP_OK;
}

/* Until this one has said so, or has died: MPI does not tell the other end of a merge. */
static enum eep_status await_hello(struct eep_spawn_try *t, MPI_Comm children, uint32_t child)
{
    int there = 0;

    for (;;) {
        EEP_TRY(check_call(MPI_Iprobe((int)child, HELLO_TAG, children, &there, MPI_STATUS_IGNORE),
                           "MPI_Iprobe"));
        if (there) {
            return check_call(
                MPI_Recv(NULL, 0, MPI_BYTE, (int)child, HELLO_TAG, children, MPI_STATUS_IGNORE),
                "MPI_Recv");
        }
        if (atomic_load(&t->given_up)) {
            return EEP_ERR_TIMEOUT;
        }
        eep_wait_nap(LOOK_NS);
    }
}

static enum eep_status make_bridge(struct eep_spawn_try *t)
{
    MPI_Comm children;

    EEP_TRY(probe(t->argv[0]));
    EEP_TRY(start_processes(t, &children));
    for (uint32_t i = 0; i < t->count; i++) {
        EEP_TRY(await_hello(t, children, i));
    }
    for (uint32_t i = 0; i < t->count; i++) {
        EEP_TRY(check_call(MPI_Send(NULL, 0, MPI_BYTE, (int)i, MERGE_TAG, children), "MPI_Send"));
    }
    return build_bridge(children, false, &t->crossing, &t->bridge);
}

static void *run(void *arg)
{
    struct eep_spawn_try *t = arg;

    t->status = make_bridge(t);
    snprintf(t->text, sizeof(t->text), "%s", eep_error_text());
    atomic_store(&t->done, true);
    return NULL;
}

/* ---- rank 0 ---- */

/* MPI's daemons are one per machine; a second spawn fails where there are several. */
static bool on_one_machine(const struct eep_world *world)
{
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");

    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        if (!world->is_here[r]) {
            return false;
        }
    }
    return all != NULL && here != NULL && strcmp(all, here) == 0;
}

static enum eep_status check_spawn(const struct eep_world *world, const struct eep_spawn *s)
{
    const char *program = s->argv[0];
    struct stat st;
    int level = 0;

    if (!world->ulfm) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "processes cannot be spawned: fault tolerance is off "
                                             "(start with scripts/mpi-run, eep launch, or "
                                             "mpirun --with-ft ulfm)");
    }
    if (MPI_Query_thread(&level) != MPI_SUCCESS || level < MPI_THREAD_MULTIPLE) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                        "processes cannot be spawned: this MPI has no MPI_THREAD_MULTIPLE");
    }
    if (!on_one_machine(world)) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "processes cannot be spawned where ranks are on "
                                             "several machines: start more with mpirun, parked");
    }
    if (world->xport.topo.rank != 0 || world->spawn != NULL ||
        eep_roster_first_guest(world->roster) != EEP_NO_RANK) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "spawning: rank 0 does it, once the processes spawned before are ranks or "
                        "parked, or have ended");
    }
    if (s->count == 0 || s->count > EEP_SPAWN_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID, "spawning: %u processes; 1 to %u can be spawned at a time",
                        s->count, EEP_SPAWN_MAX);
    }
    if (s->beside != EEP_NO_RANK && s->beside >= world->roster->processes) {
        return EEP_FAIL(EEP_ERR_INVALID, "spawning: beside process %u of %u", s->beside,
                        world->roster->processes);
    }
    if (strchr(program, '/') == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "spawning: '%s' is no path", program);
    }
    if (stat(program, &st) != 0 || (S_ISREG(st.st_mode) && access(program, X_OK) != 0)) {
        return EEP_FAIL(EEP_ERR_IO, "spawning: %s cannot be run: %s", program, strerror(errno));
    }
    return S_ISREG(st.st_mode)
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_IO, "spawning: %s cannot be run: not a file", program);
}

static void free_try(struct eep_spawn_try *t)
{
    for (size_t i = 0; t->argv != NULL && t->argv[i] != NULL; i++) {
        free(t->argv[i]);
    }
    eep_mem_free((void *)t->argv);
    eep_mem_free(t);
}

static enum eep_status copy_argv(struct eep_spawn_try *t, char *const *argv)
{
    size_t count = 0;

    while (argv[count] != NULL) {
        count++;
    }
    EEP_TRY(eep_mem_alloc(count + 1, sizeof(*t->argv), "spawning", (void *)&t->argv));
    for (size_t i = 0; i < count; i++) {
        t->argv[i] = strdup(argv[i]);
        if (t->argv[i] == NULL) {
            return EEP_FAIL(EEP_ERR_NOMEM, "spawning: no memory");
        }
    }
    return EEP_OK;
}

static enum eep_status start_thread(struct eep_spawn_try *t)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the main thread's */
    const int error = pthread_create(&thread, &attributes, run, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        return EEP_FAIL(EEP_ERR_NOMEM, "spawning: cannot start a thread: %s", strerror(error));
    }
    return EEP_OK;
}

enum eep_status eep_spawn_begin(struct eep_xport *xport, const struct eep_spawn *spawn)
{
    struct eep_world *world = (struct eep_world *)xport;
    struct eep_spawn_try *t;

    EEP_TRY(check_spawn(world, spawn));
    EEP_TRY(eep_mem_alloc(1, sizeof(*t), "spawning", &t));
    t->count = spawn->count;
    t->serial = spawn->serial;
    t->beside = spawn->beside != EEP_NO_RANK ? spawn->beside : world->origin;
    t->limit_ns = spawn->timeout_ns != 0 ? spawn->timeout_ns : SPAWN_NS;
    t->begin_ns = eep_clock_ns();
    t->bridge = MPI_COMM_NULL;
    eep_start_yield(); /* in the thread, too */
    enum eep_status status = copy_argv(t, spawn->argv);
    if (status == EEP_OK) {
        status = start_thread(t);
    }
    if (status != EEP_OK) {
        free_try(t);
        return status;
    }
    world->spawn = t;
    return EEP_OK;
}

/* Origins of the bridge's processes: rank 0, then the new ones. */
static enum eep_status number_bridge(const struct welcome *w, uint32_t size, uint32_t **origins_out)
{
    EEP_TRY(eep_mem_alloc(size, sizeof(**origins_out), "spawning", origins_out));
    (*origins_out)[0] = w->leader;
    for (uint32_t i = 1; i < size; i++) {
        (*origins_out)[i] = w->first + i - 1;
    }
    return EEP_OK;
}

/* The bridge is there: the new processes are guests. */
static enum eep_status welcome_guests(struct eep_world *world, const struct eep_spawn_try *t)
{
    struct eep_roster *r = world->roster;
    const struct welcome w = {.serial = t->serial,
                              .timeout_ns = world->timeout_ns,
                              .silent_after_ns = world->silent_after_ns,
                              .answer_ns = world->answer_ns,
                              .first = r->processes,
                              .home = r->process[t->beside].home,
                              .leader = world->origin,
                              .node_size = world->node_size};
    uint32_t *origins;

    EEP_TRY(number_bridge(&w, t->count + 1, &origins));
    const enum eep_status status = eep_roster_grow(world, w.first + t->count, w.home);
    if (status != EEP_OK) {
        eep_mem_free(origins);
        return status;
    }
    eep_channel_set(&r->bridge, t->bridge, t->count + 1, origins);
    r->crossing = t->crossing;
    for (uint32_t i = 0; i < t->count; i++) {
        (void)eep_roster_post(world, w.first + i, EEP_WELCOME_TAG, &w, sizeof(w));
    }
    return EEP_OK;
}

enum eep_status eep_spawn_test(struct eep_xport *xport, uint32_t *first_out)
{
    struct eep_world *world = (struct eep_world *)xport;
    struct eep_spawn_try *t = world->spawn;
    const uint32_t first = world->roster->processes;

    if (t == NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "spawning: nothing is under way");
    }
    if (!atomic_load(&t->done)) {
        if (eep_clock_ns() - t->begin_ns < t->limit_ns) {
            return EEP_ERR_AGAIN;
        }
        atomic_store(&t->given_up, true); /* memory and thread are left to it */
        world->spawn = NULL;
        return EEP_FAIL(EEP_ERR_TIMEOUT,
                        "spawning: %s was started %u times, and did not come for %.1f s; it may "
                        "have ended at once",
                        t->argv[0], t->count, (double)t->limit_ns / (double)EEP_NS_PER_S);
    }
    world->spawn = NULL;
    enum eep_status status = t->status;
    if (status != EEP_OK) {
        eep_error_text_set(t->text);
    } else {
        status = welcome_guests(world, t);
    }
    free_try(t);
    if (status == EEP_OK) {
        *first_out = first;
    }
    return status;
}

/* ---- a new process ---- */

bool eep_spawned(void)
{
    MPI_Comm parent = MPI_COMM_NULL;

    return MPI_Comm_get_parent(&parent) == MPI_SUCCESS && parent != MPI_COMM_NULL;
}

/* An answer of the process that spawned this one. */
static enum eep_status await_answer(MPI_Comm comm, int tag, void *data, size_t bytes)
{
    const uint64_t deadline_ns = eep_clock_ns() + GUEST_NS;
    int there = 0;

    while (!there) {
        if (MPI_Iprobe(0, tag, comm, &there, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            eep_clock_ns() > deadline_ns) {
            return EEP_FAIL(EEP_ERR_PEER_LOST,
                            "the rank that started this process has died, or given it up");
        }
        eep_wait_nap(LOOK_NS);
    }
    return check_call(MPI_Recv(data, (int)bytes, MPI_BYTE, 0, tag, comm, MPI_STATUS_IGNORE),
                      "MPI_Recv");
}

static enum eep_status meet_parent(struct eep_world *world, MPI_Comm *bridge)
{
    MPI_Comm parent;

    EEP_TRY(check_call(MPI_Comm_get_parent(&parent), "MPI_Comm_get_parent"));
    (void)MPI_Comm_set_errhandler(parent, MPI_ERRORS_RETURN);
    EEP_TRY(check_call(MPI_Send(NULL, 0, MPI_BYTE, 0, HELLO_TAG, parent), "MPI_Send"));
    EEP_TRY(await_answer(parent, MERGE_TAG, NULL, 0));
    return build_bridge(parent, true, &world->roster->crossing, bridge);
}

static enum eep_status be_guest(struct eep_world *world, const struct welcome *w, MPI_Comm bridge)
{
    struct eep_roster *r = world->roster;
    uint32_t *origins;
    int rank, size;

    EEP_TRY(check_call(MPI_Comm_rank(bridge, &rank), "MPI_Comm_rank"));
    EEP_TRY(check_call(MPI_Comm_size(bridge, &size), "MPI_Comm_size"));
    EEP_TRY(eep_roster_grow(world, w->first + (uint32_t)size - 1, w->home));
    EEP_TRY(number_bridge(w, (uint32_t)size, &origins));
    eep_channel_set(&r->bridge, bridge, (uint32_t)size, origins);
    r->process[w->leader].active = true;
    world->origin = origins[rank];
    world->node_size = w->node_size;
    world->timeout_ns = w->timeout_ns;
    world->silent_after_ns = w->silent_after_ns;
    world->answer_ns = w->answer_ns;
    world->xport.spawn_serial = w->serial;
    eep_log_rank_set((int)world->origin);
    return EEP_OK;
}

enum eep_status eep_spawn_join(struct eep_world *world)
{
    struct welcome w;
    MPI_Comm bridge;

    world->xport.topo.rank = EEP_NO_RANK;
    world->outgrown = true;
    eep_start_yield();
    eep_watch_begin("joining the job", 2 * GUEST_NS, 0);
    enum eep_status status =
        check_call(MPI_Comm_dup(MPI_COMM_WORLD, &world->roster->mates), "MPI_Comm_dup");
    if (status == EEP_OK) {
        (void)MPI_Comm_set_errhandler(world->roster->mates, MPI_ERRORS_RETURN);
        status = meet_parent(world, &bridge);
    }
    if (status == EEP_OK) {
        status = await_answer(bridge, EEP_WELCOME_TAG, &w, sizeof(w));
    }
    eep_watch_end();
    EEP_TRY(status);
    return be_guest(world, &w, bridge);
}
