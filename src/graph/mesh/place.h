/* place.h - the position of each chip's part in a whole tensor. The shard pass gives a tensor the
 * shape of one chip's part and a spec. These functions find the element of the whole tensor for
 * each element of a part. In generation, copies of the model (rf_mesh_copies) serve different
 * sequences, and each copy has its own caches, inputs and logits. In a whole tensor, the parts of
 * the copies follow each other. */
#ifndef RF_GRAPH_PLACE_H
#define RF_GRAPH_PLACE_H

#include "graph/graph.h"

/* Coordinates of chip number `chip`, one for each axis. The last axis varies fastest. */
void rf_place_of(const rf_mesh *mesh, int64_t chip, int32_t place[RF_AXES]);

/* The row of the whole tensor that is the first of the `rows` rows of the chip at `place`, if
 * `axes` split the rows. Along the axis context, a chip takes every n-th row of a run. */
int64_t rf_place_first_row(const rf_mesh *mesh, rf_axes axes, const int32_t place[RF_AXES], int64_t rows);

/* Writes to `at`, for each element of a chip's part of tensor `tensor`, its index in the whole
 * tensor. -1: the element is padding, or is in no whole tensor. `whole` gives the rank and the
 * shape. The pool owns memory for the work. */
void rf_place_indices(const rf_graph *graph, int64_t chip, int tensor, const rf_tensor *whole, rf_pool *pool,
                      int64_t *at);

/* A range of consecutive indices along one dimension. A run is the indices [mine, mine + count) of
 * the part, and [whole, whole + count) of the whole tensor. */
typedef struct rf_place_run {
  int64_t mine, whole, count;
} rf_place_run;
/* A chip's part of a tensor, as a list of runs for each dimension, in ascending order of
 * `whole`. */
typedef struct rf_place_part {
  int rank;
  int64_t mine[RF_MAX_RANK], whole[RF_MAX_RANK]; /* extents */
  int runs[RF_MAX_RANK];
  rf_place_run *run[RF_MAX_RANK];
} rf_place_part;
/* Not for caches, because each chip has its own order of pages. The pool owns the runs. */
rf_place_part rf_place_part_of(const rf_graph *graph, int64_t chip, int tensor, const rf_tensor *whole,
                               rf_pool *pool);
bool rf_place_same(const rf_place_part *a, const rf_place_part *b);
/* Calls `visit` for each contiguous piece of the part. The pieces are limited to elements [first,
 * first + count) of the whole tensor. A piece has `size` elements. The piece starts at element
 * `mine` of the part and at element `whole` of the whole tensor. */
typedef rf_status (*rf_place_visit)(void *context, int64_t mine, int64_t whole, int64_t size,
                                    rf_error *error);
rf_status rf_place_pieces(const rf_place_part *part, int64_t first, int64_t count, rf_place_visit visit,
                          void *context, rf_error *error);

#endif
