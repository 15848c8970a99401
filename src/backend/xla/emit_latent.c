/* emit_latent.c - emitters of latent attention: over keys and values, with its backward op, and
 * over latent rows of a batch or of a cache. Letters of sizes: a query has P columns that are not
 * rotated and R rotated columns, a value has W columns, and a latent row has C columns. */
#include "backend/xla/emit_attention.h"
#include "backend/xla/emit_cached.h"

typedef struct sizes {
  int64_t heads, plain, rotated, value; /* N, P, R, W */
} sizes;
static sizes sizes_of(const rf_op *op) {
  const rf_attr_attention *a = &op->attr.attention;
  return (sizes){a->heads, a->head_dim - a->rope_dim, a->rope_dim, a->value_dim};
}

static rf_val zero_rank(rf_emit *e) { return rf_hlo_scalar(e->h, RF_HLO_I32, 0); }

/* Repeats (B*T,R) for all heads: (B,N,T,R). */
static rf_val for_heads(rf_hlo *h, const rf_attend *a, rf_val v, int64_t heads) {
  v = rf_hlo_reshape(h, v, RF_DIMS(a->batch, a->keys, v.dim[1]));
  return rf_hlo_broadcast(h, v, (const int[]){0, 2, 3}, RF_DIMS(a->batch, heads, a->keys, v.dim[2]));
}

/* q (B,N,1,T,P+R), k (B,N,T,P+R), v (B,N,T,W) */
static void heads_of(rf_emit *e, const rf_attend *a, sizes s, const rf_val in[3], rf_val qkv[3]) {
  rf_hlo *h = e->h;
  qkv[0] = rf_attend_split(h, a, in[0], 0, (const int64_t[]){s.heads, 1, s.plain + s.rotated});
  rf_val kv = rf_attend_split(h, a, in[1], 0, (const int64_t[]){s.heads, 1, s.plain + s.value});
  kv = rf_hlo_reshape(h, kv, RF_DIMS(a->batch, s.heads, a->keys, s.plain + s.value));
  rf_val part[2] = {rf_hlo_slice(h, kv, 3, 0, s.plain), for_heads(h, a, in[2], s.heads)};
  qkv[1] = rf_hlo_concatenate(h, 3, 2, part);
  qkv[2] = rf_hlo_slice(h, kv, 3, s.plain, s.plain + s.value);
}

static void emit_attention_latent(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val in[3] = {rf_emit_in(e, op, 0), rf_emit_in(e, op, 1), rf_emit_in(e, op, 2)}, qkv[3], ctx, lse;
  rf_attend a = rf_attend_of(e, op, 3, in[0].dim[0], 1, zero_rank(e));
  heads_of(e, &a, sizes_of(op), in, qkv);
  rf_attend_forward(e, &a, qkv, &ctx, &lse);
  if (rf_emit_wants(op, 0))
    rf_emit_out(e, op, 0, rf_attend_join(h, rf_hlo_convert(h, ctx, rf_emit_out_type(e, op, 0))));
  if (rf_emit_wants(op, 1)) rf_emit_out(e, op, 1, rf_attend_lse_out(h, lse));
}

/* Reshapes (B,N,T,c) to rows (B*T, N*c) of the input's type. */
static rf_val rows_of(rf_hlo *h, rf_val v, rf_hlo_type type) {
  v = rf_hlo_convert(h, rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], 1, v.dim[2], v.dim[3])), type);
  return rf_attend_join(h, v);
}

