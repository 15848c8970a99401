/* test_compare.c - tests the comparator that all other tests use. Every kind of wrong answer is
 * planted here and must be found. */
#include "support/compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 24, COLUMNS = 24, COUNT = ROWS * COLUMNS };

typedef struct pair {
  rf_dtype dtype;
  double want[COUNT], got[COUNT];
} pair;

static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F64};

static void put(rf_dtype dtype, void *data, int64_t i, double x) {
  if (dtype == RF_F64) ((double *)data)[i] = x;
  else if (dtype == RF_F32) ((float *)data)[i] = (float)x;
  else ((rf_bf16 *)data)[i] = rf_f32_to_bf16((float)x);
}

/* Expected values drawn from a normal distribution, and results that err by at most one rounding of
 * the dtype. */
static void honest(pair *p, rf_dtype dtype) {
  p->dtype = dtype;
  for (int64_t i = 0; i < COUNT; i += 2) {
    uint32_t words[4];
    float normal[2];
    rf_philox(rf_key(7, (uint64_t)dtype, 0), (uint64_t)i, 0, words);
    rf_normal_pair(words[0], words[1], normal);
    for (int64_t k = 0; k < 2; k++) {
      put(dtype, p->want, i + k, (double)normal[k]);
      double wobble = 1.0 + compare_epsilon(dtype) * (2.0 * (double)rf_uniform(words[2 + k]) - 1.0);
      put(dtype, p->got, i + k, compare_load(dtype, p->want, i + k) * wobble);
    }
  }
}

static bool close(const pair *p) {
  return compare_close(p->dtype, p->got, p->want, COUNT, compare_bound_of(p->dtype, RF_F32, 16), NULL);
}

static void swap(pair *p, int64_t i, int64_t k) {
  double a = compare_load(p->dtype, p->got, i), b = compare_load(p->dtype, p->got, k);
  put(p->dtype, p->got, i, b);
  put(p->dtype, p->got, k, a);
}

static void plant_nan(pair *p) { put(p->dtype, p->got, COUNT - 1, NAN); }
static void plant_first_nan(pair *p) { put(p->dtype, p->got, 0, NAN); }
static void plant_infinity(pair *p) { put(p->dtype, p->got, 17, INFINITY); }
static void plant_nan_on_both_sides(pair *p) {
  put(p->dtype, p->got, 3, NAN);
  put(p->dtype, p->want, 3, NAN);
}
static void plant_infinity_on_both_sides(pair *p) {
  put(p->dtype, p->got, 3, INFINITY);
  put(p->dtype, p->want, 3, INFINITY);
}
static void plant_sign(pair *p) {
  for (int64_t i = 0; i < COUNT; i++) put(p->dtype, p->got, i, -compare_load(p->dtype, p->got, i));
}
static void plant_one_sign(pair *p) {
  int64_t largest = 0;
  for (int64_t i = 0; i < COUNT; i++)
    if (fabs(compare_load(p->dtype, p->want, i)) > fabs(compare_load(p->dtype, p->want, largest)))
      largest = i;
  put(p->dtype, p->got, largest, -compare_load(p->dtype, p->got, largest));
}
static void plant_shift(pair *p) {
  size_t row = COLUMNS * (size_t)rf_dtype_bytes(p->dtype);
  memmove((char *)p->got + row, p->got, (ROWS - 1) * row);
}
static void plant_column_shift(pair *p) {
  for (int64_t i = COUNT - 1; i > 0; i--) swap(p, i, i - 1);
}
static void plant_transpose(pair *p) {
  for (int64_t r = 0; r < ROWS; r++)
    for (int64_t c = 0; c < r; c++) swap(p, r * COLUMNS + c, c * COLUMNS + r);
}
static void plant_zeros(pair *p) { memset(p->got, 0, sizeof p->got); }
static void plant_zero_row(pair *p) { memset(p->got, 0, COLUMNS * (size_t)rf_dtype_bytes(p->dtype)); }
static void plant_stale(pair *p) { /* Values that another call would have left in memory. */
  pair other;
  honest(&other, p->dtype);
  for (int64_t i = 0; i < COUNT; i++)
    put(p->dtype, p->got, i, compare_load(p->dtype, other.want, (i * 5 + 1) % COUNT));
}
static void plant_unwritten_last(pair *p) {
  put(p->dtype, p->got, COUNT - 1, 0.0);
  put(p->dtype, p->want, COUNT - 1, 0.5);
}
/* An error of 8 bounds of one element, relative to the largest. */
static void plant_one_element_off(pair *p) {
  double largest = 0;
  for (int64_t i = 0; i < COUNT; i++) largest = fmax(largest, fabs(compare_load(p->dtype, p->want, i)));
  double off = 8 * compare_bound_of(p->dtype, RF_F32, 16).max * largest;
  put(p->dtype, p->got, 100, compare_load(p->dtype, p->got, 100) + off);
}
static void plant_scale(pair *p) {
  double factor = 1.0 + 8 * compare_bound_of(p->dtype, RF_F32, 16).norm;
  for (int64_t i = 0; i < COUNT; i++) put(p->dtype, p->got, i, compare_load(p->dtype, p->got, i) * factor);
}
static void plant_truth_of_zeros(pair *p) {
  memset(p->want, 0, sizeof p->want);
  memset(p->got, 0, sizeof p->got);
  put(p->dtype, p->got, 5, 1e-30);
}

