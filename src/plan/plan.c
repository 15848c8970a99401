/* plan.c - makes a plan from a model and options by running the passes in order. */
#include "plan/parts.h"

#include "graph/mesh/pipeline.h"
#include "plan/advice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t rf_plan_room(const rf_plan_options *options) {
  if (options->budget_bytes > 0) return options->budget_bytes;
  double room = options->machine->memory_bytes - options->machine->reserve_bytes;
  return room > 0 ? (int64_t)room : 0;
}

int64_t rf_plan_host_room(const rf_machine *machine) {
  int chips = machine->topology.host_chips > 0 ? machine->topology.host_chips : 1;
  return (int64_t)(machine->host_bytes / chips);
}

const rf_plan *rf_plan_larger(const rf_plan *plan, const rf_plan *prefill) {
  return prefill && prefill->arena_bytes > plan->arena_bytes ? prefill : plan;
}

int64_t rf_plan_joint_bytes(const rf_plan *const *plans, int count) {
  int64_t most = 0;
  for (int i = 0; i < count; i++)
    if (plans[i]->arena_bytes > most) most = plans[i]->arena_bytes;
  return most;
}

bool rf_plan_fits(const rf_plan *plan) {
  int64_t host = rf_plan_host_room(plan->options.machine);
  return plan->arena_bytes <= rf_plan_room(&plan->options) && (host <= 0 || plan->host_bytes <= host);
}

const char *rf_plan_peak(const rf_plan *plan) {
  if (plan->options.program.program != RF_PROGRAM_RAFTER) return plan->program.peak;
  return plan->graph->op_count ? plan->graph->op[plan->peak_op].name : "";
}

const rf_graph *rf_plan_graph_before(const rf_plan *plan, rf_graph **built) {
  const rf_plan_options *o = &plan->options;
  if (plan->stages) return NULL;
  if (o->remat != RF_REMAT_NONE || o->build.offload)
    return rf_graph_build(&plan->graph->model, &o->build, NULL, built, NULL) == RAFTER_OK ? *built : NULL;
  return plan->graph;
}

rf_plan *rf_plan_of_graph(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth) {
  rf_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return NULL;
  plan->graph = graph;
  plan->options = *options;
  rf_pass_slots(graph);
  rf_plan_choose(plan, depth);
  rf_plan_lifetimes(plan);
  if (depth < RF_PLAN_PRICES) {
    plan->arena_bytes = plan->live_bytes = rf_plan_live_bytes(plan, &plan->peak_op, plan->by_class);
    if (depth == RF_PLAN_SIZE && plan->live_bytes <= rf_plan_room(options)) rf_plan_layout(plan);
    return plan;
  }
  plan->machine = *options->machine;
  plan->options.machine = &plan->machine; /* a copy, because the caller may free the machine in its options */
  rf_machine_for_isa(&plan->machine, options->isa);
  rf_machine_for_threads(&plan->machine, options->threads);
  plan->live_bytes = rf_plan_live_bytes(plan, &plan->peak_op, plan->by_class);
  /* The time of a plan for one chip does not need a layout. So if the live bytes do not fit, the
   * layout is left out. */
  bool alone = rf_mesh_chips(&options->build.mesh) == 1 && !options->build.offload;
  if (depth == RF_PLAN_PRICES && alone && plan->live_bytes > rf_plan_room(options))
    plan->arena_bytes = plan->live_bytes;
  else rf_plan_layout(plan);
  plan->by_class[RF_CLASS_PADDING] += plan->arena_bytes - plan->live_bytes;
  rf_plan_cost(plan);
  if (depth == RF_PLAN_WHOLE) rf_plan_digest(plan);
  return plan;
}

