/* advice.h - the effect of single changes of a training plan on its memory and time. */
#ifndef RF_ADVICE_H
#define RF_ADVICE_H

#include "plan/plan.h"

enum { RF_MAX_ADVICE = 8 };
typedef struct rf_advice {
  char change[48]; /* "remat=mlp", "microbatch=8 accumulate=8", "dtype=bf16" */
  char why[160];
  int64_t peak_bytes; /* arena size; if the changed plan does not fit: largest sum of live bytes */
  double seconds;     /* of a training step with this change */
  bool approximate;   /* with this change, results differ by more than rounding */
  bool exact;         /* results stay bit-identical */
} rf_advice;

/* Starts a thread that plans changes of a training plan while the caller makes the plan itself.
 * NULL: no thread was started. `model` must outlive the thread. End the thread with rf_plan_advise
 * or rf_advice_forget. */
typedef struct rf_advice_ahead rf_advice_ahead;
rf_advice_ahead *rf_plan_advise_ahead(const rf_model *model, const rf_plan_options *options);
void rf_advice_forget(rf_advice_ahead *ahead);
/* Plans single changes of a training plan. Writes the changes that lower memory or time to `advice`
 * and returns their number. Takes ownership of `ahead`, the started thread, which may be NULL. */
int rf_plan_advise(const rf_plan *plan, rf_advice_ahead *ahead, rf_advice advice[RF_MAX_ADVICE]);

#endif
