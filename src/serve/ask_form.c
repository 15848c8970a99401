/* ask_form.c - reads the fields that give the form of an answer: OpenAI's response_format, and
 * vLLM's structured_outputs, also by other names. */
#include "serve/ask.h"

#include <stdlib.h>
#include <string.h>

bool rf_ask_take_form(rf_ask *ask, const char *field, rafter_form form, char *text, size_t bytes,
                      rf_wrong *wrong) {
  if (ask->form_field) {
    free(text);
    return rf_wrong_set(wrong, 400, "invalid_value", field, "the request has two forms: %s and %s",
                        ask->form_field, field);
  }
  ask->form_field = field;
  ask->form = form;
  ask->form_text = text;
  ask->form_bytes = bytes;
  return true;
}

static bool take_json(rf_ask *ask, const char *field, rafter_form form, const json_t *value,
                      rf_wrong *wrong) {
  char *text = rf_must(json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY));
  return rf_ask_take_form(ask, field, form, text, strlen(text), wrong);
}

static bool take_text(rf_ask *ask, const char *field, rafter_form form, const json_t *value,
                      rf_wrong *wrong) {
  size_t bytes = json_string_length(value);
  char *text = rf_must(malloc(bytes + 1));
  memcpy(text, json_string_value(value), bytes + 1);
  return rf_ask_take_form(ask, field, form, text, bytes, wrong);
}

/* Takes a schema, which is a JSON object, or a text that contains a JSON object. */
static bool take_schema(rf_ask *ask, const char *field, const char *name, const json_t *schema,
                        rf_wrong *wrong) {
  if (json_is_string(schema)) return take_text(ask, field, RAFTER_FORM_JSON_SCHEMA, schema, wrong);
  if (!json_is_object(schema) && !json_is_boolean(schema))
    return rf_ask_type(wrong, name, "a schema", schema);
  return take_json(ask, field, RAFTER_FORM_JSON_SCHEMA, schema, wrong);
}

static bool is_set(const json_t *value) { return value && !json_is_null(value) && !json_is_false(value); }

bool rf_ask_response_format(const rf_ask_rules *r, const rf_ask_field *f, const json_t *value, rf_ask *ask,
                            rf_wrong *wrong) {
  const json_t *schema = json_object_get(value, "json_schema"), *name = json_object_get(schema, "name");
  const char *type = json_string_value(json_object_get(value, "type"));
  (void)r;
  if (!json_is_object(value)) return rf_ask_type(wrong, f->name, "an object", value);
  if (type && !strcmp(type, "text")) return true;
  if (type && !strcmp(type, "json_object"))
    return rf_ask_take_form(ask, f->name, RAFTER_FORM_JSON_OBJECT, NULL, 0, wrong);
  if (!type || strcmp(type, "json_schema"))
    return rf_wrong_set(wrong, 400, "invalid_value", f->name,
                        "the type of %s is not supported (expected \"text\", \"json_object\" or "
                        "\"json_schema\", got \"%.40s\")",
                        f->name, type ? type : "");
  if (!schema) return rf_wrong_set(wrong, 400, "missing_field", f->name, "%s has no json_schema", f->name);
  if (!json_is_object(schema)) return rf_ask_type(wrong, f->name, "an object json_schema", schema);
  if (name && !json_is_string(name)) return rf_ask_type(wrong, f->name, "a text as the name", name);
  if (!json_object_get(schema, "schema"))
    return rf_wrong_set(wrong, 400, "missing_field", f->name, "json_schema of %s has no schema", f->name);
  return take_schema(ask, f->name, f->name, json_object_get(schema, "schema"), wrong);
}

/* Takes the member `name` of structured_outputs. */
static bool take_named(rf_ask *ask, const char *field, const char *name, const json_t *of, rf_wrong *wrong) {
  if (!strcmp(name, "json")) return take_schema(ask, field, field, of, wrong);
  if (!strcmp(name, "regex")) {
    if (!json_is_string(of)) return rf_ask_type(wrong, field, "a text as the regex", of);
    return take_text(ask, field, RAFTER_FORM_REGEX, of, wrong);
  }
  if (!strcmp(name, "choice")) {
    if (!json_is_array(of)) return rf_ask_type(wrong, field, "a list of texts as the choice", of);
    return take_json(ask, field, RAFTER_FORM_CHOICE, of, wrong);
  }
  if (!strcmp(name, "json_object"))
    return rf_ask_take_form(ask, field, RAFTER_FORM_JSON_OBJECT, NULL, 0, wrong);
  return rf_wrong_set(wrong, 400, "unsupported_field", field,
                      "%.60s is not supported in %s (expected json, regex, choice or json_object)", name,
                      field);
}

bool rf_ask_structured(const rf_ask_rules *r, const rf_ask_field *f, const json_t *value, rf_ask *ask,
                       rf_wrong *wrong) {
  const char *name;
  json_t *of;
  (void)r;
  if (!json_is_object(value)) return rf_ask_type(wrong, f->name, "an object", value);
  json_object_foreach ((json_t *)(uintptr_t)value, name, of)
    if (is_set(of) && !take_named(ask, f->name, name, of, wrong)) return false;
  return true;
}

bool rf_ask_guided(const rf_ask_rules *r, const rf_ask_field *f, const json_t *value, rf_ask *ask,
                   rf_wrong *wrong) {
  const size_t prefix = strlen("guided_"); /* otherwise, the field is json_schema */
  const char *name = strncmp(f->name, "guided_", prefix) ? "json" : f->name + prefix;
  (void)r;
  return !is_set(value) || take_named(ask, f->name, name, value, wrong);
}
