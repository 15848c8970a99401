/* job_parts.h - declarations shared by the files that resolve a job's options. */
#ifndef RF_JOB_PARTS_H
#define RF_JOB_PARTS_H

#include "plan/job.h"

#include <string.h>

static inline bool rf_job_given(const rf_options *options, const char *name) {
  return rf_options_knows(options, name) && rf_options_given(options, name);
}
static inline bool rf_job_is_local(const rf_options *options) {
  return !strcmp(rf_options_text_or(options, "on", "local"), "local");
}
static inline bool rf_job_plans(const rf_options *options) {
  return !strcmp(rf_options_command(options), "plan");
}

/* ---- job_mesh.c ---- */

/* Resolves --mesh, which must have as many chips as the machine. The default mesh has the fsdp axis
 * in training and the tensor axis in other jobs, with one copy on each slice. If the model cannot
 * be sharded over all chips along tensor, the chips hold several copies of the model (data). A chip
 * of two devices counts as two chips. The default of --zero is 3 with an fsdp axis, otherwise 0. */
rf_status rf_job_resolve_mesh(const rf_options *options, rf_settings *settings, rf_error *error);

/* ---- job_ranks.c ---- */

/* Ranks on one machine share its cores, unless their launcher has given them cores. All ranks
 * compute the same plan, so all use the smallest number of threads and the lowest instruction set
 * of any rank. */
rf_status rf_ranks_agree(rf_plan_options *plan, rf_error *error);
/* If the ranks of this job are the chips of a pipeline, the plan is that of this rank's stage. */
void rf_ranks_choose_stage(rf_plan_options *plan);
/* Each chip of the mesh is one process. RAFTER_INVALID: the mesh has another number of chips. */
rf_status rf_ranks_check(const rf_mesh *mesh, int ranks, rf_error *error);
/* Changes a machine with one chip into a machine of `chips` chips, which share that chip.
 * `local`: the machine is --on local, so the file of `rafter calibrate --network` is used if
 * there is one. */
rf_status rf_ranks_machine(const rf_plan_options *plan, bool local, int64_t chips, rf_machine *machine,
                           rf_error *error);

#endif
