/* Routing against the stored vectors, its tie rule, and rows that are not finite. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "moe/router.h"
#include "testutil.h"

static const struct eep_kernels *kernels;

static float number(const json_t *value)
{
    if (json_is_string(value)) { /* "nan", "inf", "-inf" */
        return strtof(json_string_value(value), NULL);
    }
    return json_is_null(value) ? NAN : (float)json_number_value(value);
}

static struct eep_router router_of(const json_t *test, float *bias)
{
    const json_t *params = json_object_get(test, "params"),
                 *biases = json_object_get(params, "bias");
    const bool grouped = strcmp(json_string_value(json_object_get(test, "family")), "ds3") == 0;
    struct eep_router router = {
        .kind = grouped ? EEP_ROUTER_SIGMOID_GROUPED : EEP_ROUTER_SOFTMAX_TOPK,
        .top_k = (uint32_t)json_integer_value(json_object_get(params, "k")),
        .norm_topk = json_is_true(json_object_get(params, "norm")),
    };

    if (grouped) {
        router.groups = (uint32_t)json_integer_value(json_object_get(params, "n_group"));
        router.top_groups = (uint32_t)json_integer_value(json_object_get(params, "topk_group"));
        router.scale = number(json_object_get(params, "scale"));
        for (size_t i = 0; i < json_array_size(biases); i++) {
            bias[i] = number(json_array_get(biases, i));
        }
        router.bias = bias;
    }
    return router;
}

/* Checks one row; returns false when the vector says that the row is bad. */
static void check_row(const json_t *row, const uint32_t *ids, const float *weights, bool failed,
                      uint32_t k, double tolerance)
{
    const json_t *want_ids = json_object_get(row, "ids"),
                 *want_weights = json_object_get(row, "weights");

    if (failed) {
        ck_assert(!json_is_array(want_ids) || json_array_size(want_weights) == 0 ||
                  json_is_null(json_array_get(want_weights, 0)));
        return;
    }
    ck_assert_uint_eq(json_array_size(want_ids), k);
    for (uint32_t j = 0; j < k; j++) {
        ck_assert_int_eq(ids[j], json_integer_value(json_array_get(want_ids, j)));
        ck_assert_double_eq_tol((double)weights[j],
                                json_number_value(json_array_get(want_weights, j)), tolerance);
    }
}

START_TEST(the_vectors_hold)
{
    json_error_t error;
    json_t *all = json_load_file(test_path("cases/vectors/routing.json"), 0, &error), *test;
    size_t index;

    ck_assert_ptr_nonnull(all);
    json_array_foreach(all, index, test)
    {
        const json_t *rows = json_object_get(test, "rows");
        const size_t count = json_array_size(rows);
        float bias[64], scores[64 * 64], weights[64 * 8];
        uint32_t ids[64 * 8];
        bool failed[64];
        struct eep_router router = router_of(test, bias);

        ck_assert_uint_le(count, 64);
        router.experts = 8;
        for (size_t r = 0; r < count; r++) {
            const json_t *logits = json_object_get(json_array_get(rows, r), "logits");

            router.experts = (uint32_t)json_array_size(logits);
            for (uint32_t e = 0; e < router.experts; e++) {
                scores[r * 64 + e] = number(json_array_get(logits, e));
            }
        }
        CK_OK(eep_router_check(&router));
        const size_t failures =
            eep_router_choose(&router, kernels, scores, 64, count, ids, weights, failed);
        ck_assert_uint_eq(failures,
                          strcmp(json_string_value(json_object_get(test, "id")), "nan-row") == 0);
        for (size_t r = 0; r < count; r++) {
            check_row(json_array_get(rows, r), ids + r * router.top_k, weights + r * router.top_k,
                      failed[r], router.top_k,
                      json_number_value(json_object_get(test, "tolerance")));
        }
    }
    ck_assert_uint_ge(index, 8);
    json_decref(all);
}
END_TEST

