/* quant_simple.c - blocks of 32 values with one scale (q4_0, q4_1, q5_0, q5_1, q8_0), and rows with
 * one scale (int8). Quantized blocks are bit-identical to those of ggml's reference code. The low
 * nibble of byte j is value j; its high nibble is value j + 16. Bit i of a word is the fifth bit of
 * value i. */
#include <math.h>
#include <string.h>

#include "formats/quant_blocks.h"

enum { N = 32, HALF = 16 };

/* Truncates x to 0..most. NaN becomes 0, because C does not define the conversion of NaN. */
static inline unsigned level(float x, int most) {
  return x >= (float)most ? (unsigned)most : x > 0 ? (unsigned)x : 0;
}

/* 1/d, or 0 for a block of zeros. */
static inline float inverse(float d) { return d != 0 ? 1.0f / d : 0; }

/* Returns the largest magnitude. NaN counts as 0. */
static float magnitude(const float *x) {
  enum { LANES = 8 };
  float most[LANES] = {0}, all = 0;
  for (int i = 0; i < N; i += LANES)
    for (int l = 0; l < LANES; ++l) most[l] = fabsf(x[i + l]) > most[l] ? fabsf(x[i + l]) : most[l];
  for (int l = 0; l < LANES; ++l) all = most[l] > all ? most[l] : all;
  return all;
}

/* Returns the value with the largest magnitude, with its sign. Of equal ones, the first. */
static float farthest(const float *x) {
  float most = magnitude(x);
  for (int i = 0; i < N && most > 0; ++i)
    if (fabsf(x[i]) == most) return x[i];
  return 0;
}

static void range(const float *x, float *least, float *most) {
  *least = *most = x[0];
  for (int i = 1; i < N; ++i) {
    if (x[i] < *least) *least = x[i];
    if (x[i] > *most) *most = x[i];
  }
}

/* q4_0: f16 d, 16 bytes of nibbles; value = (q - 8) d. The largest magnitude gets q = 0. */
void rf_dequantize_q4_0(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q4_0_BYTES, out += N) {
    float d = rf_load_f16(at);
    for (int j = 0; j < HALF; ++j) {
      out[j] = (float)((at[2 + j] & 15) - 8) * d;
      out[j + HALF] = (float)((at[2 + j] >> 4) - 8) * d;
    }
  }
}

void rf_quantize_q4_0(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q4_0_BYTES, x += N) {
    float d = farthest(x) / -8, id = inverse(d);
    rf_store_f16(at, d);
    for (int j = 0; j < HALF; ++j)
      at[2 + j] = (uint8_t)(level(x[j] * id + 8.5f, 15) | level(x[j + HALF] * id + 8.5f, 15) << 4);
  }
}

/* q4_1: f16 d, f16 m, 16 bytes of nibbles; value = q d + m. */
void rf_dequantize_q4_1(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q4_1_BYTES, out += N) {
    float d = rf_load_f16(at), m = rf_load_f16(at + 2);
    for (int j = 0; j < HALF; ++j) {
      out[j] = (float)(at[4 + j] & 15) * d + m;
      out[j + HALF] = (float)(at[4 + j] >> 4) * d + m;
    }
  }
}

void rf_quantize_q4_1(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q4_1_BYTES, x += N) {
    float least, most;
    range(x, &least, &most);
    float d = (most - least) / 15, id = inverse(d);
    rf_store_f16(at, d);
    rf_store_f16(at + 2, least);
    for (int j = 0; j < HALF; ++j)
      at[4 + j] = (uint8_t)(level((x[j] - least) * id + 0.5f, 15) |
                            level((x[j + HALF] - least) * id + 0.5f, 15) << 4);
  }
}

static inline int fifth(uint32_t high, int i) { return (int)(high >> i & 1) << 4; }

/* Writes 32 values of five bits: the high bits at `high`, as one word, and the nibbles at `low`. */
static void put_five(const unsigned *q, uint8_t *high, uint8_t *low) {
  uint32_t word = 0;
  for (int i = 0; i < N; ++i) word |= (uint32_t)(q[i] >> 4) << i;
  rf_store_u32(high, word);
  for (int j = 0; j < HALF; ++j) low[j] = (uint8_t)((q[j] & 15) | (q[j + HALF] & 15) << 4);
}

