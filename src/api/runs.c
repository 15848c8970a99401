/* runs.c - `rafter runs list|show|compare|best|rm`: the history of runs. */
#define _GNU_SOURCE
#include "api/api.h"
#include "api/runs.h"

#include "base/json.h"
#include "base/text.h"
#include "report/compare.h"
#include "report/history.h"
#include "report/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- rows ------------------------------------------------------------------------------------ */

static void when_text(double seconds, char text[32]) {
  time_t at = (time_t)seconds;
  struct tm broken;
  bool known = fabs(seconds) < 1e15 && localtime_r(&at, &broken);
  if (!known || !strftime(text, 32, "%Y-%m-%d %H:%M", &broken)) snprintf(text, 32, "?");
}

/* Copies a text without control characters, because other programs may have written the history. */
static const char *clean(const json_t *object, const char *key, char out[512]) {
  const char *from = rf_json_text_at(object, key);
  size_t n = 0;
  for (; *from && n < 511; from++) {
    unsigned char c = (unsigned char)*from, next = (unsigned char)from[1];
    if (c == 0xC2 && next >= 0x80 && next < 0xA0) {
      from++;
      out[n++] = ' ';
    } /* C1 */
    else
      out[n++] = (char)(c < 0x20 || c == 0x7F ? ' ' : c);
  }
  out[n] = 0;
  return out;
}

/* Writes a number of an object as text. Writes "" if the number is unknown. */
static const char *shown(const json_t *object, const char *key, char *(*text)(double, char[32]),
                         char out[32]) {
  *out = 0;
  return json_is_number(json_object_get(object, key)) ? text(rf_json_number_at(object, key), out) : out;
}

/* Writes a result as text. The end of the result's name decides the unit. */
static char *result_text(const char *name, double value, char text[32]) {
  if (rf_text_ends_with(name, "bytes")) return rf_text_bytes(value, text);
  if (rf_text_ends_with(name, "per_second")) return rf_text_count(value, text);
  if (rf_text_ends_with(name, "seconds")) return rf_text_seconds(value, text);
  return rf_text_number(value, text);
}

static const char *folder_note(const json_t *row, char note[64]) {
  const json_t *taken = json_object_get(row, "folder_taken_by");
  if (!json_is_false(json_object_get(row, "folder_is_there"))) return "";
  if (!taken) return " (its folder is gone)";
  return snprintf(note, 64, " (run %lld uses that folder now)", (long long)json_integer_value(taken)), note;
}

enum { NAME_MIN = 12, NAME_MAX = 40 };

/* Shortens a long name. Removes the start of a path, because paths often differ only at the end. A
 * shape (gpt:layers=12,...) loses its end. */
static const char *short_name(const char *name, char text[NAME_MAX + 1]) {
  size_t all = strlen(name), kept = NAME_MAX - 2, from = 0;
  if (all <= NAME_MAX) return memcpy(text, name, all + 1);
  if (strchr(name, '/')) from = all - kept;
  /* Do not split a UTF-8 character. */
  while (from && ((unsigned char)name[from] & 0xC0) == 0x80) from++;
  while (!from && ((unsigned char)name[kept] & 0xC0) == 0x80) kept--;
  snprintf(text, NAME_MAX + 1, "%s%.*s%s", from ? ".." : "", (int)kept, name + from, from ? "" : "..");
  return text;
}

/* Returns the number of columns of the longest name among the printed rows. */
static int name_columns(const json_t *rows, int64_t limit) {
  char name[512], text[NAME_MAX + 1];
  int columns = NAME_MIN;
  for (size_t i = 0; i < json_array_size(rows) && (!limit || (int64_t)i < limit); i++) {
    int wide = (int)strlen(short_name(clean(json_array_get(rows, i), "model", name), text));
    if (wide > columns) columns = wide;
  }
  return columns;
}

/* Returns true if the table of runs always has a column for this result. */
static bool has_column(const char *metric) {
  static const char *const COLUMNS[] = {
      "tokens_per_second", "predicted_tokens_per_second", "loss", "peak_bytes", "reward", "best_eval_reward"};
  for (size_t i = 0; i < sizeof COLUMNS / sizeof *COLUMNS; i++)
    if (!strcmp(COLUMNS[i], metric)) return true;
  return false;
}

