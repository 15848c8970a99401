/* prompts.c - see prompts.h. */
#define _GNU_SOURCE
#include "api/prompts.h"

#include "api/answers.h"
#include "formats/json_lines.h"
#include "base/text.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rf_status read_bias(const rf_options *o, rf_prompts *p, rf_error *error) {
  const char *const *texts = rf_options_texts(o, "logit-bias", &p->bias_count);
  p->bias = calloc((size_t)p->bias_count + 1, sizeof *p->bias);
  if (!p->bias) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < p->bias_count; i++) {
    char number[32] = "";
    const char *equals = strchr(texts[i], '=');
    int64_t id;
    double bias;
    if (equals && equals - texts[i] < (ptrdiff_t)sizeof number)
      memcpy(number, texts[i], (size_t)(equals - texts[i]));
    if (!equals || !rf_text_int(number, &id) || !rf_text_float(equals + 1, &bias))
      return RF_FAIL(error, RAFTER_INVALID, "for example --logit-bias 464=-5",
                     "--logit-bias is not a token and a number (expected ID=BIAS, got '%.60s')", texts[i]);
    if (id < 0 || id >= p->settings.model.vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (--logit-bias: expected an id of 0 to %lld, got %lld)",
                     (long long)p->settings.model.vocab - 1, (long long)id);
    p->bias[i] = (rf_logit_bias){(int32_t)id, (float)bias};
  }
  return RAFTER_OK;
}

