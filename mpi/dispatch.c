/*
 * Dispatch and combine. Within a node no byte goes through MPI and two flags are raised per layer:
 *
 *     source                               executor
 *     x rows and lists ── dispatched = n ──► copies the rows that it needs, once
 *     reads y in place ◄── returned = n ──── y rows
 *
 * Why each buffer may be written again, n being the round:
 *  - x rows, parts and lists of a source are read by executors between their wait for `dispatched`
 *    and their `returned = n`. The source returns from combine only when all ranks of its node have
 *    returned n; before that neither it nor its caller writes them.
 *  - y rows of an executor are read by sources until their next dispatch, so before they raise
 *    dispatched = n + 1. The executor's caller writes y only after its dispatch n + 1, which waited
 *    for that flag of all ranks of the node. The same holds for pair_base.
 *  - Flags only count up, so a rank that is a step ahead satisfies a wait for the step before.
 * Stores before a flag are released by it and acquired by its reader. Between nodes the data goes
 * by MPI, from buffers that MPI is done with before dispatch or combine returns (net.c).
 */
#include <string.h>

#include "base/assert.h"
#include "exchange_int.h"

#define THREAD_BYTES ((size_t)256 << 10) /* copies smaller than this stay on one thread */

/* ---- the plan: who gets what ---- */

/* Own rows stay in place, all of them: they need no list (exchange.c shows where). */
static enum eep_status count_parts(struct eep_exchange *e, const struct eep_dispatch *send)
{
    const uint32_t size = e->world->xport.topo.size;
    const uint32_t top_k = e->params.top_k;

    memset(e->parts, 0, size * sizeof(*e->parts));
    memset(e->row_last, 0xff, size * sizeof(*e->row_last));
    for (uint32_t t = 0; t < send->tokens; t++) {
        for (uint32_t j = 0; j < top_k; j++) {
            const uint32_t rank = send->ranks[(size_t)t * top_k + j];

            if (rank == EEP_NO_RANK) {
                continue;
            }
            if (rank >= size) {
                return EEP_FAIL(EEP_ERR_INVALID, "dispatch: token %u goes to rank %u of %u", t,
                                rank, size);
            }
            e->parts[rank].rows += e->row_last[rank] != t;
            e->parts[rank].pairs++;
            e->row_last[rank] = t;
        }
    }
    e->parts[e->world->xport.topo.rank].rows = send->tokens;
    return EEP_OK;
}

static void start_parts(struct eep_exchange *e)
{
    const uint32_t me = e->world->xport.topo.rank;
    uint32_t row = 0, pair = 0;

    for (uint32_t r = 0; r < e->world->xport.topo.size; r++) {
        struct eep_part *part = &e->parts[r];

        part->row_start = row;
        part->pair_start = pair;
        row += r != me ? part->rows : 0;
        pair += part->pairs;
        part->pairs = 0; /* fill_parts() counts them again */
        part->rows = r != me ? 0 : part->rows;
    }
}

static void fill_parts(struct eep_exchange *e, const struct eep_dispatch *send)
{
    struct eep_front *mine = &e->fronts[e->world->xport.topo.node_rank];
    const uint32_t me = e->world->xport.topo.rank;
    const uint32_t top_k = e->params.top_k;

    memset(e->row_last, 0xff, e->world->xport.topo.size * sizeof(*e->row_last));
    for (uint32_t t = 0; t < send->tokens; t++) {
        for (uint32_t j = 0; j < top_k; j++) {
            const size_t i = (size_t)t * top_k + j;
            const uint32_t rank = send->ranks[i];

            e->pair_ranks[i] = rank;
            if (rank == EEP_NO_RANK) {
                continue;
            }
            struct eep_part *part = &e->parts[rank];
            if (e->row_last[rank] != t && rank != me) {
                e->row_last[rank] = t;
                mine->row_tokens[part->row_start + part->rows++] = t;
            }
            e->pair_indexes[i] = part->pairs;
            mine->pair_rows[part->pair_start + part->pairs] = rank == me ? t : part->rows - 1;
            mine->pair_slots[part->pair_start + part->pairs++] = send->slots[i];
        }
    }
}

