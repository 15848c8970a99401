/* emit_optimizer.c - emitters of gradient norms, clipping and AdamW, and of the sums of the
 * loss. */
#include "backend/xla/emit.h"

#include <math.h>

/* ---- sums ------------------------------------------------------------------------------------ */

enum { RUN = 256 };

/* Sum of all elements of an f32 array. A compiler may add in any order, even one element after the
 * other. So the sum is computed in stages, and a stage sums short runs, to keep the error small. */
static rf_val sum_of(rf_hlo *h, rf_val v) {
  while (v.rank > 1) v = rf_hlo_reduce(h, RF_HLO_SUM, v, v.rank - 1);
  if (v.rank == 0) return v;
  while (v.dim[0] > 2 * RUN) {
    int64_t runs = (v.dim[0] + RUN - 1) / RUN;
    if (runs * RUN > v.dim[0]) v = rf_hlo_pad(h, v, 0, 0, runs * RUN - v.dim[0], 0);
    v = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_reshape(h, v, RF_DIMS(runs, RUN)), 1);
  }
  return rf_hlo_reduce(h, RF_HLO_SUM, v, 0);
}

/* The sum of squares of `grad` as in norm_sq. The square of an element is divided by the number of
 * chips that have this element. */
static rf_val square_sum(rf_emit *e, const rf_op *op, rf_val grad) {
  rf_hlo *h = e->h;
  const rf_attr_sums *attr = &op->attr.sums;
  rf_val square = rf_hlo_multiply(h, grad, grad);
  if (attr->copies > 1 && grad.rank > 0) {
    int last = grad.rank - 1;
    rf_val column = rf_hlo_iota(h, RF_HLO_I32, last, grad.rank, grad.dim);
    rf_val shared = rf_hlo_compare_c(h, RF_HLO_GE, column, (double)attr->own_columns);
    square = rf_hlo_select(h, shared, rf_hlo_multiply_c(h, square, 1.0 / attr->copies), square);
  }
  rf_val sum = sum_of(h, square);
  return op->attr.group > 1 ? rf_hlo_multiply_c(h, sum, 1.0 / op->attr.group) : sum;
}

/* Writes one element of the vector of sums in output `slot`. All other elements keep their
 * value. */
static void set_element(rf_emit *e, const rf_op *op, int slot, rf_val sum) {
  rf_hlo *h = e->h;
  int64_t count = e->graph->tensor[op->output[slot]].shape[0];
  rf_val sums = e->value[op->output[slot]];
  if (!rf_has(sums)) sums = rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(count));
  rf_val index = rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(count));
  rf_val here = rf_hlo_compare_c(h, RF_HLO_EQ, index, (double)op->attr.sums.element);
  rf_emit_set(e, op, slot, rf_hlo_select(h, here, sum, sums));
  e->probed = sum;
}

static void emit_norm_sq(rf_emit *e, const rf_op *op) {
  set_element(e, op, 0, square_sum(e, op, rf_emit_wide(e, op, 0)));
}

static void emit_norm_total(rf_emit *e, const rf_op *op) {
  rf_emit_out(e, op, 0, rf_hlo_reshape(e->h, sum_of(e->h, rf_emit_in(e, op, 0)), RF_DIMS(1)));
}

static void emit_clip(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  double limit = (double)op->attr.clip.limit;
  rf_val norm = rf_hlo_sqrt(h, sum_of(h, rf_emit_in(e, op, 0))), one = rf_hlo_scalar(h, RF_HLO_F32, 1);
  rf_val factor = one;
  if (limit > 0)
    factor = rf_hlo_select(h, rf_hlo_compare_c(h, RF_HLO_GT, norm, limit),
                           rf_hlo_divide(h, rf_hlo_scalar(h, RF_HLO_F32, limit), norm), one);
  rf_val part[2] = {rf_hlo_reshape(h, norm, RF_DIMS(1)), rf_hlo_reshape(h, factor, RF_DIMS(1))};
  rf_emit_out(e, op, 0, rf_hlo_concatenate(h, 0, 2, part));
  e->probed = norm;
}

/* metrics: sum of nll over rows with a label, number of these rows, number of correct
 * predictions */
