/*
 * What a process that joins is given by a rank: the table of requests with all tokens, how those
 * that have ended did, the state of the membership, and counters. Its own parts of requests (KV
 * cache, logits) it does not get: it owns none yet.
 */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "engine/look.h"
#include "engine/mover.h"

/* In front; then a number for each rank, padded, the membership's state, who was spawned, and the
 * requests. */
struct wire_state {
    uint64_t bytes; /* of all */
    uint64_t position, epoch, ends;
    uint64_t steps, prompt_tokens, generated_tokens;
    uint64_t requests;
    uint32_t ranks_before; /* whose numbers `was` and the requests' owners have */
    uint32_t open, stopped;
    uint32_t reserved;
    struct eep_loss_facts loss;
    struct eep_rebalance_status moves;
};

/* A request; then its tokens, padded. */
struct wire_entry {
    double temperature, top_p;
    uint64_t seed, tag, ended_at;
    struct eep_wire_event ended;
    uint32_t top_k, owner, state, prompt_count, max_tokens, token_count, flags, ended_as;
};

_Static_assert(sizeof(struct wire_entry) == 88, "travels between ranks");

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* ---- giving ---- */

static size_t entry_bytes(const struct eep_request_entry *r)
{
    return sizeof(struct wire_entry) + padded(r->token_count * sizeof(uint32_t));
}

static unsigned char *pack_entry(unsigned char *to, const struct eep_request_entry *r)
{
    const bool runs = r->state == EEP_REQUEST_RUNNING; /* on this rank, not on the other */
    const struct wire_entry entry = {
        .temperature = r->sampling.temperature,
        .top_p = r->sampling.top_p,
        .seed = r->sampling.seed,
        .top_k = r->sampling.top_k,
        .tag = r->tag,
        .ended_at = r->ended_at,
        .ended = r->ended,
        .owner = r->settled_owner,
        .state = runs ? EEP_REQUEST_WAITING : r->state,
        .ended_as = r->ended_as,
        .prompt_count = r->prompt_count,
        .max_tokens = r->max_tokens,
        .token_count = r->token_count,
        .flags = eep_request_flags(r->ignore_eos, r->keep_logits, r->score) |
                 (r->replays ? EEP_REPLAYS : 0u),
    };

    memcpy(to, &entry, sizeof(entry));
    memcpy(to + sizeof(entry), r->tokens, r->token_count * sizeof(uint32_t));
    return to + entry_bytes(r);
}

static size_t state_bytes(const struct eep_engine *e, uint32_t ranks)
{
    size_t bytes = sizeof(struct wire_state) + padded(ranks * sizeof(uint32_t)) +
                   sizeof(struct eep_member_state) + sizeof(struct eep_spawned_list);

    for (size_t i = 0; i < e->request_count; i++) {
        bytes += entry_bytes(&e->requests[i]);
    }
    return bytes;
}

static void pack(struct eep_engine *e, const struct eep_handed *h, unsigned char *to)
{
    const uint32_t ranks = e->xport->topo.size;
    const struct wire_state head = {
        .bytes = state_bytes(e, ranks),
        .position = e->position,
        .epoch = e->epoch,
        .ends = e->ends,
        .steps = e->steps,
        .prompt_tokens = e->prompt_tokens,
        .generated_tokens = e->generated_tokens,
        .requests = e->request_count,
        .ranks_before = h->ranks_before,
        .open = e->open,
        .stopped = e->stopped,
        .loss = e->loss,
        .moves = h->moves,
    };

    memcpy(to, &head, sizeof(head));
    to += sizeof(head);
    memcpy(to, h->was, ranks * sizeof(uint32_t));
    to += padded(ranks * sizeof(uint32_t));
    memcpy(to, eep_engine_member_state(e), sizeof(struct eep_member_state));
    to += sizeof(struct eep_member_state);
    memcpy(to, eep_members_spawned(e), sizeof(struct eep_spawned_list));
    to += sizeof(struct eep_spawned_list);
    for (size_t i = 0; i < e->request_count; i++) {
        to = pack_entry(to, &e->requests[i]);
    }
}

