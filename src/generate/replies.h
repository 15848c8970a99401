/* replies.h - the loop over a generator's steps. It collects a reply for each answer of each
 * request. */
#ifndef RF_REPLIES_H
#define RF_REPLIES_H

#include "generate/reply.h"

typedef struct rf_replies {
  rf_reply *reply; /* (samples): one reply for each answer. */
  int samples, ended;
  int64_t request; /* Id from rf_generator_submit. */
  void *owner;     /* For the caller. */
} rf_replies;

/* Functions that the loop calls. Each may be NULL. */
typedef struct rf_reply_loop {
  void *self;
  /* Called after each token. reply->finish says whether the answer has ended. */
  rf_status (*taken)(void *self, rf_replies *replies, int sample, rf_error *error);
  /* Called after each step with the number of its tokens. If it returns false, the loop stops. */
  bool (*stepped)(void *self, int tokens);
} rf_reply_loop;

/* Submits a request and starts a reply for each sample. Sets the owner of the request to `replies`.
 * For `tokenizer` and `stop`, see rf_reply_start. */
rf_status rf_replies_submit(rf_generator *generator, const rf_request *request, const rf_tokenizer *tokenizer,
                            const rf_stop *stop, rf_replies *replies, rf_error *error);
/* Runs steps until all answers have ended. If `stepped` returns false, stops and sets *stopped. */
rf_status rf_replies_run(rf_generator *generator, const rf_reply_loop *loop, bool *stopped, rf_error *error);
/* Frees the replies; accepts {0}. */
void rf_replies_free(rf_replies *replies);

#endif
