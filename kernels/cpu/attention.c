/*
 * Attention over blocks of the KV cache, by the same tiles as all other products.
 *
 * A unit is up to UNIT_ROWS query rows of one KV head: the heads of its group for one or several
 * positions, which so share every read of K and V. For a unit:
 *
 *     scores   q tile by the K panel of each block: all 32 positions, also those not visible
 *     softmax  over exactly the visible positions of each row, lane = position % 16
 *     output   weights by the V panels: positions are k here, so only visible ones are added;
 *              where the rows of a tile see different parts of a block, row by row
 *
 * Bits therefore depend neither on chunks and batches nor on what unused parts of blocks hold.
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/panels.h"
#include "kernels/math.h"

#include <omp.h>

#define UNIT_ROWS 24
#define OUT_PANELS 8 /* panels of head_dim whose sums are kept at a time */

/* Floats of scores for one unit: [block of EEP_TILE_K positions][row][EEP_TILE_STRIDE]. */
static size_t score_floats(size_t max_context)
{
    return eep_div_up(max_context, EEP_TILE_K) * UNIT_ROWS * EEP_TILE_STRIDE;
}

/* Units in work at a time. It must not change between the two calls, so not the team's size. */
static size_t slot_count(uint32_t heads)
{
    long processors = sysconf(_SC_NPROCESSORS_CONF);

    return EEP_MIN((size_t)heads, processors > 0 ? (size_t)processors : 1);
}

size_t eep_cpu_attention_scratch_bytes(uint32_t heads, uint32_t head_dim, uint32_t max_context)
{
    (void)head_dim;
    return slot_count(heads) * score_floats(max_context) * sizeof(float);
}

struct unit {
    const struct eep_cpu_isa *isa;
    const struct eep_attention *a;
    const struct eep_attention_seq *seq;
    size_t kv_head;
    size_t group; /* heads per KV head */
    size_t first; /* row of seq * group + head of the group, of the unit's row 0 */
    size_t rows;
    size_t tiles;
    size_t block_first; /* KV blocks that any row sees */
    size_t block_last;
    float *scores;
    size_t begin[UNIT_ROWS]; /* first visible position of each row */
    size_t end[UNIT_ROWS];   /* behind the last */
    _Alignas(EEP_CACHE_LINE) float q[UNIT_ROWS * EEP_TILE_STRIDE];
    _Alignas(EEP_CACHE_LINE) float out[OUT_PANELS * UNIT_ROWS * EEP_PANEL];
};

static size_t row_of(const struct unit *u, size_t i)
{
    return u->seq->first_row + (u->first + i) / u->group;
}

static size_t head_of(const struct unit *u, size_t i)
{
    return u->kv_head * u->group + (u->first + i) % u->group;
}

static void find_visible(struct unit *u)
{
    for (size_t i = 0; i < u->rows; i++) {
        size_t pos = u->seq->first_pos + (u->first + i) / u->group;

        u->end[i] = pos + 1;
        u->begin[i] = u->a->window != 0 && pos + 1 > u->a->window ? pos + 1 - u->a->window : 0;
    }
    u->block_first = u->begin[0] / EEP_KV_BLOCK;
    u->block_last = (u->end[u->rows - 1] - 1) / EEP_KV_BLOCK;
}

static float *score_at(const struct unit *u, size_t row, size_t pos)
{
    return u->scores + (pos / EEP_TILE_K * UNIT_ROWS + row) * EEP_TILE_STRIDE + pos % EEP_TILE_K;
}

/* K of the unit's head in a block; V follows. */
static const float *keys_of(const struct unit *u, size_t block)
{
    const struct eep_kv_layer *cache = u->a->cache;
    size_t dim = cache->head_dim;

    return cache->kv + u->seq->blocks[block] * cache->block_stride +
           u->kv_head * EEP_KV_BLOCK * (dim + eep_panel_round(dim));
}

static const float *values_of(const struct unit *u, size_t block, size_t panel)
{
    return keys_of(u, block) + EEP_KV_BLOCK * (u->a->cache->head_dim + panel * EEP_PANEL);
}

static size_t tile_begin(const struct unit *u, size_t tile)
{
    return eep_cpu_tile_begin(u->rows, u->tiles, tile);
}

