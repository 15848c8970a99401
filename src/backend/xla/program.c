/* program.c - a plan as compiled modules. One module computes all sections of a step, so `run`
 * collects the inputs of the microbatches, and executes the module in the last section. In
 * generation and scoring, the number of rows varies, so there is one module for each power of
 * two. */
#include "backend/xla/device.h"
#include "backend/xla/known.h"
#include "backend/xla/timed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The compiled module for one number of rows. */
typedef struct variant {
  int64_t rows;
  rf_emit_known known;
  rf_emitted module;
  rf_xla_id program;
  rf_xla_argument *argument; /* (chips * arguments), chip by chip, as in rf_xla_call */
  rf_xla_result *result;     /* (chips * results) */
  bool *donated;
  /* offsets in the image of the words of rf_run_inputs, and of the values of probes (chips *
   * probes) */
  int64_t words, probes;
  /* instructions of the compiled program; none until the first traced execution */
  rf_xla_instructions instructions;
  int64_t *sums; /* for each result: offset in the image for the f32 values of an f64 tensor, or -1 */
} variant;

/* A step that was started. Its inputs and results have places of their own in the image: the caller
 * writes and reads the usual ones meanwhile. */
typedef struct flight {
  int64_t *place; /* for each tensor, and for the words: bytes of the image for all chips, or -1: none yet */
  int variant;
  const rf_tensor *unread; /* as in rf_run_inputs */
} flight;

typedef struct xla_program {
  rf_program program; /* first field, because callers have a pointer to rf_program */
  rf_xla_memory *memory;
  const rf_graph *graph;
  int64_t *offset; /* of each tensor */
  /* With several microbatches, the image has an array with the values of all microbatches for each
   * input, and for each output that every microbatch has. stack[t]: offset of the array of tensor
   * t. Otherwise: -1. */
  int64_t *stack;
  rf_watch watch;
  rf_xla_timed timed;
  int number;             /* number of the plan in the run */
  rf_known_inputs inputs; /* inputs that decide which program runs */
  rf_section last;        /* the last section that has ops */
  variant *variant;
  int variants;
  int fed, feeds; /* input and output with rf_tensor.follows; RF_NONE */
  flight flight[RF_STEPS_AHEAD];
  int64_t started, finished; /* steps; step i has flight[i % RF_STEPS_AHEAD] */
  rf_xla_id *held;           /* (chips) the output `feeds` of the step that was started last; 0: none */
  rf_xla_shape held_shape;
} xla_program;

static rf_status no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while compiling a plan");
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* Size on one chip of a tensor that has the values of all microbatches, in bytes. */
static int64_t stack_bytes(const xla_program *p, int t) {
  return rf_round_up(p->graph->accumulate * rf_tensor_bytes(&p->graph->tensor[t]), 64);
}

static int64_t at_chip(const xla_program *p, int chip, int64_t at) {
  return rf_memory_at(&p->memory->memory, chip, at);
}

/* Places of the arguments that are not persistent, for a run that the caller waits for. */
static void place_arguments(const xla_program *p, variant *v) {
  int count = v->module.arguments;
  for (int i = 0; i < count; i++) {
    int t = v->module.argument[i].tensor;
    if (t != RF_NONE && p->graph->tensor[t].persistent) continue;
    for (int chip = 0; chip < p->memory->chips; chip++) {
      rf_xla_argument *a = &v->argument[chip * count + i];
      a->buffer = 0;
      if (t == RF_NONE) a->at = v->words;
      else if (p->stack[t] >= 0) a->at = p->stack[t] + chip * stack_bytes(p, t);
      else a->at = at_chip(p, chip, p->offset[t]);
    }
  }
}

static rf_status bind_arguments(xla_program *p, variant *v, rf_error *error) {
  rf_xla_memory *m = p->memory;
  int count = v->module.arguments;
  for (int i = 0; i < count; i++) {
    const rf_emit_port *port = &v->module.argument[i];
    const rf_tensor *t = port->tensor == RF_NONE ? NULL : &p->graph->tensor[port->tensor];
    rf_xla_shape shape = rf_xla_shape_of(port->of);
    rf_xla_slot *slot;
    v->donated[i] = port->alias >= 0;
    if (!t) RF_TRY(rf_xla_reserve(m, rf_xla_shape_bytes(&shape), &v->words, error));
    if (t && t->persistent) RF_TRY(rf_xla_slot_of(m, t, &shape, p->offset[port->tensor], &slot, error));
    if (t && t->persistent) slot->plans |= (uint64_t)1 << p->number % 64;
    for (int chip = 0; chip < m->chips; chip++) v->argument[chip * count + i].shape = shape;
  }
  return RAFTER_OK;
}

