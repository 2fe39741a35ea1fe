/*
 * The exchange on one node: memory, and its opening and closing. dispatch.c moves the data.
 *
 * Each rank has a *front* in the node's segment, which it alone writes and the others read:
 *
 *     flags | parts | pair bases | lists | x rows        taken when the exchange is opened
 *     y rows, one per pair that it executes              address space for the worst case (every
 *                                                        rank sends every pair here); memory is
 *                                                        taken as it is first needed
 *
 * Received rows lie around the rank's own x rows, which so need no copy: the region is private
 * memory, address space for the worst case, with the pages of x mapped into its middle.
 *
 *     rows of ranks before ─►| own x: tokens | rows of ranks behind ─►
 *                            ▲ page boundary
 */
#include "exchange_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"

#define MAP_LIMIT ((size_t)1 << 46) /* of address space in one exchange */

/* ---- sizes ---- */

static enum eep_status too_large(const struct eep_exchange *e)
{
    return EEP_FAIL(EEP_ERR_INVALID,
                    "exchange: %u ranks x %u tokens x %u experts each are more rows than can be "
                    "addressed; use smaller batches",
                    e->world->xport.topo.size, e->params.max_tokens, e->params.top_k);
}

static enum eep_status reckon(struct eep_exchange *e)
{
    const struct eep_topology *topo = &e->world->xport.topo;
    const struct eep_exchange_params *p = &e->params;
    size_t lists, x_bytes, y_bytes, total;

    EEP_ASSERT(p->top_k > 0 && p->x_row_bytes > 0 && p->y_row_bytes > 0);
    e->max_pairs = (size_t)p->max_tokens * p->top_k;
    e->row_list_max = (size_t)p->max_tokens * EEP_MIN(p->top_k, topo->size);
    if (!eep_mul_ok(topo->size, p->max_tokens, &e->all_rows) ||
        !eep_mul_ok(topo->size, e->max_pairs, &e->all_pairs) || e->all_pairs > INT32_MAX / 2 ||
        !eep_mul_ok(p->max_tokens, p->x_row_bytes, &x_bytes) ||
        !eep_mul_ok(e->all_pairs, p->y_row_bytes, &y_bytes) || x_bytes > MAP_LIMIT / topo->size ||
        y_bytes > MAP_LIMIT) {
        return too_large(e);
    }
    lists = sizeof(struct eep_front_flags) + topo->node_size * sizeof(struct eep_part) +
            (topo->node_size + e->row_list_max + 2 * e->max_pairs) * sizeof(uint32_t);
    e->before_bytes = eep_round_up(topo->rank * x_bytes, EEP_PAGE);
    e->region_bytes = e->before_bytes + eep_round_up(x_bytes, EEP_PAGE) +
                      eep_round_up((topo->size - 1 - topo->rank) * x_bytes, EEP_PAGE);
    e->front_bytes = eep_round_up(lists, EEP_PAGE) + eep_round_up(x_bytes, EEP_PAGE);
    e->y_bytes = eep_round_up(y_bytes, EEP_PAGE);
    if (!eep_mul_ok(topo->node_size, e->front_bytes + e->y_bytes, &total) || total > MAP_LIMIT) {
        return too_large(e);
    }
    return EEP_OK;
}

static size_t shared_bytes(const struct eep_exchange *e)
{
    return e->world->xport.topo.node_size * (e->front_bytes + e->y_bytes);
}

static uint64_t front_offset(const struct eep_exchange *e, uint32_t node_rank)
{
    return e->offset + node_rank * e->front_bytes;
}

static uint64_t y_offset(const struct eep_exchange *e, uint32_t node_rank)
{
    return e->offset + e->world->xport.topo.node_size * e->front_bytes + node_rank * e->y_bytes;
}

/* ---- opening ---- */

static struct eep_front see_front(const struct eep_exchange *e, uint32_t node_rank)
{
    const uint32_t ranks = e->world->xport.topo.node_size;
    unsigned char *at = e->base + (front_offset(e, node_rank) - e->offset);
    const size_t x_bytes = eep_round_up(e->params.max_tokens * e->params.x_row_bytes, EEP_PAGE);
    struct eep_front front = {.x = at + e->front_bytes - x_bytes,
                              .y = e->base + (y_offset(e, node_rank) - e->offset)};

    front.flags = (struct eep_front_flags *)at;
    front.parts = (struct eep_part *)(front.flags + 1);
    front.pair_base = (uint32_t *)(front.parts + ranks);
    front.row_tokens = front.pair_base + ranks;
    front.pair_rows = front.row_tokens + e->row_list_max;
    front.pair_slots = front.pair_rows + e->max_pairs;
    return front;
}

static enum eep_status map_private(struct eep_exchange *e)
{
    const uint32_t size = e->world->xport.topo.size;

    EEP_TRY(
        eep_mem_alloc(e->world->xport.topo.node_size, sizeof(*e->fronts), "exchange", &e->fronts));
    EEP_TRY(eep_mem_alloc(size, sizeof(*e->parts), "exchange", &e->parts));
    EEP_TRY(eep_mem_alloc(size, sizeof(uint32_t), "exchange", &e->row_last));
    EEP_TRY(eep_mem_alloc(size, sizeof(*e->dest_base), "exchange", &e->dest_base));
    EEP_TRY(eep_mem_alloc(size + 1, sizeof(uint32_t), "exchange", &e->row_base));
    EEP_TRY(eep_mem_alloc(size + 1, sizeof(uint32_t), "exchange", &e->pair_base));
    EEP_TRY(eep_mem_map(e->max_pairs * sizeof(uint32_t), "exchange", &e->pair_ranks));
    EEP_TRY(eep_mem_map(e->max_pairs * sizeof(uint32_t), "exchange", &e->pair_indexes));
    EEP_TRY(eep_mem_map(e->all_pairs * sizeof(uint32_t), "exchange", &e->pair_row));
    EEP_TRY(eep_mem_map(e->all_pairs * sizeof(uint32_t), "exchange", &e->pair_slot));
    EEP_TRY(eep_mem_map(e->region_bytes, "received rows", &e->region));
    return e->world->xport.topo.nodes > 1 ? eep_net_open(e) : EEP_OK;
}

