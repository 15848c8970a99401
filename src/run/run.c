/* run.c - opens a device, allocates the arena, compiles plans, runs sections, checks results. */
#include "run/run.h"

#include "backend/mpi/link.h"
#include "graph/mesh/pipeline.h"
#include "graph/probe.h"
#include "run/gather.h"
#include "run/hosts.h"
#include "run/whole.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Poison patterns. If the bytes of these patterns are read as bf16, f32 or f64, the values are NaN.
 * If the bytes are read as an id, the id is negative. */
static const uint32_t POISON_DEAD = 0xfffafffau, POISON_FRESH = 0xfffcfffcu;
/* UNTOUCHED fills the arena of debug runs, and the slack after it. So a write after the end of the
 * arena is found. GUARD fills the guard bytes after each tensor. */
static const uint32_t UNTOUCHED = 0xa7a7a7a7u, GUARD = 0x5c5c5c5cu;
enum { SLACK_BYTES = 1 << 16, BLOCK_BYTES = 1 << 16 };

typedef struct rf_bound_plan {
  rf_run *run;
  const rf_plan *plan;
  rf_whole *whole; /* NULL: one chip */
  rf_program *program;
  rf_measured *measured;
  rf_measured *before; /* the times without those of the step in progress */
  bool in_step;        /* true from the section BEGIN until the section END has succeeded */
  int64_t timed;       /* number of executions with measured times; 0: all executions */
  bool *probe;         /* (ops): true: the op has a checked number. */
  uint8_t *watched;    /* for each op: 1 if the program calls before_op and after_op */
  /* Tensor ids of inputs and outputs. If the host has no arena, `view` points into `copies`. */
  int *io, io_count;
  void **view;
  unsigned char *copies;
  /* For debug runs: the tensors that become live (fresh) or dead at each op. For op i, the entries
   * fresh_at[i] to fresh_at[i + 1] - 1 of `fresh` become live. */
  int *fresh_at, *dead_at, *fresh, *dead;
  int64_t sections; /* number of sections that were run since the run was opened */
} rf_bound_plan;

struct rf_run {
  rf_device *device; /* NULL: the null backend. */
  rf_memory *memory;
  int64_t arena_bytes;
  int count;
  rf_bound_plan *bound;
  rf_run_debug debug;
  int current;     /* number of the plan that was used last */
  uint64_t loaded; /* hash of all values that were loaded from files; see rf_run_loaded */
  /* true if the run was opened with poison, so that the arena has slack and was filled with
   * UNTOUCHED */
  bool watched;
};

static int64_t offset_of(const rf_plan *plan, int tensor) { return plan->tensor[tensor].offset; }

/* Offset of the slot of a tensor that a microbatch uses. */
static int64_t slot_of(const rf_plan *plan, int tensor, int micro) {
  return offset_of(plan, tensor) + rf_slot_at(&plan->graph->tensor[tensor], micro);
}

/* Lists tensors by their first (or last) op. Op i has the entries at[i] to at[i + 1] - 1. */
static rf_status list_by_op(const rf_plan *plan, bool by_first, int **at_out, int **list_out,
                            rf_error *error) {
  const rf_graph *graph = plan->graph;
  int *at = calloc((size_t)graph->op_count + 2, sizeof *at),
      *list = calloc((size_t)plan->tensor_count + 1, sizeof *list);
  *at_out = at;
  *list_out = list;
  if (!at || !list) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  for (int pass = 0; pass < 2; pass++) {
    for (int t = 0; t < plan->tensor_count; t++) {
      const rf_plan_tensor *p = &plan->tensor[t];
      int op = by_first ? p->first : p->last;
      if (p->offset < 0 || rf_plan_content(plan, t)->persistent || op < 0 || op >= graph->op_count) continue;
      if (pass == 0) at[op + 2]++;
      else list[at[op + 1]++] = t;
    }
    if (pass == 0)
      for (int i = 1; i < graph->op_count + 2; i++) at[i] += at[i - 1];
  }
  return RAFTER_OK;
}

static rf_status fill(const rf_bound_plan *b, int tensor, uint32_t word, rf_error *error) {
  const rf_plan_tensor *p = &b->plan->tensor[tensor];
  return rf_memory_fill(b->run->memory, p->offset, word, p->bytes, error);
}

static rf_status poison_fresh(const rf_bound_plan *b, int op, rf_error *error) {
  const rf_plan *plan = b->plan;
  for (int k = b->fresh_at[op]; k < b->fresh_at[op + 1]; k++) {
    int t = b->fresh[k];
    /* Skips tensors that reuse live bytes. Skips inputs too, because the caller has written
     * them. */
    if (plan->tensor[t].shares != RF_NONE || rf_plan_content(plan, t)->input) continue;
    RF_TRY(fill(b, t, POISON_FRESH, error));
    RF_TRY(rf_memory_fill(b->run->memory, offset_of(plan, t) + plan->tensor[t].bytes, GUARD,
                          plan->options.guard_bytes, error));
  }
  return RAFTER_OK;
}

