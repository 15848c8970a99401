/* simd.h - vectors of sixteen f32 lanes, in which all CPU kernels are written: one zmm with
 * AVX-512, two ymm with AVX2, otherwise four vectors of four in plain C and, on aarch64, in NEON.
 * The target macros of the compiler choose the vector type, so other compiler flags give the kernel
 * for another ISA. On all ISAs, a function has the same sequence of IEEE operations, and sums over
 * lanes use the same tree. So results are bit-identical on all ISAs, except for the payloads of
 * NaNs. */
#ifndef RF_SIMD_H
#define RF_SIMD_H

#include "base/base.h"

#include <math.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Sanitizers add much code to each function. If these functions were inlined everywhere, the
 * compiler would need minutes for each file. */
#if defined(__SANITIZE_ADDRESS__) || defined(RF_FUZZ)
#define RF_INLINE static inline __attribute__((unused))
#else
#define RF_INLINE static inline __attribute__((always_inline, unused))
#endif
enum { RF_LANES = 16 };

/* ---- the three vector types; the code after this section is for all ISAs --------------------- */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

typedef __m512 rf_v16;    /* 16 f32 */
typedef __mmask16 rf_m16; /* one bool per lane */

RF_INLINE rf_v16 rf_v16_zero(void) { return _mm512_setzero_ps(); }
RF_INLINE rf_v16 rf_v16_set1(float x) { return _mm512_set1_ps(x); }
RF_INLINE rf_v16 rf_v16_load(const float *p) { return _mm512_loadu_ps(p); }
RF_INLINE void rf_v16_store(float *p, rf_v16 x) { _mm512_storeu_ps(p, x); }
/* The first `n` lanes (0 to 16). Lanes after the first n are 0 and do not access memory. */
RF_INLINE rf_v16 rf_v16_load_n(const float *p, int n) {
  return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
RF_INLINE void rf_v16_store_n(float *p, rf_v16 x, int n) {
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), x);
}
RF_INLINE rf_v16 rf_v16_add(rf_v16 a, rf_v16 b) { return _mm512_add_ps(a, b); }
RF_INLINE rf_v16 rf_v16_sub(rf_v16 a, rf_v16 b) { return _mm512_sub_ps(a, b); }
RF_INLINE rf_v16 rf_v16_mul(rf_v16 a, rf_v16 b) { return _mm512_mul_ps(a, b); }
RF_INLINE rf_v16 rf_v16_div(rf_v16 a, rf_v16 b) { return _mm512_div_ps(a, b); }
/* a < b ? a : b */
RF_INLINE rf_v16 rf_v16_min(rf_v16 a, rf_v16 b) { return _mm512_min_ps(a, b); }
/* a > b ? a : b */
RF_INLINE rf_v16 rf_v16_max(rf_v16 a, rf_v16 b) { return _mm512_max_ps(a, b); }
/* a b + c, one rounding */
RF_INLINE rf_v16 rf_v16_fma(rf_v16 a, rf_v16 b, rf_v16 c) { return _mm512_fmadd_ps(a, b, c); }
/* c - a b, one rounding */
RF_INLINE rf_v16 rf_v16_fnma(rf_v16 a, rf_v16 b, rf_v16 c) { return _mm512_fnmadd_ps(a, b, c); }
RF_INLINE rf_v16 rf_v16_sqrt(rf_v16 a) { return _mm512_sqrt_ps(a); }
RF_INLINE rf_v16 rf_v16_abs(rf_v16 a) { return _mm512_abs_ps(a); }
RF_INLINE rf_v16 rf_v16_neg(rf_v16 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
RF_INLINE rf_v16 rf_v16_copysign(rf_v16 a, rf_v16 sign) {
  __m512 bit = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(bit, a), _mm512_and_ps(bit, sign));
}
/* A comparison with a NaN lane is false. */
RF_INLINE rf_m16 rf_v16_lt(rf_v16 a, rf_v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
RF_INLINE rf_m16 rf_v16_le(rf_v16 a, rf_v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
RF_INLINE rf_m16 rf_v16_eq(rf_v16 a, rf_v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
RF_INLINE rf_v16 rf_v16_select(rf_m16 m, rf_v16 yes, rf_v16 no) { return _mm512_mask_blend_ps(m, no, yes); }
RF_INLINE rf_m16 rf_m16_and(rf_m16 a, rf_m16 b) { return (rf_m16)(a & b); }
RF_INLINE rf_m16 rf_m16_first(int n) { return (rf_m16)((1u << n) - 1u); } /* lanes 0 .. n-1 */
RF_INLINE uint32_t rf_m16_bits(rf_m16 m) { return (uint32_t)m; }          /* bit i: lane i */
RF_INLINE rf_m16 rf_v16_bit(rf_v16 x, int bit) {
  return _mm512_test_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(1 << bit));
}
/* p 2^k, where t = 12582912 + k is the rounded exponent of rf_v16_exp and p is in (0.5, 2). */
RF_INLINE rf_v16 rf_v16_scale_by(rf_v16 p, rf_v16 t) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
/* x = m 2^k with m in [sqrt(1/2), sqrt(2)), for normal positive x; returns k. */
RF_INLINE rf_v16 rf_v16_split(rf_v16 x, rf_v16 *m) {
  __m512i bits = _mm512_castps_si512(x),
          k = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
  *m = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(k, 23)));
  return _mm512_cvtepi32_ps(k);
}
RF_INLINE float rf_v16_fold_sum(rf_v16 v) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
RF_INLINE float rf_v16_fold_max(rf_v16 v) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
RF_INLINE void rf_v16_transpose(rf_v16 x[RF_LANES]) {
  rf_v16 y[RF_LANES];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      x[i + 2 * j] =
          _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(y[i + j]), _mm512_castps_pd(y[i + j + 2])));
      x[i + 2 * j + 1] =
          _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(y[i + j]), _mm512_castps_pd(y[i + j + 2])));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; i++) { /* x[4 g + i] holds columns i, 4+i, 8+i, 12+i of rows 4g .. 4g+3 */
    rf_v16 low = _mm512_shuffle_f32x4(x[i], x[4 + i], 0x88),
           high = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x88);
    rf_v16 low2 = _mm512_shuffle_f32x4(x[i], x[4 + i], 0xdd),
           high2 = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xdd);
    y[i] = _mm512_shuffle_f32x4(low, high, 0x88);
    y[8 + i] = _mm512_shuffle_f32x4(low, high, 0xdd);
    y[4 + i] = _mm512_shuffle_f32x4(low2, high2, 0x88);
    y[12 + i] = _mm512_shuffle_f32x4(low2, high2, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) x[i] = y[i];
}
RF_INLINE rf_v16 rf_v16_widen(__m256i h) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* Does not use vcvtneps2bf16, because vcvtneps2bf16 flushes subnormals. rf_f32_to_bf16 keeps
 * subnormals. */
