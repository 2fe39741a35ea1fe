/* The vector layer for AVX2 with FMA; see vec_avx512.h. */
#ifndef EEP_KERNELS_VEC_H
#define EEP_KERNELS_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define V_LANES 8
#define V_HIDE(p) __asm__("" : "+r"(p))
#define V_KEEP(a) "+x"(a)

typedef __m256 vf;
typedef __m256i vi;

static inline vf v_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}
static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vi v_bits(vf a)
{
    return _mm256_castps_si256(a);
}
static inline vf v_from_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
static inline vi v_iset1(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}
static inline vi v_iadd(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
static inline vi v_isub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
static inline vi v_ihalf(vi a)
{
    return _mm256_srai_epi32(a, 1);
}
static inline vi v_ishl23(vi a)
{
    return _mm256_slli_epi32(a, 23);
}
static inline vf v_bf16_low(const uint32_t *words)
{
    __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)words);

    return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
}
static inline vf v_bf16_high(const uint32_t *words)
{
    __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)words);

    return _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000)));
}
static inline vf v_bf16_load(const uint16_t *p)
{
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);

    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
#define v_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#define v_prefetch_l2(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

#endif
