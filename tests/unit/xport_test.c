/* The transport of a single rank: the interface's promises where there is nobody else. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "xport/xport.h"

#define MAX_TOKENS 20u
#define TOP_K 3u
#define X_BYTES 40u /* no multiple of a cache line */
#define Y_BYTES 128u

static struct eep_xport *x;

static void setup(void)
{
    ck_assert_int_eq(eep_loopback_open(&x), EEP_OK);
}

static void teardown(void)
{
    x->ops->close(x, EEP_OK);
}

static struct eep_exchange *open_exchange(void)
{
    const struct eep_exchange_params params = {MAX_TOKENS, TOP_K, X_BYTES, Y_BYTES};
    struct eep_exchange *exchange = NULL;

    ck_assert_int_eq(x->ops->exchange_open(x, &params, &exchange), EEP_OK);
    ck_assert_ptr_nonnull(exchange);
    return exchange;
}

START_TEST(topology_is_one_rank_on_one_node)
{
    ck_assert_uint_eq(x->topo.rank, 0);
    ck_assert_uint_eq(x->topo.size, 1);
    ck_assert_uint_eq(x->topo.node, 0);
    ck_assert_uint_eq(x->topo.nodes, 1);
    ck_assert_uint_eq(x->topo.node_rank, 0);
    ck_assert_uint_eq(x->topo.node_size, 1);
    ck_assert_uint_eq(x->topo.node_of[0], 0);
}
END_TEST

START_TEST(control_collectives_give_back_what_the_rank_gave)
{
    const size_t bytes[1] = {6}, wrong[1] = {5};
    char out[6] = "";

    ck_assert_int_eq(x->ops->allgather(x, "test", "hello", 6, out), EEP_OK);
    ck_assert_str_eq(out, "hello");
    ck_assert_int_eq(x->ops->allgather(x, "test", NULL, 0, NULL), EEP_OK);
    ck_assert_int_eq(x->ops->broadcast(x, "test", 0, out, 6), EEP_OK);
    ck_assert_str_eq(out, "hello");
    memset(out, 0, sizeof(out));
    ck_assert_int_eq(x->ops->gather(x, "test", 0, "hello", 6, bytes, out), EEP_OK);
    ck_assert_str_eq(out, "hello");
    ck_assert_int_eq(x->ops->gather(x, "test", 0, "hello", 6, wrong, out), EEP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "test"));
    ck_assert_int_eq(x->ops->broadcast(x, "test", 1, out, 6), EEP_ERR_INVALID);
    ck_assert_int_eq(x->ops->gather(x, "test", 1, "hello", 6, bytes, out), EEP_ERR_INVALID);
}
END_TEST

/* Random tokens, some left out in part or whole; returns how many pairs there are. */
static uint32_t make_send(uint64_t seed, uint32_t tokens, uint32_t *ranks, uint32_t *slots)
{
    uint32_t pairs = 0;

    for (uint32_t i = 0; i < tokens * TOP_K; i++) {
        ranks[i] = eep_rng_bits(seed, 2 * i) % 3 == 0 ? EEP_NO_RANK : 0;
        slots[i] = (uint32_t)(eep_rng_bits(seed, 2 * i + 1) % 50);
        pairs += ranks[i] == 0;
    }
    return pairs;
}

static void fill_rows(unsigned char *rows, uint32_t tokens, uint64_t seed)
{
    for (uint32_t i = 0; i < tokens * X_BYTES; i++) {
        rows[i] = (unsigned char)eep_rng_bits(seed, i);
    }
}

