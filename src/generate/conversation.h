/* conversation.h - a conversation as a list of token ids. Tokens are only appended, so each
 * question can reuse the cached tokens of earlier turns. Example:
 *   rf_conversation_restart(c, "Be brief.");
 *   rf_conversation_ask(c, message, context, &dropped, error);
 *   ... answer c->ids with rf_request.keep, and collect a reply ...
 *   rf_conversation_answered(c, reply, error); // end of the example. */
#ifndef RF_CONVERSATION_H
#define RF_CONVERSATION_H

#include "generate/prompts.h"

typedef struct rf_conversation {
  const rf_prompt_reader *reader; /* Reader with the model's tokenizer, chat template and end ids. */
  json_t *messages;               /* List of messages; a caller may append earlier turns. */
  rf_ids ids;                     /* Tokens of the conversation: template text and sampled tokens. */
  char *text;                     /* Text that `ids` encode; NULL: no text is encoded yet. */
  bool closed;                    /* true: the last id is the end-of-turn token. */
} rf_conversation;

/* Starts a conversation. A new structure must be {.reader = reader}. `system` is the new system
 * message. "": no system message. NULL: the system message does not change. The reader must outlive
 * the conversation. */
void rf_conversation_restart(rf_conversation *conversation, const char *system);
/* Appends the user's message, takes ownership of it, and sets `ids` to the prompt. If the prompt
 * has `context` tokens or more, removes the oldest questions with their answers. *dropped is the
 * number of removed questions. If the function fails, the new message is removed. Returns
 * RAFTER_INVALID if the message alone is too long. */
rf_status rf_conversation_ask(rf_conversation *conversation, json_t *message, int64_t context, int *dropped,
                              rf_error *error);
/* Appends the answer to `ids` and to the messages. */
rf_status rf_conversation_answered(rf_conversation *conversation, const rf_reply *reply, rf_error *error);
void rf_conversation_close(rf_conversation *conversation); /* Accepts {0}. */

#endif
