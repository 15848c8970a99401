/* test_trace.c - tests a recorded run: every ns of every thread has one cause, spans nest,
 * recording does not change bits, and a corrupt trace.bin is refused. */
#define _GNU_SOURCE
#include "report/trace_file.h"
#include "base/json.h"
#include "train/train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "traced.h"

/* Trains STEPS steps, recorded or not. Returns a hash of losses and weights. */
static uint64_t train(rf_trainer **kept) {
  rf_train_settings s = settings();
  rf_trainer *t;
  rf_error error = {0};
  uint64_t hash = 14695981039346656037u;
  if (rf_trainer_open(&s, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int i = 0; i < STEPS; i++) {
    rafter_step step;
    if (rf_trainer_step(t, &step, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (size_t b = 0; b < sizeof step.loss; b++)
      hash = (hash ^ ((const unsigned char *)&step.loss)[b]) * 1099511628211u;
  }
  for (int p = 0; p < t->plan->graph->params.count; p++) {
    const unsigned char *bytes =
        (const unsigned char *)((float *)rf_run_tensor(t->run, 0, t->state[p].master));
    for (int64_t b = 0; b < rf_tensor_bytes(&t->plan->graph->tensor[t->state[p].master]); b++)
      hash = (hash ^ bytes[b]) * 1099511628211u;
  }
  if (kept) *kept = t;
  else rf_trainer_close(t);
  return hash;
}

/* All the time of a thread in a step is work, a phase, or a gap with one cause. */
static void every_ns_has_a_cause(const rf_trace *trace) {
  for (int s = 0; s < trace->steps; s++) {
    const rf_traced_step *step = &trace->step[s];
    double all = 1e-9 * (double)(step->end - step->begin) * trace->threads, sum = step->work + step->phases;
    assert_true(step->whole);
    for (int g = 0; g < RF_GAPS; g++) {
      assert_true(step->gaps[0][g] >= 0 && step->gaps[1][g] >= 0);
      sum += step->gaps[0][g] + step->gaps[1][g];
    }
    if (sum < all * (1 - 1e-9) || sum > all * (1 + 1e-9))
      fail_msg("step %d: %.9f thread-seconds of %.9f have a cause", s, sum, all);
    assert_true(step->work >= 0);
    const rf_traced_after *after = &step->after;
    double behind = 1e-9 * (double)(after->end - step->end) * trace->threads;
    sum = after->work + after->phases;
    for (int g = 0; g < RF_GAPS; g++) sum += after->gaps[0][g] + after->gaps[1][g];
    assert_true(behind > 0 && sum > behind * (1 - 1e-9) && sum < behind * (1 + 1e-9));
  }
}

/* On each lane, a span follows the one before or is inside it, and spans are in order. */
static void spans_nest(const rf_trace *trace) {
  int64_t open[16], depth = 0;
  for (int64_t i = 0; i < trace->count; i++) {
    const rf_stamp *s = &trace->span[i];
    assert_true(s->end >= s->begin && s->begin >= 0);
    if (i && s->lane == s[-1].lane) assert_true(s->begin >= s[-1].begin);
    else depth = 0;
    if (s->kind == RF_SPAN_COUNTER || s->kind == RF_SPAN_LOST || s->kind == RF_SPAN_PREDICTED)
      continue; /* Counters are instants; counts and plans may have any length. */
    while (depth && open[depth - 1] <= s->begin) depth--;
    if (depth && s->end > open[depth - 1])
      fail_msg("span %lld (kind %d, lane %d) reaches over the end of what holds it", (long long)i, s->kind,
               s->lane);
    assert_true(depth < 16);
    open[depth++] = s->end;
  }
}

static void counts_what_was_computed(const rf_trace *trace, const rf_plan *plan) {
  int64_t ops = 0, predicted = 0, phases[RF_PHASES] = {0}, live = 0;
  for (int64_t i = 0; i < trace->count; i++) {
    const rf_stamp *s = &trace->span[i];
    ops += s->kind == RF_SPAN_OP;
    predicted += s->kind == RF_SPAN_PREDICTED;
    if (s->kind == RF_SPAN_PHASE) phases[s->id]++;
    if (s->kind == RF_SPAN_COUNTER && s->id == RF_COUNTER_LIVE && s->value > (double)live)
      live = (int64_t)s->value;
  }
  int64_t expected = 0;
  for (int i = 0; i < plan->graph->op_count; i++) expected += plan->op[i].calls;
  assert_int_equal(ops, expected * trace->steps);
  assert_int_equal(predicted, ops);
  int64_t next = 0;
  /* One span per op, from the op's start, with the planned length. */
  for (int64_t i = 0; i < trace->count; i++) {
    const rf_stamp *s = &trace->span[i];
    if (s->kind != RF_SPAN_PREDICTED) continue;
    while (trace->span[next].kind != RF_SPAN_OP) next++;
    assert_int_equal(s->id, trace->span[next].id);
    assert_int_equal(s->begin, trace->span[next++].begin);
    assert_int_equal(s->end - s->begin, (int64_t)(plan->op[s->id].seconds * 1e9));
  }
  assert_in_range(live, 1, plan->arena_bytes);
  for (int p = RF_PHASE_DATA; p <= RF_PHASE_OPTIMIZER; p++)
    if (!phases[p]) fail_msg("no phase %s", rf_phase_name((rf_phase)p));
}

/* Ops of the first microbatch add to no gradient of an earlier microbatch. In later microbatches,
 * exactly the ops that write a gradient do. */
static void accumulates_what_adds(const rf_trace *trace, const rf_plan *plan) {
  for (int64_t i = 0; i < trace->count; i++) {
    const rf_stamp *op = &trace->span[i];
    bool gradient = false, adds = false, within = false;
    if (op->kind != RF_SPAN_OP) continue;
    for (int k = 0; k < plan->graph->op[op->id].output_count; k++) {
      int out = plan->graph->op[op->id].output[k];
      if (out == RF_NONE || plan->graph->tensor[out].class != RF_CLASS_GRADIENT) continue;
      gradient = plan->graph->op[op->id].section == RF_SECTION_MICRO;
      adds |= plan->graph->op[op->id].attr.accumulate[k] == RF_ACCUMULATE_ADD;
    }
    for (int64_t p = 0; p < trace->count; p++) {
      const rf_stamp *phase = &trace->span[p];
      within |= phase->kind == RF_SPAN_PHASE && phase->id == RF_PHASE_ACCUMULATE &&
                phase->begin <= op->begin && phase->end >= op->end;
    }
    assert_true(within == (adds || (gradient && op->value > 0)));
  }
}

static void test_a_traced_run(void **state) {
  (void)state;
  rf_trainer *t;
  uint64_t plain = train(NULL);
  rf_record *record = open_record("steps=2..4:2");
  assert_true(train(&t) == plain);
  rf_record_pause();
  assert_null(rf_lanes_on);
  rf_trace *trace = collect(record, t);
  assert_int_equal(trace->steps, 2);
  assert_int_equal(trace->step[0].step, 2);
  assert_int_equal(trace->step[1].step, 4);
  assert_int_equal(trace->dropped, 0);
  every_ns_has_a_cause(trace);
  spans_nest(trace);
  counts_what_was_computed(trace, t->plan);
  accumulates_what_adds(trace, t->plan);
  int64_t *live = calloc(2 * (size_t)t->plan->graph->op_count, sizeof *live),
          *end = live + t->plan->graph->op_count, most = 0;
  rf_plan_live(t->plan, live, end);
  for (int i = 0; i < t->plan->graph->op_count; i++) most = end[i] > most ? end[i] : most;
  assert_int_equal(most, t->plan->arena_bytes);
  free(live);
  rf_error error = {0};
  if (rf_trace_write(trace, NULL, folder, NULL, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_trace_free(trace);
  rf_record_close(record);
  rf_trainer_close(t);
}

static void test_a_full_ring_says_so(void **state) {
  (void)state;
  rf_record *record = open_record("all");
  int64_t capacity = rf_record_lanes->lane[0].capacity;
  rf_trace *trace = NULL;
  rf_error error = {0};
  for (int step = 1; step < 3; step++) {
    rf_record_step(step);
    for (int64_t i = 0; i < (step == 1 ? 150 : capacity - 50); i++) rf_count(RF_COUNTER_QUEUE, (double)i);
    rf_record_step_end(0);
  }
  if (rf_trace_collect(record, NULL, NULL, 0, &trace, &error) != RAFTER_OK) fail_msg("%s", error.message);
  /* Also the phases between steps and the system's counts. */
  assert_in_range(trace->dropped, 100, 120);
  assert_int_equal(trace->steps, 2);
  assert_false(trace->step[0].whole);
  assert_true(trace->step[1].whole);
  rf_trace_free(trace);
  rf_record *second = NULL;
  rf_trace_when when = {1, 1, 1};
  assert_int_equal(rf_record_open(&when, THREADS, &second, &error), RAFTER_FAILED);
  rf_record_close(record);
}

static void test_steps_are_parsed(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "steps",
                                    "steps=",
                                    "steps=5..4",
                                    "steps=1..2:0",
                                    "steps=-1..2",
                                    "steps=1..2x",
                                    "steps=1..2:3:4",
                                    "ALL",
                                    "steps=..",
                                    "10..12"};
  rf_trace_when when;
  rf_error error;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (rf_trace_when_parse(bad[i], &when, &error) == RAFTER_OK) fail_msg("took \"%s\"", bad[i]);
  assert_int_equal(rf_trace_when_parse("steps=10..20:5", &when, &error), RAFTER_OK);
  for (int64_t step = 0; step < 30; step++)
    assert_int_equal(rf_trace_wants(&when, step), step == 10 || step == 15 || step == 20);
  assert_int_equal(rf_trace_when_parse("steps=7", &when, &error), RAFTER_OK);
  assert_true(rf_trace_wants(&when, 7) && !rf_trace_wants(&when, 8) && !rf_trace_wants(&when, 6));
}

/* ---- the file -------------------------------------------------------------------------------- */

static rf_status parse(const char *text, size_t bytes, rf_error *error) {
  rf_trace_file file;
  char *copy = malloc(bytes + 1);
  memcpy(copy, text, bytes);
  copy[bytes] = 0;
  rf_status status = rf_trace_file_parse("trace.bin", copy, bytes, &file, error);
  if (status == RAFTER_OK) rf_trace_file_free(&file);
  return status;
}

static void test_the_file_is_not_believed(void **state) {
  (void)state;
  size_t bytes, header;
  rf_error error = {0};
  char *text;
  if (rf_file_read(at("trace.bin"), 1 << 28, &text, &bytes, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  header = (size_t)((char *)memchr(text, '\n', bytes) - text) + 1;
  assert_int_equal(header % 8, 0);
  assert_int_equal(parse(text, bytes, &error), RAFTER_OK);
  /* Truncated at any byte. */
  for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 200)
    assert_int_equal(parse(text, cut, &error), RAFTER_FAILED);
  /* Any changed byte of the header is refused or read as its new meaning, without any further
   * error. */
  for (size_t i = 0; i < header; i += 1 + header / 400) {
    char was = text[i];
    text[i] = (char)(was ^ 0x11);
    rf_status status = parse(text, bytes, &error);
    assert_true(status == RAFTER_OK || status == RAFTER_FAILED || status == RAFTER_INVALID);
    text[i] = was;
  }
  /* One value of each column is out of range. */
  rf_trace_file file;
  if (rf_trace_file_read(at("trace.bin"), &file, &error) != RAFTER_OK) fail_msg("%s", error.message);
  size_t n = (size_t)file.count, middle = n / 2;
  const struct {
    size_t at, bytes;
    const char *what;
  } columns[] = {{0, 8, "begin"},   {8 * n, 8, "end"},   {16 * n, 8, "value"},
                 {24 * n, 4, "id"}, {28 * n, 2, "lane"}, {30 * n, 1, "kind"}};
  for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
    char was[8], *there = text + header + columns[c].at + middle * columns[c].bytes;
    memcpy(was, there, columns[c].bytes);
    memset(there, 0xff, columns[c].bytes);
    assert_int_equal(parse(text, bytes, &error), RAFTER_FAILED);
    if (!strstr(error.message, columns[c].what)) fail_msg("%s: %s", columns[c].what, error.message);
    memcpy(there, was, columns[c].bytes);
  }
  assert_int_equal(parse(text, bytes, &error), RAFTER_OK);
  rf_trace_file_free(&file);
  free(text);
}

int main(void) {
  set_machine();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_traced_run),
      cmocka_unit_test(test_a_full_ring_says_so),
      cmocka_unit_test(test_steps_are_parsed),
      cmocka_unit_test(test_the_file_is_not_believed),
  };
  return cmocka_run_group_tests_name("trace", tests, make_folder, remove_folder);
}
