/* train.h - trains a model: the plans, arena, data and step counter of one training run.
 * Example:
 *   rf_trainer_open(&settings, &trainer, error);
 *   while (trainer->step < steps) rf_trainer_step(trainer, &step, error);   // step.loss, ...
 *   rf_checkpoint_save(trainer, folder, error);                             // checkpoint.h
 *   rf_trainer_close(trainer);                                              // end of the example.
 *
 * Three things change no bit of the results: the number of threads, the recomputation, and an
 * interruption after which the run resumes from a checkpoint. */
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
  const char *data; /* sources, in the syntax of rf_loader_open */
  /* data that the caller itself reads, for steps of sequences.h; NULL: `data` is read */
  const rf_given *given;
  bool pack;
  double val_fraction;
  rf_loss_on loss_on; /* loss_on, fields and template: as in rf_source_options */
  const char *fields, *template;
  const char *work_folder; /* folder of the run, for shards that are made from the data */
  rf_schedule schedule;
  uint64_t seed;
  const char *weights_folder;   /* folder of the initial weights; NULL or "": random weights */
  const char *tokenizer_folder; /* folder of the tokenizer, for a model that has none; NULL or "": none */
  const char *resume_folder;    /* folder of a complete checkpoint; NULL: the run starts at step 1 */
  rf_run_debug debug;
  /* Function that reports the progress of a long load. If progress.stop is set, a load, step or
   * validation ends. */
  rf_progress progress;
} rf_train_settings;

/* The folder or file of the tokenizer that reads the data. "" or NULL: the byte tokenizer. */
static inline const char *rf_train_tokenizer(const rf_train_settings *s) {
  return s->tokenizer_folder && *s->tokenizer_folder ? s->tokenizer_folder : s->weights_folder;
}

/* Ids of a parameter's tensors in the training plan. RF_NONE: the plan does not have this tensor.
 * The master may be the f32 weight itself. */
typedef struct rf_state_tensors {
  int weight, master, m, v;
} rf_state_tensors;

typedef struct rf_trainer {
  rf_train_settings settings;
  /* The two plans use one arena and the same weights. If val_plan is NULL, the run has no
   * validation. */
  rf_plan *plan, *val_plan;
  rf_run *run;
  bool owns; /* true: rf_trainer_close closes the run. */
  rf_loader loader;
  rf_state_tensors *state;         /* (params). */
  rf_token_batch batch, val_batch; /* Inputs of plan and val_plan. */
  double *metrics, *val_metrics;
  float *clip; /* {global norm, scale}. */
  rf_step_work work;
  /* number of steps done, of tokens read, and of tokens that the loss counted */
  int64_t step, tokens, loss_tokens;
  /* true after a failed step or validation whose data could not be read, or was changed */
  bool lost_data;
  bool early_updates; /* true: the section micro updates weights, before the section end */
  double flops;       /* model FLOPs since the trainer was opened */
  struct rf_trainer_counts {
    int64_t steps, tokens, validation_passes;
    double step_seconds, validation_seconds;
    /* true if the first step is left out, because it copied the weights to a device that
     * compiles */
    bool later;
  } counted; /* counts since the trainer was opened */
  /* Function that writes further files of a checkpoint, in `folder`. NULL: the checkpoint has no
   * further files. */
  rf_status (*save_more)(void *more, const char *folder, rf_error *error);
  void *more;
  /* text of the file settings.template, for checkpoints; NULL: the template of the model */
  char *template;
  size_t template_bytes;
} rf_trainer;

/* Opens a trainer. An error of the data is reported before RAFTER_NO_FIT. RAFTER_NO_FIT is reported
 * before the arena is allocated or large files are tokenized. */
rf_status rf_trainer_open(const rf_train_settings *settings, rf_trainer **trainer, rf_error *error);
/* The two parts of rf_trainer_open, for a run that the trainer shares with generators and scorers.
 * rf_trainer_prepare makes the plans and opens the data. rf_trainer_bind starts the trainer on a
 * run and loads the weights. The first plans of the run must be those of rf_trainer_plans. Other
 * plans have trainer->plan as their owner (rf_plan_options.owner). Plans of other jobs may run
 * between steps. The caller still owns the run. The caller closes the run after the generators and
 * before the trainer. */
rf_status rf_trainer_prepare(const rf_train_settings *settings, rf_trainer **trainer, rf_error *error);
int rf_trainer_plans(const rf_trainer *trainer, const rf_plan *plans[2]); /* Returns their number. */
rf_status rf_trainer_bind(rf_trainer *trainer, rf_run *run, rf_error *error);
void rf_trainer_close(rf_trainer *trainer);
/* Takes one optimizer step. *step gets the results. RAFTER_FAILED: the loss or the gradient norm is
 * not finite. The message names the first op whose output is not finite. RAFTER_INTERRUPTED:
 * settings.progress.stop was set before the step changed a weight. Then the step has no effect. A
 * step whose data cannot be read or has changed has no effect either (lost_data, RAFTER_FAILED). */
rf_status rf_trainer_step(rf_trainer *trainer, rafter_step *step, rf_error *error);
/* Sets *loss to the mean loss per label of `rows` validation rows. The number of rows is rounded up
 * to whole microbatches. RAFTER_INTERRUPTED as for rf_trainer_step. */
rf_status rf_trainer_validate(rf_trainer *trainer, int64_t rows, double *loss, rf_error *error);

#endif
