/* test_trial.c - compares a trial with the plan itself: the rewritten graph is laid out and priced,
 * and must have the same bytes and seconds, to the bit. */
#include "unit/plan/plans.h"

#include "graph/remat.h"
#include "support/graph/verify.h"

static const char *const MODELS[] = {
    "gpt2:layers=3,width=96,heads=4,ff=384,vocab=300,seq=64",
    "llama:layers=3,width=96,heads=4,kv_heads=2,ff=256,vocab=300,seq=64",
    "gemma3-270m:layers=4,seq=64,vocab=300",
    "mixtral-8x7b:layers=2,width=64,heads=4,kv_heads=2,ff=128,vocab=300,seq=64",
    "deepseek-v3:layers=3,seq=32,vocab=300"};
static const char *const MACHINES[] = {"a5000", "tpu-v5e"};

static void must_match(const char *model, rf_trial *trial, const rf_graph *base,
                       const rf_plan_options *options, const bool *drop) {
  int64_t live;
  double seconds, made = 0;
  rf_error error = {0};
  rf_trial_weigh(trial, drop, &live, &seconds);
  rf_graph *graph = rf_graph_borrow(base);
  if (rf_pass_remat(graph, drop, &error) != RAFTER_OK || rf_graph_verify(graph, &error) != RAFTER_OK)
    fail_msg("%s: %s", model, error.message);
  rf_plan *plan = rf_plan_of_graph(graph, options, RF_PLAN_BYTES);
  assert_int_equal(live, plan->live_bytes);
  for (int i = 0; i < graph->op_count; i++)
    if (graph->op[i].recompute_of != RF_NONE)
      made += plan->op[i].calls *
              rf_cost_op(options->machine, graph, &graph->op[i], plan->op[i].kernel, plan->op[i].work, NULL);
  assert_memory_equal(&seconds, &made, sizeof made);
  rf_plan_layout(plan);
  assert_int_equal(rf_trial_layout(trial), plan->arena_bytes);
  assert_int_equal(rf_trial_persistent(trial), plan->persistent_bytes);
  rf_plan_free(plan);
}

/* Named policies, and sets that no policy would choose. */
static void a_trial_is_the_plan(void **state) {
  (void)state;
  uint64_t seed = 7;
  for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++)
    for (int way = 0; way < 8; way++) {
      rf_model model = model_named(MODELS[m]);
      rf_plan_options options = train_options(machine_named(MACHINES[way & 1]), way & 2 ? RF_BF16 : RF_F32, 2,
                                              way & 4 ? 3 : 1, 32, RF_REMAT_NONE);
      options.build.clip = draw(&seed) % 2 ? 1 : 0;
      const rf_backend *const backends[] = {&RF_BACKEND_NULL, &RF_BACKEND_SHEET_GPU, &RF_BACKEND_SHEET_TPU};
      options.backend = backends[draw(&seed) % 3];
      options.gathers_ahead = options.backend == &RF_BACKEND_SHEET_TPU;
      options.guard_bytes = draw(&seed) % 2 ? 64 : 0;
      rf_pool *pool = rf_pool_new();
      rf_graph *base = NULL;
      rf_error error = {0};
      if (rf_graph_build(&model, &options.build, NULL, &base, &error) != RAFTER_OK)
        fail_msg("%s: %s", MODELS[m], error.message);
      assert_true(rf_trial_can(base, &options));
      rf_trial *trial = rf_trial_open(base, &options, pool);
      bool *drop = rf_pool_alloc(pool, (size_t)base->tensor_count + 1);
      rf_remat named[RF_REMAT_NAMED];
      int policies = rf_remat_named(named);
      must_match(MODELS[m], trial, base, &options, drop);
      for (int i = 0; i < policies; i++) {
        rf_remat_policy(base, named[i], drop);
        must_match(MODELS[m], trial, base, &options, drop);
      }
      for (int i = 0; i < 8; i++) {
        rf_recompute *all = rf_recompute_open(base, pool);
        uint32_t part = draw(&seed) % 4 + 1;
        for (int t = 0; t < base->tensor_count; t++)
          drop[t] = all->source[t] != RF_NONE && all->backward_read[t] &&
                    base->tensor[t].class == RF_CLASS_ACTIVATION && draw(&seed) % part == 0;
        must_match(MODELS[m], trial, base, &options, drop);
      }
      rf_graph_free(base);
      rf_pool_free(pool);
    }
}

/* Chips that gather weights twice: recomputation shares the gather of the backward pass. */
static void a_trial_is_the_plan_of_one_of_many_chips(void **state) {
  (void)state;
  rf_model model = model_named(MODELS[1]);
  rf_machine machine;
  assert_int_equal(rf_machine_find("h100-sxm:4", &machine, NULL), RAFTER_OK);
  rf_plan_options options = train_options(&machine, RF_BF16, 4, 2, 32, RF_REMAT_NONE);
  options.build.mesh.of[RF_AXIS_FSDP] = 2;
  options.build.mesh.of[RF_AXIS_TENSOR] = 2;
  rf_pool *pool = rf_pool_new();
  rf_graph *base = NULL;
  rf_error error = {0};
  if (rf_graph_build(&model, &options.build, NULL, &base, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_trial *trial = rf_trial_open(base, &options, pool);
  bool *drop = rf_pool_alloc(pool, (size_t)base->tensor_count + 1);
  rf_remat named[RF_REMAT_NAMED];
  for (int i = rf_remat_named(named); i-- > 0;) {
    rf_remat_policy(base, named[i], drop);
    must_match(MODELS[1], trial, base, &options, drop);
  }
  rf_graph_free(base);
  rf_pool_free(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_trial_is_the_plan),
      cmocka_unit_test(a_trial_is_the_plan_of_one_of_many_chips),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
