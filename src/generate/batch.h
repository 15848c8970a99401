/* batch.h - requests inside a generator: what batch.c and admit.c share. */
#ifndef RF_BATCH_H
#define RF_BATCH_H

#include "generate/walk.h"

/* texts that are kept beside those that run, at most; their pages are the cache's spare ones */
enum { RF_KEPT = 32 };

/* One request, until its last answer has ended. */
typedef struct rf_asked {
  struct rf_asked *next;
  rf_request of; /* tokens and stop are our own; samples and max_tokens are not 0 */
  int64_t id;
  int started, ended; /* answers; those before `started` run, have ended or are gone */
  bool *gone;         /* (samples): cancelled before it began */
} rf_asked;

typedef enum rf_text_state { RF_TEXT_FREE, RF_TEXT_RUNS, RF_TEXT_KEPT } rf_text_state;

/* A text in the cache. */
typedef struct rf_text {
  rf_sequence sequence;
  rf_text_state state;
  int64_t used;        /* when it was last of use: the least goes first */
  const rf_asked *pin; /* it is the prompt of a request whose answers have not all begun */
} rf_text;

/* One answer that runs. */
typedef struct rf_answer {
  rf_asked *to; /* NULL: the slot is free */
  rf_text *text;
  int sample;
  int64_t serial; /* in the order in which answers began */
  int64_t count;  /* tokens of the answer so far */
  int32_t last;   /* the token chosen last */
  float logprob;
  rf_sampler sampler;
  bool opened; /* the sampler */
  rf_status status;
  rf_error error;
  int top;
  int32_t top_ids[RF_TOP_LOGPROBS];
  float top_logprobs[RF_TOP_LOGPROBS];
} rf_answer;

typedef struct rf_batch {
  rf_asked *first, **end; /* all requests that have not ended, in the order they came */
  int64_t next_id, clock;
  int slots, texts, workers;
  rf_answer *slot;
  rf_text *text;
  rf_walk_part *part; /* of the walk at hand */
  int *order;         /* (parts): slot of each */
  int parts;
  rf_event *event;
  int events;
  rf_sampler_work **work;   /* one for each thread that chooses */
  const rf_sequence **live; /* (texts + 1): room to list them */
  rf_generate_counts counts;
} rf_batch;

/* Answers in line begin, for as long as there are slots and pages. */
rf_status rf_admit(rf_generator *generator, rf_error *error);
/* Behind a walk: a prompt whose further answers cannot begin at once is kept for them. */
void rf_pin(rf_generator *generator);
void rf_unpin(rf_generator *generator, const rf_asked *asked);
void rf_skip_gone(rf_asked *asked);

#endif
