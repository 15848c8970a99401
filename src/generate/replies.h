/* replies.h - the loop over a generator's steps, for commands, servers and the handles of rafter.h.
 * The loop collects a reply for each answer of each request, and reports each event to the caller.
 * Only two other loops exist. `bench` times steps without replies. simulate.c has a simulated clock
 * and simulated tokens. */
#ifndef RF_REPLIES_H
#define RF_REPLIES_H

#include "generate/reply.h"

/* The replies to one request. They must exist until the loop has called `ended` for them, or until
 * the generator is closed. */
typedef struct rf_replies {
  rf_reply *reply; /* (samples): one reply for each answer. */
  int samples;
  int left;        /* Number of answers whose last event has not come. */
  int64_t request; /* Id from rf_generator_submit. */
  void *owner;     /* For the caller. */
} rf_replies;

/* Functions that the loop calls. Each may be NULL. */
typedef struct rf_reply_loop {
  void *self;
  /* Called after each event of an answer. In the last call for an answer, reply->finish is not
   * NONE. If it is RF_FINISH_ERROR, event->error is the error. */
  rf_status (*taken)(void *self, rf_replies *replies, const rf_event *event, rf_error *error);
  /* Called after the last event of a request. The caller may free the replies now or later. */
  rf_status (*ended)(void *self, rf_replies *replies, rf_error *error);
  /* Called after each step with the number of its tokens. If it returns false, the loop stops. */
  bool (*stepped)(void *self, int tokens);
  bool survives; /* If true, an error of an answer ends only this answer. If false, it ends the loop. */
} rf_reply_loop;

/* Submits a request and starts a reply for each sample. Sets the owner of the request to `replies`.
 * For `tokenizer` and `stop`, see rf_reply_start. */
rf_status rf_replies_submit(rf_generator *generator, const rf_request *request, const rf_tokenizer *tokenizer,
                            const rf_stop *stop, rf_replies *replies, rf_error *error);
/* Runs one step and adds each event to its reply. If a reply has met a stop string, cancels its
 * answer. Does not call `stepped`. */
rf_status rf_replies_step(rf_generator *generator, const rf_reply_loop *loop, rf_error *error);
/* Runs steps until all answers have ended. If `stepped` returns false, stops and sets *stopped. */
rf_status rf_replies_run(rf_generator *generator, const rf_reply_loop *loop, bool *stopped, rf_error *error);
/* Frees the replies; accepts {0}. */
void rf_replies_free(rf_replies *replies);

#endif
