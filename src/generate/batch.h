/* batch.h - a generator from inside: the cached sequences, the requests, and how a step is carried
 * out. What generate.c, batch.c, admit.c, compute.c and simulate.c share. */
#ifndef RF_BATCH_H
#define RF_BATCH_H

#include "generate/generate.h"
#include "generate/pages.h"

/* cached sequences besides those of running answers, at most; they use the cache's spare pages */
enum { RF_KEPT = 32 };

/* ---- a step ---------------------------------------------------------------------------------- */

/* The next tokens of one sequence: some rows of a forward pass. */
typedef struct rf_forward_part {
  rf_sequence *sequence;
  const int32_t *tokens; /* (count) */
  int64_t count;
  bool wanted;         /* the logits after its last token are asked for */
  const float *logits; /* out: f32 (V), valid until the next forward pass */
  float lse;           /* out: log of the sum of their exponentials */
} rf_forward_part;

typedef struct rf_answer rf_answer;

/* How a step is carried out: by a run (compute.c), or on paper (simulate.c). Neither function
 * allocates. */
typedef struct rf_engine {
  void *self;
  /* of one forward pass: rows of all parts, and tokens of one prompt */
  int64_t rows, chunk;
  rf_status (*forward)(void *self, int plan, rf_forward_part *part, int count, rf_error *error);
  /* Sets answer->last and what an event says of it; parts of one pass may be chosen by several
   * workers at once. RAFTER_FAILED, RAFTER_INVALID: as rf_sampler_choose. */
  rf_status (*choose)(void *self, rf_answer *answer, const rf_forward_part *part, int worker,
                      rf_error *error);
  void (*close)(void *self);
} rf_engine;

/* ---- requests -------------------------------------------------------------------------------- */

enum { RF_SAMPLE_WAITS, RF_SAMPLE_RUNS, RF_SAMPLE_CANCELLED, RF_SAMPLE_ENDED };

/* One request, until the last event of its last answer. */
typedef struct rf_pending {
  struct rf_pending *next, *before;
  rf_request of; /* tokens and stop are our own; samples and max_tokens are not 0 */
  int64_t id;
  int started;    /* samples below it do not wait any more */
  int cancelled;  /* samples whose last event is still to come */
  int ended;      /* samples whose last event has come */
  uint8_t *state; /* (samples): RF_SAMPLE_*; in one block with tokens and stop */
  size_t room;    /* bytes of that block */
} rf_pending;

typedef enum rf_cached_state { RF_CACHED_FREE, RF_CACHED_RUNS, RF_CACHED_KEPT } rf_cached_state;

/* A cached sequence. */
typedef struct rf_cached_seq {
  rf_sequence sequence;
  rf_cached_state state;
  int64_t used;          /* clock of its last use: the oldest goes first */
  const rf_pending *pin; /* it is the prompt of a request whose answers have not all begun */
} rf_cached_seq;

/* One running answer: a slot of the batch. */
struct rf_answer {
  rf_pending *to; /* NULL: the slot is free */
  rf_cached_seq *cached;
  int slot, sample;
  int64_t serial; /* in the order in which answers began */
  int64_t count;  /* tokens of the answer so far */
  int32_t last;   /* the token chosen last */
  float logprob;
  rf_status status;
  rf_error error;
  int top;
  int32_t top_ids[RF_TOP_LOGPROBS];
  float top_logprobs[RF_TOP_LOGPROBS];
};

typedef struct rf_batch {
  rf_engine engine;
  rf_pages pages;
  rf_sequence hand;           /* rf_generator_feed */
  rf_pending *first, *newest; /* all requests that have not ended, in the order they came */
  rf_pending *spent;          /* ended ones, used again by later requests */
  int64_t next_id, clock;
  int slots, cached_count, threads;
  int cancelled; /* samples of all requests whose last event is still to come */
  rf_answer *slot;
  rf_cached_seq *cached;
  rf_forward_part *part; /* of this step */
  int *order;            /* (parts): slot of each */
  int parts;
  rf_event *event; /* (2 slots): one for each part, and as many that end without a token */
  int events;
  const rf_sequence **live; /* (cached_count + 1): room to list them */
  rf_generate_counts counts;
} rf_batch;

/* A generator with its cache and room for requests; its engine is still missing. */
rf_status rf_generator_new(const rf_generate_settings *settings, rf_plan *prefill, rf_plan *decode,
                           rf_generator **generator, rf_error *error);
/* The engine that computes on generator->run. */
rf_status rf_compute_open(rf_generator *generator, rf_error *error);

rf_status rf_batch_open(rf_generator *generator, rf_error *error);
void rf_batch_close(rf_generator *generator);
/* Gives back the pages of kept sequences. */
void rf_batch_forget(rf_generator *generator);

/* At most build.microbatch parts whose rows together fit into a prefill pass; single rows, one
 * per part, take the decode plan. */
rf_status rf_forward(rf_generator *generator, rf_forward_part *part, int count, rf_error *error);

/* Starts waiting answers in order, for as long as there are slots and pages. */
void rf_admit(rf_generator *generator);
/* After a forward pass: keeps a prompt whose further answers cannot start at once. */
void rf_pin(rf_generator *generator);
void rf_unpin(rf_generator *generator, const rf_pending *pending);
/* Steps over samples that were cancelled while they waited. */
void rf_skip_cancelled(rf_pending *pending);

#endif
