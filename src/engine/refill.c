/*
 * Seats whose node is gone, filled on the nodes of their new executors: each expert from a frame of
 * that node, else of another node, else from a backup, else from the checkpoint. All ranks know the
 * whole list, so sender and receiver of an expert come to it in the same order.
 */
#include <sched.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/backup.h"
#include "engine/mover.h"

#define IN_FLIGHT 4u

struct item {
    uint32_t layer;
    struct eep_slot slot;
    struct eep_expert expert;
    uint32_t to;            /* rank that fills the slot */
    uint32_t from;          /* rank that has it; `to`: a frame of its node, or its own backup;
                               EEP_NO_RANK: nobody */
    struct eep_slot source; /* that holds it there, if not the backup */
    bool backup;
};

/* What a rank read from the checkpoint because it was damaged elsewhere. */
struct damaged {
    uint64_t from_node, from_other_node, from_backup;
};

/* An expert between two ranks. */
struct flight {
    const struct item *item;
    bool sends;
    unsigned char *arrived; /* receiving: (frame_bytes) */
    struct eep_parcel parcel;
};

struct refill {
    struct eep_engine *e;
    struct eep_wcache_view *view;
    uint8_t *needs;   /* (ranks, seats): seats that each rank has to fill */
    uint64_t *backup; /* (ranks, words): experts that each rank holds; NULL without a backup */
    struct damaged damaged;
    struct item *items;
    size_t count;
    struct flight *flights; /* (IN_FLIGHT), a ring: flight_first .. flight_end - 1 */
    size_t flight_first, flight_end;
};

/* ---- the list ---- */

static bool needs_fill(const struct refill *r, uint32_t seat)
{
    const uint32_t seats = r->e->layout->seats;

    return r->needs[(size_t)r->e->executors[seat] * seats + seat] != 0;
}

/* A rank that holds a backup: the one that needs it, else one of its node, else the lowest. */
static void find_backup(const struct refill *r, struct item *item)
{
    const struct eep_engine *e = r->e;
    const uint32_t *node_of = e->xport->topo.node_of;
    const size_t words = eep_backup_words(e->layout);
    const size_t pair = (size_t)item->layer * e->layout->experts + item->expert.id;
    uint32_t best_away = UINT32_MAX;

    for (uint32_t rank = 0; rank < e->xport->topo.size && r->backup != NULL; rank++) {
        const uint32_t away = rank == item->to ? 0 : node_of[rank] == node_of[item->to] ? 1 : 2;

        if (away < best_away && eep_backup_has(r->backup + rank * words, pair)) {
            item->from = rank;
            item->backup = true;
            best_away = away;
        }
    }
}

/* Where the best copy of the item's expert lies. */
static void find_source(const struct refill *r, struct item *item)
{
    const struct eep_engine *e = r->e;
    const struct eep_layout *l = e->layout;
    const uint32_t *node_of = e->xport->topo.node_of;
    const size_t i = (size_t)item->layer * l->experts + item->expert.id;
    const uint32_t first = l->replica_first[i], count = l->replica_first[i + 1] - first;

    item->from = EEP_NO_RANK;
    for (uint32_t n = 0; n < count; n++) {
        const uint32_t slot = l->replica_slots[first + (item->slot.id + n) % count];
        const uint32_t seat = slot / l->slots_per_seat, rank = e->executors[seat];

        if (eep_members_seat_is_lost(e, seat)) {
            continue;
        }
        if (node_of[rank] == node_of[item->to]) {
            item->from = item->to;
            item->source.id = slot;
            return;
        }
        item->from = rank;
        item->source.id = slot;
    }
    if (item->from == EEP_NO_RANK) {
        find_backup(r, item);
    }
}

static void count_source(struct eep_loss_facts *f, const struct item *item)
{
    f->from_checkpoint += item->from == EEP_NO_RANK;
    f->from_backup += item->backup;
    f->from_node += item->from == item->to && !item->backup;
    f->from_other_node += item->from != EEP_NO_RANK && item->from != item->to && !item->backup;
}

static void count_damaged(struct damaged *d, const struct item *item)
{
    d->from_backup += item->backup;
    d->from_node += item->from == item->to && !item->backup;
    d->from_other_node += item->from != item->to && !item->backup;
}

static enum eep_status make_list(struct refill *r)
{
    const struct eep_layout *l = r->e->layout;
    const uint32_t slots = eep_layout_slots(l);

    EEP_TRY(eep_mem_alloc((size_t)l->layers * slots, sizeof(*r->items), "experts of lost seats",
                          &r->items));
    EEP_TRY(eep_mem_alloc(IN_FLIGHT, sizeof(*r->flights), "experts on their way", &r->flights));
    for (uint32_t seat = 0; seat < l->seats; seat++) {
        for (uint32_t n = 0; needs_fill(r, seat) && n < l->layers * l->slots_per_seat; n++) {
            struct item item = {.layer = n / l->slots_per_seat,
                                .slot = {seat * l->slots_per_seat + n % l->slots_per_seat},
                                .to = r->e->executors[seat]};
            const int32_t expert = eep_layout_expert(l, item.layer, item.slot);

            if (expert != EEP_NO_EXPERT) {
                item.expert.id = (uint32_t)expert;
                find_source(r, &item);
                count_source(&r->e->loss, &item);
                r->items[r->count++] = item;
            }
        }
    }
    return EEP_OK;
}