RF_INLINE __m256i rf_v16_narrow(rf_v16 x) {
  __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
RF_INLINE rf_v16 rf_v16_load_bf16(const rf_bf16 *p) {
  return rf_v16_widen(_mm256_loadu_si256((const __m256i *)p));
}
/* Signed byte `b` (0 to 3) of each lane, as f32. */
RF_INLINE rf_v16 rf_v16_byte(rf_v16 x, int b) {
  __m512i top = _mm512_slli_epi32(_mm512_castps_si512(x), (unsigned)(24 - 8 * b));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
}
RF_INLINE rf_v16 rf_v16_load_i8(const int8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
RF_INLINE void rf_v16_store_bf16(rf_bf16 *p, rf_v16 x) {
  _mm256_storeu_si256((__m256i *)p, rf_v16_narrow(x));
}
RF_INLINE rf_v16 rf_v16_load_bf16_n(const rf_bf16 *p, int n) {
  return rf_v16_widen(_mm256_maskz_loadu_epi16(rf_m16_first(n), p));
}
RF_INLINE void rf_v16_store_bf16_n(rf_bf16 *p, rf_v16 x, int n) {
  _mm256_mask_storeu_epi16(p, rf_m16_first(n), rf_v16_narrow(x));
}
/* Non-temporal stores of sixteen f32 or thirty-two bf16 to a 64-byte aligned address. In plain C,
 * these functions use ordinary stores. rf_stream_fence before a barrier makes the stores
 * visible. */
RF_INLINE void rf_v16_stream(float *p, rf_v16 x) { _mm512_stream_ps(p, x); }
RF_INLINE void rf_v16_stream_bf16_pair(rf_bf16 *p, rf_v16 a, rf_v16 b) {
  _mm512_stream_si512((__m512i *)(void *)p,
                      _mm512_inserti64x4(_mm512_castsi256_si512(rf_v16_narrow(a)), rf_v16_narrow(b), 1));
}
RF_INLINE void rf_stream_fence(void) { _mm_sfence(); }

#elif defined(__AVX2__) && defined(__FMA__)

typedef struct rf_v16 {
  __m256 lo, hi;
} rf_v16;
typedef struct rf_m16 {
  __m256 lo, hi;
} rf_m16;

#define RF_V16_PAIR(a, b) ((rf_v16){(a), (b)})
RF_INLINE rf_v16 rf_v16_zero(void) { return RF_V16_PAIR(_mm256_setzero_ps(), _mm256_setzero_ps()); }
RF_INLINE rf_v16 rf_v16_set1(float x) { return RF_V16_PAIR(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
RF_INLINE rf_v16 rf_v16_load(const float *p) {
  return RF_V16_PAIR(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
RF_INLINE void rf_v16_store(float *p, rf_v16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
RF_INLINE rf_m16 rf_m16_first(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return (rf_m16){_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)),
                  _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane))};
}
RF_INLINE rf_v16 rf_v16_load_n(const float *p, int n) {
  rf_m16 m = rf_m16_first(n);
  return RF_V16_PAIR(_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
                     _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi)));
}
RF_INLINE void rf_v16_store_n(float *p, rf_v16 x, int n) {
  rf_m16 m = rf_m16_first(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), x.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), x.hi);
}
#define RF_V16_BOTH(name, instruction) \
  RF_INLINE rf_v16 name(rf_v16 a, rf_v16 b) { \
    return RF_V16_PAIR(instruction(a.lo, b.lo), instruction(a.hi, b.hi)); \
  }
RF_V16_BOTH(rf_v16_add,
            _mm256_add_ps) /* rf_v16_add(a, b) = {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)} */
RF_V16_BOTH(rf_v16_sub, _mm256_sub_ps)
RF_V16_BOTH(rf_v16_mul, _mm256_mul_ps)
RF_V16_BOTH(rf_v16_div, _mm256_div_ps)
RF_V16_BOTH(rf_v16_min, _mm256_min_ps)
RF_V16_BOTH(rf_v16_max, _mm256_max_ps)
#undef RF_V16_BOTH
RF_INLINE rf_v16 rf_v16_fma(rf_v16 a, rf_v16 b, rf_v16 c) {
  return RF_V16_PAIR(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
RF_INLINE rf_v16 rf_v16_fnma(rf_v16 a, rf_v16 b, rf_v16 c) {
  return RF_V16_PAIR(_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi));
}
RF_INLINE rf_v16 rf_v16_sqrt(rf_v16 a) { return RF_V16_PAIR(_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)); }
RF_INLINE rf_v16 rf_v16_abs(rf_v16 a) {
  __m256 bit = _mm256_set1_ps(-0.0f);
  return RF_V16_PAIR(_mm256_andnot_ps(bit, a.lo), _mm256_andnot_ps(bit, a.hi));
}
RF_INLINE rf_v16 rf_v16_neg(rf_v16 a) {
  __m256 bit = _mm256_set1_ps(-0.0f);
  return RF_V16_PAIR(_mm256_xor_ps(bit, a.lo), _mm256_xor_ps(bit, a.hi));
}
RF_INLINE rf_v16 rf_v16_copysign(rf_v16 a, rf_v16 sign) {
  __m256 bit = _mm256_set1_ps(-0.0f);
  return RF_V16_PAIR(_mm256_or_ps(_mm256_andnot_ps(bit, a.lo), _mm256_and_ps(bit, sign.lo)),
                     _mm256_or_ps(_mm256_andnot_ps(bit, a.hi), _mm256_and_ps(bit, sign.hi)));
}
#define RF_V16_COMPARE(name, predicate) \
  RF_INLINE rf_m16 name(rf_v16 a, rf_v16 b) { \
    return (rf_m16){_mm256_cmp_ps(a.lo, b.lo, predicate), _mm256_cmp_ps(a.hi, b.hi, predicate)}; \
  }
