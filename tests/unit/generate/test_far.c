/* test_far.c - a backend whose memory the host cannot use trains, saves, resumes and generates with
 * the bits of the CPU. An error of the device is reported. */
#define _GNU_SOURCE
#include "feeding.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "support/far.h"
#include "support/training.h"
#include "train/checkpoint.h"
#include "model/weights.h"

static rf_machine machine;
static rf_backend far;
static char folder[] = "/tmp/rafter-test-far-XXXXXX";

/* ---- training -------------------------------------------------------------------------------- */

static rf_train_settings training_of(const rf_backend *backend, rf_dtype dtype) {
  rf_train_settings s =
      training_settings("gpt:layers=2,width=48,heads=3,ff=160,vocab=300,seq=40", folder, &machine, 40, 2);
  s.plan.backend = backend;
  s.plan.build.dtype = dtype;
  s.plan.build.microbatch = 2;
  s.plan.build.accumulate = 2;
  s.plan.build.dropout = 0.1f;
  s.val_fraction = 0.1;
  return s;
}

static rf_trainer *open_trainer(const rf_train_settings *s) {
  rf_trainer *t = NULL;
  rf_error error = {0};
  if (rf_trainer_open(s, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return t;
}

static double step(rf_trainer *t) {
  rafter_step out;
  rf_error error = {0};
  if (rf_trainer_step(t, &out, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return out.loss + out.grad_norm;
}

static void expect_equal_state(rf_trainer *a, rf_trainer *b) {
  const rf_graph *graph = a->plan->graph;
  rf_error error = {0};
  for (int t = 0; t < graph->tensor_count; t++) {
    int64_t bytes = rf_tensor_bytes(&graph->tensor[t]);
    if (!graph->tensor[t].persistent || a->plan->tensor[t].offset < 0) continue;
    char *left = malloc((size_t)bytes), *right = malloc((size_t)bytes);
    assert_int_equal(rf_run_read(a->run, 0, t, 0, left, bytes, &error), RAFTER_OK);
    assert_int_equal(rf_run_read(b->run, 0, t, 0, right, bytes, &error), RAFTER_OK);
    if (memcmp(left, right, (size_t)bytes)) fail_msg("%s differs", graph->tensor[t].name);
    free(left);
    free(right);
  }
}

static void trains_with_equal_bits(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++) {
    rf_train_settings near_settings = training_of(&RF_BACKEND_CPU, d ? RF_BF16 : RF_F32),
                      far_settings = training_of(&far, d ? RF_BF16 : RF_F32);
    rf_trainer *a = open_trainer(&near_settings), *b = open_trainer(&far_settings);
    rf_error error = {0};
    double loss[2];
    char saved[64];
    assert_null(rf_run_tensor(b->run, 0, b->state[0].master));
    for (int i = 0; i < 3; i++) assert_true(step(a) == step(b));
    assert_int_equal(rf_trainer_validate(a, 8, &loss[0], &error), RAFTER_OK);
    assert_int_equal(rf_trainer_validate(b, 8, &loss[1], &error), RAFTER_OK);
    assert_true(loss[0] == loss[1] && loss[0] > 0);
    expect_equal_state(a, b);
    snprintf(saved, sizeof saved, "%s/saved-%d", folder, d);
    if (rf_checkpoint_save(b, saved, &error) != RAFTER_OK) fail_msg("%s", error.message);
    rf_trainer_close(b);
    far_settings.resume_folder = saved;
    b = open_trainer(&far_settings);
    expect_equal_state(a, b);
    assert_true(step(a) == step(b));
    rf_trainer_close(a);
    rf_trainer_close(b);
  }
}

static void debug_runs_see_through_the_device(void **state) {
  (void)state;
  rf_train_settings s = training_of(&far, RF_F32), plain = training_of(&RF_BACKEND_CPU, RF_F32);
  s.debug = (rf_run_debug){.poison = true};
  s.plan.guard_bytes = 64;
  rf_trainer *a = open_trainer(&s), *b = open_trainer(&plain);
  assert_true(step(a) == step(b));
  rf_run_set_debug(a->run, (rf_run_debug){.find_nan = true});
  float nan = NAN;
  rf_error error = {0};
  rafter_step out;
  assert_int_equal(rf_run_write(a->run, 0, a->state[0].weight, 0, &nan, 4, &error), RAFTER_OK);
  assert_int_equal(rf_trainer_step(a, &out, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "is the first op that produced a number that is not finite"));
  rf_trainer_close(a);
  rf_trainer_close(b);
}

static void failures_of_a_device_are_reported(void **state) {
  (void)state;
  rf_train_settings s = training_of(&far, RF_F32);
  rf_trainer *t = open_trainer(&s);
  rafter_step out;
  rf_error error = {0};
  step(t);
  far_fail_at(1); /* The failure does not repeat: the second check of the step finds no error. */
  assert_int_equal(rf_trainer_step(t, &out, &error), RAFTER_FAILED);
  assert_string_equal(error.message, "the far device is gone");
  far_fail_at(0);
  rf_trainer_close(t);
}

/* ---- generating ------------------------------------------------------------------------------ */

enum { TOKENS = 40, VOCAB = 203 };

static rf_generator *open_generator(const rf_backend *backend, rf_weights_as as, rf_dtype dtype,
                                    rf_weight_types *types) {
  rf_infer_settings s = {.seed = 3};
  rf_generator *g = NULL;
  rf_error error = {0};
  const char *spec = "llama:layers=2,width=96,heads=6,kv_heads=3,ff=288,vocab=203,seq=64,init=flax";
  if (rf_model_resolve(spec, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_weight_types_read("", &s.model, as, types, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .dtype = dtype,
                                       .softmax = RF_F32,
                                       .weights = types,
                                       .microbatch = 1,
                                       .seq = 64},
                             .backend = backend,
                             .isa = rf_isa_detect(),
                             .threads = 2,
                             .machine = &machine};
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

static void generates_with_equal_bits(void **state) {
  (void)state;
  static const rf_weights_as stored[] = {RF_WEIGHTS_F32, RF_WEIGHTS_BF16, RF_WEIGHTS_INT8, RF_WEIGHTS_Q4};
  int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; i++) ids[i] = i * 31 % VOCAB;
  for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
    rf_weight_types types[2];
    rf_dtype dtype = i % 2 ? RF_BF16 : RF_F32;
    rf_generator *a = open_generator(&RF_BACKEND_CPU, stored[i], dtype, &types[0]),
                 *b = open_generator(&far, stored[i], dtype, &types[1]);
    for (int64_t at = 0, n; at < TOKENS; at += n) {
      n = at < 32 ? 16 : 1;
      assert_memory_equal(feed_or_fail(a, ids + at, n), feed_or_fail(b, ids + at, n), VOCAB * sizeof(float));
    }
    rf_generator_close(a);
    rf_generator_close(b);
  }
}

static void copies_within_a_tensor(void **state) {
  (void)state;
  enum { BYTES = 100000 };
  rf_weight_types types;
  rf_generator *g = open_generator(&far, RF_WEIGHTS_F32, RF_F32, &types);
  rf_error error = {0};
  int tensor = rf_run_find(g->run, 0, "block.0/mlp/down/weight");
  assert_true(tensor >= 0);
  unsigned char *from = malloc(BYTES), *to = calloc(BYTES, 1);
  for (int i = 0; i < BYTES; i++) from[i] = (unsigned char)(i * 2654435761u >> 24);
  assert_true(rf_tensor_bytes(&g->prefill->graph->tensor[tensor]) >= BYTES);
  rf_run_write(g->run, 0, tensor, 0, from, BYTES / 4, &error);
  rf_run_copy(g->run, 0, tensor, BYTES / 2, 0, BYTES / 4, &error);
  rf_run_fill(g->run, 0, tensor, 0, UINT32_MAX, 4, &error);
  rf_run_read(g->run, 0, tensor, BYTES / 2, to, BYTES / 4, &error);
  assert_memory_equal(from, to, BYTES / 4);
  rf_run_read(g->run, 0, tensor, 0, to, 8, &error);
  assert_true(to[3] == 0xff && to[4] == from[4]);
  free(from);
  free(to);
  rf_generator_close(g);
}

/* Checks the test itself: a host that reads the memory is killed. */
static void the_host_cannot_read_the_memory(void **state) {
  (void)state;
  rf_weight_types types;
  rf_generator *g = open_generator(&far, RF_WEIGHTS_F32, RF_F32, &types);
  int status = 0;
  pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(*(const volatile unsigned char *)far_base() & 0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
  rf_generator_close(g);
}

int main(void) {
  rf_error error;
  far = far_backend(&RF_BACKEND_CPU);
  if (!mkdtemp(folder) || rf_machine_detect(&machine, &error) != RAFTER_OK) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trains_with_equal_bits),
      cmocka_unit_test(debug_runs_see_through_the_device),
      cmocka_unit_test(failures_of_a_device_are_reported),
      cmocka_unit_test(generates_with_equal_bits),
      cmocka_unit_test(copies_within_a_tensor),
      cmocka_unit_test(the_host_cannot_read_the_memory),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  rf_remove_folder(folder);
  return failed;
}
