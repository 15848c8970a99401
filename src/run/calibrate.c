/* calibrate.c - measures peak rates. The calibration then runs small real plans and records the
 * time of each op. */
#define _GNU_SOURCE
#include "run/calibrate_parts.h"

#include "model/weights.h"
#include "text/tokenizer.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

rf_ceiling rf_ceiling_of(double *values, int count) {
  if (count < 1) return (rf_ceiling){0};
  qsort(values, (size_t)count, sizeof *values, rf_compare_doubles);
  double middle = count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
  return (rf_ceiling){.median = middle, .least = values[0], .most = values[count - 1], .count = count};
}

size_t rf_bandwidth_buffer_bytes(void) {
  size_t have = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE), want = (size_t)1 << 30;
  while (want > have / 4 && want > (size_t)64 << 20) want /= 2;
  return want;
}

rf_status rf_bandwidth_memory(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error) {
  RF_TRY(device->type->allocate(device, bytes, memory, error));
  if (device->type->reserve) RF_TRY(device->type->reserve(*memory, 0, bytes, error));
  return rf_memory_fill(*memory, 0, 0x01010101u, bytes, error);
}

double rf_bandwidth_median(const rf_device *device, rf_memory *memory, rf_traffic traffic, int passes) {
  double values[64];
  if (passes > 64) passes = 64;
  for (int i = 0; i < passes; i++) values[i] = device->type->bandwidth(device, memory, traffic, 1);
  return rf_ceiling_of(values, passes).median;
}

rf_status rf_calibrate_goes_on(const rf_calibrate_options *o, rf_error *error) {
  if (!rf_flag_is_set(o->stop)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal; nothing was written");
}

static double median_burst(const rf_device *device, rf_dtype dtype, rf_alu alu, int count) {
  double values[64];
  for (int i = 0; i < count; i++) values[i] = device->type->flops(device, dtype, alu, 0.02);
  return rf_ceiling_of(values, count).median;
}

static rf_status measure_ceilings(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  rf_status status = RAFTER_OK;
  int bursts = o->quick ? 5 : 21, loops = o->quick ? 5 : 11;
  rf_device *device = NULL;
  rf_memory *memory = NULL;
  static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_I8};
  RF_TRY(rf_device_open(&RF_BACKEND_CPU, (int)o->isa, o->threads, NULL, &device, error));
  const rf_device_type *type = device->type;
  for (size_t i = 0; i < 3; i++) {
    rf_dtype dtype = dtypes[i];
    RF_GO(rf_calibrate_goes_on(o, error));
    bool tiles = type->has_alu(device, dtype, RF_ALU_MATRIX);
    m->flops[dtype] = median_burst(device, dtype, tiles ? RF_ALU_MATRIX : RF_ALU_VECTOR, bursts);
    m->flops_vectors[dtype] = tiles ? median_burst(device, dtype, RF_ALU_VECTOR, bursts) : 0;
  }
  RF_GO(rf_bandwidth_memory(device, (int64_t)rf_bandwidth_buffer_bytes(), &memory, error));
  m->read_bps = rf_bandwidth_median(device, memory, RF_TRAFFIC_READ, loops);
  m->copy_bps = rf_bandwidth_median(device, memory, RF_TRAFFIC_COPY, loops);
  m->launch_seconds = type->launch_seconds(device);
  m->scaling_count = 0;
  for (int t = 1; t <= o->threads && m->scaling_count < RF_SCALING_POINTS;
       t = t < o->threads && 2 * t > o->threads ? o->threads : 2 * t) {
    RF_GO(rf_calibrate_goes_on(o, error));
    device->workers = t;
    m->scaling[m->scaling_count++] = (rf_scaling){t, median_burst(device, RF_F32, RF_ALU_VECTOR, 3),
                                                  rf_bandwidth_median(device, memory, RF_TRAFFIC_READ, 3)};
  }
done:
  if (memory) type->release(memory);
  type->close(device);
  return status;
}

/* The ops of a plan that are recorded: all ops, the ops of adapters, or attention over the
 * cache. */
typedef enum recorded { ALL, ADAPTERS, CACHED } recorded;
/* A small plan to measure. The plan has one to four layers. So the plan runs quickly, but its
 * tensors do not fit in the caches. */
