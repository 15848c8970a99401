/* calibrate.h - measures this machine: ceilings in registers and from memory, every op of small
 * real plans, walked as a run walks them, and products of packed matrices. */
#ifndef RF_CALIBRATE_H
#define RF_CALIBRATE_H

#include "run/run.h"

typedef struct rf_calibrate_options {
  rf_isa isa;
  int threads;
  /* the blocks of products first, so that what is measured behind it runs with them */
  bool tune;
  const rf_tuned *tuned; /* without `tune`: those of before; may be NULL */
  /* fewer and shorter measurements: seconds, not most of a minute */
  bool quick;
  void (*say)(void *self, const char *what, double part); /* progress in [0,1]; may be NULL */
  void *self;
} rf_calibrate_options;

/* A sample of one ceiling: bursts of 15-50 ms. */
typedef struct rf_ceiling {
  double median, least, most, sustained;
  int count;
} rf_ceiling;

/* Median, least and most of values[count]; reorders them. */
rf_ceiling rf_ceiling_of(double *values, int count);

/* Bytes of buffer that bandwidth is measured over: 1 GiB, or less on a machine with little
 * memory. */
size_t rf_bandwidth_buffer_bytes(void);

/* What stands in a plan's persistent tensors while it is measured: repeatable, and written to
 * the last byte, because memory that nobody wrote is one page of zeros whose rates are those of
 * a cache. Moments stay zero. */
rf_status rf_calibrate_fill(rf_run *run, const rf_plan *plan, rf_error *error);

/* One more point of a curve in f32, which is made where there is none; points ascend in `size`. */
void rf_calibrate_add(rf_machine *machine, const char *op, const char *kernel, double size, double work,
                      double seconds);

/* Fills `machine` (source "calibrated"): detected sheet, ceilings for f32, bf16 and i8 products
 * in what `isa` has (beside tiles also in vectors), read and copy bandwidth, thread scaling,
 * launch time, one curve per op, dtype and kernel, and curves of packed products by storage type
 * and rows. About a minute. RAFTER_FAILED: no memory. */
rf_status rf_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

#endif