static rf_status poison_dead(const rf_bound_plan *b, int op, rf_error *error) {
  const rf_plan *plan = b->plan;
  for (int k = b->dead_at[op]; k < b->dead_at[op + 1]; k++) {
    int t = b->dead[k];
    bool taken = rf_plan_content(plan, t)->output;
    for (int o = 0; o < plan->graph->op[op].output_count && !taken; o++) {
      int out = plan->graph->op[op].output[o];
      taken = out != RF_NONE && plan->tensor[out].shares == t;
    }
    if (!taken) RF_TRY(fill(b, t, POISON_DEAD, error));
  }
  return RAFTER_OK;
}

/* True if op `op` completes the first values of a tensor. The guard after the tensor is then filled.
 * A tensor that one microbatch passes to the next has no filled guard. */
static bool has_guard(const rf_plan *plan, int op, int tensor) {
  int first = plan->tensor[tensor].first;
  if (first == op || first < 0) return first == op;
  const rf_op *o = &plan->graph->op[op], *start = &plan->graph->op[first];
  return o->def->exchange == RF_EXCHANGE_WAIT && start->def->starts &&
         (start->output[0] == tensor || plan->op[first].workspace == tensor);
}

static rf_status check_guards(const rf_bound_plan *b, int op, rf_error *error) {
  const rf_plan *plan = b->plan;
  const rf_op *o = &plan->graph->op[op];
  for (int k = 0; k <= o->output_count; k++) {
    int t = k < o->output_count ? o->output[k] : plan->op[op].workspace;
    if (t == RF_NONE || rf_plan_content(plan, t)->persistent || plan->tensor[t].shares != RF_NONE ||
        !has_guard(plan, op, t))
      continue;
    for (int i = 0; i < plan->options.guard_bytes / 4 * 4; i++) {
      unsigned char byte;
      RF_TRY(rf_memory_read(b->run->memory, offset_of(plan, t) + plan->tensor[t].bytes + i, &byte, 1, error));
      if (byte != (GUARD & 0xff))
        return RF_FAIL(error, RAFTER_FAILED, "this is a bug in the kernel; please report it",
                       "%s wrote past the end of %s (kernel %s: byte %d after its %lld bytes)", o->name,
                       rf_plan_content(plan, t)->name, plan->op[op].kernel->name, i,
                       (long long)plan->tensor[t].bytes);
    }
  }
  return RAFTER_OK;
}

static bool is_finite(rf_dtype dtype, const void *data, int64_t i) {
  if (dtype == RF_F32) return isfinite(((const float *)data)[i]);
  if (dtype == RF_F64) return isfinite(((const double *)data)[i]);
  return dtype != RF_BF16 || isfinite(rf_bf16_to_f32(((const rf_bf16 *)data)[i]));
}

/* Without keys, the sum of exponentials is 0, and its logarithm is minus infinity. */
static bool is_log_of_zero(rf_dtype dtype, const void *data, int64_t i) {
  return (dtype == RF_F64 ? ((const double *)data)[i] : ((const float *)data)[i]) == -(double)INFINITY;
}

/* Sets *at to the index of the first element that is not finite. -1: all elements are finite.
 * `logs`: the elements are log-sums, and elements of sums without terms are right. */
static rf_status first_not_finite(const rf_bound_plan *b, int tensor, int micro, bool logs, int64_t *at,
                                  rf_error *error) {
  _Alignas(8) unsigned char block[BLOCK_BYTES];
  const rf_tensor *t = &b->plan->graph->tensor[tensor];
  bool floats = t->dtype == RF_F32 || t->dtype == RF_F64 || t->dtype == RF_BF16;
  int64_t count = floats ? rf_tensor_count(t) : 0, size = rf_dtype_bytes(t->dtype);
  for (int64_t done = 0, n; done < count; done += n) {
    n = count - done < BLOCK_BYTES / size ? count - done : BLOCK_BYTES / size;
    int64_t from = slot_of(b->plan, tensor, micro) + done * size;
    RF_TRY(rf_memory_read(b->run->memory, from, block, n * size, error));
    for (int64_t i = 0; i < n; i++)
      if (!is_finite(t->dtype, block, i) && !(logs && is_log_of_zero(t->dtype, block, i)))
        return *at = done + i, RAFTER_OK;
  }
  return *at = -1, RAFTER_OK;
}

static const char *finite_hint(const rf_plan *plan) {
  return plan->options.build.job == RF_JOB_TRAIN
             ? "lower --lr, raise --warmup, or set --clip 1; the last checkpoint is untouched"
             : "the weights may be damaged; if --backend reference answers, this is a fault of a kernel: "
               "report it";
}

