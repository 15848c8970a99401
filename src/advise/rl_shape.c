/* rl_shape.c - see rl_shape.h. */
#include "advise/rl_shape.h"

#include <string.h>

enum { MOST_ANSWERS = 1 << 20, PROMPTS = 8, AT_ONCE = 64, MICROBATCH = 8 };

rf_status rf_rl_sizes_set(rf_options *o, int64_t copies, rf_error *error) {
  const bool batch = rf_options_given(o, "batch"), micro = rf_options_given(o, "microbatch"),
             accumulate = rf_options_given(o, "accumulate"), plans = rf_options_knows(o, "fit"),
             fit = plans && rf_options_given(o, "fit");
  /* `rafter rl` has --prompts, `rafter plan` has --requests */
  const int64_t prompts = rf_options_int_or(o, "prompts", rf_options_int_or(o, "requests", PROMPTS)),
                answers = prompts * rf_options_int_or(o, "samples", 1),
                parts = copies * (accumulate ? rf_options_int(o, "accumulate") : 1);
  int64_t slots = rf_round_up(answers < AT_ONCE ? answers : AT_ONCE, parts);
  if (micro && accumulate) slots = rf_options_int(o, "microbatch") * rf_options_int(o, "accumulate");
  if (batch) slots = rf_options_int(o, "batch");
  else RF_TRY(rf_options_set_int(o, "batch", slots, error));
  if (micro || accumulate || fit || (batch && plans)) return RAFTER_OK;
  return rf_options_set_int(o, "microbatch", rf_round_up(slots < MICROBATCH ? slots : MICROBATCH, copies),
                            error);
}

rf_status rf_rl_shape_of(const rf_options *o, int64_t slots, rf_rl_shape *shape, rf_error *error) {
  const char *name = rf_options_text_or(o, "loss", "grpo");
  const rf_rl_loss *loss = RF_RL_LOSSES;
  while (loss->name && strcmp(loss->name, name)) loss++;
  if (!loss->name)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "unknown loss (--loss: expected %s, got %s)",
                   RF_RL_LOSS_NAMES, name);
  const int samples = (int)rf_options_int_or(o, "samples", 1);
  *shape = (rf_rl_shape){.loss = loss,
                         .beta = rf_options_float_or(o, "beta", loss->beta),
                         .samples = samples,
                         .iterations = (int)rf_options_int_or(o, "iterations", 1),
                         .temperature = rf_options_float_or(o, "temperature", 1),
                         .reward_seconds = rf_options_float_or(o, "reward-seconds", 0)};
  const double cap = rf_options_float_or(o, "ratio-cap", 0), dropout = rf_options_float_or(o, "dropout", 0);
  /* run.json of other commands may have temperature 0, which is greedy */
  if (!(shape->temperature >= 1e-3))
    return RF_FAIL(error, RAFTER_INVALID, "raise --temperature",
                   "greedy answers do not differ (--temperature: expected 0.001 or more, got %g)",
                   shape->temperature);
  if (dropout > 0)
    return RF_FAIL(
        error, RAFTER_INVALID, "leave --dropout out",
        "dropout would train other probabilities than those of the sampler (--dropout: expected 0, "
        "got %g)",
        dropout);
  if (loss->policy.clip != RF_POLICY_CLIP_RATIO && rf_options_given(o, "clip-low"))
    return RF_FAIL(error, RAFTER_INVALID, "leave --clip-low out", "%s clips only large ratios (--clip-low)",
                   loss->name);
  if (cap != 0 && cap < 1)
    return RF_FAIL(error, RAFTER_INVALID, "raise --ratio-cap, or leave it out",
                   "--ratio-cap is out of range (expected 0, or 1 or more, got %g)", cap);
  /* `rafter rl` has --prompts, `rafter plan` has --requests */
  shape->prompts =
      rf_options_int_or(o, "prompts", rf_options_int_or(o, "requests", (slots + samples - 1) / samples));
  if (shape->prompts * samples > MOST_ANSWERS)
    return RF_FAIL(error, RAFTER_INVALID, "lower the number of prompts or --samples",
                   "a step has too many answers (expected at most %d, got %lld)", MOST_ANSWERS,
                   (long long)(shape->prompts * samples));
  return RAFTER_OK;
}

