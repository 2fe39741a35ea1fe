/*
 * Row operations in vectors. Included once per instruction set, after its vec_*.h.
 *
 * Everything goes in blocks of 16 elements, one per lane of the reductions, whatever the width of
 * a vector; the last block of a row is padded on the stack, so every element goes through the same
 * instructions.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec_exp.h"

#define BLOCK 16

/* Elements first .. last-1 of the block at `at`, where a row's piece ends. */
struct span {
    size_t at;
    size_t first;
    size_t last;
};

static struct span span_of(size_t at, size_t first, size_t last)
{
    struct span span = {
        .at = at,
        .first = at < first ? first - at : 0,
        .last = last - at < BLOCK ? last - at : BLOCK,
    };
    return span;
}

static bool span_is_whole(struct span span)
{
    return span.first == 0 && span.last == BLOCK;
}

static void span_get(struct span span, const float *x, float pad, float block[BLOCK])
{
    for (size_t i = 0; i < BLOCK; i++) {
        block[i] = pad;
    }
    memcpy(block + span.first, x + span.at + span.first, (span.last - span.first) * sizeof(*x));
}

static void span_put(struct span span, const float block[BLOCK], float *x)
{
    memcpy(x + span.at + span.first, block + span.first, (span.last - span.first) * sizeof(*x));
}

static void copy(const float *x, size_t n, float *y)
{
    size_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK) {
        for (size_t j = 0; j < BLOCK; j += V_LANES) {
            v_store(y + i + j, v_load(x + i + j));
        }
    }
    for (; i < n; i++) {
        y[i] = x[i];
    }
}

static void silu_mul(const float *gate, const float *up, float *h)
{
    for (size_t i = 0; i < EEP_PANEL; i += V_LANES) {
        vf g = v_load(gate + i);
        vf silu = v_div(g, v_add(v_set1(1.0f), v_exp(v_negate(g))));

        v_store(h + i, v_mul(silu, v_load(up + i)));
    }
}

static void square_block(const float *x, float lanes[BLOCK])
{
    for (size_t j = 0; j < BLOCK; j += V_LANES) {
        vf a = v_load(x + j);

        v_store(lanes + j, v_fma(a, a, v_load(lanes + j)));
    }
}

static float square_sum(const float *x, size_t n)
{
    float lanes[BLOCK] = {0}, block[BLOCK];
    vf sum[BLOCK / V_LANES];
    size_t whole = n - n % BLOCK;

    for (size_t j = 0; j < BLOCK / V_LANES; j++) {
        sum[j] = v_zero();
    }
    for (size_t i = 0; i < whole; i += BLOCK) {
        for (size_t j = 0; j < BLOCK / V_LANES; j++) {
            vf a = v_load(x + i + j * V_LANES);

            sum[j] = v_fma(a, a, sum[j]);
        }
    }
    for (size_t j = 0; j < BLOCK / V_LANES; j++) {
        v_store(lanes + j * V_LANES, sum[j]);
    }
    if (whole < n) {
        span_get(span_of(whole, 0, n), x, 0.0f, block); /* +0 squared changes no lane */
        square_block(block, lanes);
    }
    return eep_lanes_sum(lanes);
}

static void rmsnorm(const float *x, size_t n, const float *weight, float eps, float *y)
{
    float inverse = 1.0f / sqrtf(square_sum(x, n) / (float)n + eps);
    size_t i = 0;

    for (; i + V_LANES <= n; i += V_LANES) {
        v_store(y + i, v_mul(v_mul(v_load(x + i), v_set1(inverse)), v_load(weight + i)));
    }
    for (; i < n; i++) {
        y[i] = x[i] * inverse * weight[i];
    }
}

static void rope(float *x, size_t half, size_t count, const float *cosine, const float *sine)
{
    size_t i = 0;

    for (; i + V_LANES <= count; i += V_LANES) {
        vf a = v_load(x + i);
        vf b = v_load(x + half + i);
        vf c = v_load(cosine + i);
        vf s = v_load(sine + i);

        v_store(x + i, v_fma(a, c, v_negate(v_mul(b, s))));
        v_store(x + half + i, v_fma(b, c, v_mul(a, s)));
    }
    for (; i < count; i++) {
        float a = x[i];
        float b = x[half + i];

        x[i] = fmaf(a, cosine[i], -(b * sine[i]));
        x[half + i] = fmaf(b, cosine[i], a * sine[i]);
    }
}

