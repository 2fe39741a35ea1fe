/* The AVX-512 backend. */
#define BACKEND avx512
#include "kernels/cpu/backend_body.h"
