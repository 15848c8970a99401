/* generate.h - sequences through a model with a KV cache. Each step is one forward pass: a row of
 * every running answer, then chunks of prompts, for as long as the pass has rows.
 *
 *   rf_generator_submit(g, &(rf_request){.tokens = ids, .count = n, .max_tokens = 64}, &id, error);
 *   while (rf_generator_busy(g)) {
 *     rf_generator_step(g, &event, &events, error);
 *     for (int i = 0; i < events; i++) ... event[i].token ...
 *   }
 *
 * The answer to a request depends on nothing else: not on requests that run at the same time, not
 * on how its prompt was split, and not on a prefix that it shared. One thread at a time may use a
 * generator. */
#ifndef RF_GENERATE_H
#define RF_GENERATE_H

#include "generate/sampler.h"
#include "graph/kv.h"
#include "run/load.h"

typedef struct rf_generate_settings {
  rf_model model;
  /* build.seq: context in tokens; build.microbatch: answers that run at once; build.sequences:
   * sequences that the cache has room for, running and kept ones */
  rf_plan_options plan;
  const char *weights_folder;
  uint64_t seed; /* of the initialiser, when there are no weights */
  rf_run_debug debug;
  bool no_sharing;      /* no prompt uses another's cached prefix. Changes no result */
  rf_progress progress; /* of loading; may be empty */
} rf_generate_settings;

enum { RF_PREFILL, RF_DECODE }; /* the two plans of a generator */

typedef struct rf_generator {
  rf_generate_settings settings;
  rf_plan *prefill, *decode; /* one arena, one persistent region: weights and KV cache */
  rf_run *run;
  int first;              /* index of the prefill plan in the run; the decode plan is the next one */
  bool owns;              /* plans and run */
  bool computes;          /* false: simulated, or the null backend */
  struct rf_batch *batch; /* cache and requests: batch.h */
  /* rf_generator_feed: tokens in the cache, and the last token's logits */
  int64_t length;
  const float *logits;
  float lse;
} rf_generator;

static inline rf_plan *rf_generator_plan(const rf_generator *generator, int plan) {
  return plan == RF_DECODE ? generator->decode : generator->prefill;
}

/* The two plans of a generate job: prefill has build.chunk rows (0: RF_PREFILL_ROWS), decode one
 * for each of build.microbatch sequences. */
rf_status rf_generate_plans(const rf_generate_settings *settings, rf_plan **prefill, rf_plan **decode,
                            rf_error *error);
/* Groups of chips that each answer requests of their own, with an even share of the slots. A
 * generator (simulated, where there are several) is one of them. */
int64_t rf_generate_copies(const rf_plan *decode);
/* Plans, maps an arena and loads the weights. */
rf_status rf_generator_open(const rf_generate_settings *settings, rf_generator **generator, rf_error *error);
/* A generator over a run that holds the weights: plans `first` and first + 1 of the run are
 * `prefill` and `decode`, from rf_generate_plans. Run and plans stay the caller's and must
 * outlive the generator. When the weights change, call rf_generator_reset. */
rf_status rf_generator_bind(const rf_generate_settings *settings, rf_run *run, int first, rf_plan *prefill,
                            rf_plan *decode, rf_generator **generator, rf_error *error);
void rf_generator_close(rf_generator *generator);
/* RAFTER_INVALID: its backend computes no numbers, so that it cannot answer. */
rf_status rf_generator_require_numbers(const rf_generator *generator, rf_error *error);

/* ---- requests -------------------------------------------------------------------------------- */

/* One prompt and how to answer it. A field of zero is unset. */
typedef struct rf_request {
  const int32_t *tokens; /* (count): the whole prompt; copied */
  int64_t count;
  int64_t max_tokens; /* of an answer; 0: as many as the context has room for */
  /* answers to the prompt, which runs once; 0: 1. Answer s draws with
   * rf_sample_seed(sampler.seed, s) */
  int samples;
  rf_sampler_options sampler; /* the caller keeps its lists until the last event */
  const int32_t *stop;        /* (stop_count): ids that end an answer as its last token; copied */
  int64_t stop_count;
  int top;     /* alternatives reported with each token, 0 .. RF_TOP_LOGPROBS */
  bool keep;   /* keep the ended answer cached for prompts that begin with it (the next turn of a
                  conversation), until its room is needed */
  void *owner; /* comes back with every event */
} rf_request;

