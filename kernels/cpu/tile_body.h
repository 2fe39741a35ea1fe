/*
 * The inner product of all matrix products: a tile of up to tile_rows rows by one panel, its sums
 * in registers. Included once per instruction set, after its vec_*.h.
 *
 * A panel line is read as pairs of vectors, 16 columns apart, which is what widening BF16 words
 * gives (low halves, high halves). A tile keeps `pairs` such pairs for each of its rows:
 *
 *     AVX-512: a line is 1 pair             12 rows x 1 pair  = 24 sums
 *     AVX2:    a line is 2 pairs   rows <= 3: 2 pairs, else 1 pair  = 12 sums at most
 *     NEON:    a line is 4 pairs   rows <= 3: 4 pairs, else 2 pairs = 24 sums at most
 *
 * and goes over its lines once per such part of the columns. Each sum is one chain of fma over k.
 */
#include "kernels/cpu/cpu.h"

#define LINE_PAIRS (EEP_PANEL / 2 / V_LANES)

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Lines of one pair of vectors: columns `column` .. and 16 + column ... */
static inline __attribute__((always_inline)) void load_pair(bool bf16, const void *w, size_t line,
                                                            size_t column, vf *low, vf *high)
{
    if (bf16) {
        const uint32_t *words = (const uint32_t *)w + line * (EEP_PANEL / 2) + column;

        *low = v_bf16_low(words);
        *high = v_bf16_high(words);
    } else {
        const float *values = (const float *)w + line * EEP_PANEL + column;

        *low = v_load(values);
        *high = v_load(values + EEP_PANEL / 2);
    }
}

/* Columns of `pairs` pairs from `column` on. All counts are constants where it is inlined. */
static inline __attribute__((always_inline)) void tile_part(const struct eep_cpu_tile *t, bool bf16,
                                                            int rows, int pairs, size_t column,
                                                            size_t ahead_from, size_t ahead_step)
{
    vf low[EEP_TILE_ROWS_MAX][LINE_PAIRS];
    vf high[EEP_TILE_ROWS_MAX][LINE_PAIRS];
    const float *x[2] = {t->x, t->x}; /* for even and odd pairs */

    UNROLL for (int r = 0; r < rows; r++)
    {
        UNROLL for (int j = 0; j < pairs; j++)
        {
            const float *c = t->c + r * t->c_stride + column + (size_t)j * V_LANES;

            low[r][j] = t->start ? v_zero() : v_load(c);
            high[r][j] = t->start ? v_zero() : v_load(c + EEP_PANEL / 2);
        }
    }
    V_HIDE(x[1]);
    size_t k_end = t->k_first;
    for (size_t piece = 0, left = t->k; left > 0; piece++) {
        const void *w = t->w[piece];
        const char *ahead = (const char *)t->ahead[piece] + ahead_from;

        for (size_t k = 0; k < k_end; k++) {
            if (bf16) {
                v_prefetch(ahead);
            } else if (rows > 1) {
                v_prefetch(ahead); /* a line of the panel is two cache lines */
                v_prefetch(ahead + EEP_CACHE_LINE);
            } else { /* nothing but reading: the second cache takes more at a time, +1 % */
                v_prefetch_l2(ahead);
                v_prefetch_l2(ahead + EEP_CACHE_LINE);
            }
            ahead += ahead_step;
            UNROLL for (int j = 0; j < pairs; j++)
            {
                vf w_low, w_high;

                load_pair(bf16, w, k, column + (size_t)j * V_LANES, &w_low, &w_high);
                UNROLL for (int r = 0; r < rows; r++)
                {
                    vf value = v_set1(x[j % 2][r * EEP_TILE_STRIDE + k]);

                    low[r][j] = v_fma(value, w_low, low[r][j]);
                    high[r][j] = v_fma(value, w_high, high[r][j]);
                }
            }
        }
        x[0] += k_end;
        x[1] += k_end;
        left -= k_end;
        k_end = left < t->k_piece ? left : t->k_piece;
    }
    UNROLL for (int r = 0; r < rows; r++)
    {
        UNROLL for (int j = 0; j < pairs; j++)
        {
            float *c = t->c + r * t->c_stride + column + (size_t)j * V_LANES;

            v_store(c, low[r][j]);
            v_store(c + EEP_PANEL / 2, high[r][j]);
        }
    }
}

static inline __attribute__((always_inline)) void tile_rows(const struct eep_cpu_tile *t, bool bf16,
                                                            int rows, int pairs)
{
    size_t parts = (size_t)(LINE_PAIRS / pairs);
    size_t step = t->ahead_step / parts;

    for (size_t part = 0; part < parts; part++) {
        tile_part(t, bf16, rows, pairs, part * (size_t)pairs * V_LANES, part * step * t->k_first,
                  step);
    }
}

#define TILE(rows, pairs)                                                                          \
    static void tile_f32_##rows(const struct eep_cpu_tile *t)                                      \
    {                                                                                              \
        tile_rows(t, false, rows, pairs);                                                          \
    }                                                                                              \
    static void tile_bf16_##rows(const struct eep_cpu_tile *t)                                     \
    {                                                                                              \
        tile_rows(t, true, rows, pairs);                                                           \
    }
