/* diagnose_threads.c - how threads spent their time in the recorded steps of a trace. This file
 * also computes how much time other programs took from a run. */
#include "report/diagnose.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "report/summary.h"
#include "run/record.h"

static const double NANOSECOND = 1e-9;

static rf_share *share_of(rf_shares *shares, const char *name) {
  for (int i = 0; i < shares->count; i++)
    if (!strcmp(shares->at[i].name, name)) return &shares->at[i];
  if (shares->count == RF_SUMS) return &shares->at[RF_SUMS - 1];
  shares->at[shares->count] = (rf_share){.name = name};
  return &shares->at[shares->count++];
}

/* Returns the fraction of a span's gap seconds that the trace's header calls "unexplained". */
static double unexplained_of(const json_t *names, const json_t *span) {
  const json_t *list, *name;
  double sum = 0;
  size_t side, g;
  json_array_foreach (json_object_get(span, "gaps"), side, list)
    json_array_foreach (names, g, name)
      if (json_is_string(name) && !strcmp(json_string_value(name), "unexplained"))
        sum += json_number_value(json_array_get(list, g));
  return sum;
}

/* Fills the fields about the time between recorded steps: seconds per step, fractions of all time
 * by phase, and the unexplained fraction of the threads' time. */
static void read_between(const json_t *header, rf_diagnosed_threads *threads) {
  const json_t *names = json_object_get(header, "gaps"), *step;
  double all = 0, between = 0, unexplained = 0, count = 0;
  size_t s;
  json_array_foreach (json_object_get(header, "steps"), s, step) {
    const json_t *after = json_object_get(step, "after");
    const char *phase;
    json_t *seconds;
    if (!after) continue;
    all += rf_json_number_at(after, "end") - rf_json_number_at(step, "begin");
    between += rf_json_number_at(after, "end") - rf_json_number_at(step, "end");
    count++;
    json_object_foreach (json_object_get(after, "by_phase"), phase, seconds)
      share_of(&threads->between_phases, phase)->part += json_number_value(seconds);
    unexplained += unexplained_of(names, step);
    unexplained += unexplained_of(names, after);
  }
  if (!(between > 0)) return;
  for (int i = 0; i < threads->between_phases.count; i++)
    threads->between_phases.at[i].part /= NANOSECOND * all;
  threads->between_seconds = NANOSECOND * between / count;
  threads->between_part = between / all;
  threads->between_unexplained = unexplained / (NANOSECOND * all * rf_json_number_at(header, "threads"));
}

rf_diagnosed_threads rf_diagnose_threads(const json_t *entry) {
  const json_t *header = json_object_get(json_object_get(entry, "trace"), "header"),
               *names = json_object_get(header, "gaps"), *step, *list, *value;
  double all = 0, gaps[RF_SUMS] = {0};
  rf_diagnosed_threads threads = {0};
  size_t s, side, g;
  json_array_foreach (json_object_get(header, "steps"), s, step) {
    if (!json_is_true(json_object_get(step, "whole"))) continue;
    all += NANOSECOND * (rf_json_number_at(step, "end") - rf_json_number_at(step, "begin")) *
           rf_json_number_at(header, "threads");
    threads.steps++;
    threads.work += rf_json_number_at(step, "work");
    threads.phases += rf_json_number_at(step, "phases");
    json_array_foreach (json_object_get(step, "gaps"), side, list)
      json_array_foreach (list, g, value)
        if (g < RF_SUMS) gaps[g] += json_number_value(value);
  }
  if (all <= 0) return (rf_diagnosed_threads){0};
  threads.traced = true;
  threads.device =
      !strcmp(rf_json_text_at(json_array_get(json_object_get(header, "lanes"), 0), "name"), RF_TRACE_DEVICE);
  threads.work /= all;
  threads.phases /= all;
  json_array_foreach (names, g, value)
    if (g < RF_SUMS && gaps[g] > 0 && json_is_string(value))
      share_of(&threads.gaps, json_string_value(value))->part = gaps[g] / all;
  read_between(header, &threads);
  return threads;
}

/* The measured delay includes time outside forward passes, and the size of this part is unknown.
 * The result is a lower bound: all time outside forward passes is subtracted from the delay. */
double rf_report_others_part(const json_t *entry) {
  const json_t *measured = json_object_get(entry, "measured"), *others = json_object_get(measured, "others"),
               *pass;
  double executed = 0, threads = rf_json_number_at(others, "threads");
  size_t i;
  json_array_foreach (json_object_get(measured, "walks"), i, pass)
    executed += rf_json_number_at(pass, "seconds");
  double outside = fmax(rf_json_number_at(others, "seconds") - executed, 0) * threads,
         all = executed * threads;
  double part = all > 0 ? (rf_json_number_at(others, "delayed_seconds") - outside) / all : 0;
  return part < 0 ? 0 : part > 1 ? 1 : part;
}

bool rf_report_was_busy(const json_t *entry) {
  const double half = 0.5;
  const json_t *others = json_object_get(json_object_get(entry, "measured"), "others");
  return rf_json_number_at(others, "delayed_seconds") > half * rf_json_number_at(others, "seconds");
}
