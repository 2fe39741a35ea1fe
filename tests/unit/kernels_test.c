/*
 * The kernels.
 *
 * Every operation of every backend that runs here gives the same bits as `ref`, over many shapes,
 * ends included; a NaN equals a NaN. `ref` itself is held against sums in double precision:
 *
 *     |sum - exact| <= k * 2^-24 * sum of |x w| (1 + small)
 *
 * because each of the k roundings of a chain errs by at most half a unit of a partial sum, and no
 * partial sum is larger than the sum of magnitudes. exp() is held to 2 units in the last place of
 * libm's double result, and what follows from it to a few.
 */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/backends.h"
#include "kernels/math.h"

static const char *const names[] = {"avx2", "avx512", "neon"};
static const struct eep_kernels *backends[3];
static size_t backend_count;
static const struct eep_kernels *ref;

static const size_t row_counts[] = {0, 1, 2, 3, 5, 6, 7, 12, 13, 25, 63, 64, 65, 97, 200};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define ROWS_MAX 200

static void *get(size_t count, size_t size)
{
    void *memory;

    ck_assert_int_eq(eep_mem_alloc(count, size, "test", &memory), EEP_OK);
    return memory;
}

static float *floats(size_t count)
{
    return get(count, sizeof(float));
}

/* Values of mixed sign and size; seed tells them apart. */
static void fill(float *x, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = eep_rng_bits(seed, i);

        x[i] = ldexpf((float)eep_rng_uniform(seed + 1, i) * 2.0f - 1.0f, (int)(bits % 9) - 5);
    }
}

static float *random_floats(size_t count, uint64_t seed)
{
    float *x = floats(count);

    fill(x, count, seed);
    return x;
}

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

