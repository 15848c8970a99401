/* test_offload.c - tests plans that use host memory: bytes there, bytes on the chip, and transfer
 * times. */
#include "unit/plan/plans.h"

#include <math.h>

static rf_plan *plan_with(const char *model_name, const char *machine, rf_dtype dtype, rf_remat remat,
                          unsigned what) {
  rf_model model = model_named(model_name);
  rf_plan_options options = train_options(machine_named(machine), dtype, 2, 2, 256, remat);
  options.backend = &RF_BACKEND_SHEET_GPU;
  options.threads = 1;
  options.build.offload = what;
  return plan_of(&model, &options);
}

#define MODEL "llama:layers=8,width=512,heads=8,kv_heads=8,ff=1536,vocab=4096,seq=256"

/* AdamW's f32 moments take 8 bytes per parameter in host memory, and 12 with bf16 weights. They are
 * transferred in both directions in each step. */
static void states_are_eight_bytes_a_parameter(void **state) {
  (void)state;
  for (int bf16 = 0; bf16 < 2; bf16++) {
    rf_plan *here = plan_with(MODEL, "a5000", bf16 ? RF_BF16 : RF_F32, RF_REMAT_NONE, 0),
            *there = plan_with(MODEL, "a5000", bf16 ? RF_BF16 : RF_F32, RF_REMAT_NONE, RF_OFFLOAD_OPTIMIZER);
    int64_t parameters = there->graph->params.total, bytes = parameters * (bf16 ? 12 : 8);
    assert_true(there->host_bytes >= bytes && there->host_bytes < bytes + 64 * there->graph->tensor_count);
    assert_int_equal(there->host_bytes, there->host_persistent_bytes);
    assert_int_equal(here->persistent_bytes - there->persistent_bytes, there->host_bytes);
    double seconds = 2 * (double)bytes / there->machine.pcie_bps;
    assert_true(fabs(there->time.offload - seconds) < 1e-9 * seconds);
    /* in both directions at once */
    assert_true(there->time.offload_exposed > 0 && there->time.offload_exposed < seconds);
    assert_true(fabs(there->time.seconds - here->time.seconds - there->time.offload_exposed) <
                1e-6 * there->time.seconds);
    assert_int_equal(here->host_bytes, 0);
    rf_plan_free(here);
    rf_plan_free(there);
  }
}

/* The chip holds the copies of about two blocks, whatever the number of blocks. */
static void copies_are_of_two_blocks(void **state) {
  (void)state;
  static const struct {
    unsigned what;
    rf_class class;
    rf_remat remat;
  } rows[] = {{RF_OFFLOAD_OPTIMIZER, RF_CLASS_MOMENT, RF_REMAT_NONE},
              {RF_OFFLOAD_WEIGHTS, RF_CLASS_WEIGHT, RF_REMAT_NONE},
              {RF_OFFLOAD_ACTIVATIONS, RF_CLASS_ACTIVATION, RF_REMAT_NONE},
              {RF_OFFLOAD_ACTIVATIONS, RF_CLASS_ACTIVATION, RF_REMAT_BLOCK}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int64_t copies[2], there[2];
    for (int deep = 0; deep < 2; deep++) {
      char model[160];
      snprintf(model, sizeof model, "llama:layers=%d,width=512,heads=8,kv_heads=8,ff=1536,vocab=4096,seq=256",
               deep ? 16 : 8);
      rf_plan *plan = plan_with(model, "a5000", RF_BF16, rows[i].remat, rows[i].what);
      int64_t *change = calloc((size_t)plan->graph->op_count + 3, sizeof *change), sum = 0;
      copies[deep] = 0;
      there[deep] = plan->host_bytes;
      for (int t = 0; t < plan->graph->tensor_count; t++) {
        const rf_plan_tensor *p = &plan->tensor[t];
        if (plan->graph->tensor[t].class != rows[i].class || !strstr(plan->graph->tensor[t].name, "/here"))
          continue;
        change[p->first + 1] += p->bytes;
        change[p->last + 2] -= p->bytes;
      }
      for (int o = 0; o < plan->graph->op_count; o++) {
        sum += change[o + 1];
        if (sum > copies[deep]) copies[deep] = sum;
      }
      free(change);
      rf_plan_free(plan);
    }
    int64_t block = (there[1] - there[0]) / 8; /* bytes of one block in host memory */
    assert_true(copies[1] == copies[0] && block > 0);
    /* the moments of the token table are larger than those of a block */
    if (rows[i].class != RF_CLASS_MOMENT) assert_true(copies[0] <= 2 * block + 4096);
  }
}

