/*
 * Joining and leaving the world: MPI's start with settings that suit eep, who is on which node, and
 * an end that is in order when nothing was lost and quick when something was.
 *
 * Without a launcher (nothing in the environment says that one started us) MPI is not touched at
 * all: the loopback is the world.
 */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "roster_int.h"

#define DEFAULT_TIMEOUT_S 600.0
#define START_NS (120 * EEP_NS_PER_S) /* for MPI to start */
#define FINALIZE_NS (30 * EEP_NS_PER_S)
/* How long a failing rank waits for the others to fail too. */
#define LEAVE_NS (500 * EEP_NS_PER_MS)
/* How long it stays after a death, so that all see that before the job ends. */
#define LINGER_NS (200 * EEP_NS_PER_MS)
#define LOOK_NS (EEP_NS_PER_MS / 2)
#define TURN_NS (100 * EEP_NS_PER_MS)
#define TURNS_NS_MAX (2 * EEP_NS_PER_S)
#define SILENT_S 10.0 /* a process that stands still for so long is lost */
#define ANSWER_NS (2 * EEP_NS_PER_S)
#define LEAVE_TAG 1 /* on the control communicator, where there are no other messages */

/* ---- parameters ---- */

static enum eep_status env_number(const char *name, double least, double most, double *value)
{
    const char *text = getenv(name);
    char *end;

    if (text == NULL || text[0] == '\0') {
        return EEP_OK;
    }
    const double number = strtod(text, &end);
    if (*end != '\0' || !(number >= least && number <= most)) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s is '%s'; it must be a number from %g to %g", name,
                        text, least, most);
    }
    *value = number;
    return EEP_OK;
}

/* Parameters with what the environment says filled in. */
static enum eep_status read_params(const struct eep_world_params *given,
                                   struct eep_world_params *params_out)
{
    double node_size = 0, timeout_s = DEFAULT_TIMEOUT_S, silent_s = SILENT_S;

    EEP_TRY(env_number("EEP_NODE_SIZE", 0, 1e6, &node_size));
    EEP_TRY(env_number("EEP_SILENT_AFTER", 0, 1e9, &silent_s));
    EEP_TRY(env_number("EEP_TIMEOUT", 0.01, 1e9, &timeout_s));
    if ((double)(uint32_t)node_size != node_size) {
        return EEP_FAIL(EEP_ERR_INVALID, "EEP_NODE_SIZE is %g; it must be a whole number",
                        node_size);
    }
    *params_out = *given;
    if (given->node_size == 0) {
        params_out->node_size = (uint32_t)node_size;
    }
    if (given->timeout_ns == 0) {
        params_out->timeout_ns = (uint64_t)(timeout_s * (double)EEP_NS_PER_S);
    }
    if (given->answer_ns == 0) {
        params_out->answer_ns = ANSWER_NS;
    }
    if (given->silent_after_ns == 0) {
        params_out->silent_after_ns =
            silent_s > 0 ? (uint64_t)(silent_s * (double)EEP_NS_PER_S) : EEP_NEVER_NS;
    }
    return EEP_OK;
}

/* ---- errors ---- */

void eep_world_begin_loss(struct eep_world *world)
{
    if (world->broken != EEP_ERR_PEER_LOST) {
        world->xport.loss = (struct eep_loss_times){.noticed_ns = eep_clock_ns()};
    }
    world->broken = EEP_ERR_PEER_LOST;
}

/* Why `rank` is lost, in words; true if it has told so itself. */
static bool explain_loss(struct eep_world *world, uint32_t rank, char *why, size_t bytes)
{
    const bool near = world->node.head != NULL && world->node_of[rank] == world->xport.topo.node;
    struct eep_node_rank *block = world->node.head != NULL ? world->node.block_of[rank] : NULL;
    const uint64_t silent_ns = block != NULL ? atomic_load(&block->silent_ns) : 0;

    if (near && block != NULL && atomic_load_explicit(&block->leaving, memory_order_acquire) != 0) {
        snprintf(why, bytes, "%s", block->leave_text);
        return true;
    }
    if (silent_ns != 0) {
        snprintf(why, bytes, "its process stood still for %.1f s and was killed for that",
                 (double)silent_ns / (double)EEP_NS_PER_S);
        return false;
    }
    const bool left =
        !near && world->xport.topo.nodes > 1 && eep_world_far_leaver(world) != EEP_NO_RANK;
    snprintf(why, bytes, "%s", left ? "it gave up" : "it ended or was killed");
    return left;
}

