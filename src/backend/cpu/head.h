/* head.h - operations on one row of f32 logits, which the output head runs between its products.
 * head_rows.h defines these operations once per ISA. */
#ifndef RF_HEAD_H
#define RF_HEAD_H

#include "backend/cpu/gemm.h"

enum { RF_LABEL_NONE = -1, RF_LABEL_ELSEWHERE = -2 };

typedef struct rf_head_isa {
  const rf_gemm_isa *gemm;
  /* Returns log(sum exp z). Adds exp(z - max) to 16 partial sums (lane = index mod 16). Then adds
   * the partial sums as rf_v16_fold_sum does. Sets *best to the smallest index of the maximum. */
  float (*lse)(const float *z, int64_t vocab, int32_t *best);
  /* Returns the sum of exp(z - max), added in the same order as in `lse`. Sets *best as `lse` does,
   * and *most to the maximum. */
  float (*sum)(const float *z, int64_t vocab, int32_t *best, float *most);
  /* z = (exp(z - lse) - [v == label]) scale, times 1 - (z/cap)^2 if cap > 0; 0 if label is
   * RF_LABEL_NONE. RF_LABEL_ELSEWHERE is the label of a token that another chip has. */
  void (*gradient)(float *z, int64_t vocab, int32_t label, float lse, float scale, float cap);
  /* replaces z by n bf16 values, which begin at the same address; rounds to nearest even */
  void (*narrow)(float *z, int64_t n);
  void (*cap)(float *z, int64_t vocab, float cap);            /* replaces z by cap tanh(z / cap) */
  void (*divide)(float *z, int64_t vocab, float temperature); /* replaces z by z / temperature */
  /* Finds the `most` (<= vocab) largest entries, in descending order. Equal entries are in
   * ascending order of index. */
  void (*top)(const float *z, int64_t vocab, int most, int32_t *ids, float *values);
} rf_head_isa;

extern const rf_head_isa RF_HEAD_BASE, RF_HEAD_AVX2, RF_HEAD_AVXVNNI, RF_HEAD_AVX512, RF_HEAD_AVX512BF16,
    RF_HEAD_AMX;

#endif
