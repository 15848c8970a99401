/* answers.c - opens models and encodes conversations for commands that generate answers. */
#define _GNU_SOURCE
#include "api/answers.h"

#include "model/run_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy,
                                rf_error *error) {
  char folder[4096];
  *copy = rf_options_copy(options);
  if (!*copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (!model) return RAFTER_OK; /* a later check reports that MODEL is missing */
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
  if (status == RAFTER_OK) /* the template has already added the special tokens */
    status = rf_tokenizer_encode(tokenizer, rendered.text, rendered.bytes, RF_ENCODE_PARSE, ids, error);
  rf_rendered_free(&rendered);
  return status;
}

rf_run_debug rf_debug_of(const rf_options *o) {
  bool on = rf_options_knows(o, "debug") && rf_options_flag(o, "debug");
  return (rf_run_debug){.poison = on, .find_nan = on};
}

static rf_infer_settings infer_of(const rf_settings *s, const rf_options *o, const rafter_sink *sink) {
  return (rf_infer_settings){.model = s->model,
                             .plan = s->plan,
                             .weights_folder = s->weights_folder,
                             .seed = (uint64_t)rf_options_int(o, "seed"),
                             .debug = rf_debug_of(o),
                             .progress = sink ? rf_load_bar(sink) : (rf_progress){0}};
}

rf_status rf_open_generator(const rf_settings *s, const rf_options *o, const rafter_sink *sink,
                            rf_generator **g, rf_error *error) {
  const rf_infer_settings settings = infer_of(s, o, sink);
  RF_TRY(rf_generator_open(&settings, g, error));
  rf_status status = rf_generator_require_numbers(*g, error);
  if (status == RAFTER_OK) return status;
  rf_generator_close(*g);
  *g = NULL;
  return status;
}

rf_status rf_open_scorer(const rf_settings *s, const rf_options *o, const rafter_sink *sink,
                         rf_scorer **scorer, rf_error *error) {
  const rf_infer_settings settings = infer_of(s, o, sink);
  RF_TRY(rf_scorer_open(&settings, scorer, error));
  if ((*scorer)->tokens) return RAFTER_OK;
  rf_scorer_close(*scorer);
  *scorer = NULL;
  return RF_FAIL(error, RAFTER_INVALID, "choose --backend cpu or reference",
                 "the null backend computes no log-probabilities");
}

rf_status rf_begin_journal(rf_journal *journal, const rafter_sink *sink, const rf_options *o,
                           const rf_report_walk *walk, int walks, rf_error *error) {
  char folder[4096];
  RF_TRY(rf_journal_folder(o, folder, error));
  journal->beside = true;
  return rf_journal_begin(journal, sink, o, rf_options_json(o), folder, walk, walks, error);
}

rf_status rf_ids_of_json(const json_t *list, int64_t vocab, const char *where, rf_ids *ids, rf_error *error) {
  size_t i;
  json_t *id;
  json_array_foreach ((json_t *)list, i, id) {
    json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
    if (v < 0 || v >= vocab)
      return RF_FAIL(error, RAFTER_FAILED, "the ids belong to another tokenizer or model",
                     "token out of range (%s, tokens, token %zu: expected an id below %lld, got %lld)", where,
                     i, (long long)vocab, (long long)v);
    RF_TRY(rf_ids_add(ids, (int32_t)v, error));
  }
  return RAFTER_OK;
}

rf_status rf_ids_given(const rf_options *o, const char *option, int64_t vocab, rf_ids *ids, rf_error *error) {
  int count = 0;
  const int64_t *id = rf_options_list(o, option, &count);
  for (int i = 0; i < count; i++) {
    if (id[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (--%s, token %d: expected an id below %lld, got %lld)", option, i,
                     (long long)vocab, (long long)id[i]);
    RF_TRY(rf_ids_add(ids, (int32_t)id[i], error));
  }
  return RAFTER_OK;
}

rf_status rf_stop_of(const char *const *texts, int count, rf_stop *stop, rf_error *error) {
  rf_span *span = calloc((size_t)count + 1, sizeof *span);
  if (!span) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < count; i++) span[i] = (rf_span){texts[i], strlen(texts[i])};
  rf_status status = rf_stop_open(&(rf_stop_options){.strings = span, .string_count = count}, stop, error);
  free(span);
  return status;
}

rf_status rf_stop_given(const rf_options *o, rf_stop *stop, rf_error *error) {
  int count = 0;
  const char *const *texts = rf_options_texts(o, "stop", &count);
  return rf_stop_of(texts, count, stop, error);
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
