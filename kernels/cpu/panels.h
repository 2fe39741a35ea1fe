/* Products of some rows by a range of panels, in one thread; see panels.c. */
#ifndef EEP_KERNELS_CPU_PANELS_H
#define EEP_KERNELS_CPU_PANELS_H

#include "kernels/cpu/cpu.h"

#define EEP_CPU_CHUNK_ROWS 96   /* rows that are packed at a time */
#define EEP_CPU_GROUP_PANELS 16 /* panels whose sums are kept at a time; even: gate, up */

struct eep_cpu_product;

/**
 * Take finished sums: of panels `panel` .. and rows `row` .. of the product, as
 * c[panel][row][EEP_PANEL]. `context` is the product's.
 */
typedef void eep_cpu_finish_fn(const struct eep_cpu_product *product, const float *c, size_t panel,
                               size_t panels, size_t row, size_t rows);

/** Rows of x by the panels of one matrix. */
struct eep_cpu_product {
    const struct eep_cpu_isa *isa;
    enum eep_dtype dtype;
    const char *w; /* panel 0 */
    size_t k;
    const float *x;
    size_t x_stride;
    const uint32_t *x_rows; /* index of each row in x; NULL = 0, 1, 2, ... */
    size_t rows;
    eep_cpu_finish_fn *finish;
    const void *context; /* for finish */
};

/** Compute panels first .. last-1 (a multiple of two if finish needs pairs). */
void eep_cpu_product_run(const struct eep_cpu_product *product, size_t first, size_t last);

/** The tiles that `rows` rows are cut into, and where tile `index` of them begins. */
static inline size_t eep_cpu_tile_count(const struct eep_cpu_isa *isa, size_t rows)
{
    return eep_div_up(rows, isa->tiles->rows);
}

static inline size_t eep_cpu_tile_begin(size_t rows, size_t tiles, size_t index)
{
    return rows * index / tiles; /* even: no tile with a single row beside full ones */
}

static inline eep_cpu_tile_fn *eep_cpu_tile_of(const struct eep_cpu_isa *isa, enum eep_dtype dtype,
                                               size_t rows)
{
    return dtype == EEP_F32 ? isa->tiles->f32[rows] : isa->tiles->bf16[rows];
}

#endif
