/* plan.c - the passes in their order, from a model and options to a plan; its digest; what does not fit. */
#include "plan/parts.h"

#include "graph/pipeline.h"
#include "plan/advice.h"
#include "plan/program_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- digest ------------------------------------------------------------------------------------------------------ */

static void hash_bytes(XXH3_state_t *state, const void *data, size_t bytes) { XXH3_64bits_update(state, data, bytes); }
static void hash_int(XXH3_state_t *state, int64_t value) { hash_bytes(state, &value, sizeof value); }
static void hash_float(XXH3_state_t *state, double value) { hash_bytes(state, &value, sizeof value); }
static void hash_text(XXH3_state_t *state, const char *text) { hash_bytes(state, text ? text : "", text ? strlen(text) + 1 : 1); }

static void hash_attr(XXH3_state_t *state, const rf_attr *a) {
  const rf_rope *r = &a->rope;
  const float floats[] = {a->eps,      a->offset,  a->scale, a->softcap, r->theta,        r->factor, r->low,         r->high,
                          r->original, a->dropout, a->beta1, a->beta2,   a->weight_decay, a->clip,   a->router.scale};
  const int32_t ints[] = {a->heads,
                          a->kv_heads,
                          a->head_dim,
                          a->window,
                          (int32_t)a->softmax,
                          a->inverse,
                          (int32_t)a->epilogue,
                          a->transpose,
                          a->index,
                          r->dim,
                          (int32_t)r->scaling,
                          r->tail,
                          a->value_dim,
                          a->latent,
                          a->router.sigmoid,
                          a->router.as_is,
                          a->router.groups,
                          a->router.groups_used};
  hash_bytes(state, floats, sizeof floats);
  hash_bytes(state, ints, sizeof ints);
  hash_int(state, (int64_t)a->site);
  hash_bytes(state, &a->lora, sizeof a->lora);
  hash_int(state, a->experts), hash_int(state, a->experts_used);
  if (a->axes)
    hash_int(state, (int64_t)a->axes << 32 | a->group), hash_int(state, (int64_t)a->form << 32 | a->dim << 8 | a->to), hash_int(state, a->whole);
  if (a->part && !a->axes) hash_int(state, a->part);
  if (r->scaling == RF_ROPE_TABLE) hash_bytes(state, r->divisor, (size_t)(r->dim / 2) * sizeof *r->divisor);
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) hash_int(state, a->accumulate[i]);
}

/* Everything a run depends on: what is computed, by which kernels, on how many threads, at which offsets. Not the machine's speed. */
static void make_digest(rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  XXH3_state_t *state = XXH3_createState();
  if (!state) return;
  XXH3_64bits_reset(state);
  hash_text(state, plan->options.backend->name);
  hash_text(state, graph->model.init);
  const int64_t whole[] = {
      graph->accumulate,      graph->rows,       graph->seq,          plan->options.threads, plan->options.isa, plan->options.build.optimizer,
      plan->persistent_bytes, plan->arena_bytes, graph->tensor_count, graph->op_count};
  hash_bytes(state, whole, sizeof whole);
  hash_float(state, (double)graph->model.dropout);
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    hash_text(state, tensor->name);
    hash_int(state, (int64_t)tensor->dtype << 8 | (int64_t)tensor->class << 4 | tensor->host << 3 | tensor->persistent << 2 | tensor->input << 1 |
                        tensor->output);
    hash_bytes(state, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape);
    hash_int(state, plan->tensor[t].offset);
    if (tensor->slots > 1) hash_int(state, tensor->slots);
    if (tensor->panels.experts > 0) hash_int(state, tensor->panels.experts);
    for (int i = 0; i < tensor->panels.parts; i++) {
      hash_int(state, tensor->panels.part[i].outputs);
      hash_text(state, tensor->panels.part[i].type->name);
    }
  }
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    hash_text(state, op->def->name);
    hash_text(state, op->name);
    hash_text(state, plan->op[i].kernel->name);
    hash_int(state, op->section);
    hash_attr(state, &op->attr);
    hash_bytes(state, op->input, (size_t)op->input_count * sizeof *op->input);
    hash_bytes(state, op->output, (size_t)op->output_count * sizeof *op->output);
  }
  snprintf(plan->digest, sizeof plan->digest, "%016llx", (unsigned long long)XXH3_64bits_digest(state));
  XXH3_freeState(state);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

int64_t rf_plan_room(const rf_plan_options *options) {
  if (options->budget_bytes > 0) return options->budget_bytes;
  double room = options->machine->memory_bytes - options->machine->reserve_bytes;
  return room > 0 ? (int64_t)room : 0;
}

int64_t rf_plan_host_room(const rf_machine *machine) {
  int chips = machine->topology.host_chips > 0 ? machine->topology.host_chips : 1;
  return (int64_t)(machine->host_bytes / chips);
}

bool rf_plan_fits(const rf_plan *plan) {
  int64_t host = rf_plan_host_room(plan->options.machine);
  return plan->arena_bytes <= rf_plan_room(&plan->options) && (host <= 0 || plan->host_bytes <= host);
}

const char *rf_plan_peak(const rf_plan *plan) {
  if (plan->options.program.program != RF_PROGRAM_RAFTER) return plan->program.peak;
  return plan->graph->op_count ? plan->graph->op[plan->peak_op].name : "";
}

