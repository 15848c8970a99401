/* quant_k_search_body.h - defines RF_K_SEARCH, the search of quant_k_search.c over a batch of
 * sub-blocks, one sub-block per lane. Each file quant_k_search_*.c sets the function's name and the
 * width of vectors. Each sum over a sub-block has eight partial sums, which are added in a fixed
 * order. Partial sum l has the values l, l + 8, and so on. Every lane gives the same result as a
 * scalar search of its sub-block. */
#include <math.h>
#include <string.h>

#include "formats/quant_k_search.h"
#include "formats/quant_lanes.h"

enum { VALUES = RF_K_VALUES, LANES = RF_K_LANES, PARTIAL = 8 };

/* Values and floats of the search. x[i][lane] is value i of a sub-block. */
typedef struct batch {
  float x[RF_K_SUB_MAX][LANES], q[RF_K_SUB_MAX][LANES];
  float scale[LANES], offset[LANES];                       /* the best real scales and offsets */
  float d[LANES], dmin[LANES];                             /* factors of the lane's super-block */
  float int_scale[LANES], int_offset[LANES], error[LANES]; /* the best integers and their error */
} batch;

static inline float to_f16(float x) { return rf_f16_to_f32(rf_f32_to_f16(x)); }

RF_LANE_FN lanes add_partial(const lanes v[PARTIAL]) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
/* 1 / scale, or 0 */
RF_LANE_FN lanes inverse_of(lane_mask there, lanes scale) {
  return lanes_choose(there, lanes_all(1) / scale, lanes_all(0));
}

/* ---- with offsets ---------------------------------------------------------------------------- */

/* Sums of q, q^2 and q x over a sub-block, and the squared error of scale * q - offset. */
typedef struct sums {
  lanes q, qq, qx, error;
} sums;

RF_LANE_FN sums round_values(const float *x, int n, lanes inverse, lanes scale, lanes offset, lanes levels) {
  lanes zero = lanes_all(0), sum_qx[PARTIAL], sum_error[PARTIAL];
  sums s = {zero, zero, zero, zero};
#pragma GCC unroll 8
  for (int l = 0; l < PARTIAL; ++l) {
    sum_qx[l] = sum_error[l] = zero;
#pragma GCC unroll 4
    for (int i = l; i < n; i += PARTIAL) {
      lanes value = lanes_load(x + i * LANES), q = lanes_nearest((value + offset) * inverse, zero, levels);
      lanes e = scale * q - offset - value;
      s.q = s.q + q; /* sums of integers are exact, so their order does not matter */
      s.qq = s.qq + q * q;
      sum_qx[l] = sum_qx[l] + q * value;
      sum_error[l] = sum_error[l] + e * e;
    }
  }
  s.qx = add_partial(sum_qx);
  s.error = add_partial(sum_error);
  return s;
}

/* Finds the best scale and offset of each sub-block. Neither is negative. */
RF_LANE_FN void fit_offset(const rf_k_shape *s, batch *b, int n, int at) {
  const float *x = b->x[0] + at;
  lanes zero = lanes_all(0), count = lanes_all((float)n), levels = lanes_all((float)s->levels);
  lanes minimum = zero, maximum = lanes_load(x), sum = zero, best = lanes_all(INFINITY), found = zero;
  for (int i = 0; i < n; ++i) {
    lanes value = lanes_load(x + i * LANES);
    minimum = lanes_min(value, minimum);
    maximum = lanes_max(value, maximum);
    sum = sum + value;
  }
  lanes lowest = zero - minimum, width = maximum - minimum;
  lane_mask spread = lanes_above(maximum, minimum);
  lanes found_offset = lowest;
  for (int t = -s->tries; t <= s->tries; ++t) {
    float reach = (float)s->levels + s->step * (float)t;
    if (!(reach > 0.5f)) continue;
    lane_mask in = spread;
    lanes a = width / lanes_all(reach), c = lowest;
    sums v = round_values(x, n, lanes_all(1) / a, a, c, levels);
#pragma GCC unroll 2
    /* two rounds: each round first rounds the values, and then fits */
    for (int again = 0; again < 2; ++again) {
      lanes det = count * v.qq - v.q * v.q;
      in = lane_mask_and(in, lanes_above(det, zero));
      a = (count * v.qx - v.q * sum) / det;
      c = (v.q * v.qx - v.qq * sum) / det;
      lane_mask negative = lanes_above(zero, c);
      c = lanes_choose(negative, zero, c);
      a = lanes_choose(negative, v.qx / v.qq, a);
      in = lane_mask_and(in, lanes_above(a, zero));
      /* the error of this fit, and the sums of the next one */
      v = round_values(x, n, lanes_all(1) / a, a, c, levels);
      lane_mask better = lane_mask_and(in, lanes_above(best, v.error));
      best = lanes_choose(better, v.error, best);
      found = lanes_choose(better, a, found);
      found_offset = lanes_choose(better, c, found_offset);
    }
  }
  lanes_store(b->scale + at, found);
  lanes_store(b->offset + at, found_offset);
}

