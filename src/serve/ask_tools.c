/* ask_tools.c - reads OpenAI's fields tools and tool_choice, and the calls in messages. */
#include "serve/ask.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FUNCTION[] = "function";

static bool is_function(const json_t *type) {
  return json_is_string(type) && !strcmp(json_string_value(type), FUNCTION);
}

/* Accepts only names that every template and every format of calls can contain. */
static bool good_name(const json_t *name) {
  const char *text = json_string_value(name);
  size_t bytes = json_string_length(name);
  if (!text || bytes < 1 || bytes > RF_ASK_TOOL_NAME) return false;
  return strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.") == bytes;
}

/* ---- tools ----------------------------------------------------------------------------------- */

static bool wrong_tool(rf_wrong *wrong, size_t index, const char *field, const char *what) {
  char param[64];
  snprintf(param, sizeof param, "tools[%zu]%s%s", index, *field ? "." : "", field);
  return rf_wrong_set(wrong, 400, "invalid_tool", param, "%s: %s", param, what);
}

static bool check_tool(const json_t *tool, size_t index, json_t *names, rf_wrong *wrong) {
  const json_t *function = json_object_get(tool, FUNCTION), *name = json_object_get(function, "name"),
               *about = json_object_get(function, "description"),
               *parameters = json_object_get(function, "parameters"),
               *strict = json_object_get(function, "strict"), *type = json_object_get(parameters, "type");
  if (!json_is_object(tool)) return wrong_tool(wrong, index, "", "expected an object");
  if (!is_function(json_object_get(tool, "type")))
    return wrong_tool(wrong, index, "type", "expected \"function\"");
  if (!json_is_object(function)) return wrong_tool(wrong, index, FUNCTION, "expected an object");
  if (!good_name(name))
    return wrong_tool(wrong, index, "function.name", "expected 1 to 64 letters, digits, _, - and .");
  if (json_object_get(names, json_string_value(name)))
    return wrong_tool(wrong, index, "function.name", "an earlier tool has the same name");
  json_object_set_new(names, json_string_value(name), json_true());
  if (about && !json_is_null(about) && !json_is_string(about))
    return wrong_tool(wrong, index, "function.description", "expected a text");
  if (strict && !json_is_null(strict) && !json_is_boolean(strict))
    return wrong_tool(wrong, index, "function.strict", "expected true or false");
  if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
    return wrong_tool(wrong, index, "function.parameters", "expected a JSON schema, which is an object");
  if (type && (!json_is_string(type) || strcmp(json_string_value(type), "object")))
    return wrong_tool(wrong, index, "function.parameters", "expected a schema of the type \"object\"");
  return true;
}

bool rf_ask_tools(const rf_ask_rules *r, const rf_ask_field *f, const json_t *value, rf_ask *ask,
                  rf_wrong *wrong) {
  size_t i;
  json_t *tool;
  bool ok = true;
  (void)r;
  if (!json_is_array(value)) return rf_ask_type(wrong, f->name, "a list of tools", value);
  if (json_array_size(value) > RF_ASK_TOOLS)
    return rf_wrong_set(wrong, 400, "invalid_value", f->name,
                        "%s has too many tools (expected at most %d, got %zu)", f->name, RF_ASK_TOOLS,
                        json_array_size(value));
  json_t *names = rf_must(json_object());
  json_array_foreach ((json_t *)(uintptr_t)value, i, tool)
    if (ok) ok = check_tool(tool, i, names, wrong);
  json_decref(names);
  if (ok && json_array_size(value)) ask->tools = value;
  return ok;
}

bool rf_ask_tool_choice(const rf_ask_rules *r, const rf_ask_field *f, const json_t *value, rf_ask *ask,
                        rf_wrong *wrong) {
  static const char *const WORDS[] = {
      [RF_TOOLS_AUTO] = "auto", [RF_TOOLS_NONE] = "none", [RF_TOOLS_REQUIRED] = "required"};
  const char *text = json_string_value(value);
  const json_t *name = json_object_get(json_object_get(value, FUNCTION), "name");
  (void)r;
  for (int i = 0; text && i <= RF_TOOLS_REQUIRED; i++)
    if (!strcmp(text, WORDS[i])) return ask->tool_choice = (rf_tool_choice)i, true;
  if (!is_function(json_object_get(value, "type")) || !json_is_string(name))
    return rf_wrong_set(wrong, 400, "invalid_value", f->name,
                        "%s is not supported (expected \"none\", \"auto\", \"required\" or "
                        "{\"type\": \"function\", \"function\": {\"name\": ...}})",
                        f->name);
  ask->tool_choice = RF_TOOLS_NAMED;
  ask->tool_name = json_string_value(name);
  return true;
}

void rf_ask_take_templates(rf_ask_rules *rules, const char *plain, const char *with_tools) {
  rules->chat_template = with_tools;
  rules->knows_tools = rf_tool_template(with_tools);
  rules->knows_calls = rf_tool_template(plain);
  rules->tool_format = rf_tool_format_of(with_tools);
}

/* ---- rules between fields -------------------------------------------------------------------- */

static bool check_choice(const rf_ask *ask, rf_wrong *wrong) {
  static const char FIELD[] = "tool_choice";
  bool forced = ask->tool_choice == RF_TOOLS_REQUIRED || ask->tool_choice == RF_TOOLS_NAMED;
  if (forced && !ask->tools) return rf_wrong_set(wrong, 400, "invalid_value", FIELD, "%s needs tools", FIELD);
  if (ask->tool_name && !rf_tool_known(ask->tools, ask->tool_name, strlen(ask->tool_name)))
    return rf_wrong_set(wrong, 400, "invalid_value", FIELD, "%s names no tool of the request (got \"%.64s\")",
                        FIELD, ask->tool_name);
  return true;
}

