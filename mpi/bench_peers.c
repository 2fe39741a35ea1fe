/*
 * What `eep bench dispatch` compares with; see xport/peers.h. The shared window of the plain copies
 * is a region of the node's segment, the same kind of memory as MPI_Win_allocate_shared() gives.
 */
#include <string.h>
#include <sys/mman.h>

#include "mpi_int.h"
#include "xport/peers.h"

/* One direction of the traffic. */
struct direction {
    size_t row_bytes;
    MPI_Datatype row;
    int *out_counts, *out_starts, *in_counts, *in_starts; /* (size), rows */
    size_t out_rows, in_rows;
    unsigned char *send[EEP_PEERS_WAYS];
    unsigned char *receive[EEP_PEERS_WAYS];
    size_t *land;           /* (size): where this rank's rows begin in each rank's window */
    unsigned char **window; /* (size): each rank's window */
    unsigned char *base;    /* of the mapped region, NULL over several nodes */
    size_t window_bytes, base_bytes;
};

struct eep_peers {
    struct eep_world *world;
    struct direction there, back;
};

static enum eep_status alloc_direction(struct direction *d, uint32_t size)
{
    int *ints;

    EEP_TRY(eep_mem_alloc(4 * (size_t)size, sizeof(int), "bench", &ints));
    d->out_counts = ints;
    d->out_starts = ints + size;
    d->in_counts = ints + 2 * (size_t)size;
    d->in_starts = ints + 3 * (size_t)size;
    EEP_TRY(eep_mem_alloc(size, sizeof(*d->land), "bench", &d->land));
    return eep_mem_alloc(size, sizeof(*d->window), "bench", &d->window);
}

static enum eep_status fill_direction(struct eep_world *world, struct direction *d,
                                      const uint32_t *out, const uint32_t *in)
{
    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        d->out_counts[r] = (int)out[r];
        d->out_starts[r] = (int)d->out_rows;
        d->in_counts[r] = (int)in[r];
        d->in_starts[r] = (int)d->in_rows;
        d->out_rows += out[r];
        d->in_rows += in[r];
    }
    EEP_MPI_TRY(world, "bench", MPI_Type_contiguous((int)d->row_bytes, MPI_BYTE, &d->row));
    EEP_MPI_TRY(world, "bench", MPI_Type_commit(&d->row));
    for (int way = 0; way < EEP_PEERS_WAYS; way++) {
        EEP_TRY(eep_mem_alloc(d->out_rows, d->row_bytes, "bench rows", &d->send[way]));
    }
    return eep_mem_alloc(d->in_rows, d->row_bytes, "bench rows", &d->receive[EEP_PEERS_ALLTOALLV]);
}

/* A window per rank, large enough for what the busiest one receives. */
static enum eep_status map_windows(struct eep_world *world, struct direction *d)
{
    const struct eep_topology *topo = &world->xport.topo;
    const size_t mine = d->in_rows * d->row_bytes;
    uint64_t offset;
    size_t *sizes;
    int *starts;

    EEP_TRY(eep_mem_alloc(topo->size, sizeof(*sizes), "bench", &sizes));
    EEP_TRY(eep_mem_alloc((size_t)topo->size * topo->size, sizeof(*starts), "bench", &starts));
    EEP_TRY(eep_control_allgather(&world->xport, "bench", &mine, sizeof(mine), sizes));
    EEP_TRY(eep_control_allgather(&world->xport, "bench", d->in_starts, topo->size * sizeof(int),
                                  starts));
    for (uint32_t r = 0; r < topo->size; r++) {
        d->window_bytes = EEP_MAX(d->window_bytes, eep_round_up(sizes[r] + 1, EEP_PAGE));
        d->land[r] = (size_t)starts[r * topo->size + topo->rank] * d->row_bytes;
    }
    eep_mem_free(sizes);
    eep_mem_free(starts);
    d->base_bytes = d->window_bytes * topo->size;
    EEP_TRY(eep_node_map(world, "bench window", d->base_bytes, &offset, &d->base));
    for (uint32_t r = 0; r < topo->size; r++) {
        d->window[r] = d->base + r * d->window_bytes;
    }
    EEP_TRY(eep_control_agree(world, "bench window",
                              eep_node_reserve(world, "bench window",
                                               offset + topo->rank * d->window_bytes,
                                               d->window_bytes)));
    d->receive[EEP_PEERS_COPY] = d->window[topo->rank];
    return EEP_OK;
}

