/* add.c - sum of two activations: the residual stream without dropout, and sums of gradients. */
#include "graph/mesh/shard.h"

/* The gradient of each input is the gradient of the output, so backward needs no op. */
static rf_status add_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                              rf_error *error) {
  (void)graph;
  (void)op;
  (void)error;
  for (int i = 0; i < 2; i++)
    if (grad_in[i] == RF_WANTED) grad_in[i] = grad_out[0];
  return RAFTER_OK;
}

const rf_op_def RF_OP_ADD = {
    .name = "add",
    .formula = "y = round(a + b), in f32",
    .inputs = {"a (n,D)", "b (n,D)"},
    .outputs = {"y (n,D)"},
    RF_POINTWISE,
    RF_INPLACE({0, 0}, {0, 1}),
    .backward = add_backward,
    .tolerance = {1e-7f, 1e-3f},
    .kept = RF_KEEPS(.joins_residual = true),
};
