/* calibrate_parts.h - declarations shared by the files of a calibration. */
#ifndef RF_CALIBRATE_PARTS_H
#define RF_CALIBRATE_PARTS_H

#include "run/calibrate.h"

/* calibrate_tune.c: finds the best block sizes for each combination of op, class of shapes and
 * dtype. */
rf_status rf_calibrate_tune(const rf_calibrate_options *options, rf_tuned *tuned, rf_error *error);
/* calibrate_heads.c: measures the curves "head_rows". The sizes of these curves are lengths of a
 * row (sizes of the vocabulary). */
rf_status rf_calibrate_heads(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);
/* calibrate_products.c: measures the curves of packed products, for each storage type and number of
 * rows. */
rf_status rf_calibrate_products(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

/* How many times the ops and products are measured. A machine that is shared with others is slower
 * in some seconds than in others. The rounds are far apart, and the mean of the rounds counts. */
int rf_calibrate_rounds(const rf_calibrate_options *options);
/* Parts of the time of a calibration, for its progress: until the ceilings are measured, and for the
 * ops of shapes. The products take the rest. */
#define RF_CALIBRATE_CEILINGS 0.05
#define RF_CALIBRATE_SHAPES 0.5

/* A workspace that grows to the size of the largest request. Initially {0}. The caller frees
 * `at`. */
typedef struct rf_calibrate_room {
  void *at;
  size_t bytes;
  rf_inner inner[RF_MAX_INNER]; /* kernels of the products inside this op */
} rf_calibrate_room;
/* Chooses the kernel of a graph with one op, and prepares a call without operands. Writes every
 * byte of the call's workspace. `what` is the name of the call in error messages. */
rf_status rf_calibrate_kernel(const rf_calibrate_options *options, const rf_graph *graph,
                              rf_calibrate_room *room, const char *what, const rf_kernel **kernel,
                              rf_call *call, rf_error *error);
/* calibrate_network.c: every rank gets the largest value of all ranks. */
rf_status rf_calibrate_largest(struct rf_link *link, double *value, rf_error *error);
/* calibrate_overlap.c. The op that begins a collective of this kind. NULL: no op does. */
const rf_op_def *rf_calibrate_start_of(rf_collective kind);
/* Measures the time that a collective takes from the cores of a rank that computes meanwhile.
 * `graph` has the collective, which takes `seconds` alone. The graph has the op that begins the
 * collective, and the op that waits for it. */
rf_status rf_calibrate_core(const rf_calibrate_options *options, const rf_graph *graph,
                            rf_calibrate_room *room, const void *in, void *out, double seconds, double *core,
                            rf_error *error);
/* Fills memory with numbers in [-largest, largest). Each word is a valid f32, and also two valid
 * values of bf16. */
void rf_calibrate_values(void *at, size_t bytes, float largest);
/* Makes a model for graphs of one op. The fields of this model do not affect the measurements. */
rf_status rf_calibrate_model(rf_model *model, rf_error *error);

#endif
