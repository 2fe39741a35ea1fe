/*
 * The request table: the same on every rank after each step.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "engine/look.h"
#include "engine/mover.h"

enum eep_status eep_requests_check(const struct eep_engine *e, const struct eep_request *r)
{
    const uint64_t total = (uint64_t)r->prompt_count + r->max_tokens;
    const struct eep_sampling sampling = {
        .temperature = r->temperature, .top_k = r->top_k, .top_p = r->top_p, .seed = r->seed};

    if (r->prompt == NULL || r->prompt_count == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "request %zu: the prompt is empty", e->request_count);
    }
    if (r->score ? r->max_tokens != 0 : r->max_tokens == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "request %zu: max_tokens is %u; it must be %s",
                        e->request_count, r->max_tokens, r->score ? "0 to score" : "1 or more");
    }
    if (total > e->config.max_positions) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "request %zu: %zu prompt tokens and max_tokens %u are %" PRIu64
                        " positions; the model has %u (max_position_embeddings)",
                        e->request_count, r->prompt_count, r->max_tokens, total,
                        e->config.max_positions);
    }
    if (e->loaded && eep_kv_blocks(total) > eep_kv_total_blocks(e->kv)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "request %zu: %" PRIu64 " positions do not fit a KV cache of %" PRIu64,
                        e->request_count, total, e->kv_tokens);
    }
    for (size_t i = 0; i < r->prompt_count; i++) {
        if (r->prompt[i] >= e->config.vocab) {
            return EEP_FAIL(EEP_ERR_INVALID,
                            "request %zu: token id %u is not in the vocabulary of %u",
                            e->request_count, r->prompt[i], e->config.vocab);
        }
    }
    EEP_TRY(eep_sampling_check(&sampling));
    return EEP_OK;
}

static enum eep_status grow_table(struct eep_engine *e)
{
    if (e->request_count < e->request_capacity) {
        return EEP_OK;
    }
    const size_t capacity = e->request_capacity == 0 ? 64 : 2 * e->request_capacity;
    void *grown = realloc(e->requests, capacity * sizeof(*e->requests));
    if (grown == NULL || capacity > UINT32_MAX) {
        return EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu requests", capacity);
    }
    e->requests = grown;
    e->request_capacity = capacity;
    return EEP_OK;
}

static void free_entry(struct eep_request_entry *entry)
{
    eep_mem_free(entry->tokens);
    eep_mem_free(entry->blocks);
    eep_mem_free(entry->logits);
}

static enum eep_status push_event(struct eep_engine *e, const struct eep_event *event)
{
    if (e->event_first == e->event_count) {
        e->event_first = e->event_count = 0;
    }
    if (e->event_count == e->event_capacity) {
        const size_t capacity = e->event_capacity == 0 ? 256 : 2 * e->event_capacity;
        void *grown = realloc(e->events, capacity * sizeof(*e->events));

        if (grown == NULL) {
            return EEP_FAIL(EEP_ERR_FATAL, "no memory for %zu unread events", capacity);
        }
        e->events = grown;
        e->event_capacity = capacity;
    }
    e->events[e->event_count++] = *event;
    return EEP_OK;
}

/* The rank with the fewest unfinished requests, the lowest of them. */
static uint32_t idlest(const struct eep_engine *e)
{
    uint32_t best = 0;

    for (uint32_t rank = 1; rank < e->xport->topo.size; rank++) {
        best = e->owned[rank] < e->owned[best] ? rank : best;
    }
    return best;
}

/* An entry behind the last one, not counted yet. */
static enum eep_status append(struct eep_engine *e, const struct eep_request *r)
{
    EEP_TRY(grow_table(e));
    struct eep_request_entry entry = {
        .owner = idlest(e),
        .state = EEP_REQUEST_WAITING,
        .sampling = {.temperature = r->temperature,
                     .top_k = r->top_k,
                     .top_p = r->top_p,
                     .seed = r->seed},
        .prompt_count = (uint32_t)r->prompt_count,
        .max_tokens = r->max_tokens,
        .ignore_eos = r->ignore_eos,
        .keep_logits = r->keep_logits,
        .score = r->score,
        .tag = r->tag,
        .token_count = (uint32_t)r->prompt_count,
    };
    EEP_TRY(eep_mem_alloc(r->prompt_count + r->max_tokens, sizeof(uint32_t), "request tokens",
                          &entry.tokens));
    memcpy(entry.tokens, r->prompt, r->prompt_count * sizeof(uint32_t));
    e->requests[e->request_count] = entry;
    return EEP_OK;
}

