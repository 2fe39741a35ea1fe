/* Sampling: greedy ties, the kept sets, frequencies, and draws that depend on nothing else. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "model/sampler.h"
#include "testutil.h"

static struct eep_sampler_entry work[64];

START_TEST(greedy_takes_the_largest_and_the_lower_of_equals)
{
    const float logits[] = {1.0f, 3.0f, -2.0f, 3.0f};
    const struct eep_sampling sampling = {.temperature = 0.0, .top_p = 1.0};

    ck_assert_uint_eq(eep_sample(&sampling, logits, 4, 0, work), 1);
}
END_TEST

START_TEST(a_set_of_one_is_greedy)
{
    const float logits[] = {1.0f, 3.0f, -2.0f, 2.5f};
    const struct eep_sampling by_k = {.temperature = 5.0, .top_k = 1, .top_p = 1.0};
    const struct eep_sampling by_p = {.temperature = 5.0, .top_p = 1e-9};

    for (uint64_t position = 0; position < 200; position++) {
        ck_assert_uint_eq(eep_sample(&by_k, logits, 4, position, work), 1);
        ck_assert_uint_eq(eep_sample(&by_p, logits, 4, position, work), 1);
    }
}
END_TEST

START_TEST(frequencies_are_those_of_the_softmax)
{
    const float logits[] = {0.0f, 1.0f, 2.0f, -1.0f};
    const struct eep_sampling sampling = {.temperature = 0.8, .top_p = 1.0, .seed = 42};
    enum { DRAWS = 40000 };
    double sum = 0.0;
    int counts[4] = {0};

    for (uint64_t position = 0; position < DRAWS; position++) {
        counts[eep_sample(&sampling, logits, 4, position, work)]++;
    }
    for (int i = 0; i < 4; i++) {
        sum += exp(logits[i] / 0.8);
    }
    for (int i = 0; i < 4; i++) { /* five standard deviations are below 0.013 */
        ck_assert_double_eq_tol((double)counts[i] / DRAWS, exp(logits[i] / 0.8) / sum, 0.013);
    }
}
END_TEST

START_TEST(top_p_cuts_the_tail)
{
    const float logits[] = {0.0f, 1.0f, 2.0f, -1.0f}; /* p = 0.09 0.24 0.64 0.03 */
    const struct eep_sampling sampling = {.temperature = 1.0, .top_p = 0.8, .seed = 1};
    const struct eep_sampling both = {.temperature = 1.0, .top_k = 2, .top_p = 0.9, .seed = 1};
    bool seen[4] = {false};

    for (uint64_t position = 0; position < 2000; position++) {
        seen[eep_sample(&sampling, logits, 4, position, work)] = true;
    }
    ck_assert(!seen[0] && seen[1] && seen[2] && !seen[3]);
    memset(seen, 0, sizeof(seen));
    for (uint64_t position = 0; position < 2000; position++) {
        seen[eep_sample(&both, logits, 4, position, work)] = true;
    }
    ck_assert(!seen[0] && seen[1] && seen[2] && !seen[3]);
}
END_TEST

START_TEST(a_draw_depends_on_seed_and_position_alone)
{
    float logits[64];
    const struct eep_sampling a = {.temperature = 1.0, .top_p = 1.0, .seed = 7};
    const struct eep_sampling b = {.temperature = 1.0, .top_p = 1.0, .seed = 8};
    int same = 0;

    for (int i = 0; i < 64; i++) {
        logits[i] = (float)(i % 7) * 0.1f;
    }
    for (uint64_t position = 0; position < 100; position++) {
        const uint32_t first = eep_sample(&a, logits, 64, position, work);

        ck_assert_uint_eq(eep_sample(&a, logits, 64, position, work), first);
        same += eep_sample(&b, logits, 64, position, work) == first;
    }
    ck_assert_int_lt(same, 20);
}
END_TEST

START_TEST(likelihood_is_that_of_the_softmax)
{
    const float logits[] = {1000.0f, 1001.0f, 999.0f};
    const double z = log(exp(-1.0) + 1.0 + exp(-2.0));

    ck_assert_double_eq_tol(eep_negative_log_likelihood(logits, 3, 1), z, 1e-12);
    ck_assert_double_eq_tol(eep_negative_log_likelihood(logits, 3, 2), z + 2.0, 1e-12);
}
END_TEST

START_TEST(parameters_out_of_range_are_refused)
{
    const struct eep_sampling wrong[] = {
        {.temperature = -1.0, .top_p = 1.0},     {.temperature = NAN, .top_p = 1.0},
        {.temperature = INFINITY, .top_p = 1.0}, {.temperature = 1.0, .top_p = 0.0},
        {.temperature = 1.0, .top_p = 1.5},      {.temperature = 1.0, .top_p = NAN},
    };

    for (size_t i = 0; i < COUNT(wrong); i++) {
        ck_assert_int_eq(eep_sampling_check(&wrong[i]), EEP_ERR_INVALID);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        greedy_takes_the_largest_and_the_lower_of_equals,
        a_set_of_one_is_greedy,
        frequencies_are_those_of_the_softmax,
        top_p_cuts_the_tail,
        a_draw_depends_on_seed_and_position_alone,
        likelihood_is_that_of_the_softmax,
        parameters_out_of_range_are_refused,
    };

    return run_tests("sampler", tests, COUNT(tests));
}
