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

/* ---- job_mesh.c ------------------------------------------------------------------------------ */

/* Handles --mesh, which must have the number of chips of the machine. The default mesh has the axis
 * fsdp in training and the axis tensor in other jobs. The default mesh has one copy of the model on
 * each slice. If the axis tensor cannot shard the model over all chips, the chips hold several
 * copies of the model (data). A chip of two devices counts as two chips. The default of --zero is 3
 * if the mesh has an fsdp axis, otherwise 0. */
rf_status rf_job_resolve_mesh(const rf_options *options, rf_settings *settings, rf_error *error);

/* ---- job_ranks.c ----------------------------------------------------------------------------- */

/* Ranks on one machine share its cores, unless the launcher has given cores to each rank. All ranks
 * compute the same plan. So all ranks use the smallest number of threads and the lowest instruction
 * set of any rank. */
rf_status rf_ranks_agree(rf_plan_options *plan, rf_error *error);
/* The memory of a rank's machine, and the number of ranks that share this machine. */
typedef struct rf_rank_room {
  double memory_bytes, reserve_bytes;
  int64_t together;
} rf_rank_room;
/* Finds the rank with the smallest part of a machine's memory. The result is the memory of a machine
 * that gives this part to each rank, if the largest number of ranks of any machine shares it. */
rf_rank_room rf_ranks_lowest_room(const rf_rank_room *room, int ranks);
/* All ranks must make the same plan. So a rank replaces its local machine by the machine of rank 0,
 * with the lowest room of all ranks. The ranks exchange their machines only at the first call,
 * because a rank may make more plans than the others. */
rf_status rf_ranks_share_machine(bool local, rf_machine *machine, rf_error *error);
/* Changes a machine with one chip into a machine with `chips` chips, of which `together` share the
 * cores and the memory of one machine. */
void rf_ranks_divide(rf_machine *machine, int chips, int together);
/* If the ranks of this job are the chips of a pipeline, each rank plans its own stage. */
void rf_ranks_choose_stage(rf_plan_options *plan);
/* Each chip of the mesh is one process. The result is RAFTER_INVALID if the mesh has another number
 * of chips. */
rf_status rf_ranks_check(const rf_mesh *mesh, int ranks, rf_error *error);
/* Changes a machine with one chip into a machine with `chips` chips. Ranks on one machine share its
 * cores and its memory. Without ranks, all chips share the machine. If `local` is true, the machine
 * is --on local, and the file of `rafter calibrate --network` is used if it exists. */
rf_status rf_ranks_machine(const rf_plan_options *plan, bool local, int64_t chips, rf_machine *machine,
                           rf_error *error);

#endif
