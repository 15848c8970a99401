/* sampler_rows.h - weights and maxima of a row of logits, with the vectors of each instruction set.
 * The sampler divides a row into blocks. The order of additions is fixed, so every instruction set
 * gives the same bits. */
#ifndef RF_SAMPLER_ROWS_H
#define RF_SAMPLER_ROWS_H

#include "generate/sampler.h"

enum { RF_ROW_BLOCK = 32 }; /* logits per block */
#define RF_ROW_ERROR 0x1p-15

/* A row of logits and its softmax. Logit l has the weight 2^((l - top) * scale), at most 1. */
typedef struct rf_row {
  const float *logits; /* (n) */
  int64_t n;
  double top, scale;
} rf_row;

static inline int64_t rf_row_blocks(int64_t n) { return (n + RF_ROW_BLOCK - 1) / RF_ROW_BLOCK; }

typedef struct rf_row_functions {
  /* Sets weight[b] to the total weight of block b. A block has four partial sums: element i is
   * added to sum i modulo 4. They are added as (0 + 2) + (1 + 3). Returns the sum of all blocks, in
   * order. */
  double (*weigh)(const rf_row *row, double *weight);
  /* Sets t[i] to (logit i - top) * scale, and w[i] to the weight of logit i, for one block. Missing
   * logits are -INFINITY. */
  void (*weights)(const rf_row *row, int64_t block, double t[RF_ROW_BLOCK], double w[RF_ROW_BLOCK]);
  /* Sets peak[b] to the maximum of block b and the number b, ignoring NaN. */
  void (*peaks)(const float *logits, int64_t n, struct rf_candidate *peak);
  /* Does the same as weigh, but estimates the weight of a block if the exponent of its maximum is
   * below `from`. The relative error of an estimate is below RF_ROW_ERROR (plus 2^-121, for tiny
   * weights). Different levels give different estimates. Returns the sum of the estimates. `exact`
   * is scratch memory for the blocks. Every logit is a number or -INFINITY. */
  double (*guess)(const rf_row *row, const struct rf_candidate *peak, double from, double *weight,
                  struct rf_candidate *exact);
} rf_row_functions;

/* Returns the functions of the highest available level that is at most `isa`. */
const rf_row_functions *rf_row_functions_of(rf_isa isa);
/* Returns the weight of one logit, with the same bits as rf_row_functions. */
double rf_row_weight(const rf_row *row, float logit);

#endif
