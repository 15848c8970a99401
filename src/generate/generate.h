/* generate.h - generates answers to prompts, token by token, with a KV cache. Each step is one
 * forward pass. The rows of a step are one token of every running answer and, while rows are left,
 * chunks of prompts.
 * Example:
 *   rf_generator_submit(g, &(rf_request){.tokens = ids, .count = n, .max_tokens = 64}, &id, error);
 *   while (rf_generator_busy(g)) {
 *     rf_generator_step(g, &event, &events, error);
 *     for (int i = 0; i < events; i++) ... event[i].token ...
 *   } // end of the example.
 *
 * The answer to a request is bit-identical whatever other requests run, however its prompt is split
 * into chunks, and whether or not its prompt shares a cached prefix. A generator is not
 * thread-safe: only one thread may use it at a time. */
#ifndef RF_GENERATE_H
#define RF_GENERATE_H

#include "generate/sampler.h"
#include "graph/kv.h"
#include "run/load.h"

typedef struct rf_generate_settings {
  rf_model model;
  /* build.seq: context in tokens; build.microbatch: answers that run at the same time;
   * build.sequences: running and kept sequences that fit in the cache. */
  rf_plan_options plan;
  const char *weights_folder;
  uint64_t seed; /* Seed of random weights, used without a weights folder. */
  rf_run_debug debug;
  bool no_sharing;      /* true: prompts reuse no cached prefixes, which changes no answer. */
  rf_progress progress; /* Reports the loading of weights; may be {0}. */
} rf_generate_settings;

/* Index of a plan: many rows (prefill), or one row per answer (decode). */
enum { RF_PREFILL, RF_DECODE };

typedef struct rf_generator {
  rf_generate_settings settings;
  rf_plan *prefill, *decode; /* Both plans use one arena and the same weights and KV cache. */
  rf_run *run;
  int first;              /* Index of the prefill plan in the run; the decode plan follows it. */
  bool owns;              /* true: rf_generator_close frees the plans and the run. */
  bool computes;          /* false: no logits, because of simulation or the null backend. */
  struct rf_batch *batch; /* Cache and requests, see batch.h. */
  /* Used by rf_generator_feed: tokens in the cache, and the last token's logits (V). */
  int64_t length;
  const float *logits;
  float lse;
} rf_generator;

static inline rf_plan *rf_generator_plan(const rf_generator *generator, int plan) {
  return plan == RF_DECODE ? generator->decode : generator->prefill;
}

/* Makes the two plans of a generate job: prefill has build.chunk rows (0: RF_PREFILL_ROWS), decode
 * has build.microbatch rows, one per answer. */
rf_status rf_generate_plans(const rf_generate_settings *settings, rf_plan **prefill, rf_plan **decode,
                            rf_error *error);
/* Returns how many groups of chips answer separate requests. The slots are divided evenly among the
 * groups. With several groups, the generator only simulates, and it simulates one group. */
int64_t rf_generate_copies(const rf_plan *decode);
/* Makes both plans, allocates an arena and loads the weights. */
rf_status rf_generator_open(const rf_generate_settings *settings, rf_generator **generator, rf_error *error);
/* Opens a generator on a run that already holds the weights. Plans `first` and first + 1 of the run
 * must be `prefill` and `decode` from rf_generate_plans. The caller still owns the run and the
 * plans, which must outlive the generator. Call rf_generator_reset when the weights change. */
rf_status rf_generator_bind(const rf_generate_settings *settings, rf_run *run, int first, rf_plan *prefill,
                            rf_plan *decode, rf_generator **generator, rf_error *error);
void rf_generator_close(rf_generator *generator);
/* RAFTER_INVALID: the backend computes no numbers (null), so the generator cannot answer. */
rf_status rf_generator_require_numbers(const rf_generator *generator, rf_error *error);

/* One prompt and how to answer it. A field of 0 is unset. */
typedef struct rf_request {
  const int32_t *tokens; /* (count): the full prompt; copied. */
  int64_t count;
  int64_t max_tokens; /* Maximum length of an answer; 0: as long as the context allows. */
  /* Number of answers to this prompt, which is computed only once; 0 means 1. Answer s uses the
   * seed rf_sample_seed(sampler.seed, s). */
  int samples;
  rf_sampler_options sampler; /* The caller keeps lists in `sampler` until the last event. */
  /* (stop_count), copied: token ids that end an answer. The answer includes the id that ended
   * it. */
  const int32_t *stop;
  int64_t stop_count;
  int top; /* Alternatives reported with each token, 0 to RF_TOP_LOGPROBS. */
  /* true: the answer stays in the cache after its end, until its pages are needed. The next turn of
   * the conversation can then reuse the tokens of this turn. */
  bool keep;
  void *owner; /* Returned in every event of the request. */
} rf_request;

