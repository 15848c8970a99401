/* work.h - the model FLOPs of a step's own tokens: what stands unused in a row is no work, and
 * short examples attend to fewer keys than the full rows that a plan is priced with. */
#ifndef RF_WORK_H
#define RF_WORK_H

#include "plan/plan.h"
#include "train/loader.h"

enum { RF_MAX_WINDOWS = 8 };

typedef struct rf_step_work {
  double fixed, per_token; /* FLOPs of a step (the optimizer), of a token */
  int windows;
  struct {
    int window;
    double per_pair; /* FLOPs of a query and a key, in all layers of that window */
  } at[RF_MAX_WINDOWS];
} rf_step_work;

rf_step_work rf_step_work_of(const rf_plan *plan);
/* Of the step that the loader has drawn, which holds so many tokens. Equals plan->model_flops
 * when every row is one full segment. */
double rf_step_flops(const rf_step_work *work, const rf_loader *loader, int64_t tokens);

#endif