static void count_added(struct eep_engine *e)
{
    e->owned[e->requests[e->request_count++].owner]++;
    e->unfinished++;
}

enum eep_status eep_requests_add(struct eep_engine *e, const struct eep_request *r)
{
    const struct eep_event event = {.kind = EEP_EVENT_ACCEPTED, .request = e->request_count};

    EEP_TRY(append(e, r));
    count_added(e);
    return push_event(e, &event);
}

enum eep_status eep_engine_submit(struct eep_engine *e, const struct eep_request *request,
                                  uint64_t *id_out)
{
    enum eep_status status = e->broken;

    if (status == EEP_OK) {
        status = eep_requests_check(e, request);
    }
    if (status == EEP_OK) {
        status = append(e, request);
    }
    const enum eep_status agreed = eep_agree(e->xport, "submit", status);
    if (agreed != EEP_OK) {
        if (status == EEP_OK) { /* another rank could not take it */
            free_entry(&e->requests[e->request_count]);
        }
        return agreed;
    }
    *id_out = e->request_count;
    count_added(e);
    return EEP_OK;
}

void eep_requests_clear(struct eep_engine *e)
{
    for (size_t i = 0; i < e->request_count; i++) {
        free_entry(&e->requests[i]);
    }
    e->request_count = 0;
    e->unfinished = 0;
    e->ends = 0;
    e->next_own = 0;
    e->running_count = 0;
    e->event_first = e->event_count = 0;
    e->posts.bytes = e->posts_last.bytes = e->posts_next.bytes = 0;
    e->flags = 0;
}

void eep_requests_free(struct eep_engine *e)
{
    eep_requests_clear(e);
    free(e->requests);
    free(e->events);
    eep_mem_free(e->owned);
    free(e->posts.data);
    free(e->posts_last.data);
    free(e->posts_next.data);
}

uint64_t eep_requests_kv_tokens(const struct eep_engine *e)
{
    const uint32_t ranks = e->xport->topo.size;
    uint64_t most = 0;

    /* A rank runs max_sequences of its requests at a time, whichever: reckon with the longest. */
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint64_t sum = 0, longest = 0;

        for (size_t i = 0; i < e->request_count; i++) {
            const struct eep_request_entry *r = &e->requests[i];
            const uint64_t positions =
                (uint64_t)eep_kv_blocks((uint64_t)r->prompt_count + r->max_tokens) * EEP_KV_BLOCK;

            if (r->owner != rank) {
                continue;
            }

            sum += positions;
            longest = EEP_MAX(longest, positions);
        }
        most = EEP_MAX(most, EEP_MIN(sum, longest * e->max_sequences));
    }
    return most;
}

void eep_requests_tell(struct eep_engine *e, struct eep_wire_event event)
{
    struct eep_wire_step *head = (struct eep_wire_step *)e->wire_out;
    struct eep_wire_event *events = (struct eep_wire_event *)(head + 1);

    EEP_ASSERT(head->event_count < e->max_sequences);
    events[head->event_count++] = event;
}

bool eep_engine_next_event(struct eep_engine *e, struct eep_event *event_out)
{
    if (e->event_first == e->event_count) {
        return false;
    }
    *event_out = e->events[e->event_first++];
    return true;
}

static void end(struct eep_engine *e, uint32_t request, enum eep_request_state state)
{
    struct eep_request_entry *r = &e->requests[request];

    EEP_ASSERT(r->state == EEP_REQUEST_WAITING || r->state == EEP_REQUEST_RUNNING);
    if (r->state == EEP_REQUEST_RUNNING) {
        eep_batch_retire(e, request);
    }
    r->state = state;
    e->owned[r->owner]--;
    e->unfinished--;
}

/* What is told of a request that has ended. */
static struct eep_event end_event(const struct eep_wire_event *wire)
{
    struct eep_event event = {.kind = EEP_EVENT_DONE, .request = wire->request};

    switch ((enum eep_wire_kind)wire->kind) {
    case EEP_WIRE_SCORED:
        memcpy(&event.nll, &wire->value, sizeof(event.nll));
        break;
    case EEP_WIRE_FAILED_ROUTER:
        event.kind = EEP_EVENT_FAILED;
        snprintf(event.reason, sizeof(event.reason),
                 "the expert scores of layer %u are not finite numbers", (uint32_t)wire->value);
        break;
    case EEP_WIRE_FAILED_LOGITS:
        event.kind = EEP_EVENT_FAILED;
        snprintf(event.reason, sizeof(event.reason), "the logits are not finite numbers");
        break;
    default:
        break;
    }
    return event;
}