static enum eep_status make_plan(struct eep_exchange *e, const struct eep_dispatch *send)
{
    const struct eep_world *world = e->world;
    struct eep_front *mine = &e->fronts[world->xport.topo.node_rank];

    if (send->tokens > e->params.max_tokens) {
        return EEP_FAIL(EEP_ERR_INVALID, "dispatch: %u tokens in an exchange for %u", send->tokens,
                        e->params.max_tokens);
    }
    EEP_TRY(count_parts(e, send));
    start_parts(e);
    fill_parts(e, send);
    for (uint32_t r = 0; r < world->xport.topo.node_size; r++) {
        mine->parts[r] = e->parts[world->node_ranks[r]];
    }
    e->tokens = send->tokens;
    return EEP_OK;
}

/* ---- flags ---- */

struct flag_wait {
    struct eep_wait wait;
    const struct eep_exchange *exchange;
    bool returned;
    uint32_t next; /* ranks of the node below it have raised the flag */
};

static bool flag_ready(struct eep_wait *wait)
{
    struct flag_wait *w = (struct flag_wait *)wait;
    const struct eep_exchange *e = w->exchange;

    for (; w->next < e->world->xport.topo.node_size; w->next++) {
        const struct eep_front_flags *flags = e->fronts[w->next].flags;

        if (atomic_load_explicit(w->returned ? &flags->returned : &flags->dispatched,
                                 memory_order_acquire) < e->round) {
            wait->missing = e->world->node_ranks[w->next];
            return false;
        }
    }
    return true;
}

static enum eep_status wait_flags(struct eep_exchange *e, bool returned)
{
    struct flag_wait w = {.wait = {.what = returned ? "combine" : "dispatch", .ready = flag_ready},
                          .exchange = e,
                          .returned = returned};

    return eep_wait_until(e->world, &w.wait);
}

/* ---- dispatch ---- */

/* Where the rows and pairs of each source begin here. */
static void place_sources(struct eep_exchange *e)
{
    const struct eep_world *world = e->world;
    const uint32_t me = world->xport.topo.node_rank;
    uint32_t row = 0, pair = 0;

    for (uint32_t r = 0; r < world->xport.topo.size; r++) {
        e->row_base[r] = row;
        e->pair_base[r] = pair;
        if (eep_is_near(e, r)) {
            const struct eep_part *part = &e->fronts[world->node_rank_of[r]].parts[me];

            e->fronts[me].pair_base[world->node_rank_of[r]] = pair;
            row += part->rows;
            pair += part->pairs;
        } else {
            uint32_t rows, pairs;

            eep_net_counts(e, r, &rows, &pairs);
            row += rows;
            pair += pairs;
        }
    }
    e->row_base[world->xport.topo.size] = row;
    e->pair_base[world->xport.topo.size] = pair;
    e->rows = e->fronts[me].x - (size_t)e->row_base[world->xport.topo.rank] * e->params.x_row_bytes;
    e->most_rows = EEP_MAX(e->most_rows, row);
    e->most_pairs = EEP_MAX(e->most_pairs, pair);
}

void eep_copy_rows(unsigned char *to, const unsigned char *x, const uint32_t *tokens, size_t rows,
                   size_t row_bytes)
{
    size_t i = 0;

    while (i < rows) {
        size_t run = 1;

        while (i + run < rows && tokens[i + run] == tokens[i] + run) {
            run++;
        }
        memcpy(to + i * row_bytes, x + tokens[i] * row_bytes, run * row_bytes);
        i += run;
    }
}

static void pull_rows(struct eep_exchange *e, uint32_t source, const struct eep_part *part)
{
    const struct eep_front *front = &e->fronts[e->world->node_rank_of[source]];
    const size_t row_bytes = e->params.x_row_bytes;
    const uint32_t *tokens = front->row_tokens + part->row_start;
    const size_t step = EEP_MAX(THREAD_BYTES / row_bytes, (size_t)1);
    unsigned char *rows = e->rows + e->row_base[source] * row_bytes;

    if (part->rows <= 2 * step) {
        eep_copy_rows(rows, front->x, tokens, part->rows, row_bytes);
        return;
    }
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < part->rows; i += step) {
        eep_copy_rows(rows + i * row_bytes, front->x, tokens + i, EEP_MIN(step, part->rows - i),
                      row_bytes);
    }
}

