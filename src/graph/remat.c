/* remat.c - recomputation: a forward activation that backward reads is dropped behind its last forward reader and made again, by the same
 * op, right before the first backward op that needs it. Dropout is drawn again from the same site, so all values keep their bits. */
#include "graph/passes.h"
#include "graph/remat.h"

#include <stdlib.h>
#include <string.h>

typedef struct remat {
  rf_graph *graph;
  rf_error *error;
  int tensors, ops;  /* of the graph as it came */
  int *source;       /* by tensor: the forward op that makes it, or RF_NONE */
  bool *kept;        /* read by backward and not dropped: there when backward starts */
  bool *remake;      /* to be made again, because it is dropped or because a dropped one is made from it */
  int *remade;       /* by tensor: its second copy, once made */
  int *twin;         /* by tensor gathered in forward: the op of backward that gathers the same, or RF_NONE */
  int *instead;      /* by tensor: what is read in its place since its op was left out, or RF_NONE */
  bool *passed;      /* by op: it stands in the new order */
  int *order, count; /* ops of the new graph */
} remat;

/* GELU as an epilogue is an op of its own when u is still there: no product is repeated for it. */
static bool gelu_from_kept(const remat *r, const rf_op *op, int t) {
  return op->def == &RF_OP_MATMUL && op->attr.epilogue == RF_EPILOGUE_GELU && t == op->output[1] && op->output[0] >= 0 && r->kept[op->output[0]];
}

static void mark(remat *r, int t) {
  if (r->source[t] == RF_NONE || r->kept[t] || r->remake[t]) return;
  r->remake[t] = true;
  const rf_op *op = &r->graph->op[r->source[t]];
  if (gelu_from_kept(r, op, t)) return;
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0) mark(r, op->input[i]);
}

/* Which tensors are kept, and which are made again: the closure of the dropped ones over what they are made from. */
static void choose(remat *r, const bool *drop) {
  rf_graph *graph = r->graph;
  bool *forward_read = rf_pool_alloc(graph->pool, (size_t)r->tensors + 1), *backward_read = rf_pool_alloc(graph->pool, (size_t)r->tensors + 1);
  for (int t = 0; t < r->tensors; t++) r->source[t] = r->remade[t] = RF_NONE;
  for (int o = 0; o < r->ops; o++) {
    const rf_op *op = &graph->op[o];
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] >= 0) (rf_remat_forward(op) ? forward_read : backward_read)[op->input[i]] = true;
    for (int i = 0; rf_remat_forward(op) && i < op->output_count; i++)
      if (op->output[i] >= 0 && op->def != &RF_OP_RECV && !rf_remat_outside(&graph->tensor[op->output[i]])) r->source[op->output[i]] = o;
  }
  for (int t = 0; t < r->tensors; t++) r->kept[t] = r->source[t] != RF_NONE && backward_read[t];
  for (int o = 0; o < r->ops; o++) {
    const rf_op *op = &graph->op[o];
    if (!rf_remat_forward(op)) continue;
    bool any = false, used = false, separate = op->def == &RF_OP_MATMUL;
    for (int i = 0; i < op->output_count; i++) {
      any = any || (op->output[i] >= 0 && drop[op->output[i]]);
      used = used || (op->output[i] >= 0 && forward_read[op->output[i]]);
    }
    /* What only backward reads starts its life there already. A norm's statistics and attention's lse go with their op's result. */
    for (int i = 0; any && used && i < op->output_count; i++)
      if (op->output[i] >= 0 && (!separate || drop[op->output[i]])) r->kept[op->output[i]] = false;
  }
  for (int t = 0; t < r->tensors; t++)
    if (r->source[t] != RF_NONE && backward_read[t] && !r->kept[t]) mark(r, t);
}

/* Weights that forward and backward each gather: recomputation shares the gather of backward. */
static void find_twins(remat *r) {
  const rf_graph *graph = r->graph;
  int *gathered = rf_pool_alloc(graph->pool, ((size_t)r->tensors + 1) * sizeof(int)); /* by tensor: op of forward that gathers it */
  for (int t = 0; t < r->tensors; t++) gathered[t] = r->twin[t] = r->instead[t] = RF_NONE;
  for (int o = 0; o < r->ops; o++) {
    const rf_op *op = &graph->op[o];
    if (op->def != &RF_OP_ALL_GATHER || op->section != RF_SECTION_MICRO || !graph->tensor[op->input[0]].persistent) continue;
    int of = gathered[op->input[0]];
    if (!op->backward) gathered[op->input[0]] = o;
    else if (of != RF_NONE && graph->op[of].attr.axes == op->attr.axes && graph->op[of].attr.dim == op->attr.dim)
      r->twin[graph->op[of].output[0]] = o;
  }
}

