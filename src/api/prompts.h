/* prompts.h - what is to be answered: one prompt from the command line, or rows of a file, each
 * with how it is sampled and where it ends. */
#ifndef RF_PROMPTS_H
#define RF_PROMPTS_H

#include "api/sampling.h"
#include "generate/reply.h"
#include "text/chat.h"

/* One prompt. */
typedef struct rf_prompt {
  json_t *id; /* as the row has it, or NULL */
  char *text; /* NULL: it came as ids */
  rf_ids tokens;
  int64_t line; /* of the file; 0: the command line */
  int64_t max_tokens;
  int samples;
  rf_sampler_options sampler; /* lists belong to rf_prompts */
  rf_stop own_stop;           /* of a row with "stop" */
  const rf_stop *stop;
} rf_prompt;

typedef struct rf_prompts {
  rf_settings settings;
  rf_tokenizer *tokenizer;  /* NULL: prompts and answers are ids */
  double tokenizer_seconds; /* to open it */
  rf_chat *chat;            /* opened when first needed */
  bool chats;
  rf_prompt *row;
  int64_t rows, capacity;
  rf_prompt common; /* what a row says nothing of */
  rf_marks marks;   /* each ends an answer */
  rf_logit_bias *bias;
  int bias_count;
  const char *path; /* of the file, or NULL */
  char unread[256]; /* keys of rows that mean nothing here, quoted */
} rf_prompts;

/* Reads everything that the options name, generation_config.json included, whose settings are
 * told to the sink. RAFTER_INVALID names the option, RAFTER_FAILED file, line and field. */
rf_status rf_prompts_read(const rf_options *options, const rafter_sink *sink, rf_prompts *prompts,
                          rf_error *error);
void rf_prompts_free(rf_prompts *prompts);

#endif
