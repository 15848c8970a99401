/* pipeline.h - when the stages of a pipeline run their halves, given what each takes. Private to
 * src/plan and its tests. */
#ifndef RF_PLAN_PIPELINE_H
#define RF_PLAN_PIPELINE_H

#include "graph/mesh/pipeline.h"
#include "plan/plan.h"

/* Seconds of a piece (pipeline.h of src/graph) on one microbatch, and until what it makes has
 * arrived at the next piece or, backward, the one before. */
typedef struct rf_piece_times {
  double forward, backward, to_next, to_before;
} rf_piece_times;

/* Every stage runs its halves in the order of the schedule, each as soon as the one before it
 * has ended and what it reads has arrived. A transfer goes on beside the work of both its ends;
 * it starts when what it carries is made, the transfer before it has ended and the receiver has
 * a place for it. start, finish: by stage, seconds from the first half's start to that of the
 * stage's first one and to its last one's end. Returns the largest; -1 without memory. */
double rf_pipeline_simulate(const rf_mesh *mesh, int micros, const rf_piece_times *piece, double *start,
                            double *finish);

#endif
