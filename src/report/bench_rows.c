/* bench_rows.c - reads and checks the output of `rafter bench --json`. The first line of the output
 * has the run's calibration. Each further line has one test. */
#include "report/bench_rows.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "formats/json_lines.h"

enum { ROWS_MAX = 1 << 16, FIRST_LINE = 1 << 14 };
static const char *const HINT = "give the output of `rafter bench --json`";

bool rf_report_is_bench(const char *path) {
  char text[FIRST_LINE];
  int fd;
  /* the function that reads the file next reports the reason */
  if (rf_file_open(path, NULL, &fd, NULL) != RAFTER_OK) return false;
  FILE *file = fdopen(fd, "r");
  size_t bytes = file ? fread(text, 1, sizeof text, file) : 0;
  if (file) fclose(file);
  else close(fd);
  char *end = memchr(text, '\n', bytes);
  json_t *row = end ? json_loadb(text, (size_t)(end - text), 0, NULL) : NULL;
  bool is = json_is_string(json_object_get(row, "test"));
  json_decref(row);
  return is;
}

static rf_status check_row(const json_t *row, const char *path, int64_t line, rf_error *error) {
  static const char *const texts[] = {"test", "model", "dtype"};
  static const char *const numbers[] = {"tokens_per_second", "predicted_seconds", "limit_fraction"},
                           *const spread[] = {"median", "min", "max"};
  static const char *const later[] = {"sweep", "value", "limit"};
  const json_t *seconds = json_object_get(row, "seconds");
  char where[4200];
  const char *text;
  double value;
  snprintf(where, sizeof where, "%.4000s, line %lld", path, (long long)line);
  for (size_t i = 0; i < 3; i++) RF_TRY(rf_json_string(row, texts[i], where, &text, error));
  for (size_t i = 0; i < 3; i++) RF_TRY(rf_json_float(row, numbers[i], where, 0, 1e300, &value, error));
  if (!json_is_object(seconds))
    return RF_FAIL(error, RAFTER_FAILED, HINT, "%s has no object \"seconds\"", where);
  for (size_t i = 0; i < 3; i++) RF_TRY(rf_json_float(seconds, spread[i], where, 0, 1e300, &value, error));
  for (size_t i = 0; i < 3; i++)
    if (json_object_get(row, later[i])) RF_TRY(rf_json_string(row, later[i], where, &text, error));
  return json_object_get(row, "predicted_tokens_per_second")
             ? rf_json_float(row, "predicted_tokens_per_second", where, 0, 1e300, &value, error)
             : RAFTER_OK;
}

rf_status rf_report_add_bench(json_t *model, const char *path, const char *name, rf_error *error) {
  rf_json_lines lines;
  json_t *rows = json_array(), *row = NULL, *calibration = NULL;
  rf_status status = rf_json_lines_open(path, HINT, &lines, error);
  while (status == RAFTER_OK && (status = rf_json_lines_next(&lines, &row, error)) == RAFTER_OK && row) {
    const char *test = json_string_value(json_object_get(row, "test"));
    if (test && !strcmp(test, "calibration")) {
      json_decref(calibration);
      calibration = row;
      continue;
    }
    status = check_row(row, path, lines.line, error);
    if (status == RAFTER_OK && json_array_size(rows) == ROWS_MAX)
      status =
          RF_FAIL(error, RAFTER_FAILED, HINT, "%s has too many rows (expected at most %d)", path, ROWS_MAX);
    if (status == RAFTER_OK) json_array_append_new(rows, row);
    else json_decref(row);
  }
  if (lines.file) rf_json_lines_close(&lines);
  json_t *text = status == RAFTER_OK ? json_string(name) : NULL;
  if (status == RAFTER_OK && !json_array_size(rows))
    status = RF_FAIL(error, RAFTER_FAILED, HINT, "%s has no row with a test", path);
  if (status == RAFTER_OK && !text)
    status = RF_FAIL(error, RAFTER_FAILED, "rename the file", "the file name is not UTF-8 text");
  if (status == RAFTER_OK) {
    json_t *bench = json_pack("{sO so}", "name", text, "rows", json_incref(rows));
    if (bench && calibration) json_object_set(bench, "calibration", calibration);
    json_array_append_new(json_object_get(model, "benches"), bench);
  }
  json_decref(text);
  json_decref(rows);
  json_decref(calibration);
  return status;
}