/* Reads the sampling settings for prompts without settings of their own. */
static rf_status read_common(const rf_options *o, rf_prompts *p, const rafter_sink *sink, rf_error *error) {
  rf_prompt *c = &p->common;
  RF_TRY(rf_sampling_of(o, &p->settings, sink, &c->sampler, error));
  RF_TRY(read_bias(o, p, error));
  c->max_tokens = rf_options_int(o, "max-tokens");
  c->samples = (int)rf_options_int(o, "samples");
  c->sampler.min_tokens = rf_options_int(o, "min-tokens");
  c->sampler.bias = p->bias;
  c->sampler.bias_count = p->bias_count;
  c->stop = &c->own_stop;
  return rf_stop_given(o, &c->own_stop, error);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static rf_status need_tokenizer(rf_prompts *p, rf_error *error) {
  if (p->tokenizer) return RAFTER_OK;
  double start = rf_now_seconds();
  rf_status status = rf_tokenizer_for(p->settings.model.name, p->settings.model.vocab,
                                      p->settings.weights_folder, &p->tokenizer, error);
  p->tokenizer_seconds = rf_now_seconds() - start;
  return status;
}

static rf_status add_row(rf_prompts *p, rf_prompt **row, rf_error *error) {
  if (p->rows == p->capacity) {
    int64_t capacity = p->capacity ? 2 * p->capacity : 16;
    rf_prompt *grown = realloc(p->row, (size_t)capacity * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    p->row = grown;
    p->capacity = capacity;
  }
  *row = &p->row[p->rows];
  **row = p->common;
  (*row)->own_stop = (rf_stop){0};
  (*row)->sampler.seed = p->rows ? rf_key(p->common.sampler.seed, (uint64_t)p->rows, rf_name_key("row")) >> 2
                                 : p->common.sampler.seed;
  p->rows++;
  return RAFTER_OK;
}

/* Encodes a conversation with the model's chat template, up to the beginning of the answer. */
static rf_status render(rf_prompts *p, const rf_options *o, const json_t *messages, rf_prompt *row,
                        rf_error *error) {
  rf_rendered rendered = {0};
  if (!p->chat) RF_TRY(rf_chat_of(o, &p->settings, p->tokenizer, &p->chat, error));
  rf_status status = rf_chat_text(p->chat, messages, true, &rendered, error);
  if (status == RAFTER_OK) /* the template has already added the special tokens */
    status = rf_tokenizer_encode(p->tokenizer, rendered.text, rendered.bytes, RF_ENCODE_PARSE, &row->tokens,
                                 error);
  if (status == RAFTER_OK) {
    row->text = rendered.text;
    rendered.text = NULL;
  }
  rf_rendered_free(&rendered);
  return status;
}

static rf_status encode(rf_prompts *p, const rf_options *o, const char *text, size_t bytes, rf_prompt *row,
                        rf_error *error) {
  RF_TRY(need_tokenizer(p, error));
  if (!rf_options_flag(o, "chat")) {
    row->text = strndup(text, bytes);
    return row->text ? rf_tokenizer_encode(p->tokenizer, text, bytes, RF_ENCODE_MARKS | RF_ENCODE_PARSE,
                                           &row->tokens, error)
                     : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  }
  json_t *messages = json_array();
  if (rf_options_is_set(o, "system"))
    json_array_append_new(messages,
                          json_pack("{ss ss}", "role", "system", "content", rf_options_text(o, "system")));
  json_array_append_new(messages, json_pack("{ss ss%}", "role", "user", "content", text, bytes));
  rf_status status = render(p, o, messages, row, error);
  json_decref(messages);
  return status;
}

static rf_status read_typed(const rf_options *o, rf_prompts *p, rf_error *error) {
  rf_prompt *row;
  RF_TRY(add_row(p, &row, error));
  if (rf_options_is_set(o, "tokens"))
    RF_TRY(rf_ids_given(o, "tokens", p->settings.model.vocab, &row->tokens, error));
  else {
    const char *prompt = rf_options_text_or(o, "prompt", "\n");
    RF_TRY(encode(p, o, prompt, strlen(prompt), row, error));
  }
  return row->tokens.count
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_INVALID, "give --prompt TEXT or --tokens 1,2,3", "the prompt is empty");
}

/* ---- rows of a file -------------------------------------------------------------------------- */

static rf_status read_stop(const json_t *json, const char *where, rf_prompt *row, rf_error *error) {
  const json_t *stop = json_object_get(json, "stop");
  size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
  if (!stop || json_is_null(stop)) return RAFTER_OK;
  rf_span *span = calloc(count + 1, sizeof *span);
  if (!span) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_status status = RAFTER_OK;
  for (size_t i = 0; i < count && status == RAFTER_OK; i++) {
    const json_t *text = json_is_array(stop) ? json_array_get(stop, i) : stop;
    if (json_is_string(text)) span[i] = (rf_span){json_string_value(text), json_string_length(text)};
    else
      status = RF_FAIL(error, RAFTER_FAILED, NULL,
                       "a field is not text (%s, stop: expected a text or a list of texts)", where);
  }
  rf_error why = {0};
  if (status == RAFTER_OK && rf_stop_open(&(rf_stop_options){.strings = span, .string_count = (int64_t)count},
                                          &row->own_stop, &why) != RAFTER_OK)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s (%s, stop)", why.message, where);
  free(span);
  return status; /* row->stop is set later, because p->row may still be reallocated */
}

static rf_status read_numbers(const json_t *json, const char *where, rf_prompt *row, rf_error *error) {
  int64_t seed = (int64_t)row->sampler.seed, samples = row->samples;
  RF_TRY(rf_sampling_of_row(json, where, &row->sampler, error));
  RF_TRY(rf_json_int_or(json, "seed", where, 0, (int64_t)1 << 62, seed, &seed, error));
  RF_TRY(rf_json_int_or(json, "samples", where, 1, 1 << 16, samples, &samples, error));
  RF_TRY(rf_json_int_or(json, "max_tokens", where, 1, 1 << 24, row->max_tokens, &row->max_tokens, error));
  row->sampler.seed = (uint64_t)seed;
  row->samples = (int)samples;
  return RAFTER_OK;
}

/* Checks a key of a row. An unknown key that is similar to a known key is an error. Other unknown
 * keys are collected in p->unread. */
static rf_status check_key(rf_prompts *p, const char *key, const char *where, rf_error *error) {
  static const char *const KNOWN[] = {"id",
                                      "prompt",
                                      "messages",
                                      "tokens",
                                      "samples",
                                      "seed",
                                      "temperature",
                                      "top_k",
                                      "top_p",
                                      "min_p",
                                      "repetition_penalty",
                                      "presence_penalty",
                                      "frequency_penalty",
                                      "max_tokens",
                                      "stop"};
  const int count = (int)(sizeof KNOWN / sizeof *KNOWN);
  for (int i = 0; i < count; i++)
    if (!strcmp(key, KNOWN[i])) return RAFTER_OK;
  const char *near = rf_nearest(key, KNOWN, count);
  if (near && rf_edit_distance(key, near) <= (strlen(key) < 8 ? 1 : 2))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "a row has an unknown key (%s: '%.60s'; did you mean '%s'?)",
                   where, key, near);
  char quoted[80];
  snprintf(quoted, sizeof quoted, "\"%.60s\"", key);
  if (!strstr(p->unread, quoted))
    rf_text_append(p->unread, sizeof p->unread, "%s%s", *p->unread ? ", " : "", quoted);
  return RAFTER_OK;
}

