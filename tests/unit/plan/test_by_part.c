/* test_by_part.c - compares work and parameters by part with published arithmetic and with formulas
 * written out again. */
#include "plans.h"

static const rf_machine *h200(void) { return machine_named("h200"); }

static void expect(const char *what, double got, double expected, double tolerance) {
  if (!(got >= expected * (1 - tolerance) && got <= expected * (1 + tolerance)))
    fail_msg("%s: expected %.6g within %g, got %.6g", what, expected, tolerance, got);
}

static double within(const rf_part_work work[RF_PARTS], const rf_part *parts, int count,
                     double *forward_full) {
  double step = 0;
  *forward_full = 0;
  for (int i = 0; i < count; i++) {
    step += work[parts[i]].step_full;
    *forward_full += work[parts[i]].forward_full;
  }
  return step;
}

/* Rows of a published calculator of dense, expert and full-square FLOPs, for a 7B model with 1 x
 * 4096 tokens. */
static void a_7b_model_has_the_published_work(void **state) {
  (void)state;
  rf_model model =
      model_named("llama:layers=32,width=4096,ff=14336,heads=32,kv_heads=8,vocab=32000,seq=4096");
  rf_plan_options options = train_options(h200(), RF_BF16, 1, 1, 4096, RF_REMAT_BLOCK);
  rf_plan *plan = plan_of(&model, &options);
  rf_part_work work[RF_PARTS];
  double forward, all = 0;
  rf_plan_work_by_part(plan, work);
  within(work, (const rf_part[]){RF_PART_QKV, RF_PART_OUT}, 2, &forward);
  expect("parameters", (double)plan->graph->params.total, 7.2415e9, 0.005);
  expect("qkvo", forward, 1.0995e13, 0.005);
  expect("attention", work[RF_PART_SCORES].forward_full, 8.796e12, 0.005);
  expect("mlp", work[RF_PART_MLP].forward_full, 4.618e13, 0.005);
  expect("vocab", work[RF_PART_HEAD].forward_full, 1.074e12, 0.005);
  for (int i = 0; i < RF_PARTS; i++) all += work[i].forward_full;
  expect("forward", all, 6.704e13, 0.005);
  expect("step", plan->flops_full_square, 2.0113e14, 0.005);
  rf_plan_free(plan);
}

/* The calculator's rows for DeepSeek-V3 (8 x 8192 tokens, full square), and a published log of
 * DeepSeek-V2-Lite (24 x 2048, causal). */
static void deepseek_has_the_published_work(void **state) {
  (void)state;
  rf_model model = model_named("deepseek-v3"), dense = model_named("deepseek-v3:layers=1"),
           mixed = model_named("deepseek-v3:layers=1,first_dense=0");
  rf_plan_options options = train_options(h200(), RF_BF16, 8, 1, 8192, RF_REMAT_BLOCK);
  rf_plan *plan = plan_of(&model, &options), *one = plan_of(&dense, &options),
          *other = plan_of(&mixed, &options);
  const int64_t *part = plan->graph->params.part;
  rf_part_work work[RF_PARTS];
  double forward, all = 0;
  expect("qkv", (double)part[RF_PART_QKV], 4.2496e9, 0.005);
  expect("out", (double)part[RF_PART_OUT], 7.1639e9, 0.005);
  expect("dense", (double)part[RF_PART_MLP], 1.1891e9, 0.005);
  expect("gate and shared", (double)(part[RF_PART_ROUTER] + part[RF_PART_SHARED]), 2.6608e9, 0.005);
  expect("one expert", (double)part[RF_PART_EXPERTS] / 256, 2.5543e9, 0.005);
  expect("vocab", (double)(part[RF_PART_EMBEDDING] + part[RF_PART_HEAD]), 1.8534e9, 0.005);
  expect("active", (double)plan->graph->params.active, 3.755e10, 0.005);
  rf_plan_work_by_part(plan, work);
  for (int i = 0; i < RF_PARTS; i++) all += work[i].forward_full;
  expect("forward", all, 7.48e15, 0.005);
  expect("step", plan->flops_full_square, 2.24e16, 0.005);
  rf_plan_work_by_part(one, work);
  expect("qkv of a layer", work[RF_PART_QKV].forward_full, 9.13e12, 0.005);
  expect("attention of a layer", work[RF_PART_SCORES].forward_full, 4.40e13, 0.005);
  expect("dense layer", work[RF_PART_MLP].forward_full, 5.20e13, 0.005);
  rf_plan_work_by_part(other, work);
  within(work, (const rf_part[]){RF_PART_EXPERTS, RF_PART_SHARED, RF_PART_ROUTER}, 3, &forward);
  expect("layer of experts", forward, 5.22e13, 0.005);
  rf_plan_free(plan);
  rf_plan_free(one);
  rf_plan_free(other);
  model = model_named("deepseek2-16b");
  options = train_options(h200(), RF_BF16, 24, 1, 2048, RF_REMAT_BLOCK);
  plan = plan_of(&model, &options);
  rf_plan_work_by_part(plan, work);
  expect("step", plan->model_flops, 764.667e12, 1e-4);
  /* published with two digits of a percentage */
  expect("attention's share", work[RF_PART_SCORES].step / plan->model_flops, 0.0546, 1e-3);
  rf_plan_free(plan);
}

/* With few rows, an op reads the expected number of experts that the rows use: k of E for one row,
 * almost all of them for many rows. */
