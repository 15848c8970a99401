/* stages.h - runs the stages of a pipeline in one process. Each stage has a world, which executes
 * its halves in the order of the schedule until it has to wait. A sent tensor stays in a box until
 * its receiver takes it. */
#ifndef RF_TESTS_STAGES_H
#define RF_TESTS_STAGES_H

#include "graph/mesh/pipeline.h"
#include "support/world.h"

enum { STAGES_MAX = 8 };

typedef struct stages {
  int count, accumulate;
  rf_mesh mesh; /* mesh of all stages; the mesh of each world has one stage */
  world *world[STAGES_MAX];
  int broken_stage, broken_op; /* the send or recv that transfers nothing, to plant a fault; -1: none */
  struct letter *letters;
  bool stuck; /* all stages wait for each other */
} stages;

/* Takes the graphs and changes the mesh of each to that of one stage. Slots are set. */
stages *stages_new(rf_graph *const *graph, int count, int64_t whole_rows);
void stages_free(stages *s);
/* Runs one step. `inputs` writes the inputs of microbatch `micro` before its first half on a
 * stage. */
void stages_step(stages *s, void (*inputs)(world *w, int micro, const void *context), const void *context);

#endif