/* Open what this rank is to execute; which of it is not there. */
static enum eep_status open_seats(struct refill *r, uint8_t *mine)
{
    struct eep_engine *e = r->e;

    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        bool fill = false;

        if (eep_engine_executes(e, seat)) {
            EEP_TRY(eep_wcache_seat_open(e->cache, (struct eep_seat){seat}, e->attach_timeout_ns,
                                         &fill));
        }
        mine[seat] = fill;
    }
    return EEP_OK;
}

/* ---- one expert ---- */

static enum eep_status take_frame(struct refill *r, const struct item *item,
                                  struct eep_wcache_frame *frame_out)
{
    return eep_wcache_slot_frame(r->e->cache, item->layer, item->slot, frame_out)
               ? EEP_OK
               : EEP_FAIL(EEP_ERR_CACHE_BAD, "slot %u of MoE layer %u has no frame", item->slot.id,
                          item->layer);
}

static enum eep_status fill_from_checkpoint(struct refill *r, const struct item *item)
{
    struct eep_wcache_frame frame;

    EEP_TRY(take_frame(r, item, &frame));
    return eep_cache_pack(r->e, frame, item->layer, item->expert);
}

/* From memory; what does not arrive whole is read from the checkpoint. */
static enum eep_status fill_from(struct refill *r, const struct item *item, const void *bytes,
                                 const struct eep_wcache_content *content)
{
    struct eep_wcache_frame frame;
    bool damaged = false;

    EEP_TRY(take_frame(r, item, &frame));
    const enum eep_status status =
        eep_cache_copy(r->e, frame, item->layer, item->expert, bytes, content, &damaged);

    if (damaged) {
        count_damaged(&r->damaged, item);
    }
    return status;
}

static enum eep_status fill_here(struct refill *r, const struct item *item)
{
    struct eep_wcache_content content;

    if (item->backup) {
        const void *held = eep_backup_find(r->e, item->layer, item->expert, &content);

        EEP_ASSERT(held != NULL); /* it said so */
        return fill_from(r, item, held, &content);
    }
    const bool known = eep_wcache_frame_digest(r->e->cache, item->layer, item->expert, &content);
    const void *bytes = eep_wcache_view_slot(r->view, item->layer, item->source);

    return bytes != NULL ? fill_from(r, item, bytes, known ? &content : NULL)
                         : fill_from_checkpoint(r, item);
}

/* ---- between ranks ---- */

static void *bytes_to_send(const struct refill *r, const struct item *item,
                           struct eep_parcel *parcel)
{
    const struct eep_engine *e = r->e;
    const void *bytes;

    if (item->backup) {
        bytes = eep_backup_find(e, item->layer, item->expert, &parcel->content);
    } else {
        bytes = eep_wcache_view_slot(r->view, item->layer, item->source);
        eep_parcel_describe(e, parcel, item->layer, item->expert);
    }
    EEP_ASSERT(bytes != NULL); /* a backup as said, or a seat that this rank executed before */
    return (void *)(uintptr_t)bytes;
}

static enum eep_status take_off(struct refill *r, const struct item *item, size_t number)
{
    struct eep_engine *e = r->e;
    struct flight *f = &r->flights[r->flight_end % IN_FLIGHT];
    void *bytes;

    *f = (struct flight){.item = item, .sends = item->from == e->xport->topo.rank};
    if (f->sends) {
        bytes = bytes_to_send(r, item, &f->parcel);
    } else {
        EEP_TRY(eep_mem_alloc(1, e->frame_bytes, "expert on its way", &f->arrived));
        bytes = f->arrived;
    }
    r->flight_end++;
    return eep_parcel_begin(e, &f->parcel, f->sends ? item->to : item->from, (uint32_t)number,
                            f->sends, bytes);
}

/* The oldest one to its end. */
static enum eep_status land(struct refill *r)
{
    struct eep_engine *e = r->e;
    struct flight *f = &r->flights[r->flight_first % IN_FLIGHT];
    const uint64_t deadline_ns = eep_clock_ns() + e->attach_timeout_ns;
    enum eep_status status = EEP_OK;

    while (!eep_parcel_is_over(&f->parcel)) {
        for (size_t i = r->flight_first; i < r->flight_end; i++) {
            EEP_TRY(eep_parcel_test(e, &r->flights[i % IN_FLIGHT].parcel));
        }
        if (eep_clock_ns() > deadline_ns) {
            return EEP_FAIL(
                EEP_ERR_TIMEOUT,
                "expert %u of MoE layer %u did not come from rank %u, or go to rank %u, "
                "in time",
                f->item->expert.id, f->item->layer, f->item->from, f->item->to);
        }
        (void)sched_yield();
    }
    r->flight_first++;
    if (!f->sends) {
        status = fill_from(r, f->item, f->arrived, eep_parcel_content(&f->parcel));
        eep_mem_free(f->arrived);
    }
    return status;
}

