/* test_team.c - simulated machines: a team uses the number of threads that is fastest there. */
#include "backend/team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const int64_t SECOND = 1000000000, MICROSECOND = 1000;

/* A machine whose ops take op_us[n] microseconds with n threads. The main thread is on a core for
 * the fraction core[n] of them. */
typedef struct simulated {
  int threads;
  double op_us[17], core[17];
} simulated;

typedef struct sums {
  int64_t ops, ops_with[17];
} sums;

/* Runs sections of 100 ops, with 20 us of other work between them, for `seconds`. */
static sums simulate(rf_team *team, const simulated *m, double seconds, int64_t *now, int64_t *cpu) {
  sums s = {0};
  int64_t end = *now + (int64_t)(seconds * (double)SECOND);
  double shortest = 0;
  for (int n = 1; n <= m->threads; n++)
    if (!shortest || m->op_us[n] < shortest) shortest = m->op_us[n];
  while (*now < end) {
    rf_team_enter(team, *now, *cpu);
    for (int i = 0; i < 100; i++) {
      int n = team->active;
      int64_t ns = (int64_t)(m->op_us[n] * (double)MICROSECOND);
      *now += ns;
      *cpu += (int64_t)(m->core[n] * (double)ns);
      s.ops++;
      s.ops_with[n]++;
      if (rf_team_note(team, *now, ns, (int64_t)(shortest * (double)MICROSECOND)))
        rf_team_judge(team, *now, *cpu);
    }
    rf_team_leave(team, *now, *cpu);
    *now += 20 * MICROSECOND;
  }
  return s;
}

static const simulated quiet = {2, {0, 100, 50}, {0, 1, 0.99}},
                       /* The main thread waits for something other than a core. */
    waiting = {2, {0, 100, 50}, {0, 0.9, 0.5}},
                       /* With one thread, the system gives it a fair share of a core. */
    busy = {2, {0, 500, 5000}, {0, 0.2, 0.1}},
                       /* One more program on two cores: two threads still gain. */
    shared = {2, {0, 110, 70}, {0, 0.9, 0.7}};

static void a_quiet_machine_uses_all_threads(void **state) {
  (void)state;
  rf_team team;
  int64_t now = 77, cpu = 5;
  rf_team_init(&team, 2);
  sums s = simulate(&team, &quiet, 60, &now, &cpu);
  assert_int_equal(s.ops_with[1], 0);
  assert_int_equal(team.reduced, 0);
}

/* Tries cost at most 1 % where they never succeed. */
static void failed_tries_are_rare(void **state) {
  (void)state;
  const simulated *machines[] = {&waiting, &shared};
  for (int i = 0; i < 2; i++) {
    rf_team team;
    int64_t now = 0, cpu = 0;
    rf_team_init(&team, 2);
    simulate(&team, machines[i], 20, &now, &cpu);
    sums s = simulate(&team, machines[i], 120, &now, &cpu);
    assert_true(s.ops_with[1] > 0);
    assert_true((double)s.ops >=
                0.99 * 120e6 / machines[i]->op_us[2] * 100 / (100 + 20 / machines[i]->op_us[2]));
  }
}

static void a_busy_machine_uses_one_thread(void **state) {
  (void)state;
  rf_team team;
  int64_t now = 0, cpu = 0;
  rf_team_init(&team, 2);
  sums s = simulate(&team, &busy, 30, &now, &cpu);
  assert_true((double)s.ops >= 0.9 * 30e6 / busy.op_us[1]);
  assert_true(team.reduced > 27 * SECOND);
  /* The other programs end: all threads again, within the longest pause. */
  simulate(&team, &quiet, 10, &now, &cpu);
  assert_int_equal(team.active, 2);
  s = simulate(&team, &quiet, 30, &now, &cpu);
  assert_int_equal(s.ops_with[1], 0);
}

/* Four other programs on sixteen cores: twelve threads are fastest. */
static void a_large_machine_keeps_the_free_cores(void **state) {
  (void)state;
  simulated m = {16, {0}, {0}};
  for (int n = 1; n <= 16; n++) {
    m.op_us[n] = 1600.0 / n + (n > 12 ? 1000 : 0);
    m.core[n] = n > 12 ? 0.3 : 0.99;
  }
  rf_team team;
  int64_t now = 0, cpu = 0;
  rf_team_init(&team, 16);
  simulate(&team, &m, 5, &now, &cpu);
  sums s = simulate(&team, &m, 60, &now, &cpu);
  assert_true((double)s.ops_with[12] > 0.9 * (double)s.ops);
}

static void a_fixed_team_never_changes(void **state) {
  (void)state;
  rf_team team;
  int64_t now = 0, cpu = 0;
  rf_team_init(&team, 2);
  team.rule = RF_TEAM_FIXED;
  assert_int_equal(simulate(&team, &busy, 10, &now, &cpu).ops_with[1], 0);
}

static void every_number_can_be_reached(void **state) {
  (void)state;
  for (int planned = 1; planned <= 1024; planned++) {
    int steps = 0;
    for (int n = planned; n > 1; n = rf_team_fewer(n), steps++) assert_true(rf_team_fewer(n) < n);
    for (int n = 1; n < planned; n = rf_team_more(n, planned)) assert_true(rf_team_more(n, planned) > n);
    assert_in_range(steps, 0, 24);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_quiet_machine_uses_all_threads),
      cmocka_unit_test(failed_tries_are_rare),
      cmocka_unit_test(a_busy_machine_uses_one_thread),
      cmocka_unit_test(a_large_machine_keeps_the_free_cores),
      cmocka_unit_test(a_fixed_team_never_changes),
      cmocka_unit_test(every_number_can_be_reached),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
