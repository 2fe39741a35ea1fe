/*
 * The limits of the machine: how fast the team reads memory, and how fast it multiplies and adds.
 * The best of several rounds counts: other load can only make a round slower.
 */
#include "base/clock.h"
#include "kernels/find.h"

#include <omp.h>

#define ROUNDS_MAX 64
#define ROUNDS_NS (EEP_NS_PER_S * 8 / 10) /* for each of the two limits */
#define FMA_ROUNDS 10000000               /* of each thread: some 20 ms */

/* Results go here, so that no compiler can leave the work out. */
static void keep(float value)
{
    volatile float sink = value;

    (void)sink;
}

/* Each thread reads its own stretch. */
double eep_kernels_measure_read(const struct eep_kernels *kernels, const void *memory, size_t bytes)
{
    const struct eep_kernels_probe *probe = eep_kernels_probe_of(kernels);
    const char *from = memory;
    uint64_t begin = eep_clock_ns();
    float total = 0.0f;

#pragma omp parallel reduction(+ : total)
    {
        size_t threads = (size_t)omp_get_num_threads();
        size_t share = bytes / threads / EEP_PAGE * EEP_PAGE;

        total += probe->read(from + share * (size_t)omp_get_thread_num(), share);
    }
    keep(total);
    return (double)bytes * 1e9 / (double)(eep_clock_ns() - begin);
}

double eep_kernels_measure_fma(const struct eep_kernels *kernels)
{
    const struct eep_kernels_probe *probe = eep_kernels_probe_of(kernels);
    uint64_t begin = eep_clock_ns();
    double count = 0.0;
    float total = 0.0f;

#pragma omp parallel reduction(+ : count, total)
    {
        float last;

        count += probe->fma(FMA_ROUNDS, &last);
        total += last;
    }
    keep(total);
    return count * 1e9 / (double)(eep_clock_ns() - begin);
}

enum eep_status eep_kernels_measure(const struct eep_kernels *kernels, size_t bytes,
                                    struct eep_kernels_limits *limits_out)
{
    struct eep_kernels_limits best = {0};
    char *memory;

    EEP_TRY(eep_mem_alloc(bytes, 1, "memory to measure the read bandwidth", &memory));
    uint64_t begin = eep_clock_ns();
    for (int i = 0; i < ROUNDS_MAX && (i < 3 || eep_clock_ns() - begin < ROUNDS_NS); i++) {
        double rate = eep_kernels_measure_read(kernels, memory, bytes);

        best.read_bytes_per_s = EEP_MAX(best.read_bytes_per_s, rate);
    }
    begin = eep_clock_ns();
    for (int i = 0; i < ROUNDS_MAX && (i < 3 || eep_clock_ns() - begin < ROUNDS_NS); i++) {
        double rate = eep_kernels_measure_fma(kernels);

        best.fma_per_s = EEP_MAX(best.fma_per_s, rate);
    }
    eep_mem_free(memory);
    *limits_out = best;
    return EEP_OK;
}
