/* chat.h - converts conversations to text with a model's chat template. */
#ifndef RF_CHAT_H
#define RF_CHAT_H

#include "text/template.h"
#include "text/tokenizer.h"

typedef struct rf_chat rf_chat;

typedef struct rf_chat_options {
  bool add_generation_prompt; /* true: end the text with the header of the assistant's turn */
  const json_t *tools;        /* a list of tool descriptions, or NULL */
  const json_t *variables;    /* object with template variables ({"enable_thinking": false}), or NULL */
  const struct tm *now;       /* result of strftime_now(); NULL: a call of strftime_now() is an error */
  const char *begin;          /* for rf_chat_encode: text at the beginning of the answer, or NULL */
} rf_chat_options;

/* Reads the chat template of a .gguf file or a folder. A folder's template is the first of these:
 * chat_template.jinja, the field chat_template of tokenizer_config.json, the field chat_template of
 * chat_template.json. If the field chat_template is a list of named templates, its entry "default"
 * is the template. Conversations with tools use the entry "tool_use" instead, if there is one, as
 * in transformers. Next to chat_template.jinja, this entry is the file
 * additional_chat_templates/tool_use.jinja. A folder that has only additional_chat_templates/ is an
 * error. To use a file of this folder, call rf_chat_read. Special tokens come from
 * tokenizer_config.json. Returns RAFTER_FAILED if the folder has no template. */
rf_status rf_chat_open(const char *folder, rf_chat **chat, rf_error *error);
/* Like rf_chat_open, but a missing template sets *chat to NULL. */
rf_status rf_chat_find(const char *folder, rf_chat **chat, rf_error *error);
/* Reads a folder's templates as malloc'ed texts. *tools is the template for conversations with
 * tools. A missing template is NULL. */
rf_status rf_chat_source(const char *folder, char **text, char **tools, rf_error *error);
rf_status rf_chat_find_gguf(const char *path, rf_chat **chat, rf_error *error);
/* Reads a template file. The special tokens come from `tokenizer` (may be NULL). With the path
 * "none", a conversation becomes the text of its messages in order. */
rf_status rf_chat_read(const char *path, const rf_tokenizer *tokenizer, rf_chat **chat, rf_error *error);
/* Parses a template in memory. `tokens` (may be NULL) has fields such as bos_token. A field is a
 * string, or an object with "content". */
rf_status rf_chat_new(const char *text, size_t bytes, const char *where, const json_t *tokens, rf_chat **chat,
                      rf_error *error);
/* Adds the template for conversations with tools (rf_chat_options.tools). At most one call per
 * chat. If the template cannot be parsed, only conversations with tools fail. */
void rf_chat_add_tools(rf_chat *chat, const char *text, size_t bytes, const char *where);
void rf_chat_free(rf_chat *chat);

/* Renders a list of messages. A message is an object with "role" and usually "content". `options`
 * may be NULL. Free the result with rf_rendered_free(). Only {% generation %} blocks give spans. */
rf_status rf_chat_render(const rf_chat *chat, const json_t *messages, const rf_chat_options *options,
                         rf_rendered *rendered, rf_error *error);
/* Renders messages at the current time and appends their token ids. If `options` is NULL, the text
 * ends with the header of the assistant's turn. The field `now` of the options is not used. `text`
 * (may be NULL) gets the rendered text, which is malloc'ed. */
rf_status rf_chat_encode(const rf_chat *chat, const rf_tokenizer *tokenizer, const json_t *messages,
                         const rf_chat_options *options, rf_ids *ids, char **text, rf_error *error);
/* Returns the text of the template, with a NUL at its end. */
const char *rf_chat_text(const rf_chat *chat);
/* Returns the text of the template that renders conversations with tools. */
const char *rf_chat_tools_text(const rf_chat *chat);

/* Renders messages for training. rendered->generated has one span for each assistant turn. The span
 * begins after the generation prompt. The span includes the text that the template adds after the
 * turn (usually the end-of-turn token and a newline). The {% generation %} blocks of a template
 * give the spans. If a template has no such blocks, the conversation is also rendered up to the
 * start and up to the end of each assistant turn. The text of the whole conversation must begin
 * with both of these texts. If the text of a turn depends on later turns, returns RAFTER_FAILED,
 * and the error names the turn. */
rf_status rf_chat_render_spans(const rf_chat *chat, const json_t *messages, const rf_chat_options *options,
                               rf_rendered *rendered, rf_error *error);

#endif
