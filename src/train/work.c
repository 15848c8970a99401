/* work.c - see work.h. */
#include "train/work.h"

static void add_pairs(rf_step_work *work, int window, double per_pair) {
  int i = 0;
  while (i < work->windows && work->at[i].window != window) i++;
  /* further windows share the last entry, but no known model has more windows */
  if (i == RF_MAX_WINDOWS) i--;
  if (i == work->windows) work->at[work->windows++].window = window;
  work->at[i].per_pair += per_pair;
}

/* Adds the work of a plan. The plan's graph is the program of one of `chips` chips. */
static void add_work(rf_step_work *sum, const rf_plan *plan, double chips) {
  const rf_graph *graph = plan->graph;
  const rf_build_options *build = &plan->options.build;
  double tokens = (double)(build->microbatch * build->seq) * build->accumulate;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    double flops = chips * plan->op[i].work.flops;
    if (op->recompute_of != RF_NONE) continue; /* recomputation is not work of the model */
    rf_timing timing = op->def->timing;
    if (timing == RF_TIMING_ATTENTION || timing == RF_TIMING_ATTENTION_BACKWARD) {
      int window = op->attr.attention.window;
      double segments = (double)build->microbatch;
      add_pairs(sum, window, flops / (segments * rf_segment_pairs(graph->seq, window)));
    } else if (op->section == RF_SECTION_MICRO) sum->per_token += flops * plan->op[i].calls / tokens;
    else sum->fixed += flops * plan->op[i].calls;
  }
}

rf_step_work rf_step_work_of(const rf_plan *plan) {
  rf_step_work work = {0};
  double chips = (double)rf_mesh_chips(&plan->graph->mesh);
  for (int i = 0; plan->stage_plan && i < plan->stages; i++)
    add_work(&work, rf_plan_of_stage(plan, i), chips / plan->stages);
  if (!plan->stage_plan) add_work(&work, plan, chips);
  return work;
}

double rf_step_flops(const rf_step_work *work, const rf_loader *loader, int64_t tokens) {
  double flops = work->fixed + work->per_token * (double)tokens;
  for (int i = 0; i < work->windows; i++)
    flops += work->at[i].per_pair * rf_loader_pairs(loader, work->at[i].window);
  return flops;
}
