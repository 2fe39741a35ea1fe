/*
 * Requests that come while others run, and those of an administrator. Rank 0 packs them; they
 * travel with its part of the next step, and every rank takes them into its table at the same
 * place.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "engine/look.h"

#define POSTS_BYTES_MAX ((size_t)1 << 20) /* then the caller waits for a step */

/* Before each item. */
struct post {
    uint32_t kind;  /* enum post_kind */
    uint32_t bytes; /* with this head; a multiple of 8 */
};

enum post_kind { POST_REQUEST, POST_MEMBERS, POST_EVENT };

struct wire_request {
    uint64_t prompt_count;
    uint64_t seed, tag;
    double temperature, top_p;
    uint32_t max_tokens, top_k;
    uint32_t flags, reserved;
    /* followed by prompt_count ids */
};

enum { IS_DRY = 1, LEAVERS_EXIT = 2 };

struct wire_members {
    char id[EEP_OPERATION_ID_BYTES];
    uint64_t timeout_ns;
    uint32_t kind, target, drain_count, flags;
    /* followed by drain_count ids */
};

/* What has become of a member that is no rank. */
struct wire_member_event {
    uint32_t kind, member, serial;
    int32_t status;
    uint32_t node, origin;
};

_Static_assert(sizeof(struct post) == 8, "travels between ranks");
_Static_assert(sizeof(struct wire_request) == 56, "travels between ranks");
_Static_assert(sizeof(struct wire_member_event) == 24, "travels between ranks");
_Static_assert(sizeof(struct wire_members) == EEP_OPERATION_ID_BYTES + 24, "travels between ranks");

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

/* Queue an item of two parts. */
static enum eep_status add_post(struct eep_engine *e, enum post_kind kind, const void *head,
                                size_t head_bytes, const void *rest, size_t rest_bytes)
{
    const size_t bytes = sizeof(struct post) + head_bytes + (rest_bytes + 7) / 8 * 8;
    const struct post post = {kind, (uint32_t)bytes};

    EEP_ASSERT(e->xport->topo.rank == 0);
    EEP_TRY(e->broken);
    if ((kind != POST_EVENT && e->posts.bytes > 0 && e->posts.bytes + bytes > POSTS_BYTES_MAX) ||
        bytes > UINT32_MAX / 2) {
        return EEP_FAIL(EEP_ERR_AGAIN, "%zu bytes of new requests wait for the next step already",
                        e->posts.bytes);
    }
    EEP_TRY(eep_posts_reserve(&e->posts, e->posts.bytes + bytes));
    unsigned char *to = e->posts.data + e->posts.bytes;

    memset(to, 0, bytes);
    memcpy(to, &post, sizeof(post));
    memcpy(to + sizeof(post), head, head_bytes);
    if (rest_bytes > 0) {
        memcpy(to + sizeof(post) + head_bytes, rest, rest_bytes);
    }
    e->posts.bytes += bytes;
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
        .flags = eep_request_flags(r->ignore_eos, r->keep_logits, r->score),
    };

    EEP_TRY(eep_requests_check(e, r));
    return add_post(e, POST_REQUEST, &head, sizeof(head), r->prompt,
                    r->prompt_count * sizeof(uint32_t));
}

enum eep_status eep_engine_ask_members(struct eep_engine *e, const struct eep_member_request *r)
{
    struct wire_members head = {
        .timeout_ns = r->timeout_ns,
        .kind = r->kind,
        .target = r->target,
        .drain_count = r->drain_count,
        .flags = (r->dry_run ? IS_DRY : 0u) | (r->leavers_exit ? LEAVERS_EXIT : 0u),
    };

    EEP_ASSERT(e->members != NULL);
    memcpy(head.id, r->id, sizeof(head.id));
    return add_post(e, POST_MEMBERS, &head, sizeof(head), r->drain,
                    r->drain_count * sizeof(uint32_t));
}

enum eep_status eep_posts_add_event(struct eep_engine *e, const struct eep_member_event *event,
                                    uint32_t origin)
{
    const struct wire_member_event head = {.kind = event->kind,
                                           .member = event->member,
                                           .serial = event->serial,
                                           .status = event->status,
                                           .node = event->node,
                                           .origin = origin};

    return add_post(e, POST_EVENT, &head, sizeof(head), NULL, 0);
}

static enum eep_status apply_request(struct eep_engine *e, const unsigned char *data)
{
    struct wire_request head;

    memcpy(&head, data, sizeof(head));
    const struct eep_request request = {
        .prompt = (const uint32_t *)(const void *)(data + sizeof(head)), /* aligned to 8 */
        .prompt_count = head.prompt_count,
        .max_tokens = head.max_tokens,
        .temperature = head.temperature,
        .top_k = head.top_k,
        .top_p = head.top_p,
        .seed = head.seed,
        .ignore_eos = (head.flags & EEP_IGNORES_EOS) != 0,
        .keep_logits = (head.flags & EEP_KEEPS_LOGITS) != 0,
        .score = (head.flags & EEP_SCORES) != 0,
        .tag = head.tag,
    };

    const enum eep_status status = eep_requests_add(e, &request);

    /* This rank's table is not that of the others any more. */
    return status == EEP_OK ? EEP_OK : eep_fail_context(EEP_ERR_FATAL, "a new request");
}

static enum eep_status apply_members(struct eep_engine *e, const unsigned char *data)
{
    struct wire_members head;

    memcpy(&head, data, sizeof(head));
    struct eep_member_request request = {
        .kind = (enum eep_operation_kind)head.kind,
        .target = head.target,
        .drain = (const uint32_t *)(const void *)(data + sizeof(head)),
        .drain_count = head.drain_count,
        .dry_run = (head.flags & IS_DRY) != 0,
        .leavers_exit = (head.flags & LEAVERS_EXIT) != 0,
        .timeout_ns = head.timeout_ns,
    };

    memcpy(request.id, head.id, sizeof(request.id));
    return eep_members_asked(e, &request);
}

static enum eep_status apply_event(struct eep_engine *e, const unsigned char *data)
{
    struct wire_member_event head;

    memcpy(&head, data, sizeof(head));
    const struct eep_member_event event = {
        .kind = (enum eep_member_event_kind)head.kind,
        .member = head.member,
        .serial = head.serial,
        .status = head.status,
        .node = head.node,
    };

    return eep_members_told(e, &event, head.origin);
}

static enum eep_status apply_post(struct eep_engine *e, enum post_kind kind,
                                  const unsigned char *data)
{
    switch (kind) {
    case POST_REQUEST:
        return apply_request(e, data);
    case POST_MEMBERS:
        return apply_members(e, data);
    default:
        return apply_event(e, data);
    }
}

enum eep_status eep_posts_apply(struct eep_engine *e, const struct eep_posts *posts)
{
    struct post post;

    for (size_t at = 0; at < posts->bytes; at += post.bytes) {
        const unsigned char *data = posts->data + at + sizeof(post);

        memcpy(&post, posts->data + at, sizeof(post));
        EEP_TRY(apply_post(e, (enum post_kind)post.kind, data));
    }
    return EEP_OK;
}

/* ---- looking ---- */

bool eep_engine_has_left(const struct eep_engine *e)
{
    return e->left;
}

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
