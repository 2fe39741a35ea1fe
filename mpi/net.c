/*
 * The exchange between nodes: counts, then each token's row once per destination rank together with
 * the lists of its pairs, then the outputs back, all by MPI's non-blocking collectives on the data
 * communicator. Shares of ranks of the same node have count zero there: they go through shared
 * memory.
 *
 *     out   rows of x, packed by destination ──► straight to their place among the received rows
 *           (row, slot) lists ──► lists_in ──► unpacked
 *     back  y rows, which lie together by source ──► `back`, by destination
 */
#include <string.h>

#include "exchange_int.h"

enum { OUT_COUNTS, OUT_STARTS, IN_COUNTS, IN_STARTS, CALL_INTS };

/* The four int arrays of call 0 or 1. */
static int *call_ints(const struct eep_exchange *e, int call, int which)
{
    return e->net->ints + (size_t)(call * CALL_INTS + which) * e->world->xport.topo.size;
}

enum eep_status eep_net_open(struct eep_exchange *e)
{
    struct eep_world *world = e->world;
    const uint32_t size = world->xport.topo.size;
    struct eep_net *net;

    EEP_TRY(eep_mem_alloc(1, sizeof(*net), "exchange between nodes", &net));
    e->net = net;
    net->x_row = net->y_row = MPI_DATATYPE_NULL;
    net->rows_bytes = e->row_list_max * e->params.x_row_bytes;
    net->lists_out_bytes = e->max_pairs * 2 * sizeof(uint32_t);
    net->lists_in_bytes = e->all_pairs * 2 * sizeof(uint32_t);
    net->back_bytes = e->max_pairs * e->params.y_row_bytes;
    EEP_TRY(eep_mem_map(net->rows_bytes, "rows to send", &net->rows));
    EEP_TRY(eep_mem_map(net->lists_out_bytes, "lists to send", &net->lists_out));
    EEP_TRY(eep_mem_map(net->lists_in_bytes, "received lists", &net->lists_in));
    EEP_TRY(eep_mem_map(net->back_bytes, "returned rows", &net->back));
    EEP_TRY(eep_mem_alloc(size, 2 * sizeof(uint32_t), "exchange", &net->counts_out));
    EEP_TRY(eep_mem_alloc(size, 2 * sizeof(uint32_t), "exchange", &net->counts_in));
    EEP_TRY(eep_mem_alloc(2 * CALL_INTS * (size_t)size, sizeof(int), "exchange", &net->ints));
    EEP_MPI_TRY(world, "exchange",
                MPI_Type_contiguous((int)e->params.x_row_bytes, MPI_BYTE, &net->x_row));
    EEP_MPI_TRY(world, "exchange", MPI_Type_commit(&net->x_row));
    EEP_MPI_TRY(world, "exchange",
                MPI_Type_contiguous((int)e->params.y_row_bytes, MPI_BYTE, &net->y_row));
    EEP_MPI_TRY(world, "exchange", MPI_Type_commit(&net->y_row));
    return EEP_OK;
}

void eep_net_close(struct eep_exchange *e)
{
    struct eep_net *net = e->net;

    if (net == NULL) {
        return;
    }
    if (net->x_row != MPI_DATATYPE_NULL) {
        (void)MPI_Type_free(&net->x_row);
    }
    if (net->y_row != MPI_DATATYPE_NULL) {
        (void)MPI_Type_free(&net->y_row);
    }
    eep_mem_unmap(net->rows, net->rows_bytes);
    eep_mem_unmap(net->lists_out, net->lists_out_bytes);
    eep_mem_unmap(net->lists_in, net->lists_in_bytes);
    eep_mem_unmap(net->back, net->back_bytes);
    eep_mem_free(net->counts_out);
    eep_mem_free(net->counts_in);
    eep_mem_free(net->ints);
    eep_mem_free(net);
    e->net = NULL;
}

size_t eep_net_bytes(const struct eep_exchange *e)
{
    return e->net == NULL ? 0
                          : e->net->rows_bytes + e->net->lists_out_bytes + e->net->back_bytes +
                                e->most_pairs * 2 * sizeof(uint32_t);
}

enum eep_status eep_net_counts(struct eep_exchange *e)
{
    struct eep_world *world = e->world;
    struct eep_net *net = e->net;

    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        net->counts_out[2 * r] = e->parts[r].rows;
        net->counts_out[2 * r + 1] = e->parts[r].pairs;
    }
    EEP_MPI_TRY(world, "dispatch",
                MPI_Ialltoall(net->counts_out, 2, MPI_UINT32_T, net->counts_in, 2, MPI_UINT32_T,
                              world->data, &net->requests[0]));
    EEP_TRY(eep_wait_request(world, "dispatch", &net->requests[0]));
    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        const uint32_t *counts = &net->counts_in[2 * r];

        if (counts[0] > e->params.max_tokens || counts[1] > e->max_pairs) {
            return EEP_FAIL(EEP_ERR_FATAL,
                            "dispatch: rank %u announces %u rows and %u pairs, more "
                            "than it can have",
                            r, counts[0], counts[1]);
        }
    }
    return EEP_OK;
}

