/* ops.h - what the files of the op table share: helpers for shape, work and backward rules. Private to
 * src/graph. */
#ifndef RF_GRAPH_OPS_H
#define RF_GRAPH_OPS_H

#include "graph/graph.h"

/* Dtype rules of a slot beside a plain rf_dtype. */
/* a float; or a packed matrix, or one of numbers that only plans know */
enum { RF_ANY_FLOAT = -1, RF_ANY_WEIGHT = -2 };

/* ---- shape rules ----------------------------------------------------------------------------- */

/* Dimension `axis` of an input, or 0 when the slot is absent or has fewer axes. */
int64_t rf_input_dim(const rf_graph *graph, const rf_op *op, int slot, int axis);
/* The op's activation dtype: that of an input slot. */
rf_dtype rf_input_dtype(const rf_graph *graph, const rf_op *op, int slot);
/* Sums, statistics and parameter gradients beside activations of `dtype`: f64 beside f64, else
 * f32. */
rf_dtype rf_wide_dtype(rf_dtype dtype);
/* An absent optional input passes; an absent required one, another dtype or another shape fails
 * with both shapes named. */
rf_status rf_shape_input(const rf_graph *graph, const rf_op *op, int slot, int dtype, int rank,
                         const int64_t *dims, rf_error *error);
/* Makes a wanted output (named by the op's path and the slot), checks a given one, passes an
 * absent one. */
rf_status rf_shape_output(rf_graph *graph, rf_op *op, int slot, rf_class class, rf_dtype dtype, int rank,
                          const int64_t *dims, rf_error *error);

/* A shape rule reads as a list: RF_IN(0, dtype, rows, width) is
 *   RF_TRY(rf_shape_input(graph, op, 0, dtype, 2, (const int64_t[]){rows, width}, error)); */
#define RF_RANK(...) ((int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
#define RF_IN(slot, dtype, ...) \
  RF_TRY(rf_shape_input(graph, op, (slot), (int)(dtype), RF_RANK(__VA_ARGS__), \
                        (const int64_t[]){__VA_ARGS__}, error))
#define RF_OUT(slot, class, dtype, ...) \
  RF_TRY(rf_shape_output(graph, op, (slot), (class), (dtype), RF_RANK(__VA_ARGS__), \
                         (const int64_t[]){__VA_ARGS__}, error))

/* The shape rule of ops on elements: all inputs and the output are alike, (rows, width) and of
 * one floating dtype. */
rf_status rf_shape_alike(rf_graph *graph, rf_op *op, rf_error *error);

/* ---- work rules ------------------------------------------------------------------------------ */

/* Every present operand once; an accumulating output is read as well. FLOPs stay 0. */
rf_work rf_work_bytes(const rf_graph *graph, const rf_op *op);
/* (query, key) pairs that the causal mask and the window leave in segments of length graph->seq,
 * and in the full square. */
void rf_attention_pairs(const rf_graph *graph, int64_t rows, int window, double *causal, double *square);

/* Of attention over a cache of latent rows. */
rf_cached rf_cached_latent(const rf_graph *graph, const rf_op *op);
rf_work rf_cached_work(const rf_graph *graph, const rf_op *op);

/* ---- backward rules -------------------------------------------------------------------------- */

/* "step/micro/block.3/mlp/up/fwd" -> "step/micro/block.3/mlp/up/bwd" + suffix; in the graph's
 * pool. */
const char *rf_backward_name(rf_graph *graph, const rf_op *op, const char *suffix);
/* Emits `def` on op's one input and its output's gradient (x, dy -> dx): the backward of an
 * activation. */
rf_status rf_backward_pointwise(rf_graph *graph, const rf_op_def *def, const rf_op *op, const int *grad_out,
                                int *grad_in, rf_error *error);
/* a + b + c in the graph's pool. */
const char *rf_graph_join(rf_graph *graph, const char *a, const char *b, const char *c);

#endif
