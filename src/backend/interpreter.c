/* interpreter.c - see interpreter.h. Computes all addresses once, then calls and times kernels. */
#include "backend/interpreter.h"
#include "backend/lanes.h"
#include "backend/mpi/flight.h"
#include "backend/mpi/link.h"
#include "backend/mpi/pipe.h"
#include "graph/mesh/place.h"
#include "graph/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct interpreter {
  rf_program program;
  int number;
  rf_call *call;     /* one for each op */
  rf_chosen *chosen; /* one for each op */
  uint8_t *whole;    /* for each op: 1 if fewer threads than planned could need more workspace */
  rf_team *team;
  rf_measured *measured;
  rf_watch watch;
  int begin[RF_SECTIONS], end[RF_SECTIONS];
  /* With several chips: the inputs of this chip, and for each op the number of this chip's first
   * row in the microbatch. */
  const rf_graph *graph;
  rf_link *link;
  rf_run_inputs mine;
  int32_t place[RF_AXES];
  int64_t row_chips; /* number of chips that have different rows of a microbatch */
  int64_t *first_row;
  /* With pipeline stages: the passes of this stage in their order, and the index of the next
   * pass. */
  rf_pipe *pipe;
  rf_flights *flights; /* exchanges that run during computation */
  int *half;           /* pass of each op, as in rf_pipeline_halves */
  void **address;      /* first slot of each tensor */
  rf_half *order;
  int halves, next;
  /* Another chip may see a finite number where this chip does not, and would wait for this chip. So
   * the first such error waits for the op `together`, whose number is the same on all chips. */
  const rf_op *together; /* NULL: there is no such op */
  rf_error late;         /* status RAFTER_OK: no error waits */
} interpreter;

/* Makes op `i` the recorded op and returns its start time in ns. The start time is `before`, the
 * end of the previous op. If this function reads system counters first, the op starts after the
 * reading. */
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

/* Counts a call of an op. Returns true if the team's window is full. */
static bool measure(rf_measured *m, rf_team *team, int64_t begin, int64_t end) {
  double seconds = 1e-9 * (double)(end - begin);
  int64_t shortest = m->calls ? (int64_t)(1e9 * m->least) : 0;
  m->seconds += seconds;
  if (!m->calls++ || seconds < m->least) m->least = seconds;
  return rf_team_note(team, end, end - begin, shortest);
}

/* The inputs for op `i` on this chip. */
static const rf_run_inputs *inputs_of_chip(interpreter *in, const rf_run_inputs *inputs, int i) {
  rf_run_inputs *mine = &in->mine;
  *mine = *inputs;
  memcpy(mine->place, in->place, sizeof mine->place);
  mine->first_token = inputs->first_token * in->row_chips + in->first_row[i];
  /* chips that share the rows of a forward pass compute all rows of the plan */
  if (rf_mesh_live(&in->graph->mesh, RF_AXES_OF_PASS)) mine->rows = in->graph->rows;
  return mine;
}

static int64_t first_row_of(const rf_graph *graph, const rf_op *op, const int32_t place[RF_AXES]) {
  for (int k = 0; k < op->output_count; k++) {
    const rf_tensor *t = op->output[k] == RF_NONE ? NULL : &graph->tensor[op->output[k]];
    if (t && t->rank == 2) return rf_place_first_row(&graph->mesh, t->spec.split[0], place, t->shape[0]);
  }
  return 0;
}

static void *slot_address(const interpreter *in, int tensor, int micro) {
  if (tensor == RF_NONE || !in->address[tensor]) return NULL;
  return (char *)in->address[tensor] + rf_slot_at(&in->graph->tensor[tensor], micro);
}

/* Sets the addresses of a call's operands for a microbatch. */
static void take_slots(const interpreter *in, rf_call *call, int micro) {
  const rf_op *op = call->op;
  for (int k = 0; k < op->input_count; k++) call->in[k] = slot_address(in, op->input[k], micro);
  for (int k = 0; k < op->output_count; k++) call->out[k] = slot_address(in, op->output[k], micro);
}

static const rf_op *last_probe(const rf_graph *graph) {
  for (int i = 0; i < graph->op_count; i++)
    if (graph->op[i].def == &RF_OP_CLIP) return &graph->op[i];
  return NULL;
}

/* True if the op has a checked number, and this number is not finite. */
static bool is_probe_lost(const rf_call *call) {
  int64_t at;
  int slot = rf_probed_output(call->op, &at);
  if (slot < 0) return false;
  bool wide = call->graph->tensor[call->op->output[slot]].dtype == RF_F64;
  return !isfinite(wide ? ((double *)call->out[slot])[at] : (double)((float *)call->out[slot])[at]);
}

