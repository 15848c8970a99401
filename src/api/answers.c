/* answers.c - models and conversations of commands that generate answers. */
#define _GNU_SOURCE
#include "api/answers.h"

#include "model/run_folder.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error) {
  char folder[4096];
  *copy = rf_options_copy(options);
  if (!*copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (!model) return RAFTER_OK; /* a later check reports the missing model */
  RF_TRY(rf_run_weights(model, folder, error));
  return rf_options_set(*copy, "MODEL", folder, error);
}

rf_status rf_chat_of(const rf_options *o, const rf_settings *settings, const rf_tokenizer *tokenizer,
                     rf_chat **chat, rf_error *error) {
  if (rf_options_is_set(o, "template"))
    return rf_chat_read(rf_options_text(o, "template"), tokenizer, chat, error);
  return rf_chat_open(settings->weights_folder, chat, error);
}

rf_status rf_chat_text(const rf_chat *chat, const json_t *messages, bool opens_answer, rf_rendered *rendered,
                       rf_error *error) {
  time_t seconds = time(NULL);
  struct tm now;
  rf_chat_options options = {.add_generation_prompt = opens_answer, .now = localtime_r(&seconds, &now)};
  return rf_chat_render(chat, messages, &options, rendered, error);
}

rf_status rf_chat_encode(const rf_chat *chat, const rf_tokenizer *tokenizer, const json_t *messages,
                         bool opens_answer, rf_ids *ids, rf_error *error) {
  rf_rendered rendered = {0};
  rf_status status = rf_chat_text(chat, messages, opens_answer, &rendered, error);
  ids->count = 0;
  if (status == RAFTER_OK) /* the template has already written its special tokens */
    status = rf_tokenizer_encode(tokenizer, rendered.text, rendered.bytes, RF_ENCODE_PARSE, ids, error);
  rf_rendered_free(&rendered);
  return status;
}

const rf_option RF_CHAT_OPTIONS[] = {
    RF_WORDS("system", TEXT, "TEXT", NULL, "Prompt", "system message at the start of the conversation"),
    RF_WORDS("template", PATH, "FILE", NULL, "Prompt", "chat template; unset: the model's own"),
    {.name = NULL},
};

const rf_option RF_STOP_OPTIONS[] = {
    RF_WORDS("stop", TEXTS, "TEXT", NULL, "Sampling",
             "text that ends an answer and is left out of it; may be repeated"),
    RF_FLAG("ignore-eos", "Sampling", "continue after the end-of-text token"),
    {.name = NULL},
};
