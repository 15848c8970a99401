/* ops.h - helpers for the shape, work and backward rules in ops/. Private to src/graph. */
#ifndef RF_GRAPH_OPS_H
#define RF_GRAPH_OPS_H

#include "graph/graph.h"

/* The dtypes that a slot accepts: one fixed rf_dtype, any float dtype (RF_ANY_FLOAT), or any dtype
 * of a weight (RF_ANY_WEIGHT: float, packed, i8, i4, fp8). */
enum { RF_ANY_FLOAT = -1, RF_ANY_WEIGHT = -2 };

/* ---- shape rules ----------------------------------------------------------------------------- */

/* Extent of dimension `axis` of an input; 0 if the slot is empty or has fewer dimensions. */
int64_t rf_input_dim(const rf_graph *graph, const rf_op *op, int slot, int axis);
/* Dtype of an input slot; f32 if the slot is empty. */
rf_dtype rf_input_dtype(const rf_graph *graph, const rf_op *op, int slot);
/* Dtype of sums, statistics and parameter gradients: f64 if `dtype` is f64, otherwise f32. */
rf_dtype rf_wide_dtype(rf_dtype dtype);
bool rf_dtype_is_float(rf_dtype dtype);
/* Checks an input slot. An empty optional slot passes. An empty required slot, a wrong dtype or a
 * wrong shape fails. The error names both shapes. */
rf_status rf_shape_input(const rf_graph *graph, const rf_op *op, int slot, int dtype, int rank,
                         const int64_t *dims, rf_error *error);
/* If the slot holds RF_WANTED, creates the output. The name of the output is the op's path and the
 * slot's name. If the slot holds a tensor, checks that tensor. Ignores an empty slot. */
rf_status rf_shape_output(rf_graph *graph, rf_op *op, int slot, rf_class class, rf_dtype dtype, int rank,
                          const int64_t *dims, rf_error *error);

/* Macros for shape rules. RF_IN(0, dtype, rows, width) expands to: RF_TRY(rf_shape_input(graph, op,
 * 0, dtype, 2, (const int64_t[]){rows, width}, error)); */
#define RF_RANK(...) ((int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
#define RF_IN(slot, dtype, ...) \
  RF_TRY(rf_shape_input(graph, op, (slot), (int)(dtype), RF_RANK(__VA_ARGS__), \
                        (const int64_t[]){__VA_ARGS__}, error))
#define RF_OUT(slot, class, dtype, ...) \
  RF_TRY(rf_shape_output(graph, op, (slot), (class), (dtype), RF_RANK(__VA_ARGS__), \
                         (const int64_t[]){__VA_ARGS__}, error))

/* Elementwise ops: inputs and output have the same shape (rows, width) and floating dtype. */
#define RF_POINTWISE .shape = rf_shape_alike, .work = rf_work_bytes, .shard = rf_shard_pointwise
rf_status rf_shape_alike(rf_graph *graph, rf_op *op, rf_error *error);
/* True if the parts do not overlap, are within `columns` columns, and have `joined` columns
 * together. */
bool rf_lora_parts_fit(const rf_lora_parts *parts, int64_t columns, int64_t joined);

/* ---- work rules ------------------------------------------------------------------------------ */

/* Returns work that has no FLOPs, and the bytes of each operand once. If an output accumulates, its
 * bytes are also read. */
rf_work rf_work_bytes(const rf_graph *graph, const rf_op *op);
/* Counts (query, key) pairs in segments of graph->seq tokens. *causal gets the number of pairs that
 * the causal mask and the window allow. *square gets the number of all pairs. */
void rf_attention_pairs(const rf_graph *graph, int64_t rows, int window, double *causal, double *square);

/* Heads and widths of an attention op, from its attributes and input 0. */
typedef struct rf_heads {
  int64_t rows, q, /* columns of all query heads */
      kv,          /* columns of all key heads, and of all value heads */
      qkv;         /* columns of a row */
  rf_dtype dtype, wide;
} rf_heads;
rf_status rf_heads_of(const rf_graph *graph, const rf_op *op, rf_heads *heads, rf_error *error);
/* Work of attention over `rows` rows. Each pair of query and key costs `pair` FLOPs. Recomputation
 * costs `again` more FLOPs for each pair. The chips of the op's group share this work. */
rf_work rf_pairs_work(const rf_graph *graph, const rf_op *op, int64_t rows, double pair, double again);
/* Cost of attention over a cache of latent rows. */
rf_cached rf_cached_latent(const rf_graph *graph, const rf_op *op);
rf_work rf_cached_work(const rf_graph *graph, const rf_op *op);

/* ---- backward rules -------------------------------------------------------------------------- */

/* The name of a backward op, in the graph's pool. For example, "step/micro/block.3/mlp/up/fwd"
 * becomes "step/micro/block.3/mlp/up/bwd" + suffix. */
const char *rf_backward_name(rf_graph *graph, const rf_op *op, const char *suffix);
/* Joins three texts in the graph's pool. */
const char *rf_graph_join(rf_graph *graph, const char *a, const char *b, const char *c);

#endif