/* Calls the check after op `i`. */
static rf_status check_after(interpreter *in, int i, const rf_run_inputs *inputs, rf_error *error) {
  rf_error found = {0};
  const rf_call *call = &in->call[i];
  rf_status status = in->watch.after(in->watch.self, i, inputs, &found);
  if (status == RAFTER_OK) return RAFTER_OK;
  bool waits = in->together && call->op != in->together && is_probe_lost(call);
  if (waits && in->late.status == RAFTER_OK) in->late = found;
  if (waits) return RAFTER_OK;
  if (call->op == in->together && in->late.status != RAFTER_OK) found = in->late;
  if (error) *error = found;
  return status;
}

/* Runs the ops of a section. If half >= 0, runs only the ops of this pass. */
static rf_status run_ops(interpreter *in, rf_section section, int half, const rf_run_inputs *inputs,
                         rf_error *error) {
  rf_lanes *lanes = rf_lanes_on;
  const volatile int *stop = inputs->stop;
  int64_t before = rf_now_ns();
  for (int i = in->begin[section]; i < in->end[section]; i++) {
    rf_call *call = &in->call[i];
    if (half >= 0 && in->half[i] != half) continue;
    if (in->pipe) rf_link_poll(in->link);
    if (in->flights) rf_link_poll_flights(in->link);
    if (half >= 0) take_slots(in, call, inputs->micro);
    uint8_t watched = in->watch.op[i];
    if (rf_flag_is_set(stop)) return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal");
    if (call->op->def->probe == RF_PROBE_UPDATE) stop = NULL;
    call->run = in->link ? inputs_of_chip(in, inputs, i) : inputs;
    call->threads = in->whole[i] ? in->team->planned : in->team->active;
    if (watched & RF_WATCH_BEFORE) {
      RF_TRY(in->watch.before(in->watch.self, i, error));
      before = rf_now_ns();
    }
    int64_t recorded = lanes ? begin_op(lanes, in->number, i, before) : 0;
    rf_kernel_of(&in->chosen[i], call->run->rows)->run(call);
    int64_t after = rf_now_ns();
    if (lanes) end_op(lanes, recorded, after, inputs);
    if (in->link && rf_op_is_exchange(call->op->def)) RF_TRY(rf_link_status(in->link, call->op->name, error));
    if (measure(&in->measured[i], in->team, before, after)) rf_team_judge(in->team, after, rf_team_cpu_ns());
    before = after;
    if (watched & RF_WATCH_AFTER) RF_TRY(check_after(in, i, inputs, error));
  }
  return RAFTER_OK;
}

/* The caller has written the inputs of microbatch inputs->micro. Runs passes of the schedule, up to
 * the first pass that needs the inputs of a later microbatch. */
static rf_status run_passes(interpreter *in, const rf_run_inputs *inputs, rf_error *error) {
  rf_run_inputs of = *inputs;
  if (inputs->micro == 0) {
    in->next = 0;
    rf_pipe_begin(in->pipe);
  }
  for (; in->next < in->halves && in->order[in->next].micro <= inputs->micro; in->next++) {
    const rf_half *h = &in->order[in->next];
    of.micro = h->micro;
    of.first_token = h->micro * in->graph->rows;
    RF_TRY(run_ops(in, RF_SECTION_MICRO, 2 * h->chunk + h->backward, &of, error));
    rf_pipe_free_slots(in->pipe, h);
  }
  return rf_link_status(in->link, NULL, error);
}

static rf_status run(rf_program *program, rf_section section, const rf_run_inputs *inputs, rf_error *error) {
  interpreter *in = (interpreter *)program;
  if (section == RF_SECTION_BEGIN || (section == RF_SECTION_MICRO && inputs->micro == 0))
    in->late.status = RAFTER_OK;
  if (in->begin[section] == in->end[section]) return RAFTER_OK;
  rf_team_enter(in->team, rf_now_ns(), rf_team_cpu_ns());
  rf_status status = in->pipe && section == RF_SECTION_MICRO ? run_passes(in, inputs, error)
                                                             : run_ops(in, section, RF_NONE, inputs, error);
  rf_team_leave(in->team, rf_now_ns(), rf_team_cpu_ns());
  if (rf_lanes_on) rf_lanes_on->op = RF_NONE;
  if (status == RAFTER_OK) return rf_flights_check(in->flights, error);
  rf_flights_drop(in->flights); /* because the caller may run the section again */
  return status;
}

static void release(rf_program *program) {
  interpreter *in = (interpreter *)program;
  free(in->call);
  free(in->chosen);
  free(in->whole);
  free(in->first_row);
  rf_pipe_close(in->pipe);
  rf_flights_close(in->flights);
  free(in->half);
  free(in->address);
  free(in->order);
  free(in);
}

