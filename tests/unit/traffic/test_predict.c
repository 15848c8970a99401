/* test_predict.c - a prediction is the planner's simulation of the same requests: equal tokens and
 * times, and a critical rate that the plan sustains while a rate 30 % above is too high. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generate/simulate.h"
#include "traffic/predict.h"

enum { COUNT = 200 };
static const rf_traffic_percentiles USUAL = {.p = {50, 99}, .count = 2};
static const rf_traffic_slo NONE = {.given = false};

/* The settings of a plan, without the options of a command. */
static rf_traffic_plan *plan_of(void) {
  rf_traffic_plan *plan = calloc(1, sizeof *plan);
  rf_error error = {0};
  assert_non_null(plan);
  rf_settings *s = &plan->settings;
  if (rf_model_resolve("gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=96,init=flax", &s->model, NULL,
                       &error) != RAFTER_OK ||
      rf_machine_find("a5000", &s->machine, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  s->plan = (rf_plan_options){
      .build = {.job = RF_JOB_GENERATE, .softmax = RF_F32, .microbatch = 4, .seq = 96, .chunk = 16},
      .backend = &RF_BACKEND_CPU,
      .isa = rf_isa_detect(),
      .threads = 1,
      .machine = &s->machine};
  return plan;
}

static void draw(rf_arrival *list, double rate) {
  rf_arrivals_poisson((rf_arrival){.prompt = 32, .answer = 8, .samples = 1}, rate, 5, list, COUNT);
}

static void it_is_the_planners_simulation(void **state) {
  (void)state;
  rf_traffic_plan *plan = plan_of();
  rf_arrival list[COUNT];
  rf_traffic_stats stats;
  rf_serve_stats served;
  rf_error error = {0};
  const rf_traffic_shape shape = {.list = list, .count = COUNT};
  double fastest = 0;
  for (double rate = 1; rate < 1e7; rate *= 100) {
    rf_infer_settings g = {.model = plan->settings.model, .plan = plan->settings.plan};
    g.plan.build.seq = 40; /* the longest request */
    draw(list, rate);
    if (rf_traffic_predict(plan, &shape, &USUAL, &NONE, &stats, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
    assert_int_equal(rf_simulate(&g, list, COUNT, NULL, NULL, &served, &error), RAFTER_OK);
    assert_int_equal(stats.completed, COUNT);
    assert_int_equal(stats.output_tokens, served.counts.tokens);
    assert_int_equal(stats.saturated, served.saturated);
    /* the simulation counts from the first arrival */
    assert_true(fabs(stats.seconds - served.seconds - list[0].at) < 1e-9 * stats.seconds);
    /* interpolation is at most one value of 200 above the nearest rank */
    const rf_traffic_metric *first = &stats.metric[RF_TRAFFIC_TTFT];
    assert_true(first->median >= served.ttft[RF_P50] * (1 - 1e-9) && first->median <= served.ttft[RF_P95] &&
                first->p99 >= served.ttft[RF_P99] * (1 - 1e-9) && first->p[1] == first->p99);
    assert_int_equal(stats.metric[RF_TRAFFIC_TPOT].count, COUNT);
    assert_int_equal(stats.metric[RF_TRAFFIC_ITL].count, 0);
    assert_true(stats.batch <= 4 + 1e-9 && fabs(stats.running - stats.batch - stats.queue) < 1e-9);
    fastest = fmax(fastest, (double)stats.completed / stats.seconds);
  }
  assert_true(fastest > 1);
  free(plan);
}

static void the_critical_rate_is_bracketed(void **state) {
  (void)state;
  rf_traffic_plan *plan = plan_of();
  rf_arrival list[COUNT];
  const rf_traffic_shape shape = {.list = list, .count = COUNT};
  rf_traffic_stats stats;
  rf_error error = {0};
  double critical = 0, again = 0;
  draw(list, 1);
  if (rf_traffic_plan_critical(plan, &shape, 5, 0, 0, &critical, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_true(critical > 0);
  assert_int_equal(rf_traffic_plan_critical(plan, &shape, 5, 0, 1e9, &again, &error), RAFTER_OK);
  assert_true(again / critical < 1.1025 && critical / again < 1.1025);
  draw(list, critical);
  assert_int_equal(rf_traffic_predict(plan, &shape, &USUAL, &NONE, &stats, &error), RAFTER_OK);
  assert_false(stats.saturated);
  draw(list, 1.3 * critical);
  assert_int_equal(rf_traffic_predict(plan, &shape, &USUAL, &NONE, &stats, &error), RAFTER_OK);
  assert_true(stats.saturated);
  free(plan);
}

/* A closed loop has never more requests than clients, and more clients give more tokens. */
static void a_closed_loop_is_predicted(void **state) {
  (void)state;
  rf_traffic_plan *plan = plan_of();
  rf_arrival list[COUNT];
  rf_traffic_stats one, four;
  rf_error error = {0};
  rf_traffic_shape shape = {.list = list, .count = COUNT, .closed = true, .clients = 1};
  draw(list, 0);
  assert_int_equal(rf_traffic_predict(plan, &shape, &USUAL, &NONE, &one, &error), RAFTER_OK);
  shape.clients = 4;
  assert_int_equal(rf_traffic_predict(plan, &shape, &USUAL, &NONE, &four, &error), RAFTER_OK);
  assert_true(one.running <= 1 + 1e-9 && four.running <= 4 + 1e-9 && four.running > 1);
  assert_true(four.seconds < one.seconds && !one.saturated && !four.saturated);
  assert_true(one.late == 0 && four.late == 0);
  free(plan);
}

/* The numbers of tokens that were measured replace those that were asked for. */
static void shapes_of_measurements(void **state) {
  (void)state;
  rf_arrival list[4];
  rf_traffic_shape shape = {.list = list};
  const rf_traffic_record record[] = {
      {.state = RF_TRAFFIC_COMPLETED,
       .from = 1,
       .sent = 1,
       .input_tokens = 11,
       .output_tokens = 3,
       .asked_input = 10,
       .asked_output = 8},
      {.state = RF_TRAFFIC_FAILED,
       .from = 2,
       .sent = 2,
       .input_tokens = -1,
       .output_tokens = -1,
       .asked_input = 10,
       .asked_output = 8},
      {.state = RF_TRAFFIC_COMPLETED,
       .from = 3,
       .sent = 3,
       .first = 4,
       .gaps = 4,
       .input_tokens = -1,
       .output_tokens = -1,
       .asked_input = 10,
       .asked_output = 8},
      {.state = RF_TRAFFIC_UNSENT, .from = 4, .sent = -1, .asked_input = 10, .asked_output = 8}};
  rf_traffic_shape_measured(record, 4, &shape);
  assert_int_equal(shape.count, 3);
  assert_true(list[0].at == 1 && list[0].prompt == 11 && list[0].answer == 3);
  assert_true(list[1].at == 2 && list[1].prompt == 10 && list[1].answer == 8);
  assert_true(list[2].at == 3 && list[2].prompt == 10 && list[2].answer == 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_is_the_planners_simulation),
      cmocka_unit_test(the_critical_rate_is_bracketed),
      cmocka_unit_test(a_closed_loop_is_predicted),
      cmocka_unit_test(shapes_of_measurements),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