rf_plan *rf_plan_of_graph(rf_graph *graph, const rf_plan_options *options, bool quick) {
  rf_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return NULL;
  plan->graph = graph;
  plan->options = *options;
  rf_pass_slots(graph);
  rf_plan_choose(plan, quick);
  rf_plan_lifetimes(plan);
  if (quick) {
    plan->live_bytes = rf_plan_live_bytes(plan, &plan->peak_op, NULL);
    return plan;
  }
  plan->machine = *options->machine;
  plan->options.machine = &plan->machine; /* the caller's may go */
  rf_machine_for_threads(&plan->machine, options->threads);
  rf_plan_layout(plan);
  plan->live_bytes = rf_plan_live_bytes(plan, &plan->peak_op, plan->by_class);
  plan->by_class[RF_CLASS_PADDING] += plan->arena_bytes - plan->live_bytes;
  rf_plan_cost(plan);
  make_digest(plan);
  return plan;
}

static rf_status check_options(const rf_plan_options *o, rf_error *error) {
  if (!o->backend || !o->machine) return RF_FAIL(error, RAFTER_INVALID, NULL, "a plan needs a backend and a machine");
  if (o->threads < 1 || o->threads > 4096)
    return RF_FAIL(error, RAFTER_INVALID, "set --threads to the number of cores", "bad number of threads (expected 1 to 4096, got %d)", o->threads);
  if (o->budget_bytes < 0 || o->guard_bytes < 0 || o->guard_bytes > 1 << 20 || o->persistent_bytes < 0)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "bad sizes (budget %lld, guard %d, persistent %lld: expected none below 0)",
                   (long long)o->budget_bytes, o->guard_bytes, (long long)o->persistent_bytes);
  if (!rf_remat_valid(o->remat)) return RF_FAIL(error, RAFTER_INVALID, NULL, "unknown remat policy %d", (int)o->remat);
  return RAFTER_OK;
}

static rf_status apply_remat(rf_graph *graph, const rf_plan_options *options, rf_error *error) {
  if (options->build.job != RF_JOB_TRAIN || options->build.loss_only || options->remat == RF_REMAT_NONE) return RAFTER_OK;
  bool *drop = rf_pool_alloc(graph->pool, (size_t)graph->tensor_count + 1);
  if (options->remat == RF_REMAT_AUTO) RF_TRY(rf_plan_auto_remat(graph, options, rf_plan_room(options), drop, error));
  else rf_remat_policy(graph, options->remat, drop);
  for (int t = 0; t < graph->tensor_count; t++)
    if (drop[t]) return rf_pass_remat(graph, drop, error);
  return RAFTER_OK;
}

/* Every sum of bytes that planning makes stays inside 63 bits: remat adds no more than is there. */
static rf_status check_bytes(const rf_graph *graph, rf_error *error) {
  double sum = 0, most = 0x1p61;
  for (int t = 0; t < graph->tensor_count; t++) sum += (double)rf_tensor_bytes(&graph->tensor[t]);
  if (rf_pipeline_stages(&graph->mesh) > 1) sum *= graph->accumulate; /* each may be held for every microbatch */
  if (sum < most) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "take a smaller model, batch or sequence length",
                 "the tensors of the step are too large to count (expected below 2^61 bytes, got %.3g)", sum);
}

rf_status rf_plan_finish(rf_graph *graph, const rf_plan_options *options, bool quick, rf_plan **plan, rf_error *error) {
  rf_status status = check_bytes(graph, error);
  if (status == RAFTER_OK) status = apply_remat(graph, options, error);
  if (status == RAFTER_OK && options->build.offload) status = rf_pass_offload(graph, options->build.offload, error);
  if (status == RAFTER_OK) status = rf_plan_check_transfers(graph, options->machine, error);
  *plan = status == RAFTER_OK ? rf_plan_of_graph(graph, options, quick) : NULL;
  if (*plan) return RAFTER_OK;
  rf_graph_free(graph);
  return status == RAFTER_OK ? RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while planning") : status;
}

static rf_status make(const rf_model *model, const rf_plan_options *options, bool quick, rf_plan **plan, rf_error *error) {
  rf_graph *graph = NULL;
  RF_TRY(check_options(options, error));
  if (rf_pipeline_stages(&options->build.mesh) > 1) {
    RF_TRY(rf_mesh_check(&options->build.mesh, model, &options->build, error));
    return rf_plan_make_stages(model, options, quick, plan, error);
  }
  RF_TRY(rf_graph_build(model, &options->build, NULL, &graph, error));
  return rf_plan_finish(graph, options, quick, plan, error);
}

rf_status rf_plan_make_quick(const rf_model *model, const rf_plan_options *options, rf_plan **plan, rf_error *error) {
  return make(model, options, true, plan, error);
}

rf_status rf_plan_make(const rf_model *model, const rf_plan_options *options, rf_plan **out, rf_error *error) {
  double start = rf_now_seconds();
  rf_plan *plan = NULL;
  rf_status status = RAFTER_OK;
  RF_TRY(make(model, options, false, &plan, error));
  if (options->program.program != RF_PROGRAM_RAFTER) status = rf_plan_as_program(plan, error);
  if (status != RAFTER_OK) {
    rf_plan_free(plan);
    return status;
  }
  plan->build_seconds = rf_now_seconds() - start;
  *out = plan;
  return RAFTER_OK;
}

void rf_plan_free(rf_plan *plan) {
  if (!plan) return;
  rf_graph_free(plan->graph);
  free(plan->stage);
  free(plan);
}
