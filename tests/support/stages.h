/* stages.h - the stages of a pipeline in one process: a world of each, which walks its halves in
 * the order of the schedule as far as what it waits for is there. What one sends lies in a box
 * until the other takes it. */
#ifndef RF_TESTS_STAGES_H
#define RF_TESTS_STAGES_H

#include "graph/mesh/pipeline.h"
#include "support/world.h"

enum { STAGES_MOST = 8 };

typedef struct stages {
  int count, accumulate;
  rf_mesh mesh; /* of all stages; a world's own has one stage */
  world *world[STAGES_MOST];
  int broken_stage, broken_op; /* this send or recv hands over nothing; -1: none */
  struct letter *letters;
  bool stuck; /* they waited for each other */
} stages;

/* Takes the graphs' meshes over: each becomes that of one stage. Slots are set. */
stages *stages_new(rf_graph *const *graph, int count, int64_t whole_rows);
void stages_free(stages *s);
/* One step; `inputs` writes what microbatch `micro` reads before its first half on a stage. */
void stages_step(stages *s, void (*inputs)(world *w, int micro, const void *context), const void *context);

#endif
