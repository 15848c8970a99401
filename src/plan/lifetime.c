/* lifetime.c - finds the first and the last op that need a tensor, and the outputs that reuse the
 * bytes of inputs. */
#include "plan/parts.h"

#include "graph/mesh/pipeline.h"
#include "machine/tiles.h"

#include <string.h>

/* Bytes of a tensor on a machine. The tensor has one aligned slot for each microbatch in flight. */
static int64_t bytes_of(const rf_machine *machine, const rf_tensor *tensor) {
  int64_t bytes = tensor->dtype == RF_PACKED
                      ? rf_tensor_bytes(tensor)
                      : rf_machine_bytes(machine, tensor->dtype, tensor->rank, tensor->shape);
  return tensor->slots > 1 ? tensor->slots * rf_align(bytes) : bytes;
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

typedef struct life {
  bool read_first, /* true if the section `micro` reads the tensor before it writes the tensor */
      written,     /* true if the section `micro` writes the tensor */
      in_micro;    /* true if the section `micro` uses the tensor */
} life;

typedef struct pass {
  rf_flow *flow;
  life *life;
  /* number of the first op of each section; the last entry is the number of ops */
  int begin[RF_SECTIONS + 1];
  int op;
  bool in_micro;
} pass;

static inline void touch(pass *w, int t, bool reads, bool writes) {
  rf_plan_tensor *p = &w->flow->at[t];
  if (p->first == INT32_MAX) p->first = w->op;
  p->last = w->op;
  if (!w->in_micro) return;
  life *l = &w->life[t];
  l->in_micro = true;
  if (reads && !l->written) l->read_first = true;
  if (writes) l->written = true;
}

static void touch_op(pass *w) {
  const rf_flow_op *op = &w->flow->op[w->op];
  w->in_micro = op->section == RF_SECTION_MICRO;
  for (int i = 0; i < op->inputs; i++)
    if (op->input[i] >= 0) touch(w, op->input[i], true, false);
  for (int i = 0; i < op->outputs; i++)
    if (op->output[i] >= 0) touch(w, op->output[i], op->accumulate && op->accumulate[i] != RF_WRITE, true);
  if (op->workspace >= 0) touch(w, op->workspace, false, true);
}

/* Extends the lifetime of a tensor before its first use and after its last use. Inputs live from
 * the start of the section that reads them. Outputs live until the end of the step. Tensors that
 * one microbatch passes to the next live for the whole micro section. */
static void extend(pass *w, int t) {
  const rf_flow *flow = w->flow;
  const rf_flow_tensor *tensor = &flow->tensor[t];
  rf_plan_tensor *p = &flow->at[t];
  const life *l = &w->life[t];
  if (tensor->input) p->first = w->begin[flow->op[p->first].section];
  bool loops = flow->microbatches > 1 && l->in_micro;
  bool carried = loops && ((l->read_first && !tensor->input) || tensor->output || tensor->held);
  if (carried) {
    int before = w->begin[RF_SECTION_MICRO] - 1, behind = w->begin[RF_SECTION_END];
    if (p->first > before) p->first = before;
    if (p->last < behind) p->last = behind;
  }
  if (tensor->output) p->last = flow->ops;
}

/* The TPU compiler gathers the weights of a layer while the layer before it computes. So in
 * after_earlier_layers of backend/xla/emit.c, the gathers depend on the newest result at the first
 * gather of the previous layer. */
static void gather_ahead(rf_flow *flow) {
  int start = 0, wait_for = 0, newest = 0;
  const rf_flow_op *before = NULL;
  for (int i = 0; i < flow->ops; i++) {
    const rf_flow_op *op = &flow->op[i];
    bool gathers = op->def == &RF_OP_ALL_GATHER && op->input[0] >= 0 && flow->tensor[op->input[0]].persistent;
    if (i > 0 && flow->microbatches > 1 && op->section != flow->op[i - 1].section)
      start = wait_for = newest = i;
    if (!gathers) {
      newest = i;
      continue;
    }
    if (!before || op->layer != before->layer || op->backward != before->backward) {
      wait_for = start;
      start = newest;
    }
    before = op;
    rf_plan_tensor *p = &flow->at[op->output[0]];
    if (wait_for < p->first) p->first = wait_for;
  }
}

static int uses_as_input(const rf_flow_op *op, int t) {
  int count = 0;
  for (int i = 0; i < op->inputs; i++) count += op->input[i] == t;
  return count;
}

static void share(rf_flow *flow, int i) {
  const rf_flow_op *op = &flow->op[i];
  for (int k = 0; k < op->def->inplace_count; k++) {
    int to = op->output[op->def->inplace[k].output], from = op->input[op->def->inplace[k].input];
    if (to < 0 || from < 0 || to == from) continue;
    const rf_flow_tensor *tensor = &flow->tensor[from];
    rf_plan_tensor *p = &flow->at[to], *q = &flow->at[from];
    if (tensor->persistent || tensor->input || tensor->output || flow->tensor[to].persistent ||
        flow->tensor[to].input)
      continue;
    if (p->first != i || q->last != i || p->shares != RF_NONE || p->bytes != q->bytes ||
        uses_as_input(op, from) != 1)
      continue;
    bool taken = false;
    for (int o = 0; o < op->outputs; o++)
      taken |= op->output[o] >= 0 && flow->at[op->output[o]].shares == from;
    if (!taken) p->shares = from;
  }
}

void rf_flow_lifetimes(rf_flow *flow) {
  rf_pool *scratch = rf_pool_new();
  pass w = {.flow = flow, .life = rf_pool_alloc(scratch, ((size_t)flow->tensors + 1) * sizeof(life))};
  for (int s = 0, i = 0; s <= RF_SECTIONS; s++) {
    while (i < flow->ops && flow->op[i].section < s) i++;
    w.begin[s] = i;
  }
  for (int t = 0; t < flow->tensors; t++)
    flow->at[t] = (rf_plan_tensor){.offset = RF_NONE,
                                   .bytes = rf_align(flow->tensor[t].bytes),
                                   .first = INT32_MAX,
                                   .last = RF_NONE,
                                   .shares = RF_NONE};
  for (w.op = 0; w.op < flow->ops; w.op++) touch_op(&w);
  if (flow->gathers_ahead) gather_ahead(flow);
  for (int t = 0; t < flow->tensors; t++) {
    rf_plan_tensor *p = &flow->at[t];
    if (flow->tensor[t].persistent) {
      p->first = -1;
      p->last = flow->ops;
    } else if (p->first == INT32_MAX) p->first = p->last = RF_NONE;
    else extend(&w, t);
  }
  for (int i = 0; i < flow->ops; i++) share(flow, i);
  rf_pool_free(scratch);
}

rf_flow_tensor rf_flow_tensor_of(const rf_plan_options *options, const rf_graph *graph,
                                 const rf_tensor *tensor) {
  /* Between the forward and the backward pass of a microbatch, passes of other microbatches run.
   * The other passes must not overwrite the tensor. The exception is a stage with only one run of
   * layers and only one microbatch in flight. */
  bool held = rf_slots_are_held(tensor, &graph->mesh);
  if (rf_tensor_is_elsewhere(tensor, &graph->mesh)) return (rf_flow_tensor){0};
  return (rf_flow_tensor){.bytes = bytes_of(options->machine, tensor),
                          .persistent = tensor->persistent,
                          .input = tensor->input,
                          .output = tensor->output,
                          .host = tensor->host,
                          .held = held};
}

rf_flow_op rf_flow_op_of(const rf_op *op, int workspace) {
  return (rf_flow_op){.input = op->input,
                      .output = op->output,
                      .accumulate = op->attr.accumulate,
                      .def = op->def,
                      .workspace = workspace,
                      .layer = op->at.layer,
                      .backward = op->backward,
                      .inputs = (int8_t)op->input_count,
                      .outputs = (int8_t)op->output_count,
                      .section = (int8_t)op->section};
}

void rf_plan_lifetimes(rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  rf_flow *flow = rf_pool_raw(graph->pool, sizeof *flow);
  *flow =
      (rf_flow){.ops = graph->op_count,
                .tensors = plan->tensor_count,
                .microbatches = graph->accumulate,
                .guard_bytes = plan->options.guard_bytes,
                .gathers_ahead = plan->options.gathers_ahead,
                .op = rf_pool_raw(graph->pool, ((size_t)graph->op_count + 1) * sizeof *flow->op),
                .tensor = rf_pool_raw(graph->pool, ((size_t)plan->tensor_count + 1) * sizeof *flow->tensor),
                .at = plan->tensor};
  for (int i = 0; i < flow->ops; i++) flow->op[i] = rf_flow_op_of(&graph->op[i], plan->op[i].workspace);
  for (int t = 0; t < flow->tensors; t++)
    flow->tensor[t] = rf_flow_tensor_of(&plan->options, graph, rf_plan_content(plan, t));
  rf_flow_lifetimes(flow);
  plan->flow = flow;
}

int64_t rf_flow_persistent(const rf_flow *flow, bool host) {
  int64_t sum = 0;
  for (int t = 0; t < flow->tensors; t++)
    if (flow->tensor[t].persistent && flow->tensor[t].host == host) sum += rf_align(flow->tensor[t].bytes);
  return sum;
}

/* ---- what is live ---------------------------------------------------------------------------- */

static bool is_used(const rf_flow *flow, int t) {
  return !flow->tensor[t].host && (flow->tensor[t].persistent || flow->at[t].last != RF_NONE);
}

/* change[i + 1] is the number by which the sum of live bytes changes at op i. If a tensor reuses
 * the bytes of an input, it counts from the op after its first op on, because the input counts
 * until its first op. */
static int64_t *live_changes(const rf_flow *flow, rf_pool *pool) {
  int64_t *change = rf_pool_alloc(pool, ((size_t)flow->ops + 4) * sizeof *change);
  for (int t = 0; t < flow->tensors; t++) {
    if (!is_used(flow, t)) continue;
    const rf_plan_tensor *p = &flow->at[t];
    change[p->first + 1 + (p->shares != RF_NONE)] += flow->tensor[t].bytes;
    change[p->last + 2] -= flow->tensor[t].bytes;
  }
  return change;
}

int64_t rf_flow_live_bytes(const rf_flow *flow, int *peak_op) {
  rf_pool *scratch = rf_pool_new();
  int64_t *change = live_changes(flow, scratch), most = 0, sum = change[0];
  int at = 0;
  for (int i = 0; i < flow->ops; i++) {
    sum += change[i + 1];
    if (sum > most) {
      most = sum;
      at = i;
    }
  }
  rf_pool_free(scratch);
  if (peak_op) *peak_op = at;
  return most;
}

int64_t rf_plan_live_bytes(const rf_plan *plan, int *peak_op, int64_t by_class[RF_CLASSES]) {
  const rf_flow own = rf_plan_flow(plan), *flow = &own;
  int at;
  int64_t most = rf_flow_live_bytes(flow, &at);
  if (peak_op) *peak_op = at;
  if (by_class) memset(by_class, 0, RF_CLASSES * sizeof *by_class);
  for (int t = 0; by_class && t < flow->tensors; t++) {
    const rf_plan_tensor *p = &flow->at[t];
    if (is_used(flow, t) && p->first + (p->shares != RF_NONE) <= at && at <= p->last)
      by_class[rf_plan_content(plan, t)->class] += flow->tensor[t].bytes;
  }
  return most;
}

void rf_plan_memory_curve(const rf_plan *plan, int64_t *live, int64_t *top) {
  const rf_graph *graph = plan->graph;
  rf_pool *scratch = rf_pool_new();
  const rf_flow flow = rf_plan_flow(plan);
  int64_t *change = live_changes(&flow, scratch), sum = change[0], floor = plan->persistent_bytes;
  for (int i = 0; i < graph->op_count; i++) {
    live[i] = sum += change[i + 1];
    top[i] = 0;
  }
  for (int t = 0; t < plan->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    int64_t end = p->offset + p->bytes;
    if (p->offset < 0 || rf_plan_content(plan, t)->host) continue;
    bool always = p->first <= 0 && p->last >= graph->op_count - 1;
    if (always && end > floor) floor = end;
    for (int i = p->first < 0 ? 0 : p->first; !always && i <= p->last && i < graph->op_count; i++)
      if (end > top[i]) top[i] = end;
  }
  for (int i = 0; i < graph->op_count; i++)
    if (top[i] < floor) top[i] = floor;
  rf_pool_free(scratch);
}
