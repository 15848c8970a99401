/* json_lines.c - see json_lines.h. jansson needs 40 bytes or more for each value. So a long line is
 * read in another way, which needs only a few times as much memory as the line has bytes. */
#define _GNU_SOURCE
#include "formats/json_lines.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Limits of a line. */
enum { LINE_BYTES = 128 << 20, LINE_VALUES = 1000000 };
/* In lines of LONG_LINE bytes or more, long lists of whole numbers are read without one JSON value
 * per number. A list is long if it has LONG_LIST numbers or more. Equal numbers below SHARED use
 * the same JSON value. */
enum { LONG_LINE = 1 << 17, LONG_LIST = 1 << 16, LISTS = 16, SHARED = 1 << 18 };

rf_status rf_json_lines_open(const char *path, const char *hint, rf_json_lines *lines, rf_error *error) {
  int file;
  *lines = (rf_json_lines){.path = path};
  RF_TRY(rf_file_open(path, hint, &file, error));
  lines->file = fdopen(file, "r");
  if (lines->file) return RAFTER_OK;
  close(file);
  return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot open %s (%s)", path, strerror(errno));
}

/* Reads one line and its newline. getline is not used, because it reads lines of any length. */
static rf_status read_line(rf_json_lines *lines, rf_error *error) {
  int c = 0;
  lines->bytes = 0;
  while (c != '\n' && (c = getc_unlocked(lines->file)) != EOF) {
    if (lines->bytes == LINE_BYTES)
      return RF_FAIL(error, RAFTER_FAILED, "write the text as several rows",
                     "a line is too long (%s, line %lld: expected at most %d bytes)", lines->path,
                     (long long)lines->line + 1, LINE_BYTES);
    if (lines->bytes + 1 >= lines->capacity) {
      size_t larger = lines->capacity ? 2 * lines->capacity : 4096;
      char *text = realloc(lines->text, larger);
      if (!text) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s", lines->path);
      lines->text = text;
      lines->capacity = larger;
    }
    lines->text[lines->bytes++] = (char)c;
  }
  if (ferror(lines->file))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read %s (%s)", lines->path, strerror(errno));
  if (lines->bytes) lines->text[lines->bytes] = 0;
  return RAFTER_OK;
}

rf_status rf_json_lines_text(rf_json_lines *lines, bool *more, rf_error *error) {
  for (;;) {
    RF_TRY(read_line(lines, error));
    *more = lines->bytes > 0;
    if (!*more) return RAFTER_OK;
    lines->line++;
    if (strspn(lines->text, " \t\r\n") < lines->bytes) return RAFTER_OK;
  }
}

rf_status rf_json_lines_next(rf_json_lines *lines, json_t **row, rf_error *error) {
  bool more;
  *row = NULL;
  RF_TRY(rf_json_lines_text(lines, &more, error));
  return more ? rf_json_line(lines->text, lines->bytes, lines->path, lines->line, row, error) : RAFTER_OK;
}

void rf_json_lines_close(rf_json_lines *lines) {
  if (lines->file) fclose(lines->file);
  free(lines->text);
  *lines = (rf_json_lines){0};
}

/* ---- long lists of whole numbers ------------------------------------------------------------- */

/* A list in a line. The list's key is between quotes and has no escapes. */
typedef struct long_list {
  const char *key, *at, *end; /* the list from its '[' to the byte after its ']' */
  size_t key_bytes;
} long_list;

typedef struct long_line {
  long_list list[LISTS];
  int lists;
  int64_t values; /* number of the other values; this estimate is never too low */
} long_line;

static const char *skip_blanks(const char *at, const char *end) {
  while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
  return at;
}

/* Reads a whole number of at most 18 digits in the notation of JSON. Returns the byte after the
 * number, or NULL. */
static const char *read_whole(const char *at, const char *end, int64_t *value) {
  bool minus = at < end && *at == '-';
  const char *first = at + minus, *c = first;
  for (*value = 0; c < end && isdigit((unsigned char)*c) && c - first < 18; c++)
    *value = *value * 10 + (*c - '0');
  if (c == first || (*first == '0' && c - first > 1)) return NULL;
  if (minus) *value = -*value;
  return c < end && (isdigit((unsigned char)*c) || strchr(".eE", *c)) ? NULL : c;
}

/* Reads the list that begins at `at`. `list` NULL: only counts. Returns the byte after the list.
 * Returns NULL if a value is not a whole number of at most 18 digits, or if memory runs out. */
