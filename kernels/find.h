/* What find.c tells measure.c. */
#ifndef EEP_KERNELS_FIND_H
#define EEP_KERNELS_FIND_H

#include "kernels/backends.h"

/** The loops that measure the machine in the vectors of `kernels`; never NULL. */
const struct eep_kernels_probe *eep_kernels_probe_of(const struct eep_kernels *kernels);

#endif
