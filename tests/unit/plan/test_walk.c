/* test_pass.c - tests the seconds of a forward pass with fewer rows than its bound: the bound
 * itself, attention counted by hand, and quantities that must grow. */
#include "unit/plan/plans.h"

#include "graph/kv.h"

#include <math.h>

static rf_plan *generate_plan(const char *machine, const char *name, rf_dtype dtype, int64_t slots,
                              int64_t rows, int64_t seq) {
  rf_model model = model_named(name);
  rf_plan_options options = train_options(machine_named(machine), dtype, slots, 1, seq, RF_REMAT_NONE);
  options.build.job = RF_JOB_GENERATE;
  options.build.rows = rows;
  return plan_of(&model, &options);
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static void full_extents_take_the_time_of_the_step(void **state) {
  (void)state;
  static const char *const models[] = {"gpt2", "gemma3-270m",
                                       "llama:layers=2,width=64,heads=4,kv_heads=2,ff=96,vocab=300,seq=64"};
  for (int m = 0; m < 3; m++) {
    int64_t seq = m == 2 ? 64 : 1024;
    rf_plan *plan = generate_plan("tpu-v5e", models[m], RF_BF16, 8, 8, seq);
    rf_extent part[8];
    for (int i = 0; i < 8; i++) part[i] = (rf_extent){1, seq};
    double seconds = rf_plan_pass_seconds(plan, part, 8);
    if (!near(seconds, plan->step_seconds))
      fail_msg("%s: %g, expected %g", models[m], seconds, plan->step_seconds);
    double before = 0;
    /* More sequences never take less time in total, and never more time per sequence. */
    for (int count = 1; count <= 8; count++) {
      double now = rf_plan_pass_seconds(plan, part, count);
      assert_true(now > before);
      if (count > 1) assert_true(now / count < before / (count - 1));
      before = now;
    }
    for (int i = 0; i < 8; i++) part[i].context = 1;
    assert_true(rf_plan_pass_seconds(plan, part, 8) < seconds);
    rf_plan_free(plan);
  }
}

/* A pass over whole prompts takes the time of its plan: a row sees only itself and earlier rows. A
 * shorter pass is planned as the last chunk of full contexts. */
static void whole_prompts_take_the_time_of_the_step(void **state) {
  (void)state;
  static const char *const models[] = {
      "gpt2", "gemma3:layers=6,width=64,heads=4,kv_heads=2,head_dim=16,ff=96,vocab=300,seq=1024,window=128"};
  const int64_t slots = 3, seq = 1024;
  for (int m = 0; m < 2; m++) {
    rf_model model = model_named(models[m]);
    rf_plan_options options = train_options(machine_named("tpu-v5e"), RF_BF16, slots, 1, seq, RF_REMAT_NONE);
    options.build.job = RF_JOB_GENERATE;
    options.build.rows = slots * seq;
    options.build.chunk = seq;
    rf_plan *plan = plan_of(&model, &options);
    const rf_extent part[] = {{seq, seq}, {seq, seq}, {seq, seq}};
    double seconds = rf_plan_pass_seconds(plan, part, 3);
    if (!near(seconds, plan->step_seconds))
      fail_msg("%s: %g, expected %g", models[m], seconds, plan->step_seconds);
    assert_true(plan->flops_full_square > plan->model_flops);
    rf_plan_free(plan);
    options.build.rows = options.build.chunk = 256;
    plan = plan_of(&model, &options);
    assert_true(rf_plan_pass_seconds(plan, &(rf_extent){256, seq}, 1) < plan->step_seconds);
    assert_true(plan->flops_full_square == plan->model_flops);
    rf_plan_free(plan);
  }
}

/* If only memory counts, longer contexts cost the bytes of their keys and values. A windowed layer
 * costs at most its window. */
static void keys_cost_their_bytes(void **state) {
  (void)state;
  static rf_machine slow;
  slow = *machine_named("tpu-v5e");
  slow.read_bps = slow.copy_bps = 1e6;
  slow.launch_seconds = 0;
  slow.efficiency_memory = 1;
  rf_model model = model_named("gemma3-270m");
  rf_plan_options options = train_options(&slow, RF_BF16, 2, 1, 2048, RF_REMAT_NONE);
  options.build.job = RF_JOB_GENERATE;
  options.build.rows = 2;
  rf_plan *plan = plan_of(&model, &options);
  int64_t layers[RF_KV_CLASSES] = {0}, window = 0, each = 2 * model.kv_heads * model.head_dim * 2;
  for (int l = 0; l < model.layers; l++) {
    layers[rf_kv_class_of(&model, l)]++;
    if (rf_model_window(&model, l)) window = rf_model_window(&model, l);
  }
  assert_true(window > 100 && window < 1000 && layers[RF_KV_LOCAL] && layers[RF_KV_GLOBAL]);
  rf_extent few[] = {{1, 100}, {1, 50}}, many[] = {{1, 1100}, {1, 50}};
  double more = rf_plan_pass_seconds(plan, many, 2) - rf_plan_pass_seconds(plan, few, 2);
  double bytes = (double)(each * (layers[RF_KV_GLOBAL] * 1000 + layers[RF_KV_LOCAL] * (window - 100)));
  assert_true(fabs(more - bytes / 1e6) <= 1e-6 * bytes / 1e6);
  rf_plan_free(plan);
}

/* If only products count, a chunk costs the products of its rows: rows x weights, and the keys that
 * each row sees. */
static void rows_cost_their_products(void **state) {
  (void)state;
  static rf_machine slow;
  slow = *machine_named("tpu-v5e");
  slow.kind = RF_MACHINE_CPU; /* every product at the peak */
  for (int d = 0; d < RF_DTYPES; d++) slow.flops[d] = 1e6;
  slow.launch_seconds = 0;
  slow.efficiency_compute = 1;
  slow.read_bps = slow.copy_bps = 1e30;
  rf_model model = model_named("llama:layers=3,width=64,heads=4,kv_heads=2,ff=96,vocab=300,seq=512");
  rf_plan_options options = train_options(&slow, RF_F32, 4, 1, 512, RF_REMAT_NONE);
  options.build.job = RF_JOB_GENERATE;
  options.build.rows = 128;
  rf_plan *plan = plan_of(&model, &options);
  rf_extent chunk = {100, 300}, two[] = {{100, 300}, {28, 28}};
  double linear = 2.0 * 3 * (64 * 128 + 64 * 64 + 3 * 64 * 96), head = 2.0 * 64 * 300, pair = 4.0 * 3 * 64;
  double pairs = 100 * 250.5, second = 28 * 14.5; /* rows see 201 .. 300 keys, and 1 .. 28 */
  assert_true(near(rf_plan_pass_seconds(plan, &chunk, 1), (100 * linear + head + pair * pairs) / 1e6));
  assert_true(
      near(rf_plan_pass_seconds(plan, two, 2), (128 * linear + 2 * head + pair * (pairs + second)) / 1e6));
  rf_plan_free(plan);
}

/* A cache of earlier prices changes no price, in any order of passes. */
static void many_passes_are_priced_like_each_alone(void **state) {
  (void)state;
  static const char *const names[] = {
      "gemma3:layers=6,width=64,heads=4,kv_heads=2,head_dim=16,ff=96,vocab=300,seq=4096,window=128",
      "gpt:layers=2,width=64,heads=4,ff=96,vocab=300,seq=4096"};
  uint64_t seed = 11;
  for (int m = 0; m < 2; m++) {
    rf_model model = model_named(names[m]);
    rf_plan_options options =
        train_options(machine_named(m ? "a5000" : "tpu-v5e"), RF_BF16, 16, 1, 4096, RF_REMAT_NONE);
    options.build.job = RF_JOB_GENERATE;
    options.build.rows = 64;
    rf_plan *plan = plan_of(&model, &options);
    rf_pass_prices *prices = rf_pass_prices_open(plan);
    assert_non_null(prices);
    for (int i = 0; i < 400; i++) {
      rf_extent part[16];
      int parts = (int)draw_in(&seed, 1, 16);
      for (int k = 0; k < parts; k++) {
        part[k].rows = draw_in(&seed, 1, 4);
        part[k].context = part[k].rows + draw_in(&seed, 0, 4000);
      }
      assert_true(near(rf_pass_price(prices, part, parts, NULL), rf_plan_pass_seconds(plan, part, parts)));
    }
    rf_pass_prices_close(prices);
    rf_plan_free(plan);
  }
  rf_pass_prices_close(NULL);
}

/* A pass that fills the plan has the totals of the plan, and two passes have twice these. */
static void totals_are_those_of_the_plan(void **state) {
  (void)state;
  rf_plan *plan = generate_plan("tpu-v5e", "gpt2", RF_BF16, 8, 8, 1024);
  rf_plan_totals sum = {0}, one = rf_plan_totals_of(plan), twice = {0};
  rf_pass_prices *prices = rf_pass_prices_open(plan);
  rf_extent part[8];
  assert_non_null(prices);
  for (int i = 0; i < 8; i++) part[i] = (rf_extent){1, 1024};
  for (int i = 0; i < 2; i++) rf_pass_price(prices, part, 8, &sum);
  rf_plan_totals_add(&twice, &one, 2);
  assert_true(near(sum.time.seconds, twice.time.seconds) && sum.time.bound == one.time.bound);
  for (int b = 0; b < RF_BOUNDS; b++) assert_true(near(sum.time.by[b], twice.time.by[b]));
  assert_true(near(sum.model_flops, twice.model_flops) && sum.model_flops > 0);
  assert_true(near(sum.hardware_flops, twice.hardware_flops));
  assert_true(near(sum.flops_full_square, twice.flops_full_square));
  assert_true(near(sum.bytes, twice.bytes) && near(sum.sent_bytes, twice.sent_bytes));
  rf_pass_prices_close(prices);
  rf_plan_free(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(full_extents_take_the_time_of_the_step),
      cmocka_unit_test(whole_prompts_take_the_time_of_the_step),
      cmocka_unit_test(keys_cost_their_bytes),
      cmocka_unit_test(rows_cost_their_products),
      cmocka_unit_test(totals_are_those_of_the_plan),
      cmocka_unit_test(many_passes_are_priced_like_each_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