/* True if the tensor differs between chips. A tensor that is the same on all chips is copied only
 * from the host's first chip. */
static bool differs(const rf_tensor *t) {
  for (int d = 0; d < t->rank; d++)
    if (t->spec.split[d]) return true;
  return false;
}

static rf_status bind_results(xla_program *p, variant *v, rf_error *error) {
  int count = v->module.results, chips = p->memory->chips;
  for (int i = 0; i < count; i++) {
    const rf_emit_port *port = &v->module.result[i];
    const rf_tensor *t = port->tensor == RF_NONE ? NULL : &p->graph->tensor[port->tensor];
    rf_xla_shape shape = rf_xla_shape_of(port->of);
    int64_t bytes = rf_xla_shape_bytes(&shape);
    bool sums = t && !t->persistent && t->dtype == RF_F64;
    v->sums[i] = -1;
    if (!t) RF_TRY(rf_xla_reserve(p->memory, chips * bytes, &v->probes, error));
    if (sums) RF_TRY(rf_xla_reserve(p->memory, bytes, &v->sums[i], error));
    for (int chip = 0; chip < chips; chip++) v->result[chip * count + i] = (rf_xla_result){.bytes = bytes};
  }
  return RAFTER_OK;
}

/* Sets the places for the results of a run. */
static void place_results(const xla_program *p, variant *v) {
  int count = v->module.results;
  for (int i = 0; i < count; i++) {
    int id = v->module.result[i].tensor;
    const rf_tensor *t = id == RF_NONE ? NULL : &p->graph->tensor[id];
    for (int chip = 0; chip < p->memory->chips; chip++) {
      rf_xla_result *r = &v->result[chip * count + i];
      r->keep = t && t->persistent;
      if (!t) r->at = v->probes + chip * r->bytes;
      else if (t->persistent || (chip > 0 && !differs(t))) r->at = -1;
      else if (p->stack[id] >= 0) r->at = p->stack[id] + chip * stack_bytes(p, id);
      else r->at = v->sums[i] >= 0 ? v->sums[i] : at_chip(p, chip, p->offset[id]);
    }
  }
}

static void free_variant(variant *v) {
  rf_emitted_free(&v->module);
  free(v->argument);
  free(v->result);
  free(v->donated);
  free(v->sums);
  rf_xla_instructions_free(&v->instructions);
}

static rf_status compile_variant(xla_program *p, int64_t rows, rf_emit_known known, rf_error *error) {
  const rf_xla_device *d = p->memory->device;
  variant *more = realloc(p->variant, (size_t)(p->variants + 1) * sizeof *more);
  if (!more) return no_memory(error);
  p->variant = more;
  variant *v = &p->variant[p->variants];
  const rf_emit_options options = {
      .rows = rows, .known = known, .target = rf_emit_target_of(rf_xla_facts_of(d->client)->platform)};
  *v = (variant){.rows = rows, .known = known};
  RF_TRY(rf_emit_graph(p->graph, &options, &v->module, error));
  size_t arguments = (size_t)v->module.arguments + 1, results = (size_t)v->module.results + 1,
         chips = (size_t)p->memory->chips;
  v->argument = calloc(chips * arguments, sizeof *v->argument);
  v->result = calloc(chips * results, sizeof *v->result);
  v->donated = calloc(arguments, sizeof *v->donated);
  v->sums = calloc(results, sizeof *v->sums);
  rf_status status = v->argument && v->result && v->donated && v->sums ? RAFTER_OK : no_memory(error);
  if (status == RAFTER_OK) status = bind_arguments(p, v, error);
  if (status == RAFTER_OK) status = bind_results(p, v, error);
  char *flags = rf_emit_flags(&options.target, d->settings.traced, d->settings.flags);
  const rf_xla_compile of = {.text = v->module.text,
                             .bytes = v->module.bytes,
                             .replicas = v->module.replicas,
                             .flags = flags,
                             .cache = d->settings.cache};
  rf_xla_stats stats = {0};
  if (status == RAFTER_OK) {
    double start = rf_now_seconds();
    if (d->settings.compiling) d->settings.compiling(d->settings.self, rows, 0, 0);
    status = rf_xla_program(d->client, &of, &v->program, &stats, error);
    if (d->settings.compiling)
      d->settings.compiling(d->settings.self, rows, rf_now_seconds() - start, stats.total);
  }
  free(flags);
  free(v->module.text); /* from here on, only the ports are needed */
  v->module.text = NULL;
  if (status == RAFTER_OK) p->variants++;
  else free_variant(v);
  return status;
}

