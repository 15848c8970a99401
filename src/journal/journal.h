/* journal.h - records a run. Writes run.json and plan.json before the run starts. Writes
 * report.json when the run ends. The history gets one row for each run. See docs/formats.md, "A
 * run". */
#ifndef RF_JOURNAL_H
#define RF_JOURNAL_H

#include "base/options.h"
#include "base/file.h"
#include "base/json.h"
#include "base/say.h"
#include "report/report.h"

typedef struct rf_journal {
  char folder[4096]; /* "": the run has no folder */
  const rafter_sink *sink;
  /* must contain the command "plan", with which the plan of the run can be computed again */
  const rf_commands *commands;
  double began,    /* rf_now_seconds at the start of the run */
      delayed;     /* rf_run_delayed at the start of the run */
  json_t *run;     /* run.json */
  json_t *results; /* numbers and texts for the history; a command may add others */
  json_t *traced;  /* the header of the run's trace; NULL: no trace */
  int64_t id;      /* id of the run in the history; 0: not in the history */
  bool table;      /* true: the summary is printed and written; false: it is only written */
  bool unlisted;   /* true: the history gets no row. Set before rf_journal_begin */
  bool as_note; /* true: the summary is printed as a note, and not as a result. Set before rf_journal_begin */
} rf_journal;

/* Returns the folder of all runs: $RAFTER_RUNS or, if it is unset, "runs". Called ROOT below. */
const char *rf_runs_root(void);
/* Sets `folder` to ROOT/DATE-TIME-MODEL, for a run without --out. */
void rf_journal_name_folder(const rf_options *options, char folder[4096]);
/* Makes the folder ROOT/DATE-TIME-MODEL. If the name is taken, appends -2, -3 and so on. */
rf_status rf_journal_make_folder(const rf_options *options, char folder[4096], rf_error *error);
/* Sets `folder` for a run that may have no folder. The folder is the value of --out. Without --out,
 * it is a new folder if --trace is given, otherwise "". RAFTER_FAILED: the folder already has a
 * run. */
rf_status rf_journal_folder(const rf_options *options, char folder[4096], rf_error *error);
/* Starts the record of a run with the options `o`. pass[0] becomes the main plan in plan.json.
 * Further plans become "plans" in plan.json. Takes ownership of `options`, from which the run can
 * be repeated. If `folder` is empty, no files are written. */
rf_status rf_journal_begin(rf_journal *journal, const rafter_sink *sink, const rf_options *o, json_t *options,
                           const char *folder, const rf_report_pass *pass, int passes, rf_error *error);
/* Writes report.json of a finished run and prints the run's summary. `seconds` is the time of the
 * whole run. The advice takes at most a small part of this time. */
rf_status rf_journal_sum_up(rf_journal *journal, const rf_run *run, const rf_report_pass *pass, int passes,
                            double seconds, rf_error *error);
/* Completes the run's row in the history table, if there is one. `error` may be NULL. */
void rf_journal_close(rf_journal *journal, rf_status status, const rf_error *error);

/* Returns the object of report.json. The caller frees it. NULL: out of memory. */
json_t *rf_journal_report(const rf_run *run, const rf_report_pass *pass, int passes);
/* The option --out, once for commands that always write a folder, and once for commands that may
 * write a folder. */
extern const rf_option RF_RUN_FOLDER_OPTIONS[], RF_LEFT_FOLDER_OPTIONS[];

#endif
