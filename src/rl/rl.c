/* rl.c - opens reinforcement learning over one arena, and runs its steps. */
#include "rl/rl.h"

#include "rl/parts.h"

#include <stdlib.h>

static rf_status check(const rf_rl_settings *s, rf_error *error) {
  const rf_build_options *b = &s->train.plan.build;
  if (s->samples < 2 && s->loss->advantage != RF_ADVANTAGE_TOKENS)
    return RF_FAIL(error, RAFTER_INVALID, "raise --samples, or choose --loss reinforce++",
                   "%s compares the answers to a prompt (--samples: expected 2 or more, got %d)",
                   s->loss->name, s->samples);
  if (s->overlong > s->max_tokens)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "--overlong is longer than an answer (expected at most %lld, got %lld)",
                   (long long)s->max_tokens, (long long)s->overlong);
  if (rf_rl_prompts_longest(s->data) >= b->seq)
    return RF_FAIL(error, RAFTER_INVALID, "raise --seq", "a prompt leaves no room for an answer");
  return RAFTER_OK;
}

/* Makes all plans, and opens them in one run. */
static rf_status open_run(rf_rl *rl, rf_error *error) {
  const rf_rl_settings *s = &rl->settings;
  const rf_plan *list[5], *shared[4];
  RF_TRY(rf_trainer_prepare(&s->train, &rl->trainer, error));
  rl->guests = rf_rl_guests_of(&s->train.model, &s->train.plan, &s->roll, s->beta != 0);
  rl->guests.sample.debug = rl->guests.reference.debug = s->train.debug;
  rl->guests.sample.progress = rl->guests.reference.progress = s->train.progress;
  rl->guests.reference.weights_folder = s->train.weights_folder;
  rl->guests.reference.seed = s->train.seed;
  RF_TRY(rf_rl_plans_make(&rl->guests, rl->trainer->plan, &rl->plans, error));
  int plans = rf_rl_plans_list(rl->trainer->plan, &rl->plans, shared), first = 1;
  for (int i = 0; i < plans; i++) list[i] = shared[i];
  RF_TRY(rf_rl_require_fit(rl->trainer->plan, &rl->plans, error));
  RF_TRY(rf_run_open(list, plans, s->train.debug, &rl->run, error));
  RF_TRY(rf_trainer_bind(rl->trainer, rl->run, error));
  RF_TRY(rf_generator_bind(&rl->guests.sample, rl->run, first, rl->plans.prefill, rl->plans.decode,
                           &rl->generator, error));
  RF_TRY(rf_generator_require_numbers(rl->generator, error));
  RF_TRY(rf_rewards_collect(s->rewards, false, 0, error)); /* reports a program that ended at once */
  if (!rl->plans.reference) return RAFTER_OK;
  if (!rl->plans.apart)
    return rf_scorer_bind(&rl->guests.reference, rl->run, first + 2, rl->plans.reference, &rl->reference,
                          error);
  const rf_plan *alone[] = {rl->plans.reference};
  RF_TRY(rf_infer_open(&rl->guests.reference, alone, 1, &rl->apart, error));
  return rf_scorer_bind(&rl->guests.reference, rl->apart, 0, rl->plans.reference, &rl->reference, error);
}

rf_status rf_rl_open(const rf_rl_settings *settings, rf_rl **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_rl *rl = calloc(1, sizeof *rl);
  if (!rl) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a policy");
  rl->settings = *settings;
  RF_GO(check(settings, error));
  rl->given = rf_rl_prompts_given(settings->data);
  rl->settings.train.given = &rl->given;
  RF_GO(open_run(rl, error));
done:
  if (status == RAFTER_OK) *out = rl;
  else rf_rl_close(rl);
  return status;
}

void rf_rl_close(rf_rl *rl) {
  if (!rl) return;
  rf_generator_close(rl->generator);
  rf_rl_forget(rl);
  rf_scorer_close(rl->reference);
  rf_run_close(rl->apart);
  rf_run_close(rl->run);
  rf_rl_plans_free(&rl->plans);
  rf_trainer_close(rl->trainer);
  free(rl->group);
  free(rl->values);
  free(rl);
}

bool rf_rl_is_between_steps(const rf_rl *rl) { return rl->trainer->step % rl->settings.iterations == 0; }

int64_t rf_rl_steps_done(const rf_rl *rl) { return rl->trainer->step / rl->settings.iterations; }

const char *rf_rl_part_name(const rf_rl *rl, int part) {
  if (part == RF_RL_OVERLONG) return rl->settings.overlong > 0 ? "overlong" : NULL;
  return part < rf_rewards_count(rl->settings.rewards) ? rf_rewards_name(rl->settings.rewards, part) : NULL;
}

rf_status rf_rl_step(rf_rl *rl, rf_rl_report *report, rf_error *error) {
  const rf_loader_state before = rl->trainer->loader.state;
  double began = rf_now_seconds();
  *report = (rf_rl_report){.step = rf_rl_steps_done(rl) + 1};
  rf_status status = rf_rl_sample(rl, report, error);
  if (status == RAFTER_OK) rf_rl_measure_answers_end(rl, report);
  if (status == RAFTER_OK) status = rf_rl_measure_sampling(rl, report, error);
  if (status == RAFTER_OK) status = rf_rl_learn(rl, report, error);
  if (status != RAFTER_OK) rl->trainer->loader.state = before;
  report->seconds = rf_now_seconds() - began;
  return status;
}

rf_status rf_rl_evaluate(rf_rl *rl, rf_rl_report *report, rf_error *error) {
  double began = rf_now_seconds();
  *report = (rf_rl_report){.step = rf_rl_steps_done(rl)};
  RF_TRY(rf_rl_sample_held_out(rl, report, error));
  rf_rl_measure_answers_end(rl, report);
  RF_TRY(rf_rl_measure_sampling(rl, report, error));
  report->seconds = rf_now_seconds() - began;
  return RAFTER_OK;
}
