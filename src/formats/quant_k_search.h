/* quant_k_search.h - the search for the integers of K types: scales, offsets and levels of
 * super-blocks. quant_k_search.c explains the search. */
#ifndef RF_QUANT_K_SEARCH_H
#define RF_QUANT_K_SEARCH_H

#include "formats/quant_blocks.h"

/* Number of sub-blocks in a batch, one per lane: a batch is one super-block of 16 sub-blocks, or
 * two super-blocks of 8. */
enum { RF_K_LANES = 16, RF_K_ROUNDS = 3, RF_K_SUB_MAX = 32 /* values of a sub-block */ };

/* Constants of a type. */
typedef struct rf_k_shape {
  bool offsets;
  int subs;             /* number of sub-blocks: 8 or 16 */
  int levels;           /* with offsets: q = 0..levels; without offsets: q = -levels..levels-1 */
  int minimum, maximum; /* bounds of the integer scale of a sub-block */
  int tries;            /* number of scales that the search tries on each side of the full-range scale */
  float step;           /* distance between two tried scales, in levels */
} rf_k_shape;

enum { RF_K_TYPES = 5 };
extern const rf_k_shape RF_K_SHAPES[RF_K_TYPES]; /* q2_k to q6_k */

/* A super-block before packing. q is never negative, even for types without offsets. */
typedef struct rf_k_super {
  float d, dmin;
  int scale[RF_K_LANES], offset[RF_K_LANES];
  uint8_t q[RF_K_VALUES];
} rf_k_super;

/* Searches a batch. x and `out` have 16 / shape->subs super-blocks. */
typedef void rf_k_search(const rf_k_shape *shape, const float *x, rf_k_super *out);
rf_k_search rf_k_search_base, rf_k_search_avx2, rf_k_search_avx512;

/* Returns a search for this CPU. Level 0 is the base, and higher levels have wider vectors. NULL:
 * this CPU has no search of this level. All searches give the same bits. */
rf_k_search *rf_k_search_of(int level);

#endif
