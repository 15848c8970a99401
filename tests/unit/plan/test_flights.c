/* test_flights.c - when a plan lets exchanges between ranks run while they compute: only if the
 * measured times say that it saves time, and only as far as the memory lasts. */
#include "graph/mesh/overlap.h"
#include "unit/plan/plans.h"

#include <math.h>

#define MODEL "gpt:layers=4,width=256,heads=4,ff=1024,vocab=512,seq=128"
static const double SLOW_BPS = 1e9;

static rf_machine machine;

/* Two ranks. A collective takes `bytes` / `bps` seconds, and `core` of them from the cores. */
static void make_machine(double bps, double core) {
  assert_int_equal(rf_machine_detect(&machine, NULL), RAFTER_OK);
  rf_machine_as_chips(&machine, 2);
  machine.guessed = false;
  machine.flops[RF_F32] = 2e11;
  machine.read_bps = machine.copy_bps = 2e10;
  machine.memory_bytes = 0x1p40;
  for (int k = 0; k < RF_COLLECTIVES; k++) {
    rf_exchange_curve *c = &machine.exchange[machine.exchange_count++];
    *c = (rf_exchange_curve){.kind = (rf_collective)k, .inside = 2, .nodes = 1, .count = 2};
    for (int i = 0; i < 2; i++) {
      c->bytes[i] = i ? 1e9 : 1e3;
      c->seconds[i] = 1e-4 + c->bytes[i] / bps;
      c->core_seconds[i] = core * c->seconds[i];
    }
  }
}

