/*
 * Which rows this rank's next step takes: continuous batching with chunked prompts.
 *
 * Every running request has tokens whose K and V are not stored yet. Requests with one such token
 * (they are generating) go first, each with one row; what is left of the row budget goes to prompts
 * in order of admission, as large a chunk as fits. A request is admitted when a place and all the
 * KV blocks that it can ever need are free, so that none is ever put back.
 */
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "engine/engine_int.h"

enum eep_status eep_batch_create(struct eep_engine *e)
{
    const size_t rows = e->max_batch_tokens, seqs = e->max_sequences;

    e->wire_bytes = sizeof(struct eep_wire_step) + seqs * sizeof(struct eep_wire_event);
    EEP_TRY(eep_mem_alloc(seqs, sizeof(uint32_t), "running requests", &e->running));
    EEP_TRY(eep_mem_alloc(rows, sizeof(uint32_t), "batch tokens", &e->row_tokens));
    EEP_TRY(eep_mem_alloc(rows, sizeof(uint32_t), "batch positions", &e->row_positions));
    EEP_TRY(eep_mem_alloc(rows, sizeof(uint32_t), "batch sequences", &e->row_seq));
    EEP_TRY(eep_mem_alloc(seqs, sizeof(*e->seqs), "batch sequences", &e->seqs));
    EEP_TRY(eep_mem_alloc(seqs, sizeof(uint32_t), "batch requests", &e->seq_request));
    EEP_TRY(eep_mem_alloc(seqs, sizeof(int32_t), "batch states", &e->seq_failed));
    return eep_mem_alloc(1, e->wire_bytes, "step events", &e->wire_out);
}

enum eep_status eep_batch_resize(struct eep_engine *e)
{
    unsigned char *in, *next;

    EEP_TRY(eep_mem_alloc(e->xport->topo.size, e->wire_bytes, "step events", &in));
    eep_mem_free(e->wire_in);
    e->wire_in = in;
    EEP_TRY(eep_mem_alloc(e->xport->topo.size, e->wire_bytes, "step events", &next));
    eep_mem_free(e->wire_next);
    e->wire_next = next;
    e->wire_ranks = e->xport->topo.size;
    return EEP_OK;
}

void eep_batch_free(struct eep_engine *e)
{
    EEP_MEM_RELEASE(e->running);
    EEP_MEM_RELEASE(e->row_tokens);
    EEP_MEM_RELEASE(e->row_positions);
    EEP_MEM_RELEASE(e->row_seq);
    EEP_MEM_RELEASE(e->seqs);
    EEP_MEM_RELEASE(e->seq_request);
    EEP_MEM_RELEASE(e->seq_failed);
    EEP_MEM_RELEASE(e->wire_out);
    EEP_MEM_RELEASE(e->wire_in);
    EEP_MEM_RELEASE(e->wire_next);
}

/* What only the owner holds. */
static enum eep_status take_own_parts(struct eep_engine *e, struct eep_request_entry *r)
{
    if (r->blocks == NULL) {
        EEP_TRY(eep_mem_alloc(eep_kv_blocks((uint64_t)r->prompt_count + r->max_tokens),
                              sizeof(uint32_t), "KV block table", &r->blocks));
    }
    if (r->keep_logits && r->logits == NULL) {
        EEP_TRY(eep_mem_alloc((size_t)r->max_tokens * e->config.vocab, sizeof(float), "kept logits",
                              &r->logits));
    }
    return EEP_OK;
}

static enum eep_status admit(struct eep_engine *e)
{
    for (; e->next_own < e->request_count && e->running_count < e->max_sequences; e->next_own++) {
        struct eep_request_entry *r = &e->requests[e->next_own];

        if (r->owner != e->xport->topo.rank || r->state != EEP_REQUEST_WAITING) {
            continue;
        }
        EEP_TRY(take_own_parts(e, r));
        const uint32_t blocks = eep_kv_blocks((uint64_t)r->prompt_count + r->max_tokens);
        if (!eep_kv_take(e->kv, blocks, r->blocks)) {
            return EEP_OK; /* in order: a later, smaller one must not starve this one */
        }
        r->block_count = blocks;
        r->state = EEP_REQUEST_RUNNING;
        e->running[e->running_count++] = (uint32_t)e->next_own;
    }
    return EEP_OK;
}

static void add_rows(struct eep_engine *e, uint32_t request, uint32_t count)
{
    struct eep_request_entry *r = &e->requests[request];
    struct eep_batch *batch = &e->batch;

    e->seqs[batch->seq_count] = (struct eep_attention_seq){
        .first_row = batch->rows, .rows = count, .first_pos = r->computed, .blocks = r->blocks};
    e->seq_request[batch->seq_count] = request;
    e->seq_failed[batch->seq_count] = -1;
    r->nll_next = r->nll;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t position = r->computed + i;

        e->row_tokens[batch->rows] = r->tokens[position];
        e->row_positions[batch->rows] = position;
        e->row_seq[batch->rows] = batch->seq_count;
        batch->rows++;
        if (position < r->prompt_count) {
            e->prompt_rows++;
        } else {
            e->generation_rows++;
        }
    }
    batch->seq_count++;
}

/* One pass over the running requests: those with exactly one row to go, or the others. */
static void add_running(struct eep_engine *e, bool generating)
{
    for (uint32_t i = 0; i < e->running_count; i++) {
        const struct eep_request_entry *r = &e->requests[e->running[i]];
        const uint32_t left = eep_request_rows(r) - r->computed;
        const uint32_t room = e->max_batch_tokens - e->batch.rows;

        EEP_ASSERT(left > 0);
        if ((left == 1) == generating && room > 0) {
            add_rows(e, e->running[i], EEP_MIN(left, room));
        }
    }
}

enum eep_status eep_batch_build(struct eep_engine *e)
{
    EEP_TRY(admit(e));
    e->batch =
        (struct eep_batch){.tokens = e->row_tokens, .positions = e->row_positions, .seqs = e->seqs};
    e->prompt_rows = e->generation_rows = 0;
    add_running(e, true);
    add_running(e, false);
    if (e->batch.rows == 0 && e->running_count == 0 && e->next_own < e->request_count) {
        const struct eep_request_entry *r = &e->requests[e->next_own];

        /* Checked when it was submitted or when the cache was made. */
        return EEP_FAIL(EEP_ERR_FATAL, "request %zu of %u + %u tokens cannot be admitted",
                        e->next_own, r->prompt_count, r->max_tokens);
    }
    return EEP_OK;
}

void eep_batch_commit(struct eep_engine *e)
{
    for (uint32_t s = 0; s < e->batch.seq_count; s++) {
        struct eep_request_entry *r = &e->requests[e->seq_request[s]];

        r->computed += e->seqs[s].rows;
        r->nll = r->nll_next;
    }
    e->batch.seq_count = 0;
}

void eep_batch_discard(struct eep_engine *e)
{
    e->batch.seq_count = 0;
    ((struct eep_wire_step *)e->wire_out)->event_count = 0;
}

void eep_batch_retire(struct eep_engine *e, uint32_t request)
{
    struct eep_request_entry *r = &e->requests[request];

    for (uint32_t i = 0; i < e->running_count; i++) {
        if (e->running[i] == request) {
            memmove(&e->running[i], &e->running[i + 1],
                    (e->running_count - i - 1) * sizeof(*e->running));
            e->running_count--;
            eep_kv_give(e->kv, r->blocks, r->block_count);
            r->block_count = 0;
            return;
        }
    }
    EEP_ASSERT(!"a running request");
}
