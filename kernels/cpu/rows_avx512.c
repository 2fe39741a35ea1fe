/* Row operations for AVX-512. */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/rows_body.h"

const struct eep_cpu_rows eep_cpu_rows_avx512 = CPU_ROWS;