static bool is_stored(const rf_plan *plan, int tensor) {
  return tensor != RF_NONE && offset_of(plan, tensor) >= 0;
}

/* True if this rank stores the tensor, and false if another stage of the pipeline stores it. */
static bool is_known(const rf_plan *plan, int tensor) {
  return is_stored(plan, tensor) ||
         (tensor != RF_NONE && rf_tensor_is_elsewhere(&plan->graph->tensor[tensor], &plan->graph->mesh));
}

/* The KV cache and logits are not checked, because unused pages and rows contain no numbers. Keys
 * and values are checked as outputs of other ops. Logits are checked by their log-sum, which finds
 * NaN and infinity, but not single values of minus infinity. An op writes only one of the sums of
 * gradients, and check_probe checks this sum. */
static bool may_be_unused(const rf_op *op, const rf_tensor *t) {
  const bool logits = t->class == RF_CLASS_LOGITS || op->def->skips_rows;
  return t->class == RF_CLASS_KV || (logits && t->rank == 2) || t->role == RF_ROLE_GRADIENT_SUMS;
}

static bool reads(const rf_op *op, int tensor) {
  for (int k = 0; k < op->input_count; k++)
    if (op->input[k] == tensor) return true;
  return false;
}

/* True if output `tensor` of op `op` has the log-sums of attention over the keys of one chip. For
 * some rows, the chip has no keys. An exchange may bring the log-sums to the op that merges them. */
static bool is_log_of_part(const rf_graph *graph, int op, int tensor) {
  if (graph->tensor[tensor].class != RF_CLASS_COLLECTIVE) return false;
  for (int i = op + 1; i < graph->op_count; i++) {
    const rf_op *o = &graph->op[i];
    if (!reads(o, tensor)) continue;
    if (!rf_op_is_exchange(o->def)) return o->def->log_sums && o->input[o->def->log_sums] == tensor;
    tensor = o->output[0];
  }
  return false;
}

static rf_status check_finite(const rf_bound_plan *b, int op, const rf_run_inputs *inputs, rf_error *error) {
  const rf_op *o = &b->plan->graph->op[op];
  if (o->def->starts) return RAFTER_OK; /* the output of this op is complete only after the wait */
  for (int k = 0; k < o->output_count; k++) {
    if (!is_stored(b->plan, o->output[k])) continue;
    const rf_tensor *t = &b->plan->graph->tensor[o->output[k]];
    int64_t at = -1;
    bool logs = is_log_of_part(b->plan->graph, op, o->output[k]);
    if (!may_be_unused(o, t)) RF_TRY(first_not_finite(b, o->output[k], inputs->micro, logs, &at, error));
    if (at >= 0)
      return RF_FAIL(
          error, RAFTER_FAILED, finite_hint(b->plan),
          "%s is the first op that produced a number that is not finite (step %lld, output %s, element %lld)",
          o->name, (long long)inputs->step, t->name, (long long)at);
  }
  return RAFTER_OK;
}

static rf_status check_probe(const rf_bound_plan *b, int op, const rf_run_inputs *inputs, rf_error *error) {
  const rf_op *o = &b->plan->graph->op[op];
  int64_t at;
  int tensor = o->output[rf_probed_output(o, &at)];
  rf_dtype dtype = b->plan->graph->tensor[tensor].dtype == RF_F64 ? RF_F64 : RF_F32;
  int64_t size = rf_dtype_bytes(dtype);
  union {
    double f64;
    float f32;
  } value;
  RF_TRY(rf_memory_read(b->run->memory, slot_of(b->plan, tensor, inputs->micro) + at * size, &value, size,
                        error));
  if (is_finite(dtype, &value, 0)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, finite_hint(b->plan),
                 "%s produced a number that is not finite (step %lld)", o->name, (long long)inputs->step);
}

static rf_status before_op(void *self, int op, rf_error *error) { return poison_fresh(self, op, error); }

static rf_status after_op(void *self, int op, const rf_run_inputs *inputs, rf_error *error) {
  const rf_bound_plan *b = self;
  if (b->run->debug.find_nan) RF_TRY(check_finite(b, op, inputs, error));
  if (b->run->debug.poison) {
    RF_TRY(check_guards(b, op, error));
    RF_TRY(poison_dead(b, op, error));
  }
  return b->probe[op] ? check_probe(b, op, inputs, error) : RAFTER_OK;
}

void rf_run_set_debug(rf_run *run, rf_run_debug debug) {
  run->debug = debug;
  for (int i = 0; i < run->count; i++) {
    rf_bound_plan *b = &run->bound[i];
    for (int op = 0; op < b->plan->graph->op_count; op++) {
      bool after = debug.poison || debug.find_nan || b->probe[op];
      b->watched[op] = (uint8_t)((debug.poison ? RF_WATCH_BEFORE : 0) | (after ? RF_WATCH_AFTER : 0));
    }
  }
}