static rf_status check_options(const rf_plan_options *o, rf_error *error) {
  if (!o->backend || !o->machine)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "a plan needs a backend and a machine");
  if (o->threads < 1 || o->threads > 4096)
    return RF_FAIL(error, RAFTER_INVALID, "set --threads to the number of cores",
                   "bad number of threads (expected 1 to 4096, got %d)", o->threads);
  if (o->budget_bytes < 0 || o->guard_bytes < 0 || o->guard_bytes > 1 << 20)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "bad sizes in bytes (budget %lld, guard %d: expected at least 0)",
                   (long long)o->budget_bytes, o->guard_bytes);
  if (o->owner && !o->own_stage && rf_pipeline_stages(&o->build.mesh) > 1)
    return RF_FAIL(error, RAFTER_INVALID, "use data, fsdp or tensor instead",
                   "reinforcement learning and losses of preferences do not run on a pipeline (--mesh: "
                   "expected pipeline=1, got %d)",
                   rf_pipeline_stages(&o->build.mesh));
  if (!rf_remat_valid(o->remat))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "unknown remat policy %d", (int)o->remat);
  return RAFTER_OK;
}

static rf_status apply_remat(rf_graph *graph, const rf_plan_options *options, rf_error *error) {
  if (options->build.job != RF_JOB_TRAIN || options->build.loss_only || options->remat == RF_REMAT_NONE)
    return RAFTER_OK;
  bool *drop = rf_pool_alloc(graph->pool, (size_t)graph->tensor_count + 1);
  int64_t arena;
  if (options->remat == RF_REMAT_AUTO)
    RF_TRY(rf_plan_auto_remat(graph, options, rf_plan_room(options) - options->taken_bytes, drop, &arena,
                              error));
  else rf_remat_policy(graph, options->remat, drop);
  for (int t = 0; t < graph->tensor_count; t++)
    if (drop[t]) return rf_pass_remat(graph, drop, error);
  return RAFTER_OK;
}

/* Checks that no sum of bytes overflows 63 bits. The limit is only 61 bits, because recomputation
 * can at most double the sum. */
static rf_status check_bytes(const rf_graph *graph, rf_error *error) {
  double sum = 0, most = 0x1p61;
  for (int t = 0; t < graph->tensor_count; t++) sum += (double)rf_tensor_bytes(&graph->tensor[t]);
  /* a stage may keep one copy of a tensor for each microbatch */
  if (rf_pipeline_stages(&graph->mesh) > 1) sum *= graph->accumulate;
  if (sum < most) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "use a smaller model, batch or sequence length",
                 "the tensors of the step are too large to count (expected below 2^61 bytes, got %.3g)", sum);
}

rf_status rf_plan_finish(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth, rf_plan **plan,
                         rf_error *error) {
  rf_status status = check_bytes(graph, error);
  if (status == RAFTER_OK) status = apply_remat(graph, options, error);
  if (status == RAFTER_OK && options->build.offload)
    status = rf_pass_offload(graph, options->build.offload, error);
  if (status == RAFTER_OK) status = rf_plan_check_transfers(graph, options->machine, error);
  if (status == RAFTER_OK && depth >= RF_PLAN_PRICES) status = rf_plan_overlap(graph, options, error);
  *plan = status == RAFTER_OK ? rf_plan_of_graph(graph, options, depth) : NULL;
  if (*plan) return RAFTER_OK;
  rf_graph_free(graph);
  return status == RAFTER_OK ? RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning") : status;
}

/* A persistent tensor of the owner. Such tensors are sorted by offset. */
typedef struct kept {
  int64_t offset;
  int tensor;
} kept;

