/* test_sweep.c - runs random configurations: planned bytes equal allocated bytes, every planned
 * byte and no other is written, poison changes no result, and a step allocates nothing. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/files.h"
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run/run.h"
#include "support/plan/check.h"

static uint64_t state_of_draws;
static int64_t draw(int64_t low, int64_t high) {
  uint32_t words[4];
  rf_philox(20, state_of_draws++, 0, words);
  return low + (int64_t)(words[0] % (uint32_t)(high - low + 1));
}

static void random_configuration(int number, rf_model *model, rf_plan_options *options, rf_machine *machine) {
  state_of_draws = (uint64_t)number * 1000;
  char spec[256];
  int64_t heads = draw(1, 3), width = heads * draw(1, 4) * 8, seq = draw(4, 24);
  snprintf(spec, sizeof spec, "gpt:layers=%d,width=%d,heads=%d,ff=%d,vocab=%d,seq=%d,tied=%d",
           (int)draw(1, 3), (int)width, (int)heads, (int)draw(8, 96), (int)draw(11, 300), (int)seq,
           (int)draw(0, 1));
  rf_error error;
  if (rf_model_resolve(spec, model, NULL, &error) != RAFTER_OK) fail_msg("%s: %s", spec, error.message);
  model->mlp_first = draw(0, 1);
  model->head_bias = !model->tied && draw(0, 1);
  static const float dropouts[] = {0, 0, 0.1f, 0.3f};
  *options = (rf_plan_options){.build = {.job = RF_JOB_TRAIN,
                                         .dtype = draw(0, 1) ? RF_BF16 : RF_F32,
                                         .softmax = draw(0, 3) ? RF_F32 : RF_BF16,
                                         .microbatch = draw(1, 4),
                                         .seq = seq,
                                         .accumulate = (int)draw(1, 3),
                                         .dropout = dropouts[draw(0, 3)],
                                         .optimizer = draw(0, 1) ? RF_ADAM : RF_ADAMW,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .eps = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .clip = draw(0, 1) ? 1.0f : 0.0f},
                               .remat = (rf_remat)draw(0, 4),
                               .backend = &RF_BACKEND_CPU,
                               .isa = rf_isa_detect(),
                               .threads = (int)draw(1, 3),
                               .machine = machine};
}

static void fill_inputs(rf_run *run, const rf_model *model, const rf_plan_options *o, int micro) {
  int32_t *tokens = rf_run_named(run, 0, "tokens", NULL), *labels = rf_run_named(run, 0, "labels", NULL);
  int32_t *positions = rf_run_named(run, 0, "positions", NULL),
          *segments = rf_run_named(run, 0, "segments", NULL);
  int64_t n = o->build.microbatch * o->build.seq;
  for (int64_t i = 0; i < n; i++) {
    uint32_t words[4];
    rf_philox(99, (uint64_t)i, (uint64_t)micro, words);
    tokens[i] = (int32_t)(words[0] % (uint32_t)model->vocab);
    labels[i] = words[1] % 8 ? (int32_t)(words[2] % (uint32_t)model->vocab) : -1;
    positions[i] = (int32_t)(i % o->build.seq);
    segments[i] = (int32_t)((i < o->build.microbatch ? i * o->build.seq : n));
  }
  segments[n] = (int32_t)n;
}

/* Runs two steps from seeded weights. Returns a hash of weights and loss. */
static uint64_t two_steps(const rf_plan *plan, rf_run_debug debug, bool check_water) {
  rf_run *run = NULL;
  rf_error error = {0};
  const rf_plan *plans[] = {plan};
  if (rf_run_open(plans, 1, debug, &run, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(rf_run_arena_bytes(run), plan->arena_bytes);
  const rf_graph *graph = plan->graph;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (!tensor->persistent || tensor->param == RF_NONE ||
        (tensor->class != RF_CLASS_WEIGHT && tensor->class != RF_CLASS_MASTER))
      continue;
    const rf_param *param = &graph->params.at[tensor->param];
    void *data = rf_run_tensor(run, 0, t);
    float *values = malloc((size_t)param->count * sizeof *values);
    rf_param_init(param, 5, 0, param->count, values);
    for (int64_t i = 0; i < param->count; i++)
      if (tensor->dtype == RF_F32) ((float *)data)[i] = values[i];
      else ((rf_bf16 *)data)[i] = rf_f32_to_bf16(values[i]);
    free(values);
  }
  uint64_t hash = 14695981039346656037u;
  for (int64_t step = 1; step <= 2; step++) {
    rf_run_inputs inputs = {.seed = 3, .step = step, .loss_scale = 0.01f, .lr = 1e-3f, .rows = graph->rows};
    rf_guard_begin("a step of the sweep");
    rf_status status = rf_run_section(run, 0, RF_SECTION_BEGIN, &inputs, &error);
    for (int micro = 0; status == RAFTER_OK && micro < plan->options.build.accumulate; micro++) {
      inputs.micro = micro;
      inputs.first_token = micro * graph->rows;
      fill_inputs(run, &graph->model, &plan->options, micro);
      status = rf_run_section(run, 0, RF_SECTION_MICRO, &inputs, &error);
    }
    if (status == RAFTER_OK) status = rf_run_section(run, 0, RF_SECTION_END, &inputs, &error);
    rf_guard_end();
    if (status != RAFTER_OK) fail_msg("%s", error.message);
    const double *metrics = rf_run_named(run, 0, "metrics", NULL);
    assert_true(isfinite(metrics[0]) && metrics[1] >= 0);
    for (size_t i = 0; i < 3 * sizeof(double); i++)
      hash = (hash ^ ((const unsigned char *)metrics)[i]) * 1099511628211u;
  }
  for (int t = 0; t < graph->tensor_count; t++) {
    if (!graph->tensor[t].persistent) continue;
    const unsigned char *data = rf_run_tensor(run, 0, t);
    int64_t bytes = rf_tensor_bytes(&graph->tensor[t]);
    for (int64_t i = 0; i < bytes; i++) hash = (hash ^ data[i]) * 1099511628211u;
  }
  if (check_water) {
    int64_t top = plan->persistent_bytes,
            /* The padding after the last tensor, and the guard of an input, must not be written. */
        unwritten = plan->options.guard_bytes;
    for (int t = 0; t < plan->tensor_count; t++) {
      int64_t end = plan->tensor[t].offset + plan->tensor[t].bytes + plan->options.guard_bytes;
      if (plan->tensor[t].offset < 0 || end <= top) continue;
      top = end;
      unwritten =
          plan->options.guard_bytes + plan->tensor[t].bytes - rf_tensor_bytes(rf_plan_content(plan, t));
    }
    bool intact = false;
    assert_int_equal(top, plan->arena_bytes);
    /* The planned bytes are reached. */
    assert_in_range(rf_run_high_water(run, &intact), plan->arena_bytes - unwritten, plan->arena_bytes);
    /* No byte after them is written. */
    assert_true(intact);
  }
  rf_run_close(run);
  return hash;
}

static void planned_is_allocated(void **unused) {
  (void)unused;
  int tight = 0;
  enum { CONFIGURATIONS = 120 };
  static rf_machine machine;
  rf_error error = {0};
  assert_int_equal(rf_machine_find("a5000", &machine, &error), RAFTER_OK);
  for (int number = 0; number < CONFIGURATIONS; number++) {
    rf_model model;
    rf_plan_options options;
    rf_plan *plan = NULL, *null_plan = NULL, *guarded = NULL;
    random_configuration(number, &model, &options, &machine);
    if (rf_plan_make(&model, &options, &plan, &error) != RAFTER_OK)
      fail_msg("configuration %d: %s", number, error.message);
    if (rf_plan_check(plan, &error) != RAFTER_OK) fail_msg("configuration %d: %s", number, error.message);
    int64_t sum = 0;
    for (int c = 0; c < RF_CLASSES; c++) sum += plan->by_class[c];
    assert_int_equal(sum, plan->arena_bytes);
    tight += (double)plan->arena_bytes <= 1.03 * (double)plan->live_bytes;

    options.backend = &RF_BACKEND_NULL;
    assert_int_equal(rf_plan_make(&model, &options, &null_plan, &error), RAFTER_OK);
    assert_int_equal(null_plan->arena_bytes, plan->arena_bytes);
    rf_run *run = NULL;
    const rf_plan *plans[] = {null_plan};
    assert_int_equal(rf_run_open(plans, 1, (rf_run_debug){0}, &run, &error), RAFTER_OK);
    rf_run_inputs inputs = {.step = 1};
    for (int s = 0; s < RF_SECTIONS; s++)
      assert_int_equal(rf_run_section(run, 0, (rf_section)s, &inputs, &error), RAFTER_OK);
    rf_run_close(run);

    options.backend = &RF_BACKEND_CPU;
    options.guard_bytes = 64;
    assert_int_equal(rf_plan_make(&model, &options, &guarded, &error), RAFTER_OK);
    assert_int_equal(rf_plan_check(guarded, &error), RAFTER_OK);
    uint64_t plain = two_steps(plan, (rf_run_debug){0}, false);
    if (plain != two_steps(plan, (rf_run_debug){.poison = true}, true))
      fail_msg("configuration %d reads bytes it never wrote", number);
    if (plain != two_steps(guarded, (rf_run_debug){.poison = true, .find_nan = true}, true))
      fail_msg("configuration %d depends on its layout", number);
    if (plain != two_steps(guarded, (rf_run_debug){.poison = true, .vary_threads = true}, true))
      fail_msg("configuration %d depends on the number of threads of an op", number);
    rf_plan_free(plan);
    rf_plan_free(null_plan);
    rf_plan_free(guarded);
  }
  print_message("%d of %d configurations within 1.03 of the live bytes\n", tight, CONFIGURATIONS);
  assert_true(tight * 100 >= CONFIGURATIONS * 95);
}

/* The allocation guard itself must notice an allocation. */
static void guard_is_fatal(void **unused) {
  (void)unused;
  if (!rf_guard_built()) skip_for("needs the allocation guard");
  static const char *const calls[] = {"malloc", "free", "mmap"};
  for (size_t i = 0; i < 3; i++) {
    fflush(NULL);
    void *volatile held = malloc(100); /* volatile, because a compiler may remove a malloc with its free */
    pid_t child = fork();
    if (!child) {
      close(2);
      rf_guard_begin("a planted fault");
      void *volatile p = NULL;
      if (i == 0) p = malloc(10);
      if (i == 1) free(held);
      if (i == 2) rf_pages_map(4096, (void **)&p, NULL, NULL);
      _exit(p ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT) fail_msg("%s went unseen", calls[i]);
    free(held);
  }
}

static atomic_int turn;

static void *allocate_in_turn(void *self) {
  while (atomic_load(&turn) != 1) usleep(100);
  void *volatile held = malloc(100);
  free(held);
  atomic_store(&turn, 2);
  return self;
}

/* Threads that take no part in a step may allocate during it, as those of a server do. */
static void other_threads_may_allocate(void **unused) {
  (void)unused;
  if (!rf_guard_built()) skip_for("needs the allocation guard");
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, allocate_in_turn, NULL), 0);
  rf_guard_begin("a step of the main thread");
  atomic_store(&turn, 1);
  while (atomic_load(&turn) != 2) usleep(100);
  rf_guard_end();
  assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(planned_is_allocated), cmocka_unit_test(guard_is_fatal),
                                     cmocka_unit_test(other_threads_may_allocate)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
