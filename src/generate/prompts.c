/* prompts.c - see prompts.h. */
#define _GNU_SOURCE
#include "generate/prompts.h"

#include "base/text.h"
#include "formats/json_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rf_status rf_prompt_reader_open(rf_prompt_reader *p, bool chat, rf_error *error) {
  if (!p->tokenizer) {
    double start = rf_now_seconds();
    RF_TRY(rf_tokenizer_for(p->model->name, p->model->vocab, p->folder, &p->tokenizer, error));
    p->tokenizer_seconds = rf_now_seconds() - start;
  }
  if (!chat || p->chat) return RAFTER_OK;
  if (!p->chat_template && !*p->folder)
    return RF_FAIL(error, RAFTER_FAILED,
                   "give a model with files, or a template (--template FILE, or none for plain text)",
                   "%s has no chat template (it is a shape without files)", p->model->name);
  return p->chat_template ? rf_chat_read(p->chat_template, p->tokenizer, &p->chat, error)
                          : rf_chat_open(p->folder, &p->chat, error);
}

void rf_prompt_reader_close(rf_prompt_reader *p) {
  rf_stop_close(&p->common.stop);
  free(p->bias);
  rf_tokenizer_close(p->tokenizer);
  rf_chat_free(p->chat);
}

/* ---- the prompt ------------------------------------------------------------------------------ */

rf_status rf_prompt_of_messages(rf_prompt_reader *p, const json_t *messages, rf_prompt *row,
                                rf_error *error) {
  RF_TRY(rf_prompt_reader_open(p, true, error));
  return rf_chat_encode(p->chat, p->tokenizer, messages, NULL, &row->tokens, &row->text, error);
}

rf_status rf_prompt_of_text(rf_prompt_reader *p, const char *text, size_t bytes, rf_prompt *row,
                            rf_error *error) {
  RF_TRY(rf_prompt_reader_open(p, false, error));
  if (!p->chats) {
    row->text = strndup(text, bytes);
    return row->text ? rf_tokenizer_encode(p->tokenizer, text, bytes, RF_ENCODE_BOS_EOS | RF_ENCODE_PARSE,
                                           &row->tokens, error)
                     : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  }
  json_t *messages = json_array();
  if (p->system)
    json_array_append_new(messages, json_pack("{ss ss}", "role", "system", "content", p->system));
  json_array_append_new(messages, json_pack("{ss ss%}", "role", "user", "content", text, bytes));
  rf_status status = rf_prompt_of_messages(p, messages, row, error);
  json_decref(messages);
  return status;
}

rf_status rf_ids_of_json(const json_t *list, int64_t vocab, const char *where, rf_ids *ids, rf_error *error) {
  size_t i;
  json_t *id;
  json_array_foreach ((json_t *)list, i, id) {
    if (!json_is_integer(id))
      return RF_FAIL(error, RAFTER_FAILED, "write the ids as whole numbers",
                     "a token is not an id (%s, tokens, token %zu: expected an id below %lld, got %s)", where,
                     i, (long long)vocab, rf_json_type(id));
    json_int_t v = json_integer_value(id);
    if (v < 0 || v >= vocab)
      return RF_FAIL(error, RAFTER_FAILED, "the ids belong to another tokenizer or model",
                     "token out of range (%s, tokens, token %zu: expected an id below %lld, got %lld)", where,
                     i, (long long)vocab, (long long)v);
    RF_TRY(rf_ids_add(ids, (int32_t)v, error));
  }
  return RAFTER_OK;
}

/* ---- fields of a JSON object ----------------------------------------------------------------- */

static rf_status read_stop(const json_t *json, const char *where, rf_prompt *row, rf_error *error) {
  const json_t *stop = json_object_get(json, "stop");
  size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
  rf_span span[RF_STOP_STRINGS];
  rf_error why = {0};
  if (!stop || json_is_null(stop)) return RAFTER_OK;
  for (size_t i = 0; i < count && i < RF_STOP_STRINGS; i++) {
    const json_t *text = json_is_array(stop) ? json_array_get(stop, i) : stop;
    if (!json_is_string(text))
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "a field is not text (%s, stop: expected a text or a list of texts)", where);
    span[i] = (rf_span){json_string_value(text), json_string_length(text)};
  }
  const rf_stop_options options = {.strings = span, .string_count = (int64_t)count};
  return rf_stop_open(&options, &row->stop, &why) == RAFTER_OK
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_FAILED, NULL, "%s (%s, stop)", why.message, where);
}

