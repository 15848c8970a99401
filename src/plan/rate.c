/* rate.c - tokens per step, and the peak FLOP/s, which utilisation is measured against. */
#include "plan/plan.h"

#include <string.h>

double rf_plan_tokens(const rf_plan *plan) {
  const rf_build_options *b = &plan->options.build;
  if (b->job != RF_JOB_GENERATE) return (double)(b->microbatch * b->seq * b->accumulate);
  return (double)(b->rows > 0 ? b->rows : b->microbatch);
}

double rf_plan_matmul_peak_flops(const rf_plan *plan) {
  return plan->options.build.matmul_set
             ? plan->machine.flops[plan->options.build.matmul] * plan->machine.chips
             : rf_plan_peak_flops(plan);
}

double rf_plan_peak_flops(const rf_plan *plan) {
  rf_dtype dtype = plan->options.build.dtype;
  /* without AMX, kernels widen bf16 to f32 */
  bool tiles = dtype == RF_BF16 && plan->options.isa >= RF_ISA_AMX && plan->machine.flops[RF_BF16] > 0;
  if (plan->machine.kind == RF_MACHINE_CPU && !tiles) dtype = RF_F32;
  return plan->machine.flops[dtype] * plan->machine.chips;
}
