/* test_golden.c - compares logits and greedy continuations of whole models with independent
 * implementations. Tiny models of every family come from transformers (tests/data/hf_oracle.py).
 * GPT-2 runs on every backend and instruction set of this machine, token by token and as one
 * prefill. If their files exist, published weights of a GPT-2 and a Llama are also tested. */
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
#include <unistd.h>

#include "feeding.h"
#include "support/files.h"
#include "support/families.h"
#include "formats/safetensors.h"
#include "support/sampler.h"

#define GOLDENS RF_TEST_DATA "/goldens/"
static char model_folder[512];

/* An absolute bound, for logits of up to 20. The oracle's logits change by 3e-5 in f64. The
 * smallest mistake in a formula (an epsilon of 1e-6 instead of 1e-5) changes a logit by 3e-3. */
static const double LOGIT_BOUND = 2e-4;

static rf_machine machine;
static json_t *golden;
static rf_tensor_file *golden_logits;

/* FEED_ONE_BY_ONE: token by token, after the tokens in the cache. FEED_PREFIXES: every prefix at
 * once, into an empty cache. */
typedef enum feeding { FEED_ONE_BY_ONE, FEED_PREFIXES } feeding;

static rf_generator *open_or_fail(const char *folder, const rf_backend *backend, rf_isa isa, int64_t context,
                                  bool poison) {
  static char weights[4096];
  rf_infer_settings s = {.weights_folder = weights, .debug.poison = poison};
  rf_error error = {0};
  rf_generator *g = NULL;
  if (rf_model_resolve(folder, &s.model, weights, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .dtype = RF_F32,
                                       .softmax = RF_F32,
                                       .microbatch = 1,
                                       .seq = context,
                                       .plain = backend->plain_weights},
                             .backend = backend,
                             .device.plugin = getenv("RAFTER_PJRT_PLUGIN"),
                             .isa = isa,
                             .threads = poison ? 2 : 1,
                             .machine = &machine,
                             .guard_bytes = poison ? 256 : 0};
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

/* A NaN counts as the largest error. */
static double worse(double a, double b) { return b <= a ? a : isfinite(b) ? b : INFINITY; }

static double logprob_of(const float *logits, int64_t vocab, int32_t id) {
  double top = (double)logits[0], sum = 0;
  for (int64_t i = 1; i < vocab; i++) top = fmax(top, (double)logits[i]);
  for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - top);
  return (double)logits[id] - top - log(sum);
}

static int32_t argmax_of(const float *logits, int64_t vocab, double *margin) {
  int32_t best = 0;
  for (int64_t i = 1; i < vocab; i++)
    if (logits[i] > logits[best]) best = (int32_t)i;
  *margin = INFINITY;
  for (int64_t i = 0; i < vocab; i++)
    if (i != best) *margin = fmin(*margin, (double)logits[best] - (double)logits[i]);
  return best;
}

/* ---- the tiny GPT-2 -------------------------------------------------------------------------- */

/* Largest error of a sequence's logits and of the log-probabilities of its own tokens. With
 * prefixes, every `step`-th prefix and the whole sequence are checked. */
static void check_sequence(rf_generator *g, int index, feeding how, int64_t step, double *logit_error,
                           double *logprob_error) {
  char name[32];
  snprintf(name, sizeof name, "logits.%d", index);
  const rf_stored *stored = rf_tensor_file_find(golden_logits, name);
  const json_t *sequence = json_array_get(json_object_get(golden, "sequences"), (size_t)index),
               *logprobs = json_object_get(sequence, "logprobs");
  int64_t vocab = g->settings.model.vocab;
  int32_t ids[MAX];
  int64_t count = ids_of(json_object_get(sequence, "ids"), ids);
  float *want = malloc((size_t)vocab * sizeof *want);
  assert_true(want && stored && stored->rank == 2 && stored->shape[0] == count && stored->shape[1] == vocab);
  rf_generator_reset(g);
  for (int64_t t = 0; t < count; t++) {
    rf_error error;
    if (how == FEED_PREFIXES && t % step && t + 1 < count) continue;
    if (how == FEED_PREFIXES) rf_generator_reset(g);
    const float *logits = how == FEED_PREFIXES ? feed_or_fail(g, ids, t + 1) : feed_or_fail(g, ids + t, 1);
    assert_int_equal(rf_stored_read(stored, t * vocab, vocab, want, &error), RAFTER_OK);
    for (int64_t i = 0; i < vocab; i++)
      *logit_error = worse(*logit_error, fabs((double)logits[i] - (double)want[i]));
    if (t + 1 < count)
      *logprob_error = worse(*logprob_error, fabs(logprob_of(logits, vocab, ids[t + 1]) -
                                                  json_real_value(json_array_get(logprobs, (size_t)t))));
  }
  free(want);
}

