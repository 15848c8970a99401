/* test_agree.c - generation, scoring and the training forward pass give the same log-probabilities
 * for the same tokens, to the bit. This holds for every family with goldens, in f32 and bf16, for
 * any number of answers at once, any split of the prompts, and with or without shared prefixes.
 * With latent attention, the training forward pass computes other products, so it agrees with
 * scoring only to rounding. */
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
#include "generate/score.h"
#include "run/load.h"
#include "support/families.h"

enum { CONTEXT = 64, TEXTS = 8, SAMPLES = 2, MAX_TOKENS = 24 };

static rf_machine machine;
static float temperature; /* of all plans */

/* A prompt and its answer, with the log-probabilities of generation, scoring and training. */
typedef struct text {
  int32_t ids[CONTEXT];
  int64_t prompt, count;
  float generated[CONTEXT], scored[CONTEXT], trained[CONTEXT]; /* log-probabilities of ids[t] */
} text;

static rf_plan_options plan_of(rf_dtype dtype, int64_t microbatch) {
  return (rf_plan_options){.build = {.dtype = dtype,
                                     .softmax = RF_F32,
                                     .temperature = temperature,
                                     .microbatch = microbatch,
                                     .seq = CONTEXT,
                                     .accumulate = 1},
                           .backend = &RF_BACKEND_CPU,
                           .isa = rf_isa_detect(),
                           .threads = 1,
                           .machine = &machine};
}

