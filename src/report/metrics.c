/* metrics.c - see metrics.h. */
#include "report/metrics.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "formats/json_lines.h"

enum { METRICS_MAX = 1 << 22 };

static rf_status bad_value(const char *path, size_t step, const char *key, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "a value of a step is not a number (%s, step %zu: \"%.60s\")",
                 path, step, key);
}

/* Removes values of an object that are not numbers, and counts the removed values that are not
 * null. */
static json_int_t keep_numbers(json_t *object) {
  json_int_t removed = 0;
  json_t *value;
  const char *key;
  void *next;
  json_object_foreach_safe (object, next, key, value) {
    if (json_is_number(value)) continue;
    removed += !json_is_null(value);
    json_object_del(object, key);
  }
  return removed;
}

/* Checks the row of a step. `before` is the number of earlier steps. Only steps with rewards
 * contain objects, such as the means of the components. */
static rf_status check_row(json_t *row, bool rewards, size_t before, const char *path, json_int_t *skipped,
                           rf_error *error) {
  json_t *value;
  const char *key;
  void *next;
  json_object_foreach_safe (row, next, key, value) {
    if (json_is_number(value)) continue;
    if (!rewards) return bad_value(path, before + 1, key, error);
    if (json_is_object(value)) *skipped += keep_numbers(value);
    else {
      *skipped += !json_is_null(value);
      json_object_del(row, key);
    }
  }
  return RAFTER_OK;
}

/* Takes a line. If the line is not an object, `row` is NULL and `error` has the reason. */
static rf_status take(json_t *entry, json_t *rows, json_t *row, const rf_json_lines *lines, bool rewards,
                      rf_error *error) {
  json_t *step = json_object_get(row, "step");
  json_int_t skipped = json_integer_value(json_object_get(entry, "metrics_skipped"));
  if (row && !step && !json_object_get(entry, "start")) {
    json_object_set(entry, "start", row);
    return RAFTER_OK;
  }
  bool right = json_is_integer(step) && json_array_size(rows) < METRICS_MAX;
  if (right) {
    json_int_t before = skipped;
    RF_TRY(check_row(row, rewards, json_array_size(rows), lines->path, &skipped, error));
    json_array_append(rows, row);
    if (skipped == before) return RAFTER_OK;
  } else if (!rewards)
    return !row ? RAFTER_FAILED
                : RF_FAIL(error, RAFTER_FAILED, NULL,
                          "a line is not a step (%s, line %lld: expected an integer \"step\")", lines->path,
                          (long long)lines->line);
  else skipped++;
  json_object_set_new(entry, "metrics_skipped", json_integer(skipped));
  return RAFTER_OK;
}

rf_status rf_report_read_metrics(const char *path, json_t *entry, rf_error *error) {
  rf_json_lines lines;
  rf_status status = RAFTER_OK;
  json_t *rows = json_array();
  bool more = true, rewards = false;
  RF_TRY(rf_json_lines_open(path, NULL, &lines, error));
  for (;;) {
    json_t *row = NULL;
    status = rf_json_lines_text(&lines, &more, error);
    if (status != RAFTER_OK || !more) break;
    bool last = lines.text[lines.bytes - 1] != '\n';
    /* This search also finds the key in a line that is not JSON. */
    rewards |= strstr(lines.text, "\"reward\"") || strstr(lines.text, "\"eval_reward\"");
    bool parsed = rf_json_line(lines.text, lines.bytes, path, lines.line, &row, error) == RAFTER_OK;
    /* A run that is killed while it writes leaves an incomplete last line. This line is skipped. */
    if (!parsed && last && json_array_size(rows)) break;
    status = take(entry, rows, row, &lines, rewards, error);
    json_decref(row);
    if (status != RAFTER_OK) {
      if (last && json_array_size(rows)) status = RAFTER_OK;
      break;
    }
  }
  rf_json_lines_close(&lines);
  json_object_set_new(entry, "metrics", rows);
  return status;
}