static rf_status no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
}

/* The programs of pipeline stages have different numbers for the same tensor. All ranks must
 * exchange inputs and outputs in the same order. */
static void sort_by_name(const rf_graph *graph, int *list, int count) {
  for (int i = 1; i < count; i++)
    for (int k = i; k > 0 && strcmp(graph->tensor[list[k]].name, graph->tensor[list[k - 1]].name) < 0; k--) {
      int before = list[k - 1];
      list[k - 1] = list[k];
      list[k] = before;
    }
}

/* Bytes of the host copy of an input or output. The copy is a whole tensor. */
static int64_t view_bytes(const rf_bound_plan *b, int tensor) {
  int64_t bytes = rf_round_up(rf_tensor_bytes(&b->plan->graph->tensor[tensor]), 64);
  if (!b->whole) return bytes;
  int64_t whole = rf_round_up(rf_tensor_bytes(rf_whole_tensor(b->whole, tensor)), 64);
  return whole > bytes ? whole : bytes;
}

static rf_status bind_views(rf_bound_plan *b, rf_error *error) {
  const rf_graph *graph = b->plan->graph;
  int64_t bytes = 0;
  b->io = calloc((size_t)graph->tensor_count + 1, sizeof *b->io);
  b->view = calloc((size_t)graph->tensor_count + 1, sizeof *b->view);
  if (!b->io || !b->view) return no_memory(error);
  for (int t = 0; t < graph->tensor_count; t++) {
    if ((!graph->tensor[t].input && !graph->tensor[t].output) || !is_known(b->plan, t)) continue;
    b->io[b->io_count++] = t;
    bytes += view_bytes(b, t);
  }
  if (b->plan->stages) sort_by_name(graph, b->io, b->io_count);
  if (b->run->memory->host && !b->whole) return RAFTER_OK;
  b->copies = calloc((size_t)bytes + 1, 1);
  if (!b->copies) return no_memory(error);
  for (int i = 0; i < b->io_count; i++) {
    bytes -= view_bytes(b, b->io[i]);
    b->view[b->io[i]] = b->copies + bytes;
  }
  return RAFTER_OK;
}

static rf_status compile(rf_bound_plan *b, int number, rf_error *error) {
  const rf_plan *plan = b->plan;
  const rf_graph *graph = plan->graph;
  int64_t *offset = calloc((size_t)plan->tensor_count + 1, sizeof *offset);
  rf_chosen *chosen = calloc((size_t)graph->op_count + 1, sizeof *chosen);
  rf_status status = RAFTER_OK;
  if (!offset || !chosen) RF_GO(no_memory(error));
  for (int t = 0; t < plan->tensor_count; t++) offset[t] = offset_of(plan, t);
  for (int i = 0; i < graph->op_count; i++) {
    const rf_plan_op *op = &plan->op[i];
    chosen[i] = (rf_chosen){op->kernel, op->few, op->few_rows, op->blocks, op->inner, op->workspace};
  }
  const rf_program_source source = {.graph = graph,
                                    .memory = b->run->memory,
                                    .offset = offset,
                                    .op = chosen,
                                    .number = number,
                                    .workers = plan->options.threads,
                                    .measured = b->measured,
                                    .timed = &b->timed,
                                    .watch = {b, b->watched, before_op, after_op}};
  status = b->run->device->type->compile(b->run->device, &source, &b->program, error);
done:
  free(offset);
  free(chosen);
  return status;
}

static rf_status bind(rf_run *run, int number, const rf_plan *plan, rf_error *error) {
  rf_bound_plan *b = &run->bound[number];
  size_t ops = (size_t)plan->graph->op_count + 1;
  b->run = run;
  b->plan = plan;
  b->measured = calloc(ops, sizeof *b->measured);
  b->before = calloc(ops, sizeof *b->before);
  b->probe = calloc(ops, 1);
  b->watched = calloc(ops, 1);
  if (!b->measured || !b->before || !b->probe || !b->watched) return no_memory(error);
  int64_t at;
  for (int i = 0; i < plan->graph->op_count; i++)
    b->probe[i] = rf_probed_output(&plan->graph->op[i], &at) >= 0;
  RF_TRY(list_by_op(plan, true, &b->fresh_at, &b->fresh, error));
  RF_TRY(list_by_op(plan, false, &b->dead_at, &b->dead, error));
  if (!run->memory) return RAFTER_OK;
  RF_TRY(rf_whole_open(plan, run->device, &b->whole, error));
  RF_TRY(bind_views(b, error));
  return compile(b, number, error);
}

/* Number of bytes of [at, end) that are in packed matrices. The loader touches the pages of packed
 * matrices. */
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

/* Touches all pages except those of packed matrices. So no step has page faults, and a lack of
 * memory is found before the first step. */