typedef struct shape {
  const char *model;
  int64_t microbatch, rows; /* `rows`: number of rows in a generate step; 0: the plan is for training. */
  float dropout;
  bool quick;
  recorded ops;
} shape;
/* The plan for reference kernels. All reference kernels share one curve. */
static const shape REFERENCE = {"gpt:layers=1,width=32,heads=2,ff=128,vocab=64,seq=32", 1, 0, 0, true, ALL};
static const shape SHAPES[] = {
    {"gpt:layers=1,width=256,heads=4,ff=512,vocab=256,seq=16", 16, 0, 0, true, ALL},
    {"gpt:layers=1,width=64,heads=2,ff=256,vocab=256,seq=64", 1, 0, 0, true, ALL},
    {"gpt:layers=1,width=128,heads=4,ff=512,vocab=256,seq=64", 4, 0, 0.1f, true, ALL},
    {"gpt:layers=1,width=256,heads=4,ff=1024,vocab=1024,seq=128", 4, 0, 0, true, ALL},
    {"gpt:layers=1,width=256,heads=4,ff=1024,vocab=256,seq=256", 8, 0, 0, false, ALL},
    {"gpt:layers=1,width=512,heads=8,ff=2048,vocab=8192,seq=256", 4, 0, 0.1f, true, ALL},
    {"gpt:layers=1,width=512,heads=8,ff=2048,vocab=2048,seq=1024", 1, 0, 0, false, ALL},
    {"gpt:layers=1,width=768,heads=12,ff=3072,vocab=16384,seq=512", 2, 0, 0, false, ALL},
    {"gpt:layers=1,width=1024,heads=8,ff=4096,vocab=2048,seq=512", 1, 0, 0.1f, false, ALL},
    {"llama:layers=1,width=512,heads=8,kv_heads=4,ff=1536,vocab=2048,seq=256", 4, 0, 0, true, ALL},
    {"llama:layers=1,width=1024,heads=16,kv_heads=4,ff=3072,vocab=2048,seq=512", 2, 0, 0, false, ALL},
    {"llama:layers=1,width=512,heads=8,kv_heads=4,ff=1536,vocab=256,seq=256", 1, 0, 0, true, ADAPTERS},
    {"llama:layers=1,width=2048,heads=16,kv_heads=4,ff=5632,vocab=256,seq=512", 1, 0, 0, false, ADAPTERS},
    {"llama:layers=4,width=768,heads=12,kv_heads=4,ff=2048,vocab=256,seq=256", 1, 8, 0, true, ADAPTERS},
    {"llama:layers=4,width=768,heads=12,kv_heads=4,ff=2048,vocab=256,seq=256", 1, 64, 0, false, ADAPTERS},
    {"gpt:layers=1,width=128,heads=4,ff=512,vocab=256,seq=128", 1, 1, 0, true, ALL},
    {"gpt:layers=2,width=512,heads=8,ff=2048,vocab=8192,seq=256", 1, 1, 0, true, ALL},
    {"gpt:layers=4,width=1024,heads=8,ff=4096,vocab=16384,seq=256", 1, 1, 0, false, ALL},
    {"llama:layers=1,width=512,heads=8,kv_heads=4,ff=1536,vocab=2048,seq=256", 1, 1, 0, true, ALL},
    {"gpt:layers=1,width=256,heads=4,ff=1024,vocab=1024,seq=128", 1, 128, 0, true, ALL},
    {"gpt:layers=1,width=768,heads=12,ff=3072,vocab=2048,seq=256", 1, 256, 0, false, ALL},
    {"llama:layers=1,width=512,heads=8,kv_heads=4,ff=1536,vocab=2048,seq=256", 1, 16, 0, true, ALL},
    {"llama:layers=1,width=2048,heads=32,kv_heads=4,ff=5632,vocab=2048,seq=256", 1, 4, 0, false, ALL},
    {"llama:layers=1,width=2048,heads=32,kv_heads=4,ff=5632,vocab=2048,seq=256", 1, 16, 0, false, ALL},
    {"llama:layers=1,width=2048,heads=32,kv_heads=4,ff=5632,vocab=2048,seq=256", 1, 128, 0, false, ALL},
    {"llama:layers=1,width=1024,heads=4,kv_heads=1,ff=64,vocab=256,seq=256", 1, 256, 0, true, CACHED},
    {"llama:layers=4,width=768,heads=12,kv_heads=4,ff=64,vocab=256,seq=4096", 1, 1, 0, true, CACHED},
    {"llama:layers=4,width=768,heads=12,kv_heads=4,ff=64,vocab=256,seq=4096", 1, 16, 0, false, CACHED},
    {"llama:layers=4,width=768,heads=12,kv_heads=4,ff=64,vocab=256,seq=4096", 1, 256, 0, true, CACHED},
    {"llama:layers=4,width=1024,heads=4,kv_heads=1,ff=64,vocab=256,seq=4096", 1, 256, 0, true, CACHED},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

/* Panels of f32 and bf16 numbers hold nothing else, and drawing random numbers takes long. */
static bool has_plain_numbers(const rf_panels *panels) {
  for (int i = 0; i < panels->parts; i++)
    if (panels->part[i].type->number != RF_Q_F32 && panels->part[i].type->number != RF_Q_BF16) return false;
  return true;
}

rf_status rf_calibrate_fill(rf_run *run, const rf_plan *plan, rf_error *error) {
  const rf_graph *graph = plan->graph;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (plan->tensor[t].offset < 0 || !tensor->persistent || tensor->class == RF_CLASS_MOMENT) continue;
    void *values = calloc((size_t)rf_tensor_bytes(tensor), 1);
    if (!values) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while calibrating");
    rf_status status = RAFTER_OK;
    if (tensor->dtype == RF_PACKED && has_plain_numbers(&tensor->panels))
      rf_calibrate_values(values, (size_t)rf_tensor_bytes(tensor), 0.01f);
    else if (tensor->dtype == RF_PACKED)
      status = rf_weights_initialise(&graph->params.at[tensor->param], 1, &tensor->panels, values, error);
    for (int64_t i = 0; tensor->dtype != RF_PACKED && i < rf_tensor_count(tensor); i++) {
      float value = 0.02f * (float)((i * 2654435761u >> 16) & 1023) / 1024 - 0.01f;
      if (tensor->dtype == RF_F32) ((float *)values)[i] = value;
      else if (tensor->dtype == RF_BF16) ((rf_bf16 *)values)[i] = rf_f32_to_bf16(value);
    }
    if (status == RAFTER_OK) status = rf_run_write(run, 0, t, 0, values, rf_tensor_bytes(tensor), error);
    free(values);
    RF_TRY(status);
  }
  return RAFTER_OK;
}

