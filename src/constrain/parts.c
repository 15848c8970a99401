/* parts.c - forms of several parts: texts, schemas and expressions, in sequence or as
 * alternatives. */
#include "constrain/grammar.h"

#include <jansson.h>
#include <string.h>

enum { NESTED = 32, MARK_BYTES = 64 };

typedef struct adder {
  rf_grammar *g;
  rf_error *error;
  int nested;
} adder;

static rf_status add_part(adder *a, const json_t *part, int32_t from, int32_t to);

static rf_status wrong(const adder *a, const char *what) {
  return RF_FAIL(a->error, RAFTER_INVALID, "rafter.h describes the parts", "a part of the form is %s", what);
}

static rf_status add_sequence(adder *a, const json_t *parts, int32_t from, int32_t to) {
  const json_t *part;
  size_t i;
  json_array_foreach ((json_t *)parts, i, part) {
    int32_t next = rf_grammar_state(a->g);
    RF_TRY(add_part(a, part, from, next));
    from = next;
  }
  rf_grammar_skip(a->g, from, to);
  return RAFTER_OK;
}

static rf_status add_any(adder *a, const json_t *parts, int32_t from, int32_t to) {
  const json_t *part;
  size_t i;
  if (!json_is_array(parts) || !json_array_size(parts)) return wrong(a, "not a list of alternatives");
  json_array_foreach ((json_t *)parts, i, part) {
    int32_t first = rf_grammar_state(a->g);
    rf_grammar_skip(a->g, from, first);
    RF_TRY(add_part(a, part, first, to));
  }
  return RAFTER_OK;
}

static rf_status add_repeat(adder *a, const json_t *object, int32_t from, int32_t to) {
  const json_t *between = json_object_get(object, "between");
  if (between && !json_is_string(between)) return wrong(a, "not a text (between)");
  int32_t first = rf_grammar_state(a->g), after = rf_grammar_state(a->g);
  rf_grammar_skip(a->g, from, first);
  RF_TRY(add_part(a, json_object_get(object, "repeat"), first, after));
  if (between) RF_TRY(add_part(a, between, after, first));
  else rf_grammar_skip(a->g, after, first);
  rf_grammar_skip(a->g, after, to);
  return RAFTER_OK;
}

/* ---- free text ------------------------------------------------------------------------------- */

/* A text has the first `k` bytes of the mark at its end. Returns how many it has after one more
 * byte. */
static size_t matched(const char *mark, size_t k, char byte) {
  size_t n = k + 1;
  while (n && (mark[n - 1] != byte || memcmp(mark, mark + k + 1 - n, n - 1))) n--;
  return n;
}

typedef struct free_text {
  const char *mark;
  size_t bytes;
  bool until;
  int32_t state[MARK_BYTES]; /* after the first k bytes of the mark */
  int32_t to;
} free_text;

static bool is_blank(char c) { return c && strchr(" \t\r\n", c); }

/* Adds the edges of a state. Equal bytes in a row share an edge. `begin`: blanks stay in the state,
 * and this byte has no edge; 0: none. */
static void add_free_edges(adder *a, const free_text *f, size_t k, int32_t from, char begin) {
  int32_t last = -1, low = 0;
  for (int b = 0; b <= 256; b++) {
    int32_t to = -1;
    if (b < 256 && (!begin || b != (unsigned char)begin)) {
      size_t n = matched(f->mark, k, (char)b);
      if (n < f->bytes) to = begin && is_blank((char)b) ? from : f->state[n];
      else if (f->until) to = f->to;
    }
    if (b == 256 || to != last) {
      if (last != -1) rf_grammar_bytes(a->g, from, low, b - 1, last);
      last = to;
      low = b;
    }
  }
}

static rf_status add_free(adder *a, const json_t *object, int32_t from, int32_t to) {
  const json_t *until = json_object_get(object, "until"), *begin = json_object_get(object, "begin"),
               *mark = until ? until : json_object_get(object, "without");
  free_text f = {
      .mark = json_string_value(mark), .bytes = json_string_length(mark), .until = until, .to = to};
  if (!f.bytes || f.bytes > MARK_BYTES) return wrong(a, "without a mark of 1 to 64 bytes");
  /* White space before the text stays in the first state, which knows no beginning of a mark. */
  if (begin && is_blank(*f.mark)) return wrong(a, "a mark that begins with white space next to begin");
  const char byte = json_string_length(begin) == 1 ? *json_string_value(begin) : 0;
  if (begin && (!byte || is_blank(byte)))
    return wrong(a, "not one byte other than 0 and white space (begin)");
  for (size_t k = 0; k < f.bytes; k++) f.state[k] = rf_grammar_state(a->g);
  const int32_t first = begin ? rf_grammar_state(a->g) : f.state[0];
  for (size_t k = 0; k < f.bytes; k++) add_free_edges(a, &f, k, f.state[k], 0);
  if (begin) add_free_edges(a, &f, 0, first, byte);
  for (size_t k = 0; k < f.bytes && !until; k++) rf_grammar_skip(a->g, f.state[k], to);
  if (begin && !until) rf_grammar_skip(a->g, first, to);
  rf_grammar_skip(a->g, from, first);
  a->g->free = true;
  return RAFTER_OK;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static rf_status add_object(adder *a, const json_t *object, int32_t from, int32_t to) {
  const json_t *schema = json_object_get(object, "schema"), *regex = json_object_get(object, "regex"),
               *any = json_object_get(object, "any");
  const bool repeat = json_object_get(object, "repeat"), between = json_object_get(object, "between"),
             free = json_object_get(object, "until") || json_object_get(object, "without"),
             begin = json_object_get(object, "begin");
  if (between && !repeat) return wrong(a, "an object with between, which belongs to repeat");
  if (begin && !free) return wrong(a, "an object with begin, which belongs to until and without");
  if (json_object_size(object) > 1 + (size_t)(between || begin))
    return wrong(a, "an object with several names");
  if (schema) return rf_schema_add(a->g, schema, from, to, a->error);
  if (any) return add_any(a, any, from, to);
  if (repeat) return add_repeat(a, object, from, to);
  if (free) return add_free(a, object, from, to);
  if (!json_is_string(regex))
    return wrong(a, "an object without schema, regex, any, repeat, until or without");
  return rf_regex_add(a->g, json_string_value(regex), json_string_length(regex), RF_REGEX_PLAIN, "regex",
                      from, to, a->error);
}

static rf_status add_part(adder *a, const json_t *part, int32_t from, int32_t to) {
  if (a->g->full) return RAFTER_OK; /* rf_grammar_finish reports it */
  if (json_is_string(part)) {
    rf_grammar_skip(a->g, rf_grammar_text(a->g, from, json_string_value(part), json_string_length(part)), to);
    return RAFTER_OK;
  }
  if (!json_is_array(part) && !json_is_object(part)) return wrong(a, "not a text, a list or an object");
  if (a->nested == NESTED) return wrong(a, "nested too deeply (expected at most 32 levels)");
  a->nested++;
  rf_status status = json_is_array(part) ? add_sequence(a, part, from, to) : add_object(a, part, from, to);
  a->nested--;
  return status;
}

rf_status rf_parts_add(rf_grammar *g, const json_t *part, int32_t from, int32_t to, rf_error *error) {
  adder a = {.g = g, .error = error};
  return add_part(&a, part, from, to);
}
