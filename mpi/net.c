/*
 * The exchange between nodes: each rank and each rank of another node send each other two messages
 * in dispatch and one in combine, also when there is nothing in them, all of them non-blocking and
 * polled. Ranks of the same node use shared memory.
 *
 *     lists   rows, pairs, (row of each pair), (its slot) ──► lists_in, unpacked when all are there
 *     rows    rows of x, packed by destination            ──► straight to their place
 *     back    y rows, which lie together by source        ──► `back`, by destination
 *
 * Messages of one kind between two ranks stay in order, so a rank that is a round ahead does no
 * harm.
 */
#include <string.h>

#include "exchange_int.h"

enum { LISTS_TAG = 1, ROWS_TAG, BACK_TAG };

#define LIST_HEAD 2 /* numbers before the lists: rows, pairs */

/* Numbers in a message of lists. */
static size_t list_length(size_t pairs)
{
    return LIST_HEAD + 2 * pairs;
}

/* A source's message of lists; room for the most that it can send. */
static uint32_t *list_from(const struct eep_exchange *e, uint32_t source)
{
    return e->net->lists_in + source * list_length(e->max_pairs);
}

static bool is_far(const struct eep_exchange *e, uint32_t rank)
{
    return e->world->node_of[rank] != e->world->xport.topo.node;
}

/* ---- opening ---- */

static enum eep_status make_type(struct eep_world *world, size_t bytes, MPI_Datatype *type)
{
    EEP_MPI_TRY(world, "exchange", MPI_Type_contiguous((int)bytes, MPI_BYTE, type));
    EEP_MPI_TRY(world, "exchange", MPI_Type_commit(type));
    return EEP_OK;
}

enum eep_status eep_net_open(struct eep_exchange *e)
{
    const uint32_t size = e->world->xport.topo.size;
    struct eep_net *net;

    EEP_TRY(eep_mem_alloc(1, sizeof(*net), "exchange between nodes", &net));
    e->net = net;
    net->x_row = net->y_row = MPI_DATATYPE_NULL;
    net->rows_bytes = e->row_list_max * e->params.x_row_bytes;
    net->lists_out_bytes = (size * LIST_HEAD + 2 * e->max_pairs) * sizeof(uint32_t);
    net->lists_in_bytes = size * list_length(e->max_pairs) * sizeof(uint32_t);
    net->back_bytes = e->max_pairs * e->params.y_row_bytes;
    EEP_TRY(eep_mem_map(net->rows_bytes, "rows to send", &net->rows));
    EEP_TRY(eep_mem_map(net->lists_out_bytes, "lists to send", &net->lists_out));
    EEP_TRY(eep_mem_map(net->lists_in_bytes, "received lists", &net->lists_in));
    EEP_TRY(eep_mem_map(net->back_bytes, "returned rows", &net->back));
    EEP_TRY(eep_mem_alloc(4 * (size_t)size, sizeof(*net->requests), "exchange", &net->requests));
    EEP_TRY(make_type(e->world, e->params.x_row_bytes, &net->x_row));
    return make_type(e->world, e->params.y_row_bytes, &net->y_row);
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
    eep_mem_free(net->requests);
    eep_mem_free(net);
    e->net = NULL;
}

size_t eep_net_bytes(const struct eep_exchange *e)
{
    return e->net == NULL ? 0
                          : e->net->rows_bytes + e->net->lists_out_bytes + e->net->back_bytes +
                                e->most_pairs * 2 * sizeof(uint32_t);
}

/* ---- messages ---- */

static enum eep_status receive(struct eep_exchange *e, void *to, size_t count, MPI_Datatype type,
                               uint32_t source, int tag)
{
    EEP_MPI_TRY(e->world, "exchange between nodes",
                MPI_Irecv(to, (int)count, type, (int)source, tag, e->world->data,
                          &e->net->requests[e->net->request_count]));
    e->net->request_count++;
    return EEP_OK;
}

static enum eep_status send(struct eep_exchange *e, const void *from, size_t count,
                            MPI_Datatype type, uint32_t dest, int tag)
{
    EEP_MPI_TRY(e->world, "exchange between nodes",
                MPI_Isend(from, (int)count, type, (int)dest, tag, e->world->data,
                          &e->net->requests[e->net->request_count]));
    e->net->request_count++;
    return EEP_OK;
}

static enum eep_status wait_all(struct eep_exchange *e, const char *what)
{
    EEP_TRY(eep_wait_requests(e->world, what, e->net->requests, e->net->request_count));
    e->net->request_count = 0;
    return EEP_OK;
}

/* ---- dispatch ---- */

/* Write the message of lists for `rank` at `to`; returns its length. */
static size_t write_list(const struct eep_exchange *e, uint32_t rank, uint32_t *to)
{
    const struct eep_front *mine = &e->fronts[e->world->xport.topo.node_rank];
    const struct eep_part *part = &e->parts[rank];
    const size_t bytes = part->pairs * sizeof(uint32_t);

    to[0] = part->rows;
    to[1] = part->pairs;
    memcpy(to + LIST_HEAD, mine->pair_rows + part->pair_start, bytes);
    memcpy(to + LIST_HEAD + part->pairs, mine->pair_slots + part->pair_start, bytes);
    return list_length(part->pairs);
}

