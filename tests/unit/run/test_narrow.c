/* test_narrow.c - tests number formats that are only planned: fp8 and int4 weights and caches,
 * 8-bit products. */
#include "unit/plan/plans.h"

#include "graph/kv.h"
#include "run/run.h"

static rf_plan_options generating(const char *machine, int64_t slots, int64_t seq) {
  rf_plan_options options = train_options(machine_named(machine), RF_BF16, slots, 1, seq, RF_REMAT_NONE);
  options.build.job = RF_JOB_GENERATE;
  options.build.rows = slots;
  return options;
}

/* Matrices take a byte or half a byte per value, experts included. Routers, gains and, with int4,
 * the token table keep their size. */
static void weights_take_their_bits(void **state) {
  (void)state;
  static const char *const models[] = {"gemma-2b", "mixtral:layers=2,experts=16",
                                       "deepseek:layers=3,experts=16"};
  for (int m = 0; m < 3; m++)
    for (int v = 0; v < 3; v++) {
      rf_model model = model_named(models[m]);
      rf_plan_options options = generating("h200", 2, 64);
      options.build.narrow_set = v > 0;
      options.build.narrow = v == 1 ? RF_F8_E4M3 : RF_I4;
      rf_plan *plan = plan_of(&model, &options);
      const rf_params *params = &plan->graph->params;
      int64_t bytes = 0, expected = 0;
      for (int t = 0; t < plan->graph->tensor_count; t++)
        if (plan->graph->tensor[t].class == RF_CLASS_WEIGHT)
          bytes += rf_tensor_bytes(&plan->graph->tensor[t]);
      for (int p = 0; p < params->base; p++) {
        bool matrix = params->at[p].rank == 2 && params->at[p].part != RF_PART_ROUTER,
             table = params->at[p].part == RF_PART_EMBEDDING;
        int half_bytes = !matrix || v == 0 ? 4 : v == 1 || table ? 2 : 1;
        expected += params->at[p].count * half_bytes / 2;
      }
      assert_int_equal(bytes, expected);
      rf_plan_free(plan);
    }
}

static int64_t token_bytes(const char *name, rf_dtype dtype) {
  rf_model model = model_named(name);
  rf_build_options options = {.job = RF_JOB_GENERATE,
                              .dtype = RF_BF16,
                              .microbatch = 1,
                              .seq = 1024,
                              .kv_dtype_set = true,
                              .kv_dtype = dtype};
  rf_kv kv = rf_kv_of(&model, &options);
  return rf_kv_sequence_bytes(&kv, 1024) / 1024;
}

/* 2 x 28 layers x 16 heads x 256 of Gemma 7B; 61 x (512 + 64) of DeepSeek-V3. Only int8 has scales,
 * if keys have heads. */
static void caches_take_their_bits(void **state) {
  (void)state;
  assert_int_equal(token_bytes("gemma-7b", RF_BF16), 458752);
  assert_int_equal(token_bytes("gemma-7b", RF_F8_E4M3), 229376);
  assert_int_equal(token_bytes("gemma-7b", RF_I4), 114688);
  assert_int_equal(token_bytes("gemma-7b", RF_I8), 229376 + 2 * 28 * 16 * 4);
  assert_int_equal(token_bytes("deepseek-v3", RF_BF16), 70272);
  assert_int_equal(token_bytes("deepseek-v3", RF_F8_E4M3), 35136);
  assert_int_equal(token_bytes("deepseek-v3", RF_I8), 35136);
  assert_int_equal(token_bytes("deepseek-v3", RF_I4), 17568);
  for (int v = 0; v < 2; v++) {
    rf_model model = model_named(v ? "deepseek:layers=2" : "gemma-2b:layers=2");
    rf_plan_options options = generating("h200", 4, 1024);
    rf_plan *wide = plan_of(&model, &options);
    options.build.kv_dtype_set = true;
    options.build.kv_dtype = RF_I4;
    rf_plan *narrow = plan_of(&model, &options);
    assert_int_equal(wide->by_class[RF_CLASS_KV], 4 * narrow->by_class[RF_CLASS_KV]);
    assert_true(narrow->step_seconds < wide->step_seconds);
    rf_plan_free(wide);
    rf_plan_free(narrow);
  }
}

/* Linear layers use the other peak, and the rest of the step does not change. EMFU uses the peak of
 * --dtype. */
static void products_take_their_peak(void **state) {
  (void)state;
  rf_model model = model_named("llama3-8b:layers=4");
  rf_plan_options options = train_options(machine_named("tpu-v5e"), RF_BF16, 4, 1, 2048, RF_REMAT_NONE);
  rf_plan *plain = plan_of(&model, &options);
  options.build.matmul_set = true;
  options.build.matmul = RF_I8;
  rf_plan *narrow = plan_of(&model, &options);
  assert_int_equal(narrow->graph->op_count, plain->graph->op_count);
  assert_int_equal(narrow->arena_bytes, plain->arena_bytes);
  for (int i = 0; i < plain->graph->op_count; i++) {
    bool linear =
        !strncmp(plain->graph->op[i].def->name, "matmul", 6) && plain->op[i].bound == RF_BOUND_COMPUTE;
    if (linear) assert_true(narrow->op[i].seconds < plain->op[i].seconds);
    else if (strncmp(plain->graph->op[i].def->name, "matmul", 6))
      assert_true(narrow->op[i].seconds == plain->op[i].seconds);
  }
  assert_true(rf_plan_peak_flops(narrow) == rf_plan_peak_flops(plain));
  assert_true(rf_plan_matmul_peak_flops(plain) == rf_plan_peak_flops(plain));
  assert_true(rf_plan_matmul_peak_flops(narrow) == plain->machine.flops[RF_I8]);
  rf_plan_free(plain);
  rf_plan_free(narrow);
}

static void none_of_them_runs(void **state) {
  (void)state;
  for (int v = 0; v < 5; v++) {
    rf_model model =
        model_named(v == 3 ? "deepseek:layers=1,width=64,vocab=100" : "llama:layers=1,width=64,vocab=100");
    rf_plan_options options = generating("a5000", 1, 32);
    rf_run *run = NULL;
    rf_error error = {0};
    options.backend = &RF_BACKEND_CPU;
    options.isa = RF_ISA_BASE;
    options.build.narrow_set = v == 0;
    options.build.narrow = RF_I4;
    options.build.kv_dtype_set = v == 1 || v >= 3;
    options.build.kv_dtype = v == 1 ? RF_F8_E4M3 : RF_I8;
    options.build.matmul_set = v == 2;
    options.build.matmul = RF_I8;
    rf_plan *plan = plan_of(&model, &options);
    rf_status status = rf_run_open((const rf_plan *const[]){plan}, 1, (rf_run_debug){0}, &run, &error);
    assert_int_equal(status, v == 4 ? RAFTER_OK : RAFTER_INVALID); /* int8 keys with scales have kernels */
    if (v < 4) assert_non_null(strstr(error.message, "no kernel supports"));
    if (run) rf_run_close(run);
    rf_plan_free(plan);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(weights_take_their_bits),
      cmocka_unit_test(caches_take_their_bits),
      cmocka_unit_test(products_take_their_peak),
      cmocka_unit_test(none_of_them_runs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
