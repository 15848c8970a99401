/* trial.c - estimates plans that recompute different tensors of one graph. An estimate has live
 * bytes, size of the arena, and seconds of recomputation. An estimate equals the value of the real
 * plan, but takes far less time. */
#include "plan/parts.h"

#include "graph/remat.h"
#include "machine/tuned.h"

#include <string.h>

/* Cost of a recomputed op. */
typedef struct again {
  bool known;
  int64_t workspace;
  double seconds;
} again;

/* The recomputation of an op may have fewer outputs than the op. For a product with GELU,
 * recomputation may run only the GELU. */
enum { FORMS = 4 };

struct rf_trial {
  const rf_graph *base;
  const rf_plan_options *options;
  rf_recompute *recompute;
  const rf_kernel **kernel; /* one entry for each op of the base graph */
  int64_t *workspace;
  double *seconds; /* arrays with one entry for each step; NULL until first needed */
  rf_flow_op *op;
  rf_pool *pool;
  again *again; /* FORMS entries per op */
  rf_flow flow; /* input of the layout for the last set; the base graph's tensors come first */
  int64_t persistent, live;
};

static int64_t workspace_of(const rf_trial *t, const rf_kernel *kernel, const rf_op *op) {
  const int threads = t->options->threads;
  const rf_tuned *tuned = &t->options->machine->tuned;
  const rf_tiling by = {threads, rf_tuned_blocks(tuned, t->base, op, kernel->name, threads)};
  return (int64_t)rf_kernel_workspace(kernel, t->base, op, by);
}

bool rf_trial_can(const rf_graph *base, const rf_plan_options *options) {
  return rf_mesh_extent(&base->mesh, RF_AXIS_PIPELINE) < 2 && !options->build.offload;
}

rf_trial *rf_trial_open(const rf_graph *base, const rf_plan_options *options, rf_pool *pool) {
  size_t ops = (size_t)base->op_count + 1, tensors = (size_t)base->tensor_count + 1;
  /* each tensor is recomputed at most once, and each op has at most one workspace of its own */
  size_t most = 2 * tensors + 2 * ops;
  rf_trial *t = rf_pool_alloc(pool, sizeof *t);
  *t = (rf_trial){.base = base,
                  .options = options,
                  .pool = pool,
                  .recompute = rf_recompute_open(base, pool),
                  .kernel = rf_pool_raw(pool, ops * sizeof *t->kernel),
                  .workspace = rf_pool_raw(pool, ops * sizeof *t->workspace),
                  .op = rf_pool_raw(pool, ops * sizeof *t->op),
                  .again = rf_pool_alloc(pool, FORMS * ops * sizeof *t->again)};
  t->flow = (rf_flow){.microbatches = base->accumulate,
                      .gathers_ahead = options->gathers_ahead,
                      .guard_bytes = options->guard_bytes,
                      .op = rf_pool_raw(pool, 2 * ops * sizeof *t->flow.op),
                      .tensor = rf_pool_raw(pool, most * sizeof *t->flow.tensor),
                      .at = rf_pool_raw(pool, most * sizeof *t->flow.at)};
  for (int i = 0; i < base->op_count; i++) {
    t->kernel[i] = rf_kernel_choose(options->backend, options->isa, base, &base->op[i]);
    t->workspace[i] = workspace_of(t, t->kernel[i], &base->op[i]);
    t->op[i] = rf_flow_op_of(&base->op[i], RF_NONE);
  }
  t->flow.tensors = base->tensor_count;
  for (int i = 0; i < t->flow.tensors; i++)
    t->flow.tensor[i] = rf_flow_tensor_of(options, base, &base->tensor[i]);
  t->persistent = rf_flow_persistent(&t->flow, false);
  return t;
}

