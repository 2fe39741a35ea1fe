/* What eep_kernels_measure() runs for AVX-512. */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/probe_body.h"

const struct eep_kernels_probe eep_probe_avx512 = {.read = read_all, .fma = fma_all};
