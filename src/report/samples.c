/* samples.c - see samples.h. Each line of samples.jsonl is one group, which has all answers to one
 * prompt. Only known fields of the expected type are copied. */
#include "report/samples.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "formats/json_lines.h"

enum { PIECE_MAX = 128, WORD_MAX = 200, COMPONENTS_MAX = 32 };

/* Names of the lists that have one entry per token. */
static const char *const LISTS[] = {"pieces", "tokens", "logprobs", "kl"};
enum { LIST_COUNT = sizeof LISTS / sizeof *LISTS };

/* One step with its groups. `index` counts the steps of the file. */
typedef struct unit {
  json_t *step;
  size_t index, bytes;
} unit;

/* The steps of training, or the steps of evaluation. A series keeps each step whose index is a
 * multiple of `stride`, and the newest step. */
typedef struct series {
  unit *units;
  size_t count, capacity, seen, stride, bytes, most;
} series;

typedef struct reading {
  series series[2]; /* training, evaluation */
  json_int_t groups, skipped_lines, skipped_samples, skipped_values;
} reading;

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Returns the bytes of a text in the page, which escapes some characters. */
static size_t text_cost(const char *text, size_t bytes) {
  size_t cost = 3;
  for (size_t i = 0; i < bytes; i++) {
    unsigned char c = (unsigned char)text[i];
    bool escaped = c < 0x20 || c == '<' || c == '>' || c == '&';
    cost += escaped ? 6 : c == '"' || c == '\\' || c == 0xe2 ? 2 : 1;
  }
  return cost;
}

static size_t cost_of(const json_t *json) {
  const char *key;
  json_t *value;
  size_t i, cost = 2;
  if (json_is_string(json)) return text_cost(json_string_value(json), json_string_length(json));
  if (!json_is_array(json) && !json_is_object(json)) return 8;
  json_array_foreach ((json_t *)json, i, value) cost += cost_of(value);
  json_object_foreach ((json_t *)json, key, value) cost += text_cost(key, strlen(key)) + cost_of(value);
  return cost;
}

/* ---- checked copies -------------------------------------------------------------------------- */

/* Returns a copy of a text. A text of more than `most` bytes is cut between two characters. */
static json_t *cut_text(const json_t *value, size_t most) {
  const char *text = json_string_value(value);
  size_t bytes = json_string_length(value);
  if (bytes > most) {
    bytes = most;
    while (bytes && ((unsigned char)text[bytes] & 0xC0) == 0x80) bytes--;
  }
  return json_stringn(text, bytes);
}

static void copy_text(reading *r, const json_t *from, const char *key, size_t most, json_t *to) {
  const json_t *value = json_object_get(from, key);
  if (json_is_string(value)) {
    json_object_set_new(to, key, cut_text(value, most));
    if (json_string_length(value) > most) json_object_set_new(to, "cut", json_true());
  } else if (value && !json_is_null(value)) r->skipped_values++;
}

static void copy_number(reading *r, const json_t *from, const char *key, json_t *to) {
  json_t *value = json_object_get(from, key);
  if (json_is_number(value)) json_object_set(to, key, value);
  else if (value && !json_is_null(value)) r->skipped_values++;
}

static void copy_components(reading *r, const json_t *from, json_t *to) {
  json_t *rewards = json_object_get(from, "rewards"), *copy, *value;
  const char *key;
  if (!rewards || json_is_null(rewards)) return;
  copy = json_object();
  json_object_foreach (rewards, key, value) {
    bool kept = json_is_number(value) && strlen(key) <= WORD_MAX && json_object_size(copy) < COMPONENTS_MAX;
    if (kept) json_object_set(copy, key, value);
    else if (!json_is_null(value)) r->skipped_values++;
  }
  if (!json_is_object(rewards)) r->skipped_values++;
  json_object_set_new(to, "rewards", copy);
}

/* Returns the value with four digits, because more digits would only make the page larger. */
static json_t *short_number(const json_t *value) {
  char text[40];
  snprintf(text, sizeof text, "%.4g", json_number_value(value));
  return json_real(strtod(text, NULL));
}

/* Returns a copy of a list of tokens. A value with another type becomes null. */
static json_t *copy_list(reading *r, const json_t *list, size_t most, bool texts, bool whole) {
  json_t *copy = json_array(), *value;
  size_t i;
  json_array_foreach ((json_t *)list, i, value) {
    bool right = texts ? json_is_string(value) : whole ? json_is_integer(value) : json_is_number(value);
    if (i == most) break;
    json_array_append_new(copy, !right  ? json_null()
                                : texts ? cut_text(value, PIECE_MAX)
                                : whole ? json_incref(value)
                                        : short_number(value));
    if (!right && !json_is_null(value)) r->skipped_values++;
  }
  return copy;
}

/* Without the list "pieces", the page cannot show tokens. A list with another length does not
 * belong to these tokens. */
