/* rmsnorm.c - RMSNorm and its backward op, which can add the gradient of the residual stream. */
#include "graph/mesh/shard.h"

static rf_status rmsnorm_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, RF_ANY_FLOAT, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  RF_OUT(1, RF_CLASS_ACTIVATION, rf_wide_dtype(dtype), rows, 1);
  return RAFTER_OK;
}

static rf_status rmsnorm_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                                  rf_error *error) {
  int inputs[] = {op->input[0], op->input[1], op->output[1], grad_out[0], RF_NONE},
      outputs[] = {grad_in[0], grad_in[1]};
  rf_attr attr = {.norm = op->attr.norm};
  int id = rf_graph_emit(graph, &RF_OP_RMSNORM_BWD, rf_backward_name(graph, op, ""), op->section, inputs, 5,
                         outputs, 2, &attr, error);
  if (id < 0) return RAFTER_INVALID;
  grad_in[0] = graph->op[id].output[0];
  return RAFTER_OK;
}

static rf_status rmsnorm_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0), wide = rf_wide_dtype(dtype);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, RF_ANY_FLOAT, width);
  RF_IN(2, wide, rows, 1);
  RF_IN(3, dtype, rows, width);
  RF_IN(4, dtype, rows, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  RF_OUT(1, RF_CLASS_GRADIENT, wide, width);
  return RAFTER_OK;
}

const rf_op_def RF_OP_RMSNORM = {
    .name = "rmsnorm",
    .kind = RF_KIND_NORM,
    .formula = "rstd = 1/sqrt(sum_d x[r,d]^2 / D + eps); y[r,d] = round(x[r,d]*rstd*(offset + gain[d])); "
               "stats[r] = {rstd}; in f32",
    .inputs = {"x (n,D)", "gain (D)"},
    .outputs = {"y (n,D)", "stats (n,1)"},
    .fields = RF_FIELDS_NORM,
    .shape = rmsnorm_shape,
    .work = rf_work_bytes,
    .inplace = {{0, 0}},
    .inplace_count = 1,
    .backward = rmsnorm_backward,
    .shard = rf_shard_rows,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_LAYERNORM},
    .kept =
        RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_F32(2, INPUT), RF_KEPT_F32(2, ROW)},
                 .kept = {RF_KEPT_F32(1, ROW)}, .again = {RF_KEPT_F32(1, ROW)}),
};

/* dx cannot share dy's memory: dgain reads whole columns of dy while dx is written by rows. */
const rf_op_def RF_OP_RMSNORM_BWD = {
    .name = "rmsnorm_bwd",
    .kind = RF_KIND_NORM,
    .formula = "h[r,d] = x[r,d]*rstd[r]; g[r,d] = dy[r,d]*(offset + gain[d]); b[r] = sum_d g[r,d]*h[r,d] / "
               "D; dx[r,d] = round(rstd[r]*(g[r,d] - h[r,d]*b[r])), and with dres then dx[r,d] = "
               "round(dx[r,d] + dres[r,d]); dgain[d] = sum_r dy[r,d]*h[r,d], rows ascending, an f32 chain "
               "that starts at 0 (write) or at the present value (add)",
    .inputs = {"x (n,D)", "gain (D)", "stats (n,1)", "dy (n,D)", "dres (n,D)?"},
    .outputs = {"dx (n,D)", "dgain (D)?"},
    .fields = RF_FIELDS_NORM,
    .shape = rmsnorm_bwd_shape,
    .work = rf_work_bytes,
    .inplace = {{0, 4}},
    .inplace_count = 1,
    .shard = rf_shard_rows,
    .tolerance = {1e-5f, 1e-2f},
    .timed_like = {&RF_OP_LAYERNORM_BWD, &RF_OP_RMSNORM},
};
