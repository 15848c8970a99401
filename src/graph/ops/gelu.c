/* gelu.c - GELU, as the tanh approximation and exactly, and both backward ops. */
#include "graph/mesh/shard.h"

static rf_status gelu_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                               rf_error *error) {
  return rf_backward_pointwise(graph, &RF_OP_GELU_BWD, op, grad_out, grad_in, error);
}
static rf_status gelu_erf_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                                   rf_error *error) {
  return rf_backward_pointwise(graph, &RF_OP_GELU_ERF_BWD, op, grad_out, grad_in, error);
}

const rf_op_def RF_OP_GELU = {
    .name = "gelu",
    .formula = "g = round(gelu(u)), gelu(u) = 0.5*u*(1 + tanh(c*(u + 0.044715*u^3))), c = sqrt(2/pi); in f32",
    .inputs = {"u (n,F)"},
    .outputs = {"g (n,F)"},
    .shape = rf_shape_alike,
    .work = rf_work_bytes,
    .inplace = {{0, 0}},
    .inplace_count = 1,
    .backward = gelu_backward,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_SWIGLU},
    /* x, the x^2 factor, tanh, its derivative and the cumulative factor */
    .kept = RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_SAME(5, INPUT)}),
};

const rf_op_def RF_OP_GELU_BWD = {
    .name = "gelu_bwd",
    .formula = "du = round(dg*gelu'(u)), gelu'(u) = 0.5*(1 + t) + 0.5*u*(1 - t^2)*c*(1 + 3*0.044715*u^2), t "
               "= tanh(c*(u + 0.044715*u^3)), c = sqrt(2/pi); in f32",
    .inputs = {"u (n,F)", "dg (n,F)"},
    .outputs = {"du (n,F)"},
    .shape = rf_shape_alike,
    .work = rf_work_bytes,
    .inplace = {{0, 1}, {0, 0}},
    .inplace_count = 2,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_SWIGLU_BWD, &RF_OP_GELU},
};

const rf_op_def RF_OP_GELU_ERF = {
    .name = "gelu_erf",
    .formula = "g = round(0.5*u*(1 + erf(u/sqrt(2)))); in f32",
    .inputs = {"u (n,F)"},
    .outputs = {"g (n,F)"},
    .shape = rf_shape_alike,
    .work = rf_work_bytes,
    .inplace = {{0, 0}},
    .inplace_count = 1,
    .backward = gelu_erf_backward,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_GELU, &RF_OP_SWIGLU},
    .kept = RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_SAME(3, INPUT)}),
};

const rf_op_def RF_OP_GELU_ERF_BWD = {
    .name = "gelu_erf_bwd",
    .formula = "du = round(dg*(0.5*(1 + erf(u/sqrt(2))) + u*exp(-u^2/2)/sqrt(2 pi))); in f32",
    .inputs = {"u (n,F)", "dg (n,F)"},
    .outputs = {"du (n,F)"},
    .shape = rf_shape_alike,
    .work = rf_work_bytes,
    .inplace = {{0, 1}, {0, 0}},
    .inplace_count = 2,
    .shard = rf_shard_pointwise,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_GELU_BWD, &RF_OP_GELU},
};
