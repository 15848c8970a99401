/* test_first_loss.c - the first loss of a new model can be computed without running it. Labels are
 * independent of the logits, so the loss is ln V plus a term for the spread of the logits. With
 * logits of variance s^2, the mean of ln sum exp is ln V + s^2/2, and the label's own logit is 0 on
 * average. s^2 = (sum over channels of the final norm's output squared) * (variance of the head's
 * weights) = D * init_std^2, because a new LayerNorm or RMSNorm gives every row a mean square of 1.
 * A missing scale, a wrong fan-in or a head that should be transposed changes the loss. */
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

#include "run/load.h"
#include "support/params.h"

enum { MAX_ROWS = 512 };

static rf_machine machine;

/* ln V + s^2/2, from the model's table alone. */
static double expected_loss(const rf_model *model) {
  rf_pool *pool = rf_pool_new();
  rf_params params = rf_model_params(model, pool);
  const rf_param *head = &params.at[params_find(&params, model->tied ? "embed/token/weight" : "head/weight")];
  double std = (double)head->init_std,
         loss = log((double)model->vocab) + (double)model->width * std * std / 2;
  rf_pool_free(pool);
  return loss;
}

/* Loss of one row of random tokens in the forward plan of a validation, which has weights and
 * activations but no optimizer states. `scale` multiplies the head, as a wrong initialiser
 * would. */
static double first_loss(const char *spec, rf_dtype dtype, int64_t seq, float scale) {
  rf_error error = {0};
  rf_model model;
  rf_plan *plan = NULL;
  rf_run *run = NULL;
  if (rf_model_resolve(spec, &model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_plan_options options = {.build = {.job = RF_JOB_TRAIN,
                                       .dtype = dtype,
                                       .softmax = RF_F32,
                                       .microbatch = 1,
                                       .seq = seq,
                                       .accumulate = 1,
                                       .dropout = 0,
                                       .loss_only = true},
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = 2,
                             .machine = &machine};
  if (rf_plan_make(&model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_run_open((const rf_plan *const[]){plan}, 1, (rf_run_debug){0}, &run, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(rf_fill_weights(run, 0, plan, NULL, 3, (rf_progress){0}, NULL), RAFTER_OK);
  if (scale != 1) {
    const rf_tensor *tensor;
    float *head = rf_run_named(run, 0, "head/weight", &tensor);
    if (!head) head = rf_run_named(run, 0, "embed/token/weight", &tensor);
    assert_int_equal(tensor->dtype, RF_F32);
    for (int64_t i = 0; i < rf_tensor_count(tensor); i++) head[i] *= scale;
  }
  int32_t *tokens = rf_run_named(run, 0, "tokens", NULL), *labels = rf_run_named(run, 0, "labels", NULL);
  int32_t *positions = rf_run_named(run, 0, "positions", NULL),
          *segments = rf_run_named(run, 0, "segments", NULL);
  for (int64_t r = 0; r < seq; r++) {
    uint32_t words[4];
    rf_philox(rf_key(5, 0, 0), (uint64_t)r, 0, words);
    tokens[r] = (int32_t)(words[0] % (uint32_t)model.vocab);
    labels[r] = (int32_t)(words[1] % (uint32_t)model.vocab);
    positions[r] = (int32_t)r;
    segments[r] = r ? (int32_t)seq : 0;
  }
  segments[seq] = (int32_t)seq;
  rf_run_inputs inputs = {.seed = 1, .step = 1, .loss_scale = 1 / (float)seq, .rows = seq};
  for (int s = 0; s < RF_SECTIONS; s++)
    if (rf_run_section(run, 0, (rf_section)s, &inputs, &error) != RAFTER_OK) fail_msg("%s", error.message);
  const double *metrics = rf_run_named(run, 0, "metrics", NULL);
  assert_true(metrics[1] == (double)seq);
  double loss = metrics[0] / metrics[1];
  rf_run_close(run);
  rf_plan_free(plan);
  return loss;
}

/* The mean of seq label logits, each with deviation s, has deviation s / sqrt(seq): at most 0.06
 * here. The seed is fixed, so the test always gives the same result. */
static void check(const char *spec, rf_dtype dtype, int64_t seq, double by_hand) {
  rf_model model;
  assert_int_equal(rf_model_resolve(spec, &model, NULL, NULL), RAFTER_OK);
  double want = expected_loss(&model), got = first_loss(spec, dtype, seq, 1);
  print_message("%s, %s: first loss %.4f, expected %.4f\n", spec, rf_dtype_name(dtype), got, want);
  assert_true(fabs(want - by_hand) <= 0.01);
  assert_true(fabs(got - want) <= 0.1);
}

/* The published shapes take most of their time to draw weights. The loss does not depend on the
 * depth, because the final norm sets the scale. So a few layers are enough with a sanitizer, which
 * is ten times slower, and for the second dtype. */
#if defined(__SANITIZE_ADDRESS__)
#define FULL ":layers=2"
#else
#define FULL ""
#endif

static void gpt2(void **state) {
  (void)state;
  check("gpt2" FULL, RF_F32, 128, 10.98); /* ln 50257 + 768 * 0.02^2 / 2 */
}

static void uva(void **state) {
  (void)state;
  check("uva" FULL, RF_F32, 256, 8.12);      /* ln 2048 + 1/2: lecun normal, 1 / D each */
  check("uva:layers=3", RF_BF16, 256, 8.12); /* rounding the weights to 2^-9 does not change the mean */
}

static void smaller_shapes(void **state) {
  (void)state;
  check("gpt:layers=2,width=96,heads=4,ff=384,vocab=1000,seq=512", RF_F32, 512, 6.93);
  check("gpt:layers=2,width=96,heads=4,ff=384,vocab=1000,seq=512,tied=0,mlp_first=1,head_bias=1,init=flax",
        RF_F32, 512, 7.41);
  check("gpt:layers=2,width=96,heads=4,ff=384,vocab=1000,seq=512,tied=0,mlp_first=1,head_bias=1,init=flax",
        RF_BF16, 512, 7.41);
  check("llama:layers=2,width=128,heads=4,kv_heads=2,ff=384,vocab=4096,seq=512", RF_F32, 512, 8.34);
}

/* A head drawn 1.5 times too wide adds 1.25 s^2/2. A head of zeros removes the whole term. */
static void a_wrong_initialiser_is_seen(void **state) {
  (void)state;
  static const char *const spec = "gpt:layers=2,width=96,heads=4,ff=384,vocab=1000,seq=512,tied=0,init=flax";
  rf_model model;
  assert_int_equal(rf_model_resolve(spec, &model, NULL, NULL), RAFTER_OK);
  double want = expected_loss(&model), wide = first_loss(spec, RF_F32, 512, 1.5f),
         none = first_loss(spec, RF_F32, 512, 0);
  print_message("expected %.4f; head 1.5 times too wide: %.4f; head of zeros: %.4f\n", want, wide, none);
  assert_true(fabs(wide - want) > 0.1 && fabs(none - want) > 0.1);
  assert_true(fabs(none - log(1000)) < 1e-5);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(smaller_shapes),
      cmocka_unit_test(a_wrong_initialiser_is_seen),
      cmocka_unit_test(gpt2),
      cmocka_unit_test(uva),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
