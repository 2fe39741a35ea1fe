/*
 * The expert layout: which logical expert is in which physical slot.
 *
 *     seat 0            seat 1            seat 2
 *     [0 1 2 .] [3 4 5 .] [6 7 0 1]       one row per MoE layer; '.' = empty (EEP_NO_EXPERT)
 *     slots 0-3   4-7       8-11          physical slot p = seat p / S, local slot p % S
 *
 * A layout is immutable once made: the data plane reads it without a lock, and a new version is
 * another object. The executor map says which rank computes each seat; it belongs to an epoch, not
 * to the layout, so that a seat can change its executor while no byte moves.
 */
#ifndef EEP_LAYOUT_H
#define EEP_LAYOUT_H

#include <stdint.h>

#include "base/ids.h"
#include "base/status.h"

struct eep_layout {
    uint32_t layers;  /* MoE layers, counted without the dense ones */
    uint32_t experts; /* logical experts of each */
    uint32_t seats;
    uint32_t slots_per_seat; /* S */
    int32_t *phys2log;       /* (layers, seats * S); EEP_NO_EXPERT for an empty slot */
    /* Replicas of (layer, expert), ascending: slots[first[i] .. first[i + 1] - 1] with
     * i = layer * experts + expert. Derived from phys2log. */
    uint32_t *replica_first; /* (layers * experts + 1) */
    uint32_t *replica_slots;
};

/** Physical slots of one layer. */
static inline uint32_t eep_layout_slots(const struct eep_layout *layout)
{
    return layout->seats * layout->slots_per_seat;
}

/** The expert in a slot of a MoE layer, or EEP_NO_EXPERT. */
static inline int32_t eep_layout_expert(const struct eep_layout *layout, uint32_t layer,
                                        struct eep_slot slot)
{
    return layout->phys2log[(uint64_t)layer * eep_layout_slots(layout) + slot.id];
}

/**
 * The layout of a first start: experts + redundant slots, dealt out in order so that seats differ
 * by one slot at most; slot p of that order holds expert p % experts.
 *
 * @param layout_out  destroy it with eep_layout_destroy(); set only on EEP_OK
 *
 * @retval EEP_ERR_INVALID  more redundant slots than seats can hold without two replicas of an
 *                          expert in one seat; the text has the numbers
 */
EEP_MUST_CHECK enum eep_status eep_layout_initial(uint32_t layers, uint32_t experts, uint32_t seats,
                                                  uint32_t redundant,
                                                  struct eep_layout **layout_out);

/**
 * Read a layout from a JSON file:
 * {"seats": 4, "slots_per_seat": 5, "phys2log": [[20 ids or -1], one list per MoE layer]}
 *
 * @retval EEP_ERR_IO      cannot be read
 * @retval EEP_ERR_FORMAT  malformed, other counts, an id out of range, an expert without a slot:
 *                         the text names file, layer, slot or expert
 */
EEP_MUST_CHECK enum eep_status eep_layout_load(const char *path, uint32_t layers, uint32_t experts,
                                               struct eep_layout **layout_out);

/**
 * A layout with a given map, as a weight cache's record holds it.
 *
 * @param phys2log  (layers, seats * slots_per_seat); copied
 *
 * @retval EEP_ERR_FORMAT  an id out of range, an expert without a slot
 */
EEP_MUST_CHECK enum eep_status eep_layout_from_map(uint32_t layers, uint32_t experts,
                                                   uint32_t seats, uint32_t slots_per_seat,
                                                   const int32_t *phys2log,
                                                   struct eep_layout **layout_out);

/** NULL is allowed. */
void eep_layout_destroy(struct eep_layout *layout);

/** The rank that executes a seat when `seats` seats are shared out over `ranks` ranks in order. */
static inline uint32_t eep_layout_executor(uint32_t seat, uint32_t seats, uint32_t ranks)
{
    return (uint32_t)((uint64_t)seat * ranks / seats);
}

#endif
