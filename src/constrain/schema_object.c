/* schema_object.c - objects: properties in the order of the schema, then other members. */
#include "constrain/schema.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Adds ":", blanks and a value of the rule. */
static void add_member_value(rf_schema *s, int32_t colon, int32_t rule, int32_t to) {
  int32_t blank = rf_grammar_state(s->g), value = rf_grammar_state(s->g);
  rf_grammar_bytes(s->g, colon, ':', ':', blank);
  rf_schema_blank(s, blank, value);
  rf_grammar_call(s->g, value, rule, to);
}

/* ---- names of other members ------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The characters that a JSON string writes with an escape. */
static void add_escaped(rf_chars *chars) {
  rf_chars_add(chars, 0, 0x1f);
  rf_chars_add(chars, '"', '"');
  rf_chars_add(chars, '\\', '\\');
}

/* Adds names that are not in the sorted list. All names of the list begin with the same `done`
 * bytes. Other names are written without escapes, so no name has two spellings. */
static void add_other_names(rf_grammar *g, const char *const *name, size_t names, size_t done, int32_t from,
                            int32_t other, int32_t to) {
  rf_chars rest = {0};
  bool taken = false;
  add_escaped(&rest);
  for (size_t i = 0, end; i < names && !g->full; i = end) {
    const char *at = name[i] + done;
    int bytes = rf_utf8_length(at, at + strlen(at));
    end = i + 1;
    if (!*at || !bytes) {
      taken |= !*at;
      continue;
    }
    uint32_t code = rf_utf8_code(at, bytes);
    while (end < names && !strncmp(name[end] + done, at, (size_t)bytes)) end++;
    bool plain = code >= 0x20 && code != '"' && code != '\\';
    rf_chars_add(&rest, code, code);
    if (!plain) continue;
    int32_t next = rf_grammar_text(g, from, at, (size_t)bytes);
    add_other_names(g, name + i, end - i, done + (size_t)bytes, next, other, to);
  }
  rf_chars_invert(&rest);
  rf_grammar_chars(g, from, &rest, false, other);
  rf_chars_free(&rest);
  if (!taken) rf_grammar_bytes(g, from, '"', '"', to);
}

/* A rule for a member whose name is not one of the properties. */
static int32_t other_member(rf_schema *s, const json_t *properties, int32_t value) {
  rf_grammar *g = s->g;
  const char **name = rf_must(calloc(json_object_size(properties) + 1, sizeof *name)), *key;
  size_t names = 0;
  json_t *of;
  json_object_foreach ((json_t *)properties, key, of) name[names++] = key;
  qsort(name, names, sizeof *name, compare_names);
  rf_chars plain = {0};
  add_escaped(&plain);
  rf_chars_invert(&plain);
  int32_t end = rf_grammar_end(g), start = rf_grammar_state(g), other = rf_grammar_state(g),
          colon = rf_grammar_state(g);
  rf_grammar_chars(g, other, &plain, false, other);
  rf_grammar_bytes(g, other, '"', '"', colon);
  rf_chars_free(&plain);
  add_other_names(g, name, names, 0, rf_grammar_text(g, start, "\"", 1), other, colon);
  free(name);
  add_member_value(s, colon, value, end);
  return start;
}

/* Adds other members. `none` follows "{", and `some` follows a member. */
static void add_others(rf_schema *s, int32_t member, int32_t none, int32_t some) {
  int32_t comma = rf_grammar_state(s->g), next = rf_grammar_state(s->g);
  rf_grammar_call(s->g, none, member, some);
  rf_grammar_bytes(s->g, some, ',', ',', comma);
  rf_schema_blank(s, comma, next);
  rf_grammar_call(s->g, next, member, some);
}

/* ---- properties ------------------------------------------------------------------------------ */

/* Adds the braces. *begin follows "{", and `end` comes before "}". */
static void add_braces(rf_schema *s, int32_t from, int32_t to, int32_t *begin, int32_t *end) {
  int32_t close = rf_grammar_state(s->g);
  *begin = rf_grammar_state(s->g);
  *end = rf_grammar_state(s->g);
  rf_schema_blank(s, rf_grammar_text(s->g, from, "{", 1), *begin);
  rf_schema_blank(s, *end, close);
  rf_grammar_bytes(s->g, close, '}', '}', to);
}

static rf_status check_required(rf_schema *s, const json_t *properties, const json_t *required) {
  const json_t *one;
  const char *name;
  size_t i;
  if (json_object_size(properties) > RF_SCHEMA_PROPERTIES)
    return rf_schema_wrong(s, "properties", "has more than 2000 names");
  json_t *schema;
  json_object_foreach ((json_t *)properties, name, schema)
    if (strlen(name) > RF_SCHEMA_NAME)
      return rf_schema_wrong(s, "properties", "has a name of more than 512 bytes");
  if (json_array_size(required) > RF_SCHEMA_PROPERTIES)
    return rf_schema_wrong(s, "required", "has more than 2000 names");
  if (required && !json_is_array(required)) return rf_schema_wrong(s, "required", "is not a list of names");
  json_array_foreach ((json_t *)required, i, one) {
    if (!json_is_string(one)) return rf_schema_wrong(s, "required", "is not a list of names");
    if (!json_object_get(properties, json_string_value(one)))
      return rf_schema_wrong(s, "required", "has a name that \"properties\" lacks");
  }
  return RAFTER_OK;
}

