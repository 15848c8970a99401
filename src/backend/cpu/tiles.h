/* tiles.h - the configuration of the eight AMX tile registers, in the CPU's format. */
#ifndef RF_TILES_H
#define RF_TILES_H

#include <stdint.h>

typedef struct rf_tile_shapes {
  uint8_t palette, start, zero[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} rf_tile_shapes;
#define RF_WHOLE_TILES \
  { \
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } \
  }

#endif
