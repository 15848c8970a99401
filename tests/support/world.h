/* world.h - runs the graphs of several chips in one process. Every chip has its own bytes of every
 * tensor. Ops run the reference kernels, and collectives follow their formulas. Tests use it to
 * verify that a sharded graph computes the results of the unsharded graph. */
#ifndef RF_TESTS_WORLD_H
#define RF_TESTS_WORLD_H

#include "backend/kernel.h"
#include "machine/isa.h"

struct world;
/* A send or a recv of a pipeline stage: op `op` on one chip. */
typedef void (*world_transfer)(struct world *w, const rf_op *op, int64_t chip, void *context);
/* Runs an op on one chip. `call` has the operands, and the workspace of the reference kernel. */
typedef void (*world_kernel)(const rf_kernel *reference, const rf_call *call, void *context);

typedef struct world {
  const rf_graph *graph;
  int64_t chips, whole_rows; /* whole_rows: rows of a microbatch on all chips */
  void **data;               /* [chip * tensor_count + tensor] */
  rf_run_inputs run;
  /* The op whose exchange is left out: each chip takes its own values for those of others. -1:
   * none. */
  int broken;
  /* [tensor]: results of an exchange that no op has waited for yet; the tensor itself is NaN */
  double **late;
  int64_t group, *members; /* of the exchange that runs: size of the group; [chip * group + rank] */
  world_kernel kernel;     /* NULL: the reference kernel runs */
  world_transfer transfer;
  void *context; /* of `kernel` and `transfer` */
} world;

/* Makes a world. `whole_rows`: rows of a microbatch of the unsharded graph. All bytes are NaN,
 * except those of persistent tensors, which are 0. */
world *world_new(const rf_graph *graph, int64_t whole_rows);
world *world_copy(const world *w); /* between two ops of a step */
void world_free(world *w);
void *world_data(const world *w, int64_t chip, int tensor); /* of the current microbatch */
/* Sets every chip's part of a tensor from the values of the unsharded tensor `whole`, element by
 * element as its spec says. */
void world_set(world *w, int tensor, const rf_tensor *whole, const double *values);
/* For each chip and element of its part of a tensor, the index in the unsharded tensor `whole`; -1:
 * padding. [chip * elements of a part + element] The caller frees the list. */
int64_t *world_places(const world *w, int tensor, const rf_tensor *whole);
double world_get(const world *w, int64_t chip, int tensor, int64_t i);
void world_put(world *w, int64_t chip, int tensor, int64_t i, double value);
/* Writes the first values of a step on all chips: persistent tensors, or with `inputs` the inputs
 * of microbatch `micro`. `whole` is the unsharded graph, whose values do not depend on the mesh or
 * the dtype. A sequence has WORLD_SEQ tokens. */
enum { WORLD_SEQ = 8 };
void world_fill(world *w, const rf_graph *whole, int micro, bool inputs);
void world_run_op(world *w, int op); /* on all chips */
/* Runs all ops of a section on all chips, in lockstep. */
void world_run(world *w, rf_section section);
/* Runs the rest of a step of one microbatch, from op `op` on. */
void world_finish(world *w, const rf_graph *whole, int op);
/* Runs a whole step, with the inputs that world_fill gives for each microbatch. */
void world_step(world *w, const rf_graph *whole);

#endif
