/* trace.h - types shared by record.c, trace.c and gaps.c. Private to src/run. */
#ifndef RF_RUN_TRACE_H
#define RF_RUN_TRACE_H

#include "run/record.h"

typedef struct rf_recorded_step {
  int64_t step, begin, end, tokens;
  int64_t until; /* end of the time after the step; 0: not yet known */
  /* size of the process's data at the times `begin`, `end` and `until` */
  int64_t heap[3];
  /* For a generate step: sequences, rows, and sum of the keys of all sequences. If `parts` is 0,
   * the numbers are those of the plan. */
  int64_t parts, rows, context;
} rf_recorded_step;

struct rf_record {
  rf_lanes lanes;
  rf_trace_when when;
  rf_recorded_step *step;
  int64_t begun;                /* number of all steps that began, recorded or not */
  int64_t steps, step_capacity; /* number of recorded steps; the last step_capacity steps are kept */
  int64_t origin;
  bool in_step, after; /* in_step: true inside a recorded step; after: true in the time after it */
  int statm;           /* file descriptor of /proc/self/statm; 0 or less: the file is not open */
  /* values of the last reading: size of the process's data, and number of the main thread's page
   * faults */
  int64_t heap, heap_faults;
  double wall, fault_ns;
};

typedef struct rf_stamps {
  rf_stamp *at;
  int64_t count, capacity;
} rf_stamps;
rf_status rf_stamps_add(rf_stamps *spans, rf_stamp span, rf_error *error);
/* Fills an error, which says that a trace does not fit in memory. */
rf_status rf_trace_no_memory(rf_error *error);

/* Explains the idle time of every step: adds gaps to the sorted `spans` and fills the sums. */
rf_status rf_trace_find_gaps(rf_trace *trace, rf_stamps *spans, rf_error *error);

#endif
