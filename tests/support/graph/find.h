/* find.h - tensors by name. */
#ifndef TEST_GRAPH_FIND_H
#define TEST_GRAPH_FIND_H

#include "graph/graph.h"

#include <string.h>

/* Id of the tensor with this name, or RF_NONE. */
static inline int rf_graph_find(const rf_graph *graph, const char *name) {
  for (int t = 0; t < graph->tensor_count; t++)
    if (strcmp(graph->tensor[t].name, name) == 0) return t;
  return RF_NONE;
}

#endif
