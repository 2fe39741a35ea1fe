/*
 * The expert weights that this rank executes: frames, one expert in each, and the slots that point
 * to them.
 *
 *     seat (mapped in one piece)
 *     ├ frame 0: [gate/up panels][down panels]  ◄── slot (layer 0, local 0)
 *     ├ frame 1                                 ◄── slot (layer 0, local 1)
 *     └ ...
 *
 * A frame is page-aligned and holds all that belongs to one expert. The data plane sees only the
 * slot table, so that a later owner of frames (a cache shared by the node, another executor) fills
 * the same table.
 */
#ifndef EEP_MOE_EXPERTS_H
#define EEP_MOE_EXPERTS_H

#include <stdint.h>

#include "ckpt/ckpt.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "model/config.h"

struct eep_experts;

/** Where the seats of this rank are filled from. */
struct eep_experts_source {
    const struct eep_model_config *config;
    const struct eep_ckpt *ckpt;
    const struct eep_kernels *kernels;
    const struct eep_layout *layout;
    uint32_t rank;             /* this rank */
    const uint32_t *executors; /* (seats): rank that computes each seat's slots */
};

/** Bytes of the frames that a rank with that source holds. */
uint64_t eep_experts_bytes_needed(const struct eep_experts_source *source);

/**
 * Reserve the frames of this rank's seats and fill them from the checkpoint; only those experts
 * are read.
 *
 * @param progress      called after each expert with how many are loaded of how many; or NULL
 * @param experts_out   owned by the caller, eep_experts_destroy()
 */
EEP_MUST_CHECK enum eep_status eep_experts_load(const struct eep_experts_source *source,
                                                void (*progress)(void *context, uint64_t loaded,
                                                                 uint64_t total),
                                                void *context, struct eep_experts **experts_out);

/**
 * The same with frames that somebody else holds (a weight cache), which must outlive the object.
 *
 * @param frame_of  the frame of a slot that this rank executes; never NULL
 */
EEP_MUST_CHECK enum eep_status eep_experts_attach(const struct eep_experts_source *source,
                                                  const void *(*frame_of)(void *context,
                                                                          uint32_t layer,
                                                                          struct eep_slot slot),
                                                  void *context, struct eep_experts **experts_out);

/**
 * Pack an expert of a MoE layer (dense layers not counted) into a frame; what is left of
 * `frame_bytes` behind it is set to zero.
 */
EEP_MUST_CHECK enum eep_status eep_experts_pack(const struct eep_experts_source *source,
                                                uint32_t layer, struct eep_expert expert,
                                                void *frame, uint64_t frame_bytes);

/** The largest content of a frame over all experts of the model, and F32 if any of them is. */
EEP_MUST_CHECK enum eep_status eep_experts_content(const struct eep_experts_source *source,
                                                   uint64_t *bytes_out, enum eep_dtype *dtype_out);

/**
 * A slot that this rank executes holds another expert now, or its frame lies elsewhere. Not between
 * the beginning and the end of a step.
 *
 * @param source  with the new layout
 * @param frame   NULL: the slot is empty now
 */
EEP_MUST_CHECK enum eep_status eep_experts_change(struct eep_experts *experts,
                                                  const struct eep_experts_source *source,
                                                  uint32_t layer, struct eep_slot slot,
                                                  const void *frame);

/** Go on with another layout of the same shape; it must outlive the object. */
void eep_experts_relayout(struct eep_experts *experts, const struct eep_layout *layout);

/** NULL is allowed. */
void eep_experts_destroy(struct eep_experts *experts);

/** Weights of a slot of a MoE layer, or NULL when this rank does not hold it. */
const struct eep_ffn_weights *eep_experts_slot(const struct eep_experts *experts, uint32_t layer,
                                               struct eep_slot slot);

/** Bytes of frames held, and of how many experts (replicas counted). */
uint64_t eep_experts_bytes(const struct eep_experts *experts);
uint64_t eep_experts_count(const struct eep_experts *experts);

#endif
