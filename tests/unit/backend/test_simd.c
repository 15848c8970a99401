/* test_simd.c - vectors of sixteen lanes are near libm's doubles, and have the same bits on every
 * instruction set of this machine. */
#include "backend/cpu/dropout.h"
#include "backend/cpu/simd_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { COUNT = 200003 }; /* not a multiple of sixteen */
static float a[COUNT], b[COUNT], c[COUNT], got[COUNT], want[COUNT];

static uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static float from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* Fills x with all magnitudes and both signs, with special values first. */
static void fill_all_magnitudes(float *x, uint64_t key) {
  static const float special[] = {0.0f,      -0.0f,     INFINITY,      -INFINITY,      NAN,     1e-45f,
                                  -1e-45f,   0x1p-126f, 3.4028235e38f, -3.4028235e38f, 1.0f,    -1.0f,
                                  88.72283f, 88.72284f, -87.33f,       -87.34f,        -103.0f, 0.55f,
                                  30.0f,     -30.0f,    0x1.fffffep-1f};
  enum { SPECIAL = sizeof special / sizeof special[0] };
  for (int i = 0; i < COUNT; i += 4) {
    uint32_t words[4];
    rf_philox(key, (uint64_t)i, 0, words);
    for (int k = 0; k < 4 && i + k < COUNT; k++) x[i + k] = from_bits(words[k]);
  }
  for (int i = 0; i < SPECIAL * SPECIAL; i++) x[i] = special[key == 1 ? i % SPECIAL : i / SPECIAL];
}
static void fill_range(float *x, double low, double high) {
  for (int i = 0; i < COUNT; i++) x[i] = (float)(low + (high - low) * i / (COUNT - 1));
}

static void test_all_isas_give_the_same_bits(void **state) {
  (void)state;
  fill_all_magnitudes(a, 1);
  fill_all_magnitudes(b, 2);
  fill_all_magnitudes(c, 3);
  for (int set = 0; set < 2; set++) { /* In the second set, numbers have ordinary magnitudes. */
    for (rf_simd_function f = 0; f < RF_SIMD_FUNCTIONS; f++) {
      /* Sine and cosine are defined below 1e5. */
      if (set == 0 && (f == RF_SIMD_SIN || f == RF_SIMD_COS)) continue;
      assert_true(rf_simd_map(RF_ISA_BASE, f, a, b, c, want, COUNT));
      for (rf_isa isa = RF_ISA_AVX2; isa <= rf_isa_detect(); isa++) {
        assert_true(rf_simd_map(isa, f, a, b, c, got, COUNT));
        for (int i = 0; i < COUNT; i++) {
          bool both_nan = got[i] != got[i] && want[i] != want[i];
          if (!both_nan && bits_of(got[i]) != bits_of(want[i]))
            fail_msg("function %d of (%a, %a, %a): %s gives %a, base %a", (int)f, (double)a[i], (double)b[i],
                     (double)c[i], rf_isa_name(isa), (double)got[i], (double)want[i]);
        }
      }
    }
    fill_range(a, -20.0, 20.0);
    fill_range(b, 1e-4, -1e-4);
    fill_range(c, 3.0, -8.0);
  }
}

/* Accuracy, in units of the last place of the true value. Where a function crosses zero, the unit is
 * that of `floor`. */

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double silu_grad(double x) { return sigmoid(x) + x * sigmoid(x) * sigmoid(-x); }
static double gelu_argument(double u) { return 2.0 * 0.79788456080286535588 * (u + 0.044715 * u * u * u); }
static double gelu(double u) { return u * sigmoid(gelu_argument(u)); }
static double gelu_grad(double u) {
  double z = gelu_argument(u), slope = 2.0 * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * u * u);
  return sigmoid(z) + u * slope * sigmoid(z) * sigmoid(-z);
}

/* Bounds in units of the last place, from the formulas. One rounding of the result is 0.5. Each
 * operation after the exponential adds about 1. An argument that is rounded before the exponential
 * adds its relative error times the argument (gelu: |2 z| up to 87, three roundings). */
