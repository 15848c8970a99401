/* choose.c - chooses one kernel for each op, and adds the workspace of the kernel. */
#include "plan/parts.h"

#include "machine/tuned.h"

#include <string.h>

/* Returns the index of op i's workspace in plan->tensor, or RF_NONE. */
static int add_workspace(rf_plan *plan, int i, rf_plan_depth depth) {
  const rf_graph *graph = plan->graph;
  const rf_tiling by = {plan->options.threads, plan->op[i].blocks};
  const size_t bytes = rf_kernel_workspace(plan->op[i].kernel, graph, &graph->op[i], by);
  if (bytes == 0) return RF_NONE;
  plan->workspace[plan->tensor_count - graph->tensor_count] = (rf_tensor){
      .name = depth != RF_PLAN_WHOLE ? "workspace"
                                     : rf_pool_format(graph->pool, "%s/workspace", graph->op[i].name),
      .class = RF_CLASS_WORKSPACE,
      .dtype = RF_U8,
      .rank = 1,
      .shape = {(int64_t)bytes},
      .param = RF_NONE,
      .reason = "workspace of its kernel"};
  return plan->tensor_count++;
}

/* The workspace of an exchange stays in use until the op that waits for the exchange. */
static int workspace_of_start(const rf_plan *plan, int i) {
  const rf_op *op = plan->graph->op;
  for (int k = i - 1; k >= 0; k--)
    if (op[k].def->starts && op[k].output[0] == op[i].output[0]) return plan->op[k].workspace;
  return RF_NONE;
}

/* If the number of rows varies from step to step, chooses a second kernel for steps of few rows. */
static void choose_few(const rf_plan *plan, const rf_op *op, rf_plan_op *p) {
  const rf_graph *graph = plan->graph;
  const rf_plan_options *o = &plan->options;
  if (o->build.job == RF_JOB_TRAIN || !op->input_count || op->input[0] < 0) return;
  int64_t rows = graph->tensor[op->input[0]].shape[0], one = rf_rows_of_pass(graph, rows, 1);
  const rf_kernel *few = rf_kernel_choose_for(o->backend, o->isa, graph, op, one);
  if (one == rows || few == p->kernel) return;
  p->few = few;
  p->few_rows = few->max_rows / one;
}

/* Chooses the kernels of products inside an op, such as the logits of the head. */
static void choose_inner(const rf_plan *plan, const rf_op *op, rf_plan_op *p) {
  if (!p->kernel->inner) return;
  rf_inner *inner = rf_pool_alloc(plan->graph->pool, RF_MAX_INNER * sizeof *inner);
  p->kernel->inner(p->kernel->level, plan->graph, op, inner);
  p->inner = inner;
}

void rf_plan_choose(rf_plan *plan, rf_plan_depth depth) {
  const rf_graph *graph = plan->graph;
  const rf_plan_options *options = &plan->options;
  const size_t ops = (size_t)graph->op_count + 1;
  plan->op = rf_pool_alloc(graph->pool, ops * sizeof *plan->op);
  plan->workspace = rf_pool_raw(graph->pool, ops * sizeof *plan->workspace);
  plan->tensor_count = graph->tensor_count;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    int of = op->recompute_of;
    rf_plan_op *p = &plan->op[i];
    /* A recomputed op must give bit-identical results. So a recomputed op uses the kernel of the
     * first op. */
    if (of >= 0 && of < i && graph->op[of].def == op->def) p->kernel = plan->op[of].kernel;
    else p->kernel = rf_kernel_choose(options->backend, options->isa, graph, op);
    choose_few(plan, op, p);
    choose_inner(plan, op, p);
    p->blocks = rf_tuned_blocks(&options->machine->tuned, graph, op, p->kernel->name, options->threads);
    /* A plan without times, as remat=auto makes it, needs only the work of recomputed ops. */
    if (depth >= RF_PLAN_PRICES || of >= 0) p->work = op->def->work(graph, op);
    p->calls = op->section == RF_SECTION_MICRO ? graph->accumulate : 1;
    p->workspace =
        op->def->exchange == RF_EXCHANGE_WAIT ? workspace_of_start(plan, i) : add_workspace(plan, i, depth);
  }
  plan->tensor = rf_pool_alloc(graph->pool, ((size_t)plan->tensor_count + 1) * sizeof *plan->tensor);
}
