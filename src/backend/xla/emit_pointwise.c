/* emit_pointwise.c - emitters of elementwise ops: sums, dropout, activations and gated
 * activations. */
#include "backend/xla/emit.h"

#include <math.h>

static void emit_add(rf_emit *e, const rf_op *op) {
  rf_emit_out(e, op, 0, rf_hlo_add(e->h, rf_emit_wide(e, op, 0), rf_emit_wide(e, op, 1)));
}

static void emit_add_dropout(rf_emit *e, const rf_op *op) {
  rf_val dropped = rf_emit_drop(e, op, rf_emit_wide(e, op, 1));
  rf_emit_out(e, op, 0, rf_hlo_add(e->h, rf_emit_wide(e, op, 0), dropped));
}

static void emit_dropout(rf_emit *e, const rf_op *op) {
  rf_emit_out(e, op, 0, rf_emit_drop(e, op, rf_emit_wide(e, op, 0)));
}

/* ---- activations ----------------------------------------------------------------------------- */

/* The normal distribution function, 0.5 erfc(-u / sqrt 2). */
static rf_val normal_part(rf_hlo *h, rf_val u) {
  return rf_hlo_multiply_c(h, rf_hlo_erfc(h, rf_hlo_multiply_c(h, u, -M_SQRT1_2)), 0.5);
}
static rf_val gelu_erf(rf_hlo *h, rf_val u) { return rf_hlo_multiply(h, u, normal_part(h, u)); }
static rf_val gelu_erf_slope(rf_hlo *h, rf_val u) {
  rf_val square = rf_hlo_multiply_c(h, rf_hlo_multiply(h, u, u), -0.5);
  rf_val density = rf_hlo_multiply_c(h, rf_hlo_exponential(h, square), 0.5 * M_2_SQRTPI * M_SQRT1_2);
  return rf_hlo_add(h, normal_part(h, u), rf_hlo_multiply(h, u, density));
}

static rf_val silu(rf_hlo *h, rf_val a) { return rf_hlo_multiply(h, a, rf_hlo_logistic(h, a)); }
/* s (1 + a (1 - s)), s = sigmoid(a) */
static rf_val silu_slope(rf_hlo *h, rf_val a) {
  rf_val s = rf_hlo_logistic(h, a), rest = rf_hlo_subtract(h, rf_hlo_scalar(h, a.type, 1), s);
  return rf_hlo_multiply(h, s, rf_hlo_add_c(h, rf_hlo_multiply(h, a, rest), 1));
}

/* An activation and its derivative, of f32 arrays. */
typedef struct activation {
  rf_val (*value)(rf_hlo *h, rf_val u);
  rf_val (*slope)(rf_hlo *h, rf_val u);
} activation;
static const activation GELU = {rf_emit_gelu, rf_emit_gelu_slope}, GELU_ERF = {gelu_erf, gelu_erf_slope},
                        SILU = {silu, silu_slope};

static void forward(rf_emit *e, const rf_op *op, activation act) {
  rf_emit_out(e, op, 0, act.value(e->h, rf_emit_wide(e, op, 0)));
}
static void backward(rf_emit *e, const rf_op *op, activation act) {
  rf_val slope = act.slope(e->h, rf_emit_wide(e, op, 0));
  rf_emit_out(e, op, 0, rf_hlo_multiply(e->h, rf_emit_wide(e, op, 1), slope));
}

static void emit_gelu(rf_emit *e, const rf_op *op) { forward(e, op, GELU); }
static void emit_gelu_bwd(rf_emit *e, const rf_op *op) { backward(e, op, GELU); }
static void emit_gelu_erf(rf_emit *e, const rf_op *op) { forward(e, op, GELU_ERF); }
static void emit_gelu_erf_bwd(rf_emit *e, const rf_op *op) { backward(e, op, GELU_ERF); }

/* ---- gated activations ----------------------------------------------------------------------- */

/* One half of the columns, in f32. The slice comes before the conversion, so that no f32 array has
 * all columns. */
static rf_val half_of(rf_emit *e, const rf_op *op, bool second) {
  rf_val v = rf_emit_in(e, op, 0);
  int64_t width = v.dim[1] / 2;
  rf_val half = rf_hlo_slice(e->h, v, 1, second ? width : 0, second ? 2 * width : width);
  return rf_hlo_convert(e->h, half, RF_HLO_F32);
}

static void gated(rf_emit *e, const rf_op *op, activation act) {
  rf_val gate = half_of(e, op, false), up = half_of(e, op, true);
  rf_emit_out(e, op, 0, rf_hlo_multiply(e->h, act.value(e->h, gate), up));
}

static void gated_bwd(rf_emit *e, const rf_op *op, activation act) {
  rf_hlo *h = e->h;
  rf_val gate = half_of(e, op, false), up = half_of(e, op, true), dh = rf_emit_wide(e, op, 1);
  rf_hlo_type type = rf_emit_out_type(e, op, 0);
  rf_val part[2] = {rf_hlo_multiply(h, rf_hlo_multiply(h, dh, up), act.slope(h, gate)),
                    rf_hlo_multiply(h, dh, act.value(h, gate))};
  for (int i = 0; i < 2; i++) part[i] = rf_hlo_convert(h, part[i], type);
  rf_val both = rf_hlo_concatenate(h, 1, 2, part);
  /* Without a barrier, compilers for GPUs write the two parts, and join the parts again for each
   * reader. */
  if (e->target.joins_late) rf_hlo_barrier(h, &both, 1);
  rf_emit_out(e, op, 0, both);
}

static void emit_swiglu(rf_emit *e, const rf_op *op) { gated(e, op, SILU); }
static void emit_swiglu_bwd(rf_emit *e, const rf_op *op) { gated_bwd(e, op, SILU); }
static void emit_geglu(rf_emit *e, const rf_op *op) { gated(e, op, GELU); }
static void emit_geglu_bwd(rf_emit *e, const rf_op *op) { gated_bwd(e, op, GELU); }

const rf_emitter RF_EMIT_POINTWISE[] = {
    {&RF_OP_ADD, emit_add, NULL},
    {&RF_OP_ADD_DROPOUT, emit_add_dropout, NULL},
    {&RF_OP_DROPOUT, emit_dropout, NULL},
    {&RF_OP_GELU, emit_gelu, NULL},
    {&RF_OP_GELU_BWD, emit_gelu_bwd, NULL},
    {&RF_OP_GELU_ERF, emit_gelu_erf, NULL},
    {&RF_OP_GELU_ERF_BWD, emit_gelu_erf_bwd, NULL},
    {&RF_OP_SWIGLU, emit_swiglu, NULL},
    {&RF_OP_SWIGLU_BWD, emit_swiglu_bwd, NULL},
    {&RF_OP_GEGLU, emit_geglu, NULL},
    {&RF_OP_GEGLU_BWD, emit_geglu_bwd, NULL},
    {0},
};
