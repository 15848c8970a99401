/* traced.h - a small training that is recorded: what the tests of traces share. */
#ifndef RF_TEST_TRACED_H
#define RF_TEST_TRACED_H

#include "run/record.h"
#include "train/train.h"

enum { THREADS = 2, ACCUMULATE = 2, STEPS = 4 };
static rf_machine machine;

static inline rf_train_settings settings(void) {
  rf_train_settings s = {.data = "random:seed=4", .pack = true, .work_folder = folder, .seed = 11};
  rf_error error;
  if (rf_model_resolve("gpt:layers=2,width=64,heads=4,ff=256,vocab=512,seq=64", &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_TRAIN,
                                       .dtype = RF_F32,
                                       .softmax = RF_F32,
                                       .microbatch = 4,
                                       .seq = 64,
                                       .accumulate = ACCUMULATE,
                                       .dropout = 0,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .clip = 1},
                             .remat = RF_REMAT_MLP,
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = THREADS,
                             .machine = &machine};
  s.schedule = (rf_schedule){.kind = RF_SCHEDULE_CONSTANT, .peak = 1e-3, .steps = 100};
  return s;
}

static inline rf_trace *collect(const rf_record *record, const rf_trainer *t) {
  const rf_plan *plans[] = {t->plan};
  const char *names[] = {"train"};
  rf_trace *trace = NULL;
  rf_error error = {0};
  if (rf_trace_collect(record, plans, names, 1, &trace, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return trace;
}

static inline rf_record *open_record(const char *when) {
  rf_trace_when w;
  rf_record *record = NULL;
  rf_error error = {0};
  if (rf_trace_when_parse(when, &w, &error) != RAFTER_OK || rf_record_open(&w, THREADS, &record, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return record;
}

static inline void set_machine(void) {
  machine = (rf_machine){
      .name = "test", .kind = "cpu", .source = "file", .chips = 1, .threads = THREADS, .memory_bytes = 8e9, .read_bps = 1e10, .copy_bps = 1e10};
  machine.flops[RF_F32] = 1e8; /* far slower than any: predictions of one step reach behind the end of the next */
}

#endif
