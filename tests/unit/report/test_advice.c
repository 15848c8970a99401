/* test_advice.c - tests advice: the gain of a change at the run's own efficiency, and changes
 * that are not advised. */
#include "unit/report/planted.h"

/* A change does not remove the cost of interference: only the time of the fastest calls is priced
 * again. */
static void interference_is_not_priced(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 2, 1.0, 1e6), *op;
  size_t i;
  json_array_foreach (
      json_object_get(json_array_get(json_object_get(json_object_get(entry, "measured"), "walks"), 0), "ops"),
      i, op)
    json_object_set_new(op, "least_seconds", json_real(at(op, "seconds") / 2));
  json_object_set_new(entry, "advice",
                      json_pack("[{ss sf sI sb sb s{s{sf s{sf sf sf}}}}]", "change", "half", "seconds", 0.4,
                                "peak_bytes", (json_int_t)1000000, "fits", 1, "approximate", 0, "plans",
                                "train", "seconds", 0.4, "kinds", "matmul", 0.3, "norm", 0.05, "optimizer",
                                0.05));
  json_t *summary = rf_report_summary(entry);
  /* 0.9 s in ops: half of it is interference, and half of the rest is gone. */
  near(at(json_object_get(summary, "best"), "seconds"), 0.45 + 0.225 + (1.0 - 0.9));
  json_decref(summary);
  json_decref(entry);
}

/* Advice is priced at the run's own efficiency. matmul took 7/6 of its prediction here, so a plan
 * with half of it saves 7/6 of that half. */
static void advice_is_priced_at_measured_efficiency(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 3, 1.0, 1e6);
  json_t *rows = json_pack(
      "[{ss sf sI sb sb s{s{sf s{sf sf sf}}}}{ss sf sI sb sb s{s{sf s{sf sf sf}}}}{ss sf sI sb sb s{s{sf "
      "s{sf sf sf}}}}]",
      "change", "half", "seconds", 0.5, "peak_bytes", (json_int_t)900000, "fits", 1, "approximate", 0,
      "plans", "train", "seconds", 0.5, "kinds", "matmul", 0.3, "norm", 0.1, "optimizer", 0.1, "change",
      "none", "seconds", 0.1, "peak_bytes", (json_int_t)1, "fits", 0, "approximate", 0, "plans", "train",
      "seconds", 0.1, "kinds", "matmul", 0.05, "norm", 0.0, "optimizer", 0.05, "change", "slower", "seconds",
      0.9, "peak_bytes", (json_int_t)500000, "fits", 1, "approximate", 0, "plans", "train", "seconds", 0.9,
      "kinds", "matmul", 0.6, "norm", 0.2, "optimizer", 0.1);
  assert_non_null(rows);
  json_object_set_new(entry, "advice", rows);
  json_t *summary = rf_report_summary(entry);
  const json_t *best = json_object_get(summary, "best");
  assert_string_equal(text(best, "change"), "half"); /* the fastest does not fit */
  near(at(best, "seconds"), 0.35 + 0.1 + 0.1 + (1.0 - 0.9));
  near(at(best, "now_seconds"), 1.0);
  near(at(best, "more_bytes"), -100000);
  assert_non_null(strstr(text(summary, "sentence"), "best single change is half: 650 ms instead of 1 s"));
  assert_string_equal(text(json_array_get(json_object_get(summary, "advice"), 2), "change"), "slower");
  assert_true(at(json_array_get(json_object_get(summary, "advice"), 2), "gain") < 0);
  json_array_remove(rows, 0);
  json_decref(summary);
  summary = rf_report_summary(entry);
  assert_null(json_object_get(summary, "best"));
  assert_non_null(
      strstr(text(summary, "sentence"), "No single change of the 2 priced gains more than 2 % and fits."));
  json_decref(summary);

  /* The run's own advice is quick and says which command makes more. */
  json_incref(rows);
  json_object_del(entry, "advice");
  json_object_set_new(json_object_get(entry, "measured"), "advice", rows);
  summary = rf_report_summary(entry);
  assert_non_null(strstr(text(summary, "sentence"), "`rafter report` prices more changes"));
  json_decref(summary);
  json_decref(entry);
}

/* More threads are the best advice, unless the threads have no cores. */
static void threads_are_no_advice_where_cores_lack(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 2, 1.0, 1e6);
  json_object_set_new(entry, "advice",
                      json_pack("[{ss sf sI sb sb s{s{sf s{sf}}}}]", "change", "threads=8", "seconds", 0.1,
                                "peak_bytes", (json_int_t)1000000, "fits", 1, "approximate", 0, "plans",
                                "train", "seconds", 0.1, "kinds", "matmul", 0.1));
  for (int crowded = 0; crowded < 2; crowded++) {
    json_object_set_new(
        json_object_get(entry, "measured"), "others",
        json_pack("{sf sf si}", "seconds", 2.0, "delayed_seconds", crowded ? 3.0 : 0.0, "threads", 2));
    json_t *summary = rf_report_summary(entry);
    assert_string_equal(text(json_object_get(summary, "best"), "change"), crowded ? "" : "threads=8");
    assert_true((strstr(text(summary, "sentence"), "more threads excluded") != NULL) == (crowded > 0));
    json_decref(summary);
  }
  json_decref(entry);
}

/* In a plan for generation, the pass is called "decode". Changes are priced under this name, also
 * before the run. */
