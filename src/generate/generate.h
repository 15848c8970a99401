/* generate.h - generates answers to prompts, token by token, with a KV cache. Each step
 * finishes one forward pass. If decoding runs ahead (ahead.c), a step may start two passes or none.
 * In a pass, each running answer has one row for its latest token. All other rows read chunks of
 * prompts. Example:
 *   rf_generator_submit(g, &(rf_request){.tokens = ids, .count = n, .max_tokens = 64}, &id, error);
 *   while (rf_generator_busy(g)) {
 *     rf_generator_step(g, &event, &events, error);
 *     for (int i = 0; i < events; i++) ... event[i].token ...
 *   } // end of the example.
 *
 * The bits of an answer do not depend on other requests, on the chunks of its prompt, or on the use
 * of a cached prefix. Only one thread may use a generator at a time. */
#ifndef RF_GENERATE_H
#define RF_GENERATE_H

#include "generate/sampler.h"
#include "generate/settings.h"
#include "graph/kv.h"

/* The two plans of a generator: RF_PREFILL has many rows, RF_DECODE has one row per answer. */
enum { RF_PREFILL, RF_DECODE };

typedef struct rf_generator {
  rf_infer_settings settings;
  rf_plan *prefill, *decode; /* Both plans use one arena and the same weights and KV cache. */
  rf_run *run;
  int first;                  /* Index of the prefill plan in the run. The decode plan has index first + 1. */
  bool owns;                  /* true: rf_generator_close frees the plans and the run. */
  struct rf_drafter *drafter; /* Draft model; NULL: no draft model. */
  struct rf_adapters *adapters; /* Slots for adapters, see adapters.h; NULL: no slots. */
  struct rf_shares
      *shares;    /* Distributes requests to copies of the model; NULL: there is one copy. See shares.h. */
  void *kept;     /* Memory that rf_generator_close frees, such as the settings, or NULL. */
  int64_t others; /* Value of rf_run_others when the cache was last valid. */
  bool computes;  /* false: a simulation, or the backend null, which computes no logits. */
  struct rf_batch *batch; /* Cache and requests, see batch.h. */
  /* Fields of rf_generator_feed. `length`: number of cached tokens. `logits`: (V), of the last
   * token. */
  int64_t length;
  const float *logits;
  float lse;
} rf_generator;

static inline rf_plan *rf_generator_plan(const rf_generator *generator, int plan) {
  return plan == RF_DECODE ? generator->decode : generator->prefill;
}

/* Makes the two plans of a generate job. Prefill has build.chunk rows (0: RF_PREFILL_ROWS). Decode
 * has build.microbatch rows, one for each answer. */
rf_status rf_generate_plans(const rf_infer_settings *settings, rf_plan **prefill, rf_plan **decode,
                            rf_error *error);
/* Lowers the memory budget of `plan` by the memory of the draft model. Returns RAFTER_NO_FIT if the
 * draft model is too large. */
rf_status rf_generate_reserve(rf_plan_options *plan, const rf_infer_settings *drafter, rf_error *error);
/* Returns the number of groups of chips that answer separate requests. The slots are divided evenly
 * among the groups. If there are several groups, a simulation simulates one group. */
int64_t rf_generate_copies(const rf_plan *decode);
/* Returns the number of copies of the model that answer separate requests, on ranks of MPI. Without
 * ranks, returns 1. */
int64_t rf_generate_shares(const rf_plan_options *plan);
/* Rounds the numbers of answers and of cached sequences up to multiples of the number of copies
 * that answer separate requests. Copies that answer the same requests each get all slots. */
void rf_generate_slots(rf_plan_options *plan);
/* Makes both plans, allocates an arena and loads the weights. */
rf_status rf_generator_open(const rf_infer_settings *settings, rf_generator **generator, rf_error *error);
/* Opens a generator on a run that already has the weights. Plan `first` of the run must be
 * `prefill`, and plan first + 1 must be `decode`. Both must come from rf_generate_plans. If the run
 * is a trainer's, settings.plan.owner must be the trainer's plan. The caller owns the run and the
 * plans, which must outlive the generator. Between answers, other plans of the run may run and
 * change the weights. A caller that changes weights itself must then call rf_generator_reset. */
