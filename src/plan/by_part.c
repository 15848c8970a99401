/* by_part.c - the FLOPs of a step for each part of the model. */
#include "plan/plan.h"

#include <string.h>

/* A product with a weight counts for the part of the model that has the weight. For ops of
 * attention and of the head, the kind of the op decides. */
static rf_part part_of(const rf_graph *graph, const rf_op *op) {
  if (op->def->kind == RF_KIND_ATTENTION) return RF_PART_SCORES;
  if (op->def->kind == RF_KIND_HEAD) return RF_PART_HEAD;
  for (int i = 0; i < op->input_count + op->output_count; i++) {
    int t = i < op->input_count ? op->input[i] : op->output[i - op->input_count];
    int param = t >= 0 ? graph->tensor[t].param : RF_NONE;
    if (param >= 0 && param < graph->params.count && graph->params.at[param].rank > 1)
      return graph->params.at[param].part;
  }
  return RF_PART_NORMS;
}

static double forward_share(const rf_op *op) {
  return op->def->forward_share ? op->def->forward_share(op) : op->backward ? 0 : 1;
}

void rf_plan_work_by_part(const rf_plan *plan, rf_part_work work[RF_PARTS]) {
  const rf_graph *graph = plan->graph;
  memset(work, 0, RF_PARTS * sizeof *work);
  if (plan->stages) {
    memcpy(work, plan->stage_work, sizeof plan->stage_work);
    return;
  }
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    const rf_plan_op *p = &plan->op[i];
    if (op->recompute_of != RF_NONE || p->work.flops == 0) continue;
    rf_part_work *of = &work[part_of(graph, op)];
    double calls = p->calls * (double)rf_mesh_chips(&graph->mesh), forward = forward_share(op) * calls;
    of->step += p->work.flops * calls;
    of->step_full += p->work.flops_full * calls;
    of->forward += p->work.flops * forward;
    of->forward_full += p->work.flops_full * forward;
  }
}
