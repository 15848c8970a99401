/* world.h - a graph of several chips run in one process: every chip has its own bytes of every
 * tensor, ops run by the reference kernels and collectives do what their formulas say. It is how
 * a sharded graph is proved to compute what the whole one does. */
#ifndef RF_TESTS_WORLD_H
#define RF_TESTS_WORLD_H

#include "backend/kernel.h"
#include "machine/isa.h"

struct world;
/* What a send or a recv of a stage does: op `op` on one chip. */
typedef void (*world_transfer)(struct world *w, const rf_op *op, int64_t chip, void *context);

typedef struct world {
  const rf_graph *graph;
  int64_t chips, whole_rows; /* rows of a microbatch on all chips */
  /* a walk of a generator: copies of the model have sequences of their own, in the order of
   * their chips */
  bool walks;
  void **data; /* [chip * tensor_count + tensor] */
  rf_run_inputs run;
  int broken; /* this op's exchange is left out: each chip takes its own for the others'; -1: none */
  world_transfer transfer;
  void *context;
} world;

/* `whole_rows`: rows of a microbatch of the whole graph. All bytes are NaN, but for persistent
 * tensors, which are 0. */
world *world_new(const rf_graph *graph, int64_t whole_rows);
void world_free(world *w);
void *world_data(const world *w, int64_t chip, int tensor); /* of the microbatch that runs */
/* Sets every chip's part of a tensor from the whole one's values, element by element as its spec
 * says; `whole`: the tensor in the whole graph. */
void world_set(world *w, int tensor, const rf_tensor *whole, const double *values);
/* The whole index that element `i` of a chip's part of a tensor stands for; -1: padding. */
int64_t world_index(const world *w, int64_t chip, int tensor, const rf_tensor *whole, int64_t i);
double world_get(const world *w, int64_t chip, int tensor, int64_t i);
void world_put(world *w, int64_t chip, int tensor, int64_t i, double value);
void world_run_op(world *w, int op); /* on all chips */
/* Runs all ops of a section on all chips, in step. */
void world_run(world *w, rf_section section);

#endif
