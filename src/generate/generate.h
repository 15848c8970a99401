/* generate.h - sequences through a model with a KV cache: prompts in chunks, then all that run
 * token by token, several in one walk.
 *
 * Requests are what most callers need: submit some, step until none is left, and take what each
 * step says.
 *
 *   rf_generator_submit(g, &(rf_request){.tokens = ids, .count = n, .max_tokens = 64, .sampler =
 *     {.temperature = 0, .top_p = 1}}, &id, error);
 *   while (rf_generator_busy(g)) {
 *     rf_generator_step(g, &event, &events, error);          one walk: a chunk of prompts, or
 *       one token of every answer
 *     for (int i = 0; i < events; i++) ... event[i].token ...
 *   }
 *
 * What comes out for a request depends on nothing else: not on what runs beside it, on how its
 * prompt was cut, nor on whose prefix it shared. */
#ifndef RF_GENERATE_H
#define RF_GENERATE_H

#include "generate/sampler.h"
#include "graph/kv.h"
#include "run/load.h"

typedef struct rf_generate_settings {
  rf_model model;
  rf_plan_options
      plan; /* build.seq: context bound in tokens; build.microbatch: answers that run at once;
               build.sequences: texts that the cache has room for, those that run and those that are kept */
  const char *weights_folder;
  uint64_t seed; /* of the initialiser, when there are no weights */
  rf_run_debug debug;
  bool alone;           /* every prompt is walked whole: nothing is shared. Changes no result */
  rf_progress progress; /* of loading; may be empty */
  /* simulate.c: admission, batching and pages as they are, with walks that compute nothing and
   * take the time the plans predict. Every answer runs to its max_tokens. */
  bool simulated;
  /* simulated: what is in the cache of a prompt came from another machine, and its walk takes no
   * more than its last row here */
  bool prompts_given;
} rf_generate_settings;

typedef struct rf_generator {
  rf_generate_settings settings;
  rf_plan *prefill, *decode; /* one arena, one persistent region: weights and KV */
  rf_run *run;
  struct rf_walk_inputs {
    int32_t *tokens, *positions, *slots, *rows;
    float *logits, *lse;
  } io[2];                  /* of prefill, decode */
  int last;                 /* which of the two walked last */
  int64_t length;           /* rf_generator_feed: tokens in the cache */
  double seconds;           /* simulated: predicted, of all walks so far */
  struct rf_walker *walker; /* the cache's pages: walk.c */
  struct rf_batch *batch;   /* requests: batch.c */
} rf_generator;

/* The two plans of a generate job: prefill has build.chunk rows (0: RF_PREFILL_ROWS), decode one
 * for each of build.microbatch sequences. */
rf_status rf_generate_plans(const rf_generate_settings *settings, rf_plan **prefill, rf_plan **decode,
                            rf_error *error);
/* Groups of chips that each answer requests of their own, with an even share of the slots. A
 * generator (simulated, where there are several) is one. */
int64_t rf_generate_copies(const rf_plan *decode);
rf_status rf_generator_open(const rf_generate_settings *settings, rf_generator **generator, rf_error *error);
void rf_generator_close(rf_generator *generator);

/* ---- requests -------------------------------------------------------------------------------- */

/* One prompt and how it is answered. What is zero asks for nothing. */
typedef struct rf_request {
  const int32_t *tokens; /* (count): the whole prompt; copied */
  int64_t count;
  int64_t max_tokens; /* of an answer; 0: as many as the context holds */
  /* answers, from one walk over the prompt; 0: 1. Answer s draws with
   * rf_sample_seed(sampler.seed, s) */
  int samples;
  rf_sampler_options sampler; /* its lists stay the caller's until the last event */
  const int32_t *stop;        /* (stop_count): ids that end an answer and are its last token; copied */
  int64_t stop_count;
  int top;   /* alternatives told beside each token, 0 .. RF_TOP_LOGPROBS */
  bool keep; /* when an answer has ended its cache stays for prompts that begin with the same tokens (the next
                turn of a conversation), for as long as nobody needs the room */
  void *owner; /* comes back with every event */
} rf_request;

