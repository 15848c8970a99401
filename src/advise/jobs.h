/* jobs.h - functions that the jobs of `rafter plan --job` share. Each job has a function that makes
 * its plans; jobs.c has the table of jobs. */
#ifndef RF_ADVISE_JOBS_H
#define RF_ADVISE_JOBS_H

#include "advise/planned.h"

#include "generate/simulate.h"

/* Lengths in tokens of a prompt and of an answer, and the answers to each prompt. */
typedef struct rf_job_lengths {
  int64_t prompt, answer;
  int samples;
} rf_job_lengths;

/* Reads prompt and answer lengths. Without --seq, a cache slot is as long as a prompt and an answer
 * together. */
rf_status rf_job_lengths_resolve(rafter_plan *plan, const rf_options *options, rf_job_lengths *lengths,
                                 rf_error *error);
rf_infer_settings rf_job_infer_settings(const rafter_plan *plan);
/* One copy of the model was simulated with `each` of the `requests` requests. Scales the results of
 * the simulated copy to all copies. The longest queue is not scaled: the queues of the copies do
 * not peak at the same time. */
void rf_job_add_copies(rf_serve_stats *served, int64_t requests, int64_t each);
/* USD per hour of all chips; 0: unknown. */
double rf_job_usd_per_hour(const rf_machine *machine);
/* USD per million tokens at this rate, or null. */
json_t *rf_job_usd_per_million(double usd_per_hour, double rate);
/* Reports that the copies of the model share the requests and that only one copy is simulated. */
void rf_job_say_copies(rafter_plan *plan, const rf_plan *decode);
/* Simulates prompts that all arrive at once. Each prompt has `--samples` answers. */
rf_status rf_job_roll_out(rafter_plan *plan, const rf_plan *decode, const rf_options *options,
                          const rf_job_lengths *lengths, rf_serve_stats *served, int64_t *prompts,
                          rf_error *error);
/* The object "rollout" of a plan's JSON. The caller frees it. */
json_t *rf_job_rollout_json(const rafter_plan *plan, const rf_job_lengths *lengths,
                            const rf_serve_stats *served, int64_t prompts);
/* Sets the number of prompts that the job answers. */
void rf_job_set_prompts(rafter_plan *plan, const rf_job_lengths *lengths, int64_t prompts);

rf_status rf_job_generate(rafter_plan *plan, const rf_options *options, rf_error *error);
/* serve.c: simulates requests that arrive over time. */
rf_status rf_job_serve(rafter_plan *plan, const rf_options *options, rf_error *error);
/* preferences.c: the reference model of a planned training step, if its loss has one. */
rf_status rf_job_reference(rafter_plan *plan, rf_error *error);
rf_status rf_job_train(rafter_plan *plan, const rf_options *options, rf_error *error);
/* Plans an RL step that trains on every sample of every prompt. The job's main plan is the plan
 * of the policy's training step. */
rf_status rf_job_rl(rafter_plan *plan, const rf_options *options, rf_error *error);

#endif
