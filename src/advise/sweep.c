/* sweep.c - `rafter plan --sweep`: makes one plan for each value of an option, and finds cliffs
 * of time and memory with their causes. */
#include "advise/set.h"
#include "advise/vary.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Thresholds. Growth between two rows is a cliff if two conditions hold. First, the growth is
 * STANDS_OUT times as steep as between the neighbouring rows. Second, the growth is the fraction
 * WORTH_SAYING of the first row, or more. FALLS and SCALES are the smallest reported drops of the
 * speed and of the tokens per chip. */
static const double STANDS_OUT = 1.5, WORTH_SAYING = 0.02, FALLS = 0.2, SCALES = 0.1;

static void row_of(rf_sweep_row *row, const json_t *plan) {
  row->bytes = rf_json_at(plan, "memory", "peak_bytes");
  row->seconds = rf_json_at(plan, "time", "seconds");
  row->rate = rf_json_at(plan, "rate", "tokens_per_second");
  row->speed = row->seconds > 0 ? rf_json_at(plan, "work", "model_flops") / row->seconds : 0;
  row->chips = rf_json_at(plan, "machine", "chips");
  row->waits = row->seconds > 0 ? rf_json_at(plan, "time", "network_seconds") / row->seconds : 0;
  row->fits = rf_json_fits(plan);
  row->room = rf_json_at(plan, "memory", "capacity_bytes") - rf_json_at(plan, "memory", "reserve_bytes") -
              rf_json_at(plan, "memory", "margin_bytes");
}

/* The factor by which bytes or seconds should grow from row i - 1 to i, by the earlier trend. */
static double growth(const rf_sweep_row *row, int i, bool memory) {
#define AT(k) (memory ? row[k].bytes : row[k].seconds)
  double before = AT(i - 1), step = row[i].x - row[i - 1].x, last = i > 1 ? row[i - 1].x - row[i - 2].x : 0;
  if (isfinite(step) && last > 0 && before > 0) return 1 + (before - AT(i - 2)) / last * step / before;
  return memory || !(row[i - 1].rate > 0) || !(before > 0)
             ? 1
             : row[i].rate * row[i].seconds / (row[i - 1].rate * before);
}

/* The growth from row i - 1 to `i` above the neighbours' trend, as a fraction. 0: no cliff. */
static double step_of(const rf_sweep_row *row, int count, int i, bool memory) {
  double slope[3] = {0}, most = 0;
  for (int k = -1; k <= 1; k++) {
    int at = i + k;
    if (at < 1 || at >= count || !row[at].planned || !row[at - 1].planned) continue;
    if (!(row[at].x > row[at - 1].x)) return 0;
    slope[k + 1] = (AT(at) - AT(at - 1)) / (row[at].x - row[at - 1].x);
    if (k && slope[k + 1] > most) most = slope[k + 1];
  }
  double excess = (slope[1] - most) * (row[i].x - row[i - 1].x) / AT(i - 1);
  return count > 2 && slope[1] > STANDS_OUT * most && excess > WORTH_SAYING ? excess : 0;
#undef AT
}

static void add_cliff(json_t *cliffs, const char *at, const char *what, double size, const char *kind,
                      const char *cause) {
  json_array_append_new(cliffs, json_pack("{ss ss sf ss ss}", "at", at, "what", what, "size", size, "kind",
                                          kind, "cause", cause));
}

/* Reports a row if it has more chips than the row before, and each chip computes clearly fewer
 * tokens. */
static void find_kink(json_t *cliffs, const rf_sweep_row *row, int i) {
  char text[400];
  double each = row[i].rate / row[i].chips, before = row[i - 1].rate / row[i - 1].chips;
  if (!(row[i].chips > row[i - 1].chips) || !(before > 0) || each > (1 - SCALES) * before) return;
  snprintf(text, sizeof text,
           "tokens per second and chip fall to %.0f %% of those with %.0f chip%s; the network takes %.0f %% "
           "of the step instead of %.0f %%",
           100 * each / before, row[i - 1].chips, rf_plural((int64_t)row[i - 1].chips), 100 * row[i].waits,
           100 * row[i - 1].waits);
  add_cliff(cliffs, row[i].value, "scaling", 1 - each / before, "topology", text);
}

/* True if the rows `from` and `to` belong to one scale: both values are numbers, or are one machine
 * with different numbers of chips. A fall of the rate between other values, such as dtypes, is not
 * a cliff. */
static bool ordered(const rf_sweep_row *from, const rf_sweep_row *to) {
  const size_t name = strcspn(to->value, ":*");
  if (isfinite(from->x) && isfinite(to->x)) return true;
  return from->chips != to->chips && strcspn(from->value, ":*") == name &&
         !strncmp(from->value, to->value, name);
}

