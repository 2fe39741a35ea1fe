/*
 * What the files of the CPU backends share.
 *
 * The drivers (panels.c, gemm.c, ffn.c, attention.c, rows.c) know no instruction set: they split
 * the work, keep data in the caches, and call an `eep_cpu_isa`. Each instruction set fills in that
 * tables from the same bodies (tile_body.h, rows_body.h, probe_body.h) on its own vector layer
 * (vec_*.h), in files that are compiled with its flags.
 */
#ifndef EEP_KERNELS_CPU_H
#define EEP_KERNELS_CPU_H

#include "kernels/kernels.h"

/*
 * Rows of x that a tile reads stand EEP_TILE_STRIDE floats apart, a constant for short addresses;
 * EEP_TILE_K of them are used. The rest moves rows to different sets of the first-level cache.
 */
#define EEP_TILE_K 256
#define EEP_TILE_STRIDE (EEP_TILE_K + 16)
#define EEP_TILE_ROWS_MAX 12

/* Below this many multiply-adds waking a team costs more than it saves. */
#define EEP_CPU_PARALLEL_FMAS 200000

/**
 * One product of a tile: rows of x by `k` lines of a panel. The lines may lie in pieces: `k_first`
 * in w[0], then `k_piece` in each of w[1], w[2], ... While piece i is used, memory at ahead[i] is
 * fetched: `ahead_step` bytes of it per line.
 */
struct eep_cpu_tile {
    const float *x; /* rows, EEP_TILE_STRIDE apart */
    const void *const *w;
    const void *const *ahead;
    size_t ahead_step;
    size_t k;
    size_t k_first; /* k where the lines are in one piece */
    size_t k_piece;
    float *c; /* rows of 32 sums, c_stride apart */
    size_t c_stride;
    bool start; /* sums start from +0; else from c */
};

typedef void eep_cpu_tile_fn(const struct eep_cpu_tile *tile);

/** The tiles of an instruction set (tile_*.c), by rows; [0] is NULL. */
struct eep_cpu_tiles {
    unsigned rows;      /* most rows of a tile, <= EEP_TILE_ROWS_MAX */
    unsigned rows_once; /* up to so many it goes over the lines of a panel once, else by parts */
    unsigned block_f32; /* lines of F32 that are used again and again from near: <= EEP_TILE_K */
    eep_cpu_tile_fn *f32[EEP_TILE_ROWS_MAX + 1];
    eep_cpu_tile_fn *bf16[EEP_TILE_ROWS_MAX + 1];
};

/** The row operations of an instruction set (rows_*.c). */
struct eep_cpu_rows {
    /** y = x: for pieces of 1 KiB, where memcpy() may become a slow string instruction. */
    void (*copy)(const float *x, size_t n, float *y);
    /** h[i] = silu(gate[i]) * up[i] for one panel row of 32. */
    void (*silu_mul)(const float *gate, const float *up, float *h);
    void (*rmsnorm)(const float *x, size_t n, const float *weight, float eps, float *y);
    /** Rotate `count` pairs (i, i + half) of one head; cosines and sines apart. */
    void (*rope)(float *x, size_t half, size_t count, const float *cosine, const float *sine);
    void (*add)(float *x, const float *y, size_t n);
    void (*add_scaled)(float *x, float scale, const float *y, size_t n);
    void (*weighted_sum)(enum eep_dtype dtype, const void *const *rows, const float *weights,
                         size_t top_k, size_t n, float *out);

    /*
     * Softmax in passes over elements first .. last-1 of pieces of one row. A piece starts at a
     * multiple of 16 of the row, so element i is in lane i % 16.
     */
    /** The greater of `top` and all x * scale. */
    float (*scaled_max)(const float *x, size_t first, size_t last, float scale, float top);
    /** x = exp(x * scale - top), added to the lanes. */
    void (*exp_sum)(float *x, size_t first, size_t last, float scale, float top, float lanes[16]);
    /** y = x / by. */
    void (*divide)(const float *x, size_t n, float by, float *y);
};

extern const struct eep_cpu_tiles eep_cpu_tiles_avx2;
extern const struct eep_cpu_tiles eep_cpu_tiles_avx512;
extern const struct eep_cpu_tiles eep_cpu_tiles_neon;
extern const struct eep_cpu_rows eep_cpu_rows_avx2;
extern const struct eep_cpu_rows eep_cpu_rows_avx512;
extern const struct eep_cpu_rows eep_cpu_rows_neon;

/** What the drivers need of an instruction set. */
struct eep_cpu_isa {
    const struct eep_cpu_tiles *tiles;
    const struct eep_cpu_rows *rows;
};

/* pack.c, gemm.c, ffn.c */
void eep_cpu_pack(enum eep_dtype dtype, size_t n, size_t k, enum eep_dtype src_dtype,
                  const void *src, void *dst, size_t panel_step);
void eep_cpu_gemm(const struct eep_cpu_isa *isa, const struct eep_gemm *gemm);
size_t eep_cpu_ffn_scratch_bytes(size_t rows, size_t width);
void eep_cpu_ffn(const struct eep_cpu_isa *isa, const struct eep_ffn *ffn);

/* attention.c */
size_t eep_cpu_attention_scratch_bytes(uint32_t heads, uint32_t head_dim, uint32_t max_context);
void eep_cpu_attention(const struct eep_cpu_isa *isa, const struct eep_attention *attention);

/* rows.c */
void eep_cpu_rmsnorm(const struct eep_cpu_isa *isa, const float *x, size_t x_stride, size_t rows,
                     size_t parts, size_t n, const float *weight, float eps, float *y,
                     size_t y_stride);
void eep_cpu_rope(const struct eep_cpu_isa *isa, float *x, size_t x_stride, size_t rows,
                  size_t heads, size_t head_dim, const float *cos_sin);
void eep_cpu_softmax(const struct eep_cpu_isa *isa, float *x, size_t x_stride, size_t rows,
                     size_t n);
void eep_cpu_add(const struct eep_cpu_isa *isa, float *x, size_t x_stride, const float *y,
                 size_t y_stride, size_t rows, size_t n);
void eep_cpu_add_gated(const struct eep_cpu_isa *isa, float *x, size_t x_stride, const float *y,
                       size_t y_stride, const float *gate, size_t gate_stride, size_t rows,
                       size_t n);
void eep_cpu_weighted_sum(const struct eep_cpu_isa *isa, enum eep_dtype dtype,
                          const void *const *rows, const float *weights, size_t tokens,
                          size_t top_k, size_t n, float *out, size_t out_stride);

#endif
