/* Matrix products of the reference backend: every output is its chain over k, nothing else. */
#include <math.h>

#include "kernels/math.h"
#include "kernels/ref/ref.h"

/* W[column][at] of packed weights. */
static float weight_at(enum eep_dtype dtype, const void *data, size_t k, size_t column, size_t at)
{
    size_t line = column / EEP_PANEL * k + at;
    size_t i = column % EEP_PANEL;

    if (dtype == EEP_F32) {
        return ((const float *)data)[line * EEP_PANEL + i];
    }
    uint32_t word = ((const uint32_t *)data)[line * (EEP_PANEL / 2) + i % (EEP_PANEL / 2)];
    return eep_bf16_to_f32((uint16_t)(i < EEP_PANEL / 2 ? word : word >> 16));
}

static float dot(enum eep_dtype dtype, const void *data, size_t k, size_t column, const float *x)
{
    float sum = 0.0f;

    for (size_t i = 0; i < k; i++) {
        sum = fmaf(x[i], weight_at(dtype, data, k, column, i), sum);
    }
    return sum;
}

void eep_ref_gemm(const struct eep_gemm *gemm)
{
    const struct eep_panels *w = gemm->w;
    size_t columns = eep_panel_round(w->n);

#pragma omp parallel for collapse(2) schedule(static)
    for (size_t r = 0; r < gemm->rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            float sum = 0.0f;

            if (c < w->n) {
                sum = dot(w->dtype, w->data, w->k, c, gemm->x + r * gemm->x_stride);
                sum = gemm->bias != NULL ? sum + gemm->bias[c] : sum;
            }
            gemm->y[r * gemm->y_stride + c] = sum;
        }
    }
}

size_t eep_ref_ffn_scratch_bytes(size_t rows, size_t width)
{
    return eep_round_up(rows * width * sizeof(float), EEP_CACHE_LINE);
}

/* Gate panel p is panel 2p of the pair's stream, up panel p is panel 2p + 1. */
static float gated(const struct eep_ffn_weights *w, size_t column, const float *x)
{
    size_t at = column / EEP_PANEL * 2 * EEP_PANEL + column % EEP_PANEL;
    float gate = dot(w->dtype, w->gate_up, w->hidden, at, x);
    float up = dot(w->dtype, w->gate_up, w->hidden, at + EEP_PANEL, x);

    return eep_siluf(gate) * up;
}

static void ffn_group(const struct eep_ffn *ffn, const struct eep_ffn_group *group, float *inner)
{
    size_t columns = eep_panel_round(ffn->hidden);

#pragma omp parallel for collapse(2) schedule(static)
    for (size_t r = 0; r < group->rows; r++) {
        for (size_t c = 0; c < ffn->width; c++) {
            inner[r * ffn->width + c] =
                gated(group->w, c, ffn->x + group->x_rows[r] * ffn->x_stride);
        }
    }
#pragma omp parallel for collapse(2) schedule(static)
    for (size_t r = 0; r < group->rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            ffn->y[group->y_rows[r] * ffn->y_stride + c] =
                c < ffn->hidden
                    ? dot(group->w->dtype, group->w->down, ffn->width, c, inner + r * ffn->width)
                    : 0.0f;
        }
    }
}

void eep_ref_ffn(const struct eep_ffn *ffn)
{
    float *inner = ffn->scratch;

    for (size_t g = 0; g < ffn->group_count; g++) {
        ffn_group(ffn, &ffn->groups[g], inner);
        inner += ffn->groups[g].rows * (size_t)ffn->width;
    }
}
