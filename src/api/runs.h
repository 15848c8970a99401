/* runs.h - what the files runs*.c share. */
#ifndef RF_RUNS_H
#define RF_RUNS_H

#include "base/options.h"
#include "base/say.h"
#include "report/history.h"
#include "journal/journal.h"

/* Finds a run by its number, name or folder. The caller frees the row. */
rf_status rf_runs_find(rf_history *history, const char *which, json_t **row, rf_error *error);
/* If a row of the history has no results, adds results from metrics.jsonl. A run without results is
 * still running, has failed, or was killed. Also adds the best evaluation of a run with rewards. */
void rf_runs_add_left(json_t *row);
/* `rafter runs rm RUN...` */
rf_status rf_runs_remove(const rf_options *o, const rafter_sink *sink, rf_error *error);

#endif
