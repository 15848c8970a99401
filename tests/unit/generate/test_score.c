/* test_score.c - tests scoring: the log-probabilities of the goldens, the bits of generation,
 * independence of other texts, and memory that does not grow with vocabulary times tokens. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feeding.h"
#include "support/families.h"
#include "generate/score.h"

enum { TOP = 5, SEQ = 48 };
static rf_machine machine;

static rf_plan_options plan_of(int64_t seq, int64_t batch, int threads, rf_dtype dtype) {
  return (rf_plan_options){
      .build = {.dtype = dtype, .softmax = RF_F32, .microbatch = batch, .seq = seq, .top = TOP},
      .backend = &RF_BACKEND_CPU,
      .isa = rf_isa_detect(),
      .threads = threads,
      .machine = &machine};
}

static char weights[4096]; /* path of the weights of the last resolved model */

static rf_scorer *scorer_or_fail(const char *folder, int64_t seq, int64_t batch, int threads, rf_dtype dtype,
                                 bool poison) {
  rf_infer_settings s = {.weights_folder = weights, .debug.poison = poison};
  rf_error error = {0};
  rf_scorer *scorer = NULL;
  if (rf_model_resolve(folder, &s.model, weights, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = plan_of(seq, batch, threads, dtype);
  if (poison) s.plan.guard_bytes = 256;
  if (rf_scorer_open(&s, &scorer, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return scorer;
}
static rf_generator *generator_or_fail(const char *folder, rf_dtype dtype) {
  rf_infer_settings s = {.weights_folder = weights};
  rf_error error = {0};
  rf_generator *g = NULL;
  if (rf_model_resolve(folder, &s.model, weights, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = plan_of(SEQ, 1, 1, dtype);
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

typedef struct answer {
  int32_t ids[MAX], top_ids[MAX * TOP];
  float logprobs[MAX], top_logprobs[MAX * TOP];
  int64_t count;
} answer;
static rf_scored scored(answer *a) {
  return (rf_scored){.tokens = a->ids,
                     .count = a->count,
                     .logprobs = a->logprobs,
                     .top_ids = a->top_ids,
                     .top_logprobs = a->top_logprobs};
}
static void run_or_fail(rf_scorer *s, rf_scored *text, int count) {
  rf_error error = {0};
  if (rf_scorer_pass(s, text, count, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* Reads the sequences of a golden into `text` and their log-probabilities into `want`. */
static int golden_texts(const char *folder, answer text[2], double want[2][MAX]) {
  char path[600];
  json_t *golden = NULL;
  rf_error error = {0};
  snprintf(path, sizeof path, "%s/golden.json", folder);
  if (rf_json_read(path, 1 << 22, &golden, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (size_t i = 0; i < 2; i++) {
    const json_t *sequence = json_array_get(json_object_get(golden, "sequences"), i),
                 *logprobs = json_object_get(sequence, "logprobs");
    text[i].count = ids_of(json_object_get(sequence, "ids"), text[i].ids);
    for (int64_t t = 1; t < text[i].count; t++)
      want[i][t] = json_real_value(json_array_get(logprobs, (size_t)t - 1));
  }
  json_decref(golden);
  return 2;
}

static void goldens_are_reproduced_with_the_bits_of_generation(void **state) {
  (void)state;
  static answer text[2], alone;
  static double want[2][MAX];
  for (int f = 0; f < FAMILY_COUNT; f++)
    for (int d = 0; d < 2; d++) {
      rf_dtype dtype = d ? RF_BF16 : RF_F32;
      char folder[512];
      snprintf(folder, sizeof folder, RF_TEST_DATA "/goldens/%s", FAMILIES[f]);
      golden_texts(folder, text, want);
      rf_scorer *s = scorer_or_fail(folder, SEQ, 3, 2, dtype, f % 2 == 0);
      rf_generator *g = generator_or_fail(folder, dtype);
      int64_t vocab = g->settings.model.vocab;
      rf_scored both[] = {scored(&text[0]), scored(&text[1])};
      run_or_fail(s, both, 2);
      double error = 0, bits = 0;
      for (int i = 0; i < 2; i++) {
        const float *logits;
        rf_generator_reset(g);
        for (int64_t t = 1; t < text[i].count; t++) {
          assert_int_equal(rf_generator_feed(g, text[i].ids + t - 1, 1, &logits, NULL), RAFTER_OK);
          bits =
              fmax(bits, fabs((double)rf_generator_logprob(g, text[i].ids[t]) - (double)text[i].logprobs[t]));
          error = fmax(error, fabs((double)text[i].logprobs[t] - want[i][t]));
          /* Counts that k tokens precede the k-th likeliest: larger, or equal with a lower id. */
          for (int k = 0; k < TOP; k++) {
            int32_t id = text[i].top_ids[t * TOP + k];
            int above = 0;
            for (int32_t v = 0; v < vocab; v++)
              above += logits[v] > logits[id] || (logits[v] == logits[id] && v < id);
            assert_int_equal(above, k);
            assert_true(rf_generator_logprob(g, id) == text[i].top_logprobs[t * TOP + k]);
          }
        }
        rf_generator_reset(g); /* One prefill of all tokens ends in the same bits. */
        assert_int_equal(rf_generator_feed(g, text[i].ids, text[i].count - 1, &logits, NULL), RAFTER_OK);
        assert_true(rf_generator_logprob(g, text[i].ids[text[i].count - 1]) ==
                    text[i].logprobs[text[i].count - 1]);
        alone = text[i];
        memset(alone.logprobs, 0xff, sizeof alone.logprobs);
        rf_scored one = scored(&alone);
        run_or_fail(s, &one, 1);
        assert_memory_equal(alone.logprobs, text[i].logprobs, (size_t)alone.count * sizeof *alone.logprobs);
        assert_memory_equal(alone.top_ids + TOP, text[i].top_ids + TOP,
                            (size_t)((alone.count - 1) * TOP) * sizeof *alone.top_ids);
      }
      print_message("%-20s%s log-probabilities within %.1e, of generation's within %.1e\n", FAMILIES[f],
                    d ? "bf16" : "f32 ", error, bits);
      assert_true(bits == 0);
      assert_true(d || error <= 2e-4);
      rf_generator_close(g);
      rf_scorer_close(s);
    }
}

/* With eight times the texts in a pass, the arena grows by the memory of rows, much less than by
 * their logits. */
static void memory_does_not_hold_logits(void **state) {
  (void)state;
  rf_infer_settings s = {0};
  int64_t peak[2];
  assert_int_equal(
      rf_model_resolve("gpt:layers=1,width=64,heads=1,vocab=50000,seq=256", &s.model, NULL, NULL), RAFTER_OK);
  for (int i = 0; i < 2; i++) {
    rf_plan *plan;
    s.plan = plan_of(256, i ? 64 : 8, 2, RF_F32);
    assert_int_equal(rf_score_plan(&s, &plan, NULL), RAFTER_OK);
    peak[i] = plan->arena_bytes;
    rf_plan_free(plan);
  }
  int64_t logits = (64 - 8) * 256 * (int64_t)50000 * 4;
  print_message("8 x 256 tokens %.1f MiB, 64 x 256 tokens %.1f MiB; their logits would be %.1f MiB more\n",
                (double)peak[0] / 0x1p20, (double)peak[1] / 0x1p20, (double)logits / 0x1p20);
  assert_true(peak[1] - peak[0] < logits / 20);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  static answer a;
  rf_error error = {0};
  rf_scorer *s = scorer_or_fail(RF_TEST_DATA "/goldens/gpt2", 8, 1, 1, RF_F32, false);
  a.count = 9;
  rf_scored text = scored(&a);
  assert_int_equal(rf_scorer_pass(s, &text, 1, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "1 to 8, got 9"));
  a.count = 5;
  rf_scored two[] = {scored(&a), scored(&a)};
  assert_int_equal(rf_scorer_pass(s, two, 2, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "at most 8"));
  a.ids[3] = 1 << 20;
  text = scored(&a);
  assert_int_equal(rf_scorer_pass(s, &text, 1, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "token 3"));
  rf_scorer_close(s);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {cmocka_unit_test(goldens_are_reproduced_with_the_bits_of_generation),
                                     cmocka_unit_test(memory_does_not_hold_logits),
                                     cmocka_unit_test(what_does_not_fit_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
