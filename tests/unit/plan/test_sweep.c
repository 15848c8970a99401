/* test_sweep.c - makes plans of random models, batches, policies and jobs on the null backend.
 * Every plan passes the checker, and almost all reach the bound of their size. */
#include "unit/plan/plans.h"

static const char *const remats[] = {"none", "mlp", "attn", "mlp+attn", "block", "auto"};

static rf_model random_model(uint64_t *seed, char name[200]) {
  int heads = 1 << draw(seed) % 4, kv_heads = heads >> (draw(seed) % 2 && heads > 1),
      head_dim = 16 << draw(seed) % 3, width = heads * head_dim;
  bool llama = draw(seed) % 3 == 0;
  snprintf(name, 200, "%s:layers=%lld,width=%d,heads=%d,ff=%lld,vocab=%lld,seq=%d", llama ? "llama" : "gpt",
           (long long)draw_in(seed, 1, 16), width, heads, (long long)(width * draw_in(seed, 1, 5)),
           (long long)draw_in(seed, 50, 9000), 512);
  rf_model model = model_named(name);
  if (llama) model.kv_heads = kv_heads;
  else {
    model.mlp_first = draw(seed) % 2;
    model.bias = draw(seed) % 4 != 0;
    model.head_bias = draw(seed) % 2;
    model.dropout = draw(seed) % 2 ? 0.1f : 0;
  }
  model.tied = draw(seed) % 2;
  return model;
}

static rf_plan_options random_options(uint64_t *seed) {
  static const rf_isa isas[] = {RF_ISA_BASE, RF_ISA_AVX2, RF_ISA_AVX512};
  int64_t seq = draw_in(seed, 1, 20) * 16;
  rf_plan_options o =
      train_options(machine_named("a5000"), draw(seed) % 2 ? RF_F32 : RF_BF16, draw_in(seed, 1, 9),
                    draw(seed) % 2 ? 1 : (int)draw_in(seed, 2, 5), seq, (rf_remat)(draw(seed) % 6));
  o.build.clip = draw(seed) % 2 ? 1 : 0;
  o.build.optimizer = draw(seed) % 4 ? RF_ADAMW : RF_ADAM;
  o.threads = (int)draw_in(seed, 1, 8);
  o.isa = isas[draw(seed) % 3];
  o.guard_bytes = draw(seed) % 5 == 0 ? 64 : 0;
  if (draw(seed) % 10 == 0) {
    o.build.loss_only = true;
    o.build.accumulate = 1;
  }
  if (draw(seed) % 10 == 0) {
    o.build.job = RF_JOB_GENERATE;
    o.build.rows = draw_in(seed, 1, 64);
    o.build.accumulate = 1;
    o.remat = RF_REMAT_NONE;
  }
  return o;
}

static void every_configuration_is_sound_and_tight(void **state) {
  (void)state;
  enum { CONFIGURATIONS = 240 };
  uint64_t seed = 2024;
  int tight = 0, plain = 0;
  for (int i = 0; i < CONFIGURATIONS; i++) {
    char name[200];
    rf_model model = random_model(&seed, name);
    rf_plan_options options = random_options(&seed);
    if (options.remat == RF_REMAT_AUTO) { /* a budget between keeping everything and almost nothing */
      rf_plan_options ends = options;
      ends.remat = RF_REMAT_NONE;
      rf_plan *most = plan_of(&model, &ends);
      ends.remat = RF_REMAT_BLOCK;
      rf_plan *least = plan_of(&model, &ends);
      options.budget_bytes =
          least->arena_bytes + (most->arena_bytes - least->arena_bytes) * draw_in(&seed, 0, 4) / 4;
      rf_plan_free(most);
      rf_plan_free(least);
    }
    rf_plan *plan = plan_of(&model, &options);
    int64_t sum = 0;
    for (int c = 0; c < RF_CLASSES; c++) sum += plan->by_class[c];
    assert_int_equal(sum, plan->arena_bytes);
    assert_true(plan->by_class[RF_CLASS_PADDING] >= 0);
    assert_true(plan->peak_op >= 0 && plan->peak_op < plan->graph->op_count);
    assert_true(plan->step_seconds > 0 && plan->model_flops > 0 &&
                plan->hardware_flops >= plan->model_flops && plan->flops_full_square >= plan->model_flops);
    if (options.remat == RF_REMAT_AUTO && plan->arena_bytes > options.budget_bytes)
      fail_msg("%s: auto does not fit what block fits (%lld > %lld)", name, (long long)plan->arena_bytes,
               (long long)options.budget_bytes);
    if (!options.guard_bytes) { /* guard bytes are intended gaps */
      plain++;
      double ratio = (double)plan->arena_bytes / (double)plan->live_bytes;
      tight += ratio <= 1.03;
      if (ratio > 1.03)
        print_message("%.4f %s micro %lld x %d seq %lld %s\n", ratio, name,
                      (long long)options.build.microbatch, options.build.accumulate,
                      (long long)options.build.seq, remats[options.remat]);
    }
    rf_plan_free(plan);
  }
  print_message("%d of %d arenas within 1.03 of the live bytes\n", tight, plain);
  assert_true(tight >= 0.95 * plain);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_configuration_is_sound_and_tight)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
