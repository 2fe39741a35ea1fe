/*
 * A step: the forward pass of all ranks in lock step, layer by layer, then sampling, then one
 * all-gather that tells every rank what the others' rows became.
 */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "engine/mover.h"

struct overlap {
    struct eep_engine *engine;
    uint32_t layer;
};

/* Work of a MoE layer that needs no other rank. */
static void run_shared(void *context)
{
    const struct overlap *overlap = context;
    struct eep_engine *e = overlap->engine;

    eep_forward_shared(e->forward, overlap->layer, eep_moe_block_input(e->block),
                       eep_moe_block_stride(e->block));
}

/* Remember the first layer whose scores were not finite, per sequence. */
static void note_failures(struct eep_engine *e, uint32_t layer, const struct eep_moe_choice *choice)
{
    for (uint32_t r = 0; choice->failures > 0 && r < e->batch.rows; r++) {
        if (choice->failed[r] && e->seq_failed[e->row_seq[r]] < 0) {
            e->seq_failed[e->row_seq[r]] = (int32_t)layer;
        }
    }
}

static enum eep_status run_moe_layer(struct eep_engine *e, uint32_t layer, uint32_t moe_layer)
{
    struct overlap overlap = {.engine = e, .layer = layer};
    struct eep_moe_choice choice;

    EEP_FAULT("step.layer");
    eep_forward_mlp_input(e->forward, layer, eep_moe_block_input(e->block),
                          eep_moe_block_stride(e->block));
    EEP_TRY(eep_moe_block_run(e->block, moe_layer, &e->model->layers[layer].router, e->batch.rows,
                              run_shared, &overlap, eep_forward_routed(e->forward),
                              eep_forward_stride(e->forward), &choice));
    note_failures(e, layer, &choice);
    if (e->mover != NULL) {
        eep_recorder_count(e, moe_layer, &choice, e->batch.rows);
    }
    eep_forward_add_routed(e->forward);
    return EEP_OK;
}

static enum eep_status run_layers(struct eep_engine *e)
{
    uint32_t moe_layer = 0;

    eep_forward_begin(e->forward, &e->batch);
    for (uint32_t layer = 0; layer < e->config.layers; layer++) {
        eep_forward_attention(e->forward, layer);
        if (e->config.layer_is_moe[layer]) {
            EEP_TRY(run_moe_layer(e, layer, moe_layer++));
        } else {
            eep_forward_dense(e->forward, layer);
        }
    }
    return EEP_OK;
}

static bool all_finite(const float *values, uint32_t count)
{
    float sum = 0.0f;

    for (uint32_t i = 0; i < count; i++) {
        sum += values[i] * 0.0f; /* NaN as soon as one is not finite */
    }
    return sum == 0.0f;
}

static bool is_eos(const struct eep_engine *e, uint32_t token)
{
    for (uint32_t i = 0; i < e->config.eos_count; i++) {
        if (e->config.eos[i] == token) {
            return true;
        }
    }
    return false;
}

/* The next token of a request from its last row's logits. */
static void choose_token(struct eep_engine *e, uint32_t request, const float *logits)
{
    const struct eep_request_entry *r = &e->requests[request];
    const uint32_t generated = r->token_count - r->prompt_count;
    const uint32_t token =
        eep_sample(&r->sampling, logits, e->config.vocab, r->token_count, e->sampler_work);
    const bool last = generated + 1 == r->max_tokens || (!r->ignore_eos && is_eos(e, token));

    eep_requests_tell(e,
                      (struct eep_wire_event){.request = request,
                                              .kind = last ? EEP_WIRE_LAST_TOKEN : EEP_WIRE_TOKEN,
                                              .value = token});
}

/* What the logits of a row are for: the score of the next prompt token, or a new token. */
static void use_logits(struct eep_engine *e, uint32_t row, const float *logits)
{
    const uint32_t seq = e->row_seq[row], request = e->seq_request[seq];
    struct eep_request_entry *r = &e->requests[request];

    const uint32_t next = e->row_positions[row] + 1;

    if (e->seq_failed[seq] >= 0) {
        return;
    }
    if (r->logits != NULL && !r->score) {
        memcpy(r->logits + (size_t)(next - r->prompt_count) * e->config.vocab, logits,
               e->config.vocab * sizeof(float));
    }
    if (!all_finite(logits, e->config.vocab)) {
        e->seq_failed[seq] = INT32_MAX;
    } else if (r->score) {
        r->nll_next += eep_negative_log_likelihood(logits, e->config.vocab, r->tokens[next]);
    } else if (next == r->token_count) {
        choose_token(e, request, logits);
    }
}

/* True for a row whose logits are needed. */
static bool wants_logits(const struct eep_engine *e, uint32_t row)
{
    const struct eep_request_entry *r = &e->requests[e->seq_request[e->row_seq[row]]];
    const uint32_t next = e->row_positions[row] + 1;
    const bool last_known = next == r->token_count;

    if (r->logits != NULL && !r->score) { /* also of tokens that are known, when they were lost */
        return next >= r->prompt_count;
    }
    return r->score ? !last_known : last_known;
}

