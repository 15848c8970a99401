/* changes.h - the plan of a run, planned again with one change of its options. */
#ifndef RF_ADVISE_CHANGES_H
#define RF_ADVISE_CHANGES_H

#include "advise/planned.h"

/* The plan of a run (its entry in a report model) with that change ("": none), with tensors and ops.
 * `commands` have "plan". */
rf_status rf_plan_run_again(const rf_commands *commands, const json_t *entry, const char *change,
                            rafter_plan **plan, rf_error *error);
/* What single changes would do, each a plan that was made, with seconds by kind of op; none if the
 * run is not planned here as it was there: then the entry's "replans" is false. Ends after
 * `seconds`. The caller's. */
json_t *rf_advise_changes(const rf_commands *commands, json_t *entry, double seconds);

#endif
