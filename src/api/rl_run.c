/* rl_run.c - see rl_run.h. */
#define _GNU_SOURCE
#include "api/rl_run.h"

#include "api/rl_lines.h"
#include "base/text.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the files ------------------------------------------------------------------------------- */

static char *text_of(const json_t *line) { return json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9)); }

static rf_status put_line(FILE *file, const char *name, const json_t *line, rf_error *error) {
  char *text = text_of(line);
  if (text) fprintf(file, "%s\n", text);
  free(text);
  return rf_check_written(file, name, error);
}

static rf_status put_metrics(rf_rl_run *run, json_t *line, rf_error *error) {
  if (run->json) rf_put_json(run->sink, json_incref(line));
  return put_line(run->metrics, "metrics.jsonl", line, error);
}

/* Writes the first groups of a step, or of an evaluation, to samples.jsonl. */
static rf_status put_samples(rf_rl_run *run, int64_t step, bool evaluation, rf_error *error) {
  rf_status status = RAFTER_OK;
  for (int64_t g = 0; g < run->rl->groups && g < run->show && status == RAFTER_OK; g++) {
    json_t *sample = rf_rl_line_group(run->rl, g, step, evaluation);
    status = put_line(run->samples, "samples.jsonl", sample, error);
    json_decref(sample);
  }
  return status;
}

static rf_status say_start(rf_rl_run *run, rf_error *error) {
  char a[32], b[32], c[32];
  const rf_rl *rl = run->rl;
  const rf_plan *policy = rl->trainer->plan;
  const int64_t bytes = rf_run_arena_bytes(rl->run) + (rl->apart ? rf_run_arena_bytes(rl->apart) : 0),
                planned = rf_rl_plans_bytes(policy, &rl->plans);
  rf_outside o;
  RF_TRY(rf_run_outside(rl->run, &o, error));
  json_t *line =
      json_pack("{sI sI s{sI sI sI}}", "arena_bytes", (json_int_t)bytes, "peak_bytes", (json_int_t)planned,
                "outside_arena_bytes", "total", (json_int_t)o.outside_bytes, "program_and_libraries",
                (json_int_t)o.file_bytes, "heap_and_stacks", (json_int_t)o.other_bytes);
  rf_status status = run->begun ? RAFTER_OK : put_metrics(run, line, error);
  json_decref(line);
  RF_TRY(status);
  if (policy->graph->params.adapter > 0)
    rf_say(run->sink, "adapters of rank %d: %s parameters are trained, the base model is frozen\n",
           rl->settings.train.model.lora.rank, rf_text_count((double)policy->graph->params.adapter, a));
  rf_say(run->sink, "%s: %s; plan %s: %s predicted, %s allocated\n", rl->settings.train.model.name,
         !rl->plans.reference ? "no reference model"
         : rl->apart          ? "the reference model has its own copy of the weights"
                              : "policy and reference share one copy of the base",
         policy->digest, rf_text_bytes((double)planned, b), rf_text_bytes((double)bytes, c));
  rf_say(run->sink, "%lld prompts%s; a step has %lld prompts x %d answers of at most %lld tokens (loss %s)\n",
         (long long)rf_rl_prompts_count(rl->settings.data), rl->settings.held_out ? ", others held out" : "",
         (long long)run->shape.prompts, run->shape.samples, (long long)rl->settings.max_tokens,
         run->shape.loss->name);
  rf_say(run->sink, "rewards:");
  for (int p = 0; p < rf_rewards_count(rl->settings.rewards); p++)
    rf_say(run->sink, "%s %s x %g", p ? "," : "", rf_rewards_name(rl->settings.rewards, p),
           rf_rewards_weight(rl->settings.rewards, p));
  rf_say(run->sink, "\n");
  int64_t skipped = rf_rl_prompts_skipped(rl->settings.data);
  if (rl->settings.held_out) skipped += rf_rl_prompts_skipped(rl->settings.held_out);
  if (skipped)
    rf_say(run->sink, "left out %lld prompt%s with too many tokens for --seq\n", (long long)skipped,
           rf_plural(skipped));
  if (run->first_step)
    rf_say(run->sink, "resumed from %s at step %lld\n", run->folder->resume, (long long)run->first_step);
  if (run->folder->again) rf_say(run->sink, "%s", RF_BEGINS_AGAIN);
  if (run->first_step >= run->steps)
    rf_say(run->sink, "the run is already at step %lld of %lld; --steps trains further\n",
           (long long)run->first_step, (long long)run->steps);
  return RAFTER_OK;
}

