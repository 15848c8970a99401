/* generate.h - generates answers to prompts, token by token, with a KV cache. Each step is one
 * forward pass. Each running answer has one row in a step, for its latest token. The other rows are
 * chunks of prompts.
 * Example:
 *   rf_generator_submit(g, &(rf_request){.tokens = ids, .count = n, .max_tokens = 64}, &id, error);
 *   while (rf_generator_busy(g)) {
 *     rf_generator_step(g, &event, &events, error);
 *     for (int i = 0; i < events; i++) ... event[i].token ...
 *   } // end of the example.
 *
 * Three things never change a bit of an answer: other requests, the chunks into which the prompt is
 * split, and the use of a cached prefix. Only one thread may use a generator at a time. */
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
  int first;                  /* Index of the prefill plan in the run. The decode plan has the next index. */
  bool owns;                  /* true: rf_generator_close frees the plans and the run. */
  struct rf_drafter *drafter; /* The model that drafts; NULL: none. */
  struct rf_adapters *adapters; /* Slots for adapters, see adapters.h; NULL: none. */
  struct rf_shares
      *shares; /* Distributes the requests to copies of the model; NULL: there is one copy. See shares.h. */
  void *kept;  /* (or NULL) Memory to free with the generator, such as its settings. */
  int64_t others;         /* The value of rf_run_others when the cache was last valid. */
  bool computes;          /* false: a simulation or the null backend computes no logits. */
  struct rf_batch *batch; /* Cache and requests, see batch.h. */
  /* For rf_generator_feed: number of tokens in the cache; the logits (V) of the last token. */
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
/* Lowers the memory budget of `plan` by the memory of the model that drafts. RAFTER_NO_FIT: it is
 * too large. */
rf_status rf_generate_reserve(rf_plan_options *plan, const rf_infer_settings *drafter, rf_error *error);
/* Returns the number of groups of chips that answer separate requests. The slots are divided evenly
 * among the groups. If there are several groups, a simulation simulates one group. */
int64_t rf_generate_copies(const rf_plan *decode);
/* Number of copies that answer their own requests, on ranks of MPI; otherwise 1. */
int64_t rf_generate_shares(const rf_plan_options *plan);
/* Rounds the numbers of answers and of cached sequences up to multiples of the number of copies
 * that answer their own requests. If copies run in step, they answer the same requests, and each
 * copy gets all slots. */
void rf_generate_slots(rf_plan_options *plan);
/* Makes both plans, allocates an arena and loads the weights. */
rf_status rf_generator_open(const rf_infer_settings *settings, rf_generator **generator, rf_error *error);
/* Opens a generator on a run that already has the weights. Plan `first` of the run must be
 * `prefill`, and plan first + 1 must be `decode`. Both must come from rf_generate_plans. If the run
 * is a trainer's, settings.plan.owner must be the trainer's plan. The caller owns the run and the
 * plans, which must outlive the generator. Between answers, other plans of the run may run and
 * change the weights. After the caller has changed weights itself, it calls rf_generator_reset. */
rf_status rf_generator_bind(const rf_infer_settings *settings, rf_run *run, int first, rf_plan *prefill,
                            rf_plan *decode, rf_generator **generator, rf_error *error);
void rf_generator_close(rf_generator *generator);
/* Bytes of the generator's arena, and of the draft model's arena. */
int64_t rf_generator_arena_bytes(const rf_generator *generator);
/* RAFTER_INVALID: the null backend computes no numbers, so the generator cannot answer. */
rf_status rf_generator_require_numbers(const rf_generator *generator, rf_error *error);

/* Arrays for the log-probabilities of a prompt. If `logprobs` is NULL, they are not computed. Row t
 * is for token t after tokens 0 to t - 1, with the bits of rf_scorer_pass. Row 0 is not written. */
typedef struct rf_prompt_scores {
  float *logprobs;     /* (count) */
  int32_t *ranks;      /* (count): number of tokens that are as likely or likelier, itself included */
  int top;             /* Number of the most likely tokens of a row, 0 to RF_TOP_LOGPROBS. */
  int32_t *top_ids;    /* (count, top), in falling order */
  float *top_logprobs; /* (count, top) */
} rf_prompt_scores;

