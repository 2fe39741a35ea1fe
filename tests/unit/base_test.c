/* Status codes and texts, checked memory, element types, random numbers. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

static enum eep_status fail_with_number(int number)
{
    return EEP_FAIL(EEP_ERR_FORMAT, "field %d is bad", number);
}

static enum eep_status pass_up(int number)
{
    EEP_TRY(fail_with_number(number));
    return EEP_OK;
}

START_TEST(a_failure_keeps_code_and_text)
{
    ck_assert_int_eq(pass_up(7), EEP_ERR_FORMAT);
    ck_assert_str_eq(eep_error_text(), "field 7 is bad");
    ck_assert_int_eq(eep_fail_context(EEP_ERR_FORMAT, "file %s", "x"), EEP_ERR_FORMAT);
    ck_assert_str_eq(eep_error_text(), "file x: field 7 is bad");
    eep_error_text_set(NULL);
    ck_assert_str_eq(eep_error_text(), "");
}
END_TEST

START_TEST(a_text_is_one_printable_line)
{
    ck_assert_int_eq(EEP_FAIL(EEP_ERR_IO, "tensor '%s'", "a\nb\033[2J\x7f \xc3\xa9"), EEP_ERR_IO);
    ck_assert_str_eq(eep_error_text(), "tensor 'a?b?[2J? \xc3\xa9'");
}
END_TEST

START_TEST(a_long_text_is_cut)
{
    char *longest = malloc(3 * EEP_ERROR_TEXT_MAX);

    memset(longest, 'a', 3 * EEP_ERROR_TEXT_MAX - 1);
    longest[3 * EEP_ERROR_TEXT_MAX - 1] = '\0';
    ck_assert_int_eq(EEP_FAIL(EEP_ERR_IO, "%s", longest), EEP_ERR_IO);
    ck_assert_uint_eq(strlen(eep_error_text()), EEP_ERROR_TEXT_MAX - 1);
    ck_assert_int_eq(eep_fail_context(EEP_ERR_IO, "%s", longest), EEP_ERR_IO);
    ck_assert_uint_eq(strlen(eep_error_text()), EEP_ERROR_TEXT_MAX - 1);
    free(longest);
}
END_TEST

START_TEST(each_code_tells_what_is_lost)
{
    const enum eep_status unknown = -1000;

    ck_assert_int_eq(eep_status_lost(EEP_OK), EEP_LOST_NOTHING);
    ck_assert_int_eq(eep_status_lost(EEP_ERR_INVALID), EEP_LOST_CALL);
    ck_assert_int_eq(eep_status_lost(EEP_ERR_NOMEM), EEP_LOST_RESOURCE);
    ck_assert_int_eq(eep_status_lost(EEP_ERR_PEER_LOST), EEP_LOST_PEER);
    ck_assert_int_eq(eep_status_lost(EEP_ERR_REVOKED), EEP_LOST_EPOCH);
    ck_assert_int_eq(eep_status_lost(unknown), EEP_LOST_PROCESS);
    ck_assert_str_eq(eep_status_text(EEP_ERR_NOMEM), "out of memory");
    ck_assert_ptr_nonnull(eep_status_text(unknown));
}
END_TEST

START_TEST(memory_is_aligned_and_zero)
{
    static const size_t counts[] = {0, 1, 63, 64, 65, 4096, (2 << 20) + 1};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        unsigned char *block = NULL, bits = 0;

        ck_assert_int_eq(eep_mem_alloc(counts[i], 1, "block", &block), EEP_OK);
        ck_assert_ptr_nonnull(block);
        ck_assert_uint_eq((uintptr_t)block % EEP_CACHE_LINE, 0);
        for (size_t k = 0; k < counts[i]; k++) {
            bits |= block[k];
        }
        ck_assert_uint_eq(bits, 0);
        eep_mem_free(block);
    }
    eep_mem_free(NULL);
}
END_TEST

START_TEST(memory_that_cannot_be_is_refused)
{
    void *block = &block;

    ck_assert_int_eq(eep_mem_alloc(SIZE_MAX / 2, 3, "monster", &block), EEP_ERR_NOMEM);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "monster"));
    ck_assert_int_eq(eep_mem_alloc(1, SIZE_MAX - 10, "monster", &block), EEP_ERR_NOMEM);
    ck_assert_ptr_eq(block, &block);
    eep_mem_fail_nth(2);
    ck_assert_int_eq(eep_mem_alloc(1, 1, "first", &block), EEP_OK);
    eep_mem_free(block);
    ck_assert_int_eq(eep_mem_alloc(1, 1, "second", &block), EEP_ERR_NOMEM);
    ck_assert_int_eq(eep_mem_alloc(1, 1, "third", &block), EEP_OK);
    eep_mem_free(block);
}
END_TEST

/* Every BF16 value survives the way to F32 and back; NaN stays NaN. */
START_TEST(bf16_round_trip)
{
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        float wide = eep_bf16_to_f32((uint16_t)bits);

        if (isnan(wide)) {
            ck_assert(isnan(eep_bf16_to_f32(eep_f32_to_bf16(wide))));
        } else {
            ck_assert_uint_eq(eep_f32_to_bf16(wide), bits);
        }
    }
}
END_TEST

