/* options_json.c - reads options from a JSON file, and writes options as JSON. */
#include "base/options_parts.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/text.h"

enum { CONFIG_MAX = 16 << 20 };

/* Writes a JSON scalar in the form in which a user would type it. Returns false for objects, lists
 * and null. */
static bool scalar_text(const json_t *json, char *text, size_t size) {
  switch (json_typeof(json)) {
  case JSON_STRING: return (size_t)snprintf(text, size, "%s", json_string_value(json)) < size;
  case JSON_INTEGER: snprintf(text, size, "%lld", (long long)json_integer_value(json)); return true;
  case JSON_TRUE: snprintf(text, size, "true"); return true;
  case JSON_FALSE: snprintf(text, size, "false"); return true;
  case JSON_REAL: rf_text_real(json_real_value(json), text); return true;
  default: return false;
  }
}

static rf_status set_from_json(rf_options *o, int i, const json_t *json, const char *where, rf_error *error) {
  const rf_option *row = o->row[i];
  enum { TEXT_MAX = 1 << 16 };
  char *text = rf_must(malloc(TEXT_MAX));
  rf_status status = RAFTER_OK;
  text[0] = 0;
  if (row->bare && json_is_true(json)) {
    status = rf_options_set_row(o, i, NULL, RF_OPTION_CONFIG, error);
  } else if (json_is_array(json) && row->type == RF_OPTION_TEXTS) {
    for (size_t j = 0; j < json_array_size(json) && status == RAFTER_OK; ++j)
      if (!scalar_text(json_array_get(json, j), text, TEXT_MAX))
        status = RF_FAIL(error, RAFTER_INVALID, NULL, "expected texts in the list of \"%s\"", row->name);
      else status = rf_options_set_row(o, i, text, RF_OPTION_CONFIG, error);
  } else {
    bool list = json_is_array(json) && (row->type == RF_OPTION_LIST || row->type == RF_OPTION_FLOATS);
    bool right = list || scalar_text(json, text, TEXT_MAX);
    for (size_t j = 0; list && right && j < json_array_size(json); ++j) {
      char item[64];
      right = scalar_text(json_array_get(json, j), item, sizeof item);
      if (right) rf_text_append(text, TEXT_MAX, "%s%s", j ? "," : "", item);
    }
    status = right ? rf_options_set_row(o, i, text, RF_OPTION_CONFIG, error)
                   : RF_FAIL(error, RAFTER_INVALID, NULL,
                             "the option \"%s\" has the wrong type or is too long", row->name);
  }
  free(text);
  if (status == RAFTER_OK || !error) return status;
  rf_error inner = *error;
  return RF_FAIL(error, RAFTER_INVALID, inner.hint, "%s: %s", where, inner.message);
}

rf_status rf_options_read_json(rf_options *o, const json_t *json, const char *where, rf_error *error) {
  if (!json_is_object(json))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: expected a JSON object of options", where);
  if (json_is_object(json_object_get(json, "options"))) json = json_object_get(json, "options");
  const char *key;
  json_t *item;
  for (int i = 0; i < o->count; ++i) /* a list in this file replaces the list of an earlier file */
    if (o->row[i]->type == RF_OPTION_TEXTS && o->values[i].source == RF_OPTION_CONFIG &&
        json_object_get(json, o->row[i]->name))
      rf_value_clear(&o->values[i]);
  json_object_foreach ((json_t *)json, key, item) {
    if (json_is_null(item) || rf_options_same_name(key, "config") || rf_options_same_name(key, "command"))
      continue;
    if (rf_options_same_name(key, "model") || rf_options_same_name(key, "arguments")) {
      size_t count = json_is_array(item) ? json_array_size(item) : 1;
      if (o->argument_source == RF_OPTION_GIVEN) continue;
      o->argument_source = RF_OPTION_UNSET;
      for (size_t j = 0; j < count; ++j) {
        const json_t *argument = json_is_array(item) ? json_array_get(item, j) : item;
        if (!json_is_string(argument))
          return RF_FAIL(error, RAFTER_INVALID, NULL, "%s: \"%s\" must be a text", where, key);
        rf_options_add_argument(o, json_string_value(argument), RF_OPTION_CONFIG);
      }
      continue;
    }
    int i = rf_options_find(o, key);
    if (i >= 0 && o->values[i].source == RF_OPTION_GIVEN) continue;
    if (i >= 0) RF_TRY(set_from_json(o, i, item, where, error));
    else if (!rf_options_any_has(o->commands, key)) {
      char prefix[300];
      snprintf(prefix, sizeof prefix, "%.290s: ", where);
      return rf_options_unknown(o, key, prefix, error);
    }
  }
  return RAFTER_OK;
}

rf_status rf_options_read_file(rf_options *o, const char *path, rf_error *error) {
  json_t *json;
  RF_TRY(rf_json_read(path, CONFIG_MAX, &json, error));
  rf_status status = rf_options_read_json(o, json, path, error);
  json_decref(json);
  return status;
}

json_t *rf_options_json(const rf_options *o) {
  json_t *json = json_object();
  json_object_set_new(json, "command", json_string(o->command->name));
  if (o->argument_count == 1) {
    json_object_set_new(json, "model", json_string(o->argument[0]));
  } else if (o->argument_count > 1) {
    json_t *arguments = json_array();
    for (int i = 0; i < o->argument_count; ++i) json_array_append_new(arguments, json_string(o->argument[i]));
    json_object_set_new(json, "arguments", arguments);
  }
  for (int i = 0; i < o->count; ++i) {
    const value *v = &o->values[i];
    json_t *item = NULL;
    if (v->source == RF_OPTION_UNSET) continue;
    if (v->bare) {
      json_object_set_new(json, o->row[i]->name, json_true());
      continue;
    }
    switch (o->row[i]->type) {
    case RF_OPTION_FLAG: item = json_boolean(v->whole); break;
    case RF_OPTION_INT:
    case RF_OPTION_SIZE:
    case RF_OPTION_TOKENS:
    case RF_OPTION_COUNT: item = json_integer(v->whole); break;
    case RF_OPTION_DURATION:
    case RF_OPTION_FLOAT: item = json_real(v->real); break;
    case RF_OPTION_TEXTS:
      item = json_array();
      for (int j = 0; j < v->count; ++j) json_array_append_new(item, json_string(v->text[j]));
      break;
    case RF_OPTION_LIST:
      item = json_array();
      for (int j = 0; j < v->count; ++j) json_array_append_new(item, json_integer(v->list[j]));
      break;
    case RF_OPTION_FLOATS:
      item = json_array();
      for (int j = 0; j < v->count; ++j) json_array_append_new(item, json_real(v->floats[j]));
      break;
    default: item = json_string(v->text[0]);
    }
    json_object_set_new(json, o->row[i]->name, item);
  }
  return json;
}