/* A cache in host memory: the upper bound transfers the whole cache in and the rows of the pass
 * out. Shorter contexts transfer less. */
static void caches_come_as_long_as_texts_are(void **state) {
  (void)state;
  rf_model model = model_named(MODEL);
  rf_plan_options options = {.build = {.job = RF_JOB_GENERATE,
                                       .dtype = RF_BF16,
                                       .microbatch = 4,
                                       .seq = 1024,
                                       .rows = 4,
                                       .accumulate = 1,
                                       .offload = RF_OFFLOAD_KV},
                             .backend = &RF_BACKEND_SHEET_GPU,
                             .threads = 1,
                             .machine = machine_named("a5000")};
  rf_plan *plan = plan_of(&model, &options);
  double token = 2.0 * 8 * 64 * 2 * 8, in = 0, out = 0; /* K and V, heads, width, bf16, layers */
  for (int i = 0; i < plan->graph->op_count; i++) {
    if (!strcmp(plan->graph->op[i].def->name, "offload_in")) in += plan->op[i].work.sent_bytes;
    if (!strcmp(plan->graph->op[i].def->name, "offload_out")) out += plan->op[i].work.sent_bytes;
  }
  assert_true(in == 4 * 1024 * token && out == 4 * token && plan->host_bytes == (int64_t)in);
  rf_extent shorter[4], full[4];
  for (int i = 0; i < 4; i++) {
    shorter[i] = (rf_extent){1, 256};
    full[i] = (rf_extent){1, 1024};
  }
  double way = token / plan->machine.pcie_bps, a = rf_plan_pass_seconds(plan, shorter, 4),
         b = rf_plan_pass_seconds(plan, full, 4);
  assert_true(fabs(a - 4 * 256 * way) < 1e-9 * a && fabs(b - 4 * 1024 * way) < 1e-9 * b);
  rf_pass_prices *prices = rf_pass_prices_open(plan);
  assert_true(fabs(rf_pass_price(prices, shorter, 4, NULL) - a) < 1e-9 * a &&
              fabs(rf_pass_price(prices, full, 4, NULL) - b) < 1e-9 * b);
  rf_pass_prices_close(prices);
  rf_plan_free(plan);
}

/* A plan that needs more than the chip's share of host memory does not fit, even if the chip is
 * empty. */
static void the_host_is_finite(void **state) {
  (void)state;
  rf_machine machine = *machine_named("tpu-v5e");
  rf_model model = model_named(MODEL);
  rf_error error = {0};
  assert_int_equal(rf_plan_host_room(&machine), 64ll << 30); /* 512 GiB per 8 chips */
  rf_plan_options options = train_options(&machine, RF_BF16, 2, 2, 256, RF_REMAT_NONE);
  options.backend = &RF_BACKEND_SHEET_GPU;
  options.threads = 1;
  options.build.offload = RF_OFFLOAD_OPTIMIZER;
  rf_plan *plan = plan_of(&model, &options);
  assert_true(rf_plan_fits(plan));
  plan->machine.host_bytes = 8.0 * (double)(plan->host_bytes - 64);
  assert_false(rf_plan_fits(plan));
  assert_int_equal(rf_plan_require_fit(plan, &error), RAFTER_NO_FIT);
  assert_non_null(strstr(error.message, "host"));
  rf_plan_free(plan);
}

/* Recomputation chosen for a budget counts only the memory that stays on the chip with
 * --offload. */
static void auto_counts_what_is_left(void **state) {
  (void)state;
  rf_model model = model_named(MODEL);
  rf_plan_options options = train_options(machine_named("a5000"), RF_BF16, 8, 1, 256, RF_REMAT_AUTO);
  options.backend = &RF_BACKEND_SHEET_GPU;
  options.threads = 1;
  options.budget_bytes = 400 << 20;
  rf_plan *here = plan_of(&model, &options);
  options.build.offload = RF_OFFLOAD_OPTIMIZER;
  rf_plan *there = plan_of(&model, &options);
  assert_true(there->arena_bytes <= options.budget_bytes && here->arena_bytes > there->arena_bytes);
  assert_true(there->hardware_flops <= here->hardware_flops);
  rf_plan_free(here);
  rf_plan_free(there);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(states_are_eight_bytes_a_parameter), cmocka_unit_test(copies_are_of_two_blocks),
      cmocka_unit_test(caches_come_as_long_as_texts_are),   cmocka_unit_test(the_host_is_finite),
      cmocka_unit_test(auto_counts_what_is_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
