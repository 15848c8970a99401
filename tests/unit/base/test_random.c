/* test_random.c - compares the generator with the vectors published with Random123 (kat_vectors:
 * philox4x32 10), and tests the numbers made from its words. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void known_answers(void **state) {
  (void)state;
  static const struct {
    uint64_t key, low, high;
    uint32_t word[4];
  } row[] = {
      {0, 0, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
      {~0ull, ~0ull, ~0ull, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
      {0x299f31d0a4093822ull,
       0x85a308d3243f6a88ull,
       0x0370734413198a2eull,
       {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    uint32_t word[4];
    rf_philox(row[i].key, row[i].low, row[i].high, word);
    assert_memory_equal(word, row[i].word, sizeof word);
    /* Another key must give other words. */
    rf_philox(row[i].key ^ 1, row[i].low, row[i].high, word);
    assert_memory_not_equal(word, row[i].word, sizeof word);
  }
}

static void uniform_is_24_bits_below_one(void **state) {
  (void)state;
  assert_true(rf_uniform(0) == 0.0f && rf_uniform(255) == 0.0f);
  assert_true(rf_uniform(256) == 0x1p-24f);
  assert_true(rf_uniform(UINT32_MAX) == 1.0f - 0x1p-24f);
}

static void normal_pairs_are_those_of_the_formula(void **state) {
  (void)state;
  double sum = 0, square = 0, fourth = 0, cross = 0;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    uint32_t word[4];
    rf_philox(7, (uint64_t)i, 0, word);
    if (i < 2) word[0] = i ? UINT32_MAX : 0;
    float pair[2];
    rf_normal_pair(word[0], word[1], pair);
    double radius = sqrt(-2.0 * log(((double)word[0] + 1.0) * 0x1p-32)),
           angle = 2.0 * acos(-1.0) * (((double)word[1]) * 0x1p-32 - 0.125);
    double truth[2] = {radius * cos(angle), radius * sin(angle)};
    for (int j = 0; j < 2; ++j) {
      assert_true(fabs(pair[j] - truth[j]) <= 1e-7 * (1.0 + fabs(truth[j])));
      sum += pair[j];
      square += (double)pair[j] * pair[j];
      fourth += (double)pair[j] * pair[j] * pair[j] * pair[j];
    }
    cross += (double)pair[0] * pair[1];
  }
  double draws = 2.0 * n; /* bounds: five standard errors */
  assert_true(fabs(sum / draws) < 5.0 / sqrt(draws));
  assert_true(fabs(square / draws - 1.0) < 5.0 * sqrt(2.0 / draws));
  assert_true(fabs(fourth / draws - 3.0) < 5.0 * sqrt(96.0 / draws));
  assert_true(fabs(cross / n) < 5.0 / sqrt(n));
}

static void keys_differ(void **state) {
  (void)state;
  enum { SIDE = 12 };
  uint64_t key[SIDE * SIDE * SIDE];
  int n = 0;
  for (uint64_t s = 0; s < SIDE; ++s)
    for (uint64_t a = 0; a < SIDE; ++a)
      for (uint64_t b = 0; b < SIDE; ++b) key[n++] = rf_key(s, a, b);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < i; ++j) assert_true(key[i] != key[j] && (uint32_t)key[i] != (uint32_t)key[j] + 1);
  /* published values of FNV-1a */
  assert_true(rf_name_key("") == 0xCBF29CE484222325u && rf_name_key("a") == 0xAF63DC4C8601EC8Cu);
  assert_true(rf_name_key("foobar") == 0x85944171F73967E8u);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_answers),
      cmocka_unit_test(uniform_is_24_bits_below_one),
      cmocka_unit_test(normal_pairs_are_those_of_the_formula),
      cmocka_unit_test(keys_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