rf_status rf_generator_bind(const rf_infer_settings *settings, rf_run *run, int first, rf_plan *prefill,
                            rf_plan *decode, rf_generator **generator, rf_error *error);
void rf_generator_close(rf_generator *generator);
/* Returns the bytes of the generator's arena plus those of the draft model's arena. */
int64_t rf_generator_arena_bytes(const rf_generator *generator);
/* Returns RAFTER_INVALID on the backend null, which computes no numbers and so no answers. */
rf_status rf_generator_require_numbers(const rf_generator *generator, rf_error *error);

/* Arrays for the log-probabilities of a prompt. If `logprobs` is NULL, nothing is computed. Row t
 * has the values of token t after tokens 0 to t - 1, with the same bits as rf_scorer_pass. Row 0 is
 * not written. */
typedef struct rf_prompt_scores {
  float *logprobs; /* (count) */
  /* (count): rank of the token: 1 + number of other tokens with an equal or higher probability */
  int32_t *ranks;
  int top;             /* Number of likeliest tokens to list per row, 0 to RF_TOP_LOGPROBS. */
  int32_t *top_ids;    /* (count, top), in falling order */
  float *top_logprobs; /* (count, top) */
} rf_prompt_scores;

/* A prompt, with the settings of its answers. A field with the value 0 is unset. */
typedef struct rf_request {
  const int32_t *tokens; /* (count): the full prompt. The generator copies it. */
  int64_t count;
  int64_t max_tokens; /* Maximum number of tokens of an answer; 0: as many as the context allows. */
  /* Number of answers to this prompt; 0 means 1. The prompt is computed only once. Answer s uses
   * the seed rf_sample_seed(sampler.seed, s). */
  int samples;
  /* The caller must keep the lists and the constraint of `sampler` until the last event. */
  rf_sampler_options sampler;
  /* (stop_count): token ids that end an answer. The generator copies them. The answer includes the
   * stop id. */
  const int32_t *stop;
  int64_t stop_count;
  int top; /* Number of alternatives to report with each token, 0 to RF_TOP_LOGPROBS. */
  /* true: the answer stays in the cache after its end, until its pages are needed. So the next turn
   * of the conversation can reuse the answer's tokens. */
  bool keep;
  int64_t adapter; /* Id from rf_generator_load; 0: the model without an adapter. */
  void *owner;     /* Pointer that every event of the request contains. */
  bool specials;   /* true: the text of the answers contains the names of special tokens. */
  rf_prompt_scores scores;
} rf_request;

/* If an answer ends with ERROR or CANCELLED, its last event has no token. */
typedef enum rf_finish {
  RF_FINISH_NONE,
  RF_FINISH_STOP,
  RF_FINISH_LENGTH,
  RF_FINISH_ERROR,
  RF_FINISH_CANCELLED
} rf_finish;
const char *rf_finish_name(rf_finish finish); /* "stop", "length", ...; "" for NONE. */

/* One token of an answer, or the end of an answer. `finish` is NONE in all events of an answer
 * except the last. Pointers are valid until the next step. */
typedef struct rf_event {
  int64_t request; /* Id from rf_generator_submit. */
  int sample;
  void *owner;
  int64_t index; /* Position of the token in its answer, from 0; -1: no token. */
  int32_t token; /* The chosen token, which may be a stop id; -1: no token. */
  /* Natural log of the token's probability before any filter. rf_scorer_pass gives the same
   * bits. */
  float logprob;
  int top;                   /* Number of alternatives. The most likely alternative is first. */
  const int32_t *top_ids;    /* (top) */
  const float *top_logprobs; /* (top) */
  rf_finish finish;          /* NONE: the answer continues. */
  const rf_error *error; /* Error if `finish` is RF_FINISH_ERROR (see rf_sampler_choose), otherwise NULL. */
} rf_event;

/* RAFTER_INVALID: rf_generator_submit would refuse the request. */
rf_status rf_generator_check(const rf_generator *generator, const rf_request *request, rf_error *error);
/* Queues a request. Requests start in the order of submission. Returns RAFTER_INVALID if the prompt
 * is empty or longer than the context, or if a token or an option is out of range. */
rf_status rf_generator_submit(rf_generator *generator, const rf_request *request, int64_t *id,
                              rf_error *error);
