/* The transport of a single rank, within one process: rows stay where the caller put them. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "xport/xport.h"

struct eep_exchange {
    struct eep_exchange_params params;
    size_t max_pairs;
    unsigned char *x;   /* (max_tokens), x_row_bytes apart: the caller's rows */
    unsigned char *y;   /* (max_pairs), y_row_bytes apart */
    uint32_t *pair_row; /* (max_pairs) */
    uint32_t *pair_slot;
    uint32_t *pair_of; /* (max_pairs): pair of each (token, top-k position), or EEP_NO_PAIR */
    uint32_t tokens;   /* of the last dispatch */
    bool open;         /* between dispatch and combine */
};

#define EEP_NO_PAIR UINT32_MAX

static enum eep_status loop_allgather(struct eep_xport *x, const char *what, const void *in,
                                      size_t bytes, void *out)
{
    (void)x;
    (void)what;
    if (bytes > 0) {
        memcpy(out, in, bytes);
    }
    return EEP_OK;
}

static enum eep_status check_root(const char *what, uint32_t root)
{
    if (root != 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: rank %u of 1", what, root);
    }
    return EEP_OK;
}

static enum eep_status loop_broadcast(struct eep_xport *x, const char *what, uint32_t root,
                                      void *buffer, size_t bytes)
{
    (void)x;
    (void)buffer;
    (void)bytes;
    return check_root(what, root);
}

static enum eep_status loop_gather(struct eep_xport *x, const char *what, uint32_t root,
                                   const void *in, size_t in_bytes, const size_t *bytes, void *out)
{
    (void)x;
    EEP_TRY(check_root(what, root));
    if (bytes[0] != in_bytes) {
        return EEP_FAIL(EEP_ERR_INVALID, "%s: %zu bytes announced, %zu given", what, bytes[0],
                        in_bytes);
    }
    if (in_bytes > 0) {
        memcpy(out, in, in_bytes);
    }
    return EEP_OK;
}

/* ---- exchange ---- */

static void loop_exchange_close(struct eep_exchange *e)
{
    if (e == NULL) {
        return;
    }
    eep_mem_unmap(e->x, e->params.max_tokens * e->params.x_row_bytes);
    eep_mem_unmap(e->y, e->max_pairs * e->params.y_row_bytes);
    eep_mem_unmap(e->pair_row, e->max_pairs * sizeof(uint32_t));
    eep_mem_unmap(e->pair_slot, e->max_pairs * sizeof(uint32_t));
    eep_mem_unmap(e->pair_of, e->max_pairs * sizeof(uint32_t));
    eep_mem_free(e);
}

static enum eep_status map_buffers(struct eep_exchange *e)
{
    const struct eep_exchange_params *p = &e->params;
    size_t x_bytes, y_bytes;

    if (!eep_mul_ok(p->max_tokens, p->top_k, &e->max_pairs) || e->max_pairs >= EEP_NO_PAIR ||
        !eep_mul_ok(p->max_tokens, p->x_row_bytes, &x_bytes) ||
        !eep_mul_ok(e->max_pairs, p->y_row_bytes, &y_bytes)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "exchange: %u tokens x %u experts each are more rows than can be addressed",
                        p->max_tokens, p->top_k);
    }
    EEP_TRY(eep_mem_map(x_bytes, "token rows", &e->x));
    EEP_TRY(eep_mem_map(y_bytes, "rows of expert outputs", &e->y));
    EEP_TRY(eep_mem_map(e->max_pairs * sizeof(uint32_t), "exchange", &e->pair_row));
    EEP_TRY(eep_mem_map(e->max_pairs * sizeof(uint32_t), "exchange", &e->pair_slot));
    return eep_mem_map(e->max_pairs * sizeof(uint32_t), "exchange", &e->pair_of);
}

static enum eep_status loop_exchange_open(struct eep_xport *x,
                                          const struct eep_exchange_params *params,
                                          struct eep_exchange **exchange_out)
{
    struct eep_exchange *e;

    (void)x;
    EEP_ASSERT(params->top_k > 0 && params->x_row_bytes > 0 && params->y_row_bytes > 0);
    EEP_TRY(eep_mem_alloc(1, sizeof(*e), "exchange", &e));
    *e = (struct eep_exchange){.params = *params};
    enum eep_status status = map_buffers(e);
    if (status != EEP_OK) {
        loop_exchange_close(e);
        return status;
    }
    *exchange_out = e;
    return EEP_OK;
}