/* Chooses the integer scales and offsets for given d and dmin. Takes the best pair among the
 * rounded quotients and their neighbours. */
RF_LANE_FN void choose_pairs(const rf_k_shape *s, batch *b, int n, int at) {
  lanes zero = lanes_all(0), one = lanes_all(1), levels = lanes_all((float)s->levels);
  lanes maximum = lanes_all((float)s->maximum), d = lanes_load(b->d + at), dmin = lanes_load(b->dmin + at);
  lanes scale = lanes_choose(lanes_above(d, zero), lanes_load(b->scale + at) / d, zero);
  lanes offset = lanes_choose(lanes_above(dmin, zero), lanes_load(b->offset + at) / dmin, zero);
  lanes i0 = lanes_nearest(scale, zero, maximum), j0 = lanes_nearest(offset, zero, maximum);
  lanes best = lanes_all(INFINITY), best_i = zero, best_j = zero;
  for (int k = 0; k < 9; ++k) {
    lanes i = i0 + lanes_all((float)(k / 3 - 1)), j = j0 + lanes_all((float)(k % 3 - 1));
    lane_mask in = lane_mask_and(lanes_above(i, zero - one), lanes_above(j, zero - one));
    in = lane_mask_and(in, lane_mask_and(lanes_above(maximum + one, i), lanes_above(maximum + one, j)));
    lanes a = d * i, inverse = inverse_of(lanes_above(a, zero), a);
    lanes error = round_values(b->x[0] + at, n, inverse, a, dmin * j, levels).error;
    lane_mask better = lane_mask_and(in, lanes_above(best, error));
    best = lanes_choose(better, error, best);
    best_i = lanes_choose(better, i, best_i);
    best_j = lanes_choose(better, j, best_j);
  }
  lanes_store(b->error + at, best);
  lanes_store(b->int_scale + at, best_i);
  lanes_store(b->int_offset + at, best_j);
}

RF_LANE_FN void put_levels(const rf_k_shape *s, batch *b, int n, int at) {
  lanes zero = lanes_all(0), levels = lanes_all((float)s->levels);
  lanes scale = lanes_load(b->d + at) * lanes_load(b->int_scale + at);
  lanes offset = lanes_load(b->dmin + at) * lanes_load(b->int_offset + at);
  lanes inverse = inverse_of(lanes_above(scale, zero), scale);
  for (int i = 0; i < n; ++i) {
    lanes value = lanes_load(b->x[i] + at);
    lanes_store(b->q[i] + at, lanes_nearest((value + offset) * inverse, zero, levels));
  }
}

/* Finds the d and dmin with the smallest squared error of x = d (sc q) - dmin mn, for given sc, q
 * and mn. */
static void refit_factors(const rf_k_shape *s, const batch *b, int first, float *d, float *dmin) {
  int n = VALUES / s->subs;
  double uu = 0, vv = 0, uv = 0, ux = 0, vx = 0;
  for (int sub = first; sub < first + s->subs; ++sub) {
    float sum_q = 0, sum_qq = 0; /* exact */
    double scale = b->int_scale[sub], v = -(double)b->int_offset[sub];
    for (int i = 0; i < n; ++i) {
      float q = b->q[i][sub];
      sum_q += q;
      sum_qq += q * q;
      ux += scale * q * b->x[i][sub];
      vx += v * b->x[i][sub];
    }
    uu += scale * scale * sum_qq;
    vv += v * v * n;
    uv += scale * sum_q * v;
  }
  double det = uu * vv - uv * uv;
  if (det > 0) {
    *d = (float)((ux * vv - vx * uv) / det);
    *dmin = (float)((vx * uu - ux * uv) / det);
  } else if (uu > 0) *d = (float)(ux / uu);
}

/* ---- without offsets ------------------------------------------------------------------------- */

RF_LANE_FN lanes plain_error(const float *x, int n, lanes scale, lanes levels) {
  lanes inverse = inverse_of(lanes_differ(scale, lanes_all(0)), scale), sum[PARTIAL];
#pragma GCC unroll 8
  for (int l = 0; l < PARTIAL; ++l) {
    sum[l] = lanes_all(0);
#pragma GCC unroll 4
    for (int i = l; i < n; i += PARTIAL) {
      lanes value = lanes_load(x + i * LANES);
      lanes e = scale * lanes_nearest(value * inverse, lanes_all(0) - levels, levels - lanes_all(1)) - value;
      sum[l] = sum[l] + e * e;
    }
  }
  return add_partial(sum);
}