static void pull(struct eep_exchange *e, uint32_t source)
{
    const struct eep_world *world = e->world;
    const struct eep_front *front = &e->fronts[world->node_rank_of[source]];
    const struct eep_part part = front->parts[world->xport.topo.node_rank];
    uint32_t *pair_row = e->pair_row + e->pair_base[source];

    if (source != world->xport.topo.rank) {
        pull_rows(e, source, &part);
    }
    for (uint32_t i = 0; i < part.pairs; i++) {
        pair_row[i] = e->row_base[source] + front->pair_rows[part.pair_start + i];
    }
    memcpy(e->pair_slot + e->pair_base[source], front->pair_slots + part.pair_start,
           part.pairs * sizeof(uint32_t));
}

static enum eep_status move_in(struct eep_exchange *e)
{
    const struct eep_topology *topo = &e->world->xport.topo;

    if (e->net != NULL) {
        EEP_TRY(eep_net_lists(e));
    }
    EEP_TRY(wait_flags(e, false));
    place_sources(e);
    EEP_TRY(eep_exchange_take_y(e, e->pair_base[topo->size]));
    if (e->net != NULL) {
        EEP_TRY(eep_net_rows_start(e));
    }
    for (uint32_t r = 0; r < topo->node_size; r++) {
        pull(e, e->world->node_ranks[r]);
    }
    return e->net != NULL ? eep_net_rows_finish(e) : EEP_OK;
}

/* A rank that fails here has left the others behind. */
static enum eep_status finish(struct eep_exchange *e, enum eep_status status)
{
    if (status != EEP_OK && e->world->broken == EEP_OK) {
        e->world->broken = status;
    }
    return status;
}

enum eep_status eep_exchange_dispatch(struct eep_exchange *e, const struct eep_dispatch *send,
                                      struct eep_received *received_out)
{
    const uint32_t me = e->world->xport.topo.node_rank;
    const uint32_t size = e->world->xport.topo.size;

    EEP_ASSERT(e->returned);
    if (e->world->broken != EEP_OK) {
        return e->world->broken;
    }
    EEP_TRY(finish(e, make_plan(e, send)));
    e->round++;
    atomic_store_explicit(&e->fronts[me].flags->dispatched, e->round, memory_order_release);
    eep_wait_notify(e->world);
    EEP_TRY(finish(e, move_in(e)));
    e->returned = false;
    *received_out = (struct eep_received){.x = e->rows,
                                          .rows = e->row_base[size],
                                          .pairs = e->pair_base[size],
                                          .pair_row = e->pair_row,
                                          .pair_slot = e->pair_slot,
                                          .y = e->fronts[me].y};
    return EEP_OK;
}

/* ---- combine ---- */

static enum eep_status move_back(struct eep_exchange *e)
{
    const struct eep_world *world = e->world;

    if (e->net != NULL) {
        EEP_TRY(eep_net_combine_start(e));
    }
    EEP_TRY(wait_flags(e, true));
    for (uint32_t r = 0; r < world->xport.topo.node_size; r++) {
        const struct eep_front *front = &e->fronts[r];

        e->dest_base[world->node_ranks[r]] =
            front->y +
            (size_t)front->pair_base[world->xport.topo.node_rank] * e->params.y_row_bytes;
    }
    return e->net != NULL ? eep_net_combine_finish(e) : EEP_OK;
}

enum eep_status eep_exchange_combine(struct eep_exchange *e, const void **rows_out)
{
    const uint32_t me = e->world->xport.topo.node_rank;
    const size_t pairs = (size_t)e->tokens * e->params.top_k;

    EEP_ASSERT(!e->returned);
    if (e->world->broken != EEP_OK) {
        return e->world->broken;
    }
    atomic_store_explicit(&e->fronts[me].flags->returned, e->round, memory_order_release);
    eep_wait_notify(e->world);
    EEP_TRY(finish(e, move_back(e)));
    e->returned = true;
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t rank = e->pair_ranks[i];

        rows_out[i] = rank == EEP_NO_RANK
                          ? NULL
                          : e->dest_base[rank] + (size_t)e->pair_indexes[i] * e->params.y_row_bytes;
    }
    return EEP_OK;
}
