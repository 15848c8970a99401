/* plans.h - the plans of a step of reinforcement learning in one arena. The policy's training step
 * owns the weights, and sampling and the reference pass use the bytes after the weights. */
#ifndef RF_RL_PLANS_H
#define RF_RL_PLANS_H

#include "generate/generate.h"
#include "generate/score.h"

/* Those settings that differ from the policy's settings. */
typedef struct rf_rl_guests {
  rf_infer_settings sample;    /* settings of the generator that samples from the policy */
  rf_infer_settings reference; /* settings of the scorer, which uses the base model */
  bool has_reference;
} rf_rl_guests;

typedef struct rf_rl_plans {
  rf_plan *prefill, *decode;
  rf_plan *reference; /* NULL: none */
  /* True: all weights are trained, so the reference has a copy of the base weights in its own
   * arena. */
  bool apart;
} rf_rl_plans;

/* Returns the settings of sampling and of the reference for a policy that trains with `plan`. The
 * model's adapter belongs to the policy, and the reference is the base without this adapter. `roll`
 * has the sizes of sampling: microbatch (answers at once), sequences, chunk and kv_dtype. */
rf_rl_guests rf_rl_guests_of(const rf_model *model, const rf_plan_options *plan, const rf_build_options *roll,
                             bool has_reference);
/* Makes the plans, with `policy` as their owner. */
rf_status rf_rl_plans_make(const rf_rl_guests *guests, const rf_plan *policy, rf_rl_plans *plans,
                           rf_error *error);
void rf_rl_plans_free(rf_rl_plans *plans);
/* Lists the plans that share an arena, the policy first. Returns the number of plans, which is at
 * most 4. */
int rf_rl_plans_list(const rf_plan *policy, const rf_rl_plans *plans, const rf_plan *list[4]);
/* Returns the bytes of the shared arena, plus the bytes of the reference's own arena. */
int64_t rf_rl_plans_bytes(const rf_plan *policy, const rf_rl_plans *plans);

/* RAFTER_NO_FIT: a plan is too large, or the shared arena and the reference's arena together are
 * too large. */
rf_status rf_rl_require_fit(const rf_plan *policy, const rf_rl_plans *plans, rf_error *error);

#endif
