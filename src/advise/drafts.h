/* drafts.h - the drafts of `rafter plan --speculate`: their time, their memory, and when they save
 * time. */
#ifndef RF_ADVISE_DRAFTS_H
#define RF_ADVISE_DRAFTS_H

#include "advise/planned.h"

/* With --speculate MODEL, plans the draft model, and lowers the memory budget of the job by the
 * memory of the draft model. */
rf_status rf_plan_drafter(rafter_plan *plan, const rf_options *options, rf_error *error);
/* Prices the drafts of a plan of a job that generates. With --speculate, the plan gets the time and
 * the rate of a step with the best number of drafts. */
rf_status rf_plan_drafts(rafter_plan *plan, const rf_options *options, rf_error *error);

/* Returns --acceptance, or the default for this kind of drafts. 0: the command has no such
 * option. */
double rf_plan_acceptance(const rf_options *options);
extern const rf_option RF_ACCEPTANCE_OPTIONS[]; /* --acceptance */

#endif
