/* timed.h - gets the times of ops in traced executions from the plugin's profiler, and gives them
 * to the recorder (backend/lanes.h). Without a profiler, or after the profiler has failed, nothing
 * is recorded. */
#ifndef RF_XLA_TIMED_H
#define RF_XLA_TIMED_H

#include "backend/xla/device.h"
#include "backend/xla/profile.h"

/* The plan to which the times belong. */
typedef struct rf_xla_timed {
  const rf_graph *graph;
  int number; /* number of the plan in the run */
  rf_measured *measured;
  int64_t *timed; /* executions with times */
} rf_xla_timed;

/* One execution. */
typedef struct rf_xla_timing {
  bool on;
  int64_t begin; /* time at which the execution begins, as in rf_now_ns */
  int64_t clock; /* rf_now_ns minus the time of day, in ns, at `begin` */
} rf_xla_timing;

/* Starts the profiler if this execution is traced. */
rf_xla_timing rf_xla_timing_begin(rf_xla_device *d);
/* Called after the execution. Reads the profile, and records the times of the ops. `in` has the
 * instructions of the program. If `in` is empty, first reads the instructions. */
void rf_xla_timing_end(rf_xla_device *d, const rf_xla_timing *t, rf_xla_id program, rf_xla_instructions *in,
                       const rf_xla_timed *of);
/* Ends the profile of an execution that has failed. */
void rf_xla_timing_drop(rf_xla_device *d, const rf_xla_timing *t);

#endif
