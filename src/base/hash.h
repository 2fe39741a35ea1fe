/* FNV-1a (Fowler, Noll, Vo): a short hash for short keys. Not for content: that is XXH3's. */
#ifndef EEP_BASE_HASH_H
#define EEP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define EEP_HASH_START UINT64_C(0xcbf29ce484222325)

/** `hash`, EEP_HASH_START at first, with `bytes` bytes more. */
static inline uint64_t eep_hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

#endif