static void emit_attention_latent_bwd(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  sizes s = sizes_of(op);
  rf_val in[4] = {rf_emit_in(e, op, 0), rf_emit_in(e, op, 1), rf_emit_in(e, op, 2), rf_emit_in(e, op, 5)},
         qkv[3], grad[3];
  rf_hlo_barrier(h, in, 4); /* as in attention_bwd */
  rf_hlo_type type = in[0].type;
  rf_attend a = rf_attend_of(e, op, 6, in[0].dim[0], 1, zero_rank(e));
  heads_of(e, &a, s, in, qkv);
  rf_val dctx = rf_attend_split(h, &a, in[3], 0, (const int64_t[]){s.heads, 1, s.value}),
         delta = rf_attend_delta(e, &a, rf_emit_in(e, op, 3), in[3], s.heads, 1),
         lse = rf_attend_lse_in(h, &a, rf_emit_in(e, op, 4), s.heads, 1);
  rf_attend_backward(e, &a, qkv, dctx, lse, delta, grad);
  rf_emit_out(e, op, 0, rf_attend_join(h, rf_hlo_convert(h, grad[0], type)));
  rf_val part[2] = {rf_hlo_slice(h, grad[1], 3, 0, s.plain), grad[2]};
  rf_emit_out(e, op, 1, rows_of(h, rf_hlo_concatenate(h, 3, 2, part), type));
  rf_val turns = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_slice(h, grad[1], 3, s.plain, s.plain + s.rotated), 1);
  rf_emit_out(e, op, 2, rf_hlo_reshape(h, turns, RF_DIMS(in[0].dim[0], s.rotated)));
}

/* ---- latent rows ----------------------------------------------------------------------------- */

static rf_hlo_type wider(rf_val a, rf_val b) { return a.type == b.type ? a.type : RF_HLO_F32; }

/* Queries in the latent space, (n, N, C+R) of type `kept`, from q (n,N(P+R)) and w (C,N(P+W)). */
static rf_val absorbed(rf_hlo *h, sizes s, rf_val q, rf_val w, rf_hlo_type kept) {
  int64_t n = q.dim[0], latent = w.dim[0];
  rf_hlo_type type = wider(q, w);
  q = rf_hlo_reshape(h, q, RF_DIMS(n, s.heads, s.plain + s.rotated));
  w = rf_hlo_slice(h, rf_hlo_reshape(h, w, RF_DIMS(latent, s.heads, s.plain + s.value)), 2, 0, s.plain);
  rf_val plain = rf_hlo_convert(h, rf_hlo_slice(h, q, 2, 0, s.plain), type);
  rf_hlo_dot of = {{1, -1}, {1, -1}, {2, -1}, {2, -1}};
  rf_val u = rf_hlo_dot_general(h, plain, rf_hlo_convert(h, w, type), of, RF_HLO_F32);
  u = rf_hlo_transpose(h, rf_hlo_convert(h, u, kept), (const int[]){1, 0, 2});
  rf_val part[2] = {u, rf_hlo_convert(h, rf_hlo_slice(h, q, 2, s.plain, s.plain + s.rotated), kept)};
  return rf_hlo_concatenate(h, 2, 2, part);
}

/* Values (n,N*W) from the weighted sums o of latent rows, f32 (n,N,C). `type` is the type of
 * activations. */
static rf_val values_of(rf_hlo *h, sizes s, rf_val o, rf_val w, rf_hlo_type type) {
  int64_t n = o.dim[0], latent = w.dim[0];
  w = rf_hlo_slice(h, rf_hlo_reshape(h, w, RF_DIMS(latent, s.heads, s.plain + s.value)), 2, s.plain,
                   s.plain + s.value);
  o = rf_hlo_convert(h, o, type);
  rf_hlo_type wide = wider(o, w);
  rf_hlo_dot of = {{1, -1}, {1, -1}, {2, -1}, {0, -1}};
  rf_val v = rf_hlo_dot_general(h, rf_hlo_convert(h, o, wide), rf_hlo_convert(h, w, wide), of, RF_HLO_F32);
  return rf_hlo_reshape(h, rf_hlo_transpose(h, v, (const int[]){1, 0, 2}), RF_DIMS(n, s.heads * s.value));
}