static void *loop_exchange_rows(struct eep_exchange *e)
{
    return e->x;
}

static enum eep_status check_send(const struct eep_exchange *e, const struct eep_dispatch *send)
{
    if (send->tokens > e->params.max_tokens) {
        return EEP_FAIL(EEP_ERR_INVALID, "dispatch: %u tokens in an exchange for %u", send->tokens,
                        e->params.max_tokens);
    }
    for (size_t i = 0; i < (size_t)send->tokens * e->params.top_k; i++) {
        if (send->ranks[i] != 0 && send->ranks[i] != EEP_NO_RANK) {
            return EEP_FAIL(EEP_ERR_INVALID, "dispatch: token %zu goes to rank %u of 1",
                            i / e->params.top_k, send->ranks[i]);
        }
    }
    return EEP_OK;
}

static void make_pairs(struct eep_exchange *e, const struct eep_dispatch *send,
                       struct eep_received *received)
{
    for (size_t i = 0; i < (size_t)send->tokens * e->params.top_k; i++) {
        e->pair_of[i] = EEP_NO_PAIR;
        if (send->ranks[i] != EEP_NO_RANK) {
            e->pair_row[received->pairs] = (uint32_t)(i / e->params.top_k);
            e->pair_slot[received->pairs] = send->slots[i];
            e->pair_of[i] = received->pairs++;
        }
    }
}

static enum eep_status loop_dispatch(struct eep_exchange *e, const struct eep_dispatch *send,
                                     struct eep_received *received_out)
{
    struct eep_received received = {.x = e->x,
                                    .rows = send->tokens,
                                    .pair_row = e->pair_row,
                                    .pair_slot = e->pair_slot,
                                    .y = e->y};

    EEP_ASSERT(!e->open);
    EEP_TRY(check_send(e, send));
    make_pairs(e, send, &received);
    e->tokens = send->tokens;
    e->open = true;
    *received_out = received;
    return EEP_OK;
}

static enum eep_status loop_combine(struct eep_exchange *e, const void **rows_out)
{
    EEP_ASSERT(e->open);
    e->open = false;
    for (size_t i = 0; i < (size_t)e->tokens * e->params.top_k; i++) {
        rows_out[i] = e->pair_of[i] == EEP_NO_PAIR
                          ? NULL
                          : e->y + (size_t)e->pair_of[i] * e->params.y_row_bytes;
    }
    return EEP_OK;
}

static size_t loop_exchange_bytes(const struct eep_exchange *e)
{
    return e->params.max_tokens * e->params.x_row_bytes + e->max_pairs * e->params.y_row_bytes +
           3 * e->max_pairs * sizeof(uint32_t);
}

/* ---- board, transfers ---- */

struct eep_board {
    unsigned char *memory;
    size_t bytes;
};

static enum eep_status loop_board_open(struct eep_xport *x, const char *what, size_t bytes,
                                       struct eep_board **board_out)
{
    struct eep_board *board;

    (void)x;
    EEP_TRY(eep_mem_alloc(1, sizeof(*board), what, &board));
    board->bytes = bytes;
    const enum eep_status status =
        eep_mem_alloc(EEP_MAX(bytes, (size_t)1), 1, what, &board->memory);
    if (status != EEP_OK) {
        eep_mem_free(board);
        return status;
    }
    *board_out = board;
    return EEP_OK;
}

static unsigned char *board_at(struct eep_board *board, size_t offset, size_t bytes)
{
    EEP_ASSERT(offset <= board->bytes && bytes <= board->bytes - offset);
    return board->memory + offset;
}

static enum eep_status loop_board_put(struct eep_board *board, size_t offset, const void *in,
                                      size_t bytes)
{
    memcpy(board_at(board, offset, bytes), in, bytes);
    return EEP_OK;
}

static enum eep_status loop_board_get(struct eep_board *board, size_t offset, void *out,
                                      size_t bytes)
{
    memcpy(out, board_at(board, offset, bytes), bytes);
    return EEP_OK;
}

static enum eep_status loop_board_add(struct eep_board *board, size_t offset, uint64_t value,
                                      uint64_t *before_out)
{
    unsigned char *at = board_at(board, offset, sizeof(value));

    EEP_ASSERT(offset % sizeof(value) == 0);
    memcpy(before_out, at, sizeof(value));
    value += *before_out;
    memcpy(at, &value, sizeof(value));
    return EEP_OK;
}

static void loop_board_close(struct eep_board *board)
{
    if (board != NULL) {
        eep_mem_free(board->memory);
        eep_mem_free(board);
    }
}

