/* Rows of a pass for prompts: within the predicted time, and answers stay the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "generate/budget.h"
#include "generate/generate.h"

enum { SLOTS = 3, CHUNK = 128, CONTEXT = 600, PROMPT = 500, TOKENS = 40 };
static const char MODEL[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=600,init=flax";

static rf_machine machine;
static rf_error error;

static rf_infer_settings settings(double growth) {
  rf_infer_settings s = {.seed = 6, .step_growth = growth};
  if (rf_model_resolve(MODEL, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .softmax = RF_F32,
                                       .microbatch = SLOTS,
                                       .seq = CONTEXT,
                                       .chunk = CHUNK},
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = 1,
                             .machine = &machine};
  return s;
}

static void test_rows(void **state) {
  const rf_infer_settings s = settings(0);
  rf_plan *prefill, *decode;
  rf_budget *budget;
  (void)state;
  assert_int_equal(rf_generate_plans(&s, &prefill, &decode, &error), RAFTER_OK);
  const rf_extent answer = {1, 300};
  double alone = rf_plan_pass_seconds(decode, &answer, 1);
  int64_t before = 0;
  for (double over = 0; over < 1e4; over = fmax(1.2 * over, 1e-4)) {
    const double growth = 1 + over;
    assert_int_equal(rf_budget_open(prefill, decode, growth, SLOTS, &budget, &error), RAFTER_OK);
    assert_int_equal(rf_budget_rows(budget, CHUNK, 0), CHUNK); /* no answer waits */
    rf_budget_begin(budget);
    rf_budget_add(budget, 300);
    int64_t rows = rf_budget_rows(budget, CHUNK - 1, 64);
    assert_true(rows >= RF_BUDGET_ROWS && rows < CHUNK && rows >= before);
    const rf_extent part[] = {answer, {rows, 64 + rows}};
    double seconds = rf_plan_pass_seconds(prefill, part, 2);
    assert_true(rows == RF_BUDGET_ROWS || seconds <= growth * alone * (1 + 1e-9));
    const int64_t more = rows + RF_BUDGET_ROWS; /* one unit more would take too long */
    const rf_extent longer[] = {answer, {more, 64 + more}};
    assert_true(more >= CHUNK - 1 || rf_plan_pass_seconds(prefill, longer, 2) > growth * alone * (1 - 1e-9));
    assert_int_equal(rf_budget_rows(budget, 5, 64), 5);
    before = rows;
    rf_budget_close(budget);
  }
  assert_int_equal(before, CHUNK - 1);
  rf_plan_free(prefill);
  rf_plan_free(decode);
}

/* Passes are measured whose prompts take `factor` times the predicted seconds. Returns the rows of
 * the next pass. */
static int64_t rows_after(rf_budget *budget, const rf_plan *prefill, double alone, double factor) {
  for (int i = 0; i < 4000; i++) {
    rf_budget_begin(budget);
    rf_budget_add(budget, 300);
    const int64_t rows = i % 2 ? rf_budget_rows(budget, CHUNK - 1, 64) : 0;
    const rf_extent part[] = {{1, 300}, {rows, 64 + rows}};
    const double more = rows ? rf_plan_pass_seconds(prefill, part, 2) - alone : 0;
    const rf_budget_pass pass = rf_budget_expect(budget, rows);
    if (i % 3) { /* a pass that runs ahead is measured after the next one has begun */
      rf_budget_begin(budget);
      rf_budget_add(budget, 7);
      rf_budget_add(budget, 7);
    }
    rf_budget_measured(budget, &pass, alone + factor * more);
  }
  rf_budget_begin(budget);
  rf_budget_add(budget, 300);
  return rf_budget_rows(budget, CHUNK - 1, 64);
}

/* A budget follows the machine: if prompts take less time than planned, passes read more of them,
 * and otherwise fewer. */
static void test_measured(void **state) {
  const rf_infer_settings s = settings(0);
  rf_plan *prefill, *decode;
  rf_budget *budget;
  const rf_extent answer = {1, 300};
  double growth = 1;
  int64_t rows = 0;
  (void)state;
  assert_int_equal(rf_generate_plans(&s, &prefill, &decode, &error), RAFTER_OK);
  const double alone = rf_plan_pass_seconds(decode, &answer, 1);
  for (; rows <= 2 * RF_BUDGET_ROWS; growth *= 1.02) {
    assert_int_equal(rf_budget_open(prefill, decode, growth, SLOTS, &budget, &error), RAFTER_OK);
    rf_budget_begin(budget);
    rf_budget_add(budget, 300);
    rows = rf_budget_rows(budget, CHUNK - 1, 64);
    if (rows <= 2 * RF_BUDGET_ROWS) rf_budget_close(budget);
  }
  assert_int_equal(rows_after(budget, prefill, alone, 1), rows);
  assert_true(rows_after(budget, prefill, alone, 100) <= 2 * RF_BUDGET_ROWS);
  assert_true(rows_after(budget, prefill, alone, 0.9) >= rows);
  assert_int_equal(rows_after(budget, prefill, alone, 0.01), CHUNK - 1);
  rf_budget_close(budget);
  rf_plan_free(prefill);
  rf_plan_free(decode);
}

/* An answer runs, and a long prompt comes. Returns the most tokens of a prompt in one pass with the
 * answer. */
static int64_t run(double growth, int32_t answers[2][TOKENS]) {
  const rf_infer_settings s = settings(growth);
  rf_generator *g;
  int32_t tokens[PROMPT];
  int64_t most = 0, rows = 0;
  for (int i = 0; i < PROMPT; i++) tokens[i] = (i * 37 + i / 9) % 203;
  assert_int_equal(rf_generator_open(&s, &g, &error), RAFTER_OK);
  const rf_request first = {.tokens = tokens, .count = 4, .max_tokens = TOKENS, .owner = answers[0]},
                   second = {
                       .tokens = tokens + 1, .count = PROMPT - 1, .max_tokens = TOKENS, .owner = answers[1]};
  assert_int_equal(rf_generator_submit(g, &first, NULL, &error), RAFTER_OK);
  for (int step = 0; rf_generator_busy(g); step++) {
    const rf_event *event;
    int events;
    if (step == 2) assert_int_equal(rf_generator_submit(g, &second, NULL, &error), RAFTER_OK);
    if (rf_generator_step(g, &event, &events, &error) != RAFTER_OK) fail_msg("%s", error.message);
    int64_t all = rf_generator_counts(g).rows;
    if (step > 1 && events == 1 && event->owner == answers[0] && all - rows - 1 > most) most = all - rows - 1;
    rows = all;
    for (int i = 0; i < events; i++) ((int32_t *)event[i].owner)[event[i].index] = event[i].token;
  }
  rf_generator_close(g);
  return most;
}

static void test_answers(void **state) {
  int32_t plain[2][TOKENS], paced[2][TOKENS];
  (void)state;
  int64_t all = run(0, plain), few = run(1, paced);
  assert_int_equal(all, CHUNK - 1);
  assert_int_equal(few, RF_BUDGET_ROWS);
  assert_memory_equal(plain, paced, sizeof plain);
}

static int find_machine(void **state) {
  (void)state;
  return rf_machine_find("a5000", &machine, NULL) == RAFTER_OK ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_measured),
                                     cmocka_unit_test(test_answers)};
  return cmocka_run_group_tests(tests, find_machine, NULL);
}