RF_V16_COMPARE(rf_v16_lt, _CMP_LT_OQ) /* rf_v16_lt(a, b) = {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), ... hi} */
RF_V16_COMPARE(rf_v16_le, _CMP_LE_OQ)
RF_V16_COMPARE(rf_v16_eq, _CMP_EQ_OQ)
#undef RF_V16_COMPARE
RF_INLINE rf_v16 rf_v16_select(rf_m16 m, rf_v16 yes, rf_v16 no) {
  return RF_V16_PAIR(_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi));
}
RF_INLINE rf_m16 rf_m16_and(rf_m16 a, rf_m16 b) {
  return (rf_m16){_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
}
RF_INLINE uint32_t rf_m16_bits(rf_m16 m) {
  return (uint32_t)_mm256_movemask_ps(m.lo) | (uint32_t)_mm256_movemask_ps(m.hi) << 8;
}
/* a mask is the sign bit of a lane, so `bit` is shifted to the sign bit */
RF_INLINE rf_m16 rf_v16_bit(rf_v16 x, int bit) {
  __m128i up = _mm_cvtsi32_si128(31 - bit);
  return (rf_m16){_mm256_castsi256_ps(_mm256_sll_epi32(_mm256_castps_si256(x.lo), up)),
                  _mm256_castsi256_ps(_mm256_sll_epi32(_mm256_castps_si256(x.hi), up))};
}
RF_INLINE __m256 rf_v8_scale_by(__m256 p, __m256 t) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
RF_INLINE rf_v16 rf_v16_scale_by(rf_v16 p, rf_v16 t) {
  return RF_V16_PAIR(rf_v8_scale_by(p.lo, t.lo), rf_v8_scale_by(p.hi, t.hi));
}
RF_INLINE __m256 rf_v8_split(__m256 x, __m256 *m) {
  __m256i bits = _mm256_castps_si256(x),
          k = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
  *m = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(k, 23)));
  return _mm256_cvtepi32_ps(k);
}
RF_INLINE rf_v16 rf_v16_split(rf_v16 x, rf_v16 *m) {
  rf_v16 k;
  k.lo = rf_v8_split(x.lo, &m->lo);
  k.hi = rf_v8_split(x.hi, &m->hi);
  return k;
}
RF_INLINE float rf_v16_fold_sum(rf_v16 v) {
  __m256 h = _mm256_add_ps(v.lo, v.hi);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
RF_INLINE float rf_v16_fold_max(rf_v16 v) {
  __m256 h = _mm256_max_ps(v.lo, v.hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
RF_INLINE void rf_v8_transpose(__m256 x[8]) {
  __m256 y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; j++) {
      x[i + 2 * j] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0x44);
      x[i + 2 * j + 1] = _mm256_shuffle_ps(y[i + j], y[i + j + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; i++) {
    y[i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x20);
    y[4 + i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x31);
  }
  for (int i = 0; i < 8; i++) x[i] = y[i];
}
RF_INLINE void rf_v16_transpose(rf_v16 x[RF_LANES]) {
  __m256 q[4][8]; /* [row half, column half] */
  for (int i = 0; i < 8; i++) {
    q[0][i] = x[i].lo;
    q[1][i] = x[i].hi;
    q[2][i] = x[8 + i].lo;
    q[3][i] = x[8 + i].hi;
  }
  for (int i = 0; i < 4; i++) rf_v8_transpose(q[i]);
  for (int i = 0; i < 8; i++) {
    x[i] = RF_V16_PAIR(q[0][i], q[2][i]);
    x[8 + i] = RF_V16_PAIR(q[1][i], q[3][i]);
  }
}
RF_INLINE __m256i rf_v8_round_bf16(__m256 x) { /* returns bf16 in the low half of each dword */
  __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
  return _mm256_srli_epi32(r, 16);
}
RF_INLINE rf_v16 rf_v16_load_bf16(const rf_bf16 *p) {
  __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
          hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));
  return RF_V16_PAIR(_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                     _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)));
}
RF_INLINE __m256 rf_v8_byte(__m256 x, int b) {
  __m256i top = _mm256_slli_epi32(_mm256_castps_si256(x), 24 - 8 * b);
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
}
RF_INLINE rf_v16 rf_v16_byte(rf_v16 x, int b) {
  return RF_V16_PAIR(rf_v8_byte(x.lo, b), rf_v8_byte(x.hi, b));
}
RF_INLINE rf_v16 rf_v16_load_i8(const int8_t *p) {
  __m256i lo = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
          hi = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)));
  return RF_V16_PAIR(_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi));
}
RF_INLINE __m256i rf_v16_narrow(rf_v16 x) {
  /* the pack instruction works within 128-bit halves, so a permute restores the order */
  __m256i both = _mm256_packus_epi32(rf_v8_round_bf16(x.lo), rf_v8_round_bf16(x.hi));
  return _mm256_permute4x64_epi64(both, 0xd8);
}
RF_INLINE void rf_v16_store_bf16(rf_bf16 *p, rf_v16 x) {
  _mm256_storeu_si256((__m256i *)p, rf_v16_narrow(x));
}
RF_INLINE void rf_v16_stream(float *p, rf_v16 x) {
  _mm256_stream_ps(p, x.lo);
  _mm256_stream_ps(p + 8, x.hi);
}
RF_INLINE void rf_v16_stream_bf16_pair(rf_bf16 *p, rf_v16 a, rf_v16 b) {
  _mm256_stream_si256((__m256i *)(void *)p, rf_v16_narrow(a));
  _mm256_stream_si256((__m256i *)(void *)p + 1, rf_v16_narrow(b));
}
RF_INLINE void rf_stream_fence(void) { _mm_sfence(); }

