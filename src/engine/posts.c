/*
 * Requests that come while others run. Rank 0 packs them; they travel with its part of the next
 * step, and every rank takes them into its table at the same place.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "engine/engine_int.h"

#define POSTS_BYTES_MAX ((size_t)1 << 20) /* then the caller waits for a step */

enum { IGNORES_EOS = 1, KEEPS_LOGITS = 2, SCORES = 4 };

struct wire_request {
    uint64_t prompt_count;
    uint64_t seed, tag;
    double temperature, top_p;
    uint32_t max_tokens, top_k;
    uint32_t flags, reserved;
    /* followed by prompt_count ids */
};

_Static_assert(sizeof(struct wire_request) == 56, "travels between ranks");

void eep_engine_open(struct eep_engine *e)
{
    e->open = true;
}

void eep_engine_close_input(struct eep_engine *e)
{
    EEP_ASSERT(e->xport->topo.rank == 0);
    e->flags |= EEP_WIRE_INPUT_ENDS;
}

void eep_engine_stop(struct eep_engine *e)
{
    EEP_ASSERT(e->xport->topo.rank == 0);
    e->flags |= EEP_WIRE_STOP;
}

enum eep_status eep_posts_reserve(struct eep_posts *posts, size_t bytes)
{
    if (bytes > posts->capacity) {
        const size_t capacity = bytes + bytes / 2;
        void *grown = realloc(posts->data, capacity);

        if (grown == NULL) {
            return EEP_FAIL(EEP_ERR_FATAL, "no memory for %zu bytes of new requests", capacity);
        }
        posts->data = grown;
        posts->capacity = capacity;
    }
    return EEP_OK;
}

enum eep_status eep_engine_post(struct eep_engine *e, const struct eep_request *r)
{
    const struct wire_request head = {
        .prompt_count = r->prompt_count,
        .seed = r->seed,
        .tag = r->tag,
        .temperature = r->temperature,
        .top_p = r->top_p,
        .max_tokens = r->max_tokens,
        .top_k = r->top_k,
        .flags = (r->ignore_eos ? IGNORES_EOS : 0u) | (r->keep_logits ? KEEPS_LOGITS : 0u) |
                 (r->score ? SCORES : 0u),
    };
    const size_t ids = r->prompt_count * sizeof(uint32_t);

    EEP_ASSERT(e->xport->topo.rank == 0);
    EEP_TRY(e->broken);
    EEP_TRY(eep_requests_check(e, r));
    if (e->posts.bytes > 0 && e->posts.bytes + sizeof(head) + ids > POSTS_BYTES_MAX) {
        return EEP_FAIL(EEP_ERR_AGAIN, "%zu bytes of new requests wait for the next step already",
                        e->posts.bytes);
    }
    EEP_TRY(eep_posts_reserve(&e->posts, e->posts.bytes + sizeof(head) + ids));
    memcpy(e->posts.data + e->posts.bytes, &head, sizeof(head));
    memcpy(e->posts.data + e->posts.bytes + sizeof(head), r->prompt, ids);
    e->posts.bytes += sizeof(head) + ids;
    return EEP_OK;
}

enum eep_status eep_posts_apply(struct eep_engine *e, const struct eep_posts *posts)
{
    for (size_t at = 0; at < posts->bytes;) {
        struct wire_request head;

        memcpy(&head, posts->data + at, sizeof(head));
        at += sizeof(head);
        const struct eep_request request = {
            .prompt = (const uint32_t *)(posts->data + at), /* sizes are multiples of 4 */
            .prompt_count = head.prompt_count,
            .max_tokens = head.max_tokens,
            .temperature = head.temperature,
            .top_k = head.top_k,
            .top_p = head.top_p,
            .seed = head.seed,
            .ignore_eos = (head.flags & IGNORES_EOS) != 0,
            .keep_logits = (head.flags & KEEPS_LOGITS) != 0,
            .score = (head.flags & SCORES) != 0,
            .tag = head.tag,
        };
        at += head.prompt_count * sizeof(uint32_t);
        const enum eep_status status = eep_requests_add(e, &request);
        if (status != EEP_OK) { /* this rank's table is not that of the others any more */
            return eep_fail_context(EEP_ERR_FATAL, "a new request");
        }
    }
    return EEP_OK;
}

/* ---- looking ---- */

uint64_t eep_engine_requests(const struct eep_engine *e)
{
    return e->request_count;
}

uint64_t eep_engine_unfinished(const struct eep_engine *e)
{
    return e->unfinished;
}

uint64_t eep_engine_tag(const struct eep_engine *e, uint64_t request)
{
    EEP_ASSERT(request < e->request_count);
    return e->requests[request].tag;
}

size_t eep_engine_prompt_tokens(const struct eep_engine *e, uint64_t request)
{
    EEP_ASSERT(request < e->request_count);
    return e->requests[request].prompt_count;
}