static double check_model(rf_generator *g, int64_t step, double *logprob_error) {
  double logit_error = 0;
  for (int sequence = 0; sequence < 2; sequence++)
    check_sequence(g, sequence, FEED_ONE_BY_ONE, 1, &logit_error, logprob_error);
  for (int sequence = 0; sequence < 2; sequence++)
    check_sequence(g, sequence, FEED_PREFIXES, step, &logit_error, logprob_error);
  return logit_error;
}

/* Checks the sampler's continuation at temperature 0, and finds the smallest gap between the two
 * likeliest tokens. */
static void check_greedy(rf_generator *g) {
  const json_t *greedy = json_object_get(golden, "greedy");
  int64_t vocab = g->settings.model.vocab;
  int32_t prompt[MAX], continuation[MAX];
  int64_t length = ids_of(json_object_get(greedy, "prompt"), prompt),
          count = ids_of(json_object_get(greedy, "continuation"), continuation);
  assert_int_equal(count, 16);
  rf_sampler sampler;
  rf_sampler_options greedy_options = {.temperature = 0, .top_p = 1};
  assert_int_equal(rf_sampler_open(&greedy_options, vocab, &sampler, NULL), RAFTER_OK);
  rf_generator_reset(g);
  const float *logits = feed_or_fail(g, prompt, length);
  double narrowest = INFINITY, margin, logprob;
  for (int64_t i = 0; i < count; i++) {
    int32_t best = argmax_of(logits, vocab, &margin);
    narrowest = fmin(narrowest, margin);
    assert_int_equal(best, continuation[i]);
    assert_int_equal(sampler_next(&sampler, logits, length + i, &logprob), continuation[i]);
    assert_true(fabs(logprob - logprob_of(logits, vocab, best)) < 1e-12);
    logits = feed_or_fail(g, &best, 1);
  }
  assert_true(fabs(narrowest - json_real_value(json_object_get(greedy, "min_margin"))) <= 2 * LOGIT_BOUND);
  rf_sampler_close(&sampler);
}

static void check_variant(const rf_backend *backend, rf_isa isa, bool poison, int64_t step) {
  rf_generator *g = open_or_fail(model_folder, backend, isa, 64, poison);
  double logprob_error = 0, logit_error = check_model(g, step, &logprob_error);
  print_message("%-10s%-11s%s errors: logits %.1e, log-probabilities %.1e\n", backend->name, rf_isa_name(isa),
                poison ? " poisoned" : "", logit_error, logprob_error);
  assert_true(logit_error <= LOGIT_BOUND && logprob_error <= LOGIT_BOUND);
  check_greedy(g);
  rf_generator_close(g);
}

static bool choose_family(const char *name) {
  char path[600];
  rf_error error = {0};
  snprintf(model_folder, sizeof model_folder, GOLDENS "%s", name);
  json_decref(golden);
  if (golden_logits) rf_tensor_file_close(golden_logits);
  golden = NULL;
  golden_logits = NULL;
  snprintf(path, sizeof path, "%s/golden.json", model_folder);
  bool there = rf_json_read(path, 1 << 22, &golden, &error) == RAFTER_OK;
  snprintf(path, sizeof path, "%s/golden.safetensors", model_folder);
  there = there && rf_tensor_file_open(path, &golden_logits, &error) == RAFTER_OK;
  if (!there) fprintf(stderr, "%s\n", error.message);
  return there;
}

/* All families except GPT-2, which the other tests cover completely. The slow ways check some of
 * the prefixes, the fast way all. */
static void every_family_agrees(void **state) {
  enum { SOME = 7 };
  (void)state;
  for (int f = 0; f < FAMILY_COUNT; f++) {
    if (strcmp(FAMILIES[f], "gpt2") == 0) continue;
    assert_true(choose_family(FAMILIES[f]));
    print_message("%s\n", FAMILIES[f]);
    check_variant(&RF_BACKEND_REFERENCE, RF_ISA_BASE, false, SOME);
    check_variant(&RF_BACKEND_CPU, RF_ISA_BASE, false, 1);
    check_variant(&RF_BACKEND_CPU, rf_isa_detect(), true, SOME);
  }
  assert_true(choose_family("gpt2"));
}

