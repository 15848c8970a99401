/* run.c - map the arena, walk a section, time every op. */
#define _GNU_SOURCE
#include "run/run.h"
#include "backend/lanes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Two poison words: both halves are bf16 NaNs, the words f32 NaNs, pairs of them f64 NaNs, and
 * as an id they are negative. */
static const uint32_t POISON_DEAD = 0xfffafffau, POISON_FRESH = 0xfffcfffcu;
/* What untouched arena bytes hold in debug runs, and the slack mapped behind the arena to see
 * writes past its end. */
enum { UNTOUCHED = 0xa7, SLACK_BYTES = 1 << 16, GUARD_BYTE = 0x5c };

typedef struct rf_bound_plan {
  const rf_plan *plan;
  rf_call *call; /* one per op: every pointer is resolved once, at open */
  rf_measured *measured;
  uint8_t *probe; /* rf_probe per op */
  int begin[RF_SECTIONS], end[RF_SECTIONS];
  /* debug: tensors by the op at which their bytes begin / end (CSR lists) */
  int *fresh_at, *dead_at, *fresh, *dead;
} rf_bound_plan;

struct rf_run {
  unsigned char *arena;
  size_t mapped_bytes;
  int64_t arena_bytes;
  int count;
  rf_bound_plan *bound;
  rf_run_debug debug;
  bool watched; /* opened with poison: the untouched pattern and slack are in place */
};

static void fill_words(void *at, int64_t bytes, uint32_t word) {
  uint32_t *p = at;
  for (int64_t i = 0; i < bytes / 4; i++) p[i] = word;
}

static unsigned char *address(const rf_run *run, const rf_plan *plan, int tensor) {
  if (tensor == RF_NONE || !run->arena || plan->tensor[tensor].offset < 0) return NULL;
  return run->arena + plan->tensor[tensor].offset;
}

static rf_probe probe_of(const rf_op *op) {
  bool sums = op->output_count > 4 && op->output[4] >= 0;
  return op->def->probe == RF_PROBE_UPDATE && !sums ? RF_PROBE_NONE : op->def->probe;
}

static bool probe_is_finite(const rf_op *op, const rf_call *call, rf_probe probe) {
  int64_t at = probe == RF_PROBE_FIRST ? 0 : op->attr.sums.element;
  int slot = probe == RF_PROBE_UPDATE ? 4 : 0;
  return rf_out(call, slot)->dtype == RF_F64 ? isfinite(((const double *)call->out[slot])[at])
                                             : isfinite(((const float *)call->out[slot])[at]);
}

/* Lists tensors by first (or last) op: list[at[i]..at[i+1]) are those of op i. */
static rf_status list_by_op(const rf_plan *plan, bool by_first, int **at_out, int **list_out,
                            rf_error *error) {
  const rf_graph *graph = plan->graph;
  int *at = calloc((size_t)graph->op_count + 2, sizeof *at),
      *list = calloc((size_t)graph->tensor_count + 1, sizeof *list);
  *at_out = at;
  *list_out = list;
  if (!at || !list) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  for (int pass = 0; pass < 2; pass++) {
    for (int t = 0; t < graph->tensor_count; t++) {
      const rf_plan_tensor *p = &plan->tensor[t];
      int op = by_first ? p->first : p->last;
      if (p->offset < 0 || graph->tensor[t].persistent || op < 0 || op >= graph->op_count) continue;
      if (pass == 0) at[op + 2]++;
      else list[at[op + 1]++] = t;
    }
    if (pass == 0)
      for (int i = 1; i < graph->op_count + 2; i++) at[i] += at[i - 1];
  }
  return RAFTER_OK;
}

static rf_status bind(rf_run *run, rf_bound_plan *bound, const rf_plan *plan, rf_error *error) {
  const rf_graph *graph = plan->graph;
  size_t ops = (size_t)graph->op_count;
  bound->plan = plan;
  bound->call = calloc(ops + 1, sizeof *bound->call);
  bound->measured = calloc(ops + 1, sizeof *bound->measured);
  bound->probe = calloc(ops + 1, 1);
  if (!bound->call || !bound->measured || !bound->probe)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  for (int s = 0, i = 0; s < RF_SECTIONS; s++) {
    bound->begin[s] = i;
    while (i < graph->op_count && graph->op[i].section == (rf_section)s) i++;
    bound->end[s] = i;
  }
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    rf_call *call = &bound->call[i];
    *call = (rf_call){.graph = graph, .op = op, .threads = plan->options.threads};
    for (int k = 0; k < op->input_count; k++) call->in[k] = address(run, plan, op->input[k]);
    for (int k = 0; k < op->output_count; k++) call->out[k] = address(run, plan, op->output[k]);
    call->workspace = address(run, plan, plan->op[i].workspace);
    bound->probe[i] = (uint8_t)probe_of(op);
  }
  RF_TRY(list_by_op(plan, true, &bound->fresh_at, &bound->fresh, error));
  return list_by_op(plan, false, &bound->dead_at, &bound->dead, error);
}

