/* journal.h - records a run: writes run.json and plan.json before the run starts, report.json when
 * it ends, and a row in the history. docs/formats.md, "A run". */
#ifndef RF_JOURNAL_H
#define RF_JOURNAL_H

#include "base/options.h"
#include "base/file.h"
#include "base/json.h"
#include "base/say.h"
#include "report/report.h"

typedef struct rf_journal {
  char folder[4096]; /* "": the run has none */
  const rafter_sink *sink;
  const rf_commands *commands; /* must contain "plan", which plans the run again */
  double began, delayed;       /* rf_now_seconds and rf_run_delayed at its start */
  json_t *run;                 /* run.json */
  json_t *results;             /* numbers and texts for the history; a command may add more */
  json_t *traced;              /* the header of the run's trace; NULL: no trace */
  int64_t id;                  /* row id of the run in the history; 0: none */
  bool beside;                 /* print the summary as a note; set before rf_journal_begin */
} rf_journal;

/* The folder of all runs: $RAFTER_RUNS, else "runs". */
const char *rf_runs_root(void);
/* ROOT/DATE-TIME-MODEL, for a run without --out. */
void rf_journal_name_folder(const rf_options *options, char folder[4096]);
/* Makes the folder ROOT/DATE-TIME-MODEL; if that name is taken, appends -2, -3 and so on. */
rf_status rf_journal_make_folder(const rf_options *options, char folder[4096], rf_error *error);
/* The folder of a run that needs none: --out if given, a new folder with --trace, else "".
 * RAFTER_FAILED: the folder already has a run. */
rf_status rf_journal_folder(const rf_options *options, char folder[4096], rf_error *error);
/* Starts the record of a run of `o`. walk[0] becomes the main plan in plan.json. Further plans
 * become "plans" in plan.json. Takes ownership of `options`, which are enough to repeat the run.
 * `folder` "": no files are written. */
rf_status rf_journal_begin(rf_journal *journal, const rafter_sink *sink, const rf_options *o, json_t *options,
                           const char *folder, const rf_report_walk *walk, int walks, rf_error *error);
/* Writes report.json of a finished run and prints its summary. `seconds` is the time of the whole
 * run; the time for advice is a small part of it. */
rf_status rf_journal_sum_up(rf_journal *journal, const rf_run *run, const rf_report_walk *walk, int walks,
                            double seconds, rf_error *error);
/* Completes the run's row in the history, if it has one. `error` may be NULL. */
void rf_journal_close(rf_journal *journal, rf_status status, const rf_error *error);

/* The object of report.json. The caller frees it. NULL only without memory. */
json_t *rf_journal_report(const rf_run *run, const rf_report_walk *walk, int walks);
/* The --out option of commands that always write a folder, and of commands that may write one. */
extern const rf_option RF_RUN_FOLDER_OPTIONS[], RF_LEFT_FOLDER_OPTIONS[];

#endif
