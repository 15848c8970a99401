/* test_packed.c - tests whole models with packed weights. For each --weights, the plan's bytes
 * equal the run's bytes. Forward passes of one row, of few and of many rows give the same bits on
 * every instruction set. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "feeding.h"
#include "model/weights.h"
#include "support/plan/check.h"

enum { TOKENS = 40, CONTEXT = 64 };
static const char PLAIN[] = "llama:layers=2,width=96,heads=6,kv_heads=3,ff=288,vocab=203,seq=64,init=flax";
static const char EXPERTS[] =
    "mixtral:layers=2,width=96,heads=6,kv_heads=3,ff=288,vocab=203,seq=64,experts=4,experts_used=2,init=flax";
static const char *model = PLAIN;
static rf_machine machine;
static rf_weight_types types;

static rf_infer_settings settings_of(rf_weights_as as, rf_isa isa) {
  rf_infer_settings s = {.seed = 3};
  rf_error error;
  if (rf_model_resolve(model, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_weight_types_read("", &s.model, as, &types, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .dtype = RF_F32,
                                       .softmax = RF_F32,
                                       .weights = &types,
                                       .microbatch = 1,
                                       .seq = CONTEXT},
                             .backend = &RF_BACKEND_CPU,
                             .isa = isa,
                             .threads = 2,
                             .machine = &machine};
  return s;
}

/* Logits after TOKENS tokens, fed `step` tokens at a time. */
static void logits_of(rf_weights_as as, rf_isa isa, int64_t step, float *out) {
  rf_infer_settings s = settings_of(as, isa);
  rf_generator *g = NULL;
  rf_error error = {0};
  int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; i++) ids[i] = i * 31 % 203;
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  const float *logits = NULL;
  for (int64_t at = 0; at < TOKENS; at += step)
    logits = feed_or_fail(g, ids + at, at + step < TOKENS ? step : TOKENS - at);
  memcpy(out, logits, 203 * sizeof *out);
  rf_generator_close(g);
}

static void bytes_are_those_of_the_types(void **state) {
  (void)state;
  static const struct {
    rf_weights_as as;
    /* bytes of 32 values of a matrix; of the token table; bytes of the scale of an output */
    int64_t bytes_of_32, table_of_32, scale;
  } rows[] = {{RF_WEIGHTS_F32, 128, 128, 0},
              {RF_WEIGHTS_BF16, 64, 64, 0},
              {RF_WEIGHTS_INT8, 32, 32, 4},
              {RF_WEIGHTS_Q4, 18, 34, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_infer_settings s = settings_of(rows[i].as, rf_isa_detect());
    rf_generator *g = NULL;
    rf_error error = {0};
    if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
    const rf_plan *plans[] = {g->prefill, g->decode};
    /* Rows of the token table and columns of the head are padded to a multiple of sixteen lanes. */
    int64_t want = 0, got = 0, padded = 208;
    bool mixed = model == EXPERTS;
    /* It keeps the dtype of the plan. */
    int64_t block = 96 * 192 + 96 * 96 + (mixed ? 4 : 1) * (96 * 576 + 288 * 96), router = 2 * 96 * 16 * 4;
    int64_t outputs = 2 * (192 + 96 + (mixed ? 4 : 1) * (576 + 96)) + 2 * padded;
    want = rows[i].scale * outputs + (2 * block + 96 * padded) / 32 * rows[i].bytes_of_32 +
           96 * padded / 32 * rows[i].table_of_32 + (mixed ? router : 0);
    for (int t = 0; t < g->decode->graph->tensor_count; t++)
      if (g->decode->graph->tensor[t].dtype == RF_PACKED)
        got += rf_tensor_bytes(&g->decode->graph->tensor[t]);
    assert_int_equal(got, want);
    for (int p = 0; p < 2; p++) {
      int64_t sum = 0;
      if (rf_plan_check(plans[p], &error) != RAFTER_OK) fail_msg("%s", error.message);
      for (int c = 0; c < RF_CLASSES; c++) sum += plans[p]->by_class[c];
      assert_int_equal(sum, plans[p]->arena_bytes);
      assert_true(plans[p]->by_class[RF_CLASS_WEIGHT] > got);
    }
    int64_t most =
        plans[0]->arena_bytes > plans[1]->arena_bytes ? plans[0]->arena_bytes : plans[1]->arena_bytes;
    assert_int_equal(rf_run_arena_bytes(g->run), most);
    rf_generator_close(g);
  }
}

static void bits_do_not_depend_on_passes_or_isa(void **state) {
  (void)state;
  static const int64_t steps[] = {1, 2, 3, 7, TOKENS};
  for (rf_weights_as as = RF_WEIGHTS_F32; as <= RF_WEIGHTS_Q4; as++) {
    float want[203], got[203];
    logits_of(as, RF_ISA_BASE, TOKENS, want);
    for (int i = 0; i < 203; i++) assert_true(isfinite(want[i]));
    for (rf_isa isa = RF_ISA_AVX2; isa <= rf_isa_detect(); isa++)
      for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        logits_of(as, isa, steps[k], got);
        assert_memory_equal(got, want, sizeof want);
      }
  }
}

static void experts_are_held_alike(void **state) {
  model = EXPERTS;
  bytes_are_those_of_the_types(state);
  bits_do_not_depend_on_passes_or_isa(state);
  model = PLAIN;
}

/* Converted weights are near the exact ones: half a step of 1/127 of an output's largest value
 * (int8) or of 1/8 of a group's (q4), through two layers. */
static void conversion_is_an_approximation_of_known_size(void **state) {
  (void)state;
  float exact[203], got[203];
  double norm = 0;
  logits_of(RF_WEIGHTS_F32, rf_isa_detect(), TOKENS, exact);
  for (int i = 0; i < 203; i++) norm += (double)exact[i] * (double)exact[i];
  static const struct {
    rf_weights_as as;
    double step, largest; /* step: relative to the largest value of a scale; largest: that value, in sigma */
  } rows[] = {{RF_WEIGHTS_INT8, 1.0 / 127, 3}, {RF_WEIGHTS_Q4, 1.0 / 8, 2}};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    double error = 0;
    logits_of(rows[r].as, rf_isa_detect(), TOKENS, got);
    for (int i = 0; i < 203; i++) error += (double)(got[i] - exact[i]) * (double)(got[i] - exact[i]);
    /* The largest of 32 normal values is about 2 sigma, of 288 about 3. An error is uniform in a
     * step, so each matrix adds 2 step / sqrt(12) of sigma. A token passes ten matrices (embedding,
     * four per layer, head). Twice the result is allowed. */
    double each = rows[r].largest * rows[r].step / sqrt(12), bound = 2 * each * sqrt(10);
    assert_true(sqrt(error / norm) < bound);
    assert_true(error > 0);
  }
}

int main(void) {
  rf_error error;
  if (rf_machine_find("local", &machine, &error) != RAFTER_OK) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_are_those_of_the_types),
      cmocka_unit_test(bits_do_not_depend_on_passes_or_isa),
      cmocka_unit_test(experts_are_held_alike),
      cmocka_unit_test(conversion_is_an_approximation_of_known_size),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
