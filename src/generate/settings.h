/* settings.h - settings of generators and scorers, and a function that opens their arena with
 * weights. */
#ifndef RF_INFER_SETTINGS_H
#define RF_INFER_SETTINGS_H

#include "run/load.h"

typedef struct rf_infer_settings {
  /* settings of the draft model, which drafts build.draft tokens; NULL: no model */
  const struct rf_infer_settings *drafter;
  rf_model model;
  /* For generators, `build.seq` is the context in tokens. `build.microbatch` is the maximum number
   * of running answers. `build.sequences` is the number of sequences of full length that fit in the
   * cache. For scorers, `build.seq` is the number of tokens of the longest sequence.
   * `build.microbatch` is the number of rows of a forward pass / `build.seq`. `build.top` is the
   * number of alternatives for each token. */
  rf_plan_options plan;
  const char *weights_folder;
  uint64_t seed; /* Seed of the random weights of a model without a weights folder. */
  rf_run_debug debug;
  bool drafts_all; /* true: drafts as many tokens as possible, even if the plan expects no gain. */
  const rf_plan *drafter_plan; /* for rf_simulate: decode plan of the draft model; NULL: no model */
  double acceptance;           /* for rf_simulate: probability that a drafted token is right. */
  /* For rf_simulate: sampling options, whose time on the plan's machine is added; NULL: no time is
   * added. */
  const struct rf_sampler_options *choice;
  bool no_sharing; /* true: prompts do not reuse cached prefixes. Answers do not change. */
  bool no_ahead;   /* true: each pass waits for the tokens of the previous pass. Answers do not change. */
  /* Maximum time of a pass that also reads prompts, as a multiple of the predicted time without
   * prompts; 0: no limit. */
  double step_growth;
  rf_progress progress; /* Reports the progress of loading weights; may be {0}. */
} rf_infer_settings;

/* Allocates one arena for the plans and loads the weights of plan 0, which must fit. The backend
 * null has no memory, so nothing is loaded there. */
rf_status rf_infer_open(const rf_infer_settings *settings, const rf_plan *const *plans, int count,
                        rf_run **run, rf_error *error);

#endif
