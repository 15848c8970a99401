/* plan.h - what the files behind `rafter plan` share. */
#ifndef RF_API_PLAN_H
#define RF_API_PLAN_H

#include "api/api.h"

#include "plan/cause.h"

#include <pthread.h>

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

/* Settings and plans of a job ("train", "serve", ...), and what it adds to the answer. */
rf_status rf_plan_job(rafter_plan *plan, const rf_options *options, const char *job, rf_error *error);
/* A plan as rafter_plan_new makes it, and, apart, what one change of it would do. */
rf_status rf_plan_begin(const rafter_job *job, rafter_plan **plan, rf_error *error);
void rf_plan_give_advice(rafter_plan *plan);
/* The same plans alone, without what is simulated and without advice: whether they fit. */
rf_status rf_plan_job_size(rafter_plan *plan, const rf_options *options, const char *job, rf_error *error);
/* remedy.c: whether all phases fit, alone and together. */
bool rf_plan_all_fits(const rafter_plan *plan);
/* Whether a core has nothing to do; who says so tells those that wait. */
typedef struct rf_idle {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool is;
} rf_idle;
/* remedy.c: RAFTER_NO_FIT with what is largest and what would fit; RAFTER_OK where it fits. From
 * when a core is idle two look for it. */
rf_status rf_plan_refuse(const rafter_job *job, const rafter_plan *plan, rf_idle *idle, rf_error *error);
/* The object of `rafter plan --json`; the caller's. */
rf_status rf_plan_object(const rafter_plan *plan, json_t **json, rf_error *error);
/* Plans a job: its object, its table to the sink; either may be NULL. */
rf_status rf_plan_once(const rafter_job *job, const rafter_sink *sink, json_t **json, rf_error *error);

/* --on with so many chips of the machine that it names. */
rf_status rf_set_chips(rf_options *options, const char *machine, const char *chips, rf_error *error);
/* compare.c: sets what a text says: a MODEL, options as NAME=VALUE,NAME=VALUE or as typed. */
rf_status rf_options_apply(rf_options *options, const char *text, rf_error *error);
/* report.c: the plan of a run (its entry in a report model) with that change ("": none), tensors
 * and ops with it. */
rf_status rf_report_replan(const json_t *entry, const char *change, rafter_plan **plan, rf_error *error);
/* b - a of all numbers that both have, at their places; or b / a. */
json_t *rf_json_between(const json_t *a, const json_t *b, bool ratio);
/* published.c: --compare published:ID. */
rf_status rf_compare_published(const rafter_job *job, const char *id, const rafter_sink *sink,
                               rf_error *error);
/* the number at /object/key, or 0 */
double rf_json_at(const json_t *json, const char *object, const char *key);

/* The forms of the command. */
rf_status rf_plan_sweep(const rafter_job *job, const rafter_sink *sink, rf_error *error);
rf_status rf_plan_compare(const rafter_job *job, const rafter_sink *sink, rf_error *error);

/* --plot: what was asked for, as a picture. */
rf_status rf_plot_sweep(const char *path, const char *title, const char *machine, const char *name,
                        const rf_sweep_row *row, int count, const json_t *cliffs, rf_error *error);
rf_status rf_plot_frontier(const char *path, const rafter_plan *plan, rf_error *error);
/* of --job serve, with rates simulated */
rf_status rf_plot_rates(const char *path, const rafter_plan *plan, rf_error *error);
rf_status rf_plot_plan(const char *path, const rafter_plan *plan, rf_error *error);

/* plan_jobs.c: of jobs that are simulated */
extern const rf_option RF_SERVING_OPTIONS[];

#endif
