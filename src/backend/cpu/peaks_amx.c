/* peaks_amx.c - peaks of AMX tile products of bytes and of bf16 pairs. */
#include "backend/cpu/peaks_loops.h"
#include "backend/cpu/tiles.h"

#include <immintrin.h>
#include <stdint.h>

static const rf_tile_shapes TILES = RF_WHOLE_TILES;

/* TILES_LOOP(tiles_i8, _tile_dpbssd) defines tiles_i8(rounds), with four products a round. */
#define TILES_LOOP(name, multiply) \
  static void name(long rounds) { \
    _tile_loadconfig(&TILES); \
    for (long n = 0; n < rounds; n++) { \
      multiply(0, 6, 7); \
      multiply(1, 6, 7); \
      multiply(2, 6, 7); \
      multiply(3, 6, 7); \
    } \
    _tile_release(); \
  }
TILES_LOOP(tiles_i8, _tile_dpbssd)
TILES_LOOP(tiles_bf16, _tile_dpbf16ps)
const rf_peak_arithmetic RF_PEAK_TILES_I8 = {tiles_i8, 4 * 2 * 16 * 16 * 64},
                         RF_PEAK_TILES_BF16 = {tiles_bf16, 4 * 2 * 16 * 16 * 32};
