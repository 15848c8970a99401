/* test_determinism.c - the same seed gives the same bits with any number of threads, any remat
 * policy, and wherever a run was interrupted. */
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

#include "support/training.h"
#include "train/checkpoint.h"
#include "support/params.h"

static rf_machine machine;
static const char *spec = "gpt:layers=3,width=48,heads=3,ff=160,vocab=300,seq=40", *adapters;
static char folder[] = "/tmp/rafter-test-determinism-XXXXXX";

static rf_train_settings settings_of(rf_dtype dtype, int threads, rf_remat remat, int64_t microbatch,
                                     int accumulate, float dropout) {
  rf_train_settings s = training_settings(spec, folder, &machine, 40, threads);
  rf_error error;
  rf_lora lora = {0};
  if (adapters && rf_lora_parse(adapters, &s.model, &lora, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  s.model.lora = lora;
  rf_build_options *b = &s.plan.build;
  b->dtype = dtype;
  b->microbatch = microbatch;
  b->accumulate = accumulate;
  b->dropout = dropout;
  b->weight_decay = 0.1f;
  s.plan.remat = remat;
  return s;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
  return hash;
}

/* Hash of losses, masters and moments. */
static uint64_t hash_state(rf_trainer *t, uint64_t hash) {
  for (int p = 0; p < t->plan->graph->params.count; p++) {
    size_t bytes = (size_t)t->plan->graph->params.at[p].count * 4;
    hash = hash_bytes(hash, ((float *)rf_run_tensor(t->run, 0, t->state[p].master)),
                      (size_t)rf_tensor_bytes(&t->plan->graph->tensor[t->state[p].master]));
    if (t->state[p].m == RF_NONE) continue; /* frozen */
    hash = hash_bytes(hash, rf_run_tensor(t->run, 0, t->state[p].m), bytes);
    hash = hash_bytes(hash, rf_run_tensor(t->run, 0, t->state[p].v), bytes);
  }
  return hash;
}

static rf_trainer *open_or_fail(const rf_train_settings *s) {
  rf_trainer *t = NULL;
  rf_error error = {0};
  if (rf_trainer_open(s, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return t;
}

static double step_or_fail(rf_trainer *t) {
  rafter_step step;
  rf_error error = {0};
  if (rf_trainer_step(t, &step, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return step.loss;
}

static uint64_t run_of(rf_train_settings s, int steps, double *last) {
  rf_trainer *t = open_or_fail(&s);
  uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < steps; i++) {
    double loss = step_or_fail(t);
    hash = hash_bytes(hash, &loss, sizeof loss);
    if (last) *last = loss;
  }
  hash = hash_state(t, hash);
  rf_trainer_close(t);
  return hash;
}

static void threads_keep_the_bits(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++) {
    rf_dtype dtype = d ? RF_BF16 : RF_F32;
    uint64_t one = run_of(settings_of(dtype, 1, RF_REMAT_NONE, 2, 2, 0.1f), 3, NULL);
    assert_true(one == run_of(settings_of(dtype, 2, RF_REMAT_NONE, 2, 2, 0.1f), 3, NULL));
    assert_true(one == run_of(settings_of(dtype, 3, RF_REMAT_NONE, 2, 2, 0.1f), 3, NULL));
  }
}

static void isas_keep_the_bits(void **state) {
  (void)state;
  rf_train_settings s = settings_of(RF_F32, 2, RF_REMAT_NONE, 2, 1, 0.1f);
  uint64_t best = run_of(s, 2, NULL);
  for (int isa = (int)rf_isa_detect(); isa >= RF_ISA_BASE; isa--) {
    s.plan.isa = (rf_isa)isa;
    if (best != run_of(s, 2, NULL)) fail_msg("%s gives other bits", rf_isa_name((rf_isa)isa));
  }
}

static void remat_keeps_the_bits(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++) {
    rf_dtype dtype = d ? RF_BF16 : RF_F32;
    uint64_t none = run_of(settings_of(dtype, 2, RF_REMAT_NONE, 2, 2, 0.2f), 2, NULL);
    for (int remat = RF_REMAT_MLP; remat <= RF_REMAT_BLOCK; remat++)
      if (none != run_of(settings_of(dtype, 2, (rf_remat)remat, 2, 2, 0.2f), 2, NULL))
        fail_msg("remat policy %d changes the bits", remat);
    static const char *const saves[] = {"save:qkv,out,mlpwi", "save:context", "save:mlpact,norm2"};
    for (int i = 0; i < 3; i++) {
      rf_remat remat;
      assert_int_equal(rf_remat_parse(saves[i], &remat, NULL), RAFTER_OK);
      if (none != run_of(settings_of(dtype, 2, remat, 2, 2, 0.2f), 2, NULL))
        fail_msg("remat %s changes the bits", saves[i]);
    }
    rf_train_settings tight = settings_of(dtype, 2, RF_REMAT_BLOCK, 2, 2, 0.2f);
    rf_plan *plan = NULL;
    assert_int_equal(rf_plan_make(&tight.model, &tight.plan, &plan, NULL), RAFTER_OK);
    tight.plan.budget_bytes = plan->arena_bytes + plan->arena_bytes / 16;
    tight.plan.remat = RF_REMAT_AUTO;
    rf_plan_free(plan);
    assert_true(none == run_of(tight, 2, NULL));
  }
}

/* 1 x 8 against 4 x 2: the same dropout masks, and the same sums up to rounding. Other masks would
 * change the loss much more. */
static void accumulation_is_equal_within_rounding(void **state) {
  (void)state;
  double whole, parts, other;
  run_of(settings_of(RF_F32, 2, RF_REMAT_NONE, 8, 1, 0.2f), 3, &whole);
  run_of(settings_of(RF_F32, 2, RF_REMAT_NONE, 2, 4, 0.2f), 3, &parts);
  rf_train_settings s = settings_of(RF_F32, 2, RF_REMAT_NONE, 8, 1, 0.2f);
  s.seed = 12;
  s.data = "random:seed=4";
  run_of(s, 3, &other);
  print_message("loss after 3 steps: 1x8 %.9f, 4x2 %.9f, other seed %.9f\n", whole, parts, other);
  assert_true(fabs(whole - parts) < 1e-5 && fabs(whole - other) > 1e-3);
}

static void resume_keeps_the_bits(void **state) {
  (void)state;
  char at[256];
  rf_error error = {0};
  for (int d = 0; d < 2; d++)
    for (int cut = 1; cut < 5; cut++) {
      rf_train_settings s = settings_of(d ? RF_BF16 : RF_F32, 2, RF_REMAT_NONE, 2, 2, 0.1f);
      rf_trainer *t = open_or_fail(&s);
      for (int i = 0; i < 5; i++) {
        if (i == cut) {
          snprintf(at, sizeof at, "%s/cut-%d-%d", folder, d, cut);
          if (rf_checkpoint_save(t, at, &error) != RAFTER_OK) fail_msg("%s", error.message);
        }
        step_or_fail(t);
      }
      uint64_t whole = hash_state(t, 1);
      rf_trainer_close(t);
      s.resume_folder = at;
      t = open_or_fail(&s);
      assert_int_equal(t->step, cut);
      for (int i = cut; i < 5; i++) step_or_fail(t);
      assert_true(whole == hash_state(t, 1));
      rf_trainer_close(t);
    }
}

/* A gradient of logits in bf16 changes the bits of training in bf16. The loss of the first step has
 * the same bits. After a few steps, the losses differ by less than a rounding to bf16 (2^-9). */
static void rounded_head_gradients_are_close(void **state) {
  (void)state;
  rf_train_settings whole = settings_of(RF_BF16, 2, RF_REMAT_NONE, 2, 2, 0.1f), rounded = whole;
  rounded.plan.build.head_gradient = RF_BF16;
  double loss[2][2];
  for (int i = 0; i < 2; i++) {
    int steps = i ? 5 : 1;
    assert_true(run_of(whole, steps, &loss[i][0]) != run_of(rounded, steps, &loss[i][1]));
  }
  print_message("loss after 5 steps: %.9f, rounded %.9f\n", loss[1][0], loss[1][1]);
  assert_true(loss[0][0] == loss[0][1]);
  assert_true(loss[1][0] != loss[1][1] && fabs(loss[1][0] - loss[1][1]) < 0x1p-9 * loss[1][0]);
  const uint64_t two = run_of(rounded, 3, NULL);
  for (int threads = 1; threads < 4; threads += 2) {
    rounded.plan.threads = threads;
    assert_true(two == run_of(rounded, 3, NULL));
  }
  rf_train_settings wide = settings_of(RF_F32, 2, RF_REMAT_NONE, 2, 1, 0);
  rf_plan *plan = NULL;
  rf_error error = {0};
  wide.plan.build.head_gradient = RF_BF16;
  assert_int_equal(rf_plan_make(&wide.model, &wide.plan, &plan, &error), RAFTER_INVALID);
  if (!strstr(error.message, "gradient of logits")) fail_msg("%s", error.message);
}

/* The same tests with experts. */
static void experts_keep_the_bits(void **state) {
  const char *before = spec;
  spec = "mixtral:layers=2,width=48,heads=3,kv_heads=1,ff=64,vocab=300,seq=40,experts=4,experts_used=2";
  threads_keep_the_bits(state);
  isas_keep_the_bits(state);
  remat_keeps_the_bits(state);
  accumulation_is_equal_within_rounding(state);
  resume_keeps_the_bits(state);
  spec = before;
}

/* The same tests with adapters next to frozen weights, which must not change. */
static void adapters_keep_the_bits(void **state) {
  const char *before = spec;
  spec = "llama:layers=3,width=48,heads=4,kv_heads=2,ff=96,vocab=300,seq=40";
  adapters = "rank=4,alpha=6,targets=q,v,out,gate_up,down,dropout=0.1";
  threads_keep_the_bits(state);
  isas_keep_the_bits(state);
  remat_keeps_the_bits(state);
  accumulation_is_equal_within_rounding(state);
  resume_keeps_the_bits(state);
  rf_train_settings s = settings_of(RF_BF16, 2, RF_REMAT_NONE, 2, 1, 0);
  rf_trainer *t = open_or_fail(&s);
  const rf_graph *graph = t->plan->graph;
  uint64_t frozen[2] = {1, 1}, learned[2] = {1, 1};
  for (int i = 0; i < 2; i++) {
    for (int p = 0; p < graph->params.count; p++) {
      uint64_t *hash = p < graph->params.base ? frozen : learned;
      hash[i] = hash_bytes(hash[i], ((float *)rf_run_tensor(t->run, 0, t->state[p].master)),
                           (size_t)rf_tensor_bytes(&graph->tensor[t->state[p].master]));
    }
    if (i == 0) {
      step_or_fail(t);
      step_or_fail(t);
    }
  }
  assert_true(frozen[0] == frozen[1] && learned[0] != learned[1]);
  assert_int_equal(rf_run_arena_bytes(t->run), t->plan->arena_bytes);
  for (int i = 0; i < graph->tensor_count; i++) { /* one copy of the weights, without gradients or moments */
    const rf_tensor *tensor = &graph->tensor[i];
    bool of_base = tensor->param >= 0 && tensor->param < graph->params.base;
    assert_true(!of_base || tensor->class == RF_CLASS_WEIGHT);
  }
  rf_trainer_close(t);
  spec = before;
  adapters = NULL;
}

static void not_finite_names_its_op(void **state) {
  (void)state;
  rf_train_settings s = settings_of(RF_F32, 2, RF_REMAT_NONE, 2, 2, 0);
  rf_trainer *t = open_or_fail(&s);
  rf_error error = {0};
  rafter_step step;
  step_or_fail(t);
  int p = params_find(&t->plan->graph->params, "block.1/mlp/up/bias");
  assert_true(p >= 0);
  ((float *)rf_run_tensor(t->run, 0, t->state[p].master))[3] = NAN;
  assert_int_equal(rf_trainer_step(t, &step, &error), RAFTER_FAILED);
  if (!strstr(error.message, "block.1/mlp/up/fwd")) fail_msg("%s", error.message);
  rf_trainer_close(t);
}

int main(void) {
  rf_error error = {0};
  if (!mkdtemp(folder) || rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(threads_keep_the_bits),
      cmocka_unit_test(isas_keep_the_bits),
      cmocka_unit_test(remat_keeps_the_bits),
      cmocka_unit_test(accumulation_is_equal_within_rounding),
      cmocka_unit_test(resume_keeps_the_bits),
      cmocka_unit_test(not_finite_names_its_op),
      cmocka_unit_test(experts_keep_the_bits),
      cmocka_unit_test(adapters_keep_the_bits),
      cmocka_unit_test(rounded_head_gradients_are_close),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
