/*
 * Going on after a loss: the ranks that are left revoke what they shared with the dead, agree on
 * who they are, and make a new world of the same process: communicators, topology, node segment.
 *
 *     a rank sees a loss ─► revoke ─► all others see it ─► shrink, dup, agree ─┬─► new world
 *                                                           ▲     one more died │
 *                                                           └───────────────────┘
 *
 * The launcher does not tell MPI of a process that ended with a status other than 0, and of others
 * only later, so each rank first tells MPI of all whose end it has seen itself. A rank that gave up
 * ends when it sees the revocation.
 *
 * What belonged to the old world (requests, windows, the memory that MPI may still write to) is
 * left to the end of the process.
 */
#include <unistd.h>

#include "base/clock.h"
#include "mpi_int.h"

#define RECOVER_NS (60 * EEP_NS_PER_S)  /* for calls that MPI has no deadline for */
#define LEAVER_NS (200 * EEP_NS_PER_MS) /* for a rank that gave up to end by itself */
#define LOOK_US 100
#define QUIET_NS (12 * EEP_NS_PER_MS)  /* without another death before ranks agree */
#define SETTLE_NS (60 * EEP_NS_PER_MS) /* longest wait for that */

/* The process of a rank of this machine that gave up: wait for its end. */
static void await_end(struct eep_node_rank *block)
{
    const uint64_t deadline_ns = eep_clock_ns() + LEAVER_NS;

    while (!eep_presence_ended(block)) {
        if (eep_clock_ns() > deadline_ns && !eep_presence_kill(block)) {
            return;
        }
        (void)usleep(LOOK_US);
    }
}

/* Returns how many have ended. */
static uint32_t report_ends(struct eep_world *world)
{
    uint32_t ended = 0;

    for (uint32_t r = 0; r < world->xport.topo.size && world->node.head != NULL; r++) {
        struct eep_node_rank *block = world->node.block_of[r];

        if (block == NULL || r == world->xport.topo.rank) {
            continue;
        }
        if (atomic_load_explicit(&block->leaving, memory_order_acquire) != 0) {
            await_end(block);
        }
        if (eep_presence_ended(block)) {
            (void)eep_ulfm_report(world, r);
            ended++;
        }
    }
    return ended;
}

/*
 * Ranks that die together are seen one after the other. A death in the middle of a shrink makes
 * this Open MPI crash or hang in some of 100 cases, so first it has to be quiet for a while.
 */
static void settle(struct eep_world *world)
{
    const uint64_t begin_ns = eep_clock_ns();
    uint64_t quiet_ns = begin_ns;
    uint32_t ended = report_ends(world);

    while (ended + 2 <= world->xport.topo.size) { /* else this rank is the only one left */
        const uint64_t now_ns = eep_clock_ns();
        const uint32_t more = report_ends(world);

        quiet_ns = more > ended ? now_ns : quiet_ns;
        ended = more;
        if (now_ns - quiet_ns >= QUIET_NS || now_ns - begin_ns >= SETTLE_NS) {
            return;
        }
        (void)eep_ulfm_failed_rank(world); /* MPI goes on, and hears of deaths elsewhere */
        (void)usleep(10 * LOOK_US);
    }
}

static enum eep_status agree_on_survivors(struct eep_world *world, MPI_Comm *control,
                                          MPI_Comm *data)
{
    eep_watch_begin("agreeing on who is left", EEP_MIN(world->timeout_ns, RECOVER_NS), 1);
    eep_ulfm_revoke(world);
    settle(world);
    const bool agreed = eep_ulfm_shrink(world, control, data);
    eep_watch_end();
    return agreed ? EEP_OK
                  : EEP_FAIL(EEP_ERR_FATAL, "the ranks that are left could not agree on who they "
                                            "are: too many were lost at a time");
}

enum eep_status eep_world_recover(struct eep_xport *xport, uint32_t *was_out)
{
    struct eep_world *world = (struct eep_world *)xport;
    MPI_Comm control = MPI_COMM_NULL, data = MPI_COMM_NULL;

    if (!world->ulfm) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                        "the loss of a rank ends the job: fault tolerance is off (start with "
                        "scripts/mpi-run, eep launch, or mpirun --with-ft ulfm)");
    }
    if (world->broken != EEP_ERR_PEER_LOST) {
        return EEP_FAIL(EEP_ERR_INVALID, "no rank was lost that could be recovered from");
    }
    EEP_TRY(agree_on_survivors(world, &control, &data));
    xport->loss.agreed_ns = eep_clock_ns();
    eep_node_close(world);
    eep_world_forget_topology(world);
    world->control = control;
    world->data = data;
    world->death = false;
    world->losses++; /* it never ends by MPI_Finalize() */
    world->broken = EEP_OK;
    EEP_TRY(eep_world_find_place(world, "recovery"));
    EEP_TRY(eep_world_settle(world));
    eep_roster_recovered(world);
    EEP_TRY(eep_control_allgather(xport, "recovery", &world->was, sizeof(world->was), was_out));
    world->was = world->xport.topo.rank;
    return EEP_OK;
}
