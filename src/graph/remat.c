/* remat.c - recomputation. A forward activation that backward reads is freed after its last forward
 * reader. The op that made the activation runs again before the first backward op that needs the
 * activation. Dropout draws the same random numbers again, so recomputed values are bit-identical.
 * The steps for a set of dropped tensors are computed without a change of the graph, so that a
 * search can compare many sets. */
#include "graph/passes.h"
#include "graph/remat.h"

#include <string.h>

/* If the input u of a fused GELU is stored, only the GELU is recomputed, without the product. */
static bool gelu_from_kept(const rf_recompute *r, const rf_op *op, int t) {
  return op->def == &RF_OP_MATMUL && op->attr.matmul.epilogue == RF_EPILOGUE_GELU && t == op->output[1] &&
         op->output[0] >= 0 && r->kept[op->output[0]];
}

static void mark(rf_recompute *r, int t) {
  if (r->source[t] == RF_NONE || r->kept[t] || r->remake[t]) return;
  r->remake[t] = true;
  const rf_op *op = &r->graph->op[r->source[t]];
  if (gelu_from_kept(r, op, t)) return;
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0) mark(r, op->input[i]);
}

/* ---- fields that do not depend on the set of dropped tensors --------------------------------- */

/* Finds weights that both forward and backward gather. Recomputation uses the copy that backward
 * gathers. */
static void find_twins(rf_recompute *r, rf_pool *pool) {
  const rf_graph *graph = r->graph;
  /* for each tensor: the forward op that gathers the tensor */
  int *gathered = rf_pool_alloc(pool, ((size_t)r->tensors + 1) * sizeof(int));
  for (int t = 0; t < r->tensors; t++) gathered[t] = r->twin[t] = RF_NONE;
  for (int o = 0; o < r->ops; o++) {
    const rf_op *op = &graph->op[o];
    if (op->def != &RF_OP_ALL_GATHER || op->section != RF_SECTION_MICRO ||
        !graph->tensor[op->input[0]].persistent)
      continue;
    int of = gathered[op->input[0]];
    if (!op->backward) gathered[op->input[0]] = o;
    else if (of != RF_NONE && graph->op[of].attr.axes == op->attr.axes &&
             graph->op[of].attr.collective.dim == op->attr.collective.dim)
      r->twin[graph->op[of].output[0]] = o;
  }
}

rf_recompute *rf_recompute_open(const rf_graph *graph, rf_pool *pool) {
  size_t tensors = (size_t)graph->tensor_count + 1, ops = (size_t)graph->op_count + 1;
  rf_recompute *r = rf_pool_alloc(pool, sizeof *r);
  *r = (rf_recompute){.graph = graph,
                      .tensors = graph->tensor_count,
                      .ops = graph->op_count,
                      .source = rf_pool_raw(pool, tensors * sizeof(int)),
                      .twin = rf_pool_raw(pool, tensors * sizeof(int)),
                      .forward_read = rf_pool_alloc(pool, tensors),
                      .backward_read = rf_pool_alloc(pool, tensors),
                      .kept = rf_pool_raw(pool, tensors),
                      .remake = rf_pool_raw(pool, tensors),
                      .remade = rf_pool_raw(pool, tensors * sizeof(int)),
                      .instead = rf_pool_raw(pool, tensors * sizeof(int)),
                      .passed = rf_pool_raw(pool, ops),
                      .step = rf_pool_raw(pool, 2 * ops * sizeof(rf_remat_step)),
                      .copied = rf_pool_raw(pool, RF_MAX_OUTPUTS * ops * sizeof(int)),
                      .slot = rf_pool_raw(pool, (RF_MAX_INPUTS + RF_MAX_OUTPUTS) * 2 * ops * sizeof(int))};
  for (int t = 0; t < r->tensors; t++) r->source[t] = RF_NONE;
  for (int o = 0; o < r->ops; o++) {
    const rf_op *op = &graph->op[o];
    bool forward = rf_remat_forward(op);
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] >= 0) (forward ? r->forward_read : r->backward_read)[op->input[i]] = true;
    for (int i = 0; forward && i < op->output_count; i++)
      if (op->output[i] >= 0 && op->def != &RF_OP_RECV && !rf_remat_outside(&graph->tensor[op->output[i]]))
        r->source[op->output[i]] = o;
  }
  find_twins(r, pool);
  return r;
}

