/* runs_left.c - reads the results of a run from the end of its metrics.jsonl. */
#define _GNU_SOURCE
#include "api/api.h"
#include "api/runs.h"

#include "base/file.h"
#include "base/json.h"
#include "formats/json_lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEFT_BYTES = 1 << 16 };

/* Returns the figures of the last step, and the median rate. `text` is the end of metrics.jsonl.
 * Reads only complete lines. Returns NULL if the text has no step. */
static json_t *last_steps(const char *text, size_t bytes) {
  static const char *const taken[] = {"loss", "tokens", "mfu", "val_loss", "reward", "eval_reward"};
  double rate[LEFT_BYTES / 64];
  size_t rates = 0;
  json_t *left = NULL, *row, *step;
  for (const char *at = text, *end; (end = memchr(at, '\n', bytes - (size_t)(at - text))) != NULL;
       at = end + 1) {
    row = json_loadb(at, (size_t)(end - at), 0, NULL);
    step = json_object_get(row, "step");
    if (json_is_integer(step)) {
      if (!left) left = json_object();
      json_object_set(left, "steps", step);
      for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (json_is_number(json_object_get(row, taken[i])))
          json_object_set(left, taken[i], json_object_get(row, taken[i]));
      if (rf_json_number_at(row, "tokens_per_second") > 0 && rates < sizeof rate / sizeof *rate)
        rate[rates++] = rf_json_number_at(row, "tokens_per_second");
    }
    json_decref(row);
  }
  if (rates) {
    qsort(rate, rates, sizeof *rate, rf_compare_doubles);
    json_object_set_new(left, "tokens_per_second", json_real(rate[rates / 2]));
  }
  return left;
}

/* Adds the best evaluation of all steps. Skips lines that are not JSON. */
static void add_best(const char *path, json_t *left) {
  rf_json_lines lines;
  double best = -INFINITY;
  bool more = true;
  if (rf_json_lines_open(path, NULL, &lines, NULL) != RAFTER_OK) return;
  while (rf_json_lines_text(&lines, &more, NULL) == RAFTER_OK && more) {
    json_t *row = NULL;
    if (!strstr(lines.text, "\"eval_reward\"") || lines.text[lines.bytes - 1] != '\n' ||
        rf_json_line(lines.text, lines.bytes, path, lines.line, &row, NULL) != RAFTER_OK)
      continue;
    if (json_is_number(json_object_get(row, "eval_reward")))
      best = fmax(best, rf_json_number_at(row, "eval_reward"));
    json_decref(row);
  }
  rf_json_lines_close(&lines);
  if (isfinite(best)) json_object_set_new(left, "best_eval_reward", json_real(best));
}

json_t *rf_runs_last_steps(const char *folder) {
  char path[4400], text[LEFT_BYTES + 1];
  int opened;
  snprintf(path, sizeof path, "%.4000s/metrics.jsonl", folder);
  if (rf_file_open(path, NULL, &opened, NULL) != RAFTER_OK) return NULL;
  FILE *file = fdopen(opened, "r");
  if (!file) {
    close(opened);
    return NULL;
  }
  long size = fseek(file, 0, SEEK_END) ? 0 : ftell(file), from = size > LEFT_BYTES ? size - LEFT_BYTES : 0;
  size_t bytes = fseek(file, from, SEEK_SET) ? 0 : fread(text, 1, LEFT_BYTES, file);
  fclose(file);
  char *begin = from ? memchr(text, '\n', bytes) : text; /* the first line may be incomplete */
  json_t *left = begin && bytes ? last_steps(begin, bytes - (size_t)(begin - text)) : NULL;
  if (json_object_get(left, "reward")) add_best(path, left);
  return left;
}

void rf_runs_add_left(json_t *row) {
  json_t *results = json_object_get(row, "results"), *left;
  const char *command = rf_json_text_at(row, "command");
  bool rewarded = !strcmp(command, "rl"), ended = json_object_get(results, "steps") != NULL;
  if (!json_is_true(json_object_get(row, "folder_is_there")) ||
      (!rewarded && strcmp(command, "train") != 0) ||
      (ended && (!rewarded || json_object_get(results, "best_eval_reward"))))
    return;
  left = rf_runs_last_steps(rf_json_text_at(row, "folder"));
  if (!left) return;
  if (ended) json_object_update_missing(results, left);
  else json_object_update(results, left);
  if (!ended) json_object_set_new(row, "results_from", json_string("metrics.jsonl"));
  json_decref(left);
}
