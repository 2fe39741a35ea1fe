/* Row operations for AVX2 with FMA. */
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/rows_body.h"

const struct eep_cpu_rows eep_cpu_rows_avx2 = CPU_ROWS;