#define RF_COPIES_PARTS

#else /* plain C: four compiler vectors of four floats */

typedef float rf_v4 __attribute__((vector_size(16)));
typedef int32_t rf_m4 __attribute__((vector_size(16)));
typedef uint32_t rf_u4 __attribute__((vector_size(16))); /* unsigned, so overflow wraps */
typedef struct rf_v16 {
  rf_v4 v[4];
} rf_v16;
typedef struct rf_m16 {
  rf_m4 v[4];
} rf_m16; /* 0 or ~0 per lane */

RF_INLINE rf_v4 rf_v4_select(rf_m4 m, rf_v4 yes, rf_v4 no) {
  return (rf_v4)((m & (rf_m4)yes) | (~m & (rf_m4)no));
}
#define RF_V4_SIGN ((rf_m4){INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN})
#define RF_V16_EACH(type, name, parameters, expression) \
  RF_INLINE type name parameters { \
    type r; \
    for (int i = 0; i < 4; i++) r.v[i] = (expression); \
    return r; \
  }
RF_V16_EACH(rf_v16, rf_v16_zero, (void),
            ((rf_v4){0})) /* rf_v16_zero(void): r.v[i] = {0} for all four vectors */
RF_V16_EACH(rf_v16, rf_v16_set1, (float x), ((rf_v4){x, x, x, x}))
RF_V16_EACH(rf_v16, rf_v16_add, (rf_v16 a, rf_v16 b), a.v[i] + b.v[i])
RF_V16_EACH(rf_v16, rf_v16_sub, (rf_v16 a, rf_v16 b), a.v[i] - b.v[i])
RF_V16_EACH(rf_v16, rf_v16_mul, (rf_v16 a, rf_v16 b), a.v[i] * b.v[i])
RF_V16_EACH(rf_v16, rf_v16_div, (rf_v16 a, rf_v16 b), a.v[i] / b.v[i])
RF_V16_EACH(rf_v16, rf_v16_min, (rf_v16 a, rf_v16 b), rf_v4_select(a.v[i] < b.v[i], a.v[i], b.v[i]))
RF_V16_EACH(rf_v16, rf_v16_max, (rf_v16 a, rf_v16 b), rf_v4_select(a.v[i] > b.v[i], a.v[i], b.v[i]))
RF_V16_EACH(rf_v16, rf_v16_abs, (rf_v16 a), (rf_v4)((rf_m4)a.v[i] & ~RF_V4_SIGN))
RF_V16_EACH(rf_v16, rf_v16_neg, (rf_v16 a), (rf_v4)((rf_m4)a.v[i] ^ RF_V4_SIGN))
RF_V16_EACH(rf_v16, rf_v16_copysign, (rf_v16 a, rf_v16 sign),
            (rf_v4)(((rf_m4)a.v[i] & ~RF_V4_SIGN) | ((rf_m4)sign.v[i] & RF_V4_SIGN)))
RF_V16_EACH(rf_v16, rf_v16_select, (rf_m16 m, rf_v16 yes, rf_v16 no), rf_v4_select(m.v[i], yes.v[i], no.v[i]))
RF_V16_EACH(rf_m16, rf_v16_lt, (rf_v16 a, rf_v16 b), a.v[i] < b.v[i])
RF_V16_EACH(rf_m16, rf_v16_le, (rf_v16 a, rf_v16 b), a.v[i] <= b.v[i])
RF_V16_EACH(rf_m16, rf_v16_eq, (rf_v16 a, rf_v16 b), a.v[i] == b.v[i])
RF_V16_EACH(rf_m16, rf_m16_and, (rf_m16 a, rf_m16 b), a.v[i] & b.v[i])
RF_V16_EACH(rf_m16, rf_m16_first, (int n),
            ((rf_m4){4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3} < (rf_m4){n, n, n, n}))
RF_V16_EACH(rf_m16, rf_v16_bit, (rf_v16 x, int bit), (((rf_m4)x.v[i] >> bit) & 1) != 0)
RF_V16_EACH(rf_v16, rf_v16_scale_by, (rf_v16 p, rf_v16 t), (rf_v4)((rf_u4)p.v[i] + ((rf_u4)t.v[i] << 23)))

RF_INLINE rf_v16 rf_v16_load_n(const float *p, int n) {
  rf_v16 r = rf_v16_zero();
  memcpy(&r, p, (size_t)n * sizeof *p);
  return r;
}
RF_INLINE rf_v16 rf_v16_load(const float *p) { return rf_v16_load_n(p, RF_LANES); }
RF_INLINE void rf_v16_store_n(float *p, rf_v16 x, int n) { memcpy(p, &x, (size_t)n * sizeof *p); }
RF_INLINE void rf_v16_store(float *p, rf_v16 x) { rf_v16_store_n(p, x, RF_LANES); }

#if defined(__aarch64__) /* NEON, which every aarch64 CPU has, also has these operations */

RF_V16_EACH(rf_v16, rf_v16_fma, (rf_v16 a, rf_v16 b, rf_v16 c), (rf_v4)vfmaq_f32(c.v[i], a.v[i], b.v[i]))
RF_V16_EACH(rf_v16, rf_v16_fnma, (rf_v16 a, rf_v16 b, rf_v16 c), (rf_v4)vfmsq_f32(c.v[i], a.v[i], b.v[i]))
RF_V16_EACH(rf_v16, rf_v16_sqrt, (rf_v16 a), (rf_v4)vsqrtq_f32(a.v[i]))
RF_V16_EACH(rf_v16, rf_v16_load_bf16, (const rf_bf16 *p), (rf_v4)vshll_n_u16(vld1_u16(p + 4 * i), 16))
RF_INLINE uint16x4_t rf_v4_round_bf16(rf_v4 x) {
  rf_u4 u = (rf_u4)x, r = u + 0x7fff + (u >> 16 & 1);
  return vmovn_u32((rf_u4)rf_v4_select(x == x, (rf_v4)r, (rf_v4)(u | 0x400000)) >> 16);
}
RF_INLINE void rf_v16_store_bf16(rf_bf16 *p, rf_v16 x) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, rf_v4_round_bf16(x.v[i]));
}

