/* answers.c - what commands that let a model answer share. */
#define _GNU_SOURCE
#include "api/answers.h"

#include "train/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Files often name one id that ends a text, where a turn ends with another. */
static const char *const TURN_ENDS[] = {"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>", "<|endoftext|>"};

/* What a request says, or else the model's generation_config.json. */
static const struct {
  const char *option, *key;
} PREFERENCES[] = {
    {"temperature", "temperature"}, {"top-k", "top_k"}, {"top-p", "top_p"}, {"min-p", "min_p"}, {"repetition-penalty", "repetition_penalty"}};
enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, REPETITION, PREFERENCE_COUNT };

rf_status rf_options_with_model(const rf_options *options, const char *model, rf_options **copy, rf_error *error) {
  char folder[4096], path[4200];
  struct stat info;
  *copy = rf_options_copy(options);
  if (!*copy) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  snprintf(folder, sizeof folder, "%s", model);
  snprintf(path, sizeof path, "%s/config.json", model);
  if (!stat(model, &info) && S_ISDIR(info.st_mode) && stat(path, &info)) RF_TRY(rf_checkpoint_newest(model, folder, error));
  return rf_options_set(*copy, "MODEL", folder, error);
}

/* generation_config.json beside the weights, or NULL. */
static rf_status read_config(const rf_settings *settings, json_t **json, char path[4200], rf_error *error) {
  *json = NULL;
  snprintf(path, 4200, "%s/generation_config.json", settings->weights_folder);
  if (!*settings->weights_folder || access(path, R_OK)) return RAFTER_OK;
  return rf_json_read(path, 1 << 20, json, error);
}

static void add_mark(rf_marks *marks, int64_t vocab, int64_t id) {
  if (id < 0 || id >= vocab || marks->count == RF_MARKS) return;
  for (int i = 0; i < marks->count; i++)
    if (marks->id[i] == id) return;
  marks->id[marks->count++] = (int32_t)id;
}

rf_status rf_marks_of(const rf_settings *settings, const rf_tokenizer *tokenizer, rf_marks *marks, rf_error *error) {
  char path[4200];
  json_t *json, *id;
  size_t i;
  int64_t vocab = settings->model.vocab;
  marks->count = 0;
  add_mark(marks, vocab, settings->model.eos_id);
  add_mark(marks, vocab, rf_tokenizer_eos(tokenizer));
  for (i = 0; i < sizeof TURN_ENDS / sizeof *TURN_ENDS; i++) {
    int32_t found = rf_tokenizer_find(tokenizer, TURN_ENDS[i], strlen(TURN_ENDS[i]));
    if (found >= 0 && rf_tokenizer_is_special(tokenizer, found)) add_mark(marks, vocab, found);
  }
  RF_TRY(read_config(settings, &json, path, error));
  json_t *eos = json_object_get(json, "eos_token_id");
  if (json_is_integer(eos)) add_mark(marks, vocab, json_integer_value(eos));
  json_array_foreach(eos, i, id) add_mark(marks, vocab, json_is_integer(id) ? json_integer_value(id) : -1);
  json_decref(json);
  return RAFTER_OK;
}

rf_status rf_sampling_of(const rf_options *o, const rf_settings *settings, rf_sampler_options *sampling, rf_error *error) {
  char path[4200];
  double value[PREFERENCE_COUNT];
  json_t *json;
  bool samples = true;
  RF_TRY(read_config(settings, &json, path, error));
  rf_status status = json ? rf_json_bool_or(json, "do_sample", path, true, &samples, error) : RAFTER_OK;
  for (int i = 0; i < PREFERENCE_COUNT; i++) {
    value[i] = rf_options_float(o, PREFERENCES[i].option);
    if (rf_options_given(o, PREFERENCES[i].option) || !json || status != RAFTER_OK) continue;
    if (i == TEMPERATURE && !samples) value[i] = 0;
    else status = rf_json_float_or(json, PREFERENCES[i].key, path, 0, 1e9, value[i], &value[i], error);
  }
  json_decref(json);
  *sampling = (rf_sampler_options){.temperature = (float)value[TEMPERATURE],
                                   .top_k = (int32_t)value[TOP_K],
                                   .top_p = (float)value[TOP_P],
                                   .min_p = (float)value[MIN_P],
                                   .repetition_penalty = (float)value[REPETITION],
                                   .seed = (uint64_t)rf_options_int(o, "seed")};
  return status;
}

rf_status rf_chat_text(const rf_chat *chat, const json_t *messages, bool opens_answer, rf_rendered *rendered, rf_error *error) {
  time_t seconds = time(NULL);
  struct tm now;
  rf_chat_options options = {.add_generation_prompt = opens_answer, .now = localtime_r(&seconds, &now)};
  return rf_chat_render(chat, messages, &options, rendered, error);
}

rf_status rf_chat_encode(const rf_chat *chat, const rf_tokenizer *tokenizer, const json_t *messages, bool opens_answer, rf_ids *ids,
                         rf_error *error) {
  rf_rendered rendered = {0};
  rf_status status = rf_chat_text(chat, messages, opens_answer, &rendered, error);
  ids->count = 0;
  if (status == RAFTER_OK)
    status = rf_tokenizer_encode(tokenizer, rendered.text, rendered.bytes, RF_ENCODE_PARSE, ids, error); /* a template writes its marks itself */
  rf_rendered_free(&rendered);
  return status;
}
