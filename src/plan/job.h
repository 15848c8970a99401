/* job.h - computes the settings of a plan (model, machine, step) from the options of a command. */
#ifndef RF_JOB_H
#define RF_JOB_H

#include "base/options.h"
#include "plan/plan.h"
#include "model/weights.h"

/* Fraction of the memory that --fit leaves free on machines that can only be planned, because the
 * memory of another program differs from the plan's. vLLM leaves the same fraction by default. */
#define RF_PLAN_MARGIN 0.1
enum { RF_PLAN_SEQ = 4096 }; /* default length of `rafter plan`, if the model takes longer ones */
enum { RF_ADAPTER_SLOTS = 4, RF_ADAPTER_RANK = 16 }; /* defaults of slots that clients fill */

typedef struct rf_settings {
  rf_model model;
  char weights_folder[4096]; /* "" if MODEL is a preset or an inline shape */
  rf_machine machine;
  rf_weight_types weights; /* storage types of weights that are not trained */
  /* Do not move the struct: plan.machine and plan.build.weights point into it. */
  rf_plan_options plan;
  rf_fit_vary vary; /* settings that the user left to --fit */
  bool fit;
  double margin;                   /* fraction of the memory that --fit leaves free */
  bool seq_default, dtype_default; /* `rafter plan` chose --seq or --dtype */
  const char *batch_for; /* what raised the default batch: "this mesh" or an option; NULL: nothing did */
} rf_settings;

/* Resolves the options into settings. Reports every error that can be found without a device.
 * RAFTER_INVALID: the error names the option. `job` is "train", "generate" or "score". */
rf_status rf_settings_resolve(const rf_options *options, const char *job, rf_settings *settings,
                              rf_error *error);

/* True if the command can run on the ranks of an MPI job. */
bool rf_runs_on_ranks(const rf_options *options);
/* The rank of this process among those of the job; 0: the job runs in this process alone. */
int rf_rank_of_job(const rf_options *options);
/* The hosts of the run: options, and variables of the launcher. RAFTER_INVALID: they contradict
 * each other, or one is missing. With --backend cpu, each rank of an MPI job is a host with one
 * chip. */
rf_status rf_hosts_of(const rf_options *options, rf_hosts *hosts, rf_error *error);

/* The model that drafts: --speculate MODEL. NULL: there is none. */
const char *rf_drafter_given(const rf_options *options);
/* Resolves the settings of the model that drafts for `target`. Precision, machine and context are
 * those of `target`. RAFTER_INVALID: the vocabularies differ, or the context is too long. */
rf_status rf_settings_resolve_drafter(const rf_options *options, const rf_settings *target,
                                      rf_settings *drafter, rf_error *error);

/* Tables of the options that rf_settings_resolve reads, one for each kind of command. */
extern const rf_option RF_MODEL_OPTIONS[];       /* all commands that plan a model */
extern const rf_option RF_INFERENCE_OPTIONS[];   /* commands that run a model without training it */
extern const rf_option RF_CACHE_OPTIONS[];       /* commands that can generate */
extern const rf_option RF_SERVICE_OPTIONS[];     /* commands that serve or plan a service */
extern const rf_option RF_ADAPTER_OPTIONS[];     /* the same: slots for adapters */
extern const rf_option RF_SPECULATION_OPTIONS[]; /* commands that generate */
extern const rf_option RF_STEP_OPTIONS[];        /* commands that can train */
extern const rf_option RF_HOST_OPTIONS[];        /* commands that run on several hosts */
extern const rf_option RF_PIPELINE_OPTIONS[];    /* commands that can train on a pipeline */
extern const rf_option RF_OFFLOAD_OPTIONS[];
extern const rf_option RF_LAYOUT_OPTIONS[]; /* options that only `rafter plan` has, and --fit */

#endif
