/* overlap.h - splits collectives into a start and a wait, so that the chip computes in between. */
#ifndef RF_GRAPH_OVERLAP_H
#define RF_GRAPH_OVERLAP_H

#include "graph/graph.h"

enum { RF_OVERLAP_MOST = 16 }; /* maximum number of exchanges that can run at a time */
/* Rewrites a graph for one chip so that at most `most` exchanges run while the chip computes.
 * Results are bit-identical. Runs after remat. */
rf_status rf_pass_overlap(rf_graph *graph, int most, rf_error *error);
/* True if the pass can split an op with this definition. */
bool rf_overlap_may_split(const rf_op *op);

#endif
