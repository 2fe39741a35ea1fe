/*
 * Transfers: bulk messages beside the steps. Each is cut into pieces, of which few are with MPI at
 * a time, so that a look at one never takes long and what MPI must hold stays small. Pieces of one
 * transfer stay in order, since they have the same communicator and tag.
 *
 * They are looked at, never waited for: who waits for the steps' own messages also sees that a peer
 * died. Requests of a transfer that failed are not touched again.
 */
#include "base/assert.h"
#include "mpi_int.h"

#define PIECE ((size_t)1 << 20)
#define PIECES 2       /* with MPI at a time */
#define FIRST_TAG 1024 /* the exchange's tags on this communicator are below */
#define TAGS ((uint32_t)1 << 20)

struct eep_transfer {
    struct eep_world *world;
    const char *what;
    int peer, tag;
    bool send;
    unsigned char *buffer;
    size_t bytes;
    size_t begun; /* given to MPI */
    size_t done;  /* and ended */
    MPI_Request requests[PIECES];
};

static MPI_Request *request_at(struct eep_transfer *t, size_t offset)
{
    return &t->requests[offset / PIECE % PIECES];
}

static enum eep_status begin_piece(struct eep_transfer *t)
{
    const int count = (int)EEP_MIN(PIECE, t->bytes - t->begun);
    unsigned char *at = t->buffer + t->begun;
    MPI_Request *request = request_at(t, t->begun);

    if (t->send) {
        EEP_MPI_TRY(t->world, t->what,
                    MPI_Isend(at, count, MPI_BYTE, t->peer, t->tag, t->world->data, request));
    } else {
        EEP_MPI_TRY(t->world, t->what,
                    MPI_Irecv(at, count, MPI_BYTE, t->peer, t->tag, t->world->data, request));
    }
    t->begun += (size_t)count;
    return EEP_OK;
}

enum eep_status eep_transfer_begin(struct eep_xport *xport, const char *what, uint32_t peer,
                                   uint32_t tag, bool send, void *buffer, size_t bytes,
                                   struct eep_transfer **transfer_out)
{
    struct eep_world *world = (struct eep_world *)xport;
    struct eep_transfer *t;
    enum eep_status status = EEP_OK;

    EEP_ASSERT(peer < xport->topo.size && peer != xport->topo.rank && tag < TAGS && bytes > 0);
    EEP_TRY(eep_mem_alloc(1, sizeof(*t), what, &t));
    *t = (struct eep_transfer){.world = world,
                               .what = what,
                               .peer = (int)peer,
                               .tag = FIRST_TAG + (int)tag,
                               .send = send,
                               .buffer = buffer,
                               .bytes = bytes};
    for (uint32_t i = 0; i < PIECES && t->begun < bytes && status == EEP_OK; i++) {
        status = begin_piece(t);
    }
    if (status != EEP_OK) {
        eep_mem_free(t);
        return status;
    }
    *transfer_out = t;
    return EEP_OK;
}

/* The oldest piece: has it ended? Its request is then ready for another. */
static enum eep_status look(struct eep_transfer *t, bool *ended_out)
{
    MPI_Status status = {.MPI_ERROR = MPI_SUCCESS};
    MPI_Request *request = request_at(t, t->done);
    int ended = 0;

    int rc = MPI_Request_get_status(*request, &ended, &status);
    if (rc == MPI_SUCCESS && ended) {
        rc = status.MPI_ERROR;
    }
    EEP_TRY(eep_mpi_status(t->world, rc, "a transfer", t->what));
    if (ended) {
        int count = 0;

        EEP_MPI_TRY(t->world, t->what, MPI_Wait(request, &status));
        const size_t expected = EEP_MIN(PIECE, t->bytes - t->done);
        if (!t->send && (MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS ||
                         (size_t)count != expected)) {
            return EEP_FAIL(EEP_ERR_FORMAT, "%s: rank %d sent %d bytes instead of %zu", t->what,
                            t->peer, count, expected);
        }
        t->done += expected;
    }
    *ended_out = ended != 0;
    return EEP_OK;
}

enum eep_status eep_transfer_test(struct eep_transfer *t, size_t *progress_out)
{
    bool ended = false;
    enum eep_status status = look(t, &ended);

    if (status == EEP_OK && ended && t->begun < t->bytes) {
        status = begin_piece(t);
    }
    *progress_out = t->done;
    if (status != EEP_OK || t->done == t->bytes) {
        eep_mem_free(t);
    }
    return status;
}
