/*
 * Attention over blocks of the KV cache, by the same tiles as all other products.
 *
 * A unit is up to UNIT_ROWS query rows of one KV head: the heads of its group for one or several
 * positions, which so share every read of K and V. For a unit:
 *
 *     scores   q tile by the K panel of each block: all 32 positions, also those not visible
 *     weights  exp(score - greatest) of exactly the visible positions of each row, and their sum;
 *              lane = position % 16
 *     output   weights by the V panels, divided by the sum: positions are k here, and a row adds
 *              only those that it sees
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
#define STRETCH_BLOCKS (EEP_TILE_K / EEP_KV_BLOCK) /* whose scores lie together */

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
    size_t rows_max; /* of a unit of this call, <= UNIT_ROWS */
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
    const float *q_row[UNIT_ROWS];
    float *out_row[UNIT_ROWS];
    float sum[UNIT_ROWS]; /* of each row's weights */
    _Alignas(EEP_CACHE_LINE) float q[UNIT_ROWS * EEP_TILE_STRIDE];
};

/* The rows of the unit: the heads of the group for one position, then for the next. */
static void find_rows(struct unit *u)
{
    const struct eep_attention *a = u->a;
    size_t row = u->first / u->group;
    size_t head = u->first % u->group;

    for (size_t i = 0; i < u->rows; i++) {
        size_t end = (size_t)u->seq->first_pos + row + 1;
        size_t at = (u->kv_head * u->group + head) * a->cache->head_dim;

        u->end[i] = end;
        u->begin[i] = a->window != 0 && end > a->window ? end - a->window : 0;
        u->q_row[i] = a->q + (u->seq->first_row + row) * a->q_stride + at;
        u->out_row[i] = a->out + (u->seq->first_row + row) * a->out_stride + at;
        head = head + 1 < u->group ? head + 1 : 0;
        row += head == 0;
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
        u->isa->rows->copy(u->q_row[i] + d0, count, u->q + i * EEP_TILE_STRIDE);
    }
}

