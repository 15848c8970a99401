/* calibrate_parts.h - what the parts of a calibration share. */
#ifndef RF_CALIBRATE_PARTS_H
#define RF_CALIBRATE_PARTS_H

#include "run/calibrate.h"

/* calibrate_tune.c: the table of block sizes by op, class of shapes and dtype. */
rf_status rf_calibrate_tune(const rf_calibrate_options *options, rf_tuned *tuned, rf_error *error);
/* calibrate_heads.c: curves "head_rows", by the numbers of a row. */
rf_status rf_calibrate_heads(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);
/* calibrate_products.c: curves of the products of packed matrices, of every storage type, by
 * rows. */
rf_status rf_calibrate_products(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

/* A workspace that grows to the largest request. Starts as {0}; the caller frees `at`. */
typedef struct rf_calibrate_room {
  void *at;
  size_t bytes;
} rf_calibrate_room;
/* The kernel of a graph's one op and a call of it without operands. Every byte of its workspace
 * was written. `what` is for the error. */
rf_status rf_calibrate_kernel(const rf_calibrate_options *options, const rf_graph *graph,
                              rf_calibrate_room *room, const char *what, const rf_kernel **kernel,
                              rf_call *call, rf_error *error);
/* A model for graphs of one op; its values do not matter. */
rf_status rf_calibrate_model(rf_model *model, rf_error *error);

#endif