static int compare_kept(const void *a, const void *b) {
  const kept *x = a, *y = b;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

rf_status rf_plan_adopt(rf_graph *graph, const rf_plan *owner, rf_error *error) {
  const rf_graph *from = owner->graph;
  kept *list = rf_pool_alloc(graph->pool, ((size_t)from->tensor_count + 1) * sizeof *list);
  int count = 0;
  for (int t = 0; t < from->tensor_count; t++)
    if (from->tensor[t].persistent && owner->tensor[t].offset >= 0)
      list[count++] = (kept){owner->tensor[t].offset, t};
  qsort(list, (size_t)count, sizeof *list, compare_kept);
  for (int i = 0; i < count; i++) {
    const rf_tensor *tensor = &from->tensor[list[i].tensor];
    int twin = rf_graph_find(graph, tensor->name);
    if (twin == RF_NONE) {
      int id =
          rf_graph_tensor(graph, tensor->name, tensor->class, tensor->dtype, tensor->rank, tensor->shape);
      rf_tensor *added = &graph->tensor[id];
      added->persistent = true;
      added->host = tensor->host;
      added->reason = tensor->reason;
      added->panels = tensor->panels;
      added->spec = tensor->spec;
      /* the parameter table of a model without adapters has no rows for adapters at its end */
      added->param = tensor->param < graph->params.count ? tensor->param : RF_NONE;
    } else if (!rf_tensor_same_storage(&graph->tensor[twin], tensor)) {
      char want[64], got[64];
      return RF_FAIL(error, RAFTER_INVALID, "make both plans with the same model and dtype",
                     "the plan stores a tensor in another way than the plan whose arena it shares (%s: "
                     "expected %lld bytes of %s, got %lld bytes of %s)",
                     tensor->name, (long long)rf_tensor_bytes(tensor), rf_tensor_type(tensor, want),
                     (long long)rf_tensor_bytes(&graph->tensor[twin]),
                     rf_tensor_type(&graph->tensor[twin], got));
    }
  }
  return RAFTER_OK;
}

rf_status rf_plan_make_to(rf_plan_depth depth, const rf_model *model, const rf_plan_options *given,
                          const rf_graph *base, rf_plan **out, rf_error *error) {
  rf_graph *graph = NULL;
  rf_plan *plan = NULL;
  rf_plan_options joined = *given, *options = &joined;
  RF_TRY(check_options(options, error));
  if (options->owner) joined.build.stored_as = options->owner->graph;
  RF_TRY(rf_mesh_check(&options->build.mesh, model, &options->build, error));
  if (rf_pipeline_stages(&options->build.mesh) > 1)
    RF_TRY(rf_plan_make_stages(model, options, depth, &plan, error));
  else {
    rf_group group;
    if (rf_mesh_chips(&options->build.mesh) > 1) /* check before building a graph */
      RF_TRY(rf_machine_group(options->machine, &options->build.mesh, 0, &group, error));
    if (base) graph = rf_graph_borrow(base);
    else RF_TRY(rf_graph_build(model, &options->build, NULL, &graph, error));
    rf_status status = options->owner ? rf_plan_adopt(graph, options->owner, error) : RAFTER_OK;
    if (status != RAFTER_OK) {
      rf_graph_free(graph);
      return status;
    }
    RF_TRY(rf_plan_finish(graph, options, depth, &plan, error));
  }
  if (depth >= RF_PLAN_PRICES && options->program.program != RF_PROGRAM_RAFTER) {
    rf_status status = rf_plan_as_program(plan, error);
    if (status != RAFTER_OK) {
      rf_plan_free(plan);
      return status;
    }
  }
  *out = plan;
  return RAFTER_OK;
}

rf_status rf_plan_make(const rf_model *model, const rf_plan_options *options, rf_plan **plan,
                       rf_error *error) {
  double start = rf_now_seconds();
  RF_TRY(rf_plan_make_to(RF_PLAN_WHOLE, model, options, NULL, plan, error));
  (*plan)->build_seconds = rf_now_seconds() - start;
  return RAFTER_OK;
}

rf_status rf_plan_make_size(const rf_model *model, const rf_plan_options *options, rf_plan **plan,
                            rf_error *error) {
  bool ours = options->program.program == RF_PROGRAM_RAFTER;
  return rf_plan_make_to(ours ? RF_PLAN_SIZE : RF_PLAN_WHOLE, model, options, NULL, plan, error);
}

void rf_plan_free(rf_plan *plan) {
  if (!plan) return;
  for (int i = 0; plan->stage_plan && i < plan->stages; i++) rf_plan_free(plan->stage_plan[i]);
  free(plan->stage_plan);
  rf_graph_free(plan->graph);
  free(plan->stage);
  free(plan);
}