/* Writes a loss or reward with four digits, because later digits vary from run to run. */
static char *loss_text(double value, char text[32]) {
  snprintf(text, 32, "%.4g", value);
  return text;
}

/* Writes the columns of rewards. Only lists with a rewarded run have these columns. If `row` is
 * NULL, writes the titles of the columns. */
static const char *reward_columns(const json_t *rows, int64_t limit, const json_t *row, char text[80]) {
  char reward[32], best[32];
  const json_t *one, *results = json_object_get(row, "results");
  bool any = false;
  size_t i;
  json_array_foreach ((json_t *)rows, i, one)
    any |= (!limit || (int64_t)i < limit) && json_object_get(json_object_get(one, "results"), "reward");
  *text = 0;
  if (any)
    snprintf(text, 80, "%8.8s %9.9s ", row ? shown(results, "reward", loss_text, reward) : "reward",
             row ? shown(results, "best_eval_reward", loss_text, best) : "best eval");
  return text;
}

static void say_rows(const rafter_sink *sink, const json_t *rows, int64_t limit, const char *metric) {
  const json_t *row;
  size_t i;
  char when[32], a[32], b[32], c[32], d[32], model[NAME_MAX + 1], title[80] = "", rewards[80], command[512],
                                                                  name[512], folder[512], note[64];
  int columns = name_columns(rows, limit);
  if (metric && has_column(metric)) metric = NULL;
  if (metric) snprintf(title, sizeof title, " %18.40s", metric);
  rf_say(sink, "%5s  %-16s  %-8s  %-*s  %-12s%s %9s %9s %8s %s%10s  %s\n", "id", "started", "command",
         columns, "model", "status", title, "tokens/s", "planned", "loss",
         reward_columns(rows, limit, NULL, rewards), "memory", "folder");
  json_array_foreach ((json_t *)rows, i, row) {
    const json_t *results = json_object_get(row, "results");
    const char *status = rf_json_text_at(row, "status");
    if (limit && (int64_t)i >= limit) {
      rf_say(sink, "... and %zu more (--limit)\n", json_array_size(rows) - i);
      break;
    }
    when_text(rf_json_number_at(row, "started"), when);
    if (metric)
      snprintf(title, sizeof title, " %18s",
               json_is_number(json_object_get(results, metric))
                   ? result_text(metric, rf_json_number_at(results, metric), a)
                   : "");
    rf_say(sink, "%5lld  %-16s  %-8.8s  %-*s  %-12s%s %9s %9s %8s %s%10s  %s%s\n",
           (long long)json_integer_value(json_object_get(row, "id")), when, clean(row, "command", command),
           columns, short_name(clean(row, "model", name), model),
           strcmp(status, "ended without a word") ? status : "killed", title,
           shown(results, "tokens_per_second", rf_text_count, a),
           shown(results, "predicted_tokens_per_second", rf_text_count, b),
           shown(results, "loss", loss_text, c), reward_columns(rows, limit, row, rewards),
           shown(results, "peak_bytes", rf_text_bytes, d), clean(row, "folder", folder),
           folder_note(row, note));
  }
}

/* ---- finding a run --------------------------------------------------------------------------- */

/* Finds a run by its number, name or folder. If several runs have this name, finds the newest of
 * these runs. */
rf_status rf_runs_find(rf_history *history, const char *which, json_t **row, rf_error *error) {
  rf_history_filter filter = {0};
  json_t *rows = NULL;
  char *folder = NULL;
  int64_t id = 0;
  if (rf_text_int(which, &id) && id > 0) filter.id = id;
  else filter.name = which;
  RF_TRY(rf_history_rows(history, &filter, &rows, error));
  if (!json_array_size(rows) && filter.id) { /* a number may also be the name of a folder */
    json_decref(rows);
    filter = (rf_history_filter){.name = which};
    RF_TRY(rf_history_rows(history, &filter, &rows, error));
  }
  if (!json_array_size(rows) && !filter.id && (folder = realpath(which, NULL))) {
    json_decref(rows);
    filter.name = folder;
    rf_status status = rf_history_rows(history, &filter, &rows, error);
    free(folder);
    RF_TRY(status);
  }
  *row = json_incref(json_array_get(rows, 0));
  json_decref(rows);
  if (*row) rf_runs_add_left(*row);
  return *row ? RAFTER_OK
              : RF_FAIL(error, RAFTER_FAILED, "`rafter runs list` lists the runs",
                        "there is no run %s in the history", which);
}