enum eep_status eep_world_lost(struct eep_world *world, uint32_t rank, const char *what)
{
    struct eep_node *node = &world->node;
    char why[EEP_LEAVE_TEXT_MAX];
    unsigned none = 0;

    /* All of the node name the same rank: the first one that anybody missed. */
    if (node->head != NULL && !atomic_compare_exchange_strong(&node->head->lost, &none, rank + 1)) {
        rank = none - 1;
    }
    const bool left = explain_loss(world, rank, why, sizeof(why));
    world->death = world->death || !left;
    eep_world_begin_loss(world);
    if (node->head != NULL && node->block_of[rank] != NULL) {
        world->xport.loss.last_seen_ns = atomic_load(&node->block_of[rank]->beat_ns);
    }
    return EEP_FAIL(EEP_ERR_PEER_LOST, "rank %u was lost while rank %u waited for '%s': %s", rank,
                    world->xport.topo.rank, what, why);
}

enum eep_status eep_mpi_status(struct eep_world *world, int rc, const char *call, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int class = rc, length = 0;

    if (rc == MPI_SUCCESS) {
        return EEP_OK;
    }
    (void)MPI_Error_class(rc, &class);
    (void)MPI_Error_string(rc, text, &length);
    if (eep_ulfm_is_loss(class)) {
        const uint32_t rank = eep_ulfm_failed_rank(world);

        if (rank != EEP_NO_RANK) {
            return eep_world_lost(world, rank, what);
        }
        world->death = true;
        eep_world_begin_loss(world);
        return EEP_FAIL(EEP_ERR_PEER_LOST, "a rank was lost while rank %u waited for '%s': %s",
                        world->xport.topo.rank, what, text);
    }
    world->broken = EEP_ERR_FATAL;
    return EEP_FAIL(EEP_ERR_FATAL, "%s: %.80s failed: %s", what, call, text);
}

/* ---- topology ---- */

/* What a rank tells about its machine. */
struct machine {
    uint64_t id; /* equal where /dev/shm is the same */
    uint32_t origin;
    uint32_t home; /* of those, one node_size after the other are a pretended node */
    cpu_set_t cpus;
};

static void describe_machine(struct machine *machine_out)
{
    char text[256] = {0};
    struct stat shm;
    uint64_t id = EEP_HASH_START;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");

    if (file != NULL) {
        id = eep_hash_bytes(id, text, fread(text, 1, sizeof(text), file));
        fclose(file);
    }
    if (gethostname(text, sizeof(text) - 1) == 0) {
        id = eep_hash_bytes(id, text, strlen(text));
    }
    if (stat("/dev/shm", &shm) == 0) {
        id = eep_hash_bytes(id, &shm.st_dev, sizeof(shm.st_dev)); /* a container may have its own */
    }
    machine_out->id = id;
    if (sched_getaffinity(0, sizeof(machine_out->cpus), &machine_out->cpus) != 0) {
        CPU_ZERO(&machine_out->cpus);
    }
}

/* More ranks may run on this rank's cores than there are. */
static bool is_crowded(const struct machine *all, uint32_t size, uint32_t me)
{
    uint32_t sharers = 0;
    cpu_set_t common;

    for (uint32_t r = 0; r < size; r++) {
        CPU_AND(&common, &all[r].cpus, &all[me].cpus);
        sharers += all[r].id == all[me].id && CPU_COUNT(&common) > 0;
    }
    return sharers > (uint32_t)CPU_COUNT(&all[me].cpus);
}

static bool same_node(const struct machine *all, uint32_t a, uint32_t b, uint32_t node_size)
{
    return all[a].id == all[b].id &&
           (node_size == 0 || all[a].home / node_size == all[b].home / node_size);
}

