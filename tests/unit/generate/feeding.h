/* feeding.h - helpers that the tests of this room share: opening a generator, reading token ids
 * from JSON and feeding them to a generator. */
#ifndef TEST_GENERATE_FEEDING_H
#define TEST_GENERATE_FEEDING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "generate/generate.h"

enum { MAX = 1024 };

/* A generator with random weights for an inline shape. Prompts share prefixes if `shares`. */
static inline rf_generator *open_shape(const char *shape, int64_t batch, int64_t context, bool shares) {
  static rf_machine machine;
  rf_infer_settings s = {.seed = 6, .no_sharing = !shares};
  rf_generator *g = NULL;
  rf_error error = {0};
  if (rf_model_resolve(shape, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){
      .build = {.job = RF_JOB_GENERATE, .softmax = RF_F32, .microbatch = batch, .seq = context},
      .backend = &RF_BACKEND_CPU,
      .isa = rf_isa_detect(),
      .threads = 1,
      .machine = &machine};
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

static inline const float *feed_or_fail(rf_generator *g, const int32_t *ids, int64_t count) {
  const float *logits = NULL;
  rf_error error = {0};
  if (rf_generator_feed(g, ids, count, &logits, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return logits;
}

static inline int64_t ids_of(const json_t *array, int32_t ids[MAX]) {
  int64_t count = (int64_t)json_array_size(array);
  assert_in_range(count, 1, MAX);
  for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
  return count;
}

#endif
