/* test_sample_op.c - the op `sample`, which programs of XLA run, chooses the tokens of the sampler.
 * The tests of op programs compare XLA's program with the op's reference. */
#define _GNU_SOURCE
#include "support/op_harness.h"
#include "backend/reference/reference.h"
#include "generate/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 6, ENDS = 2 };

/* Logits with the given number of different values: with few, many are equal. */
static float draw_logit(uint64_t *state, int values) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  double uniform = (double)(*state >> 40) * 0x1p-24;
  return (float)(8 * floor(uniform * values) / values - 3);
}

static float rule_uniform(uint64_t seed, int64_t position) {
  return (float)(floor(rf_sampler_uniform(seed, position) * 0x1p24) * 0x1p-24);
}

/* The number of rows in which the op and the sampler differ. */
static int differences(const rf_sampler_options *o, int64_t vocab, int values, uint64_t seed) {
  float rules[ROWS * RF_RULES];
  int32_t barred[ROWS * ENDS], ends[ENDS] = {1, (int32_t)vocab - 1};
  for (int r = 0; r < ROWS; r++) {
    const float rule[] = {o->temperature, (float)o->top_k, o->top_p, o->min_p, rule_uniform(seed, r)};
    memcpy(rules + r * RF_RULES, rule, sizeof rule);
    for (int i = 0; i < ENDS; i++) barred[r * ENDS + i] = o->ignore_eos ? ends[i] : -1;
  }
  op_harness *h = op_harness_new(RF_F32, ROWS);
  int logits = op_tensor(h, "logits", RF_CLASS_LOGITS, RF_F32, (op_fill){0}, OP_SHAPE(ROWS, vocab)),
      lse = op_tensor(h, "lse", RF_CLASS_LOGITS, RF_F32, (op_fill){0}, OP_SHAPE(ROWS)),
      rule = op_floats(h, "rules", ROWS, RF_RULES, rules), list = op_ids(h, "barred", ROWS * ENDS, barred);
  op_as_matrix(h, list, ROWS, ENDS);
  rf_attr attr = {0};
  int op = op_apply(h, "sample", OP_IDS(logits, lse, rule, list), OP_IDS(RF_WANTED, RF_WANTED), &attr);
  op_fill_all(h, 1);
  uint64_t state = seed;
  for (int64_t i = 0; i < ROWS * vocab; i++) op_set(h, logits, i, (double)draw_logit(&state, values));
  op_run_range(h, op, op + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  rf_sampler_options options = *o;
  options.seed = seed;
  options.eos = ends;
  options.eos_count = ENDS;
  rf_sampler sampler;
  assert_int_equal(rf_sampler_open(&options, vocab, &sampler, NULL), RAFTER_OK);
  int wrong = 0;
  for (int r = 0; r < ROWS; r++) {
    rf_logprobs out = {0};
    int32_t id;
    const float *row = (const float *)op_data(h, logits) + r * vocab;
    assert_int_equal(rf_sampler_choose(&sampler, row, r, &id, &out, NULL), RAFTER_OK);
    wrong += id != (int32_t)op_get(h, op_output(h, op, 0), r);
  }
  rf_sampler_close(&sampler);
  op_harness_free(h);
  return wrong;
}

static void the_op_chooses_what_the_sampler_chooses(void **state) {
  (void)state;
  static const rf_sampler_options OPTIONS[] = {
      {.temperature = 0, .top_p = 1},
      {.temperature = 1, .top_p = 1},
      {.temperature = 0.7f, .top_p = 1, .top_k = 5},
      {.temperature = 1, .top_p = 0.83f},
      {.temperature = 2, .top_p = 1, .min_p = 0.13f},
      {.temperature = 1.5f, .top_p = 0.77f, .top_k = 20, .min_p = 0.03f},
      {.temperature = 1, .top_p = 1, .ignore_eos = true},
      {.temperature = 0, .top_p = 1, .ignore_eos = true},
      {.temperature = 1, .top_p = 0.91f, .top_k = 3, .ignore_eos = true},
  };
  enum { COUNT = sizeof OPTIONS / sizeof *OPTIONS, SEEDS = 12 };
  static const int64_t VOCABS[] = {5, 64, 333};
  int wrong = 0;
  for (int i = 0; i < COUNT; i++)
    for (int v = 0; v < 3; v++)
      for (uint64_t seed = 1; seed <= SEEDS; seed++)
        wrong += differences(&OPTIONS[i], VOCABS[v], seed % 2 ? 6 : 1 << 20, seed);
  assert_int_equal(wrong, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_op_chooses_what_the_sampler_chooses)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