static enum eep_status finish(struct eep_engine *e, const struct eep_wire_event *wire)
{
    const struct eep_event event = end_event(wire);
    struct eep_request_entry *r = &e->requests[wire->request];

    end(e, wire->request, event.kind == EEP_EVENT_FAILED ? EEP_REQUEST_FAILED : EEP_REQUEST_DONE);
    r->ended = *wire;
    r->ended_at = ++e->ends;
    return push_event(e, &event);
}

static enum eep_status end_replay(struct eep_engine *e, uint32_t request)
{
    struct eep_request_entry *r = &e->requests[request];

    EEP_ASSERT(r->replays);
    end(e, request, r->ended_as);
    r->replays = false;
    return EEP_OK;
}

static enum eep_status apply_token(struct eep_engine *e, const struct eep_wire_event *wire)
{
    struct eep_request_entry *r = &e->requests[wire->request];
    const struct eep_event event = {
        .kind = EEP_EVENT_TOKEN, .request = wire->request, .token = (uint32_t)wire->value};

    EEP_ASSERT(r->token_count < r->prompt_count + r->max_tokens);
    r->tokens[r->token_count++] = event.token;
    e->generated_tokens++;
    return push_event(e, &event);
}

/* Applies one event of any owner, this rank included. */
static enum eep_status apply(struct eep_engine *e, const struct eep_wire_event *wire)
{
    EEP_ASSERT(wire->request < e->request_count);
    switch ((enum eep_wire_kind)wire->kind) {
    case EEP_WIRE_TOKEN:
        return apply_token(e, wire);
    case EEP_WIRE_LAST_TOKEN:
        EEP_TRY(apply_token(e, wire));
        return finish(e, wire);
    case EEP_WIRE_SCORED:
    case EEP_WIRE_FAILED_ROUTER:
    case EEP_WIRE_FAILED_LOGITS:
        return finish(e, wire);
    case EEP_WIRE_REPLAYED:
        return end_replay(e, wire->request);
    }
    return EEP_FAIL(EEP_ERR_FATAL, "a rank sent an event of unknown kind %u", wire->kind);
}

const struct eep_wire_step *eep_requests_heard(const struct eep_engine *e, uint32_t rank)
{
    return (const struct eep_wire_step *)(e->wire_in + rank * e->wire_bytes);
}

/* A wish of this rank's administrator; one by a signal goes first. */
static void tell_ask(struct eep_engine *e, struct eep_wire_step *head)
{
    if (head->asked == EEP_ASK_NOTHING) {
        head->asked = e->ask;
        e->ask = EEP_ASK_NOTHING;
    }
}

/* All ranks hear it in the same step, so the call is collective. That moving is off is seen in its
 * status. */
static void hear_ask(struct eep_engine *e, const struct eep_wire_step *head)
{
    if (head->asked != EEP_ASK_ADMIN_MOVE && head->asked != EEP_ASK_ADMIN_PLAN) {
        return;
    }
    if (e->mover == NULL) {
        e->ask = head->asked; /* in the middle of a recovery: said again in the next step */
    } else {
        (void)eep_engine_rebalance(e, head->asked == EEP_ASK_ADMIN_PLAN);
    }
}

/* What rank 0 alone has to say. */
static void tell_input(struct eep_engine *e, struct eep_wire_step *head)
{
    head->flags = e->flags;
    head->posted_bytes = e->xport->topo.rank == 0 ? (uint32_t)e->posts.bytes : 0;
}

static void hear_input(struct eep_engine *e, const struct eep_wire_step *head)
{
    e->open = e->open && (head->flags & EEP_WIRE_INPUT_ENDS) == 0;
    e->stopped = e->stopped || (head->flags & EEP_WIRE_STOP) != 0;
}

static enum eep_status apply_step(struct eep_engine *e, uint32_t ranks)
{
    struct eep_wire_step *mine = (struct eep_wire_step *)e->wire_out;

    mine->event_count = 0;
    e->prompt_rows = e->generation_rows = 0;
    eep_batch_commit(e);
    for (uint32_t r = 0; r < ranks; r++) {
        const struct eep_wire_step *head = eep_requests_heard(e, r);
        const struct eep_wire_event *events = (const struct eep_wire_event *)(head + 1);

        EEP_ASSERT(head->event_count <= e->max_sequences);
        hear_ask(e, head);
        hear_input(e, head);
        e->prompt_rows += head->prompt_rows;
        e->generation_rows += head->generation_rows;
        for (uint32_t i = 0; i < head->event_count; i++) {
            EEP_TRY(apply(e, &events[i]));
        }
    }
    EEP_TRY(eep_members_heard(e, ranks));
    EEP_TRY(eep_posts_apply(e, &e->posts_last));
    e->position++;
    return EEP_OK;
}

