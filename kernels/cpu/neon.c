/* The NEON backend. */
#define BACKEND neon
#include "kernels/cpu/backend_body.h"
