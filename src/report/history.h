/* history.h - the history of runs: a SQLite database ROOT/history.db with one row for each,
 * written when it starts and when it ends. Any number of processes may write at once, and any of
 * them may be killed: each write is one transaction. docs/formats.md, "The history". */
#ifndef RF_REPORT_HISTORY_H
#define RF_REPORT_HISTORY_H

#include <jansson.h>

#include "base/base.h"

enum { RF_HISTORY_VERSION = 2 }; /* user_version: 2 knows whose process a run is */

typedef struct rf_history rf_history;

/* `writes`: makes the folder and the file where they are missing, and brings an older file up to
 * date; else a file that is not there has no rows. RAFTER_FAILED: it cannot be opened, is no
 * history, or is of a newer program. */
rf_status rf_history_open(const char *root, bool writes, rf_history **history, rf_error *error);
void rf_history_close(rf_history *history); /* NULL is allowed */

/* What is known when a run starts. Texts may be NULL but for command, model and options. */
typedef struct rf_history_run {
  const char *name, *command, *model, *options; /* options: JSON */
  const char *directory, *folder;               /* where it was started; what it writes into, absolute */
  const char *digest, *machine, *version;
  const json_t *results; /* what is known already: predictions; NULL: nothing */
} rf_history_run;
rf_status rf_history_begin(rf_history *history, const rf_history_run *run, int64_t *id, rf_error *error);
/* `status`: "done", "failed" or "interrupted"; `message`: of the error; `results`: an object of
 * numbers and texts. */
rf_status rf_history_end(rf_history *history, int64_t id, const char *status, const char *message,
                         const json_t *results, rf_error *error);

typedef struct rf_history_filter {
  const char *model, *machine, *command; /* parts of these; NULL: any */
  const char *metric;                    /* only runs that are done and have it in their results */
  int64_t id;                            /* 0: any */
  const char *name;                      /* of a run, or its folder; NULL: any */
} rf_history_filter;
/* Rows as objects, the newest first; see docs/formats.md. "status" also says "ended without a
 * word" of a run whose process is gone. */
rf_status rf_history_rows(rf_history *history, const rf_history_filter *filter, json_t **rows,
                          rf_error *error);

#endif