static rf_status read_numbers(const json_t *json, const char *where, rf_request *r, rf_error *error) {
  int64_t seed = (int64_t)r->sampler.seed, samples = r->samples;
  RF_TRY(rf_sampling_of_json(json, where, &r->sampler, error));
  RF_TRY(rf_json_int_or(json, "seed", where, 0, (int64_t)1 << 62, seed, &seed, error));
  RF_TRY(rf_json_int_or(json, "samples", where, 1, 1 << 16, samples, &samples, error));
  RF_TRY(rf_json_int_or(json, "max_tokens", where, 1, 1 << 24, r->max_tokens, &r->max_tokens, error));
  r->sampler.seed = (uint64_t)seed;
  r->samples = (int)samples;
  return RAFTER_OK;
}

/* Checks a key of a row. Returns an error if an unknown key is similar to a known key. Collects
 * other unknown keys in p->unread. */
static rf_status check_key(rf_prompt_reader *p, const char *key, const char *where, rf_error *error) {
  static const char *const OWN[] = {"id",      "prompt", "messages",   "tokens",
                                    "samples", "seed",   "max_tokens", "stop"};
  enum { OWN_COUNT = sizeof OWN / sizeof *OWN, COUNT = OWN_COUNT + RF_SAMPLING_NUMBERS };
  const char *known[COUNT];
  for (int i = 0; i < COUNT; i++) known[i] = i < OWN_COUNT ? OWN[i] : RF_SAMPLING[i - OWN_COUNT].key;
  for (int i = 0; i < COUNT; i++)
    if (!strcmp(key, known[i])) return RAFTER_OK;
  /* Short names, such as "idx" and "step", are usual columns of data sets. */
  const char *near = rf_nearest(key, known, COUNT);
  if (near && strlen(near) > 2 && strcmp(key, "step") != 0 &&
      rf_edit_distance(key, near) <= (strlen(key) < 8 ? 1 : 2))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "a row has an unknown key (%s: '%.60s'; did you mean '%s'?)",
                   where, key, near);
  char quoted[80];
  snprintf(quoted, sizeof quoted, "\"%.60s\"", key);
  if (!strstr(p->unread, quoted))
    rf_text_append(p->unread, sizeof p->unread, "%s%s", *p->unread ? ", " : "", quoted);
  return RAFTER_OK;
}

static rf_status check_row(rf_prompt_reader *p, const json_t *json, const char *where, rf_error *error) {
  const char *key;
  json_t *value;
  json_object_foreach ((json_t *)json, key, value) RF_TRY(check_key(p, key, where, error));
  return RAFTER_OK;
}

static rf_status check_form(const json_t *json, const char *where, rf_error *error) {
  static const char *const FORMS[] = {"prompt", "messages", "tokens"};
  const char *first = NULL;
  for (int i = 0; i < 3; i++) {
    const json_t *value = json_object_get(json, FORMS[i]);
    if (!value || json_is_null(value)) continue;
    if (first)
      return RF_FAIL(error, RAFTER_FAILED, "give the prompt in one way only", "a row has both %s and %s (%s)",
                     first, FORMS[i], where);
    first = FORMS[i];
  }
  return RAFTER_OK;
}

/* Reads a conversation. Adds the reader's system message if the conversation does not begin with
 * one. */
static rf_status read_messages(rf_prompt_reader *p, const json_t *messages, rf_prompt *row, rf_error *error) {
  const char *role = rf_json_text_at(json_array_get(messages, 0), "role");
  if (!p->system || !strcmp(role, "system")) return rf_prompt_of_messages(p, messages, row, error);
  json_t *whole = json_copy((json_t *)messages);
  if (!whole ||
      json_array_insert_new(whole, 0, json_pack("{ss ss}", "role", "system", "content", p->system))) {
    json_decref(whole);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  }
  rf_status status = rf_prompt_of_messages(p, whole, row, error);
  json_decref(whole);
  return status;
}

static rf_status read_prompt(rf_prompt_reader *p, const json_t *json, const char *where, rf_prompt *row,
                             rf_error *error) {
  const json_t *prompt = json_object_get(json, "prompt"), *messages = json_object_get(json, "messages");
  if (json_is_array(prompt)) messages = prompt; /* TRL's form of a conversation */
  rf_error why = {0};
  rf_status status = json_is_string(prompt) ? rf_prompt_of_text(p, json_string_value(prompt),
                                                                json_string_length(prompt), row, &why)
                                            : read_messages(p, messages, row, &why);
  return status == RAFTER_OK
             ? status
             : RF_FAIL(error, status, *why.hint ? why.hint : NULL, "%s (%s)", why.message, where);
}

