#include "model/kv.h"

#include "base/assert.h"
#include "base/mem.h"

struct eep_kv {
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t blocks;
    uint32_t free_count;
    uint32_t *free; /* a stack of block numbers */
    float *memory;
    uint64_t bytes;
};

uint64_t eep_kv_bytes_needed(uint32_t layers, uint32_t kv_heads, uint32_t head_dim, uint32_t blocks)
{
    return (uint64_t)layers * blocks * eep_kv_block_floats(kv_heads, head_dim) * sizeof(float);
}

enum eep_status eep_kv_create(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                              uint32_t blocks, struct eep_kv **kv_out)
{
    struct eep_kv *kv;
    enum eep_status status;

    EEP_TRY(eep_mem_alloc(1, sizeof(*kv), "KV cache", &kv));
    *kv = (struct eep_kv){.kv_heads = kv_heads, .head_dim = head_dim, .blocks = blocks};
    EEP_TRY_GOTO(eep_mem_alloc(blocks, sizeof(uint32_t), "KV block list", &kv->free), destroy);
    EEP_TRY_GOTO(eep_mem_map(eep_kv_bytes_needed(layers, kv_heads, head_dim, blocks), "KV cache",
                             &kv->memory),
                 destroy);
    kv->bytes = eep_kv_bytes_needed(layers, kv_heads, head_dim, blocks);
    for (uint32_t i = 0; i < blocks; i++) {
        kv->free[i] = blocks - 1 - i;
    }
    kv->free_count = blocks;
    *kv_out = kv;
    return EEP_OK;

destroy:
    eep_kv_destroy(kv);
    return status;
}

void eep_kv_destroy(struct eep_kv *kv)
{
    if (kv == NULL) {
        return;
    }
    eep_mem_unmap(kv->memory, kv->bytes);
    eep_mem_free(kv->free);
    eep_mem_free(kv);
}

bool eep_kv_take(struct eep_kv *kv, uint32_t count, uint32_t *blocks_out)
{
    if (count > kv->free_count) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        blocks_out[i] = kv->free[--kv->free_count];
    }
    return true;
}

void eep_kv_give(struct eep_kv *kv, const uint32_t *blocks, uint32_t count)
{
    EEP_ASSERT(kv->free_count + count <= kv->blocks);
    for (uint32_t i = 0; i < count; i++) {
        EEP_ASSERT(blocks[i] < kv->blocks);
        kv->free[kv->free_count++] = blocks[i];
    }
}

uint32_t eep_kv_free_blocks(const struct eep_kv *kv)
{
    return kv->free_count;
}

uint32_t eep_kv_total_blocks(const struct eep_kv *kv)
{
    return kv->blocks;
}

uint64_t eep_kv_bytes(const struct eep_kv *kv)
{
    return kv->bytes;
}

struct eep_kv_layer eep_kv_layer(const struct eep_kv *kv, uint32_t layer)
{
    const size_t stride = eep_kv_block_floats(kv->kv_heads, kv->head_dim);

    return (struct eep_kv_layer){.kv = kv->memory + (size_t)layer * kv->blocks * stride,
                                 .block_stride = stride,
                                 .kv_heads = kv->kv_heads,
                                 .head_dim = kv->head_dim};
}