static void pack_q(struct unit *u, size_t d0, size_t count)
{
    for (size_t i = 0; i < u->rows; i++) {
        const float *q = u->a->q + row_of(u, i) * u->a->q_stride;

        memcpy(u->q + i * EEP_TILE_STRIDE, q + head_of(u, i) * u->a->cache->head_dim + d0,
               count * sizeof(*q));
    }
}

static void score_block(const struct unit *u, size_t block, size_t d0, size_t count)
{
    size_t next = EEP_MIN(block + 1, u->block_last);
    struct eep_cpu_tile tile = {
        .w = keys_of(u, block) + d0 * EEP_KV_BLOCK,
        .k = count,
        .c_stride = EEP_TILE_STRIDE,
        .start = d0 == 0,
        .ahead = (const char *)(keys_of(u, next) + d0 * EEP_KV_BLOCK),
        .ahead_step = EEP_KV_BLOCK * sizeof(float) / u->tiles,
    };

    for (size_t t = 0; t < u->tiles; t++) {
        size_t begin = tile_begin(u, t);

        tile.x = u->q + begin * EEP_TILE_STRIDE;
        tile.c = score_at(u, begin, block * EEP_KV_BLOCK);
        u->isa->tiles->f32[tile_begin(u, t + 1) - begin](&tile);
        tile.ahead += tile.ahead_step * tile.k;
    }
}

static void find_scores(struct unit *u)
{
    size_t dim = u->a->cache->head_dim;

    for (size_t d0 = 0; d0 < dim; d0 += EEP_TILE_K) {
        size_t count = EEP_MIN(dim - d0, (size_t)EEP_TILE_K);

        pack_q(u, d0, count);
        for (size_t block = u->block_first; block <= u->block_last; block++) {
            score_block(u, block, d0, count);
        }
    }
}

/* The pieces of a row's scores: [pos, piece_end) lies together in memory. */
static size_t piece_end(const struct unit *u, size_t row, size_t pos)
{
    return EEP_MIN(pos - pos % EEP_TILE_K + EEP_TILE_K, u->end[row]);
}

static void weigh_row(const struct unit *u, size_t row)
{
    const struct eep_cpu_rows *ops = u->isa->rows;
    float lanes[16] = {0};
    float top = -INFINITY;

    for (size_t pos = u->begin[row], end; pos < u->end[row]; pos = end) {
        size_t at = pos % EEP_TILE_K;

        end = piece_end(u, row, pos);
        top = ops->scale_max(score_at(u, row, pos - at), at, at + end - pos, u->a->scale, top);
    }
    for (size_t pos = u->begin[row], end; pos < u->end[row]; pos = end) {
        size_t at = pos % EEP_TILE_K;

        end = piece_end(u, row, pos);
        ops->exp_sum(score_at(u, row, pos - at), at, at + end - pos, top, lanes);
    }
    float sum = eep_lanes_sum(lanes);
    for (size_t pos = u->begin[row], end; pos < u->end[row]; pos = end) {
        size_t at = pos % EEP_TILE_K;

        end = piece_end(u, row, pos);
        ops->divide(score_at(u, row, pos - at), at, at + end - pos, sum);
    }
}

/* Add positions begin .. end-1 of one block to the outputs of `rows` rows; one panel of V. */
static void add_values(const struct unit *u, size_t panel, size_t row, size_t rows, size_t begin,
                       size_t end, float *c)
{
    if (begin >= end) {
        return;
    }
    const float *values = values_of(u, begin / EEP_KV_BLOCK, panel);
    struct eep_cpu_tile tile = {
        .x = score_at(u, row, begin),
        .w = values + begin % EEP_KV_BLOCK * EEP_PANEL,
        .k = end - begin,
        .c = c + row * EEP_PANEL,
        .c_stride = EEP_PANEL,
        .ahead = (const char *)(values + EEP_KV_BLOCK * EEP_PANEL),
        .ahead_step = EEP_PANEL * sizeof(float) / u->tiles,
    };

    u->isa->tiles->f32[rows](&tile);
}

