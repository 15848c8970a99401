/* kept.h - what XLA allocates when a JAX program computes an op: the arrays that it stores for
 * backward, and its temporaries. For programs with lax.scan, the rules come from the jaxpr of the
 * scan's gradient (jax 0.10.2), which lists the residuals. The rules were checked against HLO that
 * libtpu 0.0.51 had scheduled. For programs without a scan, the rules come from HLO of the same
 * compiler. */
#ifndef RF_GRAPH_OPS_KEPT_H
#define RF_GRAPH_OPS_KEPT_H

#include <stdbool.h>
#include <stdint.h>

/* The shape of an array, in terms of the op's inputs and output. */
typedef enum rf_kept_extent {
  RF_EXTENT_INPUT,  /* shape of the op's first input */
  RF_EXTENT_SECOND, /* shape of the op's second input */
  RF_EXTENT_OUTPUT, /* shape of the op's first output */
  RF_EXTENT_ROW,    /* one number per row */
  RF_EXTENT_SCORES, /* one number for each head, query and key */
  RF_EXTENT_LOGITS, /* one number for each row and vocabulary entry */
  RF_EXTENT_HALF,   /* half of the width of the first input, because JAX has gate and up as two arrays */
} rf_kept_extent;

enum { RF_KEPT_AS_PRODUCT = -1 };
typedef struct rf_kept_part {
  int8_t count;
  /* Number of bits of an element. 0: as many as the activation dtype has. RF_KEPT_AS_PRODUCT: as
   * many as a product's operands have */
  int8_t bits;
  rf_kept_extent extent;
} rf_kept_part;

/* RF_KEPT_F32(2, ROW): two f32 arrays with one number per row */
#define RF_KEPT(count, bits, extent) \
  { count, bits, RF_EXTENT_##extent }
#define RF_KEPT_SAME(count, extent) RF_KEPT(count, 0, extent)
#define RF_KEPT_PRODUCT(count, extent) RF_KEPT(count, RF_KEPT_AS_PRODUCT, extent)
#define RF_KEPT_F32(count, extent) RF_KEPT(count, 32, extent)
#define RF_KEPT_PRED(count, extent) RF_KEPT(count, 8, extent)

enum { RF_RULE_PARTS = 3 };
typedef struct rf_kept_rule {
  bool fuses; /* The op is elementwise: XLA never stores the output, and recomputes it for every reader. */
  /* True if the backward op reads the first input of this op. */
  bool input_across_loop, /* a program with a loop over layers stores the input in the products' dtype */
      input;              /* program without a loop */
  bool for_matrix;        /* backward reads the input only to compute the gradient of the matrix */
  bool joins_residual;    /* true if the op adds its result to the residual stream */
  /* Other arrays that a program with a loop stores: the residuals that jax.linearize returns. */
  rf_kept_part across_loop[RF_RULE_PARTS];
  /* Other arrays that a program without a loop stores. In a program without a loop, XLA may
   * recompute elementwise values. */
  rf_kept_part kept[RF_RULE_PARTS];
  /* Other arrays that a recomputed part of the model stores between recomputation and backward. */
  rf_kept_part again[RF_RULE_PARTS];
  rf_kept_part forward[RF_RULE_PARTS]; /* temporaries of the forward op */
  /* Temporaries of the backward op, in addition to gradients of the op's output and input. */
  rf_kept_part backward[RF_RULE_PARTS];
  /* Arrays of the output's size with constants of the random-number generator. If the op is
   * recomputed, and so stores no mask, XLA writes them before the forward op of an f32 program on a
   * TPU. */
  int8_t drawn;
  int8_t score_moves_f32, /* number of times that XLA writes or reads an attention score in f32 */
      /* number of times that XLA writes or reads an attention score in the activation dtype */
      score_moves;
} rf_kept_rule;

/* A rule of an op's definition, as in RF_KEEPS(.fuses = true). */
#define RF_KEEPS(...) (&(const rf_kept_rule){__VA_ARGS__})

#endif
