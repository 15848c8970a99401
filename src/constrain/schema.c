/* schema.c - JSON schemas: keywords, references, and the values of each type. */
#include "constrain/schema.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const NOTES[] = {"title",     "description", "default",     "examples",      "example",
                                    "$schema",   "$comment",    "$id",         "deprecated",    "readOnly",
                                    "writeOnly", "$defs",       "definitions", "discriminator", NULL};

/* The keywords that restrict values, and the types that they concern (0: all). */
static const struct {
  const char *name;
  unsigned types;
} KEYWORDS[] = {
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"allOf", 0},
    {"$ref", 0},
    {"properties", RF_TYPE_OBJECT},
    {"required", RF_TYPE_OBJECT},
    {"additionalProperties", RF_TYPE_OBJECT},
    {"items", RF_TYPE_ARRAY},
    {"prefixItems", RF_TYPE_ARRAY},
    {"minItems", RF_TYPE_ARRAY},
    {"maxItems", RF_TYPE_ARRAY},
    {"uniqueItems", RF_TYPE_ARRAY},
    {"minLength", RF_TYPE_STRING},
    {"maxLength", RF_TYPE_STRING},
    {"pattern", RF_TYPE_STRING},
    {"format", RF_TYPE_STRING},
    {"minimum", RF_TYPE_NUMBER},
    {"maximum", RF_TYPE_NUMBER},
    {"exclusiveMinimum", RF_TYPE_NUMBER},
    {"exclusiveMaximum", RF_TYPE_NUMBER},
};
enum { KEYWORD_COUNT = sizeof KEYWORDS / sizeof *KEYWORDS, WHOLE = 7 };

static const struct {
  const char *name;
  unsigned type;
} TYPES[] = {{"null", RF_TYPE_NULL},     {"boolean", RF_TYPE_BOOLEAN}, {"integer", RF_TYPE_INTEGER},
             {"number", RF_TYPE_NUMBER}, {"string", RF_TYPE_STRING},   {"array", RF_TYPE_ARRAY},
             {"object", RF_TYPE_OBJECT}};

size_t rf_schema_down(rf_schema *s, const char *name) {
  size_t length = strlen(s->where);
  snprintf(s->where + length, sizeof s->where - length, "/%s", name);
  return length;
}

void rf_schema_up(rf_schema *s, size_t length) { s->where[length] = 0; }

rf_status rf_schema_wrong(rf_schema *s, const char *keyword, const char *why) {
  return RF_FAIL(s->error, RAFTER_INVALID, "docs/serve.md lists the keywords",
                 "the schema's keyword \"%.60s\" %s (at %.300s)", keyword, why, s->where);
}

rf_status rf_schema_count(rf_schema *s, const json_t *of, const char *keyword, int64_t otherwise,
                          int64_t *count) {
  const json_t *value = json_object_get(of, keyword);
  *count = otherwise;
  if (!value) return RAFTER_OK;
  if (!json_is_integer(value) || json_integer_value(value) < 0)
    return rf_schema_wrong(s, keyword, "is not a whole number of at least 0");
  *count = json_integer_value(value);
  return RAFTER_OK;
}

/* ---- references ------------------------------------------------------------------------------ */

/* Copies one name of a JSON pointer and replaces its escapes. Returns the next '/' or the end. */
static const char *pointer_name(const char *at, char name[256]) {
  size_t n = 0;
  for (; *at && *at != '/' && n < 255; n++) {
    name[n] = *at++;
    if (name[n] == '~' && (*at == '0' || *at == '1')) name[n] = *at++ == '0' ? '~' : '/';
    if (name[n] == '%' && !strncmp(at, "24", 2)) {
      name[n] = '$';
      at += 2;
    }
  }
  name[n] = 0;
  return at;
}

const json_t *rf_schema_target(rf_schema *s, const json_t *schema) {
  const char *ref = json_string_value(json_object_get(schema, "$ref"));
  const json_t *at = s->root;
  char name[256];
  if (!ref || *ref != '#' || (ref[1] && ref[1] != '/')) {
    rf_schema_wrong(s, "$ref", "must name a part of this schema (expected \"#/...\")");
    return NULL;
  }
  for (ref++; at && *ref == '/';) {
    ref = pointer_name(ref + 1, name);
    char *end;
    unsigned long index = strtoul(name, &end, 10);
    at = json_is_array(at) && *name && !*end ? json_array_get(at, index) : json_object_get(at, name);
  }
  if (!at || *ref) {
    rf_schema_wrong(s, "$ref", "names nothing in this schema");
    return NULL;
  }
  return at;
}

rf_status rf_schema_rule_of(rf_schema *s, const json_t *schema, int32_t *start) {
  int i = 0;
  while (i < s->rules && s->rule[i].schema != schema) i++;
  if (i == s->rules) {
    if (s->rules == s->rule_room) {
      s->rule_room = s->rule_room ? 2 * s->rule_room : 32;
      s->rule = rf_must(realloc(s->rule, (size_t)s->rule_room * sizeof *s->rule));
    }
    int32_t first = rf_grammar_state(s->g), end = rf_grammar_end(s->g);
    s->rule[s->rules++] = (struct rf_schema_rule){schema, first};
    RF_TRY(rf_schema_value(s, schema, first, end));
  }
  *start = s->rule[i].start;
  return RAFTER_OK;
}

