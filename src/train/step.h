/* step.h - runs one optimizer step over microbatches that come from any source. Private to
 * src/train. */
#ifndef RF_STEP_H
#define RF_STEP_H

#include "train/train.h"

/* The microbatches of a step. */
typedef struct rf_step_source {
  int64_t microbatches, tokens, valid; /* valid: number of labels that the loss counts */
  float loss_scale;
  double flops; /* model FLOPs of the step */
  void *self;
  /* Writes the inputs of a microbatch to trainer->batch. */
  rf_status (*fill)(void *self, int64_t micro, rf_error *error);
  /* Reads the outputs of a microbatch before the next microbatch is filled. If the run defers
   * outputs, reads them after the whole step. NULL: nothing. */
  void (*take)(void *self, int64_t micro);
} rf_step_source;

rf_run_inputs rf_step_inputs(const rf_trainer *trainer, float loss_scale);
/* Runs the step, which began at `start`. The caller has already begun a guard. Sets *out, without
 * the loss. */
rf_status rf_step_take(rf_trainer *trainer, const rf_step_source *source, double start, rafter_step *out,
                       rf_error *error);

#endif
