/*
 * The forward pass but for the MoE block: embedding, attention, dense MLPs, shared experts, LM
 * head. The engine calls the parts in order, layer by layer, with the MoE block between them:
 *
 *     begin ─┬ attention ─ mlp_input ─┬ MoE block (+ shared) ─ add_routed ┐ × layers ─ logits
 *            │                        └ dense                             │
 *            └────────────────────────────────────────────────────────────┘
 *
 * All activations are float32. The residual stream of the step's rows lives in the object. One
 * thread per object; the kernels use OpenMP inside. Nothing is allocated after creation.
 */
#ifndef EEP_MODEL_FORWARD_H
#define EEP_MODEL_FORWARD_H

#include <stdint.h>

#include "model/kv.h"
#include "model/model.h"

struct eep_forward;

/** The rows of one step on this rank. Borrowed by eep_forward_begin() until the next one. */
struct eep_batch {
    uint32_t rows;
    const uint32_t *tokens;               /* (rows): ids below the vocabulary's size */
    const uint32_t *positions;            /* (rows) */
    const struct eep_attention_seq *seqs; /* together they cover all rows */
    uint32_t seq_count;
};

/** model and kv are borrowed and must outlive the object. */
EEP_MUST_CHECK enum eep_status eep_forward_create(const struct eep_model *model, struct eep_kv *kv,
                                                  uint32_t max_rows, uint32_t max_context,
                                                  struct eep_forward **forward_out);
/** NULL is allowed. */
void eep_forward_destroy(struct eep_forward *forward);

/** Bytes of buffers. */
uint64_t eep_forward_bytes(const struct eep_forward *forward);

/** Embed the rows of a step. */
void eep_forward_begin(struct eep_forward *forward, const struct eep_batch *batch);

/** The residual stream (rows, hidden), row stride eep_forward_stride() floats; for tests. */
const float *eep_forward_hidden(const struct eep_forward *forward);
size_t eep_forward_stride(const struct eep_forward *forward);

/** Attention of a layer with its residual. */
void eep_forward_attention(struct eep_forward *forward, uint32_t layer);

/** The normalised input of the layer's MLP or MoE block into `out` (rows, hidden). */
void eep_forward_mlp_input(struct eep_forward *forward, uint32_t layer, float *out,
                           size_t out_stride);

/** The MLP of a layer that is not MoE, with its residual. */
void eep_forward_dense(struct eep_forward *forward, uint32_t layer);

/** The shared expert of a MoE layer on `x` (rows, hidden); the result waits in the object for
 *  eep_forward_add_routed(). Nothing to do for a model without one. */
void eep_forward_shared(struct eep_forward *forward, uint32_t layer, const float *x,
                        size_t x_stride);

/** Where the MoE block writes the routed experts' sum: (max_rows, hidden). */
float *eep_forward_routed(struct eep_forward *forward);

/** Finish a MoE layer: routed (+ shared) onto the residual stream. */
void eep_forward_add_routed(struct eep_forward *forward);

/**
 * Final norm and LM head of some rows.
 *
 * @param rows        (count): rows of the step
 * @param logits_out  (count, vocab), row stride logits_stride >= panel_round(vocab)
 */
void eep_forward_logits(struct eep_forward *forward, const uint32_t *rows, uint32_t count,
                        float *logits_out, size_t logits_stride);

/** The final norm's output of the last eep_forward_logits(), (count, hidden); for tests. */
const float *eep_forward_final(const struct eep_forward *forward);

#endif
