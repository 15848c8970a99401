/* answers.h - the loop over a generator's steps: requests with a reply for each of their answers,
 * until all have ended. */
#ifndef RF_GENERATE_ANSWERS_H
#define RF_GENERATE_ANSWERS_H

#include "generate/reply.h"

/* One request and its replies. */
typedef struct rf_answers {
  rf_reply *reply; /* (samples) */
  int samples, ended;
  int64_t request; /* its id */
  void *owner;     /* the caller's */
} rf_answers;

/* Both functions may be NULL. */
typedef struct rf_answer_loop {
  void *self;
  /* After each token; reply->finish says whether the answer has ended. */
  rf_status (*taken)(void *self, rf_answers *answers, int sample, rf_error *error);
  /* After each step, with how many events it had; false: stop here. */
  bool (*stepped)(void *self, int events);
} rf_answer_loop;

/* Submits a request, whose owner becomes `answers`, with a reply for each sample. Tokenizer, stop
 * and top as in rf_reply_start. */
rf_status rf_answers_submit(rf_generator *generator, const rf_request *request, const rf_tokenizer *tokenizer,
                            const rf_stop *stop, rf_answers *answers, rf_error *error);
/* Steps until all answers have ended, or `stepped` says to stop: then *stopped is true. */
rf_status rf_answers_run(rf_generator *generator, const rf_answer_loop *loop, bool *stopped, rf_error *error);
/* Frees the replies; {0} is allowed. */
void rf_answers_free(rf_answers *answers);

#endif
