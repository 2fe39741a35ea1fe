/*
 * The loops that measure the machine: reading memory as the kernels do, and multiply-adds in as
 * many independent registers as hide their latency. Included once per instruction set.
 */
#include "kernels/backends.h"
#include "kernels/cpu/cpu.h"

#define READ_STEP 64    /* floats at a time */
#define READ_AHEAD 8192 /* bytes; 1 to 32 KiB, one or four streams came out alike */
#define FMA_SUMS 12     /* two per cycle, latency 4 to 5 */

static float read_all(const void *memory, size_t bytes)
{
    const float *p = memory;
    const float *end = p + bytes / (READ_STEP * sizeof(float)) * READ_STEP;
    vf a0 = v_zero(), a1 = a0, a2 = a0, a3 = a0;
    float lanes[V_LANES];
    float total = 0.0f;

    while (p < end) {
        for (size_t j = 0; j < READ_STEP; j += EEP_CACHE_LINE / sizeof(float)) {
            v_prefetch((const char *)(p + j) + READ_AHEAD);
        }
        for (size_t j = 0; j < READ_STEP; j += (size_t)4 * V_LANES) {
            a0 = v_add(a0, v_load(p + j));
            a1 = v_add(a1, v_load(p + j + V_LANES));
            a2 = v_add(a2, v_load(p + j + (size_t)2 * V_LANES));
            a3 = v_add(a3, v_load(p + j + (size_t)3 * V_LANES));
        }
        p += READ_STEP;
    }
    v_store(lanes, v_add(v_add(a0, a1), v_add(a2, a3)));
    for (size_t i = 0; i < V_LANES; i++) {
        total += lanes[i];
    }
    return total;
}

static double fma_all(size_t rounds, float *sink_out)
{
    vf a0 = v_zero(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0;
    vf a6 = a0, a7 = a0, a8 = a0, a9 = a0, a10 = a0, a11 = a0;
    vf x = v_set1(0.999f), y = v_set1(0.001f);
    float lanes[V_LANES];

    for (size_t i = 0; i < rounds; i++) {
        a0 = v_fma(a0, x, y);
        a1 = v_fma(a1, x, y);
        a2 = v_fma(a2, x, y);
        a3 = v_fma(a3, x, y);
        a4 = v_fma(a4, x, y);
        a5 = v_fma(a5, x, y);
        a6 = v_fma(a6, x, y);
        a7 = v_fma(a7, x, y);
        a8 = v_fma(a8, x, y);
        a9 = v_fma(a9, x, y);
        a10 = v_fma(a10, x, y);
        a11 = v_fma(a11, x, y);
        /* Or the compiler would see twelve times the same sum. */
        __asm__ volatile(""
                         : V_KEEP(a0), V_KEEP(a1), V_KEEP(a2), V_KEEP(a3), V_KEEP(a4), V_KEEP(a5),
                           V_KEEP(a6), V_KEEP(a7), V_KEEP(a8), V_KEEP(a9), V_KEEP(a10),
                           V_KEEP(a11));
    }
    a0 = v_add(v_add(v_add(a0, a1), v_add(a2, a3)), v_add(v_add(a4, a5), v_add(a6, a7)));
    v_store(lanes, v_add(a0, v_add(v_add(a8, a9), v_add(a10, a11))));
    *sink_out = lanes[0];
    return (double)rounds * FMA_SUMS * V_LANES;
}
