/* roofline.h - one op against one machine: the question behind every plan, asked alone. FLOPs and bytes are those of the op table. */
#ifndef RF_ROOFLINE_H
#define RF_ROOFLINE_H

#include "plan/plan.h"

typedef struct rf_roofline {
  double flops, flops_full;                        /* causal where the op is; the whole square */
  double bytes;                                    /* each operand once */
  double intensity;                                /* flops / bytes */
  double compute_seconds, memory_seconds, seconds; /* at the machine's ceilings; seconds: the larger */
  rf_bound bound;
  double critical_intensity; /* peak flops / bandwidth: compute-bound above it */
  double critical_m;         /* matmul: rows from which it is compute-bound (formulas: M K N b_w / W / (2KN/C - b_a (K+N)/W)); infinity: never */
} rf_roofline;

/* [M,K] x [K,N] in `dtype`, the weight in `weight_dtype`, on one chip. RAFTER_INVALID: a dimension below 1, or the machine has no peak for dtype. */
rf_status rf_roofline_matmul(const rf_machine *machine, int64_t m, int64_t k, int64_t n, rf_dtype dtype, rf_dtype weight_dtype, rf_roofline *out,
                             rf_error *error);
/* Causal self-attention of `batch` sequences of `seq` tokens. */
rf_status rf_roofline_attention(const rf_machine *machine, int64_t batch, int64_t seq, int heads, int kv_heads, int head_dim, int window,
                                rf_dtype dtype, rf_roofline *out, rf_error *error);

#endif