static const struct {
  const char *name;
  rf_simd_function f;
  double (*truth)(double x);
  double low, high, floor, ulps;
} ACCURACY[] = {
    {"exp", RF_SIMD_EXP, exp, -87.3, 88.7, 0, 1.0},
    {"exp near 0", RF_SIMD_EXP, exp, -1.0, 1.0, 0, 1.0},
    {"log", RF_SIMD_LOG, log, 1e-3, 1e3, 0, 1.5},
    {"log near 1", RF_SIMD_LOG, log, 0.7, 1.5, 0, 1.5},
    {"log far", RF_SIMD_LOG, log, 1.2e-38, 3e38, 0, 1.5},
    {"tanh", RF_SIMD_TANH, tanh, -10.0, 10.0, 0, 2.0},
    {"tanh near 0", RF_SIMD_TANH, tanh, -0.6, 0.6, 0, 2.0},
    {"sigmoid", RF_SIMD_SIGMOID, sigmoid, -87.0, 87.0, 0, 3.0},
    {"silu", RF_SIMD_SILU, silu, -80.0, 80.0, 0, 3.5},
    {"silu_grad", RF_SIMD_SILU_GRAD, silu_grad, -20.0, 20.0, 0.25, 4.0},
    {"gelu", RF_SIMD_GELU, gelu, -4.0, 4.0, 0, 40.0},
    {"gelu of ordinary size", RF_SIMD_GELU, gelu, -4.0, 4.0, 0.25, 4.0},
    {"gelu_grad", RF_SIMD_GELU_GRAD, gelu_grad, -12.0, 12.0, 0.25, 6.0},
    {"sin", RF_SIMD_SIN, sin, -300.0, 300.0, 1.0, 2.0},
    {"cos", RF_SIMD_COS, cos, -300.0, 300.0, 1.0, 2.0},
    {"sin of far positions", RF_SIMD_SIN, sin, 9e4, 9.9e4, 1.0, 2.0},
    {"cos of far positions", RF_SIMD_COS, cos, 9e4, 9.9e4, 1.0, 2.0},
};

static void test_functions_are_near_the_truth(void **state) {
  (void)state;
  int failures = 0;
  for (size_t k = 0; k < sizeof ACCURACY / sizeof ACCURACY[0]; k++) {
    fill_range(a, ACCURACY[k].low, ACCURACY[k].high);
    memset(b, 0, sizeof b);
    assert_true(rf_simd_map(rf_isa_detect(), ACCURACY[k].f, a, b, b, got, COUNT));
    double worst = 0;
    int at = 0;
    for (int i = 0; i < COUNT; i++) {
      double truth = ACCURACY[k].truth((double)a[i]),
             size = fmax(fmax(fabs(truth), ACCURACY[k].floor), 0x1p-126);
      int exponent;
      frexp(size, &exponent);
      double ulps = fabs((double)got[i] - truth) / ldexp(1.0, exponent - 24);
      if (!(ulps <= worst)) {
        worst = ulps;
        at = i;
      } /* A NaN counts as the largest error. */
    }
    if (worst <= ACCURACY[k].ulps) continue;
    failures++;
    fprintf(stderr, "  %s(%.9g): got %.9g, expected %.9g: %.2f ulp (at most %.2f)\n", ACCURACY[k].name,
            (double)a[at], (double)got[at], ACCURACY[k].truth((double)a[at]), worst, ACCURACY[k].ulps);
  }
  assert_int_equal(failures, 0);
}

static float one(rf_simd_function f, float x) {
  float y, zero = 0.0f;
  assert_true(rf_simd_map(rf_isa_detect(), f, &x, &zero, &zero, &y, 1));
  return y;
}
static void test_edges(void **state) {
  (void)state;
  assert_true(one(RF_SIMD_EXP, -INFINITY) == 0.0f && one(RF_SIMD_EXP, -1e30f) == 0.0f &&
              one(RF_SIMD_EXP, 0.0f) == 1.0f);
  assert_true(one(RF_SIMD_EXP, INFINITY) == INFINITY && one(RF_SIMD_EXP, 89.0f) == INFINITY &&
              isnan(one(RF_SIMD_EXP, NAN)));
  assert_true(isfinite(one(RF_SIMD_EXP, 88.72283f)) && one(RF_SIMD_EXP, -88.0f) == 0.0f);
  assert_true(one(RF_SIMD_LOG, 0.0f) == -INFINITY && one(RF_SIMD_LOG, 1.0f) == 0.0f &&
              one(RF_SIMD_LOG, INFINITY) == INFINITY);
  assert_true(isnan(one(RF_SIMD_LOG, -1.0f)) && isnan(one(RF_SIMD_LOG, NAN)) &&
              isnan(one(RF_SIMD_LOG, -INFINITY)));
  assert_true(one(RF_SIMD_TANH, INFINITY) == 1.0f && one(RF_SIMD_TANH, -INFINITY) == -1.0f &&
              isnan(one(RF_SIMD_TANH, NAN)));
  assert_int_equal(bits_of(one(RF_SIMD_TANH, -0.0f)), bits_of(-0.0f));
  assert_true(one(RF_SIMD_SIGMOID, INFINITY) == 1.0f && one(RF_SIMD_SIGMOID, -INFINITY) == 0.0f &&
              one(RF_SIMD_SIGMOID, 0.0f) == 0.5f);
  assert_true(one(RF_SIMD_GELU, 1e20f) == 1e20f && one(RF_SIMD_GELU, -1e20f) == 0.0f &&
              isnan(one(RF_SIMD_GELU, NAN)));
  assert_true(one(RF_SIMD_GELU_GRAD, 1e20f) == 1.0f && one(RF_SIMD_GELU_GRAD, -1e20f) == 0.0f &&
              isnan(one(RF_SIMD_GELU_GRAD, NAN)));
}

