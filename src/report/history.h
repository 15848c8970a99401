/* history.h - the history of runs: a SQLite database ROOT/history.db with one row per run. A run
 * writes its row at its start, and completes the row at its end. Several processes may write at
 * once. Each write is one transaction, because any process may be killed. Format: docs/formats.md,
 * "The history". */
#ifndef RF_REPORT_HISTORY_H
#define RF_REPORT_HISTORY_H

#include <jansson.h>

#include "base/base.h"

/* SQLite's user_version. Version 2 added host, boot and process of a run. */
enum { RF_HISTORY_VERSION = 2 };

typedef struct rf_history rf_history;

/* Opens the history. With `writes`, creates a missing folder and file, and updates an older file.
 * Without `writes`, a missing file is an empty history. RAFTER_FAILED: the file cannot be opened,
 * is no history, or was written by a newer program. */
rf_status rf_history_open(const char *root, bool writes, rf_history **history, rf_error *error);
void rf_history_close(rf_history *history); /* NULL is allowed */

/* A run at its start. All texts except command, model and options may be NULL. */
typedef struct rf_history_run {
  const char *name, *command, *model, *options; /* options: JSON */
  /* absolute paths of the working directory and of the output folder */
  const char *directory, *folder;
  const char *digest, *machine, *version;
  const json_t *results; /* results that are known at the start, such as predictions; may be NULL */
} rf_history_run;
rf_status rf_history_begin(rf_history *history, const rf_history_run *run, int64_t *id, rf_error *error);
/* status: "done", "failed" or "interrupted". message: the error. results: numbers and texts. */
rf_status rf_history_end(rf_history *history, int64_t id, const char *status, const char *message,
                         const json_t *results, rf_error *error);

/* Removes the row of a run. */
rf_status rf_history_remove(rf_history *history, int64_t id, rf_error *error);

typedef struct rf_history_filter {
  const char *model, *machine; /* a part of the name; NULL: any name */
  const char *command;         /* NULL: any command */
  const char *metric;          /* select only finished runs that have this result; NULL: all runs */
  int64_t id;                  /* 0: any */
  const char *name;            /* name or folder of the run; NULL: any run */
} rf_history_filter;
/* Returns the runs as objects (docs/formats.md), newest first. If a run is marked as running but
 * its process does not exist, the "status" is "ended without a word". */
rf_status rf_history_rows(rf_history *history, const rf_history_filter *filter, json_t **rows,
                          rf_error *error);

#endif