enum { TOUCH_BYTES = 2 << 20 }; /* a huge page */

/* Bytes of [at, end) that hold packed matrices: whoever fills those writes every byte of them,
 * and so is the first to touch them. */
static int64_t packed_bytes(const rf_plan *plan, int64_t at, int64_t end) {
  int64_t sum = 0;
  for (int t = 0; t < plan->graph->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    if (plan->graph->tensor[t].dtype != RF_PACKED || p->offset < 0) continue;
    int64_t from = p->offset > at ? p->offset : at,
            to = p->offset + p->bytes < end ? p->offset + p->bytes : end;
    if (from < to) sum += to - from;
  }
  return sum;
}

/* Every other page is touched now, by all threads: a step never faults, and a machine without
 * the memory says so here. What was never written is zero. */
static void touch(unsigned char *arena, int64_t bytes, const rf_plan *plan) {
#pragma omp parallel for num_threads(plan->options.threads) schedule(dynamic, 4)
  for (int64_t at = 0; at < bytes; at += TOUCH_BYTES) {
    int64_t end = at + TOUCH_BYTES < bytes ? at + TOUCH_BYTES : bytes;
    if (packed_bytes(plan, at, end) == end - at) continue;
    for (int64_t page = at; page < end; page += 4096) *(volatile unsigned char *)(arena + page) = 0;
  }
}

/* What plans only count: weights and caches of narrow numbers without scales, products in them. */
static rf_status check_kernels(const rf_graph *graph, rf_error *error) {
  bool latent = graph->model.kv_rank > 0, unknown = graph->matmul != RF_DTYPES;
  const char *what = unknown ? "products in 8 bits" : NULL;
  for (int t = 0; t < graph->tensor_count; t++)
    if (graph->tensor[t].host)
      return RF_FAIL(error, RAFTER_INVALID, "leave --offload out",
                     "this version plans what stands in a host's memory and runs on the host itself (%s)",
                     graph->tensor[t].name);
  for (int t = 0; t < graph->tensor_count && !what; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    bool scaled = tensor->dtype == RF_I8 && tensor->class == RF_CLASS_KV && !latent;
    if (rf_dtype_is_narrow(tensor->dtype) && !scaled) what = tensor->name;
  }
  if (!what) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "`rafter plan` sizes and prices it",
                 "this version plans such numbers and has no kernel for them (%s)", what);
}

rf_status rf_run_open(const rf_plan *const *plans, int count, rf_run_debug debug, rf_run **out,
                      rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_run *run = calloc(1, sizeof *run);
  if (!run || !(run->bound = calloc((size_t)count, sizeof *run->bound))) {
    free(run);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a run");
  }
  run->count = count;
  run->debug = debug;
  run->watched = debug.poison;
  bool touches = false;
  for (int i = 0; i < count; i++) {
    char mesh[160];
    if (rf_mesh_chips(&plans[i]->graph->mesh) == 1) continue;
    status = RF_FAIL(error, RAFTER_INVALID, "leave --mesh out, or ask `rafter plan`",
                     "this version plans for several chips and runs on one (mesh: expected one chip, got %s)",
                     rf_mesh_text(&plans[i]->graph->mesh, mesh));
    goto done;
  }
  for (int i = 0; i < count; i++) RF_GO(check_kernels(plans[i]->graph, error));
  for (int i = 0; i < count; i++) {
    if (plans[i]->persistent_bytes != plans[0]->persistent_bytes) {
      status =
          RF_FAIL(error, RAFTER_INVALID, "make them from one model, dtype and optimizer",
                  "the plans do not share one persistent region (plan %d: expected %lld bytes, got %lld)", i,
                  (long long)plans[0]->persistent_bytes, (long long)plans[i]->persistent_bytes);
      goto done;
    }
    if (plans[i]->arena_bytes > run->arena_bytes) run->arena_bytes = plans[i]->arena_bytes;
    touches |= plans[i]->options.backend->touches_memory;
  }
  if (touches) {
    run->mapped_bytes = (size_t)run->arena_bytes + (run->watched ? SLACK_BYTES : 0);
    void *base = NULL;
    RF_GO(rf_pages_map(run->mapped_bytes, &base, NULL, error));
    run->arena = base;
    if (!run->watched) touch(run->arena, (int64_t)run->mapped_bytes, plans[0]);
    else memset(run->arena, UNTOUCHED, run->mapped_bytes);
    if (run->watched) memset(run->arena, 0, (size_t)plans[0]->persistent_bytes);
  }
  for (int i = 0; i < count; i++) RF_GO(bind(run, &run->bound[i], plans[i], error));
done:
  if (status == RAFTER_OK) *out = run;
  else rf_run_close(run);
  return status;
}

