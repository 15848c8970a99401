/* traced.h - `--trace`: records what a command's threads do; writes trace.bin and trace.json. */
#ifndef RF_TRACED_H
#define RF_TRACED_H

#include "journal/journal.h"
#include "run/record.h"

/* Opens a record if --trace is given, otherwise sets *record to NULL. Call this function before the
 * first phase. */
rf_status rf_traced_open(const rf_options *options, rf_record **record, rf_error *error);
/* Call this function after the run was opened, and before its first step. Ranks of MPI must all
 * record the same steps, and compare their clocks. rf_traced_write then writes one trace of all
 * ranks. */
rf_status rf_traced_begin(const rf_options *options, const rf_record *record, rf_run *run, rf_error *error);
/* Fails if --trace names none of the steps first .. last of the run. */
rf_status rf_traced_check(const rf_options *options, int64_t first, int64_t last, rf_error *error);
/* Writes the trace into the journal's folder. All ranks call it. Call this function before
 * rf_journal_sum_up, because the summary uses the trace. `pass` has the plans in the order of the
 * run. Without a trace, `record` is NULL. */
rf_status rf_traced_write(const rf_record *record, rf_journal *journal, const rf_report_pass *pass,
                          int passes, rf_error *error);

/* A traced run whose folder was made only for the trace. */
typedef struct rf_traced_run {
  const rf_record *record; /* NULL: rf_traced_leave writes nothing */
  const rf_run *run;
  const rf_report_pass *pass; /* plans in the order of the run */
  int passes;
} rf_traced_run;
/* Writes run.json, plan.json, report.json and the trace into --out or a new folder. `part` (may be
 * NULL) is a folder inside the run's folder. `results` is stored in the history. */
rf_status rf_traced_leave(const rf_traced_run *traced, const rf_options *options, const char *part,
                          json_t *results, const rafter_sink *sink, rf_error *error);

extern const rf_option RF_TRACE_OPTIONS[];

#endif