rf_status rf_runs_folder(const char *which, char folder[4096], rf_error *error) {
  rf_history *history = NULL;
  json_t *row = NULL;
  int64_t id;
  *folder = 0;
  if (!rf_text_int(which, &id) || !access(which, F_OK)) return RAFTER_OK;
  RF_TRY(rf_history_open(rf_runs_root(), false, &history, error));
  rf_status status = rf_runs_find(history, which, &row, error);
  if (status == RAFTER_OK && !json_is_true(json_object_get(row, "folder_is_there")))
    status = RF_FAIL(error, RAFTER_FAILED, "`rafter runs show` prints its row of the history",
                     "run %s has no folder%s", which, *rf_json_text_at(row, "folder") ? " any more" : "");
  if (status == RAFTER_OK) snprintf(folder, 4096, "%s", rf_json_text_at(row, "folder"));
  json_decref(row);
  rf_history_close(history);
  return status;
}

static rf_history_filter filter_of(const rf_options *o) {
  return (rf_history_filter){.model = rf_options_text(o, "model"),
                             .machine = rf_options_text(o, "machine"),
                             .command = rf_options_text(o, "of")};
}

/* ---- list, show, compare, best --------------------------------------------------------------- */

static rf_status list(rf_history *history, const rf_options *o, const rafter_sink *sink, rf_error *error) {
  rf_history_filter filter = filter_of(o);
  json_t *rows = NULL, *row;
  size_t i;
  RF_TRY(rf_history_rows(history, &filter, &rows, error));
  int64_t limit = rf_options_int(o, "limit");
  json_array_foreach (rows, i, row)
    if (!limit || (int64_t)i < limit) rf_runs_add_left(row);
  if (!json_array_size(rows) && (filter.model || filter.machine || filter.command))
    rf_say(sink, "no runs%s%s%s%s%s%s in %s\n", filter.command ? " --of " : "",
           filter.command ? filter.command : "", filter.model ? " of --model " : "",
           filter.model ? filter.model : "", filter.machine ? " on --machine " : "",
           filter.machine ? filter.machine : "", rf_runs_root());
  else if (!json_array_size(rows)) rf_say(sink, "no runs in %s\n", rf_runs_root());
  else say_rows(sink, rows, limit, NULL);
  while (limit && (int64_t)json_array_size(rows) > limit) json_array_remove(rows, json_array_size(rows) - 1);
  rf_put_json(sink, json_pack("{ss ss so}", "rafter", RF_VERSION, "command", "runs", "runs", rows));
  return RAFTER_OK;
}

static rf_status show(rf_history *history, const rf_options *o, const rafter_sink *sink, rf_error *error) {
  json_t *row = NULL, *value;
  char when[32], text[512], said[7][512], note[64];
  const char *key;
  RF_TRY(rf_runs_find(history, rf_options_argument(o, 1), &row, error));
  when_text(rf_json_number_at(row, "started"), when);
  rf_say(sink, "run %lld: %s of %s on %s, %s%s%s\n",
         (long long)json_integer_value(json_object_get(row, "id")), clean(row, "command", said[0]),
         clean(row, "model", said[1]), clean(row, "machine", said[2]), rf_json_text_at(row, "status"),
         *rf_json_text_at(row, "message") ? ": " : "", clean(row, "message", said[3]));
  rf_say(sink, "started  %s by %s in %s\nfolder   %s%s\nplan     %s\n\nresults%s\n", when,
         clean(row, "version", said[4]), clean(row, "directory", said[5]),
         *rf_json_text_at(row, "folder") ? clean(row, "folder", text) : "none", folder_note(row, note),
         clean(row, "digest", said[6]), json_object_get(row, "results_from") ? " (from metrics.jsonl)" : "");
  json_object_foreach (json_object_get(row, "results"), key, value) {
    if (json_is_number(value)) result_text(key, json_number_value(value), text);
    else {
      clean(json_object_get(row, "results"), key, text);
      text[60] = 0;
    }
    rf_say(sink, "  %-32.60s %s\n", key, text);
  }
  rf_say(sink, "\noptions\n");
  json_object_foreach (json_object_get(row, "options"), key, value) {
    char *dumped = rf_json_text(value, 0);
    rf_say(sink, "  %-32.60s %.3000s\n", key, dumped ? dumped : "");
    free(dumped);
  }
  rf_put_json(sink, row);
  return RAFTER_OK;
}

