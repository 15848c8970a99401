/* quant_simple.c - blocks of 32 values with one scale (q4_0, q4_1, q5_0, q5_1, q8_0), and rows with
 * one scale (int8). Quantized blocks have the same bits as blocks of ggml's reference code. The low
 * nibble of byte j is value j, and its high nibble is value j + 16. Bit i of a word is the fifth
 * bit of value i. Quantizers compute four values at a time. */
#include <math.h>
#include <string.h>

#include "formats/quant_blocks.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { N = 32, HALF = 16 };

/* Returns 1/d, or 0 for a block of zeros. */
static inline float inverse(float d) { return d != 0 ? 1.0f / d : 0; }

/* ---- four values at a time ------------------------------------------------------------------- */

enum { LANES = 4, GROUP = 8 }; /* GROUP: number of bytes in a 64-bit word, or of bits in a byte */
typedef float four __attribute__((vector_size(16)));
typedef int32_t integers __attribute__((vector_size(16)));

static inline four load(const float *x) {
  four v;
  memcpy(&v, x, sizeof v);
  return v;
}
static inline four all(float x) { return (four){x, x, x, x}; }
/* smaller is a < b ? a : b, and larger is a > b ? a : b. So smaller and larger return b if a is
 * NaN. */
#if defined(__SSE2__)
static inline four smaller(four a, four b) { return (four)_mm_min_ps((__m128)a, (__m128)b); }
static inline four larger(four a, four b) { return (four)_mm_max_ps((__m128)a, (__m128)b); }
#else
static inline four choose(integers mask, four yes, four no) {
  return (four)((mask & (integers)yes) | (~mask & (integers)no));
}
static inline four smaller(four a, four b) { return choose(a < b, a, b); }
static inline four larger(four a, four b) { return choose(a > b, a, b); }
#endif

/* q = (x - shift) * id + add, truncated to 0..most. NaN becomes 0, because C does not define the
 * conversion of NaN to an integer. */
static inline void levels(const float *x, float shift, float id, float add, float most, uint8_t q[N]) {
  int32_t wide[N];
  for (int i = 0; i < N; i += LANES) {
    four y = (load(x + i) - all(shift)) * all(id) + all(add);
    integers level = __builtin_convertvector(smaller(larger(y, all(0)), all(most)), integers);
    memcpy(wide + i, &level, sizeof level);
  }
  for (int i = 0; i < N; ++i) q[i] = (uint8_t)wide[i];
}

/* Finds the smallest and the largest number among `start` and the values of x. A NaN in x is
 * ignored. If `start` is NaN, both results are NaN. */
static inline void extent(const float *x, float start, float *smallest, float *largest) {
  four low = all(start), high = low;
  for (int i = 0; i < N; i += LANES) {
    low = smaller(load(x + i), low);
    high = larger(load(x + i), high);
  }
  *smallest = low[0];
  *largest = high[0];
  for (int l = 1; l < LANES; ++l) {
    *smallest = low[l] < *smallest ? low[l] : *smallest;
    *largest = high[l] > *largest ? high[l] : *largest;
  }
}

/* Returns the largest magnitude. NaN counts as 0. */
static float magnitude(const float *x) {
  float smallest, largest;
  extent(x, 0, &smallest, &largest);
  return largest > -smallest ? largest : 0 - smallest; /* never -0 */
}

/* Returns the value with the largest magnitude, with its sign. If two values have the same
 * magnitude, returns the first. */
static float farthest(const float *x) {
  float smallest, largest;
  extent(x, 0, &smallest, &largest);
  if (largest != -smallest) return largest > -smallest ? largest : smallest;
  for (int i = 0; i < N && largest > 0; ++i)
    if (fabsf(x[i]) == largest) return x[i];
  return 0;
}

/* Finds the smallest and the largest value. If several values are equal, takes the first, because
 * zeros have two signs. If only the largest value is zero, its sign does not matter, because only a
 * difference uses it. */
static void range(const float *x, float *smallest, float *largest) {
  extent(x, x[0], smallest, largest);
  if (*smallest != 0) return;
  *smallest = *largest = x[0];
  for (int i = 1; i < N; ++i) {
    if (x[i] < *smallest) *smallest = x[i];
    if (x[i] > *largest) *largest = x[i];
  }
}

/* Writes 32 values of four bits, and ignores all higher bits. The order of bytes in a word does not
 * matter here. */
static inline void put_four(const uint8_t q[N], uint8_t *to) {
  const uint64_t nibbles = UINT64_C(0x0f0f0f0f0f0f0f0f);
  for (int j = 0; j < HALF; j += GROUP) {
    uint64_t low, high;
    memcpy(&low, q + j, GROUP);
    memcpy(&high, q + j + HALF, GROUP);
    low = (low & nibbles) | (high & nibbles) << 4;
    memcpy(to + j, &low, GROUP);
  }
}

/* ---- types of four, five and eight bits ------------------------------------------------------ */

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
    uint8_t q[N];
    levels(x, 0, id, 8.5f, 15, q);
    rf_store_f16(at, d);
    put_four(q, at + 2);
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
    float smallest, largest;
    range(x, &smallest, &largest);
    float d = (largest - smallest) / 15, id = inverse(d);
    uint8_t q[N];
    levels(x, smallest, id, 0.5f, 15, q);
    rf_store_f16(at, d);
    rf_store_f16(at + 2, smallest);
    put_four(q, at + 4);
  }
}

