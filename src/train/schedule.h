/* schedule.h - the learning rate as a function of the step. */
#ifndef RF_SCHEDULE_H
#define RF_SCHEDULE_H

#include <stdint.h>

typedef enum rf_schedule_kind {
  RF_SCHEDULE_CONSTANT,
  RF_SCHEDULE_WARMUP_COSINE,
  RF_SCHEDULE_WARMUP_EXPONENTIAL,
  RF_SCHEDULE_WSD
} rf_schedule_kind;

typedef struct rf_schedule {
  rf_schedule_kind kind;
  double peak, floor; /* Learning rates. */
  /* Linear warmup: the rate is peak / warmup at step 1, and peak at step `warmup`. `steps` is the
   * number of the last step. */
  int64_t warmup, steps;
  int64_t decay; /* for wsd: number of steps of the final linear decay */
} rf_schedule;

/* Returns the learning rate of a step from 1 to `steps`. Later steps have the rate of the last
 * step. `x` rises from 0 after the warmup to 1 at the last step.
 *   Cosine: `floor + (peak - floor) (1 + cos(pi x)) / 2`.
 *   Exponential: `peak (floor / peak)^x`. The formula has peak / 100 for a floor of 0.
 *   Wsd: the rate is peak, and falls linearly from peak to floor over the last `decay` steps. */
double rf_schedule_lr(const rf_schedule *schedule, int64_t step);

#endif
