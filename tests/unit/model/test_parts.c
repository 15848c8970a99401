/* test_parts.c - tests parameters by part: every element belongs to one part, and parts agree with
 * published tables. */
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static rf_params params_of(const char *spec, rf_pool *pool) {
  rf_model model;
  rf_error error = {0};
  if (rf_model_resolve(spec, &model, NULL, &error) != RAFTER_OK) fail_msg("%s: %s", spec, error.message);
  return rf_model_params(&model, pool);
}

static void parts_sum_to_the_whole(void **state) {
  (void)state;
  for (int i = 0; rf_model_preset(i); i++) {
    rf_pool *pool = rf_pool_new();
    rf_params params = params_of(rf_model_preset(i), pool);
    int64_t sum = 0;
    for (int p = 0; p < RF_PARTS; p++) sum += params.part[p];
    assert_int_equal(sum, params.total);
    assert_int_equal(params.part[RF_PART_EMBEDDING], params.embedding);
    assert_int_equal(params.part[RF_PART_SCORES], 0);
    for (int p = 0; p < params.count; p++) {
      bool lookup = params.at[p].embedding, vector = params.at[p].rank == 1;
      assert_true(params.at[p].part < RF_PARTS && (params.at[p].part == RF_PART_EMBEDDING) == lookup);
      if (params.at[p].part == RF_PART_NORMS) assert_true(vector);
    }
    rf_pool_free(pool);
  }
}

/* Published splits, in elements: Gemma's report (embedding and the rest), and Llama 2 13B's MLP,
 * attention and vocabulary. */
static void parts_are_those_of_published_tables(void **state) {
  (void)state;
  static const struct {
    const char *model;
    int64_t embedding, rest;
  } gemma[] = {
      {"gemma-2b:vocab=256128", 524550144, 1981884416},
      {"gemma-7b:vocab=256128", 786825216, 7751248896},
      {"gemma3-1b", 301989888, 697896064},
  };
  for (size_t i = 0; i < sizeof gemma / sizeof gemma[0]; i++) {
    rf_pool *pool = rf_pool_new();
    rf_params params = params_of(gemma[i].model, pool);
    assert_int_equal(params.part[RF_PART_EMBEDDING], gemma[i].embedding);
    assert_int_equal(params.total - params.part[RF_PART_EMBEDDING], gemma[i].rest);
    rf_pool_free(pool);
  }
  rf_pool *pool = rf_pool_new();
  rf_params params = params_of("llama2-13b", pool);
  assert_int_equal(params.part[RF_PART_MLP], 3ll * 40 * 5120 * 13824);
  assert_int_equal(params.part[RF_PART_QKV] + params.part[RF_PART_OUT], 4ll * 40 * 5120 * 5120);
  assert_int_equal(params.part[RF_PART_EMBEDDING] + params.part[RF_PART_HEAD], 2ll * 32000 * 5120);
  assert_int_equal(params.part[RF_PART_NORMS], 81ll * 5120);
  rf_pool_free(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_sum_to_the_whole),
      cmocka_unit_test(parts_are_those_of_published_tables),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
