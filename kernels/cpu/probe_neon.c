/* What eep_kernels_measure() runs for NEON. */
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/probe_body.h"

const struct eep_kernels_probe eep_probe_neon = {.read = read_all, .fma = fma_all};
