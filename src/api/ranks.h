/* ranks.h - commands that run on the ranks of an MPI job: --mesh auto, and standard input, which
 * launchers pass to rank 0 only. Without ranks, these functions do nothing. */
#ifndef RF_API_RANKS_H
#define RF_API_RANKS_H

#include "api/api.h"

/* --mesh auto: all ranks compare the meshes, and take the choice of rank 0. */
rf_status rf_ranks_mesh(rf_options *options, const rafter_sink *sink, rf_error *error);
/* If an option names /dev/stdin, gives every rank the standard input of rank 0, as its own. */
rf_status rf_ranks_input(const rf_options *options, rf_error *error);
/* Replaces *text of the other ranks by that of rank 0, malloc'ed. The caller still owns the text that
 * it passed. NULL: there is none. */
rf_status rf_ranks_text(const rf_options *options, char **text, size_t *bytes, rf_error *error);
/* Removes the copies of the model from --mesh in a list of options, and writes its axes in one
 * order. No answer and no score depends on the number of copies. */
void rf_ranks_drop_copies(const rf_plan_options *plan, json_t *options);

#endif
