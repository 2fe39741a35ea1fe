/* Tiles for AVX2 with FMA: rows and pairs of vectors that fit its registers. */
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/tile_body.h"

TILE(1, 2)
TILE(2, 2)
TILE(3, 2)
TILE(4, 1)
TILE(5, 1)
TILE(6, 1)

const struct eep_cpu_tiles eep_cpu_tiles_avx2 = {
    .rows = 6,
    .rows_once = 3,
    .block_f32 = 128,
    .f32 = {NULL, tile_f32_1, tile_f32_2, tile_f32_3, tile_f32_4, tile_f32_5, tile_f32_6},
    .bf16 = {NULL, tile_bf16_1, tile_bf16_2, tile_bf16_3, tile_bf16_4, tile_bf16_5, tile_bf16_6},
};
