/* interpreter.c - see interpreter.h. Computes all addresses once, then calls and times kernels. */
#include "backend/interpreter.h"
#include "backend/lanes.h"

#include <stdlib.h>

typedef struct interpreter {
  rf_program program;
  int number;
  rf_call *call;     /* one for each op */
  rf_chosen *chosen; /* one for each op */
  rf_measured *measured;
  rf_watch watch;
  int begin[RF_SECTIONS], end[RF_SECTIONS];
} interpreter;

/* Makes op `i` the recorded op and returns its start time in ns. The start time is `before`, the
 * end of the previous op. If system counters are read first, the op starts after this reading. */
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

static rf_status stopped(rf_lanes *lanes, rf_error *error) {
  if (lanes) lanes->op = RF_NONE;
  return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal");
}

static rf_status run(rf_program *program, rf_section section, const rf_run_inputs *inputs, rf_error *error) {
  interpreter *in = (interpreter *)program;
  rf_lanes *lanes = rf_lanes_on;
  const volatile int *stop = inputs->stop;
  int64_t before = rf_now_ns();
  for (int i = in->begin[section]; i < in->end[section]; i++) {
    rf_call *call = &in->call[i];
    uint8_t watched = in->watch.op[i];
    if (rf_flag_is_set(stop)) return stopped(lanes, error);
    if (call->op->def->probe == RF_PROBE_UPDATE) stop = NULL;
    call->run = inputs;
    if (watched & RF_WATCH_BEFORE) {
      RF_TRY(in->watch.before(in->watch.self, i, error));
      before = rf_now_ns();
    }
    int64_t recorded = lanes ? begin_op(lanes, in->number, i, before) : 0;
    rf_kernel_of(&in->chosen[i], inputs->rows)->run(call);
    int64_t after = rf_now_ns();
    double seconds = 1e-9 * (double)(after - before);
    if (lanes) end_op(lanes, recorded, after, inputs);
    rf_measured *m = &in->measured[i];
    m->seconds += seconds;
    if (!m->calls++ || seconds < m->least) m->least = seconds;
    before = after;
    if (watched & RF_WATCH_AFTER) RF_TRY(in->watch.after(in->watch.self, i, inputs, error));
  }
  if (lanes) lanes->op = RF_NONE;
  return RAFTER_OK;
}

static void release(rf_program *program) {
  interpreter *in = (interpreter *)program;
  free(in->call);
  free(in->chosen);
  free(in);
}

static void *address(const rf_program_source *source, unsigned char *base, int tensor) {
  return tensor == RF_NONE || source->offset[tensor] < 0 ? NULL : base + source->offset[tensor];
}

rf_status rf_interpreter_compile(const rf_program_source *source, unsigned char *base, rf_program **program,
                                 rf_error *error) {
  const rf_graph *graph = source->graph;
  size_t ops = (size_t)graph->op_count + 1;
  interpreter *in = calloc(1, sizeof *in);
  if (!in || !(in->call = calloc(ops, sizeof *in->call)) || !(in->chosen = calloc(ops, sizeof *in->chosen))) {
    if (in) release(&in->program);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  }
  in->program = (rf_program){run, release};
  in->number = source->number;
  in->measured = source->measured;
  in->watch = source->watch;
  for (int s = 0, i = 0; s < RF_SECTIONS; s++) {
    in->begin[s] = i;
    while (i < graph->op_count && graph->op[i].section == (rf_section)s) i++;
    in->end[s] = i;
  }
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    rf_call *call = &in->call[i];
    in->chosen[i] = source->op[i];
    *call = (rf_call){.graph = graph, .op = op, .threads = source->workers};
    call->blocks = source->op[i].blocks;
    call->inner = source->op[i].inner;
    for (int k = 0; k < op->input_count; k++) call->in[k] = address(source, base, op->input[k]);
    for (int k = 0; k < op->output_count; k++) call->out[k] = address(source, base, op->output[k]);
    call->workspace = address(source, base, source->op[i].workspace);
  }
  *program = &in->program;
  return RAFTER_OK;
}
