/*
 * Which backends there are and which of them this processor runs. The list is in the order of
 * preference; "auto" takes the first that runs.
 */
#include "config.h"

#include <string.h>

#ifdef EEP_HAVE_AVX2
#include <cpuid.h>
#endif

#include "kernels/backends.h"
#include "kernels/find.h"

static bool always(void)
{
    return true;
}

/* __builtin_cpu_supports() also asks whether the system saves these registers (XGETBV). */
#ifdef EEP_HAVE_AVX2
/* clang 14 knows no "f16c" there; its registers are those of AVX2. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif

#ifdef EEP_HAVE_AVX512
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("fma");
}
#endif

static const struct backend {
    const char *name;
    const struct eep_kernels *kernels; /* NULL: not in this build */
    const struct eep_kernels_probe *probe;
    bool (*runs)(void);
} backends[] = {
#ifdef EEP_HAVE_AVX512
    {"avx512", &eep_kernels_avx512, &eep_probe_avx512, has_avx512},
#else
    {"avx512", NULL, NULL, NULL},
#endif
#ifdef EEP_HAVE_AVX2
    {"avx2", &eep_kernels_avx2, &eep_probe_avx2, has_avx2},
#else
    {"avx2", NULL, NULL, NULL},
#endif
#ifdef EEP_HAVE_NEON
    {"neon", &eep_kernels_neon, &eep_probe_neon, always},
#else
    {"neon", NULL, NULL, NULL},
#endif
    {"ref", &eep_kernels_ref, &eep_probe_ref, always},
};

#define BACKEND_COUNT (sizeof(backends) / sizeof(backends[0]))

static bool usable(const struct backend *backend)
{
    return backend->kernels != NULL && backend->runs();
}

enum eep_status eep_kernels_find(const char *name, const struct eep_kernels **out)
{
    bool any = name == NULL || strcmp(name, "auto") == 0;

    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        if (!any && strcmp(name, backends[i].name) != 0) {
            continue;
        }
        if (usable(&backends[i])) {
            *out = backends[i].kernels;
            return EEP_OK;
        }
        if (!any) {
            return EEP_FAIL(EEP_ERR_UNSUPPORTED, "kernels \"%s\": %s; use \"auto\"", name,
                            backends[i].kernels == NULL ? "not in this build"
                                                        : "this processor does not have them");
        }
    }
    return EEP_FAIL(EEP_ERR_INVALID,
                    "kernels \"%s\": unknown; known are auto, ref, avx2, avx512, neon", name);
}

const struct eep_kernels_probe *eep_kernels_probe_of(const struct eep_kernels *kernels)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        if (backends[i].kernels == kernels) {
            return backends[i].probe;
        }
    }
    return &eep_probe_ref;
}