/* Lists all numbers that the results of both runs contain. */
static json_t *results_json(const json_t *a, const json_t *b) {
  json_t *list = json_array(), *x;
  const char *key;
  json_object_foreach ((json_t *)a, key, x) {
    json_t *y = json_object_get(b, key);
    if (json_is_number(x) && json_is_number(y))
      json_array_append_new(list, json_pack("{ss sO sO}", "name", key, "a", x, "b", y));
  }
  return list;
}

/* Prints measured results, then predictions. */
static void say_results(const rafter_sink *sink, const json_t *results) {
  const json_t *row;
  size_t i;
  char a[32], b[32];
  rf_say(sink, "\n%-32s %16s %16s\n", "results", "A", "B");
  for (int predicted = 0; predicted < 2; predicted++)
    json_array_foreach ((json_t *)results, i, row) {
      const char *name = rf_json_text_at(row, "name");
      if ((strncmp(name, "predicted", 9) == 0) != (predicted == 1)) continue;
      rf_say(sink, "%-32s %16s %16s\n", name, result_text(name, rf_json_number_at(row, "a"), a),
             result_text(name, rf_json_number_at(row, "b"), b));
    }
}

/* Compares two runs op by op. If the folder of a run is missing, compares only options and
 * results. */
static rf_status compare(rf_history *history, const rf_options *o, const rafter_sink *sink, rf_error *error) {
  json_t *a = NULL, *b = NULL, *model = rf_report_model(), *json = NULL, *row;
  rf_status status = RAFTER_OK;
  size_t i;
  RF_GO(rf_runs_find(history, rf_options_argument(o, 1), &a, error));
  RF_GO(rf_runs_find(history, rf_options_argument(o, 2), &b, error));
  json_t *results = results_json(json_object_get(a, "results"), json_object_get(b, "results"));
  bool folders = json_is_true(json_object_get(a, "folder_is_there")) &&
                 json_is_true(json_object_get(b, "folder_is_there"));
  rf_error why = {0};
  if (folders && (rf_report_add(model, NULL, rf_json_text_at(a, "folder"), &why) != RAFTER_OK ||
                  rf_report_add(model, NULL, rf_json_text_at(b, "folder"), &why) != RAFTER_OK)) {
    rf_note(sink, "warning: %s\n", why.message);
    folders = false;
  }
  const json_t *runs = json_object_get(model, "runs");
  bool alike = !folders || rf_report_comparable(json_array_get(runs, 0), json_array_get(runs, 1));
  const bool never = !*rf_json_text_at(a, "folder") || !*rf_json_text_at(b, "folder");
  const char *why_not = !alike  ? "the runs have plans of different kinds, so ops are not compared"
                        : never ? "one of the runs has no folder (--out), so ops are not compared"
                                : "the folder of one of the runs no longer exists";
  folders &= alike;
  if (folders) json = rf_report_compare(json_array_get(runs, 0), json_array_get(runs, 1));
  else
    json =
        json_pack("{s{ss} s{ss} so so so}", "a", "id", rf_json_text_at(a, "name"), "b", "id",
                  rf_json_text_at(b, "name"), "options",
                  rf_report_options_that_differ(json_object_get(a, "options"), json_object_get(b, "options")),
                  "ops", json_array(), "kinds", json_array());
  json_object_set_new(json, "results", results);
  if (folders)
    rf_say_text(sink, rf_report_compare_text(
                          json, (int)rf_options_int(o, "limit") ? (int)rf_options_int(o, "limit") : 1 << 20));
  else {
    rf_say(sink, "%s; from the history:\n\n%-32s %16s %16s\n", why_not, "options that differ", "A", "B");
    json_array_foreach (json_object_get(json, "options"), i, row) {
      char *x = rf_json_text(json_object_get(row, "a"), 0), *y = rf_json_text(json_object_get(row, "b"), 0);
      rf_say(sink, "%-32s %16.1000s %16.1000s\n", rf_json_text_at(row, "name"), x ? x : "", y ? y : "");
      free(x);
      free(y);
    }
  }
  say_results(sink, results);
  rf_put_json(sink, json_incref(json));
done:
  json_decref(a);
  json_decref(b);
  json_decref(model);
  json_decref(json);
  return status;
}