#define RF_COPIES_PARTS

#else

/* The function is not inlined, because sixteen library calls at each use would add code without
 * more speed. */
#define RF_CALLED static __attribute__((noinline, unused))
#if defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
/* Without this function, tests with sanitizers spend most of their time in the loop below. The
 * instruction gives the same bits as the loop. The function reads only its arguments, so sanitizers
 * have nothing to check. */
static __attribute__((noinline, unused, target("fma"), no_sanitize("address", "undefined"))) rf_v16
rf_v16_fma_instruction(rf_v16 a, rf_v16 b, rf_v16 c) {
  for (int i = 0; i < 4; i++) c.v[i] = __builtin_ia32_vfmaddps(a.v[i], b.v[i], c.v[i]);
  return c;
}
#endif
RF_CALLED rf_v16 rf_v16_fma(rf_v16 a, rf_v16 b, rf_v16 c) {
#if defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
  if (__builtin_cpu_supports("fma")) return rf_v16_fma_instruction(a, b, c);
#endif
  for (int i = 0; i < RF_LANES; i++)
    c.v[i / 4][i % 4] = fmaf(a.v[i / 4][i % 4], b.v[i / 4][i % 4], c.v[i / 4][i % 4]);
  return c;
}
RF_CALLED rf_v16 rf_v16_sqrt(rf_v16 a) {
  for (int i = 0; i < RF_LANES; i++) a.v[i / 4][i % 4] = sqrtf(a.v[i / 4][i % 4]);
  return a;
}
RF_CALLED rf_v16 rf_v16_load_bf16_n(const rf_bf16 *p, int n) {
  rf_v16 r = rf_v16_zero();
  for (int i = 0; i < n; i++) r.v[i / 4][i % 4] = rf_bf16_to_f32(p[i]);
  return r;
}
RF_CALLED void rf_v16_store_bf16_n(rf_bf16 *p, rf_v16 x, int n) {
  for (int i = 0; i < n; i++) p[i] = rf_f32_to_bf16(x.v[i / 4][i % 4]);
}
#undef RF_CALLED
RF_INLINE rf_v16 rf_v16_fnma(rf_v16 a, rf_v16 b, rf_v16 c) { return rf_v16_fma(rf_v16_neg(a), b, c); }
RF_INLINE rf_v16 rf_v16_load_bf16(const rf_bf16 *p) { return rf_v16_load_bf16_n(p, RF_LANES); }
RF_INLINE void rf_v16_store_bf16(rf_bf16 *p, rf_v16 x) { rf_v16_store_bf16_n(p, x, RF_LANES); }

#endif
#undef RF_V16_EACH

RF_INLINE rf_v16 rf_v16_byte(rf_v16 x, int b) {
  for (int i = 0; i < 4; i++) {
    rf_m4 top = (rf_m4)((rf_u4)x.v[i] << (24 - 8 * b));
    x.v[i] = __builtin_convertvector(top >> 24, rf_v4); /* arithmetic shift */
  }
  return x;
}
RF_INLINE rf_v16 rf_v16_load_i8(const int8_t *p) {
  float wide[RF_LANES];
  for (int i = 0; i < RF_LANES; i++) wide[i] = (float)p[i];
  return rf_v16_load(wide);
}
RF_INLINE void rf_v16_stream(float *p, rf_v16 x) { rf_v16_store(p, x); }
RF_INLINE void rf_v16_stream_bf16_pair(rf_bf16 *p, rf_v16 a, rf_v16 b) {
  rf_v16_store_bf16(p, a);
  rf_v16_store_bf16(p + RF_LANES, b);
}
RF_INLINE void rf_stream_fence(void) {}
/* x = m 2^k with m in [sqrt(1/2), sqrt(2)), for normal positive x; returns k. */
RF_INLINE rf_v16 rf_v16_split(rf_v16 x, rf_v16 *m) {
  rf_v16 k;
  for (int i = 0; i < 4; i++) {
    rf_u4 bits = (rf_u4)x.v[i];
    /* gcc and clang define a shift of signed lanes as arithmetic */
    rf_m4 e = (rf_m4)(bits - 0x3f3504f3u) >> 23;
    m->v[i] = (rf_v4)(bits - ((rf_u4)e << 23));
    k.v[i] = __builtin_convertvector(e, rf_v4);
  }
  return k;
}
RF_INLINE uint32_t rf_m16_bits(rf_m16 m) {
  uint32_t bits = 0;
  for (int i = 0; i < RF_LANES; i++) bits |= ((uint32_t)m.v[i / 4][i % 4] & 1u) << i;
  return bits;
}
RF_INLINE float rf_v16_fold_sum(rf_v16 v) {
  rf_v4 q = (v.v[0] + v.v[2]) + (v.v[1] + v.v[3]);
  return (q[0] + q[2]) + (q[1] + q[3]);
}
RF_INLINE float rf_v16_larger(float a, float b) { return a > b ? a : b; }
RF_INLINE float rf_v16_fold_max(rf_v16 v) {
  rf_v4 a = rf_v4_select(v.v[0] > v.v[2], v.v[0], v.v[2]), b = rf_v4_select(v.v[1] > v.v[3], v.v[1], v.v[3]);
  rf_v4 q = rf_v4_select(a > b, a, b);
  return rf_v16_larger(rf_v16_larger(q[0], q[2]), rf_v16_larger(q[1], q[3]));
}