/* Follows a chain of references. A circle of references has no value. */
static rf_status add_reference(rf_schema *s, const json_t *schema, int32_t from, int32_t to) {
  const json_t *target = schema;
  int32_t start;
  for (int i = 0; json_object_get(target, "$ref"); i++) {
    if (i > RF_SCHEMA_NESTED) return rf_schema_wrong(s, "$ref", "refers to itself");
    target = rf_schema_target(s, target);
    if (!target) return RAFTER_INVALID;
  }
  RF_TRY(rf_schema_rule_of(s, target, &start));
  rf_grammar_call(s->g, from, start, to);
  return RAFTER_OK;
}

/* ---- keywords -------------------------------------------------------------------------------- */

static bool is_note(const char *name) {
  for (int i = 0; NOTES[i]; i++)
    if (!strcmp(name, NOTES[i])) return true;
  return !strncmp(name, "x-", 2);
}

/* Index in KEYWORDS; -1: none. */
static int keyword_of(const char *name) {
  for (int i = 0; i < KEYWORD_COUNT; i++)
    if (!strcmp(name, KEYWORDS[i].name)) return i;
  return -1;
}

/* Refuses unknown keywords, and other keywords next to a keyword that describes the whole value. */
static rf_status check_keywords(rf_schema *s, const json_t *schema, const char **whole) {
  const char *name, *other = NULL;
  json_t *value;
  *whole = NULL;
  json_object_foreach ((json_t *)schema, name, value) {
    int keyword = keyword_of(name);
    if (keyword < 0 && !is_note(name)) return rf_schema_wrong(s, name, "is not supported");
    if (keyword > 0 && keyword < WHOLE) {
      if (*whole) return rf_schema_wrong(s, name, "is not supported next to another such keyword");
      *whole = name;
    } else if (keyword >= WHOLE) other = name;
  }
  if (*whole && other) {
    char why[120];
    snprintf(why, sizeof why, "is not supported next to \"%s\"", *whole);
    return rf_schema_wrong(s, other, why);
  }
  return RAFTER_OK;
}

static unsigned type_named(const json_t *name) {
  const char *text = json_string_value(name);
  for (size_t i = 0; text && i < sizeof TYPES / sizeof *TYPES; i++)
    if (!strcmp(text, TYPES[i].name)) return TYPES[i].type;
  return 0;
}

unsigned rf_schema_types(const json_t *schema) {
  const json_t *type = json_object_get(schema, "type"), *one;
  const char *name;
  unsigned types = 0;
  size_t i;
  if (json_is_string(type)) return type_named(type);
  json_array_foreach ((json_t *)type, i, one) {
    if (!type_named(one)) return 0;
    types |= type_named(one);
  }
  if (type) return types;
  json_object_foreach ((json_t *)schema, name, one) {
    int keyword = keyword_of(name);
    if (keyword >= 0) types |= KEYWORDS[keyword].types;
  }
  return types ? types : RF_TYPE_ANY;
}

/* ---- literals -------------------------------------------------------------------------------- */

static unsigned type_of(const json_t *value) {
  switch (json_typeof(value)) {
  case JSON_NULL: return RF_TYPE_NULL;
  case JSON_TRUE:
  case JSON_FALSE: return RF_TYPE_BOOLEAN;
  case JSON_INTEGER: return RF_TYPE_INTEGER | RF_TYPE_NUMBER;
  case JSON_REAL: return RF_TYPE_NUMBER;
  case JSON_STRING: return RF_TYPE_STRING;
  case JSON_ARRAY: return RF_TYPE_ARRAY;
  default: return RF_TYPE_OBJECT;
  }
}

void rf_schema_literal(rf_schema *s, const json_t *value, int32_t from, int32_t to) {
  char *text = rf_must(rf_json_text(value, 0));
  rf_grammar_skip(s->g, rf_grammar_share(s->g, from, text, strlen(text)), to);
  free(text);
}

