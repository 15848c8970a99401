/* compare.c - see compare.h. A row compares an op or tensor of plan A with the same op or tensor of
 * plan B. Ops are matched by name. A further row sums all ops that have the same name in different
 * layers ("block.*"). */
#define _GNU_SOURCE
#include "report/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "report/model.h"
#include "report/parts.h"
#include "report/summary.h"
#include "report/thin.h"

static const char ARROW[] = " \u2192 "; /* the text between the names of kernel A and kernel B */

/* Options that do not change a run's work. */
static const char *const SILENT[] = {"command", "out", "json", "quiet", "verbose", "config", "trace"};

/* ---- options --------------------------------------------------------------------------------- */

static bool is_silent(const char *name) {
  for (size_t i = 0; i < sizeof SILENT / sizeof *SILENT; i++)
    if (!strcmp(SILENT[i], name)) return true;
  return false;
}

static void put_difference(json_t *list, const char *name, json_t *a, json_t *b) {
  if (is_silent(name) || (a && b && json_equal(a, b))) return;
  json_array_append_new(list, json_pack("{ss sO? sO?}", "name", name, "a", a, "b", b));
}

json_t *rf_report_options_that_differ(const json_t *a, const json_t *b) {
  json_t *list = json_array(), *value;
  const char *name;
  json_object_foreach ((json_t *)a, name, value) put_difference(list, name, value, json_object_get(b, name));
  json_object_foreach ((json_t *)b, name, value)
    if (!json_object_get(a, name)) put_difference(list, name, NULL, value);
  return list;
}

/* Returns the options of the run. If `settings` is true, or if the plan was never run, returns the
 * plan's settings. */
static const json_t *options_of(const json_t *entry, bool settings) {
  const json_t *options = json_object_get(json_object_get(entry, "run"), "options");
  return options && !settings ? options : json_object_get(json_object_get(entry, "plan"), "settings");
}

/* ---- ops and tensors ------------------------------------------------------------------------- */

/* Adds the time and bytes of an op or tensor to the row `name`. `side`: plan "a" or "b". */
static json_t *add_to(json_t *rows, const char *name, const char *side, double seconds, double bytes) {
  json_t *row = json_object_get(rows, name);
  char key[32];
  if (!row) {
    row = json_pack("{ss}", "name", name);
    json_object_set_new(rows, name, row);
  }
  const struct {
    const char *what;
    double value;
  } numbers[] = {{"count", 1}, {"seconds", seconds}, {"bytes", bytes}};
  for (size_t i = 0; i < 3; i++) {
    snprintf(key, sizeof key, "%s_%s", side, numbers[i].what);
    json_object_set_new(row, key, json_real(rf_json_number_at(row, key) + numbers[i].value));
  }
  return row;
}

/* Sets the op and the kernel of a row. If A and B use different kernels, the row names both
 * kernels. A row for all layers names the kernels of the first op. */
static void say_op(json_t *row, const json_t *planned, const char *side) {
  const char *kernel = rf_json_text_at(planned, "kernel"), *other = rf_json_text_at(row, "kernel");
  char both[160];
  if (!json_object_get(row, "op"))
    json_object_set_new(row, "op", json_string(rf_json_text_at(planned, "op")));
  if (!json_object_get(row, "kernel")) json_object_set_new(row, "kernel", json_string(kernel));
  else if (!strcmp(side, "b") && strcmp(kernel, other) && !strstr(other, ARROW)) {
    snprintf(both, sizeof both, "%.70s%s%.70s", other, ARROW, kernel);
    json_object_set_new(row, "kernel", json_string(both));
  }
}

/* Returns the measurements of the plan `name` in an entry, or NULL. */
static const json_t *measured_pass(const json_t *entry, const char *name) {
  const json_t *pass = rf_report_pass_of(entry, name);
  return rf_json_number_at(pass, "count") > 0 ? pass : NULL;
}

