/* passes.h - helpers that passes share. Private to src/graph. */
#ifndef RF_GRAPH_PASSES_H
#define RF_GRAPH_PASSES_H

#include "graph/ops/ops.h"

/* Enlarges the arrays, so that a pass can add `tensors` tensors and `ops` ops. */
void rf_graph_reserve(rf_graph *graph, int64_t tensors, int64_t ops);
/* Copies `count` elements of `size` bytes to a new array, and makes *capacity larger. */
void *rf_pool_grown(rf_pool *pool, const void *old, int count, int *capacity, size_t size);
/* Moves op order[i] to position i for i < count, drops the other ops, and updates recompute_of. No
 * remaining op may recompute a dropped op. */
void rf_graph_reorder(rf_graph *graph, const int *order, int count);
/* Drops tensors that no op uses. Keeps persistent tensors, and tensors that the caller reads or
 * writes. */
void rf_graph_compact(rf_graph *graph);

#endif
