/* cause.h - why one plan takes more time or memory than another of the same model led to expect:
 * the facts that differ between the two. */
#ifndef RF_CAUSE_H
#define RF_CAUSE_H

#include "plan/plan.h"

typedef struct rf_cause {
  const char *kind; /* "kernel", "bound", "tile", "page", "topology", "class", "op": what the text is about */
  char text[320];
} rf_cause;

/* `growth`: how much larger `after` was expected to be than `before`. */
rf_cause rf_cause_of_time(const rf_plan *before, const rf_plan *after, double growth);
rf_cause rf_cause_of_memory(const rf_plan *before, const rf_plan *after, double growth);

#endif