/* Writes reproducible inputs: ids within the vocabulary, and one segment for each row. For
 * generation, the rows are the last tokens of one sequence, whose pages are in order. Called before
 * each step, because other tensors reuse the memory of inputs. */
static void fill_inputs(rf_run *run, const rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  int64_t n = graph->rows;
  int32_t *tokens = rf_run_named(run, 0, "tokens", NULL), *labels = rf_run_named(run, 0, "labels", NULL),
          *positions = rf_run_named(run, 0, "positions", NULL);
  int32_t *segments = rf_run_named(run, 0, "segments", NULL), *slots = rf_run_named(run, 0, "slots", NULL),
          *rows = rf_run_named(run, 0, "rows", NULL);
  for (int64_t i = 0; i < n; i++) {
    tokens[i] = (int32_t)((i * 7919 + 13) % graph->model.vocab);
    positions[i] = (int32_t)(slots ? graph->seq - n + i : i % graph->seq);
    if (labels) labels[i] = (int32_t)((i * 104729 + 5) % graph->model.vocab);
    if (segments) segments[i] = (int32_t)(i * graph->seq < n ? i * graph->seq : n);
    if (slots) slots[i] = 0;
  }
  const rf_tensor *table = NULL;
  int32_t *pages = rf_run_named(run, 0, "pages/global", &table);
  for (int64_t i = 0; pages && i < rf_tensor_count(table); i++) pages[i] = (int32_t)i;
  if (segments) segments[n] = (int32_t)n;
  if (rows) rows[0] = (int32_t)n - 1;
}