/* Programs that XLA compiles, if RAFTER_PJRT_PLUGIN names a plugin. */
static void xla_agrees(void **state) {
  enum { SOME = 7 };
  (void)state;
  if (!getenv("RAFTER_PJRT_PLUGIN")) skip();
  for (int f = 0; f < FAMILY_COUNT; f++) {
    assert_true(choose_family(FAMILIES[f]));
    print_message("%s\n", FAMILIES[f]);
    check_variant(&RF_BACKEND_XLA, rf_isa_detect(), false, SOME);
  }
  assert_true(choose_family("gpt2"));
}

static void cpu_agrees_on_every_isa(void **state) {
  (void)state;
  for (int isa = (int)rf_isa_detect(); isa >= RF_ISA_BASE; isa--)
    check_variant(&RF_BACKEND_CPU, (rf_isa)isa, false, 1);
}

static void reference_agrees(void **state) {
  (void)state;
  check_variant(&RF_BACKEND_REFERENCE, RF_ISA_BASE, false, 1);
}

static void poisoned_memory_changes_nothing(void **state) {
  (void)state;
  check_variant(&RF_BACKEND_CPU, rf_isa_detect(), true, 1);
}

/* ---- planted faults -------------------------------------------------------------------------- */

static void faults_are_seen(void **state) {
  (void)state;
  static const char *const names[] = {"one weight + 0.01", "positions shifted by a row", "norm epsilon 1e-6",
                                      "one key lost from the cache"};
  for (int fault = 0; fault < 4; fault++) {
    rf_generator *g = open_or_fail(model_folder, &RF_BACKEND_CPU, rf_isa_detect(), 64, false);
    float *wpe = rf_run_named(g->run, 0, "embed/position/weight", NULL),
          *up = rf_run_named(g->run, 0, "block.1/mlp/up/weight", NULL);
    int64_t width = g->settings.model.width;
    double error = 0, logprob_error = 0;
    if (fault == 0) up[17] += 1e-2f;
    if (fault == 1) memmove(wpe + width, wpe, (size_t)(63 * width) * sizeof *wpe);
    if (fault == 2) {
      for (int p = 0; p < 2; p++) {
        rf_graph *graph = p ? g->decode->graph : g->prefill->graph;
        for (int i = 0; i < graph->op_count; i++)
          if (!strcmp(graph->op[i].def->name, "layernorm")) graph->op[i].attr.norm.eps = 1e-6f;
      }
    }
    if (fault < 3) error = check_model(g, 1, &logprob_error);
    else {
      int32_t ids[MAX];
      const rf_stored *stored = rf_tensor_file_find(golden_logits, "logits.0");
      int64_t vocab = g->settings.model.vocab,
              count = ids_of(json_object_get(json_array_get(json_object_get(golden, "sequences"), 0), "ids"),
                             ids);
      float *want = malloc((size_t)vocab * sizeof *want),
            *keys = rf_run_named(g->run, 0, "block.2/attn/cache", NULL);
      assert_true(want && keys);
      feed_or_fail(g, ids, count - 1);
      memset(keys + 9 * width, 0, (size_t)width * sizeof *keys);
      const float *logits = feed_or_fail(g, ids + count - 1, 1);
      assert_int_equal(rf_stored_read(stored, (count - 1) * vocab, vocab, want, NULL), RAFTER_OK);
      for (int64_t i = 0; i < vocab; i++) error = worse(error, fabs((double)logits[i] - (double)want[i]));
      free(want);
    }
    print_message("fault '%s': logits off by %.1e\n", names[fault], error);
    assert_true(error > LOGIT_BOUND);
    rf_generator_close(g);
  }
  assert_true(worse(0, NAN) > LOGIT_BOUND && worse(INFINITY, 0) == INFINITY);
}

/* ---- published weights, if their files exist ------------------------------------------------- */

/* The folder of a model whose config.json is `name`. */
static char *need_folder(const char *name, char path[4200]) {
  need_file(name, path);
  *strrchr(path, '/') = 0;
  return path;
}

