/* rl_run.h - a run of `rafter rl`: its steps, evaluations, lines of output and files. */
#ifndef RF_RL_RUN_H
#define RF_RL_RUN_H

#include "advise/rl_shape.h"
#include "api/run_files.h"
#include "rl/rl.h"

typedef struct rf_rl_run {
  const rf_options *options;
  const rafter_sink *sink;
  rafter_trainer *folder; /* the run's folder, and the trainer of `rl` for checkpoints */
  rf_rl *rl;
  rf_rl_shape shape;
  FILE *metrics, *samples;
  int64_t steps, first_step, saved; /* saved: optimizer step of the last checkpoint; -1: none */
  int64_t save_every, eval_every, show;
  int keep;
  bool json, begun; /* begun: metrics.jsonl has the lines of earlier steps */
  bool evaluates;   /* an evaluation is in progress */
  bool owes;        /* the last line of metrics.jsonl lacks its evaluation and its closing brace */
  double eval_seconds, save_seconds; /* of the longest evaluation and of the last checkpoint */
  double start, seconds_limit;       /* seconds_limit: 0 means no limit */
  double said, done_seconds;         /* for the line of progress */
  rf_rl_report last;
  double eval_reward, best_reward; /* of evaluations; NaN: none */
} rf_rl_run;

/* Opens metrics.jsonl and samples.jsonl, and prints the first lines. */
rf_status rf_rl_run_begin(rf_rl_run *run, rf_error *error);
/* Runs the steps that are left. *stopped: a signal ended the run. */
rf_status rf_rl_run_steps(rf_rl_run *run, bool *stopped, rf_error *error);
/* Adds the results to the row of the history. */
void rf_rl_run_results(const rf_rl_run *run, json_t *results);
void rf_rl_run_close(rf_rl_run *run);
/* For rf_rl_settings.progress. */
void rf_rl_run_progress(void *run, const char *phase, int64_t done, int64_t of);

#endif
