/* emit_norm.c - emitters of LayerNorm and RMSNorm over rows, over the heads of a row, and over the
 * latent columns of a row. */
#include "backend/xla/emit.h"

/* Mean along the last dimension. */
static rf_val mean_of(rf_hlo *h, rf_val v) {
  return rf_hlo_multiply_c(h, rf_hlo_reduce(h, RF_HLO_SUM, v, v.rank - 1), 1.0 / (double)v.dim[v.rank - 1]);
}
/* Computes 1/sqrt(mean of v^2 + eps) along the last dimension. */
static rf_val rstd_of(rf_hlo *h, rf_val v, float eps) {
  return rf_hlo_rsqrt(h, rf_hlo_add_c(h, mean_of(h, rf_hlo_multiply(h, v, v)), (double)eps));
}
/* Repeats v along a new last dimension of extent `width`. */
static rf_val along_last(rf_hlo *h, rf_val v, int64_t width) {
  int64_t dim[RF_HLO_RANK];
  for (int i = 0; i < v.rank; i++) dim[i] = v.dim[i];
  dim[v.rank] = width;
  return rf_hlo_broadcast(h, v, (const int[]){0, 1, 2, 3}, v.rank + 1, dim);
}
/* Computes v - s, or v * s. s has one number for each row of v. */
static rf_val minus(rf_hlo *h, rf_val v, rf_val s) {
  return rf_hlo_subtract(h, v, along_last(h, s, v.dim[v.rank - 1]));
}
static rf_val times(rf_hlo *h, rf_val v, rf_val s) {
  return rf_hlo_multiply(h, v, along_last(h, s, v.dim[v.rank - 1]));
}
/* (offset + gain), in f32 */
static rf_val gain_of(rf_emit *e, const rf_op *op, int slot, float offset) {
  rf_val gain = rf_emit_wide(e, op, slot);
  return offset != 0 ? rf_hlo_add_c(e->h, gain, (double)offset) : gain;
}
/* The gradient of a norm's input: rstd (g - h mean(g h)). If `centered`, mean(g) is also
 * subtracted. `normal` is h, and `slope` is g. */
static rf_val input_gradient(rf_hlo *h, rf_val normal, rf_val slope, rf_val rstd, bool centered) {
  rf_val both = mean_of(h, rf_hlo_multiply(h, slope, normal)), value = slope;
  if (centered) value = minus(h, value, mean_of(h, slope));
  return times(h, rf_hlo_subtract(h, value, times(h, normal, both)), rstd);
}
static rf_val column_of(rf_hlo *h, rf_val stats, int64_t i) {
  return rf_hlo_reshape(h, rf_hlo_slice(h, stats, 1, i, i + 1), 1, stats.dim);
}
static rf_val as_column(rf_hlo *h, rf_val v) { return rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], 1)); }

/* ---- rows ------------------------------------------------------------------------------------ */

static void forward(rf_emit *e, const rf_op *op, bool centered) {
  rf_hlo *h = e->h;
  rf_val x = rf_emit_wide(e, op, 0), gain = gain_of(e, op, 1, op->attr.norm.offset), mean = RF_NO_VAL;
  int64_t rows = x.dim[0];
  if (centered) {
    mean = mean_of(h, x);
    x = minus(h, x, mean);
  }
  rf_val rstd = rstd_of(h, x, op->attr.norm.eps);
  rf_val y = rf_hlo_multiply(h, times(h, x, rstd), rf_emit_across_rows(e, gain, rows));
  if (centered) y = rf_hlo_add(h, y, rf_emit_across_rows(e, rf_emit_wide(e, op, 2), rows));
  rf_emit_out(e, op, 0, y);
  if (!rf_emit_wants(op, 1)) return;
  rf_val stats[2] = {as_column(h, centered ? mean : rstd), as_column(h, rstd)};
  rf_emit_out(e, op, 1, rf_hlo_concatenate(h, 1, centered ? 2 : 1, stats));
}