/* ---- taking ---- */

static enum eep_status unpack_entry(struct eep_engine *e, const unsigned char **from)
{
    struct wire_entry entry;

    memcpy(&entry, *from, sizeof(entry));
    const struct eep_request_entry r = {
        .owner = entry.owner,
        .settled_owner = entry.owner,
        .state = (enum eep_request_state)entry.state,
        .sampling = {.temperature = entry.temperature,
                     .top_k = entry.top_k,
                     .top_p = entry.top_p,
                     .seed = entry.seed},
        .prompt_count = entry.prompt_count,
        .max_tokens = entry.max_tokens,
        .ignore_eos = (entry.flags & EEP_IGNORES_EOS) != 0,
        .keep_logits = (entry.flags & EEP_KEEPS_LOGITS) != 0,
        .score = (entry.flags & EEP_SCORES) != 0,
        .replays = (entry.flags & EEP_REPLAYS) != 0,
        .ended_as = (enum eep_request_state)entry.ended_as,
        .tag = entry.tag,
        .token_count = entry.token_count,
        .ended = entry.ended,
        .ended_at = entry.ended_at,
    };

    EEP_TRY(eep_requests_append(e, &r, (const uint32_t *)(const void *)(*from + sizeof(entry))));
    *from += entry_bytes(&r);
    return EEP_OK;
}

static enum eep_status unpack(struct eep_engine *e, struct eep_handed *h, const unsigned char *from)
{
    const uint32_t ranks = e->xport->topo.size;
    struct eep_member_state *members;
    struct wire_state head;

    memcpy(&head, from, sizeof(head));
    from += sizeof(head);
    memcpy(h->was, from, ranks * sizeof(uint32_t));
    from += padded(ranks * sizeof(uint32_t));
    h->ranks_before = head.ranks_before;
    h->moves = head.moves;
    e->position = head.position;
    e->epoch = head.epoch;
    e->steps = head.steps;
    e->prompt_tokens = head.prompt_tokens;
    e->generated_tokens = head.generated_tokens;
    e->open = head.open != 0;
    e->stopped = head.stopped != 0;
    e->loss = head.loss;
    EEP_TRY(eep_mem_alloc(1, sizeof(*members), "membership", &members));
    memcpy(members, from, sizeof(*members));
    const enum eep_status status = eep_members_adopt(e, members);

    eep_mem_free(members);
    EEP_TRY(status);
    from += sizeof(*members);
    memcpy(eep_members_spawned(e), from, sizeof(struct eep_spawned_list));
    from += sizeof(struct eep_spawned_list);
    for (uint64_t i = 0; i < head.requests; i++) {
        EEP_TRY(unpack_entry(e, &from));
    }
    return eep_requests_tell_past(e, head.ends);
}

/* ---- both ---- */

static enum eep_status share(struct eep_engine *e, uint32_t from, struct eep_handed *h, bool takes,
                             unsigned char *data, uint64_t bytes)
{
    if (from == e->xport->topo.rank) {
        pack(e, h, data);
    }
    EEP_TRY(e->xport->ops->broadcast(e->xport, "state", from, data, bytes));
    return eep_agree(e->xport, "state of the ranks", takes ? unpack(e, h, data) : EEP_OK);
}

enum eep_status eep_state_share(struct eep_engine *e, uint32_t from, struct eep_handed *h,
                                bool takes)
{
    uint64_t bytes = from == e->xport->topo.rank ? state_bytes(e, e->xport->topo.size) : 0;
    unsigned char *data = NULL;

    EEP_TRY(e->xport->ops->broadcast(e->xport, "state", from, &bytes, sizeof(bytes)));
    enum eep_status status = eep_mem_alloc(1, bytes, "state of the ranks", &data);

    status = eep_agree(e->xport, "memory for the state", status);
    if (status == EEP_OK) {
        status = share(e, from, h, takes, data, bytes);
    }
    eep_mem_free(data);
    return status;
}