static rf_status reserve(const rf_run *run, const rf_plan *plan, rf_error *error) {
  enum { PIECE = 2 << 20 }; /* one huge page */
  rf_memory *memory = run->memory;
  if (!run->device->type->reserve) return RAFTER_OK;
  for (int64_t from = 0, at = 0, end; at < memory->bytes; at = end) {
    end = at + PIECE < memory->bytes ? at + PIECE : memory->bytes;
    bool packed = packed_bytes(plan, at, end) == end - at;
    int64_t until = packed ? at : end;
    if ((packed || end == memory->bytes) && until > from)
      RF_TRY(run->device->type->reserve(memory, from, until - from, error));
    if (packed) from = end;
  }
  return RAFTER_OK;
}

static rf_status check_mesh(const rf_mesh *mesh, const rf_device *device, rf_error *error) {
  char text[160];
  int64_t chips = rf_mesh_chips(mesh);
  int have = device ? device->chips : 1;
  if (chips == 1 && have == 1) return RAFTER_OK;
  if (chips <= have && have > 1) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_INVALID, "run without --mesh, or with --backend xla and a plugin of several devices",
      "several chips can be planned but not run (mesh: expected one chip, got %s)", rf_mesh_text(mesh, text));
}

/* Refuses meshes that can only be planned, before a device is opened. */
static rf_status check_axes(const rf_plan *plan, rf_error *error) {
  char text[160];
  const rf_mesh *mesh = &plan->graph->mesh;
  bool ranks = rf_backend_has_ranks(plan->options.backend);
  rf_axes planned = RF_AXIS_BIT(RF_AXIS_SLICE);
  if (!ranks || !plan->stage_plan) planned |= RF_AXIS_BIT(RF_AXIS_PIPELINE);
  if (!rf_mesh_live(mesh, planned)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "leave these axes out of --mesh; `rafter plan` supports them",
                 "%s can be planned but not run (mesh: expected other axes, got %s)",
                 ranks ? "slices" : "pipelines and slices", rf_mesh_text(mesh, text));
}

static rf_status open_memory(rf_run *run, const rf_plan *plan, rf_error *error) {
  int64_t bytes = run->arena_bytes + (run->watched ? SLACK_BYTES : 0);
  const rf_plan_options *o = &plan->options;
  rf_device_settings settings = o->device;
  settings.chips = (int)rf_mesh_chips(&plan->graph->mesh);
  RF_TRY(check_axes(plan, error));
  RF_TRY(rf_device_open(o->backend, (int)o->isa, o->threads, &settings, &run->device, error));
  RF_TRY(check_mesh(&plan->graph->mesh, run->device, error));
  /* With guards, the number of threads is fixed, because a change of it allocates memory. */
  bool fixed = plan->options.threads_fixed || rf_guard_built();
  run->device->team.rule = run->debug.vary_threads ? RF_TEAM_VARIES : fixed ? RF_TEAM_FIXED : RF_TEAM_ADAPTS;
  RF_TRY(run->device->type->allocate(run->device, bytes, &run->memory, error));
  if (!run->watched) return reserve(run, plan, error);
  RF_TRY(rf_memory_fill(run->memory, 0, UNTOUCHED, bytes, error));
  return rf_memory_fill(run->memory, 0, 0, plan->persistent_bytes, error);
}

static const char *place_text(const rf_plan *plan, int t, char text[96]) {
  char type[64];
  if (t == RF_NONE) return "no such tensor";
  snprintf(text, 96, "%s at byte %lld", rf_tensor_type(&plan->graph->tensor[t], type),
           (long long)offset_of(plan, t));
  return text;
}

/* Checks that a plan has the same persistent region as the run's first plan. Each persistent tensor
 * in this region must also be in the first plan, at the same offset and with the same storage. */
static rf_status check_shared(const rf_plan *first, const rf_plan *plan, int number, rf_error *error) {
  if (plan->persistent_bytes < first->persistent_bytes)
    return RF_FAIL(error, RAFTER_INVALID, "make the plans with the same model, dtype and owner",
                   "the plans differ in their persistent region (plan %d: expected at least %lld bytes, got "
                   "%lld)",
                   number, (long long)first->persistent_bytes, (long long)plan->persistent_bytes);
  for (int t = 0; t < plan->graph->tensor_count; t++) {
    const rf_tensor *tensor = &plan->graph->tensor[t];
    int64_t offset = offset_of(plan, t);
    if (!tensor->persistent || offset >= first->persistent_bytes) continue;
    int twin = rf_graph_find(first->graph, tensor->name);
    if (twin != RF_NONE && offset_of(first, twin) == offset &&
        rf_tensor_same_storage(&first->graph->tensor[twin], tensor))
      continue;
    char want[96], got[96];
    return RF_FAIL(error, RAFTER_INVALID, "make plan 0 the owner of the other plans",
                   "the plans store a tensor differently (%s, plan %d: expected %s, got %s)", tensor->name,
                   number, place_text(first, twin, want), place_text(plan, t, got));
  }
  return RAFTER_OK;
}

