/* quant_lanes.h - vectors of f32 for quantizers: 16 lanes with AVX-512, 8 with AVX2, otherwise 4.
 * The operators + - * / work on `lanes`. Each lane is computed independently, so results do not
 * depend on the number of lanes. */
#ifndef RF_QUANT_LANES_H
#define RF_QUANT_LANES_H

#include "base/base.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(RF_FUZZ) /* see backend/cpu/simd.h */
#define RF_LANE_FN static inline __attribute__((unused))
#else
#define RF_LANE_FN static inline __attribute__((always_inline, unused))
#endif

/* lanes_max is a > b ? a : b, and lanes_min is a < b ? a : b. So lanes_max and lanes_min give b if
 * a lane of a is NaN. */
#if defined(__AVX512F__)
enum { WIDTH = 16 };
typedef __m512 lanes;
typedef __mmask16 lane_mask;
RF_LANE_FN lanes lanes_all(float x) { return _mm512_set1_ps(x); }
RF_LANE_FN lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
RF_LANE_FN void lanes_store(float *p, lanes x) { _mm512_storeu_ps(p, x); }
RF_LANE_FN lanes lanes_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }
RF_LANE_FN lanes lanes_min(lanes a, lanes b) { return _mm512_min_ps(a, b); }
RF_LANE_FN lanes lanes_abs(lanes a) { return _mm512_abs_ps(a); }
RF_LANE_FN lane_mask lanes_above(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
RF_LANE_FN lane_mask lanes_differ(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
RF_LANE_FN lanes lanes_choose(lane_mask m, lanes yes, lanes no) { return _mm512_mask_blend_ps(m, no, yes); }
RF_LANE_FN lane_mask lane_mask_and(lane_mask a, lane_mask b) { return (lane_mask)(a & b); }
#elif defined(__AVX2__)
enum { WIDTH = 8 };
typedef __m256 lanes;
typedef __m256 lane_mask;
RF_LANE_FN lanes lanes_all(float x) { return _mm256_set1_ps(x); }
RF_LANE_FN lanes lanes_load(const float *p) { return _mm256_loadu_ps(p); }
RF_LANE_FN void lanes_store(float *p, lanes x) { _mm256_storeu_ps(p, x); }
RF_LANE_FN lanes lanes_max(lanes a, lanes b) { return _mm256_max_ps(a, b); }
RF_LANE_FN lanes lanes_min(lanes a, lanes b) { return _mm256_min_ps(a, b); }
RF_LANE_FN lanes lanes_abs(lanes a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
RF_LANE_FN lane_mask lanes_above(lanes a, lanes b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
RF_LANE_FN lane_mask lanes_differ(lanes a, lanes b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
RF_LANE_FN lanes lanes_choose(lane_mask m, lanes yes, lanes no) { return _mm256_blendv_ps(no, yes, m); }
RF_LANE_FN lane_mask lane_mask_and(lane_mask a, lane_mask b) { return _mm256_and_ps(a, b); }
#else
enum { WIDTH = 4 };
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t lane_mask __attribute__((vector_size(16)));
RF_LANE_FN lanes lanes_all(float x) { return (lanes){x, x, x, x}; }
RF_LANE_FN lanes lanes_load(const float *p) { return (lanes){p[0], p[1], p[2], p[3]}; }
RF_LANE_FN void lanes_store(float *p, lanes x) {
  for (int i = 0; i < WIDTH; ++i) p[i] = x[i];
}
RF_LANE_FN lane_mask lanes_above(lanes a, lanes b) { return a > b; }
RF_LANE_FN lane_mask lanes_differ(lanes a, lanes b) { return a != b; }
RF_LANE_FN lanes lanes_choose(lane_mask m, lanes yes, lanes no) {
  return (lanes)((m & (lane_mask)yes) | (~m & (lane_mask)no));
}
RF_LANE_FN lanes lanes_max(lanes a, lanes b) { return lanes_choose(a > b, a, b); }
RF_LANE_FN lanes lanes_min(lanes a, lanes b) { return lanes_choose(a < b, a, b); }
RF_LANE_FN lanes lanes_abs(lanes a) { return (lanes)((lane_mask)a & 0x7fffffff); }
RF_LANE_FN lane_mask lane_mask_and(lane_mask a, lane_mask b) { return a & b; }
#endif

/* Returns the nearest integer to x between `minimum` and `maximum`, ties to even. NaN gives
 * `minimum`. Adding and then subtracting 1.5 * 2^23 rounds to an integer on every vector unit. */
RF_LANE_FN lanes lanes_nearest(lanes x, lanes minimum, lanes maximum) {
  lanes magic = lanes_all(12582912.0f);
  return (lanes_min(lanes_max(x, minimum), maximum) + magic) - magic;
}

#endif
