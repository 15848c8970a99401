/* elsewhere.c - the tensors of other pipeline stages in the program of one stage; see
 * pipeline.h. */
#include "graph/mesh/pipeline.h"

static bool is_visible(const rf_tensor *tensor) {
  return tensor->persistent || tensor->input || tensor->output;
}

/* Bits of the other stages whose programs have this tensor. */
static uint64_t others_of(const rf_graph *graph, rf_graph *const *stage, const char *name) {
  uint64_t bits = 0;
  for (int i = 0; i < rf_pipeline_stages(&graph->mesh); i++)
    if (i != graph->mesh.stage && rf_graph_find(stage[i], name) != RF_NONE) bits |= (uint64_t)1 << i;
  return bits;
}

static void describe(rf_graph *graph, const rf_tensor *other) {
  int id = rf_graph_tensor(graph, other->name, other->class, other->dtype, other->rank, other->shape);
  const char *name = graph->tensor[id].name;
  graph->tensor[id] = *other;
  graph->tensor[id].name = name;
  graph->tensor[id].reason = NULL;
}

void rf_pass_elsewhere(rf_graph *graph, rf_graph *const *stage) {
  int stages = rf_pipeline_stages(&graph->mesh), own = graph->tensor_count;
  uint64_t all = stages == RF_MAX_RUN_STAGES ? UINT64_MAX : ((uint64_t)1 << stages) - 1;
  for (int i = 0; i < stages; i++)
    for (int t = 0; t < stage[i]->tensor_count; t++) {
      const rf_tensor *other = &stage[i]->tensor[t];
      if (i != graph->mesh.stage && is_visible(other) && rf_graph_find(graph, other->name) == RF_NONE)
        describe(graph, other);
    }
  for (int t = 0; t < graph->tensor_count; t++) {
    rf_tensor *tensor = &graph->tensor[t];
    if (!is_visible(tensor)) continue;
    uint64_t bits = others_of(graph, stage, tensor->name) | (uint64_t)(t < own) << graph->mesh.stage;
    tensor->stages = bits == all ? 0 : bits;
  }
}