static void emit_loss_sum(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val nll = rf_emit_wide(e, op, 0), labels = rf_emit_in(e, op, 2), zero = rf_hlo_scalar(h, RF_HLO_F32, 0);
  rf_val counts = rf_hlo_compare_c(h, RF_HLO_GE, labels, 0);
  rf_val right = rf_hlo_and(h, counts, rf_hlo_compare(h, RF_HLO_EQ, rf_emit_in(e, op, 1), labels));
  rf_val sum[4] = {sum_of(h, rf_hlo_select(h, counts, nll, zero)),
                   sum_of(h, rf_hlo_convert(h, counts, RF_HLO_F32)),
                   sum_of(h, rf_hlo_convert(h, right, RF_HLO_F32)), zero};
  for (int i = 0; i < 4; i++) sum[i] = rf_hlo_reshape(h, sum[i], RF_DIMS(1));
  rf_emit_out(e, op, 0, rf_hlo_concatenate(h, 0, 4, sum));
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

/* 1 - beta^step. Subtracting a power from 1 directly would lose digits. */
static rf_val correction(rf_emit *e, float beta) {
  rf_hlo *h = e->h;
  rf_val step = rf_hlo_convert(h, e->run.step, RF_HLO_F32);
  rf_val power = rf_hlo_exponential_minus_one(h, rf_hlo_multiply_c(h, step, log((double)beta)));
  return rf_hlo_negate(h, power);
}

/* beta * old + (1 - beta) * value */
static rf_val blend(rf_hlo *h, double beta, rf_val old, rf_val value) {
  return rf_hlo_add(h, rf_hlo_multiply_c(h, old, beta), rf_hlo_multiply_c(h, value, 1 - beta));
}

static void emit_adamw(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_attr_adamw *attr = &op->attr.adamw;
  rf_val grad = rf_emit_wide(e, op, 0), w = rf_emit_wide(e, op, 1), m = rf_emit_wide(e, op, 2),
         v = rf_emit_wide(e, op, 3), clip = rf_emit_in(e, op, 4);
  rf_val fine = RF_NO_VAL;
  if (rf_emit_wants(op, 4)) {
    /* The update waits for the sum. Otherwise the compiler's loop for the sum also writes the new
     * moment, while the rest of the update still reads the old moment. Then the moments of all
     * layers would be copied. */
    rf_val known[2] = {grad, square_sum(e, op, grad)};
    rf_hlo_barrier(h, known, 2);
    set_element(e, op, 4, known[1]);
    grad = known[0];
    fine = rf_hlo_is_finite(h, known[1]);
  }
  rf_val g = grad;
  if (rf_has(clip)) g = rf_hlo_multiply(h, g, rf_hlo_reshape(h, rf_hlo_slice(h, clip, 0, 1, 2), 0, NULL));
  rf_val new_m = blend(h, (double)attr->beta1, m, g),
         new_v = blend(h, (double)attr->beta2, v, rf_hlo_multiply(h, g, g));
  rf_val mhat = rf_hlo_divide(h, new_m, correction(e, attr->beta1)),
         root = rf_hlo_sqrt(h, rf_hlo_divide(h, new_v, correction(e, attr->beta2)));
  rf_val change = rf_hlo_divide(h, mhat, rf_hlo_add_c(h, root, (double)attr->eps));
  if (attr->weight_decay != 0)
    change = rf_hlo_add(h, change, rf_hlo_multiply_c(h, w, (double)attr->weight_decay));
  rf_val new_w = rf_hlo_subtract(h, w, rf_hlo_multiply(h, change, e->run.lr));
  if (rf_has(fine)) {
    /* No other op has checked this gradient. If the gradient is not finite, the weights stay the
     * same. */
    new_w = rf_hlo_select(h, fine, new_w, w);
    new_m = rf_hlo_select(h, fine, new_m, m);
    new_v = rf_hlo_select(h, fine, new_v, v);
  }
  rf_emit_out(e, op, 0, new_w);
  rf_emit_out(e, op, 1, new_m);
  rf_emit_out(e, op, 2, new_v);
  /* The weight for products is the rounded master, even if the master has not changed. */
  if (rf_emit_wants(op, 3))
    e->value[op->output[3]] = rf_hlo_convert(h, e->value[op->output[0]], rf_emit_out_type(e, op, 3));
}

const rf_emitter RF_EMIT_OPTIMIZER[] = {
    {&RF_OP_NORM_SQ, emit_norm_sq, NULL}, {&RF_OP_NORM_TOTAL, emit_norm_total, NULL},
    {&RF_OP_CLIP, emit_clip, NULL},       {&RF_OP_LOSS_SUM, emit_loss_sum, NULL},
    {&RF_OP_ADAMW, emit_adamw, NULL},     {0},
};
