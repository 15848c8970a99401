/* sampler_rows_body.h - the functions of sampler_rows.h. Each sampler_rows_*.c defines DOUBLES, the
 * number of doubles in a vector (2, 4 or 8), and ROWS, the name of its table. */
#include "generate/sampler_exp.h"
#include "generate/sampler_rows.h"

#include <math.h>
#include <string.h>

#if defined(__SSE__)
#include <immintrin.h>
#endif

enum {
  BLOCK = RF_ROW_BLOCK,
  FLOATS = 2 * DOUBLES, /* of a vector */
  TOGETHER =
      DOUBLES > 4 ? DOUBLES / 4 : 1, /* number of blocks whose partial sums fill one vector of doubles */
  PARTS = 4 / DOUBLES > 1 ? 4 / DOUBLES : 1 /* number of vectors that hold the four partial sums of a block */
};
typedef double lanes __attribute__((vector_size(8 * DOUBLES)));
typedef uint64_t lane_bits __attribute__((vector_size(8 * DOUBLES)));
typedef float halves __attribute__((vector_size(4 * DOUBLES)));
typedef float wide __attribute__((vector_size(8 * DOUBLES)));
typedef uint32_t wide_bits __attribute__((vector_size(8 * DOUBLES)));
typedef float quads __attribute__((vector_size(16)));
typedef uint32_t quad_bits __attribute__((vector_size(16)));

RF_EXP2(exp2_lanes, lanes, lane_bits)

/* Returns the logits of a block. Copies an incomplete or missing block to `room`, padded with
 * -INFINITY. */
static const float *block_at(const float *logits, int64_t n, int64_t block, float room[BLOCK]) {
  int64_t here = n - block * BLOCK;
  if (here >= BLOCK) return logits + block * BLOCK;
  for (int64_t i = 0; i < BLOCK; i++) room[i] = i < here ? logits[block * BLOCK + i] : -INFINITY;
  return room;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Returns a vector with the elements i, i + 1, ... of each block of a group. */
static inline __attribute__((always_inline)) lanes logits_at(const float *const at[TOGETHER], int i) {
#if DOUBLES == 8
  __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(at[0] + i));
  return (lanes)_mm512_cvtps_pd(_mm256_insertf128_ps(low, _mm_loadu_ps(at[1] + i), 1));
#else
  halves x;
  memcpy(&x, at[0] + i, sizeof x);
  return __builtin_convertvector(x, lanes);
#endif
}

/* Computes the total weight of each block in a group. */
static inline __attribute__((always_inline)) void
sum_blocks(const rf_row *row, const float *const at[TOGETHER], double weight[TOGETHER]) {
  const double top = row->top, scale = row->scale;
  double of[TOGETHER][4];
  lanes sum[PARTS] = {{0}};
#pragma GCC unroll 8
  for (int i = 0; i < BLOCK; i += 4)
    for (int p = 0; p < PARTS; p++) sum[p] += exp2_lanes((logits_at(at, i + p * DOUBLES) - top) * scale);
  memcpy(of, sum, sizeof of);
  for (int b = 0; b < TOGETHER; b++) weight[b] = (of[b][0] + of[b][2]) + (of[b][1] + of[b][3]);
}

static double weigh(const rf_row *row, double *weight) {
  const int64_t blocks = rf_row_blocks(row->n);
  float room[TOGETHER][BLOCK];
  double total = 0, of[TOGETHER];
  for (int64_t first = 0; first < blocks; first += TOGETHER) {
    const float *at[TOGETHER];
    for (int b = 0; b < TOGETHER; b++) at[b] = block_at(row->logits, row->n, first + b, room[b]);
    sum_blocks(row, at, of);
    for (int b = 0; b < TOGETHER && first + b < blocks; b++) total += weight[first + b] = of[b];
  }
  return total;
}

static void weights(const rf_row *row, int64_t block, double t[BLOCK], double w[BLOCK]) {
  float room[BLOCK];
  const float *at = block_at(row->logits, row->n, block, room);
  for (int i = 0; i < BLOCK; i += DOUBLES) {
    halves x;
    memcpy(&x, at + i, sizeof x);
    lanes exponent = (__builtin_convertvector(x, lanes) - row->top) * row->scale, of = exp2_lanes(exponent);
    memcpy(t + i, &exponent, sizeof exponent);
    memcpy(w + i, &of, sizeof of);
  }
}

/* ---- maxima ---------------------------------------------------------------------------------- */

/* Returns for each lane x if x > m, otherwise m. So a NaN in x gives m. m is never NaN. */
static inline __attribute__((always_inline)) quads larger(quads x, quads m) {
#if defined(__SSE__)
  return (quads)_mm_max_ps((__m128)x, (__m128)m);
#else
  quad_bits is = (quad_bits)(x > m);
  return (quads)(((quad_bits)x & is) | ((quad_bits)m & ~is));
#endif
}
#if DOUBLES == 8
static inline __attribute__((always_inline)) wide larger_wide(wide x, wide m) {
  return (wide)_mm512_max_ps((__m512)x, (__m512)m);
}
#elif DOUBLES == 4
static inline __attribute__((always_inline)) wide larger_wide(wide x, wide m) {
  return (wide)_mm256_max_ps((__m256)x, (__m256)m);
}
#else
#define larger_wide larger
#endif