/* The requests that rank 0 has for this step, into posts_last. */
static enum eep_status share_posts(struct eep_engine *e, size_t bytes)
{
    EEP_TRY(eep_posts_reserve(&e->posts_next, bytes));
    e->posts_next.bytes = bytes;
    if (bytes > 0) {
        if (e->xport->topo.rank == 0) {
            memcpy(e->posts_next.data, e->posts.data, bytes);
        }
        EEP_TRY(e->xport->ops->broadcast(e->xport, "new requests", 0, e->posts_next.data, bytes));
    }
    return EEP_OK;
}

/* From here on the step has happened: what was gathered is what counts. */
static void turn_over(struct eep_engine *e)
{
    unsigned char *wire = e->wire_in;
    const struct eep_posts posts = e->posts_last;

    e->wire_in = e->wire_next;
    e->wire_next = wire;
    e->posts_last = e->posts_next;
    e->posts_next = posts;
    if (e->xport->topo.rank == 0) {
        e->posts.bytes = 0;
    }
}

enum eep_status eep_requests_take(struct eep_engine *e, uint32_t ranks)
{
    turn_over(e);
    return apply_step(e, ranks);
}

enum eep_status eep_requests_exchange(struct eep_engine *e)
{
    struct eep_wire_step *mine = (struct eep_wire_step *)e->wire_out;

    mine->status = EEP_OK;
    mine->prompt_rows = e->prompt_rows;
    mine->generation_rows = e->generation_rows;
    eep_mover_tell(e, mine);
    tell_ask(e, mine);
    tell_input(e, mine);
    eep_members_tell(e, mine);
    EEP_TRY(e->xport->ops->allgather(e->xport, "step", e->wire_out, e->wire_bytes, e->wire_next));
    EEP_TRY(share_posts(e, ((const struct eep_wire_step *)e->wire_next)->posted_bytes));
    return eep_requests_take(e, e->xport->topo.size);
}

/* ---- after a loss ---- */

void eep_requests_settle(struct eep_engine *e)
{
    for (size_t i = 0; i < e->request_count; i++) {
        e->requests[i].settled_owner = e->requests[i].owner;
    }
}

/* A request whose rank is gone: somebody else computes it from its tokens. */
static void hand_over(struct eep_engine *e, struct eep_request_entry *r)
{
    const bool ended = r->state == EEP_REQUEST_DONE || r->state == EEP_REQUEST_FAILED;

    r->owner = idlest(e);
    if (ended && (!r->keep_logits || r->token_count == r->prompt_count)) {
        return;
    }
    if (ended) {
        r->replays = true;
        r->ended_as = r->state;
        r->state = EEP_REQUEST_WAITING;
        e->unfinished++;
    }
    e->owned[r->owner]++;
    r->computed = 0;
    r->nll = 0.0;
}

/* Nobody owns any yet. */
static enum eep_status renew_owned(struct eep_engine *e)
{
    uint32_t *owned;

    EEP_TRY(eep_mem_alloc(e->xport->topo.size, sizeof(*owned), "requests of the ranks", &owned));
    eep_mem_free(e->owned);
    e->owned = owned;
    return EEP_OK;
}

enum eep_status eep_requests_reassign(struct eep_engine *e, const uint32_t *now_of)
{
    EEP_TRY(renew_owned(e));
    for (size_t i = 0; i < e->request_count; i++) {
        struct eep_request_entry *r = &e->requests[i];
        const uint32_t now = now_of[r->settled_owner];

        if (now != EEP_NO_RANK) {
            r->owner = now;
            e->owned[now] += r->state == EEP_REQUEST_WAITING || r->state == EEP_REQUEST_RUNNING;
        }
    }
    for (size_t i = 0; i < e->request_count; i++) {
        if (now_of[e->requests[i].settled_owner] == EEP_NO_RANK) {
            hand_over(e, &e->requests[i]);
        }
    }
    e->next_own = 0;
    return EEP_OK;
}

/* ---- on a rank that joins, and before anything has begun ---- */