/* The rows of a tile see begin .. end of the last and first row together, the rest row by row. */
static void add_block(const struct unit *u, size_t panel, size_t block, size_t tile, float *c)
{
    size_t from = block * EEP_KV_BLOCK;
    size_t to = from + EEP_KV_BLOCK;
    size_t row = tile_begin(u, tile);
    size_t row_end = tile_begin(u, tile + 1);
    size_t begin = EEP_MAX(from, u->begin[row_end - 1]);
    size_t end = EEP_MIN(to, u->end[row]);

    if (begin >= end) {
        begin = end = to;
    }
    for (size_t r = row; r < row_end; r++) {
        add_values(u, panel, r, 1, EEP_MAX(from, u->begin[r]),
                   EEP_MIN(begin, EEP_MIN(to, u->end[r])), c);
    }
    add_values(u, panel, row, row_end - row, begin, end, c);
    for (size_t r = row; r < row_end; r++) {
        add_values(u, panel, r, 1, EEP_MAX(end, u->begin[r]), EEP_MIN(to, u->end[r]), c);
    }
}

static void store_out(const struct unit *u, size_t panel, size_t panels)
{
    size_t dim = u->a->cache->head_dim;

    for (size_t p = 0; p < panels; p++) {
        size_t d0 = (panel + p) * EEP_PANEL;
        size_t count = EEP_MIN(dim - d0, (size_t)EEP_PANEL);

        for (size_t i = 0; i < u->rows; i++) {
            float *out = u->a->out + row_of(u, i) * u->a->out_stride + head_of(u, i) * dim + d0;

            memcpy(out, u->out + (p * UNIT_ROWS + i) * EEP_PANEL, count * sizeof(*out));
        }
    }
}

static void find_outputs(struct unit *u)
{
    size_t panels = eep_div_up(u->a->cache->head_dim, EEP_PANEL);

    for (size_t first = 0; first < panels; first += OUT_PANELS) {
        size_t count = EEP_MIN(panels - first, (size_t)OUT_PANELS);

        memset(u->out, 0, count * UNIT_ROWS * EEP_PANEL * sizeof(float));
        for (size_t block = u->block_first; block <= u->block_last; block++) {
            for (size_t p = 0; p < count; p++) {
                for (size_t t = 0; t < u->tiles; t++) {
                    add_block(u, first + p, block, t, u->out + p * UNIT_ROWS * EEP_PANEL);
                }
            }
        }
        store_out(u, first, count);
    }
}

static size_t units_per_head(const struct eep_attention *a, const struct eep_attention_seq *seq)
{
    return eep_div_up((size_t)seq->rows * (a->heads / a->cache->kv_heads), UNIT_ROWS);
}

/* Unit `index` of a sequence: the last rows, which see most, first. */
static void run_unit(struct unit *u, size_t index)
{
    size_t per_head = units_per_head(u->a, u->seq);
    size_t all = (size_t)u->seq->rows * u->group;
    size_t part = per_head - 1 - index / u->a->cache->kv_heads;

    u->kv_head = index % u->a->cache->kv_heads;
    u->first = all * part / per_head;
    u->rows = all * (part + 1) / per_head - u->first;
    u->tiles = eep_cpu_tile_count(u->isa, u->rows);
    find_visible(u);
    find_scores(u);
    for (size_t i = 0; i < u->rows; i++) {
        weigh_row(u, i);
    }
    find_outputs(u);
}

/* Take units until there are none; `taken` counts those of all threads. */
static void run_units(const struct eep_cpu_isa *isa, const struct eep_attention *a, size_t slot,
                      size_t *taken)
{
    struct unit u = {
        .isa = isa,
        .a = a,
        .group = a->heads / a->cache->kv_heads,
        .scores = (float *)a->scratch + slot * score_floats(a->max_context),
    };
    size_t base = 0;

    for (size_t s = 0; s < a->seq_count;) {
        size_t units = units_per_head(a, &a->seqs[s]) * a->cache->kv_heads;
        size_t index;

#pragma omp atomic capture
        index = (*taken)++;
        while (s < a->seq_count && index >= base + units) {
            base += units;
            s++;
            units = s < a->seq_count ? units_per_head(a, &a->seqs[s]) * a->cache->kv_heads : 0;
        }
        if (s < a->seq_count) {
            u.seq = &a->seqs[s];
            run_unit(&u, index - base);
        }
    }
}

void eep_cpu_attention(const struct eep_cpu_isa *isa, const struct eep_attention *attention)
{
    size_t slots = slot_count(attention->heads);
    size_t taken = 0;

#pragma omp parallel
    {
        size_t slot = (size_t)omp_get_thread_num();

        if (slot < slots) {
            run_units(isa, attention, slot, &taken);
        }
    }
}
