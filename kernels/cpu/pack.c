/*
 * Packing of weights at the speed of memory. The vectors are 16 bytes and need no instruction set
 * beyond the compiler's default one.
 *
 * 32 rows by up to 64 columns of the source are first copied together (rows of a matrix are often
 * a multiple of 4 KiB apart, which the first cache cannot hold), then transposed 4 by 4.
 */
#include <string.h>

#include "base/assert.h"
#include "kernels/cpu/cpu.h"

#define STAGE_K 64
#define WORDS (EEP_PANEL / 2) /* of a line of BF16 */

typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef float f32x4 __attribute__((vector_size(16)));

/* Rows of one panel, from one column on. What the source lacks is zero. */
struct stage_bf16 {
    _Alignas(EEP_CACHE_LINE) uint16_t row[EEP_PANEL][STAGE_K + 8];
};
struct stage_f32 {
    _Alignas(EEP_CACHE_LINE) float row[EEP_PANEL][STAGE_K + 4];
};

static inline u32x4 load4(const void *p)
{
    u32x4 v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline u16x8 load8(const void *p)
{
    u16x8 v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void store4(void *p, u32x4 v)
{
    memcpy(p, &v, sizeof(v));
}

/* Four rows of four words to four lines, `line` words apart. */
static inline void transpose4(u32x4 a, u32x4 b, u32x4 c, u32x4 d, uint32_t *out, size_t line)
{
    u32x4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    u32x4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    u32x4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    u32x4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);

    store4(out, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    store4(out + line, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    store4(out + 2 * line, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
    store4(out + 3 * line, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

/* Eight columns of two rows that share words, as words. */
struct words8 {
    u32x4 first, second;
};

static inline struct words8 words_of(const uint16_t *low, const uint16_t *high)
{
    u16x8 a = load8(low), b = load8(high);

    return (struct words8){
        (u32x4)__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11),
        (u32x4)__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15),
    };
}

/* Lines of words are in the order of memory only where the low half of a word comes first. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "eep needs a little-endian machine");

static void lines_bf16(const struct stage_bf16 *stage, size_t count, uint32_t *out)
{
    size_t k = 0;

    for (; k + 8 <= count; k += 8) {
        for (size_t i = 0; i < WORDS; i += 4) {
            struct words8 a = words_of(&stage->row[i][k], &stage->row[i + WORDS][k]);
            struct words8 b = words_of(&stage->row[i + 1][k], &stage->row[i + 1 + WORDS][k]);
            struct words8 c = words_of(&stage->row[i + 2][k], &stage->row[i + 2 + WORDS][k]);
            struct words8 d = words_of(&stage->row[i + 3][k], &stage->row[i + 3 + WORDS][k]);

            transpose4(a.first, b.first, c.first, d.first, out + k * WORDS + i, WORDS);
            transpose4(a.second, b.second, c.second, d.second, out + (k + 4) * WORDS + i, WORDS);
        }
    }
    for (; k < count; k++) {
        for (size_t i = 0; i < WORDS; i++) {
            out[k * WORDS + i] = stage->row[i][k] | (uint32_t)stage->row[i + WORDS][k] << 16;
        }
    }
}

static void lines_f32(const struct stage_f32 *stage, size_t count, float *out)
{
    size_t k = 0;

    for (; k + 4 <= count; k += 4) {
        for (size_t i = 0; i < EEP_PANEL; i += 4) {
            transpose4(load4(&stage->row[i][k]), load4(&stage->row[i + 1][k]),
                       load4(&stage->row[i + 2][k]), load4(&stage->row[i + 3][k]),
                       (uint32_t *)(void *)(out + k * EEP_PANEL + i), EEP_PANEL);
        }
    }
    for (; k < count; k++) {
        for (size_t i = 0; i < EEP_PANEL; i++) {
            out[k * EEP_PANEL + i] = stage->row[i][k];
        }
    }
}

/* Four F16 values, widened exactly: the exponent by a product, which is right for subnormals too.
 */
static inline u32x4 widen_f16(u32x4 half)
{
    u32x4 sign = (half & 0x8000) << 16;
    u32x4 rest = (half & 0x7fff) << 13;
    u32x4 special = (u32x4)(rest >= (UINT32_C(0x7c00) << 13)); /* infinity and NaN */
    u32x4 value = (u32x4)((f32x4)rest * 0x1p112f);

    return sign | (special & (rest | UINT32_C(0x7f800000))) | (~special & value);
}

static void widen(enum eep_dtype dtype, const char *src, size_t count, float *out)
{
    const u16x8 zero = {0};
    size_t i = 0;

    for (; dtype == EEP_BF16 && i + 8 <= count; i += 8) {
        u16x8 v = load8(src + 2 * i);

        store4(out + i, (u32x4)__builtin_shufflevector(zero, v, 0, 8, 1, 9, 2, 10, 3, 11));
        store4(out + i + 4, (u32x4)__builtin_shufflevector(zero, v, 4, 12, 5, 13, 6, 14, 7, 15));
    }
    for (; dtype == EEP_F16 && i + 8 <= count; i += 8) {
        u16x8 v = load8(src + 2 * i);

        store4(out + i,
               widen_f16((u32x4)__builtin_shufflevector(v, zero, 0, 8, 1, 9, 2, 10, 3, 11)));
        store4(out + i + 4,
               widen_f16((u32x4)__builtin_shufflevector(v, zero, 4, 12, 5, 13, 6, 14, 7, 15)));
    }
    eep_dtype_widen(dtype, src + i * eep_dtype_bytes(dtype), count - i, out + i);
}

/* One panel: `rows` rows at `src`, `k` columns. */
static void pack_bf16(size_t rows, size_t k, const char *src, uint32_t *out)
{
    struct stage_bf16 stage;

    memset(&stage, 0, sizeof(stage));
    for (size_t k0 = 0; k0 < k; k0 += STAGE_K) {
        size_t count = EEP_MIN(k - k0, (size_t)STAGE_K);

        for (size_t i = 0; i < rows; i++) {
            memcpy(stage.row[i], src + (i * k + k0) * sizeof(uint16_t), count * sizeof(uint16_t));
        }
        lines_bf16(&stage, count, out + k0 * WORDS);
    }
}

static void pack_f32(size_t rows, size_t k, enum eep_dtype src_dtype, const char *src, float *out)
{
    size_t bytes = eep_dtype_bytes(src_dtype);
    struct stage_f32 stage;

    memset(&stage, 0, sizeof(stage));
    for (size_t k0 = 0; k0 < k; k0 += STAGE_K) {
        size_t count = EEP_MIN(k - k0, (size_t)STAGE_K);

        for (size_t i = 0; i < rows; i++) {
            widen(src_dtype, src + (i * k + k0) * bytes, count, stage.row[i]);
        }
        lines_f32(&stage, count, out + k0 * EEP_PANEL);
    }
}

void eep_cpu_pack(enum eep_dtype dtype, size_t n, size_t k, enum eep_dtype src_dtype,
                  const void *src, void *dst, size_t panel_step)
{
    size_t panels = eep_div_up(n, EEP_PANEL);
    size_t panel_bytes = eep_panels_bytes(dtype, EEP_PANEL, k);
    size_t row_bytes = k * eep_dtype_bytes(src_dtype);

    EEP_ASSERT(dtype == EEP_F32 || (dtype == EEP_BF16 && src_dtype == EEP_BF16));
    EEP_ASSERT(src_dtype == EEP_F32 || src_dtype == EEP_BF16 || src_dtype == EEP_F16);
#pragma omp parallel for schedule(static) if (n * k > 65536)
    for (size_t p = 0; p < panels; p++) {
        const char *from = (const char *)src + p * EEP_PANEL * row_bytes;
        char *to = (char *)dst + p * panel_step * panel_bytes;
        size_t rows = EEP_MIN(n - p * EEP_PANEL, (size_t)EEP_PANEL);

        if (dtype == EEP_F32) {
            pack_f32(rows, k, src_dtype, from, (float *)(void *)to);
        } else {
            pack_bf16(rows, k, from, (uint32_t *)(void *)to);
        }
    }
}
