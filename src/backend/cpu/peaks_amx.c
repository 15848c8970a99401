/* peaks_amx.c - peaks of AMX tile products of bytes and of bf16 pairs. */
#include "backend/cpu/peaks_loops.h"
#include "backend/cpu/tiles.h"

#include <immintrin.h>
#include <stdint.h>

static const rf_tile_shapes TILES = RF_WHOLE_TILES;

static void tiles_i8(long rounds) {
  _tile_loadconfig(&TILES);
  for (long n = 0; n < rounds; n++) {
    _tile_dpbssd(0, 6, 7);
    _tile_dpbssd(1, 6, 7);
    _tile_dpbssd(2, 6, 7);
    _tile_dpbssd(3, 6, 7);
  }
  _tile_release();
}
static void tiles_bf16(long rounds) {
  _tile_loadconfig(&TILES);
  for (long n = 0; n < rounds; n++) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
  }
  _tile_release();
}
const rf_peak_arithmetic RF_PEAK_TILES_I8 = {tiles_i8, 4 * 2 * 16 * 16 * 64},
                         RF_PEAK_TILES_BF16 = {tiles_bf16, 4 * 2 * 16 * 16 * 32};