static bool evaluates_at(const rf_rl_run *run, int64_t step) {
  return run->rl->settings.held_out && run->eval_every > 0 &&
         (step % run->eval_every == 0 || step == run->steps);
}

/* Sets `owes` if the last kept line is the line of the first step and has no evaluation. A signal,
 * or an error of the reward, has ended this evaluation. */
static void owes_evaluation(void *self, const char *text, size_t kept) {
  rf_rl_run *run = self;
  run->owes = evaluates_at(run, run->first_step) &&
              rf_step_line_lacks(text, kept, run->first_step, "\"eval_reward\"");
}

rf_status rf_rl_run_begin(rf_rl_run *run, rf_error *error) {
  size_t kept = 0, shown = 0;
  run->first_step = rf_rl_steps_done(run->rl);
  run->eval_reward = run->best_reward = NAN;
  RF_TRY(rf_step_lines_open(run->folder->out, "metrics.jsonl", run->first_step, owes_evaluation, run,
                            &run->metrics, &kept, error));
  RF_TRY(rf_step_lines_open(run->folder->out, "samples.jsonl", run->first_step, NULL, NULL, &run->samples,
                            &shown, error));
  run->begun = kept > 0;
  return say_start(run, error);
}

void rf_rl_run_close(rf_rl_run *run) {
  if (run->metrics) fclose(run->metrics);
  if (run->samples) fclose(run->samples);
  run->metrics = run->samples = NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

void rf_rl_run_progress(void *self, const char *phase, int64_t done, int64_t of) {
  rf_rl_run *run = self;
  double now = rf_now_seconds();
  if (!run->rl || now - run->said < 0.2) return;
  run->said = now;
  int64_t steps = rf_rl_steps_done(run->rl) - run->first_step,
          step = run->first_step + steps + !run->evaluates, all = run->steps - run->first_step;
  double part = all > 0 ? (double)steps / (double)all : 1, spent = run->done_seconds;
  if (run->seconds_limit > 0 && (part <= 0 || spent * (1 - part) / part > run->seconds_limit - spent))
    part = spent < run->seconds_limit ? spent / run->seconds_limit : 1;
  rf_put_bar_left(run->sink, spent, part, "step %lld of %lld: %s %lld of %lld", (long long)step,
                  (long long)run->steps, phase, (long long)done, (long long)of);
}

/* Sampling stops in time for a checkpoint. An end of 0 would mean no end. */
static void set_end(rf_rl_run *run) {
  if (run->seconds_limit > 0)
    run->rl->ends_at = fmax(run->start + run->seconds_limit - run->save_seconds, 1e-9);
}

static rf_status save(rf_rl_run *run, rf_error *error) {
  const int64_t before = run->saved;
  double began = rf_now_seconds();
  RF_TRY(rf_save_run(run->folder, run->sink, run->keep, &run->saved, error));
  if (run->saved != before) run->save_seconds = rf_now_seconds() - began;
  set_end(run);
  return RAFTER_OK;
}

/* Notes a failure of sampling or training. A failed reward says nothing about the weights. */
static rf_status computed(rf_rl_run *run, rf_status status) {
  run->unsound |= status == RAFTER_FAILED && !run->rl->reward_failed;
  return status;
}

/* Answers the held-out prompts and adds the figures to `line`. */
static rf_status evaluate(rf_rl_run *run, json_t *line, rf_error *error) {
  rf_rl_report report;
  run->evaluates = true;
  rf_status status = computed(run, rf_rl_evaluate(run->rl, &report, error));
  run->evaluates = false;
  RF_TRY(status);
  if (report.seconds > run->eval_seconds) run->eval_seconds = report.seconds;
  run->eval_reward = report.reward.mean;
  if (!(run->best_reward >= report.reward.mean)) run->best_reward = report.reward.mean;
  rf_rl_line_evaluation(run->rl, &report, line);
  return put_samples(run, report.step, true, error);
}

static void say_step(const rf_rl_run *run, const rf_rl_report *r, bool evaluated) {
  char a[32], b[32], c[32], d[32], e[32], kl[48] = "", held[64] = "";
  int64_t every = rf_line_every(run->steps);
  if (r->step != 1 && r->step != run->steps && r->step % every && !evaluated) return;
  if (run->rl->reference) snprintf(kl, sizeof kl, "  KL %.4g", r->kl);
  if (evaluated) snprintf(held, sizeof held, "  held out %.3f", run->eval_reward);
  rf_say(run->sink,
         "step %5lld/%lld  reward %.3f%s  %.0f tokens (%.0f %% cut)  without signal %lld/%lld%s  loss %.4f  "
         "sampling %s (planned %s, %s tok/s)  training %s (planned %s)\n",
         (long long)r->step, (long long)run->steps, r->reward.mean, held,
         (double)r->sampled_tokens / (double)r->answers, 100.0 * (double)r->cut / (double)r->answers,
         (long long)r->flat_groups, (long long)r->groups, kl, r->train.loss,
         rf_text_seconds(r->sample_seconds, a), rf_text_seconds(r->predicted_sample, b),
         rf_text_count((double)r->sampled_tokens / r->sample_seconds, e),
         rf_text_seconds(r->train_seconds, c), rf_text_seconds(r->predicted_train, d));
}

/* Takes one step and writes its lines. All lines of a step are written after its evaluation. */
static rf_status take_step(rf_rl_run *run, rf_error *error) {
  rf_rl_report report;
  rf_status status = RAFTER_OK;
  RF_TRY(computed(run, rf_rl_step(run->rl, &report, error)));
  run->last = report;
  json_t *line = rf_rl_line_step(run->rl, &report);
  status = put_samples(run, report.step, false, error);
  bool evaluates = evaluates_at(run, report.step);
  if (status == RAFTER_OK && evaluates) status = evaluate(run, line, error);
  rf_status written = put_metrics(run, line, status == RAFTER_OK ? error : NULL);
  if (status == RAFTER_OK) status = written;
  json_decref(line);
  if (status == RAFTER_OK) say_step(run, &report, evaluates);
  return status;
}

/* Saves the steps so far, because a reward or a file failed. If sampling or training failed, the
 * weights may have numbers that are not finite. Then the last checkpoint stays the newest. Returns the
 * error. */
static rf_status save_after(rf_rl_run *run, rf_status status, rf_error *error) {
  rf_error unsaved = {0};
  /* saving needs all hosts, but the other hosts do not know of this error */
  if (rf_run_hosts(run->rl->run) > 1) return status;
  if (status != RAFTER_FAILED || rf_rl_steps_done(run->rl) == 0 || !rf_rl_is_between_steps(run->rl))
    return status;
  if (run->unsound) {
    if (error && !error->hint[0])
      snprintf(error->hint, sizeof error->hint,
               "the last checkpoint is untouched; if numbers are not finite, lower --lr");
    return status;
  }
  if (save(run, &unsaved) == RAFTER_OK && error && !error->hint[0])
    snprintf(error->hint, sizeof error->hint, "the run is saved; continue with --resume %.200s",
             run->folder->out);
  return status;
}

/* Runs the missing evaluation of the previous run's last step. Then completes the line of this step
 * in metrics.jsonl. */
static rf_status evaluate_owed(rf_rl_run *run, rf_error *error) {
  json_t *line = json_object();
  rf_status status = evaluate(run, line, error);
  char *text = status == RAFTER_OK ? text_of(line) : NULL;
  if (text) status = rf_step_line_reopen(run->metrics, "metrics.jsonl", error);
  if (text && status == RAFTER_OK) fprintf(run->metrics, ",%s\n", text + 1);
  free(text);
  json_decref(line);
  return status == RAFTER_OK ? rf_check_written(run->metrics, "metrics.jsonl", error) : status;
}

/* Returns the seconds that the next step may take, with its evaluation and a checkpoint. */
static double next_seconds(const rf_rl_run *run, double longest) {
  bool evaluates = evaluates_at(run, rf_rl_steps_done(run->rl) + 1);
  return longest + (evaluates ? run->eval_seconds : 0) + run->save_seconds;
}

/* Sets *stopped if a signal has interrupted sampling, but not if --max-seconds has passed. */
static rf_status interrupted(const rf_rl_run *run, bool *stopped) {
  *stopped = !run->rl->late;
  return RAFTER_OK;
}

rf_status rf_rl_run_steps(rf_rl_run *run, bool *stopped, rf_error *error) {
  double longest = 0;
  uint32_t owes = run->owes; /* known only to host 0, because only host 0 has metrics.jsonl */
  *stopped = false;
  if (run->seconds_limit > 0)
    RF_TRY(rf_checkpoint_foresee(run->rl->trainer, run->folder->out, run->seconds_limit / 2,
                                 &run->save_seconds, error));
  set_end(run);
  RF_TRY(rf_run_agree(run->rl->run, &owes, error));
  if (owes) {
    rf_status status = evaluate_owed(run, error);
    if (status == RAFTER_INTERRUPTED) return interrupted(run, stopped);
    RF_TRY(status);
  }
  if (evaluates_at(run, 0) && !run->first_step && run->steps > 0) {
    json_t *line = json_pack("{sI}", "step", (json_int_t)0);
    rf_status status = evaluate(run, line, error);
    if (status == RAFTER_OK) status = put_metrics(run, line, error);
    if (status == RAFTER_OK)
      rf_say(run->sink, "before training, the held-out reward is %.3f\n", run->eval_reward);
    json_decref(line);
    if (status == RAFTER_INTERRUPTED) return interrupted(run, stopped);
    RF_TRY(status);
  }
  while (rf_rl_steps_done(run->rl) < run->steps) {
    double began = rf_now_seconds();
    rf_status status = take_step(run, error);
    if (status == RAFTER_INTERRUPTED) return interrupted(run, stopped);
    if (status != RAFTER_OK) return save_after(run, status, error);
    double took = rf_now_seconds() - began;
    if (evaluates_at(run, rf_rl_steps_done(run->rl))) took -= run->eval_seconds;
    if (took > longest) longest = took;
    run->done_seconds = rf_now_seconds() - run->start;
    int64_t step = rf_rl_steps_done(run->rl);
    if (run->save_every > 0 && step % run->save_every == 0 && step < run->steps) RF_TRY(save(run, error));
    enum { STOP = 1, TIME = 2 };
    uint32_t flags = rf_asked_to_stop(run->sink) ? STOP : 0;
    if (run->seconds_limit > 0 && run->done_seconds + next_seconds(run, longest) > run->seconds_limit)
      flags |= TIME;
    RF_TRY(rf_run_agree(run->rl->run, &flags, error)); /* all hosts stop together */
    if (flags & STOP) return *stopped = true, RAFTER_OK;
    if (flags) break;
  }
  return RAFTER_OK;
}

void rf_rl_run_results(const rf_rl_run *run, json_t *results) {
  const rf_rl_report *r = &run->last;
  if (!r->step) {
    json_object_set_new(results, "steps", json_integer((json_int_t)run->first_step));
    return;
  }
  json_object_update_new(results,
                         json_pack("{sI sf sf sI sf}", "steps", (json_int_t)r->step, "reward", r->reward.mean,
                                   "loss", isfinite(r->train.loss) ? r->train.loss : 0, "tokens",
                                   (json_int_t)r->train.tokens, "kl", r->kl));
  if (isfinite(run->eval_reward)) json_object_set_new(results, "eval_reward", json_real(run->eval_reward));
  if (isfinite(run->best_reward))
    json_object_set_new(results, "best_eval_reward", json_real(run->best_reward));
}
