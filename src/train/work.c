/* work.c - see work.h. */
#include "train/work.h"

#include "graph/ops/ops.h"

static void add_pairs(rf_step_work *work, int window, double per_pair) {
  int i = 0;
  while (i < work->windows && work->at[i].window != window) i++;
  if (i == RF_MAX_WINDOWS) i--; /* More windows than any model has; they share the last entry. */
  if (i == work->windows) work->at[work->windows++].window = window;
  work->at[i].per_pair += per_pair;
}

rf_step_work rf_step_work_of(const rf_plan *plan) {
  rf_step_work work = {0};
  const rf_graph *graph = plan->graph;
  double tokens = (double)graph->rows * plan->options.build.accumulate, causal, square;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    double flops = plan->op[i].work.flops;
    if (op->recompute_of != RF_NONE) continue; /* Recomputation is not model work. */
    if (op->def == &RF_OP_ATTENTION || op->def == &RF_OP_ATTENTION_BWD) {
      rf_attention_pairs(graph, graph->rows, op->attr.attention.window, &causal, &square);
      add_pairs(&work, op->attr.attention.window, flops / causal);
    } else if (op->section == RF_SECTION_MICRO) work.per_token += flops * plan->op[i].calls / tokens;
    else work.fixed += flops * plan->op[i].calls;
  }
  return work;
}

double rf_step_flops(const rf_step_work *work, const rf_loader *loader, int64_t tokens) {
  double flops = work->fixed + work->per_token * (double)tokens;
  for (int i = 0; i < work->windows; i++)
    flops += work->at[i].per_pair * rf_loader_pairs(loader, work->at[i].window);
  return flops;
}
