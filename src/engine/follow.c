/*
 * Changing to another version of the layout between two steps: one that this engine published, or
 * that of the engine that moves. All ranks change together or none does, so that no step runs with
 * two layouts. What the version before pinned is free for the next move afterwards.
 */
#include <inttypes.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "engine/mover.h"

void eep_follow_forget(struct eep_engine *e)
{
    struct eep_mover *m = e->mover;

    eep_route_destroy(m->next_route);
    eep_layout_destroy(m->next_layout);
    m->next_route = NULL;
    m->next_layout = NULL;
}

static enum eep_status make_tables(struct eep_engine *e, const int32_t *map)
{
    struct eep_mover *m = e->mover;
    const struct eep_layout *l = e->layout;

    eep_follow_forget(e);
    EEP_TRY(eep_layout_from_map(l->layers, l->experts, l->seats, l->slots_per_seat, map,
                                &m->next_layout));
    return eep_route_create(m->next_layout, e->executors, &e->xport->topo, &m->next_route);
}

enum eep_status eep_follow_prepare(struct eep_engine *e)
{
    return make_tables(e, e->mover->chunk.map);
}

/* Tables for a view, unless they were made ahead. */
static enum eep_status tables_for(struct eep_engine *e, const struct eep_wcache_view *view)
{
    const size_t table = (size_t)e->layout->layers * eep_layout_slots(e->layout);
    const struct eep_layout *next = e->mover->next_layout;
    const int32_t *map = eep_wcache_view_map(view);

    if (next != NULL && memcmp(next->phys2log, map, table * sizeof(*map)) == 0) {
        return EEP_OK;
    }
    return make_tables(e, map);
}

/* The slots of this rank that hold another expert or lie elsewhere now. */
static enum eep_status change_slots(struct eep_engine *e, const struct eep_wcache_view *view)
{
    const struct eep_layout *old = e->layout, *next = e->mover->next_layout;
    struct eep_experts_source source = eep_engine_source(e);
    const uint32_t slots = eep_layout_slots(old);

    source.layout = next;
    for (uint32_t p = 0; p < slots; p++) {
        if (!eep_engine_executes(e, p / old->slots_per_seat)) {
            continue;
        }
        for (uint32_t layer = 0; layer < old->layers; layer++) {
            const struct eep_slot slot = {p};
            const void *frame = eep_wcache_view_slot(view, layer, slot);

            if (frame != eep_wcache_view_slot(e->view, layer, slot) ||
                eep_layout_expert(old, layer, slot) != eep_layout_expert(next, layer, slot)) {
                EEP_TRY(eep_experts_change(e->experts, &source, layer, slot, frame));
            }
        }
    }
    return EEP_OK;
}

static enum eep_status change(struct eep_engine *e, struct eep_wcache_view *view)
{
    struct eep_mover *m = e->mover;

    EEP_FAULT("move.switch");
    EEP_TRY(change_slots(e, view));
    eep_moe_block_reroute(e->block, m->next_route);
    eep_experts_relayout(e->experts, m->next_layout);
    eep_wcache_unpin(e->cache, e->view);
    eep_route_destroy(e->route);
    eep_layout_destroy(e->layout);
    e->view = view;
    e->route = m->next_route;
    e->layout = m->next_layout;
    m->next_route = NULL;
    m->next_layout = NULL;
    m->status.version = eep_wcache_view_version(view);
    EEP_FAULT("move.switched");
    return EEP_OK;
}

static bool all_pinned_same(const struct eep_engine *e)
{
    const struct eep_move_word *words = e->mover->words;

    for (uint32_t r = 1; r < e->xport->topo.size; r++) {
        if (words[r].version != words[0].version ||
            memcmp(words[r].digest, words[0].digest, sizeof(words[r].digest)) != 0) {
            return false;
        }
    }
    return true;
}

static enum eep_status verify(struct eep_engine *e)
{
    enum eep_status own = eep_verify_slots(e);
    struct eep_move_word word = {.status = own};

    return eep_move_round(e, "check of all slots", &word, e->mover->words);
}

enum eep_status eep_follow(struct eep_engine *e, bool *changed_out)
{
    struct eep_wcache_view *view = NULL;
    struct eep_move_word word = {0};

    *changed_out = false;
    EEP_FAULT("move.pin");
    word.status = eep_wcache_pin(e->cache, &view);
    if (word.status == EEP_OK) {
        word.status = tables_for(e, view);
        word.version = eep_wcache_view_version(view);
        memcpy(word.digest, eep_wcache_view_digest(view), sizeof(word.digest));
    }
    EEP_FAULT("move.pinned");
    enum eep_status status = eep_move_round(e, "change of layout", &word, e->mover->words);
    if (status == EEP_OK && !all_pinned_same(e)) {
        status = EEP_FAIL(EEP_ERR_AGAIN, "the nodes' records are at different versions");
    }
    if (status != EEP_OK) {
        eep_wcache_unpin(e->cache, view);
        eep_follow_forget(e);
        return eep_status_lost(status) >= EEP_LOST_PEER ? status : EEP_OK;
    }
    EEP_TRY(change(e, view));
    *changed_out = true;
    return e->mover->params.verify ? verify(e) : EEP_OK;
}
