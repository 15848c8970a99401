/* gelu.c - GELU in its tanh form and in its exact one, and their backward. */
#include "graph/shard.h"

static rf_status gelu_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), rows, width);
  return RAFTER_OK;
}

static rf_status gelu_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in, rf_error *error) {
  return rf_backward_pointwise(graph, &RF_OP_GELU_BWD, op, grad_out, grad_in, error);
}
static rf_status gelu_erf_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in, rf_error *error) {
  return rf_backward_pointwise(graph, &RF_OP_GELU_ERF_BWD, op, grad_out, grad_in, error);
}

static rf_status gelu_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, dtype, rows, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  return RAFTER_OK;
}

const rf_op_def RF_OP_GELU = {
    .name = "gelu",
    .formula = "g = round(gelu(u)), gelu(u) = 0.5*u*(1 + tanh(c*(u + 0.044715*u^3))), c = sqrt(2/pi); f32",
    .inputs = {"u (n,F)"},
    .outputs = {"g (n,F)"},
    .shape = gelu_shape,
    .work = rf_work_bytes,
    .inplace = {{0, 0}},
    .inplace_count = 1,
    .backward = gelu_backward,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
};

const rf_op_def RF_OP_GELU_BWD = {
    .name = "gelu_bwd",
    .formula = "du = round(dg*gelu'(u)), t = tanh(c*(u + 0.044715*u^3)), gelu'(u) = 0.5*(1 + t) + 0.5*u*(1 - t^2)*c*(1 + 3*0.044715*u^2), "
               "c = sqrt(2/pi); f32",
    .inputs = {"u (n,F)", "dg (n,F)"},
    .outputs = {"du (n,F)"},
    .shape = gelu_bwd_shape,
    .work = rf_work_bytes,
    .inplace = {{0, 1}, {0, 0}},
    .inplace_count = 2,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
};

const rf_op_def RF_OP_GELU_ERF = {
    .name = "gelu_erf",
    .formula = "g = round(0.5*u*(1 + erf(u/sqrt(2)))); f32",
    .inputs = {"u (n,F)"},
    .outputs = {"g (n,F)"},
    .shape = gelu_shape,
    .work = rf_work_bytes,
    .inplace = {{0, 0}},
    .inplace_count = 1,
    .backward = gelu_erf_backward,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
};

const rf_op_def RF_OP_GELU_ERF_BWD = {
    .name = "gelu_erf_bwd",
    .formula = "du = round(dg*(0.5*(1 + erf(u/sqrt(2))) + u*exp(-u^2/2)/sqrt(2 pi))); f32",
    .inputs = {"u (n,F)", "dg (n,F)"},
    .outputs = {"du (n,F)"},
    .shape = gelu_bwd_shape,
    .work = rf_work_bytes,
    .inplace = {{0, 1}, {0, 0}},
    .inplace_count = 2,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
};
