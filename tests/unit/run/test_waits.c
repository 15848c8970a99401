/* test_waits.c - waits between ranks. Planted clocks and step times are found. With mpirun, ranks
 * with planted delays: a rank that sleeps is named as slow, and a message that is late although its
 * rank has begun counts as the network. The test starts itself with each MPI library that is
 * installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "run/clock.h"
#include "run/waits.h"

/* ---- clocks ---------------------------------------------------------------------------------- */

/* A planted clock: `ahead` ns ahead of that of rank 0 at time 0, and too fast by `drift`. */
typedef struct planted_clock {
  double ahead, drift;
} planted_clock;
static int64_t show(planted_clock c, int64_t first) {
  return first + (int64_t)(c.ahead + c.drift * (double)first);
}

/* Messages at the time `first` of rank 0. Ways there and back take different times. */
static rf_clock_mark mark_at(planted_clock c, int64_t first) {
  rf_ping ping[3];
  static const int64_t there[] = {90000, 20000, 400000}, back[] = {300000, 60000, 10000};
  for (int i = 0; i < 3; i++) {
    int64_t sent = first + 1000000 * i;
    ping[i] = (rf_ping){sent, show(c, sent + there[i]), sent + there[i] + back[i]};
  }
  return rf_clock_mark_of(ping, 3);
}

static void test_clocks(void **state) {
  (void)state;
  static const planted_clock clocks[] = {{0, 0}, {5e12, 0}, {-7e13, 3e-5}, {123456789, -5e-5}};
  for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
    const int64_t begin = (int64_t)1e14, end = begin + (int64_t)60e9;
    rf_clock clock = rf_clock_of(mark_at(clocks[i], begin), mark_at(clocks[i], end));
    int64_t last = INT64_MIN;
    assert_true(rf_clock_error(&clock) == 40000); /* half of the fastest message and its answer */
    for (int64_t first = begin; first <= end; first += (int64_t)1e8) {
      int64_t found = rf_clock_of_first(&clock, show(clocks[i], first));
      if (llabs(found - first) > 40010)
        fail_msg("clock %zu: %lld ns from the true time", i, (long long)(found - first));
      assert_true(found > last);
      last = found;
    }
  }
}

/* Ranks of one machine have one clock, so their times are not changed. */
static void test_one_clock(void **state) {
  (void)state;
  const planted_clock same = {0, 0}, other = {500000, 0};
  rf_clock clock = rf_clock_of(mark_at(same, 1000), mark_at(same, (int64_t)1e9));
  assert_int_equal(rf_clock_of_first(&clock, 12345), 12345);
  clock = rf_clock_of(mark_at(other, 1000), mark_at(other, (int64_t)1e9));
  assert_int_not_equal(rf_clock_of_first(&clock, 12345), 12345);
}

static void test_a_trace_moves(void **state) {
  (void)state;
  const planted_clock far = {9e12, 0};
  int64_t begin = (int64_t)4e12, end = begin + (int64_t)9e9;
  rf_clock clock = rf_clock_of(mark_at(far, begin), mark_at(far, end));
  rf_stamp span[] = {{1000, 5000, 0, 0, 0, RF_SPAN_OP, 0}, {1000, 90000, 0, 0, 1, RF_SPAN_PREDICTED, 0}};
  rf_traced_step step = {.begin = 500, .end = 6000, .after.end = 7000};
  rf_trace trace = {.span = span, .count = 2, .step = &step, .steps = 1, .origin = show(far, begin + 3000)};
  rf_clock_align(&clock, begin, &trace);
  int64_t by = span[0].begin - 1000; /* 3000 within the error */
  assert_in_range(by + 100000, 100000 + 3000 - 40010, 100000 + 3000 + 40010);
  assert_int_equal(span[0].end, 5000 + by);
  assert_int_equal(span[1].end - span[1].begin, 89000);
  assert_int_equal(step.begin, 500 + by);
  assert_int_equal(step.after.end, 7000 + by);
  assert_int_equal(trace.origin, begin);
}

/* ---- the slow rank --------------------------------------------------------------------------- */

static rf_rank_waits waits_of(double seconds, double noise, int steps, uint64_t seed) {
  rf_rank_waits waits = {.host = "here"};
  for (int i = 0; i < steps; i++) {
    double unit = (double)(rf_key(seed, (uint64_t)i, 0) >> 11) * 0x1p-53;
    rf_rank_steps_add(&waits.steps, seconds + noise * (unit - 0.5));
  }
  return waits;
}

