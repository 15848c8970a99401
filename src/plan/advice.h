/* advice.h - what one change at a time would do to a plan: each row is a plan that was really made. */
#ifndef RF_ADVICE_H
#define RF_ADVICE_H

#include "plan/plan.h"

enum { RF_MAX_ADVICE = 8 };
typedef struct rf_advice {
  char change[48]; /* "remat=mlp", "microbatch=8 accumulate=8", "dtype=bf16" */
  char why[160];
  int64_t peak_bytes;
  double seconds; /* per step */
} rf_advice;

/* Tries the neighbours of a training plan and keeps those that lower memory or time. Returns how many rows it wrote. */
int rf_plan_advise(const rf_plan *plan, rf_advice advice[RF_MAX_ADVICE]);

#endif
