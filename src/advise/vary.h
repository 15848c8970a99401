/* vary.h - several plans for one question: a sweep over an option, two plans next to each other, and
 * their pictures. */
#ifndef RF_ADVISE_VARY_H
#define RF_ADVISE_VARY_H

#include "advise/planned.h"
#include "base/say.h"
#include "plan/cause.h"

/* One value of a sweep. */
typedef struct rf_sweep_row {
  const char *value;
  double x;     /* of numbers; else NaN */
  bool planned; /* false: nothing makes it fit */
  double bytes, seconds, rate, room;
  double speed;        /* model FLOPs a second */
  double chips, waits; /* waits: the network's part of a step */
  bool fits;
  char bound[16];
  rf_cause why_time, why_memory; /* what differs from the row before */
} rf_sweep_row;

/* `rafter plan --sweep`, `--compare`, `--compare published:ID`. */
rf_status rf_plan_sweep(const rf_options *options, const rafter_sink *sink, rf_error *error);
rf_status rf_plan_compare(const rf_options *options, const rafter_sink *sink, rf_error *error);
rf_status rf_compare_published(const rf_options *options, const char *id, const rafter_sink *sink,
                               rf_error *error);
/* b - a of all numbers that both have, at their places; or b / a. */
json_t *rf_json_between(const json_t *a, const json_t *b, bool ratio);

/* --plot: the answer as a picture. */
rf_status rf_plot_sweep(const char *path, const char *title, const char *machine, const char *name,
                        const rf_sweep_row *row, int count, const json_t *cliffs, rf_error *error);
rf_status rf_plot_frontier(const char *path, const rafter_plan *plan, rf_error *error);
/* of --job serve, with rates simulated */
rf_status rf_plot_rates(const char *path, const rafter_plan *plan, rf_error *error);
rf_status rf_plot_plan(const char *path, const rafter_plan *plan, rf_error *error);

#endif