/* Returns the cliffs among the rows of a sweep. */
static json_t *find_cliffs(const char *name, const rf_sweep_row *row, int count) {
  json_t *cliffs = json_array();
  char text[400], a[32];
  for (int i = 1; i < count; i++) {
    if (!row[i].planned || !row[i - 1].planned) continue;
    const bool steps = ordered(&row[i - 1], &row[i]);
    if (!steps && !strcmp(name, "on")) continue; /* two machines have no common limits */
    double time = step_of(row, count, i, false), memory = step_of(row, count, i, true);
    /* Fewer tokens per second may only mean more work per token. Fewer FLOP/s are a cliff. */
    double fall = row[i - 1].rate > 0 ? 1 - row[i].rate / row[i - 1].rate : 0,
           slower = row[i - 1].speed > 0 ? 1 - row[i].speed / row[i - 1].speed : 0;
    if (slower < fall) fall = slower;
    const char *why = row[i].why_time.text;
    if (time > 0)
      add_cliff(cliffs, row[i].value, "time", time, row[i].why_time.kind,
                *why ? why : "no single op explains it");
    else if (steps && fall > FALLS) {
      snprintf(text, sizeof text, "tokens per second fall by more than a fifth%s%s", *why ? ": " : "", why);
      add_cliff(cliffs, row[i].value, "rate", fall, row[i].why_time.kind, text);
    }
    if (memory > 0)
      add_cliff(cliffs, row[i].value, "memory", memory, row[i].why_memory.kind, row[i].why_memory.text);
    if (row[i - 1].fits && !row[i].fits) {
      snprintf(text, sizeof text, "the first value that does not fit in %s: %s",
               rf_text_bytes(row[i].room, a), row[i].why_memory.text);
      add_cliff(cliffs, row[i].value, "fit", row[i].bytes / row[i].room - 1, row[i].why_memory.kind, text);
    }
    find_kink(cliffs, row, i);
    if (strcmp(row[i].bound, row[i - 1].bound)) {
      snprintf(text, sizeof text, "the step changes from %s-bound to %s-bound", row[i - 1].bound,
               row[i].bound);
      add_cliff(cliffs, row[i].value, "bound", 0, "bound", text);
    }
  }
  return cliffs;
}

/* The phase of the job that explains why row `after` has more seconds (or peak bytes) than row
 * `before`. Returns false if the job has no phases. */
static bool cause_of_phases(const json_t *before, const json_t *after, bool memory, double growth_,
                            rf_cause *cause) {
  const json_t *old = json_object_get(json_object_get(before, "rl"), "phases"), *phase, *worst = NULL;
  const char *key = memory ? "peak_bytes" : "seconds";
  double most = 0, was = 0, is = 0;
  size_t i;
  char a[32], b[32];
  json_array_foreach (json_object_get(json_object_get(after, "rl"), "phases"), i, phase) {
    double left = json_number_value(json_object_get(json_array_get(old, i), key)),
           right = json_number_value(json_object_get(phase, key)),
           excess = memory ? right : right - growth_ * left; /* the largest phase is the peak */
    if (worst && excess <= most) continue;
    worst = phase;
    most = excess;
    was = left;
    is = right;
  }
  if (!worst) return false;
  char *(*text)(double, char[32]) = memory ? rf_text_bytes : rf_text_seconds;
  cause->kind = "phase";
  snprintf(cause->text, sizeof cause->text, "phase %s goes from %s to %s",
           json_string_value(json_object_get(worst, "name")), text(was, a), text(is, b));
  return true;
}

/* Finds why row i differs from the row before it. */
static void explain(rf_sweep_row *row, int i, const rf_plan *before, const rf_plan *plan, const json_t *rows,
                    const json_t *one) {
  const json_t *last = json_array_get(rows, (size_t)i - 1);
  double time = growth(row, i, false), memory = growth(row, i, true);
  if (!cause_of_phases(last, one, false, time, &row[i].why_time))
    row[i].why_time = rf_cause_of_time(before, plan, time);
  if (!cause_of_phases(last, one, true, memory, &row[i].why_memory))
    row[i].why_memory = rf_cause_of_memory(before, plan, memory);
}

static double number_of(const char *text) {
  char *end;
  double x = strtod(text, &end);
  return *text && !*end ? x : NAN;
}

/* Finds one batch for all rows of a sweep over microbatch or accumulate. Without --batch, *batch is
 * a common multiple of the values: the smallest one that is not below the default. 0: no change. */
