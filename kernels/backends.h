/* The backends that a build may have, and what each does to measure the machine; see find.c. */
#ifndef EEP_KERNELS_BACKENDS_H
#define EEP_KERNELS_BACKENDS_H

#include "kernels/kernels.h"

extern const struct eep_kernels eep_kernels_ref;
extern const struct eep_kernels eep_kernels_avx2;
extern const struct eep_kernels eep_kernels_avx512;
extern const struct eep_kernels eep_kernels_neon;

/** The inner loops of eep_kernels_measure(), in the vectors of one backend. */
struct eep_kernels_probe {
    /** Read all of it in order; the result keeps the compiler honest. */
    float (*read)(const void *memory, size_t bytes);
    /** Independent multiply-adds in registers; returns how many. */
    double (*fma)(size_t rounds, float *sink_out);
};

extern const struct eep_kernels_probe eep_probe_ref;
extern const struct eep_kernels_probe eep_probe_avx2;
extern const struct eep_kernels_probe eep_probe_avx512;
extern const struct eep_kernels_probe eep_probe_neon;

#endif
