/* report.h - plans and measurements as JSON and as text. */
#ifndef RF_REPORT_H
#define RF_REPORT_H

#include <jansson.h>

#include "graph/kv.h"
#include "plan/advice.h"
#include "run/run.h"

/* A phase of one step of a job that runs several plans. */
typedef struct rf_report_phase {
  const char *name;
  double seconds;
  int64_t peak_bytes;
} rf_report_phase;

/* One step of a job that runs several plans one after the other. */
typedef struct rf_report_whole {
  const char *unit; /* "RL step" */
  const char *main; /* name of the phase whose plan is rf_report_plan.plan */
  rf_plan_totals totals;
  rf_report_phase phase[4];
  int phases; /* 0: the job runs only one plan, which is `main` */
} rf_report_whole;

/* Time, tokens, work and price of one unit of the whole job. The costs of the job follow from these
 * figures. */
typedef struct rf_report_unit {
  const char *name; /* "step", "RL step", "rollout" or "request" */
  char note[96];    /* text for the line of the cost that says which tokens are counted */
  double seconds, tokens;
  double model_flops, /* 0: unknown */
      usd_per_hour,   /* USD per hour of all machines; 0: the price of a machine is unknown */
      watts;          /* of all machines; 0: unknown */
} rf_report_unit;

typedef struct rf_report_plan {
  const rf_plan *plan;    /* train: the plan of one step. generate: the plan of one decode step */
  const rf_plan *prefill; /* generate: the plan of one prefill step; other jobs: NULL */
  const char *job;        /* "train", "generate" and so on */
  /* Time, rate, work and cost of the whole job. NULL: use the figures of one step of `plan`. */
  const rf_report_whole *whole;
  /* Figures of a rollout or a request, from its prompts to its last answer. 0 seconds: nothing was
   * simulated. NULL: the job answers no prompts, and its cost is the cost of steps. */
  const rf_report_unit *served;
  bool seq_default, dtype_default; /* true: mark the sequence length or the dtype as a default */
  /* marks the batch as a default, with the text of rf_settings.batch_for; NULL: no mark */
  const char *batch_for;
  int64_t prompts, samples; /* number of prompts, and of answers to each prompt; 0: no prompts */
  const rf_advice *advice;
  int advice_count;
  /* The object "memory" of a job with several phases. If this field is NULL, "memory" is made from
   * `plan`. */
  const json_t *memory;
  const rf_fit_found *found; /* results of --fit, the fastest first; NULL: no search was made */
  const json_t *largest;     /* the object "largest_batch" of --fit; NULL: no search was made */
  double tokens;             /* print the time and the cost of this number of tokens; 0: print neither */
  double budget_seconds;     /* print the number of steps in this time; 0: do not print the number */
  bool tensors, ops;         /* true: add the lists "tensors" and "ops" */
} rf_report_plan;

/* A plan as JSON: docs/formats.md, "plan". The caller owns the returned object. NULL: out of
 * memory. */
json_t *rf_report_plan_json(const rf_report_plan *report);
/* Returns the plan as a malloc'ed text. */
char *rf_report_plan_text(const rf_report_plan *report);

/* Returns predicted and measured seconds of each kind of op, summed over all calls. */
json_t *rf_report_measured_json(const rf_plan *plan, const rf_measured *measured);

/* A plan of a run, and the measurements of its steps or forward passes. */
typedef struct rf_report_pass {
  const char *name; /* "train", "validation", "prefill", "decode", "score" */
  const rf_plan *plan;
  const rf_measured *measured; /* NULL before the run */
  int64_t timed;               /* number of steps or passes whose ops were timed; 0: all were timed */
  int64_t count;               /* number of steps or forward passes */
  double tokens;               /* number of tokens in all passes; 0: they were not counted */
  double seconds;              /* wall-clock seconds of all passes; 0: they were not measured */
  /* (ops) total predicted or limit seconds of each op, if passes had fewer rows than planned; NULL:
   * passes had as many rows as planned */
  const double *predicted, *limit;
} rf_report_pass;
/* Returns the predicted, measured and limit seconds of a call of each op (docs/formats.md,
 * "report.json"). */
json_t *rf_report_pass_json(const rf_report_pass *pass);
/* Returns the number of steps or passes to which the times of ops in this object belong. It is 1 or
 * more. */
double rf_report_timed(const json_t *pass);

/* The following functions write a number with its unit into `text` and return `text`: "5.94
 * GiB". */
char *rf_text_bytes(double bytes, char text[32]);
/* "1.23 s", "45.6 ms", "90 s", "8 min". */
char *rf_text_seconds(double seconds, char text[32]);
/* "17.2 GFLOP". */
char *rf_text_flops(double flops, char text[32]);
char *rf_text_rate(double bps, char text[32]); /* bytes per second, "18.0 TB/s" */
/* "21,080", "3.06 M", "8.03 B". */
char *rf_text_count(double count, char text[32]);
/* "131,072". */
char *rf_text_whole(int64_t count, char text[32]);
/* Writes any number. Numbers that are not tiny have no exponent: "4.5851", "24,576", "0.0003". */
char *rf_text_number(double value, char text[32]);
/* Writes a number with at most `figures` (1 to 15) significant digits, and without an exponent from
 * 1e-12 to 1e15: "0.00005613", "1,235". Zeros at the end of a fraction are left out. */
char *rf_text_figures(double value, int figures, char text[32]);
/* "0.3411 USD", "12,345 USD", "32.1 M USD". */
char *rf_text_usd(double usd, char text[32]);

#endif