static json_t *read_or_fail(const char *path) {
  json_t *json = NULL;
  rf_error error;
  if (rf_json_read(path, 1 << 22, &json, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return json;
}

/* A random GPT-2 whose results another program's tests contain: two prompts of four tokens, ten
 * tokens in all, and the first sixteen logits after the first prompt. */
static void tiny_random_gpt2(void **state) {
  (void)state;
  enum { PROMPT = 4, TOTAL = 10 };
  char folder[4200], answers[4200];
  json_t *want = read_or_fail(need_file("models/tiny-random-gpt2/golden.json", answers));
  need_folder("models/tiny-random-gpt2/config.json", folder);
  const json_t *first = json_object_get(want, "logits_row0_last_prompt_pos");
  rf_generator *g = open_or_fail(folder, &RF_BACKEND_CPU, rf_isa_detect(), TOTAL, false);
  double error = 0, margin;
  for (size_t row = 0; row < 2; row++) {
    int32_t ids[MAX];
    assert_int_equal(ids_of(json_array_get(json_object_get(want, "greedy"), row), ids), TOTAL);
    rf_generator_reset(g);
    const float *logits = feed_or_fail(g, ids, PROMPT);
    for (size_t i = 0; row == 0 && i < json_array_size(first); i++)
      error = worse(error, fabs((double)logits[i] - json_real_value(json_array_get(first, i))));
    for (int64_t t = PROMPT; t < TOTAL; t++) {
      assert_int_equal(argmax_of(logits, g->settings.model.vocab, &margin), ids[t]);
      logits = feed_or_fail(g, ids + t, 1);
    }
  }
  print_message("tiny-random-gpt2: logits within %.1e\n", error);
  assert_true(error <= 1e-5); /* These logits are below 1, a twentieth of the other models'. */
  rf_generator_close(g);
  json_decref(want);
}

/* Compares a trained Llama (rotary positions, grouped keys, SwiGLU, RMSNorm, tied head) with an f64
 * forward pass. */
static void tiny_stories_llama(void **state) {
  (void)state;
  enum { ROWS = 16 };
  char folder[4200];
  need_folder("models/TinyStories-656K/config.json", folder);
  json_t *golden_json = read_or_fail(RF_UNPACKED_DATA "/goldens/TinyStories-656K/golden.json");
  int32_t ids[MAX];
  int64_t count = ids_of(json_object_get(golden_json, "greedy_ids"), ids);
  int64_t prompt = (int64_t)json_array_size(json_object_get(golden_json, "prompt_ids"));
  rf_generator *g = open_or_fail(folder, &RF_BACKEND_CPU, rf_isa_detect(), count, false);
  int64_t vocab = g->settings.model.vocab;
  float *want = malloc((size_t)(ROWS * vocab) * sizeof *want);
  FILE *file = fopen(RF_UNPACKED_DATA "/goldens/TinyStories-656K/golden_logits_16x2048_f32.bin", "rb");
  assert_true(want && file &&
              fread(want, sizeof *want, (size_t)(ROWS * vocab), file) == (size_t)(ROWS * vocab));
  fclose(file);
  double error = 0, sum = 0, margin;
  for (int64_t t = 0; t < count; t++) {
    const float *logits = feed_or_fail(g, ids + t, 1);
    for (int64_t i = 0; t < ROWS && i < vocab; i++)
      error = worse(error, fabs((double)logits[i] - (double)want[t * vocab + i]));
    if (t + 1 == count) break;
    if (t + 1 >= prompt) assert_int_equal(argmax_of(logits, vocab, &margin), ids[t + 1]);
    sum += logprob_of(logits, vocab, ids[t + 1]);
  }
  double mean = sum / (double)(count - 1),
         mean_error = fabs(mean - json_real_value(json_object_get(golden_json, "mean_logprob")));
  print_message(
      "TinyStories-656K: logits within %.1e, %d greedy tokens the same, mean log-probability within %.1e\n",
      error, (int)(count - prompt), mean_error);
  assert_true(error <= LOGIT_BOUND && mean_error <= 1e-5);
  free(want);
  rf_generator_close(g);
  json_decref(golden_json);
}

static int tear_down(void **state) {
  (void)state;
  rf_tensor_file_close(golden_logits);
  json_decref(golden);
  return 0;
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK || !choose_family("gpt2")) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cpu_agrees_on_every_isa),
      cmocka_unit_test(reference_agrees),
      cmocka_unit_test(poisoned_memory_changes_nothing),
      cmocka_unit_test(faults_are_seen),
      cmocka_unit_test(tiny_random_gpt2),
      cmocka_unit_test(tiny_stories_llama),
      cmocka_unit_test(every_family_agrees),
      cmocka_unit_test(xla_agrees),
  };
  return cmocka_run_group_tests(tests, NULL, tear_down);
}