static rf_status make_again(remat *r, int t);

/* The id an op of backward reads in place of `t`. */
static rf_status current(remat *r, int t, int *id) {
  *id = t;
  if (t < 0 || t >= r->tensors) return RAFTER_OK;
  if (r->instead[t] != RF_NONE) *id = r->instead[t];
  if (!r->remake[t]) return RAFTER_OK;
  int twin = r->twin[t];
  if (r->remade[t] == RF_NONE && twin != RF_NONE && r->passed[twin]) r->remade[t] = r->graph->op[twin].output[0];
  if (r->remade[t] == RF_NONE) RF_TRY(make_again(r, t));
  *id = r->remade[t];
  return RAFTER_OK;
}

static int second_copy(remat *r, int t) {
  rf_tensor tensor = r->graph->tensor[t];
  int id = rf_graph_tensor(r->graph, rf_graph_join(r->graph, tensor.name, "/recompute", ""), tensor.class, tensor.dtype, tensor.rank, tensor.shape);
  r->graph->tensor[id].reason = "recomputed for backward";
  r->graph->tensor[id].spec = tensor.spec, r->graph->tensor[id].param = tensor.param, r->graph->tensor[id].panels = tensor.panels;
  return r->remade[t] = id;
}

static rf_status make_again(remat *r, int t) {
  rf_graph *graph = r->graph;
  const rf_op op = graph->op[r->source[t]]; /* a copy: the array grows below */
  const rf_op_def *def = op.def;
  int inputs[RF_MAX_INPUTS], outputs[RF_MAX_OUTPUTS], input_count = op.input_count, output_count = op.output_count;
  rf_attr attr = op.attr;
  memset(attr.accumulate, 0, sizeof attr.accumulate);
  if (gelu_from_kept(r, &op, t)) {
    def = &RF_OP_GELU;
    attr = (rf_attr){0};
    inputs[0] = op.output[0];
    outputs[0] = second_copy(r, t);
    input_count = output_count = 1;
  } else {
    for (int i = 0; i < op.input_count; i++) RF_TRY(current(r, op.input[i], &inputs[i]));
    for (int i = 0; i < op.output_count; i++) {
      bool skip = op.output[i] < 0 || (def == &RF_OP_MATMUL && !r->remake[op.output[i]]);
      outputs[i] = skip ? RF_NONE : second_copy(r, op.output[i]);
    }
    /* only u of a fused pair is asked for */
    if (def == &RF_OP_MATMUL && outputs[1] == RF_NONE) attr.epilogue = RF_EPILOGUE_NONE;
  }
  const char *name = rf_graph_join(graph, op.name, "/recompute", "");
  int id = rf_graph_emit(graph, def, name, op.section, inputs, input_count, outputs, output_count, &attr, r->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].recompute_of = r->source[t], graph->op[id].chunk = op.chunk;
  r->order[r->count++] = id;
  if (r->twin[t] != RF_NONE) r->instead[graph->op[r->twin[t]].output[0]] = r->remade[t];
  return RAFTER_OK;
}

rf_status rf_pass_remat(rf_graph *graph, const bool *drop, rf_error *error) {
  size_t tensors = (size_t)graph->tensor_count, ops = (size_t)graph->op_count;
  rf_pool *pool = graph->pool;
  remat r = {.graph = graph,
             .error = error,
             .tensors = graph->tensor_count,
             .ops = graph->op_count,
             .source = rf_pool_alloc(pool, tensors * sizeof(int)),
             .kept = rf_pool_alloc(pool, tensors),
             .remake = rf_pool_alloc(pool, tensors),
             .remade = rf_pool_alloc(pool, tensors * sizeof(int)),
             .twin = rf_pool_alloc(pool, tensors * sizeof(int)),
             .instead = rf_pool_alloc(pool, tensors * sizeof(int)),
             .passed = rf_pool_alloc(pool, ops + 1),
             .order = rf_pool_alloc(pool, 2 * ops * sizeof(int))};
  choose(&r, drop);
  find_twins(&r);
  for (int o = 0; o < r.ops; o++) {
    if (!rf_remat_forward(&graph->op[o]))
      for (int i = 0; i < graph->op[o].input_count; i++) {
        int id;
        RF_TRY(current(&r, graph->op[o].input[i], &id));
        graph->op[o].input[i] = id;
      }
    bool shared = graph->op[o].def == &RF_OP_ALL_GATHER && graph->op[o].backward && r.instead[graph->op[o].output[0]] != RF_NONE;
    if (!shared) r.order[r.count++] = o, r.passed[o] = true;
  }
  rf_graph_reorder(graph, r.order, r.count);
  return RAFTER_OK;
}
