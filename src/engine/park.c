/*
 * The life of a process that is no rank. It holds the checkpoint open, and nothing else, until rank
 * 0 asks it to join; then it loads what it will execute while the ranks go on, and comes in when
 * they make a new world. notes.h has the messages.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/look.h"
#include "engine/mover.h"
#include "engine/notes.h"

#define LOOK_NS EEP_NS_PER_S

struct eep_park {
    struct eep_note_load load; /* what it was asked to hold */
    uint32_t serial;
    int32_t *map; /* (map_count) of the layout, as far as it has come */
    size_t map_count, map_have;
    bool is_loaded;
};

/* ---- becoming one ---- */

enum eep_status eep_park(struct eep_engine *e)
{
    eep_engine_release(e);
    EEP_ASSERT(e->park == NULL);
    eep_log(EEP_LOG_INFO, "parked");
    return eep_mem_alloc(1, sizeof(*e->park), "a parked process", &e->park);
}

void eep_park_free(struct eep_engine *e)
{
    if (e->park != NULL) {
        eep_mem_free(e->park->map);
        EEP_MEM_RELEASE(e->park);
    }
}

static enum eep_status resize(struct eep_engine *e)
{
    EEP_TRY(eep_facts_resize(e));
    return eep_requests_share_out(e);
}

enum eep_status eep_park_rest(struct eep_engine *e)
{
    uint32_t origins[EEP_MEMBERS_MAX];

    if (e->ep_size == 0 || e->ep_size == e->processes) {
        return EEP_OK;
    }
    if (e->ep_size > EEP_MEMBERS_MAX || e->on_loss == EEP_LOSS_STOP) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%u ranks of %u processes: parked ones can be called only with at most %u "
                        "ranks, and not with --on-loss=stop",
                        e->ep_size, e->processes, EEP_MEMBERS_MAX);
    }
    for (uint32_t r = 0; r < e->ep_size; r++) {
        origins[r] = r;
    }
    EEP_TRY(e->xport->ops->regroup(e->xport, origins, e->ep_size));
    if (e->xport->topo.rank == EEP_NO_RANK) {
        return eep_park(e);
    }
    EEP_TRY(eep_agree(e->xport, "requests of the ranks", resize(e)));
    return eep_threads_share(e);
}

/* ---- loading ---- */

static enum eep_status take_layout(struct eep_engine *e)
{
    const struct eep_note_load *l = &e->park->load;
    struct eep_layout *layout;

    if (l->seats == 0) {
        return EEP_OK;
    }
    EEP_TRY(eep_layout_from_map(l->layers, l->experts, l->seats, l->slots, e->park->map, &layout));
    eep_layout_destroy(e->layout);
    e->layout = layout;
    return EEP_OK;
}

static enum eep_status load_seats(struct eep_engine *e)
{
    bool mine[EEP_SEATS_MAX];

    for (uint32_t seat = 0; seat < EEP_SEATS_MAX; seat++) {
        mine[seat] = e->park->load.mine[seat] != 0;
    }
    if (e->park->load.has_cache != 0) {
        return eep_cache_join(e, mine, e->park->load.in_use != 0);
    }
    EEP_TRY(eep_model_load(&e->config, e->ckpt, e->kernels, &e->model));
    for (uint32_t seat = 0; e->layout != NULL && seat < e->layout->seats; seat++) {
        if (mine[seat]) {
            EEP_TRY(eep_own_load_seat(e, seat));
        }
    }
    return EEP_OK;
}

static enum eep_status load(struct eep_engine *e)
{
    const uint64_t begin_ns = eep_clock_ns();

    eep_engine_release(e);
    e->kv_tokens = e->park->load.kv_tokens;
    e->engine_id = e->park->load.engine_id;
    e->self = e->park->load.id;
    e->home_node = e->park->load.node;
    e->processes = e->park->load.started;
    if (e->park->load.likeness != eep_engine_likeness(e)) {
        return EEP_FAIL(EEP_ERR_STALE, "this process has another version of eep, another "
                                       "checkpoint or other parameters than the ranks");
    }
    EEP_TRY(take_layout(e));
    EEP_TRY(load_seats(e));
    eep_ckpt_drop_pages(e->ckpt);
    EEP_TRY(eep_engine_take_buffers(e));
    EEP_TRY(eep_members_create(e));
    e->load_ns = eep_clock_ns() - begin_ns;
    return EEP_OK;
}

static enum eep_status answer(struct eep_engine *e, uint32_t to, enum eep_note_kind kind,
                              uint32_t serial, enum eep_status status)
{
    struct eep_note_message m = {.head = {kind, .serial = serial, .status = status}};
    size_t bytes = 0;

    if (status != EEP_OK) {
        bytes = (size_t)snprintf((char *)m.data, EEP_ERROR_TEXT_MAX, "%s", eep_error_text());
        m.head.count = (uint32_t)EEP_MIN(bytes, (size_t)EEP_ERROR_TEXT_MAX - 1);
    }
    return eep_note_send(e, to, &m, m.head.count);
}

/* All of the request is there: do it. */
static void load_and_answer(struct eep_engine *e, uint32_t asker)
{
    struct eep_park *p = e->park;

    EEP_FAULT("join.asked");
    const enum eep_status status = load(e);

    p->is_loaded = status == EEP_OK;
    if (status != EEP_OK) {
        eep_engine_release(e);
    } else {
        eep_log(EEP_LOG_INFO, "loaded in %.3f s, to join", (double)e->load_ns * 1e-9);
    }
    EEP_FAULT("join.loaded");
    if (answer(e, asker, EEP_NOTE_DONE, p->serial, status) != EEP_OK) {
        eep_log(EEP_LOG_DEBUG, "rank 0 cannot be told: %s", eep_error_text());
    }
}