static rf_curve *curve_of(rf_machine *m, const char *op, rf_dtype dtype, const char *kernel) {
  for (int i = 0; i < m->curve_count; i++)
    if (!strcmp(m->curve[i].op, op) && m->curve[i].dtype == dtype && !strcmp(m->curve[i].kernel, kernel))
      return &m->curve[i];
  if (m->curve_count == RF_MAX_CURVES) return NULL;
  rf_curve *c = &m->curve[m->curve_count++];
  *c = (rf_curve){.dtype = dtype, .multiplies = rf_curve_multiplies(op)};
  snprintf(c->op, sizeof c->op, "%s", op);
  snprintf(c->kernel, sizeof c->kernel, "%s", kernel);
  return c;
}

/* Adds a point in order of size. If the sizes of two points differ by at most 25 %, the points are
 * merged. */
static void add_point(rf_curve *c, double size, double work, double seconds) {
  int at = 0;
  while (at < c->count && c->size[at] < size) at++;
  for (int near = at - 1; near <= at; near++)
    if (near >= 0 && near < c->count && fabs(log(c->size[near] / size)) < 0.22) {
      c->work[near] += work;
      c->seconds[near] += seconds;
      return;
    }
  if (c->count == RF_CURVE_POINTS) return;
  for (int i = c->count++; i > at; i--) {
    c->size[i] = c->size[i - 1];
    c->work[i] = c->work[i - 1];
    c->seconds[i] = c->seconds[i - 1];
  }
  c->size[at] = size;
  c->work[at] = work;
  c->seconds[at] = seconds;
}

void rf_calibrate_add(rf_machine *m, const char *op, const char *kernel, double size, double work,
                      double seconds) {
  rf_curve *c = curve_of(m, op, RF_F32, kernel);
  if (!c || c->count == RF_CURVE_POINTS) return;
  c->size[c->count] = size;
  c->work[c->count] = work;
  c->seconds[c->count++] = seconds;
}

void rf_calibrate_values(void *at, size_t bytes, float largest) {
  rf_bf16 *to = at;
  for (size_t i = 0; i < bytes / 4; i++)
    to[2 * i] = to[2 * i + 1] =
        rf_f32_to_bf16(largest * ((float)((uint32_t)i * 2654435761u >> 16 & 1023) / 512 - 1));
}

rf_status rf_calibrate_model(rf_model *model, rf_error *error) {
  return rf_model_resolve("gpt:layers=1,width=64,heads=1,ff=64,vocab=64,seq=64", model, NULL, error);
}

rf_status rf_calibrate_kernel(const rf_calibrate_options *o, const rf_graph *graph, rf_calibrate_room *room,
                              const char *what, const rf_kernel **kernel, rf_call *call, rf_error *error) {
  const rf_op *op = &graph->op[0];
  const rf_kernel *k = *kernel = rf_kernel_choose(&RF_BACKEND_CPU, o->isa, graph, op);
  size_t bytes = (rf_kernel_workspace(k, graph, op, (rf_tiling){.threads = o->threads}) + 63) / 64 * 64;
  if (bytes > room->bytes) {
    free(room->at);
    room->at = aligned_alloc(64, bytes);
    room->bytes = room->at ? bytes : 0;
    if (!room->at) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring %s", what);
    memset(room->at, 0, bytes);
  }
  if (k->inner) k->inner(k->level, graph, op, memset(room->inner, 0, sizeof room->inner));
  *call =
      (rf_call){.graph = graph, .op = op, .workspace = room->at, .threads = o->threads, .inner = room->inner};
  return RAFTER_OK;
}

/* Uses the median of several steps, because an interrupted op can take a thousand times as long. */
enum { MAX_STEPS = 200 };
static rf_status time_ops(const rf_calibrate_options *o, rf_run *run, const rf_plan *plan, double *took,
                          int *steps, rf_error *error) {
  double start = 0, budget = o->quick ? 0.08 : 0.25;
  int minimum = o->quick ? 2 : 1; /* steps of each round */
  /* In a long step, the time to wake threads and fill caches is too short to matter. */
  int step = o->quick && plan->step_seconds > budget ? 0 : -1;
  for (; step < minimum || (rf_now_seconds() - start < budget && step < MAX_STEPS); step++) {
    if (step == 0) start = rf_now_seconds(); /* the first step wakes threads and fills caches */
    rf_run_measured_reset(run);
    rf_run_inputs inputs = {
        .seed = 1, .step = step + 2, .loss_scale = 1e-3f, .lr = 1e-6f, .rows = plan->graph->rows};
    RF_TRY(rf_calibrate_goes_on(o, error));
    fill_inputs(run, plan);
    RF_TRY(rf_run_all(run, 0, &inputs, error));
    for (int i = 0; i < plan->graph->op_count && step >= 0; i++)
      took[i * MAX_STEPS + step] = rf_run_measured(run, 0)[i].seconds;
  }
  *steps = step;
  return RAFTER_OK;
}

