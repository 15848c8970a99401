/* advice.h - the effect of single changes of a plan on its memory and time. */
#ifndef RF_ADVICE_H
#define RF_ADVICE_H

#include "plan/plan.h"

enum { RF_MAX_ADVICE = 8 };
typedef struct rf_advice {
  char change[48]; /* "remat=mlp", "microbatch=8 accumulate=8", "dtype=bf16" */
  char why[160];
  int64_t peak_bytes; /* size of the arena; if the changed plan does not fit: largest sum of live bytes */
  double seconds;     /* seconds of a step with this change */
  bool approximate;   /* true if the results of this change differ by more than rounding */
  bool exact;         /* results stay bit-identical */
} rf_advice;

/* Starts a thread that plans changes of a training plan. Meanwhile, the caller makes the plan
 * itself. The result is NULL if no thread was started. `model` must outlive the thread.
 * rf_plan_advise and rf_advice_forget end the thread. */
typedef struct rf_advice_ahead rf_advice_ahead;
rf_advice_ahead *rf_plan_advise_ahead(const rf_model *model, const rf_plan_options *options);
void rf_advice_forget(rf_advice_ahead *ahead);
/* Makes plans that differ from a training plan in one setting. Writes the changes that lower memory
 * or time to `advice`, and returns the number of these changes. Takes ownership of `ahead`, which
 * is the started thread or NULL. */
int rf_plan_advise(const rf_plan *plan, rf_advice_ahead *ahead, rf_advice advice[RF_MAX_ADVICE]);

/* Plans a forward pass with the other setting of --compute. Returns the seconds of the pass, and
 * sets *peak_bytes (unless NULL) to the size of its arena. Returns 0 if the setting changes no
 * product, or if the pass cannot be planned. */
double rf_plan_other_compute(const rf_plan *plan, int64_t *peak_bytes);
/* Writes the effect of the other setting as an entry of advice. `decode` generates with `prefill`.
 * If `prefill` is NULL, `decode` scores. Returns the number of changes written: 0 or 1. A change
 * without an effect on time is left out. */
int rf_plan_advise_compute(const rf_plan *decode, const rf_plan *prefill, rf_advice *advice);
/* Writes the effect of the other setting as the end of a sentence: "; predicted with --compute
 * fast: ...". The text is empty if the machine is not calibrated. */
enum { RF_COMPUTE_LINE = 240 };
const char *rf_plan_compute_line(const rf_plan *decode, const rf_plan *prefill, char text[RF_COMPUTE_LINE]);

#endif
