/* report.h - plans and measurements as JSON and as tables for people. */
#ifndef RF_REPORT_H
#define RF_REPORT_H

#include <jansson.h>

#include "graph/kv.h"
#include "plan/advice.h"
#include "run/run.h"

typedef struct rf_report_plan {
  const rf_plan *plan;    /* train: the step; generate: one decode walk */
  const rf_plan *prefill; /* generate: one prefill walk; NULL for train */
  const char *job;        /* "train", "generate" */
  const rf_advice *advice;
  int advice_count;
  /* of a job of several phases: peak_bytes, by_class, ... of all of them together; NULL: the
   * plan's */
  const json_t *memory;
  const rf_fit_found *found; /* of --fit; fastest first; NULL: nothing was searched */
  double tokens;             /* price this many tokens; 0: none */
  double budget_seconds;     /* how far this time gets; 0: not asked */
  bool tensors, ops;         /* add tensors[], ops[] */
} rf_report_plan;

/* contracts: docs/formats.md, "plan". The caller owns the object. NULL only without memory. */
json_t *rf_report_plan_json(const rf_report_plan *report);
/* The same as a table of at most 100 columns. malloc'ed. */
char *rf_report_plan_text(const rf_report_plan *report);

/* Predicted beside measured, one row per kind of op, joined by op id. */
json_t *rf_report_measured_json(const rf_plan *plan, const rf_measured *measured);

/* One of the plans that a run walked. */
typedef struct rf_report_walk {
  const char *name; /* "train", "validation", "prefill", "decode", "score" */
  const rf_plan *plan;
  const rf_measured *measured; /* NULL before the run */
  int64_t count;               /* steps, or walks */
  double tokens;               /* that they computed; 0: not counted */
  double seconds;              /* of all of them, by the wall's clock; 0: not taken */
  /* (ops): seconds of all calls where walks were shorter than the plan's; NULL: the plan's own */
  const double *predicted, *limit;
} rf_report_walk;
/* Per op, a call each: predicted, measured and limit; see docs/formats.md, "report.json". */
json_t *rf_report_walk_json(const rf_report_walk *walk);

/* "5.94 GiB", "512 KiB": into `text`, which is returned. */
char *rf_text_bytes(double bytes, char text[32]);
/* "1.23 s", "45.6 ms", "789 us". */
char *rf_text_seconds(double seconds, char text[32]);
/* "17.2 GFLOP". */
char *rf_text_flops(double flops, char text[32]);
/* Counts for people: "156 M", "8.03 B". */
char *rf_text_count(double count, char text[32]);

#endif
