/* vary.h - commands that make several plans: sweeps, comparisons, and their pictures. */
#ifndef RF_ADVISE_VARY_H
#define RF_ADVISE_VARY_H

#include "advise/planned.h"
#include "base/say.h"
#include "plan/cause.h"

/* One row of a sweep: the plan for one value of the option. */
typedef struct rf_sweep_row {
  const char *value;
  double x;     /* the value as a number, or NaN */
  bool planned; /* false: no plan can be made for this value */
  double bytes, seconds, rate, room;
  double speed;        /* model FLOP/s */
  double chips, waits; /* waits: fraction of the step that the chips wait for the network */
  bool fits;
  char bound[16];
  rf_cause why_time, why_memory; /* reasons why this row differs from the previous row */
} rf_sweep_row;

/* `rafter plan --sweep`, `--compare`, `--compare published[:ID]`. */
rf_status rf_plan_sweep(const rf_options *options, const rafter_sink *sink, rf_error *error);
rf_status rf_plan_compare(const rf_options *options, const rafter_sink *sink, rf_error *error);
/* Lists the published runs if `id` is NULL. RAFTER_INVALID: the job is not the published run. */
rf_status rf_compare_published(const rf_options *options, const char *id, const rafter_sink *sink,
                               rf_error *error);
/* Returns an object with the differences b - a (or the ratios b / a if `ratio`). The object has an
 * entry for every number that `a` and `b` have at the same path. The caller frees it. */
json_t *rf_json_between(const json_t *a, const json_t *b, bool ratio);

/* Draws the result of a command for --plot. */
rf_status rf_plot_sweep(const char *path, const char *title, const char *machine, const char *name,
                        const rf_sweep_row *row, int count, const json_t *cliffs, rf_error *error);
rf_status rf_plot_frontier(const char *path, const rafter_plan *plan, rf_error *error);
/* Draws the token rate and latency of --job serve for each simulated request rate. */
rf_status rf_plot_rates(const char *path, const rafter_plan *plan, rf_error *error);
rf_status rf_plot_plan(const char *path, const rafter_plan *plan, rf_error *error);

#endif