/* Finds the best scale of each sub-block. The value with the largest magnitude gets a negative q,
 * because q may be -levels, but at most levels - 1. If this value is positive, the scale becomes
 * negative. */
RF_LANE_FN void fit_plain(const rf_k_shape *s, batch *b, int n, int at) {
  const float *x = b->x[0] + at;
  lanes zero = lanes_all(0), levels = lanes_all((float)s->levels), far = zero, found = zero;
  lanes best = lanes_all(INFINITY);
  for (int i = 0; i < n; ++i) {
    lanes value = lanes_load(x + i * LANES);
    far = lanes_choose(lanes_above(lanes_abs(value), lanes_abs(far)), value, far);
  }
  lane_mask there = lanes_differ(far, zero);
  for (int t = -s->tries; t <= s->tries; ++t) {
    float reach = (float)s->levels + s->step * (float)t;
    if (!(reach > 0.5f)) continue;
    lanes inverse = lanes_all(-reach) / far, qq = zero, sum_qx[PARTIAL];
#pragma GCC unroll 8
    for (int l = 0; l < PARTIAL; ++l) {
      sum_qx[l] = zero;
#pragma GCC unroll 4
      for (int i = l; i < n; i += PARTIAL) {
        lanes value = lanes_load(x + i * LANES);
        lanes q = lanes_nearest(value * inverse, zero - levels, levels - lanes_all(1));
        qq = qq + q * q;
        sum_qx[l] = sum_qx[l] + q * value;
      }
    }
    lanes a = add_partial(sum_qx) / qq, error = plain_error(x, n, a, levels);
    lane_mask better = lane_mask_and(there, lane_mask_and(lanes_above(qq, zero), lanes_above(best, error)));
    best = lanes_choose(better, error, best);
    found = lanes_choose(better, a, found);
  }
  lanes_store(b->scale + at, found);
}

RF_LANE_FN void choose_scales(const rf_k_shape *s, batch *b, int n, int at) {
  lanes levels = lanes_all((float)s->levels), d = lanes_load(b->d + at), best = lanes_all(INFINITY);
  lanes minimum = lanes_all((float)s->minimum), maximum = lanes_all((float)s->maximum), found = lanes_all(0);
  lanes j0 = lanes_nearest(lanes_load(b->scale + at) / d, minimum, maximum), one = lanes_all(1);
  for (int k = -1; k <= 1; ++k) {
    lanes j = j0 + lanes_all((float)k), error = plain_error(b->x[0] + at, n, d * j, levels);
    lane_mask in = lane_mask_and(lanes_above(j, minimum - one), lanes_above(maximum + one, j));
    lane_mask better = lane_mask_and(in, lanes_above(best, error));
    best = lanes_choose(better, error, best);
    found = lanes_choose(better, j, found);
  }
  lanes_store(b->error + at, best);
  lanes_store(b->int_scale + at, found);
}

RF_LANE_FN void put_plain_levels(const rf_k_shape *s, batch *b, int n, int at) {
  lanes zero = lanes_all(0), levels = lanes_all((float)s->levels);
  lanes scale = lanes_load(b->d + at) * lanes_load(b->int_scale + at);
  lane_mask there = lanes_differ(scale, zero);
  for (int i = 0; i < n; ++i) {
    lanes quotient = lanes_choose(there, lanes_load(b->x[i] + at) / scale, zero);
    lanes_store(b->q[i] + at, lanes_nearest(quotient, zero - levels, levels - lanes_all(1)));
  }
}

