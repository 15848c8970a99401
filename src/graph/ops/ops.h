/* ops.h - what the files of the op table share: their rows, and helpers for shape and work
 * rules. Private to src/graph. */
#ifndef RF_GRAPH_OPS_H
#define RF_GRAPH_OPS_H

#include "graph/graph.h"

extern const rf_op_def RF_OP_EMBED, RF_OP_EMBED_BWD, RF_OP_LAYERNORM, RF_OP_LAYERNORM_BWD, RF_OP_RMSNORM,
    RF_OP_RMSNORM_BWD, RF_OP_ROPE, RF_OP_MATMUL, RF_OP_MATMUL_DX, RF_OP_MATMUL_DW, RF_OP_GELU, RF_OP_GELU_BWD,
    RF_OP_GELU_ERF, RF_OP_GELU_ERF_BWD, RF_OP_SWIGLU, RF_OP_SWIGLU_BWD, RF_OP_GEGLU, RF_OP_GEGLU_BWD,
    RF_OP_HEAD_NORM, RF_OP_HEAD_NORM_BWD, RF_OP_ADD, RF_OP_ADD_DROPOUT, RF_OP_DROPOUT, RF_OP_ATTENTION,
    RF_OP_ATTENTION_BWD, RF_OP_ATTENTION_KV, RF_OP_HEAD_LOSS, RF_OP_HEAD_LOSS_BWD, RF_OP_HEAD_LOSS_GRAD,
    RF_OP_LOSS_SUM, RF_OP_HEAD_LOGITS, RF_OP_HEAD_SCORE, RF_OP_ROUTE, RF_OP_ROUTE_BWD, RF_OP_DISPATCH,
    RF_OP_DISPATCH_BWD, RF_OP_MATMUL_EXPERTS, RF_OP_MATMUL_EXPERTS_DX, RF_OP_MATMUL_EXPERTS_DW, RF_OP_COMBINE,
    RF_OP_COMBINE_BWD, RF_OP_LORA, RF_OP_LORA_BWD, RF_OP_LATENT_NORM, RF_OP_LATENT_NORM_BWD,
    RF_OP_ATTENTION_LATENT, RF_OP_ATTENTION_LATENT_BWD, RF_OP_ATTENTION_LATENT_KV, RF_OP_NORM_SQ, RF_OP_CLIP,
    RF_OP_ADAMW, RF_OP_ALL_GATHER, RF_OP_REDUCE_SCATTER, RF_OP_ALL_REDUCE, RF_OP_ALL_TO_ALL, RF_OP_PERMUTE,
    RF_OP_SEND, RF_OP_RECV, RF_OP_NORM_TOTAL, RF_OP_OFFLOAD_OUT, RF_OP_OFFLOAD_IN, RF_OP_HEAD_PART,
    RF_OP_HEAD_MERGE, RF_OP_TAKE_RUN, RF_OP_KV_ROWS, RF_OP_KV_JOIN, RF_OP_ATTENTION_PART,
    RF_OP_ATTENTION_PART_BWD, RF_OP_ATTENTION_MERGE;

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