/* Informs the device which plan is used next. */
static void enter(rf_run *run, int plan) {
  if (run->current == plan || !run->memory) return;
  run->current = plan;
  if (run->device->type->enter) run->device->type->enter(run->memory, plan);
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
  run->current = RF_NONE;
  for (int i = 0; i < count; i++) RF_GO(rf_plan_require_runnable(plans[i], error));
  for (int i = 1; i < count; i++) RF_GO(check_shared(plans[0], plans[i], i, error));
  run->arena_bytes = rf_plan_joint_bytes(plans, count);
  if (plans[0]->options.backend->device) RF_GO(open_memory(run, plans[0], error));
  for (int i = 0; i < count; i++) RF_GO(check_mesh(&plans[i]->graph->mesh, run->device, error));
  for (int i = 0; i < count; i++)
    RF_GO(rf_run_same(run, "another plan", rf_key(0, rf_name_key(plans[i]->digest), rf_name_key(RF_VERSION)),
                      error));
  for (int i = 0; i < count; i++) RF_GO(bind(run, i, plans[i], error));
  enter(run, 0); /* this is done now, because later several threads may write weights at the same time */
  rf_run_set_debug(run, debug);
done:
  if (status == RAFTER_OK) *out = run;
  else rf_run_close(run);
  return status;
}

void rf_run_close(rf_run *run) {
  if (!run) return;
  for (int i = 0; i < run->count; i++) {
    rf_bound_plan *b = &run->bound[i];
    if (b->program) b->program->release(b->program);
    free(b->measured);
    free(b->before);
    free(b->probe);
    free(b->watched);
    free(b->io);
    free(b->view);
    free(b->copies);
    rf_whole_close(b->whole);
    free(b->fresh_at);
    free(b->fresh);
    free(b->dead_at);
    free(b->dead);
  }
  free(run->bound);
  if (run->memory) run->device->type->release(run->memory);
  if (run->device) run->device->type->close(run->device);
  free(run);
}

int64_t rf_run_arena_bytes(const rf_run *run) { return run->arena_bytes; }
bool rf_run_lost_ranks(const rf_run *run) {
  return run->device && run->device->link && run->device->link->failed;
}
int64_t rf_run_host_bytes(const rf_run *run) {
  return run->memory && run->memory->host ? run->arena_bytes : 0;
}

void *rf_run_tensor(rf_run *run, int plan, int tensor) {
  const rf_bound_plan *b = &run->bound[plan];
  if (!run->memory || !is_known(b->plan, tensor)) return NULL;
  return b->copies ? b->view[tensor] : run->memory->host + offset_of(b->plan, tensor);
}

int rf_run_find(const rf_run *run, int plan, const char *name) {
  const rf_plan *of = run->bound[plan].plan;
  int t = rf_graph_find(of->graph, name);
  return run->memory && is_known(of, t) ? t : RF_NONE;
}

void *rf_run_named(rf_run *run, int plan, const char *name, const rf_tensor **tensor) {
  int id = rf_run_find(run, plan, name);
  if (id == RF_NONE) return NULL;
  const rf_whole *whole = run->bound[plan].whole;
  if (tensor) *tensor = whole ? rf_whole_tensor(whole, id) : &run->bound[plan].plan->graph->tensor[id];
  return rf_run_tensor(run, plan, id);
}

rf_status rf_run_push(rf_run *run, int plan, int micro, rf_error *error) {
  const rf_bound_plan *b = &run->bound[plan];
  rf_memory *memory = run->memory;
  enter(run, plan);
  for (int i = 0; b->copies && i < b->io_count; i++) {
    int t = b->io[i];
    const rf_tensor *tensor = &b->plan->graph->tensor[t];
    if (!tensor->input) continue;
    if (b->whole) RF_TRY(rf_whole_push(b->whole, memory, t, micro, b->view[t], error));
    else RF_TRY(rf_memory_write(memory, offset_of(b->plan, t), b->view[t], rf_tensor_bytes(tensor), error));
  }
  return RAFTER_OK;
}

/* Copies an output to the host. */
static rf_status pull_output(const rf_bound_plan *b, int t, rf_error *error) {
  rf_memory *memory = b->run->memory;
  int64_t bytes = rf_tensor_bytes(&b->plan->graph->tensor[t]);
  return b->whole ? rf_whole_pull(b->whole, memory, t, b->view[t], error)
                  : rf_memory_read(memory, offset_of(b->plan, t), b->view[t], bytes, error);
}