static bool is_possible(const struct eep_engine *e, const struct eep_note_load *l)
{
    const struct eep_model_config *c = &e->config;

    if (l->seats == 0) {
        return c->moe_layers == 0;
    }
    return l->layers == c->moe_layers && l->experts == c->experts && l->seats <= EEP_SEATS_MAX &&
           l->slots > 0 && l->slots <= UINT32_MAX / EEP_SEATS_MAX;
}

static void hear_load(struct eep_engine *e, uint32_t from, const struct eep_note_message *m,
                      size_t bytes)
{
    struct eep_park *p = e->park;
    int32_t *map = NULL;

    if (bytes < sizeof(p->load)) {
        return;
    }
    memcpy(&p->load, m->data, sizeof(p->load));
    p->serial = m->head.serial;
    p->map_have = 0;
    p->map_count = (size_t)p->load.layers * p->load.seats * p->load.slots;
    EEP_MEM_RELEASE(p->map);
    if (!is_possible(e, &p->load) ||
        eep_mem_alloc(p->map_count + 1, sizeof(*map), "a layout", &map) != EEP_OK) {
        const enum eep_status status =
            EEP_FAIL(EEP_ERR_INVALID, "a layout of %u layers, %u experts, %u seats of %u slots",
                     p->load.layers, p->load.experts, p->load.seats, p->load.slots);

        (void)answer(e, from, EEP_NOTE_DONE, p->serial, status);
        return;
    }
    p->map = map;
    if (p->map_count == 0) {
        load_and_answer(e, from);
    }
}

static void hear_map(struct eep_engine *e, uint32_t from, const struct eep_note_message *m,
                     size_t bytes)
{
    struct eep_park *p = e->park;
    const struct eep_note *head = &m->head;

    if (p->map == NULL || head->serial != p->serial || head->first != p->map_have ||
        head->count > p->map_count - p->map_have || bytes < head->count * sizeof(int32_t)) {
        return; /* of a request that another one has replaced */
    }
    memcpy(p->map + p->map_have, m->data, head->count * sizeof(int32_t));
    p->map_have += head->count;
    if (p->map_have == p->map_count) {
        load_and_answer(e, from);
    }
}

/* ---- coming in ---- */

static enum eep_status come_in(struct eep_engine *e, const struct eep_note_message *m, size_t bytes)
{
    uint32_t origins[EEP_MEMBERS_MAX];
    bool joined;

    if (!e->park->is_loaded || m->head.count > EEP_MEMBERS_MAX ||
        bytes < m->head.count * sizeof(*origins)) {
        return EEP_OK;
    }
    memcpy(origins, m->data, m->head.count * sizeof(*origins));
    EEP_FAULT("join.called");
    const enum eep_status status = eep_engine_arrive(e, origins, m->head.count, &joined);

    if (!joined) {
        eep_log(EEP_LOG_INFO, "still parked: %s", eep_error_text());
        return EEP_OK;
    }
    EEP_TRY(status);
    eep_park_free(e);
    e->loaded = true;
    return EEP_OK;
}

static enum eep_status hear(struct eep_engine *e, uint32_t from, const struct eep_note_message *m,
                            size_t bytes, bool *ended_out)
{
    switch ((enum eep_note_kind)m->head.kind) {
    case EEP_NOTE_ACTIVATE:
        EEP_FAULT("join.activated");
        if (answer(e, from, EEP_NOTE_APPEARED, m->head.serial, EEP_OK) != EEP_OK) {
            eep_log(EEP_LOG_DEBUG, "rank 0 cannot be told: %s", eep_error_text());
        }
        return EEP_OK;
    case EEP_NOTE_LOAD:
        hear_load(e, from, m, bytes);
        return EEP_OK;
    case EEP_NOTE_MAP:
        hear_map(e, from, m, bytes);
        return EEP_OK;
    case EEP_NOTE_SWITCH:
        return come_in(e, m, bytes);
    case EEP_NOTE_EXIT:
        *ended_out = e->left = true;
        return EEP_OK;
    case EEP_NOTE_PARK:
        e->park->is_loaded = false;
        eep_engine_release(e);
        return EEP_OK;
    default:
        return EEP_OK;
    }
}

/* ---- the interface ---- */

bool eep_engine_is_parked(const struct eep_engine *e)
{
    return e->park != NULL;
}

static enum eep_status wait(struct eep_engine *e, bool *ended_out)
{
    struct eep_note_message message;
    uint32_t from;
    size_t bytes;

    while (e->park != NULL && !*ended_out) {
        const enum eep_status status = e->xport->ops->roster_wait(e->xport, LOOK_NS);

        if (status == EEP_ERR_REVOKED) {
            *ended_out = true;
            return EEP_OK;
        }
        if (status != EEP_OK && status != EEP_ERR_TIMEOUT) {
            return status;
        }
        while (e->park != NULL && !*ended_out && eep_note_take(e, &from, &message, &bytes)) {
            EEP_TRY(hear(e, from, &message, bytes, ended_out));
        }
    }
    return EEP_OK;
}

enum eep_status eep_engine_wait(struct eep_engine *e, bool *ended_out)
{
    *ended_out = false;
    EEP_TRY(e->broken);
    e->broken = wait(e, ended_out);
    return e->broken;
}
