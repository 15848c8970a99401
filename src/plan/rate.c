/* rate.c - what a plan's speed is measured against. */
#include "plan/plan.h"

#include <string.h>

double rf_plan_peak_flops(const rf_plan *plan) {
  rf_dtype dtype = !strcmp(plan->machine.kind, "cpu") ? RF_F32 : plan->options.build.dtype;
  return plan->machine.flops[dtype] * plan->machine.chips;
}
