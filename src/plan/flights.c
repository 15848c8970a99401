/* flights.c - chooses whether the ranks of a training step exchange data while they compute, and
 * how many exchanges run at a time. More exchanges hide more of the time of a slow link, but need
 * more memory, because their tensors and workspaces live until their end. */
#include "graph/mesh/overlap.h"
#include "graph/mesh/pipeline.h"
#include "plan/parts.h"

static bool may_overlap(const rf_graph *graph, const rf_plan_options *o) {
  bool splits = false;
  if (o->overlap == RF_OVERLAP_OFF || !rf_backend_has_ranks(o->backend) || graph->job != RF_JOB_TRAIN ||
      rf_mesh_chips(&graph->mesh) < 2 || rf_pipeline_stages(&graph->mesh) > 1)
    return false;
  for (int i = 0; i < graph->op_count && !splits; i++) splits = rf_overlap_may_split(&graph->op[i]);
  return splits;
}

/* True if `rafter calibrate --network` measured the time that exchanges take from the cores.
 * Without this measurement, nobody knows whether overlap saves time. */
static bool is_measured(const rf_machine *m) {
  for (int i = 0; i < m->exchange_count; i++)
    if (m->exchange[i].core_seconds[0] > 0) return true;
  return false;
}

/* Seconds of a step with at most `most` exchanges at a time. -1: the step does not fit. */
static double price(const rf_graph *graph, const rf_plan_options *options, int most, rf_error *error) {
  rf_graph *copy = rf_graph_borrow(graph);
  double seconds = -1;
  if (rf_pass_overlap(copy, most, error) != RAFTER_OK) {
    rf_graph_free(copy);
    return seconds;
  }
  rf_plan *plan = rf_plan_of_graph(copy, options, RF_PLAN_PRICES);
  if (!plan) rf_graph_free(copy);
  else if (rf_plan_fits(plan)) seconds = plan->step_seconds;
  rf_plan_free(plan);
  return seconds;
}

rf_status rf_plan_overlap(rf_graph *graph, const rf_plan_options *options, rf_error *error) {
  static const int MOST[] = {1, 2, 4, 8, RF_OVERLAP_MOST};
  int best = 0;
  bool measured = is_measured(options->machine), on = options->overlap == RF_OVERLAP_ON;
  const double worth = on ? 1 : 0.999; /* limit, as a fraction of the time with fewer exchanges */
  if (!may_overlap(graph, options) || (!measured && !on)) return RAFTER_OK;
  double seconds = on ? -1 : price(graph, options, 0, error);
  if (seconds < 0 && !on) return RAFTER_OK; /* it does not fit */
  for (size_t i = 0; i < sizeof MOST / sizeof *MOST; i++) {
    double now = price(graph, options, MOST[i], error);
    if (now < 0 || (seconds >= 0 && measured && now > worth * seconds)) continue;
    seconds = now;
    best = MOST[i];
  }
  return rf_pass_overlap(graph, best, error);
}