static void run_head(struct eep_engine *e)
{
    uint32_t rows[EEP_LOGIT_ROWS], count = 0;

    for (uint32_t row = 0; row <= e->batch.rows; row++) {
        if (count == EEP_LOGIT_ROWS || (row == e->batch.rows && count > 0)) {
            eep_forward_logits(e->forward, rows, count, e->logits, e->logits_stride);
            for (uint32_t i = 0; i < count; i++) {
                use_logits(e, rows[i], e->logits + i * e->logits_stride);
            }
            count = 0;
        }
        if (row < e->batch.rows && wants_logits(e, row)) {
            rows[count++] = row;
        }
    }
}

/* Ends of requests that are not their last token: failures and finished scores. */
static void tell_ends(struct eep_engine *e)
{
    for (uint32_t s = 0; s < e->batch.seq_count; s++) {
        const uint32_t request = e->seq_request[s];
        const struct eep_request_entry *r = &e->requests[request];
        const uint32_t computed = r->computed + e->seqs[s].rows;
        struct eep_wire_event event = {.request = request};

        if (e->seq_failed[s] >= 0) {
            event.kind =
                e->seq_failed[s] == INT32_MAX ? EEP_WIRE_FAILED_LOGITS : EEP_WIRE_FAILED_ROUTER;
            event.value = (uint64_t)e->seq_failed[s];
            eep_requests_tell(e, event);
        } else if (r->score && computed == r->prompt_count) {
            event.kind = EEP_WIRE_SCORED;
            memcpy(&event.value, &r->nll_next, sizeof(event.value));
            eep_requests_tell(e, event);
        } else if (r->replays && computed == eep_request_rows(r)) {
            event.kind = EEP_WIRE_REPLAYED;
            eep_requests_tell(e, event);
        }
    }
}

/* Prompt steps and generation steps are timed apart; e->*_rows are of all ranks by now. */
static void count_step(struct eep_engine *e, uint64_t ns)
{
    e->steps++;
    if (e->loss.since_ns != 0 && e->loss.first_step_ns == 0) {
        e->loss.first_step_ns = eep_clock_ns() - e->loss.since_ns;
    }
    e->prompt_tokens += e->prompt_rows;
    if (e->prompt_rows > 0) {
        e->prompt_ns += ns;
    } else {
        e->generation_ns += ns;
        e->generation_step_tokens += e->generation_rows;
    }
}

static enum eep_status run_step(struct eep_engine *e)
{
    const uint64_t begin_ns = eep_clock_ns();

    EEP_TRY(eep_batch_build(e));
    EEP_TRY(run_layers(e));
    run_head(e);
    tell_ends(e);
    EEP_FAULT("step.computed");
    EEP_TRY(eep_requests_exchange(e));
    EEP_FAULT("step.applied");
    const uint64_t step_ns = eep_clock_ns() - begin_ns;

    count_step(e, step_ns);
    return e->mover != NULL ? eep_mover_between_steps(e, step_ns) : EEP_OK;
}

/* Nothing to compute, but experts are on their way, or requests may come. */
static enum eep_status run_idle(struct eep_engine *e)
{
    e->prompt_rows = e->generation_rows = 0;
    EEP_TRY(eep_requests_exchange(e));
    return e->mover != NULL ? eep_mover_between_steps(e, 0) : EEP_OK;
}

/* Between two steps. A loss in a switch is survived there. */
static enum eep_status change_members(struct eep_engine *e)
{
    uint32_t origins[EEP_MEMBERS_MAX], count;

    EEP_TRY(eep_joiners_hear(e));
    eep_members_work(e);
    return eep_members_switching(e, origins, &count) ? eep_engine_switch(e, origins, count)
                                                     : EEP_OK;
}

enum eep_status eep_engine_step(struct eep_engine *e, bool *idle_out)
{
    EEP_TRY(e->broken);
    if (e->park != NULL) {
        return EEP_FAIL(EEP_ERR_INVALID, "a parked process makes no steps");
    }
    if (!e->loaded) {
        return EEP_FAIL(EEP_ERR_INVALID, "the engine's weights are not loaded");
    }
    *idle_out = e->stopped || e->left || (e->unfinished == 0 && !e->open && !eep_mover_is_busy(e));
    if (!*idle_out) {
        const bool leaves = eep_members_leaving(e);

        e->broken = e->unfinished > 0 ? run_step(e) : run_idle(e);
        if (e->broken == EEP_OK && !leaves) {
            e->broken = change_members(e);
        }
        if (leaves) {
            e->left = true;
            e->broken = EEP_OK;
        } else if (eep_engine_survives(e, e->broken)) {
            e->broken = eep_engine_survive(e);
        }
        e->apart = e->broken != EEP_OK;
    }
    return e->broken;
}