/* Returns the predicted seconds of the forward passes over a prompt of `tokens` tokens, without
 * other requests. */
double rf_generator_prompt_seconds(const rf_generator *generator, int64_t tokens);
/* Returns true while an answer runs or waits, or while an event is not yet delivered. */
bool rf_generator_busy(const rf_generator *generator);
/* Maximum number of events of a step. */
int rf_generator_events(const rf_generator *generator);
/* Runs one step. *events lists *count events, at most rf_generator_events. *count may be 0. If one
 * answer fails, its event has the error. The step fails only if the whole run fails. Do not repeat
 * a failed step. RAFTER_INVALID: another plan of the run has run since an answer began, and the
 * caller must cancel the running answers. Allocates nothing. */
rf_status rf_generator_step(rf_generator *generator, const rf_event **events, int *count, rf_error *error);
/* Cancels a running or waiting answer. Sample -1 means all answers of the request. If the request
 * has `keep`, the answer stays cached. The next steps report RF_FINISH_CANCELLED. An ended answer
 * does not change. */
void rf_generator_cancel(rf_generator *generator, int64_t request, int sample);

/* Totals since the generator was opened. */
typedef struct rf_generate_counts {
  int64_t passes, rows; /* Number of forward passes, and total number of their rows. */
  /* Number of answers in a forward pass: sum over all passes, and maximum. */
  int64_t parts, most_parts;
  /* Number of prompt tokens, and number of prompt tokens that were found in the cache. */
  int64_t prompt_tokens, reused;
  int64_t answers, tokens; /* Number of answers that have begun, and total number of their tokens. */
  /* Number of drafted tokens that forward passes have verified, and number of right tokens among
   * these. */
  int64_t drafted, accepted;
  /* `verified`: number of parts with drafts. `compared`: number of drafted tokens in these parts up
   * to the first wrong token, which is included. */
  int64_t verified, compared;
} rf_generate_counts;
rf_generate_counts rf_generator_counts(const rf_generator *generator);
typedef struct rf_generator_use {
  int32_t running, waiting;     /* Answers. */
  int64_t kv_bytes, used_bytes; /* Bytes of the KV cache, and bytes of the pages that running answers hold. */
  /* Number of tokens that fit in the KV cache, and number of cached tokens of running answers. A
   * shared prefix counts once. */
  int64_t kv_tokens, live_tokens;
} rf_generator_use;
rf_generator_use rf_generator_held(const rf_generator *generator);

/* Returns totals of one plan: number of forward passes, number of their rows, measured seconds. */
void rf_generator_passes(const rf_generator *generator, int plan, int64_t *passes, int64_t *rows,
                         double *seconds);
/* For each op, adds up the times of all forward passes so far, with the real rows and contexts of
 * each pass. Writes the predicted seconds to `seconds` (op_count), and the seconds at the machine's
 * peak rates to `limit` (op_count). */
rf_status rf_generator_predicted(const rf_generator *generator, int plan, double *seconds, double *limit,
                                 rf_error *error);
/* Returns the predicted seconds to choose the tokens of all forward passes so far. Returns 0 if
 * this machine is not calibrated. Also returns 0 if the program chooses the tokens, because its ops
 * then include this time. */
double rf_generator_choosing(const rf_generator *generator);

/* Returns the seed of answer `sample` of a request: `seed` for sample 0, otherwise a derived seed
 * below 2^62. A request for one sample with the derived seed gives the same answer. */
uint64_t rf_sample_seed(uint64_t seed, int sample);

/* ---- one sequence by hand -------------------------------------------------------------------- */
/* These functions are for callers that read logits. A generator accepts rf_generator_feed or
 * requests, but not both. */

/* Appends `count` tokens to the cached sequence. *logits is f32 (V), for the last token. The array
 * is valid until the next call. RAFTER_INVALID: the context is full, or a token is out of range. */
rf_status rf_generator_feed(rf_generator *generator, const int32_t *tokens, int64_t count,
                            const float **logits, rf_error *error);
/* Returns the natural log of the unfiltered probability that the next token is `id`, as
 * rf_scorer_pass does. */
float rf_generator_logprob(const rf_generator *generator, int32_t id);
/* Removes the sequence of rf_generator_feed and all kept sequences from the cache. */
void rf_generator_reset(rf_generator *generator);

#endif
