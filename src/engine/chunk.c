/*
 * The part of a plan that becomes one version: whole layers, the best first, as many as the spare
 * frames of every seat and the caller's limit allow. A layer that needs more spare frames than
 * there are is cut: copies that depend on each other stay together, so that in each version every
 * expert has a slot; a ring of them that is too long is turned in parts.
 */
#include <string.h>

#include "base/assert.h"
#include "engine/mover.h"

static int32_t *chunk_row(const struct eep_engine *e, uint32_t layer)
{
    return e->mover->chunk.map + (size_t)layer * eep_layout_slots(e->layout);
}

static const int32_t *target_row(const struct eep_engine *e, uint32_t layer)
{
    return e->mover->target + (size_t)layer * eep_layout_slots(e->layout);
}

/* Where a copy's bytes come from: a slot of the map that is routed with. */
static void find_source(const struct eep_engine *e, struct eep_copy *copy)
{
    const struct eep_layout *l = e->layout;
    const struct eep_topology *topo = &e->xport->topo;
    const size_t i = (size_t)copy->layer * l->experts + copy->expert;
    const uint32_t first = l->replica_first[i], count = l->replica_first[i + 1] - first;

    for (uint32_t r = 0; r < count; r++) {
        const uint32_t slot = l->replica_slots[first + r];
        const uint32_t rank = e->executors[slot / l->slots_per_seat];

        if (topo->node_of[rank] == topo->node_of[copy->to]) {
            copy->from = EEP_NO_RANK;
            copy->source_slot = slot;
            return;
        }
    }
    copy->source_slot = l->replica_slots[first + copy->slot % count]; /* spread over replicas */
    copy->from = e->executors[copy->source_slot / l->slots_per_seat];
}

static void add_copy(struct eep_engine *e, uint32_t layer, uint32_t slot, uint32_t expert)
{
    struct eep_chunk *chunk = &e->mover->chunk;
    const uint32_t seat = slot / e->layout->slots_per_seat;
    struct eep_copy *copy = &chunk->copies[chunk->copy_count++];

    *copy =
        (struct eep_copy){.layer = layer, .slot = slot, .expert = expert, .to = e->executors[seat]};
    find_source(e, copy);
}

static void add_layer_number(struct eep_chunk *chunk, uint32_t layer)
{
    uint32_t at = chunk->layer_count++;

    for (; at > 0 && chunk->layers[at - 1] > layer; at--) {
        chunk->layers[at] = chunk->layers[at - 1];
    }
    chunk->layers[at] = layer;
}

/* The whole layer, if every seat has room for it besides what the chunk has already. */
static bool add_layer(struct eep_engine *e, uint32_t layer, uint32_t spare)
{
    struct eep_mover *m = e->mover;
    const uint32_t slots = eep_layout_slots(e->layout), per_seat = e->layout->slots_per_seat;
    const int32_t *target = target_row(e, layer);
    int32_t *map = chunk_row(e, layer);
    bool fits = true;

    for (uint32_t p = 0; p < slots; p++) {
        m->seat_copies[p / per_seat] += target[p] != map[p] && target[p] != EEP_NO_EXPERT;
    }
    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        fits = fits && (m->chunk.in_place || m->seat_copies[seat] <= spare);
    }
    for (uint32_t p = 0; p < slots; p++) {
        if (!fits) {
            m->seat_copies[p / per_seat] -= target[p] != map[p] && target[p] != EEP_NO_EXPERT;
        } else if (target[p] != map[p]) {
            if (target[p] != EEP_NO_EXPERT) {
                add_copy(e, layer, p, (uint32_t)target[p]);
            }
            map[p] = target[p];
        }
    }
    if (fits) {
        add_layer_number(&m->chunk, layer);
    }
    return fits;
}

/* A slot that is still to become `expert`; `slots` if there is none outside the chain. */
static uint32_t slot_for(const struct eep_engine *e, uint32_t layer, int32_t expert,
                         const uint32_t *chain, uint32_t length)
{
    const uint32_t slots = eep_layout_slots(e->layout);
    const int32_t *target = target_row(e, layer), *map = chunk_row(e, layer);

    for (uint32_t p = 0; p < slots; p++) {
        bool used = false;

        for (uint32_t i = 0; i < length; i++) {
            used = used || chain[i] == p;
        }
        if (!used && target[p] == expert && map[p] != expert) {
            return p;
        }
    }
    return slots;
}

/*
 * The slots that must change together with `slot`: what each holds now must be somewhere
 * afterwards. Where the next one does not fit, a chain of two or more is cut: its first slot takes,
 * for now, what its last one held. Returns the number of slots, 0 if none can change.
 */
