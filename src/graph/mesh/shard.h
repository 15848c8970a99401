/* shard.h - what sharding rules of ops share. A rule is told how an op's operands lie on the
 * mesh and answers how the op needs them and how its results lie then; the pass puts collectives
 * in between. Private to src/graph. */
#ifndef RF_GRAPH_SHARD_H
#define RF_GRAPH_SHARD_H

#include "graph/ops/ops.h"

struct rf_sharding {
  const rf_graph *graph; /* the whole graph: `op` and its shapes are those of one chip that has all */
  const rf_op *op;
  const rf_mesh *mesh;
  rf_attr attr;                /* of the op on one chip: a rule divides heads */
  rf_spec in[RF_MAX_INPUTS];   /* in: how they lie; out: how the op needs them */
  rf_spec out[RF_MAX_OUTPUTS]; /* in: how gradients and states are to lie; out: how they come out */
  bool keeps_sums;             /* results that are sums over chips stay so: what reads them is linear */
};

/* All operands lie alike, their rows cut as those of any one of them; results too. */
rf_status rf_shard_pointwise(rf_sharding *s, rf_error *error);
/* Rows may be cut, everything else is needed whole: parameters, widths. Results lie as the rows;
 * gradients of parameters are sums over them. */
rf_status rf_shard_rows(rf_sharding *s, rf_error *error);
/* Operands and results as they are to lie: optimizer. */
rf_status rf_shard_same(rf_sharding *s, rf_error *error);
/* Rows and columns of a matrix. */
rf_spec rf_spec_of(rf_axes rows, rf_axes columns, rf_form form);
/* Fewer heads, as the columns of a fused row are cut over `axes`. */
rf_status rf_shard_heads(rf_sharding *s, rf_axes axes, rf_error *error);
/* Columns of adapters where those of the layer beside them, which lie as `form` says, are cut. */
rf_status rf_shard_adapters(rf_sharding *s, rf_axes axes, rf_form form, rf_error *error);

/* How a parameter is cut for its use, and between uses. */
typedef struct rf_param_specs {
  rf_spec use, state; /* state: what the optimizer sees */
  bool gathered;      /* they differ */
} rf_param_specs;
rf_param_specs rf_shard_param(const rf_graph *graph, const rf_mesh *mesh, int param);
/* Of a fused row of query, key and value heads whose key heads are fewer than the chips that cut
 * it: how many chips have the same ones, and the columns before them, which no other chip has. 1
 * chip: no such parameter. */
typedef struct rf_copies {
  int64_t chips, own;
} rf_copies;
rf_copies rf_shard_copies(const rf_graph *graph, const rf_mesh *mesh, int param);
/* Extent of dimension `dim` of a parameter's tensor that lies as `spec` says. */
int64_t rf_shard_extent(const rf_graph *graph, const rf_mesh *mesh, int param, const rf_spec *spec, int dim,
                        int64_t whole);

#endif
