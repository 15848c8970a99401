/* settings.h - the settings of a generator or a scorer, and the arena with weights that both need.
 */
#ifndef RF_INFER_SETTINGS_H
#define RF_INFER_SETTINGS_H

#include "run/load.h"

typedef struct rf_infer_settings {
  const struct rf_infer_settings *drafter; /* model that drafts build.draft tokens; NULL: none */
  rf_model model;
  /* Generators. build.seq: context in tokens. build.microbatch: number of answers that run at the
   * same time. build.sequences: number of sequences of full length for which the cache has
   * memory. Scorers. build.seq: tokens of the longest sequence. build.microbatch: rows of a forward
   * pass / build.seq. build.top: number of alternatives for each token. */
  rf_plan_options plan;
  const char *weights_folder;
  uint64_t seed; /* Seed of the random weights that are used if there is no weights folder. */
  rf_run_debug debug;
  bool drafts_all; /* true: drafts as many tokens as possible, even if the plan expects no gain. */
  const rf_plan *drafter_plan; /* for rf_simulate: the decode plan of the model that drafts; NULL: none */
  double acceptance;           /* rf_simulate with drafts: probability that a drafted token is right. */
  bool no_sharing;             /* true: prompts do not reuse cached prefixes. The answers are the same. */
  /* A pass that also reads prompts may take this many times the predicted seconds of the pass
   * without them; 0: no limit. */
  double step_growth;
  rf_progress progress; /* Reports the loading of weights; may be {0}. */
} rf_infer_settings;

/* Allocates one arena for the plans and loads the weights of plan 0, which must fit. The null
 * backend has no memory to fill. */
rf_status rf_infer_open(const rf_infer_settings *settings, const rf_plan *const *plans, int count,
                        rf_run **run, rf_error *error);

#endif
