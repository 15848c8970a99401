/* sampler.h - chooses one token from one row of logits.
 *
 * Adjustments are applied in the order of Hugging Face's transformers (vLLM applies min-p before
 * top-k):
 *   logit bias, repetition penalty, frequency penalty, presence penalty, tokens that the
 *     constraint bars, barred stop ids, temperature, top-k, top-p, min-p.
 * With a constraint, an end id is allowed where the text may end. If no other token may follow, the
 * end id is allowed even with ignore_eos or before min_tokens. Log-probabilities are computed from
 * the model's logits before any adjustment. */
#ifndef RF_SAMPLER_H
#define RF_SAMPLER_H

#include "constrain/constrain.h"
#include "machine/isa.h"

typedef struct rf_logit_bias {
  int32_t id;
  float bias; /* Number that is added to the logit; -INFINITY bars the token. */
} rf_logit_bias;

/* A field with the value 0 is unset. The caller must keep the lists while the sampler uses them. */
typedef struct rf_sampler_options {
  float temperature; /* 0: greedy */
  int32_t top_k;     /* 0: all */
  /* Keeps the smallest set of most likely tokens whose probabilities sum to top_p or more. 0 or 1:
   * keeps all. */
  float top_p;
  float min_p; /* Drops tokens less likely than min_p times the most likely token; 0: none. */
  uint64_t seed;
  /* Divides positive logits and multiplies negative logits of all tokens in the prompt and the
   * answer (Keskar et al., 2019). 0 or 1: no penalty. */
  float repetition_penalty;
  /* Number that is subtracted from a token's logit for each occurrence in the answer (OpenAI). */
  float frequency_penalty;
  /* Number that is subtracted from a token's logit if the answer contains the token. */
  float presence_penalty;
  const rf_logit_bias *bias;
  int64_t bias_count;
  /* Ids that end an answer. These ids are barred (never chosen) with ignore_eos or before
   * min_tokens. */
  const int32_t *eos;
  int64_t eos_count;
  int64_t min_tokens;
  bool ignore_eos;
  /* Form of the answer; NULL: any form. A form needs end ids. The sampler keeps a reference to the
   * form until the sampler is reset or closed. */
  rf_constraint *constraint;
} rf_sampler_options;

/* Scratch memory of 15 bytes per token of the vocabulary. Samplers that never run at the same time
 * may share this memory. */
typedef struct rf_sampler_work rf_sampler_work;
rf_status rf_sampler_work_open(int64_t vocab, rf_sampler_work **work, rf_error *error);
/* Limits the instruction set to a level. Without this call, the sampler uses the highest level of
 * this CPU. Every level gives the same bits. */
void rf_sampler_work_limit(rf_sampler_work *work, rf_isa isa);
void rf_sampler_work_close(rf_sampler_work *work); /* NULL is allowed. */

/* State of one answer: options, seen tokens and allowed tokens. The size is 8.1 bytes per token of
 * the vocabulary. The structure must not move in memory. */
typedef struct rf_sampler {
  rf_sampler_options options;
  int64_t vocab;
  struct rf_candidate {
    float logit;
    int32_t id;
    /* (V), in `work`. After a draw with top_k <= 1024, the first k entries are the most likely
     * tokens in order. */
  } * candidate;
  uint32_t *seen;   /* (V): number of occurrences in the answer, and the flag RF_SEEN_PROMPT. */
  int32_t *touched; /* (touched_count): ids whose `seen` is not 0, in order of appearance. */
  int64_t touched_count, generated;
  rf_constrained form; /* position of the answer in the constraint */
  uint64_t *allowed;   /* (V / 64, rounded up): bits of the tokens that the constraint allows next */
  bool form_ended;     /* true after an end id */
  rf_sampler_work *work;
  bool owns_work;
} rf_sampler;
#define RF_SEEN_PROMPT 0x80000000u

enum { RF_TOP_LOGPROBS = 32 };

/* Log-probabilities of the chosen token and of alternatives. */
typedef struct rf_logprobs {
  /* Input: natural log of the sum of exp(logits) of the row. NULL: the sampler computes the sum. */
  const float *lse;
  /* Output: natural log of the chosen token's unfiltered probability at temperature 1. */
  double logprob;
  int32_t wanted; /* Input: number of alternatives, 0 to RF_TOP_LOGPROBS. */
  /* Output: number of alternatives. The number is below `wanted` only if fewer tokens are
   * possible. */
  int32_t count;
  /* (wanted): array of the caller, most likely token first; among equal tokens, lower id first. */
  int32_t *ids;
  double *logprobs; /* (wanted) */
} rf_logprobs;

/* Returns the uniform random number in [0, 1) that decides the token at `position`. */
double rf_sampler_uniform(uint64_t seed, int64_t position);
/* Returns RAFTER_FAILED if the log-sum-exp of a row is not finite, because a logit is NaN or
 * +INFINITY. */
rf_status rf_sampler_check_sum(double log_sum, rf_error *error);
/* Returns true if the ids in options.eos are barred for the token after `generated` tokens. */
bool rf_sampler_bars_eos(const rf_sampler_options *options, int64_t generated);

/* Returns true if penalties, biases or a constraint change logits. Each choice then needs a copy of
 * the row. */
bool rf_sampler_adjusts(const rf_sampler_options *options);
/* Returns RAFTER_INVALID if a number is NaN, a penalty is negative, or an id is outside the
 * vocabulary. */
rf_status rf_sampler_check(const rf_sampler_options *options, int64_t vocab, rf_error *error);
/* Checks the options and allocates the sampler. Later calls allocate nothing. */
rf_status rf_sampler_open(const rf_sampler_options *options, int64_t vocab, rf_sampler *sampler,
                          rf_error *error);
/* Does the same as rf_sampler_open, but with a shared `work`, which must outlive the sampler. */
rf_status rf_sampler_open_with(const rf_sampler_options *options, rf_sampler_work *work, rf_sampler *sampler,
                               rf_error *error);
void rf_sampler_close(rf_sampler *sampler);
/* Sets the scratch memory of the next calls, for instance on another thread. */
void rf_sampler_use(rf_sampler *sampler, rf_sampler_work *work);
/* Starts another request and forgets the seen tokens. The time is proportional to the number of
 * seen tokens. If an option is wrong, returns RAFTER_INVALID and does not change the sampler. */
rf_status rf_sampler_reset(rf_sampler *sampler, const rf_sampler_options *options, rf_error *error);

/* For the penalties, rf_sampler_prompt records the tokens of the prompt. Call rf_sampler_accept to
 * record a chosen token, because rf_sampler_choose does not record its choice. RAFTER_INVALID: a
 * token is out of range. */
rf_status rf_sampler_prompt(rf_sampler *sampler, const int32_t *tokens, int64_t count, rf_error *error);
rf_status rf_sampler_accept(rf_sampler *sampler, int32_t id, rf_error *error);

/* Chooses a token from f32 logits (V). The choice depends only on seed, position, logits and
 * recorded tokens. Among equally likely tokens, the lower id comes first. RAFTER_FAILED: a logit is
 * NaN or +INFINITY. RAFTER_INVALID: every token is barred; *id is then the most likely token.
 * `logprobs` must not be NULL; {0} means no alternatives. Allocates nothing. */
rf_status rf_sampler_choose(rf_sampler *sampler, const float *logits, int64_t position, int32_t *id,
                            rf_logprobs *logprobs, rf_error *error);

#endif
