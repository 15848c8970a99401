/* fit_batch.h - finds the largest batch with which a job fits (--fit), what limits the batch, and
 * changes that raise it. */
#ifndef RF_ADVISE_FIT_BATCH_H
#define RF_ADVISE_FIT_BATCH_H

#include "advise/planned.h"

/* The batch of a job on a mesh is a multiple of this number. */
int64_t rf_fit_batch_step(const rf_settings *settings);
/* Finds the largest batch with which `job` fits, when all other options stay as they are. The batch
 * is a multiple of `step`. Returns the object "largest_batch" of the plan's JSON. The caller frees
 * it. RAFTER_NO_FIT: even the smallest batch exceeds --latency. */
rf_status rf_fit_batch(const rf_options *options, const char *job, int64_t step, json_t **largest,
                       rf_error *error);
/* The seconds of a step with `batch`, or with the largest batch that fits if `batch` is 0. *found
 * gets the batch, or 0 if the batch does not fit. */
rf_status rf_fit_batch_seconds(const rf_options *options, const char *job, int64_t step, int64_t batch,
                               int64_t *found, double *seconds, rf_error *error);
/* Fixes the memory of --fit. Keeps the memory limit constant during a search, because the free
 * memory of this machine changes. */
rf_status rf_fit_batch_hold_room(rf_options *options, const rf_settings *settings, rf_error *error);
/* Copies the options of a training step and fixes the settings that the search of --fit chose. The
 * batch must be a multiple of *step; if *step is 0, memory does not limit the batch (--microbatch).
 * The caller frees the copy. */
rf_status rf_fit_batch_chosen(const rf_options *options, const rafter_plan *plan, rf_options **chosen,
                              int64_t *step, rf_error *error);

#endif
