/* bubble.h - the idle time of a pipeline stage, from the recorded steps of its rank. The plan
 * predicts it (rf_plan_stage). */
#ifndef RF_REPORT_BUBBLE_H
#define RF_REPORT_BUBBLE_H

#include "run/record.h"

/* Means over all completely recorded steps, in seconds. */
typedef struct rf_bubble {
  int steps;      /* 0: nothing was measured */
  double seconds; /* of a step */
  double busy;    /* in ops */
  /* time in a send or recv; from the end of the last microbatch to the end of the last op, also time
   * of waits for slower ranks */
  double idle;
  /* part of `idle` before the first op that computes, and after the last op of the microbatches */
  double fill, drain;
  double transfers; /* number of sends and recvs */
} rf_bubble;

/* Computes the bubble of a rank whose plan[0] in the trace is the plan of a pipeline stage. If the
 * plan has no sends and recvs, `steps` is 0. */
rf_bubble rf_trace_bubble(const rf_trace *trace);

#endif
