/* sampler.h - one token from one row of logits. */
#ifndef RF_SAMPLER_H
#define RF_SAMPLER_H

#include "base/base.h"

typedef struct rf_sampler_options {
  float temperature; /* 0: greedy */
  int32_t top_k;     /* 0: all */
  float top_p;       /* smallest set of likeliest tokens whose probability reaches it; 1: all */
  float min_p;       /* drops tokens less likely than min_p times the likeliest; 0: none */
  uint64_t seed;
} rf_sampler_options;

typedef struct rf_sampler {
  rf_sampler_options options;
  int64_t vocab;
  struct rf_candidate {
    float logit;
    int32_t id;
  } * candidate;
} rf_sampler;

rf_status rf_sampler_open(const rf_sampler_options *options, int64_t vocab, rf_sampler *sampler, rf_error *error);
void rf_sampler_close(rf_sampler *sampler);
/* Chooses from logits (V), f32. The draw is keyed by (seed, position), so the same request gives the same text wherever it runs.
 * Order of filters: temperature, top-k, top-p, min-p. Ties go to the lower id. *logprob: natural log of the token's probability under the
 * unfiltered softmax at temperature 1. Allocates nothing. */
int32_t rf_sampler_next(rf_sampler *sampler, const float *logits, int64_t position, double *logprob);

#endif
