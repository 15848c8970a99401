/* plans.h - helpers that the tests of this room share: options, and a model made from a few
 * numbers. */
#ifndef RF_TEST_PLANS_H
#define RF_TEST_PLANS_H

#include "plan/parts.h"
#include "support/plan/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GIB 0x1p30

static inline rf_plan_options train_options(const rf_machine *machine, rf_dtype dtype, int64_t microbatch,
                                            int accumulate, int64_t seq, rf_remat remat) {
  return (rf_plan_options){.build = {.job = RF_JOB_TRAIN,
                                     .dtype = dtype,
                                     .softmax = RF_F32,
                                     .microbatch = microbatch,
                                     .seq = seq,
                                     .rows = microbatch * seq,
                                     .accumulate = accumulate,
                                     .dropout = -1,
                                     .optimizer = RF_ADAMW,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .clip = 1},
                           .remat = remat,
                           .backend = &RF_BACKEND_NULL,
                           .isa = RF_ISA_AVX512,
                           .threads = 2,
                           .machine = machine};
}

static inline const rf_machine *machine_named(const char *name) {
  static rf_machine machines[5];
  static int count;
  for (int i = 0; i < count; i++)
    if (!strcmp(machines[i].name, name)) return &machines[i];
  assert_in_range(count, 0, 4);
  assert_int_equal(rf_machine_find(name, &machines[count], NULL), RAFTER_OK);
  return &machines[count++];
}

static inline rf_model model_named(const char *name) {
  rf_model model;
  rf_error error = {0};
  if (rf_model_resolve(name, &model, NULL, &error) != RAFTER_OK) fail_msg("%s: %s", name, error.message);
  return model;
}

/* Makes a plan, which must succeed and pass the checker. */
static inline rf_plan *plan_of(const rf_model *model, const rf_plan_options *options) {
  rf_plan *plan = NULL;
  rf_error error = {0};
  if (rf_plan_make(model, options, &plan, &error) != RAFTER_OK)
    fail_msg("%s: %s", model->name, error.message);
  if (rf_plan_check(plan, &error) != RAFTER_OK) fail_msg("%s: %s", model->name, error.message);
  return plan;
}

/* A small generator of test numbers that is the same on every machine. */
static inline uint32_t draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}
static inline int64_t draw_in(uint64_t *state, int64_t least, int64_t most) {
  return least + (int64_t)(draw(state) % (uint64_t)(most - least + 1));
}

#endif
