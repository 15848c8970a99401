/* cause.h - why one plan takes more time or memory than expected from another plan of the model. */
#ifndef RF_CAUSE_H
#define RF_CAUSE_H

#include "plan/plan.h"

typedef struct rf_cause {
  const char *kind; /* "kernel", "bound", "tile", "page", "topology", "class", "op" or "phase" */
  char text[320];   /* name of an op or class; "": no op or class explains the change */
} rf_cause;

/* Finds the cause. `growth` is the expected ratio: the time or memory of `after`, divided by that
 * of `before`. */
rf_cause rf_cause_of_time(const rf_plan *before, const rf_plan *after, double growth);
rf_cause rf_cause_of_memory(const rf_plan *before, const rf_plan *after, double growth);

#endif
