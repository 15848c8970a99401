/* sampling.c - see sampling.h. */
#include "api/sampling.h"

#include "base/text.h"

#include <float.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* End-of-turn tokens of known chat templates. Models often name only the end-of-text token. */
static const char *const TURN_ENDS[] = {"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>",
                                        "<|endoftext|>"};

static const struct preference {
  const char *option, *key;
  double most;
} PREFERENCES[] = {{"temperature", "temperature", 100},
                   {"top-k", "top_k", 1 << 24},
                   {"top-p", "top_p", 1},
                   {"min-p", "min_p", 1},
                   {"repetition-penalty", "repetition_penalty", 100},
                   {"presence-penalty", "presence_penalty", 100},
                   {"frequency-penalty", "frequency_penalty", 100}};
enum {
  TEMPERATURE,
  TOP_K,
  TOP_P,
  MIN_P,
  REPETITION,
  PRESENCE,
  FREQUENCY,
  PREFERENCE_COUNT,
  OF_THE_MODEL = PRESENCE
};

/* Replaces --top-p 0, which keeps only the likeliest token. In rf_sampler_options, 0 means
 * unset. */
static const float ONLY_ONE = FLT_MIN;

static double get(const rf_sampler_options *s, int which) {
  const double values[] = {(double)s->temperature,
                           (double)s->top_k,
                           s->top_p > ONLY_ONE ? (double)s->top_p : 0,
                           (double)s->min_p,
                           (double)s->repetition_penalty,
                           (double)s->presence_penalty,
                           (double)s->frequency_penalty};
  return values[which];
}
static void set(rf_sampler_options *s, int which, double value) {
  float *const places[] = {
      &s->temperature,      NULL, &s->top_p, &s->min_p, &s->repetition_penalty, &s->presence_penalty,
      &s->frequency_penalty};
  if (which == TOP_K) s->top_k = (int32_t)value;
  else if (which == TOP_P && value <= 0) s->top_p = ONLY_ONE;
  else *places[which] = (float)value;
}

/* Reads generation_config.json next to the weights. Without such a file, *json is NULL. */
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

rf_status rf_marks_of(const rf_settings *settings, const rf_tokenizer *tokenizer, rf_marks *marks,
                      rf_error *error) {
  char path[4200];
  json_t *json, *id;
  size_t i;
  int64_t vocab = settings->model.vocab;
  marks->count = 0;
  add_mark(marks, vocab, settings->model.eos_id);
  if (tokenizer) add_mark(marks, vocab, rf_tokenizer_eos(tokenizer));
  for (i = 0; tokenizer && i < sizeof TURN_ENDS / sizeof *TURN_ENDS; i++) {
    int32_t found = rf_tokenizer_find(tokenizer, TURN_ENDS[i], strlen(TURN_ENDS[i]));
    if (found >= 0 && rf_tokenizer_is_special(tokenizer, found)) add_mark(marks, vocab, found);
  }
  RF_TRY(read_config(settings, &json, path, error));
  json_t *eos = json_object_get(json, "eos_token_id");
  if (json_is_integer(eos)) add_mark(marks, vocab, json_integer_value(eos));
  json_array_foreach (eos, i, id) add_mark(marks, vocab, json_is_integer(id) ? json_integer_value(id) : -1);
  json_decref(json);
  return RAFTER_OK;
}

static bool is_typed(const rf_options *o, int which) {
  return rf_options_given(o, PREFERENCES[which].option);
}

void rf_sampling_typed(const rf_options *o, rf_sampler_options *s) {
  s->seed = (uint64_t)rf_options_int(o, "seed");
  for (int i = 0; i < PREFERENCE_COUNT; i++)
    if (rf_options_knows(o, PREFERENCES[i].option)) set(s, i, rf_options_float(o, PREFERENCES[i].option));
}

json_t *rf_sampling_json(const rf_sampler_options *s) {
  json_t *json = json_object();
  for (int i = 0; i < PREFERENCE_COUNT; i++)
    json_object_set_new(json, PREFERENCES[i].key,
                        i == TOP_K ? json_integer((json_int_t)s->top_k) : rf_json_decimal((float)get(s, i)));
  json_object_set_new(json, "seed", json_integer((json_int_t)s->seed));
  return json;
}

rf_status rf_sampling_of(const rf_options *o, const rf_settings *settings, const rafter_sink *sink,
                         rf_sampler_options *s, rf_error *error) {
  char path[4200], said[256] = "";
  json_t *json = NULL;
  bool samples = true;
  rf_sampling_typed(o, s);
  RF_TRY(read_config(settings, &json, path, error));
  rf_status status = json ? rf_json_bool_or(json, "do_sample", path, true, &samples, error) : RAFTER_OK;
  for (int i = 0; i < OF_THE_MODEL && json && status == RAFTER_OK; i++) {
    double before = get(s, i), value = before;
    if (is_typed(o, i)) continue;
    if (i == TEMPERATURE && !samples) value = 0;
    else status = rf_json_float_or(json, PREFERENCES[i].key, path, 0, 1e9, value, &value, error);
    set(s, i, value);
    if (get(s, i) != before)
      rf_text_append(said, sizeof said, "%s%s %g", *said ? ", " : "", PREFERENCES[i].option, value);
  }
  if (*said) rf_note(sink, "generation_config.json: %s\n", said);
  json_decref(json);
  return status;
}

rf_status rf_sampling_of_row(const json_t *json, const char *where, rf_sampler_options *s, rf_error *error) {
  for (int i = 0; i < PREFERENCE_COUNT; i++) {
    double value = get(s, i), least = i == PRESENCE || i == FREQUENCY ? -PREFERENCES[i].most : 0;
    RF_TRY(
        rf_json_float_or(json, PREFERENCES[i].key, where, least, PREFERENCES[i].most, value, &value, error));
    set(s, i, value);
  }
  return RAFTER_OK;
}

const rf_option RF_SAMPLING_OPTIONS[] = {
    RF_NUMBER("top-k", INT, NULL, 0, 1 << 24, "0", "Sampling", "choose among the k likeliest tokens; 0: all"),
    RF_NUMBER("top-p", FLOAT, NULL, 0, 1, "1", "Sampling",
              "choose among the likeliest tokens whose probabilities sum to this value"),
    RF_NUMBER("min-p", FLOAT, NULL, 0, 1, "0", "Sampling",
              "drop tokens less likely than this fraction of the likeliest token's probability"),
    RF_NUMBER("repetition-penalty", FLOAT, NULL, 0, 100, "1", "Sampling",
              "divisor of the logits of all tokens in the prompt and the answer; 1: none"),
    {.name = NULL},
};
