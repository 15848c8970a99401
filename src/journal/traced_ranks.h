/* traced_ranks.h - the trace of a run on ranks of MPI. All ranks record, and rank 0 writes the
 * trace. Private to src/journal. */
#ifndef RF_TRACED_RANKS_H
#define RF_TRACED_RANKS_H

#include "run/clock.h"

#include <jansson.h>

/* Every rank calls this function, after rf_clock_begin. Rank 0 gets the joined trace in `folder`,
 * with *header and *in_json as from rf_trace_write. In the other ranks, *header is NULL. It is also
 * NULL if no rank has recorded a step. Converts the times of the trace to the clock of rank 0. */
rf_status rf_traced_join(rf_trace *trace, json_t *about, const char *folder, json_t **header, int *in_json,
                         rf_error *error);

#endif
