/* work.h - model FLOPs of a step's real tokens. Unused positions of a row do no useful work, and
 * short examples attend to fewer keys than the full rows for which a plan is priced. */
#ifndef RF_WORK_H
#define RF_WORK_H

#include "plan/plan.h"
#include "train/loader.h"

enum { RF_MAX_WINDOWS = 8 };

typedef struct rf_step_work {
  double fixed, per_token; /* fixed: FLOPs of the optimizer per step; per_token: other FLOPs. */
  int windows;
  struct {
    int window;
    double per_pair; /* FLOPs per (query, key) pair, summed over layers with this window. */
  } at[RF_MAX_WINDOWS];
} rf_step_work;

rf_step_work rf_step_work_of(const rf_plan *plan);
/* FLOPs of the step that the loader has drawn, with `tokens` tokens. The result is
 * plan->model_flops if every row is one full segment. */
double rf_step_flops(const rf_step_work *work, const rf_loader *loader, int64_t tokens);

#endif
