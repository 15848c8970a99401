/* json.c - reads and writes JSON files and fields. Errors name the file and the field. */
#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

/* ---- reading --------------------------------------------------------------------------------- */

rf_status rf_json_parse(const char *text, size_t bytes, const char *where, json_t **json, rf_error *error) {
  json_error_t problem;
  json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
  if (!value)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is not valid JSON (line %d, column %d: %s)", where,
                   problem.line, problem.column, problem.text);
  *json = value;
  return RAFTER_OK;
}

rf_status rf_json_read(const char *path, size_t most, json_t **json, rf_error *error) {
  char *text;
  size_t bytes;
  RF_TRY(rf_file_read(path, most, &text, &bytes, error));
  rf_status status = rf_json_parse(text, bytes, path, json, error);
  free(text);
  return status;
}

const char *rf_json_type(const json_t *value) {
  switch (json_typeof(value)) {
  case JSON_OBJECT: return "an object";
  case JSON_ARRAY: return "a list";
  case JSON_STRING: return "a text";
  case JSON_INTEGER: return "a whole number";
  case JSON_REAL: return "a number";
  case JSON_NULL: return "null";
  default: return "true or false";
  }
}

static rf_status field(const json_t *object, const char *key, const char *where, const char *expected,
                       json_t **value, rf_error *error) {
  if (!json_is_object(object)) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: expected an object", where);
  *value = json_object_get(object, key);
  if (!*value)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"%s\" is missing (expected %s)", where, key,
                   expected);
  return RAFTER_OK;
}

static rf_status wrong_type(const json_t *value, const char *key, const char *where, const char *expected,
                            rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"%s\" has the wrong type (expected %s, got %s)",
                 where, key, expected, rf_json_type(value));
}

rf_status rf_json_int(const json_t *object, const char *key, const char *where, int64_t least, int64_t most,
                      int64_t *value, rf_error *error) {
  json_t *found;
  RF_TRY(field(object, key, where, "a whole number", &found, error));
  double real = json_is_real(found) ? json_real_value(found) : 0.5;
  int64_t number;
  if (json_is_integer(found)) number = json_integer_value(found);
  else if (real == floor(real) && fabs(real) < 0x1p53) number = (int64_t)real;
  else return wrong_type(found, key, where, "a whole number", error);
  if (number < least && most == INT64_MAX) /* the caller gave no maximum for the field */
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"%s\" is out of range (expected at least %" PRId64 ", got %" PRId64 ")",
                   where, key, least, number);
  if (number < least || number > most)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"%s\" is out of range (expected %" PRId64 " to %" PRId64 ", got %" PRId64
                   ")",
                   where, key, least, most, number);
  *value = number;
  return RAFTER_OK;
}

rf_status rf_json_float(const json_t *object, const char *key, const char *where, double least, double most,
                        double *value, rf_error *error) {
  json_t *found;
  RF_TRY(field(object, key, where, "a number", &found, error));
  if (!json_is_number(found)) return wrong_type(found, key, where, "a number", error);
  double number = json_number_value(found);
  if (!(number >= least && number <= most))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"%s\" is out of range (expected %g to %g, got %g)", where, key, least,
                   most, number);
  *value = number;
  return RAFTER_OK;
}

rf_status rf_json_bool(const json_t *object, const char *key, const char *where, bool *value,
                       rf_error *error) {
  json_t *found;
  RF_TRY(field(object, key, where, "true or false", &found, error));
  if (!json_is_boolean(found)) return wrong_type(found, key, where, "true or false", error);
  *value = json_is_true(found);
  return RAFTER_OK;
}

rf_status rf_json_string(const json_t *object, const char *key, const char *where, const char **value,
                         rf_error *error) {
  json_t *found;
  RF_TRY(field(object, key, where, "a text", &found, error));
  if (!json_is_string(found)) return wrong_type(found, key, where, "a text", error);
  *value = json_string_value(found);
  return RAFTER_OK;
}

static bool absent(const json_t *object, const char *key) {
  const json_t *found = json_object_get(object, key);
  return json_is_object(object) && (!found || json_is_null(found));
}

rf_status rf_json_int_or(const json_t *object, const char *key, const char *where, int64_t least,
                         int64_t most, int64_t otherwise, int64_t *value, rf_error *error) {
  if (!absent(object, key)) return rf_json_int(object, key, where, least, most, value, error);
  *value = otherwise;
  return RAFTER_OK;
}

rf_status rf_json_float_or(const json_t *object, const char *key, const char *where, double least,
                           double most, double otherwise, double *value, rf_error *error) {
  if (!absent(object, key)) return rf_json_float(object, key, where, least, most, value, error);
  *value = otherwise;
  return RAFTER_OK;
}

rf_status rf_json_bool_or(const json_t *object, const char *key, const char *where, bool otherwise,
                          bool *value, rf_error *error) {
  if (!absent(object, key)) return rf_json_bool(object, key, where, value, error);
  *value = otherwise;
  return RAFTER_OK;
}

