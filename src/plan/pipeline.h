/* pipeline.h - simulates the stages of a pipeline, for src/plan and its tests. A piece is a run of
 * consecutive layers. A half is the forward or the backward pass of one piece on one microbatch. */
#ifndef RF_PLAN_PIPELINE_H
#define RF_PLAN_PIPELINE_H

#include "graph/mesh/pipeline.h"
#include "plan/plan.h"

/* Seconds of the passes of a piece for one microbatch. The struct also has the seconds to send the
 * results to the next or the previous piece. */
typedef struct rf_piece_times {
  double forward, backward, to_next, to_before;
} rf_piece_times;

/* Every stage runs its forward and backward passes in the order of the schedule. A pass starts when
 * the stage's previous pass has ended and the input has arrived. A transfer overlaps with the work
 * of the sending and the receiving stage. A transfer starts when its data is complete, the previous
 * transfer has ended and the receiver has a free slot. For each stage, `start` gets the time when
 * the stage's first pass starts. `finish` gets the time when its last pass ends. Returns the
 * largest `finish`. Returns -1 if memory runs out. */
double rf_pipeline_simulate(const rf_mesh *mesh, int micros, const rf_piece_times *piece, double *start,
                            double *finish);

#endif