START_TEST(bf16_rounds_to_nearest_even)
{
    ck_assert_uint_eq(eep_f32_to_bf16(1.0f), 0x3f80);
    ck_assert_uint_eq(eep_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    ck_assert_uint_eq(eep_f32_to_bf16(1.0f + 0x1.8p-7f), 0x3f82);
    ck_assert_uint_eq(eep_f32_to_bf16(1.0f + 0x1.02p-8f), 0x3f81);
    ck_assert_uint_eq(eep_f32_to_bf16(0x1.fffffep127f), 0x7f80);
}
END_TEST

/* Each F16 value against its definition, written another way. */
START_TEST(f16_is_exact)
{
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        int exponent = (int)(bits >> 10) & 31;
        double fraction = (double)(bits & 1023) / 1024;
        double sign = bits & 0x8000 ? -1.0 : 1.0;
        float wide = eep_f16_to_f32((uint16_t)bits);

        if (exponent == 31) {
            ck_assert((bits & 1023) == 0 ? isinf(wide) && (wide > 0) == (sign > 0) : isnan(wide));
        } else if (exponent == 0) {
            ck_assert_double_eq((double)wide, sign * ldexp(fraction, -14));
        } else {
            ck_assert_double_eq((double)wide, sign * ldexp(1 + fraction, exponent - 15));
        }
    }
}
END_TEST

/* Both FP8 types against their definitions: E4M3 has no infinity, E5M2 is the top of F16. */
START_TEST(f8_is_exact)
{
    for (uint32_t bits = 0; bits <= UINT8_MAX; bits++) {
        int exponent = (int)(bits >> 3) & 15;
        double fraction = (double)(bits & 7) / 8;
        double sign = bits & 0x80 ? -1.0 : 1.0;
        float e4m3 = eep_f8_e4m3_to_f32((uint8_t)bits);
        float e5m2 = eep_f8_e5m2_to_f32((uint8_t)bits);
        float top_of_f16 = eep_f16_to_f32((uint16_t)(bits << 8));

        if ((bits & 0x7f) == 0x7f) {
            ck_assert(isnan(e4m3));
        } else if (exponent == 0) {
            ck_assert_double_eq((double)e4m3, sign * ldexp(fraction, -6));
        } else {
            ck_assert_double_eq((double)e4m3, sign * ldexp(1 + fraction, exponent - 7));
        }
        ck_assert(isnan(top_of_f16) ? isnan(e5m2) : e5m2 == top_of_f16);
    }
}
END_TEST

START_TEST(widening_reads_any_alignment)
{
    unsigned char raw[1 + 3 * sizeof(uint16_t)];
    const uint16_t bf16[3] = {0x3f80, 0xc000, 0x4120};
    float wide[3];

    memcpy(raw + 1, bf16, sizeof(bf16));
    eep_dtype_widen(EEP_BF16, raw + 1, 3, wide);
    ck_assert_float_eq(wide[0], 1.0f);
    ck_assert_float_eq(wide[1], -2.0f);
    ck_assert_float_eq(wide[2], 10.0f);
}
END_TEST

START_TEST(every_dtype_has_name_and_size)
{
    for (int i = 0; i < EEP_DTYPE_COUNT; i++) {
        ck_assert_ptr_nonnull(eep_dtype_name((enum eep_dtype)i));
        ck_assert_uint_ge(eep_dtype_bytes((enum eep_dtype)i), 1);
        ck_assert_uint_le(eep_dtype_bytes((enum eep_dtype)i), 8);
        for (int k = 0; k < i; k++) {
            ck_assert_str_ne(eep_dtype_name((enum eep_dtype)i), eep_dtype_name((enum eep_dtype)k));
        }
    }
}
END_TEST

/* The first outputs of SplitMix64 from seed 1234567, as its authors' program prints them. */
START_TEST(rng_is_splitmix64)
{
    const uint64_t seed = 1234567;
    const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);

    ck_assert_uint_eq(eep_rng_mix(seed), UINT64_C(6457827717110365317));
    ck_assert_uint_eq(eep_rng_mix(seed + step), UINT64_C(3203168211198807973));
    ck_assert_uint_eq(eep_rng_mix(seed + 2 * step), UINT64_C(9817491932198370423));
}
END_TEST

START_TEST(rng_is_uniform)
{
    double sum = 0;

    for (uint64_t i = 0; i < 10000; i++) {
        double draw = eep_rng_uniform(3, i);

        ck_assert(draw >= 0 && draw < 1);
        sum += draw;
    }
    /* the mean of 10,000 draws: 0.5 within 5 standard deviations of 0.0029 */
    ck_assert_double_le(fabs(sum / 10000 - 0.5), 0.0145);
}
END_TEST

START_TEST(sizes)
{
    size_t product;

    ck_assert_uint_eq(eep_round_up(0, 64), 0);
    ck_assert_uint_eq(eep_round_up(1, 64), 64);
    ck_assert_uint_eq(eep_round_up(64, 64), 64);
    ck_assert_uint_eq(eep_div_up(7, 3), 3);
    ck_assert(eep_mul_ok(SIZE_MAX, 1, &product));
    ck_assert(!eep_mul_ok(SIZE_MAX / 2, 3, &product));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tests = tcase_create("base");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, a_failure_keeps_code_and_text);
    tcase_add_test(tests, a_text_is_one_printable_line);
    tcase_add_test(tests, a_long_text_is_cut);
    tcase_add_test(tests, each_code_tells_what_is_lost);
    tcase_add_test(tests, memory_is_aligned_and_zero);
    tcase_add_test(tests, memory_that_cannot_be_is_refused);
    tcase_add_test(tests, bf16_round_trip);
    tcase_add_test(tests, bf16_rounds_to_nearest_even);
    tcase_add_test(tests, f16_is_exact);
    tcase_add_test(tests, f8_is_exact);
    tcase_add_test(tests, widening_reads_any_alignment);
    tcase_add_test(tests, every_dtype_has_name_and_size);
    tcase_add_test(tests, rng_is_splitmix64);
    tcase_add_test(tests, rng_is_uniform);
    tcase_add_test(tests, sizes);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