static void refit_factor(const rf_k_shape *s, const batch *b, int first, float *d) {
  double qq = 0, qx = 0;
  for (int sub = first; sub < first + s->subs; ++sub)
    for (int i = 0; i < VALUES / s->subs; ++i) {
      double u = (double)b->int_scale[sub] * b->q[i][sub];
      qq += u * u;
      qx += u * b->x[i][sub];
    }
  if (qq > 0) *d = (float)(qx / qq);
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* The state of the search for one super-block. */
typedef struct progress {
  float d, dmin; /* factors d and dmin to try next */
  double error;  /* the smallest error so far */
  bool done;
} progress;

RF_LANE_FN void fit(const rf_k_shape *s, batch *b, int n) {
  for (int at = 0; at < LANES; at += WIDTH)
    if (s->offsets) fit_offset(s, b, n, at);
    else fit_plain(s, b, n, at);
}
RF_LANE_FN void choose_integers(const rf_k_shape *s, batch *b, int n) {
  for (int at = 0; at < LANES; at += WIDTH)
    if (s->offsets) choose_pairs(s, b, n, at);
    else choose_scales(s, b, n, at);
}
RF_LANE_FN void levels_of(const rf_k_shape *s, batch *b, int n) {
  for (int at = 0; at < LANES; at += WIDTH)
    if (s->offsets) put_levels(s, b, n, at);
    else put_plain_levels(s, b, n, at);
}

/* Returns the first factors of a super-block, which give the widest scale the largest integer. */
static progress first_factors(const rf_k_shape *s, const batch *b, int first) {
  float widest = 0, deepest = 0;
  for (int i = first; i < first + s->subs; ++i) {
    if (s->offsets ? b->scale[i] > widest : fabsf(b->scale[i]) > fabsf(widest)) widest = b->scale[i];
    if (s->offsets && b->offset[i] > deepest) deepest = b->offset[i];
  }
  if (s->offsets)
    return (progress){
        .d = widest / (float)s->maximum, .dmin = deepest / (float)s->maximum, .error = INFINITY};
  return (progress){.d = widest / (float)s->minimum, .error = INFINITY, .done = widest == 0};
}

/* Sets the factors for the lanes of an unfinished super-block. */
static void begin_round(const rf_k_shape *s, batch *b, int first, progress *p) {
  float d = to_f16(p->d), dmin = to_f16(p->dmin);
  p->done = p->done || (s->offsets ? !(d >= 0 && dmin >= 0) : d == 0);
  for (int i = first; i < first + s->subs; ++i) {
    b->d[i] = d;
    b->dmin[i] = dmin;
  }
}

/* Keeps the integers of a super-block if their error is smaller than before. */
static void end_round(const rf_k_shape *s, const batch *b, int first, progress *p, rf_k_super *out) {
  double error = 0;
  if (p->done) return;
  for (int i = first; i < first + s->subs; ++i)
    error = s->offsets ? (float)error + b->error[i] : error + b->error[i];
  if (!(error < p->error)) {
    p->done = true;
    return;
  }
  p->error = (float)error;
  out->d = b->d[first];
  out->dmin = s->offsets ? b->dmin[first] : 0;
  for (int i = 0; i < s->subs; ++i) {
    out->scale[i] = (int)b->int_scale[first + i];
    out->offset[i] = s->offsets ? (int)b->int_offset[first + i] : 0;
  }
}

/* Writes the levels that belong to the best integers. */
RF_LANE_FN void finish(const rf_k_shape *s, batch *b, int n, rf_k_super *out) {
  for (int i = 0; i < LANES; ++i) {
    const rf_k_super *o = &out[i / s->subs];
    b->d[i] = o->d;
    b->dmin[i] = o->dmin;
    b->int_scale[i] = (float)o->scale[i % s->subs];
    b->int_offset[i] = (float)o->offset[i % s->subs];
  }
  levels_of(s, b, n);
  float zero = s->offsets ? 0 : (float)s->levels;
  for (int i = 0; i < n; ++i)
    for (int l = 0; l < LANES; ++l) out[l / s->subs].q[l % s->subs * n + i] = (uint8_t)(b->q[i][l] + zero);
}

RF_LANE_FN void search(const rf_k_shape *s, const float *x, int n, rf_k_super *out) {
  batch b;
  progress p[2];
  int blocks = LANES / s->subs;
  memset(out, 0, (size_t)blocks * sizeof *out);
  for (int l = 0; l < LANES; ++l)
    for (int i = 0; i < n; ++i) b.x[i][l] = x[l * n + i];
  fit(s, &b, n);
  for (int k = 0; k < blocks; ++k) p[k] = first_factors(s, &b, k * s->subs);
  for (int round = 0; round < RF_K_ROUNDS; ++round) {
    bool done = true;
    for (int k = 0; k < blocks; ++k) {
      begin_round(s, &b, k * s->subs, &p[k]);
      done = done && p[k].done;
    }
    if (done) break;
    choose_integers(s, &b, n);
    for (int k = 0; k < blocks; ++k) end_round(s, &b, k * s->subs, &p[k], &out[k]);
    if (round + 1 == RF_K_ROUNDS) break;
    levels_of(s, &b, n);
    for (int k = 0; k < blocks; ++k)
      if (s->offsets) refit_factors(s, &b, k * s->subs, &p[k].d, &p[k].dmin);
      else refit_factor(s, &b, k * s->subs, &p[k].d);
  }
  finish(s, &b, n, out);
}

void RF_K_SEARCH(const rf_k_shape *s, const float *x, rf_k_super *out) {
  /* the compiler makes one copy of the code for each kind of type, with constant loops */
  if (s->subs == 8)
    search(&(rf_k_shape){true, 8, s->levels, s->minimum, s->maximum, s->tries, s->step}, x, 32, out);
  else if (s->offsets)
    search(&(rf_k_shape){true, 16, s->levels, s->minimum, s->maximum, s->tries, s->step}, x, 16, out);
  else search(&(rf_k_shape){false, 16, s->levels, s->minimum, s->maximum, s->tries, s->step}, x, 16, out);
}
