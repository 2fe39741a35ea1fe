/* eep_expf() of kernels/math.h in vectors: the same operations in the same order. */
#ifndef EEP_KERNELS_VEC_EXP_H
#define EEP_KERNELS_VEC_EXP_H

#include "kernels/math.h"

static inline vf v_exp2_int(vi n)
{
    return v_from_bits(v_ishl23(v_iadd(n, v_iset1(127))));
}

static inline vf v_exp(vf x)
{
    x = v_max(v_set1(EEP_EXP_LOWEST), x);
    x = v_min(v_set1(EEP_EXP_HIGHEST), x);
    vf shifted = v_fma(x, v_set1(EEP_EXP_LOG2E), v_set1(EEP_EXP_ROUND));
    vf n = v_sub(shifted, v_set1(EEP_EXP_ROUND));
    vf r = v_fma(n, v_set1(-EEP_EXP_LN2_HIGH), x);
    r = v_fma(n, v_set1(-EEP_EXP_LN2_LOW), r);
    vf p = v_set1(EEP_EXP_C0);
    p = v_fma(p, r, v_set1(EEP_EXP_C1));
    p = v_fma(p, r, v_set1(EEP_EXP_C2));
    p = v_fma(p, r, v_set1(EEP_EXP_C3));
    p = v_fma(p, r, v_set1(EEP_EXP_C4));
    p = v_fma(p, r, v_set1(EEP_EXP_C5));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
    vi whole = v_isub(v_bits(shifted), v_iset1(EEP_EXP_ROUND_BITS));
    vi half = v_ihalf(whole);
    return v_mul(v_mul(p, v_exp2_int(half)), v_exp2_int(v_isub(whole, half)));
}

static inline vf v_negate(vf x)
{
    /* Not 0 - x, whose zero has another sign; -1 * x is exact. */
    return v_mul(x, v_set1(-1.0f));
}

#endif
