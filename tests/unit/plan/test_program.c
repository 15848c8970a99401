/* test_program.c - tests the memory of a JAX program of the model: arrays that arithmetic gives,
 * and measured orderings. The compiler's own reports are in data/tpu-aot.json (tests/tpu_aot). */
#include "plans.h"

enum { LAYERS = 12, D = 1024, F = 4096, HEADS = 8, T = 512, SEQUENCES = 16 };

static rf_plan_options jax(const char *machine, rf_program_kind program, rf_dtype dtype, int64_t microbatch,
                           int accumulate, rf_remat remat) {
  rf_plan_options options = train_options(machine_named(machine), dtype, microbatch, accumulate, T, remat);
  options.build.optimizer = RF_ADAM;
  options.build.weight_decay = 0;
  options.build.clip = 0;
  options.program.program = program;
  return options;
}

static rf_program_memory size(const rf_plan_options *options) {
  rf_model model = model_named("uva");
  rf_program_memory memory;
  rf_error error = {0};
  if (rf_plan_program_size(&model, options, &memory, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(memory.total, memory.argument + memory.output - memory.alias + memory.temp);
  assert_int_equal(memory.temp, memory.copies + memory.gradients + memory.kept + memory.working);
  return memory;
}

static void state_is_donated_and_counts_three_times(void **state) {
  (void)state;
  rf_plan_options options = jax("a5000", RF_PROGRAM_JAX_SCAN, RF_BF16, SEQUENCES, 4, RF_REMAT_NONE);
  rf_program_memory memory = size(&options);
  int64_t parameters = 155877376, counters = 4 + 2 * 4, tokens = 2 * 4 * SEQUENCES * 4 * T;
  assert_int_equal(memory.alias, 3 * 4 * parameters + counters);
  assert_int_equal(memory.argument, memory.alias + tokens);
  /* Accumulators and, at the peak, gradients of the layers and of the ops after them. */
  assert_true(memory.gradients > 2 * 4 * (parameters - (2048 + T) * D) - 1 &&
              memory.gradients <= 2 * 4 * parameters);
}

/* Bytes that the loop over layers stacks, from the residuals that jax.linearize keeps. Per token:
 * three f32 arrays and four numbers for each norm, five arrays of the GELU, inputs of four
 * products, queries, keys and values, scores in f32 and bf16, two masks. */
static void a_loop_stacks_every_residual(void **state) {
  (void)state;
  rf_plan_options options = jax("a5000", RF_PROGRAM_JAX_SCAN, RF_BF16, SEQUENCES, 1, RF_REMAT_NONE);
  int64_t norms = 2 * (3 * 4 * D + 4 * 4), gelu = 5 * 2 * F, products = 2 * (D + F + D + D), qkv = 2 * 3 * D,
          scores = HEADS * T * (4 + 2), masks = 2 * D;
  int64_t all = (int64_t)LAYERS * SEQUENCES * T * (norms + gelu + products + qkv + scores + masks);
  assert_int_equal(size(&options).stacked, all);
  options.build.dropout = 0;
  assert_int_equal(size(&options).stacked, all - (int64_t)LAYERS * SEQUENCES * T * masks);
  options.remat = RF_REMAT_BLOCK;
  assert_int_equal(size(&options).stacked, (int64_t)LAYERS * SEQUENCES * T * 2 * D);
  options.remat = RF_REMAT_MLP_ATTN;
  assert_int_equal(size(&options).stacked, (int64_t)LAYERS * SEQUENCES * T * 2 * 2 * D);
  options.program.program = RF_PROGRAM_JAX_UNROLLED;
  assert_int_equal(size(&options).stacked, 0);
}

/* With adapters only on the products of attention, the products of an MLP keep nothing: their
 * matrices have no gradient. */
static void frozen_products_keep_no_input(void **state) {
  (void)state;
  rf_plan_options options = jax("a5000", RF_PROGRAM_JAX_SCAN, RF_BF16, 1, 1, RF_REMAT_NONE);
  rf_model model = model_named("uva");
  rf_program_memory all, mlp;
  rf_error error = {0};
  options.build.dropout = 0;
  assert_int_equal(rf_lora_parse("rank=4,targets=qkv,up,down", &model, &model.lora, &error), RAFTER_OK);
  assert_int_equal(rf_plan_program_size(&model, &options, &all, &error), RAFTER_OK);
  model = model_named("uva");
  assert_int_equal(rf_lora_parse("rank=4,targets=qkv", &model, &model.lora, &error), RAFTER_OK);
  assert_int_equal(rf_plan_program_size(&model, &options, &mlp, &error), RAFTER_OK);
  /* The inputs of up and down and the tensors of their adapters, and nothing larger. */
  assert_true(all.stacked - mlp.stacked >= (int64_t)LAYERS * T * 2 * (D + F) &&
              all.stacked - mlp.stacked < (int64_t)LAYERS * T * 2 * (D + F + D));
}

/* Recomputed dropout in f32 on a TPU: XLA writes 31 constants of the random-number generator as
 * arrays of (64, 512, 1024) f32. Totals of programs that libtpu 0.0.52 compiled. */
static void f32_dropout_that_is_recomputed_writes_its_constants(void **state) {
  (void)state;
  static const struct {
    rf_remat remat;
    int64_t temp;
  } rows[] = {{RF_REMAT_MLP_ATTN, 7981957120}, {RF_REMAT_BLOCK, 6371278848}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_plan_options options = jax("tpu-v5e", RF_PROGRAM_JAX_SCAN, RF_F32, 64, 1, rows[i].remat);
    int64_t with = size(&options).temp;
    assert_true(llabs(with - rows[i].temp) < rows[i].temp / 20);
    options.build.dropout = 0;
    int64_t without = size(&options).temp;
    assert_true(with - without > (int64_t)4 * 4 * 64 * T * D);
    options.build.dtype = RF_BF16;
    int64_t bf16 = size(&options).temp;
    options.build.dropout = 0.1f;
    assert_true(size(&options).temp - bf16 < (int64_t)4 * 64 * T * D);
  }
}

/* A program whose arrays all fit in on-chip memory has none in device memory. One that does not fit
 * keeps its gradients and copies in device memory. */
static void a_tiny_program_is_on_the_chip(void **state) {
  (void)state;
  rf_plan_options options = jax("tpu-v5e", RF_PROGRAM_JAX_SCAN, RF_BF16, 32, 1, RF_REMAT_BLOCK);
  static const struct {
    const char *model;
    bool fits;
  } rows[] = {{"uva:layers=2,width=256,ff=1024,heads=2,seq=128", true},
              {"uva:layers=6,width=512,ff=2048,heads=4,seq=128", false}};
  options.build.seq = 128;
  options.build.dropout = 0;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_model model = model_named(rows[i].model);
    rf_program_memory memory;
    rf_error error = {0};
    model.head_dim = 128;
    assert_int_equal(rf_plan_program_size(&model, &options, &memory, &error), RAFTER_OK);
    assert_int_equal(memory.temp == 0, rows[i].fits);
    assert_int_equal(memory.gradients == 0 && memory.copies == 0, rows[i].fits);
  }
}

static double gib(rf_program_kind program, rf_dtype dtype, int64_t microbatch, int accumulate, rf_remat remat,
                  double *seconds) {
  rf_plan_options options = jax("a5000", program, dtype, microbatch, accumulate, remat);
  rf_model model = model_named("uva");
  rf_plan *plan = NULL;
  rf_error error = {0};
  if (rf_plan_make(&model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
  double bytes = (double)plan->arena_bytes, sum = 0;
  int64_t classes = 0;
  for (int i = 0; i < plan->graph->op_count; i++) sum += plan->op[i].seconds * plan->op[i].calls;
  for (int c = 0; c < RF_CLASSES; c++) classes += plan->by_class[c];
  assert_true(classes == plan->arena_bytes && sum > 0.999999 * plan->step_seconds &&
              sum < 1.000001 * plan->step_seconds);
  *seconds = plan->step_seconds;
  rf_plan_free(plan);
  return bytes / GIB;
}

/* A series of memory savings from a published tutorial on one A5000: measured memory and seconds of
 * each, and their order. */
static void the_published_ladder_stands(void **state) {
  (void)state;
  static const struct {
    rf_program_kind program;
    rf_dtype dtype;
    int microbatch, accumulate;
    rf_remat remat;
    double least, most, seconds;
  } rungs[] = {{RF_PROGRAM_JAX_SCAN, RF_F32, 16, 4, RF_REMAT_NONE, 17.51, 23.69, 2.1},
               {RF_PROGRAM_JAX_SCAN, RF_BF16, 16, 4, RF_REMAT_NONE, 12.41, 16.79, 1.1},
               {RF_PROGRAM_JAX_UNROLLED, RF_BF16, 16, 4, RF_REMAT_NONE, 5.72, 10.12, 0.73},
               {RF_PROGRAM_JAX_SCAN, RF_BF16, 16, 4, RF_REMAT_MLP_ATTN, 3.315, 4.485, 0.91},
               {RF_PROGRAM_JAX_SCAN, RF_BF16, 16, 4, RF_REMAT_BLOCK, 3.23, 4.37, 0.96},
               {RF_PROGRAM_JAX_SCAN, RF_BF16, 64, 1, RF_REMAT_MLP_ATTN, 5.27, 7.13, 0.86},
               {RF_PROGRAM_JAX_SCAN, RF_BF16, 256, 1, RF_REMAT_MLP_ATTN, 12, 18, 0}};
  enum { RUNGS = sizeof rungs / sizeof *rungs };
  double bytes[RUNGS], seconds[RUNGS];
  for (int i = 0; i < RUNGS; i++) {
    bytes[i] = gib(rungs[i].program, rungs[i].dtype, rungs[i].microbatch, rungs[i].accumulate, rungs[i].remat,
                   &seconds[i]);
    if (bytes[i] < rungs[i].least || bytes[i] > rungs[i].most) fail_msg("rung %d: %.2f GiB", i, bytes[i]);
    if (rungs[i].seconds > 0 && (seconds[i] < 0.7 * rungs[i].seconds || seconds[i] > 1.3 * rungs[i].seconds))
      fail_msg("rung %d: %.3f s", i, seconds[i]);
  }
  assert_true(bytes[0] > bytes[1] && bytes[1] > bytes[2] && bytes[2] > bytes[3] && bytes[3] > bytes[4] &&
              bytes[5] > bytes[3]);
  assert_true(seconds[0] > seconds[1] && seconds[1] > seconds[2] && seconds[3] > seconds[2] &&
              seconds[4] > seconds[3] && seconds[5] < seconds[3]);
}

static void what_has_no_program_is_refused_and_the_search_goes_on(void **state) {
  (void)state;
  rf_plan_options options = jax("tpu-v5e", RF_PROGRAM_JAX_SCAN, RF_BF16, 64, 1, RF_REMAT_AUTO);
  rf_model model = model_named("uva");
  rf_plan *plan = NULL;
  rf_error error = {0};
  assert_int_equal(rf_plan_make(&model, &options, &plan, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "--remat"));
  options.remat = RF_REMAT_NONE;
  options.build.microbatch = 64;
  options.build.seq = 1 << 24;
  rf_model wide =
      model_named("llama:layers=64,width=8192,ff=8192,heads=4096,kv_heads=4096,vocab=32000,seq=16777216");
  rf_program_memory memory;
  assert_int_equal(rf_plan_program_size(&wide, &options, &memory, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "2^61"));
  options.build.seq = T;
  static rf_fit_found all;
  assert_int_equal(rf_plan_fit(&model, &options, (rf_fit_vary){.remat = true, .microbatch = true}, NULL,
                               &plan, &all, &error),
                   RAFTER_OK);
  assert_true(plan->arena_bytes <= rf_plan_room(&options) && plan->program.total == plan->arena_bytes &&
              all.rows > 0);
  rf_plan_free(plan);
}

/* With fsdp, every device has its part of the matrices and their states, and two whole matrices at
 * a time. */
static void fsdp_cuts_what_is_kept_and_gathers_two_matrices(void **state) {
  (void)state;
  enum { DEVICES = 8 };
  rf_plan_options options = jax("h100-sxm", RF_PROGRAM_JAX_UNROLLED, RF_BF16, 16, 1, RF_REMAT_BLOCK);
  options.build.microbatch = 16 / DEVICES;
  rf_program_memory alone = size(&options);
  options.build.microbatch = 16;
  options.build.mesh.of[RF_AXIS_DATA] = DEVICES;
  rf_program_memory strided = size(&options);
  assert_memory_equal(&strided, &alone, sizeof alone);
  options.build.mesh.of[RF_AXIS_DATA] = 1;
  options.build.mesh.of[RF_AXIS_FSDP] = DEVICES;
  rf_program_memory cut = size(&options);
  double whole = 3 * 4 * 155877376.0;
  /* vectors are not sharded */
  assert_true((double)cut.alias > whole / DEVICES && (double)cut.alias < 1.01 * whole / DEVICES);
  assert_int_equal(cut.kept, alone.kept);
  /* two whole matrices in bf16 next to the device's own parts */
  assert_true(cut.temp > (alone.copies + alone.gradients) / DEVICES + 2 * 2 * (int64_t)D * F);
  assert_true(cut.total < alone.total);
  rf_model model = model_named("uva");
  rf_error error = {0};
  options.build.mesh.of[RF_AXIS_FSDP] = 1;
  options.build.mesh.of[RF_AXIS_TENSOR] = DEVICES;
  assert_int_equal(rf_plan_program_size(&model, &options, &cut, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "tensor=8"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(state_is_donated_and_counts_three_times),
                                     cmocka_unit_test(a_loop_stacks_every_residual),
                                     cmocka_unit_test(frozen_products_keep_no_input),
                                     cmocka_unit_test(f32_dropout_that_is_recomputed_writes_its_constants),
                                     cmocka_unit_test(a_tiny_program_is_on_the_chip),
                                     cmocka_unit_test(the_published_ladder_stands),
                                     cmocka_unit_test(fsdp_cuts_what_is_kept_and_gathers_two_matrices),
                                     cmocka_unit_test(what_has_no_program_is_refused_and_the_search_goes_on)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
