/* emit_cached.h - attention over the pages of a KV cache, which attention_kv and
 * attention_latent_kv share. See emit_cached.c. */
#ifndef RF_XLA_EMIT_CACHED_H
#define RF_XLA_EMIT_CACHED_H

#include "backend/xla/emit.h"

/* Letters of shapes: n rows, P pages of G positions, K key heads, g query heads per key head, D
 * columns of a key, W columns of a value. */
typedef struct rf_pages {
  const rf_op *op;
  rf_val cache, scale;          /* (P,parts,G,columns) and, for i8, (P,2,G,K) */
  int table, slots, positions;  /* slots of inputs: i32 (S,C), (n), (n) */
  int64_t kv_heads, key, value; /* K, D, W */
  rf_hlo_type type;             /* type of the stored numbers; RF_HLO_I8: the stored numbers are codes */
  bool split; /* true: q is f32 and the cache bf16, so products use q as a sum of two bf16 numbers */
} rf_pages;

/* Writes rows (n, parts, columns) of the cache's type, and their scales (n,2,K) if any, to the
 * positions of the rows. */
void rf_pages_write(rf_emit *e, rf_pages *p, rf_val rows, rf_val scales);
/* q (n,K,g,D) -> ctx f32 (n, K*g*W), lse f32 (n, K*g). If the cache has one part, the first columns
 * of a key are also its value. */
void rf_pages_attend(rf_emit *e, const rf_pages *p, rf_val q, rf_val *ctx, rf_val *lse);

#endif
