/* differentiate.c - reverse-mode differentiation. The pass visits the forward ops in reverse order,
 * and emits their backward ops, which the op table defines. If several ops read a tensor, each of
 * these ops gives a gradient. `add` ops sum these gradients in the order of the visits. A
 * parameter's gradient is one tensor: the first backward op writes it, and later ones add to it. */
#include "graph/passes.h"

#include <string.h>

typedef struct tape {
  rf_graph *graph;
  rf_error *error;
  int count;     /* number of forward tensors */
  bool *needs;   /* for each tensor: true if it depends on a trained parameter */
  int *grad;     /* for each tensor: id of the gradient that is summed so far, or RF_NONE */
  bool *written; /* for each parameter: true if an op has already written the gradient */
} tape;

/* True for a tensor that the optimizer updates: an adapter or, without adapters, any weight. */
static bool is_weight(const rf_graph *graph, const rf_tensor *tensor) {
  return tensor->param >= 0 && !graph->params.at[tensor->param].frozen &&
         tensor->class == (graph->params.adapter > 0 ? RF_CLASS_ADAPTER : RF_CLASS_WEIGHT);
}

static bool is_differentiable(const rf_op_def *def) { return def->backward || def->gradient.def; }

static void mark_needs(tape *pass) {
  const rf_graph *graph = pass->graph;
  for (int t = 0; t < pass->count; t++) {
    pass->needs[t] = is_weight(graph, &graph->tensor[t]);
    pass->grad[t] = RF_NONE;
  }
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    bool needs = false;
    for (int i = 0; i < op->input_count; i++)
      needs = needs || (op->input[i] >= 0 && pass->needs[op->input[i]]);
    for (int i = 0; needs && is_differentiable(op->def) && i < op->output_count; i++)
      if (op->output[i] >= 0 && rf_dtype_is_float(graph->tensor[op->output[i]].dtype))
        pass->needs[op->output[i]] = true;
  }
}

static int weight_gradient(tape *pass, int weight) {
  if (pass->grad[weight] != RF_NONE) return pass->grad[weight];
  rf_graph *graph = pass->graph;
  rf_tensor tensor = graph->tensor[weight];
  const char *name = rf_graph_join(graph, tensor.name, "/grad", "");
  int id =
      rf_graph_tensor(graph, name, RF_CLASS_GRADIENT, rf_wide_dtype(tensor.dtype), tensor.rank, tensor.shape);
  graph->tensor[id].param = tensor.param;
  graph->tensor[id].reason = "until the optimizer has read it";
  return pass->grad[weight] = id;
}

/* Adds one more gradient of forward tensor `t`. */
static rf_status contribute(tape *pass, const rf_op *op, int t, int gradient) {
  if (pass->grad[t] == RF_NONE) {
    pass->grad[t] = gradient;
    return RAFTER_OK;
  }
  const char *name = rf_backward_name(pass->graph, op, "/sum");
  pass->grad[t] = rf_graph_make(pass->graph, &RF_OP_ADD, name, op->section, RF_IDS(pass->grad[t], gradient),
                                NULL, pass->error);
  return pass->grad[t] == RF_NONE ? RAFTER_INVALID : RAFTER_OK;
}

rf_status rf_op_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                         rf_error *error) {
  if (op->def->backward) return op->def->backward(graph, op, grad_out, grad_in, error);
  int inputs[RF_MAX_INPUTS], count = 0, outputs = 0;
  for (int from; count < RF_MAX_INPUTS && (from = op->def->gradient.inputs[count]); count++)
    inputs[count] = from >= RF_DY(0)  ? grad_out[from - RF_DY(0)]
                    : from >= RF_Y(0) ? op->output[from - RF_Y(0)]
                                      : op->input[from - RF_X(0)];
  while (outputs < RF_MAX_OUTPUTS && op->def->gradient.def->outputs[outputs]) outputs++;
  int id = rf_graph_emit(graph, op->def->gradient.def, rf_backward_name(graph, op, ""), op->section,
                         (rf_slots){inputs, count}, (rf_slots){grad_in, outputs}, &op->attr, error);
  if (id < 0) return RAFTER_INVALID;
  memcpy(grad_in, graph->op[id].output, (size_t)outputs * sizeof *grad_in);
  return RAFTER_OK;
}

