/* trace_file.c - reads and writes trace.bin. The file has a header, which is one line of JSON, and
 * then the columns. */
#define _GNU_SOURCE
#include "report/trace_file.h"
#include "base/file.h"
#include "base/json.h"
#include "report/parts.h"
#include "report/trace_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, ALIGN = 8 };
static const size_t MAX_FILE = (size_t)1 << 33, MAX_HEADER = (size_t)1 << 28;
static const int64_t MAX_NS = (int64_t)1 << 53; /* a double represents every integer up to this number */

const rf_trace_column RF_TRACE_COLUMN[RF_TRACE_COLUMNS] = {
    {"begin", "i64", 8}, {"end", "i64", 8}, {"value", "f64", 8}, {"id", "i32", 4},
    {"lane", "u16", 2},  {"kind", "u8", 1}, {"plan", "u8", 1}};

static const char *const KINDS[RF_SPAN_KINDS] = {"op",      "busy", "wait", "phase",    "step",
                                                 "counter", "lost", "gap",  "predicted"};

size_t rf_trace_span_bytes(void) {
  size_t sum = 0;
  for (int c = 0; c < RF_TRACE_COLUMNS; c++) sum += RF_TRACE_COLUMN[c].bytes;
  return sum;
}

void rf_trace_file_point(rf_trace_file *file) {
  const char *at = file->columns;
  size_t n = (size_t)file->count;
  file->begin = (const int64_t *)at;
  file->end = file->begin + n;
  file->value = (const double *)(file->end + n);
  file->id = (const int32_t *)(file->value + n);
  file->lane = (const uint16_t *)(file->id + n);
  file->kind = (const uint8_t *)(file->lane + n);
  file->plan = file->kind + n;
  file->column_bytes = n * rf_trace_span_bytes();
}

/* ---- the header ------------------------------------------------------------------------------ */

/* Returns the tensor whose shape the trace shows for an op. This tensor is the first output, or the
 * first input of an op without outputs. */
static const rf_tensor *subject(const rf_graph *graph, const rf_op *op) {
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] != RF_NONE) return &graph->tensor[op->output[i]];
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] != RF_NONE) return &graph->tensor[op->input[i]];
  return NULL;
}

static json_t *op_json(const rf_plan *plan, int i, int64_t live, int64_t end) {
  static const char *const bounds[RF_BOUNDS] = {"compute", "memory", "latency", "network"};
  static const char *const sections[RF_SECTIONS] = {"begin", "micro", "end"};
  const rf_op *op = &plan->graph->op[i];
  const rf_plan_op *p = &plan->op[i];
  const rf_tensor *t = subject(plan->graph, op);
  json_t *shape = json_array();
  for (int d = 0; t && d < t->rank; d++) json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
  char type[64];
  json_t *row = json_pack("{si ss ss ss ss ss so ss sf sf sf sf ss si sI sI}", "id", i, "name", op->name,
                          "op", op->def->name, "kernel", p->kernel->name, "section", sections[op->section],
                          "phase", rf_op_phase(op), "shape", shape, "dtype", t ? rf_tensor_type(t, type) : "",
                          "flops", p->work.flops + p->work.flops_again, "bytes",
                          p->work.bytes_read + p->work.bytes_written, "seconds", p->seconds, "limit_seconds",
                          rf_plan_limit(plan, i, NULL), "bound", bounds[p->bound], "calls", p->calls,
                          "live_bytes", (json_int_t)live, "end_bytes", (json_int_t)end);
  rf_report_put_place(row, op);
  return row;
}

static json_t *ops_json(const rf_trace *trace, int index, rf_error *error) {
  const rf_plan *plan = trace->plan[index];
  size_t ops = (size_t)plan->graph->op_count;
  int64_t *live = calloc(2 * ops + 1, sizeof *live);
  if (!live) {
    (void)RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a trace");
    return NULL;
  }
  json_t *list = json_array();
  rf_plan_live(plan, live, live + ops);
  for (int i = 0; i < plan->graph->op_count; i++)
    json_array_append_new(list, op_json(plan, i, live[i], live[ops + (size_t)i]));
  free(live);
  return list;
}

