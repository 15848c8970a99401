/* walk.c - seconds of one walk of a generate plan over fewer rows and shorter contexts than its bound. */
#include "plan/parts.h"

#include <stdlib.h>
#include <string.h>

/* Keys that rows `first` .. `context` of a sequence see, one after the other: each all before it and itself, at most `window` of them. */
static double sum_of_keys(double rows, double context, double window) {
  double first = context - rows + 1;
  if (window <= 0 || context <= window) return rows * (first + context) / 2;
  if (first > window) return rows * window;
  return (window - first + 1) * (first + window) / 2 + (context - window) * window;
}

/* At the bound every row sees every position; here each sequence has the length it has, and its keys are read once for all its rows. */
static rf_work cached_work(const rf_graph *graph, const rf_op *op, const rf_extent *part, int parts) {
  rf_cached cached = rf_cached_of(graph, op);
  double window = op->attr.window, rows = 0;
  rf_work work = {.bytes_read = (double)rf_tensor_bytes(&graph->tensor[op->input[0]]) + cached.fixed_bytes,
                  .bytes_written = (double)rf_tensor_bytes(&graph->tensor[op->output[0]])};
  for (int i = 0; i < parts; i++) {
    double here = (double)part[i].rows, context = (double)part[i].context, reach = window > 0 ? window + here - 1 : context;
    work.bytes_read += (context < reach ? context : reach) * cached.position_bytes;
    work.flops += cached.flops_row * here + cached.flops_key * sum_of_keys(here, context, window);
    rows += here;
  }
  work.bytes_read += 8 * rows, work.bytes_written += rows * cached.position_bytes;
  work.flops_full = work.flops;
  return work;
}

/* Activations have their rows first; the logits' rows and what picks them are one for each sequence. */
static void cut_rows(rf_graph *graph, int64_t rows, int64_t sequences) {
  int64_t slots = 0;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    if (strcmp(op->def->name, "head_logits")) continue;
    slots = graph->tensor[op->input[3]].shape[0];
    graph->tensor[op->input[3]].shape[0] = sequences < slots ? sequences : slots;
    for (int o = 0; o < op->output_count; o++)
      if (op->output[o] >= 0) graph->tensor[op->output[o]].shape[0] = graph->tensor[op->input[3]].shape[0];
  }
  for (int t = 0; t < graph->tensor_count; t++) {
    rf_tensor *tensor = &graph->tensor[t];
    bool moves = tensor->class == RF_CLASS_ACTIVATION || tensor->class == RF_CLASS_IO || tensor->class == RF_CLASS_COLLECTIVE;
    if (moves && !tensor->persistent && tensor->rank > 0) tensor->shape[0] = rf_rows_of_walk(graph, tensor->shape[0], rows);
  }
}

double rf_plan_walk_seconds(const rf_plan *plan, const rf_extent *part, int parts) {
  rf_graph graph = *plan->graph;
  size_t bytes = (size_t)graph.tensor_count * sizeof *graph.tensor;
  int64_t rows = 0;
  double seconds = 0;
  for (int i = 0; i < parts; i++) rows += part[i].rows;
  graph.tensor = malloc(bytes ? bytes : 1);
  if (!graph.tensor) return plan->step_seconds;
  memcpy(graph.tensor, plan->graph->tensor, bytes);
  cut_rows(&graph, rows, parts);
  for (int i = 0; i < graph.op_count; i++) {
    const rf_op *op = &graph.op[i];
    rf_work work = rf_op_is_cached(op) ? cached_work(&graph, op, part, parts) : op->def->work(&graph, op);
    seconds += rf_cost_op(&plan->machine, &graph, op, plan->op[i].kernel, work, NULL) * plan->op[i].calls;
  }
  free(graph.tensor);
  return seconds;
}