static rf_status backward_of(tape *pass, int index) {
  rf_graph *graph = pass->graph;
  const rf_op op = graph->op[index]; /* copied, because new ops may move the array of ops */
  int grad_out[RF_MAX_OUTPUTS], grad_in[RF_MAX_INPUTS], first = graph->op_count;
  bool reached = op.def->loss, asked = false;
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) {
    grad_out[i] = i < op.output_count && op.output[i] >= 0 ? pass->grad[op.output[i]] : RF_NONE;
    reached = reached || grad_out[i] != RF_NONE;
  }
  if (!is_differentiable(op.def) || !reached) return RAFTER_OK;
  graph->at = op.at;
  for (int i = 0; i < RF_MAX_INPUTS; i++) {
    int t = i < op.input_count ? op.input[i] : RF_NONE;
    grad_in[i] = t < 0 || !pass->needs[t]              ? RF_NONE
                 : is_weight(graph, &graph->tensor[t]) ? weight_gradient(pass, t)
                                                       : RF_WANTED;
    asked = asked || grad_in[i] != RF_NONE;
  }
  if (!asked) return RAFTER_OK;
  RF_TRY(rf_op_backward(graph, &op, grad_out, grad_in, pass->error));

  /* The first op that outputs a parameter's gradient writes the gradient. Later ops add to the
   * gradient. */
  for (int o = first; o < graph->op_count; o++)
    for (int k = 0; k < graph->op[o].output_count; k++) {
      int t = graph->op[o].output[k];
      if (t < 0 || graph->tensor[t].class != RF_CLASS_GRADIENT || graph->tensor[t].param < 0) continue;
      bool *written = &pass->written[graph->tensor[t].param];
      graph->op[o].attr.accumulate[k] = *written                ? RF_ACCUMULATE_ADD
                                        : graph->accumulate > 1 ? RF_ACCUMULATE_MICRO
                                                                : RF_WRITE;
      *written = true;
    }
  for (int i = 0; i < op.input_count; i++) {
    int t = op.input[i];
    if (t < 0 || grad_in[i] < 0 || is_weight(graph, &graph->tensor[t])) continue;
    RF_TRY(contribute(pass, &op, t, grad_in[i]));
  }
  for (int o = first; o < graph->op_count; o++) graph->op[o].backward = true;
  return RAFTER_OK;
}

static void say_why_kept(rf_graph *graph, int forward_tensors, int forward_ops) {
  for (int o = forward_ops; o < graph->op_count; o++)
    for (int i = 0; i < graph->op[o].input_count; i++) {
      int t = graph->op[o].input[i];
      if (t >= 0 && t < forward_tensors && graph->tensor[t].class == RF_CLASS_ACTIVATION)
        graph->tensor[t].reason = "kept for backward";
    }
}

rf_status rf_pass_differentiate(rf_graph *graph, rf_error *error) {
  size_t count = (size_t)graph->tensor_count;
  tape pass = {.graph = graph,
               .error = error,
               .count = graph->tensor_count,
               .needs = rf_pool_alloc(graph->pool, count),
               .grad = rf_pool_alloc(graph->pool, count * sizeof(int)),
               .written = rf_pool_alloc(graph->pool, (size_t)graph->params.count)};
  int forward_ops = graph->op_count;
  mark_needs(&pass);
  for (int o = forward_ops - 1; o >= 0; o--)
    if (graph->op[o].section == RF_SECTION_MICRO) RF_TRY(backward_of(&pass, o));
  say_why_kept(graph, pass.count, forward_ops);
  return RAFTER_OK;
}
