/* program_rules.h - what XLA keeps and materialises of an op of our graph when a JAX program
 * computes it. */
#ifndef RF_PROGRAM_RULES_H
#define RF_PROGRAM_RULES_H

#include "graph/graph.h"

/* Extents of an array that a rule asks for. */
typedef enum rf_kept_extent {
  RF_EXTENT_INPUT,  /* as the op's first input */
  RF_EXTENT_SECOND, /* as its second */
  RF_EXTENT_OUTPUT, /* as its first output */
  RF_EXTENT_ROW,    /* one number a row */
  RF_EXTENT_SCORES, /* one for each head, query and key */
  RF_EXTENT_LOGITS, /* one for each row and word */
  RF_EXTENT_HALF,   /* as the first input, half as wide: gate and up are two arrays there */
} rf_kept_extent;

enum { RF_PRODUCT = -1 };
typedef struct rf_kept_part {
  int8_t count;
  int8_t bits; /* of an element; 0: as the activations, RF_PRODUCT: as what multiplies takes it */
  rf_kept_extent extent;
} rf_kept_part;

enum { RF_RULE_PARTS = 3 };
typedef struct rf_kept_rule {
  const char *op;
  /* Elementwise: its output is computed again wherever it is read, and never stored. */
  bool fuses;
  /* Whether the vjp reads the op's first input. Where a loop separates forward and backward pass
   * (there in the dtype of products), and where one program holds both. */
  bool input_across_loop, input;
  /* what else crosses the loop: every residual of the vjp as jax.linearize writes it */
  rf_kept_part across_loop[RF_RULE_PARTS];
  /* what else is kept where XLA may compute elementwise values again */
  rf_kept_part kept[RF_RULE_PARTS];
  /* the same inside a part that is computed again just before its backward pass */
  rf_kept_part again[RF_RULE_PARTS];
  rf_kept_part forward[RF_RULE_PARTS]; /* what the op itself works in */
  /* what its vjp works in, beside the gradients of its output and input */
  rf_kept_part backward[RF_RULE_PARTS];
} rf_kept_rule;

/* The rule of an op; one for elementwise ops that keep their input where it has none of its own. */
const rf_kept_rule *rf_kept_rule_of(const char *op);

#endif
