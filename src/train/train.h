/* train.h - trains a model: the plans, arena, data and step counter of one training run.
 * Example:
 *   rf_trainer_open(&settings, &trainer, error);
 *   while (trainer->step < steps) rf_trainer_step(trainer, &step, error);   // step.loss, ...
 *   rf_checkpoint_save(trainer, folder, error);                             // checkpoint.h
 *   rf_trainer_close(trainer);                                              // end of the example.
 *
 * Results are bit-identical whatever the number of threads and the recomputation, and also if the
 * run is stopped and resumed from a checkpoint. */
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
  const char *data; /* Sources in the syntax of rf_loader_open. */
  bool pack;
  double val_fraction;
  rf_loss_on loss_on; /* loss_on, fields and template: as in rf_source_options. */
  const char *fields, *template;
  const char *work_folder; /* The run's folder, where converted data is written. */
  rf_schedule schedule;
  uint64_t seed;
  const char *weights_folder; /* Initial weights; NULL or "": random weights. */
  const char *resume_folder;  /* A complete checkpoint; NULL: start at step 1. */
  rf_run_debug debug;
  rf_progress progress; /* Reports a long load. */
} rf_train_settings;

/* A parameter's tensor ids in the training plan; RF_NONE: none. An f32 weight is its own master. */
typedef struct rf_state_tensors {
  int weight, master, m, v;
} rf_state_tensors;

typedef struct rf_trainer {
  rf_train_settings settings;
  /* Both plans use one arena and the same weights; val_plan is NULL without a validation split. */
  rf_plan *plan, *val_plan;
  rf_run *run;
  rf_loader loader;
  rf_state_tensors *state;         /* (params). */
  rf_token_batch batch, val_batch; /* Inputs of plan and val_plan. */
  double *metrics, *val_metrics;
  float *clip; /* {global norm, scale}. */
  rf_step_work work;
  /* Steps done, tokens read, and tokens counted by the loss. */
  int64_t step, tokens, loss_tokens;
  double flops; /* Model FLOPs since the trainer was opened. */
  struct rf_trainer_counts {
    int64_t steps, tokens, validation_walks;
    double step_seconds, validation_seconds;
  } counted; /* Counts since the trainer was opened. */
  /* Text of the file settings.template, copied into checkpoints; NULL: the model's own template. */
  char *template;
  size_t template_bytes;
} rf_trainer;

/* Makes the plans first: RAFTER_NO_FIT is returned before data is read or memory allocated. */
rf_status rf_trainer_open(const rf_train_settings *settings, rf_trainer **trainer, rf_error *error);
void rf_trainer_close(rf_trainer *trainer);
/* Takes one optimizer step and reports it in *step. RAFTER_FAILED: the loss or the gradient norm is
 * not finite; the message names the first op whose output is not finite. */
rf_status rf_trainer_step(rf_trainer *trainer, rafter_step *step, rf_error *error);
/* *loss: mean loss per label over `rows` validation rows (rounded up to full microbatches). */
rf_status rf_trainer_validate(rf_trainer *trainer, int64_t rows, double *loss, rf_error *error);

#endif
