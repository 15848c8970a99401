/* batch.h - the internals of a generator: cached sequences, requests, the engine. Shared by
 * generate.c, batch.c, admit.c, ahead.c, compute.c and simulate.c. */
#ifndef RF_BATCH_H
#define RF_BATCH_H

#include "generate/budget.h"
#include "generate/draft.h"
#include "generate/drafter.h"
#include "generate/generate.h"
#include "generate/reserve.h"

/* Maximum number of cached sequences that do not run. Such sequences use spare pages. */
enum { RF_KEPT = 32 };

/* The next tokens of one sequence: consecutive rows of a forward pass. */
typedef struct rf_forward_part {
  rf_sequence *sequence;
  /* answer that chooses its next tokens from this part; NULL: the caller reads logits */
  const struct rf_slot *answer;
  const int32_t *tokens; /* (count) */
  int64_t count;
  int64_t end;      /* of a pass that was started: tokens of the sequence up to these rows */
  int wanted;       /* number of last rows whose logits are needed: 1 + drafted tokens, or 0 */
  int scored;       /* number of rows before the wanted rows whose logits are needed to score the prompt */
  const float *lse; /* output, (wanted): natural log of the sum of exp(logits) of each row */
  /* Outputs, valid until the next forward pass. `logits`: f32 (wanted, V). If the program chooses
   * the tokens, `chosen` and `logprobs` (wanted) are set, and `logits` is NULL. The logits and lse
   * of the `scored` rows precede those of the wanted rows. */
  const float *logits;
  const int32_t *chosen;
  const float *logprobs;
} rf_forward_part;

/* A chosen token, with its log-probability and alternatives. */
typedef struct rf_choice {
  int32_t id;
  float logprob;
  int top;
  int32_t top_ids[RF_TOP_LOGPROBS];
  float top_logprobs[RF_TOP_LOGPROBS];
} rf_choice;

typedef struct rf_slot rf_slot;

/* An engine either computes forward passes (compute.c) or predicts their time (simulate.c). The
 * functions allocate nothing. */
typedef struct rf_engine {
  void *self;
  int64_t rows, /* Maximum number of rows of a forward pass. */
      chunk;    /* Maximum number of tokens of one prompt in a forward pass. */
  rf_status (*forward)(void *self, int plan, rf_forward_part *part, int count, rf_error *error);
  /* Chooses the token after row `row` of the part's wanted rows, and sets answer->choice[row]. The
   * calls for the rows of a part must be in order. Several workers may call `choose` at the same
   * time for different sequences of a pass. Errors: see rf_sampler_choose. */
  rf_status (*choose)(void *self, rf_slot *answer, const rf_forward_part *part, int row, int worker,
                      rf_error *error);
  /* `starts`: true if a pass of these parts can run ahead. Then `start` returns before the pass is
   * done. `finish` waits for the oldest started pass, and sets the outputs of its parts. A failed `start`
   * starts nothing, and earlier passes stay. After a failed `finish`, `finish` for a later pass fails
   * too. `follows`:
   * the parts are those of the last started pass, and the device takes the tokens that this pass
   * chooses. At most RF_STEPS_AHEAD passes are started and not finished. `seconds`: gets the
   * seconds in which the host waited in `start`; `finish` adds its own. NULL: passes cannot run ahead. */
  bool (*starts)(const void *self, const rf_forward_part *part, int count);
  rf_status (*start)(void *self, rf_forward_part *part, int count, bool follows, rf_error *error);
  rf_status (*finish)(void *self, rf_forward_part *part, int count, double *seconds, rf_error *error);
  /* Writes the scores of the tokens that follow the `scored` rows of a part. NULL: the engine
   * computes no scores. */
  void (*score)(void *self, const rf_forward_part *part);
  void (*close)(void *self);
  bool timed; /* true: passes run on this machine and take time; false: passes are simulated */
} rf_engine;

enum { RF_SAMPLE_WAITS, RF_SAMPLE_RUNS, RF_SAMPLE_CANCELLED, RF_SAMPLE_ENDED };

