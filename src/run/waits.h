/* waits.h - the time for which the ranks of a run wait for each other, by cause. The file also
 * finds a rank that is slow. Only runs whose chips are ranks of MPI measure waits. Runs on other
 * devices measure nothing. */
#ifndef RF_RUN_WAITS_H
#define RF_RUN_WAITS_H

#include "base/base.h"

/* Seconds of a rank's own work in each step, without waits for other ranks. */
typedef struct rf_rank_steps {
  double count, mean, squares; /* squares: sum of the squared differences from the mean */
} rf_rank_steps;
void rf_rank_steps_add(rf_rank_steps *steps, double seconds);

/* Times of one rank between rf_waits_begin and rf_waits_gather, in seconds. */
typedef struct rf_rank_waits {
  char host[64];
  double exchanges, seconds; /* number of exchanges, and the seconds of all of them */
  double late;               /* seconds of waits until other ranks had begun the exchange */
  double network;            /* seconds of waits for messages after all ranks had begun the exchange */
  double stages;             /* seconds of waits for messages of other pipeline stages */
  double between;            /* seconds of waits for other messages: agreements, checkpoints */
  double work;               /* seconds of the rest of the time */
  /* allocations of the MPI library in steps, which are counted only with RF_DEBUG_GUARD */
  double allocations;
  double planned_bytes, allocated_bytes, threads;
  rf_rank_steps steps; /* steps without the first step, whose caches are cold */
} rf_rank_waits;

void rf_waits_begin(void);
void rf_waits_step(void); /* after each step */
/* Every rank calls rf_waits_gather at the same place between steps. After the call, rank 0 has the
 * waits of all ranks. */
rf_status rf_waits_gather(int64_t planned_bytes, int64_t allocated_bytes, int threads, rf_error *error);
/* For rank 0, after rf_waits_gather: the waits of each rank, and the seconds between the two calls.
 * NULL: not gathered. */
const rf_rank_waits *rf_waits_of_ranks(int *ranks, double *seconds);

/* The slow rank: the rank whose own work in a step takes longer than the work of the other ranks.
 * The difference must exceed the noise, which is four standard errors and 1 % of the work. -1: no
 * rank is slow. *excess gets the seconds in a step by which the rank exceeds the mean of the other
 * ranks. *noise gets one standard error. */
int rf_waits_slowest(const rf_rank_waits *waits, int ranks, double *excess, double *noise);

#endif
