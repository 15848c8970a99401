/* planned.h - makes the plan of a job from options and prints it as JSON or as a table. If the
 * plan does not fit, finds options that fit. */
#ifndef RF_PLANNED_H
#define RF_PLANNED_H

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/options.h"
#include "plan/job.h"
#include "report/report.h"

struct rafter_plan {
  rf_settings settings;
  rf_options *sizes;       /* options of an RL step with the sizes of a run; NULL: another job */
  rf_plan *plan, *prefill; /* prefill: NULL unless the job generates */
  rf_advice advice[RF_MAX_ADVICE];
  int advice_count;
  bool advises;           /* true if rf_plan_give_advice will be called */
  rf_advice_ahead *ahead; /* advice that another thread computes while the plan is made */
  rf_fit_found found;     /* result of --fit */
  json_t *largest;        /* result of --fit: the largest batch and its limit; NULL: unknown */
  double tokens, budget_seconds;
  bool tensors, ops;
  bool sized, advisable; /* sized: compute only sizes. advisable: advice is possible. */
  const char *job;
  rf_report_whole whole; /* totals of one step, if the job runs several plans */
  bool serves;           /* the job answers prompts, so `served` has its cost */
  /* results of the simulation; all zero: the plan does not fit, so nothing was simulated */
  rf_report_unit served;
  double acceptance;           /* the value of --acceptance; unset: the default for the kind of drafts */
  rf_settings *drafter;        /* the model of --speculate MODEL; NULL: no draft model */
  rf_plan *drafter_plan[2];    /* prefill and decode plans of the draft model */
  int64_t prompts, samples;    /* number of prompts, and of answers to each prompt; 0: no prompts */
  int64_t needs;               /* peak bytes over all phases of an RL step; 0: the job has one phase */
  int64_t lasts;               /* bytes of `needs` that stay allocated during the whole job */
  json_t *extra, *assumptions; /* JSON that simulated jobs add; nested objects are merged */
  FILE *extra_text;            /* text that simulated jobs add to the table */
  char *extra_chars;
  size_t extra_bytes;
  json_t *object; /* cached result of rf_plan_object for rafter_plan_number; NULL: not yet made */
};

/* Makes a plan. Free the plan with rafter_plan_free. */
rf_status rf_plan_begin(const rf_options *options, rafter_plan **plan, rf_error *error);
void rf_plan_give_advice(rafter_plan *plan);
/* rf_plan_begin, then rf_plan_give_advice. */
rf_status rf_plan_of_options(const rf_options *options, rafter_plan **plan, rf_error *error);
/* Returns the JSON object of `rafter plan --json`. The caller frees it. */
rf_status rf_plan_object(const rafter_plan *plan, json_t **json, rf_error *error);
/* Makes a plan from the options and returns only its JSON object. */
rf_status rf_plan_object_of(const rf_options *options, json_t **json, rf_error *error);
/* Writes the table of `rafter plan` as text. The caller frees it. */
rf_status rf_plan_table(const rafter_plan *plan, char **text, rf_error *error);
/* rf_json_at returns the number at /object/key of a plan's JSON, or 0 if the number is missing.
 * rf_json_fits returns the plan's /memory/fits. */
double rf_json_at(const json_t *json, const char *object, const char *key);
bool rf_json_fits(const json_t *plan);

/* Returns a plan without settings, or NULL if the allocation fails. */
rafter_plan *rf_planned_new(void);
/* jobs.c: resolves the settings of a job ("train", "serve", ...), plans the job, and fills `extra`.
 * If `plan->sized` is true, makes no simulation and no advice. */
rf_status rf_plan_job(rafter_plan *plan, const rf_options *options, const char *job, rf_error *error);
/* The kind of settings of a job, for rf_settings_resolve: "train", "generate" or "score". */
const char *rf_plan_settings_of(const char *job);
static inline bool rf_plan_learns(const char *job) { return !strcmp(rf_plan_settings_of(job), "train"); }
/* The options of all simulated jobs. */
extern const rf_option RF_SERVING_OPTIONS[];

/* remedy.c: true if each phase of the job fits, and all phases together fit. */
bool rf_plan_all_fits(const rafter_plan *plan);
/* Whether a core is idle. Signal the condition `changed` after each change of `is`. */
typedef struct rf_idle {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool is;
} rf_idle;
/* Returns RAFTER_OK if the plan fits. If the plan does not fit, returns RAFTER_NO_FIT, and the
 * error names the largest tensors and a setting that fits. A second thread helps to search when a
 * core becomes idle. */
rf_status rf_plan_refuse(const rf_options *options, const rafter_plan *plan, rf_idle *idle, rf_error *error);

#endif
