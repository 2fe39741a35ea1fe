/* Element types as files have them: a safetensors file of extreme values, and all of F16 and F8. */
#include <float.h>
#include <math.h>

#include "base/dtype.h"
#include "ckpt/ckpt.h"
#include "data.h"

static struct eep_safetensors *file;
static json_t *values;

static void set_up(void)
{
    json_t *cases = listed_cases("st/dtype-values");

    ck_assert_uint_eq(json_array_size(cases), 1);
    values = json_incref(json_object_get(json_array_get(cases, 0), "values"));
    json_decref(cases);
    ck_assert_int_eq(eep_safetensors_open(data_path("cases/st/dtype-values.safetensors"), &file),
                     EEP_OK);
}

static void tear_down(void)
{
    eep_safetensors_close(file);
    json_decref(values);
}

/* A listed value: a number, or "nan", "inf", "-inf". */
static double listed_value(const json_t *value)
{
    return json_is_string(value) ? strtod(json_string_value(value), NULL)
                                 : json_number_value(value);
}

static void assert_same(float has, double want)
{
    if (isnan(want)) {
        ck_assert(isnan(has));
        return;
    }
    ck_assert_double_eq((double)has, want);
    ck_assert_int_eq(signbit(has) != 0, signbit(want) != 0); /* -0 is not 0 */
}

START_TEST(floating_types_are_exact)
{
    static const struct {
        const char *name;
        enum eep_dtype dtype;
    } rows[] = {{"bf16", EEP_BF16}, {"f16", EEP_F16}, {"e4m3", EEP_F8_E4M3}, {"e5m2", EEP_F8_E5M2}};
    const struct eep_tensor *tensor = eep_safetensors_find(file, rows[_i].name);
    const json_t *want = json_object_get(values, rows[_i].name);
    float wide[16];

    ck_assert_ptr_nonnull(tensor);
    ck_assert_int_eq(tensor->dtype, rows[_i].dtype);
    ck_assert_uint_eq(tensor->count, json_array_size(want));
    ck_assert_uint_le(tensor->count, 16);
    eep_dtype_widen(tensor->dtype, tensor->data, tensor->count, wide);
    for (size_t i = 0; i < tensor->count; i++) {
        assert_same(wide[i], listed_value(json_array_get(want, i)));
    }
}
END_TEST

START_TEST(integers_and_booleans_are_exact)
{
    const struct eep_tensor *tensor = eep_safetensors_find(file, "i64");
    const json_t *want = json_object_get(values, "i64");

    ck_assert_int_eq(tensor->dtype, EEP_I64);
    for (size_t i = 0; i < tensor->count; i++) {
        int64_t value;

        memcpy(&value, (const char *)tensor->data + 8 * i, sizeof(value));
        ck_assert_int_eq(value, json_integer_value(json_array_get(want, i)));
    }
    tensor = eep_safetensors_find(file, "bool");
    want = json_object_get(values, "bool");
    ck_assert_int_eq(tensor->dtype, EEP_BOOL);
    for (size_t i = 0; i < tensor->count; i++) {
        ck_assert_int_eq(((const uint8_t *)tensor->data)[i],
                         json_integer_value(json_array_get(want, i)));
    }
}
END_TEST

/* What a small float is by the definition of its format. */
static double defined_value(unsigned bits, int exponent_bits, int mantissa_bits, bool has_infinity)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;

    if (has_infinity && exponent == (1 << exponent_bits) - 1) {
        return mantissa == 0.0 ? sign * INFINITY : (double)NAN;
    }
    return exponent == 0 ? sign * ldexp(mantissa, 1 - bias)
                         : sign * ldexp(1.0 + mantissa, exponent - bias);
}

START_TEST(every_small_float_is_what_its_format_says)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        assert_same(eep_f16_to_f32((uint16_t)bits), defined_value(bits, 5, 10, true));
    }
    for (unsigned bits = 0; bits < 256; bits++) {
        double e4m3 = (bits & 0x7f) == 0x7f ? (double)NAN : defined_value(bits, 4, 3, false);

        assert_same(eep_f8_e4m3_to_f32((uint8_t)bits), e4m3);
        assert_same(eep_f8_e5m2_to_f32((uint8_t)bits), defined_value(bits, 5, 2, true));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dtype");
    TCase *tests = tcase_create("dtype");

    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, floating_types_are_exact, 0, 4);
    tcase_add_test(tests, integers_and_booleans_are_exact);
    tcase_add_test(tests, every_small_float_is_what_its_format_says);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);

    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