void rf_run_close(rf_run *run) {
  if (!run) return;
  for (int i = 0; i < run->count; i++) {
    rf_bound_plan *b = &run->bound[i];
    free(b->call);
    free(b->measured);
    free(b->probe);
    free(b->fresh_at);
    free(b->fresh);
    free(b->dead_at);
    free(b->dead);
  }
  free(run->bound);
  if (run->arena) rf_pages_unmap(run->arena, run->mapped_bytes);
  free(run);
}

int64_t rf_run_arena_bytes(const rf_run *run) { return run->arena_bytes; }
void rf_run_set_debug(rf_run *run, rf_run_debug debug) { run->debug = debug; }
void *rf_run_tensor(rf_run *run, int plan, int tensor) { return address(run, run->bound[plan].plan, tensor); }

void *rf_run_named(rf_run *run, int plan, const char *name, const rf_tensor **tensor) {
  const rf_graph *graph = run->bound[plan].plan->graph;
  for (int t = 0; t < graph->tensor_count; t++)
    if (!strcmp(graph->tensor[t].name, name)) {
      if (tensor) *tensor = &graph->tensor[t];
      return rf_run_tensor(run, plan, t);
    }
  return NULL;
}

const rf_measured *rf_run_measured(const rf_run *run, int plan) { return run->bound[plan].measured; }

void rf_run_measured_reset(rf_run *run) {
  for (int i = 0; i < run->count; i++)
    memset(run->bound[i].measured, 0, (size_t)run->bound[i].plan->graph->op_count * sizeof(rf_measured));
}

/* ---- debug walks ----------------------------------------------------------------------------- */

static void poison_fresh(rf_run *run, const rf_bound_plan *b, int op) {
  const rf_plan *plan = b->plan;
  for (int k = b->fresh_at[op]; k < b->fresh_at[op + 1]; k++) {
    int t = b->fresh[k];
    /* takes over live bytes; the caller wrote it */
    if (plan->tensor[t].shares != RF_NONE || plan->graph->tensor[t].input) continue;
    unsigned char *at = address(run, plan, t);
    fill_words(at, plan->tensor[t].bytes, POISON_FRESH);
    memset(at + plan->tensor[t].bytes, GUARD_BYTE, (size_t)plan->options.guard_bytes);
  }
}

static void poison_dead(rf_run *run, const rf_bound_plan *b, int op) {
  const rf_plan *plan = b->plan;
  for (int k = b->dead_at[op]; k < b->dead_at[op + 1]; k++) {
    int t = b->dead[k];
    bool taken = plan->graph->tensor[t].output;
    for (int o = 0; o < plan->graph->op[op].output_count && !taken; o++) {
      int out = plan->graph->op[op].output[o];
      taken = out != RF_NONE && plan->tensor[out].shares == t;
    }
    if (!taken) fill_words(address(run, plan, t), plan->tensor[t].bytes, POISON_DEAD);
  }
}

static rf_status check_guards(rf_run *run, const rf_bound_plan *b, int op, rf_error *error) {
  const rf_plan *plan = b->plan;
  const rf_op *o = &plan->graph->op[op];
  for (int k = 0; k <= o->output_count; k++) {
    int t = k < o->output_count ? o->output[k] : plan->op[op].workspace;
    if (t == RF_NONE || plan->graph->tensor[t].persistent || plan->tensor[t].shares != RF_NONE ||
        plan->tensor[t].first != op)
      continue;
    const unsigned char *edge = address(run, plan, t) + plan->tensor[t].bytes;
    for (int i = 0; i < plan->options.guard_bytes; i++)
      if (edge[i] != GUARD_BYTE)
        return RF_FAIL(error, RAFTER_FAILED, "this is a fault of the kernel, please report it",
                       "%s wrote past the end of %s (kernel %s: byte %d behind its %lld bytes)", o->name,
                       plan->graph->tensor[t].name, plan->op[op].kernel->name, i,
                       (long long)plan->tensor[t].bytes);
  }
  return RAFTER_OK;
}

