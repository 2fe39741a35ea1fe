/*
 * Packing of the reference backend, and storing K and V rows into the blocks of the cache, which
 * all backends share. Both only move values, or widen them exactly.
 */
#include <string.h>

#include "base/assert.h"
#include "kernels/ref/ref.h"

#define K_STEP 64 /* columns of the source at a time: 32 rows x 64 stay in the first cache */

/* `count` elements of row `row` from column `k0` on, as float32 or as BF16 bits. */
static void load_f32(enum eep_dtype dtype, const char *row, size_t k0, size_t count, float *out)
{
    eep_dtype_widen(dtype, row + k0 * eep_dtype_bytes(dtype), count, out);
}

static void pack_f32_block(size_t rows, enum eep_dtype src_dtype, const char *src, size_t k,
                           size_t k0, size_t count, float *panel)
{
    float line[K_STEP];

    for (size_t i = 0; i < EEP_PANEL; i++) {
        if (i < rows) {
            load_f32(src_dtype, src + i * k * eep_dtype_bytes(src_dtype), k0, count, line);
        } else {
            memset(line, 0, sizeof(line));
        }
        for (size_t j = 0; j < count; j++) {
            panel[(k0 + j) * EEP_PANEL + i] = line[j];
        }
    }
}

/* One 32-bit word is two columns, 16 apart; a missing row is zero. */
static void pack_bf16_block(size_t rows, const char *src, size_t k, size_t k0, size_t count,
                            uint32_t *panel)
{
    uint16_t low[K_STEP], high[K_STEP];
    size_t half = EEP_PANEL / 2;

    for (size_t i = 0; i < half; i++) {
        memset(low, 0, sizeof(low));
        memset(high, 0, sizeof(high));
        if (i < rows) {
            memcpy(low, src + (i * k + k0) * sizeof(uint16_t), count * sizeof(uint16_t));
        }
        if (i + half < rows) {
            memcpy(high, src + ((i + half) * k + k0) * sizeof(uint16_t), count * sizeof(uint16_t));
        }
        for (size_t j = 0; j < count; j++) {
            panel[(k0 + j) * half + i] = (uint32_t)low[j] | (uint32_t)high[j] << 16;
        }
    }
}

void eep_ref_pack(enum eep_dtype dtype, size_t n, size_t k, enum eep_dtype src_dtype,
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

        for (size_t k0 = 0; k0 < k; k0 += K_STEP) {
            size_t count = EEP_MIN(k - k0, (size_t)K_STEP);

            if (dtype == EEP_F32) {
                pack_f32_block(rows, src_dtype, from, k, k0, count, (float *)to);
            } else {
                pack_bf16_block(rows, from, k, k0, count, (uint32_t *)to);
            }
        }
    }
}

static void store_row(const struct eep_kv_layer *cache, float *block, size_t slot, const float *k,
                      const float *v)
{
    size_t dim = cache->head_dim;
    size_t dim_round = eep_panel_round(dim);

    for (size_t head = 0; head < cache->kv_heads; head++) {
        float *keys = block + head * EEP_KV_BLOCK * (dim + dim_round);
        float *values = keys + EEP_KV_BLOCK * dim;

        for (size_t d = 0; d < dim; d++) {
            keys[d * EEP_KV_BLOCK + slot] = k[head * dim + d];
        }
        for (size_t d = 0; d < dim_round; d++) {
            values[(d / EEP_PANEL * EEP_KV_BLOCK + slot) * EEP_PANEL + d % EEP_PANEL] =
                d < dim ? v[head * dim + d] : 0.0f;
        }
    }
}

void eep_ref_kv_store(const struct eep_kv_layer *cache, const struct eep_attention_seq *seqs,
                      size_t seq_count, const float *k, size_t k_stride, const float *v,
                      size_t v_stride)
{
    for (size_t s = 0; s < seq_count; s++) {
        const struct eep_attention_seq *seq = &seqs[s];

#pragma omp parallel for schedule(static) if (seq->rows > 16)
        for (size_t r = 0; r < seq->rows; r++) {
            size_t pos = (size_t)seq->first_pos + r;
            size_t row = (size_t)seq->first_row + r;
            float *block = cache->kv + seq->blocks[pos / EEP_KV_BLOCK] * cache->block_stride;

            store_row(cache, block, pos % EEP_KV_BLOCK, k + row * k_stride, v + row * v_stride);
        }
    }
}
