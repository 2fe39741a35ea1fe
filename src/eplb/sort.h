/*
 * Sorting and a heap without a comparison function: keys are unsigned numbers with the index in
 * their low bits, so that no two are equal and the order is the same everywhere.
 */
#ifndef EEP_EPLB_SORT_H
#define EEP_EPLB_SORT_H

#include <stdint.h>
#include <string.h>

/* Ascending, by the bytes first_byte .. last_byte of the key, all bytes below being in order
 * already; `spare` has the same length. */
static inline void eplb_sort(uint64_t *keys, uint64_t *spare, uint32_t count, unsigned first_byte,
                             unsigned last_byte)
{
    for (unsigned byte = first_byte; byte <= last_byte; byte++) {
        const unsigned shift = 8 * byte;
        uint32_t start[256] = {0}, next = 0;

        for (uint32_t i = 0; i < count; i++) {
            start[keys[i] >> shift & 255]++;
        }
        for (unsigned b = 0; b < 256; b++) {
            const uint32_t here = start[b];

            start[b] = next;
            next += here;
        }
        for (uint32_t i = 0; i < count; i++) {
            spare[start[keys[i] >> shift & 255]++] = keys[i];
        }
        memcpy(keys, spare, count * sizeof(*keys));
    }
}

/* Restore the heap (smallest key on top) after keys[at] grew. */
static inline void eplb_heap_sink(uint64_t *keys, uint32_t count, uint32_t at)
{
    const uint64_t key = keys[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= count) {
            break;
        }
        child += child + 1 < count && keys[child + 1] < keys[child];
        if (keys[child] > key) {
            break;
        }
        keys[at] = keys[child];
        at = child;
    }
    keys[at] = key;
}

static inline void eplb_heap_make(uint64_t *keys, uint32_t count)
{
    for (uint32_t i = count / 2; i-- > 0;) {
        eplb_heap_sink(keys, count, i);
    }
}

#endif