static const char *read_list(const char *at, const char *end, json_t **shared, json_t *list, int64_t *count) {
  *count = 0;
  for (at = skip_blanks(at + 1, end);; at = skip_blanks(at + 1, end)) {
    int64_t value;
    if (!(at = read_whole(at, end, &value))) return NULL;
    ++*count;
    if (list) {
      bool small = value >= 0 && value < SHARED;
      if (small && !shared[value]) shared[value] = json_integer(value);
      if (json_array_append_new(list, small ? json_incref(shared[value]) : json_integer(value))) return NULL;
    }
    at = skip_blanks(at, end);
    if (at < end && *at == ']') return at + 1;
    if (at == end || *at != ',') return NULL;
  }
}

/* Returns the byte after the string that begins at `at`. */
static const char *skip_string(const char *at, const char *end, bool *escapes) {
  *escapes = false;
  for (at++; at < end && *at != '"'; at++)
    if (*at == '\\') {
      *escapes = true;
      at++;
    }
  return at < end ? at + 1 : end;
}

/* Finds the long lists of the outer object, and counts the other values. jansson reports syntax
 * errors later. */
static long_line search_line(const char *at, const char *end) {
  long_line found = {0};
  const char *key = NULL, *key_end = NULL;
  bool escapes = false, after_colon = false;
  for (int depth = 0; at < end;) {
    int64_t count;
    const char c = *at, *after = NULL;
    if (c == '"') {
      key = at + 1;
      at = skip_string(at, end, &escapes);
      key_end = at - 1;
      continue;
    }
    if (c == '[' && depth == 1 && after_colon && !escapes && found.lists < LISTS)
      after = read_list(at, end, NULL, NULL, &count);
    if (after && count >= LONG_LIST) {
      found.list[found.lists++] =
          (long_list){.key = key, .key_bytes = (size_t)(key_end - key), .at = at, .end = after};
      at = after;
      continue;
    }
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    found.values += c == ',' || c == '[' || c == '{' || c == ':';
    if (!strchr(" \t\r\n", c)) after_colon = c == ':';
    at++;
  }
  return found;
}

/* Returns the line with "[]" in place of each long list. The caller frees it. */
static char *without_lists(const long_line *line, const char *text, size_t bytes, size_t *left) {
  const char *from = text;
  char *rest = malloc(bytes), *to = rest;
  for (int i = 0; rest && i <= line->lists; i++) {
    size_t n = (size_t)((i < line->lists ? line->list[i].at : text + bytes) - from);
    memcpy(to, from, n);
    to += n;
    if (i == line->lists) break;
    memcpy(to, "[]", 2);
    to += 2;
    from = line->list[i].end;
  }
  *left = rest ? (size_t)(to - rest) : 0;
  return rest;
}

/* Adds a long list to its row. Equal numbers of the list use one JSON value. */
static bool add_list(json_t *row, const long_list *from) {
  int64_t count;
  char *key = strndup(from->key, from->key_bytes);
  json_t **shared = calloc(SHARED, sizeof *shared), *list = json_array();
  bool added = key && shared && list && read_list(from->at, from->end, shared, list, &count) &&
               !json_object_set(row, key, list);
  for (int i = 0; shared && i < SHARED; i++) json_decref(shared[i]);
  free(shared);
  free(key);
  json_decref(list);
  return added;
}

/* ---- one line -------------------------------------------------------------------------------- */

static rf_status parse(const char *text, size_t bytes, const char *path, int64_t line, json_t **row,
                       rf_error *error) {
  json_error_t bad;
  *row = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &bad);
  if (json_is_object(*row)) return RAFTER_OK;
  rf_status status = RF_FAIL(error, RAFTER_FAILED, "each line must be one JSON object",
                             "%s is not JSON Lines (line %lld: %s)", path, (long long)line,
                             *row ? "expected an object" : bad.text);
  json_decref(*row);
  *row = NULL;
  return status;
}

rf_status rf_json_line(const char *text, size_t bytes, const char *path, int64_t line, json_t **row,
                       rf_error *error) {
  if (bytes < LONG_LINE) return parse(text, bytes, path, line, row, error);
  long_line found = search_line(text, text + bytes);
  if (found.values > LINE_VALUES)
    return RF_FAIL(error, RAFTER_FAILED, "write the row as several rows",
                   "a line has too many values (%s, line %lld: expected at most %d, without lists of ids)",
                   path, (long long)line, LINE_VALUES);
  if (!found.lists) return parse(text, bytes, path, line, row, error);
  size_t left;
  char *rest = without_lists(&found, text, bytes, &left);
  if (!rest) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s", path);
  rf_status status = parse(rest, left, path, line, row, error);
  free(rest);
  for (int i = 0; status == RAFTER_OK && i < found.lists; i++)
    if (!add_list(*row, &found.list[i]))
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s", path);
  if (status == RAFTER_OK) return status;
  json_decref(*row);
  *row = NULL;
  return status;
}