static void add_ops(json_t *each, json_t *kinds, const json_t *entry, const char *plan_name, const char *side,
                    bool measured) {
  const json_t *plan = rf_report_plan_of(entry, plan_name),
               *pass = measured ? measured_pass(entry, plan_name) : NULL, *ops = json_object_get(plan, "ops"),
               *op;
  double per = rf_report_timed(pass);
  char kind[160];
  size_t i;
  json_array_foreach (pass ? json_object_get(pass, "ops") : ops, i, op) {
    const json_t *planned = pass ? json_array_get(ops, (size_t)rf_json_number_at(op, "id")) : op;
    double calls = rf_json_number_at(op, "calls") / per, seconds = calls * rf_json_number_at(op, "seconds"),
           bytes = calls * rf_json_number_at(planned, "bytes");
    if (!planned) continue;
    rf_report_kind_name(rf_json_text_at(planned, "name"), kind);
    say_op(add_to(each, rf_json_text_at(planned, "name"), side, seconds, bytes), planned, side);
    say_op(add_to(kinds, kind, side, seconds, bytes), planned, side);
  }
}

static void add_tensors(json_t *kinds, const json_t *plan, const char *side) {
  const json_t *row;
  size_t i;
  json_array_foreach (json_object_get(json_object_get(plan, "memory"), "largest"), i, row)
    add_to(kinds, rf_json_text_at(row, "name"), side, 0, rf_json_number_at(row, "bytes"));
}

typedef struct difference {
  json_t *row;
  double size;
} difference;
static int larger_first(const void *x, const void *y) {
  double a = ((const difference *)x)->size, b = ((const difference *)y)->size;
  return (a < b) - (a > b);
}

/* Lists the rows that differ between A and B, the largest difference first. Frees `rows`. */
static json_t *sorted(json_t *rows, bool by_bytes) {
  json_t *list = json_array(), *row;
  const char *name;
  size_t count = 0;
  difference *all = calloc(json_object_size(rows) + 1, sizeof *all);
  json_object_foreach (rows, name, row) {
    double seconds = rf_json_number_at(row, "b_seconds") - rf_json_number_at(row, "a_seconds"),
           bytes = rf_json_number_at(row, "b_bytes") - rf_json_number_at(row, "a_bytes");
    if (!all || (seconds == 0 && bytes == 0 &&
                 rf_json_number_at(row, "a_count") == rf_json_number_at(row, "b_count")))
      continue;
    json_object_set_new(row, "seconds", json_real(seconds));
    json_object_set_new(row, "bytes", json_real(bytes));
    if (!strstr(rf_json_text_at(row, "kernel"), ARROW)) json_object_del(row, "kernel");
    all[count++] = (difference){row, fabs(by_bytes ? bytes : seconds)};
  }
  if (all) qsort(all, count, sizeof *all, larger_first);
  for (size_t i = 0; i < count; i++) json_array_append(list, all[i].row);
  free(all);
  json_decref(rows);
  return list;
}

/* ---- one comparison -------------------------------------------------------------------------- */

/* Waiting for a core is reported if it takes at least this fraction of the threads' time. */
#define OTHERS_WORTH 0.02
/* Two ratios of A to B contradict each other if they differ by more than this factor. */
#define ANOTHER 1.5

static json_t *side_json(const json_t *entry, const char *pass_name, bool measured) {
  const json_t *plan = rf_report_plan_of(entry, pass_name),
               *pass = measured ? measured_pass(entry, pass_name) : NULL,
               *memory = json_object_get(plan, "memory"), *work = json_object_get(plan, "work");
  double count = rf_json_number_at(pass, "count"),
         predicted = rf_json_number_at(json_object_get(plan, "time"), "seconds");
  double seconds = count > 0 && rf_json_number_at(pass, "seconds") > 0
                       ? rf_json_number_at(pass, "seconds") / count
                       : predicted;
  json_t *json = json_pack(
      "{ss ss sb sf sf sO? sO? sO? sO?}", "id", rf_json_text_at(entry, "id"), "walk",
      pass_name ? pass_name : "", "measured", count > 0, "seconds", seconds, "predicted_seconds", predicted,
      "peak_bytes", json_object_get(memory, "peak_bytes"), "by_class", json_object_get(memory, "by_class"),
      "flops", json_object_get(work, "hardware_flops"), "bytes", json_object_get(work, "bytes"));
  if (count > 0 && rf_json_number_at(pass, "tokens") > 0)
    json_object_set_new(json, "tokens_per_second",
                        json_real(rf_json_number_at(pass, "tokens") / rf_json_number_at(pass, "seconds")));
  else if (rf_json_number_at(json_object_get(plan, "rate"), "tokens_per_second") > 0)
    json_object_set(json, "tokens_per_second",
                    json_object_get(json_object_get(plan, "rate"), "tokens_per_second"));
  if (count > 0) {
    if (pass_name && !strcmp(pass_name, "train"))
      json_object_set_new(json, "step_seconds", rf_report_step_seconds(entry));
    json_object_set_new(json, "others", json_real(rf_report_others_part(entry)));
    const json_t *op;
    double least = 0;
    size_t i;
    json_array_foreach (json_object_get(pass, "ops"), i, op)
      least +=
          rf_json_number_at(op, "calls") / rf_report_timed(pass) * rf_json_number_at(op, "least_seconds");
    json_object_set_new(json, "least_seconds", json_real(least));
  }
  if (json_object_get(plan, "digest")) json_object_set(json, "digest", json_object_get(plan, "digest"));
  if (json_object_get(entry, "replanned_seconds"))
    json_object_set(json, "replanned_seconds", json_object_get(entry, "replanned_seconds"));
  if (json_is_false(json_object_get(entry, "replans"))) json_object_set_new(json, "replans", json_false());
  if (json_object_get(entry, "of")) json_object_set(json, "of", json_object_get(entry, "of"));
  json_object_set_new(json, "machine",
                      json_string(rf_json_text_at(json_object_get(plan, "machine"), "name")));
  return json;
}

