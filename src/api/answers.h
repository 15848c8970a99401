/* answers.h - shared by commands that generate answers: resolving MODEL, and conversations as token
 * ids. */
#ifndef RF_ANSWERS_H
#define RF_ANSWERS_H

#include "api/sampling.h"

#include "generate/generate.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* A copy of `options` with MODEL set to `model`, or to the newest checkpoint if `model` is a run.
 * Free with rf_options_free(). */
rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error);

/* The chat template: --template, otherwise the model's own. */
rf_status rf_chat_of(const rf_options *options, const rf_settings *settings, const rf_tokenizer *tokenizer,
                     rf_chat **chat, rf_error *error);
/* A conversation as text of the chat template; free with rf_rendered_free(). `opens_answer`: add
 * the beginning of the assistant's turn. */
rf_status rf_chat_text(const rf_chat *chat, const json_t *messages, bool opens_answer, rf_rendered *rendered,
                       rf_error *error);
/* A conversation as token ids of the chat template. */
rf_status rf_chat_encode(const rf_chat *chat, const rf_tokenizer *tokenizer, const json_t *messages,
                         bool opens_answer, rf_ids *ids, rf_error *error);

/* --system and --template; --stop and --ignore-eos. */
extern const rf_option RF_CHAT_OPTIONS[], RF_STOP_OPTIONS[];

#endif