static json_t *seconds_json(const double *seconds, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, json_real(seconds[i]));
  return list;
}

static json_t *after_json(const rf_traced_after *after) {
  json_t *phases = json_object();
  for (int p = 0; p < RF_PHASES; p++)
    if (after->by_phase[p] > 0)
      json_object_set_new(phases, rf_phase_name((rf_phase)p), json_real(after->by_phase[p]));
  return json_pack("{sI sf sf so s[oo]}", "end", (json_int_t)after->end, "work", after->work, "phases",
                   after->phases, "by_phase", phases, "gaps", seconds_json(after->gaps[0], RF_GAPS),
                   seconds_json(after->gaps[1], RF_GAPS));
}

static json_t *steps_json(const rf_trace *trace) {
  json_t *list = json_array();
  for (int s = 0; s < trace->steps; s++) {
    const rf_traced_step *step = &trace->step[s];
    json_t *json =
        json_pack("{sI sI sI sI sb}", "step", (json_int_t)step->step, "begin", (json_int_t)step->begin, "end",
                  (json_int_t)step->end, "tokens", (json_int_t)step->tokens, "whole", (int)step->whole);
    if (step->whole) {
      json_t *more = json_pack("{sf sf sI sI s[oo]}", "work", step->work, "phases", step->phases, "faults",
                               (json_int_t)step->faults, "heap_bytes", (json_int_t)step->heap_bytes, "gaps",
                               seconds_json(step->gaps[0], RF_GAPS), seconds_json(step->gaps[1], RF_GAPS));
      json_object_update(json, more);
      json_decref(more);
      json_object_set_new(json, "after", after_json(&step->after));
    }
    json_array_append_new(list, json);
  }
  return list;
}

static json_t *names_json(int count, const char *(*name)(int)) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, json_string(name(i)));
  return list;
}
static const char *kind_name(int i) { return KINDS[i]; }
static const char *phase_name(int i) { return rf_phase_name((rf_phase)i); }
static const char *gap_name(int i) { return rf_gap_name((rf_gap)i); }
static const char *lost_name(int i) { return rf_lost_name((rf_lost)i); }

static json_t *lanes_json(const rf_trace *trace) {
  json_t *list = json_array();
  char name[32];
  for (int t = 0; t < trace->threads; t++) {
    if (trace->device) snprintf(name, sizeof name, "%s", RF_TRACE_DEVICE);
    else snprintf(name, sizeof name, "thread %d", t);
    json_array_append_new(list, json_pack("{ss ss}", "name", name, "kind", "thread"));
  }
  for (int l = 0; l < RF_TRACE_LANES; l++)
    json_array_append_new(list, json_pack("{ss ss}", "name", rf_trace_lane_name((rf_trace_lane)l), "kind",
                                          rf_trace_lane_name((rf_trace_lane)l)));
  return list;
}