static rf_status measure_shape(const rf_calibrate_options *o, const shape *s, rf_dtype dtype,
                               const rf_backend *backend, rf_machine *m, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_model model;
  rf_plan *plan = NULL;
  rf_run *run = NULL;
  double *took = NULL;
  RF_TRY(rf_model_resolve(s->model, &model, NULL, error));
  if (s->ops == ADAPTERS) RF_TRY(rf_lora_parse("rank=16,targets=all", &model, &model.lora, error));
  rf_plan_options options = {.build = {.job = s->rows ? RF_JOB_GENERATE : RF_JOB_TRAIN,
                                       .dtype = dtype,
                                       .softmax = RF_F32,
                                       .microbatch = s->microbatch,
                                       .seq = model.max_seq,
                                       .rows = s->rows,
                                       .accumulate = 1,
                                       .dropout = s->dropout,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .clip = 1},
                             .remat = RF_REMAT_NONE,
                             .backend = backend,
                             .isa = o->isa,
                             .threads = o->threads,
                             .machine = m};
  rf_machine bare = *m; /* plans that are made during calibration must not use curves */
  bare.curve_count = 0;
  options.machine = &bare;
  RF_GO(rf_plan_make(&model, &options, &plan, error));
  const rf_plan *plans[] = {plan};
  RF_GO(rf_run_open(plans, 1, (rf_run_debug){0}, &run, error));
  RF_GO(rf_calibrate_fill(run, plan, error));
  took = calloc((size_t)plan->graph->op_count * MAX_STEPS, sizeof *took);
  if (!took) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while calibrating"));
  int steps = 0;
  RF_GO(time_ops(o, run, plan, took, &steps, error));
  for (int i = 0; i < plan->graph->op_count; i++) {
    const rf_extent part = {plan->graph->rows, plan->graph->seq};
    const rf_work done = s->rows ? rf_plan_pass_work(plan, i, &part, 1) : plan->op[i].work;
    double work = rf_cost_amount(plan->graph, &plan->graph->op[i], done),
           seconds = rf_ceiling_of(took + i * MAX_STEPS, steps).median;
    const rf_op *op = &plan->graph->op[i];
    rf_cost_class class[RF_PANEL_PARTS];
    if (work <= 0 || seconds <= 0 || rf_cost_classes(plan->graph, op, done, class)) continue;
    const char *name = rf_cost_curve_name(plan->graph, op);
    if (s->ops == CACHED && op->def->long_curve && plan->graph->seq >= RF_LONG_CONTEXT)
      name = op->def->long_curve;
    if (backend == &RF_BACKEND_REFERENCE) {
      rf_curve *c =
          curve_of(m, RF_COST_REFERENCE, dtype, rf_cost_flops(done) > 0 ? RF_COST_FLOPS : RF_COST_BYTES);
      if (c) add_point(c, 1, work, seconds);
      continue;
    }
    bool adapts = op->def->timing == RF_TIMING_OTHER_PRODUCTS && op->def->kind == RF_KIND_MATMUL;
    if ((s->ops == ADAPTERS && name == op->def->name && !adapts) ||
        (s->ops == CACHED && !rf_op_is_cached(op)))
      continue;
    rf_curve *c = curve_of(m, name, dtype, rf_kernel_curve(plan->op[i].kernel));
    if (c)
      add_point(c, rf_cost_size(plan->graph, op, done), work,
                fmax(seconds - m->launch_seconds, 0.1 * seconds));
  }
done:
  free(took);
  rf_run_close(run);
  rf_plan_free(plan);
  return status;
}

/* A matrix in a mapped file. */
typedef struct stored_matrix {
  const char *at;
  int64_t row_bytes;
} stored_matrix;
static const void *stored_row(void *self, int64_t output, const rf_quant_type *type) {
  const stored_matrix *m = self;
  (void)type;
  return m->at + output * m->row_bytes;
}

