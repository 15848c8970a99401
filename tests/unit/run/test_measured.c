/* test_measured.c - the measured times of a run are those of steps that ended, and delays by other
 * programs are known. */
#define _GNU_SOURCE
#include "unit/plan/plans.h"

#include "run/delayed.h"
#include "run/run.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ACCUMULATE = 2, SEQ = 16 };

static rf_run *run_of(const rf_plan *plan) {
  rf_run *run = NULL;
  rf_error error = {0};
  if (rf_run_open(&plan, 1, (rf_run_debug){0}, &run, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return run;
}

/* Tensors of a step may share bytes with the inputs, so every microbatch gets its inputs. */
static void fill_inputs(rf_run *run, int64_t rows) {
  static const char *const names[] = {"tokens", "labels", "positions", "segments"};
  for (int k = 0; k < 4; k++) {
    int32_t *input = rf_run_named(run, 0, names[k], NULL);
    for (int64_t i = 0; i < rows + (k == 3); i++)
      input[i] = (int32_t)(k < 2 ? i % 64 : k == 2 ? i % SEQ : i * SEQ < rows ? i * SEQ : rows);
  }
}

static rf_status section(rf_run *run, const rf_plan *plan, rf_section which, int micro, const int *stop) {
  rf_run_inputs inputs = {.seed = 1,
                          .step = 1,
                          .micro = micro,
                          .first_token = micro * plan->graph->rows,
                          .loss_scale = 1.0f / 128,
                          .lr = 1e-3f,
                          .rows = plan->graph->rows,
                          .stop = stop};
  if (which == RF_SECTION_MICRO) fill_inputs(run, plan->graph->rows);
  return rf_run_section(run, 0, which, &inputs, NULL);
}

static void whole_step(rf_run *run, const rf_plan *plan) {
  assert_int_equal(section(run, plan, RF_SECTION_BEGIN, 0, NULL), RAFTER_OK);
  for (int m = 0; m < ACCUMULATE; m++)
    assert_int_equal(section(run, plan, RF_SECTION_MICRO, m, NULL), RAFTER_OK);
  assert_int_equal(section(run, plan, RF_SECTION_END, 0, NULL), RAFTER_OK);
}

static rf_measured *copy_of(const rf_run *run, const rf_plan *plan) {
  size_t bytes = (size_t)plan->graph->op_count * sizeof(rf_measured);
  rf_measured *copy = malloc(bytes);
  assert_non_null(copy);
  return memcpy(copy, rf_run_measured(run, 0), bytes);
}

static void expect_steps(const rf_run *run, const rf_plan *plan, int64_t steps) {
  for (int i = 0; i < plan->graph->op_count; i++)
    assert_int_equal(rf_run_measured(run, 0)[i].calls, steps * plan->op[i].calls);
}

/* A step may stop between two sections or within a section. */
static void unfinished_steps_do_not_count(void **state) {
  (void)state;
  const int stop = 1;
  rf_model model = model_named("gpt2:layers=1,width=32,heads=2,ff=64,vocab=64,seq=16");
  rf_plan_options options = train_options(machine_named("a5000"), RF_F32, 2, ACCUMULATE, SEQ, RF_REMAT_NONE);
  options.backend = &RF_BACKEND_CPU;
  options.isa = rf_isa_detect();
  rf_plan *plan = plan_of(&model, &options);
  rf_run *run = run_of(plan);
  size_t bytes = (size_t)plan->graph->op_count * sizeof(rf_measured);
  whole_step(run, plan);
  rf_measured *before = copy_of(run, plan);
  for (int within = 0; within < 2; within++) {
    section(run, plan, RF_SECTION_BEGIN, 0, NULL);
    section(run, plan, RF_SECTION_MICRO, 0, NULL);
    if (within) assert_int_equal(section(run, plan, RF_SECTION_MICRO, 1, &stop), RAFTER_INTERRUPTED);
    assert_memory_equal(rf_run_measured(run, 0), before, bytes);
  }
  expect_steps(run, plan, 1);
  /* The next step removes the times that nobody has read. */
  section(run, plan, RF_SECTION_BEGIN, 0, NULL);
  section(run, plan, RF_SECTION_MICRO, 0, NULL);
  whole_step(run, plan);
  expect_steps(run, plan, 2);
  section(run, plan, RF_SECTION_BEGIN, 0, NULL);
  section(run, plan, RF_SECTION_MICRO, 0, NULL);
  rf_run_measured_reset(run);
  expect_steps(run, plan, 0);
  whole_step(run, plan);
  expect_steps(run, plan, 1);
  free(before);
  rf_run_close(run);
  rf_plan_free(plan);
}

static double work_for(double seconds) {
  const rf_delays begin = rf_delays_now();
  for (double start = rf_now_seconds(); rf_now_seconds() < start + seconds;) continue;
  return rf_delays_part(&begin);
}

/* Another process computes on the only core of this process, so this process has half of it. */
static void delays_by_other_programs_are_measured(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) continue;
  }
  assert_true(child > 0);
  double part = work_for(1);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, NULL, 0), child);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  assert_true(part > 0.2 && part <= 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(unfinished_steps_do_not_count),
                                     cmocka_unit_test(delays_by_other_programs_are_measured)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
