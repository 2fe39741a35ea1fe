/*
 * A backend's table: the drivers, bound to one instruction set. Included once per instruction set,
 * which defines BACKEND as its name.
 */
#include "kernels/backends.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

static const struct eep_cpu_isa isa = {
    .tiles = &PASTE(eep_cpu_tiles_, BACKEND),
    .rows = &PASTE(eep_cpu_rows_, BACKEND),
};

static void gemm(const struct eep_gemm *gemm_)
{
    eep_cpu_gemm(&isa, gemm_);
}

static void ffn(const struct eep_ffn *ffn_)
{
    eep_cpu_ffn(&isa, ffn_);
}

static void attention(const struct eep_attention *attention_)
{
    eep_cpu_attention(&isa, attention_);
}

static void rmsnorm(const float *x, size_t x_stride, size_t rows, size_t parts, size_t n,
                    const float *weight, float eps, float *y, size_t y_stride)
{
    eep_cpu_rmsnorm(&isa, x, x_stride, rows, parts, n, weight, eps, y, y_stride);
}

static void rope(float *x, size_t x_stride, size_t rows, size_t heads, size_t head_dim,
                 const float *cos_sin)
{
    eep_cpu_rope(&isa, x, x_stride, rows, heads, head_dim, cos_sin);
}

static void softmax(float *x, size_t x_stride, size_t rows, size_t n)
{
    eep_cpu_softmax(&isa, x, x_stride, rows, n);
}

static void add(float *x, size_t x_stride, const float *y, size_t y_stride, size_t rows, size_t n)
{
    eep_cpu_add(&isa, x, x_stride, y, y_stride, rows, n);
}

static void add_gated(float *x, size_t x_stride, const float *y, size_t y_stride, const float *gate,
                      size_t gate_stride, size_t rows, size_t n)
{
    eep_cpu_add_gated(&isa, x, x_stride, y, y_stride, gate, gate_stride, rows, n);
}

static void weighted_sum(enum eep_dtype dtype, const void *const *rows, const float *weights,
                         size_t tokens, size_t top_k, size_t n, float *out, size_t out_stride)
{
    eep_cpu_weighted_sum(&isa, dtype, rows, weights, tokens, top_k, n, out, out_stride);
}

const struct eep_kernels PASTE(eep_kernels_, BACKEND) = {
    .name = TEXT(BACKEND),
    .pack = eep_cpu_pack,
    .gemm = gemm,
    .ffn_scratch_bytes = eep_cpu_ffn_scratch_bytes,
    .ffn = ffn,
    .kv_store = eep_ref_kv_store,
    .attention_scratch_bytes = eep_cpu_attention_scratch_bytes,
    .attention = attention,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .softmax = softmax,
    .add = add,
    .add_gated = add_gated,
    .weighted_sum = weighted_sum,
};
