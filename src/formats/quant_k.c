/* quant_k.c - dequantizes q2_k to q6_k. Their super-blocks have 256 values, and sub-blocks with
 * small integer scales. A super-block has eight runs of 32 values, r = 0..7. The bits of value l of
 * run r are at:
 *   two bits:        byte 32 (r/4) + l, shift 2 (r%4)       (q2_k, q3_k, the high bits of q6_k)
 *   nibbles:         byte 32 (r/2) + l, shift 4 (r%2)       (q4_k, q5_k)
 *   nibbles of q6_k: byte 64 (r/4) + 32 (r%2) + l, shift 4 (r%4/2)
 *   one bit:         byte l, bit r                          (q3_k, q5_k) */
#include "formats/quant_blocks.h"

enum { RUNS = 8, RUN = 32, HALF = 16 };

/* q2_k: 16 bytes, each with a scale (low nibble) and an offset (high nibble), then 64 bytes of
 * two-bit values, f16 d, f16 dmin. value = d sc q - dmin mn. */
void rf_dequantize_q2_k(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q2_K_BYTES) {
    float d = rf_load_f16(at + 80), dmin = rf_load_f16(at + 82);
    for (int r = 0; r < RUNS; ++r) {
      const uint8_t *q = at + 16 + 32 * (r / 4);
      for (int h = 0; h < 2; ++h, out += HALF) {
        uint8_t sub = at[2 * r + h];
        float scale = d * (float)(sub & 15), offset = dmin * (float)(sub >> 4);
        for (int l = 0; l < HALF; ++l) out[l] = scale * (float)(q[HALF * h + l] >> 2 * (r % 4) & 3) - offset;
      }
    }
  }
}

/* Returns one six-bit scale of q3_k. The low four bits of scale s are in byte s%8: in the low
 * nibble if s < 8, otherwise in the high nibble. The two high bits of scale s are in byte 8 + s%4,
 * shifted left by 2 (s/4). */
static int scale_of_q3_k(const uint8_t *packed, int s) {
  int low = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4, high = packed[8 + s % 4] >> 2 * (s / 4) & 3;
  return (low | high << 4) - 32;
}

/* q3_k: 32 bytes of high bits (a 0 bit subtracts 4), 64 bytes of two-bit values, 12 bytes of
 * scales, f16 d. value = d sc q, q = -4..3. */
void rf_dequantize_q3_k(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q3_K_BYTES) {
    float d = rf_load_f16(at + 108);
    for (int r = 0; r < RUNS; ++r) {
      const uint8_t *q = at + 32 + 32 * (r / 4);
      for (int h = 0; h < 2; ++h, out += HALF) {
        float scale = d * (float)scale_of_q3_k(at + 96, 2 * r + h);
        for (int l = 0; l < HALF; ++l) {
          int i = HALF * h + l, four = at[i] >> r & 1 ? 0 : 4;
          out[l] = scale * (float)((q[i] >> 2 * (r % 4) & 3) - four);
        }
      }
    }
  }
}

/* Returns a six-bit scale and offset of q4_k or q5_k, from 12 bytes. Sub-blocks s = 0..3 use the
 * low six bits of bytes s and 4 + s. Sub-blocks s = 4..7 use the two nibbles of byte 4 + s as low
 * bits, and the top two bits of bytes s - 4 and s as high bits. */
static void scale_of_q4_k(const uint8_t *packed, int s, int *scale, int *offset) {
  if (s < 4) {
    *scale = packed[s] & 63;
    *offset = packed[s + 4] & 63;
  } else {
    *scale = (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4;
    *offset = packed[s + 4] >> 4 | (packed[s] >> 6) << 4;
  }
}

/* q4_k: f16 d, f16 dmin, 12 bytes of scales and offsets, 128 bytes of nibbles. value = d sc q -
 * dmin mn. */
void rf_dequantize_q4_k(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q4_K_BYTES) {
    float d = rf_load_f16(at), dmin = rf_load_f16(at + 2);
    for (int r = 0; r < RUNS; ++r, out += RUN) {
      const uint8_t *q = at + 16 + 32 * (r / 2);
      int sc, mn;
      scale_of_q4_k(at + 4, r, &sc, &mn);
      float scale = d * (float)sc, offset = dmin * (float)mn;
      for (int l = 0; l < RUN; ++l) out[l] = scale * (float)(q[l] >> 4 * (r % 2) & 15) - offset;
    }
  }
}

/* q5_k: like q4_k, but 32 bytes before the nibbles hold the fifth bits of the values. */
void rf_dequantize_q5_k(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q5_K_BYTES) {
    float d = rf_load_f16(at), dmin = rf_load_f16(at + 2);
    for (int r = 0; r < RUNS; ++r, out += RUN) {
      const uint8_t *high = at + 16, *q = at + 48 + 32 * (r / 2);
      int sc, mn;
      scale_of_q4_k(at + 4, r, &sc, &mn);
      float scale = d * (float)sc, offset = dmin * (float)mn;
      for (int l = 0; l < RUN; ++l)
        out[l] = scale * (float)((q[l] >> 4 * (r % 2) & 15) | (high[l] >> r & 1) << 4) - offset;
    }
  }
}

/* q6_k: 128 bytes of low nibbles, 64 bytes of pairs of high bits, 16 signed scales, f16 d. value =
 * d sc q, q = -32..31. */
void rf_dequantize_q6_k(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q6_K_BYTES) {
    float d = rf_load_f16(at + 208);
    for (int r = 0; r < RUNS; ++r) {
      const uint8_t *low = at + 64 * (r / 4) + 32 * (r % 2), *high = at + 128 + 32 * (r / 4);
      for (int h = 0; h < 2; ++h, out += HALF) {
        float scale = d * (float)(int8_t)at[192 + 2 * r + h];
        for (int l = 0; l < HALF; ++l) {
          int i = HALF * h + l;
          out[l] =
              scale * (float)(((low[i] >> 4 * (r % 4 / 2) & 15) | (high[i] >> 2 * (r % 4) & 3) << 4) - 32);
        }
      }
    }
  }
}
