/* What the files of the reference backend share; kv_store() only moves data and serves all. */
#ifndef EEP_KERNELS_REF_H
#define EEP_KERNELS_REF_H

#include "kernels/kernels.h"

void eep_ref_pack(enum eep_dtype dtype, size_t n, size_t k, enum eep_dtype src_dtype,
                  const void *src, void *dst, size_t panel_step);
void eep_ref_kv_store(const struct eep_kv_layer *cache, const struct eep_attention_seq *seqs,
                      size_t seq_count, const float *k, size_t k_stride, const float *v,
                      size_t v_stride);

void eep_ref_gemm(const struct eep_gemm *gemm);
size_t eep_ref_ffn_scratch_bytes(size_t rows, size_t width);
void eep_ref_ffn(const struct eep_ffn *ffn);

size_t eep_ref_attention_scratch_bytes(uint32_t heads, uint32_t head_dim, uint32_t max_context);
void eep_ref_attention(const struct eep_attention *attention);

void eep_ref_rmsnorm(const float *x, size_t x_stride, size_t rows, size_t parts, size_t n,
                     const float *weight, float eps, float *y, size_t y_stride);
void eep_ref_rope(float *x, size_t x_stride, size_t rows, size_t heads, size_t head_dim,
                  const float *cos_sin);
void eep_ref_softmax(float *x, size_t x_stride, size_t rows, size_t n);
void eep_ref_add(float *x, size_t x_stride, const float *y, size_t y_stride, size_t rows, size_t n);
void eep_ref_add_gated(float *x, size_t x_stride, const float *y, size_t y_stride,
                       const float *gate, size_t gate_stride, size_t rows, size_t n);
void eep_ref_weighted_sum(enum eep_dtype dtype, const void *const *rows, const float *weights,
                          size_t tokens, size_t top_k, size_t n, float *out, size_t out_stride);

#endif