static bool small_is_best(const char *metric) {
  return strstr(metric, "loss") || strstr(metric, "bytes") || strstr(metric, "perplexity") ||
         (strstr(metric, "seconds") && !strstr(metric, "per_second")) || !strcmp(metric, "nll");
}

static int better_first(const void *x, const void *y, void *metric) {
  double a = rf_json_number_at(json_object_get(*(json_t *const *)x, "results"), metric),
         b = rf_json_number_at(json_object_get(*(json_t *const *)y, "results"), metric);
  return small_is_best(metric) ? (a > b) - (a < b) : (a < b) - (a > b);
}

/* Keeps only the runs of one command, because the rates of training and scoring are not comparable.
 * This command is `train` if there are training runs, otherwise the most frequent command. `others`
 * gets the number of dropped runs of each command. */
static void keep_one_command(json_t *rows, char command[32], json_t *others) {
  json_t *row, *count;
  const char *of;
  size_t i;
  double most = 0;
  *command = 0;
  json_array_foreach (rows, i, row)
    json_object_set_new(
        others, rf_json_text_at(row, "command"),
        json_integer((json_int_t)rf_json_number_at(others, rf_json_text_at(row, "command")) + 1));
  json_object_foreach (others, of, count) {
    double runs = !strcmp(of, "train") ? INFINITY : json_number_value(count);
    if (runs > most) {
      most = runs;
      snprintf(command, 32, "%.31s", of);
    }
  }
  json_object_del(others, command);
  for (i = json_array_size(rows); i-- > 0;)
    if (strcmp(rf_json_text_at(json_array_get(rows, i), "command"), command)) json_array_remove(rows, i);
}

static void say_others(const rafter_sink *sink, const char *command, const json_t *others,
                       const char *metric) {
  const char *of;
  json_t *count;
  size_t left = json_object_size(others);
  if (!left) return;
  rf_say(sink, "only %s runs are compared;", command);
  json_object_foreach ((json_t *)others, of, count)
    rf_say(sink, " %lld of %s%s", (long long)json_integer_value(count), of, --left ? "," : "");
  rf_say(sink, " also have %s: --of COMMAND chooses these runs\n", metric);
}

/* Fails if no run has the metric. The error lists the metrics of the runs in the history. Does not
 * fail if the history is empty, because the command then reports that the history has no runs. */
static rf_status check_metric(rf_history *history, rf_history_filter filter, rf_error *error) {
  char names[1024] = "";
  const char *metric = filter.metric, *key;
  json_t *rows = NULL, *row, *value, *seen = json_object();
  size_t i;
  filter.metric = NULL;
  rf_status status = rf_history_rows(history, &filter, &rows, error);
  json_array_foreach (rows, i, row)
    json_object_foreach (json_object_get(row, "results"), key, value)
      if (json_is_number(value)) json_object_set(seen, key, value);
  json_object_foreach (seen, key, value)
    rf_text_append(names, sizeof names, "%s%s", *names ? ", " : "the runs have ", key);
  if (status == RAFTER_OK && *names && !json_object_get(seen, metric))
    status = RF_FAIL(error, RAFTER_INVALID, names, "no run has the result '%.60s' (--metric)", metric);
  json_decref(rows);
  json_decref(seen);
  return status;
}