/* Computes the maximum of a block, in four lanes. */
static inline __attribute__((always_inline)) quads block_peak(const float *at) {
  enum { VECTORS = BLOCK / FLOATS, CHAINS = VECTORS < 4 ? VECTORS : 4 };
  wide of[CHAINS];
  for (int j = 0; j < CHAINS; j++) of[j] = (wide){0} - INFINITY;
  for (int i = 0; i < VECTORS; i++) {
    wide x;
    memcpy(&x, at + i * FLOATS, sizeof x);
    of[i % CHAINS] = larger_wide(x, of[i % CHAINS]);
  }
  for (int j = 1; j < CHAINS; j++) of[0] = larger_wide(of[j], of[0]);
  quads part[FLOATS / 4];
  memcpy(part, &of[0], sizeof part);
  for (int j = 1; j < FLOATS / 4; j++) part[0] = larger(part[j], part[0]);
  return part[0];
}

static void peaks(const float *logits, int64_t n, struct rf_candidate *peak) {
  const int64_t blocks = rf_row_blocks(n);
  float room[BLOCK];
  for (int64_t first = 0; first < blocks; first += 4) {
    quads of[4];
    for (int b = 0; b < 4; b++) of[b] = block_peak(block_at(logits, n, first + b, room));
    quads m01 = larger(__builtin_shufflevector(of[0], of[1], 0, 4, 1, 5),
                       __builtin_shufflevector(of[0], of[1], 2, 6, 3, 7)),
          m23 = larger(__builtin_shufflevector(of[2], of[3], 0, 4, 1, 5),
                       __builtin_shufflevector(of[2], of[3], 2, 6, 3, 7)),
          m = larger(__builtin_shufflevector(m01, m23, 0, 1, 4, 5),
                     __builtin_shufflevector(m01, m23, 2, 3, 6, 7));
    for (int b = 0; b < 4 && first + b < blocks; b++)
      peak[first + b] = (struct rf_candidate){m[b], (int32_t)(first + b)};
  }
}

/* ---- estimates ------------------------------------------------------------------------------- */

#if DOUBLES == 8
#define FMA(a, b, c) (wide) _mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#elif DOUBLES == 4
#define FMA(a, b, c) (wide) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

/* Computes the total weight of a block in f32, as four partial sums. For exponents t from -126 to
 * 0, the relative error of a weight is below 2^-15: 3 roundings of t (126 * 3 * 2^-24 * ln 2 =
 * 1.6e-5), and the Taylor series (3.4e-6). Smaller t count as -126. */
static inline __attribute__((always_inline)) quads guess_block(const float *at, wide top, wide scale) {
  const wide zero = {0}, smallest = zero - 126, shift = zero + (0x1.8p23f + 127);
  wide sum = zero;
  for (int i = 0; i < BLOCK; i += FLOATS) {
    wide x;
    memcpy(&x, at + i, sizeof x);
    wide t = larger_wide((x - top) * scale, smallest), z = t + shift, f = t - (z - shift),
         p = FMA(f, zero + 1.3333558e-3f, zero + 9.6181291e-3f);
    p = FMA(p, f, zero + 5.5504109e-2f);
    p = FMA(p, f, zero + 2.4022651e-1f);
    p = FMA(p, f, zero + 6.9314718e-1f);
    p = FMA(p, f, zero + 1);
    sum += p * (wide)((wide_bits)z << 23);
  }
  quads part[FLOATS / 4];
  memcpy(part, &sum, sizeof part);
  for (int j = 1; j < FLOATS / 4; j++) part[0] += part[j];
  return part[0];
}

static double guess(const rf_row *row, const struct rf_candidate *peak, double from, double *weight,
                    struct rf_candidate *exact) {
  const int64_t blocks = rf_row_blocks(row->n);
  const wide top = (wide){0} + (float)row->top, scale = (wide){0} + (float)row->scale;
  float room[TOGETHER][BLOCK];
  double low = 0;
  int64_t count = 0;
  for (int64_t first = 0; first < blocks; first += 4) {
    quads of[4];
    for (int b = 0; b < 4; b++)
      of[b] = guess_block(block_at(row->logits, row->n, first + b, room[0]), top, scale);
    quads s01 = __builtin_shufflevector(of[0], of[1], 0, 4, 1, 5) +
                __builtin_shufflevector(of[0], of[1], 2, 6, 3, 7),
          s23 = __builtin_shufflevector(of[2], of[3], 0, 4, 1, 5) +
                __builtin_shufflevector(of[2], of[3], 2, 6, 3, 7),
          s = __builtin_shufflevector(s01, s23, 0, 1, 4, 5) + __builtin_shufflevector(s01, s23, 2, 3, 6, 7);
    for (int b = 0; b < 4 && first + b < blocks; b++) {
      if (((double)peak[first + b].logit - row->top) * row->scale >= from)
        exact[count++].id = (int32_t)(first + b);
      else low += weight[first + b] = (double)s[b];
    }
  }
  for (int64_t i = 0; i < count; i += TOGETHER) {
    const float *at[TOGETHER];
    double of[TOGETHER];
    for (int b = 0; b < TOGETHER; b++)
      at[b] = block_at(row->logits, row->n, i + b < count ? exact[i + b].id : blocks, room[b]);
    sum_blocks(row, at, of);
    for (int b = 0; b < TOGETHER && i + b < count; b++) weight[exact[i + b].id] = of[b];
  }
  return low;
}

const rf_row_functions ROWS;
const rf_row_functions ROWS = {weigh, weights, peaks, guess};
