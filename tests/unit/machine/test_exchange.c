/* test_exchange.c - measured collectives: their field of a machine file, and the seconds that they
 * give for sizes between, below and beyond the measured ones. */
#include "machine/machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/scratch.h"

static rf_machine m, again;
static rf_error fault;

/* Two nodes of two ranks. */
static void make(void) {
  assert_int_equal(rf_machine_detect(&m, NULL), RAFTER_OK);
  m.topology = (rf_topology){.form = RF_NETWORK_SWITCH,
                             .fraction = 1,
                             .domain = 2,
                             .host_chips = 2,
                             .oneway_bps = 4e9,
                             .hop_seconds = 2e-6,
                             .node_bps = 1e9};
  m.chips = 4;
  m.shape_rank = 2;
  m.shape[0] = m.shape[1] = 2;
  m.exchange[0] =
      (rf_exchange_curve){RF_ALL_REDUCE, RF_F32, 2, 1, 3, {1e3, 1e6, 2e6}, {1e-5, 1e-3, 4e-3}, {0}};
  m.exchange[1] = (rf_exchange_curve){RF_ALL_REDUCE, RF_BF16, 2, 1, 1, {1e6}, {3e-3}, {0}};
  m.exchange[2] = (rf_exchange_curve){RF_ALL_REDUCE, RF_F32, 2, 2, 2, {1e3, 1e6}, {1e-4, 1e-2}, {1e-6, 1e-3}};
  m.exchange_count = 3;
}

static rf_group group_of(rf_axes axes) {
  rf_group g;
  const rf_mesh mesh = {.of = {[RF_AXIS_DATA] = 2, [RF_AXIS_TENSOR] = 2}};
  assert_int_equal(rf_machine_group(&m, &mesh, axes, &g, NULL), RAFTER_OK);
  return g;
}

static void is(double got, double expected) {
  if (!(fabs(got - expected) <= 1e-9 * fabs(expected))) fail_msg("got %.12g, expected %.12g", got, expected);
}

