/* journal.h - what a run leaves behind: run.json and plan.json before it starts, report.json when it ends. docs/formats.md, "A run". */
#ifndef RF_API_JOURNAL_H
#define RF_API_JOURNAL_H

#include "api/api.h"

typedef struct rf_journal {
  char folder[4096]; /* "": the run has none */
  const rafter_sink *sink;
} rf_journal;

/* Writes the records of a run that begins. walk[0] is the plan that stands at the top of plan.json, the others stand in its "plans". Takes `options`, which
 * repeat the run. `folder` "": nothing is written. RAFTER_FAILED: the folder cannot be written. */
rf_status rf_journal_begin(rf_journal *journal, const rafter_sink *sink, const char *command, json_t *options, const char *folder,
                           const rf_report_walk *walk, int walks, rf_error *error);
/* report.json of what was measured; the caller's. NULL only without memory. */
json_t *rf_journal_report(const rf_run *run, const rf_report_walk *walk, int walks);
/* Writes it. */
rf_status rf_journal_write_report(const rf_journal *journal, const json_t *report, rf_error *error);

#endif
