/* Tiles for AVX-512: rows and pairs of vectors that fit its registers. */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/tile_body.h"

TILE(1, 1)
TILE(2, 1)
TILE(3, 1)
TILE(4, 1)
TILE(5, 1)
TILE(6, 1)
TILE(7, 1)
TILE(8, 1)
TILE(9, 1)
TILE(10, 1)
TILE(11, 1)
TILE(12, 1)

const struct eep_cpu_tiles eep_cpu_tiles_avx512 = {
    .rows = 12,
    .rows_once = 12,
    .block_f32 = 256,
    .f32 = {NULL, tile_f32_1, tile_f32_2, tile_f32_3, tile_f32_4, tile_f32_5, tile_f32_6,
            tile_f32_7, tile_f32_8, tile_f32_9, tile_f32_10, tile_f32_11, tile_f32_12},
    .bf16 = {NULL, tile_bf16_1, tile_bf16_2, tile_bf16_3, tile_bf16_4, tile_bf16_5, tile_bf16_6,
             tile_bf16_7, tile_bf16_8, tile_bf16_9, tile_bf16_10, tile_bf16_11, tile_bf16_12},
};
