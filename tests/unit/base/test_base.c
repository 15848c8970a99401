/* test_base.c - tests errors, element types and memory. */
#include "base/base.h"
#include "base/text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void an_error_says_what_where_and_what_to_do(void **state) {
  (void)state;
  rf_error error;
  assert_int_equal(RF_FAIL(&error, RAFTER_INVALID, "turn it off", "%s is %d", "x", 3), RAFTER_INVALID);
  assert_int_equal(error.status, RAFTER_INVALID);
  assert_string_equal(error.message, "x is 3");
  assert_string_equal(error.hint, "turn it off");
  assert_true(strncmp(error.source, "tests/unit/base/test_base.c:", 28) == 0);
  /* The old message may be part of the new one. */
  RF_FAIL(&error, RAFTER_FAILED, NULL, "reading: %s", error.message);
  assert_string_equal(error.message, "reading: x is 3");
  assert_string_equal(error.hint, "");
  char longer[4096];
  memset(longer, 'y', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  RF_FAIL(&error, RAFTER_FAILED, longer, "%s", longer);
  assert_int_equal(strlen(error.message), sizeof error.message - 1);
  assert_int_equal(strlen(error.hint), sizeof error.hint - 1);
  assert_int_equal(RF_FAIL(NULL, RAFTER_FAILED, NULL, "nobody listens"), RAFTER_FAILED);
}

static void dtypes_have_names_and_sizes(void **state) {
  (void)state;
  for (int d = 0; d < RF_PACKED; ++d) { /* The last dtype is never looked up by name. */
    rf_dtype back = RF_DTYPES;
    assert_true(rf_dtype_bytes((rf_dtype)d) > 0);
    assert_int_equal(rf_dtype_parse(rf_dtype_name((rf_dtype)d), &back, NULL), RAFTER_OK);
    assert_int_equal(back, d);
  }
  rf_error error;
  rf_dtype untouched = RF_I8;
  assert_int_equal(rf_dtype_parse("float", &untouched, &error), RAFTER_INVALID);
  assert_int_equal(untouched, RF_I8);
}

/* Every half is compared with its definition. Narrowing is compared with the nearest half, found by
 * looking at both neighbours. */
static double half_value(uint16_t x) {
  int exponent = x >> 10 & 31, mantissa = x & 1023;
  double magnitude = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
  return x & 0x8000 ? -magnitude : magnitude;
}

static void halves_round_to_nearest_even(void **state) {
  (void)state;
  for (uint32_t x = 0; x < 65536; ++x) {
    float f = rf_f16_to_f32((uint16_t)x);
    if ((x & 0x7c00) == 0x7c00) {
      assert_true((x & 0x3ff) ? isnan(f) : isinf(f));
      if (x & 0x3ff) assert_true((rf_f32_to_f16(f) & 0x7c00) == 0x7c00 && (rf_f32_to_f16(f) & 0x3ff) != 0);
      continue;
    }
    assert_true((double)f == half_value((uint16_t)x));
    assert_int_equal(rf_f32_to_f16(f), x);
    uint16_t next = (uint16_t)(x + 1);
    if ((next & 0x7c00) == 0x7c00) continue;
    double middle = (half_value((uint16_t)x) + half_value(next)) / 2;
    assert_int_equal(rf_f32_to_f16((float)middle), x & 1 ? next : x);
    assert_int_equal(rf_f32_to_f16(nextafterf((float)middle, (float)half_value((uint16_t)x))), x);
    assert_int_equal(rf_f32_to_f16(nextafterf((float)middle, (float)half_value(next))), next);
  }
  assert_int_equal(rf_f32_to_f16(65519.0f), 0x7bff);
  assert_int_equal(rf_f32_to_f16(65520.0f), 0x7c00);
  assert_int_equal(rf_f32_to_f16(-INFINITY), 0xfc00);
}

static void bfloat16_rounds_to_nearest_even(void **state) {
  (void)state;
  for (uint32_t x = 0; x < 65536; ++x) {
    float f = rf_bf16_to_f32((rf_bf16)x);
    if (isnan(f)) {
      assert_true(isnan(rf_bf16_to_f32(rf_f32_to_bf16(f))));
      continue;
    }
    assert_int_equal(rf_f32_to_bf16(f), x);
    if ((x & 0x7f80) == 0x7f80) continue;
    union {
      uint32_t u;
      float f;
    } below = {.u = x << 16 | 0x7fff}, middle = {.u = x << 16 | 0x8000}, above = {.u = x << 16 | 0x8001};
    assert_int_equal(rf_f32_to_bf16(below.f), x);
    assert_int_equal(rf_f32_to_bf16(middle.f), x + (x & 1));
    assert_int_equal(rf_f32_to_bf16(above.f), x + 1);
  }
  union {
    uint32_t u;
    float f;
  } nan = {.u = 0x7f800001u}; /* Its upper half alone would read as infinity. */
  assert_true(isnan(rf_bf16_to_f32(rf_f32_to_bf16(nan.f))));
}

