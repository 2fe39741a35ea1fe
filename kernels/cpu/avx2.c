/* The AVX2 with FMA backend. */
#define BACKEND avx2
#include "kernels/cpu/backend_body.h"