static double seconds_of(const rf_trial *t, const rf_kernel *kernel, const rf_op *op) {
  int calls = op->section == RF_SECTION_MICRO ? t->base->accumulate : 1;
  return calls * rf_cost_op(t->options->machine, t->base, op, kernel, op->def->work(t->base, op), NULL);
}

static const again *price(rf_trial *t, const rf_remat_step *step) {
  int form = 0;
  for (int i = 0; i < step->outputs && !step->gelu; i++)
    form |= step->output[i] != RF_NONE ? 1 << (i > 0) : 0;
  again *a = &t->again[FORMS * step->op + form];
  if (a->known) return a;
  const rf_op op = rf_recompute_op(t->recompute, step);
  /* Recomputation must give the same bits. So a recomputed op uses the kernel of the first op. */
  bool same = op.def == t->base->op[step->op].def;
  const rf_kernel *kernel =
      same ? t->kernel[step->op] : rf_kernel_choose(t->options->backend, t->options->isa, t->base, &op);
  *a = (again){
      .known = true, .workspace = workspace_of(t, kernel, &op), .seconds = seconds_of(t, kernel, &op)};
  return a;
}

static int add_workspace(rf_trial *t, int64_t bytes) {
  if (!bytes) return RF_NONE;
  const rf_tensor tensor = {.dtype = RF_U8, .rank = 1, .shape = {bytes}};
  t->flow.tensor[t->flow.tensors] = rf_flow_tensor_of(t->options, t->base, &tensor);
  return t->flow.tensors++;
}

void rf_trial_weigh(rf_trial *t, const bool *drop, int64_t *live, double *seconds) {
  rf_recompute *r = t->recompute;
  rf_flow *flow = &t->flow;
  rf_recompute_decide(r, drop);
  flow->ops = r->steps;
  flow->tensors = t->base->tensor_count + r->copies;
  for (int i = 0; i < r->copies; i++)
    flow->tensor[t->base->tensor_count + i] = (rf_flow_tensor){.bytes = flow->tensor[r->copied[i]].bytes};
  *seconds = 0;
  for (int i = 0; i < r->steps; i++) {
    const rf_remat_step *step = &r->step[i];
    rf_flow_op *op = &flow->op[i];
    *op = t->op[step->op];
    op->input = step->input;
    op->output = step->output;
    int64_t workspace = t->workspace[step->op];
    if (step->again) {
      const again *a = price(t, step);
      *seconds += a->seconds;
      workspace = a->workspace;
      op->def = step->def;
      op->accumulate = NULL;
      op->inputs = step->inputs;
      op->outputs = step->outputs;
    }
    op->workspace = add_workspace(t, workspace);
  }
  rf_flow_lifetimes(flow);
  *live = t->live = rf_flow_live_bytes(flow, NULL);
}

int64_t rf_trial_policy(rf_trial *t, rf_remat remat, int64_t room) {
  bool *drop = rf_pool_alloc(t->pool, (size_t)t->base->tensor_count + 1);
  int64_t live;
  double seconds;
  rf_remat_policy(t->base, remat, drop);
  rf_trial_weigh(t, drop, &live, &seconds);
  return live <= room ? rf_trial_layout(t) : live;
}

int64_t rf_trial_layout(rf_trial *t) { return rf_flow_layout(&t->flow, false, t->persistent, t->live); }

double rf_trial_seconds(rf_trial *t) {
  const rf_recompute *r = t->recompute;
  double sum = 0;
  if (!t->seconds) {
    t->seconds = rf_pool_raw(t->pool, ((size_t)t->base->op_count + 1) * sizeof *t->seconds);
    for (int i = 0; i < t->base->op_count; i++) t->seconds[i] = seconds_of(t, t->kernel[i], &t->base->op[i]);
  }
  for (int i = 0; i < r->steps; i++)
    sum += r->step[i].again ? price(t, &r->step[i])->seconds : t->seconds[r->step[i].op];
  return sum;
}

int64_t rf_trial_persistent(const rf_trial *t) { return t->persistent; }
