/* test_quant.c - compares storage types bit by bit with blocks of an independent implementation,
 * and tests quantizers by their error. */
#include "base/file.h"
#include "formats/quant.h"
#include "formats/quant_k_search.h"
#include "support/quant_k_plain.h"
#include "support/quant_plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- goldens; tests/data/quant/make.py defines them ------------------------------------------ */

typedef struct golden {
  const rf_quant_type *type;
  uint32_t what, values, bytes;
  float *value;         /* aligned copies */
  unsigned char *block; /* exactly as long as needed, so that a sanitizer sees every byte past the end */
} golden;

enum { DEQUANTIZED, QUANTIZED };

static int read_goldens_of(const char *path, golden *all, int n, int most) {
  char *text;
  size_t bytes, at = 0;
  rf_error error;
  assert_int_equal(rf_file_read(path, 1 << 20, &text, &bytes, &error), RAFTER_OK);
  while (at < bytes && n < most) {
    uint32_t head[4];
    memcpy(head, text + at, 16);
    at += 16;
    golden *g = &all[n++];
    *g = (golden){rf_quant_type_of(head[1]), head[0], head[2], head[3], malloc(head[2] * 4), malloc(head[3])};
    memcpy(g->value, text + at, head[2] * 4);
    at += head[2] * 4;
    memcpy(g->block, text + at, head[3]);
    at += head[3];
  }
  assert_int_equal(at, bytes);
  free(text);
  return n;
}
static int read_goldens(golden *all, int most) {
  int n = read_goldens_of(RF_TEST_DATA "/quant/blocks.bin", all, 0, most);
  return read_goldens_of(RF_TEST_DATA "/quant/int8.bin", all, n, most);
}

static void free_goldens(golden *all, int n) {
  for (int i = 0; i < n; ++i) {
    free(all[i].value);
    free(all[i].block);
  }
}

static void check_bits(const golden *g, const float *got) {
  for (uint32_t k = 0; k < g->values; ++k)
    if (memcmp(&got[k], &g->value[k], 4) != 0)
      fail_msg("%s value %u: expected %a, got %a", g->type->name, k, (double)g->value[k], (double)got[k]);
}

static void test_dequantize_goldens(void **state) {
  (void)state;
  golden all[64];
  int n = read_goldens(all, 64), seen = 0;
  for (int i = 0; i < n; ++i) {
    golden *g = &all[i];
    if (g->what != DEQUANTIZED) continue;
    assert_int_equal(
        (uint32_t)g->type->head + g->values / (uint32_t)g->type->values * (uint32_t)g->type->bytes, g->bytes);
    float *out = malloc(g->values * 4);
    g->type->dequantize(g->block, g->values / g->type->values, out);
    check_bits(g, out);
    free(out);
    ++seen;
  }
  assert_int_equal(seen, 13 + 8);
  free_goldens(all, n);
}

static void test_quantize_goldens(void **state) {
  (void)state;
  golden all[64];
  int n = read_goldens(all, 64), seen = 0;
  for (int i = 0; i < n; ++i) {
    golden *g = &all[i];
    if (g->what != QUANTIZED) continue;
    unsigned char *out = malloc(g->bytes);
    g->type->quantize(g->value, g->values / g->type->values, out);
    for (uint32_t k = 0; k < g->bytes; ++k)
      if (out[k] != g->block[k])
        fail_msg("%s block %u byte %u: expected %02x, got %02x", g->type->name, k / (uint32_t)g->type->bytes,
                 k % (uint32_t)g->type->bytes, g->block[k], out[k]);
    free(out);
    ++seen;
  }
  assert_int_equal(seen, 6 + 9);
  free_goldens(all, n);
}

/* Every bit of a block matters: flipping it changes some value, unless the bit has no meaning
 * there. */
