/* test_shard_cpu.c - kernels of the CPU compute the ops of sharded graphs as the reference does, on
 * every chip and instruction set. test_shard.c verifies the graphs themselves. */
#include "support/compare.h"
#include "support/kernel_check.h"
#include "support/op_parts.h"
#include "support/shard_cases.h"

static int failures;

static rf_graph *cut_graph(const setting *s, rf_build_options options, rf_graph **whole) {
  rf_model model = fixture_model(s->model);
  if (s->lora) fixture_lora(&model, s->lora);
  rf_error error = {0};
  rf_graph *cut = NULL;
  *whole = fixture_graph(&model, &options, s->after);
  if (rf_mesh_parse(s->mesh, s->zero, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  options.mesh.capacity = 4; /* room for every row */
  if (rf_graph_build(&model, &options, s->after, &cut, &error) != RAFTER_OK)
    fail_msg("%s, %s: %s", s->model, s->mesh, error.message);
  return cut;
}

static void check_kernels(const setting *s, rf_build_options options, kernel_check *check) {
  rf_graph *whole, *cut = cut_graph(s, options, &whole);
  world *w = world_new(cut, whole->rows);
  int64_t before = check->compared, wrong = check->wrong;
  check->wrong = 0;
  w->kernel = kernel_check_run;
  w->context = check;
  shard_step(w, whole);
  if (check->wrong)
    fprintf(stderr, "  %s over %s, zero %d, %s: %lld of %lld calls: %s\n", s->model, s->mesh, s->zero,
            rf_dtype_name(options.dtype), (long long)check->wrong, (long long)(check->compared - before),
            check->text);
  failures += check->wrong > 0;
  assert_true(check->compared > before);
  check->wrong += wrong;
  world_free(w);
  rf_graph_free(whole);
  rf_graph_free(cut);
}

static const rf_dtype DTYPES[] = {RF_F32, RF_BF16};

/* With the place of another chip, kernels of `ops` give wrong results. So the comparison finds a
 * kernel that does not ask for its place. */
static void places_matter(const kernel_check *check, const char *const *ops) {
  for (; *ops; ops++) {
    int i = 0;
    while (i < check->placed_count && strcmp(check->placed[i].op->name, *ops)) i++;
    if (i == check->placed_count) fail_msg("%s: no chip of a mesh ran a kernel of the CPU", *ops);
    if (!check->placed[i].noticed) fail_msg("%s: the place of another chip is not noticed", *ops);
  }
}

/* Under the sanitizers, which make kernels slow, every EACHth setting runs. */
#ifdef __SANITIZE_ADDRESS__
enum { EACH = 8 };
#else
enum { EACH = 1 };
#endif

static void test_steps(void **state) {
  (void)state;
  static const char *const placed[] = {"embed",         "embed_bwd", "matmul",         "head_part",
                                       "head_loss_bwd", "dropout",   "attention_part", NULL};
  kernel_check check = {0};
  failures = 0;
  for (size_t i = 0; i < sizeof SHARD_SETTINGS / sizeof *SHARD_SETTINGS; i += EACH)
    for (int d = 0; d < 2; d++)
      check_kernels(&SHARD_SETTINGS[i], shard_training(&SHARD_SETTINGS[i], DTYPES[d]), &check);
  if (failures) fail_msg("%d settings differ", failures);
  if (EACH == 1) places_matter(&check, placed);
}

static void test_passes_of_a_generator(void **state) {
  (void)state;
  static const char *const placed[] = {"embed", "matmul", "head_logits", NULL};
  kernel_check check = {0};
  failures = 0;
  for (size_t i = 0; i < sizeof SHARD_PASSES / sizeof *SHARD_PASSES; i += EACH)
    for (int d = 0; d < 2; d++)
      check_kernels(&SHARD_PASSES[i], shard_pass(&SHARD_PASSES[i], DTYPES[d]), &check);
  if (failures) fail_msg("%d settings differ", failures);
  if (EACH == 1) places_matter(&check, placed);
}

/* The second of two chips, with rows for several tiles of queries and blocks of keys. */
static op_harness *second_chip(const op_case *of, const op_size *size, rf_dtype dtype) {
  op_harness *h = op_case_build(of, size, dtype);
  h->graph->mesh.of[RF_AXIS_CONTEXT] = 2;
  for (int o = 0; o < h->graph->op_count; o++) h->graph->op[o].attr.axes = RF_AXIS_BIT(RF_AXIS_CONTEXT);
  h->run.place[RF_AXIS_CONTEXT] = 1;
  return h;
}

static void compare_long_rows(const op_case *of, const op_size *size, rf_dtype dtype) {
  op_harness *h = second_chip(of, size, dtype);
  const rf_op *op = &h->graph->op[h->subject];
  op_run_range(h, 0, h->subject + 1, &RF_BACKEND_REFERENCE, RF_ISA_BASE, 1);
  void *want[2] = {op_copy(h, op->output[0]), op_copy(h, op->output[1])}, *first[2] = {0};
  for (rf_isa isa = RF_ISA_BASE; isa <= rf_isa_detect(); isa++)
    for (int threads = 1; threads <= 3 && rf_isa_runs(isa); threads += 2) {
      op_reset(h, h->subject);
      op_run_range(h, h->subject, h->subject + 1, &RF_BACKEND_CPU, isa, threads);
      for (int i = 0; i < 2; i++) {
        const rf_tensor *t = &h->graph->tensor[op->output[i]];
        double norm = (double)(t->dtype == RF_BF16 ? op->def->tolerance.bf16 : op->def->tolerance.f32);
        compare_report report;
        int64_t count = rf_tensor_count(t);
        void *got = op_data(h, op->output[i]);
        if (!compare_close(t->dtype, got, want[i], count, (compare_bound){norm, 4 * norm}, &report))
          fail_msg("%s [%s], %s, %s, %d threads: %s", of->op, of->name, rf_dtype_name(dtype),
                   rf_isa_name(isa), threads, report.text);
        if (!first[i]) first[i] = op_copy(h, op->output[i]);
        if (!compare_equal(t->dtype, got, first[i], count, &report))
          fail_msg("%s [%s], %s, %s, %d threads: other bits: %s", of->op, of->name, rf_dtype_name(dtype),
                   rf_isa_name(isa), threads, report.text);
      }
    }
  for (int i = 0; i < 2; i++) {
    free(want[i]);
    free(first[i]);
  }
  op_harness_free(h);
}

static void test_attention_of_long_rows(void **state) {
  (void)state;
  static const op_case cases[] = {
      {"attention_part", "one segment", build_attention_part, NULL, OP_GROUP},
      {"attention_part", "window", build_attention_part, NULL, OP_GROUP | OP_SEGMENTS | OP_WINDOW},
      {"attention_part_bwd", "one segment", build_attention_part, NULL, OP_GROUP},
      {"attention_part_bwd", "window", build_attention_part, NULL, OP_GROUP | OP_SEGMENTS | OP_WINDOW}};
  static const op_size sizes[] = {{210, 0, 0, 2, 1, 16}, {131, 0, 0, 4, 2, 10}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
      for (int d = 0; d < 2; d++) compare_long_rows(&cases[i], &sizes[k], DTYPES[d]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_steps),
      cmocka_unit_test(test_passes_of_a_generator),
      cmocka_unit_test(test_attention_of_long_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
