/* verify.h - whether a graph is legal: ids, shapes, order, sections, one writer for each tensor
 * unless it accumulates. Tests call it between passes; it shares no code with them. */
#ifndef RF_TEST_VERIFY_H
#define RF_TEST_VERIFY_H

#include "graph/graph.h"

rf_status rf_graph_verify(const rf_graph *graph, rf_error *error);

#endif
