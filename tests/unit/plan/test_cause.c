/* test_cause.c - tests the causes of abrupt changes. Two plans differ in one fact, and the test
 * expects this fact as the cause. */
#include "unit/plan/plans.h"

#include "plan/cause.h"

static rf_plan *plan_with(const rf_backend *backend, const char *machine, const char *model, bool generates,
                          int64_t batch, int64_t seq) {
  rf_model m = model_named(model);
  rf_plan_options o = train_options(machine_named(machine), RF_BF16, batch, 1, seq, RF_REMAT_NONE);
  if (generates) {
    o.build.job = RF_JOB_GENERATE;
    o.build.rows = batch;
  }
  o.backend = backend;
  return plan_of(&m, &o);
}
static rf_plan *plan_on(const char *machine, const char *model, bool generates, int64_t batch, int64_t seq) {
  return plan_with(&RF_BACKEND_SHEET_GPU, machine, model, generates, batch, seq);
}

/* growth: the expected growth without the abrupt change. */
static void named(rf_plan *before, rf_plan *after, bool memory, double growth, const char *kind,
                  const char *word) {
  rf_cause cause =
      memory ? rf_cause_of_memory(before, after, growth) : rf_cause_of_time(before, after, growth);
  if (strcmp(cause.kind, kind) || !strstr(cause.text, word))
    fail_msg("expected %s with '%s', got %s: %s", kind, word, cause.kind, cause.text);
  rf_plan_free(before);
  rf_plan_free(after);
}

static void the_fact_that_differs_is_named(void **state) {
  (void)state;
  /* 7936 columns are 62 tiles of 128. 8000 columns are 63 tiles, and the last one is half empty. */
  named(plan_on("tpu-v5e", "llama:layers=2,width=1024,heads=8,ff=7936,vocab=512,seq=512", false, 8, 512),
        plan_on("tpu-v5e", "llama:layers=2,width=1024,heads=8,ff=8000,vocab=512,seq=512", false, 8, 512),
        false, 8000.0 / 7936, "tile", "128");
  /* 257 tokens need a second page of 256. */
  named(plan_on("a5000", "gpt2", true, 8, 256), plan_on("a5000", "gpt2", true, 8, 257), true, 1, "page",
        "2 pages");
  /* Few rows are bound by reading the weights, many rows by their products. */
  named(plan_on("tpu-v5e", "llama:layers=2,width=1024,heads=8,ff=8192,vocab=512,seq=512", true, 8, 16),
        plan_on("tpu-v5e", "llama:layers=2,width=1024,heads=8,ff=8192,vocab=512,seq=512", true, 1024, 16),
        false, 1, "bound", "arithmetic");
  /* With up to sixteen rows, products read the weights in place. With more rows, they pack them. */
  named(plan_with(&RF_BACKEND_NULL, "a5000", "gpt2", true, 16, 64),
        plan_with(&RF_BACKEND_NULL, "a5000", "gpt2", true, 17, 64), false, 0.5, "kernel",
        "from kernel gemm_avx512_12x32_panels to gemm_avx512_12x32 at 17 rows");
  /* Twice the rows keep twice the activations. The bytes of weights do not change. */
  named(plan_on("a5000", "gpt2", false, 4, 512), plan_on("a5000", "gpt2", false, 8, 512), true, 1, "class",
        "activation");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_fact_that_differs_is_named)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
