/* train.h - the trainer: plans, arena, data and step counter of one training run. */
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
  const char *data; /* loader's syntax */
  bool pack;
  double val_fraction;
  rf_loss_on loss_on; /* these three: as rf_source_options has them */
  const char *fields, *template;
  const char *work_folder; /* where data is converted: the run's folder */
  rf_schedule schedule;
  uint64_t seed;
  const char *weights_folder; /* start from these weights; NULL or "": initialise */
  const char *resume_folder;  /* a complete checkpoint; NULL: start at step 1 */
  rf_run_debug debug;
  rf_progress progress; /* of a long load */
} rf_train_settings;

/* Tensor ids of one parameter in the training plan. f32: the weight is its own master. */
typedef struct rf_state_tensors {
  int weight, master, m, v;
} rf_state_tensors;

typedef struct rf_trainer {
  rf_train_settings settings;
  /* one arena, the same persistent region; val_plan NULL without a validation split */
  rf_plan *plan, *val_plan;
  rf_run *run;
  rf_loader loader;
  rf_state_tensors *state;   /* one per parameter */
  rf_batch batch, val_batch; /* views of the plans' inputs */
  double *metrics, *val_metrics;
  float *clip; /* {global norm, scale} */
  rf_step_work work;
  /* done so far; tokens read so far, and those of them that the loss counted */
  int64_t step, tokens, loss_tokens;
  double flops; /* model FLOPs since it was opened */
  struct rf_trainer_counts {
    int64_t steps, tokens, validation_walks;
    double step_seconds, validation_seconds;
  } counted; /* since it was opened */
  /* the text of settings.template, which checkpoints take along; NULL: it is the model's own */
  char *template;
  size_t template_bytes;
} rf_trainer;

/* Plans first: RAFTER_NO_FIT before data is read or memory is taken. */
rf_status rf_trainer_open(const rf_train_settings *settings, rf_trainer **trainer, rf_error *error);
void rf_trainer_close(rf_trainer *trainer);
rf_status rf_trainer_step(rf_trainer *trainer, rafter_step *step, rf_error *error);
rf_status rf_trainer_validate(rf_trainer *trainer, int64_t rows, double *loss, rf_error *error);

#endif
