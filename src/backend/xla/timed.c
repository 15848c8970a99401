/* timed.c - see timed.h. */
#include "backend/xla/timed.h"

#include "backend/lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int64_t time_of_day_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void put(rf_stamp_kind kind, const rf_xla_op_time *of, int64_t begin, int64_t end, int plan) {
  rf_lane_put(&rf_lanes_on->lane[0],
              (rf_stamp){begin, end, of ? of->call : 0, of ? of->op : 0, 0, (uint8_t)kind, (uint8_t)plan});
}

/* The run continues without times of ops. */
static void give_up(rf_xla_device *d, const char *why) {
  char text[600];
  d->profiler = RF_XLA_PROFILER_NONE;
  snprintf(text, sizeof text, "the trace has steps and no times of ops: %.500s", why);
  if (d->settings.note) d->settings.note(d->settings.self, text);
}

rf_xla_timing rf_xla_timing_begin(rf_xla_device *d) {
  rf_xla_timing t = {.on = false};
  rf_error error = {0};
  if (!rf_lanes_on || d->profiler == RF_XLA_PROFILER_NONE) return t;
  if (!rf_xla_facts_of(d->client)->has_profiler) {
    give_up(d, "the plugin has no profiler");
    return t;
  }
  int64_t before = rf_now_ns();
  t.on = rf_xla_profile_begin(d->client, &error) == RAFTER_OK;
  t.begin = rf_now_ns();
  t.clock = t.begin - time_of_day_ns();
  put(RF_SPAN_RECORD, NULL, before, t.begin, 0);
  if (!t.on) give_up(d, error.message);
  return t;
}

void rf_xla_timing_drop(rf_xla_device *d, const rf_xla_timing *t) {
  rf_error unused;
  char *data = NULL;
  size_t bytes;
  if (t->on) rf_xla_profile_end(d->client, &data, &bytes, &unused);
  free(data);
}

/* ---- after an execution ---------------------------------------------------------------------- */

/* Profiles contain the time of day. The clock of a device may differ from the clock of the host. So
 * a shift moves the kernels into the execution, whose begin and end the host knows. */
static int64_t shift_of(const rf_xla_op_times *times, const rf_xla_timing *t, int64_t end) {
  int64_t first = times->at[0].begin, last = times->at[times->count - 1].end, shift = t->clock;
  if (last + shift > end) shift = end - last;
  if (first + shift < t->begin) shift = t->begin - first;
  return shift;
}

static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

static void put_times(const rf_xla_op_times *times, const rf_xla_timing *t, int64_t end, int plan) {
  int64_t shift = shift_of(times, t, end);
  for (int i = 0; i < times->count; i++) {
    const rf_xla_op_time *one = &times->at[i];
    put(one->op == RF_NONE ? RF_SPAN_OTHER : RF_SPAN_OP, one, at_most(one->begin + shift, end),
        at_most(one->end + shift, end), plan);
  }
}

/* An op without kernels was also executed, because the compiler made it a part of another op's
 * kernel. */
static void measure(const rf_xla_op_times *times, const rf_xla_timed *of) {
  for (int i = 0; i < of->graph->op_count; i++) {
    bool micro = of->graph->op[i].section == RF_SECTION_MICRO && of->graph->accumulate > 1;
    of->measured[i].calls += micro ? of->graph->accumulate : 1;
  }
  for (int i = 0; i < times->count; i++) {
    const rf_xla_op_time *one = &times->at[i];
    if (one->op == RF_NONE) continue;
    rf_measured *m = &of->measured[one->op];
    double seconds = 1e-9 * (double)(one->end - one->begin);
    if (m->seconds == 0 || seconds < m->least) m->least = seconds;
    m->seconds += seconds;
  }
  ++*of->timed;
}

static rf_status read_times(rf_xla_device *d, rf_xla_id program, rf_xla_instructions *in,
                            const rf_xla_timed *of, rf_xla_op_times *times, rf_error *error) {
  char *data = NULL;
  size_t bytes = 0;
  rf_xla_kernels kernels = {0};
  rf_status status = RAFTER_OK;
  RF_TRY(rf_xla_profile_end(d->client, &data, &bytes, error));
  const rf_proto_bytes space = {data, bytes};
  if (!in->count) {
    char *text = NULL;
    size_t size = 0;
    RF_GO(rf_xla_program_bytes(d->client, program, &text, &size, error));
    RF_GO(rf_xla_instructions_read(text, size, of->graph, in, error));
  }
  RF_GO(rf_xla_kernels_read(space, in, &kernels, error));
  if (!kernels.known)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "no kernel of the profile belongs to the compiled program"));
  status = rf_xla_op_times_of(&kernels, in, of->graph, times, error);
done:
  free(kernels.at);
  free(data);
  return status;
}

void rf_xla_timing_end(rf_xla_device *d, const rf_xla_timing *t, rf_xla_id program, rf_xla_instructions *in,
                       const rf_xla_timed *of) {
  int64_t end = rf_now_ns();
  rf_error error = {0};
  rf_xla_op_times times = {0};
  if (!t->on) return;
  rf_status status = read_times(d, program, in, of, &times, &error);
  if (status == RAFTER_OK && times.count) {
    measure(&times, of);
    put_times(&times, t, end, of->number);
  }
  free(times.at);
  put(RF_SPAN_RECORD, NULL, end, rf_now_ns(), 0);
  if (status != RAFTER_OK) give_up(d, error.message);
}