/* Rounding to bf16 equals rf_f32_to_bf16, for all 2^16 upper halves with the lower halves that
 * matter, and for NaNs. */
static void test_bf16_rounds_as_the_scalar(void **state) {
  (void)state;
  static const uint32_t lower[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
  int n = 0;
  for (uint32_t upper = 0; upper < 0x10000; upper++) {
    for (size_t k = 0; k < 3; k++) a[n++] = from_bits(upper << 16 | lower[k + (upper & 1) * 3]);
    if (n + 3 < COUNT && upper < 0xffff) continue;
    for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++) {
      assert_true(rf_simd_map(isa, RF_SIMD_BF16, a, a, a, got, n));
      for (int i = 0; i < n; i++) assert_int_equal(bits_of(got[i]) >> 16, rf_f32_to_bf16(a[i]));
    }
    n = 0;
  }
}

/* The tree of a sum, written out again: lane i += lane i+8, += i+4, += i+2, += i+1. */
static void test_folds_follow_the_tree(void **state) {
  (void)state;
  fill_range(a, -3.0, 1e6);
  for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++) {
    assert_true(rf_simd_map(isa, RF_SIMD_FOLD_SUM, a, a, a, got, COUNT));
    assert_true(rf_simd_map(isa, RF_SIMD_FOLD_MAX, a, a, a, want, COUNT));
    for (int i = 0; i + 16 <= COUNT; i += 16) {
      float lane[16];
      memcpy(lane, a + i, sizeof lane);
      for (int width = 8; width > 0; width /= 2)
        for (int k = 0; k < width; k++) lane[k] = lane[k] + lane[k + width];
      assert_int_equal(bits_of(got[i]), bits_of(lane[0]));
      assert_int_equal(bits_of(want[i]), bits_of(a[i + 15]));
    }
  }
}

/* Storing n lanes writes n values and does not change the bytes after them. */
static void test_pieces_stay_inside(void **state) {
  (void)state;
  float line[48];
  for (int n = 1; n <= 16; n++)
    for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++) {
      for (int i = 0; i < 48; i++) line[i] = (float)i;
      assert_true(rf_simd_map(isa, RF_SIMD_BF16, line, line, line, line + 16, n));
      for (int i = 0; i < 48; i++) assert_true(line[i] == (float)(i >= 16 && i < 16 + n ? i - 16 : i));
    }
}

/* The instruction set of this test draws the words of rf_philox. The tests of dropout kernels cover
 * the others. */
static void test_masks_are_philox(void **state) {
  (void)state;
  static const float probabilities[] = {0.1f, 0.5f, 0x1p-24f, 0.9999f, 1.0f / 3.0f};
  rf_op op = {.attr = {.dropout = {.site = 77}}};
  rf_run_inputs run = {.seed = 5, .step = 9};
  rf_call call = {.op = &op, .run = &run};
  for (size_t k = 0; k < sizeof probabilities / sizeof probabilities[0]; k++) {
    op.attr.dropout.rate = probabilities[k];
    rf_dropout drop = rf_dropout_of(&call);
    int kept = 0;
    for (int64_t token = 0; token < 3000; token += 7)
      for (int64_t channel = 0; channel < 64; channel += 16) {
        uint32_t mask = rf_m16_bits(rf_dropout_keep(&drop, token + (1LL << 33), channel)), words[4];
        rf_m16 pair[2];
        rf_dropout_keep_pair(&drop, token + (1LL << 33), channel & ~31LL, pair);
        assert_int_equal(rf_m16_bits(pair[channel / 16 % 2]), mask);
        for (int lane = 0; lane < 16; lane++) {
          rf_philox(rf_key(5, 9, 77), (uint64_t)(token + (1LL << 33)), (uint64_t)(channel + lane) / 4, words);
          bool keep = rf_uniform(words[lane % 4]) >= op.attr.dropout.rate;
          assert_int_equal(mask >> lane & 1u, keep);
          kept += keep;
        }
      }
    double n = 429 * 64, p = (double)probabilities[k];
    assert_true(fabs(kept - n * (1 - p)) <= 6 * sqrt(n * p * (1 - p)) + 1);
  }
  op.attr.dropout.rate = 0.0f;
  assert_false(rf_dropout_of(&call).active);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_isas_give_the_same_bits),
      cmocka_unit_test(test_functions_are_near_the_truth),
      cmocka_unit_test(test_edges),
      cmocka_unit_test(test_bf16_rounds_as_the_scalar),
      cmocka_unit_test(test_folds_follow_the_tree),
      cmocka_unit_test(test_pieces_stay_inside),
      cmocka_unit_test(test_masks_are_philox),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