static enum eep_status fill_all(struct refill *r)
{
    const uint32_t me = r->e->xport->topo.rank;

    for (size_t i = 0; i < r->count; i++) {
        const struct item *item = &r->items[i];
        const bool travels = item->from != EEP_NO_RANK && item->from != item->to;

        if (travels && (item->to == me || item->from == me)) {
            if (r->flight_end - r->flight_first == IN_FLIGHT) {
                EEP_TRY(land(r));
            }
            EEP_TRY(take_off(r, item, i));
        } else if (!travels && item->to == me) {
            EEP_TRY(item->from == me ? fill_here(r, item) : fill_from_checkpoint(r, item));
        }
    }
    while (r->flight_first < r->flight_end) {
        EEP_TRY(land(r));
    }
    return EEP_OK;
}

static enum eep_status end_seats(struct refill *r)
{
    for (uint32_t seat = 0; seat < r->e->layout->seats; seat++) {
        if (eep_engine_executes(r->e, seat) && needs_fill(r, seat)) {
            EEP_TRY(eep_wcache_seat_end(r->e->cache, (struct eep_seat){seat}));
        }
    }
    return EEP_OK;
}

/* Who holds which backups. */
static enum eep_status share_backups(struct refill *r)
{
    struct eep_engine *e = r->e;
    const size_t words = eep_backup_words(e->layout), ranks = e->xport->topo.size;

    if (e->backup_mode == EEP_BACKUP_NONE) {
        return EEP_OK;
    }
    EEP_TRY(eep_agree(e->xport, "backups",
                      eep_mem_alloc(ranks + 1, words * sizeof(*r->backup), "backups", &r->backup)));
    uint64_t *mine = r->backup + ranks * words;

    if (e->backup != NULL) { /* a rank that has just come has none yet */
        memcpy(mine, e->backup->held, words * sizeof(*mine));
    }
    return e->xport->ops->allgather(e->xport, "backups", mine, words * sizeof(*mine), r->backup);
}

/* What could not be used was read from the checkpoint. */
static enum eep_status correct_counts(struct refill *r)
{
    struct eep_engine *e = r->e;
    struct eep_loss_facts *f = &e->loss;
    struct damaged *all;
    enum eep_status status =
        eep_mem_alloc(e->xport->topo.size, sizeof(*all), "damaged experts", &all);

    EEP_TRY(eep_agree(e->xport, "damaged experts", status));
    status = e->xport->ops->allgather(e->xport, "damaged experts", &r->damaged, sizeof(*all), all);
    for (uint32_t rank = 0; status == EEP_OK && rank < e->xport->topo.size; rank++) {
        f->from_node -= all[rank].from_node;
        f->from_other_node -= all[rank].from_other_node;
        f->from_backup -= all[rank].from_backup;
        f->from_checkpoint +=
            all[rank].from_node + all[rank].from_other_node + all[rank].from_backup;
    }
    eep_mem_free(all);
    return status;
}

static enum eep_status refill(struct refill *r)
{
    struct eep_engine *e = r->e;
    const uint32_t seats = e->layout->seats;
    uint8_t *mine = NULL;
    enum eep_status status =
        eep_mem_alloc((size_t)e->xport->topo.size + 1, seats, "seats to fill", &r->needs);

    if (status == EEP_OK) {
        mine = r->needs + (size_t)e->xport->topo.size * seats;
        status = open_seats(r, mine);
    }
    EEP_TRY(eep_agree(e->xport, "seats of lost ranks", status));
    EEP_TRY(e->xport->ops->allgather(e->xport, "seats to fill", mine, seats, r->needs));
    EEP_TRY(share_backups(r));
    status = make_list(r);
    if (status == EEP_OK && r->count > 0) {
        status = eep_wcache_pin(e->cache, &r->view);
    }
    EEP_TRY(eep_agree(e->xport, "experts to fill", status));
    if (r->count == 0) {
        return EEP_OK;
    }
    const uint64_t begin_ns = eep_clock_ns();

    status = fill_all(r);
    if (status == EEP_OK) {
        status = end_seats(r);
    }
    EEP_TRY(eep_agree(e->xport, "filling lost seats", status));
    e->loss.filled_ns = eep_clock_ns() - begin_ns;
    e->loss.filled_bytes = r->count * e->frame_bytes;
    return correct_counts(r);
}

enum eep_status eep_refill_lost(struct eep_engine *e)
{
    struct refill r = {.e = e};

    e->loss.from_node = e->loss.from_other_node = 0;
    e->loss.from_backup = e->loss.from_checkpoint = 0;
    e->loss.filled_bytes = e->loss.filled_ns = 0;
    const enum eep_status status = refill(&r);

    if (r.view != NULL) {
        eep_wcache_unpin(e->cache, r.view);
    }
    if (r.flight_first ==
        r.flight_end) { /* else they belong to the transport, after another loss */
        eep_mem_free(r.flights);
    }
    eep_mem_free(r.items);
    eep_mem_free(r.needs);
    eep_mem_free(r.backup);
    return status;
}
