/* remat.h - the activations of a block by the names that remat policies and the literature have for them. */
#ifndef RF_GRAPH_REMAT_H
#define RF_GRAPH_REMAT_H

#include "graph/graph.h"

enum { RF_SAVED_NAMES = 16, RF_SAVED_CHAINS = 3, RF_SAVED_LINKS = 6 };

typedef struct rf_saved {
  const char *name;
  int8_t width, ff, heads, kv; /* elements a token: width x width + ff x ff + heads x (heads x head_dim) + kv x (kv_heads x head_dim) */
  const char *within;          /* graphs have it only as a part of this one; NULL: as its own tensor */
  /* Tensors of a block in the order in which they are made out of each other: the first that backward reads stands for the name, since what comes
   * behind it is made from it without the product. Several chains: the name is for several tensors. */
  const char *chain[RF_SAVED_CHAINS][RF_SAVED_LINKS];
} rf_saved;
extern const rf_saved RF_SAVED[RF_SAVED_NAMES];

/* The row of the first `length` letters of `text`, or RF_NONE. */
int rf_saved_find(const char *text, size_t length);
/* "x, qkv, context, ...", for messages; `parts`: also those that graphs have within others. */
void rf_saved_list(bool parts, char text[160]);
/* Whether a policy keeps this name. */
static inline bool rf_remat_saves(rf_remat remat, int name) { return remat >= RF_REMAT_SAVE && remat >> name & 1; }
/* Walks tensors of blocks: whether the policy names this one and no other link of its chain was met in the block before. */
typedef struct rf_saved_seen {
  long block[RF_SAVED_NAMES][RF_SAVED_CHAINS]; /* of the last link that was met */
} rf_saved_seen;
void rf_saved_begin(rf_saved_seen *seen);
bool rf_saved_names(rf_remat policy, const char *path, long block, rf_saved_seen *seen);

/* What remat.c and its policies ask of ops and tensors. */
static inline bool rf_remat_forward(const rf_op *op) { return op->section == RF_SECTION_MICRO && !op->backward && op->recompute_of == RF_NONE; }
static inline bool rf_remat_outside(const rf_tensor *tensor) { return tensor->persistent || tensor->input || tensor->output; }

#endif