static void *address(const rf_program_source *source, unsigned char *base, int tensor) {
  return tensor == RF_NONE || source->offset[tensor] < 0 ? NULL : base + source->offset[tensor];
}

/* True if some number of threads below the planned number needs a larger workspace than the op
 * has. */
static bool needs_all(const rf_graph *graph, const rf_op *op, const rf_chosen *chosen, int planned) {
  const rf_kernel *kernel[] = {chosen->kernel, chosen->few};
  for (int k = 0; k < 2; k++) {
    if (!kernel[k]) continue;
    size_t bytes = rf_kernel_workspace(kernel[k], graph, op, (rf_tiling){planned, chosen->blocks});
    for (int threads = planned; threads > 1;) {
      threads = rf_team_fewer(threads);
      if (rf_kernel_workspace(kernel[k], graph, op, (rf_tiling){threads, chosen->blocks}) > bytes)
        return true;
    }
  }
  return false;
}

/* Makes the schedule of a pipeline stage. */
static rf_status open_pipe(interpreter *in, const rf_program_source *source, unsigned char *base,
                           rf_error *error) {
  const rf_graph *graph = in->graph;
  int micros = graph->accumulate;
  in->halves = 2 * rf_pipeline_chunks(&graph->mesh) * micros;
  in->half = malloc(((size_t)graph->op_count + 1) * sizeof *in->half);
  in->address = calloc((size_t)graph->tensor_count + 1, sizeof *in->address);
  in->order = malloc((size_t)in->halves * sizeof *in->order);
  if (!in->half || !in->address || !in->order)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  rf_pipeline_halves(graph, in->half);
  rf_pipeline_order(&graph->mesh, graph->mesh.stage, micros, in->order);
  for (int t = 0; t < graph->tensor_count; t++) in->address[t] = address(source, base, t);
  const rf_pipe_source of = {graph, in->link, in->address, in->half, in->order, in->halves};
  RF_TRY(rf_pipe_open(&of, &in->pipe, error));
  for (int i = 0; i < graph->op_count; i++) in->call[i].pipe = in->pipe;
  return RAFTER_OK;
}

rf_status rf_interpreter_compile(const rf_program_source *source, unsigned char *base, rf_program **program,
                                 rf_error *error) {
  const rf_graph *graph = source->graph;
  size_t ops = (size_t)graph->op_count + 1;
  interpreter *in = calloc(1, sizeof *in);
  if (!in || !(in->call = calloc(ops, sizeof *in->call)) || !(in->chosen = calloc(ops, sizeof *in->chosen)) ||
      !(in->whole = calloc(ops, 1)) || !(in->first_row = calloc(ops, sizeof *in->first_row))) {
    if (in) release(&in->program);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  }
  in->program = (rf_program){.run = run, .release = release};
  in->number = source->number;
  in->measured = source->measured;
  in->watch = source->watch;
  in->team = &source->memory->device->team;
  in->graph = graph;
  in->link = rf_mesh_chips(&graph->mesh) > 1 ? source->memory->device->link : NULL;
  if (in->link) {
    /* the other axes do not split the rows of a microbatch */
    const rf_axes others = RF_AXIS_BIT(RF_AXIS_TENSOR) | RF_AXIS_BIT(RF_AXIS_PIPELINE);
    in->row_chips = rf_mesh_size(&graph->mesh, (rf_axes)~others);
    rf_place_of(&graph->mesh, in->link->rank, in->place);
  }
  for (int s = 0, i = 0; s < RF_SECTIONS; s++) {
    in->begin[s] = i;
    while (i < graph->op_count && graph->op[i].section == (rf_section)s) i++;
    in->end[s] = i;
  }
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    rf_call *call = &in->call[i];
    in->chosen[i] = source->op[i];
    in->whole[i] = needs_all(graph, op, &source->op[i], source->workers);
    *call = (rf_call){.graph = graph, .op = op, .link = in->link};
    if (in->link) in->first_row[i] = first_row_of(graph, op, in->place);
    call->blocks = source->op[i].blocks;
    call->inner = source->op[i].inner;
    for (int k = 0; k < op->input_count; k++) call->in[k] = address(source, base, op->input[k]);
    for (int k = 0; k < op->output_count; k++) call->out[k] = address(source, base, op->output[k]);
    call->workspace = address(source, base, source->op[i].workspace);
  }
  rf_status status =
      in->link && rf_pipeline_stages(&graph->mesh) > 1 ? open_pipe(in, source, base, error) : RAFTER_OK;
  if (status == RAFTER_OK && in->link) status = rf_flights_open(graph, in->link, &in->flights, error);
  if (in->link && !in->pipe) in->together = last_probe(graph);
  for (int i = 0; i < graph->op_count; i++) in->call[i].flights = in->flights;
  if (status == RAFTER_OK) *program = &in->program;
  else release(&in->program);
  return status;
}
