/*
 * The reference backend: plain C, one obvious loop per operation. It is the oracle of the others
 * and runs on every processor; it is not fast and not meant to be.
 */
#include "kernels/ref/ref.h"
#include "kernels/backends.h"

const struct eep_kernels eep_kernels_ref = {
    .name = "ref",
    .pack = eep_ref_pack,
    .gemm = eep_ref_gemm,
    .ffn_scratch_bytes = eep_ref_ffn_scratch_bytes,
    .ffn = eep_ref_ffn,
    .kv_store = eep_ref_kv_store,
    .attention_scratch_bytes = eep_ref_attention_scratch_bytes,
    .attention = eep_ref_attention,
    .rmsnorm = eep_ref_rmsnorm,
    .rope = eep_ref_rope,
    .softmax = eep_ref_softmax,
    .add = eep_ref_add,
    .add_gated = eep_ref_add_gated,
    .weighted_sum = eep_ref_weighted_sum,
};