/* ERROR and CANCELLED end an answer without a token. */
typedef enum rf_finish {
  RF_FINISH_NONE,
  RF_FINISH_STOP,
  RF_FINISH_LENGTH,
  RF_FINISH_ERROR,
  RF_FINISH_CANCELLED
} rf_finish;
const char *rf_finish_name(rf_finish finish); /* "stop", "length", ...; "" for NONE */

/* One token of one answer, or its end. Every answer has exactly one event whose finish is set: its
 * last. Pointers are valid until the next step. */
typedef struct rf_event {
  int64_t request; /* from rf_generator_submit */
  int sample;
  void *owner;
  int64_t index; /* of the token in its answer, from 0; -1: no token */
  int32_t token; /* a stop id too; -1: none */
  /* natural log of its probability under the whole softmax: the bits that score gives the same
   * tokens */
  float logprob;
  int top;                   /* alternatives, the likeliest first */
  const int32_t *top_ids;    /* (top) */
  const float *top_logprobs; /* (top) */
  rf_finish finish;          /* NONE: the answer continues */
  const rf_error *error;     /* RF_FINISH_ERROR: why, as from rf_sampler_choose; otherwise NULL */
} rf_event;

/* Queues a request; requests start in order. RAFTER_INVALID: an empty prompt or one longer than
 * the context, a token out of range, bad options. */
rf_status rf_generator_submit(rf_generator *generator, const rf_request *request, int64_t *id,
                              rf_error *error);
/* Predicted seconds of all forward passes over a prompt of this length that runs alone. */
double rf_generator_prompt_seconds(const rf_generator *generator, int64_t tokens);
/* Whether an answer runs or waits, or an event is due. */
bool rf_generator_busy(const rf_generator *generator);
/* One step. *events has *count entries, at most 2 build.microbatch; none when the forward pass had
 * only prompt rows. What goes wrong with one answer is an event of it; a step fails only when the
 * machine does, and may then not be repeated. Allocates nothing. */
rf_status rf_generator_step(rf_generator *generator, const rf_event **events, int *count, rf_error *error);
/* Ends an answer that runs or waits (its text met a stop string, its client left), and keeps its
 * cache when the request said so; sample -1: all answers of the request. The next steps report
 * RF_FINISH_CANCELLED. Does nothing to an answer that has ended. */
void rf_generator_cancel(rf_generator *generator, int64_t request, int sample);

/* Counted since the generator was opened. */
typedef struct rf_generate_counts {
  int64_t walks, rows;       /* forward passes, and rows of all of them */
  int64_t parts, most_parts; /* answers that took part: of all passes, and in the fullest */
  /* of prompts; reused: found in the cache */
  int64_t prompt_tokens, reused;
  int64_t answers, tokens; /* answers that began, and their tokens */
} rf_generate_counts;
rf_generate_counts rf_generator_counts(const rf_generator *generator);

/* Computed forward passes of one plan, their rows and measured seconds. */
void rf_generator_passes(const rf_generator *generator, int plan, int64_t *passes, int64_t *rows,
                         double *seconds);
/* Adds, for each op of that plan (op_count entries), the predicted seconds and the limit of all
 * those passes at the rows and contexts they had. */
rf_status rf_generator_predicted(const rf_generator *generator, int plan, double *seconds, double *limit,
                                 rf_error *error);

/* The seed of sample `sample` of a request: the request's own for sample 0, otherwise one below
 * 2^62. A request with that seed and one sample has the same answer. */
uint64_t rf_sample_seed(uint64_t seed, int sample);

/* ---- one sequence by hand -----------------------------------------------------------------------
 * For callers that read logits. Not while requests run. */

/* Feeds `count` tokens after those in the cache; *logits: f32 (V) of the last one, valid until
 * the next call. RAFTER_INVALID: the context is full, or a token is out of range. */
rf_status rf_generator_feed(rf_generator *generator, const int32_t *tokens, int64_t count,
                            const float **logits, rf_error *error);
/* Natural log of the probability of `id` after the last token fed, under the whole softmax: the
 * bits that score gives the same tokens. */
float rf_generator_logprob(const rf_generator *generator, int32_t id);
/* Forgets the sequence fed by hand and all kept ones. */
void rf_generator_reset(rf_generator *generator);

#endif
