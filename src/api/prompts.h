/* prompts.h - prompts with their sampling settings and stop texts. Prompts come from the command
 * line, or from a JSON Lines file. A row is one JSON object of this file. */
#ifndef RF_PROMPTS_H
#define RF_PROMPTS_H

#include "api/sampling.h"
#include "generate/reply.h"
#include "text/chat.h"

typedef struct rf_prompt {
  json_t *id; /* "id" of the row; NULL: none */
  char *text; /* NULL: the prompt was given as ids */
  rf_ids tokens;
  int64_t line; /* line in the file; 0: the prompt is from the command line */
  int64_t max_tokens;
  int samples;
  rf_sampler_options sampler; /* sampling settings; rf_prompts owns the lists in it */
  rf_stop own_stop;           /* stop texts in "stop" of the row */
  const rf_stop *stop;
} rf_prompt;

typedef struct rf_prompts {
  rf_settings settings;
  rf_tokenizer *tokenizer;  /* NULL: prompts and answers are token ids */
  double tokenizer_seconds; /* time to open the tokenizer */
  rf_chat *chat;            /* opened at first use */
  bool chats;
  rf_prompt *row;
  int64_t rows, capacity;
  rf_prompt common; /* settings for prompts without settings of their own */
  rf_marks marks;   /* tokens that end an answer */
  rf_logit_bias *bias;
  int bias_count;
  const char *path; /* file of the prompts; NULL: none */
  char unread[256]; /* unknown keys of rows, in quotes */
} rf_prompts;

/* Reads the prompts and the settings that the options name. If an option is not given, its value
 * comes from generation_config.json. A note to the sink lists the values from this file. Errors are
 * RAFTER_INVALID for a wrong option, or RAFTER_FAILED for a wrong field of the file. */
rf_status rf_prompts_read(const rf_options *options, const rafter_sink *sink, rf_prompts *prompts,
                          rf_error *error);
void rf_prompts_free(rf_prompts *prompts);

#endif