static void few_rows_meet_few_experts(void **state) {
  (void)state;
  static const int64_t rows[] = {1, 2, 8, 64};
  rf_model model = model_named("deepseek-v3:layers=1,first_dense=0");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    rf_plan_options options = train_options(h200(), RF_BF16, rows[i], 1, 256, RF_REMAT_NONE);
    options.build.job = RF_JOB_GENERATE;
    options.build.rows = rows[i];
    double missed = 1;
    for (int64_t r = 0; r < rows[i]; r++) missed *= 248.0 / 256;
    rf_plan *plan = plan_of(&model, &options);
    for (int o = 0; o < plan->graph->op_count; o++) {
      const rf_op *op = &plan->graph->op[o];
      if (strcmp(op->name, "step/micro/block.0/mlp/experts/down/fwd")) continue;
      double moved =
          plan->op[o].work.bytes_read - (double)rf_tensor_bytes(&plan->graph->tensor[op->input[0]]) - 4 * 257;
      expect("experts met", moved / (2048.0 * 7168 * 2), 256 * (1 - missed), 1e-9);
    }
    rf_plan_free(plan);
  }
}

/* The parts sum to the step with any recomputation, accumulation, freezing, windows or routing. A
 * backward pass counts as two forward passes, or as one if weights are frozen. */
static void parts_sum_to_the_step(void **state) {
  (void)state;
  static const char *const models[] = {
      "uva", "gemma3-270m",
      "mixtral:layers=2,width=64,heads=4,kv_heads=2,ff=96,vocab=100,experts=6,experts_used=3", "pythia-70m"};
  for (int m = 0; m < 4; m++)
    for (int v = 0; v < 4; v++) {
      rf_model model = model_named(models[m]);
      if (v == 3) assert_int_equal(rf_lora_parse("rank=4,targets=out", &model, &model.lora, NULL), RAFTER_OK);
      rf_plan_options options = train_options(h200(), v == 1 ? RF_BF16 : RF_F32, 2, v == 2 ? 3 : 1, 64,
                                              v == 2 ? RF_REMAT_BLOCK : RF_REMAT_NONE);
      rf_plan *plan = plan_of(&model, &options);
      rf_part_work work[RF_PARTS];
      double step = 0, full = 0;
      rf_plan_work_by_part(plan, work);
      for (int i = 0; i < RF_PARTS; i++) {
        step += work[i].step;
        full += work[i].step_full;
      }
      expect(models[m], step, plan->model_flops, 1e-12);
      expect(models[m], full, plan->flops_full_square, 1e-12);
      expect("head", work[RF_PART_HEAD].step, (v == 3 ? 2 : 3) * work[RF_PART_HEAD].forward, 1e-12);
      /* With adapters only on `out`, no parameter before the first block's attention is trained, so
       * that attention has no backward pass. */
      double layers = (double)model.layers, passes = v == 3 ? (3 * layers - 2) / layers : 3;
      expect("attention", work[RF_PART_SCORES].step, passes * work[RF_PART_SCORES].forward, 1e-12);
      if (v < 3) expect("out", work[RF_PART_OUT].step, 3 * work[RF_PART_OUT].forward, 1e-12);
      double rows = (double)plan->graph->rows * options.build.accumulate;
      expect("head", work[RF_PART_HEAD].forward, 2 * rows * (double)model.width * (double)model.vocab, 1e-12);
      expect("out", work[RF_PART_OUT].forward,
             2 * rows * (double)(model.layers * model.width * model.heads * model.head_dim), 1e-12);
      assert_true((work[RF_PART_ADAPTER].step > 0) == (v == 3));
      rf_plan_free(plan);
    }
}

/* With experts on two chips, unused or missing room for rows changes neither up nor down the work
 * of the model. */
static void room_for_rows_is_no_progress(void **state) {
  (void)state;
  static const float capacities[] = {1, 0.5f, 2};
  rf_model model =
      model_named("mixtral:layers=2,width=64,heads=4,kv_heads=2,ff=96,vocab=100,experts=4,experts_used=2");
  rf_machine machine;
  assert_int_equal(rf_machine_find("h200:2", &machine, NULL), RAFTER_OK);
  double even = 0, progress = 0;
  for (int i = 0; i < 3; i++) {
    rf_plan_options options = train_options(&machine, RF_BF16, 4, 1, 64, RF_REMAT_NONE);
    options.backend = &RF_BACKEND_SHEET_GPU;
    options.build.mesh = (rf_mesh){.of[RF_AXIS_EXPERT] = 2, .capacity = capacities[i]};
    rf_plan *plan = plan_of(&model, &options);
    double experts = 0, done = 0;
    for (int o = 0; o < plan->graph->op_count; o++) {
      const rf_plan_op *p = &plan->op[o];
      if (strncmp(plan->graph->op[o].def->name, "matmul_experts", 14)) continue;
      expect("the model's rows", p->work.flops * (double)capacities[i], p->work.flops + p->work.flops_again,
             1e-6);
      experts += p->work.flops;
      done += p->work.flops + p->work.flops_again;
    }
    if (i == 0) {
      even = experts;
      progress = plan->model_flops;
    }
    rf_part_work work[RF_PARTS];
    rf_plan_work_by_part(plan, work);
    expect("experts", experts, even, 1e-6);
    expect("rows of a chip", done, even * (double)capacities[i], 1e-6);
    expect("step", plan->model_flops, progress, 1e-6);
    expect("part", work[RF_PART_EXPERTS].step, 2 * even, 1e-6); /* on both chips */
    rf_plan_free(plan);
  }
  assert_true(even > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_7b_model_has_the_published_work), cmocka_unit_test(deepseek_has_the_published_work),
      cmocka_unit_test(few_rows_meet_few_experts),         cmocka_unit_test(parts_sum_to_the_step),
      cmocka_unit_test(room_for_rows_is_no_progress),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
