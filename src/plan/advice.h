/* advice.h - what one change at a time would do to a plan: each row's numbers are those of the
 * whole plan. */
#ifndef RF_ADVICE_H
#define RF_ADVICE_H

#include "plan/plan.h"

enum { RF_MAX_ADVICE = 8 };
typedef struct rf_advice {
  char change[48]; /* "remat=mlp", "microbatch=8 accumulate=8", "dtype=bf16" */
  char why[160];
  int64_t peak_bytes; /* of a row that does not fit its live bytes: no layout mends them */
  double seconds;     /* per step */
  bool approximate;   /* results are others, by more than rounding */
  bool exact;         /* the same to the bit */
} rf_advice;

/* Begins with those neighbours of a training plan that need not wait for it, while it is made of
 * these options; NULL where nothing is begun. `model` has to outlive it, which ends in
 * rf_plan_advise or here. */
typedef struct rf_advice_ahead rf_advice_ahead;
rf_advice_ahead *rf_plan_advise_ahead(const rf_model *model, const rf_plan_options *options);
void rf_advice_forget(rf_advice_ahead *ahead);
/* Tries the neighbours of a training plan and keeps those that lower memory or time. Returns how
 * many rows it wrote. `ahead` (may be NULL) is taken over. */
int rf_plan_advise(const rf_plan *plan, rf_advice_ahead *ahead, rf_advice advice[RF_MAX_ADVICE]);

#endif
