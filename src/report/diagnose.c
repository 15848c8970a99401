/* diagnose.c - finds a run's bound and its best change, and decides whether the times support
 * advice. */
#include "report/diagnose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/model.h"
#include "report/summary.h"
#include "report/thin.h"
#include "run/record.h"

/* If the slow steps take more than this fraction of all time, mean times are not used. */
static const double STOOD = 0.1;
/* If other programs take this fraction of the threads' time, and at least half a core, they delay
 * all threads. If one thread has no core, all other threads wait for it at the end of each op. */
static const double CROWDED = 0.1, HALF = 0.5;

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_passes(rf_diagnosis *d) {
  const json_t *list = json_object_get(json_object_get(d->entry, "measured"), "walks"), *pass;
  size_t i;
  d->pass = calloc(json_array_size(list) + 1, sizeof *d->pass);
  if (!d->pass) return false;
  json_array_foreach (list, i, pass) {
    const json_t *planned = rf_report_plan_of(d->entry, rf_json_text_at(pass, "walk"));
    if (!planned || !json_object_get(planned, "ops")) continue;
    if (!rf_diagnose_pass(planned, pass, &d->pass[d->passes++])) return false;
  }
  d->measured = d->passes > 0;
  if (d->measured || !json_object_get(d->plan, "ops")) return true;
  return rf_diagnose_pass(d->plan, NULL, &d->pass[d->passes++]);
}

/* Picks the training step. If the plan has no such step, picks the forward pass that took most
 * of the time. */
static int longest_pass(const rf_diagnosis *d) {
  int most = d->passes ? 0 : -1;
  for (int i = 0; i < d->passes; i++) {
    if (d->pass[i].trains) return i;
    if (d->pass[i].count * d->pass[i].seconds > d->pass[most].count * d->pass[most].seconds) most = i;
  }
  return most;
}

static double median_of(const json_t *entry) {
  json_t *spread = rf_report_step_seconds(entry);
  double median = rf_json_number_at(spread, "median");
  json_decref(spread);
  return median;
}

static rf_last_step read_last_step(const json_t *entry) {
  const json_t *rows = json_object_get(entry, "metrics"),
               *last = json_array_get(rows, json_array_size(rows) - 1);
  rf_last_step found = {.step = rf_json_number_at(last, "step")};
  if (json_object_get(entry, "measured") || !(found.step > 0)) return (rf_last_step){0};
  found.seconds = median_of(entry);
  found.predicted = rf_json_number_at(last, "predicted_seconds");
  if (found.seconds > 0)
    found.tokens_per_second = rf_json_number_at(last, "tokens") / found.step / found.seconds;
  return found;
}

static rf_outliers read_outliers(const json_t *entry) {
  const json_t *row;
  rf_outliers found = {.median = median_of(entry)};
  double all = 0, far = 0;
  size_t i;
  json_array_foreach (json_object_get(entry, "metrics"), i, row) {
    double seconds = rf_json_number_at(row, "seconds");
    all += seconds;
    found.steps++;
    if (seconds <= RF_OUTLIER * found.median || !i) continue;
    far += seconds;
    found.count++;
  }
  if (found.median > 0 && all > 0) found.part = far / all;
  return found;
}

/* ---- the bound ------------------------------------------------------------------------------- */

static bool is_others(const char *bound) {
  return !strcmp(bound, RF_BOUND_OTHERS) || !strcmp(bound, "other threads");
}

/* A gap is time in which threads are idle for a known cause. Returns the largest gap. Returns NULL
 * if the gap is at most `bound * threads->work`, which is the time under the first bound. Waits for
 * messages are a part of ops whose bound is the network. */
static const rf_share *bound_by_gap(const rf_diagnosed_threads *threads, double bound) {
  const rf_share *largest = NULL;
  for (int i = 0; i < threads->gaps.count; i++) {
    bool part_of_ops = !strcmp(threads->gaps.at[i].name, rf_gap_name(RF_GAP_NETWORK));
    if (!part_of_ops && threads->gaps.at[i].part > (largest ? largest->part : 0))
      largest = &threads->gaps.at[i];
  }
  return largest && largest->part > bound * threads->work ? largest : NULL;
}

/* True if other programs limit the run. A trace measures the part of the time that other programs
 * took. This part includes the time in which threads wait for a thread that has no core. */
static bool taken_by_others(const rf_diagnosis *d, const rf_diagnosed_pass *pass, double bound,
                            const rf_share *gap) {
  const json_t *others = json_object_get(json_object_get(d->entry, "measured"), "others");
  if (d->threads.traced)
    return gap && (is_others(gap->name) || !strcmp(gap->name, "wait")) && d->others >= gap->part / 2;
  if (d->others > CROWDED && d->others * rf_json_number_at(others, "threads") > HALF &&
      pass->seconds > RF_FAR * pass->predicted)
    return true;
  return d->others > (1 - d->others) * bound;
}

static void find_bound(rf_diagnosis *d, const rf_diagnosed_pass *pass) {
  const rf_sum *first = &pass->bounds.at[0];
  double bound = pass->seconds > 0 ? first->seconds / pass->seconds : 0;
  const rf_share *gap = bound_by_gap(&d->threads, bound);
  d->taken = taken_by_others(d, pass, bound, gap);
  if (gap && !d->taken) d->gap_part = gap->part;
  d->bound = d->taken ? RF_BOUND_OTHERS : gap ? gap->name : pass->bounds.count ? first->name : "";
  if (d->measured && d->stood && strcmp(d->bound, RF_BOUND_OTHERS)) d->bound = RF_BOUND_STOPPED;
  d->by_others = is_others(d->bound);
  d->crowded = d->by_others || !strcmp(d->bound, "wait");
  d->useless =
      !strcmp(d->bound, RF_BOUND_STOPPED) || (d->measured && d->by_others && pass->alone >= RF_ALONE_HELD);
}

/* Picks the best change. More threads do not help if threads already wait for each other or for a
 * core. */
static const rf_change *best_of(const rf_diagnosis *d) {
  for (int i = 0; i < d->changes; i++) {
    const rf_change *change = &d->change[i];
    bool threads = !strncmp(change->change, "threads=", 8);
    if (change->fits && !(d->crowded && threads) && change->gain > RF_WORTH) return change;
  }
  return NULL;
}

bool rf_diagnose(const json_t *entry, rf_diagnosis *d) {
  *d = (rf_diagnosis){.entry = entry, .plan = json_object_get(entry, "plan"), .most = -1};
  if (!read_passes(d)) return false;
  d->most = longest_pass(d);
  d->threads = rf_diagnose_threads(entry);
  const rf_diagnosed_pass *pass = d->most < 0 ? NULL : &d->pass[d->most];
  if (pass) {
    if (d->measured) d->others = rf_report_others_part(entry);
    d->busy = rf_report_was_busy(entry);
    if (pass->trains) d->outliers = read_outliers(entry);
    d->stood = d->outliers.part > STOOD;
    d->last = read_last_step(entry);
    find_bound(d, pass);
  } else if (rf_json_number_at(json_object_get(d->plan, "time"), "seconds") > 0)
    d->bound = rf_json_text_at(json_object_get(d->plan, "time"), "bound");
  rf_diagnose_changes(d, d->measured && d->by_others);
  /* A run without report.json gets no advice, because its times may be far from the prediction. */
  if (d->bound && !d->useless && !(d->last.seconds > 0)) d->best = best_of(d);
  return true;
}

void rf_diagnosis_free(rf_diagnosis *d) {
  for (int i = 0; i < d->passes; i++) free(d->pass[i].layer);
  free(d->pass);
}