/* Each pair has its token's row and slot; y gets the pair's (token, position). */
static void check_pairs(const struct eep_received *got, uint32_t tokens, const uint32_t *ranks,
                        const uint32_t *slots, uint64_t seed)
{
    uint32_t pair = 0;

    for (uint32_t i = 0; i < tokens * TOP_K; i++) {
        if (ranks[i] == EEP_NO_RANK) {
            continue;
        }
        const unsigned char *row =
            (const unsigned char *)got->x + got->pair_row[pair] * (size_t)X_BYTES;

        ck_assert_uint_lt(got->pair_row[pair], got->rows);
        ck_assert_uint_eq(got->pair_slot[pair], slots[i]);
        for (uint32_t b = 0; b < X_BYTES; b++) {
            ck_assert_uint_eq(row[b], (unsigned char)eep_rng_bits(seed, i / TOP_K * X_BYTES + b));
        }
        memset((unsigned char *)got->y + pair * (size_t)Y_BYTES, (int)(1 + i), Y_BYTES);
        pair++;
    }
    ck_assert_uint_eq(pair, got->pairs);
}

static void run_round(struct eep_exchange *exchange, uint32_t tokens, uint64_t seed)
{
    uint32_t ranks[MAX_TOKENS * TOP_K], slots[MAX_TOKENS * TOP_K];
    const void *rows[MAX_TOKENS * TOP_K];
    struct eep_received got;
    const uint32_t pairs = make_send(seed, tokens, ranks, slots);
    const struct eep_dispatch send = {tokens, ranks, slots};

    fill_rows(x->ops->exchange_rows(exchange), tokens, seed);
    ck_assert_int_eq(x->ops->dispatch(exchange, &send, &got), EEP_OK);
    ck_assert_uint_eq(got.pairs, pairs);
    ck_assert_uint_eq(got.rows, tokens);
    check_pairs(&got, tokens, ranks, slots, seed);
    ck_assert_int_eq(x->ops->combine(exchange, rows), EEP_OK);
    for (uint32_t i = 0; i < tokens * TOP_K; i++) {
        if (ranks[i] == EEP_NO_RANK) {
            ck_assert_ptr_null(rows[i]);
        } else {
            ck_assert_ptr_nonnull(rows[i]);
            ck_assert_uint_eq(*(const unsigned char *)rows[i], 1 + i);
            ck_assert_uint_eq(((const unsigned char *)rows[i])[Y_BYTES - 1], 1 + i);
        }
    }
}

START_TEST(rows_go_to_their_pairs_and_come_back)
{
    struct eep_exchange *exchange = open_exchange();

    for (uint64_t seed = 0; seed < 40; seed++) {
        run_round(exchange, (uint32_t)(eep_rng_bits(1, seed) % (MAX_TOKENS + 1)), seed);
    }
    run_round(exchange, MAX_TOKENS, 50);
    run_round(exchange, 0, 51);
    ck_assert_uint_ge(x->ops->exchange_bytes(exchange), MAX_TOKENS * X_BYTES);
    x->ops->exchange_close(exchange);
}
END_TEST

START_TEST(rows_are_aligned_to_a_cache_line)
{
    struct eep_exchange *exchange = open_exchange();
    const uint32_t ranks[TOP_K] = {0, 0, 0}, slots[TOP_K] = {0};
    const struct eep_dispatch send = {1, ranks, slots};
    const void *rows[TOP_K];
    struct eep_received got;

    ck_assert_uint_eq((uintptr_t)x->ops->exchange_rows(exchange) % EEP_CACHE_LINE, 0);
    ck_assert_int_eq(x->ops->dispatch(exchange, &send, &got), EEP_OK);
    ck_assert_uint_eq((uintptr_t)got.y % EEP_CACHE_LINE, 0);
    ck_assert_int_eq(x->ops->combine(exchange, rows), EEP_OK);
    x->ops->exchange_close(exchange);
}
END_TEST

START_TEST(a_wrong_dispatch_is_refused_and_changes_nothing)
{
    struct eep_exchange *exchange = open_exchange();
    uint32_t ranks[(MAX_TOKENS + 1) * TOP_K] = {0}, slots[(MAX_TOKENS + 1) * TOP_K] = {0};
    struct eep_dispatch send = {MAX_TOKENS + 1, ranks, slots};
    struct eep_received got = {.rows = 77};

    ck_assert_int_eq(x->ops->dispatch(exchange, &send, &got), EEP_ERR_INVALID);
    send.tokens = 2;
    ranks[TOP_K] = 1;
    ck_assert_int_eq(x->ops->dispatch(exchange, &send, &got), EEP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "token 1"));
    ck_assert_uint_eq(got.rows, 77);
    run_round(exchange, 5, 7);
    x->ops->exchange_close(exchange);
}
END_TEST