static rf_status common_batch(const rf_options *o, const char *name, const char *const *values, int count,
                              int64_t *batch, rf_error *error) {
  enum { MAX = 1 << 20 };
  bool micro = !strcmp(name, "microbatch");
  int64_t all = 1, least = 1;
  *batch = 0;
  if ((!micro && strcmp(name, "accumulate") != 0) || rf_options_given(o, "batch") ||
      rf_options_given(o, micro ? "accumulate" : "microbatch"))
    return RAFTER_OK;
  if (rf_options_is_set(o, "batch")) least = rf_options_int(o, "batch");
  for (int i = 0; i < count; i++) {
    int64_t value = strtoll(values[i], NULL, 10);
    if (value > 0) all = all / rf_common_divisor(all, value) * value;
    if (all > MAX)
      return RF_FAIL(error, RAFTER_INVALID, "give --batch, or fewer values",
                     "no batch is a multiple of all values (--sweep %s: expected a common multiple up to %d)",
                     name, (int)MAX);
  }
  *batch = (least + all - 1) / all * all;
  return RAFTER_OK;
}

/* Plans one value. If planning fails, the error goes to `refused`, and the row has no plan. */
static rf_status plan_value(const rf_options *o, const char *name, int64_t batch, rf_sweep_row *row,
                            rafter_plan **plan, json_t **json, rf_error *refused, rf_error *error) {
  rf_options *one = rf_options_copy(o);
  bool chips = !strcmp(name, "chips");
  rf_status status = chips ? rf_set_chips(one, rf_options_text(o, "on"), row->value, error)
                           : rf_options_set(one, name, row->value, error);
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)batch);
  if (status == RAFTER_OK && batch > 0) status = rf_options_set(one, "batch", text, error);
  if (status == RAFTER_OK) {
    rf_status made = rf_plan_of_options(one, plan, refused);
    if (made == RAFTER_OK) status = rf_plan_object(*plan, json, error);
    else if (made == RAFTER_FAILED) {
      status = made;
      if (error) *error = *refused;
    } else
      *json = json_pack("{s{sb} sb ss ss}", "memory", "fits", 0, "fits", 0, "error", refused->message, "hint",
                        refused->hint);
  }
  rf_options_free(one);
  if (status != RAFTER_OK || !*plan) return status;
  row->planned = true;
  row_of(row, *json);
  snprintf(row->bound, sizeof row->bound, "%s",
           json_string_value(json_object_get(json_object_get(*json, "time"), "bound")));
  return RAFTER_OK;
}

/* Prints the price of a million tokens of the whole job, as a column. */
static void say_price(const rafter_sink *sink, const json_t *plan) {
  char text[32];
  double usd = rf_json_at(plan, "cost", "usd_per_million_tokens");
  rf_say(sink, "%9s  ", usd > 0 ? rf_text_figures(usd, 3, text) : "no price");
}

/* The columns of --job serve. The figures are from the highest request rate that the plan sustains.
 * If the plan sustains no rate, the figures are from the lowest rate. */
static void say_serving(const rafter_sink *sink, const json_t *plan) {
  const json_t *best = json_object_get(json_object_get(plan, "serving"), "sustained"),
               *first = json_object_get(best, "ttft_seconds"), *next = json_object_get(best, "tpot_seconds");
  char a[32], b[32], c[32], d[32];
  if (!best) return;
  rf_say(sink, "%10.3g  %10s %10s %10s %10s  ",
         json_number_value(json_object_get(best, "requests_per_second")),
         rf_text_seconds(json_number_value(json_object_get(first, "p50")), a),
         rf_text_seconds(json_number_value(json_object_get(first, "p99")), b),
         rf_text_seconds(json_number_value(json_object_get(next, "p50")), c),
         rf_text_seconds(json_number_value(json_object_get(next, "p99")), d));
  say_price(sink, plan);
  rf_say(sink, "%-8s  ", json_is_true(json_object_get(best, "saturated")) ? "no" : "yes");
}

/* Prints the columns of a simulation of --job rollout. */
static void say_rollout(const rafter_sink *sink, const json_t *plan) {
  const double seconds = rf_json_at(plan, "rollout", "seconds");
  char a[32], b[32];
  if (!(seconds > 0)) return;
  rf_say(sink, "%10s %10s  ", rf_text_seconds(seconds, a),
         rf_text_count(rf_json_at(plan, "rollout", "tokens_per_second"), b));
  say_price(sink, plan);
}

/* Prints notes on rows of jobs that answer prompts. With a low rate of requests or a default batch,
 * machines are partly idle, and their tokens cost more. */