enum { TEXT = 2400 }; /* maximum bytes of a sentence with its reasons for doubt */

/* Returns B's number `key` divided by A's number `key`. 0: one of the numbers is unknown. */
static double ratio_of(const json_t *a, const json_t *b, const char *key) {
  return rf_json_number_at(a, key) > 0 ? rf_json_number_at(b, key) / rf_json_number_at(a, key) : 0;
}

/* Appends reasons why a difference of measured times may not be real. Possible reasons are that A
 * and B ran the same plan on the same machine, that steps vary by as much as the difference, or
 * that other programs used the cores. The text has the names of A and B, so swapping A and B does
 * not change the text. */
static void add_doubts(char text[TEXT], const json_t *a, const json_t *b) {
  const json_t *x = json_object_get(a, "step_seconds"), *y = json_object_get(b, "step_seconds");
  const char *digest = rf_json_text_at(a, "digest"), *id_a = rf_json_text_at(a, "id"),
             *id_b = rf_json_text_at(b, "id");
  char s[32], t[32], u[32];
  double median_a = rf_json_number_at(x, "median"), median_b = rf_json_number_at(y, "median"),
         spread_a = rf_json_number_at(x, "p90") - median_a, spread_b = rf_json_number_at(y, "p90") - median_b,
         others_a = rf_json_number_at(a, "others"), others_b = rf_json_number_at(b, "others"),
         means = ratio_of(a, b, "seconds"), fast = ratio_of(a, b, "least_seconds");
  bool of_a = spread_a >= spread_b; /* true: the steps of `a` vary more than the steps of `b` */
  bool same = *digest && !strcmp(digest, rf_json_text_at(b, "digest")) &&
              !strcmp(rf_json_text_at(a, "machine"), rf_json_text_at(b, "machine")) &&
              rf_json_number_at(a, "seconds") != rf_json_number_at(b, "seconds");
  if (same)
    rf_text_append(text, TEXT, "Both ran the same plan: the difference is noise or due to other programs.");
  else if (median_a > 0 && median_b > 0 && median_a != median_b &&
           fabs(median_a - median_b) <= fmax(spread_a, spread_b))
    rf_text_append(text, TEXT,
                   "This is not certain: the median steps take %s and %s, and the steps of %.80s vary by as "
                   "much (the slowest tenth take %s or more).",
                   rf_text_seconds(median_a, s), rf_text_seconds(median_b, t), of_a ? id_a : id_b,
                   rf_text_seconds(rf_json_number_at(of_a ? x : y, "p90"), u));
  if (fmax(others_a, others_b) > OTHERS_WORTH)
    rf_text_append(
        text, TEXT,
        "%sOther programs used the cores for at least %.0f %% of the time of %.80s and %.0f %% of %.80s.",
        *text ? " " : "", 100 * others_a, id_a, 100 * others_b, id_b);
  /* If the fastest calls contradict the means, other programs cause most of the difference. */
  if (!same && means > 0 && fast > 0 && fabs(log(means / fast)) > log(ANOTHER))
    rf_text_append(text, TEXT,
                   "%sThis is not certain: the fastest calls add up to %s in %.80s and %s in %.80s; other "
                   "programs cause the remaining difference.",
                   *text ? " " : "", rf_text_seconds(rf_json_number_at(a, "least_seconds"), s), id_a,
                   rf_text_seconds(rf_json_number_at(b, "least_seconds"), t), id_b);
}

