/* norm.c - LayerNorm, RMSNorm, and their backward ops, which can add the residual gradient. */
#include "graph/mesh/shard.h"

/* The ops have the inputs x, gain and, for LayerNorm, bias. The ops have the output y and one or
 * two statistics for each row. */
static rf_status norm_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  for (int i = 1; i < op->input_count; i++) RF_IN(i, RF_ANY_FLOAT, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  RF_OUT(1, RF_CLASS_ACTIVATION, rf_wide_dtype(dtype), rows, op->def == &RF_OP_LAYERNORM ? 2 : 1);
  return RAFTER_OK;
}

/* dx must not overwrite dy, because dgain reads columns of dy while the kernel writes rows of
 * dx. */
static rf_status norm_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0), wide = rf_wide_dtype(dtype);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, RF_ANY_FLOAT, width);
  RF_IN(2, wide, rows, op->def == &RF_OP_LAYERNORM_BWD ? 2 : 1);
  RF_IN(3, dtype, rows, width);
  RF_IN(4, dtype, rows, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  for (int i = 1; i < op->output_count; i++) RF_OUT(i, RF_CLASS_GRADIENT, wide, width);
  return RAFTER_OK;
}

const rf_op_def RF_OP_LAYERNORM = {
    .name = "layernorm",
    .kind = RF_KIND_NORM,
    .formula = "mean = sum_d x[r,d] / D; rstd = 1/sqrt(sum_d (x[r,d]-mean)^2 / D + eps); y[r,d] = "
               "round((x[r,d]-mean)*rstd*gain[d] + bias[d]); stats[r] = {mean, rstd}; in f32",
    .inputs = {"x (n,D)", "gain (D)", "bias (D)"},
    .outputs = {"y (n,D)", "stats (n,2)"},
    .fields = RF_FIELDS_NORM,
    .shape = norm_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 0}),
    .gradient = {&RF_OP_LAYERNORM_BWD, {RF_X(0), RF_X(1), RF_Y(1), RF_DY(0)}},
    .shard = rf_shard_rows,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_RMSNORM},
    /* XLA stores x - mean, (x - mean) * rstd and x in f32, and four statistics for each row */
    .kept =
        RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_F32(3, INPUT), RF_KEPT_F32(4, ROW)},
                 .kept = {RF_KEPT_F32(2, ROW)}, .again = {RF_KEPT_F32(2, ROW)}),
};

const rf_op_def RF_OP_LAYERNORM_BWD = {
    .name = "layernorm_bwd",
    .kind = RF_KIND_NORM,
    .formula =
        "h[r,d] = (x[r,d]-mean[r])*rstd[r]; g[r,d] = dy[r,d]*gain[d]; a[r] = sum_d g[r,d] / D; b[r] = sum_d "
        "g[r,d]*h[r,d] / D; dx[r,d] = round(rstd[r]*(g[r,d] - a[r] - h[r,d]*b[r])), and with dres then "
        "dx[r,d] = round(dx[r,d] + dres[r,d]); dgain[d] = sum_r dy[r,d]*h[r,d] and dbias[d] = sum_r dy[r,d], "
        "rows ascending, f32 chains that start at 0 (write) or at the present value (add)",
    .inputs = {"x (n,D)", "gain (D)", "stats (n,2)", "dy (n,D)", "dres (n,D)?"},
    .outputs = {"dx (n,D)", "dgain (D)?", "dbias (D)?"},
    .fields = RF_FIELDS_NORM,
    .shape = norm_bwd_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 4}),
    .shard = rf_shard_rows,
    .tolerance = {1e-5f, 1e-2f},
    .timed_like = {&RF_OP_RMSNORM_BWD, &RF_OP_LAYERNORM},
};

const rf_op_def RF_OP_RMSNORM = {
    .name = "rmsnorm",
    .kind = RF_KIND_NORM,
    .formula = "rstd = 1/sqrt(sum_d x[r,d]^2 / D + eps); y[r,d] = round(x[r,d]*rstd*(offset + gain[d])); "
               "stats[r] = {rstd}; in f32",
    .inputs = {"x (n,D)", "gain (D)"},
    .outputs = {"y (n,D)", "stats (n,1)"},
    .fields = RF_FIELDS_NORM,
    .shape = norm_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 0}),
    .gradient = {&RF_OP_RMSNORM_BWD, {RF_X(0), RF_X(1), RF_Y(1), RF_DY(0)}},
    .shard = rf_shard_rows,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_LAYERNORM},
    .kept =
        RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_F32(2, INPUT), RF_KEPT_F32(2, ROW)},
                 .kept = {RF_KEPT_F32(1, ROW)}, .again = {RF_KEPT_F32(1, ROW)}),
};

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
    .shape = norm_bwd_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 4}),
    .shard = rf_shard_rows,
    .tolerance = {1e-5f, 1e-2f},
    .timed_like = {&RF_OP_LAYERNORM_BWD, &RF_OP_RMSNORM},
};
