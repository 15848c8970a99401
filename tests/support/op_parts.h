/* op_parts.h - code that the files of cases share: inputs of each kind, attributes by the
 * variations of a case, and the cases of attention. */
#ifndef RF_TESTS_OP_PARTS_H
#define RF_TESTS_OP_PARTS_H

#include "support/op_cases.h"

int case_activation(op_harness *h, const char *name, double scale, int64_t rows, int64_t columns);
int case_weight(op_harness *h, const char *name, double scale, int64_t rows, int64_t columns);
int case_vector(op_harness *h, const char *name, op_fill fill, int64_t count);
/* A gradient that already holds values. A kernel that writes must not read it; a kernel that adds
 * must. */
int case_gradient(op_harness *h, const char *name, int rank, const int64_t *shape);
/* Adds a linear weight (K,N), or (N,K) if it is stored as (out, in). */
int case_linear(op_harness *h, const op_case *of, double scale, int64_t inner, int64_t columns);
int case_linear_gradient(op_harness *h, const op_case *of, int64_t inner, int64_t columns);
uint32_t case_draw(uint64_t site, int64_t i);
/* Makes `count` ids below `limit` with repeats; every third is -1 if `ignored`. */
int case_some_ids(op_harness *h, const char *name, int64_t count, int64_t limit, bool ignored);
/* Makes segment starts: one segment with all rows, or a few of uneven lengths (the first has a
 * single row). Positions restart in each segment. */
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
void build_attention_latent_rows(op_harness *h, const op_case *of, const op_size *size);
void build_attention_latent_kv(op_harness *h, const op_case *of, const op_size *size);

/* ---- op_losses.c ---- */

void build_policy_loss(op_harness *h, const op_case *of, const op_size *size);
void build_pair_loss(op_harness *h, const op_case *of, const op_size *size);

#endif
