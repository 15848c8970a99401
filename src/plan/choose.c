/* choose.c - one kernel per op, and its workspace as a tensor like any other. */
#include "plan/parts.h"

#include "machine/tuned.h"

#include <string.h>

static int workspace_tensor(rf_plan *plan, int i, rf_plan_depth depth) {
  const rf_graph *graph = plan->graph;
  const rf_kernel *kernel = plan->op[i].kernel;
  size_t bytes =
      kernel->workspace_bytes ? kernel->workspace_bytes(graph, &graph->op[i], plan->options.threads) : 0;
  if (bytes == 0) return RF_NONE;
  int64_t shape[] = {(int64_t)bytes};
  const char *name =
      depth != RF_PLAN_WHOLE ? "workspace" : rf_pool_format(graph->pool, "%s/workspace", graph->op[i].name);
  int t = rf_graph_tensor(plan->graph, name, RF_CLASS_WORKSPACE, RF_U8, 1, shape);
  plan->graph->tensor[t].reason = "workspace of its kernel";
  return t;
}

/* Where the rows of a step vary, a step with few of them may need another kernel. */
static void choose_few(const rf_plan *plan, const rf_op *op, rf_plan_op *p) {
  const rf_graph *graph = plan->graph;
  const rf_plan_options *o = &plan->options;
  if (o->build.job == RF_JOB_TRAIN || !op->input_count || op->input[0] < 0) return;
  int64_t rows = graph->tensor[op->input[0]].shape[0], one = rf_rows_of_walk(graph, rows, 1);
  const rf_kernel *few = rf_kernel_choose_for(o->backend, o->isa, graph, op, one);
  if (one == rows || few == p->kernel) return;
  p->few = few;
  p->few_rows = few->max_rows / one;
}

void rf_plan_choose(rf_plan *plan, rf_plan_depth depth) {
  const rf_graph *graph = plan->graph;
  const rf_plan_options *options = &plan->options;
  plan->op = rf_pool_alloc(graph->pool, ((size_t)graph->op_count + 1) * sizeof *plan->op);
  for (int i = 0; i < graph->op_count; i++) {
    rf_op *op = &plan->graph->op[i];
    int of = op->recompute_of;
    rf_plan_op *p = &plan->op[i];
    /* The same values must come out again, so the same kernel makes them. */
    if (of >= 0 && of < i && graph->op[of].def == op->def) p->kernel = plan->op[of].kernel;
    else p->kernel = rf_kernel_choose(options->backend, options->isa, graph, op);
    choose_few(plan, op, p);
    op->blocks = rf_tuned_blocks(&options->machine->tuned, graph, op, p->kernel->name, options->threads);
    /* else it is asked for bytes, and for the time of recomputation */
    if (depth >= RF_PLAN_PRICES || of >= 0) p->work = op->def->work(graph, op);
    p->calls = op->section == RF_SECTION_MICRO ? graph->accumulate : 1;
    p->workspace = workspace_tensor(plan, i, depth);
  }
  plan->tensor = rf_pool_alloc(graph->pool, ((size_t)graph->tensor_count + 1) * sizeof *plan->tensor);
}