rf_status rf_json_string_or(const json_t *object, const char *key, const char *where, const char *otherwise,
                            const char **value, rf_error *error) {
  if (!absent(object, key)) return rf_json_string(object, key, where, value, error);
  *value = otherwise;
  return RAFTER_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* jansson writes 17 digits of every double (0.1 as 0.10000000000000001), which are hard to read */
static void put_real(FILE *out, double value) {
  char text[40];
  rf_text_real(value, text);
  fputs(text, out);
  if (!strpbrk(text, ".e")) fputs(".0", out); /* without ".0", readers would see an integer */
}

static void put_string(FILE *out, const char *text, size_t bytes) {
  putc('"', out);
  for (size_t i = 0; i < bytes; ++i) {
    unsigned char c = (unsigned char)text[i];
    if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
    else if (c == '\n') fputs("\\n", out);
    else if (c == '\t') fputs("\\t", out);
    else if (c < 0x20 || c == 0x7f) fprintf(out, "\\u%04x", c);
    else putc(c, out);
  }
  putc('"', out);
}

static void new_line(FILE *out, int indent, int depth) {
  if (!indent) return;
  fprintf(out, "\n%*s", indent * depth, "");
}

static void put(FILE *out, const json_t *value, int indent, int depth) {
  const char *key;
  json_t *child;
  size_t index, count = 0;
  switch (json_typeof(value)) {
  case JSON_OBJECT:
    putc('{', out);
    json_object_foreach ((json_t *)value, key, child) {
      if (count++) putc(',', out);
      new_line(out, indent, depth + 1);
      put_string(out, key, strlen(key));
      fputs(indent ? ": " : ":", out);
      put(out, child, indent, depth + 1);
    }
    if (count) new_line(out, indent, depth);
    putc('}', out);
    break;
  case JSON_ARRAY:
    putc('[', out);
    json_array_foreach (value, index, child) {
      if (index) putc(',', out);
      new_line(out, indent, depth + 1);
      put(out, child, indent, depth + 1);
    }
    if (json_array_size(value)) new_line(out, indent, depth);
    putc(']', out);
    break;
  case JSON_STRING: put_string(out, json_string_value(value), json_string_length(value)); break;
  case JSON_INTEGER: fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
  case JSON_REAL: put_real(out, json_real_value(value)); break;
  case JSON_TRUE: fputs("true", out); break;
  case JSON_FALSE: fputs("false", out); break;
  default: fputs("null", out);
  }
}

/* Returns the length in bytes of the UTF-8 character at `at`. If the character is invalid, returns
 * minus the length of its longest valid prefix, or -1 if no prefix is valid. */
static int character(const unsigned char *at, size_t room) {
  static const struct {
    /* ranges of byte 1 (first to last) and of byte 2 (low to high) */
    unsigned char first, last, low, high;
    int length;
  } FORMS[] = {{0x00, 0x7F, 0, 0, 1}, /* Unicode, table 3-7 */
               {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
               {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
               {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
  for (size_t f = 0; f < sizeof FORMS / sizeof *FORMS; f++) {
    if (*at < FORMS[f].first || *at > FORMS[f].last) continue;
    for (int i = 1; i < FORMS[f].length; i++) {
      unsigned char low = i == 1 ? FORMS[f].low : 0x80, high = i == 1 ? FORMS[f].high : 0xBF;
      if ((size_t)i == room || at[i] < low || at[i] > high) return -i;
    }
    return FORMS[f].length;
  }
  return -1;
}

json_t *rf_json_bytes(const char *at, size_t bytes) {
  json_t *whole = json_stringn(at, bytes);
  if (whole) return whole;
  char *text = malloc(3 * bytes + 1);
  size_t used = 0;
  if (!text) return NULL;
  for (size_t i = 0; i < bytes;) {
    int n = character((const unsigned char *)at + i, bytes - i), taken = n < 0 ? -n : n;
    memcpy(text + used, n < 0 ? "\xEF\xBF\xBD" : at + i, n < 0 ? 3 : (size_t)n);
    used += n < 0 ? 3 : (size_t)n;
    i += (size_t)taken;
  }
  json_t *value = json_stringn(text, used);
  free(text);
  return value;
}

double rf_json_number_at(const json_t *object, const char *key) {
  return json_number_value(json_object_get(object, key));
}

const char *rf_json_text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

json_t *rf_json_decimal(float value) {
  char shortest[32];
  for (int digits = 5; digits <= 9; ++digits) {
    snprintf(shortest, sizeof shortest, "%.*g", digits, (double)value);
    if (strtof(shortest, NULL) == value) break;
  }
  return json_real(strtod(shortest, NULL));
}

void rf_json_name(const char *from, char *to, size_t room) {
  json_t *valid = rf_json_bytes(from, strlen(from));
  const char *text = valid ? json_string_value(valid) : "";
  size_t bytes = strlen(text);
  if (bytes >= room)
    for (bytes = room - 1; bytes && ((unsigned char)text[bytes] & 0xc0) == 0x80;) bytes--;
  memcpy(to, text, bytes);
  to[bytes] = 0;
  json_decref(valid);
}

char *rf_json_text(const json_t *json, int indent) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return NULL;
  put(out, json, indent, 0);
  if (fclose(out) == 0) return text;
  free(text);
  return NULL;
}

rf_status rf_json_write(const char *path, const json_t *json, int indent, rf_error *error) {
  char *text = rf_json_text(json, indent);
  if (!text) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write %s", path);
  size_t bytes = strlen(text);
  text[bytes] = '\n'; /* rf_file_write needs no NUL */
  rf_status status = rf_file_write(path, text, bytes + 1, error);
  free(text);
  return status;
}

rf_status rf_json_write_line(rf_out_file *out, const json_t *json, rf_error *error) {
  char *line = rf_json_text(json, 0);
  rf_status status = line ? rf_out_write(out, line, strlen(line), error)
                          : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  free(line);
  return status == RAFTER_OK ? rf_out_write(out, "\n", 1, error) : status;
}
