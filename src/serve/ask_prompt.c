/* ask_prompt.c - prompts and messages of a request's body. */
#include "serve/ask.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */

static bool wrong_message(rf_wrong *wrong, size_t index, const char *field, const char *what) {
  char param[64];
  snprintf(param, sizeof param, "messages[%zu]%s%s", index, *field ? "." : "", field);
  return rf_wrong_set(wrong, 400, "invalid_message", param, "%s: %s", param, what);
}

/* The role of a message as chat templates know it; NULL: not a role that the server takes. */
static const char *role_of(const json_t *role) {
  static const char *const ROLES[][2] = {
      {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
  for (size_t i = 0; json_is_string(role) && i < sizeof ROLES / sizeof *ROLES; i++)
    if (!strcmp(json_string_value(role), ROLES[i][0])) return ROLES[i][1];
  return NULL;
}

/* Joins the texts of a list of parts with newlines, as vLLM does. */
static bool join_parts(const json_t *parts, size_t index, rf_body *out, rf_wrong *wrong) {
  size_t i;
  json_t *part;
  json_array_foreach ((json_t *)parts, i, part) {
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (!json_is_string(type) || (strcmp(json_string_value(type), "text") && json_is_object(part)))
      return wrong_message(wrong, index, "content",
                           "the model reads only text (expected parts of the type \"text\")");
    if (!json_is_string(text)) return wrong_message(wrong, index, "content", "a part has no text");
    if (i) rf_body_text(out, "\n");
    rf_body_bytes(out, json_string_value(text), json_string_length(text));
  }
  return true;
}

/* Fields of an assistant's earlier answer that clients send back: null, or an empty list. */
static bool is_empty(const json_t *value) {
  return !value || json_is_null(value) || (json_is_array(value) && !json_array_size(value));
}

static bool add_message(const json_t *message, size_t index, rf_ask *ask, rf_wrong *wrong) {
  const json_t *content = json_object_get(message, "content"), *name = json_object_get(message, "name"),
               *given = json_object_get(message, "role");
  const char *role = role_of(given);
  rf_body joined = {0};
  if (!json_is_object(message)) return wrong_message(wrong, index, "", "expected an object");
  if (!is_empty(json_object_get(message, "tool_calls")) ||
      !is_empty(json_object_get(message, "function_call")))
    return wrong_message(wrong, index, "tool_calls", "tool calls are not supported");
  if (json_is_string(given) &&
      (!strcmp(json_string_value(given), "tool") || !strcmp(json_string_value(given), "function")))
    return wrong_message(wrong, index, "role", "tool calls are not supported");
  if (!role) return wrong_message(wrong, index, "role", "expected system, developer, user or assistant");
  bool ok = true;
  if (json_is_string(content))
    rf_body_bytes(&joined, json_string_value(content), json_string_length(content));
  else if (json_is_array(content)) ok = join_parts(content, index, &joined, wrong);
  else ok = wrong_message(wrong, index, "content", "expected a text or a list of text parts");
  if (ok) {
    json_t *plain = json_pack("{ss ss%}", "role", role, "content", joined.at ? joined.at : "", joined.bytes);
    if (json_is_string(name)) json_object_set(plain, "name", (json_t *)(uintptr_t)name);
    ok = plain && !json_array_append_new(ask->messages, plain);
    if (!ok) wrong_message(wrong, index, "content", "out of memory");
  }
  rf_body_free(&joined);
  return ok;
}

bool rf_ask_messages(const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  size_t i;
  json_t *message;
  if (!json_is_array(value)) return rf_ask_type(wrong, "messages", "a list of messages", value);
  if (!json_array_size(value))
    return rf_wrong_set(wrong, 400, "invalid_value", "messages", "messages is empty");
  ask->messages = json_array();
  json_array_foreach ((json_t *)(uintptr_t)value, i, message)
    if (!add_message(message, i, ask, wrong)) return false;
  return true;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static bool check_ids(const rf_ask_rules *rules, const char *field, const json_t *list, rf_wrong *wrong) {
  size_t i;
  json_t *id;
  if (!json_array_size(list)) return rf_wrong_set(wrong, 400, "invalid_value", field, "%s is empty", field);
  json_array_foreach ((json_t *)(uintptr_t)list, i, id) {
    json_int_t v = json_integer_value(id);
    if (!json_is_integer(id)) return rf_ask_type(wrong, field, "token ids, without texts between them", id);
    if (v < 0 || v >= rules->vocab)
      return rf_wrong_set(wrong, 400, "invalid_token", field,
                          "token %zu of %s is out of range (expected 0 to %lld, got %lld)", i, field,
                          (long long)rules->vocab - 1, (long long)v);
  }
  return true;
}

bool rf_ask_prompts(const rf_ask_rules *rules, const char *field, const json_t *value, rf_ask *ask,
                    rf_wrong *wrong) {
  size_t i;
  json_t *prompt;
  ask->prompts = 1;
  if (json_is_string(value)) return true;
  if (!json_is_array(value)) return rf_ask_type(wrong, field, "a text or a list of token ids", value);
  const json_t *first = json_array_get(value, 0);
  if (!json_is_string(first) && !json_is_array(first)) return check_ids(rules, field, value, wrong);
  ask->prompts = (int64_t)json_array_size(value);
  json_array_foreach ((json_t *)(uintptr_t)value, i, prompt) {
    if (json_typeof(prompt) != json_typeof(first))
      return rf_ask_type(wrong, field, "prompts of one type", prompt);
    if (json_is_array(prompt) && !check_ids(rules, field, prompt, wrong)) return false;
  }
  return true;
}

bool rf_ask_prompt(const rf_ask_rules *rules, const rf_ask *ask, int64_t index, const char **text,
                   size_t *bytes, int32_t **ids, int64_t *count, rf_wrong *wrong) {
  const char *field = ask->kind == RF_ASK_DETOKENIZE ? "tokens" : "prompt";
  const json_t *value = json_object_get(ask->body, field), *first = json_array_get(value, 0);
  size_t i;
  json_t *id;
  *ids = NULL;
  *count = 0;
  if (!value || json_is_null(value))
    value = json_object_get(ask->body, "content"); /* llama-server's name in /tokenize */
  if (json_is_string(first) || json_is_array(first)) value = json_array_get(value, (size_t)index);
  if (json_is_string(value)) {
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return true;
  }
  int64_t most = ask->kind == RF_ASK_DETOKENIZE ? INT32_MAX : rules->context;
  if ((int64_t)json_array_size(value) > most)
    return rf_wrong_set(wrong, 400, "context_length_exceeded", field,
                        "the prompt is too long (expected at most %lld tokens, got %zu)",
                        (long long)rules->context, json_array_size(value));
  *ids = malloc((json_array_size(value) + 1) * sizeof **ids);
  if (!*ids) return rf_wrong_set(wrong, 500, NULL, NULL, "out of memory");
  json_array_foreach ((json_t *)(uintptr_t)value, i, id) (*ids)[(*count)++] = (int32_t)json_integer_value(id);
  return true;
}
