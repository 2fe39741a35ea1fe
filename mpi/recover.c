/*
 * Going on after a loss: the ranks that are left revoke what they shared with the dead, agree on
 * who they are, and make a new world of the same process: communicators, topology, node segment.
 *
 *     a rank sees a loss ─► revoke ─► all others see it ─► shrink, dup, agree ─┬─► new world
 *                                                           ▲     one more died │
 *                                                           └───────────────────┘
 *
 * A rank that ends by exit() without leaving is not told to the others' MPI, so they wait for it
 * until their time is over (a rank that is killed is).
 *
 * What belonged to the old world (requests, windows, the memory that MPI may still write to) is
 * left to the end of the process.
 */
#include "base/clock.h"
#include "mpi_int.h"

#define RECOVER_NS (60 * EEP_NS_PER_S) /* for calls that MPI has no deadline for */

static enum eep_status agree_on_survivors(struct eep_world *world, MPI_Comm *control,
                                          MPI_Comm *data)
{
    eep_watch_begin("agreeing on who is left", EEP_MIN(world->timeout_ns, RECOVER_NS), 1);
    const bool agreed = eep_ulfm_shrink(world, control, data);
    eep_watch_end();
    return agreed ? EEP_OK
                  : EEP_FAIL(EEP_ERR_FATAL, "the ranks that are left could not agree on who they "
                                            "are: too many were lost at a time");
}

static enum eep_status find_own_place(struct eep_world *world, MPI_Comm control)
{
    int rank, size;

    EEP_MPI_TRY(world, "recovery", MPI_Comm_rank(control, &rank));
    EEP_MPI_TRY(world, "recovery", MPI_Comm_size(control, &size));
    world->xport.topo.rank = (uint32_t)rank;
    world->xport.topo.size = (uint32_t)size;
    return EEP_OK;
}

enum eep_status eep_world_recover(struct eep_xport *xport, uint32_t *was_out)
{
    struct eep_world *world = (struct eep_world *)xport;
    MPI_Comm control = MPI_COMM_NULL, data = MPI_COMM_NULL;
    const uint32_t was = world->xport.topo.rank;

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
    world->death = true; /* it never ends by MPI_Finalize() */
    world->losses++;
    world->broken = EEP_OK;
    EEP_TRY(find_own_place(world, control));
    EEP_TRY(eep_world_settle(world));
    return eep_control_allgather(xport, "recovery", &was, sizeof(was), was_out);
}
