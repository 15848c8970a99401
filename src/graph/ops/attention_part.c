/* attention_part.c - attention with the tokens of every sequence sharded over chips (the axis
 * context). For its queries, each chip gathers the keys and values of all chips. Token t belongs to
 * chip t % chips, so all chips get the same share of early and late queries. */
#include "graph/mesh/shard.h"

static int64_t chips_of(const rf_op *op) { return op->attr.group > 1 ? op->attr.group : 1; }

static rf_status kv_rows_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  rf_heads h;
  RF_TRY(rf_heads_of(graph, op, &h, error));
  RF_IN(0, RF_ANY_FLOAT, h.rows, h.qkv);
  RF_OUT(0, RF_CLASS_ACTIVATION, h.dtype, h.rows, h.kv);
  return RAFTER_OK;
}

static rf_status kv_join_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  rf_heads h;
  RF_TRY(rf_heads_of(graph, op, &h, error));
  RF_IN(0, RF_ANY_FLOAT, h.rows, h.q);
  RF_IN(1, h.dtype, h.rows, h.kv);
  RF_OUT(0, RF_CLASS_ACTIVATION, h.dtype, h.rows, h.qkv);
  return RAFTER_OK;
}

static rf_status part_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  rf_heads h;
  RF_TRY(rf_heads_of(graph, op, &h, error));
  int64_t keys = h.rows * chips_of(op);
  RF_IN(0, RF_ANY_FLOAT, h.rows, h.qkv);
  RF_IN(1, h.dtype, keys, h.kv);
  RF_IN(2, RF_I32, keys + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, h.dtype, h.rows, h.q);
  RF_OUT(1, RF_CLASS_ACTIVATION, h.wide, op->attr.attention.heads, h.rows);
  return RAFTER_OK;
}

static rf_status part_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  rf_heads h;
  RF_TRY(rf_heads_of(graph, op, &h, error));
  int64_t keys = h.rows * chips_of(op);
  RF_IN(0, RF_ANY_FLOAT, h.rows, h.qkv);
  RF_IN(1, h.dtype, keys, h.kv);
  RF_IN(2, h.dtype, h.rows, h.q);
  RF_IN(3, h.wide, op->attr.attention.heads, h.rows);
  RF_IN(4, h.dtype, h.rows, h.q);
  RF_IN(5, RF_I32, keys + 1);
  RF_OUT(0, RF_CLASS_ACTIVATION, h.dtype, h.rows, h.q);
  RF_OUT(1, RF_CLASS_ACTIVATION, h.dtype, keys, h.kv);
  return RAFTER_OK;
}

/* Work of one chip, which computes an equal part of all (query, key) pairs. */
static rf_work pairs_work(const rf_graph *graph, const rf_op *op, double products, double again) {
  double pair = 2.0 * op->attr.attention.heads * op->attr.attention.head_dim;
  return rf_pairs_work(graph, op, rf_input_dim(graph, op, 1, 0), products * pair, again * pair);
}
static rf_work part_work(const rf_graph *graph, const rf_op *op) { return pairs_work(graph, op, 2, 0); }
static rf_work part_bwd_work(const rf_graph *graph, const rf_op *op) { return pairs_work(graph, op, 4, 1); }

/* Combines the results of several chips into attention over all keys. Each chip had only its own
 * keys (flash-decoding, Dao et al. 2023). */
static rf_status merge_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1), chips = chips_of(op);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  if (op->attr.attention.heads < 1 || width % (chips * op->attr.attention.heads))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "parts do not fit (%s: expected %lld parts of %d heads, got %lld columns)", op->name,
                   (long long)chips, op->attr.attention.heads, (long long)width);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, rf_wide_dtype(dtype), rows, chips * op->attr.attention.heads);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width / chips);
  return RAFTER_OK;
}

const rf_op_def RF_OP_ATTENTION_MERGE = {
    .name = "attention_merge",
    .kind = RF_KIND_ATTENTION,
    .formula = "with parts p of c chips: m = max_p lse[r,p,h]; w_p = exp(lse[r,p,h] - m); ctx[r,h,:] = "
               "round(sum_p w_p*parts[r,p,h,:] / sum_p w_p), p ascending; in f32",
    .inputs = {"parts (n,cNH)", "lse (n,cN)"},
    .outputs = {"ctx (n,NH)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = merge_shape,
    .work = rf_work_bytes,
    .tolerance = {2e-6f, 1e-2f},
    .log_sums = 1,
};

const rf_op_def RF_OP_KV_ROWS = {
    .name = "kv_rows",
    .kind = RF_KIND_CACHE,
    .formula = "kv[r,:] = the key heads, then the value heads, of qkv[r,:]",
    .inputs = {"qkv (n,(N+2K)H)"},
    .outputs = {"kv (n,2KH)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = kv_rows_shape,
    .work = rf_work_bytes,
    .tolerance = {1e-9f, 1e-9f},
};

const rf_op_def RF_OP_KV_JOIN = {
    .name = "kv_join",
    .kind = RF_KIND_CACHE,
    .formula = "dqkv[r,:] = dq[r,:], then dkv[r,:]",
    .inputs = {"dq (n,NH)", "dkv (n,2KH)"},
    .outputs = {"dqkv (n,(N+2K)H)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = kv_join_shape,
    .work = rf_work_bytes,
    .tolerance = {1e-9f, 1e-9f},
};

const rf_op_def RF_OP_ATTENTION_PART = {
    .name = "attention_part",
    .kind = RF_KIND_ATTENTION,
    .formula = "attention of the queries in qkv over the keys and values in kv; on the chip of rank c, row i "
               "is row i*group + c of kv and of the segments; otherwise as attention",
    .inputs = {"qkv (n,(N+2K)H)", "kv (S,2KH)", "segments i32 (S+1)"},
    .outputs = {"ctx (n,NH)", "lse (N,n)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = part_shape,
    .work = part_work,
    .tolerance = {1e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION,
    .timed_like = {&RF_OP_ATTENTION},
    .curve_size = RF_CURVE_SEGMENT,
};

const rf_op_def RF_OP_ATTENTION_PART_BWD = {
    .name = "attention_part_bwd",
    .kind = RF_KIND_ATTENTION,
    .formula = "rows as in attention_part; dq_i as in attention_bwd; dkv = the contribution of these queries "
               "to the gradient of every key and value, to be summed over the chips of the group",
    .inputs = {"qkv (n,(N+2K)H)", "kv (S,2KH)", "ctx (n,NH)", "lse (N,n)", "dctx (n,NH)",
               "segments i32 (S+1)"},
    .outputs = {"dq (n,NH)", "dkv (S,2KH)"},
    .fields = RF_FIELDS_ATTENTION,
    .shape = part_bwd_shape,
    .work = part_bwd_work,
    .tolerance = {2e-5f, 2e-2f},
    .timing = RF_TIMING_ATTENTION_BACKWARD,
    .timed_like = {&RF_OP_ATTENTION_BWD, &RF_OP_ATTENTION},
    .curve_size = RF_CURVE_SEGMENT,
};
