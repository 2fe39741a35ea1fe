/* Proof that every slot of this rank holds the bytes that its checkpoint gives. */
#include <string.h>

#include "base/mem.h"
#include "engine/mover.h"

static enum eep_status verify_slot(struct eep_engine *e, uint32_t layer, struct eep_slot slot,
                                   unsigned char *scratch)
{
    const struct eep_experts_source source = eep_engine_source(e);
    const int32_t expert = eep_layout_expert(e->layout, layer, slot);
    const void *frame = eep_wcache_view_slot(e->view, layer, slot);
    const struct eep_ffn_weights *used = eep_experts_slot(e->experts, layer, slot);

    if (expert == EEP_NO_EXPERT) {
        return used == NULL
                   ? EEP_OK
                   : EEP_FAIL(EEP_ERR_FATAL, "MoE layer %u, slot %u: it should be empty and is not",
                              layer, slot.id);
    }
    EEP_TRY(eep_experts_pack(&source, layer, (struct eep_expert){(uint32_t)expert}, scratch,
                             e->frame_bytes));
    if (frame == NULL || used == NULL || used->gate_up != frame) {
        return EEP_FAIL(EEP_ERR_FATAL,
                        "MoE layer %u, slot %u: it does not use the frame of its version", layer,
                        slot.id);
    }
    if (memcmp(frame, scratch, e->frame_bytes) != 0) {
        return EEP_FAIL(EEP_ERR_FATAL,
                        "MoE layer %u, slot %u: its bytes are not those of expert %d", layer,
                        slot.id, expert);
    }
    return EEP_OK;
}

enum eep_status eep_verify_slots(struct eep_engine *e)
{
    const struct eep_layout *l = e->layout;
    enum eep_status status = EEP_OK;
    unsigned char *scratch;

    EEP_TRY(eep_mem_alloc(1, e->frame_bytes, "expert to compare", &scratch));
    for (uint32_t p = 0; p < eep_layout_slots(l) && status == EEP_OK; p++) {
        for (uint32_t layer = 0; layer < l->layers && status == EEP_OK; layer++) {
            if (eep_engine_executes(e, p / l->slots_per_seat)) {
                status = verify_slot(e, layer, (struct eep_slot){p}, scratch);
            }
        }
    }
    eep_mem_free(scratch);
    return status;
}