static void backward(rf_emit *e, const rf_op *op, bool centered) {
  rf_hlo *h = e->h;
  rf_val normal = rf_emit_wide(e, op, 0), gain = gain_of(e, op, 1, op->attr.norm.offset),
         stats = rf_emit_wide(e, op, 2), dy = rf_emit_wide(e, op, 3), dres = rf_emit_wide(e, op, 4);
  rf_val rstd = column_of(h, stats, centered ? 1 : 0);
  if (centered) normal = minus(h, normal, column_of(h, stats, 0));
  normal = times(h, normal, rstd);
  if (rf_emit_wants(op, 1))
    rf_emit_out(e, op, 1, rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_multiply(h, dy, normal), 0));
  if (rf_emit_wants(op, 2)) rf_emit_out(e, op, 2, rf_hlo_reduce(h, RF_HLO_SUM, dy, 0));
  if (!rf_emit_wants(op, 0)) return;
  rf_val slope = rf_hlo_multiply(h, dy, rf_emit_across_rows(e, gain, dy.dim[0]));
  rf_val dx = input_gradient(h, normal, slope, rstd, centered);
  if (rf_has(dres)) dx = rf_hlo_add(h, rf_emit_rounded(e, op, 0, dx), dres);
  rf_emit_out(e, op, 0, dx);
}

static void emit_layernorm(rf_emit *e, const rf_op *op) { forward(e, op, true); }
static void emit_layernorm_bwd(rf_emit *e, const rf_op *op) { backward(e, op, true); }
static void emit_rmsnorm(rf_emit *e, const rf_op *op) { forward(e, op, false); }
static void emit_rmsnorm_bwd(rf_emit *e, const rf_op *op) { backward(e, op, false); }

/* ---- heads ----------------------------------------------------------------------------------- */

/* The query and key heads of rows of heads: (n, N+K, H), in f32. */
static rf_val normed_heads(rf_emit *e, const rf_op *op, int slot) {
  const rf_attr_head_norm *attr = &op->attr.head_norm;
  rf_val v = rf_emit_in(e, op, slot);
  int64_t heads = attr->heads + attr->kv_heads;
  v = rf_hlo_slice(e->h, v, 1, 0, heads * attr->head_dim);
  v = rf_hlo_reshape(e->h, v, RF_DIMS(v.dim[0], heads, attr->head_dim));
  return rf_hlo_convert(e->h, v, RF_HLO_F32);
}

/* Sets output 0 to `heads` (n, N+K, H), followed by the value heads of input `slot`. */
static void set_heads(rf_emit *e, const rf_op *op, rf_val heads, int slot) {
  rf_hlo *h = e->h;
  rf_val from = rf_emit_in(e, op, slot);
  int64_t columns = heads.dim[1] * heads.dim[2];
  heads = rf_hlo_convert(h, heads, rf_emit_out_type(e, op, 0));
  rf_val part[2] = {rf_hlo_reshape(h, heads, RF_DIMS(from.dim[0], columns)),
                    rf_hlo_slice(h, from, 1, columns, from.dim[1])};
  rf_emit_out(e, op, 0, rf_hlo_concatenate(h, 1, columns < from.dim[1] ? 2 : 1, part));
}

/* The gain of each query and key head: (n, N+K, H). */
static rf_val gains_of_heads(rf_emit *e, const rf_op *op, int64_t rows) {
  const rf_attr_head_norm *attr = &op->attr.head_norm;
  const int32_t heads[2] = {attr->heads, attr->kv_heads};
  rf_val part[2];
  for (int i = 0; i < 2; i++) part[i] = rf_emit_across_rows(e, gain_of(e, op, 1 + i, attr->offset), heads[i]);
  rf_val all = rf_hlo_concatenate(e->h, 0, 2, part);
  return rf_hlo_broadcast(e->h, all, (const int[]){1, 2}, RF_DIMS(rows, all.dim[0], all.dim[1]));
}

static void emit_head_norm(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val x = normed_heads(e, op, 0), rstd = rstd_of(h, x, op->attr.head_norm.eps);
  set_heads(e, op, rf_hlo_multiply(h, times(h, x, rstd), gains_of_heads(e, op, x.dim[0])), 0);
  rf_emit_out(e, op, 1, rstd);
}

