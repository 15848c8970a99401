/* job_parts.h - declarations shared by the files that resolve a job's options. */
#ifndef RF_JOB_PARTS_H
#define RF_JOB_PARTS_H

#include "plan/job.h"

/* job_ranks.c: makes of a machine with one chip the machine of `chips` chips that share it.
 * `local`: the machine is --on local, so the file of `rafter calibrate --network` is used if there
 * is one. */
rf_status rf_ranks_machine(const rf_plan_options *plan, bool local, int64_t chips, rf_machine *machine,
                           rf_error *error);

#endif
