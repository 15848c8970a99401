/* shelf.h - blocks that have their place, and the search for the best gap between those of a
 * block's lifetime: private to the layout. */
#ifndef RF_PLAN_SHELF_H
#define RF_PLAN_SHELF_H

#include "plan/parts.h"

/* Placed blocks in ascending offset; the arrays stand apart so that a scan touches little
 * memory. They are read in strides. */
enum { RF_STRIDE = 16 };
typedef struct rf_shelf {
  int count;
  int *first, *last;
  int64_t *start, *end;
} rf_shelf;

/* Best fit: the smallest gap that holds the block between placed blocks of its lifetime, else on
 * top of them. */
typedef struct rf_gap_search {
  int64_t bytes, top, best; /* top: end of what was passed */
  uint64_t over;            /* what the best gap leaves over */
} rf_gap_search;

static inline void rf_gap_pass(rf_gap_search *f, int64_t start, int64_t end) {
  uint64_t over = (uint64_t)(start - f->top - f->bytes); /* of a gap too small: huge */
  if (over < f->over) {
    f->best = f->top;
    f->over = over;
  }
  if (end > f->top) f->top = end;
}

/* Passes the blocks of a shelf that live at some time between first and last. The same of every
 * one of them; the other needs AVX-512. */
void rf_shelf_pass(const rf_shelf *shelf, int first, int last, rf_gap_search *search);
void rf_shelf_pass_avx512(const rf_shelf *shelf, int first, int last, rf_gap_search *search);

#endif