/* Adds one property. *none and *some are the states before the property, without and with earlier
 * members. *none and *some become the states after the property. */
static rf_status add_property(rf_schema *s, const char *name, const json_t *schema, bool required,
                              int32_t *none, int32_t *some) {
  rf_grammar *g = s->g;
  int32_t key = rf_grammar_state(g), comma = rf_grammar_state(g), colon = rf_grammar_state(g),
          after = rf_grammar_state(g), rule;
  size_t up = rf_schema_down(s, "properties");
  rf_schema_down(s, name);
  RF_TRY(rf_schema_rule_of(s, schema, &rule));
  rf_schema_up(s, up);
  json_t *text = rf_must(json_string(name));
  if (*none) rf_grammar_skip(g, *none, key);
  if (*some) {
    rf_grammar_bytes(g, *some, ',', ',', comma);
    rf_schema_blank(s, comma, key);
  }
  rf_schema_literal(s, text, key, colon);
  json_decref(text);
  add_member_value(s, colon, rule, after);
  if (!required && *some) rf_grammar_skip(g, *some, after);
  if (required) *none = 0;
  *some = after;
  return RAFTER_OK;
}

rf_status rf_schema_add_properties(rf_schema *s, const json_t *schema, int32_t from, int32_t to) {
  const json_t *properties = json_object_get(schema, "properties"),
               *required = json_object_get(schema, "required"),
               *additional = json_object_get(schema, "additionalProperties");
  const char *name;
  json_t *value;
  int32_t none, some = 0, end, rule;
  if (properties && !json_is_object(properties)) return rf_schema_wrong(s, "properties", "is not an object");
  RF_TRY(check_required(s, properties, required));
  add_braces(s, from, to, &none, &end);
  json_object_foreach ((json_t *)properties, name, value)
    RF_TRY(add_property(s, name, value, rf_schema_requires(required, name), &none, &some));
  bool open = additional ? !json_is_false(additional) : !json_object_size(properties);
  if (open) {
    size_t up = rf_schema_down(s, "additionalProperties");
    if (json_is_object(additional)) RF_TRY(rf_schema_rule_of(s, additional, &rule));
    else if (additional && !json_is_true(additional))
      return rf_schema_wrong(s, "additionalProperties", "is not a schema");
    else rule = rf_schema_any(s);
    rf_schema_up(s, up);
    int32_t last = rf_grammar_state(s->g), first = rf_grammar_state(s->g);
    if (none) rf_grammar_skip(s->g, none, first);
    if (some) rf_grammar_skip(s->g, some, last);
    add_others(s, other_member(s, properties, rule), first, last);
    some = last;
  }
  if (none) rf_grammar_skip(s->g, none, end);
  if (some) rf_grammar_skip(s->g, some, end);
  return RAFTER_OK;
}

/* ---- any value ------------------------------------------------------------------------------- */

static void add_any_array(rf_schema *s, int32_t from, int32_t to) {
  rf_grammar *g = s->g;
  int32_t begin = rf_grammar_state(g), some = rf_grammar_state(g), comma = rf_grammar_state(g),
          next = rf_grammar_state(g), end = rf_grammar_state(g), close = rf_grammar_state(g);
  rf_schema_blank(s, rf_grammar_text(g, from, "[", 1), begin);
  rf_grammar_skip(g, begin, end);
  rf_grammar_call(g, begin, s->any, some);
  rf_grammar_bytes(g, some, ',', ',', comma);
  rf_schema_blank(s, comma, next);
  rf_grammar_call(g, next, s->any, some);
  rf_grammar_skip(g, some, end);
  rf_schema_blank(s, end, close);
  rf_grammar_bytes(g, close, ']', ']', to);
}

static void add_any_object(rf_schema *s, int32_t from, int32_t to) {
  int32_t begin, end, some = rf_grammar_state(s->g);
  add_braces(s, from, to, &begin, &end);
  add_others(s, s->object, begin, some);
  rf_grammar_skip(s->g, begin, end);
  rf_grammar_skip(s->g, some, end);
}

int32_t rf_schema_any(rf_schema *s) {
  static const char *const WORDS[] = {"null", "true", "false"};
  rf_grammar *g = s->g;
  if (s->any) return s->any;
  int32_t end = rf_grammar_end(g);
  s->any = rf_grammar_state(g);
  s->object = other_member(s, NULL, s->any);
  for (int i = 0; i < 3; i++) rf_grammar_skip(g, rf_grammar_text(g, s->any, WORDS[i], strlen(WORDS[i])), end);
  rf_number_add(g, &(rf_number_range){.low = 0}, false, "", s->any, end, NULL);
  rf_schema_string(s, s->any, end);
  add_any_array(s, s->any, end);
  add_any_object(s, s->any, end);
  return s->any;
}

void rf_schema_add_object(rf_grammar *g, int32_t from, int32_t to) {
  rf_schema s = {.g = g, .where = "#"};
  rf_schema_any(&s);
  add_any_object(&s, from, to);
}
