/*
 * The limits of the machine: how fast the team reads memory, and how fast it multiplies and adds.
 * The best of several rounds counts: other load can only make a round slower.
 */
#include "base/clock.h"
#include "kernels/find.h"

#include <omp.h>

#define ROUNDS_MAX 64
#define ROUNDS_NS (EEP_NS_PER_S * 8 / 10) /* for each of the two limits */
#define FMA_ROUNDS 4000000                /* of each thread; some ms */

/* One pass over all of it, each thread its own stretch; bytes per second. */
static double read_once(const struct eep_kernels_probe *probe, const char *memory, size_t bytes,
                        float *sink)
{
    uint64_t begin = eep_clock_ns();
    float total = 0.0f;

#pragma omp parallel reduction(+ : total)
    {
        size_t threads = (size_t)omp_get_num_threads();
        size_t share = bytes / threads / EEP_PAGE * EEP_PAGE;

        total += probe->read(memory + share * (size_t)omp_get_thread_num(), share);
    }
    *sink += total;
    return (double)bytes * 1e9 / (double)(eep_clock_ns() - begin);
}

static double fma_once(const struct eep_kernels_probe *probe, float *sink)
{
    uint64_t begin = eep_clock_ns();
    double count = 0.0;
    float total = 0.0f;

#pragma omp parallel reduction(+ : count, total)
    {
        float last;

        count += probe->fma(FMA_ROUNDS, &last);
        total += last;
    }
    *sink += total;
    return count * 1e9 / (double)(eep_clock_ns() - begin);
}

enum eep_status eep_kernels_measure(const struct eep_kernels *kernels, size_t bytes,
                                    struct eep_kernels_limits *limits_out)
{
    const struct eep_kernels_probe *probe = eep_kernels_probe_of(kernels);
    struct eep_kernels_limits best = {0};
    volatile float keep;
    float sink = 0.0f;
    char *memory;

    EEP_TRY(eep_mem_alloc(bytes, 1, "memory to measure the read bandwidth", &memory));
    uint64_t begin = eep_clock_ns();
    for (int i = 0; i < ROUNDS_MAX && (i < 3 || eep_clock_ns() - begin < ROUNDS_NS); i++) {
        best.read_bytes_per_s =
            EEP_MAX(best.read_bytes_per_s, read_once(probe, memory, bytes, &sink));
    }
    begin = eep_clock_ns();
    for (int i = 0; i < ROUNDS_MAX && (i < 3 || eep_clock_ns() - begin < ROUNDS_NS); i++) {
        best.fma_per_s = EEP_MAX(best.fma_per_s, fma_once(probe, &sink));
    }
    keep = sink;
    (void)keep;
    eep_mem_free(memory);
    *limits_out = best;
    return EEP_OK;
}
