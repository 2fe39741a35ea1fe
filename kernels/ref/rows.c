/* Row operations of the reference backend. */
#include <math.h>

#include "base/assert.h"
#include "kernels/math.h"
#include "kernels/ref/ref.h"

static void rmsnorm_row(const float *x, size_t n, const float *weight, float eps, float *y)
{
    float lanes[16] = {0};

    for (size_t i = 0; i < n; i++) {
        lanes[i % 16] = fmaf(x[i], x[i], lanes[i % 16]);
    }
    float inverse = 1.0f / sqrtf(eep_lanes_sum(lanes) / (float)n + eps);
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * inverse * weight[i];
    }
}

void eep_ref_rmsnorm(const float *x, size_t x_stride, size_t rows, size_t parts, size_t n,
                     const float *weight, float eps, float *y, size_t y_stride)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t p = 0; p < parts; p++) {
            rmsnorm_row(x + r * x_stride + p * n, n, weight, eps, y + r * y_stride + p * n);
        }
    }
}

void eep_ref_rope(float *x, size_t x_stride, size_t rows, size_t heads, size_t head_dim,
                  const float *cos_sin)
{
    size_t half = head_dim / 2;

    for (size_t r = 0; r < rows; r++) {
        for (size_t h = 0; h < heads; h++) {
            float *head = x + r * x_stride + h * head_dim;

            for (size_t i = 0; i < half; i++) {
                float c = cos_sin[(r * half + i) * 2];
                float s = cos_sin[(r * half + i) * 2 + 1];
                float a = head[i];
                float b = head[i + half];

                head[i] = fmaf(a, c, -(b * s));
                head[i + half] = fmaf(b, c, a * s);
            }
        }
    }
}

void eep_ref_softmax(float *x, size_t x_stride, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows && n > 0; r++) {
        float *row = x + r * x_stride;
        float lanes[16] = {0};
        float top = row[0];

        for (size_t i = 0; i < n; i++) {
            top = row[i] > top ? row[i] : top;
        }
        for (size_t i = 0; i < n; i++) {
            row[i] = eep_expf(row[i] - top);
            lanes[i % 16] += row[i];
        }
        float sum = eep_lanes_sum(lanes);
        for (size_t i = 0; i < n; i++) {
            row[i] /= sum;
        }
    }
}

void eep_ref_add(float *x, size_t x_stride, const float *y, size_t y_stride, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n; i++) {
            x[r * x_stride + i] += y[r * y_stride + i];
        }
    }
}

void eep_ref_add_gated(float *x, size_t x_stride, const float *y, size_t y_stride,
                       const float *gate, size_t gate_stride, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++) {
        float share = eep_sigmoidf(gate[r * gate_stride]);

        for (size_t i = 0; i < n; i++) {
            x[r * x_stride + i] = fmaf(share, y[r * y_stride + i], x[r * x_stride + i]);
        }
    }
}

static float element(enum eep_dtype dtype, const void *row, size_t i)
{
    return dtype == EEP_F32 ? ((const float *)row)[i] : eep_bf16_to_f32(((const uint16_t *)row)[i]);
}

void eep_ref_weighted_sum(enum eep_dtype dtype, const void *const *rows, const float *weights,
                          size_t tokens, size_t top_k, size_t n, float *out, size_t out_stride)
{
    EEP_ASSERT(dtype == EEP_F32 || dtype == EEP_BF16);
    for (size_t t = 0; t < tokens; t++) {
        for (size_t i = 0; i < n; i++) {
            float sum = 0.0f;

            for (size_t j = 0; j < top_k; j++) {
                const void *row = rows[t * top_k + j];

                if (row != NULL) {
                    sum = fmaf(weights[t * top_k + j], element(dtype, row, i), sum);
                }
            }
            out[t * out_stride + i] = sum;
        }
    }
}