/* Appends a doubt about calibrations. The machine may have been calibrated again after the run.
 * Predictions of changes then use the new calibration. */
static void add_calibration(char text[TEXT], const json_t *a, const json_t *b) {
  const json_t *run = *rf_json_text_at(b, "of") ? a : *rf_json_text_at(a, "of") ? b : NULL;
  const char *id = rf_json_text_at(run, "id"), *blank = *text ? " " : "";
  double seconds = rf_json_number_at(run, "replanned_seconds");
  char s[32];
  if (!run || strcmp(id, rf_json_text_at(run == a ? b : a, "of"))) return;
  if (json_is_false(json_object_get(run, "replans")))
    rf_text_append(
        text, TEXT,
        "%s%.80s ran with another plan than this program makes now; this is part of the difference.", blank,
        id);
  else if (seconds > 0)
    rf_text_append(
        text, TEXT,
        "%sThe machine was calibrated again after %.80s ran: its plan is now predicted to take %s.", blank,
        id, rf_text_seconds(seconds, s));
}

static void add_sentence(char text[TEXT], const json_t *a, const json_t *b, bool predicted,
                         const char *doubt) {
  double before = rf_json_number_at(a, "seconds"), after = rf_json_number_at(b, "seconds"),
         memory = rf_json_number_at(b, "peak_bytes") - rf_json_number_at(a, "peak_bytes");
  char times[48], m[32];
  bool far = after >= 2 * before || before >= 2 * after; /* "11.7 x faster" needs another verb */
  if (before > 0 && after > 0) rf_text_speed(before, after, times);
  else snprintf(times, sizeof times, "the same time");
  rf_text_append(text, TEXT, "B %s %s and %s%s%s memory.%s%s",
                 far         ? predicted ? "is predicted to be" : "is"
                 : predicted ? "is predicted to take"
                             : "takes",
                 times, far ? "takes " : "", memory ? rf_text_bytes(fabs(memory), m) : "the same",
                 memory < 0   ? " less"
                 : memory > 0 ? " more"
                              : "",
                 *doubt ? " " : "", doubt);
}

static json_t *classes_json(const json_t *a, const json_t *b) {
  json_t *rows = json_object(), *value;
  const char *name;
  const json_t *sides[] = {json_object_get(a, "by_class"), json_object_get(b, "by_class")};
  for (int k = 0; k < 2; k++)
    json_object_foreach ((json_t *)sides[k], name, value)
      if (json_number_value(value) > 0) add_to(rows, name, k ? "b" : "a", 0, json_number_value(value));
  return sorted(rows, true);
}

/* Compares the plans named `pass` of two entries. a_ran, b_ran: use measured times. one: only one
 * of the two entries was measured. */
static json_t *compare(const json_t *a, bool a_ran, const json_t *b, bool b_ran, const char *pass, bool one) {
  bool runs = json_object_get(a, "run") && json_object_get(b, "run");
  json_t *each = json_object(), *kinds = json_object(), *tensors = json_object();
  json_t *left = side_json(a, pass, a_ran), *right = side_json(b, pass, b_ran);
  add_ops(each, kinds, a, pass, "a", a_ran);
  add_ops(each, kinds, b, pass, "b", b_ran);
  add_tensors(tensors, rf_report_plan_of(a, pass), "a");
  add_tensors(tensors, rf_report_plan_of(b, pass), "b");
  char doubt[TEXT] = "", sentence[TEXT] = "";
  if (a_ran && b_ran) add_doubts(doubt, left, right);
  else if (one)
    rf_text_append(doubt, TEXT, "Only one of the two sides was measured, so both times are predictions.");
  add_calibration(doubt, left, right);
  add_sentence(sentence, left, right, !a_ran && !b_ran, doubt);
  json_t *classes = classes_json(left, right);
  return json_pack("{so so so so so so so ss ss}", "a", left, "b", right, "options",
                   rf_report_options_that_differ(options_of(a, !runs), options_of(b, !runs)), "ops",
                   sorted(each, false), "kinds", sorted(kinds, false), "tensors", sorted(tensors, true),
                   "classes", classes, "sentence", sentence, "doubt", doubt);
}

