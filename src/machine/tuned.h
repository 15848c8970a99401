/* tuned.h - chooses block sizes for a product. `rafter calibrate --tune` measured these sizes. */
#ifndef RF_TUNED_H
#define RF_TUNED_H

#include "base/json.h"
#include "machine/machine.h"

/* A product with at most this number of rows does not pack its weights. So such a product has no
 * blocks to tune. */
enum { RF_FEW_ROWS = 16 };

/* The shape class of a product. The number of rows and the size of the weight decide the class. -1:
 * the product has no blocks to tune. */
int rf_tuned_class(const rf_graph *graph, const rf_op *op);
/* The name of a shape class. */
const char *rf_tuned_class_name(int class);
/* Returns the tuned block sizes for this op and kernel. If all sizes are 0, the kernel uses its
 * default sizes. */
rf_blocks rf_tuned_blocks(const rf_tuned *tuned, const rf_graph *graph, const rf_op *op, const char *kernel,
                          int threads);

/* Reads the object "tuned" of a machine file. The object may be missing in the file. */
rf_status rf_tuned_parse(const json_t *object, const char *where, rf_tuned *tuned, rf_error *error);
/* Makes the object "tuned" for a machine file. */
json_t *rf_tuned_json(const rf_tuned *tuned);

#endif
