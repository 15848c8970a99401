/* test_links.c - compares collectives with the worked examples of "How to Scale Your Model" and
 * with counting links by hand. */
#include "machine/machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static rf_machine m;
static rf_group g;

static void on(const char *spec) { assert_int_equal(rf_machine_find(spec, &m, NULL), RAFTER_OK); }

static double ask(const int *extent, int count, rf_collective kind, double bytes, bool literature) {
  assert_int_equal(rf_machine_axes(&m, extent, count, -1, &g, NULL), RAFTER_OK);
  return rf_collective_seconds(&g, kind, bytes, literature, NULL);
}

static void close_to(double got, double expected, double relative) {
  if (!(fabs(got - expected) <= relative * fabs(expected)))
    fail_msg("got %.9g, expected %.9g within %g", got, expected, relative);
}

static void books_examples(void **state) {
  (void)state;
  const double v = 2.0 * 1024 * 4096;
  on("tpu-v4");
  /* the book's sharding question 2.1 */
  close_to(ask((int[]){4}, 1, RF_ALL_GATHER, v / 4, true), 23.30e-6, 1e-3);
  close_to(ask((int[]){4, 4}, 2, RF_ALL_GATHER, v, true), 46.60e-6, 1e-3); /* question 2.2 */
  /* question 2.3, with the array sharded on both other axes */
  close_to(ask((int[]){4}, 1, RF_ALL_REDUCE, v / 16, true), 11.65e-6, 1e-3);
  close_to(ask((int[]){4, 4, 4}, 3, RF_ALL_GATHER, v, true), 31.07e-6, 1e-3); /* an idle axis helps */
  close_to(ask((int[]){4}, 1, RF_ALL_GATHER, 256, true), 2e-6, 1e-9);         /* question 3: two hops */
  on("tpu-v5e:8x4");
  /* three hops of a quarter, without a ring */
  close_to(ask((int[]){4}, 1, RF_ALL_GATHER, 2.0 * 2048 * 8192, true), 559.2e-6, 1e-3);
  close_to(ask((int[]){4}, 1, RF_ALL_GATHER, 2.0 * 256 * 256, true), 3e-6, 1e-9);
  assert_int_equal(rf_machine_axes(&m, (int[]){4}, 1, 1, &g, NULL), RAFTER_OK); /* the same as a ring */
  close_to(rf_collective_seconds(&g, RF_ALL_GATHER, 2.0 * 2048 * 8192, true, NULL), 372.8e-6, 1e-3);
  close_to(rf_collective_seconds(&g, RF_ALL_GATHER, 2.0 * 2048 * 8192, false, NULL), 0.75 * 372.8e-6, 1e-3);
  on("tpu-v5e");
  close_to(ask((int[]){16}, 1, RF_ALL_TO_ALL, 1e9, true), 1e9 / (4 * 9e10), 1e-12);
  close_to(ask((int[]){16, 16}, 2, RF_ALL_TO_ALL, 1e9, true), 1e9 * 16 / (4 * 256 * 9e10), 1e-12);
  on("h100-sxm");
  close_to(ask((int[]){8}, 1, RF_ALL_GATHER, 1e9, true), 1e9 * 7 / (8 * 4.5e11), 1e-12);
  close_to(ask((int[]){8}, 1, RF_ALL_TO_ALL, 1e9, true), 1e9 * 7 / (64 * 4.5e11), 1e-12);
  /* two nodes: the node's network is the limit */
  close_to(ask((int[]){8, 2}, 2, RF_ALL_GATHER, 1e9, true), 1e9 * 7 / (8 * 4.5e11), 1e-12);
  close_to(ask((int[]){8, 128}, 2, RF_ALL_GATHER, 1e9, true), 1e9 * 127 / (128 * 4e11), 1e-12);
  close_to(ask((int[]){8, 4}, 2, RF_ALL_TO_ALL, 1e9, true), 1e9 * 3 / (16 * 4e11), 1e-12);
}

/* Seconds of an all-gather, counted link by link. Every chip forwards the shards that it has. In
 * each step, every link that has something new to carry moves one shard. */
static double pass_gather(int extent, bool wraps, double shard, double oneway) {
  bool has[64][64] = {{0}};
  int steps = 0;
  for (int i = 0; i < extent; i++) has[i][i] = true;
  for (;; steps++) {
    bool next[64][64], all = true;
    memcpy(next, has, sizeof has);
    for (int i = 0; i < extent; i++)
      for (int k = 0; k < extent; k++) all &= has[i][k];
    if (all) return steps * shard / oneway;
    for (int i = 0; i < extent; i++)
      for (int d = -1; d <= 1; d += 2) { /* one new shard over the link from chip i + d */
        int from = i + d, best = -1;
        if (!wraps && (from < 0 || from >= extent)) continue;
        from = (from + extent) % extent;
        for (int hop = 0; hop < extent && best < 0; hop++) { /* the nearest source on that side first */
          int k = ((from + d * hop) % extent + extent) % extent;
          if (has[from][k] && !next[i][k]) best = k;
        }
        if (best >= 0) next[i][best] = true;
      }
    memcpy(has, next, sizeof has);
  }
}