#define check_same(got, want, count, ...)                                                          \
    do {                                                                                           \
        for (size_t i_ = 0; i_ < (count); i_++) {                                                  \
            if (!same_bits((got)[i_], (want)[i_])) {                                               \
                char text_[200];                                                                   \
                snprintf(text_, sizeof(text_), __VA_ARGS__);                                       \
                ck_abort_msg("%s: element %zu is %a, not %a", text_, i_, (double)(got)[i_],        \
                             (double)(want)[i_]);                                                  \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* A random matrix (n, k), row-major, and its panels. */
struct matrix {
    size_t n, k;
    float *values; /* what the panels hold, exactly */
    struct eep_panels panels;
    void *data;
};

static struct matrix matrix_make(enum eep_dtype dtype, size_t n, size_t k, uint64_t seed)
{
    struct matrix m = {.n = n, .k = k, .values = random_floats(n * k, seed)};

    m.data = get(eep_panels_bytes(dtype, n, k), 1);
    if (dtype == EEP_BF16) {
        uint16_t *bits = get(n * k, sizeof(*bits));

        for (size_t i = 0; i < n * k; i++) {
            bits[i] = eep_f32_to_bf16(m.values[i]);
            m.values[i] = eep_bf16_to_f32(bits[i]);
        }
        ref->pack(dtype, n, k, EEP_BF16, bits, m.data, 1);
        eep_mem_free(bits);
    } else {
        ref->pack(dtype, n, k, EEP_F32, m.values, m.data, 1);
    }
    m.panels = (struct eep_panels){dtype, (uint32_t)n, (uint32_t)k, m.data};
    return m;
}

static void matrix_free(struct matrix *m)
{
    eep_mem_free(m->values);
    eep_mem_free(m->data);
}

/* ---- exp ---- */

static double ulp_error(float got, double exact)
{
    int exponent;
    double unit;

    frexp(exact, &exponent);
    unit = ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
    return fabs((double)got - exact) / unit;
}

START_TEST(exp_is_accurate)
{
    double worst = 0.0;

    for (uint32_t bits = 0; bits < UINT32_C(0x7f800000); bits += 40009) {
        for (int sign = 0; sign < 2; sign++) {
            uint32_t both = bits | (uint32_t)sign << 31;
            float x;

            memcpy(&x, &both, sizeof(x));
            double exact = exp((double)x);
            if ((float)exact > 3.402823466e38f) {
                ck_assert(isinf(eep_expf(x)));
            } else {
                worst = fmax(worst, ulp_error(eep_expf(x), exact));
            }
        }
    }
    for (float x = -104.5f; x < 89.5f; x += 0.000977f) {
        double exact = exp((double)x);

        if ((float)exact <= 3.402823466e38f) {
            worst = fmax(worst, ulp_error(eep_expf(x), exact));
        }
    }
    ck_assert_double_le(worst, 2.0);
    ck_assert_double_gt(worst, 0.25); /* or the sweep saw nothing */
}
END_TEST

START_TEST(exp_of_special_values)
{
    ck_assert(eep_expf(0.0f) == 1.0f && eep_expf(-0.0f) == 1.0f);
    ck_assert(eep_expf(-INFINITY) == 0.0f && !signbit(eep_expf(-INFINITY)));
    ck_assert(isinf(eep_expf(INFINITY)) && eep_expf(INFINITY) > 0.0f);
    ck_assert(isnan(eep_expf(NAN)) && isnan(eep_expf(-NAN)));
    ck_assert(eep_expf(88.72283f) < INFINITY && eep_expf(88.7229f) == INFINITY);
    ck_assert(eep_expf(-103.9f) > 0.0f && eep_expf(-103.98f) == 0.0f);
    ck_assert(eep_siluf(0.0f) == 0.0f && eep_sigmoidf(0.0f) == 0.5f);
    ck_assert(eep_sigmoidf(-200.0f) == 0.0f && eep_sigmoidf(200.0f) == 1.0f);
}
END_TEST

/* ---- pack ---- */

static float panel_value(enum eep_dtype dtype, const void *data, size_t k, size_t column, size_t at,
                         size_t step)
{
    size_t line = column / 32 * step * k + at;

    if (dtype == EEP_F32) {
        return ((const float *)data)[line * 32 + column % 32];
    }
    uint32_t word = ((const uint32_t *)data)[line * 16 + column % 16];
    return eep_bf16_to_f32((uint16_t)(column % 32 < 16 ? word : word >> 16));
}

static void check_pack(const struct eep_kernels *kernels, enum eep_dtype dtype,
                       enum eep_dtype src_dtype, size_t n, size_t k, size_t step)
{
    size_t bytes = eep_dtype_bytes(src_dtype);
    unsigned char *src = get(n * k + 1, bytes);
    unsigned char *odd = src + 1; /* not aligned to anything */
    size_t panels = eep_div_up(n, 32) * step;
    char *dst = get(panels, eep_panels_bytes(dtype, 32, k));
    float *values = floats(n * k);

    for (size_t i = 0; i < n * k * bytes; i++) {
        odd[i] = (unsigned char)eep_rng_bits(n + k, i);
    }
    eep_dtype_widen(src_dtype, odd, n * k, values);
    kernels->pack(dtype, n, k, src_dtype, odd, dst, step);
    for (size_t c = 0; c < eep_panel_round(n); c++) {
        for (size_t at = 0; at < k; at++) {
            float want = c < n ? values[c * k + at] : 0.0f;

            if (!same_bits(panel_value(dtype, dst, k, c, at, step), want)) {
                ck_abort_msg("%s pack of %s to %s, (%zu, %zu): column %zu at %zu", kernels->name,
                             eep_dtype_name(src_dtype), eep_dtype_name(dtype), n, k, c, at);
            }
        }
    }
    if (step == 2) { /* the panels between are somebody else's */
        const char *between = dst + eep_panels_bytes(dtype, 32, k);

        for (size_t i = 0; i < eep_panels_bytes(dtype, 32, k); i++) {
            if (between[i] != 0) {
                ck_abort_msg("%s pack wrote to another's panel", kernels->name);
            }
        }
    }
    eep_mem_free(src);
    eep_mem_free(dst);
    eep_mem_free(values);
}

START_TEST(pack_any_source)
{
    static const size_t ns[] = {1, 15, 16, 17, 31, 32, 33, 72};
    static const size_t ks[] = {1, 6, 20, 63, 64, 65, 200};
    const struct eep_kernels *all[4] = {ref, backends[0], backends[1], backends[2]};

    for (size_t b = 0; b <= backend_count; b++) {
        for (size_t i = 0; i < COUNT(ns); i++) {
            for (size_t j = 0; j < COUNT(ks); j++) {
                for (size_t step = 1; step <= 2; step++) {
                    check_pack(all[b], EEP_F32, EEP_F32, ns[i], ks[j], step);
                    check_pack(all[b], EEP_F32, EEP_F16, ns[i], ks[j], step);
                    check_pack(all[b], EEP_F32, EEP_BF16, ns[i], ks[j], step);
                    check_pack(all[b], EEP_BF16, EEP_BF16, ns[i], ks[j], step);
                }
            }
        }
    }
}
END_TEST

/* ---- gemm ---- */

static void check_gemm_shape(enum eep_dtype dtype, size_t n, size_t k, size_t rows_max)
{
    size_t x_stride = k + 3, y_stride = eep_panel_round(n) + 5;
    struct matrix m = matrix_make(dtype, n, k, n * 1000 + k);
    float *x = random_floats(rows_max * x_stride, k);
    float *bias = random_floats(eep_panel_round(n), n);
    float *want = floats(rows_max * y_stride);
    float *got = floats(rows_max * y_stride);
    struct eep_gemm gemm = {&m.panels, x, x_stride, rows_max, want, y_stride, NULL};

    for (int with_bias = 0; with_bias < 2; with_bias++) {
        gemm.bias = with_bias ? bias : NULL;
        gemm.rows = rows_max;
        gemm.y = want;
        memset(want, 0x5a, rows_max * y_stride * sizeof(float));
        ref->gemm(&gemm);
        gemm.y = got;
        for (size_t b = 0; b < backend_count; b++) {
            for (size_t i = 0; i < COUNT(row_counts) && row_counts[i] <= rows_max; i++) {
                memset(got, 0x5a, rows_max * y_stride * sizeof(float));
                gemm.rows = row_counts[i];
                backends[b]->gemm(&gemm);
                /* All of each row: what lies past panel_round(n) stays as it was. */
                check_same(got, want, gemm.rows * y_stride, "%s gemm %s n %zu k %zu rows %zu",
                           backends[b]->name, eep_dtype_name(dtype), n, k, gemm.rows);
                for (size_t j = gemm.rows * y_stride; j < rows_max * y_stride; j++) {
                    if (memcmp(&got[j], "\x5a\x5a\x5a\x5a", 4) != 0) {
                        ck_abort_msg("%s gemm wrote behind its rows", backends[b]->name);
                    }
                }
            }
        }
    }
    matrix_free(&m);
    eep_mem_free(x);
    eep_mem_free(bias);
    eep_mem_free(want);
    eep_mem_free(got);
}

static const enum eep_dtype weight_dtypes[] = {EEP_F32, EEP_BF16};

START_TEST(gemm_equals_ref)
{
    static const size_t ks[] = {1, 2, 3, 6, 7, 20, 127, 128, 129, 255, 256, 257, 768};
    static const size_t ns[] = {1, 6, 31, 32, 33, 72};

    for (size_t i = 0; i < COUNT(ks); i++) {
        for (size_t j = 0; j < COUNT(ns); j++) {
            check_gemm_shape(weight_dtypes[_i], ns[j], ks[i], ks[i] < 200 ? 200 : 65);
        }
    }
    check_gemm_shape(weight_dtypes[_i], 300, 20, 200);
    check_gemm_shape(weight_dtypes[_i], 768, 20, 65);
    check_gemm_shape(weight_dtypes[_i], 33, 2048, 200);
    check_gemm_shape(weight_dtypes[_i], 768, 2048, 13);
    check_gemm_shape(weight_dtypes[_i], 33, 12345, 25); /* more than is packed at a time */
}
END_TEST

START_TEST(gemm_near_exact)
{
    static const size_t ks[] = {1, 20, 256, 2048};

    for (size_t i = 0; i < COUNT(ks); i++) {
        size_t k = ks[i], n = 33, rows = 7;
        struct matrix m = matrix_make(weight_dtypes[_i], n, k, k);
        float *x = random_floats(rows * k, k + 1);
        float y[7 * 64];
        struct eep_gemm gemm = {&m.panels, x, k, rows, y, 64, NULL};

        ref->gemm(&gemm);
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < n; c++) {
                double sum = 0.0, size = 0.0;

                for (size_t at = 0; at < k; at++) {
                    double product = (double)x[r * k + at] * (double)m.values[c * k + at];
                    sum += product;
                    size += fabs(product);
                }
                ck_assert_double_le(fabs((double)y[r * 64 + c] - sum),
                                    (double)k * 0x1p-24 * size * 1.01);
            }
        }
        matrix_free(&m);
        eep_mem_free(x);
    }
}
END_TEST

/* inf and NaN in one row stay in that row, and in its own columns. */
START_TEST(gemm_special_values)
{
    size_t k = 300, n = 40, rows = 14;
    struct matrix m = matrix_make(weight_dtypes[_i], n, k, 5);
    float *x = random_floats(rows * k, 6);
    float *want = floats(rows * 64), *got = floats(rows * 64);
    struct eep_gemm gemm = {&m.panels, x, k, rows, want, 64, NULL};

    x[3 * k + 17] = NAN;
    x[5 * k + 299] = INFINITY;
    x[13 * k] = -INFINITY;
    x[7 * k + 2] = 3e38f;
    x[8 * k + 2] = 1e-44f;
    ref->gemm(&gemm);
    gemm.y = got;
    for (size_t b = 0; b < backend_count; b++) {
        backends[b]->gemm(&gemm);
        check_same(got, want, rows * 64, "%s gemm of special values", backends[b]->name);
    }
    matrix_free(&m);
    eep_mem_free(x);
    eep_mem_free(want);
    eep_mem_free(got);
}
END_TEST

START_TEST(gemm_any_threads)
{
    size_t k = 700, n = 333, rows = 29, stride = eep_panel_round(n);
    struct matrix m = matrix_make(weight_dtypes[_i], n, k, 9);
    float *x = random_floats(rows * k, 10);
    float *want = floats(rows * stride), *got = floats(rows * stride);
    struct eep_gemm gemm = {&m.panels, x, k, rows, want, stride, NULL};
    int before = omp_get_max_threads();

    ref->gemm(&gemm);
    gemm.y = got;
    for (int threads = 1; threads <= 5; threads++) {
        omp_set_num_threads(threads);
        for (size_t b = 0; b < backend_count; b++) {
            memset(got, 0xff, rows * stride * sizeof(float));
            backends[b]->gemm(&gemm);
            check_same(got, want, rows * stride, "%s gemm, %d threads", backends[b]->name, threads);
        }
    }
    omp_set_num_threads(before);
    matrix_free(&m);
    eep_mem_free(x);
    eep_mem_free(want);
    eep_mem_free(got);
}
END_TEST

/* ---- ffn ---- */

#define EXPERTS 7

struct experts {
    struct eep_ffn_weights weights[EXPERTS];
    void *data[EXPERTS][2];
};

static void experts_make(struct experts *e, enum eep_dtype dtype, size_t hidden, size_t width)
{
    for (size_t i = 0; i < EXPERTS; i++) {
        struct matrix gate = matrix_make(dtype, width, hidden, 100 + i);
        struct matrix up = matrix_make(dtype, width, hidden, 200 + i);
        struct matrix down = matrix_make(dtype, hidden, width, 300 + i);
        size_t panel = eep_panels_bytes(dtype, 32, hidden);
        char *both = get(eep_ffn_gate_up_bytes(dtype, hidden, width), 1);

        for (size_t p = 0; p < eep_div_up(width, 32); p++) {
            memcpy(both + 2 * p * panel, (char *)gate.data + p * panel, panel);
            memcpy(both + (2 * p + 1) * panel, (char *)up.data + p * panel, panel);
        }
        e->data[i][0] = both;
        e->data[i][1] = down.data;
        e->weights[i] =
            (struct eep_ffn_weights){dtype, (uint32_t)hidden, (uint32_t)width, both, down.data};
        eep_mem_free(down.values);
        matrix_free(&gate);
        matrix_free(&up);
    }
}

static void experts_free(struct experts *e)
{
    for (size_t i = 0; i < EXPERTS; i++) {
        eep_mem_free(e->data[i][0]);
        eep_mem_free(e->data[i][1]);
    }
}

static void check_ffn(enum eep_dtype dtype, size_t hidden, size_t width, const uint32_t *rows)
{
    struct experts e;
    struct eep_ffn_group groups[EXPERTS];
    uint32_t x_rows[1024], y_rows[1024];
    size_t total = 0, x_stride = hidden + 1, y_stride = eep_panel_round(hidden) + 2;
    int before = omp_get_max_threads();

    experts_make(&e, dtype, hidden, width);
    for (size_t g = 0; g < EXPERTS; g++) {
        groups[g] = (struct eep_ffn_group){&e.weights[g], rows[g], x_rows + total, y_rows + total};
        total += rows[g];
    }
    ck_assert_uint_le(total, COUNT(x_rows));
    for (size_t i = 0; i < total; i++) {
        x_rows[i] = (uint32_t)(eep_rng_bits(1, i) % 17);
        y_rows[i] = (uint32_t)(total - 1 - i);
    }
    float *x = random_floats(17 * x_stride, 77);
    float *want = floats(total * y_stride), *got = floats(total * y_stride);
    struct eep_ffn ffn = {groups,   EXPERTS, (uint32_t)hidden, (uint32_t)width, x, x_stride, want,
                          y_stride, NULL};

    ffn.scratch = get(ref->ffn_scratch_bytes(total, width), 1);
    ref->ffn(&ffn);
    eep_mem_free(ffn.scratch);
    ffn.y = got;
    for (size_t b = 0; b < backend_count; b++) {
        ffn.scratch = get(backends[b]->ffn_scratch_bytes(total, width), 1);
        for (int threads = 1; threads <= 3; threads++) {
            omp_set_num_threads(threads);
            memset(got, 0, total * y_stride * sizeof(float));
            backends[b]->ffn(&ffn);
            check_same(got, want, total * y_stride, "%s ffn %s hidden %zu width %zu threads %d",
                       backends[b]->name, eep_dtype_name(dtype), hidden, width, threads);
        }
        eep_mem_free(ffn.scratch);
    }
    omp_set_num_threads(before);
    eep_mem_free(x);
    eep_mem_free(want);
    eep_mem_free(got);
    experts_free(&e);
}

START_TEST(ffn_equals_ref)
{
    static const uint32_t none[EXPERTS] = {0};
    static const uint32_t one[EXPERTS] = {0, 0, 0, 1, 0, 0, 0};
    static const uint32_t few[EXPERTS] = {1, 0, 2, 3, 5, 0, 6};
    static const uint32_t many[EXPERTS] = {0, 13, 64, 1, 200, 7, 65};
    static const size_t shapes[][2] = {{20, 6}, {32, 32}, {64, 72}, {72, 33}, {300, 40}};

    for (size_t i = 0; i < COUNT(shapes); i++) {
        check_ffn(weight_dtypes[_i], shapes[i][0], shapes[i][1], none);
        check_ffn(weight_dtypes[_i], shapes[i][0], shapes[i][1], one);
        check_ffn(weight_dtypes[_i], shapes[i][0], shapes[i][1], few);
        check_ffn(weight_dtypes[_i], shapes[i][0], shapes[i][1], many);
    }
    check_ffn(weight_dtypes[_i], 2048, 96, few);
}
END_TEST

/* ref's ffn is its gemm and silu, in doubles to a relative bound that the shapes allow. */
START_TEST(ffn_near_exact)
{
    size_t hidden = 64, width = 40;
    struct matrix gate = matrix_make(EEP_F32, width, hidden, 1);
    struct matrix up = matrix_make(EEP_F32, width, hidden, 2);
    struct matrix down = matrix_make(EEP_F32, hidden, width, 3);
    char *both = get(eep_ffn_gate_up_bytes(EEP_F32, hidden, width), 1);
    struct eep_ffn_weights w = {EEP_F32, 64, 40, both, down.data};
    uint32_t zero = 0;
    struct eep_ffn_group group = {&w, 1, &zero, &zero};
    float *x = random_floats(hidden, 4);
    float y[64], scratch[64];
    struct eep_ffn ffn = {&group, 1, 64, 40, x, 64, y, 64, scratch};
    double inner[40];

    ref->pack(EEP_F32, width, hidden, EEP_F32, gate.values, both, 2);
    ref->pack(EEP_F32, width, hidden, EEP_F32, up.values, both + eep_panels_bytes(EEP_F32, 32, 64),
              2);
    ref->ffn(&ffn);
    for (size_t c = 0; c < width; c++) {
        double g = 0.0, u = 0.0;

        for (size_t i = 0; i < hidden; i++) {
            g += (double)x[i] * (double)gate.values[c * hidden + i];
            u += (double)x[i] * (double)up.values[c * hidden + i];
        }
        inner[c] = g / (1.0 + exp(-g)) * u;
    }
    for (size_t c = 0; c < hidden; c++) {
        double sum = 0.0, size = 0.0;

        for (size_t i = 0; i < width; i++) {
            sum += inner[i] * (double)down.values[c * width + i];
            size += fabs(inner[i] * (double)down.values[c * width + i]);
        }
        /* Chains of 64 and 40, and the errors of silu: far below 2^-24 * 1000 of the magnitudes. */
        ck_assert_double_le(fabs((double)y[c] - sum), 1000 * 0x1p-24 * (size + 0.01));
    }
    matrix_free(&gate);
    matrix_free(&up);
    matrix_free(&down);
    eep_mem_free(both);
    eep_mem_free(x);
}
END_TEST

/* ---- attention ---- */

struct attention_case {
    uint32_t heads, kv_heads, head_dim, window;
    uint32_t seq_count;
    uint32_t first_pos[4], rows[4];
};

static const struct attention_case attention_cases[] = {
    {1, 1, 8, 0, 1, {0}, {1}},
    {4, 2, 16, 0, 1, {0}, {70}},
    {6, 2, 6, 0, 3, {0, 31, 100}, {5, 1, 40}},
    {8, 1, 33, 0, 2, {63, 0}, {1, 33}},
    {4, 4, 128, 0, 2, {290, 5}, {30, 3}},
    {8, 2, 64, 40, 3, {0, 300, 39}, {100, 1, 2}},
    {2, 2, 20, 1, 1, {0}, {50}},
    {4, 1, 32, 7, 2, {500, 0}, {65, 12}},
    {2, 1, 300, 0, 1, {10}, {9}},
    {3, 1, 576, 33, 1, {60}, {30}},
    {32, 4, 128, 0, 4, {700, 0, 1, 255}, {1, 1, 1, 1}},
};

struct attention_data {
    struct eep_kv_layer cache;
    struct eep_attention_seq seqs[4];
    uint32_t *blocks[4];
    float *q, *out;
    size_t rows, q_stride, context;
};

/* Caches with every position before and of the rows stored, all else NaN; blocks not in order. */
static void attention_make(struct attention_data *d, const struct attention_case *c)
{
    size_t block_count = 0, kv_width = (size_t)c->kv_heads * c->head_dim;

    *d = (struct attention_data){.q_stride = (size_t)c->heads * c->head_dim + 3};
    for (uint32_t s = 0; s < c->seq_count; s++) {
        size_t end = c->first_pos[s] + c->rows[s];

        d->context = EEP_MAX(d->context, end);
        block_count += eep_div_up(end, 32);
    }
    d->cache =
        (struct eep_kv_layer){.block_stride = eep_kv_block_floats(c->kv_heads, c->head_dim) + 16,
                              .kv_heads = c->kv_heads,
                              .head_dim = c->head_dim};
    d->cache.kv = floats(block_count * d->cache.block_stride);
    for (size_t i = 0; i < block_count * d->cache.block_stride; i++) {
        d->cache.kv[i] = NAN;
    }
    uint32_t next = (uint32_t)block_count;
    for (uint32_t s = 0; s < c->seq_count; s++) {
        size_t end = c->first_pos[s] + c->rows[s];
        float *k = random_floats(end * kv_width, 40 + s),
              *v = random_floats(end * kv_width, 50 + s);

        d->blocks[s] = get(eep_div_up(end, 32), sizeof(uint32_t));
        for (size_t b = 0; b < eep_div_up(end, 32); b++) {
            d->blocks[s][b] = --next;
        }
        struct eep_attention_seq all = {0, (uint32_t)end, 0, d->blocks[s]};
        ref->kv_store(&d->cache, &all, 1, k, kv_width, v, kv_width);
        d->seqs[s] = (struct eep_attention_seq){(uint32_t)d->rows, c->rows[s], c->first_pos[s],
                                                d->blocks[s]};
        d->rows += c->rows[s];
        eep_mem_free(k);
        eep_mem_free(v);
    }
    d->q = random_floats(d->rows * d->q_stride, 60);
    d->out = floats(d->rows * d->q_stride);
}

static void attention_drop(struct attention_data *d)
{
    for (size_t s = 0; s < 4; s++) {
        eep_mem_free(d->blocks[s]);
    }
    eep_mem_free(d->cache.kv);
    eep_mem_free(d->q);
    eep_mem_free(d->out);
}

static void attention_run(const struct eep_kernels *kernels, const struct attention_case *c,
                          const struct attention_data *d, const struct eep_attention_seq *seqs,
                          size_t seq_count, float *out)
{
    uint32_t context = (uint32_t)d->context;
    struct eep_attention a = {
        .cache = &d->cache,
        .seqs = seqs,
        .seq_count = seq_count,
        .heads = c->heads,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .window = c->window,
        .q = d->q,
        .q_stride = d->q_stride,
        .out = out,
        .out_stride = d->q_stride,
        .scratch = get(kernels->attention_scratch_bytes(c->heads, c->head_dim, context), 1),
        .max_context = context,
    };

    kernels->attention(&a);
    eep_mem_free(a.scratch);
}

START_TEST(attention_equals_ref)
{
    const struct attention_case *c = &attention_cases[_i];
    struct attention_data d;
    int before = omp_get_max_threads();

    attention_make(&d, c);
    attention_run(ref, c, &d, d.seqs, c->seq_count, d.out);
    for (size_t i = 0; i < d.rows; i++) {
        for (size_t j = 0; j < (size_t)c->heads * c->head_dim; j++) {
            ck_assert(isfinite(d.out[i * d.q_stride + j]));
        }
    }
    for (size_t b = 0; b < backend_count; b++) {
        for (int threads = 1; threads <= 3; threads++) {
            float *got = floats(d.rows * d.q_stride);

            omp_set_num_threads(threads);
            attention_run(backends[b], c, &d, d.seqs, c->seq_count, got);
            check_same(got, d.out, d.rows * d.q_stride, "%s attention case %d, %d threads",
                       backends[b]->name, _i, threads);
            eep_mem_free(got);
        }
    }
    omp_set_num_threads(before);
    attention_drop(&d);
}
END_TEST

/* The same rows in pieces of any size give the same bits. */
START_TEST(attention_any_chunks)
{
    const struct attention_case *c = &attention_cases[_i];
    struct attention_data d;

    attention_make(&d, c);
    attention_run(ref, c, &d, d.seqs, c->seq_count, d.out);
    for (size_t b = 0; b < backend_count; b++) {
        for (uint32_t chunk = 1; chunk <= 40; chunk = chunk * 3 + 1) {
            float *got = floats(d.rows * d.q_stride);

            for (uint32_t s = 0; s < c->seq_count; s++) {
                for (uint32_t r = 0; r < c->rows[s]; r += chunk) {
                    struct eep_attention_seq piece = d.seqs[s];

                    piece.first_row += r;
                    piece.first_pos += r;
                    piece.rows = EEP_MIN(chunk, c->rows[s] - r);
                    attention_run(backends[b], c, &d, &piece, 1, got);
                }
            }
            check_same(got, d.out, d.rows * d.q_stride, "%s attention case %d in chunks of %u",
                       backends[b]->name, _i, chunk);
            eep_mem_free(got);
        }
    }
    attention_drop(&d);
}
END_TEST

/* Softmax of scores times values, in doubles, read back through the cache's own layout. */
START_TEST(attention_near_exact)
{
    size_t context = 77, dim = 20;
    struct attention_case c = {2, 1, 20, 0, 1, {0}, {77}};
    struct attention_data d;
    float *k = random_floats(context * dim, 40), *v = random_floats(context * dim, 50);

    attention_make(&d, &c); /* stores the same k and v: the seeds are equal */
    attention_run(ref, &c, &d, d.seqs, 1, d.out);
    for (size_t pos = 0; pos < context; pos++) {
        for (size_t h = 0; h < 2; h++) {
            double weight[77], sum = 0.0, top = -INFINITY;

            for (size_t at = 0; at <= pos; at++) {
                double score = 0.0;

                for (size_t i = 0; i < dim; i++) {
                    score += (double)d.q[pos * d.q_stride + h * dim + i] * (double)k[at * dim + i];
                }
                weight[at] = score / sqrt((double)dim);
                top = fmax(top, weight[at]);
            }
            for (size_t at = 0; at <= pos; at++) {
                weight[at] = exp(weight[at] - top);
                sum += weight[at];
            }
            for (size_t i = 0; i < dim; i++) {
                double exact = 0.0, size = 0.0;

                for (size_t at = 0; at <= pos; at++) {
                    exact += weight[at] / sum * (double)v[at * dim + i];
                    size += weight[at] / sum * fabs((double)v[at * dim + i]);
                }
                /* Scores below 16 err by 20 * 2^-24 * 16, which exp passes on; the rest is less. */
                ck_assert_double_le(fabs((double)d.out[pos * d.q_stride + h * dim + i] - exact),
                                    1000 * 0x1p-24 * size);
            }
        }
    }
    eep_mem_free(k);
    eep_mem_free(v);
    attention_drop(&d);
}
END_TEST

/* kv_store by pieces and backends leaves the same cache as ref's at once. */
START_TEST(kv_store_equals_ref)
{
    uint32_t blocks[4] = {2, 0, 3, 1};
    struct eep_kv_layer want = {.kv_heads = 2, .head_dim = 40};
    float *k = random_floats(100 * 85, 1), *v = random_floats(100 * 81, 2);

    want.block_stride = eep_kv_block_floats(2, 40) + 32;
    struct eep_kv_layer got = want;
    want.kv = floats(4 * want.block_stride);
    got.kv = floats(4 * want.block_stride);
    struct eep_attention_seq all = {0, 100, 3, blocks};
    ref->kv_store(&want, &all, 1, k, 85, v, 81);
    for (size_t b = 0; b < backend_count; b++) {
        struct eep_attention_seq pieces[3] = {
            {0, 1, 3, blocks}, {1, 60, 4, blocks}, {61, 39, 64, blocks}};

        memset(got.kv, 0, 4 * want.block_stride * sizeof(float));
        backends[b]->kv_store(&got, pieces, 3, k, 85, v, 81);
        check_same(got.kv, want.kv, 4 * want.block_stride, "%s kv_store", backends[b]->name);
    }
    ck_assert(want.kv[2 * want.block_stride + 3] == k[0]); /* position 3, head 0, dim 0 */
    ck_assert(want.kv[2 * want.block_stride + 5 * 32 + 4] == k[85 + 5]);
    ck_assert(want.kv[2 * want.block_stride + 40 * 32 + 3 * 32 + 7] == v[7]);
    eep_mem_free(want.kv);
    eep_mem_free(got.kv);
    eep_mem_free(k);
    eep_mem_free(v);
}
END_TEST

/*
 * The bits themselves, of all steps of a small layer: other compilers and processors must give them
 * too. Whoever changes the order of operations on purpose puts the new value here.
 */
START_TEST(bits_are_known)
{
    struct attention_case c = {4, 2, 32, 0, 1, {0}, {50}};
    struct attention_data d;
    struct matrix m = matrix_make(EEP_BF16, 64, 128, 21);
    float *y = floats((size_t)50 * 64), *weight = random_floats(128, 22);
    struct eep_gemm gemm = {&m.panels, NULL, 131, 50, y, 64, NULL};
    uint64_t hash = UINT64_C(1469598103934665603); /* FNV-1a */

    attention_make(&d, &c);
    attention_run(ref, &c, &d, d.seqs, 1, d.out);
    ref->rmsnorm(d.out, 131, 50, 1, 128, weight, 1e-6f, d.out, 131);
    gemm.x = d.out;
    ref->gemm(&gemm);
    ref->softmax(y, 64, 50, 64);
    for (size_t i = 0; i < (size_t)50 * 64; i++) {
        uint32_t bits;

        memcpy(&bits, &y[i], sizeof(bits));
        hash = (hash ^ bits) * UINT64_C(1099511628211);
    }
    ck_assert_uint_eq(hash, UINT64_C(16159365195812860018));
    matrix_free(&m);
    eep_mem_free(y);
    eep_mem_free(weight);
    attention_drop(&d);
}
END_TEST

/* ---- rows ---- */

static const size_t widths[] = {1, 2, 6, 8, 15, 16, 17, 20, 31, 32, 33, 64, 72, 100, 768, 2048};

/* A few rows with extremes beside ordinary ones. */
static float *special_rows(size_t rows, size_t stride, uint64_t seed)
{
    float *x = random_floats(rows * stride, seed);

    x[1 * stride] = INFINITY;
    x[2 * stride] = NAN;
    for (size_t i = 0; i < stride; i++) {
        x[3 * stride + i] = -INFINITY;
        x[4 * stride + i] *= 100.0f;
        x[5 * stride + i] *= 1e-41f;
        x[6 * stride + i] = i % 2 ? 0.0f : -0.0f;
    }
    x[7 * stride] = -INFINITY;
    return x;
}

#define ROWS 41

START_TEST(row_operations_equal_ref)
{
    size_t n = widths[_i], stride = n + 5;
    float *x = special_rows(ROWS, stride, n), *y = special_rows(ROWS, stride, n + 1);
    float *gate = special_rows(ROWS, 3, n + 2), *weight = random_floats(n, 8);
    float *want = floats(ROWS * stride), *got = floats(ROWS * stride);
    size_t bytes = ROWS * stride * sizeof(float);

    for (size_t b = 0; b < backend_count; b++) {
        const struct eep_kernels *kernels = backends[b];

        memcpy(want, x, bytes);
        memcpy(got, x, bytes);
        ref->softmax(want, stride, ROWS, n);
        kernels->softmax(got, stride, ROWS, n);
        check_same(got, want, ROWS * stride, "%s softmax %zu", kernels->name, n);

        ref->add(want, stride, y, stride, ROWS, n);
        kernels->add(got, stride, y, stride, ROWS, n);
        check_same(got, want, ROWS * stride, "%s add %zu", kernels->name, n);

        memcpy(want, x, bytes);
        memcpy(got, x, bytes);
        ref->add_gated(want, stride, y, stride, gate, 3, ROWS, n);
        kernels->add_gated(got, stride, y, stride, gate, 3, ROWS, n);
        check_same(got, want, ROWS * stride, "%s add_gated %zu", kernels->name, n);

        memcpy(want, x, bytes);
        memcpy(got, x, bytes);
        ref->rmsnorm(want, stride, ROWS, 1, n, weight, 1e-6f, want, stride);
        kernels->rmsnorm(got, stride, ROWS, 1, n, weight, 1e-6f, got, stride);
        check_same(got, want, ROWS * stride, "%s rmsnorm %zu", kernels->name, n);
    }
    eep_mem_free(x);
    eep_mem_free(y);
    eep_mem_free(gate);
    eep_mem_free(weight);
    eep_mem_free(want);
    eep_mem_free(got);
}
END_TEST

START_TEST(rmsnorm_of_parts)
{
    size_t n = 20, parts = 3, stride = 70;
    float *x = random_floats(9 * stride, 3), *weight = random_floats(n, 4);
    float *want = floats(9 * stride), *got = floats(9 * stride);

    ref->rmsnorm(x, stride, 9, parts, n, weight, 1e-5f, want, stride);
    for (size_t b = 0; b < backend_count; b++) {
        backends[b]->rmsnorm(x, stride, 9, parts, n, weight, 1e-5f, got, stride);
        check_same(got, want, 9 * stride, "%s rmsnorm of parts", backends[b]->name);
    }
    for (size_t i = 0; i < 9 * parts; i++) {
        const float *part = x + i / parts * stride + i % parts * n;
        const float *norm = want + i / parts * stride + i % parts * n;
        double sum = 0.0;

        for (size_t j = 0; j < n; j++) {
            sum += (double)part[j] * (double)part[j];
        }
        for (size_t j = 0; j < n; j++) {
            double exact = (double)part[j] / sqrt(sum / (double)n + 1e-5) * (double)weight[j];

            /* 2 roundings per lane, 4 levels, then division, root, inverse and two products. */
            ck_assert_double_le(fabs((double)norm[j] - exact), 12 * 0x1p-24 * fabs(exact));
        }
    }
    eep_mem_free(x);
    eep_mem_free(weight);
    eep_mem_free(want);
    eep_mem_free(got);
}
END_TEST

START_TEST(softmax_near_exact)
{
    size_t n = widths[_i];
    float *x = random_floats(n, 12), *y = floats(n);
    double top = -INFINITY, sum = 0.0;

    memcpy(y, x, n * sizeof(float));
    ref->softmax(y, n, 1, n);
    for (size_t i = 0; i < n; i++) {
        top = fmax(top, (double)x[i]);
    }
    for (size_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - top);
    }
    for (size_t i = 0; i < n; i++) {
        double exact = exp((double)x[i] - top) / sum;

        /* The difference errs by 2^-24 of up to 16; exp by 2; the lanes by n / 16 + 4. */
        ck_assert_double_le(fabs((double)y[i] - exact),
                            (double)(16 + 4 + 2 + n / 16 + 4) * 0x1p-24 * exact);
    }
    eep_mem_free(x);
    eep_mem_free(y);
}
END_TEST

