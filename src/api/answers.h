/* answers.h - what commands that let a model answer share: which model is meant, and
 * conversations as ids. */
#ifndef RF_ANSWERS_H
#define RF_ANSWERS_H

#include "api/sampling.h"

#include "generate/generate.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* A copy of options whose MODEL is `model`; of a run its newest checkpoint. rf_options_free()
 * it. */
rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error);

/* The template that conversations are written with: --template, else the model's own. */
rf_status rf_chat_of(const rf_options *options, const rf_settings *settings, const rf_tokenizer *tokenizer,
                     rf_chat **chat, rf_error *error);
/* A conversation in the words of the model's template; rf_rendered_free() it. `opens_answer`: it
 * ends with the opening of the assistant's turn. */
rf_status rf_chat_text(const rf_chat *chat, const json_t *messages, bool opens_answer, rf_rendered *rendered,
                       rf_error *error);
/* Ids of a conversation in the words of the model's template. */
rf_status rf_chat_encode(const rf_chat *chat, const rf_tokenizer *tokenizer, const json_t *messages,
                         bool opens_answer, rf_ids *ids, rf_error *error);

/* --system and --template; --stop and --ignore-eos */
extern const rf_option RF_CHAT_OPTIONS[], RF_STOP_OPTIONS[];

#endif
