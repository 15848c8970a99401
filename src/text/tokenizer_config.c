/* tokenizer_config.c - applies tokenizer_config.json, which names the special tokens. For a
 * tokenizer.model, tokenizer_config.json also decides whether BOS and EOS are added around a
 * text. */
#include "text/tokenizer_parts.h"

#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Reads "eos_token": "</s>", or {"content": "</s>", ...}, or null. */
static rf_status named_id(const rf_tokenizer *t, const json_t *config, const char *key, const char *where,
                          int32_t *id, rf_error *error) {
  const json_t *value = json_object_get(config, key);
  if (json_is_object(value)) value = json_object_get(value, "content");
  if (!json_is_string(value)) return RAFTER_OK;
  int32_t found = rf_tokenizer_find(t, json_string_value(value), json_string_length(value));
  if (found < 0)
    return RF_FAIL(error, RAFTER_FAILED, "the two files belong to different tokenizers",
                   "a token is not in the vocabulary (%s, %s: '%.60s')", where, key,
                   json_string_value(value));
  *id = found;
  return RAFTER_OK;
}

static rf_status apply_config(rf_tokenizer *t, const json_t *config, bool adds_bos_eos, const char *where,
                              rf_error *error) {
  bool bos, eos;
  RF_TRY(named_id(t, config, "bos_token", where, &t->bos_id, error));
  RF_TRY(named_id(t, config, "eos_token", where, &t->eos_id, error));
  RF_TRY(named_id(t, config, "pad_token", where, &t->pad_id, error));
  if (!adds_bos_eos) return RAFTER_OK;
  const char *id;
  json_t *token;
  json_object_foreach (json_object_get(config, "added_tokens_decoder"), id, token) {
    int64_t number = strtoll(id, NULL, 10);
    if (number >= t->pieces.count)
      return RF_FAIL(error, RAFTER_FAILED, "add the model's tokenizer.json to the folder",
                     "unsupported setting (%s: added_tokens_decoder adds id %lld to tokenizer.model)", where,
                     (long long)number);
  }
  RF_TRY(rf_json_bool_or(config, "add_bos_token", where, t->prefix_count > 0, &bos, error));
  RF_TRY(rf_json_bool_or(config, "add_eos_token", where, t->suffix_count > 0, &eos, error));
  return rf_tokenizer_set_bos_eos(t, &t->bos_id, bos && t->bos_id >= 0, &t->eos_id, eos && t->eos_id >= 0,
                                  error);
}

rf_status rf_tokenizer_config_read(const char *path, json_t **config, rf_error *error) {
  const size_t most = (size_t)64 << 20;
  char *text = NULL;
  size_t bytes = 0;
  json_error_t bad;
  RF_TRY(rf_file_read(path, most, &text, &bytes, error));
  /* Integers are read as doubles, because model_max_length is often
   * 1000000000000000019884624838656. */
  *config = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &bad);
  free(text);
  if (*config) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is not valid JSON (line %d, column %d: %s)", path, bad.line,
                 bad.column, bad.text);
}

rf_status rf_tokenizer_config_apply(rf_tokenizer *tokenizer, const char *tokenizer_path, bool adds_bos_eos,
                                    rf_error *error) {
  char path[4300];
  struct stat info;
  json_t *config;
  const char *slash = strrchr(tokenizer_path, '/');
  snprintf(path, sizeof path, "%.*stokenizer_config.json", slash ? (int)(slash + 1 - tokenizer_path) : 0,
           tokenizer_path);
  if (stat(path, &info)) return RAFTER_OK;
  RF_TRY(rf_tokenizer_config_read(path, &config, error));
  rf_status status = apply_config(tokenizer, config, adds_bos_eos, path, error);
  json_decref(config);
  return status;
}
