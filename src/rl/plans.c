/* plans.c - see plans.h. */
#include "rl/plans.h"

rf_rl_guests rf_rl_guests_of(const rf_model *model, const rf_plan_options *plan, const rf_build_options *roll,
                             bool has_reference) {
  rf_rl_guests g = {.sample = {.model = *model, .plan = *plan}, .has_reference = has_reference};
  rf_build_options *b = &g.sample.plan.build;
  b->objective = RF_OBJECTIVE_NLL;
  b->dropout = 0;
  b->loss_only = false;
  g.sample.plan.remat = RF_REMAT_NONE;
  g.reference = g.sample;
  g.reference.model.lora = (rf_lora){0};
  b->job = RF_JOB_GENERATE;
  b->accumulate = 1;
  b->microbatch = roll->microbatch;
  b->sequences = roll->sequences;
  b->chunk = roll->chunk;
  b->kv_dtype_set = roll->kv_dtype_set;
  b->kv_dtype = roll->kv_dtype;
  return g;
}

rf_status rf_rl_plans_make(const rf_rl_guests *guests, const rf_plan *policy, rf_rl_plans *plans,
                           rf_error *error) {
  rf_infer_settings sample = guests->sample, reference = guests->reference;
  rf_status status = RAFTER_OK;
  *plans = (rf_rl_plans){.apart = guests->has_reference && sample.model.lora.rank == 0};
  sample.plan.owner = policy;
  reference.plan.owner = plans->apart ? NULL : policy;
  RF_GO(rf_generate_plans(&sample, &plans->prefill, &plans->decode, error));
  if (guests->has_reference) RF_GO(rf_score_plan(&reference, &plans->reference, error));
done:
  if (status != RAFTER_OK) rf_rl_plans_free(plans);
  return status;
}

void rf_rl_plans_free(rf_rl_plans *plans) {
  rf_plan_free(plans->prefill);
  rf_plan_free(plans->decode);
  rf_plan_free(plans->reference);
  *plans = (rf_rl_plans){0};
}

int rf_rl_plans_list(const rf_plan *policy, const rf_rl_plans *plans, const rf_plan *list[4]) {
  int count = 0;
  list[count++] = policy;
  list[count++] = plans->prefill;
  list[count++] = plans->decode;
  if (plans->reference && !plans->apart) list[count++] = plans->reference;
  return count;
}

int64_t rf_rl_plans_bytes(const rf_plan *policy, const rf_rl_plans *plans) {
  const rf_plan *list[4];
  int64_t bytes = rf_plan_joint_bytes(list, rf_rl_plans_list(policy, plans, list));
  return bytes + (plans->apart ? plans->reference->arena_bytes : 0);
}

rf_status rf_rl_require_fit(const rf_plan *policy, const rf_rl_plans *plans, rf_error *error) {
  const rf_plan *list[4];
  int count = rf_rl_plans_list(policy, plans, list);
  for (int i = 0; i < count; i++) RF_TRY(rf_plan_require_fit(list[i], error));
  int64_t room = rf_plan_room(&policy->options), bytes = rf_rl_plans_bytes(policy, plans);
  if (bytes <= room) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_NO_FIT, "train an adapter with --lora, or set --beta 0: then one copy is enough",
      "%s with a second copy of the base model does not fit %s (memory: expected at most %.2f "
      "GiB, got %.2f GiB)",
      policy->graph->model.name, policy->machine.name, (double)room / 0x1p30, (double)bytes / 0x1p30);
}
