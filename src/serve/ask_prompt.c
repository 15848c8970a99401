/* ask_prompt.c - reads the prompts and messages of a request's body. */
#include "serve/ask.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */

bool rf_ask_wrong_message(rf_wrong *wrong, size_t index, const char *field, const char *what) {
  char param[64];
  snprintf(param, sizeof param, "messages[%zu]%s%s", index, *field ? "." : "", field);
  return rf_wrong_set(wrong, 400, "invalid_message", param, "%s: %s", param, what);
}

/* Returns the name of a role in chat templates; NULL: the server does not accept this role. */
static const char *role_of(const json_t *role) {
  static const char *const ROLES[][2] = {{"system", "system"},
                                         {"developer", "system"},
                                         {"user", "user"},
                                         {"assistant", "assistant"},
                                         {"tool", "tool"}};
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
      return rf_ask_wrong_message(wrong, index, "content",
                                  "the model reads only text (expected parts of the type \"text\")");
    if (!json_is_string(text)) return rf_ask_wrong_message(wrong, index, "content", "a part has no text");
    if (i) rf_body_text(out, "\n");
    rf_body_bytes(out, json_string_value(text), json_string_length(text));
  }
  return true;
}

/* Returns true for null and for an empty list. Clients send back earlier answers of the assistant,
 * which may have such fields. */
static bool is_empty(const json_t *value) {
  return !value || json_is_null(value) || (json_is_array(value) && !json_array_size(value));
}

/* Reads the content of a message. Only an assistant's message with calls may have no content. */
static bool read_content(const json_t *message, size_t index, bool optional, json_t *to, rf_wrong *wrong) {
  json_t *content = json_object_get(message, "content");
  rf_body joined = {0};
  bool ok = true;
  if (optional && (!content || json_is_null(content))) {
    if (content) json_object_set(to, "content", content);
    return true;
  }
  if (json_is_string(content))
    rf_body_bytes(&joined, json_string_value(content), json_string_length(content));
  else if (json_is_array(content)) ok = join_parts(content, index, &joined, wrong);
  else ok = rf_ask_wrong_message(wrong, index, "content", "expected a text or a list of text parts");
  if (ok) json_object_set_new(to, "content", json_stringn(joined.at ? joined.at : "", joined.bytes));
  rf_body_free(&joined);
  return ok;
}

/* Reads the fields about calls in an assistant's message, or in the result of a call. */
static bool read_calls(const rf_ask_rules *rules, const json_t *message, size_t index, json_t *ids,
                       json_t *to, rf_wrong *wrong) {
  const json_t *calls = json_object_get(message, "tool_calls"),
               *id = json_object_get(message, "tool_call_id");
  const char *role = json_string_value(json_object_get(to, "role"));
  if (!is_empty(json_object_get(message, "function_call")))
    return rf_ask_wrong_message(wrong, index, "function_call", "not supported (expected tool_calls)");
  if (!strcmp(role, "tool")) {
    if (!json_is_string(id) || !json_object_get(ids, json_string_value(id)))
      return rf_ask_wrong_message(wrong, index, "tool_call_id",
                                  "expected the id of a call in an earlier message of the assistant");
    json_object_set(to, "tool_call_id", (json_t *)(uintptr_t)id);
  }
  if (is_empty(calls)) return true;
  if (strcmp(role, "assistant"))
    return rf_ask_wrong_message(wrong, index, "tool_calls", "only messages of the assistant have calls");
  json_t *read = rf_ask_calls(rules, calls, index, ids, wrong);
  return read && !json_object_set_new(to, "tool_calls", read);
}

static bool add_message(const rf_ask_rules *rules, const json_t *message, size_t index, json_t *ids,
                        rf_ask *ask, rf_wrong *wrong) {
  json_t *name = json_object_get(message, "name");
  const char *role = role_of(json_object_get(message, "role"));
  if (!json_is_object(message)) return rf_ask_wrong_message(wrong, index, "", "expected an object");
  if (!role)
    return rf_ask_wrong_message(wrong, index, "role", "expected system, developer, user, assistant or tool");
  json_t *plain = rf_must(json_pack("{ss}", "role", role));
  json_array_append_new(ask->messages, plain);
  bool ok = read_calls(rules, message, index, ids, plain, wrong);
  bool calls = ok && json_object_get(plain, "tool_calls");
  ask->uses_tools |= calls || !strcmp(role, "tool");
  ok = ok && read_content(message, index, calls, plain, wrong);
  if (json_is_string(name)) json_object_set(plain, "name", name);
  return ok;
}

bool rf_ask_messages(const rf_ask_rules *rules, const json_t *value, rf_ask *ask, rf_wrong *wrong) {
  size_t i;
  json_t *message;
  bool ok = true;
  if (!json_is_array(value)) return rf_ask_type(wrong, "messages", "a list of messages", value);
  if (!json_array_size(value))
    return rf_wrong_set(wrong, 400, "invalid_value", "messages", "messages is empty");
  json_t *ids = rf_must(json_object());
  ask->messages = rf_must(json_array());
  json_array_foreach ((json_t *)(uintptr_t)value, i, message)
    if (ok) ok = add_message(rules, message, i, ids, ask, wrong);
  json_decref(ids);
  return ok;
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