static void gathers_take_the_steps_of_a_pass(void **state) {
  (void)state;
  on("tpu-v4");
  for (int extent = 2; extent <= 16; extent++)
    for (int wraps = 0; wraps <= 1; wraps++) {
      if (wraps && extent < 3) continue; /* In a ring of two, the second link is the first. */
      double bytes = 1e9, executed = pass_gather(extent, wraps, bytes / extent, m.topology.oneway_bps);
      assert_int_equal(rf_machine_axes(&m, &extent, 1, wraps, &g, NULL), RAFTER_OK);
      double got = rf_collective_seconds(&g, RF_ALL_GATHER, bytes, false, NULL);
      /* In even rings, half of the last shard comes from each side at the same time. */
      if (wraps && extent % 2 == 0) executed -= 0.5 * bytes / extent / m.topology.oneway_bps;
      close_to(got, executed, 1e-9);
    }
}

enum { OUTER = RF_AXIS_BIT(RF_AXIS_FSDP), INNER = RF_AXIS_BIT(RF_AXIS_TENSOR), BOTH = OUTER | INNER };

static void groups_of(const char *spec, rf_mesh mesh, rf_axes mask) {
  on(spec);
  if (m.devices_per_chip > 1) rf_machine_by_device(&m);
  assert_int_equal(rf_machine_group(&m, &mesh, mask, &g, NULL), RAFTER_OK);
}

/* A small sum takes 6 us in a node of GPUs and 26 us over several nodes. */
static void switches_have_latency(void **state) {
  (void)state;
  double wait = 0;
  groups_of("h100-sxm:1x8", (rf_mesh){.of = {[RF_AXIS_TENSOR] = 8}}, INNER);
  close_to(rf_collective_seconds(&g, RF_ALL_REDUCE, 1024, false, &wait), 6e-6, 1e-9);
  close_to(wait, 6e-6, 1e-9);
  groups_of("h100-sxm:4x8", (rf_mesh){.of = {[RF_AXIS_TENSOR] = 32}}, INNER);
  close_to(rf_collective_seconds(&g, RF_ALL_REDUCE, 1024, false, &wait), 26e-6, 1e-9);
  assert_true(rf_collective_seconds(&g, RF_ALL_REDUCE, 1e9, false, &wait) > 1e-3);
}

static void meshes_lie_on_the_torus(void **state) {
  (void)state;
  const rf_mesh whole = {.of = {[RF_AXIS_FSDP] = 16, [RF_AXIS_TENSOR] = 16}};
  groups_of("tpu-v5e:16x16", whole, OUTER);
  assert_true(g.rings == 1 && g.ring[0].extent == 16 && g.ring[0].wraps && g.ring[0].stride == 1);
  groups_of("tpu-v5e:16x16", whole, BOTH);
  assert_true(g.rings == 2 && g.chips == 256);
  /* An inner axis of 4 takes four neighbours of one physical axis. The outer axis gets the other
   * physical axis and every fourth chip of the first. */
  const rf_mesh split = {.of = {[RF_AXIS_FSDP] = 64, [RF_AXIS_TENSOR] = 4}};
  groups_of("tpu-v5e:16x16", split, INNER);
  assert_true(g.rings == 1 && g.ring[0].extent == 4 && !g.ring[0].wraps && g.ring[0].stride == 1);
  groups_of("tpu-v5e:16x16", split, OUTER);
  assert_true(g.rings == 2 && g.chips == 64);
  assert_true((g.ring[0].stride == 4) != (g.ring[1].stride == 4));
  groups_of("tpu-v5e:16x16", split, BOTH); /* both axes together are the torus */
  assert_true(g.rings == 2 && g.ring[0].wraps && g.ring[1].wraps && g.ring[0].stride == 1 &&
              g.ring[1].stride == 1);
  groups_of("tpu-v5p:16x20x28", (rf_mesh){.of = {[RF_AXIS_FSDP] = 1120, [RF_AXIS_TENSOR] = 8}}, BOTH);
  assert_int_equal(g.chips, 8960);
  assert_true(g.rings == 3 && g.ring[0].wraps && g.ring[1].wraps && g.ring[2].wraps);
  /* A group of one member sends nothing. */
  groups_of("tpu-v5e:16x16", (rf_mesh){.of = {[RF_AXIS_FSDP] = 256, [RF_AXIS_TENSOR] = 1}}, INNER);
  assert_true(g.chips == 1 && rf_collective_seconds(&g, RF_ALL_REDUCE, 1e9, false, NULL) == 0);
}

