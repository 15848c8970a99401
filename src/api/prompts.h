/* prompts.h - prompts from the command line or from rows of a file, with their sampling settings
 * and stop texts. */
#ifndef RF_PROMPTS_H
#define RF_PROMPTS_H

#include "api/sampling.h"
#include "generate/reply.h"
#include "text/chat.h"

typedef struct rf_prompt {
  json_t *id; /* "id" of the row, or NULL */
  char *text; /* NULL: the prompt was given as ids */
  rf_ids tokens;
  int64_t line; /* line of the file; 0: command line */
  int64_t max_tokens;
  int samples;
  rf_sampler_options sampler; /* rf_prompts owns its lists */
  rf_stop own_stop;           /* "stop" of the row */
  const rf_stop *stop;
} rf_prompt;

typedef struct rf_prompts {
  rf_settings settings;
  rf_tokenizer *tokenizer;  /* NULL: prompts and answers are ids */
  double tokenizer_seconds; /* time to open the tokenizer */
  rf_chat *chat;            /* opened when first needed */
  bool chats;
  rf_prompt *row;
  int64_t rows, capacity;
  rf_prompt common; /* settings for rows that set none */
  rf_marks marks;   /* tokens that end an answer */
  rf_logit_bias *bias;
  int bias_count;
  const char *path; /* file of the rows, or NULL */
  char unread[256]; /* unknown keys of rows, quoted */
} rf_prompts;

/* Reads the prompts and settings that the options name. Where an option is not given, its value
 * comes from generation_config.json; a note to the sink lists the values from that file.
 * RAFTER_INVALID names the option, RAFTER_FAILED the file, line and field. */
rf_status rf_prompts_read(const rf_options *options, const rafter_sink *sink, rf_prompts *prompts,
                          rf_error *error);
void rf_prompts_free(rf_prompts *prompts);

#endif