static rf_status check_row(rf_prompts *p, json_t *json, const char *where, rf_error *error) {
  static const char *const FORMS[] = {"prompt", "messages", "tokens"};
  const char *key, *first = NULL;
  json_t *value;
  json_object_foreach (json, key, value) RF_TRY(check_key(p, key, where, error));
  for (int i = 0; i < 3; i++) {
    value = json_object_get(json, FORMS[i]);
    if (!value || json_is_null(value)) continue;
    if (first)
      return RF_FAIL(error, RAFTER_FAILED, "give the prompt in one way only", "a row has both %s and %s (%s)",
                     first, FORMS[i], where);
    first = FORMS[i];
  }
  return RAFTER_OK;
}

static rf_status read_prompt(const rf_options *o, rf_prompts *p, const json_t *json, const char *where,
                             rf_prompt *row, rf_error *error) {
  const json_t *prompt = json_object_get(json, "prompt"), *messages = json_object_get(json, "messages");
  rf_error why = {0};
  rf_status status;
  if (json_is_string(prompt)) {
    status = encode(p, o, json_string_value(prompt), json_string_length(prompt), row, &why);
  } else {
    status = need_tokenizer(p, &why);
    if (status == RAFTER_OK) status = render(p, o, messages, row, &why);
  }
  return status == RAFTER_OK
             ? status
             : RF_FAIL(error, status, *why.hint ? why.hint : NULL, "%s (%s)", why.message, where);
}

static rf_status read_row(const rf_options *o, rf_prompts *p, json_t *json, const char *where, rf_prompt *row,
                          rf_error *error) {
  const json_t *prompt = json_object_get(json, "prompt"), *messages = json_object_get(json, "messages"),
               *tokens = json_object_get(json, "tokens");
  row->id = json_incref(json_object_get(json, "id"));
  RF_TRY(check_row(p, json, where, error));
  RF_TRY(read_numbers(json, where, row, error));
  RF_TRY(read_stop(json, where, row, error));
  if (json_is_string(prompt) || json_is_array(messages)) RF_TRY(read_prompt(o, p, json, where, row, error));
  else if (json_is_array(tokens))
    RF_TRY(rf_ids_of_json(tokens, p->settings.model.vocab, where, &row->tokens, error));
  else
    return RF_FAIL(error, RAFTER_FAILED,
                   "rows have \"prompt\" (a text), \"messages\" (a list) or \"tokens\" (a list of ids)",
                   "a row has no prompt (%s: expected prompt, messages or tokens)", where);
  return row->tokens.count ? RAFTER_OK
                           : RF_FAIL(error, RAFTER_FAILED, NULL,
                                     "a prompt is empty (%s: expected at least 1 token)", where);
}

static rf_status read_file(const rf_options *o, rf_prompts *p, rf_error *error) {
  rf_status status = RAFTER_OK;
  char where[4200];
  rf_json_lines lines;
  json_t *json = NULL;
  rf_prompt *row;
  RF_TRY(rf_json_lines_open(p->path, "check the path given to --input", &lines, error));
  for (;;) {
    RF_GO(rf_json_lines_next(&lines, &json, error));
    if (!json) break;
    snprintf(where, sizeof where, "%s, line %lld", p->path, (long long)lines.line);
    RF_GO(add_row(p, &row, error));
    row->line = lines.line;
    RF_GO(read_row(o, p, json, where, row, error));
    json_decref(json);
    json = NULL;
  }
  if (!p->rows) status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s has no rows", p->path);
done:
  json_decref(json);
  rf_json_lines_close(&lines);
  return status;
}

/* ---- all prompts ----------------------------------------------------------------------------- */

/* Sets the context length to --seq. Without --seq, the context length is that of the longest prompt
 * with its answer, but not more than the model's number of positions. */
