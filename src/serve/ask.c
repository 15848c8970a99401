/* ask.c - reads a request's body: parses the JSON, finds its fields, and checks rules between
 * fields. */
#include "serve/ask.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool rf_ask_type(rf_wrong *wrong, const char *field, const char *what, const json_t *value) {
  return rf_wrong_set(wrong, 400, "invalid_type", field, "%s has the wrong type (expected %s, got %s)", field,
                      what, rf_json_type(value));
}

/* Changes members that are whole reals to integers, if an integer holds them. Returns such an integer
 * for `json` itself, or NULL. */
static json_t *restore_integers(json_t *json) {
  const char *name;
  json_t *member, *whole;
  size_t i;
  if (json_is_object(json))
    json_object_foreach (json, name, member) {
      whole = restore_integers(member);
      if (whole) json_object_set_new(json, name, whole);
    }
  json_array_foreach (json, i, member) {
    whole = restore_integers(member);
    if (whole) json_array_set_new(json, i, whole);
  }
  double value = json_real_value(json);
  bool fits = json_is_real(json) && value == floor(value) && fabs(value) < 0x1p53;
  return fits ? json_integer((json_int_t)value) : NULL;
}

json_t *rf_ask_json(const char *text, size_t bytes, size_t flags, json_error_t *fault) {
  json_t *json = json_loadb(text, bytes, flags, fault);
  if (!json && json_error_code(fault) == json_error_numeric_overflow) {
    json = json_loadb(text, bytes, flags | JSON_DECODE_INT_AS_REAL, fault);
    json_decref(restore_integers(json));
  }
  return json;
}

size_t rf_ask_units(const char *text, size_t bytes) {
  static const uint8_t UNITS[256] = {[','] = 1, [':'] = 2, ['['] = 3, ['{'] = 6};
  size_t units = 0;
  bool in_string = false;
  for (size_t i = 0; i < bytes; i++) {
    if (text[i] == '"') in_string = !in_string;
    else if (!in_string) units += UNITS[(unsigned char)text[i]];
    else if (text[i] == '\\') i++;
  }
  return units;
}

/* A body above RF_ASK_UNITS needs 4 bytes of text for each unit. So a larger --max-body allows more. */
static bool check_units(const char *body, size_t bytes, rf_wrong *wrong) {
  const size_t units = rf_ask_units(body, bytes), most = bytes / 4 > RF_ASK_UNITS ? bytes / 4 : RF_ASK_UNITS;
  if (units <= most) return true;
  return rf_wrong_set(wrong, 400, "too_many_values", NULL,
                      "the body has too many values (expected at most %zu, got %zu: a list counts as 3, an "
                      "object as 6, a name as 2)",
                      most, units);
}

static bool read_json(const char *body, size_t bytes, json_t **json, rf_wrong *wrong) {
  json_error_t fault = {0};
  size_t i = 0;
  while (i < bytes && strchr(" \t\r\n", body[i]) && body[i]) i++;
  if (i == bytes)
    return rf_wrong_set(wrong, 400, "invalid_json", NULL, "the body is empty (expected a JSON object)");
  if (!check_units(body, bytes, wrong)) return false;
  /* Schemas of tools may have the largest number of 64 bits without a sign. */
  *json = rf_ask_json(body, bytes, JSON_REJECT_DUPLICATES, &fault);
  if (!*json) {
    const char *what = json_error_code(&fault) == json_error_duplicate_key    ? "has a name twice"
                       : json_error_code(&fault) == json_error_invalid_utf8   ? "is not UTF-8 text"
                       : json_error_code(&fault) == json_error_stack_overflow ? "has too many levels"
                       : json_error_code(&fault) == json_error_null_character ? "has a character U+0000"
                                                                              : "is not valid JSON";
    return rf_wrong_set(wrong, 400, "invalid_json", NULL, "the body %s (line %d, column %d: %s)", what,
                        fault.line, fault.column, fault.text);
  }
  if (json_is_object(*json)) return true;
  return rf_wrong_set(wrong, 400, "invalid_type", NULL, "the body is %s (expected a JSON object)",
                      rf_json_type(*json));
}

static const rf_ask_field *field_of(const char *name, rf_ask_kind kind) {
  for (const rf_ask_field *f = RF_ASK_FIELDS; f->name; f++)
    if (f->kinds & kind && !strcmp(f->name, name)) return f;
  return NULL;
}

/* Adds the name of an unknown field to ask->ignored. The list becomes an HTTP header, so characters
 * that a header cannot contain become '?'. */
static void note_unknown(rf_ask *ask, const char *name) {
  size_t used = strlen(ask->ignored), room = sizeof ask->ignored;
  if (used + 80 > room) return;
  int n = snprintf(ask->ignored + used, room - used, "%s%.60s", used ? ", " : "", name);
  for (char *c = ask->ignored + used; n-- > 0; c++)
    if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\') *c = '?';
}

static bool read_fields(const rf_ask_rules *rules, rf_ask *ask, rf_wrong *wrong) {
  const char *name;
  json_t *value;
  json_object_foreach (ask->body, name, value) {
    const rf_ask_field *field = field_of(name, ask->kind);
    if (!field) note_unknown(ask, name);
    else if (!json_is_null(value) && !field->read(rules, field, value, ask, wrong)) return false;
  }
  if (rules->strict && *ask->ignored)
    return rf_wrong_set(wrong, 400, "unknown_field", NULL, "unknown fields, which this server refuses: %s",
                        ask->ignored);
  return true;
}

