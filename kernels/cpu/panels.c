/*
 * Blocking for the caches, after Goto and van de Geijn (2008), with panels packed once at load:
 *
 *     for a group of 16 panels                sums of 16 panels x 96 rows stay in the second cache
 *       for a chunk of up to 96 rows
 *         for a stretch of k                  as long as the packed rows have room for
 *           pack the rows                     [block of k][row][EEP_TILE_STRIDE]
 *           for each panel of the group       one linear stream of memory
 *             for each block of k             weights of 16 or 32 KiB in the first cache
 *               for each tile of rows         sums in registers
 *
 * With few rows the stretch is all of k and the rows are packed once: weights are then read in
 * one linear stream from the first panel to the last. While a block is used the next one is
 * fetched, each tile its share of it. Sums between blocks are float32 in memory, so blocking
 * changes no bit.
 */
#include "kernels/cpu/panels.h"

#include <string.h>

#define BLOCK_K_BF16 EEP_TILE_K /* lines of a panel in a block: 16 KiB; F32: by instruction set */

/*
 * Less than 4 KiB comes too late, more than 12 pushes out what is in use. Multiples of 4 KiB are
 * worse by 1 %: the same sets of the cache.
 */
#define AHEAD_BYTES 9216

#define X_FLOATS (EEP_CPU_CHUNK_ROWS * EEP_TILE_STRIDE)
#define C_FLOATS (EEP_CPU_GROUP_PANELS * EEP_CPU_CHUNK_ROWS * EEP_PANEL)

/* On the stack of the thread: 300 KiB, no allocation and no sharing. */
struct workspace {
    _Alignas(EEP_CACHE_LINE) float x[X_FLOATS];
    _Alignas(EEP_CACHE_LINE) float c[C_FLOATS];
    bool packed; /* x holds all of k of the product's only chunk */
};

/* A group of panels by a chunk of rows, at one stretch of k. */
struct stretch {
    const struct eep_cpu_product *product;
    size_t panel;      /* first of the group */
    size_t panels;     /* <= EEP_CPU_GROUP_PANELS */
    size_t row;        /* first of the chunk */
    size_t rows;       /* <= EEP_CPU_CHUNK_ROWS */
    size_t k0;         /* first line */
    size_t k;          /* lines */
    size_t block_k;    /* lines of a block */
    size_t line_bytes; /* of a panel */
};

static const float *x_row(const struct eep_cpu_product *product, size_t row)
{
    size_t index = product->x_rows != NULL ? product->x_rows[row] : row;

    return product->x + index * product->x_stride;
}

static void pack_rows(const struct stretch *s, float *x)
{
    void (*copy)(const float *, size_t, float *) = s->product->isa->rows->copy;

    for (size_t k = 0; k < s->k; k += s->block_k) {
        size_t count = EEP_MIN(s->k - k, s->block_k);

        for (size_t r = 0; r < s->rows; r++) {
            copy(x_row(s->product, s->row + r) + s->k0 + k, count, x);
            x += EEP_TILE_STRIDE;
        }
    }
}

static const char *line_at(const struct stretch *s, size_t panel, size_t k)
{
    return s->product->w + ((s->panel + panel) * s->product->k + k) * s->line_bytes;
}

/* Where the weights go on after block `k` of panel `panel`. */
static const char *line_after(const struct stretch *s, size_t panel, size_t k)
{
    if (k + s->block_k < s->k0 + s->k) {
        return line_at(s, panel, k + s->block_k);
    }
    if (panel + 1 < s->panels) {
        return line_at(s, panel + 1, s->k0);
    }
    if (s->k0 + s->k < s->product->k) {
        return line_at(s, 0, s->k0 + s->k);
    }
    return line_at(s, s->panels, 0);
}

/*
 * What to fetch while a block is used: the next block, each tile its share; or, where few rows go
 * over a linear stream once, what is AHEAD_BYTES further on, which the first cache still holds
 * then.
 */