static void say_idle(const rafter_sink *sink, const rf_options *o, const char *name, const json_t *rows) {
  const json_t *row, *rate;
  const char *job = rf_options_text(o, "job");
  size_t i, k;
  int idle = 0;
  const bool machines = !strcmp(name, "on") || !strcmp(name, "chips"),
             answers = !strcmp(job, "serve") || !strcmp(job, "rollout");
  json_array_foreach (rows, i, row) {
    const json_t *rates = json_object_get(json_object_get(row, "serving"), "rates");
    bool saturated = !json_array_size(rates);
    json_array_foreach (rates, k, rate) saturated |= json_is_true(json_object_get(rate, "saturated"));
    idle += !saturated;
  }
  if (idle && rf_options_is_set(o, "rate"))
    rf_say(sink,
           "note: %d of the rows keep%s up with every rate of --rate; at higher rates, their tokens may cost "
           "less. Without --rate, each row has its highest rate.\n",
           idle, idle > 1 ? "" : "s");
  if (machines && answers && !rf_options_given(o, "batch") && !rf_options_given(o, "fit"))
    rf_say(sink,
           "note: all rows have the default of --batch; with --fit, each row has the largest batch that "
           "fits, and tokens may cost less.\n");
}

/* The columns of --fit. The row of a training step has the setting that the search chose. The rows
 * of other jobs have the row's batch and the largest batch, which differ if --batch is given.
 * STEP_BATCH: the batch of a training step without --fit and --batch. This batch grows with the
 * number of chips. */
typedef enum fit_column { NO_FIT, STEP_BATCH, FIT_BATCH, FIT_SETTING } fit_column;

static fit_column column_of(const rf_options *o, const char *name, const char *job) {
  const bool learns = rf_plan_learns(job);
  const bool chips = !strcmp(name, "on") || !strcmp(name, "chips") || !strcmp(name, "mesh");
  if (rf_options_given(o, "fit") || !strcmp(name, "fit")) return learns ? FIT_SETTING : FIT_BATCH;
  return learns && chips && !rf_options_given(o, "batch") ? STEP_BATCH : NO_FIT;
}

static void say_head(const rafter_sink *sink, const char *name, const char *job, fit_column fit) {
  const bool serves = !strcmp(job, "serve"), rolls = !strcmp(job, "rollout");
  rf_say(sink, "%-24s ", name);
  if (fit == STEP_BATCH || fit == FIT_BATCH) rf_say(sink, "%8s ", "batch");
  if (fit == FIT_BATCH) rf_say(sink, "%8s ", "largest");
  rf_say(sink, "%12s %12s %14s  %-3s  ", "memory", serves || rolls ? "decode step" : "time",
         serves || rolls ? "decoded/s" : "tokens/s", "fits");
  if (serves)
    rf_say(sink, "%10s  %10s %10s %10s %10s  %9s  %s  ", "requests/s", "first p50", "first p99", "token p50",
           "token p99", "$/Mtok", "keeps up");
  if (rolls) rf_say(sink, "%10s %10s  %9s  ", "rollout", "tokens/s", "$/Mtok");
  rf_say(sink, fit == FIT_SETTING ? "%-8s  chosen by --fit\n" : "%s\n", "bound");
}

/* "bf16, remat none, 1 x 8, fsdp=8, tensor=2" */
static void say_setting(const rafter_sink *sink, const json_t *plan) {
  const json_t *s = json_object_get(plan, "settings"), *chips;
  const char *axis;
  rf_say(sink, "  %s, remat %s, %lld x %lld", json_string_value(json_object_get(s, "dtype")),
         json_string_value(json_object_get(s, "remat")),
         (long long)json_integer_value(json_object_get(s, "accumulate")),
         (long long)json_integer_value(json_object_get(s, "microbatch")));
  json_object_foreach (json_object_get(s, "mesh"), axis, chips)
    if (strcmp(axis, "zero")) rf_say(sink, ", %s=%lld", axis, (long long)json_integer_value(chips));
}

