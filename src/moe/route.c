/*
 * The table: for each (layer, expert) the nearest replicas, and a turn counter that spreads tokens
 * over them.
 */
#include "moe/route.h"

#include <stdbool.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"

struct nearest {
    uint32_t first; /* into candidates */
    uint32_t count;
    uint32_t turn; /* next candidate */
};

struct eep_route {
    const struct eep_layout *layout;
    uint32_t *executors;     /* (seats) */
    struct nearest *nearest; /* (layers, experts) */
    uint32_t *candidates;    /* slots */
};

/* 0 = executed here, 1 = on this node, 2 = elsewhere. */
static int distance(const struct eep_topology *topo, uint32_t rank)
{
    if (rank == topo->rank) {
        return 0;
    }
    return topo->node_of[rank] == topo->node ? 1 : 2;
}

static void fill_nearest(struct eep_route *route, const struct eep_topology *topo)
{
    const struct eep_layout *layout = route->layout;
    const size_t total = (size_t)layout->layers * layout->experts;
    uint32_t used = 0;

    for (size_t i = 0; i < total; i++) {
        struct nearest *nearest = &route->nearest[i];
        int best = 3;

        nearest->first = used;
        for (uint32_t j = layout->replica_first[i]; j < layout->replica_first[i + 1]; j++) {
            const uint32_t slot = layout->replica_slots[j];
            const int d = distance(topo, route->executors[slot / layout->slots_per_seat]);

            if (d > best) {
                continue;
            }
            if (d < best) {
                best = d;
                used = nearest->first;
            }
            route->candidates[used++] = slot;
        }
        nearest->count = used - nearest->first;
        EEP_ASSERT(nearest->count > 0);
        nearest->turn = topo->rank % nearest->count; /* ranks start at different replicas */
    }
}

enum eep_status eep_route_create(const struct eep_layout *layout, const uint32_t *executors,
                                 const struct eep_topology *topo, struct eep_route **route_out)
{
    const size_t total = (size_t)layout->layers * layout->experts;
    struct eep_route *route;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, sizeof(*route), "route", &route));
    *route = (struct eep_route){.layout = layout};
    EEP_TRY_GOTO(eep_mem_alloc(layout->seats, sizeof(uint32_t), "executors", &route->executors),
                 destroy);
    EEP_TRY_GOTO(eep_mem_alloc(total, sizeof(struct nearest), "route table", &route->nearest),
                 destroy);
    EEP_TRY_GOTO(eep_mem_alloc(layout->replica_first[total], sizeof(uint32_t), "route candidates",
                               &route->candidates),
                 destroy);
    memcpy(route->executors, executors, layout->seats * sizeof(*executors));
    fill_nearest(route, topo);
    *route_out = route;
    return EEP_OK;

destroy:
    eep_route_destroy(route);
    return status;
}

void eep_route_destroy(struct eep_route *route)
{
    if (route == NULL) {
        return;
    }
    eep_mem_free(route->executors);
    eep_mem_free(route->nearest);
    eep_mem_free(route->candidates);
    eep_mem_free(route);
}

uint32_t eep_route_slots(const struct eep_route *route)
{
    return eep_layout_slots(route->layout);
}

void eep_route_choose(struct eep_route *route, uint32_t layer, const uint32_t *experts,
                      uint32_t tokens, uint32_t top_k, const bool *skip, uint32_t *ranks_out,
                      uint32_t *slots_out)
{
    struct nearest *layer_nearest = route->nearest + (size_t)layer * route->layout->experts;

    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t j = 0; j < top_k; j++) {
            const size_t i = (size_t)t * top_k + j;

            if (skip[t]) {
                ranks_out[i] = EEP_NO_RANK;
                slots_out[i] = 0;
                continue;
            }
            struct nearest *nearest = &layer_nearest[experts[i]];
            const uint32_t slot = route->candidates[nearest->first + nearest->turn];

            nearest->turn = nearest->turn + 1 == nearest->count ? 0 : nearest->turn + 1;
            slots_out[i] = slot;
            ranks_out[i] = route->executors[slot / route->layout->slots_per_seat];
        }
    }
}
