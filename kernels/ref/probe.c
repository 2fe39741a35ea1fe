/* What eep_kernels_measure() runs for the reference backend: scalars. */
#include <math.h>

#include "kernels/backends.h"

#define SUMS 8

static float read_all(const void *memory, size_t bytes)
{
    const float *p = memory;
    size_t count = bytes / sizeof(float);
    float sum[SUMS] = {0};
    float total = 0.0f;

    for (size_t i = 0; i + SUMS <= count; i += SUMS) {
        for (size_t j = 0; j < SUMS; j++) {
            sum[j] += p[i + j];
        }
    }
    for (size_t j = 0; j < SUMS; j++) {
        total += sum[j];
    }
    return total;
}

static double fma_all(size_t rounds, float *sink_out)
{
    float sum[SUMS] = {0};

    for (size_t i = 0; i < rounds; i++) {
        for (size_t j = 0; j < SUMS; j++) {
            sum[j] = fmaf(sum[j], 0.999f, 0.001f * (float)j);
        }
    }
    *sink_out = sum[0] + sum[SUMS - 1];
    return (double)rounds * SUMS;
}

const struct eep_kernels_probe eep_probe_ref = {.read = read_all, .fma = fma_all};