typedef enum rf_finish { RF_FINISH_NONE, RF_FINISH_STOP, RF_FINISH_LENGTH } rf_finish;
const char *rf_finish_name(rf_finish finish); /* "stop", "length"; "" while it goes on */

/* One token of one answer. Pointers are valid until the next step. */
typedef struct rf_event {
  int64_t request; /* as rf_generator_submit named it */
  int sample;
  void *owner;
  int64_t index; /* of the token in its answer, from 0 */
  int32_t token; /* a stop id too */
  /* natural log of its probability under the whole softmax: the bits that score gives the same
   * tokens */
  float logprob;
  int top;                   /* alternatives, the likeliest first */
  const int32_t *top_ids;    /* (top) */
  const float *top_logprobs; /* (top) */
  rf_finish finish;          /* NONE: the answer goes on */
} rf_event;

/* Queues a request; the first that came are answered first. RAFTER_INVALID: an empty prompt or
 * one longer than the context, a token out of range, bad options. */
rf_status rf_generator_submit(rf_generator *generator, const rf_request *request, int64_t *id,
                              rf_error *error);
/* Predicted seconds from the first walk of such a prompt, alone, to its last: then the first
 * token is chosen. */
double rf_generator_prompt_seconds(const rf_generator *generator, int64_t tokens);
/* Whether anything runs or waits. */
bool rf_generator_busy(const rf_generator *generator);
/* One walk. *events has *count entries, at most build.microbatch, none when the walk was all
 * prompt. RAFTER_FAILED, RAFTER_INVALID: as rf_sampler_choose; that answer has then ended. */
rf_status rf_generator_step(rf_generator *generator, const rf_event **events, int *count, rf_error *error);
/* Ends an answer that runs or waits (its text met a stop string, its reader left), keeping its
 * cache when the request said so; sample -1: all answers of the request. No event of it comes
 * any more. */
void rf_generator_cancel(rf_generator *generator, int64_t request, int sample);

/* What was done since the generator was opened. */
typedef struct rf_generate_counts {
  int64_t walks, rows;       /* rows: of all walks */
  int64_t parts, most_parts; /* answers that took part: of all walks, and in the fullest */
  /* of prompts; reused: not walked because another sequence had them in the cache */
  int64_t prompt_tokens, reused;
  int64_t answers, tokens; /* answers that began, and their tokens */
} rf_generate_counts;
rf_generate_counts rf_generator_counts(const rf_generator *generator);

/* Walks of the prefill (0) or decode plan (1) that were computed, their rows and what they took. */
void rf_generator_walked(const rf_generator *generator, int plan, int64_t *walks, int64_t *rows,
                         double *seconds);
/* Of each op of that plan (op_count entries, zero on entry): predicted seconds and limit of all
 * those walks, at the rows and contexts they had. */
rf_status rf_generator_predicted(const rf_generator *generator, int plan, double *seconds, double *limit,
                                 rf_error *error);

/* The seed of sample `sample` of a request: its own for sample 0, else one below 2^62, with
 * which that answer can be had alone. */
uint64_t rf_sample_seed(uint64_t seed, int sample);

/* ---- one sequence by hand -----------------------------------------------------------------------
 * For who looks at logits. Not while requests run. */

/* Feeds `count` tokens behind those in the cache; *logits: f32 (V) of the last one, valid until
 * the next call. RAFTER_INVALID: the context is full, or a token is out of range. */
rf_status rf_generator_feed(rf_generator *generator, const int32_t *tokens, int64_t count,
                            const float **logits, rf_error *error);
/* Natural log of the probability of `id` behind what was fed last, under the whole softmax: the
 * bits that score gives the same tokens. */
float rf_generator_logprob(const rf_generator *generator, int32_t id);
/* Forgets the cache's contents. */
void rf_generator_reset(rf_generator *generator);

#endif
