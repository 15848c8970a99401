/* tuned.h - chooses the blocks of a product from those that `rafter calibrate --tune` found. */
#ifndef RF_TUNED_H
#define RF_TUNED_H

#include "base/json.h"
#include "machine/machine.h"

/* A product with at most this many rows reads its weights in place; it has no blocks to tune. */
enum { RF_FEW_ROWS = 16 };

/* The shape class of a product whose blocks can be tuned, by its rows and its weight's size (-1:
 * none), and the name of a class. */
int rf_tuned_class(const rf_graph *graph, const rf_op *op);
const char *rf_tuned_class_name(int class);
/* The blocks found for this op and kernel; all 0: the kernel's default. */
rf_blocks rf_tuned_blocks(const rf_tuned *tuned, const rf_graph *graph, const rf_op *op, const char *kernel,
                          int threads);

/* Reads the object "tuned", which may be absent, and makes one for a file. */
rf_status rf_tuned_parse(const json_t *object, const char *where, rf_tuned *tuned, rf_error *error);
json_t *rf_tuned_json(const rf_tuned *tuned);

#endif
