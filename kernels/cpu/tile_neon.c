/* Tiles for NEON: rows and pairs of vectors that fit its registers. */
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/tile_body.h"

TILE(1, 4)
TILE(2, 4)
TILE(3, 4)
TILE(4, 2)
TILE(5, 2)
TILE(6, 2)

const struct eep_cpu_tiles eep_cpu_tiles_neon = {
    .rows = 6,
    .rows_once = 3,
    .block_f32 = 128,
    .f32 = {NULL, tile_f32_1, tile_f32_2, tile_f32_3, tile_f32_4, tile_f32_5, tile_f32_6},
    .bf16 = {NULL, tile_bf16_1, tile_bf16_2, tile_bf16_3, tile_bf16_4, tile_bf16_5, tile_bf16_6},
};
