/* shard.h - sharding rules of ops. A rule reads the sharding of an op's operands. The rule decides
 * the sharding of operands that the op needs, and the sharding of the results. If an operand has
 * another sharding than this, the shard pass inserts collectives. Private to src/graph. */
#ifndef RF_GRAPH_SHARD_H
#define RF_GRAPH_SHARD_H

#include "graph/ops/ops.h"

struct rf_sharding {
  const rf_graph *graph; /* the unsharded graph, in which `op` has its full shapes */
  const rf_op *op;
  const rf_mesh *mesh;
  rf_error *error;
  rf_attr attr; /* the op's attributes, which the rule changes to those of one chip */
  /* Sharding of the operands. The rule replaces it by the sharding that the op needs. */
  rf_spec in[RF_MAX_INPUTS];
  /* Sharding of the gradients and states. The rule replaces the old sharding by the sharding of the
   * results. */
  rf_spec out[RF_MAX_OUTPUTS];
  /* Set by the rule: */
  bool keeps_sums;   /* results stay partial sums, because their readers are linear */
  bool log_sum;      /* partial results x of the chips are combined to log(sum of exp(x)) */
  bool end_sum;      /* results are summed over microbatches, and then over chips in the end section */
  bool from_experts; /* input 0 comes back from the chips of the experts */
  bool to_experts;   /* output 0 is sent to the chips of the experts */
};

/* Gives all operands and results the same sharding. The rows are sharded if the rows of any operand
 * are sharded. */
rf_status rf_shard_pointwise(rf_sharding *s);
/* Rows may be sharded; parameters and columns may not. Results are sharded like the rows. A
 * parameter's gradient is a partial sum over the axes that shard the rows. */
rf_status rf_shard_rows(rf_sharding *s);
/* A rule for the optimizer, which keeps the sharding of operands and results. */
rf_status rf_shard_same(rf_sharding *s);
rf_spec rf_spec_of(rf_axes rows, rf_axes columns, rf_form form); /* Sharding of a matrix. */
/* Divides the numbers of heads in s->attr by the number of chips along `axes`. */
rf_status rf_shard_heads(rf_sharding *s, rf_axes axes);
/* Shards the columns of the layer over `axes`, in the given form. In the attributes of an adapter,
 * the columns that it reads and the columns to which it adds become the columns of one chip. */
rf_status rf_shard_adapters(rf_sharding *s, rf_axes axes, rf_form form);
/* Form of the joined columns (B) of an adapter. `form` is the form of the layer's `columns` columns.
 * An adapter of gate alone, or of up alone, has no halves. */
rf_form rf_shard_joined_form(const rf_lora_parts *parts, int64_t columns, rf_form form);

/* These functions replace an op by several ops (rf_op_def.expand). If one op is enough on this
 * mesh, they only set *done to false. */
struct rf_sharder;
rf_status rf_expand_head(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_attention(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_cached(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_transfer(struct rf_sharder *s, const rf_op *op, bool *done);
rf_status rf_expand_adamw(struct rf_sharder *s, const rf_op *op, bool *done);

/* Sharding of a parameter: `use` while ops read it, and `state` between these uses. */
typedef struct rf_param_specs {
  rf_spec use, state; /* the optimizer reads `state` */
  bool gathered;      /* `use` and `state` differ */
} rf_param_specs;
rf_param_specs rf_shard_param(const rf_graph *graph, const rf_mesh *mesh, int param);
/* The chips that hold the same key heads. A fused qkv parameter with fewer key heads than chips has
 * `chips` such chips. The first `own` columns (query heads) differ between chips. For other
 * parameters, `chips` is 1. */
typedef struct rf_copies {
  int64_t chips, own;
} rf_copies;
rf_copies rf_shard_copies(const rf_graph *graph, const rf_mesh *mesh, int param);
/* The extent of dimension `dim` on one chip, for a parameter that `spec` shards. `whole` is the
 * extent over all chips. */
int64_t rf_shard_extent(const rf_graph *graph, const rf_mesh *mesh, int param, const rf_spec *spec, int dim,
                        int64_t whole);

#endif
