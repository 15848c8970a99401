/* shard_pass.h - the state of the shard pass. The pass rewrites the unsharded graph (`whole`) into
 * the program of one chip (`graph`), and inserts collectives wherever an op needs a tensor in
 * another sharding. Private to src/graph. */
#ifndef RF_GRAPH_SHARD_PASS_H
#define RF_GRAPH_SHARD_PASS_H

#include "graph/mesh/shard.h"

/* The readers of a tensor that share a gathered copy. */
typedef enum rf_gather_scope {
  RF_SCOPE_FORWARD,  /* forward ops */
  RF_SCOPE_BACKWARD, /* backward ops */
  RF_SCOPE_HEAD,     /* ops of the head */
  /* all readers share the copy, because a copy from an all_to_all has the size of the original */
  RF_SCOPE_ALWAYS
} rf_gather_scope;

typedef struct rf_sharded_tensor {
  int id; /* id of the tensor in `graph`; RF_NONE: it does not exist yet */
  rf_spec spec;
} rf_sharded_tensor;

typedef struct rf_resharded {
  int from, id, when;
  rf_spec spec;
  int next; /* number of the next copy of the same tensor, or RF_NONE */
} rf_resharded;

/* A parameter's gradient while its sum over chips is incomplete. If each chip will keep only its
 * part of the sum, `whole` is the tensor of this chip's partial sum, in the shape that ops use. */
typedef struct rf_pending_grad {
  int last_writer, whole;
  rf_axes partial;
  bool settled;
} rf_pending_grad;

typedef struct rf_sharder {
  rf_graph *graph; /* the program of one chip */
  rf_graph whole;  /* the unsharded graph */
  const rf_mesh *mesh;
  rf_error *error;
  /* True in training and scoring. In generation, each chip of a tensor group has all rows. */
  bool text;
  rf_axes rows;              /* axes that shard the rows of a microbatch */
  rf_sharded_tensor *at;     /* for each tensor of `whole` */
  rf_pending_grad *gradient; /* for each parameter */
  /* for each parameter: this chip's part of an f32 weight that every chip stores, or RF_NONE */
  int *master;
  rf_param_specs *specs;
  rf_resharded *copy;
  int *head, copies, copy_capacity, head_capacity;
  /* The op number early_op[i], a gather, will move to the place just before op early_at[i]. */
  int *early_op, *early_at, early_count, early_capacity;
  int unit,        /* number of the current unit; a unit is one pass of one sublayer */
      unit_at,     /* first op of the current unit */
      unit_before; /* first op of the previous unit */
  int half,        /* in a pipeline: number of the forward or backward pass whose ops are emitted now */
      half_at;     /* first op of that pass; every gather stays in its pass */
  int when;        /* rf_gather_scope of the current op */
  int end_sum;     /* tensor that is summed over chips in the end section, or RF_NONE */
} rf_sharder;

typedef struct rf_exchange {
  const rf_op_def *def;
  int from, to_id; /* tensors; to_id RF_WANTED: a new tensor */
  rf_axes axes;
  int dim, to;
  uint8_t form;
  int64_t whole;
  /* For an all_reduce with copies.chips > 1: sums only the columns from copies.own on. */
  rf_copies copies;
  rf_accumulate accumulate;
  float fill;   /* for an all_to_all to experts: fraction of the rows that have data */
  rf_spec spec; /* sharding of the result */
  const char *label;
  rf_class class;
} rf_exchange;

bool rf_spec_same(const rf_spec *a, const rf_spec *b);
rf_axes rf_spec_splits(const rf_spec *spec);

/* Path, section and direction of the ops that replace one op of the unsharded graph. */
typedef struct rf_origin {
  const char *path;
  rf_section section;
  bool backward;
} rf_origin;
static inline rf_origin rf_origin_of(const rf_op *op) {
  return (rf_origin){op->name, op->section, op->backward};
}

/* shard_exchange.c */
/* Emits one collective. Returns the id of the collective's result, or RF_NONE after an error. */
int rf_sharder_exchange(rf_sharder *s, const rf_exchange *x, rf_origin origin);
/* Changes the sharding of tensor `id` from `have` to `need`, by one or more collectives. `whole`
 * has the extents without padding, if they are known. Otherwise it is NULL. */
int rf_sharder_convert(rf_sharder *s, int id, rf_spec have, rf_spec need, rf_origin origin, const char *label,
                       const int64_t *whole, rf_class class);
/* Sets *id to the tensor that `op` reads in input `slot`, with the sharding `need`. */
rf_status rf_sharder_obtain(rf_sharder *s, const rf_op *op, int slot, const rf_spec *need, int *id);
int rf_sharder_copy_of(const rf_sharder *s, int from, const rf_spec *need, int when);
void rf_sharder_keep(rf_sharder *s, int from, const rf_spec *need, int when, int id);
/* The first word of the text of a slot: "x (M,K)" gives "x". */
const char *rf_sharder_label(rf_sharder *s, const char *slot);

/* shard.c */
/* Creates one chip's part of tensor t of the unsharded graph, and returns the id of the part. */
int rf_sharder_tensor(rf_sharder *s, int t, const rf_spec *spec);
/* The sharding of tensor t when ops read the tensor (for a weight, rf_param_specs.use). */
rf_spec rf_sharder_input(const rf_sharder *s, int t);
/* Runs the sharding rule of `def` for `op`, and converts the op's inputs to the sharding that the
 * rule needs. */
rf_status rf_sharder_ask(rf_sharder *s, const rf_op *op, const rf_op_def *def, rf_sharding *r, int *inputs);
/* Emits an op of type `def` in place of op `like`. Returns the id of the new op, or RF_NONE after
 * an error. */
int rf_sharder_emit(rf_sharder *s, const rf_op *like, const rf_op_def *def, const char *name, rf_slots inputs,
                    rf_slots outputs, const rf_attr *attr);

/* shard_gradient.c */
bool rf_is_gradient(const rf_tensor *tensor);
void rf_sharder_find_gradients(rf_sharder *s);
/* Creates a master for each f32 weight that every chip stores in full. The master is the part that
 * this chip updates. */
void rf_sharder_make_masters(rf_sharder *s);
/* Returns the tensor into which an op writes gradient t. *how says if the op adds to the tensor. */
int rf_sharder_gradient(rf_sharder *s, int t, rf_accumulate *how);
/* Must be called after the last op that writes gradient t in a microbatch. */
rf_status rf_sharder_written(rf_sharder *s, const rf_op *op, int t);
/* Completes a gradient's sum over chips. */
rf_status rf_sharder_settle(rf_sharder *s, const rf_op *op, int t);

#endif
