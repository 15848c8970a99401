/* head_norm.c - RMSNorm of every query and key head in a fused qkv row, and its backward op. */
#include "graph/mesh/shard.h"

static rf_status head_norm_inputs(rf_graph *graph, rf_op *op, rf_error *error) {
  const rf_attr_head_norm *attr = &op->attr.head_norm;
  RF_IN(0, RF_ANY_FLOAT, rf_input_dim(graph, op, 0, 0),
        (int64_t)(attr->heads + 2 * attr->kv_heads) * attr->head_dim);
  RF_IN(1, RF_ANY_FLOAT, attr->head_dim);
  RF_IN(2, rf_input_dtype(graph, op, 1), attr->head_dim);
  return RAFTER_OK;
}

static rf_status head_norm_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_TRY(head_norm_inputs(graph, op, error));
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  RF_OUT(1, RF_CLASS_ACTIVATION, rf_wide_dtype(dtype), rows,
         (int64_t)(op->attr.head_norm.heads + op->attr.head_norm.kv_heads));
  return RAFTER_OK;
}

static rf_status head_norm_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0), wide = rf_wide_dtype(dtype);
  RF_TRY(head_norm_inputs(graph, op, error));
  RF_IN(3, wide, rows, (int64_t)(op->attr.head_norm.heads + op->attr.head_norm.kv_heads));
  RF_IN(4, dtype, rows, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  RF_OUT(1, RF_CLASS_GRADIENT, wide, op->attr.head_norm.head_dim);
  RF_OUT(2, RF_CLASS_GRADIENT, wide, op->attr.head_norm.head_dim);
  return RAFTER_OK;
}

static rf_status head_norm_shard(rf_sharding *s) {
  rf_axes rows = s->in[0].split[0], heads = s->in[0].split[1];
  s->in[0] = s->out[0] = rf_spec_of(rows, heads, RF_FORM_HEADS);
  s->in[1] = s->in[2] = (rf_spec){.split = {0}};
  s->out[1] = rf_spec_of(rows, heads, RF_FORM_HEADS);
  return rf_shard_heads(s, heads);
}

static rf_status head_norm_bwd_shard(rf_sharding *s) {
  rf_axes rows = s->in[0].split[0] & s->in[4].split[0], heads = s->in[0].split[1];
  s->in[0] = s->in[3] = s->in[4] = s->out[0] = rf_spec_of(rows, heads, RF_FORM_HEADS);
  s->in[1] = s->in[2] = (rf_spec){.split = {0}};
  s->out[1] = s->out[2] = (rf_spec){.partial = rows | heads};
  return rf_shard_heads(s, heads);
}

const rf_op_def RF_OP_HEAD_NORM = {
    .name = "head_norm",
    .kind = RF_KIND_NORM,
    .formula = "for each of the N query heads (gain = q_gain), then each of the K key heads (gain = k_gain): "
               "rstd = 1/sqrt(sum_i x[i]^2 / H + eps); y[i] = round(x[i]*rstd*(offset + gain[i])); "
               "stats[r,head] = rstd; value heads are copied; in f32",
    .inputs = {"qkv (n,(N+2K)H)", "q_gain (H)", "k_gain (H)"},
    .outputs = {"normed (n,(N+2K)H)", "stats (n,N+K)"},
    .fields = RF_FIELDS_HEAD_NORM,
    .shape = head_norm_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 0}),
    .gradient = {&RF_OP_HEAD_NORM_BWD, {RF_X(0), RF_X(1), RF_X(2), RF_Y(1), RF_DY(0)}},
    .shard = head_norm_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_RMSNORM, &RF_OP_LAYERNORM},
    .kept = RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_F32(2, INPUT)}),
};

const rf_op_def RF_OP_HEAD_NORM_BWD = {
    .name = "head_norm_bwd",
    .kind = RF_KIND_NORM,
    .formula = "for each query and key head: h = x*rstd; g = dy*(offset + gain); dx = round(rstd*(g - "
               "h*(sum_i g[i]*h[i] / H))); value heads: dx = dy; dq_gain[i] = sum of dy[i]*h[i] over rows, "
               "then query heads, ascending; dk_gain[i] = the same over key heads; f32 chains that start at "
               "0 (write) or at the present value (add)",
    .inputs = {"qkv (n,(N+2K)H)", "q_gain (H)", "k_gain (H)", "stats (n,N+K)", "dy (n,(N+2K)H)"},
    .outputs = {"dx (n,(N+2K)H)", "dq_gain (H)?", "dk_gain (H)?"},
    .fields = RF_FIELDS_HEAD_NORM,
    .shape = head_norm_bwd_shape,
    .work = rf_work_bytes,
    .shard = head_norm_bwd_shard,
    .tolerance = {1e-5f, 1e-2f},
    .timed_like = {&RF_OP_RMSNORM_BWD, &RF_OP_LAYERNORM_BWD, &RF_OP_LAYERNORM},
};
