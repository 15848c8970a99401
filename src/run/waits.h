/* waits.h - the time that the ranks of a run spend in exchanges, by cause. For runs whose chips are
 * ranks of MPI; with other devices, nothing is measured. */
#ifndef RF_RUN_WAITS_H
#define RF_RUN_WAITS_H

#include "base/base.h"

/* Seconds of one rank between rf_waits_begin and rf_waits_gather. */
typedef struct rf_rank_waits {
  char host[64];
  double exchanges, seconds; /* number of exchanges, and all their time */
  double late;               /* of it: waits until other ranks had begun the exchange */
  double network;            /* of it: waits for messages after that */
  double allocations;        /* of the MPI library in steps; counted only with RF_DEBUG_GUARD */
} rf_rank_waits;

void rf_waits_begin(void);
/* Every rank calls it at the same place between steps. Rank 0 then has the waits of all ranks. */
rf_status rf_waits_gather(rf_error *error);
/* In rank 0 after rf_waits_gather: the waits of each rank, and the seconds between the two calls.
 * NULL: not gathered. */
const rf_rank_waits *rf_waits_of_ranks(int *ranks, double *seconds);

#endif
