/* reply.h - collects one answer: tokens, log-probabilities, and the text up to a stop string. */
#ifndef RF_REPLY_H
#define RF_REPLY_H

#include "generate/generate.h"
#include "generate/stop.h"

typedef struct rf_reply {
  rf_ids tokens;
  float *logprobs;     /* (tokens.count) */
  int top;             /* Alternatives kept for each token. */
  int32_t *top_ids;    /* (tokens.count, top): -1 for missing alternatives. */
  float *top_logprobs; /* (tokens.count, top) */
  char *text;          /* Text that may be shown; a NUL that `bytes` does not count follows it. */
  size_t bytes, shown; /* Only the caller uses `shown`. */
  rf_finish finish;
  rf_decoder decoder;
  rf_stop_state state;
  const rf_tokenizer *tokenizer;
  const rf_stop *stop;
  size_t text_room;
  int64_t room;
  char *piece;
} rf_reply;

/* Without a tokenizer (NULL), the text is the token ids, separated by commas. The tokenizer and
 * `stop` must outlive the reply. The generator, not the reply, checks an answer for the stop ids of
 * its request. */
rf_status rf_reply_start(rf_reply *reply, const rf_tokenizer *tokenizer, const rf_stop *stop, int top,
                         rf_error *error);
void rf_reply_free(rf_reply *reply); /* Accepts {0}. */
/* Adds one event of the answer. If this sets reply->finish although event->finish is NONE, a stop
 * string was found: then call rf_generator_cancel() for the answer. A stop id adds no text. */
rf_status rf_reply_take(rf_reply *reply, const rf_event *event, rf_error *error);
/* Ends the answer when something other than a generator event ends it. Releases the text held back
 * for a possible stop string. Does nothing if the answer has ended. */
rf_status rf_reply_end(rf_reply *reply, rf_finish finish, rf_error *error);

#endif
