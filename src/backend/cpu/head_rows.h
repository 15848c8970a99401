/* head_rows.h - sums of exponentials, gradient, softcap, temperature and top entries of a row of
 * logits, for head_*.c. */
#include "backend/cpu/head.h"
#include "backend/cpu/simd.h"

static float row_max(const float *z, int64_t vocab) {
  rf_v16 m = rf_v16_set1(-INFINITY);
  int64_t v = 0;
  for (; v + RF_LANES <= vocab; v += RF_LANES) m = rf_v16_max(rf_v16_load(z + v), m);
  if (v < vocab) {
    int left = (int)(vocab - v);
    m = rf_v16_max(rf_v16_select(rf_m16_first(left), rf_v16_load_n(z + v, left), m), m);
  }
  return rf_v16_fold_max(m);
}
static int32_t first_equal(const float *z, int64_t vocab, float x) {
  int64_t v = 0;
  for (rf_v16 all = rf_v16_set1(x); v + RF_LANES <= vocab; v += RF_LANES) {
    uint32_t bits = rf_m16_bits(rf_v16_eq(rf_v16_load(z + v), all));
    if (bits) return (int32_t)v + __builtin_ctz(bits);
  }
  for (; v < vocab; v++) {
    if (z[v] == x) return (int32_t)v;
  }
  return 0; /* all NaN */
}
static float row_sum(const float *z, int64_t vocab, int32_t *best, float *most) {
  float m = *most = row_max(z, vocab);
  rf_v16 s = rf_v16_zero(), all = rf_v16_set1(m);
  *best = first_equal(z, vocab, m);
  int64_t v = 0;
  for (; v + RF_LANES <= vocab; v += RF_LANES)
    s = rf_v16_add(s, rf_v16_exp(rf_v16_sub(rf_v16_load(z + v), all)));
  if (v < vocab) {
    int left = (int)(vocab - v);
    rf_v16 e = rf_v16_exp(rf_v16_sub(rf_v16_load_n(z + v, left), all));
    s = rf_v16_add(s, rf_v16_select(rf_m16_first(left), e, rf_v16_zero()));
  }
  return rf_v16_fold_sum(s);
}
static float row_lse(const float *z, int64_t vocab, int32_t *best) {
  float lane[RF_LANES], most, sum = row_sum(z, vocab, best, &most);
  rf_v16_store(lane, rf_v16_log(rf_v16_set1(sum)));
  return most + lane[0];
}
static void row_cap(float *z, int64_t vocab, float cap) {
  rf_v16 by = rf_v16_set1(1.0f / cap), all = rf_v16_set1(cap);
  for (int64_t v = 0; v < vocab; v += RF_LANES) {
    int n = vocab - v < RF_LANES ? (int)(vocab - v) : RF_LANES;
    rf_v16_store_n(z + v, rf_v16_mul(all, rf_v16_tanh(rf_v16_mul(rf_v16_load_n(z + v, n), by))), n);
  }
}

static void row_divide(float *z, int64_t vocab, float temperature) {
  rf_v16 by = rf_v16_set1(temperature);
  for (int64_t v = 0; v < vocab; v += RF_LANES) {
    int n = vocab - v < RF_LANES ? (int)(vocab - v) : RF_LANES;
    rf_v16_store_n(z + v, rf_v16_div(rf_v16_load_n(z + v, n), by), n);
  }
}

/* (exp(z - lse) - less) scale, times (1 - (z shrink)^2) if `caps`. */
RF_INLINE rf_v16 logit_gradient(rf_v16 z, rf_v16 lse, rf_v16 less, rf_v16 scale, rf_v16 shrink, bool caps) {
  rf_v16 g = rf_v16_mul(rf_v16_sub(rf_v16_exp(rf_v16_sub(z, lse)), less), scale);
  if (!caps) return g;
  rf_v16 u = rf_v16_mul(z, shrink);
  return rf_v16_mul(g, rf_v16_fnma(u, u, rf_v16_set1(1.0f)));
}
RF_INLINE void row_gradient_of(float *z, int64_t vocab, int32_t label, float lse, float scale, float shrink,
                               bool caps) {
  rf_v16 all = rf_v16_set1(lse), by = rf_v16_set1(scale), small = rf_v16_set1(shrink), zero = rf_v16_zero();
  float x[RF_LANES] = {0}, at_label = label < 0 ? 0 : z[label];
  int64_t v = 0;
  for (; v + RF_LANES <= vocab; v += RF_LANES)
    rf_v16_store(z + v, logit_gradient(rf_v16_load(z + v), all, zero, by, small, caps));
  if (v < vocab) {
    int left = (int)(vocab - v);
    rf_v16_store_n(z + v, logit_gradient(rf_v16_load_n(z + v, left), all, zero, by, small, caps), left);
  }
  if (label < 0) return;
  rf_v16_store(x, logit_gradient(rf_v16_set1(at_label), all, rf_v16_set1(1.0f), by, small, caps));
  z[label] = x[0];
}
static void row_gradient(float *z, int64_t vocab, int32_t label, float lse, float scale, float cap) {
  if (label == RF_LABEL_NONE) memset(z, 0, (size_t)vocab * sizeof *z);
  else if (cap > 0) row_gradient_of(z, vocab, label, lse, scale, 1.0f / cap, true);
  else row_gradient_of(z, vocab, label, lse, scale, 0.0f, false);
}

/* Each store ends before the values that are not yet read. */
static void row_narrow(float *z, int64_t n) {
  rf_bf16 *to = (rf_bf16 *)z;
  int64_t v = 0;
  for (; v + RF_LANES <= n; v += RF_LANES) rf_v16_store_bf16(to + v, rf_v16_load(z + v));
  if (v < n) rf_v16_store_bf16_n(to + v, rf_v16_load_n(z + v, (int)(n - v)), (int)(n - v));
}

/* Keeps a sorted list of the largest logits. Skips sixteen logits if all are <= the last entry. */
static void row_top(const float *z, int64_t vocab, int most, int32_t *ids, float *values) {
  int held = 0;
  for (int64_t v = 0; v < vocab; v += RF_LANES) {
    int n = vocab - v < RF_LANES ? (int)(vocab - v) : RF_LANES;
    uint32_t larger = (1u << n) - 1u;
    if (held == most) {
      rf_v16 x = n == RF_LANES ? rf_v16_load(z + v) : rf_v16_load_n(z + v, n);
      larger &= rf_m16_bits(rf_v16_lt(rf_v16_set1(values[most - 1]), x));
    }
    for (; larger; larger &= larger - 1) {
      int64_t id = v + __builtin_ctz(larger);
      if (held == most && !(z[id] > values[most - 1])) continue;
      int at = held < most ? held++ : most - 1;
      for (; at > 0 && z[id] > values[at - 1]; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
      }
      values[at] = z[id];
      ids[at] = (int32_t)id;
    }
  }
}