#if defined(__aarch64__)
RF_INLINE void rf_v4_transpose(rf_v4 x[4]) {
  float32x4_t a = vtrn1q_f32(x[0], x[1]), b = vtrn2q_f32(x[0], x[1]);
  float32x4_t c = vtrn1q_f32(x[2], x[3]), d = vtrn2q_f32(x[2], x[3]);
  x[0] = (rf_v4)vtrn1q_f64((float64x2_t)a, (float64x2_t)c);
  x[1] = (rf_v4)vtrn1q_f64((float64x2_t)b, (float64x2_t)d);
  x[2] = (rf_v4)vtrn2q_f64((float64x2_t)a, (float64x2_t)c);
  x[3] = (rf_v4)vtrn2q_f64((float64x2_t)b, (float64x2_t)d);
}
RF_INLINE void rf_v16_transpose(rf_v16 x[RF_LANES]) {
  rf_v16 y[RF_LANES];
  for (int row = 0; row < 4; row++) {
    for (int column = 0; column < 4; column++) {
      rf_v4 block[4];
      for (int k = 0; k < 4; k++) block[k] = x[4 * row + k].v[column];
      rf_v4_transpose(block);
      for (int k = 0; k < 4; k++) y[4 * column + k].v[row] = block[k];
    }
  }
  memcpy(x, y, sizeof y);
}
#else
RF_INLINE void rf_v16_transpose(rf_v16 x[RF_LANES]) {
  float from[RF_LANES][RF_LANES], to[RF_LANES][RF_LANES];
  for (int i = 0; i < RF_LANES; i++) rf_v16_store(from[i], x[i]);
  for (int i = 0; i < RF_LANES; i++) {
    for (int j = 0; j < RF_LANES; j++) to[i][j] = from[j][i];
  }
  for (int i = 0; i < RF_LANES; i++) x[i] = rf_v16_load(to[i]);
}
#endif

#endif

/* Parts of a vector of bf16. AVX-512 loads and stores parts of a vector with masks. Plain C has its
 * own functions for such parts. */
#if defined(RF_COPIES_PARTS)
RF_INLINE rf_v16 rf_v16_load_bf16_n(const rf_bf16 *p, int n) {
  rf_bf16 part[RF_LANES] = {0};
  memcpy(part, p, (size_t)n * sizeof *p);
  return rf_v16_load_bf16(part);
}
RF_INLINE void rf_v16_store_bf16_n(rf_bf16 *p, rf_v16 x, int n) {
  rf_bf16 part[RF_LANES];
  rf_v16_store_bf16(part, x);
  memcpy(p, part, (size_t)n * sizeof *p);
}
#endif

/* ---- loads and stores of elements of RF_F32 or RF_BF16 --------------------------------------- */

/* `i` counts elements of `dtype` at `p`. A constant dtype removes the branch. */
RF_INLINE float rf_f32_get(const void *p, rf_dtype dtype, int64_t i) {
  return dtype == RF_BF16 ? rf_bf16_to_f32(((const rf_bf16 *)p)[i]) : ((const float *)p)[i];
}
RF_INLINE rf_v16 rf_v16_get(const void *p, rf_dtype dtype, int64_t i) {
  return dtype == RF_BF16 ? rf_v16_load_bf16((const rf_bf16 *)p + i) : rf_v16_load((const float *)p + i);
}
RF_INLINE rf_v16 rf_v16_get_n(const void *p, rf_dtype dtype, int64_t i, int n) {
  return dtype == RF_BF16 ? rf_v16_load_bf16_n((const rf_bf16 *)p + i, n)
                          : rf_v16_load_n((const float *)p + i, n);
}
RF_INLINE void rf_v16_put(void *p, rf_dtype dtype, int64_t i, rf_v16 x) {
  if (dtype == RF_BF16) rf_v16_store_bf16((rf_bf16 *)p + i, x);
  else rf_v16_store((float *)p + i, x);
}
RF_INLINE void rf_v16_put_n(void *p, rf_dtype dtype, int64_t i, rf_v16 x, int n) {
  if (dtype == RF_BF16) rf_v16_store_bf16_n((rf_bf16 *)p + i, x, n);
  else rf_v16_store_n((float *)p + i, x, n);
}
/* Rounds x once to `dtype`, as storing and loading x would do. */
RF_INLINE rf_v16 rf_v16_round(rf_v16 x, rf_dtype dtype) {
  if (dtype != RF_BF16) return x;
  rf_bf16 half[RF_LANES];
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  (void)half;
  return rf_v16_widen(rf_v16_narrow(x));
#elif defined(__AVX2__) && defined(__FMA__)
  (void)half;
  return RF_V16_PAIR(_mm256_castsi256_ps(_mm256_slli_epi32(rf_v8_round_bf16(x.lo), 16)),
                     _mm256_castsi256_ps(_mm256_slli_epi32(rf_v8_round_bf16(x.hi), 16)));
#else
  rf_v16_store_bf16(half, x);
  return rf_v16_load_bf16(half);
#endif
}

/* ---- functions that have the same operations on every ISA ------------------------------------ */

#define RF_C(x) rf_v16_set1(x)

/* e^x within 1 ulp. The result is 0 for x < -87.33 (e^x would be subnormal), inf for x > 88.72, and
 * NaN for NaN. With x = k ln 2 + r, a polynomial computes e^r for |r| <= ln 2 / 2. The polynomial
 * was fitted with equal ripple (relative error 3e-9). */
