/* lifetime.c - from which op to which op each tensor's bytes hold something, and which outputs take over an input's bytes. */
#include "plan/parts.h"

#include "graph/pipeline.h"
#include "machine/tiles.h"

#include <string.h>

/* What a tensor takes in the memory of the plan's machine; one that is held for several microbatches has an aligned place for each. */
static int64_t bytes_of(const rf_plan *plan, const rf_tensor *tensor) {
  int64_t bytes =
      tensor->dtype == RF_PACKED ? rf_tensor_bytes(tensor) : rf_machine_bytes(plan->options.machine, tensor->dtype, tensor->rank, tensor->shape);
  return tensor->slots > 1 ? tensor->slots * rf_align(bytes) : bytes;
}

typedef struct life {
  bool read_first, written, in_micro;
} life; /* within the loop: read before it is written; written so far; touched */

typedef struct walk {
  rf_plan *plan;
  life *life;
  int begin[RF_SECTIONS + 1]; /* first op of each section; the last entry is op_count */
  int op;
} walk;

static void touch(walk *w, int t, bool reads, bool writes) {
  rf_plan_tensor *p = &w->plan->tensor[t];
  life *l = &w->life[t];
  if (p->first == INT32_MAX) p->first = w->op;
  p->last = w->op;
  if (w->plan->graph->op[w->op].section != RF_SECTION_MICRO) return;
  l->in_micro = true;
  if (reads && !l->written) l->read_first = true;
  if (writes) l->written = true;
}

static void touch_op(walk *w) {
  const rf_op *op = &w->plan->graph->op[w->op];
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0) touch(w, op->input[i], true, false);
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] >= 0) touch(w, op->output[i], op->attr.accumulate[i] != RF_WRITE, true);
  if (w->plan->op[w->op].workspace >= 0) touch(w, w->plan->op[w->op].workspace, false, true);
}

/* What the caller writes is there from the start of the first section that uses it, what it reads stays to the end, and what one
 * microbatch hands to the next (or finds from before the loop) keeps its bytes round the whole loop. */
static void extend(walk *w, int t) {
  const rf_graph *graph = w->plan->graph;
  const rf_tensor *tensor = &graph->tensor[t];
  rf_plan_tensor *p = &w->plan->tensor[t];
  const life *l = &w->life[t];
  if (tensor->input) p->first = w->begin[graph->op[p->first].section];
  bool loops = graph->accumulate > 1 && l->in_micro;
  /* Between the halves of a microbatch those of others come, but where the only run of layers has one in flight. */
  bool held = tensor->slots > 1 || (tensor->slots == 1 && rf_pipeline_chunks(&graph->mesh) > 1);
  bool carried = loops && ((l->read_first && !tensor->input) || tensor->output || held);
  if (carried) {
    int before = w->begin[RF_SECTION_MICRO] - 1, behind = w->begin[RF_SECTION_END];
    if (p->first > before) p->first = before;
    if (p->last < behind) p->last = behind;
  }
  if (tensor->output) p->last = graph->op_count;
}

static int uses_as_input(const rf_op *op, int t) {
  int count = 0;
  for (int i = 0; i < op->input_count; i++) count += op->input[i] == t;
  return count;
}

static void share(rf_plan *plan, int i) {
  const rf_graph *graph = plan->graph;
  const rf_op *op = &graph->op[i];
  for (int k = 0; k < op->def->inplace_count; k++) {
    int to = op->output[op->def->inplace[k].output], from = op->input[op->def->inplace[k].input];
    if (to < 0 || from < 0 || to == from) continue;
    const rf_tensor *tensor = &graph->tensor[from];
    rf_plan_tensor *p = &plan->tensor[to], *q = &plan->tensor[from];
    if (tensor->persistent || tensor->input || tensor->output || graph->tensor[to].persistent || graph->tensor[to].input) continue;
    if (p->first != i || q->last != i || p->shares != RF_NONE || p->bytes != q->bytes || uses_as_input(op, from) != 1) continue;
    bool taken = false;
    for (int o = 0; o < op->output_count; o++) taken |= op->output[o] >= 0 && plan->tensor[op->output[o]].shares == from;
    if (!taken) p->shares = from;
  }
}

