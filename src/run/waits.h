/* waits.h - the time that the ranks of a run spend in waits for each other, by cause, and which rank
 * is slow. For runs whose chips are ranks of MPI; with other devices, nothing is measured. */
#ifndef RF_RUN_WAITS_H
#define RF_RUN_WAITS_H

#include "base/base.h"

/* Seconds of a rank's own work in each step: without waits for other ranks. */
typedef struct rf_rank_steps {
  double count, mean, squares; /* squares: sum of the squared differences from the mean */
} rf_rank_steps;
void rf_rank_steps_add(rf_rank_steps *steps, double seconds);

/* One rank between rf_waits_begin and rf_waits_gather, in seconds. */
typedef struct rf_rank_waits {
  char host[64];
  double exchanges, seconds; /* number of exchanges, and all their time */
  double late;               /* of it: waits until other ranks had begun the exchange */
  double network;            /* of it: waits for messages after that */
  double stages;             /* waits for messages of other pipeline stages */
  double between;            /* waits for other messages: agreements, checkpoints */
  double work;               /* the rest of the time */
  double allocations;        /* of the MPI library in steps; counted only with RF_DEBUG_GUARD */
  double planned_bytes, allocated_bytes, threads;
  rf_rank_steps steps; /* without the first one, whose caches are cold */
} rf_rank_waits;

void rf_waits_begin(void);
void rf_waits_step(void); /* after each step */
/* Every rank calls it at the same place between steps. Rank 0 then has the waits of all ranks. */
rf_status rf_waits_gather(int64_t planned_bytes, int64_t allocated_bytes, int threads, rf_error *error);
/* In rank 0 after rf_waits_gather: the waits of each rank, and the seconds between the two calls.
 * NULL: not gathered. */
const rf_rank_waits *rf_waits_of_ranks(int *ranks, double *seconds);

/* The rank whose own work in a step takes longer than that of the others, by more than the noise:
 * four standard errors, and 1 % of its work. -1: there is none. *excess gets the seconds by which
 * it exceeds the mean of the others in a step, and *noise one standard error. */
int rf_waits_slowest(const rf_rank_waits *waits, int ranks, double *excess, double *noise);

#endif
