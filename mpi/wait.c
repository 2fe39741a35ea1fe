/*
 * Waiting. Every wait has a name and a deadline, notices lost peers, and gives the core away:
 *
 *     spin (not when crowded) ──► sched_yield ──► sleep on the node's futex, or nap between nodes
 *
 * A sleeper counts itself in `sleepers`; whoever sets a flag looks there and, if it is not zero,
 * counts `event` up and wakes all. The store of the flag and the load of `sleepers` on one side,
 * the count and the second look at the flag on the other, are each parted by a full fence, so that
 * one of the two sees the other. A sleeper that was killed leaves `sleepers` too high, which costs
 * system calls but no notice. Sleeps are short anyway, since peers must be looked after.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "mpi_int.h"

#define SPINS 4000                   /* some 50 to 150 us */
#define YIELD_NS (2 * EEP_NS_PER_MS) /* then sleep; earlier when crowded */
#define YIELD_CROWDED_NS (EEP_NS_PER_MS / 10)
#define SLEEP_NS (2 * EEP_NS_PER_MS) /* longest sleep between two looks at the peers */
/* Between nodes no flag can wake us: naps grow with the wait, by a hundredth of it. */
#define NAP_NS_MIN (EEP_NS_PER_MS / 20)
#define NAP_NS_MAX EEP_NS_PER_MS
#define PEERS_NS (2 * EEP_NS_PER_MS) /* between two looks at the peers */

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void eep_wait_notify(struct eep_world *world)
{
    struct eep_node_head *head = world->node.head;

    eep_presence_show(world);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&head->sleepers, memory_order_relaxed) != 0) {
        atomic_fetch_add_explicit(&head->event, 1, memory_order_release);
        (void)syscall(SYS_futex, &head->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

static void sleep_on_node(struct eep_world *world, struct eep_wait *wait)
{
    struct eep_node_head *head = world->node.head;
    const struct timespec limit = {.tv_nsec = SLEEP_NS};

    atomic_fetch_add_explicit(&head->sleepers, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    const unsigned event = atomic_load_explicit(&head->event, memory_order_acquire);
    if (!wait->ready(wait)) {
        (void)syscall(SYS_futex, &head->event, FUTEX_WAIT, event, &limit, NULL, 0);
    }
    atomic_fetch_sub_explicit(&head->sleepers, 1, memory_order_relaxed);
}

void eep_wait_nap(uint64_t ns)
{
    const struct timespec limit = {.tv_sec = (time_t)(ns / EEP_NS_PER_S),
                                   .tv_nsec = (long)(ns % EEP_NS_PER_S)};

    (void)nanosleep(&limit, NULL);
}

void eep_wait_nap_after(uint64_t waited_ns, uint64_t most_ns)
{
    eep_wait_nap(EEP_MIN(EEP_MAX(waited_ns / 100, NAP_NS_MIN), most_ns));
}

/* What MPI has still to send for us may be what the rank that we wait for waits for. */
static void make_progress(void)
{
    int flag;

    (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
}

/* Has a peer died or given up? The world is beyond repair then, in this epoch. */
static enum eep_status look_at_peers(struct eep_world *world, struct eep_wait *wait)
{
    uint32_t gone = world->node.head != NULL ? eep_node_gone_rank(world) : EEP_NO_RANK;

    if (gone == EEP_NO_RANK && (world->xport.topo.nodes > 1 || world->node.head == NULL)) {
        gone = eep_ulfm_failed_rank(world);
    }
    if (gone == EEP_NO_RANK && world->xport.topo.nodes > 1) {
        gone = eep_world_far_leaver(world);
        if (gone == EEP_NO_RANK && !wait->ready(wait)) {
            return eep_mpi_status(world, eep_ulfm_revocation(world), "waiting", wait->what);
        }
    }
    /* It may have done its part before it went: look once more. */
    if (gone == EEP_NO_RANK || wait->ready(wait)) {
        return EEP_OK;
    }
    return eep_world_lost(world, gone, wait->what);
}

static enum eep_status too_late(struct eep_world *world, const struct eep_wait *wait,
                                uint64_t waited_ns)
{
    const double seconds = (double)waited_ns / (double)EEP_NS_PER_S;

    world->broken = EEP_ERR_TIMEOUT;
    if (wait->missing != EEP_NO_RANK) {
        return EEP_FAIL(EEP_ERR_TIMEOUT,
                        "%s: rank %u has not answered for %.1f s; it may be stopped or far slower "
                        "than this one (EEP_TIMEOUT sets the limit in seconds)",
                        wait->what, wait->missing, seconds);
    }
    return EEP_FAIL(EEP_ERR_TIMEOUT,
                    "%s: some rank has not answered for %.1f s; it may be stopped or far slower "
                    "than this one (EEP_TIMEOUT sets the limit in seconds)",
                    wait->what, seconds);
}

static bool requests_ready(struct eep_wait *wait);

static enum eep_status wait_long(struct eep_world *world, struct eep_wait *wait)
{
    const bool between_nodes = world->xport.topo.nodes > 1 || world->node.head == NULL;
    const uint64_t yield_ns = world->crowded ? YIELD_CROWDED_NS : YIELD_NS;
    const uint64_t start = eep_clock_ns();
    uint64_t looked = start;

    while (!wait->ready(wait)) {
        const uint64_t now = eep_clock_ns();

        if (now - looked >= PEERS_NS) {
            looked = now;
            eep_presence_show(world);
            EEP_TRY(look_at_peers(world, wait));
            if (now - start > world->timeout_ns && !wait->ready(wait)) {
                return too_late(world, wait, now - start);
            }
        }
        if (between_nodes && wait->ready != requests_ready) {
            make_progress();
        }
        if (now - start < yield_ns) {
            sched_yield();
        } else if (between_nodes) {
            eep_wait_nap_after(now - start, NAP_NS_MAX);
        } else {
            sleep_on_node(world, wait);
        }
    }
    return EEP_OK;
}

enum eep_status eep_wait_until(struct eep_world *world, struct eep_wait *wait)
{
    const int spins = world->crowded ? 1 : SPINS;

    wait->missing = EEP_NO_RANK;
    for (int i = 0; i < spins; i++) {
        if (wait->ready(wait)) {
            return EEP_OK;
        }
        cpu_relax();
    }
    return wait_long(world, wait);
}

/* ---- requests ---- */

struct request_wait {
    struct eep_wait wait;
    struct eep_world *world;
    MPI_Request *requests;
    size_t count;
    size_t next; /* requests before it are done */
    int rc;      /* of the first call that failed */
};

/* Looks only; a request that failed is never freed, which this Open MPI does not survive. */
static bool requests_ready(struct eep_wait *wait)
{
    struct request_wait *w = (struct request_wait *)wait;

    for (; w->next < w->count; w->next++) {
        MPI_Status status = {.MPI_ERROR = MPI_SUCCESS};
        int done = 0;

        int rc = MPI_Request_get_status(w->requests[w->next], &done, &status);
        if (rc == MPI_SUCCESS && done) {
            rc = status.MPI_ERROR;
        }
        if (rc != MPI_SUCCESS) {
            w->rc = rc;
            return true;
        }
        if (!done) {
            return false;
        }
    }
    return true;
}

enum eep_status eep_wait_requests(struct eep_world *world, const char *what, MPI_Request *requests,
                                  size_t count)
{
    struct request_wait w = {.wait = {.what = what, .ready = requests_ready},
                             .world = world,
                             .requests = requests,
                             .count = count,
                             .rc = MPI_SUCCESS};

    EEP_TRY(eep_wait_until(world, &w.wait));
    EEP_TRY(eep_mpi_status(world, w.rc, "a collective operation", what));
    for (size_t i = 0; i < count; i++) {
        EEP_MPI_TRY(world, what, MPI_Wait(&requests[i], MPI_STATUS_IGNORE));
    }
    return EEP_OK;
}

enum eep_status eep_wait_request(struct eep_world *world, const char *what, MPI_Request *request)
{
    return eep_wait_requests(world, what, request, 1);
}