/* Training always uses all rows. A program on several chips also uses all rows, because each chip
 * has a different part of the rows in use. */
static int64_t rows_of_variant(const xla_program *p, int64_t rows) {
  int64_t all = p->graph->rows, power = 1;
  if (p->graph->job == RF_JOB_TRAIN || p->memory->device->device.chips > 1 || rows <= 0 || rows >= all)
    return all;
  while (power < rows) power *= 2;
  return power < all ? power : all;
}

/* The address of an input of the next run on a chip, for all microbatches. *bytes gets the size of
 * the input. */
static const void *input_at(const xla_program *p, int chip, int tensor, int64_t *bytes) {
  int64_t each = rf_tensor_bytes(&p->graph->tensor[tensor]);
  bool stacked = p->stack[tensor] >= 0;
  *bytes = stacked ? each * p->graph->accumulate : each;
  return rf_xla_at(p->memory, stacked ? p->stack[tensor] + chip * stack_bytes(p, tensor)
                                      : at_chip(p, chip, p->offset[tensor]));
}

static rf_emit_known known_of(const xla_program *p, int64_t rows) {
  rf_emit_known all = {0};
  for (int chip = 0; chip < p->memory->chips; chip++) {
    rf_known_values v = {.rows = rows};
    for (int i = 0; i < RF_KNOWN_INPUTS; i++)
      if (p->inputs.tensor[i] != RF_NONE) v.data[i] = input_at(p, chip, p->inputs.tensor[i], &v.bytes[i]);
    rf_emit_known one = rf_known_of(p->graph, &v);
    if (chip == 0) all = one;
    all.whole_rows = all.whole_rows && one.whole_rows;
  }
  return all;
}

