/* verify.h - checks that a graph is legal: ids, shapes, order, sections, and one writer per tensor
 * unless it accumulates. Tests call it between passes. It shares no code with the passes. */
#ifndef RF_TEST_VERIFY_H
#define RF_TEST_VERIFY_H

#include "graph/graph.h"

rf_status rf_graph_verify(const rf_graph *graph, rf_error *error);

#endif