/* An answer that ends with ERROR or CANCELLED has no token in its last event. */
typedef enum rf_finish {
  RF_FINISH_NONE,
  RF_FINISH_STOP,
  RF_FINISH_LENGTH,
  RF_FINISH_ERROR,
  RF_FINISH_CANCELLED
} rf_finish;
const char *rf_finish_name(rf_finish finish); /* "stop", "length", ...; "" for NONE. */

/* One token of an answer, or the end of an answer. The last event of each answer, and no other, has
 * a finish that is not NONE. Pointers are valid until the next step. */
typedef struct rf_event {
  int64_t request; /* Id from rf_generator_submit. */
  int sample;
  void *owner;
  int64_t index; /* Position of the token in its answer, from 0; -1: no token. */
  int32_t token; /* Chosen token, which may be a stop id; -1: none. */
  /* Natural log of the token's unfiltered probability; rf_scorer_walk gives a bit-identical
   * value. */
  float logprob;
  int top;                   /* Number of alternatives, most likely first. */
  const int32_t *top_ids;    /* (top) */
  const float *top_logprobs; /* (top) */
  rf_finish finish;          /* NONE: the answer continues. */
  const rf_error *error;     /* Set with RF_FINISH_ERROR (see rf_sampler_choose), otherwise NULL. */
} rf_event;

/* Queues a request. Requests start in the order of submission. RAFTER_INVALID: the prompt is empty
 * or longer than the context, a token is out of range, or an option is bad. */
rf_status rf_generator_submit(rf_generator *generator, const rf_request *request, int64_t *id,
                              rf_error *error);
/* Predicted seconds of the forward passes over a prompt of `tokens` tokens that runs alone. */
double rf_generator_prompt_seconds(const rf_generator *generator, int64_t tokens);
/* true while an answer runs or waits, or an event is not yet delivered. */
bool rf_generator_busy(const rf_generator *generator);
/* Runs one step. *events lists *count events, at most 2 * build.microbatch; *count is 0 if no
 * answer chose a token or ended. The error of one answer is reported in its event. A step fails
 * only when the run fails; a failed step must not be repeated. Allocates nothing. */
rf_status rf_generator_step(rf_generator *generator, const rf_event **events, int *count, rf_error *error);
/* Cancels an answer that runs or waits; sample -1 cancels all answers of the request. The answer
 * stays cached if the request asked to keep it. The next steps report RF_FINISH_CANCELLED. An
 * answer that has ended is not changed. */
void rf_generator_cancel(rf_generator *generator, int64_t request, int sample);

/* Totals since the generator was opened. */
typedef struct rf_generate_counts {
  int64_t walks, rows; /* Forward passes, and their rows in total. */
  /* Answers per forward pass: the sum over all passes, and the maximum. */
  int64_t parts, most_parts;
  /* Prompt tokens, and how many of them were found in the cache. */
  int64_t prompt_tokens, reused;
  int64_t answers, tokens; /* Answers that have begun, and their tokens in total. */
} rf_generate_counts;
rf_generate_counts rf_generator_counts(const rf_generator *generator);

/* Totals of one plan: computed forward passes, their rows, and their measured seconds. */
void rf_generator_passes(const rf_generator *generator, int plan, int64_t *passes, int64_t *rows,
                         double *seconds);
/* Adds to `seconds` (op_count) the predicted time of each op in all forward passes of one plan, at
 * their real rows and contexts. Adds to `limit` (op_count) the time that each op would take at the
 * machine's peak rates. */
rf_status rf_generator_predicted(const rf_generator *generator, int plan, double *seconds, double *limit,
                                 rf_error *error);

/* Seed of answer number `sample` of a request: `seed` itself for sample 0, otherwise a derived seed
 * below 2^62. A request for one sample with this derived seed gives the same answer. */
uint64_t rf_sample_seed(uint64_t seed, int sample);

/* ---- one sequence by hand -------------------------------------------------------------------- */
/* For callers that read logits. Do not mix rf_generator_feed with requests. */

/* Appends `count` tokens to the cached sequence; *logits: f32 (V) after the last token, valid until
 * the next call. RAFTER_INVALID: the context is full, or a token is out of range. */
rf_status rf_generator_feed(rf_generator *generator, const int32_t *tokens, int64_t count,
                            const float **logits, rf_error *error);
/* Natural log of the unfiltered probability that token `id` comes next, as in rf_scorer_walk. */
float rf_generator_logprob(const rf_generator *generator, int32_t id);
/* Forgets the sequence fed by hand and all kept sequences. */
void rf_generator_reset(rf_generator *generator);

#endif