/* Measures the seconds to map a cached file, and to pack its matrix into pages that have been
 * touched before. */
static rf_status load_once(int fd, size_t bytes, const rf_panels *panels, void *to, double *seconds,
                           rf_error *error) {
  void *from = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (from == MAP_FAILED) return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot map %zu bytes", bytes);
  const rf_quant_type *type = panels->part[0].type;
  stored_matrix matrix = {from, type->head + panels->inner / type->values * type->bytes};
  rf_panel_source source = {.self = &matrix, .stored = stored_row};
  double start = rf_now_seconds();
  rf_status status = rf_panels_fill(panels, &source, to, error);
  *seconds = rf_now_seconds() - start;
  munmap(from, bytes);
  return status;
}

static void touch(void *at, size_t bytes, int threads) {
#pragma omp parallel for num_threads(threads)
  for (size_t i = 0; i < bytes; i += 4096) *((volatile char *)at + i) = 0;
}

/* Measures the time to touch new pages. On a virtual machine, the host may have to find pages
 * first. Finding pages takes ten times the time of using freed pages again. So all sizes are mapped
 * at the same time. The function runs before and after all other measurements. The longer time
 * counts. */
enum { TOUCHES = 3 };
static void touch_fresh(const rf_calibrate_options *o, size_t bytes[TOUCHES], double seconds[TOUCHES]) {
  void *at[TOUCHES] = {NULL};
  for (int i = 0; i < TOUCHES; i++) {
    bytes[i] = (rf_bandwidth_buffer_bytes() >> (o->quick ? 3 : 0)) >> 2 * (TOUCHES - 1 - i);
    if (rf_pages_map(bytes[i], &at[i], NULL, NULL) != RAFTER_OK) continue;
    double start = rf_now_seconds();
    touch(at[i], bytes[i], o->threads);
    seconds[i] = fmax(seconds[i], rf_now_seconds() - start);
  }
  for (int i = 0; i < TOUCHES; i++)
    if (at[i]) rf_pages_unmap(at[i], bytes[i]);
}

/* Adds the median of `seconds` for one size. One point is enough, because all sizes beyond the
 * caches have the same rate. */
static void add_load(rf_machine *m, const char *kernel, double bytes, double *seconds, int count) {
  rf_curve *c = curve_of(m, "load", RF_F32, kernel);
  double middle = rf_ceiling_of(seconds, count).median;
  if (c && middle > 0) add_point(c, bytes, bytes, middle);
}

static rf_status measure_loading(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  enum { INNER = 2048, TIMES = 3 };
  /* allocates 1/8 more, because the number of lanes is rounded up */
  size_t bytes = (size_t)(o->quick ? 16 : 256) << 20, room = bytes + bytes / 8;
  double seconds[TIMES];
  rf_status status = RAFTER_OK;
  int fd = memfd_create("rafter-calibrate", MFD_CLOEXEC), before = omp_get_max_threads();
  char *block = malloc(1 << 20);
  void *to = NULL;
  if (fd < 0 || !block || rf_pages_map(room, &to, NULL, error) != RAFTER_OK) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring how fast weights load");
    goto done;
  }
  touch(to, room, o->threads);
  for (int i = 0; i < 1 << 20; i++) block[i] = (char)(i * 2654435761u >> 24);
  for (size_t at = 0; at < bytes; at += 1 << 20)
    if (write(fd, block, 1 << 20) != 1 << 20)
      RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring how fast weights load"));
  omp_set_num_threads(o->threads);
  for (int i = 0; i < RF_QUANT_TYPE_COUNT; i++) {
    const rf_quant_type *type = &RF_QUANT_TYPES[i];
    int64_t row = type->head + (int64_t)INNER / type->values * type->bytes;
    if (!rf_panels_take(type)) continue;
    rf_panels panels = {
        .outputs_first = true, .inner = INNER, .parts = 1, .part = {{type, (int64_t)bytes / row}}};
    RF_GO(rf_calibrate_goes_on(o, error));
    for (int k = -1; k < TIMES; k++) RF_GO(load_once(fd, bytes, &panels, to, &seconds[k < 0 ? 0 : k], error));
    add_load(m, type->name, (double)(panels.part[0].outputs * row), seconds, TIMES);
  }
