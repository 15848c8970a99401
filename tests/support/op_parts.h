/* op_parts.h - what the files of the cases share: inputs of a kind, attributes by a case's
 * variations, and the cases of attention. */
#ifndef RF_TESTS_OP_PARTS_H
#define RF_TESTS_OP_PARTS_H

#include "support/op_cases.h"

int case_activation(op_harness *h, const char *name, double scale, int64_t rows, int64_t columns);
int case_weight(op_harness *h, const char *name, double scale, int64_t rows, int64_t columns);
int case_vector(op_harness *h, const char *name, op_fill fill, int64_t count);
/* A gradient that already holds something: a kernel that writes must not read it, one that adds
 * must. */
int case_gradient(op_harness *h, const char *name, int rank, const int64_t *shape);
/* A linear weight (K,N), or (N,K) when stored (out, in). */
int case_linear(op_harness *h, const op_case *of, double scale, int64_t inner, int64_t columns);
int case_linear_gradient(op_harness *h, const op_case *of, int64_t inner, int64_t columns);
uint32_t case_draw(uint64_t site, int64_t i);
/* `count` ids below `limit` with repeats; every third is -1 when `ignored`. */
int case_some_ids(op_harness *h, const char *name, int64_t count, int64_t limit, bool ignored);
/* Segment starts: all rows in one segment, or a few uneven ones (the first of a single row).
 * Positions restart in each. */
int case_segments(op_harness *h, const op_case *of, int64_t rows, int *positions);
rf_accumulate case_accumulation(op_harness *h, unsigned flags);
rf_attr case_attributes(op_harness *h, const op_case *of);
rf_rope case_rotation(const op_case *of, const op_size *size);
rf_attr case_attention_attributes(op_harness *h, const op_case *of, const op_size *size);

/* ---- op_attention.c ---- */

void build_attention(op_harness *h, const op_case *of, const op_size *size);
void build_attention_bwd(op_harness *h, const op_case *of, const op_size *size);
void build_attention_merge(op_harness *h, const op_case *of, const op_size *size);
void build_attention_part(op_harness *h, const op_case *of, const op_size *size);
void build_attention_kv(op_harness *h, const op_case *of, const op_size *size);
void build_latent_norm(op_harness *h, const op_case *of, const op_size *size);
void build_latent_norm_bwd(op_harness *h, const op_case *of, const op_size *size);
void build_attention_latent(op_harness *h, const op_case *of, const op_size *size);
void build_attention_latent_bwd(op_harness *h, const op_case *of, const op_size *size);
void build_attention_latent_kv(op_harness *h, const op_case *of, const op_size *size);

#endif
