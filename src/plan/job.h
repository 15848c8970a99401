/* job.h - computes the settings of a plan (model, machine, step) from the options of a command. */
#ifndef RF_JOB_H
#define RF_JOB_H

#include "base/options.h"
#include "plan/plan.h"
#include "model/weights.h"

/* Fraction of the memory that --fit leaves free on machines that can only be planned, because the
 * memory of another program differs from the plan's. vLLM leaves the same fraction by default. */
#define RF_PLAN_MARGIN 0.1
enum { RF_PLAN_SEQ = 4096 }; /* default length of `rafter plan`, if the model takes longer sequences */
enum { RF_ADAPTER_SLOTS = 4, RF_ADAPTER_RANK = 16 }; /* default numbers for adapter slots that clients fill */

typedef struct rf_settings {
  rf_model model;
  char weights_folder[4096]; /* path of the model; "" if MODEL is a preset or an inline shape */
  rf_machine machine;
  rf_weight_types weights; /* storage types of weights that are not trained */
  /* Do not move this struct, because plan.machine and plan.build.weights point into it. */
  rf_plan_options plan;
  rf_fit_vary vary; /* settings that --fit chooses, because the user left them open */
  bool fit;
  double margin;                   /* fraction of the memory that --fit leaves free */
  bool seq_default, dtype_default; /* `rafter plan` chose --seq or --dtype */
  /* the reason why the default batch was raised: "this mesh" or an option; NULL: it was not
   * raised */
  const char *batch_for;
} rf_settings;

/* Turns the options into settings. Reports every error that can be found without a device. The
 * result RAFTER_INVALID comes with an error that names the option. `job` is "train", "generate" or
 * "score". */
rf_status rf_settings_resolve(const rf_options *options, const char *job, rf_settings *settings,
                              rf_error *error);

/* True if the command can run on the ranks of an MPI job. */
bool rf_runs_on_ranks(const rf_options *options);
/* The rank of this process among the ranks of the job. The rank is 0 if the job has only this
 * process. */
int rf_rank_of_job(const rf_options *options);
/* Finds the hosts of the run in the options and in variables of the launcher. The result is
 * RAFTER_INVALID if options and variables contradict each other, or if one is missing. With
 * --backend cpu, each rank of an MPI job is a host with one chip. */
rf_status rf_hosts_of(const rf_options *options, rf_hosts *hosts, rf_error *error);

/* Name of the model that drafts, from --speculate MODEL. NULL: there is none. */
const char *rf_drafter_given(const rf_options *options);
/* Finds the settings of the model that drafts for `target`. Precision, machine and context are the
 * same as those of `target`. The result is RAFTER_INVALID if the vocabularies differ, or if the
 * context is too long. */
rf_status rf_settings_resolve_drafter(const rf_options *options, const rf_settings *target,
                                      rf_settings *drafter, rf_error *error);

/* Tables of the options that rf_settings_resolve reads. Each kind of command has its own table. */
extern const rf_option RF_MODEL_OPTIONS[]; /* options of all commands that plan a model */
/* options of commands that run a model without training it */
extern const rf_option RF_INFERENCE_OPTIONS[];
extern const rf_option RF_CACHE_OPTIONS[];       /* commands that can generate */
extern const rf_option RF_SERVICE_OPTIONS[];     /* options of commands that serve or plan a service */
extern const rf_option RF_ADAPTER_OPTIONS[];     /* options of slots for adapters, for the same commands */
extern const rf_option RF_SPECULATION_OPTIONS[]; /* commands that generate */
extern const rf_option RF_STEP_OPTIONS[];        /* commands that can train */
extern const rf_option RF_HOST_OPTIONS[];        /* options of commands that run on several hosts */
extern const rf_option RF_PIPELINE_OPTIONS[];    /* options of commands that can train on a pipeline */
extern const rf_option RF_OFFLOAD_OPTIONS[];
/* options that only `rafter plan` has, and the options of --fit */
extern const rf_option RF_LAYOUT_OPTIONS[];

#endif