static void score_block(const struct unit *u, size_t block, size_t d0, size_t count)
{
    const void *w = keys_of(u, block) + d0 * EEP_KV_BLOCK;
    const void *ahead = keys_of(u, EEP_MIN(block + 1, u->block_last)) + d0 * EEP_KV_BLOCK;
    struct eep_cpu_tile tile = {
        .w = &w,
        .ahead = &ahead,
        .ahead_step = EEP_KV_BLOCK * sizeof(float),
        .k = count,
        .k_first = count,
        .c_stride = EEP_TILE_STRIDE,
        .start = d0 == 0,
    };

    for (size_t t = 0; t < u->tiles; t++) {
        size_t begin = tile_begin(u, t);

        tile.x = u->q + begin * EEP_TILE_STRIDE;
        tile.c = score_at(u, begin, block * EEP_KV_BLOCK);
        u->isa->tiles->f32[tile_begin(u, t + 1) - begin](&tile);
        tile.ahead_step = 0; /* the first tile has fetched it all */
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

/* Scores to exp(score - greatest); their sum divides the outputs in the end. */
static void weigh_row(struct unit *u, size_t row)
{
    const struct eep_cpu_rows *ops = u->isa->rows;
    float lanes[16] = {0};
    float top = -INFINITY;

    for (size_t pos = u->begin[row], end; pos < u->end[row]; pos = end) {
        size_t at = pos % EEP_TILE_K;

        end = piece_end(u, row, pos);
        top = ops->scaled_max(score_at(u, row, pos - at), at, at + end - pos, u->a->scale, top);
    }
    for (size_t pos = u->begin[row], end; pos < u->end[row]; pos = end) {
        size_t at = pos % EEP_TILE_K;

        end = piece_end(u, row, pos);
        ops->exp_sum(score_at(u, row, pos - at), at, at + end - pos, u->a->scale, top, lanes);
    }
    u->sum[row] = eep_lanes_sum(lanes);
}

/*
 * Add positions begin .. end-1, all in one stretch of EEP_TILE_K, to the outputs of rows
 * row .. row_end-1. `values` are one panel of V in the blocks of the stretch, and the next ones.
 */
static void add_values(const struct unit *u, const void *const *values, size_t row, size_t row_end,
                       size_t begin, size_t end, float *c)
{
    size_t skip = begin % EEP_KV_BLOCK;
    const void *w[STRETCH_BLOCKS + 1];
    struct eep_cpu_tile tile = {
        .x = score_at(u, row, begin),
        .w = w,
        .ahead = w + 1,
        .ahead_step = EEP_PANEL * sizeof(float),
        .k = end - begin,
        .k_first = EEP_MIN(end - begin, EEP_KV_BLOCK - skip),
        .k_piece = EEP_KV_BLOCK,
        .c = c + row * EEP_PANEL,
        .c_stride = EEP_PANEL,
    };

    values += begin % EEP_TILE_K / EEP_KV_BLOCK;
    for (size_t block = begin / EEP_KV_BLOCK; block <= eep_div_up(end, EEP_KV_BLOCK); block++) {
        w[block - begin / EEP_KV_BLOCK] = *values++; /* and one more, to be fetched ahead */
    }
    w[0] = (const float *)w[0] + skip * EEP_PANEL;
    u->isa->tiles->f32[row_end - row](&tile);
}

/*
 * One tile of rows over positions from .. to-1 of one stretch. Both ends of what a row sees grow
 * with the row, so the rows that see a position are consecutive: go from change to change.
 */
static void add_stretch(const struct unit *u, const void *const *values, size_t tile, size_t from,
                        size_t to, float *c)
{
    size_t rows_end = tile_begin(u, tile + 1);
    size_t row = tile_begin(u, tile);
    size_t row_end = row;

    while (from < to) {
        while (row < rows_end && u->end[row] <= from) {
            row++;
        }
        while (row_end < rows_end && u->begin[row_end] <= from) {
            row_end++;
        }
        size_t next = row_end < rows_end ? EEP_MIN(to, u->begin[row_end]) : to;
        if (row < row_end) {
            next = EEP_MIN(next, u->end[row]);
            add_values(u, values, row, row_end, from, next, c);
        } else if (row_end == rows_end) {
            return;
        }
        from = next;
    }
}

static void store_out(const struct unit *u, size_t panel, const float *c)
{
    size_t d0 = panel * EEP_PANEL;
    size_t count = EEP_MIN(u->a->cache->head_dim - d0, (size_t)EEP_PANEL);

    for (size_t i = 0; i < u->rows; i++) {
        u->isa->rows->divide(c + i * EEP_PANEL, count, u->sum[i], u->out_row[i] + d0);
    }
}

static void find_outputs(const struct unit *u, size_t panel)
{
    _Alignas(EEP_CACHE_LINE) float c[UNIT_ROWS * EEP_PANEL];
    const void *values[STRETCH_BLOCKS + 1];
    size_t first = u->block_first / STRETCH_BLOCKS * STRETCH_BLOCKS;

    memset(c, 0, u->rows * EEP_PANEL * sizeof(*c));
    for (size_t at = first; at <= u->block_last; at += STRETCH_BLOCKS) {
        for (size_t b = 0; b <= STRETCH_BLOCKS; b++) {
            /* Blocks outside of what is seen are only fetched ahead, if at all. */
            size_t block = EEP_MIN(EEP_MAX(at + b, u->block_first), u->block_last);

            values[b] = values_of(u, block, panel);
        }
        for (size_t t = 0; t < u->tiles; t++) {
            add_stretch(u, values, t, at * EEP_KV_BLOCK, (at + STRETCH_BLOCKS) * EEP_KV_BLOCK, c);
        }
    }
    store_out(u, panel, c);
}

/* Rows of a unit: fewer where there would not be a unit for every thread. */
static size_t unit_rows(const struct eep_attention *a)
{
    size_t rows = 0;

    for (size_t s = 0; s < a->seq_count; s++) {
        rows += (size_t)a->seqs[s].rows * a->heads;
    }
    rows = eep_div_up(rows, (size_t)omp_get_num_threads());
    return EEP_MIN(EEP_MAX(rows, (size_t)1), (size_t)UNIT_ROWS);
}

static size_t units_per_head(const struct unit *u, const struct eep_attention_seq *seq)
{
    return eep_div_up(seq->rows * u->group, u->rows_max);
}

/* Unit `index` of a sequence: the last rows, which see most, first. */
static void run_unit(struct unit *u, size_t index)
{
    size_t per_head = units_per_head(u, u->seq);
    size_t all = (size_t)u->seq->rows * u->group;
    size_t part = per_head - 1 - index / u->a->cache->kv_heads;

    u->kv_head = index % u->a->cache->kv_heads;
    u->first = all * part / per_head;
    u->rows = all * (part + 1) / per_head - u->first;
    u->tiles = eep_cpu_tile_count(u->isa, u->rows);
    find_rows(u);
    find_scores(u);
    for (size_t i = 0; i < u->rows; i++) {
        weigh_row(u, i);
    }
    for (size_t panel = 0; panel * EEP_PANEL < u->a->cache->head_dim; panel++) {
        find_outputs(u, panel);
    }
}

/* Take units until there are none; `taken` counts those of all threads. */
static void run_units(const struct eep_cpu_isa *isa, const struct eep_attention *a, size_t slot,
                      size_t *taken)
{
    struct unit u; /* large: not cleared */
    size_t base = 0;

    u.isa = isa;
    u.a = a;
    u.rows_max = unit_rows(a);
    u.group = a->heads / a->cache->kv_heads;
    u.scores = (float *)a->scratch + slot * score_floats(a->max_context);
    for (size_t s = 0; s < a->seq_count;) {
        size_t units = units_per_head(&u, &a->seqs[s]) * a->cache->kv_heads;
        size_t index;

#pragma omp atomic capture
        index = (*taken)++;
        while (s < a->seq_count && index >= base + units) {
            base += units;
            s++;
            units = s < a->seq_count ? units_per_head(&u, &a->seqs[s]) * a->cache->kv_heads : 0;
        }
        if (s < a->seq_count) {
            u.seq = &a->seqs[s];
            run_unit(&u, index - base);
        }
    }
}

/* Multiply-adds of a call, windows not looked at. */
static size_t fma_count(const struct eep_attention *a)
{
    size_t scores = 0;

    for (size_t s = 0; s < a->seq_count; s++) {
        scores += (size_t)a->seqs[s].rows * (a->seqs[s].first_pos + a->seqs[s].rows);
    }
    return 2 * scores * a->heads * a->cache->head_dim;
}

void eep_cpu_attention(const struct eep_cpu_isa *isa, const struct eep_attention *attention)
{
    bool parallel = fma_count(attention) > EEP_CPU_PARALLEL_FMAS;
    size_t slots = slot_count(attention->heads);
    size_t taken = 0;

#pragma omp parallel if (parallel)
    {
        size_t slot = (size_t)omp_get_thread_num();

        if (slot < slots) {
            run_units(isa, attention, slot, &taken);
        }
    }
}
