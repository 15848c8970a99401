/* replies.h - the loop over a generator's steps, for commands, servers and the handles of rafter.h.
 * The loop collects a reply for each answer of each request, and reports each event to the caller.
 * Copies of the model on several ranks share the requests, and rank 0 gets all answers. Only two
 * other loops call rf_generator_step: `bench` measures steps without replies, and simulate.c uses a
 * simulated clock and simulated tokens. */
#ifndef RF_REPLIES_H
#define RF_REPLIES_H

#include "generate/reply.h"

/* Replies to one request. Keep the replies until the loop has called `ended` for them, or until the
 * generator is closed. */
typedef struct rf_replies {
  rf_reply *reply; /* (samples): one reply for each answer. */
  int samples;
  int left;        /* Number of answers whose last event has not yet arrived. */
  int64_t request; /* Id from rf_generator_submit; -1: another copy of the model answers. */
  int64_t number;  /* Number of the request in its round, if the model has several copies. */
  void *owner;     /* For the caller. */
} rf_replies;

/* Functions that the loop calls. A function may be NULL. */
typedef struct rf_reply_loop {
  void *self;
  /* Called after each event of an answer. In the last call for an answer, reply->finish is not
   * NONE. If reply->finish is RF_FINISH_ERROR, event->error is the error. */
  rf_status (*taken)(void *self, rf_replies *replies, const rf_event *event, rf_error *error);
  /* Called after the last event of a request. The caller may free the replies now or later. */
  rf_status (*ended)(void *self, rf_replies *replies, rf_error *error);
  /* Called after each step with the number of the step's tokens. If `stepped` returns false, the
   * loop stops. */
  bool (*stepped)(void *self, int tokens);
  bool survives; /* true: the loop continues after a failed answer */
  /* If the model has several copies: true: all ranks get all answers at the end; false: only rank 0
   * gets all answers, and the other ranks get the answers of their copies. */
  bool everywhere;
} rf_reply_loop;

/* Call this function before submitting the requests of rf_replies_run. `requests`: number of these
 * requests. */
void rf_replies_begin(rf_generator *generator, int64_t requests);
/* Returns true while an answer runs or waits, in this copy of the model or in another. */
bool rf_replies_busy(const rf_generator *generator);
/* Sets *flags to the bitwise or of the flags of all ranks that must stop together. If `stepped`
 * calls this function, other copies get the flags a little later. If the flags of a copy are not 0,
 * its `stepped` must return false. */
rf_status rf_replies_agree(rf_generator *generator, uint32_t *flags, rf_error *error);
/* Returns the flags of all copies, after a stopped run. Returns 0 if this process has all
 * requests. */
uint32_t rf_replies_said(const rf_generator *generator);

/* Submits a request and starts a reply for each sample. Sets the owner of the request to `replies`.
 * For `tokenizer` and `stop`, see rf_reply_start. */
rf_status rf_replies_submit(rf_generator *generator, const rf_request *request, const rf_tokenizer *tokenizer,
                            const rf_stop *stop, rf_replies *replies, rf_error *error);
/* Runs one step and adds each event to its reply. If the text of a reply contains a stop string,
 * cancels the answer. Does not call `stepped`. */
rf_status rf_replies_step(rf_generator *generator, const rf_reply_loop *loop, rf_error *error);
/* Runs steps until all answers have ended. If `stepped` returns false, stops and sets *stopped. If
 * the model has several copies, all ranks get the same *stopped, and loop->stepped must be set. */
rf_status rf_replies_run(rf_generator *generator, const rf_reply_loop *loop, bool *stopped, rf_error *error);
/* Frees the replies; accepts {0}. */
void rf_replies_free(rf_replies *replies);

#endif
