/* shard_pass.h - what the files of the shard pass share: the program being made, where each
 * tensor of the whole one lies in it, and how a tensor is brought from how it lies to how it is
 * needed. Private to src/graph. */
#ifndef RF_GRAPH_SHARD_PASS_H
#define RF_GRAPH_SHARD_PASS_H

#include "graph/mesh/shard.h"

/* One gathered copy serves all readers of each; what was exchanged for as many bytes serves both
 * directions. */
typedef enum rf_when { RF_WHEN_FORWARD, RF_WHEN_BACKWARD, RF_WHEN_HEAD, RF_WHEN_ALWAYS } rf_when;

typedef struct rf_place {
  int id; /* on the chip; RF_NONE: not made yet */
  rf_spec spec;
} rf_place;

typedef struct rf_copied {
  int from, id, when;
  rf_spec spec;
  int next; /* other copies of the same tensor */
} rf_copied;

/* A parameter's gradient on its way: `whole` is this chip's share of the sum in the parameter's
 * shape, where only a run of it is kept. */
typedef struct rf_on_its_way {
  int tensor, last_writer, whole;
  rf_axes partial;
  bool settled;
} rf_on_its_way;

typedef struct rf_sharder {
  rf_graph *graph; /* being made */
  rf_graph whole;  /* as it was */
  const rf_mesh *mesh;
  rf_error *error;
  bool text;               /* rows of a microbatch; elsewhere each chip of a tensor group walks all rows */
  rf_axes rows;            /* that cut the rows of a microbatch */
  rf_place *at;            /* by whole tensor */
  rf_on_its_way *gradient; /* by parameter */
  int *master;             /* by parameter: the optimizer's run of an f32 weight that every chip has whole */
  rf_param_specs *specs;
  rf_copied *copy;
  int *head, copies, copy_capacity, head_capacity;
  int *early_op, *early_at, early_count, early_capacity; /* gathers, and the ops they go before */
  int unit, unit_at, unit_before;
  /* of a pipeline: the half whose ops are made, and where it begins. Nothing moves out of a half */
  int half, half_at;
  int when;                    /* of the op in hand */
  int *metrics, metrics_whole; /* sums over microbatches that wait for the end section */
} rf_sharder;

typedef struct rf_exchange {
  const rf_op_def *def;
  int from, to_id; /* RF_WANTED: a new tensor */
  rf_axes axes;
  int dim, to;
  uint8_t form;
  int64_t whole;
  /* all_reduce: of the last columns alone, over those of the group that have the same ones;
   * chips 0: not so */
  rf_copies copies;
  rf_accumulate accumulate;
  float fill;   /* all_to_all of rows to experts: how much of them there is */
  rf_spec spec; /* of the result */
  const char *label;
  rf_class class;
} rf_exchange;

bool rf_spec_same(const rf_spec *a, const rf_spec *b);
rf_axes rf_spec_splits(const rf_spec *spec);

/* shard_exchange.c */
/* The result of one collective; RF_NONE with the error filled. */
int rf_sharder_exchange(rf_sharder *s, const rf_exchange *x, const char *path, rf_section section,
                        bool backward);
/* Brings tensor `id` from how it lies to how it is needed, one exchange after the other.
 * `whole`: extents without padding, where they are known. */
int rf_sharder_convert(rf_sharder *s, int id, rf_spec have, rf_spec need, const char *path, const char *label,
                       rf_section section, bool backward, const int64_t *whole, rf_class class);
/* The id under which `op` reads whole tensor t as it needs it. */
rf_status rf_sharder_obtain(rf_sharder *s, const rf_op *op, int slot, const rf_spec *need, int *id);
int rf_sharder_copy_of(const rf_sharder *s, int from, const rf_spec *need, int when);
void rf_sharder_keep(rf_sharder *s, int from, const rf_spec *need, int when, int id);
/* The first word of a slot's text: "x (M,K)" -> "x". */
const char *rf_sharder_label(rf_sharder *s, const char *slot);

/* shard.c */
/* One chip's part of whole tensor t. */
int rf_sharder_tensor(rf_sharder *s, int t, const rf_spec *spec);
/* How whole tensor t lies where an op asks for it: a weight as it is used. */
rf_spec rf_sharder_input(const rf_sharder *s, int t);

/* shard_gradient.c */
bool rf_is_gradient(const rf_tensor *tensor);
void rf_sharder_find_gradients(rf_sharder *s);
/* An f32 weight that every chip has whole is updated in runs: each chip's run is a state of its
 * own. */
void rf_sharder_make_masters(rf_sharder *s);
/* Where an op writes a parameter's gradient, and how. */
int rf_sharder_gradient(rf_sharder *s, int t, rf_accumulate *how);
/* Behind the last writer in a microbatch. */
rf_status rf_sharder_written(rf_sharder *s, const rf_op *op, int t);
rf_status rf_sharder_settle(rf_sharder *s, const rf_op *op, int t);
rf_status rf_sharder_adamw(rf_sharder *s, const rf_op *op);

/* shard_parts.c */
bool rf_sharder_cuts_words(const rf_sharder *s, const rf_op *op);
rf_status rf_sharder_head(rf_sharder *s, const rf_op *op);
bool rf_sharder_cuts_context(const rf_sharder *s, const rf_op *op);
rf_status rf_sharder_context(rf_sharder *s, const rf_op *op);

#endif