START_TEST(rope_equals_ref)
{
    static const size_t dims[] = {2, 6, 8, 16, 20, 64, 128, 300, 576};
    size_t dim = dims[_i], heads = 5, rows = 33, stride = heads * dim + 1;
    float *x = random_floats(rows * stride, dim), *angles = floats(rows * dim);
    float *want = floats(rows * stride), *got = floats(rows * stride);

    for (size_t i = 0; i < rows * dim / 2; i++) {
        angles[2 * i] = (float)cos((double)i * 0.37);
        angles[2 * i + 1] = (float)sin((double)i * 0.37);
    }
    memcpy(want, x, rows * stride * sizeof(float));
    ref->rope(want, stride, rows, heads, dim, angles);
    for (size_t b = 0; b < backend_count; b++) {
        memcpy(got, x, rows * stride * sizeof(float));
        backends[b]->rope(got, stride, rows, heads, dim, angles);
        check_same(got, want, rows * stride, "%s rope %zu", backends[b]->name, dim);
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < dim / 2; i++) {
            const float *head = x + r * stride + 2 * dim;
            double c = (double)angles[(r * dim / 2 + i) * 2];
            double s = (double)angles[(r * dim / 2 + i) * 2 + 1];
            double a = (double)head[i] * c - (double)head[i + dim / 2] * s;
            double b = (double)head[i + dim / 2] * c + (double)head[i] * s;
            double size = fabs((double)head[i]) + fabs((double)head[i + dim / 2]);

            ck_assert_double_le(fabs((double)want[r * stride + 2 * dim + i] - a),
                                2 * 0x1p-24 * size);
            ck_assert_double_le(fabs((double)want[r * stride + 2 * dim + dim / 2 + i] - b),
                                2 * 0x1p-24 * size);
        }
    }
    eep_mem_free(x);
    eep_mem_free(angles);
    eep_mem_free(want);
    eep_mem_free(got);
}
END_TEST