static const char *pass_name(const json_t *entry, size_t i) {
  const json_t *plan = json_object_get(entry, "plan");
  return json_string_value(
      json_object_get(i ? json_array_get(json_object_get(plan, "plans"), i - 1) : plan, "name"));
}
static bool has_pass(const json_t *entry, const char *pass) {
  const json_t *plan = rf_report_plan_of(entry, pass);
  const char *name = json_string_value(json_object_get(plan, "name"));
  return plan && (!pass || !name || !strcmp(name, pass));
}

bool rf_report_comparable(const json_t *a, const json_t *b) {
  const char *pass = pass_name(a, 0) ? pass_name(a, 0) : pass_name(b, 0);
  return has_pass(a, pass) && has_pass(b, pass);
}

json_t *rf_report_compare(const json_t *a, const json_t *b) {
  const char *pass = json_string_value(json_object_get(json_object_get(a, "plan"), "name"));
  if (!pass) pass = json_string_value(json_object_get(json_object_get(b, "plan"), "name"));
  /* A measured time is never compared with a prediction, because the prediction's error would look
   * like a saving. */
  bool of_a = measured_pass(a, pass), of_b = measured_pass(b, pass);
  return compare(a, of_a && of_b, b, of_a && of_b, pass, of_a != of_b);
}

/* ---- all pairs ------------------------------------------------------------------------------- */

/* With up to ALL_PASSES entries, all pairs of entries are compared in all plans. With up to
 * ALL_PAIRS entries, all pairs are compared in their first plan. With more entries, only the first
 * entry is compared with the next FIRST_PAIRS entries. */
enum { ALL_PASSES = 3, ALL_PAIRS = 8, FIRST_PAIRS = 32 };

/* Appends a comparison. Each list of the comparison keeps at most `ops` rows (0: all rows). */
static void append_cut(json_t *list, json_t *comparison, size_t ops) {
  static const char *const lists[] = {"ops", "kinds", "tensors"};
  for (size_t i = 0; ops && i < sizeof lists / sizeof *lists; i++) {
    json_t *rows = json_object_get(comparison, lists[i]);
    while (json_array_size(rows) > ops) json_array_remove(rows, json_array_size(rows) - 1);
  }
  json_array_append_new(list, comparison);
}

json_t *rf_report_comparisons(const json_t *runs, size_t rows) {
  json_t *list = json_array();
  size_t count = json_array_size(runs);
  for (size_t i = 0; i < count && (i == 0 || count <= ALL_PAIRS); i++)
    for (size_t j = i + 1; j < count && j <= FIRST_PAIRS; j++) {
      const json_t *a = json_array_get(runs, i), *b = json_array_get(runs, j),
                   *named = pass_name(a, 0) ? a : b;
      for (size_t w = 0; w <= json_array_size(json_object_get(json_object_get(named, "plan"), "plans"));
           w++) {
        const char *pass = pass_name(named, w);
        if (w && count > ALL_PASSES) break;
        if (!has_pass(a, pass) || !has_pass(b, pass) || (w && (!pass_name(a, 0) || !pass_name(b, 0))))
          continue;
        bool both = measured_pass(a, pass) && measured_pass(b, pass),
             one = (measured_pass(a, pass) != NULL) != (measured_pass(b, pass) != NULL);
        if (both) append_cut(list, compare(a, true, b, true, pass, false), rows);
        append_cut(list, compare(a, false, b, false, pass, one), rows);
      }
    }
  for (size_t i = 0; i < count && i <= FIRST_PAIRS; i++) { /* compare each run with its own plan */
    const json_t *entry = json_array_get(runs, i);
    for (size_t w = 0; w <= json_array_size(json_object_get(json_object_get(entry, "plan"), "plans")); w++)
      if (measured_pass(entry, pass_name(entry, w)))
        append_cut(list, compare(entry, false, entry, true, pass_name(entry, w), false), rows);
  }
  return list;
}

/* ---- as tables ------------------------------------------------------------------------------- */