static void slices_nodes_and_devices(void **state) {
  (void)state;
  const double v = 4e9;
  /* Gradients over 4 slices of 256 chips: reduce-scatter and all-gather within slices, and an
   * all-reduce of 1/256 between slices. */
  groups_of("tpu-v5e:16x16*4", (rf_mesh){.of = {[RF_AXIS_SLICE] = 4, [RF_AXIS_FSDP] = 256}},
            OUTER | RF_AXIS_BIT(RF_AXIS_SLICE));
  assert_true(g.slices == 4 && g.chips == 1024 && (g.resources & RF_RESOURCE_DCN));
  close_to(rf_collective_seconds(&g, RF_ALL_REDUCE, v, true, NULL),
           2 * v / (2 * 9e10) + 2 * v / 256 / 3.125e9, 1e-12);
  groups_of("tpu-v5e:16x16*4",
            (rf_mesh){.of = {[RF_AXIS_SLICE] = 4, [RF_AXIS_FSDP] = 16, [RF_AXIS_TENSOR] = 16}}, INNER);
  assert_true(g.slices == 1 && g.chips == 16 && !(g.resources & RF_RESOURCE_DCN));
  /* The eight groups of a node share its network cards if each group has one member in the node. */
  groups_of("h100-sxm:4x8", (rf_mesh){.of = {[RF_AXIS_FSDP] = 4, [RF_AXIS_TENSOR] = 8}}, OUTER);
  assert_true(g.inside == 1 && g.nodes == 4);
  close_to(g.node_bps, 4e11 / 8, 1e-12);
  groups_of("h100-sxm:4x8", (rf_mesh){.of = {[RF_AXIS_FSDP] = 4, [RF_AXIS_TENSOR] = 8}}, INNER);
  assert_true(g.inside == 8 && g.nodes == 1);
  groups_of("h100-sxm:4x8", (rf_mesh){.of = {[RF_AXIS_FSDP] = 2, [RF_AXIS_TENSOR] = 16}}, INNER);
  assert_true(g.inside == 8 && g.nodes == 2);
  /* With two devices per chip, the inner axis uses the link between them, which is six times as
   * fast as a torus axis. */
  groups_of("tpu-v7x:4x4x4", (rf_mesh){.of = {[RF_AXIS_FSDP] = 64, [RF_AXIS_TENSOR] = 2}}, INNER);
  assert_true(g.die && g.rings == 0 && g.chips == 2);
  close_to(rf_collective_seconds(&g, RF_ALL_GATHER, v, true, NULL), v / 2 / 6e11, 1e-12);
  groups_of("tpu-v7x:4x4x4", (rf_mesh){.of = {[RF_AXIS_FSDP] = 64, [RF_AXIS_TENSOR] = 2}}, OUTER);
  assert_true(!g.die && g.rings == 3);
  close_to(m.flops[RF_BF16], 2.307e15 / 2, 1e-12);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  rf_error e;
  on("tpu-v5e:4x4");
  const rf_mesh wrong = {.of = {[RF_AXIS_FSDP] = 4, [RF_AXIS_TENSOR] = 8}};
  assert_int_equal(rf_machine_group(&m, &wrong, OUTER, &g, &e), RAFTER_INVALID);
  assert_non_null(strstr(e.message, "expected 16 chips, got 32"));
  const rf_mesh zero = {.of = {0}};
  assert_int_equal(rf_machine_group(&m, &zero, OUTER, &g, &e), RAFTER_INVALID);
  on("tpu-v5e:4x4*3");
  const rf_mesh uneven = {.of = {[RF_AXIS_FSDP] = 4, [RF_AXIS_TENSOR] = 12}};
  assert_int_equal(rf_machine_group(&m, &uneven, OUTER, &g, &e), RAFTER_INVALID);
  assert_non_null(strstr(e.message, "slice=3"));
  on("h100-sxm");
  assert_int_equal(rf_machine_axes(&m, (int[]){12}, 1, -1, &g, &e), RAFTER_INVALID);
  assert_int_equal(rf_machine_axes(&m, (int[]){8, 2, 2}, 3, -1, &g, &e), RAFTER_INVALID);
  on("a5000");
  assert_int_equal(rf_machine_axes(&m, (int[]){2, 2}, 2, -1, &g, &e), RAFTER_INVALID);
  assert_int_equal(rf_machine_detect(&m, NULL), RAFTER_OK);
  assert_int_equal(rf_machine_axes(&m, (int[]){2}, 1, -1, &g, &e), RAFTER_INVALID);
  assert_non_null(strstr(e.message, "no network"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(books_examples),           cmocka_unit_test(gathers_take_the_steps_of_a_pass),
      cmocka_unit_test(switches_have_latency),    cmocka_unit_test(meshes_lie_on_the_torus),
      cmocka_unit_test(slices_nodes_and_devices), cmocka_unit_test(what_does_not_fit_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
