/*
 * exp() with the same bits everywhere: one fixed sequence of IEEE operations, which every backend
 * repeats, in scalars here and in vectors in kernels/cpu/vec_exp.h.
 *
 * exp(x) = 2^n * exp(r), n = round(x / ln 2), r = x - n ln 2 in two pieces (Cody, Waite 1980),
 * exp(r) by the polynomial of Cephes' expf (Moshier). Less than 1.5 units in the last
 * place from the exact value, subnormal results included; +inf, -inf, NaN, overflow and underflow
 * as in C's expf. Needs round to nearest.
 */
#ifndef EEP_KERNELS_MATH_H
#define EEP_KERNELS_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EEP_EXP_LOWEST (-104.0f) /* exp() of it and of all below is 0 */
#define EEP_EXP_HIGHEST 89.0f    /* exp() of it and of all above is inf */
#define EEP_EXP_LOG2E 0x1.715476p+0f
#define EEP_EXP_ROUND 0x1.8p+23f /* adding it rounds to an integer, in the low bits of the sum */
#define EEP_EXP_ROUND_BITS UINT32_C(0x4b400000)
#define EEP_EXP_LN2_HIGH 0x1.62e400p-1f
#define EEP_EXP_LN2_LOW 0x1.7f7d1cp-20f
#define EEP_EXP_C0 1.9875691500e-4f
#define EEP_EXP_C1 1.3981999507e-3f
#define EEP_EXP_C2 8.3334519073e-3f
#define EEP_EXP_C3 4.1665795894e-2f
#define EEP_EXP_C4 1.6666665459e-1f
#define EEP_EXP_C5 5.0000001201e-1f

/** 2^n for -126 <= n <= 127. */
static inline float eep_exp2_int(int32_t n)
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float eep_expf(float x)
{
    uint32_t bits;

    /* In this order a NaN stays: it is neither below nor above. */
    x = EEP_EXP_LOWEST > x ? EEP_EXP_LOWEST : x;
    x = EEP_EXP_HIGHEST < x ? EEP_EXP_HIGHEST : x;
    float shifted = fmaf(x, EEP_EXP_LOG2E, EEP_EXP_ROUND);
    float n = shifted - EEP_EXP_ROUND;
    float r = fmaf(n, -EEP_EXP_LN2_HIGH, x);
    r = fmaf(n, -EEP_EXP_LN2_LOW, r);
    float p = EEP_EXP_C0;
    p = fmaf(p, r, EEP_EXP_C1);
    p = fmaf(p, r, EEP_EXP_C2);
    p = fmaf(p, r, EEP_EXP_C3);
    p = fmaf(p, r, EEP_EXP_C4);
    p = fmaf(p, r, EEP_EXP_C5);
    p = fmaf(p, r * r, r) + 1.0f;

    /* Two factors: 2^n alone may be subnormal or too large. Clamped: a NaN has any bits. */
    memcpy(&bits, &shifted, sizeof(bits));
    int32_t whole = (int32_t)(bits - EEP_EXP_ROUND_BITS);
    whole = whole < -150 ? -150 : whole;
    whole = whole > 128 ? 128 : whole;
    int32_t half = whole >> 1;
    return p * eep_exp2_int(half) * eep_exp2_int(whole - half);
}

/** x / (1 + exp(-x)). */
static inline float eep_siluf(float x)
{
    return x / (1.0f + eep_expf(-x));
}

/** 1 / (1 + exp(-x)). */
static inline float eep_sigmoidf(float x)
{
    return 1.0f / (1.0f + eep_expf(-x));
}

/** The sum of 16 lanes, pairwise: the end of every reduction. */
static inline float eep_lanes_sum(const float lanes[16])
{
    float sum[8];

    for (int i = 0; i < 8; i++) {
        sum[i] = lanes[i] + lanes[i + 8];
    }
    for (int i = 0; i < 4; i++) {
        sum[i] += sum[i + 4];
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

#endif
