/* lora.h - the products of one part of an adapter. One side of each is the rank, so short that a
 * product which packs its operands spends its time on packing; these read what is large as it
 * lies. The bits are those of gemm.h: one chain an element, in ascending order of what is
 * summed. */
#ifndef RF_CPU_LORA_H
#define RF_CPU_LORA_H

#include "base/base.h"

typedef struct rf_lora_part {
  rf_dtype dtype; /* of u, y, dy, dh */
  int64_t rows, columns, rank;
  int64_t ld, ranks, joined; /* row strides of u, y and dy, of h and dh, of b and db */
  int threads;
} rf_lora_part;

/* y = round(u + round(h b)); y may be u. */
void rf_lora_forward_avx512(const rf_lora_part *part, const void *u, const float *h, const float *b, void *y);
/* dh = round(dy b^T), b as sixteen ranks side by side: [rank / 16][columns][16], zeros behind
 * the last. */
void rf_lora_backward_h_avx512(const rf_lora_part *part, const void *dy, const float *turned, void *dh);
/* db (+)= h^T dy */
void rf_lora_backward_b_avx512(const rf_lora_part *part, const void *dy, const float *h, float *db,
                               bool accumulate);

#endif
