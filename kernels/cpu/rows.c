/* Row operations: rows split over the threads where there are enough of them. */
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

/* Fewer elements than this are done before a team is awake. */
#define PARALLEL_ELEMENTS 32768

#define ROPE_PAIRS 128 /* pairs whose cosines and sines are taken apart at a time */

void eep_cpu_rmsnorm(const struct eep_cpu_isa *isa, const float *x, size_t x_stride, size_t rows,
                     size_t parts, size_t n, const float *weight, float eps, float *y,
                     size_t y_stride)
{
#pragma omp parallel for schedule(static) if (rows * parts * n > PARALLEL_ELEMENTS)
    for (size_t r = 0; r < rows; r++) {
        for (size_t p = 0; p < parts; p++) {
            isa->rows->rmsnorm(x + r * x_stride + p * n, n, weight, eps, y + r * y_stride + p * n);
        }
    }
}

static void rope_row(const struct eep_cpu_isa *isa, float *x, size_t heads, size_t head_dim,
                     const float *cos_sin)
{
    float cosine[ROPE_PAIRS], sine[ROPE_PAIRS];
    size_t half = head_dim / 2;

    for (size_t i = 0; i < half; i += ROPE_PAIRS) {
        size_t count = EEP_MIN(half - i, (size_t)ROPE_PAIRS);

        for (size_t j = 0; j < count; j++) {
            cosine[j] = cos_sin[2 * (i + j)];
            sine[j] = cos_sin[2 * (i + j) + 1];
        }
        for (size_t h = 0; h < heads; h++) {
            isa->rows->rope(x + h * head_dim + i, half, count, cosine, sine);
        }
    }
}

void eep_cpu_rope(const struct eep_cpu_isa *isa, float *x, size_t x_stride, size_t rows,
                  size_t heads, size_t head_dim, const float *cos_sin)
{
#pragma omp parallel for schedule(static) if (rows * heads * head_dim > PARALLEL_ELEMENTS)
    for (size_t r = 0; r < rows; r++) {
        rope_row(isa, x + r * x_stride, heads, head_dim, cos_sin + r * (head_dim / 2) * 2);
    }
}

static void softmax_row(const struct eep_cpu_rows *ops, float *x, size_t n)
{
    float lanes[16] = {0};
    float top = ops->scaled_max(x, 0, n, 1.0f, -INFINITY);

    ops->exp_sum(x, 0, n, 1.0f, top, lanes);
    ops->divide(x, n, eep_lanes_sum(lanes), x);
}

void eep_cpu_softmax(const struct eep_cpu_isa *isa, float *x, size_t x_stride, size_t rows,
                     size_t n)
{
#pragma omp parallel for schedule(static) if (rows * n > PARALLEL_ELEMENTS / 4)
    for (size_t r = 0; r < rows; r++) {
        softmax_row(isa->rows, x + r * x_stride, n);
    }
}

void eep_cpu_add(const struct eep_cpu_isa *isa, float *x, size_t x_stride, const float *y,
                 size_t y_stride, size_t rows, size_t n)
{
#pragma omp parallel for schedule(static) if (rows * n > PARALLEL_ELEMENTS)
    for (size_t r = 0; r < rows; r++) {
        isa->rows->add(x + r * x_stride, y + r * y_stride, n);
    }
}

void eep_cpu_add_gated(const struct eep_cpu_isa *isa, float *x, size_t x_stride, const float *y,
                       size_t y_stride, const float *gate, size_t gate_stride, size_t rows,
                       size_t n)
{
#pragma omp parallel for schedule(static) if (rows * n > PARALLEL_ELEMENTS)
    for (size_t r = 0; r < rows; r++) {
        isa->rows->add_scaled(x + r * x_stride, eep_sigmoidf(gate[r * gate_stride]),
                              y + r * y_stride, n);
    }
}

void eep_cpu_weighted_sum(const struct eep_cpu_isa *isa, enum eep_dtype dtype,
                          const void *const *rows, const float *weights, size_t tokens,
                          size_t top_k, size_t n, float *out, size_t out_stride)
{
    EEP_ASSERT(dtype == EEP_F32 || dtype == EEP_BF16);
#pragma omp parallel for schedule(static) if (tokens * top_k * n > PARALLEL_ELEMENTS)
    for (size_t t = 0; t < tokens; t++) {
        isa->rows->weighted_sum(dtype, rows + t * top_k, weights + t * top_k, top_k, n,
                                out + t * out_stride);
    }
}