static rf_status make_header(const rf_trace *trace, json_t *about, json_t **header, rf_error *error) {
  json_t *plans = json_array(), *digests = json_array(), *ops = json_array(), *counters = json_array(),
         *columns = json_array();
  for (int p = 0; p < trace->plans; p++) {
    json_t *list = ops_json(trace, p, error);
    if (!list) {
      json_decref(plans);
      json_decref(digests);
      json_decref(ops);
      json_decref(counters);
      json_decref(columns);
      return RAFTER_FAILED;
    }
    json_array_append_new(plans, json_string(trace->plan_name[p]));
    json_array_append_new(digests, json_string(trace->plan[p]->digest));
    json_array_append_new(ops, list);
  }
  for (int c = 0; c < RF_COUNTERS; c++)
    json_array_append_new(counters, json_pack("{ss ss}", "name", rf_counter_name((rf_counter)c), "unit",
                                              rf_counter_unit((rf_counter)c)));
  for (int c = 0; c < RF_TRACE_COLUMNS; c++)
    json_array_append_new(
        columns, json_pack("{ss ss}", "name", RF_TRACE_COLUMN[c].name, "type", RF_TRACE_COLUMN[c].type));
  json_t *machine = json_object();
  if (trace->plans) {
    const rf_plan *plan = trace->plan[0];
    json_decref(machine);
    machine = json_pack("{ss sf sf sf}", "name", plan->machine.name, "peak_flops", rf_plan_peak_flops(plan),
                        "read_bps", plan->machine.read_bps, "copy_bps", plan->machine.copy_bps);
  }
  *header = json_pack("{ss si ss so ss sf so si sI sI so so so so so so so so so so so}", "format",
                      "rafter-trace", "version", VERSION, "rafter", RF_VERSION, "machine", machine, "clock",
                      "CLOCK_MONOTONIC, ns since the origin", "origin_unix_seconds", trace->wall, "lanes",
                      lanes_json(trace), "threads", trace->threads, "count", (json_int_t)trace->count,
                      "dropped", (json_int_t)trace->dropped, "kinds", names_json(RF_SPAN_KINDS, kind_name),
                      "phases", names_json(RF_PHASES, phase_name), "gaps", names_json(RF_GAPS, gap_name),
                      "lost", names_json(RF_LOSTS, lost_name), "counters", counters, "steps",
                      steps_json(trace), "plans", plans, "digests", digests, "ops", ops, "columns", columns,
                      "about", about ? json_incref(about) : json_object());
  return *header ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a trace");
}

rf_status rf_trace_file_of(const rf_trace *trace, json_t *about, rf_trace_file *file, rf_error *error) {
  size_t n = (size_t)trace->count;
  *file = (rf_trace_file){.count = trace->count, .memory = malloc(n * rf_trace_span_bytes() + 1)};
  if (!file->memory)
    return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while writing a trace");
  file->columns = file->memory;
  rf_trace_file_point(file);
  for (size_t i = 0; i < n; i++) {
    const rf_stamp *s = &trace->span[i];
    ((int64_t *)file->begin)[i] = s->begin;
    ((int64_t *)file->end)[i] = s->end;
    ((double *)file->value)[i] = s->value;
    ((int32_t *)file->id)[i] = s->id;
    ((uint16_t *)file->lane)[i] = s->lane;
    ((uint8_t *)file->kind)[i] = s->kind;
    ((uint8_t *)file->plan)[i] = s->plan;
  }
  rf_status status = make_header(trace, about, &file->header, error);
  if (status != RAFTER_OK) rf_trace_file_free(file);
  return status;
}

void rf_trace_file_free(rf_trace_file *file) {
  json_decref(file->header);
  free(file->memory);
  *file = (rf_trace_file){0};
}

rf_status rf_trace_file_begin(const json_t *header, int64_t count, const char *path, rf_out_file **out,
                              rf_error *error) {
  rf_status status = RAFTER_OK;
  char *text = rf_json_text(header, 0);
  if (!text) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing a trace");
  /* The padding lets the columns start at a multiple of 8 bytes. */
  size_t bytes = strlen(text), padding = (ALIGN - (bytes + 1) % ALIGN) % ALIGN;
  int64_t all = (int64_t)(bytes + padding + 1) + count * (int64_t)rf_trace_span_bytes();
  RF_GO(rf_out_open(path, all, out, error));
  RF_GO(rf_out_write(*out, text, bytes, error));
  RF_GO(rf_out_write(*out, "        ", padding, error));
  status = rf_out_write(*out, "\n", 1, error);
done:
  free(text);
  return status;
}

static rf_status write_file(const rf_trace_file *file, const char *path, rf_error *error) {
  rf_out_file *out = NULL, *whole;
  rf_status status = RAFTER_OK;
  RF_GO(rf_trace_file_begin(file->header, file->count, path, &out, error));
  RF_GO(rf_out_write(out, file->columns, file->column_bytes, error));
  whole = out;
  out = NULL;
  status = rf_out_commit(whole, error);
done:
  rf_out_discard(out);
  return status;
}

/* Returns the time after the first `steps` steps of rank 0. */
static int64_t end_of_steps(const rf_trace_file *file, int steps) {
  const json_t *list = json_object_get(file->header, "steps"),
               *step = json_array_get(list, (size_t)steps - 1), *after = json_object_get(step, "after");
  return steps == (int)json_array_size(list)
             ? INT64_MAX
             : json_integer_value(json_object_get(after ? after : step, "end"));
}

