/* test_compare.c - tests comparisons of two runs or plans with planted numbers. */
#include "unit/report/planted.h"

static void differences_stand_in_order(void **state) {
  (void)state;
  planted other[COUNT + 1];
  memcpy(other, OPS, sizeof OPS);
  /* one op has another name there */
  other[1].measured = 0.75;
  other[2].bytes = 700;
  other[3].name = "w/adam";
  other[COUNT] = (planted){"block.1/mm/fwd", "matmul", "forward", "compute", 2, 0.1, 0.08, 0.01, 10, 2};
  json_t *a = entry_of("a", OPS, COUNT, 3, 1.0, 1e6), *b = entry_of("b", other, COUNT + 1, 5, 2.0, 3e6),
         *c = rf_report_compare(a, b);
  const json_t *ops = json_object_get(c, "ops");
  assert_string_equal(text(json_array_get(ops, 0), "name"), "block.0/mm/bwd");
  near(at(json_array_get(ops, 0), "seconds"), 1.0);
  near(at(json_array_get(ops, 0), "a_seconds"), 0.5);
  near(at(named(ops, "w/adamw"), "seconds"), -0.1);
  near(at(named(ops, "w/adam"), "seconds"), 0.1);
  assert_null(json_object_get(named(ops, "w/adam"), "a_seconds"));
  near(at(named(ops, "block.0/norm"), "bytes"), 400);
  assert_int_equal(json_array_size(ops), 5); /* block.0/mm/fwd is the same in both */
  near(at(named(json_object_get(c, "kinds"), "block.*/mm/fwd"), "b_seconds"), 0.22);
  near(at(json_object_get(c, "b"), "peak_bytes"), 3e6);
  assert_non_null(strstr(text(c, "sentence"), "2.00 x slower"));
  json_decref(c);
  c = rf_report_compare(a, a);
  assert_int_equal(
      json_array_size(json_object_get(c, "ops")) + json_array_size(json_object_get(c, "options")), 0);
  json_decref(c);
  json_decref(a);
  json_decref(b);
}

/* Noise is not a saving: two runs of one plan, or medians that differ by less than the spread of
 * the steps. A much larger difference is reported. */
static void noise_is_no_saving(void **state) {
  (void)state;
  static const struct {
    double b;
    const char *digest, *machine, *says, *silent;
  } cases[] = {{1.05, "other", "here", "median steps take", "same plan"},
               {2, "other", "here", "2.00 x slower", "median steps take"},
               {2, "one", "here", "same plan", "median steps take"},
               /* a digest does not include the machine */
               {2, "one", "there", "2.00 x slower", "same plan"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *a = entry_of("a", OPS, COUNT, 100, 1.0, 1e6),
           *b = entry_of("b", OPS, COUNT, 100, cases[i].b, 1e6);
    json_object_set_new(a, "metrics", steps_of(1, 100, 0));
    json_object_set_new(b, "metrics", steps_of(cases[i].b, 100, 0));
    json_object_set_new(json_object_get(a, "plan"), "digest", json_string("one"));
    json_object_set_new(json_object_get(b, "plan"), "digest", json_string(cases[i].digest));
    json_object_set_new(json_object_get(json_object_get(a, "plan"), "machine"), "name", json_string("here"));
    json_object_set_new(json_object_get(json_object_get(b, "plan"), "machine"), "name",
                        json_string(cases[i].machine));
    json_object_set_new(json_object_get(b, "measured"), "others",
                        json_pack("{sf sf sf}", "delayed_seconds", 50 * cases[i].b, "seconds",
                                  100 * cases[i].b, "threads", 1.0));
    json_t *c = rf_report_compare(a, b);
    assert_non_null(strstr(text(c, "sentence"), cases[i].says));
    assert_null(strstr(text(c, "sentence"), cases[i].silent));
    assert_non_null(strstr(text(c, "doubt"), "0 % of the time of a and 50 % of b"));
    assert_non_null(strstr(text(c, "sentence"), text(c, "doubt")));
    json_decref(c);
    json_decref(a);
    json_decref(b);
  }
}

/* If only one side was measured, both are compared by their predictions. Ten times the predicted
 * time is not a saving of the other side. */
static void predictions_are_compared_with_predictions(void **state) {
  (void)state;
  planted slow[COUNT];
  memcpy(slow, OPS, sizeof slow);
  for (int i = 0; i < COUNT; i++) slow[i].measured *= 10;
  json_t *ran = entry_of("ran", slow, COUNT, 3, 10.0, 1e6),
         *planned = entry_of("planned", OPS, COUNT, 0, 0, 1e6);
  for (int swap = 0; swap < 2; swap++) {
    json_t *c = rf_report_compare(swap ? planned : ran, swap ? ran : planned);
    assert_int_equal(json_array_size(json_object_get(c, "ops")), 0);
    assert_true(json_is_false(json_object_get(json_object_get(c, "a"), "measured")));
    near(at(json_object_get(c, "a"), "seconds"), 1.0);
    near(at(json_object_get(c, "b"), "seconds"), 1.0);
    assert_non_null(strstr(text(c, "sentence"), "is predicted to take 0.0 %"));
    assert_non_null(strstr(text(c, "doubt"), "Only one of the two sides was measured"));
    json_decref(c);
  }
  json_decref(ran);
  json_decref(planned);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(differences_stand_in_order),
      cmocka_unit_test(predictions_are_compared_with_predictions),
      cmocka_unit_test(noise_is_no_saving),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