/* A submitted request. A request exists until the last event of its last answer. */
typedef struct rf_pending {
  struct rf_pending *next, *before;
  rf_request of; /* `tokens` and `stop` are copies; `samples` and `max_tokens` are not 0. */
  int64_t id;
  int started;    /* Index of the first sample that is still in the queue. */
  int cancelled;  /* Number of cancelled samples whose last event is still due. */
  int ended;      /* Number of samples whose last event was delivered. */
  uint8_t *state; /* (samples): RF_SAMPLE_*. One allocation holds `tokens`, `stop` and `state`. */
  size_t room;    /* Allocated bytes for `state`, `tokens` and `stop`. */
} rf_pending;

typedef enum rf_cached_state { RF_CACHED_FREE, RF_CACHED_RUNS, RF_CACHED_KEPT } rf_cached_state;

typedef struct rf_cached_seq {
  rf_sequence sequence;
  rf_cached_state state;
  int64_t used; /* Clock value of the last use. The sequence with the smallest value is evicted first. */
  const rf_pending *pin; /* Request with waiting answers that need this prompt; NULL: none. */
  int64_t adapter; /* Adapter that computed the keys and values. Other adapters cannot use these values. */
} rf_cached_seq;

/* One slot of the batch. A slot holds a running answer or is free. */
struct rf_slot {
  rf_pending *to; /* Request of the running answer. NULL: the slot is free. */
  rf_cached_seq *cached;
  int slot, sample;
  int64_t serial;    /* Number of the answer, in the order in which answers begin. */
  int64_t count;     /* Number of tokens of the answer so far. */
  int32_t *next;     /* (1 + draft): the latest token, then drafted tokens. */
  int flying;        /* Number of passes with a row of the answer that run ahead. */
  int chosen;        /* Number of tokens that the current pass has chosen. */
  rf_choice *choice; /* (1 + draft): chosen tokens of the current pass. */
  rf_status status;  /* Status of the first failed choice. */
  rf_error error;
  rf_draft_odds odds;
};

/* Promise to the first waiting answer: the latest pass in which it starts, even if other answers
 * overtake it. */
typedef struct rf_promise {
  int64_t request; /* Id of the waiting request; -1: no answer waits for pages. */
  int sample;
  int64_t pass; /* Number of the promised forward pass; -1: unknown, so no answer may overtake. */
  bool search;  /* true: an answer ended or a request arrived, so another answer may fit now. */
} rf_promise;

/* A pass that runs ahead: the device computes it while the caller handles the tokens of the pass
 * before. */
typedef struct rf_flight {
  rf_forward_part *part; /* as in rf_batch */
  int *order, parts;
  int64_t *serial;         /* (parts) of the answers. A slot with another answer, or none, is left out. */
  double seconds;          /* in which the host waited in `start` */
  rf_budget_pass expected; /* of the budget, if there is one */
} rf_flight;

typedef struct rf_batch {
  rf_engine engine;
  rf_pages pages;
  rf_sequence hand;           /* Sequence of rf_generator_feed. */
  rf_pending *first, *newest; /* First and last of the requests that have not ended. */
  rf_pending *spent;          /* Ended requests, whose memory later requests reuse. */
  int64_t next_id, clock;
  int slots, cached_count, threads;
  /* One more than the highest slot with an answer. Loops end here, because a batch may have many
   * more slots than answers. */
  int top;
  int cancelled; /* Number of samples whose event RF_FINISH_CANCELLED is still due. */
  rf_slot *slot;
  rf_cached_seq *cached;
  rf_forward_part *part; /* Next tokens of each sequence in this step. */
  int *order;            /* (parts): slot of each entry of `part`. */
  int parts;
  int draft;             /* Maximum number of drafted tokens of an answer in a pass. */
  int32_t *next;         /* Memory for the arrays `next` of all slots. */
  rf_choice *choice;     /* Memory for the arrays `choice` of all slots. */
  rf_drafter_text *text; /* (slots): texts of the answers for which a model drafts. */
  rf_draft_plan *when;   /* Decides how many tokens each answer drafts; NULL: no drafts. */
  rf_budget *budget;     /* Decides how many tokens of prompts a pass reads; NULL: as many as fit. */
  rf_event *event;       /* (rf_generator_events): events of cancelled and of running answers. */
  int events;
  const rf_sequence **live;         /* (cached_count + 1): scratch memory for a list of sequences. */
  rf_reserve reserve;               /* Decides whether an answer may start. */
  rf_promise promise;               /* Promise to the first waiting answer. */
  rf_flight flight[RF_STEPS_AHEAD]; /* Passes that run ahead, the oldest first. See ahead.c. */
  int flights;
  /* Status of the first failed pass for which no answer waited. All later steps return this status. */
  rf_status lost;
  rf_error lost_error;
  rf_generate_counts counts;
} rf_batch;