/* A prompt, and how to answer it. A field that is 0 is unset. */
typedef struct rf_request {
  const int32_t *tokens; /* (count): the full prompt. The generator copies it. */
  int64_t count;
  int64_t max_tokens; /* Maximum number of tokens of an answer; 0: as many as the context allows. */
  /* Number of answers to this prompt; 0 means 1. The prompt is computed only once. Answer s uses
   * the seed rf_sample_seed(sampler.seed, s). */
  int samples;
  /* The caller keeps the lists and the constraint in `sampler` until the last event. */
  rf_sampler_options sampler;
  /* (stop_count): token ids that end an answer. The generator copies them. The answer includes the
   * id that ends it. */
  const int32_t *stop;
  int64_t stop_count;
  int top; /* Number of alternatives to report with each token, 0 to RF_TOP_LOGPROBS. */
  /* true: the answer stays in the cache after its end, until its pages are needed. The next turn of
   * the conversation can then reuse its tokens. */
  bool keep;
  int64_t adapter; /* Id from rf_generator_load; 0: the model as it is. */
  void *owner;     /* In every event of the request. */
  bool specials;   /* The text of the answers has the names of special tokens. */
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

/* One token of an answer, or the end of an answer. Only the last event of an answer has a `finish`
 * that is not NONE. Pointers are valid until the next step. */
typedef struct rf_event {
  int64_t request; /* Id from rf_generator_submit. */
  int sample;
  void *owner;
  int64_t index; /* Position of the token in its answer, from 0; -1: no token. */
  int32_t token; /* The chosen token, which may be a stop id; -1: none. */
  /* Natural log of the token's probability before any filter. rf_scorer_pass gives the same
   * bits. */
  float logprob;
  int top;                   /* Number of alternatives. The most likely alternative is first. */
  const int32_t *top_ids;    /* (top) */
  const float *top_logprobs; /* (top) */
  rf_finish finish;          /* NONE: the answer continues. */
  const rf_error *error;     /* The error of RF_FINISH_ERROR (see rf_sampler_choose), otherwise NULL. */
} rf_event;

/* RAFTER_INVALID: rf_generator_submit would refuse the request. */
rf_status rf_generator_check(const rf_generator *generator, const rf_request *request, rf_error *error);
/* Queues a request. Requests start in the order of submission. RAFTER_INVALID: the prompt is empty
 * or longer than the context, a token is out of range, or an option is wrong. */
rf_status rf_generator_submit(rf_generator *generator, const rf_request *request, int64_t *id,
                              rf_error *error);
/* Predicted seconds of the forward passes over a prompt of `tokens` tokens that runs alone. */
double rf_generator_prompt_seconds(const rf_generator *generator, int64_t tokens);
/* True while an answer runs or waits, and while an event is not yet delivered. */
bool rf_generator_busy(const rf_generator *generator);
/* Maximum number of events of a step. */
int rf_generator_events(const rf_generator *generator);
/* Runs one step. *events lists *count events, at most rf_generator_events. *count may be 0. The
 * error of one answer is in its event. The step fails only if the run fails, and must then not be
 * repeated. RAFTER_INVALID: another plan of the run has run since an answer began; cancel the
 * running answers. Allocates nothing. */
rf_status rf_generator_step(rf_generator *generator, const rf_event **events, int *count, rf_error *error);
/* Cancels an answer that runs or waits. Sample -1 means all answers of the request. If the request
 * has `keep`, the answer stays cached. The next steps report RF_FINISH_CANCELLED. An answer that
 * has ended does not change. */
void rf_generator_cancel(rf_generator *generator, int64_t request, int sample);

/* Totals since the generator was opened. */
typedef struct rf_generate_counts {
  int64_t passes, rows; /* Number of forward passes, and of all their rows. */
  /* The number of answers in a forward pass: its sum over all passes, and its maximum. */
  int64_t parts, most_parts;
  /* Number of prompt tokens, and of those that were found in the cache. */
  int64_t prompt_tokens, reused;
  int64_t answers, tokens; /* Number of answers that have begun, and of all their tokens. */
  /* Number of drafted tokens that forward passes have verified, and of those that were right. */
  int64_t drafted, accepted;
  /* Number of parts with drafts. Number of drafted tokens up to the first wrong token of each part,
   * including this token. */
  int64_t verified, compared;
} rf_generate_counts;
rf_generate_counts rf_generator_counts(const rf_generator *generator);
typedef struct rf_generator_use {
  int32_t running, waiting;     /* Answers. */
  int64_t kv_bytes, used_bytes; /* Bytes of the KV cache, and of the pages that running answers hold. */
  /* Tokens for which the KV cache has memory, and cached tokens of running answers. A shared prefix
   * counts once. */
  int64_t kv_tokens, live_tokens;
} rf_generator_use;
rf_generator_use rf_generator_held(const rf_generator *generator);

/* Totals of one plan: number of computed forward passes, number of their rows, measured seconds. */
void rf_generator_passes(const rf_generator *generator, int plan, int64_t *passes, int64_t *rows,
                         double *seconds);
/* For each op, adds up times of all forward passes so far, with their real rows and contexts.
 * `seconds` (op_count) gets the predicted seconds, and `limit` (op_count) gets the seconds at the
 * peak rates of the machine. */
rf_status rf_generator_predicted(const rf_generator *generator, int plan, double *seconds, double *limit,
                                 rf_error *error);
/* Predicted seconds to choose the tokens of all forward passes so far. They are 0 if this machine
 * is not calibrated. They are also 0 if the program chooses the tokens, because then its ops have
 * these seconds. */
double rf_generator_choosing(const rf_generator *generator);

/* Seed of answer `sample` of a request: `seed` for sample 0, otherwise a derived seed below 2^62. A
 * request for one sample with the derived seed gives the same answer. */
uint64_t rf_sample_seed(uint64_t seed, int sample);

/* ---- one sequence by hand -------------------------------------------------------------------- */
/* For callers that read logits. Use rf_generator_feed or requests, not both. */

/* Appends `count` tokens to the cached sequence. *logits is f32 (V), for the last token, valid
 * until the next call. RAFTER_INVALID: the context is full, or a token is out of range. */
rf_status rf_generator_feed(rf_generator *generator, const int32_t *tokens, int64_t count,
                            const float **logits, rf_error *error);
/* Natural log of the unfiltered probability that the next token is `id`, as in rf_scorer_pass. */
float rf_generator_logprob(const rf_generator *generator, int32_t id);
/* Forgets the sequence of rf_generator_feed and all kept sequences. */
void rf_generator_reset(rf_generator *generator);

#endif