/* ---- one set --------------------------------------------------------------------------------- */

/* Marks the tensors to recompute. Dropped tensors are recomputed, and also tensors without storage
 * from which dropped tensors are computed. */
static void choose(rf_recompute *r, const bool *drop) {
  const rf_graph *graph = r->graph;
  for (int t = 0; t < r->tensors; t++) r->kept[t] = r->source[t] != RF_NONE && r->backward_read[t];
  for (int o = 0; o < r->ops; o++) {
    const rf_op *op = &graph->op[o];
    if (!rf_remat_forward(op)) continue;
    bool any = false, used = false, separate = op->def == &RF_OP_MATMUL;
    for (int i = 0; i < op->output_count; i++) {
      any = any || (op->output[i] >= 0 && drop[op->output[i]]);
      used = used || (op->output[i] >= 0 && r->forward_read[op->output[i]]);
    }
    /* If only backward reads a result, recomputation frees nothing, because the lifetime of the
     * result starts in backward anyway. If the result is dropped, the statistics of norms and the
     * lse of attention are dropped too. */
    for (int i = 0; any && used && i < op->output_count; i++)
      if (op->output[i] >= 0 && (!separate || drop[op->output[i]])) r->kept[op->output[i]] = false;
  }
  for (int t = 0; t < r->tensors; t++)
    if (r->source[t] != RF_NONE && r->backward_read[t] && !r->kept[t]) mark(r, t);
}

static void make_again(rf_recompute *r, int t);

/* Returns the id of the tensor that a backward op reads instead of `t`. */
static int current(rf_recompute *r, int t) {
  if (t < 0 || t >= r->tensors) return t;
  if (!r->remake[t]) return r->instead[t] != RF_NONE ? r->instead[t] : t;
  int twin = r->twin[t];
  if (r->remade[t] == RF_NONE && twin != RF_NONE && r->passed[twin])
    r->remade[t] = r->graph->op[twin].output[0];
  if (r->remade[t] == RF_NONE) make_again(r, t);
  return r->remade[t];
}

static int second_copy(rf_recompute *r, int t) {
  r->copied[r->copies] = t;
  return r->remade[t] = r->tensors + r->copies++;
}

static void make_again(rf_recompute *r, int t) {
  const rf_op *op = &r->graph->op[r->source[t]];
  rf_remat_step step = {.op = r->source[t], .again = true, .gelu = gelu_from_kept(r, op, t)};
  int input[RF_MAX_INPUTS], *to;
  step.def = step.gelu ? &RF_OP_GELU : op->def;
  step.inputs = step.gelu ? 1 : (int8_t)op->input_count;
  step.outputs = step.gelu ? 1 : (int8_t)op->output_count;
  for (int i = 0; i < step.inputs; i++) input[i] = step.gelu ? op->output[0] : current(r, op->input[i]);
  to = r->slot + r->slots;
  r->slots += step.inputs + step.outputs;
  memcpy(to, input, (size_t)step.inputs * sizeof *to);
  step.input = to;
  step.output = to + step.inputs;
  for (int i = 0; i < step.outputs; i++) {
    bool skip = !step.gelu && (op->output[i] < 0 || (op->def == &RF_OP_MATMUL && !r->remake[op->output[i]]));
    to[step.inputs + i] = skip ? RF_NONE : second_copy(r, step.gelu ? t : op->output[i]);
  }
  r->step[r->steps++] = step;
  if (r->twin[t] != RF_NONE) r->instead[r->graph->op[r->twin[t]].output[0]] = r->remade[t];
}

/* Returns the inputs that a backward op reads after recomputation. If no input has changed, this is
 * the op's own list. */
static const int *inputs_now(rf_recompute *r, const rf_op *op) {
  int now[RF_MAX_INPUTS];
  bool other = false;
  for (int i = 0; i < op->input_count; i++) {
    now[i] = current(r, op->input[i]);
    other |= now[i] != op->input[i];
  }
  if (!other) return op->input;
  int *list = memcpy(r->slot + r->slots, now, (size_t)op->input_count * sizeof *now);
  r->slots += op->input_count;
  return list;
}