typedef struct fault {
  const char *name;
  void (*plant)(pair *p);
} fault;
static const fault faults[] = {
    {"NaN", plant_nan},
    {"NaN first", plant_first_nan},
    {"infinity", plant_infinity},
    {"NaN on both sides", plant_nan_on_both_sides},
    {"infinity on both sides", plant_infinity_on_both_sides},
    {"wrong sign", plant_sign},
    {"one wrong sign", plant_one_sign},
    {"shifted by a row", plant_shift},
    {"shifted by a column", plant_column_shift},
    {"transposed", plant_transpose},
    {"zeroed", plant_zeros},
    {"one row zeroed", plant_zero_row},
    {"stale", plant_stale},
    {"last element unwritten", plant_unwritten_last},
    {"one element off", plant_one_element_off},
    {"all scaled", plant_scale},
    {"truth of zeros", plant_truth_of_zeros},
};

static void test_honest_answers_pass(void **state) {
  (void)state;
  for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
    pair p;
    honest(&p, dtypes[d]);
    assert_true(close(&p));
    memcpy(p.got, p.want, sizeof p.got);
    assert_true(close(&p));
    assert_true(compare_equal(p.dtype, p.got, p.want, COUNT, NULL));
    memset(p.want, 0, sizeof p.want);
    memset(p.got, 0, sizeof p.got);
    assert_true(close(&p));
  }
}

static void test_every_planted_fault_is_caught(void **state) {
  (void)state;
  for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
      pair p;
      honest(&p, dtypes[d]);
      faults[f].plant(&p);
      if (close(&p)) fail_msg("%s: '%s' passed the comparator", rf_dtype_name(dtypes[d]), faults[f].name);
      if (compare_equal(p.dtype, p.got, p.want, COUNT, NULL))
        fail_msg("%s: '%s' passed as equal", rf_dtype_name(dtypes[d]), faults[f].name);
    }
}

static void test_one_bit_is_a_difference(void **state) {
  (void)state;
  for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
    pair p;
    honest(&p, dtypes[d]);
    memcpy(p.got, p.want, sizeof p.got);
    int64_t bytes = COUNT * rf_dtype_bytes(p.dtype);
    ((unsigned char *)p.got)[bytes - rf_dtype_bytes(p.dtype)] ^= 1;
    compare_report report;
    assert_false(compare_equal(p.dtype, p.got, p.want, COUNT, &report));
    assert_int_equal(report.at, COUNT - 1);
  }
}

static void test_integers_must_be_equal(void **state) {
  (void)state;
  int32_t want[] = {1, -1, 50256}, got[] = {1, -1, 50257};
  compare_report report;
  assert_false(compare_close(RF_I32, got, want, 3, (compare_bound){1, 1}, &report));
  assert_int_equal(report.at, 2);
  assert_true(compare_close(RF_I32, want, want, 3, (compare_bound){0, 0}, NULL));
}

static void test_bounds_come_from_the_arithmetic(void **state) {
  (void)state;
  assert_true(compare_epsilon(RF_F32) == 0x1p-24 && compare_epsilon(RF_BF16) == 0x1p-8 &&
              compare_epsilon(RF_F64) == 0x1p-53);
  compare_bound one = compare_bound_of(RF_F32, RF_F32, 1), many = compare_bound_of(RF_F32, RF_F32, 1 << 20);
  assert_true(one.norm < 1e-6 && many.norm > 100 * one.norm && many.norm < 1e-3);
  assert_true(compare_bound_of(RF_BF16, RF_F32, 64).norm < 0.01);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_honest_answers_pass),
      cmocka_unit_test(test_every_planted_fault_is_caught),
      cmocka_unit_test(test_one_bit_is_a_difference),
      cmocka_unit_test(test_integers_must_be_equal),
      cmocka_unit_test(test_bounds_come_from_the_arithmetic),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
