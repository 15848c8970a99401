/* training.h - settings of a small training run on random tokens, for tests that change a few of
 * them. */
#ifndef RF_TESTS_TRAINING_H
#define RF_TESTS_TRAINING_H

#include "train/train.h"

/* Settings in f32, without dropout, weight decay or remat, with one microbatch of 4 rows. `files`
 * gets the run's folder; `on` must outlive the settings. */
static inline rf_train_settings training_settings(const char *spec, const char *files, const rf_machine *on,
                                                  int64_t seq, int threads) {
  rf_train_settings s = {.data = "random:seed=4", .pack = true, .work_folder = files, .seed = 11};
  rf_error error;
  if (rf_model_resolve(spec, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_build_options build = {
      .job = RF_JOB_TRAIN, .dtype = RF_F32, .softmax = RF_F32, .microbatch = 4, .seq = seq, .accumulate = 1};
  build.beta1 = 0.9f;
  build.beta2 = 0.95f;
  build.eps = 1e-8f;
  build.clip = 1;
  s.plan = (rf_plan_options){
      .build = build, .backend = &RF_BACKEND_CPU, .isa = rf_isa_detect(), .threads = threads, .machine = on};
  s.schedule = (rf_schedule){.kind = RF_SCHEDULE_CONSTANT, .peak = 1e-3, .steps = 100};
  return s;
}

#endif