static uint32_t follow_chain(struct eep_engine *e, uint32_t layer, uint32_t slot, uint32_t spare,
                             bool *cut_out)
{
    struct eep_mover *m = e->mover;
    const uint32_t slots = eep_layout_slots(e->layout), per_seat = e->layout->slots_per_seat;
    const int32_t *map = chunk_row(e, layer), *target = target_row(e, layer);
    uint32_t length = 0;

    *cut_out = false;
    while (slot < slots) {
        uint32_t *copies = &m->seat_copies[slot / per_seat];

        if (target[slot] != EEP_NO_EXPERT && *copies == spare) {
            *cut_out = true;
            break;
        }
        *copies += target[slot] != EEP_NO_EXPERT;
        m->chain[length++] = slot;
        if (map[slot] == EEP_NO_EXPERT || --m->experts_left[map[slot]] > 0) {
            break;
        }
        const int32_t orphan = map[slot];

        slot = slot_for(e, layer, orphan, m->chain, length);
        for (uint32_t i = 0; i < length; i++) {
            if (target[m->chain[i]] == orphan) {
                slot = slots; /* the chain has given it a slot already */
            }
        }
    }
    if (*cut_out && (length < 2 || target[m->chain[0]] == EEP_NO_EXPERT)) {
        for (uint32_t i = 0; i < length; i++) {
            const uint32_t p = m->chain[i];

            m->seat_copies[p / per_seat] -= target[p] != EEP_NO_EXPERT;
            if (map[p] != EEP_NO_EXPERT) {
                m->experts_left[map[p]]++;
            }
        }
        return 0;
    }
    return length;
}

static void add_chain(struct eep_engine *e, uint32_t layer, uint32_t length, bool cut)
{
    struct eep_mover *m = e->mover;
    const int32_t *target = target_row(e, layer);
    int32_t *map = chunk_row(e, layer);
    const int32_t last = map[m->chain[length - 1]];

    for (uint32_t i = 0; i < length; i++) {
        const uint32_t slot = m->chain[i];
        const int32_t expert = cut && i == 0 ? last : target[slot];

        if (expert != EEP_NO_EXPERT) {
            add_copy(e, layer, slot, (uint32_t)expert);
            m->experts_left[expert]++;
        }
        map[slot] = expert;
    }
}

/* As much of a layer as fits. False if nothing does. */
static bool add_part(struct eep_engine *e, uint32_t layer, uint32_t spare)
{
    struct eep_mover *m = e->mover;
    const uint32_t slots = eep_layout_slots(e->layout);
    const int32_t *target = target_row(e, layer), *map = chunk_row(e, layer);
    bool any = false, cut = false;

    memset(m->experts_left, 0, e->layout->experts * sizeof(*m->experts_left));
    for (uint32_t p = 0; p < slots; p++) {
        if (map[p] != EEP_NO_EXPERT) {
            m->experts_left[map[p]]++;
        }
    }
    for (uint32_t p = 0; p < slots && !cut; p++) { /* no slot changes twice */
        const uint32_t length = target[p] != map[p] ? follow_chain(e, layer, p, spare, &cut) : 0;

        cut = cut && length > 0;
        if (length > 0) {
            add_chain(e, layer, length, cut);
            any = true;
        }
    }
    if (any) {
        add_layer_number(&m->chunk, layer);
    }
    return any;
}

static bool layer_is_done(const struct eep_engine *e, uint32_t layer)
{
    const uint32_t slots = eep_layout_slots(e->layout);

    return memcmp(target_row(e, layer), e->layout->phys2log + (size_t)layer * slots,
                  slots * sizeof(int32_t)) == 0;
}

static void fill_chunk(struct eep_engine *e, uint32_t spare)
{
    struct eep_mover *m = e->mover;
    struct eep_chunk *chunk = &m->chunk;
    const uint32_t limit = m->params.layers_per_chunk > 0 ? m->params.layers_per_chunk
                           : chunk->in_place              ? 1
                                                          : UINT32_MAX;

    for (uint32_t i = m->moved_layers; i < m->order_count && chunk->layer_count < limit; i++) {
        if (!layer_is_done(e, m->order[i]) && !add_layer(e, m->order[i], spare)) {
            break;
        }
    }
    if (chunk->layer_count == 0 && !add_part(e, m->order[m->moved_layers], spare)) {
        chunk->in_place = true; /* experts that must change places within one seat */
        (void)add_layer(e, m->order[m->moved_layers], spare);
    }
}

bool eep_chunk_next(struct eep_engine *e, uint32_t spare)
{
    struct eep_mover *m = e->mover;
    struct eep_chunk *chunk = &m->chunk;
    const size_t table = (size_t)e->layout->layers * eep_layout_slots(e->layout);

    while (m->moved_layers < m->order_count && layer_is_done(e, m->order[m->moved_layers])) {
        m->moved_layers++;
    }
    if (m->moved_layers == m->order_count) {
        return false;
    }
    memcpy(chunk->map, e->layout->phys2log, table * sizeof(*chunk->map));
    memset(m->seat_copies, 0, e->layout->seats * sizeof(*m->seat_copies));
    chunk->layer_count = chunk->copy_count = 0;
    chunk->in_place = spare == 0;
    fill_chunk(e, spare);
    EEP_ASSERT(chunk->layer_count > 0);
    return true;
}
