/* Attention of the reference backend: one row of one head at a time. */
#include <math.h>

#include "kernels/math.h"
#include "kernels/ref/ref.h"

size_t eep_ref_attention_scratch_bytes(uint32_t heads, uint32_t head_dim, uint32_t max_context)
{
    (void)head_dim;
    return eep_round_up((size_t)heads * max_context * sizeof(float), EEP_CACHE_LINE);
}

/* K of one head in the block of `pos`; V follows. */
static const float *head_block(const struct eep_kv_layer *cache, const uint32_t *blocks, size_t pos,
                               size_t kv_head)
{
    size_t head_floats = EEP_KV_BLOCK * (cache->head_dim + eep_panel_round(cache->head_dim));

    return cache->kv + blocks[pos / EEP_KV_BLOCK] * cache->block_stride + kv_head * head_floats;
}

static float key_at(const struct eep_kv_layer *cache, const float *block, size_t pos, size_t d)
{
    (void)cache;
    return block[d * EEP_KV_BLOCK + pos % EEP_KV_BLOCK];
}

static float value_at(const struct eep_kv_layer *cache, const float *block, size_t pos, size_t d)
{
    const float *values = block + EEP_KV_BLOCK * (size_t)cache->head_dim;

    return values[(d / EEP_PANEL * EEP_KV_BLOCK + pos % EEP_KV_BLOCK) * EEP_PANEL + d % EEP_PANEL];
}

/* Scores of positions first..last to weights; their sum, with lane = position % 16. */
static float weigh(float *score, size_t first, size_t last)
{
    float lanes[16] = {0};
    float top = score[first];

    for (size_t pos = first; pos <= last; pos++) {
        top = score[pos] > top ? score[pos] : top;
    }
    for (size_t pos = first; pos <= last; pos++) {
        score[pos] = eep_expf(score[pos] - top);
        lanes[pos % 16] += score[pos];
    }
    return eep_lanes_sum(lanes);
}

static void attend(const struct eep_attention *a, const uint32_t *blocks, size_t pos, size_t head,
                   const float *q, float *out, float *score)
{
    const struct eep_kv_layer *cache = a->cache;
    size_t kv_head = head / (a->heads / cache->kv_heads);
    size_t first = a->window != 0 && pos + 1 > a->window ? pos + 1 - a->window : 0;

    for (size_t at = first; at <= pos; at++) {
        const float *block = head_block(cache, blocks, at, kv_head);
        float sum = 0.0f;

        for (size_t d = 0; d < cache->head_dim; d++) {
            sum = fmaf(q[d], key_at(cache, block, at, d), sum);
        }
        score[at] = sum * a->scale;
    }
    float weights = weigh(score, first, pos);
    for (size_t d = 0; d < cache->head_dim; d++) {
        float sum = 0.0f;

        for (size_t at = first; at <= pos; at++) {
            sum = fmaf(score[at], value_at(cache, head_block(cache, blocks, at, kv_head), at, d),
                       sum);
        }
        out[d] = sum / weights;
    }
}

void eep_ref_attention(const struct eep_attention *attention)
{
    const struct eep_attention *a = attention;
    size_t dim = a->cache->head_dim;

    for (size_t s = 0; s < a->seq_count; s++) {
        const struct eep_attention_seq *seq = &a->seqs[s];

        for (size_t r = 0; r < seq->rows; r++) {
            size_t row = (size_t)seq->first_row + r;

#pragma omp parallel for schedule(static)
            for (size_t head = 0; head < a->heads; head++) {
                attend(a, seq->blocks, (size_t)seq->first_pos + r, head,
                       a->q + row * a->q_stride + head * dim,
                       a->out + row * a->out_stride + head * dim,
                       (float *)a->scratch + head * a->max_context);
            }
        }
    }
}
