/* emit_losses.c - emitters of the losses of sequences: policy_loss and pair_loss. To sum over a
 * segment, a scatter adds the values of rows at the number of their segment. Then each row reads
 * the sum of its segment. */
#include "backend/xla/emit.h"

#include <math.h>

/* The exponential of a larger number is infinite in f32. The product of infinity and an advantage
 * of 0 would be NaN. */
static const double LARGEST_EXPONENT = 88;

static rf_val f32(rf_hlo *h, double value) { return rf_hlo_scalar(h, RF_HLO_F32, value); }

/* v where `where` holds, 0 elsewhere. */
static rf_val only(rf_hlo *h, rf_val where, rf_val v) { return rf_hlo_select(h, where, v, f32(h, 0)); }

/* True if a row counts. A row that counts has a label and a weight other than 0. */
static rf_val counted(rf_hlo *h, rf_val labels, rf_val weights) {
  return rf_hlo_and(h, rf_hlo_compare_c(h, RF_HLO_GE, labels, 0), rf_hlo_compare_c(h, RF_HLO_NE, weights, 0));
}

/* Gets element index[r] of v for each row r. */
static rf_val at(rf_hlo *h, rf_val v, rf_val index) {
  return rf_hlo_gather(h, v, rf_hlo_reshape(h, index, RF_DIMS(index.dim[0], 1)), 1, (const int[]){0});
}

/* Sums v over the rows of each segment. Element s of the result is the sum of segment s. */
static rf_val sums_of(rf_hlo *h, rf_val number, rf_val v) {
  rf_val index = rf_hlo_reshape(h, number, RF_DIMS(number.dim[0], 1));
  return rf_hlo_scatter(h, rf_hlo_full_like(h, v, 0), index, v, 1, (const int[]){0}, true, false);
}

/* Computes the number of each row's segment, i32 (n), from the starts of segments, i32 (n+1). */
static rf_val numbers_of(rf_hlo *h, rf_val segments, int64_t rows) {
  return rf_emit_of_segments(h, segments, rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(rows + 1)), rows);
}

static rf_val ratio_of(rf_hlo *h, rf_val v) {
  return rf_hlo_exponential(h, rf_hlo_minimum(h, v, f32(h, LARGEST_EXPONENT)));
}

/* ---- policies -------------------------------------------------------------------------------- */

typedef struct policy {
  const rf_attr_policy *attr;
  rf_val logp, advantages, weights, reference; /* (n) */
  rf_val loss, by_ratio, by_logp;              /* (n): the results of row_loss in the reference backend */
} policy;

/* The losses of rows without the KL term, and their derivatives. */
static void objective(rf_hlo *h, policy *p, rf_val ratio) {
  const rf_attr_policy *attr = p->attr;
  rf_val capped = rf_hlo_compare_c(h, RF_HLO_GT, ratio, attr->cap > 0 ? (double)attr->cap : INFINITY);
  if (attr->cap > 0) ratio = rf_hlo_minimum(h, ratio, f32(h, (double)attr->cap));
  rf_val highest = f32(h, 1 + (double)attr->clip_high), lowest = f32(h, 1 - (double)attr->clip_low),
         gain = rf_hlo_multiply(h, ratio, p->advantages), none = rf_hlo_full_like(h, gain, 0),
         slope = rf_hlo_select(h, capped, none, gain), direct = none;
  if (attr->clip == RF_POLICY_CLIP_RATIO) {
    rf_val within = rf_hlo_minimum(h, rf_hlo_maximum(h, ratio, lowest), highest),
           clipped = rf_hlo_multiply(h, within, p->advantages);
    slope = rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_LT, clipped, gain), none, slope);
    gain = rf_hlo_minimum(h, gain, clipped);
  }
  if (attr->clip == RF_POLICY_CLIP_WEIGHT) {
    direct = rf_hlo_multiply(h, rf_hlo_minimum(h, ratio, highest), p->advantages);
    gain = rf_hlo_multiply(h, direct, p->logp);
    slope = none;
  }
  rf_val w = rf_hlo_negate(h, p->weights);
  p->loss = rf_hlo_multiply(h, w, gain);
  p->by_ratio = rf_hlo_multiply(h, w, slope);
  p->by_logp = rf_hlo_multiply(h, w, direct);
}

/* Adds weights * beta * k3. */
static void add_divergence(rf_hlo *h, policy *p) {
  if (!rf_has(p->reference)) return;
  rf_val apart = rf_hlo_subtract(h, p->reference, p->logp), more = rf_hlo_exponential_minus_one(h, apart),
         w = rf_hlo_multiply_c(h, p->weights, (double)p->attr->beta);
  p->loss = rf_hlo_add(h, p->loss, rf_hlo_multiply(h, w, rf_hlo_subtract(h, more, apart)));
  p->by_logp = rf_hlo_subtract(h, p->by_logp, rf_hlo_multiply(h, w, more));
}