static rf_status best(rf_history *history, const rf_options *o, const rafter_sink *sink, rf_error *error) {
  rf_history_filter filter = filter_of(o);
  json_t *rows = NULL, *sorted, *others;
  size_t count;
  char command[32];
  filter.metric = rf_options_text(o, "metric");
  if (strspn(filter.metric, "abcdefghijklmnopqrstuvwxyz_0123456789") != strlen(filter.metric))
    return RF_FAIL(error, RAFTER_INVALID, "for example --metric tokens_per_second or --metric loss",
                   "--metric is not the name of a result (got %.60s)", filter.metric);
  RF_TRY(check_metric(history, filter, error));
  RF_TRY(rf_history_rows(history, &filter, &rows, error));
  others = json_object();
  keep_one_command(rows, command, others);
  count = json_array_size(rows);
  json_t **all = calloc(count + 1, sizeof *all);
  for (size_t i = 0; all && i < count; i++) all[i] = json_array_get(rows, i);
  if (all) qsort_r(all, count, sizeof *all, better_first, (void *)(uintptr_t)filter.metric);
  sorted = json_array();
  int64_t limit = rf_options_int(o, "limit");
  for (size_t i = 0; all && i < count; i++) json_array_append(sorted, all[i]);
  free(all);
  json_decref(rows);
  if (!count) rf_say(sink, "no finished run has the result %s\n", filter.metric);
  else {
    say_rows(sink, sorted, limit, filter.metric);
    say_others(sink, command, others, filter.metric);
  }
  while (limit && (int64_t)json_array_size(sorted) > limit)
    json_array_remove(sorted, json_array_size(sorted) - 1);
  rf_put_json(sink, json_pack("{ss ss ss ss so so}", "rafter", RF_VERSION, "command", "runs", "metric",
                              filter.metric, "of", command, "others", others, "runs", sorted));
  return RAFTER_OK;
}

static const struct {
  const char *name;
  int arguments;
  rf_status (*run)(rf_history *history, const rf_options *o, const rafter_sink *sink, rf_error *error);
} VERBS[] = {{"list", 0, list}, {"show", 1, show}, {"compare", 2, compare}, {"best", 0, best}};

static rf_status rf_command_runs(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const rf_options *o = job->options;
  const char *verb = rf_options_argument_count(o) ? rf_options_argument(o, 0) : "list";
  if (!strcmp(verb, "rm") && rf_options_argument_count(o) > 1) return rf_runs_remove(o, sink, error);
  if (!strcmp(verb, "rm"))
    return RF_FAIL(error, RAFTER_INVALID, "`rafter runs list` lists the runs",
                   "runs rm needs a run: a number, a name or a folder (got none)");
  for (size_t i = 0; i < sizeof VERBS / sizeof *VERBS; i++) {
    rf_history *history = NULL;
    int given = rf_options_argument_count(o) ? rf_options_argument_count(o) - 1 : 0;
    if (strcmp(VERBS[i].name, verb)) continue;
    if (given != VERBS[i].arguments)
      return RF_FAIL(
          error, RAFTER_INVALID, "`rafter runs list`, `show RUN`, `compare A B`, `best --metric NAME`",
          "runs %s takes %d run%s (got %d)", verb, VERBS[i].arguments, rf_plural(VERBS[i].arguments), given);
    RF_TRY(rf_history_open(rf_runs_root(), false, &history, error));
    rf_status status = VERBS[i].run(history, o, sink, error);
    rf_history_close(history);
    return status;
  }
  return RF_FAIL(error, RAFTER_INVALID, "use list, show, compare, best or rm",
                 "runs has no subcommand '%.60s'", verb);
}

static const rf_option RUNS[] = {
    RF_WORDS("model", TEXT, "TEXT", NULL, "Filter (list, best)", "only runs whose model name contains TEXT"),
    RF_WORDS("machine", TEXT, "TEXT", NULL, "Filter (list, best)",
             "only runs whose machine name contains TEXT"),
    RF_WORDS("of", TEXT, "COMMAND", NULL, "Filter (list, best)", "only runs of this command, such as train"),
    RF_WORDS("metric", TEXT, "NAME", "tokens_per_second", "Filter (list, best)",
             "result to compare by best; smaller is better for losses, seconds and bytes"),
    RF_FLAG("yes", "Removal (rm)", "remove the folders and rows of the runs; without it, only list them"),
    RF_NUMBER("limit", INT, NULL, 0, 1 << 30, "20", "Output", "maximum rows of a table; 0: all"),
    {.name = NULL},
};

const rf_command RF_COMMAND_RUNS = {
    RF_COMMAND_HEAD("runs", "list|show|compare|best|rm [RUN ...]", 0, 1000, "Look",
                    "List the runs of this folder, show one, compare two, find the best, or remove some."),
    .options = {RF_TABLE(RUNS), RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"runs", "runs compare 3 4 # what differs in options, speed and loss",
                 "runs best --metric val_loss --model gpt2", "runs rm 3 runs/first --yes # remove two runs"},
    .run = rf_command_runs};