/* Allocates a generator with its cache and queues, but without an engine. */
rf_status rf_generator_new(const rf_infer_settings *settings, rf_plan *prefill, rf_plan *decode,
                           rf_generator **generator, rf_error *error);
/* Gives the generator an engine that computes with generator->run. */
rf_status rf_compute_open(rf_generator *generator, rf_error *error);

/* Returns RAFTER_INVALID if a token id is outside the vocabulary. `what` names the list in
 * errors. */
rf_status rf_check_ids(const int32_t *ids, int64_t count, int64_t vocab, const char *what, rf_error *error);

/* Discards the cache if other plans of the run have run since the last call. Returns RAFTER_INVALID
 * if a running answer, or the sequence of rf_generator_feed, needs the cache. */
rf_status rf_generator_refresh(rf_generator *generator, rf_error *error);

rf_status rf_batch_open(rf_generator *generator, rf_error *error);
void rf_batch_close(rf_generator *generator);
/* Returns the number of cached tokens of running answers (see rf_generator_use). *capacity is the
 * number of tokens that the cache can hold. */
int64_t rf_batch_live_tokens(const rf_batch *batch, int64_t *capacity);
/* Releases the pages of a sequence, and frees the sequence's entry. */
void rf_drop_sequence(rf_batch *batch, rf_cached_seq *cached);
/* Releases the pages of all kept sequences. */
void rf_batch_forget(rf_generator *generator);
/* Releases the pages of the kept sequences of an adapter. */
void rf_batch_forget_adapter(rf_generator *generator, int64_t adapter);

/* Runs one forward pass over the next tokens of at most build.microbatch sequences. The prefill
 * plan must have rows for all tokens. If each sequence has one row, the decode plan runs. */
rf_status rf_forward(rf_generator *generator, rf_forward_part *part, int count, rf_error *error);

/* ahead.c: passes that run ahead. */
rf_status rf_ahead_open(rf_batch *batch, rf_error *error);
void rf_ahead_close(rf_batch *batch);
/* True if the pass in batch->part can run ahead, or can follow the pass that was started last. */
bool rf_ahead_starts(const rf_generator *generator);
bool rf_ahead_follows(const rf_generator *generator);
/* Starts the pass in batch->part. */
rf_status rf_ahead_start(rf_generator *generator, bool follows, rf_error *error);
/* Waits for the oldest pass, and gives the budget its seconds. Then batch->part has the parts of
 * this pass, without answers that have ended. The seconds of a pass that runs ahead are those in
 * which the host waits for the device, while it starts and finishes the pass. The host's own work
 * while the device computes does not count. */
rf_status rf_ahead_finish(rf_generator *generator, rf_error *error);
/* Waits for the passes that run ahead, and forgets their tokens. Called after a failure and before
 * the engine closes. A later step computes these tokens again. */
void rf_ahead_abandon(rf_batch *batch);
/* Drops the tokens of passes that run ahead. Called before the pages of an answer are released. */
void rf_ahead_leave(rf_batch *batch, rf_slot *answer);
/* Waits for the passes that run ahead if none of their answers is left. A cancellation does not call
 * this function, because the caller of a cancellation must not wait for the device. */
void rf_ahead_settle(rf_generator *generator);
/* Does the same before a step, and returns batch->lost. */
rf_status rf_ahead_settled(rf_generator *generator, rf_error *error);

/* Prepares the cache for a pass. rf_forward calls this function itself. */
rf_status rf_extend_all(rf_batch *batch, rf_forward_part *part, int count, rf_error *error);

/* Starts waiting answers while slots and pages are free. See admit.c. */
void rf_admit(rf_generator *generator);
/* Evicts kept sequences until there are free pages for the parts of a pass. */
void rf_make_room(rf_batch *batch, const rf_forward_part *part, int count);
/* Keeps a prompt cached while other answers to the same prompt wait for a slot. Call rf_pin after
 * each forward pass. */
void rf_pin(rf_generator *generator);
void rf_unpin(rf_generator *generator, const rf_pending *pending);
/* Skips samples that were cancelled before they started. */
void rf_skip_cancelled(rf_pending *pending);

#endif
