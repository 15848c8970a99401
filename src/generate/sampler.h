/* sampler.h - one token from one row of logits, and what a request says about which.
 *
 * The order of what changes the choice, that of Hugging Face's transformers (vLLM's but for
 * min-p, which stands there before top-k):
 *   logit bias, repetition penalty, frequency penalty, presence penalty, barred end marks,
 *     temperature, top-k, top-p, min-p.
 * Log-probabilities are of the row as the model gave it, before any of these. */
#ifndef RF_SAMPLER_H
#define RF_SAMPLER_H

#include "base/base.h"

typedef struct rf_logit_bias {
  int32_t id;
  float bias; /* added to the logit; -INFINITY bars the token */
} rf_logit_bias;

/* A field of zero is unset. The caller keeps the lists for as long as the sampler uses them. */
typedef struct rf_sampler_options {
  float temperature; /* 0: greedy */
  int32_t top_k;     /* 0: all */
  float top_p;       /* smallest set of likeliest tokens whose probability reaches it; 0, 1: all */
  float min_p;       /* drops tokens less likely than min_p times the likeliest; 0: none */
  uint64_t seed;
  /* of every token of prompt and answer: logit > 0 divided, < 0 multiplied (Keskar et al.,
   * 2019); 0, 1: none */
  float repetition_penalty;
  float frequency_penalty; /* taken from the logit for each time the token stands in the answer (OpenAI) */
  float presence_penalty;  /* taken once when the token stands in the answer */
  const rf_logit_bias *bias;
  int64_t bias_count;
  /* ids that end an answer: barred with ignore_eos, and until the answer has min_tokens tokens */
  const int32_t *eos;
  int64_t eos_count;
  int64_t min_tokens;
  bool ignore_eos;
} rf_sampler_options;

/* Room to work in, 15 bytes per token of the vocabulary: any number of samplers that are used
 * one after the other may share one. */
typedef struct rf_sampler_work rf_sampler_work;
rf_status rf_sampler_work_open(int64_t vocab, rf_sampler_work **work, rf_error *error);
void rf_sampler_work_close(rf_sampler_work *work); /* NULL is allowed */

/* One row of a batch: its options and the tokens it has seen, 8 bytes per token of the
 * vocabulary. */
typedef struct rf_sampler {
  rf_sampler_options options;
  int64_t vocab;
  struct rf_candidate {
    float logit;
    int32_t id;
  } * candidate;    /* (V), of the work: after a draw with top_k <= 1024 the k likeliest, in order */
  uint32_t *seen;   /* (V): times in the answer, and RF_SEEN_PROMPT */
  int32_t *touched; /* (V): ids with seen != 0, in the order they came */
  int64_t touched_count, generated;
  rf_sampler_work *work;
  bool owns_work;
} rf_sampler;
#define RF_SEEN_PROMPT 0x80000000u

enum { RF_TOP_LOGPROBS = 32 };

/* What is told about one token beside its id. */
typedef struct rf_logprobs {
  /* in: log of the sum of the row's exponentials, from who has it already; NULL: it is taken
   * here */
  const float *lse;
  double logprob;   /* natural log of the token's probability under the unfiltered softmax at temperature 1 */
  int32_t wanted;   /* in: alternatives, 0 .. RF_TOP_LOGPROBS */
  int32_t count;    /* out: alternatives written; fewer than wanted only when fewer have a probability */
  int32_t *ids;     /* (wanted), the caller's: the likeliest first, ties to the lower id */
  double *logprobs; /* (wanted) */
} rf_logprobs;

/* Whether penalties and biases make a row another one, which is copied for it before anything is
 * chosen. */
bool rf_sampler_adjusts(const rf_sampler_options *options);
/* RAFTER_INVALID: a number that is none, a penalty below zero, an id outside of the vocabulary. */
rf_status rf_sampler_check(const rf_sampler_options *options, int64_t vocab, rf_error *error);
/* Checks the options. After this nothing allocates. */
rf_status rf_sampler_open(const rf_sampler_options *options, int64_t vocab, rf_sampler *sampler,
                          rf_error *error);
/* The same with `work` shared; it must outlive the sampler. */
rf_status rf_sampler_open_with(const rf_sampler_options *options, rf_sampler_work *work, rf_sampler *sampler,
                               rf_error *error);
void rf_sampler_close(rf_sampler *sampler);
/* Another work for the calls that follow, on another thread. */
void rf_sampler_use(rf_sampler *sampler, rf_sampler_work *work);
/* For another request: forgets what was seen, in time of what was seen. On RAFTER_INVALID the
 * sampler is as it was. */
rf_status rf_sampler_reset(rf_sampler *sampler, const rf_sampler_options *options, rf_error *error);

/* Tells the tokens in front of the answer, and one token of the answer: whoever keeps a choice
 * accepts it. RAFTER_INVALID: out of range. */
rf_status rf_sampler_prompt(rf_sampler *sampler, const int32_t *tokens, int64_t count, rf_error *error);
rf_status rf_sampler_accept(rf_sampler *sampler, int32_t id, rf_error *error);

/* Chooses from logits (V), f32. The draw is keyed by (seed, position) and sees the accepted
 * tokens, so the same request gives the same text wherever it runs. Ties go to the lower id.
 * RAFTER_FAILED when the logits are not finite (-INFINITY may bar a token), RAFTER_INVALID when
 * every token is barred; *id is then the likeliest of the row. logprobs must be given, {0} for
 * no alternatives. Allocates nothing. */
rf_status rf_sampler_choose(rf_sampler *sampler, const float *logits, int64_t position, int32_t *id,
                            rf_logprobs *logprobs, rf_error *error);

#endif
