/* sampler.h - samples the next token from finite logits. The logprob is NaN if the sampler
 * fails. */
#ifndef RF_TEST_SAMPLER_H
#define RF_TEST_SAMPLER_H

#include <math.h>

#include "generate/sampler.h"

static inline int32_t sampler_next(rf_sampler *sampler, const float *logits, int64_t position,
                                   double *logprob) {
  rf_logprobs row = {0};
  int32_t id = 0;
  rf_status status = rf_sampler_choose(sampler, logits, position, &id, &row, NULL);
  *logprob = status == RAFTER_OK ? row.logprob : NAN;
  return id;
}

#endif
