/* reply.h - collects an answer: tokens, log-probabilities, and the text up to a stop string. */
#ifndef RF_REPLY_H
#define RF_REPLY_H

#include "generate/generate.h"
#include "generate/stop.h"

typedef struct rf_reply {
  rf_ids tokens;
  float *logprobs;     /* (tokens.count) */
  int top;             /* Number of alternatives for each token. */
  int32_t *top_ids;    /* (tokens.count, top); -1: the alternative does not exist. */
  float *top_logprobs; /* (tokens.count, top) */
  char *text;          /* Text that may be shown, followed by a NUL that `bytes` does not count. */
  size_t bytes, shown; /* `bytes`: length of `text`. `shown`: a number that only the caller uses. */
  rf_finish finish;
  rf_decoder decoder;
  rf_stop_state state;
  const rf_tokenizer *tokenizer;
  const rf_stop *stop;
  size_t text_room;
  int64_t room;
  char *piece;
} rf_reply;

/* Starts a reply. If `tokenizer` is NULL, its text is the list of token ids, separated by commas.
 * The tokenizer and `stop` must outlive the reply. Only the generator checks the stop ids of the
 * request. */
rf_status rf_reply_start(rf_reply *reply, const rf_tokenizer *tokenizer, const rf_stop *stop, int top,
                         rf_error *error);
void rf_reply_free(rf_reply *reply); /* Accepts {0}. */
/* Adds one event of the answer. If this sets reply->finish although event->finish is NONE, the text
 * contains a stop string. Then call rf_generator_cancel(). A stop id adds no text. */
rf_status rf_reply_take(rf_reply *reply, const rf_event *event, rf_error *error);

#endif
