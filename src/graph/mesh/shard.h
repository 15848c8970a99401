/* shard.h - sharding rules of ops. From the sharding that an op's operands have, a rule derives the
 * sharding that the op needs and the sharding of its results. The shard pass inserts collectives
 * where operands are sharded differently. Private to src/graph. */
#ifndef RF_GRAPH_SHARD_H
#define RF_GRAPH_SHARD_H

#include "graph/ops/ops.h"

struct rf_sharding {
  const rf_graph *graph; /* the unsharded graph, with `op` and its full shapes */
  const rf_op *op;
  const rf_mesh *mesh;
  rf_error *error;
  rf_attr attr;              /* attributes of the op on one chip: a rule divides the heads */
  rf_spec in[RF_MAX_INPUTS]; /* sharding of operands; the rule replaces it by the sharding needed */
  /* on entry, how gradients and states are sharded; the rule sets the sharding of results */
  rf_spec out[RF_MAX_OUTPUTS];
  /* Set by the rule: */
  bool keeps_sums;   /* results stay partial sums, because their readers are linear */
  bool log_sum;      /* a partial result is combined as log(sum of exp) over chips */
  bool end_sum;      /* results are summed over microbatches, then over chips in the end section */
  bool from_experts; /* the chips of the experts send input 0 back */
  bool to_experts;   /* output 0 is sent to the chips of the experts */
};

/* All operands and results get one sharding; all rows are sharded if any operand's rows are. */
rf_status rf_shard_pointwise(rf_sharding *s);
/* Rows may be sharded; parameters and widths are needed in full. Results are sharded like the rows;
 * a parameter's gradient is a partial sum over the rows' axes. */
rf_status rf_shard_rows(rf_sharding *s);
/* Keeps the sharding of operands and results (optimizer). */
rf_status rf_shard_same(rf_sharding *s);
/* Sharding of a matrix. */
rf_spec rf_spec_of(rf_axes rows, rf_axes columns, rf_form form);
/* Divides the numbers of heads in s->attr by the number of chips along `axes`. */
rf_status rf_shard_heads(rf_sharding *s, rf_axes axes);
/* Replaces the columns that adapters read and add to by the columns on one chip, where `axes` shard
 * the layer's columns in the given form. */
rf_status rf_shard_adapters(rf_sharding *s, rf_axes axes, rf_form form);

/* Ops that become several ops on a mesh (rf_op_def.expand). *done is set to false if this mesh
 * needs only the op's sharding rule. */
struct rf_sharder;
rf_status rf_expand_head(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_attention(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_cached(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_transfer(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_adamw(struct rf_sharder *s, const rf_op *op, bool *done);

/* Sharding of a parameter while ops use the parameter, and between uses. */
typedef struct rf_param_specs {
  rf_spec use, state; /* state: as the optimizer sees it */
  bool gathered;      /* `use` and `state` differ */
} rf_param_specs;
rf_param_specs rf_shard_param(const rf_graph *graph, const rf_mesh *mesh, int param);
/* For a fused qkv parameter with fewer key heads than chips: `chips` chips hold the same key heads.
 * The columns before the key heads (query heads) differ on each chip. `chips` = 1: no such
 * parameter. */
typedef struct rf_copies {
  int64_t chips, own;
} rf_copies;
rf_copies rf_shard_copies(const rf_graph *graph, const rf_mesh *mesh, int param);
/* Local extent of dimension `dim` of a parameter with sharding `spec`. */
int64_t rf_shard_extent(const rf_graph *graph, const rf_mesh *mesh, int param, const rf_spec *spec, int dim,
                        int64_t whole);

#endif
