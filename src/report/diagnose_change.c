/* diagnose_change.c - the time of a run with one option changed. The prediction for the changed
 * plan is multiplied by this run's ratio of measured time to predicted time. */
#include "report/diagnose.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/model.h"
#include "report/summary.h"

static json_t *kinds_of(const json_t *plan) {
  json_t *sums = json_object();
  const json_t *op;
  size_t i;
  json_array_foreach (json_object_get(plan, "ops"), i, op) {
    const char *kind = rf_json_text_at(op, "kind");
    double seconds = rf_json_number_at(op, "calls") * rf_json_number_at(op, "seconds");
    json_object_set_new(sums, kind, json_real(rf_json_number_at(sums, kind) + seconds));
  }
  return sums;
}

/* Returns the seconds of a plan by kind of op: {"matmul": 0.1}. */
static json_t *kinds_in(const json_t *plans, const char *pass) {
  return json_object_get(json_object_get(plans, pass), "kinds");
}

static double sum_of(const json_t *kinds) {
  const char *kind;
  json_t *value;
  double sum = 0;
  json_object_foreach ((json_t *)kinds, kind, value) sum += json_number_value(value);
  return sum;
}

/* Predicts the seconds of a changed plan at this run's efficiency. Each kind of op takes its
 * fastest measured time, multiplied by the new prediction divided by the old prediction. Then the
 * delays are added: the excess of slower calls, and the time between ops. With `alone`, the delays
 * are left out, because other programs cause them. */
static double repriced(const rf_diagnosed_pass *pass, const json_t *now, const json_t *then, bool alone) {
  bool fastest = pass->alike && pass->count > 0;
  double seconds = alone ? 0 : pass->gaps, missed = 1;
  const char *kind;
  json_t *value;
  if (pass->predicted > 0) missed = (fastest ? pass->fastest : pass->inside) / pass->predicted;
  if (pass->compiled) return missed * sum_of(then); /* the times of kinds of ops are not known */
  json_object_foreach ((json_t *)then, kind, value) {
    double before = rf_json_number_at(now, kind), after = json_number_value(value);
    const rf_sum *here = rf_sum_named(&pass->kinds, kind);
    double took = here ? here->seconds : 0, least = here && fastest ? here->fastest : took;
    seconds += before > 0 ? least * after / before + (alone ? 0 : took - least) : missed * after;
  }
  return seconds;
}

/* Returns the ratio of measured time to predicted time without other programs. The ratio is from a
 * forward pass whose fastest calls were not delayed. Returns 0 if all forward passes have delayed
 * calls. */
static double pace_alone(const rf_diagnosis *d) {
  for (int i = 0; i < d->passes; i++)
    if (d->pass[i].alone == RF_ALONE_KNOWN && d->pass[i].predicted > 0)
      return d->pass[i].fastest / d->pass[i].predicted;
  return 0;
}

/* Adds the seconds of all passes of `pass` to `sum`, both for the current run and with the change
 * in `row`. */
static void price_pass(const rf_diagnosis *d, const rf_diagnosed_pass *pass, const json_t *row, double pace,
                       bool quiet, rf_change *sum) {
  const json_t *plans = json_object_get(row, "plans"), *kinds = kinds_in(plans, pass->name);
  double planned = rf_json_number_at(json_object_get(d->plan, "time"), "seconds");
  bool alone = quiet && pass->alone == RF_ALONE_KNOWN, paced = pace > 0 && !alone;
  double count = pass->count > 0 ? pass->count : 1;
  double before = count * (paced ? pace * pass->predicted : alone ? pass->fastest : pass->seconds);
  json_t *own = kinds_in(json_object_get(row, "now"), pass->name);
  own = own ? json_incref(own) : kinds_of(rf_report_plan_of(d->entry, pass->name));
  sum->now_seconds += before;
  if (kinds && paced) sum->seconds += sum_of(own) > 0 ? before * sum_of(kinds) / sum_of(own) : before;
  else if (kinds) sum->seconds += count * repriced(pass, own, kinds, alone);
  else if (!plans && planned > 0 && pass == d->pass) /* advice inside a plan has only a total time */
    sum->seconds += before * rf_json_number_at(row, "seconds") / planned;
  else sum->seconds += before;
  json_decref(own);
}

static rf_change read_change(const rf_diagnosis *d, const json_t *row, bool quiet) {
  bool trains = d->passes && d->pass[0].trains;
  double pace = quiet ? pace_alone(d) : 0, units = d->passes ? d->pass[0].count : 0;
  rf_change change = {.change = rf_json_text_at(row, "change"),
                      .predicted = rf_json_number_at(row, "seconds"),
                      .peak_bytes = rf_json_number_at(row, "peak_bytes"),
                      .approximate = json_is_true(json_object_get(row, "approximate")),
                      .exact = json_is_true(json_object_get(row, "exact")),
                      .fits = !json_is_false(json_object_get(row, "fits"))};
  /* In a training run, a change is judged by the time of training steps, without validation. */
  for (int i = 0; i < d->passes; i++)
    if (!trains || d->pass[i].trains) price_pass(d, &d->pass[i], row, pace, quiet, &change);
  if (!d->passes) {
    change.now_seconds = rf_json_number_at(json_object_get(d->plan, "time"), "seconds");
    change.seconds = change.predicted;
  }
  if (units < 1 || (!trains && d->passes > 1)) units = 1;
  change.gain = change.now_seconds > 0 ? 1 - change.seconds / change.now_seconds : 0;
  change.seconds /= units;
  change.now_seconds /= units;
  change.more_bytes = change.peak_bytes - rf_json_number_at(json_object_get(d->plan, "memory"), "peak_bytes");
  return change;
}

static int gains_more(const void *a, const void *b) {
  double x = ((const rf_change *)a)->gain, y = ((const rf_change *)b)->gain;
  return (x < y) - (x > y);
}

void rf_diagnose_changes(rf_diagnosis *d, bool quiet) {
  const json_t *rows = json_object_get(d->entry, "advice"), *row;
  size_t i;
  if (!rows) rows = json_object_get(json_object_get(d->entry, "measured"), "advice");
  if (!rows) rows = json_object_get(d->plan, "advice");
  json_array_foreach (rows, i, row)
    if (d->changes < RF_CHANGES && json_is_object(row)) d->change[d->changes++] = read_change(d, row, quiet);
  qsort(d->change, (size_t)d->changes, sizeof *d->change, gains_more);
}