static void say_row(const rafter_sink *sink, const rf_sweep_row *row, const json_t *plan, fit_column fit,
                    const rf_error *refused) {
  char a[32], b[32], c[32];
  if (!row->planned) {
    rf_say(sink, "%-24s ", row->value);
    if (fit == STEP_BATCH || fit == FIT_BATCH) rf_say(sink, "%8s ", "-");
    if (fit == FIT_BATCH) rf_say(sink, "%8s ", "-");
    rf_say(sink, "%12s %12s %14s  no   %s\n", "-", "-", "-", refused->message);
    return;
  }
  const json_t *batch = json_object_get(json_object_get(plan, "settings"), "batch"),
               *largest = json_object_get(json_object_get(plan, "largest_batch"), "batch");
  rf_say(sink, "%-24s ", row->value);
  if (fit == STEP_BATCH || fit == FIT_BATCH) rf_say(sink, "%8lld ", (long long)json_integer_value(batch));
  if (fit == FIT_BATCH) rf_say(sink, "%8lld ", (long long)json_integer_value(largest));
  rf_say(sink, "%12s %12s %14s  %-3s  ", rf_text_bytes(row->bytes, a), rf_text_seconds(row->seconds, b),
         rf_text_count(row->rate, c), row->fits ? "yes" : "no");
  say_serving(sink, plan);
  if (!rf_plan_learns(json_string_value(json_object_get(plan, "job")))) say_rollout(sink, plan);
  rf_say(sink, fit == FIT_SETTING ? "%-8s" : "%s", row->bound);
  if (fit == FIT_SETTING) say_setting(sink, plan);
  rf_say(sink, "\n");
}

/* The title of the picture has the model and machine of the last planned row. */
static rf_status plot(const rf_options *o, const char *name, const rf_sweep_row *row, int count,
                      const json_t *rows, const json_t *cliffs, rf_error *error) {
  int planned = count - 1;
  char title[256];
  while (planned > 0 && !row[planned].planned) planned--;
  const json_t *plan = json_array_get(rows, (size_t)planned);
  const char *model = !strncmp(name, "MODEL", 5)
                          ? rf_options_argument(o, 0)
                          : json_string_value(json_object_get(json_object_get(plan, "model"), "name")),
             *machine = json_string_value(json_object_get(json_object_get(plan, "machine"), "name"));
  snprintf(title, sizeof title, "%.60s on %.60s: sweep of %.40s (--job %.20s)", model ? model : "models",
           machine, name, rf_options_text(o, "job"));
  return rf_plot_sweep(rf_options_text(o, "plot"), title, machine, name, row, count, cliffs, error);
}

rf_status rf_plan_sweep(const rf_options *o, const rafter_sink *sink, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_error refused, first = {0};
  const char *name = NULL;
  const char *const *values = NULL;
  int count = rf_options_sweep(o, "sweep", &name, &values);
  rf_sweep_row *row = calloc((size_t)count + 1, sizeof *row);
  json_t *rows = json_array(), *cliffs = NULL, *one = NULL;
  rafter_plan *plan = NULL, *before = NULL;
  bool any = false;
  int64_t batch = 0;
  if (!row) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while sweeping"));
  RF_GO(common_batch(o, name, values, count, &batch, error));
  const char *job = rf_options_text(o, "job");
  const fit_column fit = column_of(o, name, job);
  say_head(sink, name, job, fit);
  for (int i = 0; i < count; i++) {
    row[i].value = values[i];
    row[i].x = number_of(values[i]);
    plan = NULL;
    one = NULL;
    refused = (rf_error){0};
    RF_GO(plan_value(o, name, batch, &row[i], &plan, &one, &refused, error));
    if (!row[i].planned && !first.message[0]) first = refused;
    any = any || row[i].planned;
    if (plan && before) explain(row, i, before->plan, plan->plan, rows, one);
    rafter_plan_free(before);
    before = plan;
    plan = NULL;
    say_row(sink, &row[i], one, fit, &refused);
    json_object_set_new(one, name, json_string(values[i]));
    json_array_append_new(rows, one);
    one = NULL;
  }
  say_idle(sink, o, name, rows);
  if (!any) RF_GO(RF_FAIL(error, RAFTER_INVALID, first.hint, "%s", first.message));
  cliffs = find_cliffs(name, row, count);
  size_t i;
  json_t *cliff;
  json_array_foreach (cliffs, i, cliff)
    rf_say(sink, "%s at %s: %s\n", json_string_value(json_object_get(cliff, "what")),
           json_string_value(json_object_get(cliff, "at")),
           json_string_value(json_object_get(cliff, "cause")));
  if (rf_options_is_set(o, "plot")) {
    RF_GO(plot(o, name, row, count, rows, cliffs, error));
    rf_say(sink, "%s\n", rf_options_text(o, "plot"));
  }
  rf_put_json(sink, json_pack("{ss ss ss sO sO}", "rafter", RF_VERSION, "command", "plan", "sweep", name,
                              "rows", rows, "cliffs", cliffs));
done:
  json_decref(rows);
  json_decref(cliffs);
  json_decref(one);
  rafter_plan_free(plan);
  rafter_plan_free(before);
  free(row);
  return status;
}