static void sizes_follow_the_points(void **state) {
  (void)state;
  double latency;
  make();
  rf_group g = group_of(RF_AXIS_BIT(RF_AXIS_TENSOR));
  assert_true(g.inside == 2 && g.nodes == 1);
  static const struct {
    double bytes, seconds;
  } rows[] = {{1, 1e-5}, {1e3, 1e-5}, {1e6, 1e-3}, {1.5e6, 2.5e-3}, {2e6, 4e-3}, {4e6, 1e-2}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    is(rf_machine_exchange_seconds(&m, &g, RF_ALL_REDUCE, RF_F32, rows[i].bytes, &latency), rows[i].seconds);
  is(latency, 1e-5);
  is(rf_machine_exchange_seconds(&m, &g, RF_ALL_REDUCE, RF_BF16, 2e6, &latency), 6e-3);
  /* no curve of this dtype: the first one */
  is(rf_machine_exchange_seconds(&m, &g, RF_ALL_REDUCE, RF_F64, 1e6, &latency), 1e-3);
}

static void groups_have_curves_of_their_own(void **state) {
  (void)state;
  double latency;
  make();
  rf_group all = group_of(RF_AXIS_BIT(RF_AXIS_DATA) | RF_AXIS_BIT(RF_AXIS_TENSOR)),
           across = group_of(RF_AXIS_BIT(RF_AXIS_DATA)), inside = group_of(RF_AXIS_BIT(RF_AXIS_TENSOR));
  assert_true(all.inside == 2 && all.nodes == 2 && across.inside == 1 && across.nodes == 2);
  is(rf_machine_exchange_seconds(&m, &all, RF_ALL_REDUCE, RF_F32, 1e6, &latency), 1e-2);
  is(rf_machine_exchange_core(&m, &all, RF_ALL_REDUCE, RF_F32, 1e6), 1e-3);
  is(rf_machine_exchange_core(&m, &inside, RF_ALL_REDUCE, RF_F32, 1e6), -1); /* not measured */
  is(rf_machine_exchange_core(&m, &across, RF_ALL_REDUCE, RF_F32, 1e6), -1);
  /* without a curve: the formulas, and the fraction of the links */
  double plain = rf_collective_seconds(&across, RF_ALL_REDUCE, 1e6, false, NULL);
  is(rf_machine_exchange_seconds(&m, &across, RF_ALL_REDUCE, RF_F32, 1e6, &latency), plain);
  plain = rf_collective_seconds(&inside, RF_PERMUTE, 1e6, false, &latency);
  is(rf_machine_exchange_seconds(&m, &inside, RF_PERMUTE, RF_F32, 1e6, &latency), plain);
  inside.fraction = 0.5;
  is(rf_machine_exchange_seconds(&m, &inside, RF_PERMUTE, RF_F32, 1e6, &latency),
     latency + 2 * (plain - latency));
}

static void files_keep_the_curves(void **state) {
  const char *path = at("ranks.json");
  (void)state;
  make();
  assert_int_equal(rf_machine_write(&m, path, &fault), RAFTER_OK);
  assert_int_equal(rf_machine_read(path, &again, &fault), RAFTER_OK);
  assert_int_equal(again.exchange_count, 3);
  assert_memory_equal(m.exchange, again.exchange, sizeof m.exchange);
  assert_true(again.chips == 4 && again.shape[0] == 2 && again.shape[1] == 2);
  assert_false(again.guessed);
}

static void bad_curves_are_refused(void **state) {
  static const char *const rows[][2] = {
      {"7", "collectives is not a list"},
      {"[7]", "an entry of collectives is not an object"},
      {"[{}]", "kind"},
      {"[{\"kind\":\"gossip\"}]", "unknown collective"},
      {"[{\"kind\":\"permute\",\"dtype\":\"f7\"}]", "'f7' is not a dtype"},
      {"[{\"kind\":\"permute\",\"inside\":2,\"nodes\":0}]", "nodes"},
      {"[{\"kind\":\"permute\",\"inside\":2,\"nodes\":1}]", "points of collective permute"},
      {"[{\"kind\":\"permute\",\"inside\":2,\"nodes\":1,\"points\":[]}]", "points of collective permute"},
      {"[{\"kind\":\"permute\",\"inside\":2,\"nodes\":1,\"points\":[{\"bytes\":9}]}]", "seconds"},
      {"[{\"kind\":\"permute\",\"inside\":2,\"nodes\":1,\"points\":[{\"bytes\":9,\"seconds\":1},"
       "{\"bytes\":9,\"seconds\":1}]}]",
       "do not ascend (expected more than 9 bytes, got 9)"},
  };
  const char *path = at("bad.json");
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(
        file,
        "{\"name\":\"x\",\"kind\":\"cpu\",\"flops\":{\"f32\":1e9},\"memory_bytes\":1e9,\"memory_bps\":1e9,"
        "\"collectives\":%s}",
        rows[i][0]);
    fclose(file);
    assert_int_equal(rf_machine_read(path, &again, &fault), RAFTER_FAILED);
    if (!strstr(fault.message, rows[i][1]))
      fail_msg("%s: '%s' does not say '%s'", rows[i][0], fault.message, rows[i][1]);
  }
}

static void shared_chips_are_a_guess(void **state) {
  (void)state;
  assert_int_equal(rf_machine_detect(&m, NULL), RAFTER_OK);
  assert_false(m.guessed);
  rf_machine_as_chips(&m, 2);
  assert_true(m.guessed && m.exchange_count == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_follow_the_points),  cmocka_unit_test(groups_have_curves_of_their_own),
      cmocka_unit_test(files_keep_the_curves),    cmocka_unit_test(bad_curves_are_refused),
      cmocka_unit_test(shared_chips_are_a_guess),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