START_TEST(weighted_sum_equals_ref)
{
    size_t n = widths[_i], top_k = 8, tokens = 27, stride = n + 3;
    float *data = random_floats(tokens * top_k * n, n), *weights = random_floats(tokens * top_k, 3);
    uint16_t *bits = get(tokens * top_k * n, sizeof(*bits));
    const void **rows = get(tokens * top_k, sizeof(*rows));
    float *want = floats(tokens * stride), *got = floats(tokens * stride);

    for (size_t i = 0; i < tokens * top_k * n; i++) {
        bits[i] = eep_f32_to_bf16(data[i]);
    }
    for (size_t d = 0; d < 2; d++) {
        for (size_t i = 0; i < tokens * top_k; i++) {
            rows[i] = d == 0 ? (const void *)(data + i * n) : (const void *)(bits + i * n);
            rows[i] = i % 11 == 4 || i / top_k == 5 ? NULL : rows[i];
        }
        ref->weighted_sum(weight_dtypes[d], rows, weights, tokens, top_k, n, want, stride);
        for (size_t b = 0; b < backend_count; b++) {
            backends[b]->weighted_sum(weight_dtypes[d], rows, weights, tokens, top_k, n, got,
                                      stride);
            check_same(got, want, tokens * stride, "%s weighted_sum %zu", backends[b]->name, n);
        }
        ck_assert(want[5 * stride] == 0.0f); /* a token without rows */
        double exact = 0.0, size = 0.0;
        for (size_t j = 0; j < top_k; j++) {
            if (rows[j] != NULL) {
                float value = d == 0 ? data[j * n] : eep_bf16_to_f32(bits[j * n]);

                exact += (double)weights[j] * (double)value;
                size += fabs((double)weights[j] * (double)value);
            }
        }
        ck_assert_double_le(fabs((double)want[0] - exact), 8 * 0x1p-24 * size);
    }
    eep_mem_free(data);
    eep_mem_free(weights);
    eep_mem_free(bits);
    eep_mem_free(rows);
    eep_mem_free(want);
    eep_mem_free(got);
}
END_TEST