rf_status rf_prompt_only_of_json(rf_prompt_reader *p, const json_t *json, const char *where, rf_prompt *row,
                                 rf_error *error) {
  const json_t *prompt = json_object_get(json, "prompt"), *messages = json_object_get(json, "messages"),
               *tokens = json_object_get(json, "tokens");
  RF_TRY(check_form(json, where, error));
  if (json_is_string(prompt) || json_is_array(prompt) || json_is_array(messages))
    RF_TRY(read_prompt(p, json, where, row, error));
  else if (json_is_array(tokens)) RF_TRY(rf_ids_of_json(tokens, p->model->vocab, where, &row->tokens, error));
  else
    return RF_FAIL(error, RAFTER_FAILED,
                   "rows have \"prompt\" (a text or a list of messages), \"messages\" (a list) or \"tokens\" "
                   "(a list of ids)",
                   "a row has no prompt (%s: expected prompt, messages or tokens)", where);
  return row->tokens.count ? RAFTER_OK
                           : RF_FAIL(error, RAFTER_FAILED, NULL,
                                     "a prompt is empty (%s: expected at least 1 token)", where);
}

rf_status rf_prompt_of_json(rf_prompt_reader *p, const json_t *json, const char *where, rf_prompt *row,
                            rf_error *error) {
  row->id = json_incref(json_object_get(json, "id"));
  RF_TRY(check_row(p, json, where, error));
  RF_TRY(read_numbers(json, where, &row->request, error));
  RF_TRY(read_stop(json, where, row, error));
  return rf_prompt_only_of_json(p, json, where, row, error);
}

void rf_prompt_free(rf_prompt *row) {
  json_decref(row->id);
  free(row->text);
  rf_ids_free(&row->tokens);
  rf_stop_close(&row->stop);
  rf_replies_free(&row->replies);
}

rf_status rf_prompt_submit(const rf_prompt_reader *p, rf_prompt *row, rf_generator *g, rf_error *error) {
  rf_request *r = &row->request;
  r->tokens = row->tokens.at;
  r->count = row->tokens.count;
  r->stop = r->sampler.eos = p->ends.id;
  r->sampler.eos_count = p->ends.count;
  bool ends = r->sampler.constraint || (!p->ignores_ends && !r->sampler.ignore_eos);
  r->stop_count = ends ? p->ends.count : 0;
  row->replies.owner = row;
  return rf_replies_submit(g, r, p->tokenizer, row->stop.string_count ? &row->stop : &p->common.stop,
                           &row->replies, error);
}

/* ---- lists of prompts ------------------------------------------------------------------------ */

rf_status rf_prompts_add(rf_prompts *p, const rf_prompt_reader *reader, rf_prompt **row, rf_error *error) {
  uint64_t seed = reader->common.request.sampler.seed;
  if (p->rows == p->capacity) {
    int64_t capacity = p->capacity ? 2 * p->capacity : 16;
    rf_prompt *grown = realloc(p->row, (size_t)capacity * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    p->row = grown;
    p->capacity = capacity;
  }
  *row = &p->row[p->rows];
  **row = reader->common;
  (*row)->stop = (rf_stop){0};
  if (p->rows) (*row)->request.sampler.seed = rf_key(seed, (uint64_t)p->rows, rf_name_key("row")) >> 2;
  p->rows++;
  return RAFTER_OK;
}

rf_status rf_prompts_read(rf_prompts *p, rf_prompt_reader *reader, const char *path, rf_error *error) {
  rf_status status;
  char where[4200];
  rf_json_lines lines;
  json_t *json = NULL;
  rf_prompt *row;
  RF_TRY(rf_json_lines_open(path, "check the path given to --input", &lines, error));
  while ((status = rf_json_lines_next(&lines, &json, error)) == RAFTER_OK && json) {
    snprintf(where, sizeof where, "%s, line %lld", path, (long long)lines.line);
    status = rf_prompts_add(p, reader, &row, error);
    if (status == RAFTER_OK) status = rf_prompt_of_json(reader, json, where, row, error);
    json_decref(json);
    if (status != RAFTER_OK) break;
    row->line = lines.line;
  }
  if (status == RAFTER_OK && !p->rows) status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s has no rows", path);
  rf_json_lines_close(&lines);
  return status;
}

void rf_prompts_free(rf_prompts *p) {
  for (int64_t i = 0; i < p->rows; i++) rf_prompt_free(&p->row[i]);
  free(p->row);
}
