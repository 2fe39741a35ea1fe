/*
 * The node's board: a shared-memory window whose memory is the authority's. The other ranks reach
 * it by one-sided operations alone, under a lock that is shared and held for life: put, get and
 * fetch-and-op work on, whichever rank of the node dies, the authority too; an exclusive lock would
 * be lost with its holder.
 *
 * Each real node has its own window, and so has each pretended one.
 *
 * MPI does not take a spawned process for one of this machine, and makes no such window with it.
 * Then the board is a region of the node's segment, to which the same holds.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/clock.h"
#include "mpi_int.h"

#define AUTHORITY 0                  /* rank of the node's communicator */
#define OPEN_NS (60 * EEP_NS_PER_S)  /* for calls that MPI has no deadline for */
#define CLOSE_NS (30 * EEP_NS_PER_S) /* the same */

struct eep_board {
    struct eep_world *world;
    const char *what;
    size_t bytes;
    MPI_Comm comm; /* the ranks of the node */
    MPI_Win window;
    unsigned char *region; /* (mapped_bytes), or NULL: there is a window */
    size_t mapped_bytes;
    uint64_t region_offset;
};

static enum eep_status open_region(struct eep_board *board)
{
    struct eep_world *world = board->world;

    board->mapped_bytes = eep_round_up(EEP_MAX(board->bytes, (size_t)1), EEP_PAGE);
    EEP_TRY(eep_node_map(world, board->what, board->mapped_bytes, &board->region_offset,
                         &board->region));
    return eep_control_agree(
        world, board->what,
        eep_node_reserve(world, board->what, board->region_offset, board->mapped_bytes));
}

static void close_region(struct eep_board *board)
{
    if (board->world->xport.topo.node_rank == AUTHORITY) {
        eep_node_release(board->world, board->region_offset, board->mapped_bytes);
    }
    (void)munmap(board->region, board->mapped_bytes);
}

static enum eep_status make_window(struct eep_board *board)
{
    struct eep_world *world = board->world;
    const struct eep_topology *topo = &world->xport.topo;
    const MPI_Aint bytes = topo->node_rank == AUTHORITY ? (MPI_Aint)board->bytes : 0;
    void *memory = NULL;

    EEP_MPI_TRY(world, board->what,
                MPI_Comm_split(world->control, (int)topo->node, (int)topo->rank, &board->comm));
    EEP_MPI_TRY(world, board->what, MPI_Comm_set_errhandler(board->comm, MPI_ERRORS_RETURN));
    EEP_MPI_TRY(
        world, board->what,
        MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, board->comm, &memory, &board->window));
    EEP_MPI_TRY(world, board->what, MPI_Win_set_errhandler(board->window, MPI_ERRORS_RETURN));
    if (topo->node_rank == AUTHORITY) {
        memset(memory, 0, board->bytes);
    }
    EEP_MPI_TRY(world, board->what, MPI_Win_lock_all(MPI_MODE_NOCHECK, board->window));
    EEP_MPI_TRY(world, board->what, MPI_Win_sync(board->window));
    return EEP_OK;
}

static enum eep_status open_window(struct eep_board *board)
{
    eep_watch_begin(board->what, EEP_MIN(board->world->timeout_ns, OPEN_NS), 1);
    eep_ulfm_quiet(true);
    const enum eep_status status = make_window(board);
    eep_ulfm_quiet(false);
    eep_watch_end();
    /* And nobody looks at it before it is zeroed. */
    return eep_control_agree(board->world, board->what, status);
}

enum eep_status eep_board_open(struct eep_xport *xport, const char *what, size_t bytes,
                               struct eep_board **board_out)
{
    struct eep_world *world = (struct eep_world *)xport;
    struct eep_board *board = NULL;
    enum eep_status status = eep_mem_alloc(1, sizeof(*board), what, &board);

    /* All call MPI's collective functions, or none does. */
    status = eep_control_agree(world, what, status);
    if (status == EEP_OK) {
        *board = (struct eep_board){.world = world,
                                    .what = what,
                                    .bytes = bytes,
                                    .comm = MPI_COMM_NULL,
                                    .window = MPI_WIN_NULL};
        status = world->outgrown ? open_region(board) : open_window(board);
    }
    if (status != EEP_OK) {
        eep_mem_free(board); /* what MPI made is left to the process's end */
        return status;
    }
    *board_out = board;
    return EEP_OK;
}

static void check_range(const struct eep_board *board, size_t offset, size_t bytes)
{
    EEP_ASSERT(offset <= board->bytes && bytes <= board->bytes - offset);
}

enum eep_status eep_board_put(struct eep_board *board, size_t offset, const void *in, size_t bytes)
{
    check_range(board, offset, bytes);
    if (board->region != NULL) {
        memcpy(board->region + offset, in, bytes);
        return EEP_OK;
    }
    EEP_MPI_TRY(board->world, board->what,
                MPI_Put(in, (int)bytes, MPI_BYTE, AUTHORITY, (MPI_Aint)offset, (int)bytes, MPI_BYTE,
                        board->window));
    EEP_MPI_TRY(board->world, board->what, MPI_Win_flush(AUTHORITY, board->window));
    return EEP_OK;
}

enum eep_status eep_board_get(struct eep_board *board, size_t offset, void *out, size_t bytes)
{
    check_range(board, offset, bytes);
    if (board->region != NULL) {
        memcpy(out, board->region + offset, bytes);
        return EEP_OK;
    }
    EEP_MPI_TRY(board->world, board->what,
                MPI_Get(out, (int)bytes, MPI_BYTE, AUTHORITY, (MPI_Aint)offset, (int)bytes,
                        MPI_BYTE, board->window));
    EEP_MPI_TRY(board->world, board->what, MPI_Win_flush(AUTHORITY, board->window));
    return EEP_OK;
}

enum eep_status eep_board_add(struct eep_board *board, size_t offset, uint64_t value,
                              uint64_t *before_out)
{
    check_range(board, offset, sizeof(value));
    EEP_ASSERT(offset % sizeof(value) == 0);
    if (board->region != NULL) {
        *before_out = atomic_fetch_add((_Atomic uint64_t *)(void *)(board->region + offset), value);
        return EEP_OK;
    }
    EEP_MPI_TRY(board->world, board->what,
                MPI_Fetch_and_op(&value, before_out, MPI_UINT64_T, AUTHORITY, (MPI_Aint)offset,
                                 MPI_SUM, board->window));
    EEP_MPI_TRY(board->world, board->what, MPI_Win_flush(AUTHORITY, board->window));
    return EEP_OK;
}

void eep_board_close(struct eep_board *board)
{
    if (board == NULL) {
        return;
    }
    if (board->region != NULL) {
        close_region(board);
    } else if (board->world->broken == EEP_OK) { /* else MPI_Win_free() could wait for the dead */
        eep_watch_begin(board->what, CLOSE_NS, 1);
        (void)MPI_Win_unlock_all(board->window);
        (void)MPI_Win_free(&board->window);
        (void)MPI_Comm_free(&board->comm);
        eep_watch_end();
    }
    eep_mem_free(board);
}