/* inputs: nll?, labels, segments (n+1), old, advantages, weights, reference? (n) -> loss, dnll?
 * (n) */
static void emit_policy_loss(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_policy_level level = op->attr.policy.level;
  policy p = {.attr = &op->attr.policy,
              .logp = op->attr.policy.on_policy ? rf_emit_wide(e, op, 3)
                                                : rf_hlo_negate(h, rf_emit_wide(e, op, 0)),
              .advantages = rf_emit_wide(e, op, 4),
              .weights = rf_emit_wide(e, op, 5),
              .reference = rf_emit_wide(e, op, 6)};
  rf_val counts = counted(h, rf_emit_in(e, op, 1), p.weights),
         apart = only(h, counts, rf_hlo_subtract(h, p.logp, rf_emit_wide(e, op, 3))),
         each = rf_hlo_full_like(h, apart, 1), number = RF_NO_VAL;
  if (level != RF_POLICY_TOKEN) {
    number = numbers_of(h, rf_emit_in(e, op, 2), apart.dim[0]);
    apart = at(h, sums_of(h, number, apart), number);
  }
  if (level == RF_POLICY_SEQUENCE_MEAN) {
    rf_val count = at(h, sums_of(h, number, only(h, counts, each)), number);
    each = rf_hlo_divide(h, each, rf_hlo_maximum_c(h, count, 1));
    apart = rf_hlo_multiply(h, apart, each);
  }
  objective(h, &p, ratio_of(h, apart));
  add_divergence(h, &p);
  rf_emit_out(e, op, 0, only(h, counts, p.loss));
  if (!rf_emit_wants(op, 1)) return;
  rf_val slope = p.by_ratio;
  if (level != RF_POLICY_TOKEN)
    slope = rf_hlo_multiply(h, at(h, sums_of(h, number, only(h, counts, slope)), number), each);
  rf_val dnll = rf_hlo_multiply(h, rf_hlo_add(h, p.by_logp, slope), rf_hlo_negate(h, e->run.loss_scale));
  rf_emit_out(e, op, 1, only(h, counts, dnll));
}

/* ---- pairs ----------------------------------------------------------------------------------- */

typedef struct pairs {
  const rf_attr_pairs *attr;
  rf_val number, counts; /* (n): segment of each row, and a flag that is true if the row counts */
  rf_val loss, slope, h; /* (pairs): the loss, the derivative of the loss with respect to h, and h */
  rf_val each;           /* (n): derivative of a segment's score with respect to logp of a row */
} pairs;

/* log(1 + exp(v)) */
static rf_val softplus(rf_hlo *h, rf_val v) {
  rf_val small = rf_hlo_exponential(h, rf_hlo_negate(h, rf_hlo_abs(h, v)));
  return rf_hlo_add(h, rf_hlo_maximum_c(h, v, 0), rf_hlo_log(h, rf_hlo_add_c(h, small, 1)));
}

/* Sets the loss of each pair, and the derivative of the loss with respect to h. */
static void losses_of_pairs(rf_hlo *h, pairs *p) {
  const rf_attr_pairs *attr = p->attr;
  double beta = (double)attr->beta, e = (double)attr->smoothing;
  if (attr->kind == RF_PAIRS_IPO) {
    rf_val apart = rf_hlo_add_c(h, p->h, -1 / (2 * beta));
    p->loss = rf_hlo_multiply(h, apart, apart);
    p->slope = rf_hlo_multiply_c(h, apart, 2);
    return;
  }
  rf_val z = rf_hlo_multiply_c(h, p->h, beta);
  if (attr->kind == RF_PAIRS_SIMPO) z = rf_hlo_add_c(h, z, -(double)attr->gamma);
  p->loss = rf_hlo_add(h, rf_hlo_multiply_c(h, softplus(h, rf_hlo_negate(h, z)), 1 - e),
                       rf_hlo_multiply_c(h, softplus(h, z), e));
  p->slope = rf_hlo_multiply_c(h, rf_hlo_add_c(h, rf_hlo_logistic(h, z), e - 1), beta);
}

/* Column `which` of an array of values per segment. Column 0 has the preferred answers, and column
 * 1 the other answers. */
static rf_val side(rf_hlo *h, rf_val of_segments, int which) {
  int64_t odd = of_segments.dim[0] % 2, count = of_segments.dim[0] / 2 + odd;
  if (odd) of_segments = rf_hlo_pad(h, of_segments, 0, 0, 1, 0);
  rf_val both = rf_hlo_reshape(h, of_segments, RF_DIMS(count, 2));
  return rf_hlo_reshape(h, rf_hlo_slice(h, both, 1, which, which + 1), RF_DIMS(count));
}

