/* probe.h - where the number is that a step checks after an op (rf_op_def.probe). */
#ifndef RF_GRAPH_PROBE_H
#define RF_GRAPH_PROBE_H

#include "graph/graph.h"

/* Returns the output whose element *element is checked. -1: the op has no checked number. */
static inline int rf_probed_output(const rf_op *op, int64_t *element) {
  const rf_probe probe = op->def->probe;
  const int output = probe == RF_PROBE_UPDATE ? 4 : 0;
  *element = probe == RF_PROBE_INDEX || probe == RF_PROBE_UPDATE ? op->attr.sums.element : 0;
  return probe != RF_PROBE_NONE && output < op->output_count && op->output[output] >= 0 ? output : -1;
}

#endif