done:
  omp_set_num_threads(before);
  if (fd >= 0) close(fd);
  if (to) rf_pages_unmap(to, room);
  free(block);
  return status;
}

/* Writes word number `word` of a list of all words of one to four letters. Short words come first
 * in this list. Without its last letter, each word is an earlier word of the list. So each long
 * word is the result of a merge. */
enum { LETTERS = 26, MAX_WORD = 4 };
static int spell(int64_t word, char text[MAX_WORD]) {
  int64_t length = 1, of_length = LETTERS;
  for (; word >= of_length; length++) {
    word -= of_length;
    of_length *= LETTERS;
  }
  for (int64_t i = length - 1; i >= 0; i--, word /= LETTERS) text[i] = (char)('a' + word % LETTERS);
  return (int)length;
}

static rf_status build_once(const rf_vocabulary *v, double *seconds, rf_error *error) {
  rf_tokenizer *tokenizer = NULL;
  double start = rf_now_seconds();
  rf_status status = rf_tokenizer_build(v, "a vocabulary to measure", &tokenizer, error);
  *seconds = rf_now_seconds() - start;
  rf_tokenizer_close(tokenizer);
  return status;
}

/* Measures the seconds to load a vocabulary with scores. The size in the curve is its number of
 * bytes. Vocabularies of SentencePiece and of many GGUF files have scores. A small vocabulary fits
 * in the caches. */
static rf_status measure_vocabulary(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  enum { TIMES = 3 };
  int64_t count = o->quick ? 1 << 14 : 1 << 18;
  double seconds[TIMES];
  rf_status status = RAFTER_OK;
  rf_span *pieces = malloc((size_t)count * sizeof *pieces);
  float *scores = malloc((size_t)count * sizeof *scores);
  char(*text)[MAX_WORD] = malloc((size_t)count * sizeof *text);
  if (!pieces || !scores || !text) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring how fast a vocabulary loads");
    goto done;
  }
  double bytes = 0;
  rf_vocabulary v = {.kind = "llama",
                     .pieces = pieces,
                     .scores = scores,
                     .bos_id = -1,
                     .eos_id = -1,
                     .pad_id = -1,
                     .unk_id = -1};
  for (int64_t i = 0; i < count; i++) {
    pieces[i] = (rf_span){text[i], (size_t)spell(i, text[i])};
    scores[i] = -(float)i;
    bytes += (double)pieces[i].bytes;
    v.count = i + 1;
    if (v.count != count && v.count != count / 16) continue;
    RF_GO(rf_calibrate_goes_on(o, error));
    for (int k = 0; k < TIMES; k++) RF_GO(build_once(&v, &seconds[k], error));
    add_load(m, "vocabulary", bytes, seconds, TIMES);
  }
done:
  free(pieces);
  free(scores);
  free(text);
  return status;
}

/* Writes a tokenizer.json with byte-level BPE. Each of the merges adds one letter to a word. */
static char *write_json(int64_t count, size_t *bytes) {
  char *text = malloc((size_t)count * 40 + 200), word[MAX_WORD], *at = text;
  if (!text) return NULL;
  at += sprintf(at, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{"
                    "\"type\":\"BPE\",\"vocab\":{");
  for (int64_t i = 0; i < count; i++) {
    int length = spell(i, word);
    at += sprintf(at, "%s\"%.*s\":%lld", i ? "," : "", length, word, (long long)i);
  }
  at += sprintf(at, "},\"merges\":[");
  for (int64_t i = LETTERS; i < count; i++) {
    int length = spell(i, word);
    at += sprintf(at, "%s[\"%.*s\",\"%c\"]", i > LETTERS ? "," : "", length - 1, word, word[length - 1]);
  }
  at += sprintf(at, "]}}");
  *bytes = (size_t)(at - text);
  return text;
}

static rf_status measure_json(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  enum { TIMES = 3 };
  rf_status status = RAFTER_OK;
  for (int64_t count = o->quick ? 1 << 12 : 1 << 14;
       status == RAFTER_OK && count <= (o->quick ? 1 << 14 : 1 << 18); count *= 16) {
    double seconds[TIMES];
    size_t bytes = 0;
    char *text = write_json(count, &bytes);
    if (!text)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "out of memory while measuring how fast a tokenizer.json loads");
    for (int k = 0; k < TIMES && status == RAFTER_OK; k++) {
      rf_tokenizer *tokenizer = NULL;
      double start = rf_now_seconds();
      status = rf_calibrate_goes_on(o, error);
      if (status != RAFTER_OK) break;
      status = rf_tokenizer_json_read(text, bytes, "a tokenizer.json to measure", &tokenizer, error);
      seconds[k] = rf_now_seconds() - start;
      rf_tokenizer_close(tokenizer);
    }
    if (status == RAFTER_OK) add_load(m, "tokenizer.json", (double)bytes, seconds, TIMES);
    free(text);
  }
  return status;
}

