/*
 * Making layouts: the initial one, and the replica lists of any.
 */
#include "layout/layout.h"

#include "base/assert.h"
#include "base/mem.h"
#include "layout/layout_int.h"

enum eep_status eep_layout_create(uint32_t layers, uint32_t experts, uint32_t seats,
                                  uint32_t slots_per_seat, struct eep_layout **layout_out)
{
    struct eep_layout *layout;
    size_t slots, rows;
    enum eep_status status;

    if (seats == 0 || slots_per_seat == 0 || experts == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "a layout of %u seats x %u slots for %u experts is empty",
                        seats, slots_per_seat, experts);
    }
    if (!eep_mul_ok(seats, slots_per_seat, &slots) || slots > INT32_MAX ||
        !eep_mul_ok(slots, layers, &rows) || rows > UINT32_MAX) {
        return EEP_FAIL(EEP_ERR_INVALID, "a layout of %u layers x %u seats x %u slots is too large",
                        layers, seats, slots_per_seat);
    }
    EEP_TRY(eep_mem_alloc(1, sizeof(*layout), "layout", &layout));
    *layout = (struct eep_layout){
        .layers = layers, .experts = experts, .seats = seats, .slots_per_seat = slots_per_seat};
    EEP_TRY_GOTO(eep_mem_alloc(rows, sizeof(int32_t), "layout map", &layout->phys2log), destroy);
    EEP_TRY_GOTO(eep_mem_alloc((size_t)layers * experts + 1, sizeof(uint32_t), "replica index",
                               &layout->replica_first),
                 destroy);
    EEP_TRY_GOTO(eep_mem_alloc(rows, sizeof(uint32_t), "replica slots", &layout->replica_slots),
                 destroy);
    for (size_t i = 0; i < rows; i++) {
        layout->phys2log[i] = EEP_NO_EXPERT;
    }
    *layout_out = layout;
    return EEP_OK;

destroy:
    eep_layout_destroy(layout);
    return status;
}

void eep_layout_destroy(struct eep_layout *layout)
{
    if (layout == NULL) {
        return;
    }
    eep_mem_free(layout->phys2log);
    eep_mem_free(layout->replica_first);
    eep_mem_free(layout->replica_slots);
    eep_mem_free(layout);
}

/* The replica lists of one layer, by counting. */
static enum eep_status index_layer(struct eep_layout *layout, uint32_t layer, uint32_t *used)
{
    const uint32_t slots = eep_layout_slots(layout);
    const int32_t *map = layout->phys2log + (size_t)layer * slots;
    uint32_t *first = layout->replica_first + (size_t)layer * layout->experts;
    uint32_t next = *used;

    for (uint32_t e = 0; e < layout->experts; e++) {
        first[e] = 0;
    }
    for (uint32_t p = 0; p < slots; p++) {
        EEP_ASSERT(map[p] >= EEP_NO_EXPERT && map[p] < (int32_t)layout->experts);
        if (map[p] != EEP_NO_EXPERT) {
            first[map[p]]++;
        }
    }
    for (uint32_t e = 0; e < layout->experts; e++) {
        uint32_t count = first[e];

        if (count == 0) {
            return EEP_FAIL(EEP_ERR_FORMAT, "MoE layer %u: expert %u has no slot", layer, e);
        }
        first[e] = next;
        next += count;
    }
    /* first[e] is moved along while filling; afterwards it is the start of e + 1. */
    for (uint32_t p = 0; p < slots; p++) {
        if (map[p] != EEP_NO_EXPERT) {
            layout->replica_slots[first[map[p]]++] = p;
        }
    }
    for (uint32_t e = layout->experts; e-- > 1;) {
        first[e] = first[e - 1];
    }
    first[0] = *used;
    *used = next;
    return EEP_OK;
}

enum eep_status eep_layout_index(struct eep_layout *layout)
{
    uint32_t used = 0;

    for (uint32_t layer = 0; layer < layout->layers; layer++) {
        EEP_TRY(index_layer(layout, layer, &used));
    }
    layout->replica_first[(size_t)layout->layers * layout->experts] = used;
    return EEP_OK;
}

enum eep_status eep_layout_initial(uint32_t layers, uint32_t experts, uint32_t seats,
                                   uint32_t redundant, struct eep_layout **layout_out)
{
    struct eep_layout *layout;
    enum eep_status status;

    if (experts == 0 || seats == 0) {
        return EEP_FAIL(EEP_ERR_INVALID, "a layout of %u experts over %u seats is empty", experts,
                        seats);
    }
    if (redundant > (uint64_t)experts * (seats - 1)) {
        return EEP_FAIL(EEP_ERR_INVALID,
                        "%u redundant experts are too many: %u seats hold at most one replica "
                        "each of %u experts, so at most %llu fit",
                        redundant, seats, experts, (unsigned long long)experts * (seats - 1));
    }
    const uint64_t total = (uint64_t)experts + redundant;
    const uint32_t small = (uint32_t)(total / seats), larger = (uint32_t)(total % seats);

    EEP_TRY(eep_layout_create(layers, experts, seats, small + (larger > 0), &layout));
    for (uint32_t layer = 0; layer < layers; layer++) {
        int32_t *map = layout->phys2log + (size_t)layer * eep_layout_slots(layout);
        uint64_t next = 0;

        for (uint32_t seat = 0; seat < seats; seat++) {
            for (uint32_t i = 0; i < small + (seat < larger); i++) {
                map[(size_t)seat * layout->slots_per_seat + i] = (int32_t)(next++ % experts);
            }
        }
        EEP_ASSERT(next == total);
    }
    EEP_TRY_GOTO(eep_layout_index(layout), destroy);
    *layout_out = layout;
    return EEP_OK;

destroy:
    eep_layout_destroy(layout);
    return status;
}

enum eep_status eep_layout_from_map(uint32_t layers, uint32_t experts, uint32_t seats,
                                    uint32_t slots_per_seat, const int32_t *phys2log,
                                    struct eep_layout **layout_out)
{
    struct eep_layout *layout;
    enum eep_status status;

    EEP_TRY(eep_layout_create(layers, experts, seats, slots_per_seat, &layout));
    const size_t count = (size_t)layers * eep_layout_slots(layout);
    for (size_t i = 0; i < count; i++) {
        if (phys2log[i] < EEP_NO_EXPERT || phys2log[i] >= (int32_t)experts) {
            status = EEP_FAIL(EEP_ERR_FORMAT, "slot %zu holds %d, which is no expert of %u", i,
                              phys2log[i], experts);
            goto destroy;
        }
        layout->phys2log[i] = phys2log[i];
    }
    EEP_TRY_GOTO(eep_layout_index(layout), destroy);
    *layout_out = layout;
    return EEP_OK;

destroy:
    eep_layout_destroy(layout);
    return status;
}
