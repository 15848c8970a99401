/* advice.h - the effect of single changes of a plan on its memory and time. */
#ifndef RF_ADVICE_H
#define RF_ADVICE_H

#include "plan/plan.h"

enum { RF_MAX_ADVICE = 8 };
typedef struct rf_advice {
  char change[48]; /* "remat=mlp", "microbatch=8 accumulate=8", "dtype=bf16" */
  char why[160];
  int64_t peak_bytes; /* arena size; if the changed plan does not fit: largest sum of live bytes */
  double seconds;     /* seconds of a step with this change */
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

/* Plans a forward pass with the other setting of --compute. Returns its seconds, and sets
 * *peak_bytes (or NULL) to its arena. Returns 0 if the setting changes no product, or if it cannot
 * be planned. */
double rf_plan_other_compute(const rf_plan *plan, int64_t *peak_bytes);
/* The same as advice. `decode` generates with `prefill`, or scores if `prefill` is NULL. Returns
 * the number of changes written: 0 or 1. A change without an effect on time is not written. */
int rf_plan_advise_compute(const rf_plan *decode, const rf_plan *prefill, rf_advice *advice);
/* Writes the effect of the other setting as the end of a sentence: "; predicted with --compute
 * fast: ...". The text is empty if the machine is not calibrated. */
enum { RF_COMPUTE_LINE = 240 };
const char *rf_plan_compute_line(const rf_plan *decode, const rf_plan *prefill, char text[RF_COMPUTE_LINE]);

#endif