/* Pack what remote destinations get; fill the calls' counts and starts. */
static void pack(struct eep_exchange *e)
{
    const struct eep_front *mine = &e->fronts[e->world->xport.topo.node_rank];
    const size_t row_bytes = e->params.x_row_bytes;
    struct eep_net *net = e->net;
    uint32_t row = 0, pair = 0;

    for (uint32_t r = 0; r < e->world->xport.topo.size; r++) {
        const struct eep_part *part = &e->parts[r];
        const bool far = !eep_is_near(e, r);

        call_ints(e, 0, OUT_COUNTS)[r] = far ? (int)part->rows : 0;
        call_ints(e, 0, OUT_STARTS)[r] = (int)row;
        call_ints(e, 1, OUT_COUNTS)[r] = far ? (int)(2 * part->pairs) : 0;
        call_ints(e, 1, OUT_STARTS)[r] = (int)(2 * pair);
        if (!far) {
            continue;
        }
        for (uint32_t i = 0; i < part->rows; i++) {
            memcpy(net->rows + (size_t)(row + i) * row_bytes,
                   mine->x + mine->row_tokens[part->row_start + i] * row_bytes, row_bytes);
        }
        memcpy(net->lists_out + 2 * (size_t)pair, mine->pair_rows + part->pair_start,
               part->pairs * sizeof(uint32_t));
        memcpy(net->lists_out + 2 * (size_t)pair + part->pairs, mine->pair_slots + part->pair_start,
               part->pairs * sizeof(uint32_t));
        row += part->rows;
        pair += part->pairs;
    }
}

enum eep_status eep_net_dispatch_start(struct eep_exchange *e)
{
    struct eep_world *world = e->world;
    struct eep_net *net = e->net;

    pack(e);
    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        const bool far = !eep_is_near(e, r);

        call_ints(e, 0, IN_COUNTS)[r] = far ? (int)net->counts_in[2 * r] : 0;
        call_ints(e, 0, IN_STARTS)[r] = (int)e->row_base[r];
        call_ints(e, 1, IN_COUNTS)[r] = far ? (int)(2 * net->counts_in[2 * r + 1]) : 0;
        call_ints(e, 1, IN_STARTS)[r] = (int)(2 * e->pair_base[r]);
    }
    EEP_MPI_TRY(world, "dispatch",
                MPI_Ialltoallv(net->rows, call_ints(e, 0, OUT_COUNTS), call_ints(e, 0, OUT_STARTS),
                               net->x_row, e->rows, call_ints(e, 0, IN_COUNTS),
                               call_ints(e, 0, IN_STARTS), net->x_row, world->data,
                               &net->requests[0]));
    EEP_MPI_TRY(world, "dispatch",
                MPI_Ialltoallv(net->lists_out, call_ints(e, 1, OUT_COUNTS),
                               call_ints(e, 1, OUT_STARTS), MPI_UINT32_T, net->lists_in,
                               call_ints(e, 1, IN_COUNTS), call_ints(e, 1, IN_STARTS), MPI_UINT32_T,
                               world->data, &net->requests[1]));
    return EEP_OK;
}

enum eep_status eep_net_dispatch_finish(struct eep_exchange *e)
{
    struct eep_net *net = e->net;

    EEP_TRY(eep_wait_requests(e->world, "dispatch", net->requests, 2));
    for (uint32_t r = 0; r < e->world->xport.topo.size; r++) {
        const uint32_t base = e->pair_base[r], pairs = e->pair_base[r + 1] - base;
        const uint32_t *list = net->lists_in + 2 * (size_t)base;

        if (eep_is_near(e, r)) {
            continue;
        }
        for (uint32_t i = 0; i < pairs; i++) {
            e->pair_row[base + i] = e->row_base[r] + list[i];
        }
        memcpy(e->pair_slot + base, list + pairs, pairs * sizeof(uint32_t));
    }
    return EEP_OK;
}

enum eep_status eep_net_combine_start(struct eep_exchange *e)
{
    struct eep_world *world = e->world;
    struct eep_net *net = e->net;
    uint32_t pair = 0;

    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        const bool far = !eep_is_near(e, r);

        call_ints(e, 0, OUT_COUNTS)[r] = far ? (int)(e->pair_base[r + 1] - e->pair_base[r]) : 0;
        call_ints(e, 0, OUT_STARTS)[r] = (int)e->pair_base[r];
        call_ints(e, 0, IN_COUNTS)[r] = far ? (int)e->parts[r].pairs : 0;
        call_ints(e, 0, IN_STARTS)[r] = (int)pair;
        if (far) {
            e->dest_base[r] = net->back + (size_t)pair * e->params.y_row_bytes;
            pair += e->parts[r].pairs;
        }
    }
    EEP_MPI_TRY(world, "combine",
                MPI_Ialltoallv(e->fronts[world->xport.topo.node_rank].y,
                               call_ints(e, 0, OUT_COUNTS), call_ints(e, 0, OUT_STARTS), net->y_row,
                               net->back, call_ints(e, 0, IN_COUNTS), call_ints(e, 0, IN_STARTS),
                               net->y_row, world->data, &net->requests[0]));
    return EEP_OK;
}

enum eep_status eep_net_combine_finish(struct eep_exchange *e)
{
    return eep_wait_requests(e->world, "combine", e->net->requests, 1);
}
