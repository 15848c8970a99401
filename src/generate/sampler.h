/* sampler.h - chooses one token from one row of logits.
 *
 * Adjustments are applied in the order of Hugging Face's transformers (vLLM applies min-p before
 * top-k instead):
 *   logit bias, repetition penalty, frequency penalty, presence penalty, barred stop ids,
 *     temperature, top-k, top-p, min-p.
 * Log-probabilities are computed from the model's logits before any adjustment. */
#ifndef RF_SAMPLER_H
#define RF_SAMPLER_H

#include "base/base.h"

typedef struct rf_logit_bias {
  int32_t id;
  float bias; /* Added to the logit; -INFINITY bars the token. */
} rf_logit_bias;

/* A field of 0 is unset. The caller keeps the lists while the sampler uses them. */
typedef struct rf_sampler_options {
  float temperature; /* 0: greedy */
  int32_t top_k;     /* 0: all */
  /* Keeps the fewest most likely tokens whose probabilities sum to top_p or more; 0 or 1: all. */
  float top_p;
  float min_p; /* Drops tokens less likely than min_p times the most likely one; 0: none. */
  uint64_t seed;
  /* For tokens of prompt and answer, a logit > 0 is divided by this penalty and a logit < 0 is
   * multiplied by it (Keskar et al., 2019). 0 or 1: no penalty. */
  float repetition_penalty;
  /* Subtracted from the logit for each occurrence of the token in the answer (OpenAI). */
  float frequency_penalty;
  float presence_penalty; /* Subtracted from the logit if the token is in the answer. */
  const rf_logit_bias *bias;
  int64_t bias_count;
  /* Ids that end an answer; barred (not chosen) with ignore_eos or before min_tokens tokens. */
  const int32_t *eos;
  int64_t eos_count;
  int64_t min_tokens;
  bool ignore_eos;
} rf_sampler_options;

/* Scratch memory, 15 bytes per vocabulary token. Samplers that never run at the same time may share
 * scratch memory. */
typedef struct rf_sampler_work rf_sampler_work;
rf_status rf_sampler_work_open(int64_t vocab, rf_sampler_work **work, rf_error *error);
void rf_sampler_work_close(rf_sampler_work *work); /* NULL is allowed. */

/* The state of one answer: options and seen tokens. 8 bytes per vocabulary token. */
typedef struct rf_sampler {
  rf_sampler_options options;
  int64_t vocab;
  struct rf_candidate {
    float logit;
    int32_t id;
    /* (V), part of `work`: after a draw with top_k <= 1024, the k most likely tokens in order. */
  } * candidate;
  uint32_t *seen;   /* (V): occurrences in the answer, and the flag RF_SEEN_PROMPT. */
  int32_t *touched; /* (touched_count): ids with seen != 0, in order of appearance. */
  int64_t touched_count, generated;
  rf_sampler_work *work;
  bool owns_work;
} rf_sampler;
#define RF_SEEN_PROMPT 0x80000000u

enum { RF_TOP_LOGPROBS = 32 };

/* Log-probabilities of the chosen token and of alternatives. */
typedef struct rf_logprobs {
  /* In: log of the sum of exp(logits) of the row, if the caller has it; NULL: it is computed. */
  const float *lse;
  /* Natural log of the chosen token's probability under the unfiltered softmax at temperature 1. */
  double logprob;
  int32_t wanted; /* In: number of alternatives, 0 to RF_TOP_LOGPROBS. */
  /* Out: number of alternatives; below `wanted` only if fewer tokens are possible. */
  int32_t count;
  int32_t *ids;     /* (wanted), the caller's array: most likely first, ties to the lower id. */
  double *logprobs; /* (wanted) */
} rf_logprobs;

/* Whether penalties or biases change logits, so that each choice needs a copy of the row. */
bool rf_sampler_adjusts(const rf_sampler_options *options);
/* RAFTER_INVALID: a number is NaN, a penalty is negative, or an id is outside the vocabulary. */
rf_status rf_sampler_check(const rf_sampler_options *options, int64_t vocab, rf_error *error);
/* Checks the options and allocates the sampler. Later calls allocate nothing. */
rf_status rf_sampler_open(const rf_sampler_options *options, int64_t vocab, rf_sampler *sampler,
                          rf_error *error);
/* Like rf_sampler_open, but with a shared `work`, which must outlive the sampler. */
rf_status rf_sampler_open_with(const rf_sampler_options *options, rf_sampler_work *work, rf_sampler *sampler,
                               rf_error *error);
void rf_sampler_close(rf_sampler *sampler);
/* Replaces the scratch memory for the next calls, for instance on another thread. */
void rf_sampler_use(rf_sampler *sampler, rf_sampler_work *work);
/* Starts another request: forgets the tokens seen, in time proportional to their number.
 * RAFTER_INVALID: the options are bad; the sampler is unchanged. */
rf_status rf_sampler_reset(rf_sampler *sampler, const rf_sampler_options *options, rf_error *error);

/* rf_sampler_prompt records the prompt's tokens for the penalties. rf_sampler_accept records one
 * chosen token. rf_sampler_choose does not record its choice. RAFTER_INVALID: a token is out of
 * range. */
rf_status rf_sampler_prompt(rf_sampler *sampler, const int32_t *tokens, int64_t count, rf_error *error);
rf_status rf_sampler_accept(rf_sampler *sampler, int32_t id, rf_error *error);

/* Chooses from f32 logits (V). The draw depends only on (seed, position), the logits and the
 * recorded tokens. Of equally likely tokens, the lower id comes first. RAFTER_FAILED: a logit is
 * NaN or +INFINITY. RAFTER_INVALID: every token is barred; *id is then the most likely token of the
 * row. `logprobs` must not be NULL; {0} asks for no alternatives. Allocates nothing. */
rf_status rf_sampler_choose(rf_sampler *sampler, const float *logits, int64_t position, int32_t *id,
                            rf_logprobs *logprobs, rf_error *error);

#endif
