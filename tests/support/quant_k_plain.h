/* quant_k_plain.h - the search of formats/quant_k_search.c without vectors, one sub-block after
 * another: the reference for the vector versions, which must give the same bits. */
#ifndef RF_QUANT_K_PLAIN_H
#define RF_QUANT_K_PLAIN_H

#include <math.h>
#include <string.h>

#include "formats/quant_k_search.h"

enum { VALUES = RF_K_VALUES, SUBS_MAX = RF_K_LANES, ROUNDS = RF_K_ROUNDS };
typedef rf_k_shape shape;
typedef rf_k_super super;

static inline float to_f16(float x) { return rf_f16_to_f32(rf_f32_to_f16(x)); }
/* Returns the integer from `minimum` to `maximum` that is nearest to x, ties to even. NaN gives
 * `minimum`. Adding and then subtracting 1.5 * 2^23 rounds to an integer on every vector unit. */
static inline float nearest(float x, float minimum, float maximum) {
  float bounded = x > minimum ? (x < maximum ? x : maximum) : minimum;
  return (bounded + 12582912.0f) - 12582912.0f;
}
/* Sums are computed as eight partial sums, which are added in a fixed order. So files do not depend
 * on the compiler's vectorization. */
enum { LANES = 8 };
static inline float lane_sum(const float v[LANES]) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* ---- with offsets ---------------------------------------------------------------------------- */

/* Sums of q, q^2 and q x over a sub-block. */
typedef struct sums {
  float q, qq, qx;
} sums;

static sums level_sums(const float *x, int n, float inverse, float offset, float levels) {
  float sum_q[LANES] = {0}, sum_qq[LANES] = {0}, sum_qx[LANES] = {0};
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; ++l) {
      float q = nearest((x[i + l] + offset) * inverse, 0, levels);
      sum_q[l] += q;
      sum_qq[l] += q * q;
      sum_qx[l] += q * x[i + l];
    }
  return (sums){lane_sum(sum_q), lane_sum(sum_qq), lane_sum(sum_qx)};
}

/* Squared error of a sub-block if each value is rounded to the nearest level. */
static float offset_error(const float *x, int n, float scale, float offset, float levels) {
  float inverse = scale > 0 ? 1 / scale : 0, sum[LANES] = {0};
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; ++l) {
      float e = scale * nearest((x[i + l] + offset) * inverse, 0, levels) - offset - x[i + l];
      sum[l] += e * e;
    }
  return lane_sum(sum);
}

/* Finds the best scale and offset of one sub-block. Neither is negative. */
static void fit_offset(const shape *s, const float *x, int n, float *scale, float *offset) {
  float minimum = 0, maximum = x[0], sum = 0, best = INFINITY, levels = (float)s->levels;
  for (int i = 0; i < n; ++i) {
    if (x[i] < minimum) minimum = x[i];
    if (x[i] > maximum) maximum = x[i];
    sum += x[i];
  }
  *scale = 0;
  *offset = -minimum;
  if (!(maximum > minimum)) return;
  for (int t = -s->tries; t <= s->tries; ++t) {
    float a = (maximum - minimum) / (levels + s->step * (float)t), b = -minimum;
    if (!(levels + s->step * (float)t > 0.5f)) continue;
    for (int again = 0; again < 2; ++again) { /* two rounds: first round the values, then fit */
      sums v = level_sums(x, n, 1 / a, b, levels);
      float det = (float)n * v.qq - v.q * v.q;
      if (!(det > 0)) break;
      a = ((float)n * v.qx - v.q * sum) / det;
      b = (v.q * v.qx - v.qq * sum) / det;
      if (b < 0) {
        b = 0;
        a = v.qx / v.qq;
      }
      if (!(a > 0)) break;
      float error = offset_error(x, n, a, b, levels);
      if (error < best) {
        best = error;
        *scale = a;
        *offset = b;
      }
    }
  }
}

/* Chooses the integer scale and offset of sub-block `sub`, given d and dmin of `to`: the best pair
 * among the rounded quotients and their neighbours. Returns the squared error. */
static float choose_integers(const shape *s, const float *x, float scale, float offset, int sub, super *to) {
  float maximum = (float)s->maximum, best = INFINITY;
  int a = (int)nearest(to->d > 0 ? scale / to->d : 0, 0, maximum),
      b = (int)nearest(to->dmin > 0 ? offset / to->dmin : 0, 0, maximum), n = VALUES / s->subs;
  for (int i = a - 1; i <= a + 1; ++i)
    for (int j = b - 1; j <= b + 1; ++j) {
      if (i < 0 || j < 0 || i > s->maximum || j > s->maximum) continue;
      float error = offset_error(x + sub * n, n, to->d * (float)i, to->dmin * (float)j, (float)s->levels);
      if (error < best) {
        best = error;
        to->scale[sub] = i;
        to->offset[sub] = j;
      }
    }
  return best;
}

static void put_levels(const shape *s, const float *x, super *out) {
  int n = VALUES / s->subs;
  for (int i = 0; i < VALUES; ++i) {
    float scale = out->d * (float)out->scale[i / n], offset = out->dmin * (float)out->offset[i / n];
    out->q[i] = (uint8_t)nearest((x[i] + offset) * (scale > 0 ? 1 / scale : 0), 0, (float)s->levels);
  }
}

/* Finds d and dmin with the smallest squared error of x = d (sc q) - dmin mn. sc, q and mn are
 * given. */