static void add(float *x, const float *y, size_t n)
{
    size_t i = 0;

    for (; i + V_LANES <= n; i += V_LANES) {
        v_store(x + i, v_add(v_load(x + i), v_load(y + i)));
    }
    for (; i < n; i++) {
        x[i] += y[i];
    }
}

static void add_scaled(float *x, float scale, const float *y, size_t n)
{
    size_t i = 0;

    for (; i + V_LANES <= n; i += V_LANES) {
        v_store(x + i, v_fma(v_set1(scale), v_load(y + i), v_load(x + i)));
    }
    for (; i < n; i++) {
        x[i] = fmaf(scale, y[i], x[i]);
    }
}

static vf load_element(enum eep_dtype dtype, const void *row, size_t i)
{
    return dtype == EEP_F32 ? v_load((const float *)row + i)
                            : v_bf16_load((const uint16_t *)row + i);
}

static float weighted_element(enum eep_dtype dtype, const void *const *rows, const float *weights,
                              size_t top_k, size_t i)
{
    float sum = 0.0f;

    for (size_t j = 0; j < top_k; j++) {
        if (rows[j] != NULL) {
            float value = dtype == EEP_F32 ? ((const float *)rows[j])[i]
                                           : eep_bf16_to_f32(((const uint16_t *)rows[j])[i]);

            sum = fmaf(weights[j], value, sum);
        }
    }
    return sum;
}

static void weighted_sum(enum eep_dtype dtype, const void *const *rows, const float *weights,
                         size_t top_k, size_t n, float *out)
{
    size_t i = 0;

    for (; i + V_LANES <= n; i += V_LANES) {
        vf sum = v_zero();

        for (size_t j = 0; j < top_k; j++) {
            if (rows[j] != NULL) {
                sum = v_fma(v_set1(weights[j]), load_element(dtype, rows[j], i), sum);
            }
        }
        v_store(out + i, sum);
    }
    for (; i < n; i++) {
        out[i] = weighted_element(dtype, rows, weights, top_k, i);
    }
}

static vf scaled_max_block(const float *x, float scale, vf top)
{
    for (size_t j = 0; j < BLOCK; j += V_LANES) {
        top = v_max(v_mul(v_load(x + j), v_set1(scale)), top);
    }
    return top;
}

static float scaled_max(const float *x, size_t first, size_t last, float scale, float top)
{
    float block[BLOCK];
    vf most = v_set1(top);

    for (size_t i = first - first % BLOCK; i < last; i += BLOCK) {
        struct span span = span_of(i, first, last);

        if (span_is_whole(span)) {
            most = scaled_max_block(x + i, scale, most);
        } else {
            span_get(span, x, x[i + span.first], block); /* pad with a value that is there */
            most = scaled_max_block(block, scale, most);
        }
    }
    v_store(block, most);
    for (size_t j = 0; j < V_LANES; j++) {
        top = block[j] > top ? block[j] : top;
    }
    return top;
}

static void exp_block(float *x, float scale, float top)
{
    for (size_t j = 0; j < BLOCK; j += V_LANES) {
        v_store(x + j, v_exp(v_sub(v_mul(v_load(x + j), v_set1(scale)), v_set1(top))));
    }
}

static void exp_sum(float *x, size_t first, size_t last, float scale, float top, float lanes[BLOCK])
{
    float block[BLOCK];

    for (size_t i = first - first % BLOCK; i < last; i += BLOCK) {
        struct span span = span_of(i, first, last);

        if (span_is_whole(span)) {
            exp_block(x + i, scale, top);
            for (size_t j = 0; j < BLOCK; j += V_LANES) {
                v_store(lanes + j, v_add(v_load(lanes + j), v_load(x + i + j)));
            }
        } else {
            span_get(span, x, x[i + span.first], block);
            exp_block(block, scale, top);
            span_put(span, block, x);
            for (size_t j = span.first; j < span.last; j++) {
                lanes[j] += block[j];
            }
        }
    }
}

static void divide(const float *x, size_t n, float by, float *y)
{
    size_t i = 0;

    for (; i + V_LANES <= n; i += V_LANES) {
        v_store(y + i, v_div(v_load(x + i), v_set1(by)));
    }
    for (; i < n; i++) {
        y[i] = x[i] / by;
    }
}

#define CPU_ROWS                                                                                   \
    {                                                                                              \
        .copy = copy, .silu_mul = silu_mul, .rmsnorm = rmsnorm, .rope = rope, .add = add,          \
        .add_scaled = add_scaled, .weighted_sum = weighted_sum, .scaled_max = scaled_max,          \
        .exp_sum = exp_sum, .divide = divide,                                                      \
    }
