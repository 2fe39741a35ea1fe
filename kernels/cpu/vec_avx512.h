/* The vector layer for AVX-512: what tile_body.h, rows_body.h and probe_body.h are written in. */
#ifndef EEP_KERNELS_VEC_H
#define EEP_KERNELS_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define V_LANES 16 /* float32 values of a vector */
/*
 * Makes a pointer look like another one. With few registers, values loaded through it are loaded
 * again where they are needed, not kept; with 32 vectors for two sums per row there is no need.
 */
#define V_HIDE(p) ((void)(p))
#define V_KEEP(a) "+v"(a) /* for asm */

typedef __m512 vf;
typedef __m512i vi;

static inline vf v_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
/* a * b + c, rounded once */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* a > b ? a : b, so b when one is NaN; and a < b ? a : b */
static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vi v_bits(vf a)
{
    return _mm512_castps_si512(a);
}
static inline vf v_from_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
static inline vi v_iset1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
static inline vi v_iadd(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi v_isub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
static inline vi v_ihalf(vi a) /* arithmetic shift by 1 */
{
    return _mm512_srai_epi32(a, 1);
}
static inline vi v_ishl23(vi a)
{
    return _mm512_slli_epi32(a, 23);
}
/* The low and the high halves of 32-bit words, each widened from BF16. */
static inline vf v_bf16_low(const uint32_t *words)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(words), 16));
}
static inline vf v_bf16_high(const uint32_t *words)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(words), _mm512_set1_epi32((int)0xffff0000)));
}
/* Consecutive BF16 values, widened. */
static inline vf v_bf16_load(const uint16_t *p)
{
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
/* Not a function: gcc 12 takes one that only prefetches for one without effect, and drops it. */
#define v_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#define v_prefetch_l2(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

#endif