static void test_goldens_notice_a_flipped_bit(void **state) {
  (void)state;
  golden all[64];
  int n = read_goldens(all, 64);
  for (int i = 0; i < n; ++i) {
    golden *g = &all[i];
    if (g->what != DEQUANTIZED) continue;
    float *out = malloc(g->values * 4);
    int last = (int)g->bytes - g->type->bytes; /* The last block has ordinary scales. */
    for (int bit = 0; bit < g->type->bytes * 8; bit += 7) {
      g->block[last + bit / 8] ^= (unsigned char)(1 << bit % 8);
      g->type->dequantize(g->block, g->values / g->type->values, out);
      assert_int_not_equal(memcmp(out, g->value, g->values * 4), 0);
      g->block[last + bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (int bit = 0; bit < g->type->head * 8; bit++) {
      g->block[bit / 8] ^= (unsigned char)(1 << bit % 8);
      g->type->dequantize(g->block, g->values / g->type->values, out);
      assert_int_not_equal(memcmp(out, g->value, g->values * 4), 0);
      g->block[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    free(out);
  }
  free_goldens(all, n);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static void test_any_range_is_the_same_values(void **state) {
  (void)state;
  golden all[64];
  int n = read_goldens(all, 64);
  rf_error error;
  for (int i = 0; i < n; ++i) {
    golden *g = &all[i];
    if (g->what != DEQUANTIZED || g->type->head) continue; /* for blocks from files only */
    unsigned char *odd = malloc(g->bytes + 1);             /* Blocks need not be aligned. */
    memcpy(odd + 1, g->block, g->bytes);
    rf_quant_tensor tensor = {"t", g->type, 1, {g->values}, g->values, g->bytes, odd + 1};
    uint64_t draw = 12345;
    for (int trial = 0; trial < 200; ++trial) {
      draw = draw * 6364136223846793005u + 1442695040888963407u;
      int64_t first = (int64_t)(draw >> 33) % g->values,
              count = (int64_t)(draw >> 20) % (g->values - first + 1);
      float *out = malloc((size_t)count * 4 + 1);
      assert_int_equal(rf_quant_read(&tensor, first, count, out, &error), RAFTER_OK);
      assert_memory_equal(out, g->value + first, (size_t)count * 4);
      free(out);
    }
    float one;
    assert_int_equal(rf_quant_read(&tensor, g->values, 0, &one, &error), RAFTER_OK);
    assert_int_equal(rf_quant_read(&tensor, g->values, 1, &one, &error), RAFTER_FAILED);
    assert_int_equal(rf_quant_read(&tensor, -1, 1, &one, &error), RAFTER_FAILED);
    assert_int_equal(rf_quant_read(&tensor, 0, -1, &one, &error), RAFTER_FAILED);
    assert_int_equal(rf_quant_read(&tensor, 1, INT64_MAX, &one, &error), RAFTER_FAILED);
    free(odd);
  }
  free_goldens(all, n);
  rf_quant_tensor unread = {"t", rf_quant_type_named("iq4_xs"), 1, {256}, 256, 136, ""};
  float one;
  assert_int_equal(rf_quant_read(&unread, 0, 1, &one, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "iq4_xs"));
}

/* ---- the table ------------------------------------------------------------------------------- */

static void test_table(void **state) {
  (void)state;
  for (int i = 0; i < RF_QUANT_TYPE_COUNT; ++i) {
    const rf_quant_type *type = &RF_QUANT_TYPES[i];
    assert_ptr_equal(rf_quant_type_of(type->number), type);
    assert_ptr_equal(rf_quant_type_named(type->name), type);
    assert_true(type->values > 0 && type->values <= RF_QUANT_BLOCK_MAX && type->bytes > 0);
    assert_true(type->values == 1 || !type->quantize || type->fallback >= 0);
    const rf_quant_type *fit = rf_quant_fit(type, 31); /* The chain of fallback types ends. */
    assert_true(!type->quantize || fit->values == 1);
  }
  assert_null(rf_quant_type_of(4)); /* removed from the format */
  assert_null(rf_quant_type_of(-1));
  assert_ptr_equal(rf_quant_type_named("Q4_K"), rf_quant_type_of(RF_Q_Q4_K));
  assert_null(rf_quant_type_named("q4"));
  assert_string_equal(rf_quant_fit(rf_quant_type_named("q4_k"), 512)->name, "q4_k");
  assert_string_equal(rf_quant_fit(rf_quant_type_named("q4_k"), 576)->name, "q5_0");
  assert_string_equal(rf_quant_fit(rf_quant_type_named("q4_k"), 33)->name, "f16");
}

/* ---- quantizers ------------------------------------------------------------------------------ */

static double error_of(const rf_quant_type *type, const float *x, int count) {
  unsigned char *blocks = malloc((size_t)(type->head + count / type->values * type->bytes));
  float *y = malloc((size_t)count * 4);
  double wrong = 0, all = 0;
  type->quantize(x, count / type->values, blocks);
  type->dequantize(blocks, count / type->values, y);
  for (int i = 0; i < count; ++i) {
    assert_true(isfinite(y[i]));
    wrong += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    all += (double)x[i] * x[i];
  }
  free(blocks);
  free(y);
  return sqrt(wrong / all);
}

/* Root mean square error over root mean square of standard normal values. The bounds of the K types
 * are 3 % above the error of a block with as many levels and ideal scales. The bound of int8 is a
 * step of 4.4 / 127 for all values. A uniform quantizer over +-k sigma with 2^b levels has
 * 2k/2^b/sqrt(12). */
static void test_errors_on_normal_values(void **state) {
  (void)state;
  enum { COUNT = 256 * 64 };
  static const struct {
    const char *name;
    double most;
  } BOUNDS[] = {{"f16", 2.2e-4}, {"bf16", 1.8e-3}, {"q8_0", 0.0056}, {"int8", 0.0100}, {"q4_0", 0.089},
                {"q4_1", 0.081}, {"q5_0", 0.044},  {"q5_1", 0.039},  {"q2_k", 0.268},  {"q3_k", 0.148},
                {"q4_k", 0.072}, {"q5_k", 0.036},  {"q6_k", 0.0176}};
  float *x = malloc(COUNT * 4);
  for (int i = 0; i < COUNT; i += 2) {
    uint32_t word[4];
    rf_philox(7, (uint64_t)i, 0, word);
    rf_normal_pair(word[0], word[1], x + i);
  }
  for (size_t i = 0; i < sizeof BOUNDS / sizeof *BOUNDS; ++i) {
    double error = error_of(rf_quant_type_named(BOUNDS[i].name), x, COUNT);
    if (!(error <= BOUNDS[i].most))
      fail_msg("%s: error %g, expected at most %g", BOUNDS[i].name, error, BOUNDS[i].most);
    /* The sign and the magnitude do not matter, down to f16's subnormals. */
    for (int k = 0; k < COUNT; ++k) x[k] *= -0.01f;
    double again = error_of(rf_quant_type_named(BOUNDS[i].name), x, COUNT);
    for (int k = 0; k < COUNT; ++k) x[k] *= -100.0f;
    if (!(again <= BOUNDS[i].most * 1.01))
      fail_msg("%s: error %g of small values, %g of large ones", BOUNDS[i].name, again, error);
  }
  free(x);
}

/* Values with an exact form keep it. No value that a file can contain makes a quantizer read or
 * compute something undefined. */
static void test_odd_values(void **state) {
  (void)state;
  float x[256], y[256];
  unsigned char block[256 * 4];
  for (int t = 0; t < RF_QUANT_TYPE_COUNT; ++t) {
    const rf_quant_type *type = &RF_QUANT_TYPES[t];
    if (!type->quantize) continue;
    memset(x, 0, sizeof x);
    type->quantize(x, 256 / type->values, block);
    type->dequantize(block, 256 / type->values, y);
    for (int i = 0; i < 256; ++i) assert_true(y[i] == 0);
    /* -2, -1, 0, 1: every type has levels at these values, or near them. */
    for (int i = 0; i < 256; ++i) x[i] = (float)((i * 7) % 4) - 2;
    type->quantize(x, 256 / type->values, block);
    type->dequantize(block, 256 / type->values, y);
    for (int i = 0; i < 256; ++i) assert_true(fabsf(x[i] - y[i]) <= 0.1f);
    static const float ODD[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 1e-40f, -1e-38f};
    for (int k = 0; k < 8; ++k) {
      for (int i = 0; i < 256; ++i) x[i] = i % 3 ? 0.5f : ODD[k];
      type->quantize(x, 256 / type->values, block);
      for (int i = 0; i < 256; ++i) x[i] = ODD[(i + k) % 8];
      type->quantize(x, 256 / type->values, block);
      for (int i = 0; i < 256; ++i) x[i] = ODD[k];
      type->quantize(x, 256 / type->values, block);
    }
  }
}

/* Compares the searches of this CPU with the search without vectors. */
static void check_searches(const float *x) {
  for (int type = 0; type < RF_K_TYPES; ++type) {
    const rf_k_shape *s = &RF_K_SHAPES[type];
    int blocks = RF_K_LANES / s->subs;
    rf_k_super want[2], got[2];
    for (int i = 0; i < blocks; ++i) plain_search(s, x + i * RF_K_VALUES, &want[i]);
    for (int level = 0; rf_k_search_of(level); ++level) {
      rf_k_search_of(level)(s, x, got);
      if (memcmp(want, got, (size_t)blocks * sizeof *want) != 0)
        fail_msg("q%d_k: the search at level %d differs from the reference", type + 2, level);
    }
  }
}

static void test_searches_give_the_same_bits(void **state) {
  (void)state;
  static const float ODD[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 1e-40f, -1e-38f, 0, -0.0f};
  float x[2 * RF_K_VALUES];
  for (int trial = 0; trial < 200; ++trial) {
    for (int i = 0; i < 2 * RF_K_VALUES; i += 2) {
      uint32_t word[4];
      rf_philox(11, (uint64_t)(trial * 1000 + i), 0, word);
      rf_normal_pair(word[0], word[1], x + i);
      x[i] *= trial % 4 == 1 ? 1e-3f : 1;
      if (trial % 4 == 2) x[i] = fabsf(x[i]);
      if (trial % 4 == 3 && word[2] % 8 == 0) x[i] = ODD[word[3] % 10];
    }
    check_searches(x);
  }
  for (int k = 0; k < 10; ++k) {
    for (int i = 0; i < 2 * RF_K_VALUES; ++i) x[i] = i < RF_K_VALUES + 7 ? ODD[k] : 0.5f;
    check_searches(x);
  }
}

/* Types of one scale, compared with code that handles one value at a time. */
static void check_simple(const float *x) {
  static const struct {
    int type, bits;
    bool offset;
  } TYPES[] = {{RF_Q_Q4_0, 4, false},
               {RF_Q_Q4_1, 4, true},
               {RF_Q_Q5_0, 5, false},
               {RF_Q_Q5_1, 5, true},
               {RF_Q_Q8_0, 8, false}};
  unsigned char block[64], plain[64];
  for (size_t k = 0; k < sizeof TYPES / sizeof *TYPES; ++k) {
    const rf_quant_type *type = rf_quant_type_of(TYPES[k].type);
    type->quantize(x, 1, block);
    rf_plain_quantize(x, TYPES[k].bits, TYPES[k].offset, plain);
    assert_memory_equal(block, plain, (size_t)type->bytes);
  }
}

static void test_simple_types_give_the_same_bits(void **state) {
  (void)state;
  static const float ODD[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 1e-40f, -1e-38f, 0, -0.0f};
  enum { KINDS = 6, BLOCKS = 4000 };
  float x[RF_PLAIN_VALUES];
  uint64_t random = 1;
  for (int k = 0; k < BLOCKS; ++k) {
    for (int i = 0; i < RF_PLAIN_VALUES; ++i) {
      random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
      uint32_t bits = (uint32_t)(random >> 32);
      float small = (float)(int32_t)bits * 0x1p-31f;
      switch (k % KINDS) {
      case 0: x[i] = small; break;                              /* ordinary values */
      case 1: x[i] = (float)((int)(bits >> 24) % 5 - 2); break; /* equal magnitudes */
      case 2: x[i] = bits >> 28 ? 0 : -0.0f; break;             /* zeros of both signs */
      case 3: x[i] = bits >> 31 ? fabsf(small) : bits >> 30 ? 0.0f : -0.0f; break;
      case 4: x[i] = bits >> 29 ? small : ODD[bits % 10]; break; /* a few odd values */
      default: memcpy(&x[i], &bits, sizeof bits);                /* any bits */
      }
    }
    check_simple(x);
  }
}

/* A super-block has the same bytes, whether it is quantized alone or among others. */
static void test_blocks_do_not_depend_on_neighbours(void **state) {
  (void)state;
  enum { BLOCKS = 5 };
  float x[BLOCKS * RF_K_VALUES];
  unsigned char all[BLOCKS * 256], one[256];
  for (int i = 0; i < BLOCKS * RF_K_VALUES; ++i) x[i] = sinf((float)(i * i % 1009));
  for (int number = RF_Q_Q2_K; number <= RF_Q_Q6_K; ++number) {
    const rf_quant_type *type = rf_quant_type_of(number);
    type->quantize(x, BLOCKS, all);
    for (int i = 0; i < BLOCKS; ++i) {
      type->quantize(x + i * RF_K_VALUES, 1, one);
      assert_memory_equal(one, all + i * type->bytes, (size_t)type->bytes);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dequantize_goldens),
      cmocka_unit_test(test_quantize_goldens),
      cmocka_unit_test(test_goldens_notice_a_flipped_bit),
      cmocka_unit_test(test_any_range_is_the_same_values),
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_errors_on_normal_values),
      cmocka_unit_test(test_odd_values),
      cmocka_unit_test(test_searches_give_the_same_bits),
      cmocka_unit_test(test_simple_types_give_the_same_bits),
      cmocka_unit_test(test_blocks_do_not_depend_on_neighbours),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
