/* job.h - from the options of a command to the settings of a plan: the one place where options
 * become a model, a machine and a step. */
#ifndef RF_JOB_H
#define RF_JOB_H

#include "base/options.h"
#include "plan/plan.h"
#include "model/weights.h"

typedef struct rf_settings {
  rf_model model;
  char weights_folder[4096]; /* "" when the model is a preset or an inline shape */
  rf_machine machine;
  rf_weight_types weights; /* what its matrices are stored in; of jobs that do not train it */
  /* plan.machine and plan.build.weights point to what stands above: do not move the struct */
  rf_plan_options plan;
  rf_fit_vary vary; /* what --fit may change: all that the user did not set */
  bool fit;
} rf_settings;

/* Checks everything that can be checked without the device. RAFTER_INVALID names the option.
 * `job` is "train", "generate" or "score". */
rf_status rf_settings_resolve(const rf_options *options, const char *job, rf_settings *settings,
                              rf_error *error);

/* The options it reads, in tables by who takes them. */
extern const rf_option RF_MODEL_OPTIONS[];     /* every command that plans a model */
extern const rf_option RF_INFERENCE_OPTIONS[]; /* of them, those that may run without training */
extern const rf_option RF_CACHE_OPTIONS[];     /* those that may generate */
extern const rf_option RF_STEP_OPTIONS[];      /* those that may train */
extern const rf_option RF_OFFLOAD_OPTIONS[];
extern const rf_option RF_LAYOUT_OPTIONS[]; /* what can only be planned, and --fit */

#endif