/* This rank's own front: take its memory, and see its x rows in the middle of the region. */
static enum eep_status take_front(struct eep_exchange *e)
{
    const uint32_t me = e->world->xport.topo.node_rank;
    const size_t x_bytes = eep_round_up(e->params.max_tokens * e->params.x_row_bytes, EEP_PAGE);

    EEP_TRY(eep_node_reserve(e->world, "exchange", front_offset(e, me), e->front_bytes));
    EEP_TRY(eep_node_map_over(e->world, "exchange", front_offset(e, me) + e->front_bytes - x_bytes,
                              x_bytes, e->region + e->before_bytes));
    e->fronts[me].x = e->region + e->before_bytes;
    return EEP_OK;
}

static enum eep_status map_shared(struct eep_exchange *e)
{
    struct eep_world *world = e->world;

    EEP_TRY(eep_node_map(world, "exchange", shared_bytes(e), &e->offset, &e->base));
    for (uint32_t r = 0; r < world->xport.topo.node_size; r++) {
        e->fronts[r] = see_front(e, r);
    }
    return eep_control_agree(world, "exchange", take_front(e));
}

enum eep_status eep_exchange_open(struct eep_xport *xport, const struct eep_exchange_params *params,
                                  struct eep_exchange **exchange_out)
{
    struct eep_world *world = (struct eep_world *)xport;
    struct eep_exchange *e = NULL;
    enum eep_status status = eep_mem_alloc(1, sizeof(*e), "exchange", &e);

    if (status == EEP_OK) {
        *e = (struct eep_exchange){.world = world, .params = *params, .returned = true};
        status = reckon(e);
    }
    if (status == EEP_OK) {
        status = map_private(e);
    }
    status = eep_control_agree(world, "exchange", status);
    if (status == EEP_OK) {
        status = map_shared(e);
    }
    if (status != EEP_OK) {
        eep_exchange_close(e);
        return status;
    }
    *exchange_out = e;
    return EEP_OK;
}

void eep_exchange_close(struct eep_exchange *e)
{
    /* After a failure between nodes MPI may still use the buffers: left to the process's end. */
    if (e == NULL || (e->net != NULL && e->world->broken != EEP_OK)) {
        return;
    }
    if (e->base != NULL) {
        /* Others may still read this rank's y: the last of the node to close gives all back. */
        if (atomic_fetch_add(&e->fronts[0].flags->closed, 1) + 1 ==
            e->world->xport.topo.node_size) {
            eep_node_release(e->world, e->offset, shared_bytes(e));
        }
        munmap(e->base, shared_bytes(e));
    }
    eep_net_close(e);
    eep_mem_unmap(e->region, e->region_bytes);
    eep_mem_unmap(e->pair_slot, e->all_pairs * sizeof(uint32_t));
    eep_mem_unmap(e->pair_row, e->all_pairs * sizeof(uint32_t));
    eep_mem_unmap(e->pair_indexes, e->max_pairs * sizeof(uint32_t));
    eep_mem_unmap(e->pair_ranks, e->max_pairs * sizeof(uint32_t));
    eep_mem_free(e->pair_base);
    eep_mem_free(e->row_base);
    eep_mem_free((void *)e->dest_base);
    eep_mem_free(e->row_last);
    eep_mem_free(e->parts);
    eep_mem_free(e->fronts);
    eep_mem_free(e);
}

void *eep_exchange_rows(struct eep_exchange *e)
{
    return e->fronts[e->world->xport.topo.node_rank].x;
}

/* Private buffers are counted as far as they may be used, in rows that were seen: what the kernel
 * holds for them is not asked for. */
size_t eep_exchange_bytes(const struct eep_exchange *e)
{
    const uint32_t size = e->world->xport.topo.size;

    return e->front_bytes + e->y_taken + e->most_rows * e->params.x_row_bytes +
           e->most_pairs * 2 * sizeof(uint32_t) + e->max_pairs * 2 * sizeof(uint32_t) +
           size * (sizeof(*e->parts) + sizeof(*e->dest_base) + 3 * sizeof(uint32_t)) +
           eep_net_bytes(e);
}

/* Memory for `pairs` rows of y, a quarter more than now so that it is not asked for at each step.
 */
enum eep_status eep_exchange_take_y(struct eep_exchange *e, size_t pairs)
{
    const uint32_t me = e->world->xport.topo.node_rank;
    const size_t needed = pairs * e->params.y_row_bytes;

    if (needed <= e->y_taken) {
        return EEP_OK;
    }
    const size_t goal = EEP_MIN(eep_round_up(needed + needed / 4, EEP_PAGE), e->y_bytes);
    EEP_TRY(eep_node_reserve(e->world, "rows of expert outputs", y_offset(e, me) + e->y_taken,
                             goal - e->y_taken));
    e->y_taken = goal;
    return EEP_OK;
}