/* Returns true if the body has the field and the field is not null. */
static bool has(const rf_ask *ask, const char *name) {
  const json_t *value = json_object_get(ask->body, name);
  return value && !json_is_null(value);
}

static bool missing(rf_wrong *wrong, const char *field, const char *what) {
  return rf_wrong_set(wrong, 400, "missing_field", field, "%s is missing (expected %s)", field, what);
}

static bool check_answers(const rf_ask_rules *rules, const rf_ask *ask, rf_wrong *wrong) {
  int64_t answers = ask->prompts * ask->request.samples;
  const json_t *best = json_object_get(ask->body, "best_of");
  if (answers > rules->answers)
    return rf_wrong_set(wrong, 400, "too_many_answers", ask->request.samples > 1 ? "n" : "prompt",
                        "the request asks for %lld answers (expected at most %lld: prompts x n)",
                        (long long)answers, (long long)rules->answers);
  if (json_is_number(best) && json_number_value(best) != ask->request.samples)
    return rf_wrong_set(wrong, 400, "unsupported_field", "best_of",
                        "best_of is not supported (expected the value of n)");
  return true;
}

/* Sets whether the answer needs log-probabilities of prompts, and how many alternatives. */
static bool check_scores(rf_ask *ask, rf_wrong *wrong) {
  bool echoed = ask->echo && ask->logprobs;
  int32_t top = ask->prompt_logprobs ? ask->prompt_top : 0;
  if (ask->prompt_logprobs && ask->stream)
    return rf_wrong_set(wrong, 400, "invalid_value", "prompt_logprobs",
                        "prompt_logprobs does not work with stream: true");
  if (echoed && ask->request.top_logprobs > top) top = ask->request.top_logprobs;
  ask->scores = echoed || ask->prompt_logprobs;
  ask->request.prompt_top = top;
  return true;
}

/* Checks rules between the fields of a request for answers. */
static bool check_answer(const rf_ask_rules *rules, rf_ask *ask, rf_wrong *wrong) {
  bool chat = ask->kind == RF_ASK_CHAT;
  if (chat && !ask->messages) return missing(wrong, "messages", "a list of messages");
  if (!chat && !ask->prompts) return missing(wrong, "prompt", "a text or a list of token ids");
  if (chat && has(ask, "top_logprobs") && !ask->logprobs)
    return rf_wrong_set(wrong, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs: true");
  if (has(ask, "stream_options") && !ask->stream)
    return rf_wrong_set(wrong, 400, "invalid_value", "stream_options", "stream_options needs stream: true");
  return rf_ask_check_tools(rules, ask, wrong) && check_scores(ask, wrong) &&
         check_answers(rules, ask, wrong);
}

static bool check_tokens(const rf_ask_rules *rules, rf_ask *ask, rf_wrong *wrong) {
  if (ask->kind == RF_ASK_DETOKENIZE)
    return ask->prompts == 1 || missing(wrong, "tokens", "a list of token ids");
  if (ask->prompts && ask->messages)
    return rf_wrong_set(wrong, 400, "invalid_value", "messages", "the body has both prompt and messages");
  if (!ask->prompts && !ask->messages) return missing(wrong, "prompt", "a text, or messages");
  return rf_ask_check_tools(rules, ask, wrong);
}

static bool check_adapter(rf_ask *ask, rf_wrong *wrong) {
  if (!ask->lora_name) return missing(wrong, "lora_name", "the name of the adapter");
  return ask->lora_path || ask->kind == RF_ASK_UNLOAD ||
         missing(wrong, "lora_path", "the folder of the adapter");
}

bool rf_ask_read(const rf_ask_rules *rules, rf_ask_kind kind, const char *body, size_t bytes, rf_ask *ask,
                 rf_wrong *wrong) {
  *ask = (rf_ask){.kind = kind,
                  .request = rules->defaults,
                  .add_special = true,
                  .opens_answer = true,
                  .several_calls = true};
  ask->request.size = sizeof ask->request;
  ask->request.samples = 1;
  ask->request.max_tokens = rules->max_tokens;
  if (!read_json(body, bytes, &ask->body, wrong) || !read_fields(rules, ask, wrong)) return false;
  if (kind == RF_ASK_LOAD || kind == RF_ASK_UNLOAD) return check_adapter(ask, wrong);
  bool answers = kind == RF_ASK_COMPLETION || kind == RF_ASK_CHAT;
  if (!(answers ? check_answer(rules, ask, wrong) : check_tokens(rules, ask, wrong))) return false;
  if (ask->messages) ask->prompts = 1;
  return true;
}

/* An answer needs texts of these fields until its end. */
static bool is_kept(const rf_ask *ask, const char *name) {
  static const char *const KEPT[] = {"model", "stop", "tools", "tool_choice"};
  for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++)
    if (!strcmp(name, KEPT[i])) return true;
  return ask->echo && !strcmp(name, "prompt");
}

void rf_ask_trim(rf_ask *ask) {
  const char *name;
  json_t *value;
  void *next;
  json_object_foreach_safe (ask->body, next, name, value)
    if (!is_kept(ask, name)) json_object_del(ask->body, name);
  json_decref(ask->messages);
  ask->messages = NULL;
  free(ask->form_text);
  ask->form_text = NULL;
}

void rf_ask_free(rf_ask *ask) {
  json_decref(ask->body);
  json_decref(ask->messages);
  free(ask->bias);
  free(ask->form_text);
  *ask = (rf_ask){0};
}