/* Returns the largest n for which the first n steps have at most `most` spans in total, but at least
 * 1. */
static int steps_within(const rf_trace_file *file, int64_t most) {
  int low = 1, high = (int)json_array_size(json_object_get(file->header, "steps"));
  if (!high) return 0;
  while (file->count > most && low < high) {
    int middle = low + (high - low + 1) / 2;
    int64_t spans = 0, end = end_of_steps(file, middle);
    for (int64_t i = 0; i < file->count; i++) spans += file->begin[i] < end;
    if (spans <= most) low = middle;
    else high = middle - 1;
  }
  return file->count > most ? low : high;
}

rf_status rf_trace_file_json(const rf_trace_file *file, const char *folder, int *steps, rf_error *error) {
  char path[4200];
  int shown = steps_within(file, RF_TRACE_JSON_SPANS);
  snprintf(path, sizeof path, "%s/trace.json", folder);
  if (steps) *steps = shown;
  return rf_trace_file_chrome_until(file, shown ? end_of_steps(file, shown) : INT64_MAX, path, error);
}

rf_status rf_trace_write(const rf_trace *trace, json_t *about, const char *folder, json_t **header,
                         int *in_json, rf_error *error) {
  char path[4200];
  rf_trace_file file;
  RF_TRY(rf_trace_file_of(trace, about, &file, error));
  snprintf(path, sizeof path, "%s/trace.bin", folder);
  rf_status status = write_file(&file, path, error);
  if (status == RAFTER_OK) status = rf_trace_file_json(&file, folder, in_json, error);
  if (status == RAFTER_OK && header) *header = json_incref(file.header);
  rf_trace_file_free(&file);
  return status;
}

/* ---- reading and checking -------------------------------------------------------------------- */

static const char *const HINT = RF_TRACE_HINT;

static rf_status read_array(const json_t *header, const char *path, const char *key, size_t least,
                            size_t most, json_t **list, rf_error *error) {
  *list = json_object_get(header, key);
  if (!json_is_array(*list) || json_array_size(*list) < least || json_array_size(*list) > most)
    return RF_FAIL(error, RAFTER_FAILED, HINT,
                   "%s is not a list of the expected size (%s: expected %zu to %zu entries)", key, path,
                   least, most);
  return RAFTER_OK;
}

static rf_status check_names(const json_t *list, const char *path, const char *key, const char *(*name)(int),
                             rf_error *error) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    const char *text = json_string_value(json_array_get(list, i));
    if (!text || strcmp(text, name((int)i)))
      return RF_FAIL(error, RAFTER_FAILED, HINT, "%s has an unknown name (%s: expected %s at %zu, got %s)",
                     key, path, name((int)i), i, text ? text : "nothing");
  }
  return RAFTER_OK;
}

static rf_status check_counters(const json_t *list, const char *path, rf_error *error) {
  for (int c = 0; c < RF_COUNTERS; c++) {
    const json_t *row = json_array_get(list, (size_t)c);
    const char *name = json_string_value(json_object_get(row, "name")),
               *unit = json_string_value(json_object_get(row, "unit"));
    if (!name || !unit || strcmp(name, rf_counter_name((rf_counter)c)) ||
        strcmp(unit, rf_counter_unit((rf_counter)c)))
      return RF_FAIL(error, RAFTER_FAILED, HINT, "counters differ (%s: expected %s at %d, got %s)", path,
                     rf_counter_name((rf_counter)c), c, name ? name : "nothing");
  }
  return RAFTER_OK;
}

