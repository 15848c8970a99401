/* rl_run.h - runs the steps and evaluations of `rafter rl`, and writes its lines and files. */
#ifndef RF_RL_RUN_H
#define RF_RL_RUN_H

#include "advise/rl_shape.h"
#include "api/run_files.h"
#include "rl/rl.h"

typedef struct rf_rl_run {
  const rf_options *options;
  const rafter_sink *sink;
  rafter_trainer *folder; /* trainer of `rl`, with the run's folder, for checkpoints */
  rf_rl *rl;
  rf_rl_shape shape;
  FILE *metrics, *samples;
  int64_t steps, first_step, saved; /* saved: optimizer step of the last checkpoint; -1: none */
  int64_t save_every, eval_every, show;
  int keep;
  bool json, begun;            /* begun: true if metrics.jsonl has lines of earlier steps */
  bool evaluates;              /* true while an evaluation is in progress */
  bool unsound;                /* true: sampling or training has failed, so the weights may be broken */
  bool owes;                   /* true if the last line of metrics.jsonl has no evaluation */
  double eval_seconds;         /* seconds of the longest evaluation */
  double save_seconds;         /* seconds of the last checkpoint; before the first checkpoint, an estimate */
  double start, seconds_limit; /* seconds_limit: 0 means no limit */
  double said, done_seconds;   /* times for the progress line: of its latest update, and of finished steps */
  rf_rl_report last;
  double eval_reward, best_reward; /* of evaluations; NaN: none */
} rf_rl_run;

/* Opens metrics.jsonl and samples.jsonl, and prints the first lines. */
rf_status rf_rl_run_begin(rf_rl_run *run, rf_error *error);
/* Runs the remaining steps. Sets *stopped if a signal ended the run. */
rf_status rf_rl_run_steps(rf_rl_run *run, bool *stopped, rf_error *error);
/* Adds the results of the run to its row in the history. */
void rf_rl_run_results(const rf_rl_run *run, json_t *results);
void rf_rl_run_close(rf_rl_run *run);
/* For rf_rl_settings.progress. */
void rf_rl_run_progress(void *run, const char *phase, int64_t done, int64_t of);

#endif
