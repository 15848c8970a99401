/* test_xla_known.c - what the inputs of a run allow a program to leave out. */
#include "backend/xla/known.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static rf_emit_known known(const rf_graph *graph, int which, const void *data, int64_t bytes) {
  rf_known_values v = {0};
  v.data[which] = data;
  v.bytes[which] = bytes;
  return rf_known_of(graph, &v);
}

static void test_rows_are_whole_if_all_segments_start_with_them(void **state) {
  (void)state;
  const rf_graph graph = {.seq = 4};
  const int32_t whole[] = {0, 4, 8, 8, 8, 8, 8, 8, 8}, split[] = {0, 4, 6, 8, 8, 8, 8, 8, 8},
                long_one[] = {0, 8, 8, 8, 8, 8, 8, 8, 8}, late[] = {1, 4, 8, 8, 8, 8, 8, 8, 8};
  assert_true(known(&graph, RF_KNOWN_SEGMENTS, whole, sizeof whole).whole_rows);
  assert_false(known(&graph, RF_KNOWN_SEGMENTS, split, sizeof split).whole_rows);
  assert_false(known(&graph, RF_KNOWN_SEGMENTS, long_one, sizeof long_one).whole_rows);
  assert_false(known(&graph, RF_KNOWN_SEGMENTS, late, sizeof late).whole_rows);
  assert_false(known(&(rf_graph){0}, RF_KNOWN_SEGMENTS, whole, sizeof whole).whole_rows);
  int32_t twice[18];
  memcpy(twice, whole, sizeof whole);
  memcpy(twice + 9, whole, sizeof whole);
  const rf_graph two = {.seq = 4, .accumulate = 2};
  assert_true(known(&two, RF_KNOWN_SEGMENTS, twice, sizeof twice).whole_rows);
  twice[10] = 3; /* in the second microbatch */
  assert_false(known(&two, RF_KNOWN_SEGMENTS, twice, sizeof twice).whole_rows);
}

/* A batch that is not a number of whole rows is attended to as one sequence. */
static void test_rows_in_part_are_not_whole(void **state) {
  (void)state;
  const rf_graph graph = {.seq = 4};
  const int32_t part[] = {0, 4, 6, 6, 6, 6, 6}, less[] = {0, 2, 2};
  assert_false(known(&graph, RF_KNOWN_SEGMENTS, part, sizeof part).whole_rows);
  assert_false(known(&graph, RF_KNOWN_SEGMENTS, less, sizeof less).whole_rows);
}

/* All ops must read the tensor whose values choose the program. */
static void test_inputs_that_differ_are_not_known(void **state) {
  (void)state;
  rf_op op[2] = {{.def = &RF_OP_ATTENTION_KV, .input = {0, 1, 2, 3, 4}},
                 {.def = &RF_OP_ATTENTION_KV, .input = {5, 6, 7, 3, 4}}};
  const rf_graph graph = {.op = op, .op_count = 2};
  const int64_t offset[10] = {0};
  rf_known_inputs same = rf_known_find(&graph, offset, true, 1);
  assert_int_equal(same.tensor[RF_KNOWN_SLOTS], 3);
  assert_int_equal(same.tensor[RF_KNOWN_POSITIONS], 4);
  assert_false(rf_known_find(&graph, offset, true, 2).any);
  assert_false(rf_known_find(&graph, offset, false, 1).any);
  op[1].input[4] = 9;
  assert_int_equal(rf_known_find(&graph, offset, true, 1).tensor[RF_KNOWN_POSITIONS], RF_NONE);
}

static int64_t reach(int32_t slot, int32_t position) {
  const int32_t slots[] = {0, slot, -1}, positions[] = {3, position, 1 << 20};
  rf_known_values v = {.rows = 3};
  v.data[RF_KNOWN_SLOTS] = slots;
  v.data[RF_KNOWN_POSITIONS] = positions;
  return rf_known_of(&(rf_graph){0}, &v).reach;
}

/* Rows that are not in use do not count, and few bounds are possible. */
static void test_reach_is_a_bound_of_used_rows(void **state) {
  (void)state;
  assert_int_equal(reach(1, 0), 512);
  assert_int_equal(reach(1, 511), 512);
  assert_int_equal(reach(1, 512), 2048);
  assert_int_equal(reach(1, 100000), 131072);
  assert_int_equal(reach(-1, 100000), 512);
}

static void test_one_sampled_row_is_not_greedy(void **state) {
  (void)state;
  float rules[3 * RF_RULES] = {0};
  assert_true(known(NULL, RF_KNOWN_RULES, rules, sizeof rules).greedy);
  rules[2 * RF_RULES + RF_RULE_TEMPERATURE] = 0.5F;
  assert_false(known(NULL, RF_KNOWN_RULES, rules, sizeof rules).greedy);
}

/* Filters of answers that draw no token do not count. */
static void test_one_filtered_row_is_not_unfiltered(void **state) {
  (void)state;
  float rules[2][RF_RULES] = {{1, 0, 1, 0, 0.5F}, {0, 5, 0.5F, 0.1F, 0}};
  assert_true(known(NULL, RF_KNOWN_RULES, rules, sizeof rules).unfiltered);
  for (int rule = RF_RULE_TOP_K; rule <= RF_RULE_MIN_P; rule++) {
    float usual = rules[0][rule];
    rules[0][rule] = rules[1][rule];
    assert_false(known(NULL, RF_KNOWN_RULES, rules, sizeof rules).unfiltered);
    rules[0][rule] = usual;
  }
  rules[0][RF_RULE_TEMPERATURE] = 0;
  assert_false(known(NULL, RF_KNOWN_RULES, rules, sizeof rules).unfiltered); /* greedy */
}

/* The program that training compiles first is the one for usual batches. */
static void test_usual_batches_have_the_usual_program(void **state) {
  (void)state;
  const rf_graph graph = {.seq = 4, .job = RF_JOB_TRAIN};
  const int32_t whole[] = {0, 4, 8, 8, 8, 8, 8, 8, 8};
  const rf_emit_target cuda = rf_emit_target_of("cuda"), tpu = rf_emit_target_of("tpu");
  rf_emit_known of = known(&graph, RF_KNOWN_SEGMENTS, whole, sizeof whole),
                usual = rf_emit_usual(&graph, &cuda), none = rf_emit_usual(&graph, &tpu);
  assert_true(rf_known_equal(&of, &usual));
  assert_true(rf_known_equal(&none, &(rf_emit_known){0}));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows_are_whole_if_all_segments_start_with_them),
      cmocka_unit_test(test_rows_in_part_are_not_whole),
      cmocka_unit_test(test_inputs_that_differ_are_not_known),
      cmocka_unit_test(test_reach_is_a_bound_of_used_rows),
      cmocka_unit_test(test_one_sampled_row_is_not_greedy),
      cmocka_unit_test(test_one_filtered_row_is_not_unfiltered),
      cmocka_unit_test(test_usual_batches_have_the_usual_program),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
