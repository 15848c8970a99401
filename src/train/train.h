/* train.h - trains a model: the plans, arena, data and step counter of one training run.
 * Example:
 *   rf_trainer_open(&settings, &trainer, error);
 *   while (trainer->step < steps) rf_trainer_step(trainer, &step, error);   // step.loss, ...
 *   rf_checkpoint_save(trainer, folder, error);                             // checkpoint.h
 *   rf_trainer_close(trainer);                                              // end of the example.
 *
 * Three things do not change a bit of the results: the number of threads, the recomputation, and
 * an interruption if the run resumes from a checkpoint. */
#ifndef RF_TRAIN_H
#define RF_TRAIN_H

#include "run/load.h"
#include "run/run.h"
#include "train/loader.h"
#include "train/schedule.h"
#include "train/work.h"

typedef struct rf_train_settings {
  rf_model model;
  rf_plan_options plan;
  const char *data; /* Sources, in the syntax of rf_loader_open. */
  /* Data that the caller reads itself, for steps of sequences.h; NULL: `data` is read. */
  const rf_given *given;
  bool pack;
  double val_fraction;
  rf_loss_on loss_on; /* loss_on, fields and template: as in rf_source_options. */
  const char *fields, *template;
  const char *work_folder; /* The run's folder, for shards made from the data. */
  rf_schedule schedule;
  uint64_t seed;
  const char *weights_folder;   /* Initial weights; NULL or "": random weights. */
  const char *tokenizer_folder; /* Tokenizer of a model that has none; NULL or "": none. */
  const char *resume_folder;    /* A complete checkpoint; NULL: the run starts at step 1. */
  rf_run_debug debug;
  /* Reports the progress of a long load. With progress.stop set, a load, step or validation ends. */
  rf_progress progress;
} rf_train_settings;

/* The folder or file whose tokenizer reads the data: "" or NULL stands for the byte tokenizer. */
static inline const char *rf_train_tokenizer(const rf_train_settings *s) {
  return s->tokenizer_folder && *s->tokenizer_folder ? s->tokenizer_folder : s->weights_folder;
}

/* A parameter's tensor ids in the training plan; RF_NONE: none. A master may be the f32 weight. */
typedef struct rf_state_tensors {
  int weight, master, m, v;
} rf_state_tensors;

typedef struct rf_trainer {
  rf_train_settings settings;
  /* Both plans use one arena and the same weights. NULL as val_plan: no validation split. */
  rf_plan *plan, *val_plan;
  rf_run *run;
  bool owns; /* true: rf_trainer_close closes the run. */
  rf_loader loader;
  rf_state_tensors *state;         /* (params). */
  rf_token_batch batch, val_batch; /* Inputs of plan and val_plan. */
  double *metrics, *val_metrics;
  float *clip; /* {global norm, scale}. */
  rf_step_work work;
  /* Number of steps done, of tokens read, and of tokens that the loss counted. */
  int64_t step, tokens, loss_tokens;
  bool lost_data;     /* a step or a validation failed: its data could not be read, or changed */
  bool early_updates; /* true: weights are updated in the section micro, before the section end. */
  double flops;       /* Model FLOPs since the trainer was opened. */
  struct rf_trainer_counts {
    int64_t steps, tokens, validation_passes;
    double step_seconds, validation_seconds;
    bool later; /* the first step is left out, since it copied the weights to a device that compiles */
  } counted;    /* Counts since the trainer was opened. */
  /* Writes further files of a checkpoint, in `folder`; NULL: there are none. */
  rf_status (*save_more)(void *more, const char *folder, rf_error *error);
  void *more;
  /* Text of the file settings.template, for checkpoints; NULL: the template of the model. */
  char *template;
  size_t template_bytes;
} rf_trainer;

/* Reports an error of the data before RAFTER_NO_FIT, and RAFTER_NO_FIT before it allocates the
 * arena or tokenizes large files. */
rf_status rf_trainer_open(const rf_train_settings *settings, rf_trainer **trainer, rf_error *error);
/* The two halves of rf_trainer_open, for a run that the trainer shares with generators and scorers.
 * rf_trainer_prepare makes the plans and opens the data. rf_trainer_bind starts the trainer on a
 * run and loads the weights. The first plans of the run must be those of rf_trainer_plans. Other
 * plans have trainer->plan as their owner (rf_plan_options.owner); they may run between steps. The
 * caller still owns the run, and closes it after the generators and before the trainer. */
rf_status rf_trainer_prepare(const rf_train_settings *settings, rf_trainer **trainer, rf_error *error);
int rf_trainer_plans(const rf_trainer *trainer, const rf_plan *plans[2]); /* Returns their number. */
rf_status rf_trainer_bind(rf_trainer *trainer, rf_run *run, rf_error *error);
void rf_trainer_close(rf_trainer *trainer);
/* Takes one optimizer step and reports it in *step. RAFTER_FAILED: the loss or the gradient norm is
 * not finite. The message names the first op whose output is not finite. RAFTER_INTERRUPTED:
 * settings.progress.stop was set before the step changed a weight; the step has no effect. A step
 * whose data cannot be read or have changed has no effect either (lost_data, RAFTER_FAILED). */
rf_status rf_trainer_step(rf_trainer *trainer, rafter_step *step, rf_error *error);
/* Sets *loss to the mean loss per label of `rows` validation rows, rounded up to microbatches.
 * RAFTER_INTERRUPTED as for rf_trainer_step. */
rf_status rf_trainer_validate(rf_trainer *trainer, int64_t rows, double *loss, rf_error *error);

#endif