static int64_t first_not_finite(const rf_tensor *t, const void *data) {
  int64_t n = rf_tensor_count(t);
  for (int64_t i = 0; i < n; i++) {
    bool ok = true;
    if (t->dtype == RF_F32) ok = isfinite(((const float *)data)[i]);
    else if (t->dtype == RF_F64) ok = isfinite(((const double *)data)[i]);
    else if (t->dtype == RF_BF16) ok = isfinite(rf_bf16_to_f32(((const rf_bf16 *)data)[i]));
    if (!ok) return i;
  }
  return -1;
}

static const char *finite_hint(const rf_plan *plan) {
  return plan->options.build.job == RF_JOB_TRAIN
             ? "lower --lr, raise --warmup, or set --clip 1; the last checkpoint is untouched"
             : "the weights may be damaged; if --backend reference answers, this is a fault of a kernel: "
               "report it";
}

/* Of a cache only the pages that somebody holds have numbers; what is written there was an
 * output before, and what is read becomes one. */
static rf_status check_finite(const rf_plan *plan, const rf_call *call, rf_error *error) {
  for (int k = 0; k < call->op->output_count; k++) {
    if (!call->out[k] || rf_out(call, k)->class == RF_CLASS_KV) continue;
    int64_t at = first_not_finite(rf_out(call, k), call->out[k]);
    if (at >= 0)
      return RF_FAIL(
          error, RAFTER_FAILED, finite_hint(plan),
          "%s is the first op that produced a number that is not finite (step %lld, output %s, element %lld)",
          call->op->name, (long long)call->run->step, rf_out(call, k)->name, (long long)at);
  }
  return RAFTER_OK;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Only while recording: what follows is op `i`. It begins where the op before it ended, which
 * saves a look at the clock, unless a look at counters lies between. */
static int64_t begin_op(rf_lanes *lanes, int plan, int i, int64_t before) {
  lanes->op = i;
  lanes->plan = (uint8_t)plan;
  if (before < lanes->lane[0].look_after) return before;
  rf_lane_look_at(lanes, 0, before);
  return rf_now_ns();
}

static void end_op(rf_lanes *lanes, int64_t begin, int64_t end, const rf_run_inputs *inputs) {
  rf_lane_put(&lanes->lane[0], (rf_stamp){begin, end, inputs->micro, lanes->op, 0, RF_SPAN_OP, lanes->plan});
  if (end >= lanes->lane[0].look_after) rf_lane_look_at(lanes, 0, end);
}

rf_status rf_run_section(rf_run *run, int plan_index, rf_section section, const rf_run_inputs *inputs,
                         rf_error *error) {
  rf_bound_plan *b = &run->bound[plan_index];
  const rf_plan *plan = b->plan;
  if (!plan->options.backend->touches_memory) return RAFTER_OK;
  rf_lanes *lanes = rf_lanes_on;
  int64_t before = rf_now_ns();
  for (int i = b->begin[section]; i < b->end[section]; i++) {
    rf_call *call = &b->call[i];
    call->run = inputs;
    if (run->debug.poison) {
      poison_fresh(run, b, i);
      before = rf_now_ns();
    }
    int64_t recorded = lanes ? begin_op(lanes, plan_index, i, before) : 0;
    rf_plan_op_kernel(&plan->op[i], inputs->rows)->run(call);
    int64_t after = rf_now_ns();
    double seconds = 1e-9 * (double)(after - before);
    if (lanes) end_op(lanes, recorded, after, inputs);
    rf_measured *m = &b->measured[i];
    m->seconds += seconds;
    if (!m->calls++ || seconds < m->least) m->least = seconds;
    before = after;
    if (run->debug.find_nan) RF_TRY(check_finite(plan, call, error));
    if (run->debug.poison) {
      RF_TRY(check_guards(run, b, i, error));
      poison_dead(run, b, i);
    }
    if (b->probe[i] && !probe_is_finite(call->op, call, (rf_probe)b->probe[i]))
      return RF_FAIL(error, RAFTER_FAILED, finite_hint(plan),
                     "the numbers stopped being finite at %s (step %lld)", call->op->name,
                     (long long)inputs->step);
  }
  if (lanes) lanes->op = RF_NONE;
  return RAFTER_OK;
}

/* ---- what was touched, and what lies outside ------------------------------------------------- */

int64_t rf_run_high_water(const rf_run *run, bool *slack_intact) {
  int64_t high = run->arena_bytes;
  bool intact = run->watched;
  for (size_t i = 0; intact && i < SLACK_BYTES; i++)
    intact = run->arena[run->arena_bytes + (int64_t)i] == UNTOUCHED;
  while (run->watched && high > 0 && run->arena[high - 1] == UNTOUCHED) high--;
  if (slack_intact) *slack_intact = intact;
  return high;
}
