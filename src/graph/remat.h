/* remat.h - the activations of a block by the names that remat policies and the literature have
 * for them. */
#ifndef RF_GRAPH_REMAT_H
#define RF_GRAPH_REMAT_H

#include "graph/graph.h"
#include "graph/ops/ops.h"

typedef enum rf_saved_name {
  RF_SAVED_X,
  RF_SAVED_Q,
  RF_SAVED_K,
  RF_SAVED_V,
  RF_SAVED_QKV,
  RF_SAVED_CONTEXT,
  RF_SAVED_OUT,
  RF_SAVED_GATE,
  RF_SAVED_UP,
  RF_SAVED_MLPWI,
  RF_SAVED_MLPACT,
  RF_SAVED_MLPWO,
  RF_SAVED_DOWN,
  RF_SAVED_NORM,
  RF_SAVED_NORM1,
  RF_SAVED_NORM2,
  RF_SAVED_NAMES
} rf_saved_name;

/* A name is for up to three chains of tensors of a block. Those of a chain are made out of each
 * other: the first that backward reads is kept, and the later ones follow without the product. */
enum { RF_SAVED_CHAINS = 3 };
#define RF_SAVED_AS(name, chain) ((int8_t)(1 + (name)*RF_SAVED_CHAINS + (chain)))

typedef struct rf_saved {
  const char *name;
  /* elements a token: width x width + ff x ff + heads x (heads x head_dim) + kv x (kv_heads x
   * head_dim) */
  int8_t width, ff, heads, kv;
  const char *within; /* graphs have it only as a part of this one; NULL: as its own tensor */
} rf_saved;
extern const rf_saved RF_SAVED[RF_SAVED_NAMES];

/* The row of the first `length` letters of `text`, or RF_NONE. */
int rf_saved_find(const char *text, size_t length);
/* "x, qkv, context, ...", for messages; `parts`: also those that graphs have within others. */
void rf_saved_list(bool parts, char text[160]);
/* Whether a policy keeps this name. */
static inline bool rf_remat_saves(rf_remat remat, int name) {
  return remat >= RF_REMAT_SAVE && remat >> name & 1;
}
/* For tensors of blocks, in order: whether the policy names this one, and no other of its chain
 * was met in the block before. */
typedef struct rf_saved_seen {
  int32_t layer[1 + RF_SAVED_NAMES * RF_SAVED_CHAINS]; /* of the last that was met */
} rf_saved_seen;
void rf_saved_begin(rf_saved_seen *seen);
bool rf_saved_first(rf_remat policy, const rf_tensor *tensor, int32_t layer, rf_saved_seen *seen);

/* ---- what comes of a set --------------------------------------------------------------------- */

/* One op of the graph with recomputation: `op` of the graph as it came, or the same `again`. Ids
 * from the graph's tensor_count on are second copies. */
typedef struct rf_remat_step {
  int op;
  bool again, gelu; /* gelu: of a fused pair only that, from its kept u */
  const rf_op_def *def;
  int8_t inputs, outputs;
  const int *input, *output;
} rf_remat_step;

typedef struct rf_recompute {
  const rf_graph *graph;
  int tensors, ops; /* of the graph as it came */
  /* The same for every set. By tensor: the forward op that makes it, or RF_NONE; of one gathered
   * in forward the op of backward that gathers the same, or RF_NONE; who reads it. */
  int *source, *twin;
  bool *forward_read, *backward_read;
  /* Of the set decided last: its steps in their order, and what tensor the i-th second copy is
   * of. */
  rf_remat_step *step;
  int steps, *copied, copies;
  bool *kept;   /* by tensor: read by backward and not dropped: there when backward starts */
  bool *remake; /* to be made again, because it is dropped or because a dropped one is made from it */
  int *remade;  /* its second copy, once made */
  int *instead; /* what is read in its place since its op was left out, or RF_NONE */
  bool *passed; /* by op: it is a step already */
  int *slot, slots;
} rf_recompute;

/* Lives in `pool` and reads the graph. */
rf_recompute *rf_recompute_open(const rf_graph *graph, rf_pool *pool);
/* The steps of a graph that drops these tensors (tensor_count entries): what rf_pass_remat
 * writes. */
void rf_recompute_decide(rf_recompute *recompute, const bool *drop);
/* The op of a step, with the tensors of the graph as it came in place of their copies, whose
 * shapes are the same. */
rf_op rf_recompute_op(const rf_recompute *recompute, const rf_remat_step *step);

/* What remat.c and its policies ask of ops and tensors. */
/* An update in the walk of a microbatch stands behind its gradient. */
static inline bool rf_remat_forward(const rf_op *op) {
  return op->section == RF_SECTION_MICRO && !op->backward && op->recompute_of == RF_NONE &&
         op->def != &RF_OP_ADAMW;
}
static inline bool rf_remat_outside(const rf_tensor *tensor) {
  return tensor->persistent || tensor->input || tensor->output;
}

#endif