static void copy_tokens(reading *r, const json_t *from, json_t *to) {
  const json_t *pieces = json_object_get(from, "pieces");
  size_t count = json_array_size(pieces);
  for (int i = 0; i < LIST_COUNT; i++) {
    const json_t *list = json_object_get(from, LISTS[i]);
    if (!list || json_is_null(list)) continue;
    if (!json_is_array(list) || json_array_size(list) != count) r->skipped_values++;
    else if (count) json_object_set_new(to, LISTS[i], copy_list(r, list, RF_SAMPLES_TOKENS, i == 0, i == 1));
  }
  if (count > RF_SAMPLES_TOKENS) json_object_set_new(to, "cut", json_true());
}

static json_t *sample_of(reading *r, const json_t *from) {
  json_t *sample = json_object();
  copy_text(r, from, "text", RF_SAMPLES_TEXT, sample);
  copy_text(r, from, "finish_reason", WORD_MAX, sample);
  copy_number(r, from, "reward", sample);
  copy_number(r, from, "advantage", sample);
  copy_components(r, from, sample);
  copy_tokens(r, from, sample);
  return sample;
}

static void add_left_out(json_t *to, const char *key, json_int_t count) {
  if (count) json_object_set_new(to, key, json_integer(count));
}

/* Returns the group of a line in at most `room` bytes. To save bytes, the lists of tokens are left
 * out first, and samples after them. Returns NULL if the line is not a group. */
