/*
 * Rank 0 and the processes that are no ranks: it wakes them, tells them what to load, and passes on
 * what they answer, and that they have died, to all ranks. notes.h has the messages.
 */
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/look.h"
#include "engine/mover.h"
#include "engine/notes.h"

#define LOOK_NS (50 * EEP_NS_PER_MS) /* between two looks while nobody is asked to join */

struct eep_joiners {
    uint64_t looked_ns;
    bool *told_dead; /* (processes) */
};

enum eep_status eep_joiners_create(struct eep_engine *e)
{
    EEP_TRY(eep_mem_alloc(1, sizeof(*e->joiners), "processes outside", &e->joiners));
    return eep_mem_alloc(e->processes, sizeof(bool), "processes outside", &e->joiners->told_dead);
}

void eep_joiners_free(struct eep_engine *e)
{
    if (e->joiners != NULL) {
        eep_mem_free(e->joiners->told_dead);
        eep_mem_free(e->joiners);
        e->joiners = NULL;
    }
}

/* ---- messages ---- */

enum eep_status eep_note_send(struct eep_engine *e, uint32_t origin,
                              const struct eep_note_message *message, size_t bytes)
{
    EEP_ASSERT(bytes <= EEP_NOTE_DATA_MAX);
    return e->xport->ops->roster_send(e->xport, origin, message, sizeof(message->head) + bytes);
}

bool eep_note_take(struct eep_engine *e, uint32_t *from_out, struct eep_note_message *message_out,
                   size_t *bytes_out)
{
    size_t bytes;

    while (
        e->xport->ops->roster_take(e->xport, from_out, message_out, sizeof(*message_out), &bytes)) {
        if (bytes >= sizeof(message_out->head)) {
            *bytes_out = bytes - sizeof(message_out->head);
            return true;
        }
    }
    return false;
}

/* That a process is dead is found by looking; its messages are nobody's. */
static void tell(struct eep_engine *e, uint32_t origin, const struct eep_note_message *message,
                 size_t bytes)
{
    if (eep_note_send(e, origin, message, bytes) != EEP_OK) {
        eep_log(EEP_LOG_DEBUG, "process %u cannot be told: %s", origin, eep_error_text());
    }
}

/* ---- asking ---- */

static void tell_map(struct eep_engine *e, uint32_t origin, uint32_t serial)
{
    const struct eep_layout *l = e->layout;
    const size_t entries = (size_t)l->layers * eep_layout_slots(l);
    const size_t most = EEP_NOTE_DATA_MAX / sizeof(int32_t);

    for (size_t first = 0; first < entries; first += most) {
        const size_t count = EEP_MIN(most, entries - first);
        struct eep_note_message m = {
            .head = {EEP_NOTE_MAP, .serial = serial, .count = (uint32_t)count, .first = first}};

        memcpy(m.data, l->phys2log + first, count * sizeof(int32_t));
        tell(e, origin, &m, count * sizeof(int32_t));
    }
}

static void tell_load(struct eep_engine *e, uint32_t origin, uint32_t serial)
{
    const struct eep_member_state *state = eep_engine_member_state(e);
    struct eep_note_message m = {.head = {EEP_NOTE_LOAD, .serial = serial}};
    struct eep_note_load load = {
        .kv_tokens = e->kv_tokens, .engine_id = e->engine_id, .has_cache = e->cache != NULL};

    if (e->layout != NULL) {
        load.layers = e->layout->layers;
        load.experts = e->layout->experts;
        load.seats = e->layout->seats;
        load.slots = e->layout->slots_per_seat;
        for (uint32_t seat = 0; seat < load.seats; seat++) {
            load.mine[seat] = state->seats[seat].next == origin;
        }
    }
    memcpy(m.data, &load, sizeof(load));
    tell(e, origin, &m, sizeof(load));
    if (e->layout != NULL) {
        tell_map(e, origin, serial);
    }
}

void eep_joiners_ask(struct eep_engine *e, const struct eep_member_action *action)
{
    struct eep_note_message m = {.head = {.serial = action->serial}};

    switch (action->kind) {
    case EEP_DO_ACTIVATE:
        m.head.kind = EEP_NOTE_ACTIVATE;
        tell(e, action->member, &m, 0);
        break;
    case EEP_DO_LOAD:
        tell_load(e, action->member, action->serial);
        break;
    case EEP_DO_PARK:
        m.head.kind = EEP_NOTE_PARK;
        tell(e, action->member, &m, 0);
        break;
    default:
        break;
    }
}

void eep_joiners_call(struct eep_engine *e, const uint32_t *origins, uint32_t count)
{
    const struct eep_topology *topo = &e->xport->topo;
    struct eep_note_message m = {.head = {EEP_NOTE_SWITCH, .count = count}};

    memcpy(m.data, origins, count * sizeof(*origins));
    for (uint32_t i = 0; i < count; i++) {
        if (eep_member_life(eep_members_machine(e), origins[i]) == EEP_LIFE_JOINING) {
            tell(e, origins[i], &m, count * sizeof(*origins));
        }
    }
    EEP_ASSERT(topo->rank == 0);
}

/* ---- hearing ---- */

static enum eep_status hear(struct eep_engine *e, uint32_t from, const struct eep_note_message *m,
                            size_t bytes)
{
    const struct eep_note *head = &m->head;
    const struct eep_member_event event = {
        .kind = head->kind == EEP_NOTE_APPEARED ? EEP_APPEARED : EEP_DONE,
        .member = from,
        .serial = head->serial,
        .status = head->status,
    };

    if (head->kind != EEP_NOTE_APPEARED && head->kind != EEP_NOTE_DONE) {
        return EEP_OK; /* of an earlier rank 0 */
    }
    if (head->status != EEP_OK) {
        eep_log(EEP_LOG_WARN, "member %u cannot join: %.*s", from,
                (int)EEP_MIN(bytes, (size_t)head->count), (const char *)m->data);
    }
    return eep_posts_add_event(e, &event);
}

/* Those that are outside and have died. */
static enum eep_status look_for_dead(struct eep_engine *e)
{
    const struct eep_member_state *state = eep_engine_member_state(e);

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &state->members[i];
        const bool outside = r->life == EEP_LIFE_PARKED || r->life == EEP_LIFE_JOINING;

        if (outside && r->id < e->processes && !e->joiners->told_dead[r->id] &&
            e->xport->ops->roster_lost(e->xport, r->id)) {
            e->joiners->told_dead[r->id] = true;
            eep_log(EEP_LOG_WARN, "member %u has died; it was %s", r->id,
                    eep_life_text((enum eep_life)r->life));
            EEP_TRY(eep_posts_add_event(
                e, &(struct eep_member_event){.kind = EEP_GONE, .member = r->id}));
        }
    }
    return EEP_OK;
}

enum eep_status eep_joiners_hear(struct eep_engine *e)
{
    struct eep_joiners *j = e->joiners;
    const bool awaited = j != NULL && eep_engine_member_state(e)->operation.phase != EEP_PHASE_NONE;
    struct eep_note_message message;
    uint32_t from;
    size_t bytes;

    if (j == NULL || e->xport->topo.rank != 0 ||
        (!awaited && eep_clock_ns() - j->looked_ns < LOOK_NS)) {
        return EEP_OK;
    }
    j->looked_ns = eep_clock_ns();
    while (eep_note_take(e, &from, &message, &bytes)) {
        EEP_TRY(hear(e, from, &message, bytes));
    }
    return look_for_dead(e);
}
