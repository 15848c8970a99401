/* lora.h - the products of one part of a LoRA adapter with AVX-512. One dimension of each product
 * is the small rank, so packing would take most of the time. These kernels read large operands in
 * place. As in gemm.h, each element is one chain in ascending order of the summed index. */
#ifndef RF_CPU_LORA_H
#define RF_CPU_LORA_H

#include "base/base.h"

typedef struct rf_lora_part {
  rf_dtype dtype; /* dtype of u, y, dy and dh */
  int64_t rows, columns, rank;
  int64_t ld, ranks, joined; /* row strides: of u, y and dy; of h and dh; of b and db */
  int threads;
} rf_lora_part;

/* The operands of one part of y = round(u + round(h (scale b))). y may be u. */
typedef struct rf_lora_sum {
  rf_lora_part part;
  const void *u;
  const float *h, *b;
  void *y;
} rf_lora_sum;
/* Computes the sums of `count` parts of one layer. All parts have the same rows. */
void rf_lora_forward_avx512(const rf_lora_sum *sum, int count, float scale, int threads);
/* dh = round(dy b^T). b is [rank / 16][columns][16], padded with zeros. */
void rf_lora_backward_h_avx512(const rf_lora_part *part, const void *dy, const float *ranks16, void *dh);
/* db (+)= h^T dy */
void rf_lora_backward_b_avx512(const rf_lora_part *part, const void *dy, const float *h, float *db,
                               bool accumulate);

#endif