static rf_status pull_except(rf_run *run, int plan, const rf_tensor *unread, rf_error *error) {
  const rf_bound_plan *b = &run->bound[plan];
  for (int i = 0; b->copies && i < b->io_count; i++) {
    const rf_tensor *t = &b->plan->graph->tensor[b->io[i]];
    if (t->output && t != unread) RF_TRY(pull_output(b, b->io[i], error));
  }
  return RAFTER_OK;
}

rf_status rf_run_pull(rf_run *run, int plan, rf_error *error) { return pull_except(run, plan, NULL, error); }

bool rf_run_defers(const rf_run *run, int plan) {
  const rf_program *program = run->bound[plan].program;
  return program && program->show;
}

rf_status rf_run_pull_micro(rf_run *run, int plan, int micro, rf_error *error) {
  rf_program *program = run->bound[plan].program;
  program->show(program, micro);
  return rf_run_pull(run, plan, error);
}

rf_status rf_run_write(rf_run *run, int plan, int tensor, int64_t at, const void *from, int64_t bytes,
                       rf_error *error) {
  const rf_bound_plan *b = &run->bound[plan];
  enter(run, plan);
  if (b->whole) return rf_whole_write(b->whole, run->memory, tensor, at, from, bytes, error);
  return rf_memory_write(run->memory, offset_of(b->plan, tensor) + at, from, bytes, error);
}

rf_status rf_run_read(const rf_run *run, int plan, int tensor, int64_t at, void *to, int64_t bytes,
                      rf_error *error) {
  const rf_bound_plan *b = &run->bound[plan];
  if (b->whole) return rf_whole_read(b->whole, run->memory, tensor, at, to, bytes, error);
  return rf_memory_read(run->memory, offset_of(b->plan, tensor) + at, to, bytes, error);
}

rf_status rf_run_fill(rf_run *run, int plan, int tensor, int64_t at, uint32_t word, int64_t bytes,
                      rf_error *error) {
  const rf_bound_plan *b = &run->bound[plan];
  enter(run, plan);
  if (b->whole) return rf_whole_fill(b->whole, run->memory, tensor, at, word, bytes, error);
  return rf_memory_fill(run->memory, offset_of(b->plan, tensor) + at, word, bytes, error);
}

int rf_run_hosts(const rf_run *run) { return run->device ? run->device->hosts : 1; }
int rf_run_host(const rf_run *run) { return run->device ? run->device->host : 0; }

rf_status rf_run_same(rf_run *run, const char *what, uint64_t value, rf_error *error) {
  return run->device ? rf_hosts_same(run->device, what, value, error) : RAFTER_OK;
}
void rf_run_loaded(rf_run *run, uint64_t hash) { run->loaded = rf_key(run->loaded, hash, 0); }
rf_status rf_run_same_weights(rf_run *run, rf_error *error) {
  return rf_run_same(run, "other weights", run->loaded, error);
}
rf_status rf_run_agree(rf_run *run, uint32_t *flags, rf_error *error) {
  return run->device ? rf_hosts_agree(run->device, flags, error) : RAFTER_OK;
}
rf_status rf_run_share(rf_run *run, void *data, int64_t bytes, rf_error *error) {
  return run->device ? rf_hosts_share(run->device, data, bytes, error) : RAFTER_OK;
}
rf_status rf_run_stops(rf_run *run, const volatile int *stop, const volatile int **during, rf_error *error) {
  uint32_t flags = rf_flag_is_set(stop);
  *during = stop;
  if (rf_run_hosts(run) == 1) return RAFTER_OK;
  *during = NULL;
  RF_TRY(rf_run_agree(run, &flags, error));
  return flags ? RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal") : RAFTER_OK;
}
rf_status rf_run_serve(rf_run *run, rf_error *error) { return rf_hosts_serve(run->memory, error); }
rf_status rf_run_served(rf_run *run, rf_status status, rf_error *error) {
  return rf_run_hosts(run) > 1 ? rf_hosts_served(run->device, status, error) : status;
}

bool rf_run_gathers(const rf_run *run) { return run->device && run->device->hosts > 1 && run->device->link; }
rf_status rf_run_gather(rf_run *run, int plan, const rf_run_block *block, void *to, rf_error *error) {
  return rf_gather(run->bound[plan].whole, run->memory, block, to, error);
}
rf_status rf_run_collect(rf_run *run, const void *mine, void *all, int64_t bytes, rf_error *error) {
  if (run->device) return rf_hosts_collect(run->device, mine, all, bytes, error);
  memcpy(all, mine, (size_t)bytes);
  return RAFTER_OK;
}
rf_status rf_run_settle(rf_run *run, rf_status status, rf_error *error) {
  return run->device ? rf_hosts_settle(run->device, status, error) : status;
}

