/* The vector layer for AArch64's Advanced SIMD; see vec_avx512.h. */
#ifndef EEP_KERNELS_VEC_H
#define EEP_KERNELS_VEC_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define V_LANES 4
#define V_HIDE(p) __asm__("" : "+r"(p))
#define V_KEEP(a) "+w"(a)

typedef float32x4_t vf;
typedef uint32x4_t vi;

static inline vf v_zero(void)
{
    return vdupq_n_f32(0.0f);
}
static inline vf v_set1(float x)
{
    return vdupq_n_f32(x);
}
static inline vf v_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void v_store(float *p, vf a)
{
    vst1q_f32(p, a);
}
static inline vf v_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
static inline vf v_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
static inline vf v_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
static inline vf v_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
/* Not FMAX: it treats NaN in another way. */
static inline vf v_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
static inline vf v_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
static inline vi v_bits(vf a)
{
    return vreinterpretq_u32_f32(a);
}
static inline vf v_from_bits(vi a)
{
    return vreinterpretq_f32_u32(a);
}
static inline vi v_iset1(uint32_t x)
{
    return vdupq_n_u32(x);
}
static inline vi v_iadd(vi a, vi b)
{
    return vaddq_u32(a, b);
}
static inline vi v_isub(vi a, vi b)
{
    return vsubq_u32(a, b);
}
static inline vi v_ihalf(vi a)
{
    return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(a), 1));
}
static inline vi v_ishl23(vi a)
{
    return vshlq_n_u32(a, 23);
}
static inline vf v_bf16_low(const uint32_t *words)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(words), 16));
}
static inline vf v_bf16_high(const uint32_t *words)
{
    return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(words), vdupq_n_u32(0xffff0000)));
}
static inline vf v_bf16_load(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
#define v_prefetch(p) __builtin_prefetch((p), 0, 3)
#define v_prefetch_l2(p) __builtin_prefetch((p), 0, 2)

#endif
