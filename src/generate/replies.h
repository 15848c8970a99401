/* replies.h - the loop over a generator's steps: collects a reply for each answer of each request
 * until all answers have ended. */
#ifndef RF_REPLIES_H
#define RF_REPLIES_H

#include "generate/reply.h"

typedef struct rf_replies {
  rf_reply *reply; /* (samples): one reply per answer. */
  int samples, ended;
  int64_t request; /* Id from rf_generator_submit. */
  void *owner;     /* Any pointer of the caller. */
} rf_replies;

/* Callbacks of the loop; either may be NULL. */
typedef struct rf_reply_loop {
  void *self;
  /* Called after each token; reply->finish says whether the answer has ended. */
  rf_status (*taken)(void *self, rf_replies *replies, int sample, rf_error *error);
  /* Called after each step with the number of tokens that the step added; false stops the loop. */
  bool (*stepped)(void *self, int tokens);
} rf_reply_loop;

/* Submits a request with a reply for each sample. Sets the owner of the request to `replies`. For
 * `tokenizer` and `stop` see rf_reply_start. */
rf_status rf_replies_submit(rf_generator *generator, const rf_request *request, const rf_tokenizer *tokenizer,
                            const rf_stop *stop, rf_replies *replies, rf_error *error);
/* Steps until all answers have ended, or until `stepped` returns false, which sets *stopped. */
rf_status rf_replies_run(rf_generator *generator, const rf_reply_loop *loop, bool *stopped, rf_error *error);
/* Frees the replies; accepts {0}. */
void rf_replies_free(rf_replies *replies);

#endif