void rf_recompute_decide(rf_recompute *r, const bool *drop) {
  const rf_graph *graph = r->graph;
  r->steps = r->copies = r->slots = 0;
  memset(r->remake, 0, (size_t)r->tensors);
  memset(r->passed, 0, (size_t)r->ops);
  for (int t = 0; t < r->tensors; t++) r->remade[t] = r->instead[t] = RF_NONE;
  choose(r, drop);
  for (int o = 0; o < r->ops; o++) {
    const rf_op *op = &graph->op[o];
    const int *input = rf_remat_forward(op) ? op->input : inputs_now(r, op);
    bool shared = op->def == &RF_OP_ALL_GATHER && op->backward && r->instead[op->output[0]] != RF_NONE;
    if (shared) continue;
    r->step[r->steps++] = (rf_remat_step){.op = o,
                                          .def = op->def,
                                          .input = input,
                                          .output = op->output,
                                          .inputs = (int8_t)op->input_count,
                                          .outputs = (int8_t)op->output_count};
    r->passed[o] = true;
  }
}

rf_op rf_recompute_op(const rf_recompute *r, const rf_remat_step *step) {
  rf_op op = r->graph->op[step->op];
  if (!step->again) return op;
  memset(op.attr.accumulate, 0, sizeof op.attr.accumulate);
  op.recompute_of = step->op;
  if (step->gelu) {
    op.def = step->def;
    op.attr = (rf_attr){0};
    op.input[0] = op.output[0];
    op.output[0] = op.output[1];
    op.input_count = op.output_count = 1;
    for (int i = 1; i < RF_MAX_INPUTS; i++) op.input[i] = RF_NONE;
    for (int i = 1; i < RF_MAX_OUTPUTS; i++) op.output[i] = RF_NONE;
    return op;
  }
  for (int i = 0; i < step->outputs; i++)
    if (step->output[i] == RF_NONE) op.output[i] = RF_NONE;
  /* if no op reads the result of the GELU, the fused op becomes a plain product */
  if (op.def == &RF_OP_MATMUL && op.output[1] == RF_NONE) op.attr.matmul.epilogue = RF_EPILOGUE_NONE;
  return op;
}

/* ---- the graph ------------------------------------------------------------------------------- */

static void copy_tensor(rf_graph *graph, int t) {
  rf_tensor tensor = graph->tensor[t];
  int id = rf_graph_tensor(graph, rf_graph_join(graph, tensor.name, "/recompute", ""), tensor.class,
                           tensor.dtype, tensor.rank, tensor.shape);
  graph->tensor[id].reason = "recomputed for backward";
  graph->tensor[id].spec = tensor.spec;
  graph->tensor[id].param = tensor.param;
  graph->tensor[id].panels = tensor.panels;
}

rf_status rf_pass_remat(rf_graph *graph, const bool *drop, rf_error *error) {
  rf_pool *scratch = rf_pool_new();
  rf_status status = RAFTER_OK;
  /* pointers to the original arrays, because `graph` gets new arrays below */
  rf_graph before = *graph;
  rf_recompute *r = rf_recompute_open(&before, scratch);
  int *order = NULL;
  rf_recompute_decide(r, drop);
  order = rf_pool_raw(scratch, ((size_t)r->steps + 1) * sizeof *order);
  rf_graph_reserve(graph, r->copies, r->steps - r->ops > 0 ? r->steps - r->ops : 0);
  for (int k = 0; k < r->copies; k++) copy_tensor(graph, r->copied[k]);
  for (int k = 0; k < r->steps; k++) {
    const rf_remat_step *step = &r->step[k];
    order[k] = step->op;
    if (!step->again) {
      if (step->input != before.op[step->op].input)
        memcpy(graph->op[step->op].input, step->input, (size_t)step->inputs * sizeof *step->input);
      continue;
    }
    rf_op op = rf_recompute_op(r, step);
    int id = rf_graph_emit(graph, op.def, rf_graph_join(graph, op.name, "/recompute", ""), op.section,
                           (rf_slots){step->input, step->inputs}, (rf_slots){step->output, step->outputs},
                           &op.attr, error);
    if (id < 0) RF_GO(RAFTER_INVALID);
    graph->op[id].recompute_of = step->op;
    graph->op[id].chunk = op.chunk;
    graph->op[id].at = op.at;
    order[k] = id;
  }
  rf_graph_reorder(graph, order, r->steps);
done:
  rf_pool_free(scratch);
  return status;
}