static rf_status check_columns(const json_t *list, const char *path, rf_error *error) {
  for (int c = 0; c < RF_TRACE_COLUMNS; c++) {
    const json_t *row = json_array_get(list, (size_t)c);
    const char *name = json_string_value(json_object_get(row, "name")),
               *type = json_string_value(json_object_get(row, "type"));
    if (!name || !type || strcmp(name, RF_TRACE_COLUMN[c].name) || strcmp(type, RF_TRACE_COLUMN[c].type))
      return RF_FAIL(error, RAFTER_FAILED, HINT, "columns differ (%s: expected %s of %s at %d, got %s of %s)",
                     path, RF_TRACE_COLUMN[c].name, RF_TRACE_COLUMN[c].type, c, name ? name : "nothing",
                     type ? type : "nothing");
  }
  return RAFTER_OK;
}

/* Checks those fields of ops that other code reads. */
static rf_status check_ops(const json_t *plans, const char *path, rf_error *error) {
  size_t p, i;
  json_t *op, *ops;
  json_array_foreach ((json_t *)plans, p, ops) {
    if (!json_is_array(ops))
      return RF_FAIL(error, RAFTER_FAILED, HINT, "the ops of a plan are not a list (%s: plan %zu)", path, p);
    json_array_foreach (ops, i, op) {
      static const char *const texts[] = {"name", "op", "kernel", "phase", "dtype", "bound"},
                               *const numbers[] = {"flops", "bytes", "seconds", "limit_seconds"};
      const char *text;
      int64_t id;
      double number;
      RF_TRY(rf_json_int(op, "id", path, 0, INT32_MAX, &id, error));
      if (id != (int64_t)i)
        return RF_FAIL(error, RAFTER_FAILED, HINT, "ops are not in order (%s: expected id %zu, got %lld)",
                       path, i, (long long)id);
      for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        RF_TRY(rf_json_string(op, texts[k], path, &text, error));
      for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        RF_TRY(rf_json_float(op, numbers[k], path, 0, 1e40, &number, error));
      if (json_object_get(op, "layer")) RF_TRY(rf_json_int(op, "layer", path, 0, INT32_MAX, &id, error));
      if (!json_is_array(json_object_get(op, "shape")))
        return RF_FAIL(error, RAFTER_FAILED, HINT, "an op has no shape (%s: op %zu)", path, i);
    }
  }
  return RAFTER_OK;
}

static rf_status check_plans(const json_t *header, const char *path, rf_error *error) {
  json_t *names, *ops;
  size_t p;
  json_t *name;
  RF_TRY(read_array(header, path, "plans", 0, UINT8_MAX, &names, error));
  RF_TRY(read_array(header, path, "ops", json_array_size(names), json_array_size(names), &ops, error));
  json_array_foreach (names, p, name)
    if (!json_is_string(name))
      return RF_FAIL(error, RAFTER_FAILED, HINT, "a plan has no name (%s: plan %zu)", path, p);
  return check_ops(ops, path, error);
}

/* Checks how threads spent the time of a step, or the time between two steps. */
static rf_status check_seconds(const json_t *went, size_t gap_count, const char *path, size_t step,
                               rf_error *error) {
  double number;
  RF_TRY(rf_json_float(went, "work", path, 0, 1e15, &number, error));
  RF_TRY(rf_json_float(went, "phases", path, 0, 1e15, &number, error));
  for (size_t k = 0; k < 2; k++)
    for (size_t g = 0; g < gap_count; g++)
      if (!json_is_number(json_array_get(json_array_get(json_object_get(went, "gaps"), k), g)))
        return RF_FAIL(error, RAFTER_FAILED, HINT, "a step's gaps are not numbers (%s: step %zu)", path,
                       step);
  return RAFTER_OK;
}

/* Checks those fields of steps that other code reads. */
rf_status rf_trace_check_steps(const json_t *steps, size_t gap_count, const char *path, rf_error *error) {
  static const char *const numbers[] = {"step", "begin", "end", "tokens"};
  size_t i;
  json_t *step;
  json_array_foreach ((json_t *)steps, i, step) {
    int64_t value;
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
      RF_TRY(rf_json_int(step, numbers[k], path, 0, MAX_NS, &value, error));
    json_t *after = json_object_get(step, "after"); /* missing in old traces */
    if (!json_object_get(step, "gaps")) continue;
    RF_TRY(check_seconds(step, gap_count, path, i, error));
    if (!after) continue;
    RF_TRY(rf_json_int(after, "end", path, json_integer_value(json_object_get(step, "end")), MAX_NS, &value,
                       error));
    RF_TRY(check_seconds(after, gap_count, path, i, error));
    const char *name;
    json_t *seconds;
    json_object_foreach (json_object_get(after, "by_phase"), name, seconds)
      if (!json_is_number(seconds))
        return RF_FAIL(error, RAFTER_FAILED, HINT, "a step's phases are not numbers (%s: step %zu)", path, i);
  }
  return RAFTER_OK;
}