static enum eep_status open_direction(struct eep_world *world, struct direction *d,
                                      size_t row_bytes, const uint32_t *out, const uint32_t *in)
{
    d->row_bytes = row_bytes;
    EEP_TRY(alloc_direction(d, world->xport.topo.size));
    EEP_TRY(fill_direction(world, d, out, in));
    return world->xport.topo.nodes == 1 ? map_windows(world, d) : EEP_OK;
}

static void close_direction(struct direction *d)
{
    if (d->base != NULL) {
        munmap(d->base, d->base_bytes);
    }
    if (d->row != MPI_DATATYPE_NULL) {
        (void)MPI_Type_free(&d->row);
    }
    for (int way = 0; way < EEP_PEERS_WAYS; way++) {
        eep_mem_free(d->send[way]);
    }
    eep_mem_free(d->receive[EEP_PEERS_ALLTOALLV]);
    eep_mem_free(d->window);
    eep_mem_free(d->land);
    eep_mem_free(d->out_counts);
}

enum eep_status eep_peers_open(struct eep_xport *xport, const struct eep_peers_traffic *traffic,
                               struct eep_peers **peers_out)
{
    struct eep_world *world = (struct eep_world *)xport;
    struct eep_peers *peers;
    enum eep_status status;

    if (xport->ops->exchange_open != eep_exchange_open) {
        return EEP_FAIL(EEP_ERR_UNSUPPORTED, "MPI did not start this rank");
    }
    EEP_TRY(eep_mem_alloc(1, sizeof(*peers), "bench", &peers));
    *peers = (struct eep_peers){
        .world = world, .there = {.row = MPI_DATATYPE_NULL}, .back = {.row = MPI_DATATYPE_NULL}};
    EEP_TRY_GOTO(open_direction(world, &peers->there, traffic->x_row_bytes, traffic->out_rows,
                                traffic->in_rows),
                 failed);
    EEP_TRY_GOTO(open_direction(world, &peers->back, traffic->y_row_bytes, traffic->out_back,
                                traffic->in_back),
                 failed);
    *peers_out = peers;
    return EEP_OK;

failed:
    eep_peers_close(peers);
    return status;
}

void eep_peers_close(struct eep_peers *peers)
{
    if (peers == NULL) {
        return;
    }
    close_direction(&peers->there);
    close_direction(&peers->back);
    eep_mem_free(peers);
}

void *eep_peers_send_rows(struct eep_peers *peers, enum eep_peers_way way, bool back)
{
    return back ? peers->back.send[way] : peers->there.send[way];
}

const void *eep_peers_received_rows(struct eep_peers *peers, enum eep_peers_way way, bool back)
{
    return back ? peers->back.receive[way] : peers->there.receive[way];
}

static void copy_all(const struct eep_world *world, const struct direction *d)
{
    const struct eep_topology *topo = &world->xport.topo;

    for (uint32_t i = 0; i < topo->size; i++) {
        const uint32_t r = (topo->rank + i) % topo->size;

        memcpy(d->window[r] + d->land[r],
               d->send[EEP_PEERS_COPY] + (size_t)d->out_starts[r] * d->row_bytes,
               (size_t)d->out_counts[r] * d->row_bytes);
    }
}

enum eep_status eep_peers_move(struct eep_peers *peers, enum eep_peers_way way, bool back)
{
    struct direction *d = back ? &peers->back : &peers->there;
    struct eep_world *world = peers->world;

    if (way == EEP_PEERS_COPY) {
        copy_all(world, d);
        return eep_peers_barrier(peers);
    }
    EEP_MPI_TRY(world, "MPI_Alltoallv",
                MPI_Alltoallv(d->send[way], d->out_counts, d->out_starts, d->row, d->receive[way],
                              d->in_counts, d->in_starts, d->row, world->data));
    return EEP_OK;
}

enum eep_status eep_peers_barrier(struct eep_peers *peers)
{
    EEP_MPI_TRY(peers->world, "MPI_Barrier", MPI_Barrier(peers->world->data));
    return EEP_OK;
}
