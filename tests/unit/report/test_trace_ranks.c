/* test_trace_ranks.c - joins the traces of two ranks and reads them back, and refuses damaged lists
 * of ranks. Finds the idle time of a pipeline stage in planted spans of sends and recvs. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "report/bubble.h"
#include "report/trace_ranks.h"
#include "support/files.h"
#include "support/scratch.h"
#include "traced.h"

/* ---- two ranks ------------------------------------------------------------------------------- */

enum { LATER_NS = 12345 }; /* rank 1 does everything later */

static rf_trace *record_steps(rf_trainer **t) {
  rf_train_settings s = settings();
  rf_error error = {0};
  rafter_step step;
  if (rf_trainer_open(&s, t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_record *record = open_record("steps=1..2");
  for (int i = 0; i < 2; i++)
    if (rf_trainer_step(*t, &step, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_trace *trace = collect(record, *t);
  rf_record_close(record);
  return trace;
}

static rf_status next_piece(void *self, void *to, size_t bytes, rf_error *error) {
  const char **next = self;
  (void)error;
  memcpy(to, *next, bytes);
  *next += bytes;
  return RAFTER_OK;
}

static rf_status count_piece(void *self, const void *data, size_t bytes, rf_error *error) {
  const char **next = self;
  (void)error;
  assert_true(data == *next && bytes > 0 && bytes <= RF_TRACE_PIECE * 8);
  *next += bytes;
  return RAFTER_OK;
}

/* Both ranks have the same spans, but those of rank 1 are later. It is another pipeline
 * stage, whose plan has other ops but the same digest. */
static json_t *join(rf_trace *trace, rf_trace_file file[2], int *in_json) {
  rf_error error = {0};
  json_t *header = NULL, *keys[2];
  rf_trace_part part[2];
  static const char *next[2];
  json_t *about = json_pack("{ss}", "command", "train");
  for (int r = 0; r < 2; r++) {
    for (int64_t i = 0; r && i < trace->count; i++) {
      trace->span[i].begin += LATER_NS;
      trace->span[i].end += LATER_NS;
    }
    if (rf_trace_file_of(trace, about, &file[r], &error) != RAFTER_OK) fail_msg("%s", error.message);
    keys[r] = json_pack("{ss si sf sf}", "host", r ? "far" : "near", "stage", r, "clock_ahead_seconds",
                        1.5 * r, "clock_error_seconds", 1e-5 * r);
    next[r] = file[r].columns;
    assert_int_equal(rf_trace_pieces(&file[r], count_piece, &next[r], &error), RAFTER_OK);
    assert_true(next[r] == (const char *)file[r].columns + file[r].column_bytes);
    next[r] = file[r].columns;
    part[r] = (rf_trace_part){file[r].header, keys[r], next_piece, &next[r]};
  }
  if (rf_trace_join(part, 2, folder, &header, in_json, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int r = 0; r < 2; r++) json_decref(keys[r]);
  json_decref(about);
  return header;
}

static void check_spans(const rf_trace_file *file, const rf_trace_file own[2]) {
  int lanes = THREADS + RF_TRACE_LANES;
  for (int64_t i = 0; i < file->count; i++) {
    int r = i >= own[0].count;
    int64_t k = i - r * own[0].count;
    assert_int_equal(file->begin[i], own[r].begin[k]);
    assert_int_equal(file->end[i], own[r].end[k]);
    assert_int_equal(file->id[i], own[r].id[k]);
    assert_int_equal(file->kind[i], own[r].kind[k]);
    assert_int_equal(file->lane[i], own[r].lane[k] + r * lanes);
    assert_int_equal(file->plan[i], own[r].plan[k] + r);
  }
}

static void check_ranks(const json_t *header) {
  const json_t *ranks = json_object_get(header, "ranks");
  assert_int_equal(json_array_size(ranks), 2);
  assert_int_equal(json_array_size(json_object_get(header, "lanes")), 2 * (THREADS + RF_TRACE_LANES));
  assert_int_equal(json_array_size(json_object_get(header, "plans")), 2);
  assert_int_equal(json_array_size(json_object_get(header, "ops")), 2);
  assert_string_equal(json_string_value(json_array_get(json_object_get(header, "plans"), 1)),
                      "train of stage 1");
  for (size_t r = 0; r < 2; r++) {
    const json_t *one = json_array_get(ranks, r);
    assert_int_equal(json_integer_value(json_object_get(one, "rank")), r);
    assert_string_equal(rf_json_text_at(one, "host"), r ? "far" : "near");
    assert_int_equal(rf_json_number_at(one, "threads"), THREADS);
    assert_int_equal(rf_json_number_at(one, "first_lane"), r * (THREADS + RF_TRACE_LANES));
    assert_int_equal(json_array_size(json_object_get(one, "steps")), 2);
    assert_true(rf_json_number_at(one, "clock_error_seconds") == 1e-5 * (double)r);
  }
}

/* Perfetto gets a process for each rank. */
static void check_json(const rf_trace_file *file) {
  char path[4200];
  json_t *json = NULL;
  rf_error error = {0};
  int64_t spans[2] = {0};
  int processes = 0, predicted = 0, ops = 0;
  size_t i;
  const json_t *event;
  snprintf(path, sizeof path, "%s/trace.json", folder);
  if (rf_json_read(path, (size_t)1 << 28, &json, &error) != RAFTER_OK) fail_msg("%s", error.message);
  json_array_foreach (json_object_get(json, "traceEvents"), i, event) {
    const char *phase = rf_json_text_at(event, "ph"), *name = rf_json_text_at(event, "name");
    int pid = (int)rf_json_number_at(event, "pid");
    assert_in_range(pid, 1, 2);
    if (!strcmp(name, "process_name")) {
      assert_string_equal(rf_json_text_at(json_object_get(event, "args"), "name"),
                          pid == 1 ? "rank 0 (near)" : "rank 1 (far)");
      processes++;
    }
    if (strcmp(phase, "X")) continue;
    spans[pid - 1]++;
    bool op = !strcmp(rf_json_text_at(event, "cat"), "op");
    ops += op;
    predicted += op && rf_json_number_at(json_object_get(event, "args"), "predicted_us") > 0;
  }
  json_decref(json);
  assert_int_equal(processes, 2);
  assert_int_equal(spans[0], spans[1]);
  assert_true(ops > 0 && predicted == ops);
  int64_t measured = 0;
  for (int64_t k = 0; k < file->count; k++) measured += file->kind[k] == RF_SPAN_OP;
  assert_int_equal(measured, ops);
}

/* Damaged lists of ranks are refused. */
static void refuse(const json_t *header, const rf_trace_file *file, const char *what,
                   void (*damage)(json_t *ranks)) {
  json_t *copy = json_deep_copy(header);
  damage(json_object_get(copy, "ranks"));
  char *text = rf_json_text(copy, 0);
  size_t bytes = strlen(text), padding = (8 - (bytes + 1) % 8) % 8;
  char *all = calloc(1, bytes + padding + 1 + file->column_bytes);
  memcpy(all, text, bytes);
  memset(all + bytes, ' ', padding);
  all[bytes + padding] = '\n';
  memcpy(all + bytes + padding + 1, file->columns, file->column_bytes);
  free(text);
  json_decref(copy);
  rf_trace_file read;
  rf_error error = {0};
  rf_status status = rf_trace_file_parse("x", all, bytes + padding + 1 + file->column_bytes, &read, &error);
  if (what && status == RAFTER_OK) fail_msg("%s is read", what);
  if (!what && status != RAFTER_OK) fail_msg("%s", error.message);
  if (status == RAFTER_OK) rf_trace_file_free(&read);
}
static void nothing(json_t *ranks) { (void)ranks; }
static void no_ranks(json_t *ranks) { json_array_clear(ranks); }
static void one_rank(json_t *ranks) { json_array_remove(ranks, 1); }
static void a_number(json_t *ranks) { json_array_set_new(ranks, 1, json_integer(3)); }
static void set(json_t *ranks, const char *key, json_t *value) {
  json_object_set_new(json_array_get(ranks, 1), key, value);
}
static void another_lane(json_t *ranks) { set(ranks, "first_lane", json_integer(1)); }
static void many_lanes(json_t *ranks) { set(ranks, "lanes", json_integer(60000)); }
static void many_threads(json_t *ranks) { set(ranks, "threads", json_integer(60000)); }
static void no_steps(json_t *ranks) { set(ranks, "steps", json_array()); } /* spans name them */
static void wrong_steps(json_t *ranks) { set(ranks, "steps", json_pack("[i i]", 1, 2)); }
static void wrong_host(json_t *ranks) { set(ranks, "host", json_integer(1)); }
static void wrong_rank(json_t *ranks) { set(ranks, "rank", json_integer(7)); }

static void test_ranks_are_joined(void **state) {
  (void)state;
  rf_trainer *t = NULL;
  rf_trace *trace = record_steps(&t);
  rf_trace_file own[2], file;
  rf_error error = {0};
  char path[4200];
  int in_json = 0;
  json_t *header = join(trace, own, &in_json);
  assert_int_equal(in_json, 2);
  snprintf(path, sizeof path, "%s/trace.bin", folder);
  if (rf_trace_file_read(path, &file, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(file.count, own[0].count + own[1].count);
  assert_true(json_equal(header, file.header));
  check_spans(&file, own);
  check_ranks(header);
  check_json(&file);
  const struct {
    const char *what;
    void (*damage)(json_t *ranks);
  } faults[] = {{NULL, nothing},
                {"no rank", no_ranks},
                {"lanes of no rank", one_rank},
                {"a number", a_number},
                {"another lane", another_lane},
                {"many lanes", many_lanes},
                {"many threads", many_threads},
                {"no steps", no_steps},
                {"wrong steps", wrong_steps},
                {"a wrong host", wrong_host},
                {"a wrong rank", wrong_rank}};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    refuse(header, &file, faults[i].what, faults[i].damage);
  json_decref(header);
  rf_trace_file_free(&file);
  for (int r = 0; r < 2; r++) rf_trace_file_free(&own[r]);
  rf_trace_free(trace);
  rf_trainer_close(t);
}

/* ---- a pipeline stage ------------------------------------------------------------------------ */

enum { RECV, FORWARD, SEND, TENSOR, BACKWARD, NORM, UPDATE, OPS };

/* A planted step of a stage, in ms: it waits 5 for its first input and 2 for a gradient, sends for
 * 1, and waits 4 for a slower rank at the end. A wait inside the microbatches does not count. */
static const struct {
  int op, begin, end; /* op -1: a wait for a slower rank */
} STEP[] = {{RECV, 0, 5},     {FORWARD, 5, 15}, {SEND, 15, 16},     {RECV, 16, 18},
            {TENSOR, 18, 24}, {-1, 19, 23},     {BACKWARD, 24, 38}, {NORM, 38, 44},
            {-1, 39, 43},     {UPDATE, 44, 50}, {-1, 50, 54}};
enum { SPANS = sizeof STEP / sizeof *STEP, MS = 1000000 };

static rf_bubble bubble_of(const rf_op_def *const def[OPS], int steps, bool whole) {
  static const rf_section section[OPS] = {[NORM] = RF_SECTION_END, [UPDATE] = RF_SECTION_END};
  rf_op op[OPS];
  rf_stamp span[4 * SPANS];
  rf_traced_step step[4];
  memset(op, 0, sizeof op);
  memset(step, 0, sizeof step);
  for (int i = 0; i < OPS; i++) {
    op[i].def = def[i];
    op[i].section = section[i] == RF_SECTION_END ? RF_SECTION_END : RF_SECTION_MICRO;
  }
  for (int s = 0; s < steps; s++) {
    int64_t from = (int64_t)s * 60 * MS;
    step[s] =
        (rf_traced_step){.step = s + 1, .begin = from, .end = from + (int64_t)54 * MS, .whole = whole || s};
    for (int i = 0; i < SPANS; i++)
      span[s * SPANS + i] = (rf_stamp){from + (int64_t)STEP[i].begin * MS,
                                       from + (int64_t)STEP[i].end * MS,
                                       0,
                                       STEP[i].op < 0 ? (int)RF_GAP_SLOW_RANK : STEP[i].op,
                                       0,
                                       STEP[i].op < 0 ? RF_SPAN_GAP : RF_SPAN_OP,
                                       0};
  }
  rf_graph graph = {.op = op, .op_count = OPS};
  rf_plan plan = {.graph = &graph};
  rf_trace trace = {
      .span = span, .count = steps * SPANS, .threads = 1, .step = step, .steps = steps, .plans = 1};
  trace.plan[0] = &plan;
  return rf_trace_bubble(&trace);
}

static void is(double got, double ms) {
  if (fabs(got - 1e-3 * ms) > 1e-12) fail_msg("%g ms (expected %g)", 1e3 * got, ms);
}

static void test_a_bubble(void **state) {
  (void)state;
  const rf_op_def *const pipeline[OPS] = {&RF_OP_RECV,   &RF_OP_MATMUL,     &RF_OP_SEND, &RF_OP_ALL_REDUCE,
                                          &RF_OP_MATMUL, &RF_OP_ALL_REDUCE, &RF_OP_ADAMW},
                         *const plain[OPS] = {&RF_OP_MATMUL,     &RF_OP_MATMUL, &RF_OP_MATMUL,
                                              &RF_OP_ALL_REDUCE, &RF_OP_MATMUL, &RF_OP_ALL_REDUCE,
                                              &RF_OP_ADAMW};
  for (int steps = 1; steps <= 4; steps++) {
    rf_bubble b = bubble_of(pipeline, steps, true);
    assert_int_equal(b.steps, steps);
    is(b.seconds, 54);
    is(b.idle, 5 + 1 + 2 + 4);
    is(b.busy, 50 - 12); /* the wait after the last op is not a part of ops */
    is(b.fill, 5);
    is(b.drain, 4);
    assert_true(b.transfers == 3);
  }
  assert_int_equal(bubble_of(pipeline, 3, false).steps, 2); /* spans of the first step were dropped */
  is(bubble_of(pipeline, 3, false).idle, 12);
  assert_int_equal(bubble_of(plain, 2, true).steps, 0); /* no pipeline */
}

int main(void) {
  set_machine();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranks_are_joined),
      cmocka_unit_test(test_a_bubble),
  };
  return cmocka_run_group_tests_name("trace of ranks", tests, make_folder, remove_folder);
}
