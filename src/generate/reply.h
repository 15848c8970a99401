/* reply.h - one answer as it comes: its tokens, their log-probabilities, and its text up to a
 * stop string. */
#ifndef RF_REPLY_H
#define RF_REPLY_H

#include "generate/generate.h"
#include "generate/stop.h"

typedef struct rf_reply {
  rf_ids tokens;
  float *logprobs;     /* (tokens.count) */
  int top;             /* alternatives of each token; 0: none are kept */
  int32_t *top_ids;    /* (tokens.count, top), -1 where there were fewer */
  float *top_logprobs; /* (tokens.count, top) */
  char *text;          /* what may be shown, with a NUL behind it that `bytes` does not count */
  size_t bytes, shown; /* shown: the caller's own */
  rf_finish finish;
  rf_decoder decoder;
  rf_stop_state state;
  const rf_tokenizer *tokenizer;
  const rf_stop *stop;
  size_t text_room;
  int64_t room;
  char *piece;
} rf_reply;

/* `tokenizer` NULL: the text is the ids, separated by commas. `stop` (its ids do not matter
 * here) and the tokenizer must outlive the reply. */
rf_status rf_reply_start(rf_reply *reply, const rf_tokenizer *tokenizer, const rf_stop *stop, int top,
                         rf_error *error);
void rf_reply_free(rf_reply *reply); /* {0} is allowed */
/* One event of the answer. When reply->finish is set afterwards and the event's is not, a stop
 * string was met: rf_generator_cancel() the answer. The token that ends an answer gives no text
 * when its event says RF_FINISH_STOP. */
rf_status rf_reply_take(rf_reply *reply, const rf_event *event, rf_error *error);
/* What was held back of an answer that ends here for another reason than its events; nothing
 * when it has ended. */
rf_status rf_reply_end(rf_reply *reply, rf_finish finish, rf_error *error);

#endif