/* Spreads the fifth bits: byte i becomes 16 times bit i. */
static inline void get_fifth(const uint8_t *high, uint8_t fifth[N]) {
  for (int i = 0; i < N; i += GROUP) {
    uint64_t bits = high[i / GROUP] * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
    /* Each byte that is not zero gets its highest bit set. The sum never exceeds 255 in a byte. */
    rf_store_u64(fifth + i, ((bits + UINT64_C(0x7f7f7f7f7f7f7f7f)) & UINT64_C(0x8080808080808080)) >> 3);
  }
}

/* Writes 32 values of five bits: the fifth bits at `high`, and the nibbles at `low`. */
static inline void put_five(const uint8_t q[N], uint8_t *high, uint8_t *low) {
  for (int i = 0; i < N; i += GROUP) {
    uint64_t bits = rf_load_u64(q + i) >> 4 & UINT64_C(0x0101010101010101);
    /* The product moves bit 8 j to bit 56 + j. */
    high[i / GROUP] = (uint8_t)(bits * UINT64_C(0x0102040810204080) >> 56);
  }
  put_four(q, low);
}

/* q5_0: f16 d, 32 fifth bits, 16 bytes of nibbles; value = (q - 16) d. */
void rf_dequantize_q5_0(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q5_0_BYTES, out += N) {
    float d = rf_load_f16(at);
    uint8_t fifth[N];
    get_fifth(at + 2, fifth);
    for (int j = 0; j < HALF; ++j) {
      out[j] = (float)(((at[6 + j] & 15) | fifth[j]) - 16) * d;
      out[j + HALF] = (float)(((at[6 + j] >> 4) | fifth[j + HALF]) - 16) * d;
    }
  }
}

void rf_quantize_q5_0(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q5_0_BYTES, x += N) {
    float d = farthest(x) / -16, id = inverse(d);
    uint8_t q[N];
    levels(x, 0, id, 16.5f, 31, q);
    rf_store_f16(at, d);
    put_five(q, at + 2, at + 6);
  }
}

/* q5_1: f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles; value = q d + m. */
void rf_dequantize_q5_1(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (; blocks > 0; --blocks, at += RF_Q5_1_BYTES, out += N) {
    float d = rf_load_f16(at), m = rf_load_f16(at + 2);
    uint8_t fifth[N];
    get_fifth(at + 4, fifth);
    for (int j = 0; j < HALF; ++j) {
      out[j] = (float)((at[8 + j] & 15) | fifth[j]) * d + m;
      out[j + HALF] = (float)((at[8 + j] >> 4) | fifth[j + HALF]) * d + m;
    }
  }
}

void rf_quantize_q5_1(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q5_1_BYTES, x += N) {
    float smallest, largest;
    range(x, &smallest, &largest);
    float d = (largest - smallest) / 31, id = inverse(d);
    uint8_t q[N];
    levels(x, smallest, id, 0.5f, 31, q);
    rf_store_f16(at, d);
    rf_store_f16(at + 2, smallest);
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

/* Computes roundf(y) within -127..127, which rounds halves away from zero. NaN gives 0. */
static inline integers round_to_byte(four y) {
  four size = smaller(larger((four)((integers)y & INT32_MAX), all(0)), all(127));
  integers rounded = __builtin_convertvector(size, integers), negative = y < all(0);
  rounded -= size - __builtin_convertvector(rounded, four) >= all(0.5f); /* true is -1 */
  return (rounded ^ negative) - negative;
}

void rf_quantize_q8_0(const float *x, int64_t blocks, void *to) {
  uint8_t *at = to;
  for (; blocks > 0; --blocks, at += RF_Q8_0_BYTES, x += N) {
    float d = magnitude(x) / 127, id = inverse(d);
    int32_t q[N];
    rf_store_f16(at, d);
    for (int i = 0; i < N; i += LANES) {
      integers rounded = round_to_byte(load(x + i) * all(id));
      memcpy(q + i, &rounded, sizeof rounded);
    }
    for (int i = 0; i < N; ++i) at[2 + i] = (uint8_t)q[i];
  }
}

/* int8: f32 d, then the signed bytes of a row (the weights of one output). value = q d, symmetric,
 * as in XLA and TPU serving. d is the largest magnitude / 127. The significand of d is rounded to
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
  /* 1.5 * 2^23: adding this constant to a small number rounds the number to an integer */
  const float rounding = 12582912;
  int8_t *q = (int8_t *)to + RF_INT8_HEAD;
  float most = 0;
  for (int64_t i = 0; i < blocks * N; ++i) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
  float d = to_sixteen_bits(most / 127);
  if (d < 0x1p-126f) d = 0; /* a subnormal scale becomes zero */
  memcpy(to, &d, sizeof d);
  for (int64_t i = 0; i < blocks * N; ++i) {
    float y = d > 0 ? x[i] / d : 0;
    y = y >= 127 ? 127 : y <= -127 ? -127 : y == y ? y : 0;
    q[i] = (int8_t)(y + rounding - rounding);
  }
}
