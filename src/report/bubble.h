/* bubble.h - the idle time of a pipeline stage, from the recorded steps of its rank. The plan
 * predicts it (rf_plan_stage). */
#ifndef RF_REPORT_BUBBLE_H
#define RF_REPORT_BUBBLE_H

#include "run/record.h"

/* Means over the whole recorded steps, in seconds. */
typedef struct rf_bubble {
  int steps;          /* 0: nothing was measured */
  double seconds;     /* of a step */
  double busy;        /* in ops */
  double idle;        /* in a send or recv; after the last microbatch, also in waits for slower ranks */
  double fill, drain; /* part of `idle`: before the first op that computes, and after the last one
                       * of the microbatches */
  double transfers;   /* number of sends and recvs */
} rf_bubble;

/* The bubble of a rank that runs plan[0] of the trace, a plan of a pipeline stage. Without sends and
 * recvs, `steps` is 0. */
rf_bubble rf_trace_bubble(const rf_trace *trace);

#endif
