/* compare.h - the one comparator of all tests: how far a tensor may lie from the truth, and
 * whether it does.
 *
 * A tensor passes when its error is small against the truth's norm and no single element errs by
 * more than a small part of the truth's largest element. Anything that is not finite, on either
 * side, fails; so does a truth of zeros answered with anything else. */
#ifndef RF_TESTS_COMPARE_H
#define RF_TESTS_COMPARE_H

#include "base/base.h"

typedef struct compare_bound {
  double norm; /* of |got - want|_2 / |want|_2 */
  double max;  /* of max |got - want| / max |want| */
} compare_bound;

typedef struct compare_report {
  double norm, max; /* what was measured, in the units of the bound; INFINITY for what is not finite */
  int64_t at;       /* the worst element; -1 when none differs */
  char text[256];   /* one line for people */
} compare_report;

/* The unit roundoff of a dtype (half the gap above 1): 2^-24 for f32. */
double compare_epsilon(rf_dtype dtype);
/* What arithmetic explains: one rounding into `stored`, and a sum of `reduction` terms in `sums`
 * whose roundings wander (sqrt). An element may be four times worse than the mean. */
compare_bound compare_bound_of(rf_dtype stored, rf_dtype sums, int64_t reduction);

/* `report` may be NULL. Integers must be equal, whatever the bound. */
bool compare_close(rf_dtype dtype, const void *got, const void *want, int64_t count, compare_bound bound,
                   compare_report *report);
/* Equal to the bit; a NaN fails even against itself. */
bool compare_equal(rf_dtype dtype, const void *got, const void *want, int64_t count, compare_report *report);

/* Element i of a tensor as a double. */
double compare_load(rf_dtype dtype, const void *data, int64_t i);

#endif
