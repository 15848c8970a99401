/* history.h - the history of runs: a SQLite database ROOT/history.db with one row per run, written
 * when the run starts and when it ends. Several processes may write at once, and any of them may
 * be killed: each write is one transaction. docs/formats.md, "The history". */
#ifndef RF_REPORT_HISTORY_H
#define RF_REPORT_HISTORY_H

#include <jansson.h>

#include "base/base.h"

enum { RF_HISTORY_VERSION = 2 }; /* SQLite's user_version; version 2 added a run's host, boot, process */

typedef struct rf_history rf_history;

/* With `writes`, creates a missing folder and file and updates an older file. Without `writes`,
 * a missing file counts as an empty history. RAFTER_FAILED: the file cannot be opened, is not a
 * history, or was written by a newer program. */
rf_status rf_history_open(const char *root, bool writes, rf_history **history, rf_error *error);
void rf_history_close(rf_history *history); /* NULL is allowed */

/* A run at its start. All texts except command, model and options may be NULL. */
typedef struct rf_history_run {
  const char *name, *command, *model, *options; /* options: JSON */
  const char *directory, *folder;               /* working directory; output folder; absolute paths */
  const char *digest, *machine, *version;
  const json_t *results; /* results that are known at the start, such as predictions; may be NULL */
} rf_history_run;
rf_status rf_history_begin(rf_history *history, const rf_history_run *run, int64_t *id, rf_error *error);
/* `status`: "done", "failed" or "interrupted"; `message`: the message of the error; `results`:
 * an object of numbers and texts. */
rf_status rf_history_end(rf_history *history, int64_t id, const char *status, const char *message,
                         const json_t *results, rf_error *error);

typedef struct rf_history_filter {
  const char *model, *machine; /* text that the name contains; NULL: any name */
  const char *command;         /* exact; NULL: any */
  const char *metric;          /* only finished runs that have this result; NULL: all runs */
  int64_t id;                  /* 0: any */
  const char *name;            /* name or folder of the run; NULL: any */
} rf_history_filter;
/* Returns rows as objects, newest first; see docs/formats.md. If the process of a "running" run
 * is gone, the row's "status" is "ended without a word". */
rf_status rf_history_rows(rf_history *history, const rf_history_filter *filter, json_t **rows,
                          rf_error *error);

#endif