static void emit_attention_latent_rows(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  sizes s = sizes_of(op);
  rf_val rows = rf_emit_in(e, op, 0), latent = rf_emit_in(e, op, 1), w = rf_emit_in(e, op, 3), qkv[3], ctx,
         lse;
  int64_t n = rows.dim[0], size = latent.dim[1], both = size + s.rotated;
  rf_attend a = rf_attend_of(e, op, 4, n, 1, zero_rank(e));
  rf_val q = rf_hlo_reshape(h, absorbed(h, s, rows, w, rows.type), RF_DIMS(n, s.heads * both));
  rf_val part[2] = {latent, rf_emit_in(e, op, 2)};
  rf_val k = rf_hlo_concatenate(h, 1, 2, part);
  qkv[0] = rf_attend_split(h, &a, q, 0, (const int64_t[]){1, s.heads, both});
  qkv[1] = rf_hlo_reshape(h, k, RF_DIMS(a.batch, 1, a.keys, both));
  qkv[2] = rf_hlo_reshape(h, latent, RF_DIMS(a.batch, 1, a.keys, size));
  rf_attend_forward(e, &a, qkv, &ctx, &lse);
  rf_val o = rf_hlo_reshape(h, rf_attend_join(h, ctx), RF_DIMS(n, s.heads, size));
  rf_emit_out(e, op, 0, values_of(h, s, o, w, rows.type));
}

static void emit_attention_latent_kv(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  sizes s = sizes_of(op);
  rf_val rows = rf_emit_in(e, op, 0), latent = rf_emit_in(e, op, 1), w = rf_emit_in(e, op, 3), ctx, lse;
  int64_t n = rows.dim[0], size = latent.dim[1], both = size + s.rotated;
  rf_dtype dtype = e->graph->tensor[op->input[4]].dtype;
  rf_pages p = {.op = op,
                .cache = rf_emit_in(e, op, 4),
                .scale = RF_NO_VAL,
                .table = 5,
                .slots = 6,
                .positions = 7,
                .kv_heads = 1,
                .key = both,
                .value = size,
                .type = dtype == RF_BF16  ? RF_HLO_BF16
                        : dtype == RF_F16 ? RF_HLO_F16
                                          : RF_HLO_F32};
  rf_val part[2] = {latent, rf_emit_in(e, op, 2)};
  rf_val k =
      rf_hlo_convert(h, rf_hlo_reshape(h, rf_hlo_concatenate(h, 1, 2, part), RF_DIMS(n, 1, both)), p.type);
  if (p.cache.type == RF_HLO_U16) k = rf_hlo_bitcast(h, k, RF_HLO_U16);
  rf_pages_write(e, &p, k, RF_NO_VAL);
  /* lse must be exact, because lse decides the weight of a chip's part when parts are merged. ctx
   * has the precision of activations. */
  p.split = rf_emit_wants(op, 2) && rows.type == RF_HLO_BF16 && p.type == RF_HLO_BF16;
  rf_hlo_type type = p.split || p.type == RF_HLO_F32 ? RF_HLO_F32 : rows.type;
  rf_val q = rf_hlo_reshape(h, absorbed(h, s, rows, w, type), RF_DIMS(n, 1, s.heads, both));
  rf_pages_attend(e, &p, q, &ctx, &lse);
  rf_emit_out(e, op, 0, values_of(h, s, rf_hlo_reshape(h, ctx, RF_DIMS(n, s.heads, size)), w, rows.type));
  rf_emit_out(e, op, 1, p.cache);
  rf_emit_out(e, op, 2, lse);
}

const rf_emitter RF_EMIT_LATENT[] = {
    {&RF_OP_ATTENTION_LATENT, emit_attention_latent, NULL},
    {&RF_OP_ATTENTION_LATENT_BWD, emit_attention_latent_bwd, NULL},
    {&RF_OP_ATTENTION_LATENT_ROWS, emit_attention_latent_rows, NULL},
    {&RF_OP_ATTENTION_LATENT_KV, emit_attention_latent_kv, NULL},
    {0},
};
