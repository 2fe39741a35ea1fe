/*
 * The first view of the cache: all ranks pin the same version, while another engine may publish new
 * ones, and take its map as this engine's layout. Ranks that came too late for a version let go and
 * all try again, until one rank's time is over; then all stop with the same reason.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/cache_int.h"

#define PAUSE_US 2000

/* What each rank says of a try. */
struct pinned {
    int32_t status;
    uint32_t late; /* its time is over */
    uint64_t version;
    uint8_t digest[EEP_WCACHE_DIGEST_BYTES];
    char text[464];
};

_Static_assert(sizeof(struct pinned) == 512, "travels between ranks");

static void pin(struct eep_engine *e, uint64_t deadline_ns, struct pinned *mine)
{
    memset(mine, 0, sizeof(*mine));
    mine->status = (int32_t)eep_wcache_pin(e->cache, &e->view);
    mine->late = eep_clock_ns() >= deadline_ns;
    if (mine->status == EEP_OK) {
        mine->version = eep_wcache_view_version(e->view);
        memcpy(mine->digest, eep_wcache_view_digest(e->view), sizeof(mine->digest));
    } else {
        snprintf(mine->text, sizeof(mine->text), "%s", eep_error_text());
    }
}

/* EEP_OK: the same on all; AGAIN: not now. The same answer on every rank. */
static enum eep_status compare(struct pinned *all, uint32_t ranks, bool *late_out)
{
    enum eep_status status = EEP_OK;

    *late_out = false;
    for (uint32_t r = 0; r < ranks; r++) {
        *late_out = *late_out || all[r].late != 0;
        if (all[r].status != EEP_OK && (status == EEP_OK || status == EEP_ERR_AGAIN)) {
            status = (enum eep_status)all[r].status; /* another failure counts for more */
            all[r].text[sizeof(all[r].text) - 1] = '\0';
            eep_error_text_set(all[r].text);
        }
    }
    for (uint32_t r = 1; r < ranks && status == EEP_OK; r++) {
        if (all[r].version != all[0].version ||
            memcmp(all[r].digest, all[0].digest, sizeof(all[r].digest)) != 0) {
            status = EEP_FAIL(EEP_ERR_AGAIN,
                              "the layout changes too often to start (version %" PRIu64
                              " on rank 0, %" PRIu64 " on rank %u); raise --attach-timeout, or let "
                              "the other engine rebalance less often",
                              all[0].version, all[r].version, r);
        }
    }
    return status;
}

static enum eep_status pin_same(struct eep_engine *e, struct pinned *all)
{
    const uint64_t deadline_ns = eep_clock_ns() + e->attach_timeout_ns;
    struct pinned mine;
    enum eep_status status;
    bool late;

    for (;;) {
        pin(e, deadline_ns, &mine);
        EEP_TRY(e->xport->ops->allgather(e->xport, "layout version", &mine, sizeof(mine), all));
        status = compare(all, e->xport->topo.size, &late);
        if (status == EEP_OK) {
            return EEP_OK;
        }
        eep_wcache_unpin(e->cache, e->view);
        e->view = NULL;
        if (status != EEP_ERR_AGAIN || late) {
            return status;
        }
        usleep(PAUSE_US);
    }
}

static enum eep_status take_layout(struct eep_engine *e)
{
    const size_t table = (size_t)e->layout->layers * eep_layout_slots(e->layout);
    const int32_t *map = eep_wcache_view_map(e->view);
    struct eep_layout *layout;

    if (memcmp(map, e->layout->phys2log, table * sizeof(*map)) == 0) {
        return EEP_OK;
    }
    if (e->layout_path != NULL) {
        return EEP_FAIL(EEP_ERR_STALE,
                        "another engine has changed the layout while this one started; it is not "
                        "that of %s any more: leave out --layout to follow it",
                        e->layout_path);
    }
    EEP_TRY(eep_layout_from_map(e->layout->layers, e->layout->experts, e->layout->seats,
                                e->layout->slots_per_seat, map, &layout));
    eep_layout_destroy(e->layout);
    e->layout = layout;
    return EEP_OK;
}

enum eep_status eep_cache_first_view(struct eep_engine *e)
{
    struct pinned *all = NULL;
    enum eep_status status =
        eep_mem_alloc(e->xport->topo.size, sizeof(*all), "layout versions", &all);

    status = eep_agree(e->xport, "layout versions", status);
    if (status == EEP_OK) {
        status = pin_same(e, all);
    }
    eep_mem_free(all);
    EEP_TRY(status);
    return eep_agree(e->xport, "layout", take_layout(e));
}
