/* calibrate.h - measures this machine: peak arithmetic, memory bandwidth, every op of small real
 * plans, and products with packed matrices. */
#ifndef RF_CALIBRATE_H
#define RF_CALIBRATE_H

#include "run/run.h"

typedef struct rf_calibrate_options {
  rf_isa isa;
  int threads;
  /* If true, the best block sizes of products are found first. Later measurements use these block
   * sizes. */
  bool tune;
  const rf_tuned *tuned; /* Block sizes to use if `tune` is false. May be NULL. */
  /* If true, measurements are fewer and shorter, and take less than half of the time. */
  bool quick;
  /* Function that reports the progress, from 0 to 1. May be NULL. */
  void (*say)(void *self, const char *what, double part);
  /* If *stop is not 0, the calibration ends with RAFTER_INTERRUPTED. NULL: never. */
  const volatile int *stop;
  void *self;
  /* The ranks of MPI that calibrate at the same time (calibrate_network.c). NULL: there is only one
   * process. */
  struct rf_link *link;
  bool *stopped; /* set by rf_calibrate_meet if the ranks stop together; may be NULL */
} rf_calibrate_options;

typedef struct rf_ceiling {
  double median, least, most, sustained;
  int count;
} rf_ceiling;

/* RAFTER_INTERRUPTED if options->stop is set. Called between measurements. */
rf_status rf_calibrate_goes_on(const rf_calibrate_options *options, rf_error *error);

/* Returns the median, minimum and maximum of values[count]. Changes the order of the values. */
rf_ceiling rf_ceiling_of(double *values, int count);

/* Size of the buffer for measuring bandwidth: 1 GiB, or less on a machine with little memory. */
size_t rf_bandwidth_buffer_bytes(void);
/* Allocates memory for rf_device_type.bandwidth, and writes every byte of the memory. */
rf_status rf_bandwidth_memory(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error);
/* Returns the median bytes/s of single passes over the memory of rf_bandwidth_memory. `calibrate`
 * and `bench` both report this figure. */
double rf_bandwidth_median(const rf_device *device, rf_memory *memory, rf_traffic traffic, int passes);

/* Fills a plan's persistent tensors with reproducible values before a measurement. The function
 * writes every byte, because the system maps all unwritten pages to one cached page of zeros.
 * Moments stay zero. */
rf_status rf_calibrate_fill(rf_run *run, const rf_plan *plan, rf_error *error);

/* Adds a point to an f32 curve. Creates the curve if it does not exist. Call this function in
 * ascending order of `size`. */
void rf_calibrate_add(rf_machine *machine, const char *op, const char *kernel, double size, double work,
                      double seconds);

/* Fills `machine` (source "calibrated"). A calibration takes two to three minutes. RAFTER_FAILED:
 * not enough memory. The calibration measures peak arithmetic in f32, bf16 and i8, in tiles and in
 * vectors, at level `isa`. Further figures are read and copy bandwidth, thread scaling and launch
 * time. Curves are measured for ops by dtype and kernel, and for packed products by storage type
 * and rows. The machine's data sheet is detected. */
rf_status rf_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

/* ---- ranks (calibrate_network.c): every rank calls the functions below ----------------------- */

/* Checks that the ranks are numbered node by node, and that each node has the same number of ranks.
 * Runs before the measurements. RAFTER_INVALID: not so. */
rf_status rf_calibrate_check_ranks(const rf_calibrate_options *options, rf_error *error);
/* Waits until all ranks have called this function. Does nothing without ranks. If a signal has
 * stopped one of the ranks, all ranks get RAFTER_INTERRUPTED. */
rf_status rf_calibrate_meet(const rf_calibrate_options *options, rf_error *error);
/* Combines the figures of all ranks to one machine. In the combined machine, each rank is a chip
 * with the figures of the slowest rank. Then measures the collectives between the ranks, with the
 * code that steps use. */
rf_status rf_calibrate_network(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);

#endif
