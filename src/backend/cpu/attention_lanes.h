/* attention_lanes.h - vector operations of the attention kernels: exp2 and the steps on a
 * row of scores. Compiled once per ISA. */
#ifndef RF_ATTENTION_LANES_H
#define RF_ATTENTION_LANES_H

#include "backend/cpu/attention.h"
#include "backend/cpu/simd.h"

#define RF_LOG2_E 0x1.715476p+0f

/* 2^t for t < 128: 2^k times a polynomial in t - k, where k is t rounded to an integer. The minimax
 * polynomial has a relative error of 3e-9 before rounding and gives 2^0 = 1 exactly. The result is
 * 0 for t < -126, so a masked score (-inf) adds 0. NaN stays NaN. */
RF_INLINE rf_v16 exp2_lanes(rf_v16 t) {
  rf_v16 magic = rf_v16_set1(12582912.0f), z = rf_v16_add(t, magic), r = rf_v16_sub(t, rf_v16_sub(z, magic));
  rf_v16 p = rf_v16_fma(rf_v16_set1(0x1.416b52p-13f), r, rf_v16_set1(0x1.5f082ep-10f));
  p = rf_v16_fma(p, r, rf_v16_set1(0x1.3b2dep-7f));
  p = rf_v16_fma(p, r, rf_v16_set1(0x1.c6af7cp-5f));
  p = rf_v16_fma(p, r, rf_v16_set1(0x1.ebfbdcp-3f));
  p = rf_v16_fma(p, r, rf_v16_set1(0x1.62e43p-1f));
  p = rf_v16_fma(p, r, rf_v16_set1(1.0f));
  return rf_v16_select(rf_v16_lt(t, rf_v16_set1(-126.0f)), rf_v16_zero(), rf_v16_scale_by(p, z));
}

/* In the vector that starts at key `at`, sets lanes of keys outside [first, last) to -inf. */
RF_INLINE rf_v16 mask_lanes(rf_v16 s, int64_t at, int64_t first, int64_t last) {
  int from = (int)(first <= at ? 0 : first - at < RF_LANES ? first - at : RF_LANES);
  int to = (int)(last <= at ? 0 : last - at < RF_LANES ? last - at : RF_LANES);
  rf_v16 none = rf_v16_set1(-INFINITY);
  s = rf_v16_select(rf_m16_first(to), s, none);
  return rf_v16_select(rf_m16_first(from), none, s);
}

/* Turns vectors [v0, v1) of a row of products into scores: scales, caps and rounds as `a` says,
 * then masks keys outside [first, last). */
RF_INLINE void ready_row(const rf_attention *a, float *s, int64_t v0, int64_t v1, int64_t first,
                         int64_t last) {
  if (a->scaled) {
    rf_v16 by = rf_v16_set1(a->softcap > 0 ? a->scale / a->softcap : a->scale), cap = rf_v16_set1(a->softcap);
    for (int64_t v = v0; v < v1; v++) {
      rf_v16 x = rf_v16_mul(rf_v16_load(s + v * RF_LANES), by);
      if (a->softcap > 0) x = rf_v16_mul(cap, rf_v16_tanh(x));
      rf_v16_store(s + v * RF_LANES, a->round ? rf_v16_round(x, RF_BF16) : x);
    }
  }
  if (first <= v0 * RF_LANES && last >= v1 * RF_LANES) return;
  for (int64_t v = v0; v < v1; v++) {
    int64_t at = v * RF_LANES;
    if (at < first || at + RF_LANES > last)
      rf_v16_store(s + at, mask_lanes(rf_v16_load(s + at), at, first, last));
  }
}

/* Returns 1 - (s / softcap)^2, or 0 for a masked score of minus infinity. `shrink` is 1 /
 * softcap. */
RF_INLINE rf_v16 cap_slope(rf_v16 s, rf_v16 shrink) {
  rf_v16 u = rf_v16_max(rf_v16_mul(s, shrink), rf_v16_set1(-1.0f));
  return rf_v16_fnma(u, u, rf_v16_set1(1.0f));
}

#endif