static void advice_finds_the_pass_of_a_plan_alone(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 0, 0, 1e6), *plan = json_object_get(entry, "plan");
  json_object_set_new(plan, "job", json_string("generate"));
  json_object_set_new(plan, "name", json_string("decode"));
  json_object_set_new(entry, "advice",
                      json_pack("[{ss sf sI sb sb s{s{sf s{sf}}}}]", "change", "weights=int8", "seconds", 0.3,
                                "peak_bytes", (json_int_t)1000, "fits", 1, "approximate", 1, "plans",
                                "decode", "seconds", 0.3, "kinds", "matmul", 0.3));
  json_t *summary = rf_report_summary(entry);
  assert_string_equal(text(json_array_get(json_object_get(summary, "walks"), 0), "walk"), "decode");
  near(at(json_object_get(summary, "best"), "seconds"), 0.3);
  json_decref(summary);
  json_decref(entry);
}

/* If the machine was calibrated again after the run, a change is priced with the present prices of
 * both plans, and the summary says so. */
static void a_new_calibration_is_no_gain(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 3, 1.0, 1e6), *other = entry_of("b", OPS, COUNT, 0, 0, 1e6);
  const char *kinds =
      /* prices of the change; today's prices of the run's own plan */
      "{\"matmul\": 0.9, \"norm\": 0.2, \"optimizer\": 0.3}";
  for (int now = 0; now < 2; now++) {
    json_t *row = json_pack("{ss sf sI sb sb}", "change", "remat=mlp", "seconds", 1.4, "peak_bytes",
                            (json_int_t)1000, "fits", 1, "approximate", 0);
    const char *keys[] = {"plans", "now"};
    for (int k = 0; k <= now; k++)
      json_object_set_new(
          row, keys[k],
          json_pack("{s{sf so}}", "train", "seconds", 1.4, "kinds", json_loads(kinds, 0, NULL)));
    json_object_set_new(entry, "advice", json_pack("[o]", row));
    if (now) json_object_set_new(entry, "replanned_seconds", json_real(1.4));
    json_t *summary = rf_report_summary(entry);
    double gain = at(json_array_get(json_object_get(summary, "advice"), 0), "gain");
    assert_true(now ? fabs(gain) < 1e-12 : gain < -0.3);
    char *notes = json_dumps(json_object_get(summary, "notes"), 0);
    assert_int_equal(
        strstr(notes,
               "calibrated again after this run: the same plan is now predicted to take 1.40 s, not 1 s") !=
            NULL,
        now);
    free(notes);
    json_decref(summary);
  }
  json_object_set_new(other, "of", json_string("a"));
  json_t *c = rf_report_compare(entry, other);
  assert_non_null(
      strstr(text(c, "doubt"), "calibrated again after a ran: its plan is now predicted to take 1.40 s"));
  json_decref(c);
  json_decref(entry);
  json_decref(other);
}

/* If other programs slowed a generation down, the single disturbed prefill pass is corrected by the
 * ratio of decode's fastest calls to the plan. */
static void a_prefill_held_up_is_paced(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 10, 8.0, 1e6), *plan = json_object_get(entry, "plan"),
         *measured = json_object_get(entry, "measured");
  json_t *passes = json_object_get(measured, "walks"), *decode = json_array_get(passes, 0), *prefill, *op;
  size_t i;
  /* full: 100 passes */
  json_object_set_new(decode, "walk", json_string("decode"));
  json_object_set_new(decode, "tokens", json_real(1000));
  json_object_set_new(plan, "name", json_string("decode"));
  json_object_set_new(plan, "job", json_string("generate"));
  json_object_set_new(plan, "plans",
                      json_pack("[{sssO}]", "name", "prefill", "ops", json_object_get(plan, "ops")));
  prefill = json_deep_copy(decode);
  json_array_foreach (json_object_get(decode, "ops"), i, op)
    json_object_set_new(op, "seconds", json_real(8 * at(op, "seconds")));
  json_object_set_new(prefill, "walk", json_string("prefill"));
  json_object_set_new(prefill, "count", json_real(1));
  json_object_set_new(prefill, "seconds", json_real(50));
  json_array_foreach (json_object_get(prefill, "ops"), i, op) {
    json_object_set_new(op, "calls", json_real(at(op, "calls") / 10));
    json_object_set_new(op, "seconds", json_real(50 * at(op, "seconds")));
  }
  json_array_append_new(passes, prefill);
  json_object_set_new(measured, "others",
                      json_pack("{sf sf si}", "seconds", 130.0, "delayed_seconds", 200.0, "threads", 2));
  const char *half = "{\"matmul\": 0.3, \"norm\": 0.05, \"optimizer\": 0.05}"; /* half of 0.6, 0.1, 0.1 */
  json_object_set_new(entry, "advice",
                      json_pack("[{ss sf sI sb sb s{s{so} s{so}}}]", "change", "weights=q4", "seconds", 0.4,
                                "peak_bytes", (json_int_t)1000, "fits", 1, "approximate", 1, "plans",
                                "decode", "kinds", json_loads(half, 0, NULL), "prefill", "kinds",
                                json_loads(half, 0, NULL)));
  json_t *summary = rf_report_summary(entry);
  const json_t *row = json_array_get(json_object_get(summary, "advice"), 0);
  assert_non_null(strstr(text(summary, "sentence"), "Without other programs it would take about 900 ms"));
  /* ten decode passes, and a prefill of 0.8 s as planned */
  near(at(row, "now_seconds"), 10 * 0.9 + 0.9 / 0.8 * 0.8);
  near(at(row, "gain"), 0.5);
  json_decref(summary);
  json_decref(entry);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(interference_is_not_priced),
      cmocka_unit_test(advice_is_priced_at_measured_efficiency),
      cmocka_unit_test(threads_are_no_advice_where_cores_lack),
      cmocka_unit_test(advice_finds_the_pass_of_a_plan_alone),
      cmocka_unit_test(a_prefill_held_up_is_paced),
      cmocka_unit_test(a_new_calibration_is_no_gain),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
