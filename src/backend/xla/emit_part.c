/* emit_part.c - emitters of attention with the tokens of a sequence, or the cached keys, spread
 * over chips. */
#include "backend/xla/emit_attention.h"

static int64_t chips_of(const rf_op *op) { return op->attr.group > 1 ? op->attr.group : 1; }

static void emit_kv_rows(rf_emit *e, const rf_op *op) {
  const rf_attr_attention *of = &op->attr.attention;
  rf_val qkv = rf_emit_in(e, op, 0);
  rf_emit_out(e, op, 0, rf_hlo_slice(e->h, qkv, 1, (int64_t)of->heads * of->head_dim, qkv.dim[1]));
}

static void emit_kv_join(rf_emit *e, const rf_op *op) {
  rf_val part[2] = {rf_emit_in(e, op, 0), rf_emit_in(e, op, 1)};
  rf_emit_out(e, op, 0, rf_hlo_concatenate(e->h, 1, 2, part));
}

/* Reshapes this chip's queries to heads (B,K,g,T/c,H), and all keys and values to (B,K,T,H). */
static rf_attend part_of(rf_emit *e, const rf_op *op, int segments, rf_val rows, rf_val kv, rf_val qkv[3]) {
  rf_hlo *h = e->h;
  const rf_attr_attention *of = &op->attr.attention;
  int64_t heads = of->kv_heads, dim = of->head_dim, group = of->heads / heads;
  rf_val rank = op->attr.axes ? rf_emit_rank(e, op->attr.axes) : rf_hlo_scalar(h, RF_HLO_I32, 0);
  rf_attend a = rf_attend_of(e, op, segments, rows.dim[0], chips_of(op), rank);
  qkv[0] = rf_attend_split(h, &a, rows, 0, (const int64_t[]){heads, group, dim});
  for (int i = 1; i < 3; i++) {
    rf_val v = rf_attend_split(h, &a, kv, (i - 1) * heads * dim, (const int64_t[]){heads, 1, dim});
    qkv[i] = rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], heads, v.dim[3], dim));
  }
  return a;
}

static void emit_attention_part(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val qkv[3], ctx, lse;
  rf_attend a = part_of(e, op, 2, rf_emit_in(e, op, 0), rf_emit_in(e, op, 1), qkv);
  rf_attend_forward(e, &a, qkv, &ctx, &lse);
  if (rf_emit_wants(op, 0))
    rf_emit_out(e, op, 0, rf_attend_join(h, rf_hlo_convert(h, ctx, rf_emit_out_type(e, op, 0))));
  if (rf_emit_wants(op, 1)) rf_emit_out(e, op, 1, rf_attend_lse_out(h, lse));
}

static void emit_attention_part_bwd(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_attr_attention *of = &op->attr.attention;
  int64_t heads = of->kv_heads, dim = of->head_dim, group = of->heads / heads;
  rf_val in[3] = {rf_emit_in(e, op, 0), rf_emit_in(e, op, 1), rf_emit_in(e, op, 4)}, qkv[3], grad[3];
  rf_hlo_barrier(h, in, 3); /* as in attention_bwd */
  rf_attend a = part_of(e, op, 5, in[0], in[1], qkv);
  rf_val dctx = rf_attend_split(h, &a, in[2], 0, (const int64_t[]){heads, group, dim}),
         delta = rf_attend_delta(e, &a, rf_emit_in(e, op, 2), in[2], heads, group),
         lse = rf_attend_lse_in(h, &a, rf_emit_in(e, op, 3), heads, group);
  rf_attend_backward(e, &a, qkv, dctx, lse, delta, grad);
  for (int i = 0; i < 3; i++) {
    rf_val v = rf_hlo_convert(h, grad[i], in[0].type);
    if (i > 0) v = rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], heads, 1, v.dim[2], dim));
    grad[i] = rf_attend_join(h, v);
  }
  rf_emit_out(e, op, 0, grad[0]);
  rf_emit_out(e, op, 1, rf_hlo_concatenate(h, 1, 2, grad + 1));
}

/* Weights exp(lse - maximum over the chips), (n,c,N), and the sum of the weighted parts. */
static void emit_attention_merge(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val parts = rf_emit_wide(e, op, 0), lse = rf_emit_wide(e, op, 1);
  int64_t rows = parts.dim[0], heads = op->attr.attention.heads, chips = lse.dim[1] / heads,
          dim = parts.dim[1] / lse.dim[1];
  lse = rf_hlo_reshape(h, lse, RF_DIMS(rows, chips, heads));
  parts = rf_hlo_reshape(h, parts, RF_DIMS(rows, chips, heads, dim));
  rf_val most = rf_hlo_broadcast(h, rf_hlo_reduce(h, RF_HLO_MAX, lse, 1), (const int[]){0, 2}, 3, lse.dim);
  rf_val weight = rf_hlo_exponential(h, rf_hlo_subtract(h, lse, most));
  rf_val sum = rf_hlo_broadcast(h, rf_hlo_reduce(h, RF_HLO_SUM, weight, 1), (const int[]){0, 2}, 3, lse.dim);
  weight = rf_hlo_broadcast(h, rf_hlo_divide(h, weight, sum), (const int[]){0, 1, 2}, 4, parts.dim);
  rf_val ctx = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_multiply(h, weight, parts), 1);
  rf_emit_out(e, op, 0, rf_hlo_reshape(h, ctx, RF_DIMS(rows, heads * dim)));
}

const rf_emitter RF_EMIT_PART[] = {
    {&RF_OP_KV_ROWS, emit_kv_rows, NULL},
    {&RF_OP_KV_JOIN, emit_kv_join, NULL},
    {&RF_OP_ATTENTION_PART, emit_attention_part, NULL},
    {&RF_OP_ATTENTION_PART_BWD, emit_attention_part_bwd, NULL},
    {&RF_OP_ATTENTION_MERGE, emit_attention_merge, NULL},
    {0},
};
