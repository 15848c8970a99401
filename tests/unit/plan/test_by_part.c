/* Work and parameters by part, against published arithmetic and against formulas written out again. */
#include "plans.h"

static const rf_machine *h200(void) { return machine_named("h200"); }

static void expect(const char *what, double got, double expected, double tolerance) {
  if (!(got >= expected * (1 - tolerance) && got <= expected * (1 + tolerance)))
    fail_msg("%s: expected %.6g within %g, got %.6g", what, expected, tolerance, got);
}

static double within(const rf_part_work work[RF_PARTS], const rf_part *parts, int count, double *forward_full) {
  double step = 0;
  *forward_full = 0;
  for (int i = 0; i < count; i++) step += work[parts[i]].step_full, *forward_full += work[parts[i]].forward_full;
  return step;
}

/* Rows of a published calculator of dense, expert and full-square FLOPs: a 7B model at 1 x 4096 tokens. */
static void a_7b_model_has_the_published_work(void **state) {
  (void)state;
  rf_model model = model_named("llama:layers=32,width=4096,ff=14336,heads=32,kv_heads=8,vocab=32000,seq=4096");
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

/* The parts sum to the step whatever is recomputed, accumulated, frozen, windowed or routed; a backward is two forwards, of frozen weights one. */
static void parts_sum_to_the_step(void **state) {
  (void)state;
  static const char *const models[] = {"uva", "gemma3-270m", "mixtral:layers=2,width=64,heads=4,kv_heads=2,ff=96,vocab=100,experts=6,experts_used=3",
                                       "pythia-70m"};
  for (int m = 0; m < 4; m++)
    for (int v = 0; v < 4; v++) {
      rf_model model = model_named(models[m]);
      if (v == 3) assert_int_equal(rf_lora_parse("rank=4,targets=out", &model, &model.lora, NULL), RAFTER_OK);
      rf_plan_options options = train_options(h200(), v == 1 ? RF_BF16 : RF_F32, 2, v == 2 ? 3 : 1, 64, v == 2 ? RF_REMAT_BLOCK : RF_REMAT_NONE);
      rf_plan *plan = plan_of(&model, &options);
      rf_part_work work[RF_PARTS];
      double step = 0, full = 0;
      rf_plan_work_by_part(plan, work);
      for (int i = 0; i < RF_PARTS; i++) step += work[i].step, full += work[i].step_full;
      expect(models[m], step, plan->model_flops, 1e-12);
      expect(models[m], full, plan->flops_full_square, 1e-12);
      expect("head", work[RF_PART_HEAD].step, (v == 3 ? 2 : 3) * work[RF_PART_HEAD].forward, 1e-12);
      /* under adapters of `out` alone nothing before the first block's attention learns, so that one has no backward */
      double layers = (double)model.layers, passes = v == 3 ? (3 * layers - 2) / layers : 3;
      expect("attention", work[RF_PART_SCORES].step, passes * work[RF_PART_SCORES].forward, 1e-12);
      if (v < 3) expect("out", work[RF_PART_OUT].step, 3 * work[RF_PART_OUT].forward, 1e-12);
      double rows = (double)plan->graph->rows * options.build.accumulate;
      expect("head", work[RF_PART_HEAD].forward, 2 * rows * (double)model.width * (double)model.vocab, 1e-12);
      expect("out", work[RF_PART_OUT].forward, 2 * rows * (double)(model.layers * model.width * model.heads * model.head_dim), 1e-12);
      assert_true((work[RF_PART_ADAPTER].step > 0) == (v == 3));
      rf_plan_free(plan);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_7b_model_has_the_published_work),
      cmocka_unit_test(parts_sum_to_the_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
