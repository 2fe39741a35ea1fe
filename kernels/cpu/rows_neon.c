/* Row operations for NEON. */
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/rows_body.h"

const struct eep_cpu_rows eep_cpu_rows_neon = CPU_ROWS;