static void test_slow_ranks(void **state) {
  (void)state;
  double excess, noise;
  for (uint64_t seed = 0; seed < 200; seed++) {
    rf_rank_waits equal[4], slow[4];
    for (uint64_t r = 0; r < 4; r++) {
      equal[r] = waits_of(0.1, 0.05, 20, 10 * seed + r);
      slow[r] = waits_of(r == 2 ? 0.2 : 0.1, 0.05, 20, 10 * seed + r);
    }
    assert_int_equal(rf_waits_slowest(equal, 4, &excess, &noise), -1);
    assert_int_equal(rf_waits_slowest(slow, 4, &excess, &noise), 2);
    assert_true(fabs(excess - 0.1) < 6 * noise);
  }
  /* steps differ by more than ranks; too few steps; a difference of a thousandth */
  rf_rank_waits few[] = {waits_of(0.1, 0, 2, 1), waits_of(0.5, 0, 2, 2)},
                tiny[] = {waits_of(0.1, 0, 50, 1), waits_of(0.1001, 0, 50, 2)};
  assert_int_equal(rf_waits_slowest(few, 2, &excess, &noise), -1);
  assert_int_equal(rf_waits_slowest(tiny, 2, &excess, &noise), -1);
  assert_int_equal(rf_waits_slowest(few, 1, &excess, &noise), -1);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

enum { STEPS = 12, DELAY_NS = 40000000 };
/* Seconds of the planted cause. On busy cores, other ranks may learn late that an exchange has begun,
 * which counts as a slow rank. */
#define PLANTED (0.5e-9 * STEPS * DELAY_NS)
#define WAITED (0.9e-9 * STEPS * DELAY_NS) /* for both causes together */

static rf_link *ranks_link;
static const char *plant; /* "slow", "network" or "even" */

static void sleep_for(int64_t ns) {
  struct timespec left = {ns / 1000000000, ns % 1000000000};
  while (nanosleep(&left, &left)) {}
}

/* One exchange of a value with every other rank. The last rank is late, or only its message is. */
static void exchange(void) {
  static double mine, theirs[16];
  rf_link *link = ranks_link;
  bool last = link->rank == link->ranks - 1;
  if (last && !strcmp(plant, "slow")) sleep_for(DELAY_NS);
  rf_link_begin_exchange(link);
  for (int r = 0; r < link->ranks; r++)
    if (r != link->rank) assert_true(rf_link_begin_receive(link, 0, r, &theirs[r], sizeof *theirs));
  if (last && !strcmp(plant, "network")) sleep_for(DELAY_NS); /* it has said that it has begun */
  for (int r = 0; r < link->ranks; r++)
    if (r != link->rank) assert_true(rf_link_begin_send(link, 0, r, &mine, sizeof mine));
  assert_true(rf_link_wait(link, 0));
  rf_link_end_exchange(link);
}

/* Seconds of the gaps of a cause, and of those in which this rank waited for `rank`. */
static double gaps_of(const rf_trace *trace, rf_gap gap, int rank) {
  double sum = 0;
  for (int64_t i = 0; i < trace->count; i++) {
    const rf_stamp *s = &trace->span[i];
    assert_true(s->kind < RF_SPAN_KINDS);
    if (s->kind == RF_SPAN_GAP && s->id == (int)gap && s->lane == 0 && (rank < 0 || s->value == rank))
      sum += 1e-9 * (double)(s->end - s->begin);
  }
  return sum;
}

static void check_trace(const rf_trace *trace) {
  int last = ranks_link->ranks - 1;
  assert_true(gaps_of(trace, RF_GAP_STOPPED, -1) == 0);
  if (ranks_link->rank == last) return;
  if (!strcmp(plant, "slow")) assert_true(gaps_of(trace, RF_GAP_SLOW_RANK, last) > PLANTED);
  if (!strcmp(plant, "network")) assert_true(gaps_of(trace, RF_GAP_NETWORK, last) > PLANTED);
  double waited = gaps_of(trace, RF_GAP_SLOW_RANK, -1) + gaps_of(trace, RF_GAP_NETWORK, -1);
  if (strcmp(plant, "even")) assert_true(waited > WAITED);
  for (int s = 0; s < trace->steps; s++) { /* all time has a cause */
    const rf_traced_step *step = &trace->step[s];
    double all = 1e-9 * (double)(step->end - step->begin), sum = step->work + step->phases;
    for (int g = 0; g < RF_GAPS; g++) sum += step->gaps[0][g] + step->gaps[1][g];
    assert_true(step->whole && fabs(sum - all) < 1e-9 * all + 1e-12);
  }
}

static void test_planted_delays(void **state) {
  (void)state;
  rf_error error = {0};
  rf_trace_when when = {1, INT64_MAX, 1};
  rf_record *record = NULL;
  rf_trace *trace = NULL;
  int ranks;
  double seconds, excess, noise;
  assert_int_equal(rf_record_open(&when, 1, &record, &error), RAFTER_OK);
  assert_int_equal(rf_clock_begin(&error), RAFTER_OK);
  rf_waits_begin();
  for (int i = 1; i <= STEPS; i++) {
    rf_record_step(i);
    exchange();
    rf_record_step_end(0);
    rf_waits_step();
  }
  assert_int_equal(rf_waits_gather(5, 5, 1, &error), RAFTER_OK);
  const rf_rank_waits *waits = rf_waits_of_ranks(&ranks, &seconds);
  if (waits) {
    int slowest = rf_waits_slowest(waits, ranks, &excess, &noise), last = ranks - 1;
    for (int r = 0; r < last; r++) { /* seconds of the other ranks, by cause */
      if (!strcmp(plant, "slow")) assert_true(waits[r].late > PLANTED);
      if (!strcmp(plant, "network")) assert_true(waits[r].network > PLANTED);
      if (strcmp(plant, "even")) assert_true(waits[r].late + waits[r].network > WAITED);
      double all = waits[r].work + waits[r].late + waits[r].network + waits[r].between;
      assert_true(waits[r].work > 0 && all > 0);
      if (strcmp(plant, "even")) assert_true(all < 3 * seconds && seconds < 3 * all);
    }
    if (strcmp(plant, "even")) assert_int_equal(slowest, last);
    printf("%s: %d ranks, the slowest is %d by %.1f ms\n", plant, ranks, slowest, 1e3 * excess);
  }
  rf_clock clock;
  assert_int_equal(rf_clock_finish(&clock, &error), RAFTER_OK);
  assert_true(clock.end.ahead == 0 || ranks_link->rank > 0); /* ranks of one machine */
  assert_int_equal(rf_trace_collect(record, NULL, NULL, 0, &trace, &error), RAFTER_OK);
  check_trace(trace);
  rf_trace_free(trace);
  rf_record_close(record);
}

/* The clock of each rank is planted: rank r is r hours ahead, and too fast. */
static int64_t planted_now(void) {
  int64_t now = rf_now_ns(), ahead = (int64_t)3600e9 * ranks_link->rank;
  return now + ahead + now / 100000 * ranks_link->rank;
}

static void test_planted_clocks(void **state) {
  (void)state;
  rf_error error = {0};
  rf_clock_mark begin, end;
  assert_int_equal(rf_clock_measure(ranks_link, planted_now, &begin, &error), RAFTER_OK);
  sleep_for(DELAY_NS);
  assert_int_equal(rf_clock_measure(ranks_link, planted_now, &end, &error), RAFTER_OK);
  rf_clock clock = rf_clock_of(begin, end);
  int64_t mine = rf_now_ns(), shown = planted_now();
  double off = (double)(rf_clock_of_first(&clock, shown) - mine), bound = 2 * rf_clock_error(&clock) + 1e5;
  if (fabs(off) > bound) fail_msg("rank %d: %g ns, bound %g", ranks_link->rank, off, bound);
}

/* ---- starting ranks -------------------------------------------------------------------------- */

static void test_each_library(void **state) {
  static const char *const LIBRARY[] = {"openmpi", "mpich"}, *const WHAT[] = {"slow", "network", "even"};
  char self[4096], folder[4096], command[9000];
  int seen = 0;
  (void)state;
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  self[length < 0 ? 0 : length] = 0;
  snprintf(folder, sizeof folder, "%s", self);
  *strrchr(folder, '/') = 0;
  for (int library = 0; library < 2; library++) {
    snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null && test -f '%s/rafter-mpi-%s.so'",
             LIBRARY[library], folder, LIBRARY[library]);
    if (system(command)) continue;
    for (int ranks = 2; ranks <= 4; ranks += 2)
      for (int w = 0; w < 3; w++) {
        snprintf(command, sizeof command,
                 "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                 "OMPI_MCA_rmaps_base_oversubscribe=1 ASAN_OPTIONS=detect_leaks=0 RAFTER_MPI_SECONDS=60 "
                 "UCX_MEM_MMAP_HOOK_MODE=none " /* as in test_ranks.c */
                 "timeout 120 mpirun.%s -n %d '%s' %s",
                 LIBRARY[library], ranks, self, WHAT[w]);
        if (system(command)) fail_msg("%s with %d ranks of %s", WHAT[w], ranks, LIBRARY[library]);
      }
    seen++;
  }
  if (!seen) skip(); /* ./dev setup --mpi installs MPI */
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_clocks),        cmocka_unit_test(test_one_clock),
      cmocka_unit_test(test_a_trace_moves), cmocka_unit_test(test_slow_ranks),
      cmocka_unit_test(test_each_library),
  };
  rf_error error = {0};
  if (argc < 2) return cmocka_run_group_tests(tests, NULL, NULL);
  plant = argv[1];
  if (rf_link_open(&ranks_link, &error) != RAFTER_OK || !ranks_link) {
    fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  const struct CMUnitTest ranks[] = {cmocka_unit_test(test_planted_delays),
                                     cmocka_unit_test(test_planted_clocks)};
  return cmocka_run_group_tests(ranks, NULL, NULL);
}