/* ---- find, measure ---- */

START_TEST(find_names)
{
    const struct eep_kernels *found = NULL;

    ck_assert_int_eq(eep_kernels_find("ref", &found), EEP_OK);
    ck_assert_str_eq(found->name, "ref");
    ck_assert_int_eq(eep_kernels_find(NULL, &found), EEP_OK);
    const struct eep_kernels *automatic = found;
    ck_assert_int_eq(eep_kernels_find("auto", &found), EEP_OK);
    ck_assert_ptr_eq(found, automatic);
    if (backend_count > 0) {
        ck_assert_str_ne(found->name, "ref");
    }
    found = NULL;
    ck_assert_int_eq(eep_kernels_find("sse9", &found), EEP_ERR_INVALID);
    ck_assert_ptr_null(found);
    ck_assert_ptr_nonnull(strstr(eep_error_text(), "avx512"));
    for (size_t i = 0; i < COUNT(names); i++) {
        enum eep_status status = eep_kernels_find(names[i], &found);

        ck_assert(status == EEP_ERR_UNSUPPORTED ||
                  (status == EEP_OK && strcmp(found->name, names[i]) == 0));
    }
}
END_TEST

START_TEST(measure_limits)
{
    struct eep_kernels_limits limits = {0};

    ck_assert_int_eq(eep_kernels_measure(ref, 8 << 20, &limits), EEP_OK);
    ck_assert_double_gt(limits.read_bytes_per_s, 1e8);
    ck_assert_double_gt(limits.fma_per_s, 1e6);
    eep_mem_fail_nth(1);
    ck_assert_int_eq(eep_kernels_measure(ref, 8 << 20, &limits), EEP_ERR_NOMEM);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("kernels");
    TCase *exp_case = tcase_create("exp");
    TCase *products = tcase_create("products");
    TCase *attention = tcase_create("attention");
    TCase *rows = tcase_create("rows");
    TCase *machine = tcase_create("machine");

    tcase_add_test(exp_case, exp_is_accurate);
    tcase_add_test(exp_case, exp_of_special_values);
    tcase_add_test(products, pack_any_source);
    tcase_add_loop_test(products, gemm_equals_ref, 0, 2);
    tcase_add_loop_test(products, gemm_near_exact, 0, 2);
    tcase_add_loop_test(products, gemm_special_values, 0, 2);
    tcase_add_loop_test(products, gemm_any_threads, 0, 2);
    tcase_add_loop_test(products, ffn_equals_ref, 0, 2);
    tcase_add_test(products, ffn_near_exact);
    tcase_set_timeout(products, 240);
    tcase_add_loop_test(attention, attention_equals_ref, 0, COUNT(attention_cases));
    tcase_add_loop_test(attention, attention_any_chunks, 0, COUNT(attention_cases));
    tcase_add_test(attention, attention_near_exact);
    tcase_add_test(attention, kv_store_equals_ref);
    tcase_add_test(attention, bits_are_known);
    tcase_set_timeout(attention, 120);
    tcase_add_loop_test(rows, row_operations_equal_ref, 0, COUNT(widths));
    tcase_add_test(rows, rmsnorm_of_parts);
    tcase_add_loop_test(rows, softmax_near_exact, 0, COUNT(widths));
    tcase_add_loop_test(rows, rope_equals_ref, 0, 9);
    tcase_add_loop_test(rows, weighted_sum_equals_ref, 0, COUNT(widths));
    tcase_add_test(machine, find_names);
    tcase_add_test(machine, measure_limits);
    tcase_set_timeout(machine, 60);
    suite_add_tcase(suite, exp_case);
    suite_add_tcase(suite, products);
    suite_add_tcase(suite, attention);
    suite_add_tcase(suite, rows);
    suite_add_tcase(suite, machine);
    return suite;
}

int main(void)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        if (eep_kernels_find(names[i], &backends[backend_count]) == EEP_OK) {
            printf("kernels: %s against ref\n", names[i]);
            backend_count++;
        }
    }
    if (eep_kernels_find("ref", &ref) != EEP_OK) {
        return 1;
    }
    SRunner *runner = srunner_create(suite());
    /* A team of threads does not survive Check's fork. */
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
