/* trace.h - shared by record.c, trace.c and gaps.c. Private to src/run. */
#ifndef RF_RUN_TRACE_H
#define RF_RUN_TRACE_H

#include "run/record.h"

typedef struct rf_recorded_step {
  int64_t step, begin, end, tokens;
  int64_t until; /* end of the time after it; 0: not over yet */
  /* bytes of the process's data where it began, where it ended, and at `until` */
  int64_t heap[3];
  /* of a generate step: sequences, their rows, and the keys of each one's last row, summed; parts
   * 0: as in the plan */
  int64_t parts, rows, context;
} rf_recorded_step;

struct rf_record {
  rf_lanes lanes;
  rf_trace_when when;
  rf_recorded_step *step;
  int64_t walks;                /* that began, recorded or not */
  int64_t steps, step_capacity; /* written so far: the last step_capacity are there */
  int64_t origin;
  bool walking, behind;      /* inside a recorded step or the time after it */
  int statm;                 /* /proc/self/statm; 0 or less: none */
  int64_t heap, heap_faults; /* what it said last, and the faults of the run's own thread then */
  double wall, fault_ns;
};

/* Spans while a trace is being collected. */
typedef struct rf_stamps {
  rf_stamp *at;
  int64_t count, capacity;
} rf_stamps;
rf_status rf_stamps_add(rf_stamps *spans, rf_stamp span, rf_error *error);

/* Finds the gaps of every step: adds their spans and fills the steps' sums. `spans` is sorted. */
rf_status rf_trace_find_gaps(rf_trace *trace, rf_stamps *spans, rf_error *error);

#endif