static rf_model model_of(const char *folder) {
  rf_model model;
  rf_error error = {0};
  if (rf_model_resolve(folder, &model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return model;
}

static void generate(const char *folder, rf_dtype dtype, int64_t batch, text texts[TEXTS][SAMPLES]) {
  static const int64_t chunks[] = {0, 1, 5, 16, 31, 3, 64, 8};
  rf_infer_settings s = {.model = model_of(folder),
                         .plan = plan_of(dtype, batch),
                         .weights_folder = folder,
                         .no_sharing = batch % 3 == 0};
  rf_generator *g = NULL;
  rf_error error = {0};
  s.plan.build.chunk = chunks[batch - 1];
  s.plan.build.kv_page = batch % 2 ? 32 : 0;
  s.plan.build.sequences = batch + 1;
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int i = 0; i < TEXTS; i++) {
    rf_request r = {.tokens = texts[i][0].ids,
                    .count = texts[i][0].prompt,
                    .max_tokens = 6 + 2 * i,
                    .samples = SAMPLES,
                    .sampler = {.temperature = 1, .top_p = 1, .seed = (uint64_t)i},
                    .owner = texts[i]};
    for (int k = 0; k < SAMPLES; k++) texts[i][k].count = texts[i][k].prompt;
    if (rf_generator_submit(g, &r, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  }
  while (rf_generator_busy(g)) {
    const rf_event *event;
    int count;
    if (rf_generator_step(g, &event, &count, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int k = 0; k < count; k++) {
      text *t = (text *)event[k].owner + event[k].sample;
      t->ids[t->count] = event[k].token;
      t->generated[t->count++] = event[k].logprob;
    }
  }
  rf_generator_close(g);
}

static void score(const char *folder, rf_dtype dtype, text texts[TEXTS][SAMPLES]) {
  rf_infer_settings s = {.model = model_of(folder), .plan = plan_of(dtype, TEXTS), .weights_folder = folder};
  rf_scorer *scorer = NULL;
  rf_error error = {0};
  rf_scored list[TEXTS];
  if (rf_scorer_open(&s, &scorer, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int k = 0; k < SAMPLES; k++) {
    for (int i = 0; i < TEXTS; i++)
      list[i] =
          (rf_scored){.tokens = texts[i][k].ids, .count = texts[i][k].count, .logprobs = texts[i][k].scored};
    if (rf_scorer_pass(scorer, list, TEXTS, &error) != RAFTER_OK) fail_msg("%s", error.message);
  }
  rf_scorer_close(scorer);
}

/* Loss per token of the training graph, with all texts as segments of one microbatch. */
static void train(const char *folder, rf_dtype dtype, text texts[TEXTS][SAMPLES]) {
  rf_model model = model_of(folder);
  rf_plan_options options = plan_of(dtype, TEXTS * SAMPLES);
  rf_plan *plan = NULL;
  rf_run *run = NULL;
  rf_error error = {0};
  options.build.job = RF_JOB_TRAIN;
  options.build.loss_only = true;
  if (rf_plan_make(&model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_run_open((const rf_plan *const[]){plan}, 1, (rf_run_debug){0}, &run, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  if (rf_load_weights(run, 0, plan, folder, &error) != RAFTER_OK) fail_msg("%s", error.message);
  int32_t *tokens = rf_run_named(run, 0, "tokens", NULL), *labels = rf_run_named(run, 0, "labels", NULL);
  int32_t *positions = rf_run_named(run, 0, "positions", NULL),
          *segments = rf_run_named(run, 0, "segments", NULL);
  int64_t rows = plan->graph->rows, row = 0;
  for (int64_t r = 0; r <= rows; r++) segments[r] = (int32_t)rows;
  for (int64_t r = 0; r < rows; r++) {
    tokens[r] = 0;
    labels[r] = -1;
    positions[r] = 0;
  }
  for (int i = 0; i < TEXTS * SAMPLES; i++) {
    const text *t = &texts[0][0] + i;
    segments[i] = (int32_t)row;
    for (int64_t p = 0; p < t->count; p++, row++) {
      tokens[row] = t->ids[p];
      positions[row] = (int32_t)p;
      labels[row] = p + 1 < t->count ? t->ids[p + 1] : -1;
    }
  }
  /* The rest of the rows has texts that nobody reads. */
  for (int64_t r = row, at = TEXTS * SAMPLES; r < rows; r += CONTEXT) segments[at++] = (int32_t)r;
  for (int64_t r = row; r < rows; r++) positions[r] = (int32_t)((r - row) % CONTEXT);
  rf_run_inputs inputs = {.seed = 1, .step = 1, .loss_scale = 1, .rows = rows};
  for (int section = 0; section < RF_SECTIONS; section++)
    if (rf_run_section(run, 0, (rf_section)section, &inputs, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
  const float *nll = NULL; /* The last op of the pass reads it, so its bytes are still valid. */
  for (int i = 0; i < plan->graph->op_count; i++)
    if (!strcmp(plan->graph->op[i].def->name, "head_loss"))
      nll = rf_run_tensor(run, 0, plan->graph->op[i].output[0]);
  assert_non_null(nll);
  row = 0;
  for (int i = 0; i < TEXTS * SAMPLES; i++) {
    text *t = &texts[0][0] + i;
    for (int64_t p = 1; p < t->count; p++) t->trained[p] = -nll[row + p - 1];
    row += t->count;
  }
  rf_run_close(run);
  rf_plan_free(plan);
}

/* The largest difference of two of the three, over all answered tokens. */
static double largest(text texts[TEXTS][SAMPLES], bool training) {
  double worst = 0;
  for (int i = 0; i < TEXTS * SAMPLES; i++) {
    const text *t = &texts[0][0] + i;
    for (int64_t p = t->prompt; p < t->count; p++) {
      double d = fabs((double)t->scored[p] - (double)(training ? t->trained[p] : t->generated[p]));
      worst = fmax(worst, isfinite(d) ? d : INFINITY);
    }
  }
  return worst;
}

static int64_t answered(text texts[TEXTS][SAMPLES]) {
  int64_t tokens = 0;
  for (int i = 0; i < TEXTS * SAMPLES; i++) {
    const text *t = &texts[i / SAMPLES][i % SAMPLES];
    tokens += t->count - t->prompt;
  }
  return tokens;
}

/* Gives each text its prompt: tokens of the golden's prompt. */
static void prompts_of(const char *folder, text texts[TEXTS][SAMPLES]) {
  char path[600];
  json_t *golden = NULL;
  rf_error error = {0};
  int32_t ids[MAX];
  snprintf(path, sizeof path, "%s/golden.json", folder);
  if (rf_json_read(path, 1 << 22, &golden, &error) != RAFTER_OK) fail_msg("%s", error.message);
  const json_t *prompt = json_object_get(json_object_get(golden, "greedy"), "prompt");
  int64_t length = ids_of(prompt ? prompt : json_object_get(golden, "ids"), ids);
  json_decref(golden);
  memset(texts, 0, sizeof(text[TEXTS][SAMPLES]));
  for (int i = 0; i < TEXTS; i++)
    for (int k = 0; k < SAMPLES; k++) {
      texts[i][k].prompt = 1 + 9 * i % length;
      /* four of them begin with the same tokens */
      for (int64_t t = 0; t < texts[i][k].prompt; t++)
        texts[i][k].ids[t] = ids[(t + (i < 4 ? 0 : i)) % length];
    }
}

/* `exact`: the training forward pass gives the same bits. Otherwise its numbers in f32 differ from
 * those of scoring only by rounding, as for the oracle in tests/e2e/test_latent.sh. */
static void agree(const char *folder, rf_dtype dtype, bool exact) {
  static text texts[TEXTS][SAMPLES], first[TEXTS][SAMPLES];
  int64_t tokens = 0, longest = 0;
  double worst = 0, bound = exact ? 0 : dtype == RF_F32 ? 5e-5 : INFINITY;
  for (int64_t batch = 1; batch <= TEXTS; batch++) {
    prompts_of(folder, texts);
    generate(folder, dtype, batch, texts);
    if (batch == 1) {
      score(folder, dtype, texts);
      train(folder, dtype, texts);
      memcpy(first, texts, sizeof first);
    }
    /* The tokens are the same, so the results of scoring and training hold for all. */
    for (int i = 0; i < TEXTS * SAMPLES; i++) {
      text *t = &texts[0][0] + i, *one = &first[0][0] + i;
      assert_int_equal(t->count, one->count);
      assert_memory_equal(t->ids, one->ids, sizeof t->ids);
      memcpy(t->scored, one->scored, sizeof t->scored);
      memcpy(t->trained, one->trained, sizeof t->trained);
      if (t->count > longest) longest = t->count;
    }
    worst = fmax(worst, largest(texts, false));
    tokens += answered(texts);
  }
  print_message("%-30s %-4s %lld tokens: largest difference %g, of training %g\n",
                folder + strlen(RF_TEST_DATA), rf_dtype_name(dtype), (long long)tokens, worst,
                largest(texts, true));
  assert_true(worst == 0 && tokens > 500 && longest > RF_KV_UNIT); /* longer than a page */
  assert_true(largest(texts, true) <= bound);
  /* planted faults */
  float *trained = &texts[3][1].trained[texts[3][1].prompt],
        *generated = &texts[3][1].generated[texts[3][1].prompt];
  *trained = nextafterf(*trained - (exact ? 0 : 1e-3f), -INFINITY);
  *generated = nextafterf(*generated, -INFINITY);
  assert_true(isinf(bound) || largest(texts, true) > bound);
  assert_true(largest(texts, false) > 0);
}

static void generate_score_and_train_agree(void **state) {
  (void)state;
  for (int f = 0; f < FAMILY_COUNT; f++) {
    char folder[512], path[600];
    snprintf(folder, sizeof folder, RF_TEST_DATA "/goldens/%s", FAMILIES[f]);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    /* This folder is an adapter; its weights are those of another family. */
    if (access(path, R_OK)) continue;
    agree(folder, RF_F32, true);
    agree(folder, RF_BF16, true);
  }
}

/* The logits of all three are divided by the temperature. At temperature 1 they have the bits of
 * logits that are not divided, and at 0.7 other tokens are drawn. */
static void all_agree_at_a_temperature(void **state) {
  (void)state;
  static text texts[3][TEXTS][SAMPLES];
  const float temperatures[] = {0, 1, 0.7f};
  for (int f = 0; f < FAMILY_COUNT; f++) {
    char folder[512], path[600];
    snprintf(folder, sizeof folder, RF_TEST_DATA "/goldens/%s", FAMILIES[f]);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (access(path, R_OK)) continue;
    for (int i = 0; i < 3; i++) {
      temperature = temperatures[i];
      prompts_of(folder, texts[i]);
      generate(folder, RF_F32, 3, texts[i]);
      score(folder, RF_F32, texts[i]);
      train(folder, RF_F32, texts[i]);
      assert_true(largest(texts[i], false) == 0 && largest(texts[i], true) == 0);
    }
    assert_memory_equal(texts[1], texts[0], sizeof *texts);
    assert_memory_not_equal(texts[2], texts[0], sizeof *texts);
  }
  temperature = 0;
}

static void generate_and_score_agree_over_latent_rows(void **state) {
  (void)state;
  static const char *const folders[] = {RF_TEST_DATA "/latent/deepseek_v2",
                                        RF_TEST_DATA "/latent/deepseek_v3"};
  for (int f = 0; f < 2; f++)
    for (int d = 0; d < 2; d++) agree(folders[f], d ? RF_BF16 : RF_F32, false);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {cmocka_unit_test(generate_score_and_train_agree),
                                     cmocka_unit_test(all_agree_at_a_temperature),
                                     cmocka_unit_test(generate_and_score_agree_over_latent_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
