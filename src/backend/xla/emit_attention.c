/* emit_attention.c - emitters of attention over the segments of a batch, and of its backward op. */
#include "backend/xla/emit_attention.h"

/* q (B,K,g,T,H), k and v (B,K,T,H) of rows qkv (n,(N+2K)H). */
static void heads_of(rf_emit *e, const rf_attend *a, rf_val rows, rf_val qkv[3]) {
  const rf_attr_attention *of = a->attr;
  int64_t dim = of->head_dim, kv = of->kv_heads, q = of->heads * dim, group = of->heads / kv;
  qkv[0] = rf_attend_split(e->h, a, rows, 0, (const int64_t[]){kv, group, dim});
  for (int i = 1; i < 3; i++) {
    rf_val v = rf_attend_split(e->h, a, rows, q + (i - 1) * kv * dim, (const int64_t[]){kv, 1, dim});
    qkv[i] = rf_hlo_reshape(e->h, v, RF_DIMS(v.dim[0], kv, v.dim[3], dim));
  }
}

static void emit_attention(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  if (rf_cudnn_allows(e, op)) {
    rf_cudnn_attention(e, op);
    return;
  }
  rf_val rows = rf_emit_in(e, op, 0), qkv[3], ctx, lse;
  rf_attend a = rf_attend_of(e, op, 1, rows.dim[0], 1, rf_hlo_scalar(h, RF_HLO_I32, 0));
  heads_of(e, &a, rows, qkv);
  rf_attend_forward(e, &a, qkv, &ctx, &lse);
  if (rf_emit_wants(op, 0))
    rf_emit_out(e, op, 0, rf_attend_join(h, rf_hlo_convert(h, ctx, rf_emit_out_type(e, op, 0))));
  if (rf_emit_wants(op, 1)) rf_emit_out(e, op, 1, rf_attend_lse_out(h, lse));
}

static void emit_attention_bwd(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  /* Because of the barrier, the compiler cannot keep the heads of the forward pass in memory until
   * the backward pass. */
  rf_val in[2] = {rf_emit_in(e, op, 0), rf_emit_in(e, op, 3)}, qkv[3], grad[3];
  rf_hlo_barrier(h, in, 2);
  if (rf_cudnn_allows(e, op)) {
    rf_cudnn_attention_bwd(e, op, in[0], in[1]);
    return;
  }
  const rf_attr_attention *of = &op->attr.attention;
  int64_t kv = of->kv_heads, group = of->heads / kv, dim = of->head_dim;
  rf_attend a = rf_attend_of(e, op, 4, in[0].dim[0], 1, rf_hlo_scalar(h, RF_HLO_I32, 0));
  heads_of(e, &a, in[0], qkv);
  rf_val dctx = rf_attend_split(h, &a, in[1], 0, (const int64_t[]){kv, group, dim}),
         delta = rf_attend_delta(e, &a, rf_emit_in(e, op, 1), in[1], kv, group),
         lse = rf_attend_lse_in(h, &a, rf_emit_in(e, op, 2), kv, group);
  rf_attend_backward(e, &a, qkv, dctx, lse, delta, grad);
  for (int i = 0; i < 3; i++) {
    rf_val v = rf_hlo_convert(h, grad[i], rf_emit_out_type(e, op, 0));
    if (i > 0) v = rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], kv, 1, v.dim[2], dim));
    grad[i] = rf_attend_join(h, v);
  }
  rf_emit_out(e, op, 0, rf_hlo_concatenate(h, 1, 3, grad));
}

const rf_emitter RF_EMIT_ATTENTION[] = {
    {&RF_OP_ATTENTION, emit_attention, NULL},
    {&RF_OP_ATTENTION_BWD, emit_attention_bwd, NULL},
    {0},
};
