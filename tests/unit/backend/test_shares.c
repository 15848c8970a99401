/* test_shares.c - threads take items from shared parts. Each item is taken once, by any thread. */
#include "backend/cpu/shares.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { MAX = 5000 };
static const int64_t COUNTS[] = {0, 1, 2, 5, 63, 64, 65, 1000, MAX};
static const int AT_ONCE[] = {1, 2, 4};

static void test_every_item_is_taken_once(void **state) {
  (void)state;
  static const int threads[] = {1, 2, 3, 7, 16};
  for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
    for (size_t c = 0; c < sizeof COUNTS / sizeof *COUNTS; c++) {
      for (size_t m = 0; m < sizeof AT_ONCE / sizeof *AT_ONCE; m++) {
        static _Atomic int taken[MAX];
        memset((void *)taken, 0, sizeof taken);
        rf_shares shares;
        rf_shares_cut(&shares, COUNTS[c], threads[t]);
#pragma omp parallel num_threads(threads[t])
        {
          int64_t first;
          for (int count; (count = rf_shares_take(&shares, omp_get_thread_num(), AT_ONCE[m], &first));)
            for (int i = 0; i < count; i++) atomic_fetch_add(&taken[first + i], 1);
        }
        for (int64_t i = 0; i < MAX; i++) assert_int_equal(taken[i], i < COUNTS[c]);
      }
    }
  }
}

/* A thread takes its own part in ascending order, then other parts in descending order. This also
 * holds if there are more threads than parts, or if fewer threads run than were requested. */
static void test_own_part_comes_first_and_upwards(void **state) {
  (void)state;
  static const int threads[] = {2, 3, 64, 200};
  for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
    rf_shares shares;
    rf_shares_cut(&shares, MAX, threads[t]);
    int parts = threads[t] < RF_SHARES_MAX ? threads[t] : RF_SHARES_MAX, me = threads[t] - 1;
    int64_t first, seen = 0, taken = 0;
    for (int turn = 0; turn < parts; turn++) {
      int part = (me + turn) % parts;
      int64_t begin = (int64_t)MAX * part / parts, end = (int64_t)MAX * (part + 1) / parts;
      for (int64_t left = begin; left < end; left += seen, taken += seen) {
        seen = rf_shares_take(&shares, me, 4, &first);
        assert_int_equal(seen, (end - left + 1) / 2 < 4 ? (end - left + 1) / 2 : 4); /* fewer at the end */
        assert_int_equal(first, turn ? begin + end - left - seen : left);
      }
    }
    assert_int_equal(taken, MAX);
    assert_int_equal(rf_shares_take(&shares, me, 4, &first), 0);
  }
}

/* A thread takes several items at a time only if it can come back at least eight times. */
static void test_few_items_go_one_by_one(void **state) {
  (void)state;
  assert_int_equal(rf_shares_at_once(31, 2, 2), 1);
  assert_int_equal(rf_shares_at_once(32, 2, 2), 2);
  assert_int_equal(rf_shares_at_once(63, 4, 2), 2);
  assert_int_equal(rf_shares_at_once(64, 4, 2), 4);
  assert_int_equal(rf_shares_at_once(0, 4, 200), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_item_is_taken_once),
      cmocka_unit_test(test_own_part_comes_first_and_upwards),
      cmocka_unit_test(test_few_items_go_one_by_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
