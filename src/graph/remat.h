/* remat.h - names of a block's activations, and recomputation of dropped activations. Remat
 * policies and the literature use the same names. */
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

/* A name covers up to three chains of tensors in a block. Each tensor of a chain is computed from
 * the previous tensor without a matrix product. So a policy stores only one tensor of each chain:
 * the first tensor that the backward pass reads. */
enum { RF_SAVED_CHAINS = 3 };
#define RF_SAVED_AS(name, chain) ((int8_t)(1 + (name)*RF_SAVED_CHAINS + (chain)))

typedef struct rf_saved {
  const char *name;
  /* Number of elements per token: `width * D + ff * F + (heads * N + kv * K) * H`, with D model
   * width, F feed-forward width, N query heads, K key heads and H columns per head. */
  int8_t width, ff, heads, kv;
  /* name of the tensor that contains this one, as qkv contains q; NULL: no tensor contains it */
  const char *within;
} rf_saved;
extern const rf_saved RF_SAVED[RF_SAVED_NAMES];

/* Index in RF_SAVED of a name, or RF_NONE. The name is the first `length` letters of `text`. */
int rf_saved_find(const char *text, size_t length);
/* Writes a list of names for messages: "x, qkv, context, ...". If `parts` is true, the list also
 * has the names of parts of tensors, such as q. */
void rf_saved_list(bool parts, char text[160]);
static inline bool rf_remat_saves(rf_remat remat, int name) {
  return remat >= RF_REMAT_SAVE && remat >> name & 1;
}
/* State of a loop over tensors in order. rf_saved_first returns true if the policy names `tensor`,
 * and `tensor` is the first of its chain in the layer. */
typedef struct rf_saved_seen {
  /* layer of the last tensor that was seen, for each name and chain */
  int32_t layer[1 + RF_SAVED_NAMES * RF_SAVED_CHAINS];
} rf_saved_seen;
void rf_saved_begin(rf_saved_seen *seen);
bool rf_saved_first(rf_remat policy, const rf_tensor *tensor, int32_t layer, rf_saved_seen *seen);

/* ---- recomputation of a set of dropped tensors ----------------------------------------------- */

/* One op of a graph with recomputation. The op is number `op` of the original graph or, if `again`
 * is true, the recomputation of that op. Ids of recomputed copies begin at the tensor_count of the
 * original graph. */
typedef struct rf_remat_step {
  int op;
  bool again, /* the op is recomputed */
      gelu;   /* only the GELU of a fused product is recomputed, from its stored input u */
  const rf_op_def *def;
  int8_t inputs, outputs;
  const int *input, *output;
} rf_remat_step;

typedef struct rf_recompute {
  const rf_graph *graph;
  int tensors, ops; /* of the original graph */
  int *source,      /* for each tensor: the forward op that makes the tensor, or RF_NONE */
      *twin;        /* for each tensor: the backward op that gathers the same weight again, or RF_NONE */
  bool *forward_read, *backward_read;
  /* Results of the last rf_recompute_decide. copied[i] is the original of recomputed copy i. */
  rf_remat_step *step;
  int steps, *copied, copies;
  bool *kept;   /* for each tensor: true if it is stored from forward until backward reads it */
  bool *remake; /* for each tensor: true if it is dropped, or is an input of a recomputed op */
  int *remade;  /* for each tensor: id of its recomputed copy, after the copy exists */
  /* for each tensor: the tensor that replaces it if its op is not recomputed, or RF_NONE */
  int *instead;
  bool *passed; /* for each op: true if the op was emitted */
  int *slot, slots;
} rf_recompute;

/* Allocates an rf_recompute in `pool`. The rf_recompute reads `graph`. */
rf_recompute *rf_recompute_open(const rf_graph *graph, rf_pool *pool);
/* Computes the steps that rf_pass_remat writes for `drop`, which has tensor_count entries. */
void rf_recompute_decide(rf_recompute *recompute, const bool *drop);
/* The op of a step. The inputs and outputs of the step are original tensors, also in place of
 * copies. */
rf_op rf_recompute_op(const rf_recompute *recompute, const rf_remat_step *step);

/* True for a forward op of a microbatch. False for an update of the optimizer. */
static inline bool rf_remat_forward(const rf_op *op) {
  return op->section == RF_SECTION_MICRO && !op->backward && op->recompute_of == RF_NONE &&
         op->def != &RF_OP_ADAMW;
}
static inline bool rf_remat_outside(const rf_tensor *tensor) {
  return tensor->persistent || tensor->input || tensor->output;
}

#endif
