/* quant_plain.h - quantizers of blocks of 32 values, one value at a time, as in ggml's reference
 * code. Tests compare formats/quant_simple.c with them, bit by bit. */
#ifndef RF_QUANT_PLAIN_H
#define RF_QUANT_PLAIN_H

#include "formats/quant_blocks.h"

#include <math.h>

enum { RF_PLAIN_VALUES = 32, RF_PLAIN_HALF = 16 };

/* Truncates x to 0..most. NaN becomes 0. */
static inline unsigned rf_plain_level(float x, int most) {
  return x >= (float)most ? (unsigned)most : x > 0 ? (unsigned)x : 0;
}

/* The value with the largest magnitude; of equal ones, the first. NaN counts as 0. */
static inline float rf_plain_farthest(const float *x) {
  float found = 0;
  for (int i = 0; i < RF_PLAIN_VALUES; ++i)
    if (fabsf(x[i]) > fabsf(found)) found = x[i];
  return found;
}

static inline void rf_plain_range(const float *x, float *least, float *most) {
  *least = *most = x[0];
  for (int i = 1; i < RF_PLAIN_VALUES; ++i) {
    if (x[i] < *least) *least = x[i];
    if (x[i] > *most) *most = x[i];
  }
}

static inline int rf_plain_byte(float y) {
  float size = fabsf(y) < 127 ? fabsf(y) : isnan(y) ? 0 : 127;
  return (int)copysignf(roundf(size), y);
}

/* Quantizes one block: `bits` per value, with or without an offset. */
static inline void rf_plain_quantize(const float *x, int bits, bool offset, uint8_t *at) {
  float least = 0, most = 0, levels = (float)((1 << bits) - 1), middle = (float)(1 << (bits - 1));
  if (offset) rf_plain_range(x, &least, &most);
  float d = bits == 8 ? fabsf(rf_plain_farthest(x)) / 127
            : offset  ? (most - least) / levels
                      : rf_plain_farthest(x) / -middle;
  float inverse = d != 0 ? 1.0f / d : 0, add = offset ? 0.5f : middle + 0.5f;
  rf_store_f16(at, d);
  at += 2;
  if (offset) {
    rf_store_f16(at, least);
    at += 2;
  }
  if (bits == 8) {
    for (int i = 0; i < RF_PLAIN_VALUES; ++i) at[i] = (uint8_t)rf_plain_byte(x[i] * inverse);
    return;
  }
  unsigned q[RF_PLAIN_VALUES];
  uint32_t fifth = 0;
  for (int i = 0; i < RF_PLAIN_VALUES; ++i) {
    q[i] = rf_plain_level((x[i] - least) * inverse + add, (int)levels);
    fifth |= (uint32_t)(q[i] >> 4) << i;
  }
  if (bits == 5) {
    rf_store_u32(at, fifth);
    at += 4;
  }
  for (int j = 0; j < RF_PLAIN_HALF; ++j) at[j] = (uint8_t)((q[j] & 15) | (q[j + RF_PLAIN_HALF] & 15) << 4);
}

#endif