/* Returns true if the trainer and the sampler may compute log-probabilities with equal bits. This
 * needs a single optimizer step over the answers, and a backend whose bits do not depend on the
 * batch. A cache of latent attention changes the bits of the sampler. The builder of the graph also
 * looks at the dtype of the cache and at the mesh, because --fit may still change them. */
static bool is_on_policy(const rf_rl_shape *shape, const rf_settings *policy) {
  const rf_plan_options *plan = &policy->plan;
  return shape->iterations == 1 && !plan->backend->compiles && !plan->backend->sheet &&
         policy->model.kv_rank == 0;
}

rf_status rf_rl_shape_policy(const rf_options *o, const rf_rl_shape *shape, rf_settings *policy,
                             rf_error *error) {
  rf_build_options *b = &policy->plan.build;
  const int64_t answers = shape->prompts * shape->samples;
  const bool fast = !strcmp(rf_options_text_or(o, "compute", "exact"), "fast");
  if (fast && policy->model.lora.rank == 0)
    return RF_FAIL(error, RAFTER_INVALID, "train an adapter with --lora, or leave --compute out",
                   "--compute fast needs frozen weights, but this job trains them");
  if (policy->model.lora.dropout > 0)
    return RF_FAIL(error, RAFTER_INVALID, "leave dropout out of --lora",
                   "dropout would train other probabilities than those of the sampler (--lora dropout: "
                   "expected 0, got %g)",
                   (double)policy->model.lora.dropout);
  b->dropout = 0;
  b->objective = RF_OBJECTIVE_POLICY;
  b->policy = shape->loss->policy;
  b->policy.beta = shape->loss->kl_in_reward ? 0 : (float)shape->beta;
  b->policy.clip_low = (float)rf_options_float_or(o, "clip-low", (double)b->policy.clip_low);
  b->policy.clip_high = (float)rf_options_float_or(o, "clip-high", (double)b->policy.clip_high);
  b->policy.cap = (float)rf_options_float_or(o, "ratio-cap", 0);
  b->policy.on_policy = is_on_policy(shape, policy);
  b->fast = fast; /* sampler and trainer must round alike */
  b->temperature = shape->temperature == 1 ? 0 : (float)shape->temperature;
  if (b->microbatch > answers) b->microbatch = answers;
  b->accumulate = (int)((answers + b->microbatch - 1) / b->microbatch);
  return RAFTER_OK;
}

const rf_option RF_RL_OPTIONS[] = {
    RF_NUMBER("iterations", INT, "N", 1, 1024, "1", "Reinforcement learning",
              "optimizer steps over the answers of a step"),
    RF_NUMBER("clip-low", FLOAT, NULL, 0, 1, NULL, "Reinforcement learning",
              "ratios of new to old probability below 1 - this value are clipped; unset: 0.2 (gspo: 3e-4)"),
    RF_NUMBER("clip-high", FLOAT, NULL, 0, 1e6, NULL, "Reinforcement learning",
              "ratios above 1 + this value are clipped; unset: 0.2 (dapo: 0.28, gspo: 4e-4, cispo: 4)"),
    RF_NUMBER("ratio-cap", FLOAT, NULL, 0, 1e6, "0", "Reinforcement learning",
              "larger ratios count as this value, for backends whose sampler and trainer differ; 0: no cap"),
    RF_NUMBER("temperature", FLOAT, NULL, 0, 100, "1", "Reinforcement learning",
              "divisor of the logits in sampling and in the loss; above 0"),
    RF_NUMBER("reward-seconds", DURATION, NULL, 0, 1e9, "0", "Reinforcement learning",
              "expected wait for the rewards of a step, for the planned time"),
    {.name = NULL},
};
