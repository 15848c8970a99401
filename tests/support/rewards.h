/* rewards.h - gives several answers their rewards at once, for tests. */
#ifndef RF_TESTS_REWARDS_H
#define RF_TESTS_REWARDS_H

#include "reward/reward.h"

/* Submits all rows and waits: total (count), parts (count, RF_REWARDS). */
static inline rf_status rewards_score(rf_rewards *r, const rf_reward_row *rows, int64_t count, double *total,
                                      double *parts, rf_error *error) {
  for (int64_t i = 0; i < count; i++)
    RF_TRY(rf_rewards_submit(r, &rows[i], &total[i], parts + i * RF_REWARDS, error));
  return rf_rewards_collect(r, true, 0, error);
}

#endif
