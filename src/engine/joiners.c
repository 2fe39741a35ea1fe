/*
 * Rank 0 and the processes that are no ranks: it wakes them, tells them what to load, and passes on
 * what they answer, and that they have died, to all ranks. notes.h has the messages.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
    uint32_t load_serial;  /* to be told when no move is under way; 0: nothing */
    uint32_t spawn_serial; /* of the one under way; 0: none */
    uint32_t spawn_count;
};

enum eep_status eep_joiners_create(struct eep_engine *e)
{
    return eep_mem_alloc(1, sizeof(*e->joiners), "processes outside", &e->joiners);
}

void eep_joiners_free(struct eep_engine *e)
{
    EEP_MEM_RELEASE(e->joiners);
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

static bool node_serves(const struct eep_member_state *state, uint32_t node)
{
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (eep_member_in_epoch(&state->members[i]) && state->members[i].node == node) {
            return true;
        }
    }
    return false;
}

static void tell_load(struct eep_engine *e, uint32_t id, uint32_t serial)
{
    const struct eep_member_state *state = eep_engine_member_state(e);
    const uint32_t origin = eep_members_origin(e, id);
    struct eep_note_message m = {.head = {EEP_NOTE_LOAD, .serial = serial}};
    struct eep_note_load load = {.kv_tokens = e->kv_tokens,
                                 .engine_id = e->engine_id,
                                 .likeness = eep_engine_likeness(e),
                                 .id = id,
                                 .node = eep_member_find(state, id)->node,
                                 .started = e->processes,
                                 .has_cache = e->cache != NULL,
                                 .in_use = node_serves(state, eep_member_find(state, id)->node)};

    if (e->layout != NULL) {
        load.layers = e->layout->layers;
        load.experts = e->layout->experts;
        load.seats = e->layout->seats;
        load.slots = e->layout->slots_per_seat;
        for (uint32_t seat = 0; seat < load.seats; seat++) {
            load.mine[seat] = state->seats[seat].next == id;
        }
    }
    memcpy(m.data, &load, sizeof(load));
    tell(e, origin, &m, sizeof(load));
    if (e->layout != NULL) {
        tell_map(e, origin, serial);
    }
}

/* ---- new processes ---- */

/* This process's own words, with the program as it is on the disk. The caller frees both. */
static enum eep_status read_command(char **text_out, char ***argv_out)
{
    static char self[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    size_t used = 0, capacity = 1 << 16, words = 0;
    FILE *file = fopen("/proc/self/cmdline", "r");

    EEP_TRY(eep_mem_alloc(1, capacity + 1, "a command", text_out));
    if (file != NULL) {
        used = fread(*text_out, 1, capacity, file);
        fclose(file);
    }
    EEP_TRY(eep_mem_alloc(used + 2, sizeof(char *), "a command", argv_out));
    if (length <= 0 || used == 0 || used == capacity) {
        return EEP_FAIL(EEP_ERR_IO, "spawning: this program's command line cannot be read");
    }
    for (size_t at = 0; at < used; at += strlen(*text_out + at) + 1) {
        (*argv_out)[words++] = *text_out + at;
    }
    (*argv_out)[0] = self;
    return EEP_OK;
}

static enum eep_status begin_spawn(struct eep_engine *e, uint32_t count, uint32_t serial)
{
    char *text = NULL, **argv = NULL;
    enum eep_status status = read_command(&text, &argv);

    if (status == EEP_OK) {
        const struct eep_spawn spawn = {
            .argv = argv, .count = count, .beside = EEP_NO_RANK, .serial = serial};

        status = e->xport->ops->spawn_begin(e->xport, &spawn);
    }
    eep_mem_free(argv);
    eep_mem_free(text);
    return status;
}

static void spawn(struct eep_engine *e, const struct eep_member_action *action)
{
    const enum eep_status status = begin_spawn(e, action->count, action->serial);

    if (status != EEP_OK) {
        eep_log(EEP_LOG_WARN, "no process can be started: %s", eep_error_text());
        eep_members_failed(e, action->serial, status);
        return;
    }
    e->joiners->spawn_serial = action->serial;
    e->joiners->spawn_count = action->count;
}

/* A move that has begun comes to its end first: else what is loaded would be of the layout before.
 */
static void tell_loads(struct eep_engine *e)
{
    const struct eep_member_state *state = eep_engine_member_state(e);
    struct eep_joiners *j = e->joiners;

    if (j->load_serial == 0 || (e->mover != NULL && e->mover->phase == EEP_MOVE_FILLING)) {
        return;
    }
    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        if (state->members[i].life == EEP_LIFE_JOINING) {
            tell_load(e, state->members[i].id, j->load_serial);
        }
    }
    j->load_serial = 0;
}

