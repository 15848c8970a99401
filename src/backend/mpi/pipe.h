/* pipe.h - the tensors that the stages of a pipeline send each other. One rank of MPI is one chip
 * of a stage.
 *
 * A stage sends a tensor right after the op that computes the tensor. The stage waits until the
 * other rank has the tensor, because the next op may reuse the bytes. So the other rank posts its
 * receives early, as soon as the tensor's slot is free. Receives can be posted several microbatches
 * ahead (graph/mesh/pipeline.h). The schedules leave a free slot for each send, so no two stages
 * wait for each other. */
#ifndef RF_MPI_PIPE_H
#define RF_MPI_PIPE_H

#include "backend/kernel.h"
#include "graph/mesh/pipeline.h"

typedef struct rf_pipe rf_pipe;
/* `address` has the address of the first slot of each tensor, or NULL. The arrays and the graph
 * must outlive the pipe. `half`: as rf_pipeline_halves. `order` has the `halves` passes of this
 * stage. */
typedef struct rf_pipe_source {
  const rf_graph *graph;
  struct rf_link *link;
  void *const *address; /* (tensors) */
  const int *half;      /* (ops) */
  const rf_half *order; /* (halves) */
  int halves;
} rf_pipe_source;
rf_status rf_pipe_open(const rf_pipe_source *source, rf_pipe **pipe, rf_error *error);
void rf_pipe_close(rf_pipe *pipe);

/* Called at the beginning of a step. Posts the first receives. */
void rf_pipe_begin(rf_pipe *pipe);
/* Called after a pass. Posts receives into the slots that the pass has freed. */
void rf_pipe_free_slots(rf_pipe *pipe, const rf_half *done);

/* Kernels of the ops send and recv. The last entry has op NULL. */
extern const rf_kernel RF_MPI_TRANSFERS[];

#endif