static void refit_factors(const shape *s, const float *x, const super *from, float *d, float *dmin) {
  int n = VALUES / s->subs;
  double uu = 0, vv = 0, uv = 0, ux = 0, vx = 0;
  for (int i = 0; i < VALUES; ++i) {
    double u = (double)from->scale[i / n] * from->q[i], v = -(double)from->offset[i / n];
    uu += u * u;
    vv += v * v;
    uv += u * v;
    ux += u * x[i];
    vx += v * x[i];
  }
  double det = uu * vv - uv * uv;
  if (det > 0) {
    *d = (float)((ux * vv - vx * uv) / det);
    *dmin = (float)((vx * uu - ux * uv) / det);
  } else if (uu > 0) *d = (float)(ux / uu);
}

static void search_offset(const shape *s, const float *x, super *best) {
  float scale[SUBS_MAX], offset[SUBS_MAX], widest = 0, deepest = 0, minimum = INFINITY;
  int n = VALUES / s->subs;
  memset(best, 0, sizeof *best);
  for (int i = 0; i < s->subs; ++i) {
    fit_offset(s, x + i * n, n, &scale[i], &offset[i]);
    if (scale[i] > widest) widest = scale[i];
    if (offset[i] > deepest) deepest = offset[i];
  }
  float d = widest / (float)s->maximum, dmin = deepest / (float)s->maximum;
  for (int round = 0; round < ROUNDS; ++round) {
    super trial = {.d = to_f16(d), .dmin = to_f16(dmin)};
    float error = 0;
    if (!(trial.d >= 0 && trial.dmin >= 0)) break;
    for (int i = 0; i < s->subs; ++i) error += choose_integers(s, x, scale[i], offset[i], i, &trial);
    if (!(error < minimum)) break;
    put_levels(s, x, &trial);
    minimum = error;
    *best = trial;
    refit_factors(s, x, &trial, &d, &dmin);
  }
}

/* ---- without offsets ------------------------------------------------------------------------- */

static float plain_error(const float *x, int n, float scale, float levels) {
  float inverse = scale != 0 ? 1 / scale : 0, sum[LANES] = {0};
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; ++l) {
      float e = scale * nearest(x[i + l] * inverse, -levels, levels - 1) - x[i + l];
      sum[l] += e * e;
    }
  return lane_sum(sum);
}

/* Returns the best scale of one sub-block. The value with the largest magnitude gets a negative q,
 * because q can be -levels but at most levels - 1. If this value is positive, the scale is
 * negative. */
static float fit_plain(const shape *s, const float *x, int n) {
  float far = 0, best = INFINITY, found = 0, levels = (float)s->levels;
  for (int i = 0; i < n; ++i)
    if (fabsf(x[i]) > fabsf(far)) far = x[i];
  if (far == 0) return 0;
  for (int t = -s->tries; t <= s->tries; ++t) {
    float reach = levels + s->step * (float)t;
    if (!(reach > 0.5f)) continue;
    float inverse = -reach / far, sum_qq[LANES] = {0}, sum_qx[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
      for (int l = 0; l < LANES; ++l) {
        float q = nearest(x[i + l] * inverse, -levels, levels - 1);
        sum_qq[l] += q * q;
        sum_qx[l] += q * x[i + l];
      }
    float qq = lane_sum(sum_qq);
    if (!(qq > 0)) continue;
    float a = lane_sum(sum_qx) / qq, error = plain_error(x, n, a, levels);
    if (error < best) {
      best = error;
      found = a;
    }
  }
  return found;
}

static void search_plain(const shape *s, const float *x, super *best) {
  float scale[SUBS_MAX], far = 0, minimum = INFINITY, levels = (float)s->levels;
  int n = VALUES / s->subs;
  memset(best, 0, sizeof *best);
  memset(best->q, s->levels, VALUES);
  for (int i = 0; i < s->subs; ++i) {
    scale[i] = fit_plain(s, x + i * n, n);
    if (fabsf(scale[i]) > fabsf(far)) far = scale[i];
  }
  float d = far / (float)s->minimum;
  for (int round = 0; round < ROUNDS && far != 0; ++round) {
    super trial = {.d = to_f16(d)};
    double qq = 0, qx = 0, error = 0;
    if (trial.d == 0) break;
    for (int i = 0; i < s->subs; ++i) {
      float sub_best = INFINITY;
      int a = (int)nearest(scale[i] / trial.d, (float)s->minimum, (float)s->maximum);
      for (int j = a - 1; j <= a + 1; ++j) {
        if (j < s->minimum || j > s->maximum) continue;
        float e = plain_error(x + i * n, n, trial.d * (float)j, levels);
        if (e < sub_best) {
          sub_best = e;
          trial.scale[i] = j;
        }
      }
      error += sub_best;
      float sub = trial.d * (float)trial.scale[i];
      for (int k = i * n; k < (i + 1) * n; ++k) {
        float q = nearest(sub != 0 ? x[k] / sub : 0, -levels, levels - 1);
        double u = (double)trial.scale[i] * q;
        trial.q[k] = (uint8_t)(q + levels);
        qq += u * u;
        qx += u * x[k];
      }
    }
    if (!(error < minimum)) break;
    minimum = (float)error;
    *best = trial;
    if (qq > 0) d = (float)(qx / qq);
  }
}

static void plain_search(const rf_k_shape *s, const float *x, rf_k_super *out) {
  if (s->offsets) search_offset(s, x, out);
  else search_plain(s, x, out);
}

#endif
