/*
 * Who of this machine lives. A thread of each process, which computes nothing and calls no MPI,
 *
 *   - owns a robust futex in the rank's block of the node's segment. However the process ends, the
 *     kernel marks the futex before it takes the process's memory down, so that others see the end
 *     at their next look, long before the launcher can tell;
 *   - stores the time there again and again, its beat. A process that is stopped stores nothing;
 * one that computes does.
 *
 * A rank without a beat for `silent_after_ns` is killed by whoever sees it first, so that it cannot
 * wake up later, and is then lost like any other. Nobody is blamed by a process whose own beat
 * stood still: then the machine was suspended, or all ranks were stopped together.
 *
 * The kernel's interface is used as it is, not a mutex of the C library: to try a mutex is to hold
 * it for a moment, in which others would take its owner for alive.
 */
#include "config.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "mpi_int.h"

#define BEATS 8                           /* in the time after which a rank is silent */
#define BEAT_NS_MAX (250 * EEP_NS_PER_MS) /* between two beats */
#define BEAT_NS_MIN EEP_NS_PER_MS
/* MPI tells of the end of another node's rank; if not by then, and it is on this machine, we do. */
#define TELL_NS EEP_NS_PER_S

static struct {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    struct eep_world *world;             /* of `wanted` */
    struct eep_node_rank *wanted, *held; /* held: its futex is this thread's */
    uint64_t period_ns;
    uint64_t beat_ns;     /* this process's last beat */
    uint64_t no_blame_ns; /* nobody is silent before this time */
    bool running;
} presence = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- other processes ---- */

/* Process ids mean something within one namespace only. */
static uint64_t pid_namespace(void)
{
    struct stat st;

    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

bool eep_presence_ended(struct eep_node_rank *block)
{
    /* silent_ns: a signal is on its way that the process cannot survive. */
    return (atomic_load(&block->owner) & FUTEX_OWNER_DIED) != 0 ||
           atomic_load(&block->silent_ns) != 0;
}

bool eep_presence_kill(struct eep_node_rank *block)
{
    if (block->pid_namespace != pid_namespace()) {
        return false;
    }
    const int process = (int)syscall(SYS_pidfd_open, block->pid, 0);
    if (process < 0) {
        return false;
    }
    /* If it lives now, its number belonged to no other process when that was looked up. */
    const bool killed = !eep_presence_ended(block) &&
                        syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0) == 0;
    close(process);
    return killed;
}

/* Since the last sign of life. */
static uint64_t silence(struct eep_node_rank *block)
{
    const uint64_t now = eep_clock_ns(), seen = atomic_load(&block->beat_ns);

    return now > seen ? now - seen : 0;
}

static void kill_silent(struct eep_world *world)
{
    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        struct eep_node_rank *block = world->node.block_of[r];

        if (block == NULL || atomic_load(&block->owner) == 0) {
            continue;
        }
        const uint64_t silent_ns = silence(block);
        if (silent_ns > world->silent_after_ns && !eep_presence_ended(block) &&
            eep_presence_kill(block)) {
            atomic_store(&block->silent_ns, silent_ns);
        }
    }
}

/* ---- this process's own ---- */

static void beat(void)
{
    const uint64_t limit_ns = presence.world->silent_after_ns, now = eep_clock_ns();

    atomic_store_explicit(&presence.held->beat_ns, now, memory_order_relaxed);
    if (!presence.world->ulfm || limit_ns == EEP_NEVER_NS) {
        return;
    }
    if (now - presence.beat_ns > limit_ns / 2) {
        presence.no_blame_ns = now + limit_ns;
    }
    presence.beat_ns = now;
    if (now > presence.no_blame_ns) {
        kill_silent(presence.world);
    }
}

/* What the kernel looks at when the thread ends: a list of one entry or none. */
static struct robust_list entry;
static struct robust_list_head robust = {.list = {.next = &robust.list}};

static void change_block(void)
{
    if (presence.held != NULL) {
        robust.list.next = &robust.list;
        atomic_store(&presence.held->owner, 0);
    }
    presence.held = presence.wanted;
    if (presence.held != NULL) {
        atomic_store(&presence.held->owner, (unsigned)syscall(SYS_gettid));
        robust.futex_offset = (char *)&presence.held->owner - (char *)&entry;
        entry.next = &robust.list;
        atomic_signal_fence(memory_order_seq_cst); /* the kernel may look at any time */
        robust.list.next = &entry;
    }
    pthread_cond_broadcast(&presence.changed);
}

static void *be_present(void *unused)
{
    (void)unused;
    (void)syscall(SYS_set_robust_list, &robust, sizeof(robust)); /* instead of the C library's */
    pthread_mutex_lock(&presence.lock);
    for (;;) {
        if (presence.held != presence.wanted) {
            change_block();
        }
        if (presence.held == NULL) {
            pthread_cond_wait(&presence.changed, &presence.lock);
            continue;
        }
        beat();
        const uint64_t next = eep_clock_ns() + presence.period_ns;
        const struct timespec until = {.tv_sec = (time_t)(next / EEP_NS_PER_S),
                                       .tv_nsec = (long)(next % EEP_NS_PER_S)};

        (void)pthread_cond_timedwait(&presence.changed, &presence.lock, &until);
    }
    return NULL;
}

static enum eep_status start_thread(void)
{
    pthread_condattr_t attributes;
    sigset_t all, before;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&presence.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the main thread's */
    const int error = pthread_create(&presence.thread, NULL, be_present, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return EEP_FAIL(EEP_ERR_NOMEM,
                        "cannot start the thread that shows that this rank lives: %s",
                        strerror(error));
    }
    presence.running = true;
    return EEP_OK;
}

static void want(struct eep_world *world, struct eep_node_rank *block)
{
    pthread_mutex_lock(&presence.lock);
    presence.world = world;
    presence.wanted = block;
    pthread_cond_broadcast(&presence.changed);
    while (presence.held != block) {
        pthread_cond_wait(&presence.changed, &presence.lock);
    }
    pthread_mutex_unlock(&presence.lock);
}

enum eep_status eep_presence_begin(struct eep_world *world)
{
    struct eep_node_rank *mine = &world->node.ranks[world->xport.topo.node_rank];

    mine->pid = (int32_t)getpid();
    mine->pid_namespace = pid_namespace();
    atomic_store(&mine->beat_ns, eep_clock_ns());
    if (!presence.running) {
        presence.period_ns =
            EEP_MIN(EEP_MAX(world->silent_after_ns / BEATS, BEAT_NS_MIN), BEAT_NS_MAX);
        EEP_TRY(start_thread());
    }
    want(world, mine);
    return EEP_OK;
}

void eep_presence_end(void)
{
    if (presence.running) {
        want(NULL, NULL);
    }
}

void eep_presence_show(struct eep_world *world)
{
    if (world->node.head != NULL) {
        atomic_store_explicit(&world->node.ranks[world->xport.topo.node_rank].beat_ns,
                              eep_clock_ns(), memory_order_relaxed);
    }
}

uint32_t eep_presence_lost_rank(struct eep_world *world)
{
    const struct eep_topology *topo = &world->xport.topo;

    for (uint32_t r = 0; r < topo->size; r++) {
        struct eep_node_rank *block = world->node.block_of[r];

        if (r != topo->rank && block != NULL &&
            (world->node_of[r] == topo->node || silence(block) > TELL_NS) &&
            eep_presence_ended(block)) {
            return r;
        }
    }
    return EEP_NO_RANK;
}
