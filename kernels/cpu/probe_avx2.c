/* What eep_kernels_measure() runs for AVX2 with FMA. */
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/probe_body.h"

const struct eep_kernels_probe eep_probe_avx2 = {.read = read_all, .fma = fma_all};
