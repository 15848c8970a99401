/* changes.h - plans a finished run again, with one change of its options. */
#ifndef RF_ADVISE_CHANGES_H
#define RF_ADVISE_CHANGES_H

#include "advise/planned.h"

/* Plans a run again from its entry in a report model. `change` is a change of the options, or "".
 * The new plan lists its tensors and ops. `commands` must contain "plan". */
rf_status rf_plan_run_again(const rf_commands *commands, const json_t *entry, const char *change,
                            rafter_plan **plan, rf_error *error);
/* Plans single changes of a run and returns an array with their memory and their seconds by kind of
 * op, which the caller frees. Stops after `seconds`. If the run's options no longer produce the
 * run's plan, the array is empty and the entry's "replans" is false. */
json_t *rf_advise_changes(const rf_commands *commands, json_t *entry, double seconds);

#endif
