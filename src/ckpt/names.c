/*
 * Tensors by name: an open hash table, made once and then only read. A large model has 100,000
 * names, and each rank looks up all those of its experts.
 */
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "ckpt/ckpt_int.h"

#define SLOTS_MIN 16

static uint64_t hash_name(const char *name)
{
    return eep_rng_mix(eep_hash_bytes(EEP_HASH_START, name, strlen(name)));
}

/* The slot that holds `name`, or the free one where it belongs. */
static size_t slot_of(const struct eep_name_table *table, const char *name)
{
    size_t slot = (size_t)hash_name(name) & table->mask;

    while (table->slots[slot] != NULL && strcmp(table->slots[slot]->name, name) != 0) {
        slot = (slot + 1) & table->mask;
    }
    return slot;
}

enum eep_status eep_name_table_init(struct eep_name_table *table, size_t count)
{
    size_t slots = SLOTS_MIN;

    EEP_ASSERT(count < SIZE_MAX / 4);
    while (slots < 2 * count) {
        slots *= 2;
    }
    EEP_TRY(eep_mem_alloc(slots, sizeof(*table->slots), "table of tensor names", &table->slots));
    table->mask = slots - 1;
    return EEP_OK;
}

void eep_name_table_free(struct eep_name_table *table)
{
    eep_mem_free(table->slots);
    table->slots = NULL;
}

bool eep_name_table_add(struct eep_name_table *table, const struct eep_tensor *tensor)
{
    size_t slot = slot_of(table, tensor->name);

    if (table->slots[slot] != NULL) {
        return false;
    }
    table->slots[slot] = tensor;
    return true;
}

const struct eep_tensor *eep_name_table_find(const struct eep_name_table *table, const char *name)
{
    return table->slots[slot_of(table, name)];
}