/* q5_0: f16 d, 32 fifth bits, 16 bytes of nibbles; value = (q - 16) d. */
void rf_dequantize_q5_0(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q5_0_BYTES, out += N) {
    float d = rf_load_f16(at);
    uint32_t high = rf_load_u32(at + 2);
    for (int j = 0; j < HALF; ++j) {
      out[j] = (float)(((at[6 + j] & 15) | fifth(high, j)) - 16) * d;
      out[j + HALF] = (float)(((at[6 + j] >> 4) | fifth(high, j + HALF)) - 16) * d;
    }
  }
}

void rf_quantize_q5_0(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q5_0_BYTES, x += N) {
    float d = farthest(x) / -16, id = inverse(d);
    unsigned q[N];
    for (int i = 0; i < N; ++i) q[i] = level(x[i] * id + 16.5f, 31);
    rf_store_f16(at, d);
    put_five(q, at + 2, at + 6);
  }
}

/* q5_1: f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles; value = q d + m. */
void rf_dequantize_q5_1(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q5_1_BYTES, out += N) {
    float d = rf_load_f16(at), m = rf_load_f16(at + 2);
    uint32_t high = rf_load_u32(at + 4);
    for (int j = 0; j < HALF; ++j) {
      out[j] = (float)((at[8 + j] & 15) | fifth(high, j)) * d + m;
      out[j + HALF] = (float)((at[8 + j] >> 4) | fifth(high, j + HALF)) * d + m;
    }
  }
}

void rf_quantize_q5_1(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q5_1_BYTES, x += N) {
    float least, most;
    range(x, &least, &most);
    float d = (most - least) / 31, id = inverse(d);
    unsigned q[N];
    for (int i = 0; i < N; ++i) q[i] = level((x[i] - least) * id + 0.5f, 31);
    rf_store_f16(at, d);
    rf_store_f16(at + 2, least);
    put_five(q, at + 4, at + 8);
  }
}

/* q8_0: f16 d, 32 signed bytes; value = q d. */
void rf_dequantize_q8_0(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q8_0_BYTES, out += N) {
    float d = rf_load_f16(at);
    for (int i = 0; i < N; ++i) out[i] = (float)(int8_t)at[2 + i] * d;
  }
}

/* roundf(y) within -127..127, without a call: halves are rounded away from zero. NaN gives 0. */
static inline int round_to_byte(float y) {
  float size = fabsf(y);
  size = size < 127 ? size : size == size ? 127 : 0;
  int whole = (int)size;
  whole += size - (float)whole >= 0.5f;
  return y < 0 ? -whole : whole;
}

void rf_quantize_q8_0(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q8_0_BYTES, x += N) {
    float d = magnitude(x) / 127, id = inverse(d);
    int q[N];
    rf_store_f16(at, d);
    for (int i = 0; i < N; ++i) q[i] = round_to_byte(x[i] * id);
    for (int i = 0; i < N; ++i) at[2 + i] = (uint8_t)q[i];
  }
}

/* int8: f32 d, then the signed bytes of a row (the weights of one output). value = q d, symmetric,
 * as in XLA and TPU serving. d is the largest magnitude / 127. Its significand is rounded to
 * sixteen bits, so that d times an 8-bit integer is exact in f32. Ties round to even. */
void rf_dequantize_int8(const void *from, int64_t blocks, float *out) {
  const int8_t *q = (const int8_t *)from + RF_INT8_HEAD;
  float d;
  memcpy(&d, from, sizeof d);
  for (int64_t i = 0; i < blocks * N; ++i) out[i] = (float)q[i] * d;
}

static float to_sixteen_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits += 0x7f + (bits >> 8 & 1);
  bits &= ~0xffu; /* infinity stays infinity */
  memcpy(&x, &bits, sizeof x);
  return x;
}

void rf_quantize_int8(const float *x, int64_t blocks, void *to) {
  /* 1.5 * 2^23: adding it to a small number rounds the number to an integer */
  const float whole = 12582912;
  int8_t *q = (int8_t *)to + RF_INT8_HEAD;
  float most = 0;
  for (int64_t i = 0; i < blocks * N; ++i) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
  float d = to_sixteen_bits(most / 127);
  if (d < 0x1p-126f) d = 0; /* a subnormal scale becomes zero */
  memcpy(to, &d, sizeof d);
  for (int64_t i = 0; i < blocks * N; ++i) {
    float y = d > 0 ? x[i] / d : 0;
    y = y >= 127 ? 127 : y <= -127 ? -127 : y == y ? y : 0;
    q[i] = (int8_t)(y + whole - whole);
  }
}
