/* rl_shape.h - the settings of a step of reinforcement learning, from the options that `rafter rl`
 * and `rafter plan --job rl` share. So a run executes exactly the step that was planned. */
#ifndef RF_ADVISE_RL_SHAPE_H
#define RF_ADVISE_RL_SHAPE_H

#include "base/options.h"
#include "plan/job.h"
#include "rl/losses.h"

typedef struct rf_rl_shape {
  const rf_rl_loss *loss;
  double beta;     /* weight of the KL divergence; 0: no reference model */
  int64_t prompts; /* prompts of a step */
  int samples;     /* answers to each prompt */
  int iterations;  /* optimizer steps over the answers of a step */
  double temperature;
  double reward_seconds; /* expected wait for rewards in a step */
} rf_rl_shape;

/* Sets options for the sizes that the user left open: --batch, the number of answers sampled at
 * once, and --microbatch. `copies` (rf_mesh_copies) must divide both. A search with --fit finds the
 * microbatch itself. `rafter plan` trains a given --batch as one microbatch. */
rf_status rf_rl_sizes_set(rf_options *options, int64_t copies, rf_error *error);
/* Reads the shape. The default number of prompts follows from `slots`, the number of answers that
 * are sampled at once. RAFTER_INVALID: the error names the option. */
rf_status rf_rl_shape_of(const rf_options *options, int64_t slots, rf_rl_shape *shape, rf_error *error);
/* Completes the settings of the policy from rf_settings_resolve(.., "train", ..): the loss, and as
 * many microbatches as all answers of a step need. Dropout is switched off even if the model has
 * dropout, so that trainer and sampler have equal probabilities. RAFTER_INVALID: the error names
 * the option. */
rf_status rf_rl_shape_policy(const rf_options *options, const rf_rl_shape *shape, rf_settings *policy,
                             rf_error *error);

/* The options, without --loss, --beta, --samples and --max-tokens. */
extern const rf_option RF_RL_OPTIONS[];

#endif
