/* kept.h - what XLA keeps and materialises of an op when a JAX program computes it. Sources: the
 * residuals that cross a scan are those of jax 0.10.2's own jaxpr (of a gradient of a scan over
 * the op), checked in the scheduled HLO of libtpu 0.0.51. What one program keeps, and what it
 * works in, was read from that HLO. */
#ifndef RF_GRAPH_OPS_KEPT_H
#define RF_GRAPH_OPS_KEPT_H

#include <stdbool.h>
#include <stdint.h>

/* Extents of an array. */
typedef enum rf_kept_extent {
  RF_EXTENT_INPUT,  /* as the op's first input */
  RF_EXTENT_SECOND, /* as its second */
  RF_EXTENT_OUTPUT, /* as its first output */
  RF_EXTENT_ROW,    /* one number a row */
  RF_EXTENT_SCORES, /* one for each head, query and key */
  RF_EXTENT_LOGITS, /* one for each row and vocabulary entry */
  RF_EXTENT_HALF,   /* as the first input, half as wide: gate and up are two arrays there */
} rf_kept_extent;

enum { RF_KEPT_AS_PRODUCT = -1 };
typedef struct rf_kept_part {
  int8_t count;
  int8_t bits; /* of an element; 0: as the activations, RF_KEPT_AS_PRODUCT: as products read it */
  rf_kept_extent extent;
} rf_kept_part;

/* RF_KEPT_F32(2, ROW): two f32 arrays of one number a row */
#define RF_KEPT(count, bits, extent) \
  { count, bits, RF_EXTENT_##extent }
#define RF_KEPT_SAME(count, extent) RF_KEPT(count, 0, extent)
#define RF_KEPT_PRODUCT(count, extent) RF_KEPT(count, RF_KEPT_AS_PRODUCT, extent)
#define RF_KEPT_F32(count, extent) RF_KEPT(count, 32, extent)
#define RF_KEPT_PRED(count, extent) RF_KEPT(count, 8, extent)

enum { RF_RULE_PARTS = 3 };
typedef struct rf_kept_rule {
  /* Elementwise: its output is computed again wherever it is read, and never stored. */
  bool fuses;
  /* Whether the vjp reads the op's first input: where a loop separates forward and backward pass
   * (then in the dtype of products), and where one program holds both. */
  bool input_across_loop, input;
  bool for_matrix;     /* it reads that input for the gradient of its matrix alone */
  bool joins_residual; /* a sum of the residual stream */
  /* what else crosses the loop: every residual of the vjp as jax.linearize writes it */
  rf_kept_part across_loop[RF_RULE_PARTS];
  /* what else is kept where XLA may compute elementwise values again */
  rf_kept_part kept[RF_RULE_PARTS];
  /* the same inside a part that is computed again just before its backward pass */
  rf_kept_part again[RF_RULE_PARTS];
  rf_kept_part forward[RF_RULE_PARTS]; /* what the op itself works in */
  /* what its vjp works in, next to the gradients of its output and input */
  rf_kept_part backward[RF_RULE_PARTS];
  /* how often XLA moves each attention score between kernels: in f32, and as the activations */
  int8_t score_moves_f32, score_moves;
} rf_kept_rule;

/* RF_KEEPS(.fuses = true): a rule, for the row of an op */
#define RF_KEEPS(...) (&(const rf_kept_rule){__VA_ARGS__})

#endif
