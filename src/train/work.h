/* work.h - model FLOPs of the real tokens of a step. The plan has the price of full rows. In
 * training, unused positions of a row do no useful work, and short examples attend to fewer
 * keys. */
#ifndef RF_WORK_H
#define RF_WORK_H

#include "plan/plan.h"
#include "train/loader.h"

enum { RF_MAX_WINDOWS = 8 };

typedef struct rf_step_work {
  double fixed, per_token; /* fixed: FLOPs of the optimizer per step; per_token: all other FLOPs. */
  int windows;
  struct {
    int window;
    double per_pair; /* FLOPs per pair of query and key, summed over all layers with this window */
  } at[RF_MAX_WINDOWS];
} rf_step_work;

rf_step_work rf_step_work_of(const rf_plan *plan);
/* FLOPs of the step that the loader has drawn. The step has `tokens` tokens. If every row is one
 * full segment, the result is plan->model_flops. */
double rf_step_flops(const rf_step_work *work, const rf_loader *loader, int64_t tokens);

#endif
