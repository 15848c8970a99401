/* boxes.h - computes which elements a collective moves from one rank of a group to another. The
 * elements form up to three boxes, for example the query, key and value heads of an all_to_all. A
 * box has the same extents in the sender's input and in the receiver's output, but different
 * strides. A message has the elements of its boxes, one box after the other, without gaps. */
#ifndef RF_BOXES_H
#define RF_BOXES_H

#include "backend/kernel.h"

/* Offsets and strides count elements. */
typedef struct rf_box {
  int64_t extent[RF_MAX_RANK], from_stride[RF_MAX_RANK], to_stride[RF_MAX_RANK];
  int64_t from_at, to_at;
} rf_box;

enum { RF_MAX_BOXES = 3 };
typedef struct rf_boxes {
  int count;
  rf_box box[RF_MAX_BOXES];
  int64_t elements;
} rf_boxes;

/* The elements of the input of rank `from` that rank `to` needs, and their places in the output of
 * rank `to`. The op is an all_gather, reduce_scatter, all_to_all, permute or all_reduce. An
 * all_reduce moves only the columns from own_columns on. The result has no elements if rank `to`
 * needs nothing. */
rf_boxes rf_boxes_of(const rf_graph *graph, const rf_op *op, int64_t from, int64_t to);
/* True if the message is a contiguous part of the input (or output). *at gets the first element of
 * this part. */
bool rf_boxes_direct(const rf_boxes *boxes, bool output, int64_t *at);
/* Calls `visit` for each contiguous run of the elements [first, first + count) of a message. `at`
 * is the first element of the run in the input (or output). `done` is the first element of the run
 * in the message, counted from `first`. */
typedef void (*rf_boxes_visit)(void *self, int64_t at, int64_t done, int64_t count);
void rf_boxes_runs(const rf_boxes *boxes, bool output, int64_t first, int64_t count, rf_boxes_visit visit,
                   void *self);

#endif