RF_INLINE rf_v16 rf_v16_exp(rf_v16 x) {
  /* adding 1.5 2^23 rounds x / ln 2 to an integer */
  rf_v16 t = rf_v16_fma(x, RF_C(0x1.715476p+0f), RF_C(12582912.0f));
  rf_v16 k = rf_v16_sub(t, RF_C(12582912.0f));
  /* ln 2 is the sum of two floats; k times the first float is exact */
  rf_v16 r = rf_v16_fnma(k, RF_C(0x1.62e4p-1f), x);
  r = rf_v16_fnma(k, RF_C(0x1.7f7d1cp-20f), r);
  rf_v16 p = rf_v16_fma(RF_C(0x1.6a2434p-10f), r, RF_C(0x1.1239e2p-7f));
  p = rf_v16_fma(p, r, RF_C(0x1.5558f2p-5f));
  p = rf_v16_fma(p, r, RF_C(0x1.555492p-3f));
  p = rf_v16_fma(p, r, RF_C(0x1.fffffcp-2f));
  p = rf_v16_fma(p, r, RF_C(1.0f));
  p = rf_v16_fma(p, r, RF_C(1.0f));
  p = rf_v16_scale_by(p, t);
  /* adds inf to large x, which gives inf, and to NaN, which gives NaN */
  p = rf_v16_select(rf_v16_le(x, RF_C(0x1.62e42ep+6f)), p, rf_v16_add(x, RF_C(INFINITY)));
  return rf_v16_select(rf_v16_lt(x, RF_C(-87.33f)), rf_v16_zero(), p);
}

/* Natural logarithm within 1.5 ulp: -inf for 0 and subnormals, NaN below 0, inf for inf. */
RF_INLINE rf_v16 rf_v16_log(rf_v16 x) {
  rf_v16 m, k = rf_v16_split(x, &m), f = rf_v16_sub(m, RF_C(1.0f)), f2 = rf_v16_mul(f, f);
  rf_v16 p = rf_v16_fma(RF_C(0x1.1b42b4p-4f), f, RF_C(-0x1.e2e9b0p-4f));
  p = rf_v16_fma(p, f, RF_C(0x1.e650a6p-4f));
  p = rf_v16_fma(p, f, RF_C(-0x1.fb432ap-4f));
  p = rf_v16_fma(p, f, RF_C(0x1.2332c0p-3f));
  p = rf_v16_fma(p, f, RF_C(-0x1.5562e4p-3f));
  p = rf_v16_fma(p, f, RF_C(0x1.99a546p-3f));
  p = rf_v16_fma(p, f, RF_C(-0x1.ffffeep-3f));
  p = rf_v16_fma(p, f, RF_C(0x1.555546p-2f));
  p = rf_v16_mul(rf_v16_mul(p, f), f2); /* log(1+f) = f - f^2/2 + f^3 p(f) */
  p = rf_v16_fma(k, RF_C(0x1.7f7d1cp-20f), p);
  p = rf_v16_fnma(RF_C(0.5f), f2, p);
  p = rf_v16_add(f, p);
  p = rf_v16_fma(k, RF_C(0x1.62e4p-1f), p);
  p = rf_v16_select(rf_v16_lt(x, RF_C(INFINITY)), p, x); /* inf and NaN stay the same */
  p = rf_v16_select(rf_v16_lt(x, RF_C(0x1p-126f)), RF_C(-INFINITY), p);
  return rf_v16_select(rf_v16_lt(x, rf_v16_zero()), RF_C(NAN), p);
}

/* tanh x within 2 ulp: an odd polynomial for |x| < 0.55 (relative error 1e-9), otherwise (1 -
 * e^-2|x|) / (1 + e^-2|x|). */
RF_INLINE rf_v16 rf_v16_tanh(rf_v16 x) {
  rf_v16 a = rf_v16_abs(x), x2 = rf_v16_mul(x, x);
  rf_v16 p = rf_v16_fma(RF_C(-0x1.9b97d8p-8f), x2, RF_C(0x1.5950cep-6f));
  p = rf_v16_fma(p, x2, RF_C(-0x1.b92b16p-5f));
  p = rf_v16_fma(p, x2, RF_C(0x1.110d38p-3f));
  p = rf_v16_fma(p, x2, RF_C(-0x1.55554cp-2f));
  p = rf_v16_fma(rf_v16_mul(p, x2), x, x);
  rf_v16 e = rf_v16_exp(rf_v16_mul(a, RF_C(-2.0f)));
  rf_v16 q = rf_v16_div(rf_v16_sub(RF_C(1.0f), e), rf_v16_add(RF_C(1.0f), e));
  /* this also copies the sign to p, because tanh -0 is -0 */
  return rf_v16_copysign(rf_v16_select(rf_v16_lt(a, RF_C(0.55f)), p, q), x);
}

/* s = 1 / (1 + e^-x), *mirror = 1 - s. No digits cancel, because the only exponential is e^-|x|. */
RF_INLINE rf_v16 rf_v16_sigmoid_pair(rf_v16 x, rf_v16 *mirror) {
  rf_v16 e = rf_v16_exp(rf_v16_neg(rf_v16_abs(x)));
  rf_v16 large = rf_v16_div(RF_C(1.0f), rf_v16_add(RF_C(1.0f), e)), small = rf_v16_mul(e, large);
  rf_m16 negative = rf_v16_lt(x, rf_v16_zero());
  *mirror = rf_v16_select(negative, large, small);
  return rf_v16_select(negative, small, large);
}
RF_INLINE rf_v16 rf_v16_sigmoid(rf_v16 x) {
  rf_v16 mirror;
  return rf_v16_sigmoid_pair(x, &mirror);
}

/* x sigmoid(x), and its derivative s + x s (1 - s). */
RF_INLINE rf_v16 rf_v16_silu(rf_v16 x) { return rf_v16_mul(x, rf_v16_sigmoid(x)); }
RF_INLINE rf_v16 rf_v16_silu_grad(rf_v16 x) {
  rf_v16 mirror, s = rf_v16_sigmoid_pair(x, &mirror);
  return rf_v16_fma(rf_v16_mul(x, s), mirror, s);
}

/* 2 z, with z = sqrt(2/pi) (u + 0.044715 u^3). */
RF_INLINE rf_v16 rf_v16_gelu_argument(rf_v16 u) {
  rf_v16 u2 = rf_v16_mul(u, u);
  return rf_v16_mul(u, rf_v16_fma(u2, RF_C(2.0f * 0.7978845608f * 0.044715f), RF_C(2.0f * 0.7978845608f)));
}
/* GELU with tanh: 0.5 u (1 + tanh z) = u sigmoid(2 z), which loses no digits for negative u. */
RF_INLINE rf_v16 rf_v16_gelu_tanh(rf_v16 u) { return rf_v16_mul(u, rf_v16_sigmoid(rf_v16_gelu_argument(u))); }
/* Derivative of tanh GELU: s + u s (1 - s) (2 z)', (2 z)' = 2 sqrt(2/pi) (1 + 3 0.044715 u^2). The
 * second term is 0 for |u| > 30. Clamping u to 30 avoids inf times 0 when u^2 = inf. */
