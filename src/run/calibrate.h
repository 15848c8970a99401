/* calibrate.h - measures this machine: ceilings in registers and from memory, every op of small
 * real plans, and products of packed matrices. */
#ifndef RF_CALIBRATE_H
#define RF_CALIBRATE_H

#include "run/run.h"

typedef struct rf_calibrate_options {
  rf_isa isa;
  int threads;
  /* block sizes of products first, so that later measurements use them */
  bool tune;
  const rf_tuned *tuned; /* without `tune`: the block sizes to use; may be NULL */
  /* fewer and shorter measurements: seconds instead of a minute */
  bool quick;
  void (*say)(void *self, const char *what, double part); /* progress in [0,1]; may be NULL */
  void *self;
} rf_calibrate_options;

/* A sample of one ceiling: bursts of 15-50 ms. */
typedef struct rf_ceiling {
  double median, least, most, sustained;
  int count;
} rf_ceiling;

/* Median, minimum and maximum of values[count]; reorders them. */
rf_ceiling rf_ceiling_of(double *values, int count);

/* Bytes that bandwidth is measured over: 1 GiB, or less on a machine with little memory. */
size_t rf_bandwidth_buffer_bytes(void);
/* Memory for rf_device_type.bandwidth, every byte of it written. */
rf_status rf_bandwidth_memory(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error);

/* Fills a plan's persistent tensors with repeatable values before it is measured. Every byte is
 * written: unwritten memory is one page of zeros, as fast as a cache. Moments stay zero. */
rf_status rf_calibrate_fill(rf_run *run, const rf_plan *plan, rf_error *error);

/* Adds a point to a curve in f32, which is made if there is none. Points ascend in `size`. */
void rf_calibrate_add(rf_machine *machine, const char *op, const char *kernel, double size, double work,
                      double seconds);

/* Fills `machine` (source "calibrated"): detected sheet, ceilings for f32, bf16 and i8 products
 * at level `isa` (in tiles and in vectors), read and copy bandwidth, thread scaling, launch time,
 * one curve per op, dtype and kernel, and curves of packed products by storage type and rows. About
 * a minute. RAFTER_FAILED: no memory. */
rf_status rf_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

#endif