START_TEST(an_exchange_too_large_to_address_is_refused)
{
    const struct eep_exchange_params pairs = {UINT32_MAX, 8, 64, 64};
    const struct eep_exchange_params bytes = {1u << 20, 64, 64, SIZE_MAX / 1024};
    struct eep_exchange *exchange = NULL;

    ck_assert_int_eq(x->ops->exchange_open(x, &pairs, &exchange), EEP_ERR_INVALID);
    ck_assert_int_eq(x->ops->exchange_open(x, &bytes, &exchange), EEP_ERR_INVALID);
    ck_assert_ptr_null(exchange);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    const struct eep_exchange_params params = {MAX_TOKENS, TOP_K, X_BYTES, Y_BYTES};
    struct eep_exchange *exchange = NULL;
    struct eep_xport *other = NULL;
    uint64_t nth = 1;

    eep_mem_fail_nth(1);
    ck_assert_int_eq(eep_loopback_open(&other), EEP_ERR_NOMEM);
    ck_assert_ptr_null(other);
    for (;; nth++) {
        eep_mem_fail_nth(nth);
        const enum eep_status status = x->ops->exchange_open(x, &params, &exchange);

        if (status == EEP_OK) {
            break;
        }
        ck_assert_int_eq(status, EEP_ERR_NOMEM);
        ck_assert_ptr_null(exchange);
    }
    eep_mem_fail_nth(0);
    ck_assert_uint_gt(nth, 5);
    x->ops->exchange_close(exchange);
}
END_TEST

START_TEST(a_board_holds_what_was_put_and_counts)
{
    struct eep_board *board;
    char text[6] = "";
    uint64_t before = 1;

    ck_assert_int_eq(x->ops->board_open(x, "test", 32, &board), EEP_OK);
    ck_assert_int_eq(x->ops->board_put(board, 26, "hello", 6), EEP_OK);
    ck_assert_int_eq(x->ops->board_get(board, 26, text, 6), EEP_OK);
    ck_assert_str_eq(text, "hello");
    ck_assert_int_eq(x->ops->board_add(board, 8, 5, &before), EEP_OK);
    ck_assert_uint_eq(before, 0);
    ck_assert_int_eq(x->ops->board_add(board, 8, UINT64_MAX, &before), EEP_OK);
    ck_assert_uint_eq(before, 5);
    ck_assert_int_eq(x->ops->board_get(board, 8, &before, 8), EEP_OK);
    ck_assert_uint_eq(before, 4);
    x->ops->board_close(board);
}
END_TEST

START_TEST(a_transfer_with_nobody_is_refused)
{
    struct eep_transfer *transfer;

    ck_assert_int_eq(x->ops->transfer_begin(x, "test", 1, 0, true, &x, 8, &transfer),
                     EEP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "rank 1 of 1"));
}
END_TEST

START_TEST(closing_nothing_is_allowed)
{
    x->ops->exchange_close(NULL);
    x->ops->board_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("xport");
    TCase *tests = tcase_create("loopback");
    SRunner *runner;

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, topology_is_one_rank_on_one_node);
    tcase_add_test(tests, control_collectives_give_back_what_the_rank_gave);
    tcase_add_test(tests, rows_go_to_their_pairs_and_come_back);
    tcase_add_test(tests, rows_are_aligned_to_a_cache_line);
    tcase_add_test(tests, a_wrong_dispatch_is_refused_and_changes_nothing);
    tcase_add_test(tests, an_exchange_too_large_to_address_is_refused);
    tcase_add_test(tests, every_allocation_may_fail);
    tcase_add_test(tests, a_board_holds_what_was_put_and_counts);
    tcase_add_test(tests, a_transfer_with_nobody_is_refused);
    tcase_add_test(tests, closing_nothing_is_allowed);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