/* Are they there? They belong to rank 0's node. */
static enum eep_status look_for_spawned(struct eep_engine *e)
{
    struct eep_joiners *j = e->joiners;
    const struct eep_member_record *me = eep_member_find(eep_engine_member_state(e), e->self);
    uint32_t first;

    if (j->spawn_serial == 0) {
        return EEP_OK;
    }
    const enum eep_status status = e->xport->ops->spawn_test(e->xport, &first);

    if (status == EEP_ERR_AGAIN) {
        return EEP_OK;
    }
    const struct eep_member_event event = {
        .kind = EEP_APPEARED, .member = EEP_NO_MEMBER, .serial = j->spawn_serial, .node = me->node};

    if (status != EEP_OK) {
        eep_log(EEP_LOG_WARN, "no process can be started: %s", eep_error_text());
        eep_members_failed(e, j->spawn_serial, status);
    }
    for (uint32_t i = 0; i < j->spawn_count && status == EEP_OK; i++) {
        EEP_TRY(eep_posts_add_event(e, &event, first + i));
    }
    j->spawn_serial = 0;
    return EEP_OK;
}

/* ---- what is to be done ---- */

void eep_joiners_ask(struct eep_engine *e, const struct eep_member_action *action)
{
    struct eep_note_message m = {.head = {.serial = action->serial}};

    switch (action->kind) {
    case EEP_DO_ACTIVATE:
        m.head.kind = EEP_NOTE_ACTIVATE;
        break;
    case EEP_DO_PARK:
        m.head.kind = EEP_NOTE_PARK;
        e->joiners->load_serial = 0;
        break;
    case EEP_DO_EXIT:
        m.head.kind = EEP_NOTE_EXIT;
        break;
    case EEP_DO_LOAD:
        e->joiners->load_serial = action->serial;
        return;
    case EEP_DO_SPAWN:
        spawn(e, action);
        return;
    default:
        return;
    }
    if (action->member != EEP_NO_MEMBER) {
        tell(e, eep_members_origin(e, action->member), &m, 0);
    }
}

void eep_joiners_call(struct eep_engine *e, const uint32_t *origins, uint32_t count)
{
    struct eep_note_message m = {.head = {EEP_NOTE_SWITCH, .count = count}};

    memcpy(m.data, origins, count * sizeof(*origins));
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = eep_members_of_origin(e, origins[i]);

        if (eep_member_life(eep_members_machine(e), id) == EEP_LIFE_JOINING) {
            tell(e, origins[i], &m, count * sizeof(*origins));
        }
    }
}

/* ---- hearing ---- */

static enum eep_status hear(struct eep_engine *e, uint32_t from, const struct eep_note_message *m,
                            size_t bytes)
{
    const struct eep_note *head = &m->head;
    const struct eep_member_event event = {
        .kind = head->kind == EEP_NOTE_APPEARED ? EEP_APPEARED : EEP_DONE,
        .member = eep_members_of_origin(e, from),
        .serial = head->serial,
        .status = head->status,
    };

    if ((head->kind != EEP_NOTE_APPEARED && head->kind != EEP_NOTE_DONE) ||
        event.member == EEP_NO_MEMBER) {
        return EEP_OK; /* of an earlier rank 0 */
    }
    if (head->status != EEP_OK) {
        eep_log(EEP_LOG_WARN, "member %u cannot join: %.*s", event.member,
                (int)EEP_MIN(bytes, (size_t)head->count), (const char *)m->data);
    }
    return eep_posts_add_event(e, &event, from);
}

/* A guest of a rank 0 that is lost went with it, and nobody else knows its process. */
static bool is_dead(struct eep_engine *e, uint32_t id)
{
    const uint32_t origin = eep_members_origin(e, id);

    return origin >= e->xport->topo.processes || e->xport->ops->roster_lost(e->xport, origin);
}

/* Those that are outside and have died: the next step makes them so in the state. */
static enum eep_status look_for_dead(struct eep_engine *e)
{
    const struct eep_member_state *state = eep_engine_member_state(e);

    for (uint32_t i = 0; i < EEP_MEMBERS_MAX; i++) {
        const struct eep_member_record *r = &state->members[i];
        const bool outside = r->life == EEP_LIFE_PARKED || r->life == EEP_LIFE_JOINING;

        if (outside && is_dead(e, r->id)) {
            eep_log(EEP_LOG_WARN, "member %u has died; it was %s", r->id,
                    eep_life_text((enum eep_life)r->life));
            EEP_TRY(eep_posts_add_event(
                e, &(struct eep_member_event){.kind = EEP_GONE, .member = r->id}, EEP_NO_RANK));
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
    tell_loads(e);
    EEP_TRY(look_for_spawned(e));
    return look_for_dead(e);
}
