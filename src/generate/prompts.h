/* prompts.h - prompts with their settings, stop texts and answers, from text or from JSON.
 *
 * A JSON object has "prompt" (a text), "messages" (a conversation) or "tokens" (ids). The object
 * may also have "id", "samples", "seed", "max_tokens", "stop" and the keys of RF_SAMPLING. */
#ifndef RF_PROMPTS_H
#define RF_PROMPTS_H

#include "generate/replies.h"
#include "generate/sampling.h"
#include "text/chat.h"

typedef struct rf_prompt {
  json_t *id; /* "id" of the object, or NULL. */
  char *text; /* Text of the prompt; NULL: the prompt was given as ids. */
  rf_ids tokens;
  int64_t line;       /* Line of the file; 0: no file. */
  rf_request request; /* Settings of the request; rf_prompt_submit sets the tokens and all end ids. */
  rf_stop stop;       /* Stop texts; if there are none, those of reader->common apply. */
  rf_replies replies; /* The answers, after rf_prompt_submit. */
} rf_prompt;

/* Tokenizer, chat template and default settings of one model. The caller sets the first fields; {0}
 * is valid for all others. */
typedef struct rf_prompt_reader {
  const rf_model *model;
  const char *folder;        /* Path that rf_model_resolve returns. */
  const char *chat_template; /* File of the chat template; NULL: the model's own template. */
  const char *system;        /* System message for conversations that have none; NULL: no message. */
  bool chats;                /* true: each text is put into the chat template as the user's message. */
  bool ignores_ends;         /* true: answers continue after an end id. */
  rf_prompt common;          /* Settings and stop texts for prompts that set none. */
  rf_logit_bias *bias;       /* Malloc'ed list for common.request.sampler, or NULL. */
  rf_end_ids ends;           /* See rf_end_ids_of. */
  rf_tokenizer *tokenizer;   /* Tokenizer, opened when a prompt first needs it. NULL: answers are ids. */
  double tokenizer_seconds;  /* Seconds to open the tokenizer. */
  rf_chat *chat;             /* Chat template, opened when a prompt first needs it. */
  char unread[256];          /* Unknown keys of JSON objects, in quotes. */
} rf_prompt_reader;

/* Opens the tokenizer, if it is not open. With `chat`, also opens the chat template. */
rf_status rf_prompt_reader_open(rf_prompt_reader *reader, bool chat, rf_error *error);
/* Closes all that the reader has opened. Frees the biases, and the stop texts of `common`. */
void rf_prompt_reader_close(rf_prompt_reader *reader);

/* These functions encode a text, or a conversation up to the answer. */
rf_status rf_prompt_of_text(rf_prompt_reader *reader, const char *text, size_t bytes, rf_prompt *prompt,
                            rf_error *error);
rf_status rf_prompt_of_messages(rf_prompt_reader *reader, const json_t *messages, rf_prompt *prompt,
                                rf_error *error);
/* Reads an object into `prompt`, which must hold the default settings. Returns RAFTER_FAILED for an
 * invalid field, with an error that names the field and `where`. The caller frees the prompt, also
 * after an error. */
rf_status rf_prompt_of_json(rf_prompt_reader *reader, const json_t *json, const char *where,
                            rf_prompt *prompt, rf_error *error);
/* Reads only "prompt", "messages" or "tokens" of an object. All other fields may have any value. */
rf_status rf_prompt_only_of_json(rf_prompt_reader *reader, const json_t *json, const char *where,
                                 rf_prompt *prompt, rf_error *error);
void rf_prompt_free(rf_prompt *prompt); /* Accepts {0}. */
/* Queues a prompt. Sets `owner` of the replies to the address of the prompt. Do not move or free
 * the reader and the prompt until the answers have ended. */
rf_status rf_prompt_submit(const rf_prompt_reader *reader, rf_prompt *prompt, rf_generator *generator,
                           rf_error *error);

/* A list of prompts; {0} is an empty list. */
typedef struct rf_prompts {
  rf_prompt *row;
  int64_t rows, capacity;
} rf_prompts;
/* Appends a prompt with the settings of reader->common. Each prompt after the first gets a derived
 * seed. */
rf_status rf_prompts_add(rf_prompts *prompts, const rf_prompt_reader *reader, rf_prompt **row,
                         rf_error *error);
/* Appends the prompts of a JSON Lines file. The error of RAFTER_FAILED names the file, line and
 * field. */
rf_status rf_prompts_read(rf_prompts *prompts, rf_prompt_reader *reader, const char *path, rf_error *error);
void rf_prompts_free(rf_prompts *prompts);

/* Appends a JSON list of token ids below `vocab`; `where` names the object in errors. */
rf_status rf_ids_of_json(const json_t *list, int64_t vocab, const char *where, rf_ids *ids, rf_error *error);

#endif
