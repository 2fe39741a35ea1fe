/* Seats in this process's own memory, when there is no weight cache. */
#include "base/assert.h"
#include "base/mem.h"
#include "engine/engine_int.h"

static void report_progress(void *context, uint64_t loaded, uint64_t total)
{
    const struct eep_engine *e = context;

    e->progress(e->progress_context, loaded, total);
}

enum eep_status eep_own_load_seat(struct eep_engine *e, uint32_t seat)
{
    struct eep_experts_source source = eep_engine_source(e);
    uint32_t *executors;

    if (e->own == NULL) {
        EEP_TRY(eep_mem_alloc(e->layout->seats, sizeof(*e->own), "seats", &e->own));
        e->own_seats = e->layout->seats;
    }
    if (e->own[seat] != NULL) {
        return EEP_OK;
    }
    EEP_TRY(eep_mem_alloc(e->layout->seats, sizeof(*executors), "executors", &executors));
    executors[seat] = 1; /* of this seat alone */
    source.executors = executors;
    source.rank = 1;
    const enum eep_status status =
        eep_experts_load(&source, e->progress != NULL ? report_progress : NULL, e, &e->own[seat]);

    eep_mem_free(executors);
    return status;
}

static const void *frame_of(void *context, uint32_t layer, struct eep_slot slot)
{
    const struct eep_engine *e = context;
    const struct eep_ffn_weights *weights =
        eep_experts_slot(e->own[slot.id / e->layout->slots_per_seat], layer, slot);

    EEP_ASSERT(weights != NULL);
    return weights->gate_up; /* a frame begins with them */
}

enum eep_status eep_own_attach(struct eep_engine *e)
{
    const struct eep_experts_source source = eep_engine_source(e);

    for (uint32_t seat = 0; seat < e->layout->seats; seat++) {
        if (eep_engine_executes(e, seat)) {
            EEP_TRY(eep_own_load_seat(e, seat));
        }
    }
    return eep_experts_attach(&source, frame_of, e, &e->experts);
}

void eep_own_trim(struct eep_engine *e)
{
    for (uint32_t seat = 0; seat < e->own_seats; seat++) {
        if (!eep_engine_executes(e, seat)) {
            eep_experts_destroy(e->own[seat]);
            e->own[seat] = NULL;
        }
    }
}

void eep_own_free(struct eep_engine *e)
{
    for (uint32_t seat = 0; seat < e->own_seats; seat++) {
        eep_experts_destroy(e->own[seat]);
    }
    EEP_MEM_RELEASE(e->own);
    e->own_seats = 0;
}