static rf_status resolve_context(const rf_options *o, rf_prompts *p, rf_error *error) {
  rf_build_options *b = &p->settings.plan.build;
  int64_t most = p->settings.model.max_seq, longest = 0, answers = 0, samples = 1;
  for (int64_t i = 0; i < p->rows; i++) {
    const rf_prompt *row = &p->row[i];
    int64_t length = row->tokens.count + row->max_tokens;
    longest = length > longest ? length : longest;
    answers += row->samples;
    samples = row->samples > samples ? row->samples : samples;
  }
  if (!rf_options_is_set(o, "seq")) b->seq = longest < most ? longest : most;
  b->microbatch = rf_options_int_or(o, "batch", answers < 8 ? answers : 8);
  /* If a prompt has more samples than there are cache slots, one more slot caches the prompt. */
  b->accumulate = 1;
  b->sequences = b->microbatch + (samples > b->microbatch);
  for (int64_t i = 0; i < p->rows; i++) {
    const rf_prompt *row = &p->row[i];
    char where[4200] = "";
    if (row->tokens.count < b->seq) continue;
    if (row->line) snprintf(where, sizeof where, "%s, line %lld: ", p->path, (long long)row->line);
    return RF_FAIL(error, row->line ? RAFTER_FAILED : RAFTER_INVALID, "shorten the prompt",
                   "the prompt leaves no room to generate (%sexpected fewer than %lld tokens, got %lld)",
                   where, (long long)b->seq, (long long)row->tokens.count);
  }
  return RAFTER_OK;
}

/* Checks that options give the prompt in one form only. Chat options need --chat. */
static rf_status check_typed(const rf_options *o, rf_error *error) {
  static const char *const FORMS[] = {"input", "prompt", "tokens"};
  static const char *const OF_CHAT[] = {"system", "template"};
  const char *first = NULL;
  for (int i = 0; i < 3; i++) {
    if (!rf_options_is_set(o, FORMS[i])) continue;
    if (first)
      return RF_FAIL(error, RAFTER_INVALID, "give the prompt in one way only",
                     "--%s and --%s both give a prompt", first, FORMS[i]);
    first = FORMS[i];
  }
  bool chat = rf_options_flag(o, "chat"), file = rf_options_is_set(o, "input");
  if (chat && rf_options_is_set(o, "tokens"))
    return RF_FAIL(error, RAFTER_INVALID, "give --prompt TEXT, or leave --chat out",
                   "--chat needs text, but --tokens gives token ids");
  for (int i = 0; i < 2; i++)
    if (rf_options_is_set(o, OF_CHAT[i]) && !chat && !(i == 1 && file))
      return RF_FAIL(error, RAFTER_INVALID, "add --chat", "--%s needs --chat", OF_CHAT[i]);
  return RAFTER_OK;
}

rf_status rf_prompts_read(const rf_options *o, const rafter_sink *sink, rf_prompts *p, rf_error *error) {
  RF_TRY(check_typed(o, error));
  RF_TRY(rf_settings_resolve(o, "generate", &p->settings, error));
  p->path = rf_options_text(o, "input");
  p->chats = rf_options_flag(o, "chat");
  if (!rf_options_is_set(o, "tokens") && !p->path) RF_TRY(need_tokenizer(p, error));
  RF_TRY(read_common(o, p, sink, error));
  RF_TRY(p->path ? read_file(o, p, error) : read_typed(o, p, error));
  if (*p->unread) rf_note(sink, "%s: ignored keys: %s\n", p->path, p->unread);
  RF_TRY(rf_marks_of(&p->settings, p->tokenizer, &p->marks, error));
  for (int64_t i = 0; i < p->rows; i++) {
    rf_prompt *row = &p->row[i];
    row->sampler.eos = p->marks.id;
    row->sampler.eos_count = p->marks.count;
    row->stop = row->own_stop.string_count ? &row->own_stop : p->common.stop;
  }
  return resolve_context(o, p, error);
}

void rf_prompts_free(rf_prompts *p) {
  for (int64_t i = 0; i < p->rows; i++) {
    rf_prompt *row = &p->row[i];
    json_decref(row->id);
    free(row->text);
    rf_ids_free(&row->tokens);
    rf_stop_close(&row->own_stop);
  }
  rf_stop_close(&p->common.own_stop);
  rf_tokenizer_close(p->tokenizer);
  rf_chat_free(p->chat);
  free(p->row);
  free(p->bias);
}