static rf_status check_lanes(const json_t *lanes, const char *path, rf_error *error) {
  size_t i;
  json_t *lane;
  const char *text;
  json_array_foreach ((json_t *)lanes, i, lane) {
    RF_TRY(rf_json_string(lane, "name", path, &text, error));
    RF_TRY(rf_json_string(lane, "kind", path, &text, error));
  }
  return RAFTER_OK;
}

/* Returns the number of steps that the spans of each lane may name. The array is malloc'ed. NULL:
 * out of memory. */
static size_t *steps_of_lanes(const rf_trace_file *file) {
  const json_t *ranks = json_object_get(file->header, "ranks");
  size_t lanes = json_array_size(json_object_get(file->header, "lanes")),
         *steps = calloc(lanes + 1, sizeof *steps);
  int *rank = rf_trace_lane_ranks(file);
  for (size_t l = 0; steps && rank && l < lanes; l++) {
    const json_t *of = ranks ? json_array_get(ranks, (size_t)rank[l]) : file->header;
    steps[l] = json_array_size(json_object_get(of, "steps"));
  }
  if (!rank) {
    free(steps);
    steps = NULL;
  }
  free(rank);
  return steps;
}

static rf_status check_spans(const rf_trace_file *file, const size_t *steps, const char *path,
                             rf_error *error) {
  const json_t *plans = json_object_get(file->header, "ops");
  size_t lanes = json_array_size(json_object_get(file->header, "lanes"));
  size_t gaps = json_array_size(json_object_get(file->header, "gaps")),
         phases = json_array_size(json_object_get(file->header, "phases"));
  const size_t ids[RF_SPAN_KINDS] = {[RF_SPAN_PHASE] = phases,
                                     [RF_SPAN_COUNTER] = RF_COUNTERS,
                                     [RF_SPAN_LOST] = RF_LOSTS,
                                     [RF_SPAN_GAP] = gaps};
  for (int64_t i = 0; i < file->count; i++) {
    const char *what = NULL;
    if (file->kind[i] >= RF_SPAN_KINDS) what = "kind";
    else if (file->lane[i] >= lanes) what = "lane";
    else if (file->begin[i] < 0 || file->begin[i] > MAX_NS) what = "begin";
    else if (file->end[i] < file->begin[i] || file->end[i] > MAX_NS) what = "end";
    else if (!isfinite(file->value[i])) what = "value";
    else if (i && (file->lane[i] < file->lane[i - 1] ||
                   (file->lane[i] == file->lane[i - 1] && file->begin[i] < file->begin[i - 1])))
      what = "order";
    else {
      bool is_op = file->kind[i] <= RF_SPAN_WAIT || file->kind[i] == RF_SPAN_PREDICTED;
      const json_t *ops = is_op ? json_array_get(plans, file->plan[i]) : NULL;
      size_t most = is_op                           ? json_array_size(ops)
                    : file->kind[i] == RF_SPAN_STEP ? steps[file->lane[i]]
                                                    : ids[file->kind[i]];
      if (is_op && !ops) what = "plan";
      else if (file->id[i] < 0 || (size_t)file->id[i] >= most) what = "id";
    }
    if (what)
      return RF_FAIL(error, RAFTER_FAILED, HINT, "a span is out of range (%s: %s of span %lld)", path, what,
                     (long long)i);
  }
  return RAFTER_OK;
}