static enum eep_status check_list(const struct eep_exchange *e, uint32_t source)
{
    const uint32_t *list = list_from(e, source);

    if (list[0] > e->params.max_tokens || list[1] > e->max_pairs) {
        return EEP_FAIL(EEP_ERR_FATAL,
                        "dispatch: rank %u announces %u rows and %u pairs, more than it can have",
                        source, list[0], list[1]);
    }
    return EEP_OK;
}

enum eep_status eep_net_lists(struct eep_exchange *e)
{
    const uint32_t size = e->world->xport.topo.size;
    uint32_t *out = e->net->lists_out;

    for (uint32_t r = 0; r < size; r++) {
        if (is_far(e, r)) {
            EEP_TRY(
                receive(e, list_from(e, r), list_length(e->max_pairs), MPI_UINT32_T, r, LISTS_TAG));
        }
    }
    for (uint32_t r = 0; r < size; r++) {
        if (is_far(e, r)) {
            const size_t length = write_list(e, r, out);

            EEP_TRY(send(e, out, length, MPI_UINT32_T, r, LISTS_TAG));
            out += length;
        }
    }
    EEP_TRY(wait_all(e, "dispatch"));
    for (uint32_t r = 0; r < size; r++) {
        if (is_far(e, r)) {
            EEP_TRY(check_list(e, r));
        }
    }
    return EEP_OK;
}

void eep_net_counts(const struct eep_exchange *e, uint32_t source, uint32_t *rows_out,
                    uint32_t *pairs_out)
{
    *rows_out = list_from(e, source)[0];
    *pairs_out = list_from(e, source)[1];
}

/* Pack the rows for `rank` at `to`. Rows that follow each other in x are copied at once. */
static void pack(const struct eep_exchange *e, uint32_t rank, unsigned char *to)
{
    const struct eep_front *mine = &e->fronts[e->world->xport.topo.node_rank];

    eep_copy_rows(to, mine->x, mine->row_tokens + e->parts[rank].row_start, e->parts[rank].rows,
                  e->params.x_row_bytes);
}

enum eep_status eep_net_rows_start(struct eep_exchange *e)
{
    const uint32_t size = e->world->xport.topo.size;
    const size_t row_bytes = e->params.x_row_bytes;
    unsigned char *out = e->net->rows;

    for (uint32_t r = 0; r < size; r++) {
        if (is_far(e, r)) {
            EEP_TRY(receive(e, e->rows + e->row_base[r] * row_bytes, list_from(e, r)[0],
                            e->net->x_row, r, ROWS_TAG));
        }
    }
    for (uint32_t r = 0; r < size; r++) {
        if (is_far(e, r)) {
            pack(e, r, out);
            EEP_TRY(send(e, out, e->parts[r].rows, e->net->x_row, r, ROWS_TAG));
            out += e->parts[r].rows * row_bytes;
        }
    }
    return EEP_OK;
}

enum eep_status eep_net_rows_finish(struct eep_exchange *e)
{
    for (uint32_t r = 0; r < e->world->xport.topo.size; r++) {
        const uint32_t *list = list_from(e, r);
        const uint32_t base = e->pair_base[r];

        if (!is_far(e, r)) {
            continue;
        }
        for (uint32_t i = 0; i < list[1]; i++) {
            e->pair_row[base + i] = e->row_base[r] + list[LIST_HEAD + i];
        }
        memcpy(e->pair_slot + base, list + LIST_HEAD + list[1], list[1] * sizeof(uint32_t));
    }
    return wait_all(e, "dispatch");
}

/* ---- combine ---- */

enum eep_status eep_net_combine_start(struct eep_exchange *e)
{
    const uint32_t size = e->world->xport.topo.size;
    const size_t row_bytes = e->params.y_row_bytes;
    const unsigned char *y = e->fronts[e->world->xport.topo.node_rank].y;
    unsigned char *back = e->net->back;

    for (uint32_t r = 0; r < size; r++) {
        if (is_far(e, r)) {
            e->dest_base[r] = back;
            EEP_TRY(receive(e, back, e->parts[r].pairs, e->net->y_row, r, BACK_TAG));
            back += e->parts[r].pairs * row_bytes;
        }
    }
    for (uint32_t r = 0; r < size; r++) {
        if (is_far(e, r)) {
            EEP_TRY(send(e, y + e->pair_base[r] * row_bytes, list_from(e, r)[1], e->net->y_row, r,
                         BACK_TAG));
        }
    }
    return EEP_OK;
}

enum eep_status eep_net_combine_finish(struct eep_exchange *e)
{
    return wait_all(e, "combine");
}
