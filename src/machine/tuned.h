/* tuned.h - blocks of products that `rafter calibrate --tune` found on this CPU: which of them
 * an op takes. */
#ifndef RF_TUNED_H
#define RF_TUNED_H

#include "base/json.h"
#include "machine/machine.h"

/* A product with at most this many rows reads its weights in place; it has no blocks to tune. */
enum { RF_FEW_ROWS = 16 };

/* The shape class of a product whose blocks can be tuned, by its rows and the size of its
 * weight; -1: it is none. And the class's name. */
int rf_tuned_class(const rf_graph *graph, const rf_op *op);
const char *rf_tuned_class_name(int class);
/* The blocks that were found for this op and kernel; all 0: the kernel's own. */
rf_blocks rf_tuned_blocks(const rf_tuned *tuned, const rf_graph *graph, const rf_op *op, const char *kernel,
                          int threads);

/* The object "tuned", which may be absent, and as it stands in a file. */
rf_status rf_tuned_parse(const json_t *object, const char *where, rf_tuned *tuned, rf_error *error);
json_t *rf_tuned_json(const rf_tuned *tuned);

#endif