static rf_plan *plan_for(const char *mesh, int zero, int accumulate, float clip, rf_overlap overlap,
                         int64_t budget) {
  rf_error error = {0};
  rf_model model = model_named(MODEL);
  rf_plan_options options = train_options(&machine, RF_F32, 4, accumulate, 128, RF_REMAT_NONE);
  options.backend = &RF_BACKEND_CPU;
  options.collectives = RF_COLLECTIVES_NONE;
  options.overlap = overlap;
  options.budget_bytes = budget;
  options.build.clip = clip;
  options.build.plain = true;
  if (rf_mesh_parse(mesh, zero, &options.build.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return plan_of(&model, &options);
}

static int starts_of(const rf_plan *plan) {
  int starts = 0;
  for (int i = 0; i < plan->graph->op_count; i++) starts += plan->graph->op[i].def->starts;
  return starts;
}

/* The sum of all ops' seconds on the core, with their waits. */
static double seconds_of_ops(const rf_plan *plan) {
  double sum = 0;
  for (int i = 0; i < plan->graph->op_count; i++) sum += plan->op[i].seconds * plan->op[i].calls;
  return sum;
}

static double transfers_of(const rf_plan *plan) {
  double sum = 0;
  for (int i = 0; i < plan->graph->op_count; i++)
    if (plan->op[i].lanes) sum += fmax(plan->op[i].transfer, plan->op[i].seconds) * plan->op[i].calls;
  return sum;
}

static const struct {
  const char *mesh;
  int zero, accumulate;
  float clip;
} CASES[] = {{"data=2", 0, 1, 0}, {"data=2", 0, 1, 1}, {"data=2", 0, 2, 1},
             {"data=2", 1, 1, 0}, {"fsdp=2", 3, 1, 0}, {"fsdp=2", 3, 2, 1}};
enum { COUNT = sizeof CASES / sizeof *CASES };
#define CASE(i) CASES[i].mesh, CASES[i].zero, CASES[i].accumulate, CASES[i].clip

/* A slow link that needs little of the cores: the step gets shorter, by what the exchanges hide. */
static void slow_links_overlap(void **state) {
  (void)state;
  make_machine(SLOW_BPS, 0.05);
  for (int i = 0; i < COUNT; i++) {
    rf_plan *off = plan_for(CASE(i), RF_OVERLAP_OFF, 0), *on = plan_for(CASE(i), RF_OVERLAP_AUTO, 0);
    assert_int_equal(starts_of(off), 0);
    if (CASES[i].accumulate > 1 && !CASES[i].zero) { /* only norms to hide the sums */
      assert_true(on->step_seconds <= off->step_seconds);
      rf_plan_free(off);
      rf_plan_free(on);
      continue;
    }
    assert_in_range(starts_of(on), 5, 1000);
    assert_true(on->step_seconds < off->step_seconds);
    assert_true(fabs(seconds_of_ops(off) - off->step_seconds) < 1e-9 * off->step_seconds);
    assert_true(seconds_of_ops(on) <= on->step_seconds * (1 + 1e-9));
    /* neither the links nor the cores can be faster */
    double sent = transfers_of(on), core = on->step_seconds - on->time.by[RF_BOUND_NETWORK];
    assert_true(on->step_seconds >= fmax(sent, core) * (1 - 1e-9));
    assert_true(on->time.network_hidden > 0 && on->time.network_hidden <= sent);
    assert_true(on->arena_bytes >= off->arena_bytes);
    assert_true(strcmp(on->digest, off->digest) != 0);
    rf_plan_free(off);
    rf_plan_free(on);
  }
}

/* If the cores themselves move the bytes, or nobody has measured it, nothing overlaps. */
static void links_of_the_cores_do_not(void **state) {
  (void)state;
  for (int k = 0; k < 2; k++) {
    make_machine(SLOW_BPS, k ? 1 : 0);
    for (int i = 0; i < COUNT; i++) {
      rf_plan *plan = plan_for(CASE(i), RF_OVERLAP_AUTO, 0), *on = plan_for(CASE(i), RF_OVERLAP_ON, 0);
      assert_int_equal(starts_of(plan), 0);
      assert_in_range(starts_of(on), 1, 1000);
      rf_plan_free(plan);
      rf_plan_free(on);
    }
  }
}

/* The memory of exchanges counts. With as much as the plan without them needs, fewer or none go
 * on. */
static void memory_limits_overlap(void **state) {
  (void)state;
  make_machine(SLOW_BPS, 0.05);
  int fewer = 0;
  for (int i = 0; i < COUNT; i++) {
    rf_plan *off = plan_for(CASE(i), RF_OVERLAP_OFF, 0), *on = plan_for(CASE(i), RF_OVERLAP_AUTO, 0);
    rf_plan *tight = plan_for(CASE(i), RF_OVERLAP_AUTO, off->arena_bytes);
    assert_true(tight->arena_bytes <= off->arena_bytes);
    assert_true(tight->step_seconds >= on->step_seconds * (1 - 1e-9));
    fewer += tight->step_seconds > on->step_seconds;
    rf_plan_free(off);
    rf_plan_free(on);
    rf_plan_free(tight);
  }
  assert_in_range(fewer, 1, COUNT);
}

/* Other jobs, backends that overlap by themselves, and single chips keep whole exchanges. */
static void others_keep_whole_exchanges(void **state) {
  (void)state;
  make_machine(SLOW_BPS, 0.05);
  rf_model model = model_named(MODEL);
  const rf_backend *const backends[] = {&RF_BACKEND_XLA, &RF_BACKEND_SHEET_GPU, &RF_BACKEND_CPU};
  for (int i = 0; i < 3; i++) {
    rf_plan_options options = train_options(&machine, RF_F32, 4, 1, 128, RF_REMAT_NONE);
    options.backend = backends[i];
    options.overlap = RF_OVERLAP_ON;
    options.build.plain = true;
    if (i < 2) options.build.mesh = (rf_mesh){.of = {[RF_AXIS_DATA] = 2}};
    rf_plan *plan = plan_of(&model, &options);
    assert_int_equal(starts_of(plan), 0);
    rf_plan_free(plan);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(slow_links_overlap),
      cmocka_unit_test(links_of_the_cores_do_not),
      cmocka_unit_test(memory_limits_overlap),
      cmocka_unit_test(others_keep_whole_exchanges),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
