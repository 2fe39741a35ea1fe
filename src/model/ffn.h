/*
 * Frames of gated FFNs: what an expert, a shared expert and a dense MLP have in common.
 *
 *     frame: [gate 0][up 0][gate 1][up 1]...[down panels]   a multiple of the page size
 */
#ifndef EEP_MODEL_FFN_H
#define EEP_MODEL_FFN_H

#include <stdint.h>

#include "ckpt/ckpt.h"
#include "kernels/kernels.h"
#include "model/config.h"

/** How one FFN is packed: BF16 if all three matrices are BF16 in the checkpoint, else F32. */
struct eep_ffn_shape {
    enum eep_dtype dtype;
    uint32_t hidden;
    uint32_t width;
};

/**
 * Look up the shape of an FFN.
 *
 * @param gate    the role of its gate matrix; those of up and down follow in enum eep_role
 * @param expert  0 for a shared expert or a dense MLP
 */
EEP_MUST_CHECK enum eep_status eep_ffn_shape(const struct eep_model_config *config,
                                             const struct eep_ckpt *ckpt, enum eep_role gate,
                                             uint32_t layer, uint32_t expert,
                                             struct eep_ffn_shape *shape_out);

/** Bytes of an FFN's packed weights. */
uint64_t eep_ffn_content_bytes(const struct eep_ffn_shape *shape);

/** Bytes of a frame: those, rounded up to a multiple of the page size. */
uint64_t eep_ffn_frame_bytes(const struct eep_ffn_shape *shape);

/** Describe an FFN that is packed in `frame` already. */
void eep_ffn_describe(const struct eep_ffn_shape *shape, const void *frame,
                      struct eep_ffn_weights *weights_out);

/**
 * Pack an FFN of the checkpoint into `frame` and describe it; parameters as above.
 *
 * @param frame  eep_ffn_frame_bytes() bytes, aligned to a cache line; kept by weights_out
 */
EEP_MUST_CHECK enum eep_status eep_ffn_pack(const struct eep_model_config *config,
                                            const struct eep_ckpt *ckpt,
                                            const struct eep_kernels *kernels, enum eep_role gate,
                                            uint32_t layer, uint32_t expert, void *frame,
                                            struct eep_ffn_weights *weights_out);

#endif
