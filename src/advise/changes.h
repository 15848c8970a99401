/* changes.h - plans a finished run again, with one change of its options. */
#ifndef RF_ADVISE_CHANGES_H
#define RF_ADVISE_CHANGES_H

#include "advise/planned.h"

/* Plans a run again. `entry` is the run's entry in a report model (report/model.h). `change` is a
 * change of the options, or "". The resulting plan lists its tensors and ops. `commands` must
 * contain "plan". */
rf_status rf_plan_run_again(const rf_commands *commands, const json_t *entry, const char *change,
                            rafter_plan **plan, rf_error *error);
/* Plans a run with one change at a time. Each element of the returned array has the memory of one
 * change, and its seconds for each kind of op. The caller frees it. Stops after `seconds`. If the
 * run's options no longer give the run's plan, returns an empty array and sets "replans" of `entry`
 * to false. */
json_t *rf_advise_changes(const rf_commands *commands, json_t *entry, double seconds);

#endif
