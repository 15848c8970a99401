/* tile_sum.h - a slow and obvious form of the sum that gemm.h defines for products with tiles. */
#ifndef RF_TEST_TILE_SUM_H
#define RF_TEST_TILE_SUM_H

#include "base/base.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#define TILE_FUSED __attribute__((target("fma"))) /* Every CPU with tiles has fmaf as an instruction. */
#else
#define TILE_FUSED
#endif

enum { TILE_SUM_DEPTH = 32 };
/* Faults of the sum, planted one at a time. A comparison must notice each of them. */
typedef enum tile_fault {
  TILE_TRUE,
  TILE_ONE_CHAIN,
  TILE_HALF_DEPTH,
  TILE_INTO_SUM,
  TILE_KEEPS_SUBNORMALS,
  TILE_ONE_PIECE,
  TILE_FAULTS
} tile_fault;

static inline float tile_flushed(float x, tile_fault fault) {
  return fault != TILE_KEEPS_SUBNORMALS && fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}
static inline float tile_upper(float x) { /* the upper sixteen bits of x */
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (x != x) bits |= 0x00400000;
  bits &= 0xffff0000u;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline float tile_piece(float x, int piece) {
  float first = tile_upper(x);
  if (piece == 0) return first;
  return isfinite(x) ? rf_bf16_to_f32(rf_f32_to_bf16(x - first)) : 0.0f;
}
/* Adds `count` products to acc, then zeros up to `depth`; a and b are steps apart. `a_piece`,
 * `b_piece`: whether an operand is a bf16 piece of an f32 value. */
TILE_FUSED static inline float tile_step(const float *a, const float *b, int count, int depth, int a_piece,
                                         int b_piece, float acc, tile_fault fault) {
  float chain[2] = {0, 0};
  if (fault == TILE_INTO_SUM) chain[0] = acc;
  for (int k = 0; k < count; k++) {
    float x = tile_flushed(tile_piece(a[k], a_piece), fault),
          y = tile_flushed(tile_piece(b[k], b_piece), fault);
    float *sum = &chain[fault == TILE_ONE_CHAIN ? 0 : k % 2];
    *sum = tile_flushed(fmaf(x, y, *sum), fault);
  }
  for (int k = count; k < depth; k++) chain[fault == TILE_ONE_CHAIN ? 0 : k % 2] += 0.0f; /* -0 becomes 0 */
  float both = tile_flushed(chain[0] + chain[1], fault);
  return fault == TILE_INTO_SUM ? both : tile_flushed(tile_flushed(acc, fault) + both, fault);
}
/* Adds a[0..k) b[0..k) to acc. An f32 operand is split into bf16 pieces. */
TILE_FUSED static inline float tile_sum(const float *a, const float *b, int64_t k, int a_pieces, int b_pieces,
                                        float acc, tile_fault fault) {
  int depth = fault == TILE_HALF_DEPTH ? TILE_SUM_DEPTH / 2 : TILE_SUM_DEPTH, pieces = a_pieces * b_pieces;
  if (fault == TILE_ONE_PIECE) pieces = 1;
  for (int64_t from = 0; from < k; from += depth)
    for (int p = 0; p < pieces; p++)
      acc = tile_step(a + from, b + from, (int)(k - from < depth ? k - from : depth), depth,
                      a_pieces > 1 ? p : 0, b_pieces > 1 ? p : 0, acc, fault);
  return acc;
}

#endif