static const char *ahead_of(const struct stretch *s, size_t panel, size_t k)
{
    bool once = s->rows <= s->product->isa->tiles->rows_once;

    return once ? line_at(s, panel, k) + AHEAD_BYTES : line_after(s, panel, k);
}

/* One block of one panel by all tiles of the chunk. */
static void run_block(const struct stretch *s, size_t panel, size_t k, const float *x, float *c)
{
    const struct eep_cpu_isa *isa = s->product->isa;
    size_t tiles = eep_cpu_tile_count(isa, s->rows);
    size_t count = EEP_MIN(s->k0 + s->k - k, s->block_k);
    const void *w = line_at(s, panel, k);
    const char *ahead = ahead_of(s, panel, k);
    const void *tile_ahead;
    struct eep_cpu_tile tile = {
        .w = &w,
        .ahead = &tile_ahead,
        .ahead_step = s->line_bytes / tiles,
        .k = count,
        .k_first = count,
        .c_stride = EEP_PANEL,
        .start = k == 0,
    };

    for (size_t t = 0; t < tiles; t++) {
        size_t begin = eep_cpu_tile_begin(s->rows, tiles, t);
        size_t rows = eep_cpu_tile_begin(s->rows, tiles, t + 1) - begin;

        tile.x = x + begin * EEP_TILE_STRIDE;
        tile.c = c + begin * EEP_PANEL;
        tile_ahead = ahead + t * tile.ahead_step * count;
        eep_cpu_tile_of(isa, s->product->dtype, rows)(&tile);
    }
}

static void run_stretch(const struct stretch *s, const float *x, float *c)
{
    for (size_t panel = 0; panel < s->panels; panel++) {
        const float *block = x;

        for (size_t k = s->k0; k < s->k0 + s->k; k += s->block_k) {
            run_block(s, panel, k, block, c + panel * s->rows * EEP_PANEL);
            block += s->rows * EEP_TILE_STRIDE;
        }
    }
}

/* A group of panels by a chunk of rows. */
static void run_chunk(const struct eep_cpu_product *product, struct workspace *space, size_t panel,
                      size_t panels, size_t row, size_t rows)
{
    bool f32 = product->dtype == EEP_F32;
    struct stretch s = {
        .product = product,
        .panel = panel,
        .panels = panels,
        .row = row,
        .rows = rows,
        .block_k = f32 ? product->isa->tiles->block_f32 : BLOCK_K_BF16,
        .line_bytes = EEP_PANEL * (f32 ? sizeof(float) : sizeof(uint16_t)),
    };
    size_t k_max = X_FLOATS / (rows * EEP_TILE_STRIDE) * s.block_k;

    if (product->k == 0) {
        memset(space->c, 0, panels * rows * EEP_PANEL * sizeof(float));
    }
    for (size_t k0 = 0; k0 < product->k; k0 += k_max) {
        s.k0 = k0;
        s.k = EEP_MIN(product->k - k0, k_max);
        if (!space->packed) {
            pack_rows(&s, space->x);
        }
        run_stretch(&s, space->x, space->c);
    }
    space->packed = rows == product->rows && product->k <= k_max;
    product->finish(product, space->c, panel, panels, row, rows);
}

void eep_cpu_product_run(const struct eep_cpu_product *product, size_t first, size_t last)
{
    struct workspace space;
    size_t rows = product->rows;
    size_t tiles = eep_cpu_tile_count(product->isa, rows);
    size_t chunk_tiles = EEP_CPU_CHUNK_ROWS / product->isa->tiles->rows;

    space.packed = false;
    for (size_t panel = first; panel < last; panel += EEP_CPU_GROUP_PANELS) {
        size_t panels = EEP_MIN(last - panel, (size_t)EEP_CPU_GROUP_PANELS);

        for (size_t t = 0; t < tiles; t += chunk_tiles) {
            size_t begin = eep_cpu_tile_begin(rows, tiles, t);
            size_t end = eep_cpu_tile_begin(rows, tiles, EEP_MIN(t + chunk_tiles, tiles));

            run_chunk(product, &space, panel, panels, begin, end - begin);
        }
    }
}
