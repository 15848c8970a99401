/* test_generate.c - decoding is the forward pass of training. Token by token, in one prefill, or in
 * chunks of any size, the logits have the same bits, on every instruction set and thread count.
 * Their softmax gives the loss that the training graph computes for the same tokens. */
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

#include "generate/generate.h"
#include "run/load.h"

/* TOKENS is larger than the rows of one prefill pass. */
enum { TOKENS = 300, CONTEXT = 320, VOCAB = 203, SEED = 6 };

/* Heads are wide enough (flax: lecun normal) for logits to differ by more than one. */
static const char *const MODELS[] = {
    "gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=320,init=flax",
    "gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=320,tied=0,mlp_first=1,head_bias=1,init=flax",
    "llama:layers=2,width=64,heads=4,kv_heads=2,ff=160,vocab=203,seq=320,init=flax",
};
enum { MODEL_COUNT = sizeof MODELS / sizeof *MODELS };

static rf_machine machine;
static int32_t ids[TOKENS];

static rf_infer_settings settings_of(const char *model, rf_dtype dtype, rf_isa isa, int threads,
                                     int64_t context) {
  rf_infer_settings s = {.seed = SEED};
  rf_error error;
  if (rf_model_resolve(model, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){
      .build = {.job = RF_JOB_GENERATE, .dtype = dtype, .softmax = RF_F32, .microbatch = 1, .seq = context},
      .backend = &RF_BACKEND_CPU,
      .isa = isa,
      .threads = threads,
      .machine = &machine};
  return s;
}

static rf_generator *open_or_fail(rf_infer_settings s) {
  rf_generator *g = NULL;
  rf_error error = {0};
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

static const float *feed_or_fail(rf_generator *g, const int32_t *tokens, int64_t count) {
  const float *logits = NULL;
  rf_error error = {0};
  if (rf_generator_feed(g, tokens, count, &logits, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return logits;
}

/* Logits after every token, fed one by one. All other ways are compared with these. */
static float *decode_all(rf_generator *g) {
  float *all = malloc(sizeof(float) * TOKENS * VOCAB);
  assert_non_null(all);
  rf_generator_reset(g);
  for (int64_t t = 0; t < TOKENS; t++)
    memcpy(all + t * VOCAB, feed_or_fail(g, ids + t, 1), sizeof(float) * VOCAB);
  for (int64_t i = 0; i < TOKENS * VOCAB; i++) assert_true(isfinite(all[i]));
  return all;
}

static bool equal(const float *a, const float *b) { return memcmp(a, b, sizeof(float) * VOCAB) == 0; }

/* Feeds all tokens in chunks of the given sizes, in turn. The logits after each chunk must equal
 * those of decoding. */
static void check_chunks(rf_generator *g, const float *all, const int64_t *sizes, int size_count) {
  rf_generator_reset(g);
  for (int64_t at = 0, k = 0; at < TOKENS; k++) {
    int64_t count = sizes[k % size_count];
    if (count > TOKENS - at) count = TOKENS - at;
    const float *logits = feed_or_fail(g, ids + at, count);
    at += count;
    if (!equal(logits, all + (at - 1) * VOCAB))
      fail_msg("%s: a chunk of %d tokens up to %d gives other bits", g->settings.model.name, (int)count,
               (int)at);
  }
}

static void check_all_chunks(rf_generator *g, const float *all) {
  static const int64_t sizes[] = {
      TOKENS, 1, 3, 16, 63, 64, 65, RF_PREFILL_ROWS - 1, RF_PREFILL_ROWS, RF_PREFILL_ROWS + 1};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_chunks(g, all, &sizes[i], 1);
  check_chunks(g, all, (const int64_t[]){5, 1, 1, 40, 2, 17, 1}, 7);
}

/* ---- decode, prefill and chunks are equal ---------------------------------------------------- */

static void chunks_keep_the_bits(void **state) {
  (void)state;
  for (int m = 0; m < MODEL_COUNT; m++)
    for (int d = 0; d < 2; d++) {
      rf_generator *g =
          open_or_fail(settings_of(MODELS[m], d ? RF_BF16 : RF_F32, rf_isa_detect(), 1, CONTEXT));
      float *all = decode_all(g);
      check_all_chunks(g, all);
      free(all);
      rf_generator_close(g);
    }
}

static void isas_and_threads_keep_the_bits(void **state) {
  (void)state;
  for (int m = 0; m < MODEL_COUNT; m++)
    for (int d = 0; d < 2; d++) {
      rf_dtype dtype = d ? RF_BF16 : RF_F32;
      rf_generator *g = open_or_fail(settings_of(MODELS[m], dtype, rf_isa_detect(), 1, CONTEXT));
      float *all = decode_all(g);
      rf_generator_close(g);
      /* Few passes, because on a busy machine every barrier takes a time slice. */
      for (int threads = 2; threads <= 3; threads++) {
        g = open_or_fail(settings_of(MODELS[m], dtype, rf_isa_detect(), threads, CONTEXT));
        check_chunks(g, all, (const int64_t[]){150, 1, 149}, 3);
        rf_generator_close(g);
      }
      for (int isa = (int)rf_isa_detect(); isa >= RF_ISA_BASE; isa--) {
        g = open_or_fail(settings_of(MODELS[m], dtype, (rf_isa)isa, 1, CONTEXT));
        /* Tiles define sums of bf16 differently. */
        if (d && isa == RF_ISA_AVX512BF16 && rf_isa_detect() == RF_ISA_AMX) {
          free(all);
          all = decode_all(g);
        }
        check_chunks(g, all, (const int64_t[]){TOKENS}, 1);
        check_chunks(g, all, (const int64_t[]){100, 1, 30}, 3);
        rf_generator_close(g);
      }
      free(all);
    }
}

/* A row whose cache is not filled yet reads nothing from it: NaN everywhere in the cache, and in
 * all dead bytes, has no effect. */
static void what_was_there_does_not_matter(void **state) {
  (void)state;
  for (int m = 0; m < MODEL_COUNT; m++)
    for (int d = 0; d < 2; d++) {
      rf_infer_settings s = settings_of(MODELS[m], d ? RF_BF16 : RF_F32, rf_isa_detect(), 1, CONTEXT);
      rf_generator *g = open_or_fail(s);
      float *all = decode_all(g);
      rf_generator_close(g);
      s.debug.poison = true;
      s.plan.guard_bytes = 256;
      g = open_or_fail(s);
      for (int pass = 0; pass < 2; pass++) {
        const rf_graph *graph = g->prefill->graph;
        int caches = 0;
        for (int t = 0; t < graph->tensor_count; t++)
          if (graph->tensor[t].class == RF_CLASS_KV)
          /* NaN in f32 and in bf16 */
          {
            memset(rf_run_tensor(g->run, 0, t), 0xff, (size_t)rf_tensor_bytes(&graph->tensor[t]));
            caches++;
          }
        assert_true(caches >= 2);
        const int64_t sizes[] = {pass == 0 ? 37 : TOKENS};
        check_chunks(g, all, sizes, 1);
      }
      free(all);
      rf_generator_close(g);
    }
}

static void reset_forgets(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(settings_of(MODELS[0], RF_F32, rf_isa_detect(), 1, CONTEXT));
  float *all = decode_all(g);
  int32_t other[TOKENS];
  for (int t = 0; t < TOKENS; t++) other[t] = (ids[t] + 1 + t) % VOCAB;
  rf_generator_reset(g);
  /* The comparison can fail. */
  assert_false(equal(feed_or_fail(g, other, TOKENS), all + (TOKENS - 1) * VOCAB));
  rf_generator_reset(g);
  assert_int_equal(g->length, 0);
  check_chunks(g, all, (const int64_t[]){60}, 1);
  /* A planted fault: one key is changed before the next token, and the difference is noticed. */
  rf_generator_reset(g);
  feed_or_fail(g, ids, 100);
  float *cache = rf_run_named(g->run, 0, "block.0/attn/cache", NULL);
  assert_non_null(cache);
  cache[50 * 48] += 0.01f;
  assert_false(equal(feed_or_fail(g, ids + 100, 1), all + 100 * VOCAB));
  free(all);
  rf_generator_close(g);
}

/* ---- decoding equals the forward pass of training -------------------------------------------- */

typedef struct losses {
  double nll[TOKENS];
  int32_t argmax[TOKENS];
} losses;

/* Loss per token of the training graph, with one row of documents of the given lengths. */
static void train_forward(const rf_infer_settings *s, const int64_t *lengths, int documents, losses *out) {
  rf_plan_options options = s->plan;
  rf_plan *plan = NULL;
  rf_run *run = NULL;
  rf_error error = {0};
  options.build.job = RF_JOB_TRAIN;
  options.build.seq = TOKENS;
  options.build.loss_only = true;
  options.build.accumulate = 1;
  if (rf_plan_make(&s->model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_run_open((const rf_plan *const[]){plan}, 1, (rf_run_debug){0}, &run, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(rf_fill_weights(run, 0, plan, NULL, s->seed, (rf_progress){0}, NULL), RAFTER_OK);
  int32_t *labels = rf_run_named(run, 0, "labels", NULL),
          *positions = rf_run_named(run, 0, "positions", NULL);
  int32_t *segments = rf_run_named(run, 0, "segments", NULL);
  memcpy(rf_run_named(run, 0, "tokens", NULL), ids, sizeof ids);
  for (int64_t t = 0; t <= TOKENS; t++) segments[t] = TOKENS;
  for (int64_t k = 0, at = 0; k < documents; at += lengths[k++]) {
    segments[k] = (int32_t)at;
    for (int64_t t = 0; t < lengths[k]; t++) {
      positions[at + t] = (int32_t)t;
      labels[at + t] = t + 1 < lengths[k] ? ids[at + t + 1] : -1;
    }
  }
  rf_run_inputs inputs = {.seed = 1, .step = 1, .loss_scale = 1, .rows = TOKENS};
  for (int section = 0; section < RF_SECTIONS; section++)
    if (rf_run_section(run, 0, (rf_section)section, &inputs, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
  const rf_op *head = NULL; /* The last op of the pass reads its outputs, so their bytes are still valid. */
  for (int i = 0; i < plan->graph->op_count; i++)
    if (!strcmp(plan->graph->op[i].def->name, "head_loss")) head = &plan->graph->op[i];
  assert_non_null(head);
  const float *nll = rf_run_tensor(run, 0, head->output[0]);
  const int32_t *argmax = rf_run_tensor(run, 0, head->output[1]);
  double sum = 0;
  for (int64_t t = 0; t < TOKENS; t++) {
    out->nll[t] = labels[t] < 0 ? 0 : (double)nll[t];
    out->argmax[t] = argmax[t];
    sum += out->nll[t];
  }
  const double *metrics = rf_run_named(run, 0, "metrics", NULL);
  assert_true(metrics[1] == TOKENS - documents && fabs(metrics[0] - sum) <= 1e-9 * sum);
  rf_run_close(run);
  rf_plan_free(plan);
}

/* Largest difference of -log softmax(logits)[next] from the loss of the training graph. The
 * likeliest token must be the same. */
static double compare_with_training(rf_generator *g, const int64_t *lengths, int documents,
                                    const losses *want) {
  double worst = 0;
  for (int64_t k = 0, at = 0; k < documents; at += lengths[k++]) {
    rf_generator_reset(g);
    for (int64_t t = 0; t < lengths[k]; t++) {
      const float *logits = feed_or_fail(g, ids + at + t, 1);
      int best = 0;
      for (int i = 1; i < VOCAB; i++) best = logits[i] > logits[best] ? i : best;
      assert_int_equal(best, want->argmax[at + t]);
      if (t + 1 == lengths[k]) break;
      double sum = 0;
      for (int i = 0; i < VOCAB; i++) sum += exp((double)logits[i] - (double)logits[best]);
      double off =
          fabs((double)logits[best] + log(sum) - (double)logits[ids[at + t + 1]] - want->nll[at + t]);
      if (!(off <= worst)) worst = isfinite(off) ? off : INFINITY;
    }
  }
  return worst;
}

/* Both sides have logits with the same bits. They differ only in the head's own f32 log-sum-exp, by
 * a few units of 2^-24 of numbers below 16. */
static void decoding_is_the_training_forward(void **state) {
  (void)state;
  static losses want;
  const int64_t one[] = {TOKENS}, packed[] = {70, 1, 129, 100};
  for (int m = 0; m < MODEL_COUNT; m++)
    for (int d = 0; d < 2; d++) {
      rf_infer_settings s = settings_of(MODELS[m], d ? RF_BF16 : RF_F32, rf_isa_detect(), 1, CONTEXT);
      rf_generator *g = open_or_fail(s);
      train_forward(&s, one, 1, &want);
      double whole = compare_with_training(g, one, 1, &want);
      train_forward(&s, packed, 4, &want);
      double parts = compare_with_training(g, packed, 4, &want);
      print_message("model %d, %s: loss per token within %.1e of training's, %.1e in a packed row\n", m,
                    rf_dtype_name(s.plan.build.dtype), whole, parts);
      assert_true(whole <= 1e-5 && parts <= 1e-5);
      /* Planted faults: a loss that sees one document more, and a loss shifted by one token. */
      if (m == 0) {
        losses shifted = want;
        memmove(shifted.nll + 1, want.nll, sizeof want.nll - sizeof *want.nll);
        assert_true(compare_with_training(g, packed, 4, &shifted) > 1e-2);
      }
      rf_generator_close(g);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void refuse(rf_generator *g, const int32_t *tokens, int64_t count, const char *says) {
  const float *logits = NULL;
  rf_error error = {0};
  int64_t length = g->length;
  assert_int_equal(rf_generator_feed(g, tokens, count, &logits, &error), RAFTER_INVALID);
  if (!strstr(error.message, says)) fail_msg("expected '%s' in '%s'", says, error.message);
  assert_null(logits);
  assert_int_equal(g->length, length);
}

static void limits_are_kept_and_harm_nothing(void **state) {
  (void)state;
  enum { SMALL = 16 };
  rf_generator *g = open_or_fail(settings_of(MODELS[0], RF_F32, rf_isa_detect(), 1, CONTEXT));
  float *all = decode_all(g);
  rf_generator_close(g);
  g = open_or_fail(settings_of(MODELS[0], RF_F32, rf_isa_detect(), 1, SMALL));
  refuse(g, ids, 0, "context");
  refuse(g, ids, SMALL + 1, "context is full (expected at most 16 tokens, got 17)");
  feed_or_fail(g, ids, SMALL - 1);
  refuse(g, ids, 2, "context is full");
  /* The last position of the context can be used. */
  assert_true(equal(feed_or_fail(g, ids + SMALL - 1, 1), all + (SMALL - 1) * VOCAB));
  refuse(g, ids, 1, "context is full");
  rf_generator_reset(g);
  assert_true(equal(feed_or_fail(g, ids, SMALL), all + (SMALL - 1) * VOCAB));
  rf_generator_close(g);

  g = open_or_fail(settings_of(MODELS[0], RF_F32, rf_isa_detect(), 1, CONTEXT));
  static const int32_t outside[] = {-1, VOCAB, INT32_MAX, INT32_MIN};
  feed_or_fail(g, ids, 10);
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    int32_t bad[TOKENS];
    memcpy(bad, ids, sizeof ids);
    bad[TOKENS - 12] = outside[i]; /* The fault is in the second pass; the first pass must not have run. */
    refuse(g, bad, TOKENS - 10, "token 288");
    refuse(g, &outside[i], 1, "out of range");
  }
  assert_true(equal(feed_or_fail(g, ids + 10, TOKENS - 10), all + (TOKENS - 1) * VOCAB));
  free(all);
  rf_generator_close(g);
}

static void more_context_than_the_model_has(void **state) {
  (void)state;
  rf_infer_settings s = settings_of(MODELS[0], RF_F32, rf_isa_detect(), 1, CONTEXT + 1);
  rf_generator *g = NULL;
  rf_error error = {0};
  assert_int_equal(rf_generator_open(&s, &g, &error), RAFTER_INVALID);
  assert_null(g);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  for (int t = 0; t < TOKENS; t++) {
    uint32_t words[4];
    rf_philox(rf_key(2, 0, 0), (uint64_t)t, 0, words);
    ids[t] = (int32_t)(words[0] % VOCAB);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chunks_keep_the_bits),
      cmocka_unit_test(isas_and_threads_keep_the_bits),
      cmocka_unit_test(what_was_there_does_not_matter),
      cmocka_unit_test(reset_forgets),
      cmocka_unit_test(decoding_is_the_training_forward),
      cmocka_unit_test(limits_are_kept_and_harm_nothing),
      cmocka_unit_test(more_context_than_the_model_has),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
