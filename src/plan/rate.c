/* rate.c - tokens per step, sums of time and work, and the peak FLOP/s. Utilisation is relative to
 * this peak. */
#include "plan/parts.h"

#include <string.h>

/* Published training runs took at least FASTEST times and at most SLOWEST times the seconds that
 * data sheets predict. This range holds for all 14 runs of data/published-runs.tsv, each predicted
 * without itself. The range also holds for all 12 runs of data/published-runs-unseen.tsv
 * (tests/published_runs). */
static const double FASTEST = 0.75, SLOWEST = 1.3;

rf_bound rf_largest_bound(const rf_step_time *time) {
  rf_bound bound = RF_BOUND_COMPUTE;
  for (int b = 1; b < RF_BOUNDS; b++)
    if (time->by[b] > time->by[bound]) bound = (rf_bound)b;
  return bound;
}

double rf_plan_tokens(const rf_plan *plan) {
  const rf_build_options *b = &plan->options.build;
  if (b->job != RF_JOB_GENERATE) return (double)(b->microbatch * b->seq * b->accumulate);
  if (b->rows < 1 || b->draft || b->rows == b->microbatch) return (double)b->microbatch;
  return (double)(b->rows * rf_mesh_copies(&b->mesh)); /* each copy has the rows of a prefill pass */
}

rf_plan_totals rf_plan_totals_of(const rf_plan *plan) {
  return (rf_plan_totals){.time = plan->time,
                          .tokens = rf_plan_tokens(plan),
                          .model_flops = plan->model_flops,
                          .hardware_flops = plan->hardware_flops,
                          .flops_full_square = plan->flops_full_square,
                          .bytes = plan->bytes,
                          .sent_bytes = plan->sent_bytes};
}

void rf_plan_totals_add(rf_plan_totals *sum, const rf_plan_totals *more, double times) {
  rf_step_time *t = &sum->time;
  const rf_step_time *add = &more->time;
  t->seconds += times * add->seconds;
  for (int b = 0; b < RF_BOUNDS; b++) t->by[b] += times * add->by[b];
  t->bound = rf_largest_bound(t);
  t->network_hidden += times * add->network_hidden;
  t->network_latency += times * add->network_latency;
  t->bubble += times * add->bubble;
  t->offload += times * add->offload;
  t->offload_exposed += times * add->offload_exposed;
  sum->tokens += times * more->tokens;
  sum->model_flops += times * more->model_flops;
  sum->hardware_flops += times * more->hardware_flops;
  sum->flops_full_square += times * more->flops_full_square;
  sum->bytes += times * more->bytes;
  sum->sent_bytes += times * more->sent_bytes;
}

bool rf_plan_band(const rf_plan *plan, double seconds, double band[2]) {
  band[0] = FASTEST * seconds;
  band[1] = SLOWEST * seconds;
  return !strcmp(plan->machine.source, "data-sheet") && seconds > 0;
}

double rf_plan_matmul_peak_flops(const rf_plan *plan) {
  return plan->options.build.matmul_set
             ? plan->machine.flops[plan->options.build.matmul] * plan->machine.chips
             : rf_plan_peak_flops(plan);
}

double rf_plan_peak_flops(const rf_plan *plan) {
  rf_dtype dtype = plan->options.build.dtype;
  /* without AMX, kernels convert bf16 to f32 */
  bool tiles = dtype == RF_BF16 && plan->options.isa >= RF_ISA_AMX && plan->machine.flops[RF_BF16] > 0;
  if (plan->machine.kind == RF_MACHINE_CPU && !tiles) dtype = RF_F32;
  return plan->machine.flops[dtype] * plan->machine.chips;
}