static void emit_head_norm_bwd(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_attr_head_norm *attr = &op->attr.head_norm;
  rf_val rstd = rf_emit_wide(e, op, 3), normal = times(h, normed_heads(e, op, 0), rstd),
         dy = normed_heads(e, op, 4), product = rf_hlo_multiply(h, dy, normal);
  for (int slot = 1; slot <= 2; slot++) {
    if (!rf_emit_wants(op, slot)) continue;
    int64_t first = slot == 1 ? 0 : attr->heads, last = slot == 1 ? attr->heads : product.dim[1];
    rf_val part = rf_hlo_slice(h, product, 1, first, last);
    part = rf_hlo_reshape(h, part, RF_DIMS(part.dim[0] * part.dim[1], part.dim[2]));
    rf_emit_out(e, op, slot, rf_hlo_reduce(h, RF_HLO_SUM, part, 0));
  }
  if (!rf_emit_wants(op, 0)) return;
  rf_val slope = rf_hlo_multiply(h, dy, gains_of_heads(e, op, dy.dim[0]));
  set_heads(e, op, input_gradient(h, normal, slope, rstd, false), 4);
}

/* ---- latent rows ----------------------------------------------------------------------------- */

static rf_val latent_columns(rf_emit *e, rf_val x, int64_t size) {
  return rf_hlo_convert(e->h, rf_hlo_slice(e->h, x, 1, 0, size), RF_HLO_F32);
}

static void emit_latent_norm(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val all = rf_emit_in(e, op, 0), gain = rf_emit_wide(e, op, 1), x = latent_columns(e, all, gain.dim[0]);
  rf_val rstd = rstd_of(h, x, op->attr.norm.eps);
  rf_emit_out(e, op, 0, rf_hlo_multiply(h, times(h, x, rstd), rf_emit_across_rows(e, gain, x.dim[0])));
  rf_emit_out(e, op, 1, rf_hlo_slice(h, all, 1, gain.dim[0], all.dim[1]));
  if (rf_emit_wants(op, 2)) rf_emit_out(e, op, 2, as_column(h, rstd));
}

static void emit_latent_norm_bwd(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val all = rf_emit_in(e, op, 0), gain = rf_emit_wide(e, op, 1), dlatent = rf_emit_wide(e, op, 3),
         rest = rf_emit_in(e, op, 4);
  int64_t rows = all.dim[0], size = gain.dim[0], width = all.dim[1];
  if (!rf_has(dlatent)) dlatent = rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(rows, size));
  rf_val rstd = column_of(h, rf_emit_wide(e, op, 2), 0),
         normal = times(h, latent_columns(e, all, size), rstd);
  if (rf_emit_wants(op, 1))
    rf_emit_out(e, op, 1, rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_multiply(h, dlatent, normal), 0));
  if (!rf_emit_wants(op, 0)) return;
  rf_hlo_type type = rf_emit_out_type(e, op, 0);
  rf_val slope = rf_hlo_multiply(h, dlatent, rf_emit_across_rows(e, gain, rows));
  if (!rf_has(rest)) rest = rf_hlo_full(h, type, 0, RF_DIMS(rows, width - size));
  rf_val part[2] = {rf_hlo_convert(h, input_gradient(h, normal, slope, rstd, false), type),
                    rf_hlo_convert(h, rest, type)};
  rf_emit_out(e, op, 0, rf_hlo_concatenate(h, 1, 2, part));
}

const rf_emitter RF_EMIT_NORM[] = {
    {&RF_OP_LAYERNORM, emit_layernorm, NULL},
    {&RF_OP_LAYERNORM_BWD, emit_layernorm_bwd, NULL},
    {&RF_OP_RMSNORM, emit_rmsnorm, NULL},
    {&RF_OP_RMSNORM_BWD, emit_rmsnorm_bwd, NULL},
    {&RF_OP_HEAD_NORM, emit_head_norm, NULL},
    {&RF_OP_HEAD_NORM_BWD, emit_head_norm_bwd, NULL},
    {&RF_OP_LATENT_NORM, emit_latent_norm, NULL},
    {&RF_OP_LATENT_NORM_BWD, emit_latent_norm_bwd, NULL},
    {0},
};
