/* journal.h - what a run leaves behind: run.json and plan.json before it starts, report.json
 * when it ends, and its row of the history. docs/formats.md, "A run". */
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
  const rf_commands *commands; /* "plan" of them plans the run again */
  double began, delayed;       /* as rf_now_seconds and rf_run_delayed had it */
  json_t *run;                 /* run.json */
  json_t *results;             /* an object, for the history: numbers and texts that a command may add to */
  json_t *traced;              /* the header of its trace; NULL: there is none */
  int64_t id;                  /* of the run in the history; 0: it is not there */
  bool beside; /* set before it begins: the summary stands beside the results, not among them */
} rf_journal;

/* Where runs go: $RAFTER_RUNS, else "runs". */
const char *rf_runs_root(void);
/* ROOT/DATE-TIME-MODEL, for a run that was given no folder. */
void rf_journal_name_folder(const rf_options *options, char folder[4096]);
/* Makes that folder, which no other run has: where the name is taken, NAME-2, NAME-3 ... */
rf_status rf_journal_make_folder(const rf_options *options, char folder[4096], rf_error *error);
/* The folder of a run that needs none: --out as typed, or with --trace a name of its own, made
 * here; else "". RAFTER_FAILED: a run is in it. */
rf_status rf_journal_folder(const rf_options *options, char folder[4096], rf_error *error);
/* Writes the records of a run that begins. walk[0] is the plan that stands at the top of
 * plan.json, the others stand in its "plans". Takes `options`, which
 * repeat the run of `o`. `folder`
 * "": nothing is written. RAFTER_FAILED: the folder cannot be written. */
rf_status rf_journal_begin(rf_journal *journal, const rafter_sink *sink, const rf_options *o, json_t *options,
                           const char *folder, const rf_report_walk *walk, int walks, rf_error *error);
/* What was measured of a run that is done: writes report.json and says the summary. `seconds`:
 * of the whole run, for what an advice may cost. */
rf_status rf_journal_sum_up(rf_journal *journal, const rf_run *run, const rf_report_walk *walk, int walks,
                            double seconds, rf_error *error);
/* How it ended, for the history. What was not begun is passed over; `error` may be NULL. */
void rf_journal_close(rf_journal *journal, rf_status status, const rf_error *error);

/* report.json; the caller's. NULL only without memory. */
json_t *rf_journal_report(const rf_run *run, const rf_report_walk *walk, int walks);
/* --out of commands that always leave a folder; of those that may */
extern const rf_option RF_RUN_FOLDER_OPTIONS[], RF_LEFT_FOLDER_OPTIONS[];

#endif