/* Number the nodes by their lowest rank, and the ranks within each. */
static void number_nodes(struct eep_world *world, const struct machine *all, uint32_t node_size)
{
    struct eep_topology *topo = &world->xport.topo;

    topo->nodes = 0;
    for (uint32_t r = 0; r < topo->size; r++) {
        uint32_t first = 0;

        while (!same_node(all, first, r, node_size)) {
            first++;
        }
        world->node_of[r] = first == r ? topo->nodes++ : world->node_of[first];
        world->node_rank_of[r] = 0;
        for (uint32_t s = first; s < r; s++) {
            world->node_rank_of[r] += world->node_of[s] == world->node_of[r];
        }
    }
    topo->node = world->node_of[topo->rank];
    topo->node_rank = world->node_rank_of[topo->rank];
    topo->node_size = 0;
    for (uint32_t r = 0; r < topo->size; r++) {
        if (world->node_of[r] == topo->node) {
            world->node_ranks[topo->node_size++] = r;
        }
    }
    topo->node_of = world->node_of;
}

static enum eep_status find_topology(struct eep_world *world)
{
    const uint32_t size = world->xport.topo.size;
    struct machine mine = {.id = 0};
    struct machine *all = NULL;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(size, sizeof(uint32_t), "topology", &world->node_of));
    EEP_TRY(eep_mem_alloc(size, sizeof(uint32_t), "topology", &world->node_rank_of));
    EEP_TRY(eep_mem_alloc(size, sizeof(uint32_t), "topology", &world->node_ranks));
    EEP_TRY(eep_mem_alloc(size, sizeof(bool), "topology", &world->is_here));
    EEP_TRY(eep_mem_alloc(size, sizeof(uint32_t), "topology", &world->origin_of));
    EEP_TRY(eep_mem_alloc(size, sizeof(*all), "topology", &all));
    describe_machine(&mine);
    mine.origin = world->origin;
    mine.home = world->roster->process[world->origin].home;
    status = eep_control_allgather(&world->xport, "topology", &mine, sizeof(mine), all);
    if (status == EEP_OK) {
        number_nodes(world, all, world->node_size);
        for (uint32_t r = 0; r < size; r++) {
            world->is_here[r] = all[r].id == all[world->xport.topo.rank].id;
            world->origin_of[r] = all[r].origin;
            world->roster->process[all[r].origin].home = all[r].home;
        }
        world->xport.topo.origin_of = world->origin_of;
        world->crowded = is_crowded(all, size, world->xport.topo.rank);
    }
    eep_mem_free(all);
    return status;
}

/* ---- ending without leaving ---- */

static struct {
    struct eep_world *world; /* NULL: nothing to do */
    pid_t process;
    bool closed; /* it gave up, and has told so */
} unclosed;

/* All ranks end now, or have ended; `otherwise` when some cannot be seen. */
static bool all_end(const struct eep_world *world, bool otherwise)
{
    if (world->xport.topo.rank == EEP_NO_RANK) {
        return false; /* parked */
    }
    for (uint32_t r = 0; r < world->xport.topo.size && world->node.head != NULL; r++) {
        struct eep_node_rank *block = world->node.block_of[r];

        if (block == NULL) {
            return otherwise;
        }
        if (atomic_load(&block->exiting) == 0 && atomic_load(&block->leaving) == 0 &&
            !eep_presence_ended(block)) {
            return false;
        }
    }
    return true;
}

/*
 * exit() by somebody who knows nothing of us, or after this rank gave up while others may go on.
 * The launcher tells others of a signal, but not of a status other than 0, and ends the job at the
 * second such status. When all ranks end, the status is the job's.
 */
static void end_unclosed(void)
{
    struct eep_world *world = unclosed.world;

    if (world == NULL || unclosed.process != getpid()) { /* a child of ours, maybe */
        return;
    }
    if (world->node.head != NULL) {
        atomic_store(&world->node.ranks[world->xport.topo.node_rank].exiting, 1);
    }
    if (!all_end(world, unclosed.closed)) {
        (void)fflush(stdout);
        (void)kill(getpid(), SIGKILL);
    }
}

static void watch_exit(struct eep_world *world)
{
    if (world->ulfm && atexit(end_unclosed) == 0) {
        unclosed.process = getpid();
        unclosed.world = world;
    }
}

/* ---- leaving ---- */