/* There is nobody else. */
static enum eep_status loop_transfer_begin(struct eep_xport *x, const char *what, uint32_t peer,
                                           uint32_t tag, bool send, void *buffer, size_t bytes,
                                           struct eep_transfer **transfer_out)
{
    (void)x, (void)tag, (void)send, (void)buffer, (void)bytes, (void)transfer_out;
    return EEP_FAIL(EEP_ERR_INVALID, "%s: a transfer with rank %u of 1", what, peer);
}

static enum eep_status loop_transfer_test(struct eep_transfer *transfer, size_t *progress_out)
{
    (void)transfer, (void)progress_out;
    return EEP_FAIL(EEP_ERR_INVALID, "there are no transfers with a single rank");
}

static enum eep_status loop_recover(struct eep_xport *x, uint32_t *was_out)
{
    (void)x, (void)was_out;
    return EEP_FAIL(EEP_ERR_INVALID, "a single rank has nobody to lose");
}

static enum eep_status loop_regroup(struct eep_xport *x, const uint32_t *origins, uint32_t count)
{
    (void)x, (void)origins, (void)count;
    return EEP_FAIL(EEP_ERR_UNSUPPORTED, "there is one process only: nobody can join or leave");
}

static enum eep_status loop_spawn_begin(struct eep_xport *x, const struct eep_spawn *spawn)
{
    (void)x, (void)spawn;
    return EEP_FAIL(EEP_ERR_UNSUPPORTED,
                    "processes cannot be spawned: eep was started without a launcher of MPI");
}

static enum eep_status loop_spawn_test(struct eep_xport *x, uint32_t *first_out)
{
    (void)x, (void)first_out;
    return EEP_FAIL(EEP_ERR_INVALID, "spawning: nothing is under way");
}

static enum eep_status loop_roster_send(struct eep_xport *x, uint32_t origin, const void *data,
                                        size_t bytes)
{
    (void)x, (void)data, (void)bytes;
    return EEP_FAIL(EEP_ERR_INVALID, "a message to process %u of 1", origin);
}

static bool loop_roster_take(struct eep_xport *x, uint32_t *from_out, void *data, size_t capacity,
                             size_t *bytes_out)
{
    (void)x, (void)from_out, (void)data, (void)capacity, (void)bytes_out;
    return false;
}

static bool loop_roster_lost(struct eep_xport *x, uint32_t origin)
{
    (void)x, (void)origin;
    return false;
}

static enum eep_status loop_roster_wait(struct eep_xport *x, uint64_t timeout_ns)
{
    (void)x, (void)timeout_ns;
    return EEP_FAIL(EEP_ERR_UNSUPPORTED, "there is one process only: it is not parked");
}

static void loop_close(struct eep_xport *x, enum eep_status status)
{
    (void)status;
    eep_mem_free(x);
}

static const struct eep_xport_ops loopback_ops = {
    .name = "loopback",
    .allgather = loop_allgather,
    .broadcast = loop_broadcast,
    .gather = loop_gather,
    .exchange_open = loop_exchange_open,
    .exchange_rows = loop_exchange_rows,
    .dispatch = loop_dispatch,
    .combine = loop_combine,
    .exchange_close = loop_exchange_close,
    .exchange_bytes = loop_exchange_bytes,
    .board_open = loop_board_open,
    .board_put = loop_board_put,
    .board_get = loop_board_get,
    .board_add = loop_board_add,
    .board_close = loop_board_close,
    .transfer_begin = loop_transfer_begin,
    .transfer_test = loop_transfer_test,
    .recover = loop_recover,
    .regroup = loop_regroup,
    .spawn_begin = loop_spawn_begin,
    .spawn_test = loop_spawn_test,
    .roster_send = loop_roster_send,
    .roster_take = loop_roster_take,
    .roster_lost = loop_roster_lost,
    .roster_wait = loop_roster_wait,
    .close = loop_close,
};

enum eep_status eep_loopback_open(struct eep_xport **xport_out)
{
    static const uint32_t zero[1] = {0};
    struct eep_xport *x;

    EEP_TRY(eep_mem_alloc(1, sizeof(*x), "transport", &x));
    *x = (struct eep_xport){.ops = &loopback_ops,
                            .topo = {.size = 1,
                                     .nodes = 1,
                                     .node_size = 1,
                                     .node_of = zero,
                                     .origin_of = zero,
                                     .processes = 1}};
    *xport_out = x;
    return EEP_OK;
}
