/* chat.h - conversations as the text a model was trained on: the chat template of a model
 * folder, rendered. */
#ifndef RF_CHAT_H
#define RF_CHAT_H

#include "text/template.h"

typedef struct rf_chat rf_chat;

typedef struct rf_chat_options {
  bool add_generation_prompt; /* end with the opening of the assistant's turn */
  const json_t *tools;        /* list of tool descriptions, or NULL */
  const json_t *variables;    /* object of further variables ("enable_thinking": false), or NULL */
  const struct tm *now;       /* for strftime_now(); NULL: templates that ask for the time are refused */
} rf_chat_options;

/* Reads the template of a .gguf file, or of a model folder: chat_template.jinja, else
 * chat_template in tokenizer_config.json (a text, or a list of named ones, of which "default" is
 * taken), else in chat_template.json. Templates in additional_chat_templates/ are taken by their
 * file only (rf_chat_read); a folder that has only those is refused. The special tokens that the
 * template may name come from tokenizer_config.json. RAFTER_FAILED: there is none. */
rf_status rf_chat_open(const char *folder, rf_chat **chat, rf_error *error);
/* The same; *chat is NULL where there is none at all. */
rf_status rf_chat_find(const char *folder, rf_chat **chat, rf_error *error);
/* The template of a folder as it stands, malloc'ed; *text is NULL where there is none. */
rf_status rf_chat_source(const char *folder, char **text, rf_error *error);
rf_status rf_chat_find_gguf(const char *path, rf_chat **chat, rf_error *error);
/* From a template in a file of its own, with the marks of the tokenizer (may be NULL). */
struct rf_tokenizer;
rf_status rf_chat_read(const char *path, const struct rf_tokenizer *tokenizer, rf_chat **chat,
                       rf_error *error);
/* The same from a template at hand. `tokens` (may be NULL) has fields such as bos_token, each a
 * text or an object with "content". */
rf_status rf_chat_new(const char *text, size_t bytes, const char *where, const json_t *tokens, rf_chat **chat,
                      rf_error *error);
void rf_chat_free(rf_chat *chat);

/* Renders messages: a list of objects with "role" and mostly "content". `options` may be NULL.
 * rf_rendered_free() the result; its `generated` spans are those of {% generation %} blocks
 * only. */
rf_status rf_chat_render(const rf_chat *chat, const json_t *messages, const rf_chat_options *options,
                         rf_rendered *rendered, rf_error *error);

/* Renders messages for training: `generated` has one span for every turn of the assistant, from
 * behind the generation prompt to the end of the turn, what the template writes behind the turn
 * included (mostly the end-of-turn token and a newline). A template with {% generation %} blocks
 * says so itself. Otherwise the conversation is rendered up to each turn and up to its end, and
 * both texts must begin the whole one; RAFTER_FAILED says which turn a template rewrites when
 * others follow it. */
rf_status rf_chat_render_spans(const rf_chat *chat, const json_t *messages, const rf_chat_options *options,
                               rf_rendered *rendered, rf_error *error);

#endif
