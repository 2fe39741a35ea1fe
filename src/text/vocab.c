/* Strings with ids: an open hash table, linear probing, at most half full. */
#include "text/text_int.h"

#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"

#define SLOTS_MIN 16

static size_t slot_of(const struct eep_vocab *vocab, const char *text, size_t bytes)
{
    uint64_t hash = eep_hash_bytes(EEP_HASH_START, text, bytes);
    size_t slot = (size_t)eep_rng_mix(hash) & vocab->mask;

    while (vocab->slots[slot].text != NULL && (vocab->slots[slot].bytes != bytes ||
                                               memcmp(vocab->slots[slot].text, text, bytes) != 0)) {
        slot = (slot + 1) & vocab->mask;
    }
    return slot;
}

enum eep_status eep_vocab_init(struct eep_vocab *vocab, size_t count)
{
    size_t slots = SLOTS_MIN;

    EEP_ASSERT(count < SIZE_MAX / 4);
    while (slots < 2 * count) {
        slots *= 2;
    }
    EEP_TRY(eep_mem_alloc(slots, sizeof(*vocab->slots), "vocabulary", &vocab->slots));
    vocab->mask = slots - 1;
    return EEP_OK;
}

void eep_vocab_free(struct eep_vocab *vocab)
{
    eep_mem_free(vocab->slots);
    vocab->slots = NULL;
}

bool eep_vocab_add(struct eep_vocab *vocab, const char *text, size_t bytes, uint32_t id)
{
    size_t slot = slot_of(vocab, text, bytes);

    if (vocab->slots[slot].text != NULL) {
        return false;
    }
    vocab->slots[slot] = (struct eep_vocab_entry){text, (uint32_t)bytes, id};
    return true;
}

uint32_t eep_vocab_find(const struct eep_vocab *vocab, const char *text, size_t bytes)
{
    const struct eep_vocab_entry *entry = &vocab->slots[slot_of(vocab, text, bytes)];

    return entry->text != NULL ? entry->id : EEP_NO_TOKEN;
}