static rf_status add_enum(rf_schema *s, const json_t *schema, int32_t from, int32_t to) {
  const json_t *list = json_object_get(schema, "enum"), *value;
  unsigned types = json_object_get(schema, "type") ? rf_schema_types(schema) : RF_TYPE_ANY;
  size_t i;
  if (!json_is_array(list) || !json_array_size(list))
    return rf_schema_wrong(s, "enum", "is not a list of values");
  int32_t first = rf_grammar_state(s->g);
  rf_grammar_skip(s->g, from, first);
  json_array_foreach ((json_t *)list, i, value)
    if (types & type_of(value)) rf_schema_literal(s, value, first, to);
  return RAFTER_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

void rf_schema_blank(rf_schema *s, int32_t from, int32_t to) {
  static const char FORM[] = "|[ ]|\n[ \t]{0,20}";
  if (!s->blank) {
    int32_t end = rf_grammar_end(s->g);
    s->blank = rf_grammar_state(s->g);
    rf_regex_add(s->g, FORM, strlen(FORM), RF_REGEX_PLAIN, "blanks", s->blank, end, NULL);
  }
  rf_grammar_call(s->g, from, s->blank, to);
}

static rf_status add_number(rf_schema *s, const json_t *schema, bool integer, int32_t from, int32_t to) {
  const json_t *low = json_object_get(schema, "minimum"), *high = json_object_get(schema, "maximum"),
               *above = json_object_get(schema, "exclusiveMinimum"),
               *below = json_object_get(schema, "exclusiveMaximum");
  const json_t *const all[] = {low, high, above, below};
  static const char *const NAMES[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
  for (int i = 0; i < 4; i++)
    if (all[i] && !json_is_number(all[i])) return rf_schema_wrong(s, NAMES[i], "is not a number");
  rf_number_range r = {json_number_value(low), json_number_value(high), low, high, false, false};
  double from_above = json_number_value(above), to_below = json_number_value(below);
  if (above && (!low || from_above >= r.low))
    r = (rf_number_range){from_above, r.high, true, r.has_high, true, false};
  if (below && (!high || to_below <= r.high))
    r = (rf_number_range){r.low, to_below, r.has_low, true, r.above, true};
  return rf_number_add(s->g, &r, integer, s->where, from, to, s->error);
}

static rf_status add_types(rf_schema *s, const json_t *schema, unsigned types, int32_t from, int32_t to) {
  if (types & RF_TYPE_NULL) rf_grammar_skip(s->g, rf_grammar_text(s->g, from, "null", 4), to);
  if (types & RF_TYPE_BOOLEAN) {
    rf_grammar_skip(s->g, rf_grammar_text(s->g, from, "true", 4), to);
    rf_grammar_skip(s->g, rf_grammar_text(s->g, from, "false", 5), to);
  }
  if (types & (RF_TYPE_INTEGER | RF_TYPE_NUMBER))
    RF_TRY(add_number(s, schema, !(types & RF_TYPE_NUMBER), from, to));
  if (types & RF_TYPE_STRING) RF_TRY(rf_schema_add_string(s, schema, from, to));
  if (types & RF_TYPE_ARRAY) RF_TRY(rf_schema_add_array(s, schema, from, to));
  if (types & RF_TYPE_OBJECT) RF_TRY(rf_schema_add_properties(s, schema, from, to));
  return RAFTER_OK;
}

/* Adds the values that a schema allows if it is an object of keywords. */
static rf_status add_keywords(rf_schema *s, const json_t *schema, int32_t from, int32_t to) {
  const char *whole;
  RF_TRY(check_keywords(s, schema, &whole));
  unsigned types = rf_schema_types(schema);
  if (!types)
    return rf_schema_wrong(s, "type",
                           "is unknown (expected null, boolean, integer, number, string, "
                           "array, object, or a list of these)");
  if (!whole) return add_types(s, schema, types, from, to);
  if (!strcmp(whole, "enum")) return add_enum(s, schema, from, to);
  if (!strcmp(whole, "const")) {
    const json_t *value = json_object_get(schema, "const");
    if (!json_object_get(schema, "type") || types & type_of(value)) rf_schema_literal(s, value, from, to);
    return RAFTER_OK;
  }
  /* If a type is next to alternatives, the type would have to be compared with the types of each
   * alternative. */
  if (json_object_get(schema, "type")) {
    char why[120];
    snprintf(why, sizeof why, "is not supported next to \"%s\"", whole);
    return rf_schema_wrong(s, "type", why);
  }
  return strcmp(whole, "$ref") ? rf_schema_alternatives(s, schema, whole, from, to)
                               : add_reference(s, schema, from, to);
}

rf_status rf_schema_value(rf_schema *s, const json_t *schema, int32_t from, int32_t to) {
  if (json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema))) {
    rf_grammar_call(s->g, from, rf_schema_any(s), to);
    return RAFTER_OK;
  }
  if (json_is_false(schema)) return RAFTER_OK; /* no value */
  if (!json_is_object(schema))
    return RF_FAIL(s->error, RAFTER_INVALID, NULL, "a schema is not an object or a boolean (at %.300s)",
                   s->where);
  if (s->nested >= RF_SCHEMA_NESTED)
    return RF_FAIL(s->error, RAFTER_INVALID, "use $defs and $ref",
                   "the schema is nested too deeply (expected at most %d levels, at %.300s)",
                   RF_SCHEMA_NESTED, s->where);
  if (s->g->full) return RAFTER_OK; /* rf_grammar_finish reports it */
  s->nested++;
  int32_t first = rf_grammar_state(s->g);
  rf_grammar_skip(s->g, from, first);
  rf_status status = add_keywords(s, schema, first, to);
  s->nested--;
  return status;
}

rf_status rf_schema_add(rf_grammar *g, const json_t *schema, int32_t from, int32_t to, rf_error *error) {
  rf_schema s = {.g = g, .root = schema, .error = error, .where = "#"};
  int32_t start = 0;
  rf_status status = rf_schema_rule_of(&s, schema, &start);
  rf_grammar_call(g, from, start, to);
  free(s.rule);
  return status;
}