enum eep_status eep_requests_append(struct eep_engine *e, const struct eep_request_entry *r,
                                    const uint32_t *tokens)
{
    struct eep_request_entry entry = *r;

    EEP_TRY(grow_table(e));
    EEP_TRY(eep_mem_alloc(r->prompt_count + r->max_tokens, sizeof(uint32_t), "request tokens",
                          &entry.tokens));
    memcpy(entry.tokens, tokens, r->token_count * sizeof(uint32_t));
    e->requests[e->request_count++] = entry;
    e->unfinished += r->state == EEP_REQUEST_WAITING;
    return EEP_OK;
}

enum eep_status eep_requests_tell_past(struct eep_engine *e, uint64_t ends)
{
    struct eep_wire_event *in_order;
    enum eep_status status = EEP_OK;

    EEP_TRY(eep_mem_alloc(ends + 1, sizeof(*in_order), "ends of requests", &in_order));
    for (uint32_t i = 0; i < e->request_count && status == EEP_OK; i++) {
        const struct eep_event event = {.kind = EEP_EVENT_ACCEPTED, .request = i};

        if (e->requests[i].ended_at > 0) {
            EEP_ASSERT(e->requests[i].ended_at <= ends);
            in_order[e->requests[i].ended_at - 1] = e->requests[i].ended;
        }
        status = push_event(e, &event);
    }
    for (uint64_t n = 0; n < ends && status == EEP_OK; n++) {
        const struct eep_event event = end_event(&in_order[n]);

        status = push_event(e, &event);
    }
    e->ends = ends;
    eep_mem_free(in_order);
    return status;
}

enum eep_status eep_requests_share_out(struct eep_engine *e)
{
    EEP_TRY(renew_owned(e));
    for (size_t i = 0; i < e->request_count; i++) {
        e->requests[i].owner = idlest(e);
        e->owned[e->requests[i].owner]++;
    }
    return EEP_OK;
}

const uint32_t *eep_engine_tokens(const struct eep_engine *e, uint64_t request, size_t *count_out)
{
    EEP_ASSERT(request < e->request_count);
    const struct eep_request_entry *r = &e->requests[request];

    *count_out = r->token_count - r->prompt_count;
    return r->tokens + r->prompt_count;
}

enum eep_status eep_engine_collect_logits(struct eep_engine *e, uint64_t request,
                                          float **logits_out, size_t *tokens_out)
{
    const uint32_t ranks = e->xport->topo.size, rank = e->xport->topo.rank;
    enum eep_status status = EEP_OK;
    float *logits = NULL;
    size_t *bytes = NULL;

    EEP_TRY(e->broken);
    if (request >= e->request_count || !e->requests[request].keep_logits) {
        return EEP_FAIL(EEP_ERR_INVALID, "request %" PRIu64 " keeps no logits", request);
    }
    const struct eep_request_entry *r = &e->requests[request];
    const size_t rows = r->token_count - r->prompt_count;
    const size_t total = rows * e->config.vocab * sizeof(float);
    bytes = calloc(ranks, sizeof(*bytes));
    logits = rank == 0 ? malloc(EEP_MAX(total, (size_t)1)) : NULL;
    if (bytes == NULL || (rank == 0 && logits == NULL)) {
        status = EEP_FAIL(EEP_ERR_NOMEM, "no memory for %zu bytes of logits", total);
    }
    status = eep_agree(e->xport, "collect logits", status);
    if (status == EEP_OK) {
        bytes[r->owner] = total;
        status = e->xport->ops->gather(e->xport, "collect logits", 0, r->logits, bytes[rank], bytes,
                                       logits);
    }
    free(bytes);
    if (status != EEP_OK) {
        free(logits);
        return status;
    }
    *logits_out = logits;
    *tokens_out = rows;
    return EEP_OK;
}

/* ---- what the program around the engine sees: look.h ---- */

void eep_engine_look(const struct eep_engine *e, struct eep_engine_look *look_out)
{
    *look_out = (struct eep_engine_look){
        .requests = e->request_count,
        .unfinished = e->unfinished,
        .steps = e->steps,
        .prompt_tokens = e->prompt_tokens,
        .generated_tokens = e->generated_tokens,
        .can_rebalance = e->mover != NULL,
        .rebalance_pending =
            e->ask != EEP_ASK_NOTHING ||
            (e->mover != NULL && (e->mover->asked || e->mover->phase != EEP_MOVE_IDLE)),
        .layout = e->layout,
    };
}

void eep_engine_ask_rebalance(struct eep_engine *e, bool dry_run)
{
    EEP_ASSERT(e->mover != NULL);
    e->ask = dry_run ? EEP_ASK_ADMIN_PLAN : EEP_ASK_ADMIN_MOVE;
}