void eep_world_forget_topology(struct eep_world *world)
{
    eep_mem_free(world->node_of);
    eep_mem_free(world->node_rank_of);
    eep_mem_free(world->node_ranks);
    eep_mem_free(world->is_here);
    eep_mem_free(world->origin_of);
    world->node_of = world->node_rank_of = world->node_ranks = world->origin_of = NULL;
    world->is_here = NULL;
    world->xport.topo = (struct eep_topology){.nodes = 1, .processes = world->xport.topo.processes};
}

static void free_world(struct eep_world *world)
{
    eep_world_forget_topology(world);
    eep_mem_free(world);
}

struct leave_wait {
    struct eep_wait wait;
    MPI_Request request;
    uint64_t deadline_ns;
    bool done;
};

static bool leave_ready(struct eep_wait *wait)
{
    struct leave_wait *w = (struct leave_wait *)wait;
    int done = 0;

    if (MPI_Request_get_status(w->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        return true;
    }
    w->done = done != 0;
    return w->done || eep_clock_ns() > w->deadline_ns;
}

/*
 * The others go on without this rank, and wait for its end. Not by an exit status: that would
 * become the launcher's, and would not be told to the others' MPI.
 */
static _Noreturn void end_at_once(void)
{
    eep_log(EEP_LOG_ERROR, "the others go on without this rank, which gave up: %s",
            eep_error_text());
    (void)fflush(stderr);
    (void)kill(getpid(), SIGKILL);
    _exit(1);
}

/* Do all ranks leave? MPI_COMM_WORLD serves nothing but this barrier, so that it cannot meet
 * another collective of a rank that is still at work. */
static bool all_leave(struct eep_world *world, uint64_t limit_ns)
{
    struct leave_wait w = {.wait = {.what = "leaving", .ready = leave_ready},
                           .deadline_ns = eep_clock_ns() + limit_ns};

    if (MPI_Ibarrier(MPI_COMM_WORLD, &w.request) != MPI_SUCCESS) {
        return false;
    }
    while (!w.wait.ready(&w.wait)) {
        if (eep_ulfm_failed_rank(world) != EEP_NO_RANK) {
            return false;
        }
        if (eep_ulfm_revocation(world) != MPI_SUCCESS) {
            end_at_once();
        }
        sched_yield();
    }
    return w.done && MPI_Wait(&w.request, MPI_STATUS_IGNORE) == MPI_SUCCESS;
}

uint32_t eep_world_far_leaver(struct eep_world *world)
{
    MPI_Status status;
    int there = 0;

    if (MPI_Iprobe(MPI_ANY_SOURCE, LEAVE_TAG, world->control, &there, &status) != MPI_SUCCESS ||
        !there) {
        return EEP_NO_RANK;
    }
    return (uint32_t)status.MPI_SOURCE;
}

/* The others must fail too. Those of this node see a flag, the rest get an empty message. */
static void tell_leaving(struct eep_world *world)
{
    const struct eep_topology *topo = &world->xport.topo;

    if (world->node.head != NULL) {
        struct eep_node_rank *mine = &world->node.ranks[topo->node_rank];
        const char *text = eep_error_text();

        snprintf(mine->leave_text, sizeof(mine->leave_text), "%s",
                 text[0] != '\0' ? text : "it gave up");
        atomic_store_explicit(&mine->leaving, 1, memory_order_release);
        eep_wait_notify(world);
    }
    for (uint32_t r = 0; r < topo->size && topo->nodes > 1 && !world->death; r++) {
        MPI_Request request; /* never looked at again: this process ends soon */

        if (world->node_of[r] != topo->node) {
            (void)MPI_Isend(NULL, 0, MPI_BYTE, (int)r, LEAVE_TAG, world->control, &request);
        }
    }
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec limit = {.tv_sec = (time_t)(ns / EEP_NS_PER_S),
                                   .tv_nsec = (long)(ns % EEP_NS_PER_S)};

    (void)nanosleep(&limit, NULL);
}

/* Until all have seen a death, or go on without this rank. */
static void linger(struct eep_world *world)
{
    const uint64_t end_ns = eep_clock_ns() + LINGER_NS;

    while (eep_clock_ns() < end_ns) {
        (void)eep_ulfm_failed_rank(world);
        if (eep_ulfm_revocation(world) != MPI_SUCCESS) {
            end_at_once();
        }
        sleep_ns(LOOK_NS);
    }
}

/*
 * One after the other, the lowest first: at its end the launcher ends the rest. When several ranks
 * end with an error at once, mpirun (PRRTE 3.0.14) blocks for ever on a lock of its own, 9 times of
 * 100.
 */
static void end_in_turn(const struct eep_world *world)
{
    uint64_t place = world->xport.topo.rank;

    if (world->node.head != NULL) {
        const unsigned lost = atomic_load(&world->node.head->lost);

        place -= lost != 0 && lost - 1 < place;
    }
    sleep_ns(EEP_MIN(place * TURN_NS, TURNS_NS_MAX));
}

/*
 * In order: wait for all, then MPI_Finalize().
 *
 * After a failure the others are told and fail too. If all come here within half a second, nobody
 * died and MPI can end in order, which keeps launchers quiet. Otherwise this process simply ends,
 * as the caller returns: MPI_Finalize() may hang after a loss.
 */
static void world_close(struct eep_xport *xport, enum eep_status status)
{
    struct eep_world *world = (struct eep_world *)xport;
    /* Else some process takes no part in the end: it is parked, or was lost. */
    const bool parked = xport->topo.rank == EEP_NO_RANK;
    const bool all =
        world->losses == 0 && !world->outgrown && xport->topo.size == xport->topo.processes;
    bool orderly = false;

    (void)fflush(stdout);
    if (status == EEP_OK) {
        status = world->broken;
    }
    if (parked) {
        /* nobody waits for it */
    } else if (status == EEP_OK) {
        orderly = eep_control_agree(world, "leaving", EEP_OK) == EEP_OK && all &&
                  all_leave(world, world->timeout_ns);
        eep_roster_tell_end(world, status);
    } else {
        tell_leaving(world);
        eep_roster_tell_end(world, status);
        if (world->death || !all) {
            linger(world);
        } else {
            orderly = all_leave(world, LEAVE_NS);
        }
    }
    unclosed.closed = true;
    if (orderly || status == EEP_OK ||
        (status == EEP_ERR_PEER_LOST && !eep_roster_is_guest(world)) ||
        (status == EEP_ERR_TIMEOUT && !parked)) {
        unclosed.world = NULL; /* the others fail too */
    }
    if (!orderly) {
        end_in_turn(world);
        return; /* the world's memory is left to the process's end, as are MPI's objects */
    }
    eep_node_close(world);
    eep_watch_begin("ending MPI", FINALIZE_NS, status == EEP_OK ? 0 : 1);
    (void)MPI_Comm_free(&world->data);
    (void)MPI_Comm_free(&world->control);
    (void)MPI_Finalize();
    eep_watch_end();
    if (status != EEP_OK) {
        end_in_turn(world);
    }
    free_world(world);
}

/* ---- joining ---- */

static const struct eep_xport_ops mpi_ops = {
    .name = "mpi",
    .allgather = eep_control_allgather,
    .broadcast = eep_control_broadcast,
    .gather = eep_control_gather,
    .exchange_open = eep_exchange_open,
    .exchange_rows = eep_exchange_rows,
    .dispatch = eep_exchange_dispatch,
    .combine = eep_exchange_combine,
    .exchange_close = eep_exchange_close,
    .exchange_bytes = eep_exchange_bytes,
    .board_open = eep_board_open,
    .board_put = eep_board_put,
    .board_get = eep_board_get,
    .board_add = eep_board_add,
    .board_close = eep_board_close,
    .transfer_begin = eep_transfer_begin,
    .transfer_test = eep_transfer_test,
    .recover = eep_world_recover,
    .regroup = eep_world_regroup,
    .spawn_begin = eep_spawn_begin,
    .spawn_test = eep_spawn_test,
    .roster_send = eep_roster_send,
    .roster_take = eep_roster_take,
    .roster_lost = eep_roster_lost,
    .roster_wait = eep_roster_wait,
    .close = world_close,
};

/* The first `active` processes are ranks (0: all), the rest is parked. */
static enum eep_status make_communicators(struct eep_world *world, uint32_t active)
{
    int rank, size;

    EEP_MPI_TRY(world, "joining", MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    EEP_MPI_TRY(world, "joining", MPI_Comm_size(MPI_COMM_WORLD, &size));
    const uint32_t processes = (uint32_t)size;
    world->origin = (uint32_t)rank;
    if (active == 0 || active > processes) {
        active = processes;
    }
    const bool parked = world->origin >= active;
    world->xport.topo.rank = parked ? EEP_NO_RANK : world->origin;
    world->xport.topo.size = parked ? 0 : active;
    EEP_TRY(eep_roster_start(world, processes, active));
    EEP_MPI_TRY(
        world, "joining",
        MPI_Comm_split(world->roster->all.comm, parked ? MPI_UNDEFINED : 1, rank, &world->control));
    if (parked) {
        return EEP_OK;
    }
    EEP_MPI_TRY(world, "joining", MPI_Comm_dup(world->control, &world->data));
    EEP_MPI_TRY(world, "joining", MPI_Comm_set_errhandler(world->control, MPI_ERRORS_RETURN));
    EEP_MPI_TRY(world, "joining", MPI_Comm_set_errhandler(world->data, MPI_ERRORS_RETURN));
    return EEP_OK;
}

enum eep_status eep_world_find_place(struct eep_world *world, const char *what)
{
    int rank, size;

    EEP_MPI_TRY(world, what, MPI_Comm_rank(world->control, &rank));
    EEP_MPI_TRY(world, what, MPI_Comm_size(world->control, &size));
    world->xport.topo.rank = (uint32_t)rank;
    world->xport.topo.size = (uint32_t)size;
    return EEP_OK;
}

enum eep_status eep_world_settle(struct eep_world *world)
{
    EEP_TRY(find_topology(world));
    return eep_node_open(world);
}

static enum eep_status join(struct eep_world *world)
{
    world->was = world->xport.topo.rank;
    if (!world->ulfm && world->origin == 0 && world->xport.topo.processes > 1) {
        eep_log(EEP_LOG_WARN, "fault tolerance is off: the loss of a rank ends the job (start with "
                              "scripts/mpi-run, eep launch, or mpirun --with-ft ulfm)");
    }
    if (world->xport.topo.processes > 1) {
        eep_log_rank_set((int)world->origin);
    }
    return world->control != MPI_COMM_NULL ? eep_world_settle(world) : EEP_OK;
}

enum eep_status eep_world_open(const struct eep_world_params *params, struct eep_xport **xport_out)
{
    struct eep_world *world;
    struct eep_world_params p;

    EEP_TRY(read_params(params, &p));
    if (!eep_start_launched()) {
        return eep_loopback_open(xport_out);
    }
    EEP_TRY(eep_mem_alloc(1, sizeof(*world), "the ranks' connections", &world));
    *world = (struct eep_world){.xport = {.ops = &mpi_ops, .topo = {.nodes = 1}},
                                .control = MPI_COMM_NULL,
                                .data = MPI_COMM_NULL,
                                .timeout_ns = p.timeout_ns,
                                .silent_after_ns = p.silent_after_ns,
                                .answer_ns = p.answer_ns,
                                .node = {.fd = -1}};
    eep_watch_begin("starting MPI", EEP_MIN(p.timeout_ns, START_NS), 1);
    enum eep_status status = eep_start_mpi();
    if (status != EEP_OK) {
        eep_watch_end();
        eep_mem_free(world);
        return status;
    }
    world->ulfm = eep_ulfm_active();
    world->node_size = p.node_size;
    const bool spawned = eep_spawned();
    status = eep_roster_open(world);
    if (status == EEP_OK && !spawned) {
        status = make_communicators(world, p.active);
    }
    eep_watch_end();
    if (spawned) {
        watch_exit(world); /* the job goes on when this process fails from here on */
    }
    if (status == EEP_OK) {
        status = spawned ? eep_spawn_join(world) : join(world);
    }
    if (status != EEP_OK) {
        world_close(&world->xport, status);
        return status;
    }
    if (!spawned) {
        watch_exit(world);
    }
    *xport_out = &world->xport;
    return EEP_OK;
}
