/*
 * The compute interface: one table of operations, filled in by each backend.
 *
 * Packed weights. A matrix W (n, k) of a linear layer y = x W^T is stored in panels of EEP_PANEL
 * output columns: panel p holds W[32p .. 32p+31][0 .. k-1] with k outermost, so the whole matrix is
 * one linear stream of memory:
 *
 *     panel 0                        panel 1
 *     k=0: 32 columns | k=1: ... k-1 | k=0: ...
 *
 * F32 rows hold the 32 columns in order (128 bytes). BF16 rows are one cache line of 16 pairs:
 * 32-bit word i holds column i in its low half and column 16 + i in its high half, so that widening
 * to float32 is one shift and one mask. Columns past n are zero.
 *
 * The same bits. Every output is one chain over k in ascending order, from +0:
 *     acc = fma(x[k], w[k], acc)
 * whatever the number of rows, threads, the blocking and the instruction set. Sums of other
 * reductions (norms, softmax) run in 16 lanes, element i in lane i % 16 in ascending order, and are
 * then added pairwise: lane j += lane j + 8, + 4, + 2, + 1. exp() is eep_expf() of kernels/math.h
 * everywhere. Translation units are compiled with -ffp-contract=off.
 *
 * Operations use OpenMP inside with the calling thread's default team. They allocate nothing,
 * take no lock and cannot fail; scratch comes from the caller where it says so. Calls for one
 * object must come from one thread at a time. All row pointers of float are aligned to 4 bytes
 * only; packed weights to a cache line.
 */
#ifndef EEP_KERNELS_H
#define EEP_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/status.h"

#define EEP_PANEL 32    /* output columns of a panel */
#define EEP_KV_BLOCK 32 /* positions of one block of the KV cache */

/** `n` rounded up to whole panels: the stride that outputs of gemm need at least. */
static inline size_t eep_panel_round(size_t n)
{
    return eep_round_up(n, EEP_PANEL);
}

/** A packed matrix of one linear layer. Plain data; the memory is the owner's. */
struct eep_panels {
    enum eep_dtype dtype; /* EEP_F32 or EEP_BF16 */
    uint32_t n;           /* output features */
    uint32_t k;           /* input features */
    const void *data;     /* eep_div_up(n, 32) panels */
};

/** Bytes of the panels of an (n, k) matrix. */
static inline size_t eep_panels_bytes(enum eep_dtype dtype, size_t n, size_t k)
{
    return eep_panel_round(n) * k * eep_dtype_bytes(dtype);
}

/** y[r][0 .. n-1] = x[r] W^T (+ bias), r = 0 .. rows-1. */
struct eep_gemm {
    const struct eep_panels *w;
    const float *x;    /* (rows, k), row stride x_stride floats */
    size_t x_stride;   /* >= k */
    size_t rows;       /* 0 is allowed */
    float *y;          /* (rows, panel_round(n)); columns past n are written with zero */
    size_t y_stride;   /* >= panel_round(n) */
    const float *bias; /* (panel_round(n)), added to the finished sum; or NULL */
};

/** Packed weights of one gated feed-forward network: an expert, a shared expert, a dense MLP. */
struct eep_ffn_weights {
    enum eep_dtype dtype; /* EEP_F32 or EEP_BF16, of all three matrices */
    uint32_t hidden;
    uint32_t width;
    const void *gate_up; /* panels of gate and up in turn: gate 0, up 0, gate 1, up 1, ... */
    const void *down;    /* panels of down (hidden, width) */
};

/** Bytes of the two parts of an expert's frame. */
static inline size_t eep_ffn_gate_up_bytes(enum eep_dtype dtype, size_t hidden, size_t width)
{
    return 2 * eep_panels_bytes(dtype, width, hidden);
}
static inline size_t eep_ffn_down_bytes(enum eep_dtype dtype, size_t hidden, size_t width)
{
    return eep_panels_bytes(dtype, hidden, width);
}

/** The rows that one network gets. */
struct eep_ffn_group {
    const struct eep_ffn_weights *w;
    uint32_t rows;          /* 0 is allowed */
    const uint32_t *x_rows; /* (rows): index of each row in x */
    const uint32_t *y_rows; /* (rows): index of each row in y; all different in one call */
};

/** Grouped gated FFN: y[y_row] = down(silu(gate(x[x_row])) * up(x[x_row])). */
struct eep_ffn {
    const struct eep_ffn_group *groups;
    size_t group_count; /* all groups have the same hidden and width */
    uint32_t hidden;
    uint32_t width;
    const float *x;
    size_t x_stride; /* >= hidden */
    float *y;
    size_t y_stride; /* >= panel_round(hidden); columns past hidden are written with zero */
    void *scratch;   /* ffn_scratch_bytes(sum of rows, width) bytes, aligned to a cache line */
};

/** One sequence's query rows in a step. */
struct eep_attention_seq {
    uint32_t first_row;     /* of q and out; its rows are consecutive */
    uint32_t rows;          /* query rows */
    uint32_t first_pos;     /* position of the first of them; keys 0 .. pos are visible to pos */
    const uint32_t *blocks; /* block numbers of positions 0-31, 32-63, ... up to the last row */
};

/**
 * One layer's KV cache: blocks of 32 positions. Block b begins at kv + b * block_stride and holds,
 * for each KV head, K as panels [head_dim][32 positions] and then V as panels
 * [ceil(head_dim / 32)][32 positions][32 dims], all float32.
 */
struct eep_kv_layer {
    float *kv;
    size_t block_stride; /* floats between two blocks of this layer */
    uint32_t kv_heads;
    uint32_t head_dim;
};