static json_t *group_of(reading *r, const json_t *row, size_t room, size_t *bytes) {
  const json_t *samples = json_object_get(row, "samples"), *one;
  json_t *group = json_object(), *kept = json_array();
  json_int_t left_out = 0;
  size_t i;
  copy_text(r, row, "id", WORD_MAX, group);
  copy_text(r, row, "prompt", RF_SAMPLES_TEXT, group);
  copy_text(r, row, "answer", RF_SAMPLES_TEXT, group);
  size_t cost = cost_of(group) + 32;
  json_array_foreach ((json_t *)samples, i, one) {
    if (!json_is_object(one) || !json_is_string(json_object_get(one, "text"))) {
      r->skipped_samples++;
      continue;
    }
    json_t *sample = json_array_size(kept) < RF_SAMPLES_COUNT ? sample_of(r, one) : NULL;
    size_t own = cost_of(sample);
    if (sample && cost + own > room) {
      for (int k = 0; k < LIST_COUNT; k++) json_object_del(sample, LISTS[k]);
      json_object_set_new(sample, "cut", json_true());
      own = cost_of(sample);
    }
    if (sample && cost + own <= room) {
      cost += own;
      json_array_append(kept, sample);
    } else left_out++;
    json_decref(sample);
  }
  add_left_out(group, "left_out", left_out);
  *bytes = cost;
  bool empty = !json_array_size(kept) && !left_out;
  json_object_set_new(group, "samples", kept);
  if (!empty) return group;
  json_decref(group);
  return NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Removes all steps except the newest step and the multiples of the stride. */
static void keep_multiples(series *s) {
  size_t kept = 0;
  for (size_t i = 0; i < s->count; i++) {
    if (s->units[i].index % s->stride == 0 || i + 1 == s->count) s->units[kept++] = s->units[i];
    else {
      s->bytes -= s->units[i].bytes;
      json_decref(s->units[i].step);
    }
  }
  s->count = kept;
}

/* The unit of a step. A step has consecutive lines. NULL: out of memory. */
static unit *unit_of(series *s, json_int_t step) {
  if (s->count && json_integer_value(json_object_get(s->units[s->count - 1].step, "step")) == step)
    return &s->units[s->count - 1];
  if (s->count && s->units[s->count - 1].index % s->stride) {
    s->bytes -= s->units[--s->count].bytes;
    json_decref(s->units[s->count].step);
  }
  if (s->count == s->capacity) {
    size_t larger = s->capacity ? 2 * s->capacity : 64;
    unit *units = realloc(s->units, larger * sizeof *units);
    if (!units) return NULL;
    s->units = units;
    s->capacity = larger;
  }
  json_t *json = json_pack("{sI s[]}", "step", step, "groups");
  if (!json) return NULL;
  s->units[s->count] = (unit){.step = json, .index = s->seen++, .bytes = 40};
  s->bytes += 40;
  return &s->units[s->count++];
}

static rf_status add_line(reading *r, const json_t *row, const char *path, rf_error *error) {
  const json_t *step = json_object_get(row, "step");
  series *s = &r->series[json_is_true(json_object_get(row, "eval"))];
  if (!json_is_integer(step) || !json_is_array(json_object_get(row, "samples"))) {
    r->skipped_lines++;
    return RAFTER_OK;
  }
  unit *u = unit_of(s, json_integer_value(step));
  if (!u) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to read %s", path);
  json_t *groups = json_object_get(u->step, "groups"), *group = NULL;
  size_t bytes = 0, room = u->bytes < RF_SAMPLES_STEP ? RF_SAMPLES_STEP - u->bytes : 0;
  if (json_array_size(groups) < RF_SAMPLES_GROUPS) group = group_of(r, row, room, &bytes);
  bool whole = json_array_size(groups) < RF_SAMPLES_GROUPS;
  if (whole && !group) {
    r->skipped_lines++;
    return RAFTER_OK;
  }
  r->groups++;
  if (!group || (bytes > room && json_array_size(groups))) {
    json_t *count = json_object_get(u->step, "left_out");
    json_object_set_new(u->step, "left_out", json_integer(json_integer_value(count) + 1));
    json_decref(group);
    return RAFTER_OK;
  }
  json_array_append_new(groups, group);
  u->bytes += bytes;
  s->bytes += bytes;
  while (s->bytes > s->most && s->count > 2) {
    s->stride *= 2;
    keep_multiples(s);
  }
  return RAFTER_OK;
}

static json_t *steps_of(series *s) {
  json_t *steps = json_array();
  for (size_t i = 0; i < s->count; i++) {
    /* A step has no group if all its lines are wrong. */
    if (json_array_size(json_object_get(s->units[i].step, "groups")))
      json_array_append(steps, s->units[i].step);
    else s->seen--;
    json_decref(s->units[i].step);
  }
  free(s->units);
  return steps;
}

rf_status rf_report_read_samples(const char *path, json_t **samples, rf_error *error) {
  reading r = {.series = {{.stride = 1, .most = RF_SAMPLES_MODEL / 3 * 2},
                          {.stride = 1, .most = RF_SAMPLES_MODEL / 3}}};
  rf_json_lines lines;
  rf_status status = RAFTER_OK;
  bool more = true;
  *samples = NULL;
  RF_TRY(rf_json_lines_open(path, NULL, &lines, error));
  while (status == RAFTER_OK && more) {
    json_t *row = NULL;
    rf_error bad;
    status = rf_json_lines_text(&lines, &more, &bad);
    if (status != RAFTER_OK && ferror(lines.file)) {
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s", bad.message);
      break;
    }
    if (status == RAFTER_OK && !more) break;
    if (status == RAFTER_OK) status = rf_json_line(lines.text, lines.bytes, path, lines.line, &row, &bad);
    if (status == RAFTER_OK) status = add_line(&r, row, path, error);
    else {
      r.skipped_lines++; /* the line is too long, was cut off, or is not JSON */
      status = RAFTER_OK;
    }
    json_decref(row);
  }
  rf_json_lines_close(&lines);
  json_t *steps = steps_of(&r.series[0]), *evaluations = steps_of(&r.series[1]);
  json_t *json =
      rf_must(json_pack("{so so sI sI sI sI sI sI}", "steps", steps, "evaluations", evaluations, "all_steps",
                        (json_int_t)r.series[0].seen, "all_evaluations", (json_int_t)r.series[1].seen,
                        "groups", r.groups, "skipped_lines", r.skipped_lines, "skipped_samples",
                        r.skipped_samples, "skipped_values", r.skipped_values));
  if (status == RAFTER_OK) *samples = json;
  else json_decref(json);
  return status;
}

/* ---- thinning -------------------------------------------------------------------------------- */

/* Returns the index of entry i of n entries at equal distances in a list of `count` entries. */
static size_t spread(size_t i, size_t n, size_t count) {
  return n < 2 ? i : (i * (count - 1) + (n - 1) / 2) / (n - 1);
}

static json_t *thin_steps(const json_t *steps, size_t bytes) {
  size_t count = json_array_size(steps), n = count;
  size_t *costs = malloc((count + 1) * sizeof *costs);
  json_t *thin = json_array();
  for (size_t i = 0; costs && i < count; i++) costs[i] = cost_of(json_array_get(steps, i));
  while (costs && n > 2) {
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += costs[spread(i, n, count)];
    if (sum <= bytes) break;
    size_t fewer = (size_t)((double)n * (double)bytes / (double)sum);
    n = fewer < 2 ? 2 : fewer < n ? fewer : n - 1;
  }
  free(costs);
  for (size_t i = 0; i < n; i++) json_array_append(thin, json_array_get(steps, spread(i, n, count)));
  return thin;
}

json_t *rf_report_thin_samples(const json_t *samples, size_t bytes) {
  static const char *const KEYS[] = {"steps", "evaluations"};
  const json_t *list[2] = {json_object_get(samples, KEYS[0]), json_object_get(samples, KEYS[1])};
  json_t *copy = json_copy((json_t *)samples);
  for (int i = 0; i < 2; i++) {
    bool alone = !json_array_size(list[!i]);
    size_t share = alone ? bytes : i == 0 ? bytes / 3 * 2 : bytes / 3;
    json_object_set_new(copy, KEYS[i], thin_steps(list[i], share));
  }
  return copy;
}