static rf_status variant_for(xla_program *p, int64_t rows, variant **v, rf_error *error) {
  int64_t wanted = rows_of_variant(p, rows);
  rf_emit_known known = known_of(p, wanted);
  for (int i = 0; i < p->variants; i++)
    if (p->variant[i].rows == wanted && rf_known_equal(&p->variant[i].known, &known))
      return *v = &p->variant[i], RAFTER_OK;
  RF_TRY(compile_variant(p, wanted, known, error));
  *v = &p->variant[p->variants - 1];
  return RAFTER_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static rf_xla_slot *slot_at(const xla_program *p, int tensor) {
  return rf_xla_find_slot(p->memory, p->offset[tensor]);
}

/* Puts the persistent arguments on the chips. */
static rf_status prepare(xla_program *p, variant *v, rf_error *error) {
  for (int i = 0; i < v->module.arguments; i++) {
    int t = v->module.argument[i].tensor;
    if (t == RF_NONE || !p->graph->tensor[t].persistent) continue;
    rf_xla_slot *slot = slot_at(p, t);
    for (int chip = 0; chip < p->memory->chips; chip++) {
      RF_TRY(rf_xla_to_device(p->memory, slot, chip, error));
      v->argument[chip * v->module.arguments + i].buffer = slot->on[chip].buffer;
    }
  }
  return RAFTER_OK;
}

static void take_result(xla_program *p, variant *v, int chip, int i) {
  int t = v->module.result[i].tensor;
  if (t == RF_NONE) return;
  if (p->graph->tensor[t].persistent) {
    rf_xla_value *value = &slot_at(p, t)->on[chip];
    if (v->module.result[i].alias < 0) rf_xla_free(p->memory->device->client, &value->buffer, 1);
    value->buffer = v->result[chip * v->module.results + i].buffer;
    value->on_device = true;
    value->on_host = false;
  } else if (v->sums[i] >= 0 && chip == 0) {
    double *to = rf_xla_at(p->memory, p->offset[t]);
    const float *from = rf_xla_at(p->memory, v->sums[i]);
    for (int64_t k = 0; k < rf_val_count(v->module.result[i].of); k++) to[k] = (double)from[k];
  }
}

static void take_results(xla_program *p, variant *v) {
  for (int chip = 0; chip < p->memory->chips; chip++)
    for (int i = 0; i < v->module.results; i++) take_result(p, v, chip, i);
}

/* Value of a probe on the first chip with a non-finite value, or on chip 0. */
static float probed(const xla_program *p, const variant *v, int probe) {
  const float *value = rf_xla_at(p->memory, v->probes);
  for (int chip = 0; chip < p->memory->chips; chip++)
    if (!isfinite(value[chip * v->module.probes + probe])) return value[chip * v->module.probes + probe];
  return value[probe];
}

/* Writes a non-finite probed value to its place in the tensor, and calls the check of the run. */
static rf_status check_probes(xla_program *p, const variant *v, const rf_run_inputs *inputs,
                              rf_error *error) {
  for (int i = 0; i < v->module.probes; i++) {
    float value = probed(p, v, i);
    int number = v->module.probe[i];
    const rf_op *op = &p->graph->op[number];
    int t = op->output[op->def->probe == RF_PROBE_UPDATE ? 4 : 0];
    int64_t at = op->def->probe == RF_PROBE_FIRST ? 0 : op->attr.sums.element;
    if (isfinite(value) || !(p->watch.op[number] & RF_WATCH_AFTER) || p->offset[t] < 0) continue;
    if (p->graph->tensor[t].dtype == RF_F64)
      ((double *)rf_xla_at(p->memory, p->offset[t]))[at] = (double)value;
    else ((float *)rf_xla_at(p->memory, p->offset[t]))[at] = value;
    RF_TRY(p->watch.after(p->watch.self, number, inputs, error));
  }
  return RAFTER_OK;
}

/* A result that the caller does not read stays on the device, and the child frees it. */
static void leave_out(const xla_program *p, variant *v, const rf_tensor *unread) {
  for (int i = 0; i < v->module.results; i++) {
    int t = v->module.result[i].tensor;
    if (t == RF_NONE || &p->graph->tensor[t] != unread) continue;
    for (int chip = 0; chip < p->memory->chips; chip++) v->result[chip * v->module.results + i].at = -1;
  }
}

static rf_xla_call call_of(const xla_program *p, variant *v) {
  return (rf_xla_call){.program = v->program,
                       .devices = p->memory->chips,
                       .arguments = v->module.arguments,
                       .results = v->module.results,
                       .argument = v->argument,
                       .result = v->result,
                       .shared = &p->memory->image};
}

static rf_status execute_timed(xla_program *p, variant *v, const rf_xla_call *call, rf_error *error) {
  rf_xla_device *d = p->memory->device;
  rf_xla_timing timing = rf_xla_timing_begin(d);
  rf_status status = rf_xla_execute(d->client, call, v->donated, error);
  if (status == RAFTER_OK) rf_xla_timing_end(d, &timing, v->program, &v->instructions, &p->timed);
  else rf_xla_timing_drop(d, &timing);
  return status;
}

static rf_status execute(xla_program *p, const rf_run_inputs *inputs, rf_error *error) {
  variant *v = NULL;
  RF_TRY(variant_for(p, inputs->rows, &v, error));
  place_arguments(p, v);
  place_results(p, v);
  leave_out(p, v, inputs->unread);
  rf_emit_run_words(inputs, rf_xla_at(p->memory, v->words));
  RF_TRY(prepare(p, v, error));
  const rf_xla_call call = call_of(p, v);
  RF_TRY(execute_timed(p, v, &call, error));
  take_results(p, v);
  return check_probes(p, v, inputs, error);
}

/* Copies the inputs of microbatch `micro` to the arrays with the inputs of all microbatches. */
static void keep_inputs(xla_program *p, int micro) {
  for (int t = 0; t < p->graph->tensor_count; t++) {
    if (p->stack[t] < 0 || !p->graph->tensor[t].input) continue;
    int64_t bytes = rf_tensor_bytes(&p->graph->tensor[t]);
    for (int chip = 0; chip < p->memory->chips; chip++)
      memcpy(rf_xla_at(p->memory, p->stack[t] + chip * stack_bytes(p, t) + micro * bytes),
             rf_xla_at(p->memory, at_chip(p, chip, p->offset[t])), (size_t)bytes);
  }
}

/* Copies the outputs of a microbatch to the places of the graph's outputs. */
static void show(rf_program *program, int micro) {
  const xla_program *p = (const xla_program *)program;
  for (int t = 0; t < p->graph->tensor_count; t++) {
    if (p->stack[t] < 0 || !p->graph->tensor[t].output) continue;
    int64_t bytes = rf_tensor_bytes(&p->graph->tensor[t]);
    for (int chip = 0; chip < p->memory->chips; chip++)
      if (chip == 0 || differs(&p->graph->tensor[t]))
        memcpy(rf_xla_at(p->memory, at_chip(p, chip, p->offset[t])),
               rf_xla_at(p->memory, p->stack[t] + chip * stack_bytes(p, t) + micro * bytes), (size_t)bytes);
  }
}

static rf_status run(rf_program *program, rf_section section, const rf_run_inputs *inputs, rf_error *error) {
  xla_program *p = (xla_program *)program;
  if (rf_flag_is_set(inputs->stop)) return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal");
  if (section == RF_SECTION_MICRO && p->graph->accumulate > 1) keep_inputs(p, inputs->micro);
  bool more = section == RF_SECTION_MICRO && inputs->micro + 1 < p->graph->accumulate;
  return section != p->last || more ? RAFTER_OK : execute(p, inputs, error);
}

_Static_assert((int)RF_STEPS_AHEAD <= RF_XLA_FLIGHTS, "the child refuses more");

/* ---- steps that run ahead -------------------------------------------------------------------- */

/* The place of a tensor, or of the words (tensor_count), of a flight on a chip. */
static int64_t flight_at(const xla_program *p, const flight *f, int tensor, int chip) {
  int64_t bytes = tensor < p->graph->tensor_count ? rf_tensor_bytes(&p->graph->tensor[tensor]) : 0;
  return f->place[tensor] + chip * rf_round_up(bytes, 64);
}

static rf_status reserve_flight(xla_program *p, flight *f, int tensor, rf_error *error) {
  if (f->place[tensor] >= 0) return RAFTER_OK;
  int64_t bytes = RF_RUN_WORDS * 4;
  if (tensor < p->graph->tensor_count)
    bytes = p->memory->chips * rf_round_up(rf_tensor_bytes(&p->graph->tensor[tensor]), 64);
  return rf_xla_reserve(p->memory, bytes, &f->place[tensor], error);
}

/* Copies the inputs to the places of the flight. An input that follows is a buffer of the device,
 * which the program takes. */
static rf_status give_inputs(xla_program *p, variant *v, flight *f, const rf_run_inputs *inputs,
                             rf_error *error) {
  int count = v->module.arguments;
  for (int i = 0; i < count; i++) {
    int t = v->module.argument[i].tensor, place = t == RF_NONE ? p->graph->tensor_count : t;
    bool follows = inputs->follows && t != RF_NONE && t == p->fed;
    if (t != RF_NONE && p->graph->tensor[t].persistent) continue;
    RF_TRY(reserve_flight(p, f, place, error));
    for (int chip = 0; chip < p->memory->chips; chip++) {
      rf_xla_argument *a = &v->argument[chip * count + i];
      a->at = flight_at(p, f, place, chip);
      a->buffer = follows ? p->held[chip] : 0;
      if (t == RF_NONE) rf_emit_run_words(inputs, rf_xla_at(p->memory, a->at));
      else if (!follows)
        memcpy(rf_xla_at(p->memory, a->at), rf_xla_at(p->memory, at_chip(p, chip, p->offset[t])),
               (size_t)rf_xla_shape_bytes(&a->shape));
      if (follows && (!p->held[chip] || !rf_xla_same_shape(&a->shape, &p->held_shape)))
        return RF_FAIL(error, RAFTER_FAILED, "this is a bug in rafter; please report it",
                       "a step follows one of another size (%s)", p->graph->tensor[t].name);
    }
  }
  return RAFTER_OK;
}

/* Sets whether the program takes the buffer of the input that follows. Only launches of steps that
 * follow do this. */
static void donate_fed(const xla_program *p, variant *v, bool donated) {
  for (int i = 0; i < v->module.arguments; i++) {
    int t = v->module.argument[i].tensor;
    if (t != RF_NONE && t == p->fed) v->donated[i] = donated;
  }
}

/* Sends the results to the places of the flight, and keeps the output that the next step may read.
 * Results that nobody copies need no place. */
static rf_status place_flight(xla_program *p, variant *v, flight *f, const rf_tensor *unread,
                              rf_error *error) {
  int count = v->module.results;
  place_results(p, v);
  leave_out(p, v, unread);
  for (int i = 0; i < count; i++) {
    int t = v->module.result[i].tensor;
    if (p->graph->tensor[t].persistent) continue;
    for (int chip = 0; chip < p->memory->chips; chip++) {
      rf_xla_result *r = &v->result[chip * count + i];
      if (r->at >= 0) RF_TRY(reserve_flight(p, f, t, error));
      if (r->at >= 0) r->at = flight_at(p, f, t, chip);
      r->keep = t == p->feeds;
    }
  }
  return RAFTER_OK;
}

static void drop_held(xla_program *p) {
  for (int chip = 0; chip < p->memory->chips; chip++) {
    if (p->held[chip]) rf_xla_free(p->memory->device->client, &p->held[chip], 1);
    p->held[chip] = 0;
  }
}

/* Takes the buffers of the results, which later calls read. */
static void take_buffers(xla_program *p, variant *v) {
  for (int chip = 0; chip < p->memory->chips; chip++)
    for (int i = 0; i < v->module.results; i++) {
      int t = v->module.result[i].tensor;
      if (p->graph->tensor[t].persistent) take_result(p, v, chip, i);
      if (t != p->feeds) continue;
      p->held[chip] = v->result[chip * v->module.results + i].buffer;
      p->held_shape = rf_xla_shape_of(v->module.result[i].of);
    }
}

static rf_status start(rf_program *program, const rf_run_inputs *inputs, rf_error *error) {
  xla_program *p = (xla_program *)program;
  flight *f = &p->flight[p->started % RF_STEPS_AHEAD];
  variant *v = NULL;
  if (rf_flag_is_set(inputs->stop)) return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal");
  RF_TRY(variant_for(p, inputs->rows, &v, error));
  if (!inputs->follows) drop_held(p);
  RF_TRY(give_inputs(p, v, f, inputs, error));
  RF_TRY(place_flight(p, v, f, inputs->unread, error));
  RF_TRY(prepare(p, v, error));
  const rf_xla_call call = call_of(p, v);
  donate_fed(p, v, inputs->follows);
  rf_status status = rf_xla_launch(p->memory->device->client, &call, v->donated, error);
  donate_fed(p, v, false);
  for (int chip = 0; chip < p->memory->chips && inputs->follows; chip++) p->held[chip] = 0;
  RF_TRY(status);
  take_buffers(p, v);
  f->variant = (int)(v - p->variant);
  f->unread = inputs->unread;
  p->started++;
  return RAFTER_OK;
}

/* Ends the steps after one that failed. These steps have read its results. */
static void land_rest(xla_program *p) {
  rf_error unused = {0};
  for (; p->finished < p->started; p->finished++) (void)rf_xla_land(p->memory->device->client, &unused);
  drop_held(p);
}

static rf_status finish(rf_program *program, rf_error *error) {
  xla_program *p = (xla_program *)program;
  if (p->finished == p->started) return RF_FAIL(error, RAFTER_FAILED, NULL, "no step is in progress");
  const flight *f = &p->flight[p->finished++ % RF_STEPS_AHEAD];
  const variant *v = &p->variant[f->variant];
  rf_status status = rf_xla_land(p->memory->device->client, error);
  if (status != RAFTER_OK) land_rest(p);
  RF_TRY(status);
  for (int i = 0; i < v->module.results; i++) {
    int t = v->module.result[i].tensor;
    if (p->graph->tensor[t].persistent || &p->graph->tensor[t] == f->unread) continue;
    for (int chip = 0; chip < p->memory->chips; chip++)
      if (chip == 0 || differs(&p->graph->tensor[t]))
        memcpy(rf_xla_at(p->memory, at_chip(p, chip, p->offset[t])),
               rf_xla_at(p->memory, flight_at(p, f, t, chip)),
               (size_t)v->result[chip * v->module.results + i].bytes);
  }
  return RAFTER_OK;
}

/* A step can run ahead if another one can follow it, and if the host does nothing after it but read
 * its outputs. */
static bool runs_ahead(const xla_program *p) {
  const rf_graph *graph = p->graph;
  bool can = p->fed != RF_NONE && graph->accumulate == 1 && p->memory->device->device.hosts == 1;
  for (int i = 0; i < graph->op_count; i++) can = can && graph->op[i].def->probe == RF_PROBE_NONE;
  for (int t = 0; t < graph->tensor_count; t++)
    can = can && !(graph->tensor[t].output && graph->tensor[t].dtype == RF_F64);
  return can;
}

static rf_status open_ahead(xla_program *p, rf_error *error) {
  const rf_graph *graph = p->graph;
  size_t places = (size_t)graph->tensor_count + 1;
  p->fed = p->feeds = RF_NONE;
  for (int t = 0; t < graph->tensor_count; t++) {
    if (!graph->tensor[t].follows || p->offset[t] < 0) continue;
    p->feeds = rf_graph_find(graph, graph->tensor[t].follows);
    p->fed = p->feeds == RF_NONE ? RF_NONE : t;
  }
  if (!runs_ahead(p)) return RAFTER_OK;
  p->held = calloc((size_t)p->memory->chips, sizeof *p->held);
  bool good = p->held != NULL;
  for (int i = 0; i < RF_STEPS_AHEAD; i++) {
    p->flight[i].place = malloc(places * sizeof *p->flight[i].place);
    good = good && p->flight[i].place;
    if (p->flight[i].place) memset(p->flight[i].place, 0xff, places * sizeof *p->flight[i].place);
  }
  if (!good) return no_memory(error);
  p->program.start = start;
  p->program.finish = finish;
  return RAFTER_OK;
}

static void release(rf_program *program) {
  xla_program *p = (xla_program *)program;
  if (p->held) drop_held(p);
  free(p->held);
  for (int i = 0; i < RF_STEPS_AHEAD; i++) free(p->flight[i].place);
  for (int i = 0; i < p->variants; i++) {
    rf_xla_program_free(p->memory->device->client, p->variant[i].program);
    free_variant(&p->variant[i]);
  }
  free(p->variant);
  free(p->offset);
  free(p->stack);
  free(p);
}

static rf_status reserve_stacks(xla_program *p, rf_error *error) {
  for (int t = 0; t < p->graph->tensor_count; t++) {
    p->stack[t] = -1;
    bool of_each = p->graph->tensor[t].input || rf_emit_of_each(p->graph, t);
    if (p->graph->accumulate > 1 && of_each && p->offset[t] >= 0)
      RF_TRY(rf_xla_reserve(p->memory, p->memory->chips * stack_bytes(p, t), &p->stack[t], error));
  }
  return RAFTER_OK;
}

rf_status rf_xla_compile_plan(rf_device *device, const rf_program_source *source, rf_program **program,
                              rf_error *error) {
  (void)device;
  const rf_graph *graph = source->graph;
  const rf_xla_memory *memory = (rf_xla_memory *)source->memory;
  const rf_xla_facts *facts = rf_xla_facts_of(memory->device->client);
  int chips = memory->device->device.chips;
  const rf_emit_target target = rf_emit_target_of(facts->platform);
  bool knows = target.known && memory->device->device.hosts == 1;
  size_t tensors = (size_t)graph->tensor_count + 1;
  xla_program *p = calloc(1, sizeof *p);
  if (!p) return no_memory(error);
  *p = (xla_program){.program = {.run = run, .release = release, .show = show},
                     .memory = (rf_xla_memory *)source->memory,
                     .graph = graph,
                     .offset = calloc(tensors, sizeof *p->offset),
                     .stack = calloc(tensors, sizeof *p->stack),
                     .watch = source->watch,
                     .timed = {graph, source->number, source->measured, source->timed},
                     .number = source->number};
  rf_status status = p->offset && p->stack ? RAFTER_OK : no_memory(error);
  if (status == RAFTER_OK) {
    memcpy(p->offset, source->offset, (tensors - 1) * sizeof *p->offset);
    for (int i = 0; i < graph->op_count; i++)
      if (graph->op[i].section > p->last) p->last = graph->op[i].section;
    status = reserve_stacks(p, error);
    if (status == RAFTER_OK) status = open_ahead(p, error);
    p->inputs = rf_known_find(graph, p->offset, knows, chips);
  }
  /* Programs for generation are compiled later, when the number of rows and the facts about the
   * inputs are known. */
  if (status == RAFTER_OK && (!p->inputs.any || graph->job == RF_JOB_TRAIN)) {
    rf_emit_known usual = {0};
    if (p->inputs.any) usual = rf_emit_usual(graph, &target);
    status = compile_variant(p, graph->rows, usual, error);
  }
  if (status == RAFTER_OK) *program = &p->program;
  else release(&p->program);
  return status;
}
