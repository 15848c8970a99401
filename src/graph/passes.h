/* passes.h - what the passes share with each other; private to src/graph. */
#ifndef RF_GRAPH_PASSES_H
#define RF_GRAPH_PASSES_H

#include "graph/ops/ops.h"

/* Room for this many more tensors and ops, so that a pass over a deep model does not grow the
 * arrays one doubling at a time. */
void rf_graph_reserve(rf_graph *graph, int64_t tensors, int64_t ops);
/* Puts ops[order[i]] in place i and keeps `count` of them; recompute_of follows. Ops left out
 * must not be repeated by others. */
void rf_graph_reorder(rf_graph *graph, const int *order, int count);
/* Drops tensors that no op uses and nobody outside the graph writes or reads. */
void rf_graph_compact(rf_graph *graph);

#endif