static bool check_template(const rf_ask_rules *rules, const rf_ask *ask, rf_wrong *wrong) {
  const char *field = ask->tools ? "tools" : "messages";
  /* route.c refuses messages without a template. */
  if (!rules->chat_template || (!ask->tools && !ask->uses_tools)) return true;
  if (ask->tools ? !rules->knows_tools : !rules->knows_calls)
    return rf_wrong_set(wrong, 400, "unsupported_field", field,
                        "the chat template of %.200s knows no tools; use another model, or start the server "
                        "with --template",
                        rules->model);
  if (ask->tools && !rules->tool_format)
    return rf_wrong_set(wrong, 400, "unsupported_field", field,
                        "the calls that the chat template of %.200s describes have an unknown format (known: "
                        "%s)",
                        rules->model, rf_tool_format_names());
  return true;
}

bool rf_ask_check_tools(const rf_ask_rules *rules, rf_ask *ask, rf_wrong *wrong) {
  if (!check_choice(ask, wrong)) return false;
  if (ask->tool_choice == RF_TOOLS_NONE) ask->tools = NULL;
  if (!check_template(rules, ask, wrong)) return false;
  if (!ask->tools || !rules->tool_format || ask->kind != RF_ASK_CHAT) return true;
  ask->request.specials = rules->tool_format->specials;
  const bool free = ask->tool_choice == RF_TOOLS_AUTO, several = ask->several_calls && !ask->tool_name;
  /* A form of the request says what the answer is, also if a tool is strict. */
  if (free && (ask->form_field || !rf_tool_strict(ask->tools))) return true;
  char *form = free ? rf_tool_strict_form(rules->tool_format, ask->tools, several)
                    : rf_tool_form(rules->tool_format, ask->tools, ask->tool_name, several);
  return rf_ask_take_form(ask, free ? "tools" : "tool_choice", RAFTER_FORM_PARTS, form, strlen(form), wrong);
}

/* ---- calls in messages ----------------------------------------------------------------------- */

static bool wrong_call(rf_wrong *wrong, size_t index, size_t call, const char *field, const char *what) {
  char path[48];
  snprintf(path, sizeof path, "tool_calls[%zu]%s%s", call, *field ? "." : "", field);
  return rf_ask_wrong_message(wrong, index, path, what);
}

/* Returns the arguments of a call as an object, which templates need; NULL: the text is not an
 * object. */
static json_t *read_arguments(const json_t *given) {
  const char *text = json_string_value(given);
  json_error_t fault = {0};
  if (json_is_object(given)) return json_incref((json_t *)(uintptr_t)given);
  if (!text) return NULL;
  if (!*text) return json_object();
  json_t *read = rf_ask_json(text, json_string_length(given), JSON_ALLOW_NUL, &fault);
  if (json_is_object(read)) return read;
  json_decref(read);
  return NULL;
}

/* Returns a copy of a call, with arguments in the form that the template expects. NULL: the
 * arguments are wrong. */
static json_t *copy_call(const rf_ask_rules *rules, const json_t *call) {
  json_t *function = json_object_get(call, FUNCTION), *given = json_object_get(function, "arguments");
  json_t *arguments = read_arguments(given);
  if (!arguments) return NULL;
  if (rf_tool_text_arguments(rules->tool_format, rules->chat_template)) {
    /* the model sees the text that it wrote: another form could change numbers */
    char *text = json_string_length(given) ? NULL : rf_must(json_dumps(arguments, 0));
    json_decref(arguments);
    arguments = text ? json_string(text) : json_incref(given);
    free(text);
  }
  json_t *own = json_copy((json_t *)(uintptr_t)call), *inside = json_copy(function);
  json_object_set_new(inside, "arguments", arguments);
  json_object_set_new(own, FUNCTION, inside);
  return own;
}

static bool add_call(const rf_ask_rules *rules, const json_t *call, size_t index, json_t *ids, json_t *to,
                     rf_wrong *wrong) {
  const json_t *function = json_object_get(call, FUNCTION), *id = json_object_get(call, "id"),
               *type = json_object_get(call, "type");
  size_t i = json_array_size(to);
  if (!json_is_object(call)) return wrong_call(wrong, index, i, "", "expected an object");
  if (!json_is_string(id) || !json_string_length(id))
    return wrong_call(wrong, index, i, "id", "expected a text");
  if (type && !is_function(type)) return wrong_call(wrong, index, i, "type", "expected \"function\"");
  if (!json_is_string(json_object_get(function, "name")))
    return wrong_call(wrong, index, i, "function.name", "expected a text");
  json_t *own = copy_call(rules, call);
  if (!own) return wrong_call(wrong, index, i, "function.arguments", "expected the text of a JSON object");
  json_object_set_new(ids, json_string_value(id), json_true());
  json_array_append_new(to, own);
  return true;
}

json_t *rf_ask_calls(const rf_ask_rules *rules, const json_t *calls, size_t index, json_t *ids,
                     rf_wrong *wrong) {
  json_t *call, *read = rf_must(json_array());
  size_t i;
  bool ok =
      json_is_array(calls) || rf_ask_wrong_message(wrong, index, "tool_calls", "expected a list of calls");
  json_array_foreach ((json_t *)(uintptr_t)calls, i, call)
    if (ok) ok = add_call(rules, call, index, ids, read, wrong);
  if (ok) return read;
  json_decref(read);
  return NULL;
}
