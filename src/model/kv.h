/*
 * The KV cache of one rank: a pool of blocks of EEP_KV_BLOCK positions. A block number stands for
 * the same block in every layer. Blocks of a sequence need not be neighbours.
 *
 *     memory: layer 0 [block 0][block 1]... layer 1 [block 0]...
 *
 * Memory is mapped when the pool is made and costs nothing until a block is written. One thread.
 */
#ifndef EEP_MODEL_KV_H
#define EEP_MODEL_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct eep_kv;

/** Bytes of a pool. */
uint64_t eep_kv_bytes_needed(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                             uint32_t blocks);

EEP_MUST_CHECK enum eep_status eep_kv_create(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                                             uint32_t blocks, struct eep_kv **kv_out);
/** NULL is allowed. */
void eep_kv_destroy(struct eep_kv *kv);

/** Blocks that `positions` positions need. */
static inline uint32_t eep_kv_blocks(uint64_t positions)
{
    return (uint32_t)((positions + EEP_KV_BLOCK - 1) / EEP_KV_BLOCK);
}

/** Take `count` blocks, all or none; false if there are not so many. */
bool eep_kv_take(struct eep_kv *kv, uint32_t count, uint32_t *blocks_out);

/** Give blocks back. */
void eep_kv_give(struct eep_kv *kv, const uint32_t *blocks, uint32_t count);

uint32_t eep_kv_free_blocks(const struct eep_kv *kv);
uint32_t eep_kv_total_blocks(const struct eep_kv *kv);
uint64_t eep_kv_bytes(const struct eep_kv *kv);

/** One layer of the pool, as the kernels take it. */
struct eep_kv_layer eep_kv_layer(const struct eep_kv *kv, uint32_t layer);

#endif
