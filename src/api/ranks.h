/* ranks.h - functions for commands on the ranks of an MPI job. The functions resolve --mesh auto,
 * and share the standard input, because launchers pass the input only to rank 0. Without ranks,
 * these functions do nothing. */
#ifndef RF_API_RANKS_H
#define RF_API_RANKS_H

#include "api/api.h"
#include "model/fingerprint.h"
#include "run/run.h"

/* For --mesh auto, all ranks compare the meshes, and use the mesh that rank 0 chooses. */
rf_status rf_ranks_mesh(rf_options *options, const rafter_sink *sink, rf_error *error);
/* If an option names /dev/stdin, gives every rank a copy of rank 0's standard input. */
rf_status rf_ranks_input(const rf_options *options, rf_error *error);
/* On all other ranks, sets *text to a malloc'ed copy of rank 0's text. The caller still owns the
 * text that was passed. NULL: there is none. */
rf_status rf_ranks_text(const rf_options *options, char **text, size_t *bytes, rf_error *error);
/* Frees a fingerprint after a comparison with that of rank 0. RAFTER_FAILED: they differ. `what` as
 * for rf_run_same. */
rf_status rf_ranks_same(rf_run *run, const char *what, rf_fingerprint *fingerprint, rf_error *error);
/* Normalizes --mesh in recorded options: removes the axes for copies of the model, and sorts the
 * other axes. Answers and scores do not depend on the number of copies. */
void rf_ranks_drop_copies(const rf_plan_options *plan, json_t *options);

#endif
