/* traced.h - a small recorded training that the tests of traces share. */
#ifndef RF_TEST_TRACED_H
#define RF_TEST_TRACED_H

#include "run/record.h"
#include "support/training.h"

enum { THREADS = 2, ACCUMULATE = 2, STEPS = 4 };
static rf_machine machine;

static inline rf_train_settings settings(void) {
  rf_train_settings s = training_settings("gpt:layers=2,width=64,heads=4,ff=256,vocab=512,seq=64", folder,
                                          &machine, 64, THREADS);
  s.plan.build.accumulate = ACCUMULATE;
  s.plan.remat = RF_REMAT_MLP;
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
  if (rf_trace_when_parse(when, &w, &error) != RAFTER_OK ||
      rf_record_open(&w, THREADS, &record, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  return record;
}

static inline void set_machine(void) {
  machine = (rf_machine){.name = "test",
                         .kind = RF_MACHINE_CPU,
                         .source = "file",
                         .chips = 1,
                         .threads = THREADS,
                         .memory_bytes = 8e9,
                         .read_bps = 1e10,
                         .copy_bps = 1e10};
  /* Far slower than any machine, so predictions of one step extend past the end of the next. */
  machine.flops[RF_F32] = 1e8;
}

#endif
