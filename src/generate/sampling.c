/* sampling.c - see sampling.h. */
#include "generate/sampling.h"

#include "base/text.h"

#include <float.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* End-of-turn tokens of known chat templates. Models often name only the end-of-text token. */
static const char *const TURN_ENDS[] = {"<|im_end|>", "<end_of_turn>", "<|eot_id|>",
                                        "<|eom_id|>", "<|end|>",       "<|endoftext|>"};

enum { TEMPERATURE, TOP_K, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY, OF_THE_MODEL = PRESENCE };
#define AT(field) offsetof(rf_sampler_options, field)
const rf_sampling_number RF_SAMPLING[RF_SAMPLING_NUMBERS] = {
    [TEMPERATURE] = {"temperature", "temperature", 0, 100, AT(temperature)},
    [TOP_K] = {"top-k", "top_k", 0, 1 << 24, AT(top_k)},
    [TOP_P] = {"top-p", "top_p", 0, 1, AT(top_p)},
    [MIN_P] = {"min-p", "min_p", 0, 1, AT(min_p)},
    [REPETITION] = {"repetition-penalty", "repetition_penalty", 0, 100, AT(repetition_penalty)},
    [PRESENCE] = {"presence-penalty", "presence_penalty", -100, 100, AT(presence_penalty)},
    [FREQUENCY] = {"frequency-penalty", "frequency_penalty", -100, 100, AT(frequency_penalty)},
};

/* Replaces a top_p of 0, which keeps only the likeliest token. In rf_sampler_options, 0 means
 * unset. */
static const float ONLY_ONE = FLT_MIN;

static double get(const rf_sampler_options *s, int which) {
  if (which == TOP_K) return s->top_k;
  float value = *(const float *)((const char *)s + RF_SAMPLING[which].at);
  return which == TOP_P && value <= ONLY_ONE ? 0 : (double)value;
}

void rf_sampling_set(rf_sampler_options *s, int which, double value) {
  if (which == TOP_K) s->top_k = (int32_t)value;
  else *(float *)((char *)s + RF_SAMPLING[which].at) = which == TOP_P && value <= 0 ? ONLY_ONE : (float)value;
}

/* Reads a file next to the weights. Without such a file, *json is NULL. */
static rf_status read_beside(const char *folder, const char *name, json_t **json, char path[4200],
                             rf_error *error) {
  *json = NULL;
  snprintf(path, 4200, "%s/%s", folder, name);
  if (!*folder || access(path, R_OK)) return RAFTER_OK;
  return rf_json_read(path, 4 << 20, json, error);
}
static rf_status read_config(const char *folder, json_t **json, char path[4200], rf_error *error) {
  return read_beside(folder, "generation_config.json", json, path, error);
}

static void add_end(rf_end_ids *ends, int64_t vocab, int64_t id) {
  if (id < 0 || id >= vocab || ends->count == RF_END_IDS) return;
  for (int i = 0; i < ends->count; i++)
    if (ends->id[i] == id) return;
  ends->id[ends->count++] = (int32_t)id;
}

/* Adds "eos_token_id", which is one id or a list. */
static void add_ends_of(rf_end_ids *ends, int64_t vocab, const json_t *json) {
  json_t *eos = json_object_get(json, "eos_token_id"), *id;
  size_t i;
  if (json_is_integer(eos)) add_end(ends, vocab, json_integer_value(eos));
  json_array_foreach (eos, i, id) add_end(ends, vocab, json_is_integer(id) ? json_integer_value(id) : -1);
}

rf_status rf_end_ids_of(const rf_model *model, const char *folder, const rf_tokenizer *tokenizer,
                        rf_end_ids *ends, rf_error *error) {
  char path[4200];
  json_t *json;
  size_t i;
  ends->count = 0;
  add_end(ends, model->vocab, model->eos_id);
  if (tokenizer) add_end(ends, model->vocab, rf_tokenizer_eos(tokenizer));
  for (i = 0; tokenizer && i < sizeof TURN_ENDS / sizeof *TURN_ENDS; i++) {
    int32_t found = rf_tokenizer_find(tokenizer, TURN_ENDS[i], strlen(TURN_ENDS[i]));
    if (found >= 0) add_end(ends, model->vocab, found); /* some files give these tokens other types */
  }
  RF_TRY(read_config(folder, &json, path, error));
  bool listed = json_object_get(json, "eos_token_id") != NULL;
  add_ends_of(ends, model->vocab, json);
  json_decref(json);
  if (listed) return RAFTER_OK;
  /* without generation_config.json, the list of config.json counts */
  RF_TRY(read_beside(folder, "config.json", &json, path, error));
  add_ends_of(ends, model->vocab, json);
  add_ends_of(ends, model->vocab, json_object_get(json, "text_config"));
  json_decref(json);
  return RAFTER_OK;
}

rf_status rf_sampling_prefer(const char *folder, unsigned given, rf_sampler_options *s, char said[256],
                             rf_error *error) {
  char path[4200];
  json_t *json = NULL;
  bool samples = true;
  *said = 0;
  RF_TRY(read_config(folder, &json, path, error));
  rf_status status = json ? rf_json_bool_or(json, "do_sample", path, true, &samples, error) : RAFTER_OK;
  for (int i = 0; i < OF_THE_MODEL && json && status == RAFTER_OK; i++) {
    double before = get(s, i), value = before;
    if (given >> i & 1) continue;
    if (i == TEMPERATURE && !samples) value = 0;
    else status = rf_json_float_or(json, RF_SAMPLING[i].key, path, 0, 1e9, value, &value, error);
    rf_sampling_set(s, i, value);
    if (get(s, i) != before)
      rf_text_append(said, 256, "%s%s %g", *said ? ", " : "", RF_SAMPLING[i].name, value);
  }
  json_decref(json);
  return status;
}

rf_status rf_sampling_of_json(const json_t *json, const char *where, rf_sampler_options *s, rf_error *error) {
  for (int i = 0; i < RF_SAMPLING_NUMBERS; i++) {
    const rf_sampling_number *n = &RF_SAMPLING[i];
    const json_t *given = json_object_get(json, n->key);
    double value;
    if (!given || json_is_null(given)) continue;
    RF_TRY(rf_json_float(json, n->key, where, n->least, n->most, &value, error));
    rf_sampling_set(s, i, value);
  }
  return RAFTER_OK;
}

json_t *rf_sampling_json(const rf_sampler_options *s) {
  json_t *json = json_object();
  for (int i = 0; i < RF_SAMPLING_NUMBERS; i++)
    json_object_set_new(json, RF_SAMPLING[i].key,
                        i == TOP_K ? json_integer((json_int_t)s->top_k) : rf_json_decimal((float)get(s, i)));
  json_object_set_new(json, "seed", json_integer((json_int_t)s->seed));
  return json;
}