/** Floats of one block of one layer. */
static inline size_t eep_kv_block_floats(size_t kv_heads, size_t head_dim)
{
    return kv_heads * EEP_KV_BLOCK * (head_dim + eep_panel_round(head_dim));
}

/**
 * Causal grouped-query attention over the KV cache; K and V of the rows are stored already.
 * Weights are w = exp(score * scale - greatest), a row's output is (sum of w v) / (sum of w): the
 * first sum one chain over the positions that the row sees, the second in lanes by position.
 */
struct eep_attention {
    const struct eep_kv_layer *cache;
    const struct eep_attention_seq *seqs;
    size_t seq_count;
    uint32_t heads;  /* a multiple of kv_heads; head h reads KV head h / (heads / kv_heads) */
    float scale;     /* scores are multiplied by it */
    uint32_t window; /* a row sees itself and the window - 1 positions before it; 0 = all */
    const float *q;  /* (rows, heads * head_dim) */
    size_t q_stride;
    float *out; /* (rows, heads * head_dim) */
    size_t out_stride;
    void *scratch;        /* attention_scratch_bytes() bytes, aligned to a cache line */
    uint32_t max_context; /* as given to attention_scratch_bytes() */
};

/**
 * A backend. All members are required. `name` is what --kernels takes.
 */
struct eep_kernels {
    const char *name;

    /**
     * Pack rows of a row-major matrix (n, k), any alignment, into panels of `dtype`.
     * src_dtype: F32, BF16 or F16 (F16 and F32 go to F32 panels only, BF16 to either: exact).
     * `panel_step`: 1, or 2 to write every second panel of dst (gate and up in turn).
     */
    void (*pack)(enum eep_dtype dtype, size_t n, size_t k, enum eep_dtype src_dtype,
                 const void *src, void *dst, size_t panel_step);

    void (*gemm)(const struct eep_gemm *gemm);

    size_t (*ffn_scratch_bytes)(size_t rows, size_t width);
    void (*ffn)(const struct eep_ffn *ffn);

    /** Store K and V rows (rows of seqs, kv_heads * head_dim) of all seqs at their positions. */
    void (*kv_store)(const struct eep_kv_layer *cache, const struct eep_attention_seq *seqs,
                     size_t seq_count, const float *k, size_t k_stride, const float *v,
                     size_t v_stride);

    size_t (*attention_scratch_bytes)(uint32_t heads, uint32_t head_dim, uint32_t max_context);
    void (*attention)(const struct eep_attention *attention);

    /**
     * y[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i] for `rows` rows of `n` elements,
     * each made of `parts` pieces of n elements that are normalised alone with the same weight
     * (heads; 1 for a whole row). x and y may be the same. RMSNorm: Zhang, Sennrich 2019.
     */
    void (*rmsnorm)(const float *x, size_t x_stride, size_t rows, size_t parts, size_t n,
                    const float *weight, float eps, float *y, size_t y_stride);

    /**
     * Rotate pairs (i, i + half) of each head in place; cos_sin is (rows, half, 2).
     * "rotate_half" RoPE: Su et al. 2021, in the order that Hugging Face checkpoints use.
     */
    void (*rope)(float *x, size_t x_stride, size_t rows, size_t heads, size_t head_dim,
                 const float *cos_sin);

    /** Softmax of each row in place. A row of -inf or NaN gives NaN. */
    void (*softmax)(float *x, size_t x_stride, size_t rows, size_t n);

    /** x[r] += y[r]. */
    void (*add)(float *x, size_t x_stride, const float *y, size_t y_stride, size_t rows, size_t n);

    /** x[r] += sigmoid(gate[r * gate_stride]) * y[r]: a gated shared expert (Qwen2-MoE). */
    void (*add_gated)(float *x, size_t x_stride, const float *y, size_t y_stride, const float *gate,
                      size_t gate_stride, size_t rows, size_t n);

    /**
     * out[t] = sum over j of weights[t][j] * rows[t][j], j ascending, from +0 by fma: the combine
     * in top-k order. `rows` (tokens, top_k) points to rows of `dtype` (F32 or BF16); NULL is
     * skipped. out (tokens, n), row stride out_stride floats.
     */
    void (*weighted_sum)(enum eep_dtype dtype, const void *const *rows, const float *weights,
                         size_t tokens, size_t top_k, size_t n, float *out, size_t out_stride);
};

/**
 * Find a backend by name: "ref" (plain C, the oracle), "avx2", "avx512", "neon", or "auto" (the
 * fastest that this processor runs). NULL is "auto".
 *
 * @retval EEP_ERR_INVALID      unknown name; the text lists the known ones
 * @retval EEP_ERR_UNSUPPORTED  this processor, or this build, does not have it
 */
EEP_MUST_CHECK enum eep_status eep_kernels_find(const char *name, const struct eep_kernels **out);

/** Limits of this machine with the current OpenMP team, for `eep bench`. */
struct eep_kernels_limits {
    double read_bytes_per_s; /* read of memory far larger than the caches */
    double fma_per_s;        /* float32 multiply-adds in registers, widest vectors in use */
};

/**
 * One round of either measurement, for benchmarks that take turns with what they measure: read all
 * of `memory` once (bytes per second), some 20 ms of multiply-adds (multiply-adds per second).
 */
double eep_kernels_measure_read(const struct eep_kernels *kernels, const void *memory,
                                size_t bytes);
double eep_kernels_measure_fma(const struct eep_kernels *kernels);

/** Measure those limits for `kernels`, with `bytes` of memory for the read; takes some 2 s. */
EEP_MUST_CHECK enum eep_status eep_kernels_measure(const struct eep_kernels *kernels, size_t bytes,
                                                   struct eep_kernels_limits *limits_out);

#endif
