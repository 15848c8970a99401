/* schema_string.c - strings: lengths, patterns and formats. */
#include "constrain/schema.h"

#include <stdio.h>
#include <string.h>

#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define DATE \
  "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|" \
  "02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

static const struct {
  const char *name, *form;
} FORMATS[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"ipv4", OCTET "(\\." OCTET "){3}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@" LABEL "(\\." LABEL "){1,3}"},
};

/* Adds a rule for one character of a string, in each of its spellings. */
static int32_t character(rf_schema *s) {
  static const char ESCAPES[] =
      "\\\\([\"\\\\/bfnrt]|u([1-9A-CEFa-cef][0-9A-Fa-f]{3}|0([1-9A-Fa-f][0-9A-Fa-f]{2}|"
      "0([1-9A-Fa-f][0-9A-Fa-f]|0[1-9A-Fa-f]))|[Dd][0-7][0-9A-Fa-f]{2}|"
      "[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))";
  static const char PLAIN[] = "[^\"\\\\\\x00-\\x1f]";
  if (!s->character) {
    int32_t end = rf_grammar_end(s->g);
    s->character = rf_grammar_state(s->g);
    rf_regex_add(s->g, PLAIN, strlen(PLAIN), RF_REGEX_PLAIN, "a string", s->character, end, NULL);
    rf_regex_add(s->g, ESCAPES, strlen(ESCAPES), RF_REGEX_PLAIN, "a string", s->character, end, NULL);
  }
  return s->character;
}

/* Adds `low` to `high` characters; high < 0: no maximum. */
static void add_characters(rf_schema *s, int64_t low, int64_t high, int32_t from, int32_t to) {
  rf_grammar *g = s->g;
  int32_t rule = character(s);
  for (int64_t i = 0; i < low && !g->full; i++) {
    int32_t next = rf_grammar_state(g);
    rf_grammar_call(g, from, rule, next);
    from = next;
  }
  if (high < 0) {
    int32_t loop = rf_grammar_state(g);
    rf_grammar_skip(g, from, loop);
    rf_grammar_call(g, loop, rule, loop);
    rf_grammar_skip(g, loop, to);
    return;
  }
  rf_grammar_skip(g, from, to);
  for (int64_t i = low; i < high && !g->full; i++) {
    int32_t next = rf_grammar_state(g);
    rf_grammar_call(g, from, rule, next);
    rf_grammar_skip(g, next, to);
    from = next;
  }
}

void rf_schema_string(rf_schema *s, int32_t from, int32_t to) {
  int32_t end = rf_grammar_state(s->g);
  add_characters(s, 0, -1, rf_grammar_text(s->g, from, "\"", 1), end);
  rf_grammar_bytes(s->g, end, '"', '"', to);
}

static rf_status add_form(rf_schema *s, const char *keyword, const char *form, size_t bytes, rf_regex_form as,
                          int32_t from, int32_t to) {
  rf_error why = {.status = RAFTER_OK};
  char message[300];
  rf_status status = rf_regex_add(s->g, form, bytes, as, keyword, from, to, &why);
  if (status == RAFTER_OK) return status;
  snprintf(message, sizeof message, "is wrong: %.250s", why.message);
  return rf_schema_wrong(s, keyword, message);
}

static rf_status add_format(rf_schema *s, const json_t *format, int32_t from, int32_t to) {
  const char *name = json_string_value(format);
  for (size_t i = 0; name && i < sizeof FORMATS / sizeof *FORMATS; i++)
    if (!strcmp(name, FORMATS[i].name))
      return add_form(s, "format", FORMATS[i].form, strlen(FORMATS[i].form), RF_REGEX_STRING, from, to);
  return rf_schema_wrong(s, "format",
                         "is not supported (expected date, time, date-time, uuid, ipv4 or email)");
}

rf_status rf_schema_add_string(rf_schema *s, const json_t *schema, int32_t from, int32_t to) {
  const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
  bool lengths = json_object_get(schema, "minLength") || json_object_get(schema, "maxLength");
  int64_t low, high;
  int32_t begin = rf_grammar_text(s->g, from, "\"", 1), end = rf_grammar_state(s->g);
  RF_TRY(rf_schema_count(s, schema, "minLength", 0, &low));
  RF_TRY(rf_schema_count(s, schema, "maxLength", -1, &high));
  if ((pattern || format) && (lengths || (pattern && format)))
    return rf_schema_wrong(s, pattern ? "pattern" : "format",
                           "is not supported next to minLength, maxLength or another form");
  if (pattern && !json_is_string(pattern)) return rf_schema_wrong(s, "pattern", "is not a text");
  rf_grammar_bytes(s->g, end, '"', '"', to);
  if (format) return add_format(s, format, begin, end);
  if (pattern)
    return add_form(s, "pattern", json_string_value(pattern), json_string_length(pattern), RF_REGEX_SEARCH,
                    begin, end);
  if (high >= 0 && high < low) return rf_schema_wrong(s, "maxLength", "is smaller than minLength");
  add_characters(s, low, high, begin, end);
  return RAFTER_OK;
}