int rf_calibrate_rounds(const rf_calibrate_options *o) { return o->quick ? 1 : 2; }

/* Measures all shapes in rounds. Points of the same size are merged, so each point is the mean of the
 * rounds. */
static rf_status measure_shapes(const rf_calibrate_options *o, rf_machine *m, rf_error *error) {
  int rounds = rf_calibrate_rounds(o), shapes = 0, done = 0;
  for (int i = 0; i < SHAPE_COUNT; i++) shapes += rounds * (!o->quick || SHAPES[i].quick);
  for (int round = 0; round < rounds; round++)
    for (int i = 0; i < SHAPE_COUNT; i++) {
      if (o->quick && !SHAPES[i].quick) continue;
      RF_TRY(rf_calibrate_meet(o, error));
      for (int d = 0; d < 2; d++)
        RF_TRY(measure_shape(o, &SHAPES[i], d ? RF_BF16 : RF_F32, &RF_BACKEND_CPU, m, error));
      if (o->say)
        o->say(o->self, SHAPES[i].model, RF_CALIBRATE_CEILINGS + RF_CALIBRATE_SHAPES * ++done / shapes);
    }
  return measure_shape(o, &REFERENCE, RF_F32, &RF_BACKEND_REFERENCE, m, error);
}

rf_status rf_calibrate(const rf_calibrate_options *o, rf_machine *machine, rf_error *error) {
  RF_TRY(rf_machine_detect(machine, error));
  machine->threads = o->threads;
  machine->curve_count = 0;
  snprintf(machine->isa, sizeof machine->isa, "%s", rf_isa_name(o->isa));
  if (o->say) o->say(o->self, "ceilings", 0);
  size_t bytes[TOUCHES] = {0};
  double touched[TOUCHES] = {0};
  RF_TRY(rf_calibrate_meet(o, error));
  touch_fresh(o, bytes, touched);
  RF_TRY(rf_calibrate_goes_on(o, error));
  RF_TRY(measure_ceilings(o, machine, error));
  machine->efficiency_compute = machine->efficiency_memory = 1;
  if (o->tune) RF_TRY(rf_calibrate_tune(o, &machine->tuned, error));
  else if (o->tuned) machine->tuned = *o->tuned;
  RF_TRY(measure_shapes(o, machine, error));
  RF_TRY(rf_calibrate_meet(o, error));
  RF_TRY(rf_calibrate_products(o, machine, error));
  RF_TRY(rf_calibrate_heads(o, machine, error));
  RF_TRY(rf_calibrate_meet(o, error));
  RF_TRY(rf_calibrate_goes_on(o, error));
  touch_fresh(o, bytes, touched);
  int slowest = 0;
  for (int i = 1; i < TOUCHES; i++)
    if (touched[i] * (double)bytes[slowest] > touched[slowest] * (double)bytes[i]) slowest = i;
  if (touched[slowest] > 0) add_load(machine, "touch", (double)bytes[slowest], &touched[slowest], 1);
  RF_TRY(measure_loading(o, machine, error));
  RF_TRY(measure_vocabulary(o, machine, error));
  RF_TRY(measure_json(o, machine, error));
  snprintf(machine->source, sizeof machine->source, "calibrated");
  machine->calibration = RF_CALIBRATION;
  snprintf(machine->source_note, sizeof machine->source_note,
           "measured by rafter calibrate%s with %d threads, %s", o->quick ? " --quick" : "", o->threads,
           rf_isa_name(o->isa));
  return RAFTER_OK;
}
