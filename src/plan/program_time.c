/* program_time.c - the time of a JAX program. A JAX program differs from a program of rafter.
 * Attention scores pass through memory, and attention also computes masked pairs. Its loops
 * copy residuals to stacks in memory and back. Products in f32 use the lower precision that is JAX's default.
 */
#include "plan/parts.h"

#include <string.h>

/* Number of times that a residual of a loop is read from memory or written to memory. A residual is
 * written once, copied into a stack (a read and a write), copied out of the stack (a read and a
 * write), and read once. */
enum { STACK_PASSES = 6 };

static double score_bytes(const rf_plan *plan, const rf_op *op) {
  const rf_graph *graph = plan->graph;
  double scores = (double)graph->rows * (double)graph->seq * op->attr.attention.heads;
  const rf_kept_rule *rule = rf_kept_rule_of(op->def);
  return scores * (4.0 * rule->score_moves_f32 +
                   (double)rf_dtype_bytes(plan->options.build.dtype) * rule->score_moves);
}

/* JAX computes f32 products in TF32 on GPUs and in bf16 on TPUs (jax.default_matmul_precision). */
static void take_fast_products(rf_machine *machine) {
  double fast = machine->kind == RF_MACHINE_TPU ? machine->flops[RF_BF16] : machine->flops_tf32;
  if (fast > machine->flops[RF_F32]) machine->flops[RF_F32] = fast;
}

static bool leaves_residuals(const rf_plan *plan, int op) {
  const rf_op *o = &plan->graph->op[op];
  return !o->backward && o->recompute_of == RF_NONE && o->section == RF_SECTION_MICRO && o->at.layer >= 0 &&
         o->output[0] >= 0;
}

void rf_program_time(rf_plan *plan) {
  rf_machine *machine = rf_pool_alloc(plan->graph->pool, sizeof *machine);
  double left = 0, bandwidth = plan->machine.copy_bps *
                               (plan->machine.efficiency_memory > 0 ? plan->machine.efficiency_memory : 1);
  double chips = (double)rf_mesh_chips(&plan->graph->mesh);
  *machine = plan->machine;
  take_fast_products(machine);
  for (int i = 0; i < plan->graph->op_count; i++)
    if (leaves_residuals(plan, i)) left += plan->op[i].work.bytes_written;
  double stacks = STACK_PASSES * (double)plan->program.stacked;
  plan->bytes = 0;
  for (int i = 0; i < plan->graph->op_count; i++) {
    const rf_op *op = &plan->graph->op[i];
    rf_plan_op *p = &plan->op[i];
    rf_work work = p->work;
    double through = score_bytes(plan, op), square = work.flops > 0 ? work.flops_full / work.flops : 1;
    if (through > 0) {
      work.flops *= square;
      work.flops_again *= square;
    }
    if (left > 0 && leaves_residuals(plan, i)) through += stacks * work.bytes_written / left;
    p->seconds = rf_cost_op(machine, plan->graph, op, p->kernel, work, &p->bound);
    double moving = bandwidth > 0 ? through / bandwidth : 0;
    if (moving > p->seconds) p->bound = RF_BOUND_MEMORY;
    p->seconds += moving;
    plan->bytes += (work.bytes_read + work.bytes_written + through) * p->calls * chips;
  }
  rf_plan_price_transfers(plan);
  plan->time = rf_plan_schedule(plan);
  plan->step_seconds = plan->time.seconds;
}

rf_status rf_plan_program_size(const rf_model *model, const rf_plan_options *options,
                               rf_program_memory *memory, rf_error *error) {
  rf_program_job job = {.build = options->build,
                        .remat = options->remat,
                        .machine = options->machine,
                        .room_bytes = rf_plan_room(options),
                        .program = options->program};
  return rf_program_size(model, &job, memory, error);
}

rf_status rf_plan_as_program(rf_plan *plan, rf_error *error) {
  rf_program_memory *m = &plan->program;
  RF_TRY(rf_plan_program_size(&plan->graph->model, &plan->options, m, error));
  bool trains = plan->options.build.job == RF_JOB_TRAIN;
  memset(plan->by_class, 0, sizeof plan->by_class);
  /* alias counts donated buffers. In training, three equal arrays are donated: the weights and the
   * two moments. In other jobs, the caches are donated. */
  plan->by_class[RF_CLASS_MOMENT] = trains ? m->alias / 3 * 2 : 0;
  plan->by_class[trains ? RF_CLASS_MASTER : RF_CLASS_KV] = trains ? m->alias - m->alias / 3 * 2 : m->alias;
  plan->by_class[RF_CLASS_WEIGHT] = m->argument - m->alias + m->copies;
  plan->by_class[RF_CLASS_GRADIENT] = m->gradients;
  plan->by_class[RF_CLASS_ACTIVATION] = m->kept;
  plan->by_class[RF_CLASS_WORKSPACE] = m->working;
  plan->by_class[RF_CLASS_IO] = m->output - m->alias;
  plan->arena_bytes = plan->live_bytes = m->total;
  plan->persistent_bytes = m->argument;
  /* a JAX program uses the memory of one device */
  if (plan->machine.devices_per_chip > 1 && !plan->machine.by_device) {
    plan->machine.memory_bytes /= plan->machine.devices_per_chip;
    plan->machine.reserve_bytes /= plan->machine.devices_per_chip;
  }
  rf_program_time(plan);
  return RAFTER_OK;
}