static void print_line(FILE *out, const char *what, char *(*text)(double, char[32]), double a, double b) {
  char x[32], y[32], z[32], change[32];
  fprintf(out, "%-50.50s %14s %14s %s%s", what, text(a, x), text(b, y), b >= a ? "+" : "-",
          text(fabs(b - a), z));
  if (a > 0 && b > 0) fprintf(out, " (%s)", rf_text_ratio(a, b, change));
  fputc('\n', out);
}

/* Prints an op that only one of the two plans has. */
static void print_half(FILE *out, const json_t *row) {
  const char *sides[] = {"a_count", "b_count"}, *times[] = {"a_seconds", "b_seconds"};
  char text[32];
  fprintf(out, "%-50.50s", rf_json_text_at(row, "name"));
  for (int k = 0; k < 2; k++)
    fprintf(out, " %14s",
            json_object_get(row, sides[k]) ? rf_text_seconds(rf_json_number_at(row, times[k]), text) : "-");
  fputc('\n', out);
}

/* Prints the rows whose bytes differ, the largest difference first. */
static json_t *by_bytes_of(const json_t *list) {
  json_t *rows = json_object(), *row;
  size_t i;
  json_array_foreach ((json_t *)list, i, row)
    if (rf_json_number_at(row, "bytes") != 0) json_object_set(rows, rf_json_text_at(row, "name"), row);
  return sorted(rows, true);
}

static void print_rows(FILE *out, const char *title, const json_t *list, bool by_bytes, int most) {
  const json_t *row;
  size_t i, count = json_array_size(list);
  if (!count) return;
  fprintf(out, "\n%-50s %14s %14s\n", title, "A", "B");
  json_array_foreach ((json_t *)list, i, row) {
    if ((int)i >= most) {
      fprintf(out, "... and %zu more\n", count - i);
      break;
    }
    if (by_bytes)
      print_line(out, rf_json_text_at(row, "name"), rf_text_bytes, rf_json_number_at(row, "a_bytes"),
                 rf_json_number_at(row, "b_bytes"));
    else if (json_object_get(row, "a_count") && json_object_get(row, "b_count"))
      print_line(out, rf_json_text_at(row, "name"), rf_text_seconds, rf_json_number_at(row, "a_seconds"),
                 rf_json_number_at(row, "b_seconds"));
    else print_half(out, row);
  }
}

char *rf_report_compare_text(const json_t *comparison, int rows) {
  const json_t *a = json_object_get(comparison, "a"), *b = json_object_get(comparison, "b"), *row;
  char *text = NULL;
  size_t bytes = 0, i;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return NULL;
  fprintf(out, "A: %s%s\nB: %s%s\n", rf_json_text_at(a, "id"),
          json_is_true(json_object_get(a, "measured")) ? "" : " (predicted)", rf_json_text_at(b, "id"),
          json_is_true(json_object_get(b, "measured")) ? "" : " (predicted)");
  if (json_array_size(json_object_get(comparison, "options")))
    fprintf(out, "\n%-50s %14s %14s\n", "options that differ", "A", "B");
  json_array_foreach (json_object_get(comparison, "options"), i, row) {
    char *x = rf_json_text(json_object_get(row, "a"), 0), *y = rf_json_text(json_object_get(row, "b"), 0);
    fprintf(out, "%-50s %14s %14s\n", rf_json_text_at(row, "name"), x ? x : "", y ? y : "");
    free(x);
    free(y);
  }
  fputc('\n', out);
  print_line(out, "time of a step", rf_text_seconds, rf_json_number_at(a, "seconds"),
             rf_json_number_at(b, "seconds"));
  print_line(out, "tokens per second", rf_text_count, rf_json_number_at(a, "tokens_per_second"),
             rf_json_number_at(b, "tokens_per_second"));
  print_line(out, "memory", rf_text_bytes, rf_json_number_at(a, "peak_bytes"),
             rf_json_number_at(b, "peak_bytes"));
  print_rows(out, "time by op, all layers", json_object_get(comparison, "kinds"), false, rows);
  json_t *moved = by_bytes_of(json_object_get(comparison, "kinds"));
  print_rows(out, "bytes moved by op, all layers", moved, true, rows);
  json_decref(moved);
  print_rows(out, "memory at the peak, all layers", json_object_get(comparison, "tensors"), true, rows);
  fprintf(out, "\n%s\n", rf_json_text_at(comparison, "sentence"));
  fclose(out);
  return text;
}