rf_status rf_run_copy(rf_run *run, int plan, int tensor, int64_t to, int64_t from, int64_t bytes,
                      rf_error *error) {
  unsigned char block[BLOCK_BYTES];
  const rf_bound_plan *b = &run->bound[plan];
  enter(run, plan);
  if (b->whole) return rf_whole_copy(b->whole, run->memory, tensor, to, from, bytes, error);
  for (int64_t done = 0, n; done < bytes; done += n) {
    n = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
    RF_TRY(rf_run_read(run, plan, tensor, from + done, block, n, error));
    RF_TRY(rf_run_write(run, plan, tensor, to + done, block, n, error));
  }
  return RAFTER_OK;
}

/* Takes the times of a step that did not end out of the measured times. */
static void forget_unfinished(rf_bound_plan *b) {
  if (b->in_step) memcpy(b->measured, b->before, (size_t)b->plan->graph->op_count * sizeof *b->measured);
  b->in_step = false;
}

/* A device without a host arena is skipped, because its profiler adds the times of whole steps. */
static void begin_step(rf_bound_plan *b) {
  forget_unfinished(b);
  if (!b->run->memory->host) return;
  memcpy(b->before, b->measured, (size_t)b->plan->graph->op_count * sizeof *b->measured);
  b->in_step = true;
}

rf_status rf_run_section(rf_run *run, int plan, rf_section section, const rf_run_inputs *inputs,
                         rf_error *error) {
  rf_program *program = run->bound[plan].program;
  run->bound[plan].sections++;
  if (!program) return RAFTER_OK;
  enter(run, plan);
  if (section == RF_SECTION_BEGIN) begin_step(&run->bound[plan]);
  RF_TRY(program->run(program, section, inputs, error));
  if (section == RF_SECTION_END) run->bound[plan].in_step = false;
  /* The end of a step waits for the device, because the device's time and errors belong to this
   * step. */
  if (section != RF_SECTION_END || !run->device->type->synchronise) return RAFTER_OK;
  return run->device->type->synchronise(run->device, error);
}

rf_status rf_run_all(rf_run *run, int plan, const rf_run_inputs *inputs, rf_error *error) {
  RF_TRY(rf_run_push(run, plan, 0, error));
  for (int s = 0; s < RF_SECTIONS; s++) RF_TRY(rf_run_section(run, plan, (rf_section)s, inputs, error));
  return pull_except(run, plan, inputs->unread, error);
}

bool rf_run_starts(const rf_run *run, int plan) {
  const rf_program *program = run->bound[plan].program;
  return program && program->start && !run->debug.poison && !run->debug.find_nan && rf_run_hosts(run) == 1;
}

rf_status rf_run_start(rf_run *run, int plan, const rf_run_inputs *inputs, rf_error *error) {
  rf_program *program = run->bound[plan].program;
  RF_TRY(rf_run_push(run, plan, 0, error));
  run->bound[plan].sections += RF_SECTIONS;
  return program->start(program, inputs, error);
}

rf_status rf_run_finish(rf_run *run, int plan, const rf_tensor *unread, rf_error *error) {
  rf_program *program = run->bound[plan].program;
  RF_TRY(program->finish(program, error));
  return pull_except(run, plan, unread, error);
}

double rf_run_reduced_seconds(const rf_run *run) {
  return run->device ? 1e-9 * (double)run->device->team.reduced : 0;
}

int64_t rf_run_others(const rf_run *run, int first, int count) {
  int64_t sum = 0;
  for (int i = 0; i < run->count; i++)
    if (i < first || i >= first + count) sum += run->bound[i].sections;
  return sum;
}

const rf_measured *rf_run_measured(const rf_run *run, int plan) {
  forget_unfinished(&run->bound[plan]);
  return run->bound[plan].measured;
}

int64_t rf_run_timed(const rf_run *run, int plan) { return run->bound[plan].timed; }

void rf_run_measured_reset(rf_run *run) {
  for (int i = 0; i < run->count; i++) {
    forget_unfinished(&run->bound[i]);
    memset(run->bound[i].measured, 0, (size_t)run->bound[i].plan->graph->op_count * sizeof(rf_measured));
    run->bound[i].timed = 0;
  }
}

int64_t rf_run_high_water(const rf_run *run, bool *slack_intact) {
  int64_t high = run->arena_bytes + (run->watched ? SLACK_BYTES : 0), n = 0;
  unsigned char block[BLOCK_BYTES];
  while (run->watched && high > 0) {
    n = high < BLOCK_BYTES ? high : BLOCK_BYTES;
    if (rf_memory_read(run->memory, high - n, block, n, NULL) != RAFTER_OK) break;
    while (n > 0 && block[n - 1] == (UNTOUCHED & 0xff)) {
      n--;
      high--;
    }
    if (n > 0) break;
  }
  if (slack_intact) *slack_intact = run->watched && high <= run->arena_bytes;
  return high < run->arena_bytes ? high : run->arena_bytes;
}