/* True if a row is the first row of its segment that counts. */
static rf_val first_counted(rf_hlo *h, const pairs *p, rf_val starts) {
  int64_t rows = starts.dim[0];
  rf_val one = rf_hlo_convert(h, p->counts, RF_HLO_I32), sum = one;
  for (int64_t step = 1; step < rows; step *= 2)
    sum = rf_hlo_add(h, sum, rf_hlo_pad(h, rf_hlo_slice(h, sum, 0, 0, rows - step), 0, step, 0, 0));
  rf_val before = rf_hlo_subtract(h, sum, one);
  return rf_hlo_and(h, p->counts, rf_hlo_compare(h, RF_HLO_EQ, before, at(h, before, starts)));
}

/* Sets h = score of the preferred answer - score of the other answer. Returns (pairs): true if each
 * of the two answers has a row that counts. */
static rf_val compare_answers(rf_hlo *h, pairs *p, rf_val logp) {
  rf_val one = only(h, p->counts, rf_hlo_full_like(h, logp, 1)), count = sums_of(h, p->number, one),
         score = sums_of(h, p->number, only(h, p->counts, logp)), each = rf_hlo_full_like(h, count, 1);
  if (p->attr->kind != RF_PAIRS_DPO) each = rf_hlo_divide(h, each, rf_hlo_maximum_c(h, count, 1));
  score = rf_hlo_multiply(h, score, each);
  p->each = at(h, each, p->number);
  p->h = rf_hlo_subtract(h, side(h, score, 0), side(h, score, 1));
  return rf_hlo_and(h, rf_hlo_compare_c(h, RF_HLO_GT, side(h, count, 0), 0),
                    rf_hlo_compare_c(h, RF_HLO_GT, side(h, count, 1), 0));
}

/* inputs: nll, labels, segments (n+1), weights, reference? (n) -> loss, dnll?, margins? (n) */
static void emit_pair_loss(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val logp = rf_hlo_negate(h, rf_emit_wide(e, op, 0)), segments = rf_emit_in(e, op, 2),
         weights = rf_emit_wide(e, op, 3), reference = rf_emit_wide(e, op, 4);
  int64_t rows = logp.dim[0];
  pairs p = {.attr = &op->attr.pairs,
             .number = numbers_of(h, segments, rows),
             .counts = counted(h, rf_emit_in(e, op, 1), weights)};
  if (rf_has(reference)) logp = rf_hlo_subtract(h, logp, reference);
  rf_val both = compare_answers(h, &p, logp);
  losses_of_pairs(h, &p);
  rf_val starts = rf_emit_of_segments(h, segments, segments, rows), first = first_counted(h, &p, starts),
         weight = only(h, both, side(h, sums_of(h, p.number, only(h, first, weights)), 0)),
         pair = rf_hlo_shift_right_logical(h, p.number, rf_hlo_scalar(h, RF_HLO_I32, 1)),
         second = rf_hlo_convert(h, rf_hlo_and(h, p.number, rf_hlo_scalar(h, RF_HLO_I32, 1)), RF_HLO_F32),
         preferred = rf_hlo_compare_c(h, RF_HLO_EQ, second, 0);
  rf_emit_out(e, op, 0,
              only(h, rf_hlo_and(h, first, preferred), at(h, rf_hlo_multiply(h, weight, p.loss), pair)));
  if (rf_emit_wants(op, 2)) {
    rf_val margin = only(h, both, rf_hlo_multiply_c(h, p.h, (double)p.attr->beta)),
           begins = rf_hlo_compare(h, RF_HLO_EQ, starts, rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(rows)));
    rf_emit_out(e, op, 2, only(h, rf_hlo_and(h, begins, preferred), at(h, margin, pair)));
  }
  if (!rf_emit_wants(op, 1)) return;
  rf_val slope = rf_hlo_multiply(h, at(h, rf_hlo_multiply(h, weight, p.slope), pair), p.each),
         sign = rf_hlo_add_c(h, rf_hlo_multiply_c(h, second, 2), -1); /* of dnll: -1 if preferred */
  slope = rf_hlo_multiply(h, rf_hlo_multiply(h, slope, sign), e->run.loss_scale);
  rf_emit_out(e, op, 1, only(h, p.counts, slope));
}

const rf_emitter RF_EMIT_LOSSES[] = {
    {&RF_OP_POLICY_LOSS, emit_policy_loss, NULL},
    {&RF_OP_PAIR_LOSS, emit_pair_loss, NULL},
    {0},
};