static rf_status check_header(const rf_trace_file *file, const char *path, rf_error *error) {
  json_t *list;
  const char *text;
  int64_t number;
  const struct {
    const char *key;
    size_t least, count; /* `least` is smaller than `count` for gaps and phases that old traces lack */
    const char *(*name)(int);
  } names[] = {{"kinds", RF_SPAN_KINDS, RF_SPAN_KINDS, kind_name},
               {"phases", RF_PHASE_RECORD, RF_PHASES, phase_name},
               {"gaps", RF_GAP_STOPPED, RF_GAPS, gap_name},
               {"lost", RF_LOSTS, RF_LOSTS, lost_name}};
  RF_TRY(rf_json_string(file->header, "format", path, &text, error));
  if (strcmp(text, "rafter-trace"))
    return RF_FAIL(error, RAFTER_FAILED, HINT, "not a trace (%s: expected format rafter-trace, got %s)", path,
                   text);
  RF_TRY(rf_json_int(file->header, "version", path, 0, INT32_MAX, &number, error));
  if (number != VERSION)
    return RF_FAIL(error, RAFTER_FAILED, HINT, "unknown version (%s: expected %d, got %lld)", path, VERSION,
                   (long long)number);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    RF_TRY(read_array(file->header, path, names[i].key, names[i].least, names[i].count, &list, error));
    RF_TRY(check_names(list, path, names[i].key, names[i].name, error));
  }
  RF_TRY(read_array(file->header, path, "columns", RF_TRACE_COLUMNS, RF_TRACE_COLUMNS, &list, error));
  RF_TRY(check_columns(list, path, error));
  RF_TRY(read_array(file->header, path, "counters", RF_COUNTERS, RF_COUNTERS, &list, error));
  RF_TRY(check_counters(list, path, error));
  RF_TRY(read_array(file->header, path, "steps", 0, 1 << 24, &list, error));
  RF_TRY(rf_trace_check_steps(list, json_array_size(json_object_get(file->header, "gaps")), path, error));
  RF_TRY(read_array(file->header, path, "lanes", RF_TRACE_LANES, UINT16_MAX, &list, error));
  RF_TRY(check_lanes(list, path, error));
  RF_TRY(rf_trace_check_ranks(file->header, path, error));
  return check_plans(file->header, path, error);
}

rf_status rf_trace_file_parse(const char *path, char *text, size_t bytes, rf_trace_file *file,
                              rf_error *error) {
  rf_status status = RAFTER_OK;
  size_t *steps = NULL;
  *file = (rf_trace_file){.memory = text};
  char *end = memchr(text, '\n', bytes < MAX_HEADER ? bytes : MAX_HEADER);
  size_t header = end ? (size_t)(end - text) + 1 : 0;
  if (!header || header % ALIGN) {
    status = RF_FAIL(error, RAFTER_FAILED, HINT,
                     "not a trace (%s: expected a header line of a multiple of %d bytes, got %zu)", path,
                     ALIGN, header);
    goto done;
  }
  RF_GO(rf_json_parse(text, header - 1, path, &file->header, error));
  RF_GO(rf_json_int(file->header, "count", path, 0, (int64_t)(MAX_FILE / rf_trace_span_bytes()), &file->count,
                    error));
  if ((size_t)file->count * rf_trace_span_bytes() != bytes - header) {
    status =
        RF_FAIL(error, RAFTER_FAILED, HINT,
                "the columns have a wrong size (%s: expected %lld spans in %zu bytes, got %zu bytes)", path,
                (long long)file->count, (size_t)file->count * rf_trace_span_bytes(), bytes - header);
    goto done;
  }
  file->columns = text + header;
  rf_trace_file_point(file);
  RF_GO(check_header(file, path, error));
  steps = steps_of_lanes(file);
  status = steps ? check_spans(file, steps, path, error)
                 : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading %s", path);
done:
  free(steps);
  if (status != RAFTER_OK) rf_trace_file_free(file);
  return status;
}

rf_status rf_trace_file_read(const char *path, rf_trace_file *file, rf_error *error) {
  char *text = NULL;
  size_t bytes = 0;
  *file = (rf_trace_file){0};
  RF_TRY(rf_file_read(path, MAX_FILE, &text, &bytes, error));
  return rf_trace_file_parse(path, text, bytes, file, error);
}
