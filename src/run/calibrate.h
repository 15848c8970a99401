/* calibrate.h - measures this machine: peak arithmetic, memory bandwidth, every op of small real
 * plans, and products with packed matrices. */
#ifndef RF_CALIBRATE_H
#define RF_CALIBRATE_H

#include "run/run.h"

typedef struct rf_calibrate_options {
  rf_isa isa;
  int threads;
  /* First find the best block sizes of products; later measurements use them. */
  bool tune;
  const rf_tuned *tuned; /* Block sizes to use without `tune`; may be NULL. */
  /* Fewer and shorter measurements: seconds instead of a minute. */
  bool quick;
  void (*say)(void *self, const char *what, double part); /* Progress in [0, 1]; may be NULL. */
  void *self;
} rf_calibrate_options;

typedef struct rf_ceiling {
  double median, least, most, sustained;
  int count;
} rf_ceiling;

/* Median, minimum and maximum of values[count]; reorders them. */
rf_ceiling rf_ceiling_of(double *values, int count);

/* Buffer size for bandwidth: 1 GiB, or less on a machine with little memory. */
size_t rf_bandwidth_buffer_bytes(void);
/* Allocates memory for rf_device_type.bandwidth and writes every byte. */
rf_status rf_bandwidth_memory(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error);

/* Fills a plan's persistent tensors with reproducible values before a measurement. Every byte is
 * written, because unwritten pages all map to one cached page of zeros. Moments stay zero. */
rf_status rf_calibrate_fill(rf_run *run, const rf_plan *plan, rf_error *error);

/* Adds a point to an f32 curve, which is created if needed. Call in ascending order of `size`. */
void rf_calibrate_add(rf_machine *machine, const char *op, const char *kernel, double size, double work,
                      double seconds);

/* Fills `machine` (source "calibrated") with the detected data sheet; peak arithmetic in f32, bf16
 * and i8 at level `isa`, in tiles and in vectors; read and copy bandwidth; thread scaling; launch
 * time; curves of ops by dtype and kernel; curves of packed products by storage type and rows.
 * Takes about a minute. RAFTER_FAILED: not enough memory. */
rf_status rf_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

#endif