static void pages_are_aligned_and_zero(void **state) {
  (void)state;
  const size_t sizes[] = {1, 4096, (2u << 20) - 1, (8u << 20) + 12345};
  for (int i = 0; i < 4; ++i) {
    void *base = NULL;
    size_t huge = 1;
    assert_int_equal(rf_pages_map(sizes[i], &base, &huge, NULL), RAFTER_OK);
    assert_int_equal((uintptr_t)base % (2u << 20), 0);
    assert_true(huge <= sizes[i] + 4096);
    unsigned char *byte = base;
    for (size_t j = 0; j < sizes[i]; j += 511) assert_int_equal(byte[j], 0);
    memset(base, 0xff, sizes[i]);
    rf_pages_unmap(base, sizes[i]);
  }
}

static void memory_that_is_not_there_is_refused(void **state) {
  (void)state;
  int64_t available = rf_memory_available();
  assert_true(available > 0);
  rf_error error = {0};
  void *base = (void *)&error;
  assert_int_equal(rf_pages_map((size_t)available * 2, &base, NULL, &error), RAFTER_FAILED);
  assert_true(strstr(error.message, "GiB") != NULL && error.hint[0] != 0);
  assert_ptr_equal(base, &error);
  assert_int_equal(rf_pages_map((size_t)1 << 62, &base, NULL, &error), RAFTER_FAILED);
  assert_int_equal(rf_pages_map(SIZE_MAX, &base, NULL, &error), RAFTER_FAILED);
  assert_int_equal(rf_pages_map(0, &base, NULL, &error), RAFTER_FAILED);
}

static void a_pool_gives_zeroed_aligned_memory(void **state) {
  (void)state;
  rf_pool *pool = rf_pool_new();
  unsigned char *block[400];
  size_t size[400];
  for (int i = 0; i < 400; ++i) {
    size[i] = (size_t)(i % 17 == 0 ? i * 1000 : i * 3);
    block[i] = rf_pool_alloc(pool, size[i]);
    assert_int_equal((uintptr_t)block[i] % 16, 0);
    for (size_t j = 0; j < size[i]; ++j) assert_int_equal(block[i][j], 0);
    memset(block[i], i & 255, size[i]);
  }
  for (int i = 0; i < 400; ++i)
    for (size_t j = 0; j < size[i]; ++j) assert_int_equal(block[i][j], i & 255);
  assert_string_equal(rf_pool_format(pool, "block.%d/%s", 3, "mlp"), "block.3/mlp");
  rf_pool_free(pool);
  rf_pool_free(NULL);
}

/* Below a factor of 2, times differ by a percentage of time. From 2 on, by a factor. */
static void test_speeds_in_words(void **state) {
  (void)state;
  char text[32];
  const struct {
    double before, after;
    const char *speed, *ratio;
  } rows[] = {{191, 16.3, "11.7 x faster", "1/11.7"},  {1, 0.877, "12.3 % less time", "-12.3 %"},
              {1, 1.005, "0.5 % more time", "+0.5 %"}, {633, 2530, "4.00 x slower", "4.00 x"},
              {2, 1, "2.00 x faster", "1/2.00"},       {1, 1, "0.0 % more time", "+0.0 %"},
              {1, 250, "250 x slower", "250 x"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_string_equal(rf_text_speed(rows[i].before, rows[i].after, text), rows[i].speed);
    assert_string_equal(rf_text_ratio(rows[i].before, rows[i].after, text), rows[i].ratio);
  }
  assert_string_equal(rf_text_ratio(1, 0.9999, text), "+0.0 %"); /* not -0.0 */
  assert_string_equal(rf_plural(0), "s");
  assert_string_equal(rf_plural(1), "");
  assert_string_equal(rf_plural(2), "s");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_speeds_in_words),
      cmocka_unit_test(an_error_says_what_where_and_what_to_do),
      cmocka_unit_test(dtypes_have_names_and_sizes),
      cmocka_unit_test(halves_round_to_nearest_even),
      cmocka_unit_test(bfloat16_rounds_to_nearest_even),
      cmocka_unit_test(pages_are_aligned_and_zero),
      cmocka_unit_test(memory_that_is_not_there_is_refused),
      cmocka_unit_test(a_pool_gives_zeroed_aligned_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
