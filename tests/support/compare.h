/* compare.h - the comparator of all tests: measures how far a tensor is from the expected values,
 * and decides whether it is close enough. A tensor passes if the norm of its error is small
 * relative to the norm of the expected values, and if no single error exceeds a small part of the
 * largest expected value. A value that is not finite, on either side, fails. So does any nonzero
 * value if all expected values are zero. */
#ifndef RF_TESTS_COMPARE_H
#define RF_TESTS_COMPARE_H

#include "base/base.h"

typedef struct compare_bound {
  double norm; /* of |got - want|_2 / |want|_2 */
  double max;  /* of max |got - want| / max |want| */
} compare_bound;

typedef struct compare_report {
  double norm, max; /* measured errors, in the units of the bound; INFINITY if a value is not finite */
  int64_t at;       /* index of the worst element; -1 if all are equal */
  char text[256];   /* the result as one line of text */
} compare_report;

/* The unit roundoff of a dtype (half the gap above 1): 2^-24 for f32. */
double compare_epsilon(rf_dtype dtype);
/* The error that arithmetic explains: one rounding to `stored`, and a sum of `reduction` terms in
 * `sums` whose rounding errors grow like a random walk (sqrt). A single element may have four times
 * the mean error. */
compare_bound compare_bound_of(rf_dtype stored, rf_dtype sums, int64_t reduction);

/* Compares within a bound. `report` may be NULL. Integers must be equal, whatever the bound. */
bool compare_close(rf_dtype dtype, const void *got, const void *want, int64_t count, compare_bound bound,
                   compare_report *report);
/* Compares bit by bit. A NaN fails even against itself. */
bool compare_equal(rf_dtype dtype, const void *got, const void *want, int64_t count, compare_report *report);

/* Reads element i of a tensor as a double. */
double compare_load(rf_dtype dtype, const void *data, int64_t i);

#endif