void rf_plan_lifetimes(rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  rf_pool *scratch = rf_pool_new();
  walk w = {.plan = plan, .life = rf_pool_alloc(scratch, ((size_t)graph->tensor_count + 1) * sizeof(life))};
  for (int s = 0, i = 0; s <= RF_SECTIONS; s++) {
    while (i < graph->op_count && (int)graph->op[i].section < s) i++;
    w.begin[s] = i;
  }
  for (int t = 0; t < graph->tensor_count; t++) {
    plan->tensor[t] = (rf_plan_tensor){.offset = RF_NONE, .first = INT32_MAX, .last = RF_NONE, .shares = RF_NONE};
    plan->tensor[t].bytes = rf_align(bytes_of(plan, &graph->tensor[t]));
  }
  for (w.op = 0; w.op < graph->op_count; w.op++) touch_op(&w);
  for (int t = 0; t < graph->tensor_count; t++) {
    rf_plan_tensor *p = &plan->tensor[t];
    if (graph->tensor[t].persistent) p->first = -1, p->last = graph->op_count;
    else if (p->first == INT32_MAX) p->first = p->last = RF_NONE;
    else extend(&w, t);
  }
  for (int i = 0; i < graph->op_count; i++) share(plan, i);
  rf_pool_free(scratch);
}

static bool is_used(const rf_plan *plan, int t) {
  const rf_tensor *tensor = &plan->graph->tensor[t];
  return !tensor->host && (tensor->persistent || plan->tensor[t].last != RF_NONE);
}

/* change[i + 1]: how the sum of live bytes changes on entering op i; a tensor in place of another counts from the op after. */
static int64_t *live_changes(const rf_plan *plan, rf_pool *pool) {
  const rf_graph *graph = plan->graph;
  int64_t *change = rf_pool_alloc(pool, ((size_t)graph->op_count + 4) * sizeof *change);
  for (int t = 0; t < graph->tensor_count; t++) {
    if (!is_used(plan, t)) continue;
    const rf_plan_tensor *p = &plan->tensor[t];
    int64_t bytes = bytes_of(plan, &graph->tensor[t]);
    change[p->first + 1 + (p->shares != RF_NONE)] += bytes;
    change[p->last + 2] -= bytes;
  }
  return change;
}

void rf_plan_memory_curve(const rf_plan *plan, int64_t *live, int64_t *top) {
  const rf_graph *graph = plan->graph;
  rf_pool *scratch = rf_pool_new();
  int64_t *change = live_changes(plan, scratch), sum = change[0], floor = plan->persistent_bytes;
  for (int i = 0; i < graph->op_count; i++) live[i] = sum += change[i + 1], top[i] = 0;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    int64_t end = p->offset + p->bytes;
    if (p->offset < 0 || graph->tensor[t].host) continue;
    bool always = p->first <= 0 && p->last >= graph->op_count - 1;
    if (always && end > floor) floor = end;
    for (int i = p->first < 0 ? 0 : p->first; !always && i <= p->last && i < graph->op_count; i++)
      if (end > top[i]) top[i] = end;
  }
  for (int i = 0; i < graph->op_count; i++)
    if (top[i] < floor) top[i] = floor;
  rf_pool_free(scratch);
}

int64_t rf_plan_live_bytes(const rf_plan *plan, int *peak_op, int64_t by_class[RF_CLASSES]) {
  const rf_graph *graph = plan->graph;
  rf_pool *scratch = rf_pool_new();
  int64_t *change = live_changes(plan, scratch), most = 0, sum = change[0];
  int at = 0;
  for (int i = 0; i < graph->op_count; i++) {
    sum += change[i + 1];
    if (sum > most) most = sum, at = i;
  }
  rf_pool_free(scratch);
  if (peak_op) *peak_op = at;
  if (by_class) memset(by_class, 0, RF_CLASSES * sizeof *by_class);
  for (int t = 0; by_class && t < graph->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    if (is_used(plan, t) && p->first + (p->shares != RF_NONE) <= at && at <= p->last)
      by_class[graph->tensor[t].class] += bytes_of(plan, &graph->tensor[t]);
  }
  return most;
}