RF_INLINE rf_v16 rf_v16_gelu_tanh_grad(rf_v16 u) {
  rf_v16 mirror, s = rf_v16_sigmoid_pair(rf_v16_gelu_argument(u), &mirror);
  rf_v16 b = rf_v16_max(rf_v16_min(u, RF_C(30.0f)), RF_C(-30.0f));
  rf_v16 slope =
      rf_v16_fma(rf_v16_mul(b, b), RF_C(6.0f * 0.7978845608f * 0.044715f), RF_C(2.0f * 0.7978845608f));
  return rf_v16_fma(rf_v16_mul(b, slope), rf_v16_mul(s, mirror), s);
}

/* Sets *density to the normal density at u. Returns the integral of the density up to u, which is
 * accurate also for u < 0. The integral up to -|u| is e^(-u^2/2) times a polynomial in 1 / (1 + 0.3
 * |u|), with a fitted error of 3e-7 for |u| < 14. */
RF_INLINE rf_v16 rf_v16_normal(rf_v16 u, rf_v16 *density) {
  rf_v16 a = rf_v16_min(rf_v16_abs(u), RF_C(14.0f)),
         e = rf_v16_exp(rf_v16_mul(rf_v16_mul(a, a), RF_C(-0.5f)));
  rf_v16 t = rf_v16_div(RF_C(1.0f), rf_v16_fma(a, RF_C(0.3f), RF_C(1.0f)));
  rf_v16 p = rf_v16_fma(RF_C(0x1.339978p-5f), t, RF_C(-0x1.52af7ap-3f));
  p = rf_v16_fma(p, t, RF_C(0x1.c5535cp-3f));
  p = rf_v16_fma(p, t, RF_C(-0x1.19b482p-4f));
  p = rf_v16_fma(p, t, RF_C(0x1.19e638p-3f));
  p = rf_v16_fma(p, t, RF_C(0x1.8b8de4p-4f));
  p = rf_v16_fma(p, t, RF_C(0x1.f19c9ep-4f));
  p = rf_v16_fma(p, t, RF_C(0x1.e9a47cp-4f));
  p = rf_v16_fma(p, t, RF_C(0x1.25c07ep-18f));
  rf_v16 tail = rf_v16_mul(e, p);
  *density = rf_v16_mul(e, RF_C(0.3989422804f));
  return rf_v16_select(rf_v16_lt(u, rf_v16_zero()), tail, rf_v16_sub(RF_C(1.0f), tail));
}
/* GELU with the error function: u times the integral of the normal distribution up to u. The
 * derivative of this GELU clamps |u| to 14, because the density is 0 for larger |u|. */
RF_INLINE rf_v16 rf_v16_gelu_erf(rf_v16 u) {
  rf_v16 density;
  return rf_v16_mul(u, rf_v16_normal(u, &density));
}
RF_INLINE rf_v16 rf_v16_gelu_erf_grad(rf_v16 u) {
  rf_v16 density, below = rf_v16_normal(u, &density),
                  b = rf_v16_max(rf_v16_min(u, RF_C(14.0f)), RF_C(-14.0f));
  return rf_v16_fma(b, density, below);
}

/* Returns the sine of the angle high + low and sets *cosine, with an absolute error of 1e-7 for
 * |high| < 1e5. Rounding the angle to one f32 would cost an error of 1e-4 at position 4096. */
RF_INLINE rf_v16 rf_v16_sincos(rf_v16 high, rf_v16 low, rf_v16 *cosine) {
  /* number of quarter turns, rounded as in rf_v16_exp */
  rf_v16 t = rf_v16_fma(high, RF_C(0x1.45f306p-1f), RF_C(12582912.0f));
  rf_v16 k = rf_v16_sub(t, RF_C(12582912.0f));
  rf_v16 r = rf_v16_fnma(k, RF_C(0x1.921fb6p+0f), high); /* pi/2 in three parts */
  r = rf_v16_fnma(k, RF_C(-0x1.777a5cp-25f), r);
  r = rf_v16_fnma(k, RF_C(-0x1.ee59dap-50f), r);
  r = rf_v16_add(r, low);
  rf_v16 r2 = rf_v16_mul(r, r);
  rf_v16 s = rf_v16_fma(RF_C(0x1.6cd838p-19f), r2, RF_C(-0x1.a00f9ep-13f));
  s = rf_v16_fma(s, r2, RF_C(0x1.111108p-7f));
  s = rf_v16_fma(s, r2, RF_C(-0x1.555556p-3f));
  s = rf_v16_fma(rf_v16_mul(s, r2), r, r);
  rf_v16 c = rf_v16_fma(RF_C(0x1.9a020ap-16f), r2, RF_C(-0x1.6c0c8ap-10f));
  c = rf_v16_fma(c, r2, RF_C(0x1.55554ap-5f));
  c = rf_v16_fma(rf_v16_mul(r2, r2), c, rf_v16_fnma(RF_C(0.5f), r2, RF_C(1.0f)));
  rf_m16 odd = rf_v16_bit(t, 0); /* in quadrants 0, 1, 2, 3 sin is s, c, -s, -c and cos is c, -s, -c, s */
  rf_v16 sine = rf_v16_select(odd, c, s), cosine_or_sine = rf_v16_select(odd, s, c);
  *cosine =
      rf_v16_select(rf_v16_bit(rf_v16_add(t, RF_C(1.0f)), 1), rf_v16_neg(cosine_or_sine), cosine_or_sine);
  return rf_v16_select(rf_v16_bit(t, 1), rf_v16_neg(sine), sine);
}

#undef RF_C
#endif