START_TEST(a_bad_row_touches_no_other)
{
    const struct eep_router router = {
        .kind = EEP_ROUTER_SOFTMAX_TOPK, .experts = 4, .top_k = 3, .norm_topk = true};
    const float good[4] = {0.5f, -1.0f, 2.0f, 0.25f};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    float alone[4], alone_weights[3];
    uint32_t alone_ids[3];
    bool failed[3];

    memcpy(alone, good, sizeof(good));
    ck_assert_uint_eq(
        eep_router_choose(&router, kernels, alone, 4, 1, alone_ids, alone_weights, failed), 0);
    for (size_t i = 0; i < COUNT(bad); i++) {
        float scores[12], weights[9];
        uint32_t ids[9];

        memcpy(scores, good, sizeof(good));
        memcpy(scores + 4, good, sizeof(good));
        scores[4 + i] = bad[i];
        memcpy(scores + 8, good, sizeof(good));
        ck_assert_uint_eq(eep_router_choose(&router, kernels, scores, 4, 3, ids, weights, failed),
                          1);
        ck_assert(!failed[0] && failed[1] && !failed[2]);
        ck_assert_mem_eq(ids, alone_ids, sizeof(alone_ids));
        ck_assert_mem_eq(weights, alone_weights, sizeof(alone_weights));
        ck_assert_mem_eq(ids + 6, alone_ids, sizeof(alone_ids));
        ck_assert_mem_eq(weights + 6, alone_weights, sizeof(alone_weights));
        for (uint32_t j = 0; j < 3; j++) { /* different experts, of weight 0 */
            ck_assert_uint_eq(ids[3 + j], j);
            ck_assert(weights[3 + j] == 0.0f);
        }
    }
}
END_TEST

START_TEST(a_thousand_experts_and_ties)
{
    enum { EXPERTS = 1024, K = 9 };
    const struct eep_router router = {
        .kind = EEP_ROUTER_SOFTMAX_TOPK, .experts = EXPERTS, .top_k = K};
    static float scores[EXPERTS];
    float weights[K];
    uint32_t ids[K];
    bool failed;

    CK_OK(eep_router_check(&router));
    scores[1000] = scores[3] = 1.0f;
    ck_assert_uint_eq(
        eep_router_choose(&router, kernels, scores, EXPERTS, 1, ids, weights, &failed), 0);
    ck_assert_uint_eq(ids[0], 3);
    ck_assert_uint_eq(ids[1], 1000);
    for (uint32_t j = 2; j < K; j++) { /* 0 1 2 4 5 6 7 */
        ck_assert_uint_eq(ids[j], j - 2 < 3 ? j - 2 : j - 1);
    }
}
END_TEST

START_TEST(numbers_that_do_not_fit_are_refused_by_key)
{
    const struct {
        struct eep_router router;
        const char *names;
    } cases[] = {
        {{.experts = 0, .top_k = 1}, "num_experts"},
        {{.experts = 4, .top_k = 5}, "num_experts_per_tok"},
        {{.experts = 4, .top_k = 0}, "num_experts_per_tok"},
        {{.kind = EEP_ROUTER_SIGMOID_GROUPED,
          .experts = 8,
          .top_k = 2,
          .groups = 8,
          .top_groups = 4},
         "n_group"},
        {{.kind = EEP_ROUTER_SIGMOID_GROUPED,
          .experts = 8,
          .top_k = 2,
          .groups = 3,
          .top_groups = 1},
         "n_group"},
        {{.kind = EEP_ROUTER_SIGMOID_GROUPED,
          .experts = 8,
          .top_k = 5,
          .groups = 2,
          .top_groups = 1},
         "topk_group"},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_int_eq(eep_router_check(&cases[i].router), EEP_ERR_FORMAT);
        ck_assert_ptr_nonnull(strstr(eep_error_text(), cases[i].names));
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        the_vectors_hold,
        a_bad_row_touches_no_other,
        a_thousand_experts_and_ties,
        numbers_that_do_not_fit_are_refused_by_key,
    };

    if (eep_kernels_find(NULL, &kernels) != EEP_OK) {
        return EXIT_FAILURE;
    }
    return run_tests("router", tests, COUNT(tests));
}
